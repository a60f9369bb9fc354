"""Plans copies that concatenate tensors (8-bit ones through a table of their own), repeat elements, take elements by
their places, or move them between channels and blocks of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.native.emit.spec import CODES
from qrun.native.errors import Declined
from qrun.native.kernels.copy import SIZES, Copy, Loop, Move, copies
from qrun.native.kernels.point import Function
from qrun.native.kernels.rows import RowGrid
from qrun.native.machine.engine import Array, Engine, KernelCall, Operand, Operation, Order, size

_MOST = 1024
"""The most tensors: each has a call of its own, whose extents list every operand."""


class Concat(Operation):
    """Tensors concatenated along `axis`, where element x of each becomes table[x].

    tables: one for each input, [256] and 8-bit, indexed by the bits of an 8-bit x as uint8; None to copy x unchanged.
            A table that changes nothing counts as None.
    x_types, y_type: the types of the inputs and the result, of 1, 2, 4 or 8 bytes.

    Wider elements joined along the channels may lie in either order, since not only convolutions produce them. Raises
    Declined for other types, and for more than 1024 tensors.
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

    def with_element_type(self, dtype: np.dtype[Any]) -> Concat:
        """The same concatenation of elements of another type."""
        *parts, _ = self.operands
        shapes, types = [part.shape for part in parts], [dtype] * len(parts)
        return Concat(self.engine, shapes, self.axis, [None] * len(parts), x_types=types, y_type=dtype)

    def _lie(self, order: Order) -> None:
        """Set the attributes that follow from the order in memory; ``any`` counts as C order."""
        self.order: Order = order
        shape, axis = self.result.shape, self.axis
        inner = size(shape[axis + 1 :]) if order in ("plain", "any") else 1
        self.rows = size(shape) // max(shape[axis] * inner, 1)
        self.columns = tuple(x.shape[axis] * inner * self.itemsize for x in self.operands[:-1])
        """For each tensor, the bytes of a row."""
        self.parts = tuple(int(n) for n in np.cumsum([0, *self.columns[:-1]]))

    def with_layout(self, order: Order) -> Concat:
        made = self.again()
        made._lie(order)
        return made

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        if self.order == "any" and any(strides):
            return self.with_layout("channels").sections(strides)
        return tuple(section for index in range(len(self.columns)) for section in self._part(index, strides))

    def _part(self, index: int, strides: Sequence[int]) -> Iterator[KernelCall]:
        """The calls for one input."""
        columns, start, operands = self.columns[index], self.parts[index], len(self.operands)
        x, y = strides[index] or columns, strides[-1] or sum(self.columns)
        if not self.rows * columns:
            return
        function = self.functions[index]
        if function is not None:
            grid = RowGrid.of((self.rows, columns), columns, (x, y), (0, start))
            yield from function.sections(self.engine, grid, (index, operands - 1), operands, start, columns)
            return
        n = self.itemsize
        axes = [Loop(self.rows, (x, y)), Loop(columns // n, (n, n))]
        for section in copies(self.engine, axes, (0, start), n):
            yield replace(section.among((index, operands - 1), operands), first=start // n, channels=columns // n)


def _check(tables: Sequence[Array | None], x_types: Sequence[np.dtype[Any]], y_type: np.dtype[Any]) -> None:
    """Raise Declined for types without kernels, and too many tensors; ValueError if tables do not fit their tensors."""
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


def tile_copy(
    engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], times: Sequence[int], order: Order = "plain"
) -> Copy:
    """The operand repeated times[i] times along each axis i of the result, whose last axes are the operand's. Both are
    in `order`; only ``plain`` allows a result of higher rank.
    """
    lead = len(times) - len(shape)
    if lead < 0 or min(times, default=0) < 0 or (lead and order != "plain"):
        raise ValueError(f"{list(shape)} is not repeated {list(times)} times in order {order}")
    sizes = [1] * lead + [int(n) for n in shape]
    moves = []
    for axis, (n, count) in enumerate(zip(sizes, times, strict=True)):
        moves.append(Move(int(count), 0, 0, axis, n))
        if axis >= lead:
            moves.append(Move(n, axis - lead, 1, axis, 1))
    whole = tuple(n * int(count) for n, count in zip(sizes, times, strict=True))
    operands = (Operand(tuple(sizes[lead:]), np.dtype(dtype)), Operand(whole, np.dtype(dtype)))
    return Copy(engine, operands, (order, order), moves)


def depth_to_space_copy(
    engine: Engine,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    block: int,
    steps: tuple[int, int, int],
    order: Order = "plain",
    *,
    gathered: bool = False,
) -> Copy:
    """Depth to space: channels of [N, C, H, W] become blocks of pixels, [N, C / block / block, H * block, W * block].

    steps: channels of the operand from one row of a block to the next, from one column to the next, and from one
    channel of the result to the next.
    gathered: the inverse, space to depth, from that shape back to channels. Both are in `order`.
    """
    n, c, h, w = (int(length) for length in shape)
    if block < 1 or c % (block * block):
        raise ValueError(f"{c} channels are no blocks of {block} by {block}")
    rest = c // (block * block)
    row, column, channel = steps
    moves = [
        Move(n, 0, 1, 0, 1),
        Move(rest, 1, channel, 1, 1),
        Move(h, 2, 1, 2, block),
        Move(block, 1, row, 2, 1),
        Move(w, 3, 1, 3, block),
        Move(block, 1, column, 3, 1),
    ]
    deep = Operand((n, c, h, w), np.dtype(dtype))
    wide = Operand((n, rest, h * block, w * block), np.dtype(dtype))
    if gathered:
        turned = [Move(m.count, m.y_axis, m.y_step, m.x_axis, m.x_step) for m in moves]
        return Copy(engine, (wide, deep), (order, order), turned)
    return Copy(engine, (deep, wide), (order, order), moves)


def take_copies(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], places: Array) -> tuple[Copy, Copy]:
    """y[i] = the operand's element number places[i], counted in C order. Two copies: for either memory order, and for C
    order only.

    Both are the same if places do not follow the operand's axes. Raises Declined if places along some axis are neither
    evenly spaced nor repetitions of evenly spaced ones, and if there are none.
    """
    if not places.size:
        raise Declined("a result without elements")
    start = int(places[(0,) * places.ndim])
    loops, apart = [], np.full((1,) * places.ndim, start)
    for axis, length in enumerate(places.shape):
        line = places[(0,) * axis + (slice(None),) + (0,) * (places.ndim - axis - 1)] - start
        found = _loops(line)
        loops.append(found)
        apart = apart + line.reshape((length,) + (1,) * (places.ndim - axis - 1))
    if not np.array_equal(apart, places):
        raise Declined("its places differ from row to row")
    x, y = Operand(tuple(int(n) for n in shape), np.dtype(dtype)), Operand(places.shape, np.dtype(dtype))
    flat = [Move(n, -1, step, axis, far) for axis, found in enumerate(loops) for n, step, far in found]
    first = [0] * (len(x.shape) - 1) + [start] if x.shape else []
    plain = Copy(engine, (x, y), ("plain", "plain"), flat, first)
    corner = [int(n) for n in np.unravel_index(start, x.shape)]
    moves = _along_axes(x.shape, corner, loops)
    if moves is None:
        return plain, plain
    return Copy(engine, (x, y), ("any", "any"), moves, corner), plain


def _loops(line: Array) -> list[tuple[int, int, int]]:
    """At most two loops that produce the numbers of a line, which begins with 0: (iterations, step, places from one
    iteration to the next). Raises Declined for other numbers."""
    length = len(line)
    if length == 1:
        return []
    step = int(line[1])
    uneven = np.flatnonzero(np.diff(line) != step)
    run = int(uneven[0]) + 1 if uneven.size else length
    if run == length:
        return [(length, step, 1)]
    far = int(line[run])
    if length % run or not np.array_equal(line, np.add.outer(np.arange(length // run) * far, line[:run]).reshape(-1)):
        raise Declined("its places are not evenly spaced")
    return [(length // run, far, run), (run, step, 1)]


def _along_axes(
    shape: Sequence[int], corner: Sequence[int], loops: Sequence[Sequence[tuple[int, int, int]]]
) -> list[Move] | None:
    """The loops as moves along axes from the element `corner` on: loops number i walk axis i. None if one leaves it."""
    if len(shape) != len(loops):
        return None
    moves, stride = [], 1
    for axis in range(len(shape) - 1, -1, -1):
        ends = [(turns - 1) * step // stride for turns, step, _ in loops[axis]]
        lowest, highest = corner[axis] + sum(min(0, n) for n in ends), corner[axis] + sum(max(0, n) for n in ends)
        if lowest < 0 or highest >= shape[axis] or any(step % stride for _, step, _ in loops[axis]):
            return None
        moves += [Move(turns, axis, step // stride, axis, far) for turns, step, far in loops[axis]]
        stride *= shape[axis]
    return moves
