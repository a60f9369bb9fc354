"""Exact answers of the com.microsoft quantized operators, element by element, from their definitions.

Plain Python integers and fractions; exponentials from a series in integer arithmetic. Scales that are not finite numbers follow
IEEE 754: a quotient of them is one of the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import itertools
import math
import struct
from fractions import Fraction as F

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
    """Rational bounds of exp(x), about `bits` bits apart: Taylor's series of x / 2**n in fixed point, squared n times."""
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
    """Quantize a real number known by ever closer bounds: bounds(bits) -> (low, high)."""
    bits = 128
    while True:
        low, high = (v / scale for v in bounds(bits))
        a, b = quantize(low, zero, dtype), quantize(high, zero, dtype)
        if a == b:
            return a
        bits *= 2
        assert bits < 1 << 20


def qlinear_sigmoid(x, sx, zx, sy, zy=None):
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)

    def one(code):
        v = (code - zx) * sx
        if v == 0:
            return quantize(F(1, 2) / sy, zy, x.dtype)

        def bounds(bits):
            low, high = exp_bounds(-v, bits)
            return 1 / (1 + high), 1 / (1 + low)

        return _decided(bounds, sy, zy, x.dtype)

    table = {code: one(code) for code in set(x.reshape(-1).tolist())}
    return _filled(x.shape, (table[v] for v in x.reshape(-1).tolist()), x.dtype)


def _softmax_row(row, sx, sy, zy, dtype):
    if len(set(row)) == 1 or sx == 0:
        return [quantize(F(1, len(row)) / sy, zy, dtype)] * len(row)
    counts = {code: row.count(code) for code in set(row)}

    def one(code):
        def bounds(bits):
            low = high = F(0)
            for other, count in counts.items():
                a, b = (F(1), F(1)) if other == code else exp_bounds((other - code) * sx, bits)
                low, high = low + count * a, high + count * b
            return 1 / high, 1 / low

        return _decided(bounds, sy, zy, dtype)

    table = {code: one(code) for code in counts}
    return [table[code] for code in row]


def qlinear_softmax(x, sx, zx, sy, zy, *, opset, axis=-1):
    sx, sy, zy = _scale(sx), _scale(sy), _zero(zy)
    axis %= x.ndim
    moved = np.moveaxis(x, axis, -1) if opset >= 13 else x
    length = x.shape[axis] if opset >= 13 else math.prod(x.shape[axis:])
    rows = moved.reshape(-1, length) if x.size else np.empty((0, length), x.dtype)
    flat = [v for row in rows.tolist() for v in _softmax_row(row, sx, sy, zy, x.dtype)]
    y = _filled(moved.shape, flat, x.dtype)
    return np.moveaxis(y, -1, axis) if opset >= 13 else y


# --- pools ------------------------------------------------------------------------------------------------------------


def qlinear_global_average_pool(x, sx, zx, sy, zy, *, channels_last=0):
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)
    nchw = np.moveaxis(x, -1, 1) if channels_last else x
    n = math.prod(nchw.shape[2:])
    flat = nchw.reshape(*nchw.shape[:2], n)
    values = [
        quantize(div(mul(sx, F(sum(v - zx for v in flat[i, c].tolist()))), mul(sy, F(n))), zy, x.dtype)
        for i in range(flat.shape[0])
        for c in range(flat.shape[1])
    ]
    y = _filled((*nchw.shape[:2], *(1,) * (x.ndim - 2)), values, x.dtype)
    return np.moveaxis(y, 1, -1) if channels_last else y


