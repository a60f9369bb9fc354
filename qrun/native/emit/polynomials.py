"""Functions of float32 vectors as docs/numerics.md (F41) defines them: those of qrun/formulas."""

from __future__ import annotations

import math
from functools import partial

from qrun.formulas import single
from qrun.native.emit.numbers import fma_once
from qrun.native.emit.values import Value

exp, share, sigmoid, tanh, erf, gelu, gelu_by_tanh, swish = (
    partial(function, fma=fma_once)
    for function in (
        single.exp, single.share, single.sigmoid, single.tanh, single.erf, single.gelu, single.gelu_by_tanh,
        single.swish,
    )
)  # fmt: skip


def one_nan(made: Value) -> Value:
    """The same, but every NaN has one bit pattern."""
    return made.test("uno", made).select(math.nan, made)
