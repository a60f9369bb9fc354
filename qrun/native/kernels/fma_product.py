"""Plans products of float32 whose sums have the order of numerics.md, F1: the layout of operands, the cut into
tiles and into strips that fit the registers, the kernel's call, and matrix products."""

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
from qrun.native.machine.memory import align_up
from qrun.shapes import broadcast_shapes

_FLOAT = np.dtype(np.float32)
_ROW_BLOCK = 128
_SUMS = 1 << 18
"""The most rows of a tile, and bytes of sums that are kept between two blocks of k."""
_PACK, _GATHER, _TAKE, _JUMP = 8.0, 20.0, 20000, 12000
"""Costs, in multiply-adds: of packing or fetching an element of a panel; of gathering an element of a row; of taking a
tile; of going on to the next block of k, whose panels lie elsewhere."""
UNROLL, MANY = 4, 12
"""Elements of k per iteration; with at least MANY vectors of sums an iteration has one element."""
ALONE = 8
"""Chains that hide the latency of a multiply-add."""
_POINTERS = 10
"""The most pixels of a strip, each with an address of its own: more do not fit the 16 general registers of x86, and the
compiler then loads all elements first and spills sums."""
_STARTS = {"a*": 0, "b*": 1, "y*": 3}
"""The column of FloatStack.starts, for each word whose operand `move_operand` may place elsewhere."""


@frozen
class LeftRows:
    """The layout of the rows of a product's left operand.

    depth: elements of k. row: bytes from one row to the next. offsets: int32 [rows], bytes from the product's start to
    each row, with steps, int32 [depth], from there to each element; or int32 [rows, taps], bytes to each tap, -1 for
    zeros, with steps, int32 [depth, 2], bytes into a row of offsets, and from the tap to the element.
    gathered: whether tiles copy each block of k of their rows into contiguous memory before they multiply it.
    """

    rows: int
    depth: int
    row: int
    offsets: Array | None = None
    steps: Array | None = None
    gathered: bool = False

    @property
    def kind(self) -> str:
        """How the rows lie: "rows", "pixels" or "taps" of an image, or "gathered" ones."""
        if self.offsets is None:
            return "rows"
        return "taps" if self.offsets.ndim > 1 else "gathered" if self.gathered else "pixels"

    @property
    def gathers(self) -> bool:
        """Whether tiles copy their rows first."""
        return self.kind in ("taps", "gathered")


@frozen
class FloatStack:
    """A stack of products of one shape. starts: int64 [number, 4], for each product the bytes from the start of a, b,
    addend and y to its own part, and a fifth number for a residual. b_row, addend_row, y_row, residual_row: bytes from
    one row to the next. b_column: bytes from one column of b to the next, if columns are contiguous; 0 if rows are."""

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
        """The depth: the products per result."""
        return self.left.depth

    @property
    def macs(self) -> int:
        """The multiply-adds of all products."""
        return len(self.starts) * self.left.rows * self.columns * self.k


def stack_starts(counts: Sequence[int], *steps: Sequence[int]) -> Ints:
    """FloatStack.starts of products along some axes. counts: the number of products along each axis; steps: for each
    axis, bytes in a, b, addend and y from one product to the next."""
    return np.ascontiguousarray(np.indices(counts).reshape(len(counts), -1).T @ np.array(steps, np.int64))


