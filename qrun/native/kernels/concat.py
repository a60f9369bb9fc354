"""Planned concatenations: of tensors of any type, or of 8-bit tensors, each mapped through a table of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.spec import CODES
from qrun.native.errors import Declined
from qrun.native.kernels.point import Function
from qrun.native.kernels.rows import RowGrid
from qrun.native.kernels.strided import SIZES, Loop, copies
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, Order, size

_MOST = 1024
"""Tensors: each has a call of its own, which says of every operand what it touches."""


class Concat(Operation):
    """Tensors joined along `axis`, element x of each as table[x].

    tables: one for each input, [256] and 8-bit, indexed by the bits of an 8-bit x as uint8; None where x is copied as it
            is, which tables that change nothing are taken for.
    x_types, y_type: of the inputs and the result, of 1, 2, 4 or 8 bytes.

    Wider elements that are joined along the channels may lie in either order: convolutions are not the only ones that make
    them. Raises Declined for other types, and for very many tensors.
    """

    narrows = True

    def __init__(
        self,
        engine: Engine,
        shapes: Sequence[Sequence[int]],
        axis: int,
        tables: Sequence[Array | None],
        *,
        x_types: Sequence[np.dtype[Any]],
        y_type: np.dtype[Any],
    ) -> None:
        self.engine = engine
        places = [tuple(int(n) for n in shape) for shape in shapes]
        rank = len(places[0])
        if not -rank <= axis < rank or any(len(p) != rank for p in places):
            raise ValueError(f"axis {axis} of {places}")
        axis %= rank
        _check(tables, x_types, y_type)
        order: Order = "rows" if axis == rank - 1 else "plain"
        if axis == 1 and order == "plain":
            order = "channels" if y_type in CODES else "any"
        joined = sum(p[axis] for p in places)
        shape = (*places[0][:axis], joined, *places[0][axis + 1 :])
        self.operands = (
            *(Operand(p, np.dtype(t)) for p, t in zip(places, x_types, strict=True)),
            Operand(shape, np.dtype(y_type)),
        )
        self.axis, self.itemsize = axis, y_type.itemsize
        self._lie(order)
        codes = np.arange(256, dtype=np.uint8)
        self.copied = tuple(
            table is None or (x == y_type and np.array_equal(table.view(np.uint8), codes))
            for table, x in zip(tables, x_types, strict=True)
        )
        self.functions = tuple(
            None if copied or table is None else Function.of(engine.isa, table, np.dtype(x))
            for copied, table, x in zip(self.copied, tables, x_types, strict=True)
        )

    def moving(self, dtype: np.dtype[Any]) -> Concat:
        *parts, _ = self.operands
        shapes, types = [part.shape for part in parts], [dtype] * len(parts)
        return Concat(self.engine, shapes, self.axis, [None] * len(parts), x_types=types, y_type=dtype)

    def _lie(self, order: Order) -> None:
        """Set what follows from the order in memory; in ``any`` it is C order."""
        self.order: Order = order
        shape, axis = self.result.shape, self.axis
        inner = size(shape[axis + 1 :]) if order in ("plain", "any") else 1
        self.rows = size(shape) // max(shape[axis] * inner, 1)
        self.columns = tuple(x.shape[axis] * inner * self.itemsize for x in self.operands[:-1])
        """Bytes of a row of each tensor."""
        self.parts = tuple(int(n) for n in np.cumsum([0, *self.columns[:-1]]))

    def lying(self, order: Order) -> Concat:
        made = self.again()
        made._lie(order)
        return made

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if self.order == "any" and any(strides):
            return self.lying("channels").sections(strides)
        return tuple(section for place in range(len(self.columns)) for section in self._part(place, strides))

    def _part(self, place: int, strides: Sequence[int]) -> Iterator[KernelCall]:
        """The calls for one input."""
        columns, start, operands = self.columns[place], self.parts[place], len(self.operands)
        x, y = strides[place] or columns, strides[-1] or sum(self.columns)
        if not self.rows * columns:
            return
        function = self.functions[place]
        if function is not None:
            grid = RowGrid.of((self.rows, columns), columns, (x, y), (0, start))
            yield from function.sections(self.engine, grid, (place, operands - 1), operands, start, columns)
            return
        n = self.itemsize
        axes = [Loop(self.rows, (x, y)), Loop(columns // n, (n, n))]
        for section in copies(self.engine, axes, (0, start), n):
            yield replace(section.among((place, operands - 1), operands), first=start // n, channels=columns // n)


def _check(tables: Sequence[Array | None], x_types: Sequence[np.dtype[Any]], y_type: np.dtype[Any]) -> None:
    """Raises Declined for what there are no kernels for, ValueError where tables do not fit their tensors."""
    if len(tables) > _MOST:
        raise Declined(f"more than {_MOST} tensors")
    mapped = [t for t, table in zip(x_types, tables, strict=True) if table is not None]
    if any(np.dtype(t) not in CODES for t in (*mapped, *([y_type] if mapped else []))):
        raise Declined("not 8-bit tensors")
    if y_type.hasobject or y_type.itemsize not in SIZES:
        raise Declined(f"no native copies of {y_type.name}")
    if any(t is not None and (t.shape != (256,) or t.dtype != y_type) for t in tables):
        raise ValueError("tables are not [256] of the result's type")
    if any(t is None and x != y_type for t, x in zip(tables, x_types, strict=True)):
        raise ValueError("what is copied has not the result's type")
