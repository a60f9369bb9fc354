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
from qrun.native.emit.values import MAGIC64, Value

SIZE = 16
"""Numbers in a table: as many as two registers hold."""
_LANES = SIZE // 2
POWERS = tuple(2.0 ** (n / SIZE) for n in range(SIZE))
ERF_END = 3.93
"""erf is 1, rounded to float32, from 3.92 on."""
_STEP = ERF_END / (SIZE - 0.51)
"""From the middle of one piece of erf to that of the next; the first one begins in its middle, 0."""
_DEGREE = 8


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
    while len(pieces) > 1:
        pieces = [
            one.shuffled(range(2 * one.lanes), other) for one, other in zip(pieces[::2], pieces[1::2], strict=True)
        ]
    return pieces[0] if index.lanes >= _LANES else pieces[0].shuffled(range(index.lanes))


def power(raised: Value, steps: int) -> Value:
    """2**(n / steps) for an integer n in the low bits of float64; steps: 1, or SIZE where one instruction looks up a number.

    The bits that stand for a whole power are added to the exponent of 1, or of what the others stand for.
    """
    whole = raised.bitcast("i64")
    if steps == 1:
        return ((whole << 52) + raised.like(1.0).bitcast("i64")).bitcast("double")
    part = looked_up(POWERS, whole)
    shifted = (whole << 52 - steps.bit_length() + 1) & -(1 << 52)
    return (shifted + part.bitcast("i64")).bitcast("double")


def _places(first: int, lanes: int) -> list[int]:
    return [first + n if first + n < lanes else -1 for n in range(_LANES)]


def erf_size(near: Value) -> Value:
    """erf(near) to a relative error below 2**-38.5, for 0 <= near <= ERF_END."""
    raised = near.fma(1 / _STEP, MAGIC64)
    place, rest = raised.bitcast("i64"), (raised - MAGIC64).fma(-_STEP, near)
    coefficients = list(zip(*erf_pieces(), strict=True))
    made = looked_up(coefficients[-1], place)
    for column in reversed(coefficients[:-1]):
        made = made.fma(rest, looked_up(column, place))
    return made


@cache
def erf_pieces() -> tuple[tuple[float, ...], ...]:
    """Of each piece the polynomial in the distance from its middle, the constant term first: what has its values where
    Chebyshev's polynomial is 0. That of the first piece is t times one of erf(t) / t, so that nothing cancels."""
    middles = _STEP * np.arange(SIZE)
    return tuple(tuple(map(float, _piece(float(middle)))) for middle in middles)


def _piece(middle: float) -> Sequence[float]:
    degree = _DEGREE if middle else _DEGREE - 1
    nodes = np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)) * (_STEP / 2)
    values = [math.erf(middle + t) / (1 if middle else t) if middle or t else 2 / math.sqrt(math.pi) for t in nodes]
    found = list(np.linalg.solve(np.vander(nodes * (2 / _STEP), increasing=True), np.array(values)))
    found = [number * (2 / _STEP) ** power for power, number in enumerate(found)]
    return found if middle else [0.0, *found]