class RightPanels:
    """Constant right matrices that products read panel after panel; FloatStack.starts has their numbers.

    memo: keeps packed matrices, for products with other left operands. kind: the kind of the kernel that reads them.
    coding, words: additional text of the specification's operands, and additional words of the struct.
    """

    kind = "fma_product"
    coding = ""
    words: Mapping[str, int] = {}
    memo: Memo

    def layout_name(self, direct: bool) -> str:
        """The emitter's name for their layout. direct: whether a tile has a single strip of each panel."""
        return "panels"

    def strip(self, isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
        """The (rows, vectors) of a strip of results that the kernel computes at once."""
        return strip_of(isa, rows, columns, vectors)

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        """The arrays that kernels read, by word, in panels of this width."""
        raise NotImplementedError


class FloatPanels(RightPanels):
    """Right matrices of float32, [number, K, N]."""

    def __init__(self, matrices: Array, memo: Memo) -> None:
        self.matrices, self.memo = Reloadable(matrices), memo

    def arrays(self, engine: Engine, width: int) -> dict[str, Array]:
        """The weights packed into panels of `width` columns, under their name in the call."""
        make = lambda: pack_panels(engine, self.matrices.array, width, BLOCK, 0)  # noqa: E731
        return {"b*": self.memo.once(("panels", width), make)}


Limits = tuple[float, float, float]
"""The least and the greatest result, and the zero that is added to it: -0, or 0 to make 0 of -0."""
_UNLIMITED: Limits = (-np.inf, np.inf, -0.0)


@frozen
class FloatTerms:
    """How sums become results. kind: the form of FmaProductEmitter, without the steps after a sum. out: the type to
    which sums are rounded, as in KernelSpec.out. tail: steps of emit/fma_product.py::TAIL."""

    kind: str
    alpha: float = 1.0
    beta: float = 1.0
    limits: Limits = _UNLIMITED
    out: str = "f32"
    tail: tuple[str, ...] = ()

    @property
    def form(self) -> str:
        """The form for a specification. Limits are compared as text, since a limit of 0 differs from one of -0."""
        kind = "first" if self.kind == "scaled" and self.alpha == self.beta == 1 else self.kind
        return "+".join([kind, *self.tail, *(["limits"] if self.limited else [])])

    @property
    def limited(self) -> bool:
        """Whether the results are clipped."""
        return str(self.limits) != str(_UNLIMITED)

    @property
    def numbers(self) -> Array:
        """The scalars of the call, float32 [5]: alpha, beta, then low, high and the zero of the limits."""
        return np.array([self.alpha, self.beta, *self.limits], _FLOAT)


class FloatProduct(Operation):
    """Base of operations that compute sums of products of floats.

    terms: how sums become results. arrays: constant operands, by word.
    """

    engine: Engine
    terms: FloatTerms
    arrays: Mapping[str, Array] = {}

    def with_limits(self, low: float, high: float, zero: float) -> Self:
        """This product with its results clipped to low .. high."""
        return self.again(terms=replace(self.terms, limits=(low, high, zero)))

    def with_narrow_results(self, dtype: np.dtype[Any]) -> Self:
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
        """The call of a kernel of this specification. words, arrays: words of its struct that are not common to all."""
        held = {**self.arrays, "numbers*": self.terms.numbers, **arrays}
        return self.engine.kernels.call(spec, operands, words, extents, held, sparse=True, scratch=scratch)


def panel_vectors(isa: Isa, columns: int) -> int:
    """The vectors of columns in a panel, chosen for little padding and for many multiply-adds per load."""

    def cost(vectors: int) -> float:
        rows = isa.real_rows[vectors]
        padded = -(-columns // (vectors * isa.lanes)) * vectors
        return padded * (1 + 0.3 * (rows + vectors) / (rows * vectors))

    return min(sorted(isa.real_rows, reverse=True), key=cost)


def strip_of(isa: Isa, rows: int, columns: int, vectors: int) -> tuple[int, int]:
    """Rows and vectors of a strip, for panels of `vectors` vectors. With few rows a strip has several panels, so that a
    multiply-add need not wait for the one before it."""
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
    """The size of a tile: its rows and panels."""

    rows: int
    panels: int

    @classmethod
    def of(
        cls, number: int, size: tuple[int, int, int], strip: tuple[int, int], threads: int, gathers: bool = False
    ) -> Cut:
        """The fastest cut by estimate: smaller tiles keep all threads busy, larger ones read less data twice. size:
        rows, columns and k of the products; strip: its rows and columns; gathers: whether tiles gather rows."""
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
        for tall in sorted({part_size(rows, most, high) for most in blocks}, reverse=True):
            most = max(1, _SUMS // (4 * tall * width)) if k > BLOCK else panels
            for parts in (1, 2, 4, 8, panels) if threads > 1 else (1,):
                cuts.append(cls(tall, part_size(panels, min(most, -(-panels // parts)), 1)))
        return min(cuts, key=cost)


def part_size(count: int, most: int, step: int) -> int:
    """The size of parts of `count`: about `most` or less, and a multiple of `step`, so that all parts are alike."""
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
    """The call for a stack of products, which must not be empty. pointers: the words of operands that are not constant,
    in order, or the operand's number by word; extents: the bytes of each operand that are touched.
    weights: b, if it is constant; starts then have the number of the matrix instead of bytes."""
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
        right = weights.layout_name(left.rows == rows)
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
    """The words with offsets in the thread's memory, and its size in bytes. rows, width: of a strip; right: the
    emitter's name for the layout of the right matrix."""
    gathered = cut.rows * PITCH if left.gathers else 0
    packed = 0 if right in ("panels", "near", "codes") else 4 * width * (BLOCK + isa.lanes)
    sums_at, strip = align_up(gathered + packed), 4 * rows * width
    places = {"right_at": gathered, "sums_at": sums_at, "slot": strip if left.depth > BLOCK else 0}
    return places, sums_at + strip * -(-cut.rows // rows) * cut.panels


class FloatMatmul(FloatProduct):
    """alpha * a @ b + beta * addend of float32, shapes as numpy.matmul.

    a, b: shapes. weights: b itself if it is constant, else None. addend: the shape of an addend of the run, or None;
    its last axis is the result's, and it has one row or all rows. constant: the addend itself if it is constant.
    begins: sums begin with beta * addend, as Gemm's do; else the addend is added at the end. memo: keeps packed
    weights, for other shapes of a. turned: b is [..., N, K], and is transposed; constant weights never are.
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

    def move_operand(self, index: int, operand: Operand, steps: Sequence[int]) -> FloatMatmul | None:
        """See `Operation.move_operand`. None if elements of a row are not contiguous, or if the products are merged
        into one with more rows."""
        name = _STARTS.get(self.names[index])
        if name is None or len(self.stack.starts) != size(self.lead) or size(self.lead) < 2 or len(steps) < 2:
            return None
        row, column = steps[:-3:-1] if self.turned and name == 1 else steps[-2:]
        if column != _FLOAT.itemsize and (name != 1 or row != _FLOAT.itemsize):
            return None
        shape, starts = self.operands[index].shape[:-2], self.stack.starts.copy()
        if index == -1 and len(shape) != len(self.lead):
            return None
        begin = np.zeros(shape, np.int64)
        for axis, step in enumerate(steps[:-2]):
            begin += step * np.arange(shape[axis]).reshape(-1, *[1] * (len(shape) - axis - 1))
        starts[:, name] = np.broadcast_to(begin, self.lead).reshape(-1)
        operands = list(self.operands)
        operands[index] = operand
        changes: dict[str, Any] = {"y_row": row}
        if name == 0:
            changes = {"left": replace(self.stack.left, row=row)}
        elif name == 1:
            changes = {"b_row": row, "b_column": 0 if column == _FLOAT.itemsize else column}
        return self.again(operands=tuple(operands), stack=replace(self.stack, starts=starts, **changes))

    def _stack(self, lead: Sequence[int], left: Sequence[int], right: Sequence[int], addend_row: int) -> FloatStack:
        """The products of a MatMul as one stack; a right matrix without batch axes makes it one product."""
        m, k, n = left[-2], left[-1], right[-1]
        if size(right[:-2]) == 1 and size(left[:-2]) == size(lead):
            m, lead, left, right = m * size(lead), (), left[-2:], right[-2:]
        starts = np.zeros((size(lead), 4), np.int64)
        for index, (shape, nbytes) in enumerate(((left, 4 * m * k), (right, 4 * k * n))):
            numbers = np.arange(size(shape[:-2])).reshape(shape[:-2])
            starts[:, index] = np.broadcast_to(numbers, lead).reshape(-1) * nbytes
        starts[:, 3] = np.arange(len(starts)) * (4 * m * n)
        return FloatStack(starts, LeftRows(m, k, 4 * k), n, 4 * n, addend_row, 4 * n, 4 * k if self.turned else 0)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if self.right is None:
            return (product_call(self, self.stack, self.names, self.whole),)
        matrix = self.stack.k * 4 * self.stack.columns
        numbered = replace(self.stack, starts=self.stack.starts // np.array([1, matrix, 1, 1]))
        return (product_call(self, numbered, self.names, self.whole, weights=self._weights),)

    @property
    def _weights(self) -> FloatPanels:
        """The right matrix in panels; kept with the node."""
        assert self.right is not None
        held, shape = self.right, (-1, self.stack.k, self.stack.columns)
        return self._memo.once("weights", lambda: FloatPanels(held.array.reshape(shape), self._memo))

    @property
    def packed_bytes(self) -> int:
        """Bytes of weights that planning packs into panels."""
        return self.right.nbytes if self.right else 0
