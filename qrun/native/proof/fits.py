"""Cheap forms of functions of one 8-bit code, or of two: searched for, and proven on every entry of the table.

Codes are u = 0..255; int8 codes are shifted up by 128. The forms are those of emit/point.py; rounding is emulated bit
for bit, with or without a fused multiply-add. Constants are nudged until every entry agrees; a table that never does is
looked up.

For one code, the forms are lines. An expected line is tried first; only if it fails, the best slope is searched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import DOUBLES
from qrun.native.machine.memory import Ints
from qrun.native.proof.search import Bools, Floats

Singles = np.ndarray[Any, np.dtype[np.float32]]
Words = Mapping[str, int]
Candidate = tuple[str, Callable[[slice], Floats], dict[str, int]]
"""A form, its values before rounding in some rows of the table, and its words."""

CODES = np.arange(256, dtype=np.float64)
_LARGEST = 2.0**30
"""Far inside int32, to which kernels convert."""
_INT16 = 2**15 - 1
"""The largest weight of form int, which multiplies in 16 bits."""
_PAIRS, _SCALES = 4, 6
"""Pairs of such weights, and factors s of form mul, that are tried: those closest to the real numbers."""
_INTEGERS = 1.5 * 2.0**52
"""float64 numbers around it are integers, and so are their low words."""
_SHORT = 40
"""Bits of factors: DOUBLES + 255 has 13 more, and a float64 53."""
_GRIDS = (32, 36, 28, 24, 40)
"""Binary places to which sums are rounded, the likeliest first."""
_SHARES = tuple(slice(first, None, 8) for first in range(8))
"""Rows of a table that are checked together: an error shows in most of them, and they stay in the cache."""
_NUDGES = (
    (0, 0, 0), (0, 0, 1), (0, 0, -1), (1, 0, 0), (-1, 0, 0), (0, 1, 0), (0, -1, 0), (1, 0, 1), (1, 0, -1), (-1, 0, 1),
    (-1, 0, -1), (0, 1, 1), (0, 1, -1), (0, -1, 1), (0, -1, -1), (1, 1, 0), (-1, -1, 0), (1, -1, 0), (-1, 1, 0),
)  # fmt: skip

_FAR = 1e6
"""How far the line may lie beyond the limit where a table is saturated."""
_STEEPEST, _CUTS = 300.0, 8
"""The steepest slope that is searched, as a slope of 255 crosses all codes in a step; and how many slopes are tried."""
_TRIES = ((0, False), (0, True), (1, True), (-1, True))
"""Nudges of the slope, and whether the offset is computed from the rounded slope or from the exact one."""


@frozen
class CodeSum:
    """An estimate: y is about a * (u - u_zero) + b * (v - v_zero) + zero; inside: zero is added before rounding."""

    a: float
    b: float
    u_zero: int
    v_zero: int
    zero: int
    inside: bool = False


@frozen
class CodeProduct:
    """An estimate: y is about m * (u - u_zero) * (v - v_zero) + zero."""

    m: float
    u_zero: int
    v_zero: int
    zero: int
    inside: bool = False


def fused_add(product: Floats, addend: Any) -> Floats:
    """float32(product + addend) with one rounding. product: exact products of float32; addend: float32 values."""
    total = np.asarray(product + addend)
    back = total - product
    error = (product - (total - back)) + (addend - back)
    if np.any(error):
        bits = total.view(np.int64)
        inexact = (error != 0) & (bits & 1 == 0)
        total = (bits + np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0)).view(np.float64)
    return _single(total)


def fit_pair(
    table: Ints, near: CodeSum | CodeProduct, limits: tuple[int, int], fma: bool, signed: bool
) -> tuple[str, Words] | None:
    """A form of emit/point.py that gives table [256, 256], values within limits, and its words; None if none was found.

    signed: codes are int8.
    """
    numbers = (near.a, near.b) if isinstance(near, CodeSum) else (near.m,)
    if not all(1e-6 < abs(number) < 1e6 for number in numbers):
        return None
    tries: tuple[Iterator[Candidate], ...]
    if isinstance(near, CodeProduct):
        tries = (_products(near),)
    else:
        tries = _ints(near, fma), _chains(near, fma, 128 * signed), _doubles(near)
    for candidates in tries:
        for form, values, words in candidates:
            if all(agree(values(rows), words["add"], table[rows], limits).all() for rows in _SHARES):
                return form, words
    return None


def _ints(near: CodeSum, fma: bool) -> Iterator[Candidate]:
    """Form int: small A / B close to a / b."""
    steep = abs(near.a) > abs(near.b)
    large, small = (near.a, near.b) if steep else (near.b, near.a)
    first = np.arange(1, _INT16 + 1, dtype=np.float64)
    second = np.rint(first * (small / large))
    scale = (large / first).astype(np.float32).astype(np.float64)
    error = np.abs(scale * first - large) + np.abs(scale * second - small)
    for best in sorted(np.argpartition(error, _PAIRS)[:_PAIRS], key=lambda i: (error[i], i)):
        a, b = (first[best], second[best]) if steep else (second[best], first[best])
        left, right = a * (CODES - near.u_zero), b * (CODES - near.v_zero)
        offset = int(-a * near.u_zero - b * near.v_zero)
        weights = int(a) & 0xFFFF | (int(b) & 0xFFFF) << 16
        for c, add in _places(near):
            words = {"weights": weights, "offset": offset, "m": _bits(scale[best]), "c": _bits(c), "add": add}
            yield "int", partial(_int_values, left, right, scale[best], c, fma), words


def _chains(near: CodeSum, fma: bool, shift: int) -> Iterator[Candidate]:
    """Form fma: the factors as float32, and the zero points in the constant, rounded on the way as onnxruntime does."""
    a, b = float(np.float32(near.a)), float(np.float32(near.b))
    zeros = float(fused_add(np.asarray(a * (near.u_zero - shift)), _single(b * (near.v_zero - shift))))
    for nudges in _NUDGES:
        for c, add in _places(near):
            ka, kb, kc = (float(move_by_ulps(v, n)) for v, n in zip((a, b, c - zeros), nudges, strict=True))
            right = mul_add(kb * (CODES - shift), kc, fma)
            left = (ka * (CODES - shift))[:, None]
            words = {"a": _bits(ka), "b": _bits(kb), "c": _bits(kc), "add": add}
            yield "fma", partial(_chain_values, left, right, fma), words


def _doubles(near: CodeSum) -> Iterator[Candidate]:
    """Form f64: rounds sums to a grid on which intended ties are ties, and nothing else is.

    The factors have so few bits that products with DOUBLES + 255 are exact.
    """
    ka, kb = (_shorten(factor) for factor in (near.a, near.b))
    left, right = (DOUBLES + CODES) * ka, (DOUBLES + CODES) * kb
    zeros = -(DOUBLES + near.u_zero) * ka - (DOUBLES + near.v_zero) * kb
    for grid in _GRIDS:
        snap = 1.5 * 2.0 ** (52 - grid)
        for c, add in _places(near):
            numbers = {"a": ka, "b": kb, "c": zeros + c, "snap": snap, "turn": _INTEGERS - snap}
            words = {name: int(np.float64(number).view(np.int64)) for name, number in numbers.items()}
            values = partial(_double_values, left, right + numbers["c"], snap)
            yield "f64", values, words | {"add": add}


def _products(near: CodeProduct) -> Iterator[Candidate]:
    """Form mul: s * m close to the factor, s a small integer."""
    small = np.arange(1, 257, dtype=np.float64)
    scale = (near.m / small).astype(np.float32).astype(np.float64)
    best = np.argsort(np.abs(scale * small - near.m), kind="stable")[:_SCALES]
    tries = [(1.0, float(np.float32(near.m))), *((float(small[i]), float(scale[i])) for i in best)]
    tries += [(1.0, float(move_by_ulps(near.m, nudge))) for nudge in (1, -1, 2, -2)]
    left, right = (CODES - near.u_zero)[:, None], CODES - near.v_zero
    for s, m in tries:
        for c, add in _places(near):
            words = {"u_zero": _bits(near.u_zero), "s": _bits(s), "t": _bits(-s * near.v_zero)}
            words |= {"m": _bits(m), "c": _bits(c), "add": add}
            yield "mul", partial(_product_values, left, right, s * m, c), words


def _int_values(left: Floats, right: Floats, scale: float, c: float, fma: bool, rows: slice) -> Floats:
    """Results of the form "int" before rounding, for some rows of the table."""
    return mul_add((left[rows, None] + right) * scale, c, fma)


def _chain_values(left: Floats, right: Floats, fma: bool, rows: slice) -> Floats:
    """Results of the form "fma" before rounding, for some rows of the table."""
    return mul_add(np.broadcast_to(left[rows], (len(left[rows]), len(right))), right, fma)


def _double_values(left: Floats, right: Floats, snap: float, rows: slice) -> Floats:
    """Results of the form "f64", rounded, for some rows of the table."""
    total = left[rows, None] + right
    total += snap
    total += _INTEGERS - snap
    return np.asarray(total - _INTEGERS)


def _product_values(left: Floats, right: Floats, factor: float, c: float, rows: slice) -> Floats:
    """Results of the form "mul" before rounding, for some rows of the table."""
    return _single(_single(left[rows] * right * factor) + c)


def _places(near: CodeSum | CodeProduct) -> list[tuple[float, int]]:
    """The zero point after rounding, or before it: this changes ties, and which values float32 can tell apart."""
    both = [(0.0, near.zero), (float(near.zero), 0)]
    return both[:1] if not near.zero else both[::-1] if near.inside else both


def agree(values: Floats, add: int, table: Ints, limits: tuple[int, int]) -> Bools:
    """Where RNE(values) + add, saturated, equals the table; all values must be far inside int32."""
    if not np.abs(values).max(initial=0) < _LARGEST:
        return np.zeros(table.shape, np.bool_)
    return np.asarray(np.clip(np.rint(values) + add, *limits) == table)


def mul_add(product: Floats, addend: Any, fma: bool) -> Floats:
    """product + addend in float32: rounded once if `fma`, else twice."""
    if np.ndim(addend) == 0 and addend == 0:
        return _single(product)
    return fused_add(product, addend) if fma else _single(_single(product) + addend)


def _single(values: Any) -> Floats:
    """Rounded to float32, as float64."""
    return np.asarray(values).astype(np.float32).astype(np.float64)


def _shorten(value: float) -> float:
    """`value` rounded to _SHORT bits."""
    fraction, exponent = np.frexp(value)
    return float(np.ldexp(np.rint(np.ldexp(fraction, _SHORT)), exponent - _SHORT))


def move_by_ulps(value: Any, ulps: int) -> Singles:
    """float32(value), moved on by `ulps` representable numbers."""
    bits = np.asarray(value).astype(np.float32).view(np.int32)
    return np.asarray((bits + np.int32(ulps)).astype(np.int32).view(np.float32))


def _bits(value: float) -> int:
    """The bits of a float32 as an int."""
    return int(np.float32(value).view(np.int32))


@frozen
class Expected:
    """An estimate: table number i is about slopes[i] * u + offsets[i], for codes u = 0..255."""

    slopes: Floats
    offsets: Floats

    def rows(self, chosen: Ints) -> Expected:
        """The expected lines of some tables."""
        return Expected(self.slopes[chosen], self.offsets[chosen])


def expected_lines(near: CodeSum | CodeProduct, codes: Ints) -> Expected:
    """The lines in u for each code v."""
    other = np.asarray(codes, np.float64).reshape(-1) - near.v_zero
    if isinstance(near, CodeSum):
        return Expected(np.full(len(other), near.a), near.b * other - near.a * near.u_zero + near.zero)
    slopes = near.m * other
    return Expected(slopes, near.zero - slopes * near.u_zero)


def fit_lines(
    tables: Ints, limits: tuple[int, int], fma: bool, likely: Expected | None = None
) -> tuple[Bools, Singles, Singles, int]:
    """For tables [N, 256], values within limits: which have a line, its a and b, and the `add` of all.

    y = saturate(RNE(u * a + b) + add)

    likely: lines to try first.
    """
    best: tuple[Bools, Singles, Singles, int] | None = None
    for add in (0, 1):
        done = np.zeros(len(tables), np.bool_)
        a, b = np.zeros(len(tables), np.float32), np.zeros(len(tables), np.float32)
        for rows, slope, offset, product in _candidates(tables, limits, add, done, likely):
            value = mul_add(product, offset.astype(np.float64)[:, None], fma)
            good = agree(value, add, tables[rows], limits).all(axis=1)
            hit = rows[good]
            a[hit], b[hit], done[hit] = slope[good], offset[good], True
        if best is None or done.sum() > best[0].sum():
            best = done, a, b, add
        if done.all():
            break
    assert best is not None
    return best


def _candidates(
    tables: Ints, limits: tuple[int, int], add: int, done: Bools, likely: Expected | None
) -> Iterator[tuple[Ints, Singles, Singles, Floats]]:
    """Lines to try for the tables that are not done: table numbers, slopes, offsets, and slopes times codes [n,
    256]."""
    if likely is not None:
        with np.errstate(over="ignore"):
            slope, offset = likely.slopes.astype(np.float32), (likely.offsets - add).astype(np.float32)
        rows = np.flatnonzero(np.isfinite(slope) & np.isfinite(offset))
        yield rows, slope[rows], offset[rows], _slope_products(slope[rows])
    searched = np.flatnonzero(~done)
    if not len(searched):
        return
    low, high = limits
    left = tables[searched]
    upper = np.where(left >= high, _FAR, left + 0.5)
    lower = np.where(left <= low, -_FAR, left - 0.5)
    slopes = _slopes(upper, lower)
    for nudge, rounded in _TRIES:
        some = np.flatnonzero(~done[searched])
        slope = move_by_ulps(slopes[some], nudge)
        product = _slope_products(slope)
        near = product if rounded else slopes[some, None] * CODES
        middle = ((lower[some] - near).max(axis=1) + (upper[some] - near).min(axis=1)) / 2
        yield searched[some], slope, (middle - add).astype(np.float32), product


def _slope_products(slopes: Singles) -> Floats:
    """Each slope times each of the 256 codes, in float64."""
    return np.asarray(slopes.astype(np.float64)[:, None] * CODES)


def _slopes(upper: Floats, lower: Floats) -> Floats:
    """The slopes a of the lines that stay farthest inside lower <= a * u + b <= upper, by cutting planes.

    The room that a slope leaves, min(upper - a * u) - max(lower - a * u), is concave and piecewise linear in a; the
    next slope is where the tangents at the ends of the range meet.
    """
    ends = [_tangents(upper, lower, np.full(len(upper), end)) for end in (-_STEEPEST, _STEEPEST)]
    (left_room, left_rise), (right_room, right_rise) = ends
    middle = np.zeros(len(upper))
    for _ in range(_CUTS):
        bend = left_rise - right_rise
        middle = np.where(bend > 0, (right_room - left_room) / np.where(bend > 0, bend, 1), middle)
        room, rise = _tangents(upper, lower, middle)
        left, right = rise >= 0, rise <= 0
        left_room, left_rise = np.where(left, room, left_room), np.where(left, rise, left_rise)
        right_room, right_rise = np.where(right, room, right_room), np.where(right, rise, right_rise)
    return middle


def _tangents(upper: Floats, lower: Floats, slopes: Floats) -> tuple[Floats, Floats]:
    """Tangents to the room (the distance between the limits) as a function of the slope, at each of `slopes`.

    Returns the tangent's value at slope 0, and its rise.
    """
    product = slopes[:, None] * CODES
    rows = np.arange(len(slopes))
    top, bottom = np.argmin(upper - product, axis=1), np.argmax(lower - product, axis=1)
    return upper[rows, top] - lower[rows, bottom], (bottom - top).astype(np.float64)
