"""Planned elementwise functions of two 8-bit tensors, given as tables of all 65,536 pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.spec import CODES
from qrun.native.errors import Declined
from qrun.native.kernels.rows import SINGLE, Kernel, RowGrid
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, Order, size
from qrun.native.machine.memory import aligned_copy
from qrun.native.proof.fits import CodeProduct, CodeSum, fit_pair
from qrun.shapes import broadcast_shapes


class PairLookup(Operation):
    """y = table[a, b], element by element, for 8-bit codes a and b of one type.

    shapes: of a and b, which broadcast; where they differ, rows (channels, or the last axis) are whole in both, and
            each operand repeats along leading axes or along the ones between those and the row, or neither.
    table:  [256, 256], 8-bit, indexed by the bits of a and b as uint8. x_type: of a and b.
    near:   what the function is about, or None: a cheaper form is looked for there, and proven for all pairs.
    memo:   the form that was found for the same table and other shapes.

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
        self.scalar = memo.once("table", lambda: _kernel(SINGLE[0], {}, {"table*": aligned_copy(table.view(np.uint8))}))
        self.kernel = memo.once("pair", lambda: self._fitted(table, near)) or self.scalar
        self.own_words = (*self.kernel.words, *self.scalar.arrays)

    def _fitted(self, table: Array, near: CodeSum | CodeProduct | None) -> Kernel | None:
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
        return _kernel(form, words, {}, CODES[table.dtype], signed)

    def sized_as(self, other: Operation, memo: Memo) -> Operation | None:
        made = self.resized(other)
        if made is not None and isinstance(other, PairLookup):
            made.overlay = other.overlay
        return made

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        result = self.result
        columns = result.columns(self.order)
        grid = (
            RowGrid.of(result.shape, columns, strides) if self.order == "any" else self.overlay.grid(columns, strides)
        )
        kernel = self.kernel if grid.pieces(self.engine.isa) else self.scalar
        return (kernel.section(self.engine, grid, (0, 1, 2), 3, (0, columns)),)


@frozen
class Overlay:
    """How two operands of different shapes share rows.

    order: of all operands. images, rows: how many; image_full, row_full: whether each operand, and the result, has
    its own for each of them.
    """

    order: Order
    images: int = 1
    rows: int = 1
    image_full: tuple[bool, ...] = ()
    row_full: tuple[bool, ...] = ()

    @classmethod
    def of(cls, a: tuple[int, ...], b: tuple[int, ...]) -> Overlay:
        """Raises Declined if they do not, ValueError if they do not broadcast."""
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
    """The shapes of two operands that broadcast, or the result's where one, or both, must be repeated for PairLookup.

    What is repeated lies in C order, so that of two ways the one that takes rows of the last axis is better.
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
    """Whether an operand's rows of channels are what its own shape says, or there is only one row."""
    return len(shape) == rank or size(shape) == max(shape, default=1)


def _kernel(form: str, words: Any, arrays: dict[str, Array], out: str = "u8", signed: bool = False) -> Kernel:
    return Kernel("pair", form, out, signed, ("x0", "x1", "y"), words, arrays)
