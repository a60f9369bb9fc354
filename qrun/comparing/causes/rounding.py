"""The order of rounding and zero point, and where exact ties go."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import TIE, Suspect
from qrun.ir import Array

_SPEC = "ONNX operators, QuantizeLinear: rounding to nearest ties to even, of x / y_scale"


@cause("zero-point-before-rounding", rank=30, source=_SPEC)
def zero_point_before_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """The zero point is added before rounding, which sends ties to the other neighbour where it is odd.

    To confirm: The line `ties` says that all are exact ties, and the zero point is odd.

    To do: Use an even zero point (128, or 0 with int8), or allow --lsb 1.
    """
    if s.exact is not None and s.alone and np.any(s.zero % 2):
        made = s.coded(np.rint(_snapped(s.exact)))
        if made is not None:
            yield Hypothesis(made, f"adds the zero point {_text(s.zero)}, an odd one, before rounding")


@cause("tie-rounding", rank=31, source=_SPEC)
def tie_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """Ties are not rounded to even but away from zero, or up.

    To confirm: The line `ties` says that all are exact ties.

    To do: Allow --lsb 1, or use scales that are no multiples of each other by powers of two, so that ties are rare.
    """
    if s.exact is None or not s.alone:
        return
    real = _snapped(s.exact - s.zero)
    with np.errstate(all="ignore"):
        away = np.copysign(np.floor(np.abs(real) + 0.5), real)
        inward = np.copysign(np.ceil(np.abs(real) - 0.5), real)
        ways = (("away from zero", away), ("up", np.floor(real + 0.5)), ("towards zero", inward))
    for text, whole in ways:
        made = s.coded(whole, s.zero)
        if made is not None:
            yield Hypothesis(made, f"rounds exact ties {text}")


@cause("truncation", rank=32, source=_SPEC)
def truncation(s: Suspect) -> Iterator[Hypothesis]:
    """The fraction is dropped instead of rounded.

    To confirm: Elements differ by one step wherever the fraction is above one half, not at ties only.

    To do: Add half a step before the node, or round before it; report it to the runtime.
    """
    if s.exact is None or not s.alone:
        return
    real = s.exact - s.zero
    for text, whole in (("drops the fraction", np.trunc(real)), ("rounds down", np.floor(real))):
        made = s.coded(whole, s.zero)
        if made is not None:
            yield Hypothesis(made, text)


def _snapped(values: Array) -> Array:
    """Values that float64 puts beside a tie, on it."""
    with np.errstate(all="ignore"):
        tie = np.floor(values) + 0.5
        return np.asarray(np.where(np.abs(values - tie) <= TIE, tie, values))


def _text(zero: Array) -> str:
    return f"{int(zero)}" if not zero.ndim else f"of each channel ({int(zero.reshape(-1)[0])}, ...)"
