"""Exact answers of the com.microsoft quantized operators, element by element, from their definitions.

Plain Python integers and fractions; exponentials from a series in integer arithmetic. Scales that are not finite
numbers follow IEEE 754: a quotient of them is one of the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import math
from fractions import Fraction as F
from functools import cache

import numpy as np

LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
SPECIAL = ("nan", "inf", "-inf")


def num(x):
    """A finite number as a fraction; otherwise "nan", "inf" or "-inf"."""
    x = float(x)
    return F(x) if math.isfinite(x) else str(x)


def _sign(x):
    if isinstance(x, str):
        return {"inf": 1, "-inf": -1}[x]
    return (x > 0) - (x < 0)


def mul(*values):
    result = F(1)
    for v in values:
        if "nan" in (result, v):
            result = "nan"
        elif isinstance(result, str) or isinstance(v, str):
            s = _sign(result) * _sign(v)
            result = "nan" if s == 0 else "inf" if s > 0 else "-inf"
        else:
            result = result * v
    return result


def add(a, b):
    if "nan" in (a, b):
        return "nan"
    if isinstance(a, str) or isinstance(b, str):
        if isinstance(a, str) and isinstance(b, str) and a != b:
            return "nan"
        return a if isinstance(a, str) else b
    return a + b


def div(a, b):
    if "nan" in (a, b):
        return "nan"
    if isinstance(b, str):
        return "nan" if isinstance(a, str) else F(0)
    if isinstance(a, str):
        return a if b >= 0 else {"inf": "-inf", "-inf": "inf"}[a]
    if b == 0:
        return "nan" if a == 0 else "inf" if a > 0 else "-inf"
    return a / b


def quantize(q, zero, dtype):
    """saturate(RNE(q) + zero); NaN is the smallest value."""
    low, high = LIMITS[np.dtype(dtype).name]
    if q in ("nan", "-inf"):
        return low
    if q == "inf":
        return high
    return min(max(round(q) + zero, low), high)


def _zero(z):
    return 0 if z is None else int(np.asarray(z).reshape(()))


def _scale(s):
    return num(np.asarray(s).reshape(()))


def _filled(shape, values, dtype):
    out = np.empty(shape, dtype)
    flat = list(values)
    assert len(flat) == out.size
    out.reshape(-1)[:] = flat
    return out


def _pairs(a, b):
    x, y = np.broadcast_arrays(a, b)
    return x.shape, zip(x.reshape(-1).tolist(), y.reshape(-1).tolist(), strict=True)


def qlinear_add(a, sa, za, b, sb, zb, sc, zc=None):
    shape, pairs = _pairs(a, b)
    sa, sb, sc, za, zb, zc = _scale(sa), _scale(sb), _scale(sc), _zero(za), _zero(zb), _zero(zc)
    values = (quantize(div(add(mul(sa, F(x - za)), mul(sb, F(y - zb))), sc), zc, a.dtype) for x, y in pairs)
    return _filled(shape, values, a.dtype)


def qlinear_mul(a, sa, za, b, sb, zb, sc, zc=None):
    shape, pairs = _pairs(a, b)
    sa, sb, sc, za, zb, zc = _scale(sa), _scale(sb), _scale(sc), _zero(za), _zero(zb), _zero(zc)
    values = (quantize(div(mul(F(x - za), sa, F(y - zb), sb), sc), zc, a.dtype) for x, y in pairs)
    return _filled(shape, values, a.dtype)


def _requantize(x, sx, zx, sy, zy, dtype):
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)
    return _filled(x.shape, (quantize(div(mul(F(v - zx), sx), sy), zy, dtype) for v in x.reshape(-1).tolist()), dtype)


def qlinear_where(condition, x, sx, zx, y, sy, zy, sz, zz):
    c, x, y = np.broadcast_arrays(condition, x, y)
    left, right = _requantize(x, sx, zx, sz, zz, x.dtype), _requantize(y, sy, zy, sz, zz, x.dtype)
    return _filled(c.shape, (p if k else q for k, p, q in zip(c.flat, left.flat, right.flat, strict=True)), x.dtype)


def qlinear_concat(sy, zy, *inputs, axis):
    dtype = np.asarray(zy).dtype
    triples = [inputs[i : i + 3] for i in range(0, len(inputs), 3)]
    return np.concatenate([_requantize(x, s, z, sy, zy, dtype) for x, s, z in triples], axis)


def qlinear_leaky_relu(x, sx, zx, sy, zy=None, *, alpha):
    sx, sy, zx, zy, slope = _scale(sx), _scale(sy), _zero(zx), _zero(zy), num(np.float32(alpha))

    def one(code):
        v = mul(F(code - zx), sx)
        negative = v == "-inf" or (not isinstance(v, str) and v < 0)
        return quantize(div(mul(slope, v) if negative else v, sy), zy, x.dtype)

    return _filled(x.shape, (one(v) for v in x.reshape(-1).tolist()), x.dtype)


# --- exponentials -----------------------------------------------------------------------------------------------------


def exp_bounds(x: F, bits: int) -> tuple[F, F]:
    """Rational bounds of exp(x), about `bits` bits apart:
    Taylor's series of x / 2**n in fixed point, squared n times."""
    halvings = max(0, int(abs(x)).bit_length() + 8)
    work = bits + 2 * halvings + 64
    one = 1 << work
    reduced = x / 2**halvings
    r = math.floor(abs(reduced) * one)
    term, total, k = one, one, 0
    while term:
        k += 1
        term = term * r // (k << work)
        total += term
    low, high = total, total + 2 * k + 2
    for _ in range(halvings):
        low, high = low * low >> work, (high * high >> work) + 1
    low, high = F(low, one), F(high, one)
    return (low, high) if x >= 0 else (1 / high, 1 / low)


