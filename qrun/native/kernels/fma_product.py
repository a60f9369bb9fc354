"""Planned products of float32, whose sums have the order of docs/numerics.md, F1: where operands lie, how products are
cut into tiles, and strips that fit the registers; the call of the kernel that serves all; and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import Reloadable
from qrun.native.emit.fma_product import BLOCK, PITCH
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import NARROW
from qrun.native.errors import Declined
from qrun.native.kernels.packing import pack_panels
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Operation, size
from qrun.native.machine.memory import aligned_up
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)
_ROW_BLOCK = 128
_SUMS = 1 << 18
"""Rows of a tile, and bytes of sums that wait between two blocks of k."""
_PACK, _GATHER, _TAKE, _JUMP = 8.0, 20.0, 20000, 12000
"""What costs as much as so many multiply-adds: an element of a panel that a tile packs, or fetches; one of a row that
it gathers; taking a tile; going on to a block of k, whose panels lie elsewhere."""
UNROLL, MANY = 4, 12
"""Elements of k of a turn, and the vectors of sums from which on a turn has one."""
ALONE = 8
"""Chains that hide the latency of a multiply-add."""
_POINTERS = 10
"""Pixels of a strip, each with an address of its own: more do not fit the 16 general registers of x86, and the compiler
then loads all elements first and spills sums."""
_STARTS = {"a*": 0, "b*": 1, "y*": 3}
"""The column of FloatStack.starts for each word whose operand `moved` may place elsewhere."""


@frozen
class LeftRows:
    """Where the rows of a product's left operand are.

    depth: elements of k. row: bytes from one row to the next. offsets: int32 [rows], bytes from the product's start to
    each row, with steps, int32 [depth], from there to each element; or int32 [rows, taps], bytes to each tap, -1 for
    zeros, with steps, int32 [depth, 2], bytes into a row of offsets, and from the tap to the element.
    gathered: whether tiles copy a block of k of their rows, one row behind the other, before they multiply it.
    """

    rows: int
    depth: int
    row: int
    offsets: Array | None = None
    steps: Array | None = None
    gathered: bool = False

    @property
    def kind(self) -> str:
        if self.offsets is None:
            return "rows"
        return "taps" if self.offsets.ndim > 1 else "gathered" if self.gathered else "pixels"

    @property
    def gathers(self) -> bool:
        """Whether tiles copy their rows first."""
        return self.kind in ("taps", "gathered")


@frozen
class FloatStack:
    """Products of one shape. starts: int64 [number, 4], bytes from where a, b, addend and y start to each one's own,
    and a fifth number for a residual; b_row, addend_row, y_row, residual_row: bytes from one row to the next. b_column:
    bytes from one column of b to the next, if a column's elements are neighbours; 0 if a row's are."""

    starts: Ints
    left: LeftRows
    columns: int
    b_row: int
    addend_row: int
    y_row: int
    b_column: int = 0
    residual_row: int = 0

    @property
    def k(self) -> int:
        return self.left.depth

    @property
    def macs(self) -> int:
        return len(self.starts) * self.left.rows * self.columns * self.k


def stack_starts(counts: Sequence[int], *steps: Sequence[int]) -> Ints:
    """FloatStack.starts of products along some axes. counts: how many along each; steps: for each axis, bytes in a, b,
    addend and y from one product to the next."""
    return np.ascontiguousarray(np.indices(counts).reshape(len(counts), -1).T @ np.array(steps, np.int64))


class RightPanels:
    """Constant right matrices that products read panel after panel; they are numbered by FloatStack.starts.

    memo: what is made of them, for products that differ in their left operands. kind: of the kernel that reads them.
    coding, words: what else its operands say, and its struct has.
    """

    kind = "fma_product"
    coding = ""
    words: Mapping[str, int] = {}
    memo: Memo

    def lying(self, direct: bool) -> str:
        """How they lie, as emitters name it. direct: whether a tile has one strip of each panel."""
        return "panels"

    def strip(self, isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
        return strip_of(isa, rows, columns, vectors)

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        """What kernels read, in panels of this width."""
        raise NotImplementedError


class FloatPanels(RightPanels):
    """Those of float32 [number, K, N]."""

    def __init__(self, matrices: Array, memo: Memo) -> None:
        self.matrices, self.memo = Reloadable(matrices), memo

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        make = lambda: pack_panels(engine, self.matrices.array, width, BLOCK, 0)  # noqa: E731
        return {"b*": self.memo.once(("panels", width), make)}


Limits = tuple[float, float, float]
"""The least and the greatest result, and the zero that is added to it: -0, or 0 to make 0 of -0."""
_UNLIMITED: Limits = (-np.inf, np.inf, -0.0)


@frozen
class FloatTerms:
    """What becomes of sums. kind: the form of FmaProductEmitter, without what follows a sum. out: the type to which
    they are rounded, as KernelSpec.out names it. tail: steps of emit/fma_product.py::TAIL."""

    kind: str
    alpha: float = 1.0
    beta: float = 1.0
    limits: Limits = _UNLIMITED
    out: str = "f32"
    tail: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """The kernels' form. Limits are compared as text, since a limit of 0 differs from one of -0."""
        kind = "first" if self.kind == "scaled" and self.alpha == self.beta == 1 else self.kind
        return "+".join([kind, *self.tail, *(["limits"] if self.limited else [])])

    @property
    def limited(self) -> bool:
        return str(self.limits) != str(_UNLIMITED)

    @property
    def numbers(self) -> Array:
        """The words `numbers` of emit/fma_product.py."""
        return np.array([self.alpha, self.beta, *self.limits], _FLOAT)


