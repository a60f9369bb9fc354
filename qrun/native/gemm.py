"""Planned matrix products with constant weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.conv import Conv
from qrun.native.copied import KINDS
from qrun.native.engine import Engine
from qrun.native.epilogue import Target
from qrun.native.operation import Operand, Operation, Order, size
from qrun.native.section import Section

Array = np.ndarray[Any, Any]


class Gemm(Operation):
    """The product of 8-bit activations [..., K] with constant 8-bit weights [K, N].

    Parameters, kinds and result as for Conv, with one zero point and scale per column.
    """

    order: Order = "rows"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        *,
        x_zero_point: Array,
        w_zero_point: Array | None = None,
        bias: Array | None = None,
        target: Target | None = None,
        kinds: frozenset[str] = KINDS,
    ) -> None:
        rows = size(x_shape[:-1])
        self.engine = engine
        self.conv = Conv(
            engine,
            (1, w.shape[0], max(rows, 1)),
            np.ascontiguousarray(w.T)[:, :, None],
            x_zero_point=x_zero_point,
            w_zero_point=w_zero_point,
            bias=bias,
            target=target,
            kinds=kinds,
        )
        self.empty = not rows
        shape = tuple(int(n) for n in x_shape)
        self.operands = (Operand(shape, self.conv.x_type), Operand((*shape[:-1], w.shape[1]), self.conv.y_type))

    def sections(self, strides: Sequence[int], skip: frozenset[int] = frozenset()) -> tuple[Section, ...]:
        return () if self.empty else self.conv.sections(strides)

    def run(self, x: Array) -> Array:
        """[..., K] to [..., N]. Raises ValueError if x has not the planned shape and type."""
        return self.engine.run(self, [x])
