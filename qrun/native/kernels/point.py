"""Plans elementwise functions of 8-bit codes that are given as tables. For one tensor there is one table for all
elements, or one for each channel; for two tensors, a table of all 65,536 pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cache
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo, memoize
from qrun.native.emit.isa import Isa, host_architecture, host_features
from qrun.native.emit.spec import CODES, PIECE, SHUFFLED, VBMI, lane_order
from qrun.native.errors import Declined
from qrun.native.kernels.rows import SINGLE, Kernel, RowGrid
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, Order, size
from qrun.native.machine.memory import aligned_copy
from qrun.native.proof.fits import CodeProduct, CodeSum, Expected, fit_lines, fit_pair
from qrun.native.proof.search import Bools
from qrun.shapes import broadcast_shapes

_RUNS = 8
"""The most calls; with more, looking up all columns is no slower."""


class Point(Operation):
    """y = table[x], element by element, for 8-bit codes.

    table: [256], or [C, 256] with one row for each index of `axis`; 8-bit, indexed by the bits of x as uint8.
    axis:  None, 1 or the last one. x_type: the type of x.
    memo:  keeps the chosen kernels, for the same table and other shapes.
    likely: lines that may equal the rows of the table.

    Raises Declined for anything else, ValueError if axis or table do not fit the shape.
    """

    own_words = ("table*", "lines*", "a!", "b!", "add!", "low!", "high!")

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        table: Array,
        *,
        x_type: np.dtype[Any],
        axis: int | None = None,
        memo: Memo | None = None,
        likely: Expected | None = None,
    ) -> None:
        self.engine = engine
        shape = tuple(int(n) for n in shape)
        if np.dtype(x_type) not in CODES or table.dtype not in CODES:
            raise Declined("not a table from 8-bit codes to 8-bit codes")
        axis = axis if table.ndim > 1 else None
        if axis is not None and not -len(shape) <= axis < len(shape):
            raise ValueError(f"axis {axis} of {len(shape)}")
        dim = None if axis is None else axis % len(shape)
        if dim not in (None, 1, len(shape) - 1):
            raise Declined(f"tables differ along axis {dim}")
        if table.shape != ((256,) if dim is None else (shape[dim], 256)):
            raise ValueError(f"tables {list(table.shape)} for {list(shape)}")
        self.order: Order = "any" if dim is None else "channels" if dim < len(shape) - 1 else "rows"
        self.operands = (Operand(shape, np.dtype(x_type)), Operand(shape, table.dtype))
        self.function = (memo or Memo()).once(
            ("function", x_type), lambda: Function.of(engine.isa, table, np.dtype(x_type), likely)
        )

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        made = self.with_operands_of(other)
        if made is not None and isinstance(other, Point) and made.function.runs != other.function.runs:
            made._sizes = None  # its calls have other columns, so they must be planned anew
        return made

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        result = self.result
        columns = result.columns(self.order)
        grid = RowGrid.of(result.shape, columns, strides, flat=self.order == "any")
        return tuple(self.function.sections(self.engine, grid, (0, 1), 2, 0, columns))


@frozen
class Function:
    """The kernels that evaluate a table on one instruction set.

    kernel: for rows as long as its vectors; scalar: for all others.
    lines:  None, or for tables [C, 256] the columns that are lines; each run of those then has a kernel of its own.
    """

    isa: Isa
    kernel: Kernel
    scalar: Kernel
    lines: Lines | None = None

    @classmethod
    def of(cls, isa: Isa, table: Array, x_type: np.dtype[Any], likely: Expected | None = None) -> Function:
        """The fastest kernel that computes a table of 256 codes (or one table per column)."""
        scalar = _kernel(SINGLE[table.ndim - 1], {}, {"table*": aligned_copy(table.view(np.uint8))})
        if table.ndim == 2:
            lines = Lines.of(table, x_type, isa.fma, likely)
            return cls(isa, scalar, scalar, lines)
        return cls(isa, _clamp(table, x_type) or _table_kernel(isa, table, x_type) or scalar, scalar)

    @property
    def runs(self) -> Sequence[tuple[int, int, bool]]:
        """For tables [C, 256]: the columns of each kernel call (first, end), and whether they are lines."""
        return self.lines.runs() if self.lines else ()

    def sections(
        self, engine: Engine, grid: RowGrid, places: Sequence[int], count: int, first: int, channels: int
    ) -> Iterator[KernelCall]:
        """The calls on a grid. first, channels: the first channel of the result that it covers, and their number."""
        if not grid.bytes:
            return
        if self.lines is None:
            kernel = self.kernel if grid.pieces(self.isa) else self.scalar
            yield kernel.section(engine, grid, places, count, (first, channels))
            return
        for start, end, fits in self.runs:
            part = grid.part(start, end - start)
            pieces = part.pieces(self.isa) if fits else 0
            kernel = self.lines.kernel(pieces, start, end) if pieces else _from(self.scalar, start)
            yield kernel.section(engine, part, places, count, (first + start, end - start))


@frozen
class Lines:
    """Lines y = saturate(RNE(u * a + b) + add) for the columns that have one (`good`)."""

    good: Bools
    a: Array
    b: Array
    add: int
    out: str
    signed: bool
    memo: Memo = field(default_factory=Memo)

    @classmethod
    def of(cls, tables: Array, x_type: np.dtype[Any], fma: bool, likely: Expected | None = None) -> Lines:
        """The straight lines that reproduce tables of codes after rounding, where there are such."""
        signed = x_type == np.int8
        info = np.iinfo(tables.dtype)
        distinct: dict[bytes, int] = {}
        which = [distinct.setdefault(row.tobytes(), len(distinct)) for row in np.atleast_2d(tables)]
        different = np.frombuffer(b"".join(distinct), tables.dtype).reshape(-1, 256)
        values = different[:, np.arange(256) ^ (128 if signed else 0)].astype(np.int64)
        if likely is not None:
            likely = likely.rows(np.unique(which, return_index=True)[1])
        good, a, b, add = fit_lines(values, (int(info.min), int(info.max)), fma, likely)
        return cls(good[which], a[which], b[which], add, CODES[tables.dtype], bool(signed))

    @memoize
    def runs(self) -> list[tuple[int, int, bool]]:
        """Runs of neighbouring columns that all are lines, or all are not: (first, end, whether they are)."""
        edges = np.flatnonzero(np.diff(self.good)) + 1
        ends = [0, *edges.tolist(), len(self.good)] if len(self.good) else [0]
        if len(ends) - 1 > _RUNS:
            return [(0, len(self.good), False)]
        return [(first, end, bool(self.good[first])) for first, end in zip(ends[:-1], ends[1:], strict=True)]

    def single(self) -> Kernel | None:
        """The kernel for a single table, if it is a line; else None."""
        if not self.good[0]:
            return None
        words = {name: int(value[0].view(np.int32)) for name, value in (("a!", self.a), ("b!", self.b))}
        return _kernel("affine", words | {"add!": self.add}, {}, self.out, self.signed)

    @memoize
    def kernel(self, pieces: int, first: int, end: int) -> Kernel:
        """The kernel for columns first..end-1, in vectors of `pieces` pieces; the last one overlaps the one before."""
        width, count = PIECE * pieces, end - first
        starts = np.minimum(np.arange(-(-count // width)) * width, max(count - width, 0))
        columns = first + np.minimum(starts[:, None] + lane_order(pieces), count - 1)
        panels = np.stack([self.a[columns], self.b[columns]], axis=1)
        return _kernel("affines", {"add!": self.add}, {"lines*": aligned_copy(panels)}, self.out, self.signed)


def table_forms(isa: Isa) -> tuple[str, ...]:
    """The forms of a table, on this instruction set, that are faster than one code after the other; best first."""
    if isa.architecture == "aarch64":
        return ("affine", "lookup")
    if isa.lanes == 16 and host_architecture() == isa.architecture and VBMI in _host():
        return ("permute",)
    return ("affine", "shuffle") if isa.lanes > 4 else ("affine",)


@cache
def _host() -> frozenset[str]:
    """The host CPU's features."""
    return host_features(host_architecture())


