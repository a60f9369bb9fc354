"""Planned products of float32 matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.errors import Declined
from qrun.native.kernels.float_dot import dot_call
from qrun.native.kernels.float_pairs import pairs_call
from qrun.native.kernels.float_product import FloatProduct, product_call
from qrun.native.kernels.float_stream import stream_call, streams
from qrun.native.kernels.float_tiles import LeftRows
from qrun.native.kernels.floats import Exact, FloatStack, FloatTerms, column_lengths
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, size
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)


_COLUMNS = {"a*": 0, "b*": 1, "y*": 3}
"""Where FloatStack.starts has what may lie in memory otherwise."""


class FloatMatmul(FloatProduct):
    """alpha * a @ b + beta * addend of float32, shapes as numpy.matmul, each element rounded once.

    a, b: shapes. weights: b itself if it is constant, else None. addend: its shape if it is to be read, None for none; its
    last axis is that of the result, and it has one row or as many. constant: the addend itself if it is constant.
    exact: makes elements that the kernel does not decide. memo: the lengths of weights' columns, for other shapes of a.
    turned: b, and weights, are matrices [N, K], which take the place of their transposes; few rows of a serve (float_dot.py).
    """

    def __init__(
        self,
        engine: Engine,
        a: Sequence[int],
        b: Sequence[int],
        exact: Exact,
        *,
        weights: Array | None = None,
        addend: Sequence[int] | None = None,
        constant: Array | None = None,
        alpha: float = 1.0,
        beta: float = 1.0,
        memo: Memo | None = None,
        turned: bool = False,
    ) -> None:
        left, right = tuple(a) if len(a) > 1 else (1, *a), tuple(b) if len(b) > 1 else (*b, 1)
        right = right[::-1] if turned else right
        lead, k = broadcast_shapes(left[:-2], right[:-2]), left[-1]
        if not k:
            raise Declined("sums of nothing")
        self.engine, self.exact, self._memo = engine, exact, memo or Memo()
        y = (*lead, *(left[-2:-1] if len(a) > 1 else ()), *(right[-1:] if len(b) > 1 else ()))
        self.turned = turned
        self.arrays = arrays = dict[str, Array]()
        shapes = {"a*": tuple(a), "b*": tuple(b), "addend*": None if addend is None else tuple(addend), "y*": y}
        for name, array in (("b*", weights), ("addend*", constant)):
            if array is not None:
                arrays[name], shapes[name] = np.ascontiguousarray(array), None
        self.names = [name for name, shape in shapes.items() if shape is not None]
        self.operands = tuple(Operand(shape, _FLOAT) for shape in shapes.values() if shape is not None)
        row = addend if constant is None else constant.shape
        many = row is not None and size(row) != right[-1]
        plain = row is None and alpha == 1
        self.terms = FloatTerms(
            "sum" if plain else "bias" if row and not many and alpha == beta == 1 else "scaled", alpha, beta
        )
        if row is None and not plain:
            arrays["addend*"], self.terms = np.zeros(right[-1], _FLOAT), FloatTerms("scaled", alpha, 0.0)
        self.lead, self.stack = lead, self._stack(lead, left, right, 4 * right[-1] if many else 0)

    def moved(self, place: int, operand: Operand, steps: Sequence[int]) -> FloatMatmul | None:
        """None where rows have gaps, or products are not apart."""
        name, column = _COLUMNS.get(self.names[place]), steps[-1:]
        if (
            name is None
            or len(self.stack.starts) != size(self.lead)
            or size(self.lead) < 2
            or column != (_FLOAT.itemsize,)
        ):
            return None
        shape, starts = self.operands[place].shape[:-2], self.stack.starts.copy()
        if len(steps) < 2 or (place == -1 and len(shape) != len(self.lead)):
            return None
        begin = np.zeros(shape, np.int64)
        for axis, step in enumerate(steps[:-2]):
            begin += step * np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
        starts[:, name] = np.broadcast_to(begin, self.lead).reshape(-1)
        operands, row = list(self.operands), steps[-2]
        operands[place] = operand
        rows = {"left": replace(self.stack.left, row=row)} if name == 0 else {"b_row" if name == 1 else "y_row": row}
        return self.again(operands=tuple(operands), stack=replace(self.stack, starts=starts, **rows))

    def _stack(self, lead: Sequence[int], left: Sequence[int], right: Sequence[int], addend_row: int) -> FloatStack:
        m, k, n = left[-2], left[-1], right[-1]
        if size(right[:-2]) == 1 and size(left[:-2]) == size(lead):
            m, lead, left, right = m * size(lead), (), left[-2:], right[-2:]
        starts = np.zeros((size(lead), 4), np.int64)
        for place, (shape, nbytes) in enumerate(((left, 4 * m * k), (right, 4 * k * n))):
            numbers = np.arange(size(shape[:-2])).reshape(shape[:-2])
            starts[:, place] = np.broadcast_to(numbers, lead).reshape(-1) * nbytes
        starts[:, 3] = np.arange(len(starts)) * (4 * m * n)
        b_row, b_column = (4, 4 * k) if self.turned else (4 * n, 4)
        return FloatStack(starts, LeftRows(m, k, 4 * k), n, b_row, addend_row, 4 * n, b_column=b_column)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        extents = self.whole
        if self.turned:
            return (dot_call(self, self.stack, self.names, extents),)
        if "b*" not in self.arrays:
            return (product_call(self, self.stack, self.names, extents),)
        given = self, self.stack, self.names, extents
        if paired := pairs_call(*given, matrices=self._right, lengths=self._lengths, memo=self._memo):
            return (paired,)
        call = stream_call if streams(self.engine, self.stack) else product_call
        return (call(*given, lengths=self._lengths),)

    def _lengths(self) -> Array:
        return self._memo.once("lengths", lambda: column_lengths(self._right()))

    def _right(self) -> Array:
        """Constant right matrices, [number, K, N]."""
        right = self.arrays["b*"]
        return right.reshape(-1, self.stack.k, self.stack.columns)