def _pool_axis(n, k, s, begin, end, auto_pad, ceil):
    if auto_pad.startswith("SAME"):
        out = -(-n // s)
        total = max((out - 1) * s + k - n, 0)
        begin, end = (total // 2, total - total // 2) if auto_pad == "SAME_UPPER" else (total - total // 2, total // 2)
    else:
        span = n + begin + end - k
        out = (-(-span // s) if ceil else span // s) + 1
        if ceil and (out - 1) * s >= n + begin:
            out -= 1
    return out, begin, end


def qlinear_average_pool(x, sx, zx, sy, zy=None, *, kernel_shape, strides=(), pads=(), auto_pad="NOTSET", ceil_mode=0,
                         channels_last=0, count_include_pad=0):  # fmt: skip
    sx, sy, zx, zy = _scale(sx), _scale(sy), _zero(zx), _zero(zy)
    nchw = np.moveaxis(x, -1, 1) if channels_last else x
    rank = x.ndim - 2
    strides, pads = strides or (1,) * rank, pads or (0,) * (2 * rank)
    size = nchw.shape[2:]
    axes = [
        _pool_axis(size[i], kernel_shape[i], strides[i], pads[i], pads[i + rank], auto_pad, ceil_mode)
        for i in range(rank)
    ]
    y = np.empty((*nchw.shape[:2], *(a[0] for a in axes)), x.dtype)
    for index in np.ndindex(y.shape):
        starts = [o * s - a[1] for o, s, a in zip(index[2:], strides, axes, strict=True)]
        total, count = 0, 0
        for tap in itertools.product(*(range(k) for k in kernel_shape)):
            at = [b + t for b, t in zip(starts, tap, strict=True)]
            if all(0 <= p < n for p, n in zip(at, size, strict=True)):
                total += int(nchw[(*index[:2], *at)]) - zx
                count += 1
            elif count_include_pad and all(-a[1] <= p < n + a[2] for p, n, a in zip(at, size, axes, strict=True)):
                count += 1
        y[index] = quantize(div(mul(sx, F(total)), mul(sy, F(count))), zy, x.dtype)
    return np.moveaxis(y, 1, -1) if channels_last else y


# --- matrix products --------------------------------------------------------------------------------------------------


def wrap32(n: int) -> int:
    return (n + 2**31) % 2**32 - 2**31


def nearest_float(x: F, width: str) -> float:
    """The float32 ("f") or float16 ("e") nearest to x, ties to even, by search among neighbours."""
    bits, mantissa, low = (8, 23, -149) if width == "f" else (5, 10, -24)
    if x == 0:
        return 0.0
    size = abs(x)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < F(2) ** exponent:
        exponent -= 1
    unit = F(2) ** max(exponent - mantissa, low)
    value = round(size / unit) * unit
    if value >= F(2) ** (2 ** (bits - 1)):
        return math.copysign(math.inf, x)
    return math.copysign(float(value), x)


def accumulators(a, za, b, zb, bias=None):
    """Wrapped integer sums [...,M,N] as nested lists flattened with their shape; 1-D operands as in numpy.matmul."""
    a2, b2 = (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)
    lead = np.broadcast_shapes(a2.shape[:-2], b2.shape[:-2])
    a2 = np.broadcast_to(a2, lead + a2.shape[-2:])
    b2 = np.broadcast_to(b2, lead + b2.shape[-2:])
    za = np.broadcast_to(np.asarray(0 if za is None else za).astype(int).reshape(()), a2.shape)
    zb = _column(0 if zb is None else zb, b2).astype(int)
    shape = (*lead, a2.shape[-2], b2.shape[-1])
    acc = np.empty(shape, object)
    for index in np.ndindex(shape):
        i, j = index[-2:]
        total = sum(
            (int(a2[(*index[:-2], i, k)]) - int(za[(*index[:-2], i, k)]))
            * (int(b2[(*index[:-2], k, j)]) - int(zb[(*index[:-2], k, j)]))
            for k in range(a2.shape[-1])
        )
        acc[index] = wrap32(total + (0 if bias is None else int(np.broadcast_to(bias, shape)[index])))
    return acc


def _column(p, b2):
    p = np.asarray(p)
    return np.broadcast_to(p.reshape(()) if p.size == 1 and p.ndim <= 1 else p, b2.shape)


def qgemm(a, sa, za, b, sb, zb, c=None, sy=None, zy=None, *, alpha=1.0, transA=0, transB=0):
    a, b = (a.T if transA else a), (b.T if transB else b)
    acc = accumulators(a, za, b, zb, c)
    scales = np.broadcast_to(np.asarray(sb).reshape(-1), (b.shape[1],))
    quantized = sy is not None and zy is not None
    out = np.empty(acc.shape, np.asarray(zy).dtype if quantized else np.float32)
    for i, j in np.ndindex(acc.shape):
        real = mul(F(acc[i, j]), num(np.float32(alpha)), _scale(sa), num(scales[j]))
        if quantized:
            out[i, j] = quantize(div(real, _scale(sy)), _zero(zy), out.dtype)
        else:
            out[i, j] = float(real) if isinstance(real, str) else nearest_float(real, "f")
    return out


def matmul_integer_to_float(a, b, sa, sb, za=None, zb=None, bias=None):
    acc = accumulators(a, za, b, zb)
    b2 = b[:, None] if b.ndim == 1 else b
    if np.asarray(sb).ndim > 1:
        scales = np.broadcast_to(sb, acc.shape)
    else:
        scales = np.broadcast_to(np.asarray(sb).reshape(-1), acc.shape)
    dtype = np.asarray(sa).dtype
    out = np.empty(acc.shape, dtype)
    for index in np.ndindex(acc.shape):
        real = mul(F(acc[index]), _scale(sa), num(scales[index]))
        if bias is not None:
            real = add(real, num(bias[index[-1]]))
        out[index] = float(real) if isinstance(real, str) else nearest_float(real, dtype.char)
    assert b2.shape[-1] == acc.shape[-1]
    if b.ndim == 1:
        out = out[..., 0]
    if a.ndim == 1:
        out = out[..., 0, :] if b.ndim > 1 else out[..., 0]
    return out


def f32(x) -> float:
    """x rounded to float32 by the C conversion of struct."""
    return struct.unpack("f", struct.pack("f", x))[0]


def dynamic_quantize_matmul(a, b, sb, zb=None, bias=None):
    flat = [float(v) for v in a.reshape(-1)]
    top, bottom = max([0.0, *flat]), min([0.0, *flat])
    scale = f32(f32(top - bottom) / 255)
    if scale == 0:
        scale, zero = 1.0, 0
    else:
        zero = round(min(max(f32(0 - f32(bottom / scale)), 0), 255))
    codes = _filled(a.shape, (quantize(num(f32(v / scale)), zero, np.uint8) for v in flat), np.uint8)
    return matmul_integer_to_float(codes, b, np.float32(scale), sb, np.uint8(zero), zb, bias)
