"""Functions of float64 vectors whose coefficients are looked up: sixteen numbers of each in registers (AVX-512).

Tang, Table-driven implementation of the exponential function in IEEE floating-point arithmetic, ACM Transactions on
    Mathematical Software 15, 1989
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np

from qrun.native.emit.types import real
from qrun.native.emit.values import MAGIC32, Value

SIZE = 16
"""Numbers in a table: as many as two registers hold."""
_LANES = SIZE // 2
POWERS = tuple(2.0 ** (n / SIZE) for n in range(SIZE))
ERF_END = 1006 / 256
"""erf is 1, rounded to float32, from 3.92 on."""
ERF_STEP = 65 / 256
"""From the middle of one piece of erf to that of the next; the first one begins in its middle, 0. It has few bits, so
that what float32 numbers lie from a middle is exact in float32."""
_DEGREE, _WIDE = 8, 5
"""Of a piece's polynomial, and how many of its terms need float64."""


def looked_up(table: Sequence[float], index: Value) -> Value:
    """table[index modulo 16] in each lane, float64. index: i64."""
    w, kind = index.w, f"<{_LANES} x double>"
    halves = [
        f"<{', '.join(f'double {real(number)}' for number in half)}>" for half in (table[:_LANES], table[_LANES:])
    ]
    low, high = (w.value(kind, half) for half in halves)
    pieces = [
        w.call(kind, "llvm.x86.avx512.vpermi2var.pd.512", low, index.shuffled(_places(first, index.lanes)), high)
        for first in range(0, index.lanes, _LANES)
    ]
    return _joined(pieces, index.lanes)


def _looked_up_single(table: Sequence[float], index: Value) -> Value:
    """The same as float32, of all sixteen at once. index: i32."""
    kind = f"<{SIZE} x float>"
    singles = np.array(table, np.float32).tolist()
    numbers = index.w.value(kind, f"<{', '.join(f'float {real(number)}' for number in singles)}>")
    pieces = [
        index.w.call(kind, "llvm.x86.avx512.permvar.sf.512", numbers, index.shuffled(_places(first, index.lanes, SIZE)))
        for first in range(0, index.lanes, SIZE)
    ]
    return _joined(pieces, index.lanes)


def power(raised: Value, steps: int) -> Value:
    """2**(n / steps) for an integer n in the low bits of float64;
    steps: 1, or SIZE where one instruction looks up a number.

    The bits that stand for a whole power are added to the exponent of 1, or of what the others stand for.
    """
    whole = raised.bitcast("i64")
    if steps == 1:
        return ((whole << 52) + raised.like(1.0).bitcast("i64")).bitcast("double")
    part = looked_up(POWERS, whole)
    shifted = (whole << 52 - steps.bit_length() + 1) & -(1 << 52)
    return (shifted + part.bitcast("i64")).bitcast("double")


def _places(first: int, lanes: int, size: int = _LANES) -> list[int]:
    return [first + n if first + n < lanes else -1 for n in range(size)]


def _joined(pieces: list[Value], lanes: int) -> Value:
    """The first so many lanes of these vectors, one after the other."""
    while len(pieces) > 1:
        pieces = [
            one.shuffled(range(2 * one.lanes), other) for one, other in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return pieces[0] if lanes >= pieces[0].lanes else pieces[0].shuffled(range(lanes))


def erf_size(near: Value) -> Value:
    """erf(near) as float64 to a relative error below 2**-37.9, for float32 from 0 to ERF_END.

    The terms beyond _WIDE are made in float32, where twice as many numbers are looked up at once.
    """
    raised = near.fma(float(np.float32(1 / ERF_STEP)), MAGIC32)
    place, rest = raised.bitcast("i32"), (raised - MAGIC32).fma(-ERF_STEP, near)
    columns = list(zip(*erf_pieces(), strict=True))
    tail = _looked_up_single(columns[-1], place)
    for column in reversed(columns[_WIDE:-1]):
        tail = tail.fma(rest, _looked_up_single(column, place))
    made, place, rest = tail.double(), place.zext("i64"), rest.double()
    for column in reversed(columns[:_WIDE]):
        made = made.fma(rest, looked_up(column, place))
    return made


@cache
def erf_pieces() -> tuple[tuple[float, ...], ...]:
    """Of each piece the polynomial in the distance from its middle, the constant term first: what has its values where
    Chebyshev's polynomial is 0. That of the first piece is t times one of erf(t) / t, so that nothing cancels."""
    middles = ERF_STEP * np.arange(SIZE)
    return tuple(tuple(map(float, _piece(float(middle)))) for middle in middles)


def _piece(middle: float) -> Sequence[float]:
    degree = _DEGREE if middle else _DEGREE - 1
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)) * (ERF_STEP / 2)
    values = [math.erf(middle + t) / (1 if middle else t) if middle or t else 2 / math.sqrt(math.pi) for t in nodes]
    found = list(np.linalg.solve(np.vander(nodes * (2 / ERF_STEP), increasing=True), np.array(values)))
    found = [number * (2 / ERF_STEP) ** power for power, number in enumerate(found)]
    return found if middle else [0.0, *found]
