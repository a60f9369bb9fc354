"""Planned products of 8-bit matrices with constant weights, as convolutions of one axis."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.kernels.conv import Conv
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, Order, size


class Gemm(Operation):
    """The product of 8-bit activations [..., K] with constant 8-bit weights [K, N].

    parameters, and the result: as for Conv, with one zero point and scale per column.
    """

    order: Order = "rows"

    def __init__(
        self, engine: Engine, x_shape: Sequence[int], w: Array, *, memo: Memo | None = None, **parameters: Any
    ) -> None:
        rows = size(x_shape[:-1])
        self.engine, memo = engine, memo or Memo()
        self.conv = Conv(
            engine,
            (1, w.shape[0], max(rows, 1)),
            memo.once("columns", lambda: np.ascontiguousarray(w.T)[:, :, None]),
            memo=memo,
            **parameters,
        )
        self.empty = not rows
        shape = tuple(int(n) for n in x_shape)
        self.operands = (Operand(shape, self.conv.x_type), Operand((*shape[:-1], w.shape[1]), self.conv.y_type))

    def sections(self, strides: Sequence[int], skip: frozenset[int] = frozenset()) -> tuple[KernelCall, ...]:
        return () if self.empty else self.conv.sections(strides)

    def sized_as(self, other: Operation, memo: Memo) -> Gemm | None:
        if not isinstance(other, Gemm) or self.empty or other.empty:
            return None
        conv = self.conv.resized(other.conv)
        if conv is None:
            return None
        made = copy(self)
        made.__dict__.pop("tight", None)
        made.conv, made.operands = conv, other.operands
        return made

    def run(self, x: Array) -> Array:
        """[..., K] to [..., N]. Raises ValueError if x has not the planned shape and type."""
        return self.engine.run(self, [x])
