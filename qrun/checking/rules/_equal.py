"""When two numbers of a model count as one, and how two that do not are written."""

from __future__ import annotations

from qrun.ir import Array

TOLERANCE = 1e-5
_STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1.0}


def tolerance(*scales: Array | None) -> float:
    """Relative difference of scales that says nothing: 1e-5, or one rounding to the coarsest type of these."""
    return max([TOLERANCE, *(_STEPS.get(str(scale.dtype), 0.0) for scale in scales if scale is not None)])


def digits(value: float, other: float) -> str:
    """Six digits, or more where they would read like the other number."""
    return f"{value:.6g}" if f"{value:.6g}" != f"{other:.6g}" else f"{value:.9g}"
