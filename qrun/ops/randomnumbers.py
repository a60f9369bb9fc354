"""Multinomial, which onnx.reference has not; it runs the other operators that draw random numbers."""

from __future__ import annotations

import numpy as np

from qrun.ops._float import widen
from qrun.ops._op import Array, Context, bad_attribute, bad_shape, one_of, op, refuse, require


@op("Multinomial", since=7, draws=True)
def multinomial(
    input: Array, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None, ctx: Context
) -> Array:
    """Classes drawn for each row of input [batch,classes], logarithms of what is proportional to their probabilities.

    int32 or int64 [batch,sample_size]: the first class whose sum of exp(input - the row's greatest) with all before it
    is above u times the sum of all, for u of [0, 1); in float64. u is numpy's MT19937 of `seed`.
    Raises OperatorError for a row without a finite greatest number, for other shapes and types, and for a seed that is
    not finite.
    """
    if input.ndim != 2:
        raise bad_shape("input", "[batch,classes]", input)
    require("sample_size", sample_size >= 1, "1 or more", sample_size)
    one_of("dtype", dtype, (6, 7))
    if seed is not None and not np.isfinite(seed):
        raise bad_attribute("seed", "a finite number", seed)
    ctx.claim((len(input), sample_size), 24)
    ctx.claim(input.shape, 24)
    drawn = np.random.RandomState(int(seed or 0) % 2**32).random_sample((len(input), sample_size))
    chosen = np.zeros(drawn.shape, np.int32 if dtype == 6 else np.int64)
    for number, row in enumerate(widen(input)):
        greatest = row.max(initial=-np.inf)
        if not np.isfinite(greatest):
            expected, got = "numbers with a finite greatest one", f"{float(greatest)!r} as the greatest"
            raise refuse(f"row {number} has no probabilities", "input", expected, got)
        sums = np.cumsum(np.exp(row - greatest))
        last = np.searchsorted(sums, sums[-1], side="left")  # that has a probability
        chosen[number] = np.minimum(np.searchsorted(sums, drawn[number] * sums[-1], side="right"), last)
    return chosen
