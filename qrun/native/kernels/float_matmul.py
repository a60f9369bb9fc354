"""Planned products of float32 matrices; of few rows also with a right matrix whose columns lie one after the other, or
with a constant one that is more than near memory holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import DOT_BLOCK
from qrun.native.errors import Declined
from qrun.native.kernels.float_pairs import pairs_call
from qrun.native.kernels.float_product import FloatProduct, block_of_one_width, direct, known_lengths, product_call
from qrun.native.kernels.floats import Exact, FloatPanels, FloatStack, FloatTerms, LeftRows
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, size
from qrun.native.machine.memory import aligned_up
from qrun.shapes import broadcast_shapes

_DOT_ROWS, _DEPTH, _LARGE = 4, 64, 1 << 21
"""A product reads columns as they lie if it has at most so many rows and at least so many elements of k; with constant
weights, at least so many bytes too: smaller ones stay in the second-level cache, where reading rows is faster."""
_REGISTERS = {16: 24}
"""Registers for the sums and squares of columns, by the int32 lanes of a vector; 12 for other vectors."""
_NEAR, _AHEAD = 3 << 16, 768
"""If the columns that are read together have at most so many bytes, the next columns are prefetched;
else, in each column, what comes so many bytes later."""
_DOT_TILES, _DOT_COLUMNS, _WORK = 4, 32, 20000
"""Tiles of a thread, where it is one of several; the least columns of a tile, each of which finds the lengths of rows;
the least products of one."""


def serves(rows: int, depth: int, columns: int, constant: bool) -> bool:
    """Whether products of this size read columns as they lie, and not a transposed copy of the right matrix.
    constant: the right matrix is constant, so that it would be copied only once."""
    return 0 < rows <= _DOT_ROWS and depth >= _DEPTH and (not constant or 4 * depth * columns >= _LARGE)


def _together(isa: Isa, rows: int) -> int:
    """How many columns are read together: a power of two, so that their sums and squares fit the registers."""
    lanes, most = isa.lanes // 2, _REGISTERS.get(isa.lanes, 12)
    count = lanes
    while count > 1 and count * (rows + 1) > most:
        count //= 2
    return count


_FAR = 1 << 20
"""Bytes of a right matrix from which on it is streamed: smaller ones stay in the second-level cache."""
_BESIDE, _LINE, _MUCH = 8, 16, 12
"""Rows of the right matrix that are read side by side, columns of them that a line of memory has, and how many of these
columns a strip must have, so that lines are not read too often."""
_STREAM_TILES, _STREAM_COLUMNS = 2, 512
"""Tiles of a thread, where it is one of several, and the least columns of one: memory is read in pieces of so many."""


def _beside(isa: Isa, rows: int) -> int:
    """Vectors of columns in a strip of all rows that streams the right matrix."""
    sums = max(high * vectors for vectors, high in isa.real_rows.items())
    return max(1, min(2 * _LINE // isa.lanes, sums // max(rows, 1)))


def streams(engine: Engine, stack: FloatStack) -> bool:
    """Whether a product with a constant right matrix reads that matrix once, row after row."""
    columns = _beside(engine.isa, stack.left.rows) * engine.isa.lanes // 2
    return columns >= _MUCH and stack.k * stack.b_row >= _FAR


_FLOAT = np.dtype(np.float32)
_STARTS = {"a*": 0, "b*": 1, "y*": 3}
"""The column of FloatStack.starts for each word whose operand `moved` may place elsewhere."""


class FloatMatmul(FloatProduct):
    """alpha * a @ b + beta * addend of float32, shapes as numpy.matmul, each element rounded once.

    a, b: shapes. weights: b itself if it is constant, else None. addend: its shape if it is to be read, None for none;
    its last axis is that of the result, and it has one row or as many. constant: the addend itself if it is constant.
    exact: makes elements that the kernel does not decide. memo: the lengths of weights' columns, for other shapes of a.
    turned: b, and weights, are matrices [N, K], which take the place of their transposes; few rows of a serve.
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
        """None where elements of a row are not neighbours, or the products are one product of more rows."""
        name, column = _STARTS.get(self.names[place]), steps[-1:]
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
        given = self, self.stack, self.names, self.whole
        if self.turned:
            return (self._by_columns(),)
        if "b*" not in self.arrays:
            return (product_call(*given),)
        weights = self._weights
        if paired := pairs_call(*given, matrices=weights.rows, lengths=weights.lengths, memo=self._memo):
            return (paired,)
        if streams(self.engine, self.stack):
            return (self._streamed(),)
        if self._in_panels:
            rows, stack = self.stack.left.rows, self.stack.numbered()
            strip = block_of_one_width(self.engine.isa, rows) if rows > _DOT_ROWS else None
            return (product_call(self, stack, self.names, self.whole, weights=weights, strip=strip),)
        return (product_call(*given),)

    @property
    def _weights(self) -> FloatPanels:
        right = self.arrays["b*"].reshape(-1, 1, self.stack.k, self.stack.columns)
        return self._memo.once("weights", lambda: FloatPanels(right, self._memo))

    @property
    def _in_panels(self) -> bool:
        """Whether constant weights are read panel after panel: columns of few rows are read as often as converted, and
        of a panel as it lies, each row is in a page of its own."""
        few = direct(self.stack.left.rows, True) and not self.turned
        return "b*" in self.arrays and few and not streams(self.engine, self.stack)

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that it lays out anew."""
        return self.arrays["b*"].nbytes if self._in_panels else 0

    def _by_columns(self) -> KernelCall:
        """The call that reads columns one after the other."""
        engine, stack, (rows, depth) = self.engine, self.stack, (self.stack.left.rows, self.stack.left.depth)
        lanes = engine.isa.lanes // 2
        panels, links = -(-stack.columns // lanes), -(-min(depth, DOT_BLOCK) // lanes)
        stack = stack.linked(links + lanes.bit_length() + -(-depth // DOT_BLOCK))
        share = -(-panels // (_DOT_TILES * engine.threads)) if engine.threads > 1 else panels
        block = min(panels, max(share, max(_DOT_COLUMNS, _WORK // (rows * depth)) // lanes))
        together = _together(engine.isa, rows)
        spec = KernelSpec("float_dot", engine.isa.name, rows, 1, together, self.terms.form, self.terms.out, False)
        squares_at, wide = aligned_up(8 * rows), together * stack.b_column
        sums_at = squares_at + 64
        words = {"b_column": stack.b_column, "panels": panels, "panel_block": block}
        words |= {"squares_at": squares_at, "sums_at": sums_at, "ahead": wide if wide <= _NEAR else _AHEAD}
        words["tiles"] = len(stack.starts) * -(-panels // block)
        return self.call(spec, stack, words, {}, self.names, self.whole, sums_at + 8 * lanes * rows)

    def _streamed(self) -> KernelCall:
        """The call that reads a large right matrix once, row after row."""
        engine, stack, (rows, depth) = self.engine, self.stack, (self.stack.left.rows, self.stack.left.depth)
        lanes = engine.isa.lanes // 2
        vectors = _beside(engine.isa, rows)
        width = vectors * lanes
        panels, stack = -(-stack.columns // width), stack.linked(_BESIDE + -(-depth // _BESIDE) + 1)
        share = -(-panels // (_STREAM_TILES * engine.threads)) if engine.threads > 1 else panels
        block = min(panels, max(share, _STREAM_COLUMNS // width))
        form = self.terms.form, self.terms.out, False
        spec = KernelSpec("float_stream", engine.isa.name, rows, vectors, _BESIDE, *form, operands="rows")
        pitch = aligned_up(8 * depth) + 64
        sums_at = aligned_up(rows * pitch + 8 * rows)
        found = known_lengths(stack, self._weights.lengths(), width)
        words = {"row_block": rows, "panels": panels, "panel_block": block, "pitch": pitch, "lengths_at": rows * pitch}
        words |= {"sums_at": sums_at, "known_odd": int(not np.isfinite(found["known*"]).all())}
        words["tiles"] = len(stack.starts) * -(-panels // block)
        return self.call(spec, stack, words, found, self.names, self.whole, sums_at + 8 * rows * width * block)