def _table_kernel(isa: Isa, table: Array, x_type: np.dtype[Any]) -> Kernel | None:
    """The kernel for one table of all codes: line, shuffle, permute or lookup; None if there is none."""
    codes = table.view(np.uint8)
    for form in table_forms(isa):
        if form == "affine":
            kernel = Lines.of(table, x_type, isa.fma).single()
            if kernel is not None:
                return kernel
            continue
        pieces = codes
        if form == "shuffle":
            pieces = codes.reshape(2, 8, PIECE).copy()
            pieces[:, 1:] ^= codes.reshape(2, 8, PIECE)[:, :-1]
            pieces = np.tile(pieces.reshape(16, 1, PIECE), (1, SHUFFLED // PIECE, 1))
        return _kernel(form, {}, {"table*": aligned_copy(pieces.reshape(-1))})
    return None


def _clamp(table: Array, x_type: np.dtype[Any]) -> Kernel | None:
    """The kernel min(max(x, low), high), if the table is that; it also serves the identity. Else None."""
    values = np.arange(256, dtype=np.uint8).view(x_type)
    low, high = table.min(), table.max()
    if table.dtype != x_type or not np.array_equal(table, np.clip(values, low, high)):
        return None
    return _kernel("clamp", {"low!": int(low), "high!": int(high)}, {}, signed=bool(x_type == np.int8))


def _from(scalar: Kernel, column: int) -> Kernel:
    """The scalar kernel with the tables from this column on."""
    return _kernel(scalar.form, scalar.words, {"table*": scalar.arrays["table*"][column:]})


def _kernel(form: str, words: Any, arrays: dict[str, Array], out: str = "u8", signed: bool = False) -> Kernel:
    """A kernel of one operand."""
    return Kernel("point", form, out, signed, ("x", "y"), words, arrays)


class PairLookup(Operation):
    """y = table[a, b], element by element, for 8-bit codes a and b of one type.

    shapes: of a and b, which broadcast; where they differ, rows (channels, or the last axis) are whole in both, and
            each operand repeats along leading axes or along the ones between those and the row, or neither.
    table:  [256, 256], 8-bit, indexed by the bits of a and b as uint8. x_type: the type of a and b.
    near:   the formula that the function approximates, or None. A cheaper form is derived from it, and proven for all
            pairs.
    memo:   keeps the form that was found, for the same table and other shapes.

    Raises Declined for anything else.
    """

    def __init__(
        self,
        engine: Engine,
        shapes: tuple[Sequence[int], Sequence[int]],
        table: Array,
        *,
        x_type: np.dtype[Any],
        near: CodeSum | CodeProduct | None = None,
        memo: Memo | None = None,
    ) -> None:
        self.engine = engine
        if np.dtype(x_type) not in CODES or table.dtype not in CODES:
            raise Declined("not a table from 8-bit codes to 8-bit codes")
        if table.shape != (256, 256):
            raise ValueError(f"a table {list(table.shape)} of pairs")
        a, b = (tuple(int(n) for n in shape) for shape in shapes)
        self.overlay = Overlay.of(a, b)
        self.order: Order = self.overlay.order
        shape = broadcast_shapes(a, b)
        self.operands = (Operand(a, np.dtype(x_type)), Operand(b, np.dtype(x_type)), Operand(shape, table.dtype))
        memo = memo or Memo()
        self.scalar = memo.once(
            "table", lambda: _pair_kernel(SINGLE[0], {}, {"table*": aligned_copy(table.view(np.uint8))})
        )
        self.kernel = memo.once("pair", lambda: self._fit(table, near)) or self.scalar
        self.own_words = (*self.kernel.words, *self.scalar.arrays)

    def _fit(self, table: Array, near: CodeSum | CodeProduct | None) -> Kernel | None:
        """The kernel that computes a table of pairs by arithmetic; None if no form reproduces it."""
        if near is None:
            return None
        signed = self.operands[0].dtype == np.int8
        if signed:
            order = np.arange(256) ^ 128
            table = table[order][:, order]
        info = np.iinfo(table.dtype)
        found = fit_pair(table, near, (int(info.min), int(info.max)), self.engine.isa.fma, bool(signed))
        if found is None:
            return None
        form, words = found
        return _pair_kernel(form, words, {}, CODES[table.dtype], signed)

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        made = self.with_operands_of(other)
        if made is not None and isinstance(other, PairLookup):
            made.overlay = other.overlay
        return made

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        result = self.result
        columns = result.columns(self.order)
        grid = (
            RowGrid.of(result.shape, columns, strides) if self.order == "any" else self.overlay.grid(columns, strides)
        )
        kernel = self.kernel if grid.pieces(self.engine.isa) else self.scalar
        return (kernel.section(self.engine, grid, (0, 1, 2), 3, (0, columns)),)


@frozen
class Overlay:
    """How two operands of different shapes broadcast row by row.

    order: of all operands. images, rows: their numbers; image_full, row_full: whether each operand, and the result, has
    a row of its own for each image, and for each row of an image."""

    order: Order
    images: int = 1
    rows: int = 1
    image_full: tuple[bool, ...] = ()
    row_full: tuple[bool, ...] = ()

    @classmethod
    def of(cls, a: tuple[int, ...], b: tuple[int, ...]) -> Overlay:
        """The overlay of shapes a and b. Raises Declined if they broadcast otherwise, ValueError if not at all."""
        shape = broadcast_shapes(a, b)
        if a == b:
            return cls("any")
        padded = [(1,) * (len(shape) - len(x)) + x for x in (a, b)]
        rows_first = len(shape) < 4 or shape[1] == 1
        orders: tuple[Order, ...] = ("rows", "channels") if rows_first else ("channels", "rows")
        for order in orders:
            axis = 1 if order == "channels" else len(shape) - 1
            if (order == "channels" and len(shape) < 3) or any(x[axis] != shape[axis] for x in padded):
                continue
            if order == "channels" and not all(_same_channels(x, len(shape)) for x in (a, b)):
                continue
            outer = [i for i in range(len(shape)) if i != axis and shape[i] != 1]
            full = [(*(x[i] == shape[i] for x in padded), True) for i in outer]
            cut = next((i for i, f in enumerate(full) if f != full[0]), len(full))
            if any(f != full[cut] for f in full[cut:]):
                continue
            images, rows = (size([shape[i] for i in part]) for part in (outer[:cut], outer[cut:]))
            everything = (True, True, True)
            return cls(order, images, rows, full[0] if full else everything, full[cut] if outer[cut:] else everything)
        raise Declined(f"operands {list(a)} and {list(b)} broadcast in a way that native kernels do not")

    def grid(self, columns: int, strides: Sequence[int]) -> RowGrid:
        """The rows of the result, and the bytes between rows and images of each operand."""
        steps = [stride or columns for stride in strides]
        rows = tuple(step if full else 0 for step, full in zip(steps, self.row_full, strict=True))
        images = tuple(
            step * (self.rows if own_rows else 1) if full else 0
            for step, full, own_rows in zip(steps, self.image_full, self.row_full, strict=True)
        )
        if self.rows == 1:
            return RowGrid(1, self.images, columns, (0, 0, 0), images, (0, 0, 0))
        return RowGrid(self.images, self.rows, columns, images, rows, (0, 0, 0))


def row_shapes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes that two broadcasting operands need for PairLookup: their own, or the result's for operands that must
    be copied in full. Such copies are in C order, so that the way with rows of the last axis is preferred.
    """
    whole = broadcast_shapes(a, b)
    found = []
    for shapes in ((a, b), (a, whole), (whole, b)):
        try:
            order = Overlay.of(*shapes).order
        except Declined:
            continue
        if shapes == (a, b) or order == "rows":
            return shapes
        found.append(shapes)
    return found[0] if found else (whole, whole)


def _same_channels(shape: tuple[int, ...], rank: int) -> bool:
    """Whether an operand has as many axes as the result, so that its axis 1 is the channels, or only one row."""
    return len(shape) == rank or size(shape) == max(shape, default=1)


def _pair_kernel(form: str, words: Any, arrays: dict[str, Array], out: str = "u8", signed: bool = False) -> Kernel:
    """A kernel of two operands."""
    return Kernel("pair", form, out, signed, ("x0", "x1", "y"), words, arrays)
