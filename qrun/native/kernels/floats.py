"""What planned products of float32 share: where operands are, how work is cut, what makes what kernels leave open."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.floats import DEPTH, NAMES, PITCH, UNROLL
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import KernelCall, Rechecker, struct
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Ints

Array = np.ndarray[Any, Any]
Exact = Callable[[Array, Array, Array], Array]
"""Rows of left operands and columns of right ones, [count, K], and what is added, float64 [count], to the results."""
_FLOAT = np.dtype(np.float32)
_UNIT = 2.0**-53
_ROW_BLOCK = 128
_SUMS = 1 << 18
"""Rows of a tile, and bytes of sums that wait between two blocks of k."""
_TILES_PER_THREAD = 8
_LEAST_WORK = 1 << 18
"""Products of a tile that are worth the taking."""
_AHEAD, _FAR = 16, 1 << 24
"""Rows of the right matrix by which it is fetched ahead where it is read as it lies, and bytes of it from which on that
pays: it comes from memory, a short piece of each row at a time."""
_KNOWN = 64
"""Up to so many rows the right matrix is converted as it is read if the lengths of its columns are known."""
_DIRECT = 8
"""Up to so many rows the right matrix is converted as it is read."""


@frozen
class LeftRows:
    """Where rows of a product's left operand are: k is a tap of the row and an element there.

    row: bytes from one row to the next. offsets: int32 [rows, taps], bytes from the product's start to each tap, -1 for
    zeros; None if each row has one tap. column: bytes from what one column is made of to what the next one is. whole:
    whether all blocks of k but the last have DEPTH elements.
    """

    rows: int
    depth: int
    row: int
    taps: int = 1
    offsets: Array | None = None
    column: int = 0
    whole: bool = False

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
    def chain(self) -> int:
        """How many additions may follow each other in a sum."""
        if self.column:
            return self.taps
        taps, depth = self.steps
        return min(taps * depth, self.taps * self.depth) + self.blocks

    @property
    def blocks(self) -> int:
        taps, depth = self.steps
        return -(-self.taps // taps) * -(-self.depth // depth)


@frozen
class FloatStack:
    """Products of one shape. starts: int64 [number, 4], bytes from where a, b, addend and y start to each one's own;
    b_row, addend_row, y_row: bytes from one row to the next."""

    starts: Ints
    left: LeftRows
    columns: int
    b_row: int
    addend_row: int
    y_row: int

    @property
    def macs(self) -> int:
        return len(self.starts) * self.left.rows * self.columns * self.left.taps * self.left.depth


@frozen
class FloatTerms:
    """What becomes of sums: alpha * sum + beta * addend. form: of rounding.py."""

    form: str
    alpha: float = 1.0
    beta: float = 1.0

    def numbers(self, left: LeftRows) -> Array:
        """Of rounding.py. A sum has as many roundings as additions may follow each other; six more pay for the factor, the
        addend, for rounding the ends, and for the lengths."""
        lost = 4 * left.taps * left.depth + 16
        reach = (left.chain + 6) * _UNIT * abs(self.alpha) * (1 + 2.0**-20)
        return np.array([reach, self.alpha, self.beta, lost * _UNIT])


class ElementRecheck(Rechecker):
    """Elements of products, exactly."""

    names: Sequence[str] = NAMES
    """Of the kernel's arguments."""

    def __init__(self, stack: FloatStack, exact: Exact) -> None:
        super().__init__()
        self.stack, self.exact = stack, exact

    def make(self, entries: Ints, x: int, y: int) -> None:
        """entries: rows of all products, and columns; x: address of the argument struct."""
        stack, left = self.stack, self.stack.left
        words = np.ctypeslib.as_array((ctypes.c_int64 * len(self.names)).from_address(x))
        a, b, addend, result = (int(words[self.names.index(name)]) for name in ("a*", "b*", "addend*", "y*"))
        (number, row), column = divmod(entries[:, 0], left.rows), entries[:, 1]
        starts = stack.starts[number]
        k = np.arange(left.taps * left.depth)
        if left.offsets is None:
            places = starts[:, :1] + (row * left.row)[:, None] + 4 * k
        else:
            taps = left.offsets[row].astype(np.int64)
            places = (starts[:, :1] + taps + left.column * column[:, None])[:, :, None] + 4 * np.arange(left.depth)
            places = np.where(taps[:, :, None] < 0, -1, places).reshape(len(row), -1)
        rows = _floats(a, places)
        columns = self.columns(b, starts[:, 1], column)
        added = (
            _floats(addend, starts[:, 2] + row * stack.addend_row + 4 * column)
            if addend
            else np.zeros(len(row), _FLOAT)
        )
        made = self.exact(rows, columns, added)
        for place, value in zip((starts[:, 3] + row * stack.y_row + 4 * column).tolist(), made.tolist(), strict=True):
            ctypes.c_float.from_address(result + place).value = value

    def columns(self, b: int, starts: Ints, column: Ints) -> Array:
        """Columns of the right operands that start so many bytes from b, [count, K]."""
        k = np.arange(self.stack.left.taps * self.stack.left.depth)
        return _floats(b, (starts + 4 * column)[:, None] + self.stack.b_row * k)


