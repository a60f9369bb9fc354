"""What planned products of float32 share: where operands are, how work is cut, what makes what kernels leave open."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.declare.memo import Memo, remembered
from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.floats import DEPTH, SHARED
from qrun.native.machine.call import Rechecker
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, aligned
from qrun.native.machine.memory import array_at

Exact = Callable[[Array, Array, Array], Array]
"""Rows of left operands and columns of right ones, [count, K], and what is added, [count],
to results of the left ones' type."""
_FLOAT = np.dtype(np.float32)
_UNIT = 2.0**-53


@frozen
class LeftRows:
    """Where rows of a product's left operand are: k is a tap of the row and an element there.

    row: bytes from one row to the next. offsets: int32 [rows, taps], bytes from the product's start to each tap, -1 for
    zeros; None if each row has one tap. column: bytes from what `group` columns are made of to what the next ones are.
    whole: whether all blocks of k but the last have DEPTH elements. image: of one that is float64 already (widen.py),
    the channels and all numbers of a pixel, or of a line, if taps are parts of lines; line: its bytes then. links: how
    many roundings a sum may have one after the other, if it is not made block by block.
    """

    rows: int
    depth: int
    row: int
    taps: int = 1
    offsets: Array | None = None
    column: int = 0
    group: int = 1
    whole: bool = False
    image: tuple[int, int] | None = None
    line: int = 0
    links: float = 0

    @property
    def steps(self) -> tuple[int, int]:
        """Taps, and elements of each, of a block of k."""
        if self.whole:
            return 1, min(DEPTH, self.depth)
        if self.depth < DEPTH:
            return min(DEPTH // self.depth, self.taps), self.depth
        blocks = -(-self.depth // DEPTH)
        return 1, -(-self.depth // (blocks * UNROLL)) * UNROLL

    @property
    def chain(self) -> float:
        """How many additions may follow each other in a sum."""
        if self.links:
            return self.links
        if self.column:
            return self.taps * self.depth
        taps, depth = self.steps
        return min(taps * depth, self.taps * self.depth) + self.blocks

    @property
    def blocks(self) -> int:
        taps, depth = self.steps
        return -(-self.taps // taps) * -(-self.depth // depth)


@frozen
class FloatStack:
    """Products of one shape. starts: int64 [number, 4], bytes from where a, b, addend and y start to each one's own;
    b_row, addend_row, y_row: bytes from one row to the next. panel: columns of each panel of b, if it lies panel after
    panel; b_column: bytes from one column of b to the next, if not."""

    starts: Ints
    left: LeftRows
    columns: int
    b_row: int
    addend_row: int
    y_row: int
    panel: int = 0
    b_column: int = 4

    @property
    def macs(self) -> int:
        return len(self.starts) * self.left.rows * self.columns * self.k

    @property
    def k(self) -> int:
        return self.left.taps * self.left.depth

    def numbered(self) -> FloatStack:
        """With starts that say which b a product reads, of matrices that lie one after another."""
        return replace(self, starts=self.starts // np.array([1, self.k * self.b_row, 1, 1]))

    def in_panels(self, width: int) -> FloatStack:
        """With b panel after panel of so many columns; starts then say which matrix it is."""
        panels = -(-self.columns // width)
        starts = self.starts * np.array([1, 4 * width * panels * self.k, 1, 1])
        return replace(self, starts=starts, b_row=4 * width, panel=width)

    def in_rows(self) -> FloatStack:
        """With b matrix after matrix; starts then say which one it is."""
        return replace(self, starts=self.starts * np.array([1, self.k * self.b_row, 1, 1]))

    def linked(self, links: float) -> FloatStack:
        """With so many roundings that a sum may have one after the other."""
        return replace(self, left=replace(self.left, links=links))

    def b_places(self, column: Ints) -> Ints:
        """Bytes from a right matrix's start to these columns."""
        if not self.panel:
            return self.b_column * column
        panel, lane = divmod(column, self.panel)
        return panel * (self.k * self.b_row) + 4 * lane


def stack_starts(counts: Sequence[int], *steps: Sequence[int]) -> Ints:
    """FloatStack.starts of products along some axes. counts: how many along each; steps: for each axis, bytes in a, b,
    addend and y from one product to the next."""
    return np.ascontiguousarray(np.indices(counts).reshape(len(counts), -1).T @ np.array(steps, np.int64))


class FloatPanels:
    """Constant right matrices, float32 [number, taps, depth, N], that products read panel after panel.

    memo: what is made of them, for products that differ in their left operands.
    """

    def __init__(self, matrices: Array, memo: Memo) -> None:
        self.matrices, self.memo = matrices, memo

    @remembered
    def panels(self, width: int) -> Array:
        """[number, panels, taps, depth, width], zeros beyond the last column."""
        number, *k, columns = self.matrices.shape
        count = -(-columns // width)
        made = aligned((number, count, *k, width), _FLOAT, 0)
        for panel in range(count):
            part = self.matrices[..., panel * width : (panel + 1) * width]
            made[:, panel, :, :, : part.shape[-1]] = part
        return made

    @remembered
    def rows(self) -> Array:
        """[number, K, N] in C order."""
        return np.ascontiguousarray(self.matrices.reshape(len(self.matrices), -1, self.matrices.shape[-1]))

    @remembered
    def lengths(self) -> Array:
        """Of columns, float64 [number, N]."""
        return column_lengths(self.matrices.reshape(len(self.matrices), -1, self.matrices.shape[-1]))


def narrower(exact: Exact, dtype: np.dtype[Any]) -> Exact:
    """`exact` on float32 arrays: rows are converted to this type, which is the result's, and the result to float32."""
    return lambda rows, columns, added: exact(rows.astype(dtype), columns, added).astype(_FLOAT)


Limits = tuple[float, float, float]
"""The least and the greatest result, and the zero that is added to it: -0, or 0 to make 0 of -0."""
_UNLIMITED: Limits = (-np.inf, np.inf, -0.0)


@frozen
class FloatTerms:
    """What becomes of sums: alpha * sum + beta * addend, rounded, between two limits, plus a zero.
    kind: the form of RoundingEmitter (emit/rounding.py), without ``+limits``.
    out: the type to which they are rounded, as KernelSpec.out names it."""

    kind: str
    alpha: float = 1.0
    beta: float = 1.0
    limits: Limits = _UNLIMITED
    out: str = "f32"

    @property
    def form(self) -> str:
        """The kernels' form. Limits are compared as text, since a limit of 0 differs from one of -0."""
        kind = "added" if self.kind == "scaled" and self.alpha == self.beta == 1 else self.kind
        return kind if str(self.limits) == str(_UNLIMITED) else f"{kind}+limits"

    def numbers(self, left: LeftRows) -> Array:
        """The words `numbers` of emit/rounding.py. A sum has as many roundings as additions may follow each other; six
        more pay for the factor, the addend, for rounding the ends, and for the lengths."""
        lost = 4 * left.taps * left.depth + 16
        reach = (left.chain + 6) * _UNIT * abs(self.alpha) * (1 + 2.0**-20)
        return np.array([reach, self.alpha, self.beta, lost * _UNIT, *self.limits])


class ElementRecheck(Rechecker):
    """Elements of products, exactly."""

    def __init__(self, stack: FloatStack, exact: Exact) -> None:
        super().__init__()
        self.stack, self.exact = stack, exact

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: rows of all products, and columns; x: address of the argument struct."""
        stack, left = self.stack, self.stack.left
        words = (ctypes.c_int64 * len(SHARED)).from_address(x)
        a, b, addend, result, numbers = words
        (number, row), column = divmod(entries[:, 0], left.rows), entries[:, 1]
        starts = stack.starts[number]
        k, each = np.arange(stack.k), 8 if left.image else 4
        if left.offsets is None:
            places = starts[:, :1] + (row * left.row)[:, None] + each * k
        else:
            taps = left.offsets[row].astype(np.int64)
            places = (starts[:, :1] + taps + left.column * (column // left.group)[:, None])[
                :, :, None
            ] + each * np.arange(left.depth)
            places = np.where(taps[:, :, None] < 0, -1, places).reshape(len(row), -1)
        rows = _floats(a, places, each)
        columns = self.columns(b, starts[:, 1], column)
        added = self.addends(addend, starts[:, 2], row, column, number)
        low, high, zero = array_at(numbers, np.float64, (7,))[4:].astype(_FLOAT)
        made = self.exact(rows, columns, added)
        made = np.where(made < low, low, made)
        made = np.where(made > high, high, made) + zero
        for place, value in zip((starts[:, 3] + row * stack.y_row + 4 * column).tolist(), made.tolist(), strict=True):
            ctypes.c_float.from_address(result + place).value = value

    def addends(self, addend: int, starts: Ints, row: Ints, column: Ints, number: Ints) -> Array:
        """What is added to elements of products, which start so many bytes from addend; 0 where that is no address."""
        if not addend:
            return np.zeros(len(row), _FLOAT)
        return _floats(addend, starts + row * self.stack.addend_row + 4 * column)

    def columns(self, b: int, starts: Ints, column: Ints) -> Array:
        """Columns of the right operands that start so many bytes from b, [count, K]."""
        stack = self.stack
        return _floats(b, (starts + stack.b_places(column))[:, None] + stack.b_row * np.arange(stack.k))


def column_lengths(right: Array) -> Array:
    """Of float32 [..., K, N]: float64 [matrices, N]."""
    with np.errstate(all="ignore"):
        squares = np.einsum("...kn,...kn->...n", right, right, dtype=np.float64, casting="unsafe")
        return np.asarray(np.sqrt(squares.reshape(-1, right.shape[-1])))


def _floats(address: int, places: Array, each: int = 4) -> Array:
    """Numbers so many bytes from an address, of 4 or 8 bytes, as float32; 0 where that is negative."""
    memory = array_at(address, f"f{each}", (int(places.max(initial=0)) // each + 1,))
    return np.where(places < 0, np.float32(0), memory[np.maximum(places, 0) // each].astype(_FLOAT))


def stack_call(
    engine: Engine,
    spec: KernelSpec,
    stack: FloatStack,
    terms: FloatTerms,
    recheck: ElementRecheck,
    words: Mapping[str, int],
    arrays: Mapping[str, Array],
    pointers: Sequence[str] | Mapping[str, int],
    extents: Sequence[int],
    scratch: int,
) -> KernelCall:
    """The call of a kernel of this specification. words, arrays: what is in its struct besides what all kernels of
    float products have; they replace that where the name is the same. pointers, extents: as in Kernels.call."""
    left = stack.left
    filled = {
        "a_row": left.row,
        "b_row": stack.b_row,
        "addend_row": stack.addend_row,
        "y_row": stack.y_row,
        "rows": left.rows,
        "columns": stack.columns,
        "taps": left.taps,
        "depth": left.depth,
        "recheck*": recheck.address,
        **words,
    }
    held = {"batches*": np.pad(stack.starts, [(0, 0), (0, 2)]), "numbers*": terms.numbers(left)}
    if left.offsets is not None:
        wide = stack.columns if left.column else max(left.depth, 2 * left.image[1] if left.image else 0)
        held |= {"offsets*": left.offsets, "padding*": np.zeros(wide, _FLOAT)}
    fields = {"channels": stack.columns, "scratch": scratch, "decides": False, "rechecks": (recheck,)}
    return engine.kernels.call(spec, pointers, filled, extents, {**held, **arrays}, sparse=True, **fields)
