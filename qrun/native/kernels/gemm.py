"""Planned products of 8-bit matrices with constant weights, as convolutions of one axis."""

from __future__ import annotations

from collections.abc import Sequence
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
        self.engine, memo = engine, memo or Memo()
        *rows, k = (int(n) for n in x_shape)
        columns = memo.once("columns", lambda: np.ascontiguousarray(w.T)[:, :, None])
        self.conv = Conv(engine, (1, w.shape[0], max(size(rows), 1)), columns, memo=memo, **parameters)
        x, y = self.conv.operands
        self.operands = (Operand((*rows, k), x.dtype), Operand((*rows, w.shape[1]), y.dtype))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return self.conv.sections(strides)

    def sized_as(self, other: Operation, memo: Memo) -> Gemm | None:
        conv = self.conv.resized(other.conv) if isinstance(other, Gemm) else None
        return None if conv is None else self.again(conv=conv, operands=other.operands)
