"""Planned sums of a product with constant weights, for a zero point of the activations that comes with each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.scale import STARTS
from qrun.native.emit.spec import KernelSpec
from qrun.native.kernels.dynamic import Matmul
from qrun.native.kernels.stack import BIAS, StackPart
from qrun.native.machine.call import KernelCall, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import aligned
from qrun.native.machine.operation import Operand, Operation, Order, Planned

Array = np.ndarray[Any, Any]
_INT32 = np.dtype(np.int32)
_PLACES = {0: 0, BIAS: 1, 1: 2}
"""Of a part's operands among those of `MatmulSums`."""


class Starts(Planned):
    """first - zero * sums, int32 as both, for an 8-bit zero point: one element, of any shape."""

    order: Order = "plain"

    def __init__(self, engine: Engine, zero: Operand, first: Array, sums: Array) -> None:
        super().__init__()
        self.engine, self.operands = engine, (zero, Operand(first.shape, _INT32))
        self.constants = tuple(aligned(values.shape, np.int32) for values in (first, sums))
        for held, values in zip(self.constants, (first, sums), strict=True):
            held[...] = values

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        zero, result = self.operands
        signed = zero.dtype == np.int8
        spec = KernelSpec("starts", self.engine.isa.name, 1, 1, 1, "starts", "i32", bool(signed))
        words = {"zero*": 0, "y*": 0, "count": result.shape[0], "tiles": 1}
        arrays = dict(zip(("first*", "sums*"), self.constants, strict=True))
        return (
            KernelCall(spec, self.engine.kernels.get(spec), struct(STARTS, words, arrays), ((0, 0), (1, 1)),
                    (1, 4 * result.shape[0]), 1, keep=self.constants),
        )  # fmt: skip


class MatmulSums(Operation):
    """8-bit activations and what `Starts` made to the sums of a Matmul, of shape y_shape."""

    order: Order = "plain"
    gaps = False

    def __init__(self, matmul: Matmul, a: Operand, starts: Operand, y_shape: Sequence[int]) -> None:
        self.operands = a, starts, Operand(tuple(y_shape), _INT32)
        self._sections = tuple(_on_operands(part, 4 * starts.shape[0]) for part in matmul.parts)

    def sections(self, strides: Sequence[int], skip: frozenset[int] = frozenset()) -> tuple[KernelCall, ...]:
        return self._sections


def _on_operands(part: StackPart, starts: int) -> KernelCall:
    """The call on activations, start values of so many bytes, and sums."""
    section, arguments = part.section, part.section.arguments.copy()
    x, y = section.extents[:2]
    for word, operand in section.pointers:
        arguments[word] += 4 * part.lane if operand == BIAS else 0
    pointers = tuple((word, _PLACES[operand]) for word, operand in section.pointers)
    return replace(section, arguments=arguments, pointers=pointers, extents=(x, starts, y))


def staged(matmul: Matmul, a: Operand, zero: Operand, y_shape: Sequence[int]) -> tuple[Starts, MatmulSums]:
    """The two steps of a Matmul that adds no terms (`simple`), for a zero point of the activations."""
    starts = Starts(matmul.engine, zero, *matmul.starts())
    return starts, MatmulSums(matmul, a, starts.result, y_shape)