class FloatProduct(Operation):
    """Sums of products of floats.

    terms: what becomes of them. arrays: operands that are constant, by word.
    """

    engine: Engine
    terms: FloatTerms
    arrays: Mapping[str, Array] = {}

    def limited(self, low: float, high: float, zero: float) -> Self:
        return self.again(terms=replace(self.terms, limits=(low, high, zero)))

    def narrowed(self, dtype: np.dtype[Any]) -> Self:
        return self.again(terms=replace(self.terms, out=NARROW[dtype.name]))

    def call(
        self,
        spec: KernelSpec,
        words: Mapping[str, int],
        arrays: Mapping[str, Array],
        operands: Sequence[str] | Mapping[str, int],
        extents: Sequence[int],
        scratch: int,
    ) -> KernelCall:
        """The call of a kernel of this specification; words, arrays: what else its struct has."""
        held = {**self.arrays, "numbers*": self.terms.numbers, **arrays}
        return self.engine.kernels.call(spec, operands, words, extents, held, sparse=True, scratch=scratch)


def panel_vectors(isa: Isa, columns: int) -> int:
    """Vectors of columns in a panel: few columns are padding, and a load serves many multiply-adds."""

    def cost(vectors: int) -> float:
        rows = isa.real_rows[vectors]
        padded = -(-columns // (vectors * isa.lanes)) * vectors
        return padded * (1 + 0.3 * (rows + vectors) / (rows * vectors))

    return min(sorted(isa.real_rows, reverse=True), key=cost)


def strip_of(isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
    """Rows and vectors of a strip, for panels of so many vectors: where there are few rows, it has several panels, so
    that a multiply-add need not wait for the one before it."""
    most, panels = isa.real_rows[vectors], -(-columns // (vectors * isa.lanes))
    if 2 * rows <= most:
        return rows, vectors * max(1, min(panels, most // rows, -(-2 * ALONE // (rows * vectors))))
    return height_of(rows, most), vectors


def height_of(rows: int, most: int) -> int:
    """The rows of a strip, at most `most`. A taller strip uses each loaded row of b more often; a height that does not
    divide `rows` computes some rows twice."""
    heights = range(min(most, rows), min(most, rows) // 2, -1)
    return min(heights, key=lambda high: -(-rows // high) * high * (1 + 0.3 / high))


@frozen
class Cut:
    """How products are cut into tiles: rows and panels of each."""

    rows: int
    panels: int

    @classmethod
    def of(
        cls, number: int, size: tuple[int, int, int], strip: tuple[int, int], threads: int, gathers: bool = False
    ) -> Cut:
        """The cut of products of this size (rows, columns, k) by which threads are done first: smaller tiles leave none
        without work, larger ones read less twice. strip: its rows and columns; gathers: whether tiles gather rows."""
        rows, columns, k = size
        high, width = strip
        panels = -(-columns // width)

        def cost(cut: Cut) -> float:
            tiles = number * -(-rows // cut.rows) * -(-panels // cut.panels)
            work = cut.rows * cut.panels * width * k * (1 + _PACK / cut.rows) + _TAKE + _JUMP * -(-k // BLOCK)
            work += cut.rows * k * _GATHER * gathers
            return work * (max(tiles / threads + 0.5, 1.0) if threads > 1 else tiles)

        blocks = (_ROW_BLOCK, 96, 64, 32, high) if threads > 1 else (_ROW_BLOCK,)
        cuts = []
        for tall in sorted({even(rows, most, high) for most in blocks}, reverse=True):
            most = max(1, _SUMS // (4 * tall * width)) if k > BLOCK else panels
            for parts in (1, 2, 4, 8, panels) if threads > 1 else (1,):
                cuts.append(cls(tall, even(panels, min(most, -(-panels // parts)), 1)))
        return min(cuts, key=cost)


def even(count: int, most: int, step: int) -> int:
    """About `most` or less, a multiple of `step`, so that parts of a number are alike."""
    parts = -(-count // max(most, step))
    return -(-count // (parts * step)) * step


def product_call(
    product: FloatProduct,
    stack: FloatStack,
    pointers: Sequence[str] | Mapping[str, int],
    extents: Sequence[int],
    *,
    weights: RightPanels | None = None,
) -> KernelCall:
    """The call for products that are not empty. pointers: the words of operands that are not constant, in order, or
    which operand each is; extents: bytes of each that are touched.
    weights: b, if it is constant; starts then have the number of the matrix in place of bytes."""
    engine, left, isa = product.engine, stack.left, product.engine.isa
    reader, vectors = weights or RightPanels(), panel_vectors(isa, stack.columns)
    rows, wide = reader.strip(isa, left.rows, stack.columns, vectors)
    if left.kind == "pixels":
        rows = height_of(left.rows, min(rows, _POINTERS))
    held: dict[str, Array] = {"batches*": stack.starts}
    if weights is None:
        right = "turned" if stack.b_column else "near" if left.rows == rows else "packed"
        vectors = wide
    else:
        right = weights.lying(left.rows == rows)
        width = vectors * isa.lanes
        held |= weights.arrays(engine, width)
        starts = held["batches*"] = stack.starts.copy()
        starts[:, 1] *= 4 * width * -(-stack.columns // width) * left.depth
    if left.offsets is not None and left.steps is not None:
        held |= {"offsets*": left.offsets, "steps*": left.steps, "padding*": np.zeros(1, _FLOAT)}
    shape, strip = (left.rows, stack.columns, stack.k), (rows, wide * isa.lanes)
    cut = Cut.of(len(stack.starts), shape, strip, engine.threads, left.gathers)
    places, scratch = _scratch(left, cut, rows, wide * isa.lanes, isa, right)
    unroll = 1 if rows * wide >= MANY else UNROLL
    operands = f"{left.kind}-{right}-{vectors}{reader.coding}"
    form = product.terms.form, product.terms.out, False
    strips, lines = -(-min(left.rows, cut.rows) // rows), -(-4 * wide * isa.lanes // 64)
    fetches = -(-lines // strips) if right == "panels" and strips > 1 else 0
    spec = KernelSpec(reader.kind, isa.name, rows, wide, unroll, *form, fetches, operands)
    panels, panel_block = -(-stack.columns // (vectors * isa.lanes)), cut.panels * (wide // vectors)
    words = {
        **reader.words,
        **places,
        "a_row": left.row,
        "b_row": stack.b_row,
        "b_column": stack.b_column,
        "addend_row": stack.addend_row,
        "residual_row": stack.residual_row,
        "y_row": stack.y_row,
        "rows": left.rows,
        "columns": stack.columns,
        "depth": left.depth,
        "row_block": cut.rows,
        "panels": panels,
        "panel_block": panel_block,
        "tiles": len(stack.starts) * -(-left.rows // cut.rows) * -(-panels // panel_block),
    }
    return product.call(spec, words, held, pointers, extents, scratch)


def _scratch(left: LeftRows, cut: Cut, rows: int, width: int, isa: Isa, right: str) -> tuple[Mapping[str, int], int]:
    """Words that say what lies where in the thread's memory, and its bytes. rows, width: of a strip; right: how the
    right matrix lies, as emitters name it."""
    gathered = cut.rows * PITCH if left.gathers else 0
    packed = 0 if right in ("panels", "near", "codes") else 4 * width * (BLOCK + isa.lanes)
    sums_at, strip = aligned_up(gathered + packed), 4 * rows * width
    places = {"right_at": gathered, "sums_at": sums_at, "slot": strip if left.depth > BLOCK else 0}
    return places, sums_at + strip * -(-cut.rows // rows) * cut.panels


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
        self.right = None if weights is None else Reloadable(weights)
        if weights is not None:
            shapes["b*"] = None
        if constant is not None:
            arrays["addend*"], shapes["addend*"] = np.ascontiguousarray(constant), None
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
        if self.right is None:
            return (product_call(self, self.stack, self.names, self.whole),)
        matrix = self.stack.k * 4 * self.stack.columns
        numbered = replace(self.stack, starts=self.stack.starts // np.array([1, matrix, 1, 1]))
        return (product_call(self, numbered, self.names, self.whole, weights=self._weights),)

    @property
    def _weights(self) -> FloatPanels:
        assert self.right is not None
        held, shape = self.right, (-1, self.stack.k, self.stack.columns)
        return self._memo.once("weights", lambda: FloatPanels(held.array.reshape(shape), self._memo))

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that it lays out anew."""
        return self.right.nbytes if self.right else 0