def column_lengths(right: Array) -> Array:
    """Of float32 [..., K, N]: float64 [matrices, N]."""
    with np.errstate(all="ignore"):
        squares = np.einsum("...kn,...kn->...n", right, right, dtype=np.float64, casting="unsafe")
        return np.asarray(np.sqrt(squares.reshape(-1, right.shape[-1])))


def _floats(address: int, places: Array) -> Array:
    """float32 numbers so many bytes from an address; 0 where that is negative."""
    whole = int(places.max(initial=0)) // 4 + 1
    memory = np.ctypeslib.as_array((ctypes.c_float * whole).from_address(address))
    return np.where(places < 0, np.float32(0), memory[np.maximum(places, 0) // 4])


def block(isa: Isa, rows: int, columns: int, known: bool) -> tuple[int, int]:
    """Rows by vectors of a strip: what loads, empty columns and rows made twice cost together is least. known: the lengths of columns are,
    which else take the registers of one row more where there are few."""
    need = -(-columns // (isa.lanes // 2))
    if rows <= _DIRECT:
        most = max(r * v for v, r in isa.real_rows.items())
        vectors = min(need, max(1, most // (rows + (not known))))
        return rows, -(-need // -(-need // vectors))

    def cost(vectors: int) -> float:
        high = isa.real_rows[vectors]
        made = -(-need // vectors) * vectors * -(-rows // high) * high
        return made * (1 + 0.3 * (high + vectors) / (high * vectors))

    vectors = min(isa.real_rows, key=cost)
    return min(isa.real_rows[vectors], rows), vectors


@frozen
class Cut:
    """How products are cut into tiles: rows and panels of each."""

    rows: int
    panels: int

    @classmethod
    def of(cls, stack: FloatStack, rows: int, width: int, threads: int) -> Cut:
        """As many rows as stay near, and as many panels as their sums; less where that leaves threads without work."""
        left, panels = stack.left, -(-stack.columns // width)
        high = even(left.rows, _ROW_BLOCK, rows)
        wide = panels if left.blocks == 1 else max(1, _SUMS // (8 * high * width))
        if threads > 1:
            k = left.taps * left.depth
            work = max(stack.macs // (threads * _TILES_PER_THREAD), _LEAST_WORK)
            wide = min(wide, max(1, work // (high * width * k)))
            high = (
                even(left.rows, max(rows, work // (wide * width * k)), rows) if high * wide * width * k > work else high
            )
        return cls(high, even(panels, wide, 1))


def scratch_places(
    left: LeftRows, cut: Cut, block: tuple[int, int], lanes: int, direct: bool
) -> tuple[Mapping[str, int], int]:
    """Words that say what lies where in the thread's memory, and how many bytes it has. block: rows by vectors of a strip;
    direct: the right matrix is converted as it is read."""
    rows, width = block[0], block[1] * lanes
    slot = 8 * rows * width if left.blocks > 1 else 0
    right_at = cut.rows * PITCH
    squares_at = right_at + (0 if direct else 8 * width * (DEPTH + UNROLL))
    lengths_at = aligned_up(squares_at + cut.rows * lanes * 8)
    sums_at = aligned_up(lengths_at + 8 * (cut.rows + cut.panels * width))
    places = {
        "slot": slot,
        "right_at": right_at,
        "squares_at": squares_at,
        "lengths_at": lengths_at,
        "sums_at": sums_at,
    }
    return places, sums_at + max(slot * -(-cut.rows // rows) * cut.panels, 8 * rows * width)


def aligned_up(nbytes: int) -> int:
    """To the next line of 64 bytes."""
    return -(-nbytes // 64) * 64


def even(count: int, most: int, step: int) -> int:
    """About `most` or less, a multiple of `step`, so that parts of a number are alike."""
    parts = -(-count // max(most, step))
    return -(-count // (parts * step)) * step


def product_call(
    engine: Engine,
    stack: FloatStack,
    terms: FloatTerms,
    recheck: ElementRecheck,
    arrays: Mapping[str, Array],
    pointers: Sequence[str],
    extents: Sequence[int],
    lengths: Callable[[], Array] | None = None,
) -> KernelCall:
    """The call for products that are not empty. arrays: constant operands by name; pointers: names of the others, in
    order; extents: bytes of each that are touched. lengths: float64 [right matrices, columns], of columns, if constant."""
    left, lanes = stack.left, engine.isa.lanes // 2
    known = lengths() if lengths is not None and left.rows <= _KNOWN else None
    rows, vectors = block(engine.isa, left.rows, stack.columns, known is not None)
    width, direct = vectors * lanes, known is not None or left.rows <= _DIRECT
    cut = Cut.of(stack, rows, width, engine.threads)
    panels, (taps, depth) = -(-stack.columns // width), left.steps
    places, scratch = scratch_places(left, cut, (rows, vectors), lanes, direct)
    how = "known" if known is not None else "direct" if direct else "packed"
    far = direct and left.taps * left.depth * stack.b_row > _FAR
    lines = -(-4 * width // 64) if far else 0
    spec = KernelSpec(
        "float_product", engine.isa.name, rows, vectors, UNROLL, terms.form, "f32", False, lines,
        operands=f"{'rows' if left.offsets is None else 'taps'}-{how}",
    )  # fmt: skip
    row_blocks, panel_blocks = -(-left.rows // cut.rows), -(-panels // cut.panels)
    words = {
        "ahead": _AHEAD * stack.b_row, "tap_step": taps, "depth_step": depth, "row_block": cut.rows, "panels": panels,
        "panel_block": cut.panels, **places, "tiles": len(stack.starts) * row_blocks * panel_blocks,
    }  # fmt: skip
    starts = np.pad(stack.starts, [(0, 0), (0, 1)])
    held = {**arrays, "batches*": starts}
    if known is not None:
        starts[:, 4] = stack.starts[:, 1] // (left.taps * left.depth * stack.b_row) * (8 * width * panels)
        held["known*"] = np.pad(known, [(0, 0), (0, width * panels - stack.columns)])
        words["known_odd"] = int(not np.isfinite(known).all())
    return stack_call(engine, spec, stack, terms, recheck, words, held, pointers, extents, scratch)


def stack_call(
    engine: Engine,
    spec: KernelSpec,
    stack: FloatStack,
    terms: FloatTerms,
    recheck: ElementRecheck,
    words: Mapping[str, int],
    arrays: Mapping[str, Array],
    pointers: Sequence[str],
    extents: Sequence[int],
    scratch: int,
) -> KernelCall:
    """The call of a kernel of this specification; words: those of the struct that tell how it works. Else as above."""
    left, names = stack.left, recheck.names
    filled = {
        **dict.fromkeys(names, 0), "a_row": left.row, "b_row": stack.b_row, "addend_row": stack.addend_row,
        "y_row": stack.y_row, "rows": left.rows, "columns": stack.columns, "taps": left.taps, "depth": left.depth,
        "recheck*": recheck.address, **words,
    }  # fmt: skip
    held = {"batches*": np.pad(stack.starts, [(0, 0), (0, 1)]), **arrays, "numbers*": terms.numbers(left)}
    if left.offsets is not None:
        wide = stack.columns if left.column else left.depth
        held |= {"offsets*": left.offsets, "padding*": np.zeros(wide, _FLOAT)}
    return KernelCall(
        spec, engine.kernels.get(spec), struct(names, filled, held),
        tuple((names.index(name), place) for place, name in enumerate(pointers)), tuple(extents), words["tiles"],
        channels=stack.columns, keep=tuple(held.values()), scratch=scratch, decides=False, rechecks=(recheck,),
    )  # fmt: skip
