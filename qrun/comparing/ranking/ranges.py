"""Scales and zero points of activations that do not fit the values, and those that would."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qrun.comparing.matching.graph import Path, Reals
from qrun.comparing.ranking.faults import Correction
from qrun.comparing.ranking.groups import Limits, limits
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array
from qrun.ir.types import integer_range

GAIN = 4.0
"""The factor by which another range must reduce the noise to be tried, as far as the values are known."""
_WIDE = 4.0
"""A scale is too large above this multiple of what these values need; other inputs may need more."""
_LIKE = 1.25
"""The zero point stays up to this multiple of the least scale."""
_SAME = 0.001
"""The relative difference up to which two scales are equal."""


_OTHERS: dict[str, np.dtype[Any]] = {
    str(np.dtype(one)): np.dtype(other)
    for one, other in ((np.int8, np.uint8), (np.uint8, np.int8), (np.int16, np.uint16), (np.uint16, np.int16))
}
"""The other integer type of the same size."""


@frozen
class Fit:
    """A scale or a zero point that does not suit the values.

    now:    the scale; wanted: one whose codes reach from the smallest to the largest value and 0.
    inside: is it in front of the group's operators, not behind them?
    text:   in words, what does not fit and what does.
    """

    KEYS = keys("scale=now wanted of_input=inside text")

    now: float
    wanted: float
    inside: bool
    text: str
    corrections: tuple[Correction, ...]


@frozen(eq=False)
class ActivationQuantizer:
    """The scale and zero point of activations, and their names among the model's own constants."""

    names: tuple[str, str]
    scale: Array
    zero: Array
    known: Limits

    def narrowed(self, factor: float, low: float, high: float) -> bool:
        """Do codes still reach from low to high with a scale that is so many times smaller?"""
        zero = float(self.zero.astype(np.float64).reshape(-1)[0])
        return self.covers(self.known.step / factor, zero, low, high)

    def covers(self, scale: float, zero: float, low: float, high: float, kind: np.dtype[Any] | None = None) -> bool:
        least, most = integer_range(kind or self.zero.dtype)
        return (least - zero - 0.5) * scale <= low and high <= (most - zero + 0.5) * scale


def quantizer(b: Reals, path: Path) -> ActivationQuantizer | None:
    """The parameters of a path with one quantizer, one scale and integer codes."""
    known = limits(b, path)
    if known is None or len(path) != 1 or known.codes > 1 << 16:
        return None
    inputs = (*b.nodes[path[0]].inputs, "")[1:3]
    scale, zero = b.constant(inputs[0]), b.constant(inputs[1])
    if scale is None:
        return None
    names = b.own_name(inputs[0]), b.own_name(inputs[1])
    return ActivationQuantizer(names, scale, np.zeros((), np.uint8) if zero is None else zero, known)


def fitting(b: Reals, path: Path, low: float, high: float, lossy: bool, inside: bool) -> Fit | None:
    """The parameters that fit values from low to high, 0 among them. lossy: are values outside the range?"""
    own = quantizer(b, path)
    if own is None or not high > low:
        return None
    now, zero = own.known.step, float(own.zero.astype(np.float64).reshape(-1)[0])
    least, most = (float(end) for end in integer_range(own.zero.dtype))
    wanted = (high - low) / (most - least)
    if lossy:
        moved = float(np.clip(np.rint(least - low / now), least, most))
        if moved != zero and own.covers(now, moved, low, high) and own.names[1]:
            return _moved(own, now, zero, moved, low, high, inside)
    if not lossy and now < _WIDE * wanted:
        return None
    sides = [low / (least - zero) if low < 0 and zero > least else math.inf if low < 0 else 0.0]
    sides.append(high / (most - zero) if high > 0 and zero < most else math.inf if high > 0 else 0.0)
    kept = max(sides)
    corrections = []
    if not kept <= _LIKE * wanted:
        at = float(np.clip(np.rint(least - low / wanted), least, most))
        if at != zero:
            if not own.names[1]:
                return None
            corrections.append(_number(own.names[1], own.zero, at, zero))
        # Where no code is left on a side, its values are below half a step.
        below, above = (low / (least - at) if at > least else 0.0), (high / (most - at) if at < most else 0.0)
        kept = max(wanted, below, above)
    if lossy and kept <= now:
        return None
    value = np.float32(kept)
    like = _namesake(b, own, float(value))
    corrections.insert(0, _number(own.names[0], own.scale, float(value), now, f", as {like}" if like else ""))
    why = "too small" if kept > now else "too large"
    text = f"{own.names[0]} {now:.4g} is {why}: {value:.4g} fits" + (f", as {like} is" if like else "")
    return Fit(now, float(value), inside, text, tuple(corrections))


def _moved(
    own: ActivationQuantizer, now: float, zero: float, moved: float, low: float, high: float, inside: bool
) -> Fit:
    """The scale is right, and the zero point is not: its number, or its type."""
    kind = own.zero.dtype
    other = _OTHERS.get(str(kind))
    fits = other is not None and own.covers(now, zero, low, high, other)
    either = f", or {other} {zero:g}" if fits else ""
    text = f"{own.names[1]} {kind} {zero:g} does not fit: {moved:g} does{either}"
    return Fit(now, now, inside, text, (_number(own.names[1], own.zero, moved, zero, either),))


def _number(name: str, like: Array, value: float, now: float, more: str = "") -> Correction:
    return Correction(name, np.full(like.shape, value, like.dtype), f"{now:.4g} -> {value:.4g}{more}")


def _namesake(b: Reals, own: ActivationQuantizer, wanted: float) -> str:
    """Another scale of the model with this value, if there is one: both may be exchanged."""
    for name, scale in b.activation_scales.items():
        if name != own.names[0] and abs(scale - wanted) <= _SAME * wanted:
            return name
    return ""
