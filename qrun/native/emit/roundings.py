"""Numbers rounded to integers, in each of the ways that there are."""

from __future__ import annotations

from collections.abc import Callable

from qrun.native.emit.values import ZERO, Value

_WHOLE = 2.0**23
"""From here on float32 numbers are integers."""
Way = Callable[[Value], Value]


def whole(x: Value) -> Value:
    """x rounded to an integer, ties to even, with the sign of x; NaN stays NaN.

    Numbers from 2**23 on are integers. Below it, adding 2**23 rounds; llvm.roundeven is no instruction on every CPU.
    """
    size = abs(x)
    rounded = ((size + _WHOLE) - _WHOLE).intrinsic("copysign", x)
    return size.test("olt", _WHOLE).select(rounded, x)


def beside(x: Value, how: str, step: float) -> Value:
    """The integer next to x in the direction of `step`: `whole`, and one step more where that compares so with x."""
    rounded = whole(x)
    return rounded.test(how, x).select((rounded + step).intrinsic("copysign", x), rounded)


def floor(x: Value) -> Value:
    return beside(x, "ogt", -1.0)


def ceil(x: Value) -> Value:
    return beside(x, "olt", 1.0)


def _of_size(way: Way) -> Way:
    return lambda x: way(abs(x)).intrinsic("copysign", x)


def _halves(how: str) -> Way:
    """The integer below, or the one above where what is left compares so with a half."""

    def way(x: Value) -> Value:
        below = floor(x)
        return (x - below).test(how, 0.5).select(below + 1.0, below)

    return way


ROUNDINGS: dict[str, Way] = {
    "half_even": whole,
    "ceil": ceil,
    "floor": floor,
    "up": _of_size(ceil),
    "down": _of_size(floor),
    "half_up": _of_size(_halves("oge")),
    "half_down": _of_size(_halves("ogt")),
    "sign": lambda x: x.test("oge", ZERO).select(x.like(1.0), x.like(-1.0)),
}
"""up and down: away from 0 and towards it, as half_up and half_down do with halves. sign: 1, or -1 below 0 and for NaN."""
