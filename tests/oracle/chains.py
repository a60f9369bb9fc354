"""Float32 sums of products as docs/numerics.md, F1, orders them: in fractions, each step rounded by itself."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from oracle.cast import nearest

BLOCK = 256
SINGLE = np.float32


def single(value: Fraction) -> Fraction:
    return Fraction(nearest(value, SINGLE))


def chained(
    left: Sequence[Fraction],
    right: Sequence[Fraction],
    dtype: Any,
    first: Fraction | None = None,
    bias: Fraction | None = None,
) -> float:
    """The sum of products of finite numbers: `first` plus blocks, in order, plus `bias`; then rounded to the type."""
    total = first
    for start in range(0, max(len(left), 1), BLOCK):
        chain = Fraction(0)
        for a, b in zip(left[start : start + BLOCK], right[start : start + BLOCK], strict=True):
            chain = single(a * b + chain)
        total = chain if total is None else single(total + chain)
    assert total is not None
    return nearest(total if bias is None else single(total + bias), dtype)


def reach(left: Sequence[Fraction], right: Sequence[Fraction]) -> Fraction:
    """How far such a sum may be from the real one, where nothing is subnormal."""
    sizes = sum((abs(a * b) for a, b in zip(left, right, strict=True)), Fraction(0))
    return (BLOCK + Fraction(len(left), BLOCK) + 2) * sizes / 2**24
