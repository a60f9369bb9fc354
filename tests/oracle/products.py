"""Products of matrices of finite floats as fractions: sums of whole numbers, as a float is one times a power of two."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np


def whole(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Whole numbers, as objects, and the power of two that they are divided by. Raises for what is not finite."""
    ratios = [float(value).as_integer_ratio() for value in values.ravel()]
    under = max((below for _, below in ratios), default=1)
    made = np.empty(len(ratios), object)
    made[:] = [above * (under // below) for above, below in ratios]
    return made.reshape(values.shape), under


def products(a: np.ndarray, b: np.ndarray) -> list[list[Fraction]]:
    """The real a @ b, row by row, of [m,k] and [k,n]."""
    (x, below), (y, under) = whole(a), whole(b)
    if not x.shape[1]:
        return [[Fraction(0)] * y.shape[1] for _ in x]
    made: Any = x @ y
    return [[Fraction(total, below * under) for total in row] for row in made]
