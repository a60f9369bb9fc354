"""Planned reductions of rows of integers, or of bool, to one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.expression import KINDS
from qrun.native.errors import Declined
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Order, Planned, row_tiles, size

_NAMES = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "l",
    "uint8": "u",
    "uint16": "w",
    "uint32": "m",
    "uint64": "q",
}
_FORMS = ("sum", "product", "sum_abs", "sum_square", "mean", "greatest", "least")


class IntegerReduction(Planned):
    """What a row of `length` elements comes to, one or more of them, of shape y_shape.

    kind: ``sum``, ``product``, ``sum_abs`` (of magnitudes) or ``sum_square`` (of squares), which wrap; ``mean`` (the exact
          one, toward zero; of up to 32 bits); ``greatest`` or ``least``, of bool too.

    Raises Declined for other kinds, and types that they do not take.
    """

    order: Order = "plain"

    def __init__(
        self,
        engine: Engine,
        kind: str,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        length: int,
        y_shape: Sequence[int],
    ) -> None:
        extreme = kind in ("greatest", "least")
        self.element = "t" if dtype == np.bool_ and extreme else _NAMES.get(dtype.name, "")
        if kind not in _FORMS or not self.element or (kind == "mean" and dtype.itemsize == 8):
            raise Declined(f"no native {kind.replace('_', ' of ')} of {dtype.name}")
        self.engine, self.kind, self.length = engine, kind, length
        self.operands = Operand(tuple(shape), dtype), Operand(tuple(y_shape), dtype)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, rows, item = self.engine, size(self.result.shape), KINDS[self.element][1]
        lanes = 4 * engine.isa.lanes // item
        words = row_tiles(rows, self.length * item, engine.threads)
        words |= {"length": self.length, "whole": self.length - self.length % lanes}
        spec = KernelSpec("folded", engine.isa.name, lanes, 1, 1, self.kind, "bytes", False, operands=self.element)
        return (self._whole(spec, ("x*", "y*"), words),)
