"""Planned products of float32 matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.errors import Declined
from qrun.native.kernels.fma_product import FloatPanels, FloatProduct, FloatStack, FloatTerms, LeftRows, product_call
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, size
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)
_STARTS = {"a*": 0, "b*": 1, "y*": 3}
"""The column of FloatStack.starts for each word whose operand `moved` may place elsewhere."""


class FloatMatmul(FloatProduct):
    """alpha * a @ b + beta * addend of float32, shapes as numpy.matmul.

    a, b: shapes. weights: b itself if it is constant, else None. addend: its shape if it is to be read, None for none;
    its last axis is that of the result, and it has one row or as many. constant: the addend itself if it is constant.
    begins: whether sums begin with beta * addend, as Gemm's do; else the addend is added to them. memo: the weights in
    panels, for other shapes of a. turned: b is [..., N, K], and its transpose is meant; weights are not turned.
    """

    def __init__(
        self,
        engine: Engine,
        a: Sequence[int],
        b: Sequence[int],
        *,
        weights: Array | None = None,
        addend: Sequence[int] | None = None,
        constant: Array | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        memo: Memo | None = None,
        begins: bool = False,
        turned: bool = False,
    ) -> None:
        left, right = tuple(a) if len(a) > 1 else (1, *a), tuple(b) if len(b) > 1 else (*b, 1)
        right = (*right[:-2], right[-1], right[-2]) if turned else right
        lead, k = broadcast_shapes(left[:-2], right[:-2]), left[-1]
        if not k:
            raise Declined("sums of nothing")
        self.engine, self._memo = engine, memo or Memo()
        y = (*lead, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))
        self.turned = turned
        self.arrays = arrays = dict[str, Array]()
        shapes = {"a*": tuple(a), "b*": tuple(b), "addend*": None if addend is None else tuple(addend), "y*": y}
        for name, array in (("b*", weights), ("addend*", constant)):
            if array is not None:
                arrays[name], shapes[name] = array if name == "b*" else np.ascontiguousarray(array), None
        self.names = [name for name, shape in shapes.items() if shape is not None]
        self.operands = tuple(Operand(shape, _FLOAT) for shape in shapes.values() if shape is not None)
        row = addend if constant is None else constant.shape
        many = row is not None and size(row) != right[-1]
        kind = ("sum" if alpha == 1 else "alpha") if row is None else "scaled" if begins else "bias"
        self.terms = FloatTerms(kind, alpha, beta)
        self.lead, self.stack = lead, self._stack(lead, left, right, 4 * right[-1] if many else 0)

    def moved(self, place: int, operand: Operand, steps: Sequence[int]) -> FloatMatmul | None:
        """None where elements of a row are not neighbours, or the products are one product of more rows."""
        name = _STARTS.get(self.names[place])
        if name is None or len(self.stack.starts) != size(self.lead) or size(self.lead) < 2 or len(steps) < 2:
            return None
        row, column = steps[:-3:-1] if self.turned and name == 1 else steps[-2:]
        if column != _FLOAT.itemsize and (name != 1 or row != _FLOAT.itemsize):
            return None
        shape, starts = self.operands[place].shape[:-2], self.stack.starts.copy()
        if place == -1 and len(shape) != len(self.lead):
            return None
        begin = np.zeros(shape, np.int64)
        for axis, step in enumerate(steps[:-2]):
            begin += step * np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
        starts[:, name] = np.broadcast_to(begin, self.lead).reshape(-1)
        operands = list(self.operands)
        operands[place] = operand
        changes: dict[str, Any] = {"y_row": row}
        if name == 0:
            changes = {"left": replace(self.stack.left, row=row)}
        elif name == 1:
            changes = {"b_row": row, "b_column": 0 if column == _FLOAT.itemsize else column}
        return self.again(operands=tuple(operands), stack=replace(self.stack, starts=starts, **changes))

    def _stack(self, lead: Sequence[int], left: Sequence[int], right: Sequence[int], addend_row: int) -> FloatStack:
        m, k, n = left[-2], left[-1], right[-1]
        if size(right[:-2]) == 1 and size(left[:-2]) == size(lead):
            m, lead, left, right = m * size(lead), (), left[-2:], right[-2:]
        starts = np.zeros((size(lead), 4), np.int64)
        for place, (shape, nbytes) in enumerate(((left, 4 * m * k), (right, 4 * k * n))):
            numbers = np.arange(size(shape[:-2])).reshape(shape[:-2])
            starts[:, place] = np.broadcast_to(numbers, lead).reshape(-1) * nbytes
        starts[:, 3] = np.arange(len(starts)) * (4 * m * n)
        return FloatStack(starts, LeftRows(m, k, 4 * k), n, 4 * n, addend_row, 4 * n, 4 * k if self.turned else 0)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if "b*" not in self.arrays:
            return (product_call(self, self.stack, self.names, self.whole),)
        matrix = self.stack.k * 4 * self.stack.columns
        numbered = replace(self.stack, starts=self.stack.starts // np.array([1, matrix, 1, 1]))
        return (product_call(self, numbered, self.names, self.whole, weights=self._weights),)

    @property
    def _weights(self) -> FloatPanels:
        right = self.arrays["b*"].reshape(-1, self.stack.k, self.stack.columns)
        return self._memo.once("weights", lambda: FloatPanels(right, self._memo))

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that it lays out anew."""
        return self.arrays["b*"].nbytes if "b*" in self.arrays else 0
