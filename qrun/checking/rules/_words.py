"""How findings word numbers, counts and places; and which two numbers count as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.ir import Array

TOLERANCE = 1e-5
_STEPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e8m0fnu": 1.0}


def tolerance(*scales: Array | None) -> float:
    """Relative difference of scales that says nothing: 1e-5, or one rounding to the coarsest type of these."""
    return max([TOLERANCE, *(_STEPS.get(str(scale.dtype), 0.0) for scale in scales if scale is not None)])


def digits(value: float, other: float) -> str:
    """Six digits, or more where they would read like the other number."""
    return f"{value:.6g}" if f"{value:.6g}" != f"{other:.6g}" else f"{value:.9g}"


def several(count: int, noun: str) -> str:
    """``1 node``, ``3 nodes``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def first_of(bad: Array) -> tuple[tuple[int, ...], str]:
    """The index of the first element that is True, and how to write it: ``[0,3]``, nothing for a scalar."""
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return index, f"[{','.join(map(str, index))}]" if index else ""


def listed(names: Sequence[str], most: int = 3) -> str:
    """``a, b, c and 4 more``."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