def _decided(bounds, scale, zero, dtype):
    """The code of a real number known by ever closer bounds, bounds(bits) -> (low, high), and the number in steps."""
    bits = 128
    while True:
        low, high = (v / scale for v in bounds(bits))
        a, b = quantize(low, zero, dtype), quantize(high, zero, dtype)
        if a == b:
            return a, low
        bits *= 2
        assert bits < 1 << 20


def qlinear_sigmoid(*inputs):
    return sigmoid_codes(*inputs)[0]


def sigmoid_codes(x, sx, zx, sy, zy=None):
    """The codes, and the real numbers in steps of them."""
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)

    def one(code):
        v = (code - zx) * sx
        if v == 0:
            return quantize(F(1, 2) / sy, zy, x.dtype), F(1, 2) / sy

        def bounds(bits):
            low, high = exp_bounds(-v, bits)
            return 1 / (1 + high), 1 / (1 + low)

        return _decided(bounds, sy, zy, x.dtype)

    table = {code: one(code) for code in set(x.reshape(-1).tolist())}
    pairs = [table[v] for v in x.reshape(-1).tolist()]
    return _filled(x.shape, (p[0] for p in pairs), x.dtype), _filled(x.shape, (p[1] for p in pairs), object)


def _softmax_row(row, sx, sy, zy, dtype):
    if len(set(row)) == 1 or sx == 0:
        share = F(1, len(row)) / sy
        return [(quantize(share, zy, dtype), share)] * len(row)
    counts = {code: row.count(code) for code in set(row)}
    top = max(row, key=lambda code: code * sx)

    @cache
    def powers(bits):
        return {code: (F(1), F(1)) if code == top else exp_bounds((code - top) * sx, bits) for code in counts}

    @cache
    def total(bits):
        known = powers(bits)
        return tuple(sum(count * known[code][end] for code, count in counts.items()) for end in (0, 1))

    def one(code):
        def bounds(bits):
            (least, most), (low, high) = total(bits), powers(bits)[code]
            return low / most, high / least

        return _decided(bounds, sy, zy, dtype)

    table = {code: one(code) for code in counts}
    return [table[code] for code in row]


def qlinear_softmax(*inputs, **attributes):
    return softmax_codes(*inputs, **attributes)[0]


def softmax_codes(x, sx, zx, sy, zy, *, opset, axis=-1):
    """The codes, and the real numbers in steps of them."""
    sx, sy, zy = _scale(sx), _scale(sy), _zero(zy)
    axis %= x.ndim
    moved = np.moveaxis(x, axis, -1) if opset >= 13 else x
    length = x.shape[axis] if opset >= 13 else math.prod(x.shape[axis:])
    rows = moved.reshape(-1, length) if x.size else np.empty((0, length), x.dtype)
    flat = [v for row in rows.tolist() for v in _softmax_row(row, sx, sy, zy, x.dtype)]
    made = [_filled(moved.shape, (p[n] for p in flat), kind) for n, kind in enumerate((x.dtype, object))]
    return [np.moveaxis(y, -1, axis) if opset >= 13 else y for y in made]
