"""Plans copies: transpositions, slices, padding, broadcasts, triangles, and changes of the memory order; and the kernel
calls that copy or fill elements along axes with strides in bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.spec import OUTER
from qrun.native.errors import Declined
from qrun.native.machine.engine import (
    Array,
    Engine,
    KernelCall,
    KernelSpec,
    Operand,
    Operation,
    Order,
    aligned,
    row_tiles,
    share,
    size,
)
from qrun.native.machine.operation import TILE_BYTES

SIZES = (1, 2, 4, 8)
_SECTIONS = 64
"""The most calls into which a copy is cut that has more axes than a kernel."""
_FILL = 4096
"""Bytes of a constant row that fills borders."""
_LINE, _VECTOR, _UNROLL = 64, 16, 4
"""Bytes of a cache line, bytes of a block's row, and vectors per iteration."""
_UNIT = 1 << 12
"""Bytes of a transposition that stay in the first-level cache."""
_PAGE, _WAYS = 4096, 8
"""Rows that are a page apart share one set of the first-level cache, which holds this many of them."""


@frozen
class Loop:
    """One loop. count: its iterations; steps: bytes from one element to the next in each operand, the result last."""

    count: int
    steps: tuple[int, ...]

    @property
    def x(self) -> int:
        """The source's bytes from one index to the next."""
        return self.steps[0]

    @property
    def y(self) -> int:
        """The result's bytes from one index to the next."""
        return self.steps[-1]

    def continues(self, inner: Loop) -> bool:
        """Whether this loop and the `inner` one walk over memory as one longer loop would."""
        return all(step == inner.count * own for step, own in zip(self.steps, inner.steps, strict=True))


def merge(loops: Iterable[Loop]) -> list[Loop]:
    """The loops whose count is not 1, outermost in the result first; merged where one continues another."""
    found: list[Loop] = []
    for loop in sorted((loop for loop in loops if loop.count != 1), key=lambda loop: -loop.steps[-1]):
        if found and found[-1].continues(loop):
            loop = Loop(found.pop().count * loop.count, loop.steps)
        found.append(loop)
    return found


def outer_words(
    names: Sequence[str], outer: Sequence[Loop], chunks: tuple[int, int], unit_bytes: int, threads: int
) -> dict[str, int]:
    """The argument words of emit/strided.py for the outer loops, at most OUTER, and for tiles.
    chunks: the number of chunks, and elements per chunk."""
    loops = [Loop(1, (0,) * len(names))] * (OUTER - len(outer)) + list(outer)
    units = math.prod(loop.count for loop in loops) * chunks[0]
    each = share(units, unit_bytes, threads)
    words = {f"{name}_{axis}": loop.steps[n] for n, name in enumerate(names) for axis, loop in enumerate(loops)}
    words |= {"n1": loops[1].count, "n2": loops[2].count, "chunks": chunks[0], "chunk": chunks[1]}
    return words | {"units": units, "share": each, "tiles": -(-units // each)}


def copies(engine: Engine, axes: Sequence[Loop], starts: tuple[int, int], itemsize: int) -> Iterator[KernelCall]:
    """Kernel calls that copy elements of `itemsize` bytes along `axes`, from byte starts[0] to byte starts[1]."""
    if any(axis.count == 0 for axis in axes):
        return
    yield from _copies(engine, merge(axes), starts, itemsize, None)


def fills(engine: Engine, axes: Sequence[Loop], start: int, value: Array) -> Iterator[KernelCall]:
    """Kernel calls that write `value` to every element that the loops `axes` reach in the result, from byte `start` on,
    as copies of a constant row. The loops' steps in the operand are ignored."""
    itemsize = value.dtype.itemsize
    if any(axis.count == 0 for axis in axes):
        return
    *outer, run = [Loop(axis.count, (0, axis.y)) for axis in merge(axes)] or [Loop(1, (0, itemsize))]
    row = aligned(_FILL // itemsize, value.dtype)
    row[...] = value
    if run.y != itemsize:
        yield from _copies(engine, [*outer, run], (0, start), itemsize, row)
        return
    whole, rest = divmod(run.count, len(row))
    parts = [(whole, len(row), start), (1, rest, start + whole * row.nbytes)]
    for rows, count, first in parts:
        if rows and count:
            own = [Loop(rows, (0, row.nbytes)), Loop(count, (itemsize, itemsize))]
            yield from _copies(engine, merge([*outer, *own]), (0, first), itemsize, row)


def stores(engine: Engine, array: Array) -> Iterator[KernelCall]:
    """Kernel calls that write this array, which is in C order."""
    if array.size:
        own = [Loop(array.size, (array.itemsize, array.itemsize))]
        yield from _copies(engine, merge(own), (0, 0), array.itemsize, array)


@frozen
class _Call:
    """The kernel chosen for some axes. outer: the axes left to its outer loops. words: words of the argument struct.

    count: length of its first own axis, cut into chunks that are a multiple of `multiple`; each: bytes per element.
    """

    kind: str
    block: tuple[int, int, int]
    form: str
    outer: tuple[Loop, ...]
    words: Mapping[str, int]
    count: int
    each: int
    multiple: int = 1


def _copies(
    engine: Engine, axes: list[Loop], starts: tuple[int, int], itemsize: int, source: Array | None
) -> Iterator[KernelCall]:
    """As `copies`, for merged axes. source: a constant array to read instead of the operand."""
    call = _choose_call(engine, axes, itemsize)
    if len(call.outer) <= OUTER:
        yield _section(engine, call, axes, starts, itemsize, source)
        return
    first = call.outer[0]
    if first.count > _SECTIONS:
        raise Declined("a copy along too many axes")
    rest = [axis for axis in axes if axis is not first]
    for i in range(first.count):
        yield from _copies(engine, rest, (starts[0] + i * first.x, starts[1] + i * first.y), itemsize, source)


def _choose_call(engine: Engine, axes: list[Loop], itemsize: int) -> _Call:
    """Choose between copies of runs, of transposed blocks and of single elements."""
    last = axes[-1] if axes else Loop(1, (itemsize, itemsize))
    if last.x == last.y == itemsize:
        run = last.count * itemsize
        blocks = _blocks(engine, axes[:-1], run) if run in SIZES else None
        return blocks or _runs(engine, axes[:-1], run)
    return _blocks(engine, axes, itemsize) or _elements(axes, itemsize)


def _runs(engine: Engine, axes: list[Loop], run: int) -> _Call:
    """The copy of runs of bytes that are contiguous on both sides."""
    vector = _power(min(run, 4 * engine.isa.lanes))
    block = _UNROLL * vector
    unroll = _UNROLL if run >= block and -(-run // block) * block * 4 <= -(-run // vector) * vector * 5 else 1
    outer, rows = _rows(axes)
    words = {"rows": rows.count, "x_row": rows.x, "y_row": rows.y, "bytes": run}
    return _Call("runs", (0, unroll, vector), "copy", outer, words, rows.count, run)


def _elements(axes: list[Loop], itemsize: int) -> _Call:
    """The copy of single elements."""
    outer, rows = _rows(axes[:-1])
    words = {"rows": rows.count, "x_row": rows.x, "y_row": rows.y}
    words |= {"columns": axes[-1].count, "x_column": axes[-1].x, "y_column": axes[-1].y}
    return _Call("elements", (0, 0, itemsize), "copy", outer, words, rows.count, axes[-1].count * itemsize)


def _rows(axes: list[Loop]) -> tuple[tuple[Loop, ...], Loop]:
    """The outer axes, and the axis to walk inside them: the innermost, or the longest if that is short."""
    if not axes:
        return (), Loop(1, (0, 0))
    rows = axes[-1] if axes[-1].count >= 8 else max(axes[::-1], key=lambda axis: axis.count)
    return tuple(axis for axis in axes if axis is not rows), rows


def _blocks(engine: Engine, axes: list[Loop], itemsize: int) -> _Call | None:
    """The kernel of a transposition: one axis is contiguous in the result, another one in the source. Else None."""
    j = next((axis for axis in axes if axis.y == itemsize), None)
    i = next((axis for axis in axes if axis.x == itemsize and axis is not j), None)
    if i is None or j is None:
        return None
    outer = tuple(axis for axis in axes if axis is not i and axis is not j)
    full = _VECTOR // itemsize
    wide = 2 * full if engine.isa.lanes >= 8 and itemsize <= 2 and i.count >= 2 * full else full
    if j.count in (2, 3, 4, 8) and i.y == j.count * itemsize and i.count >= full:
        return _dense(outer, i, j, full if j.count == 3 else wide, itemsize)
    rows = _power(min(j.count, full))
    columns = _power(min(i.count, wide if rows == full else full))
    far = abs(j.x) >= i.y
    if not far and i.y % _PAGE == 0:
        columns = min(columns, _WAYS)
    a, a_block, b, b_block = (i, columns, j, rows) if far else (j, rows, i, columns)
    words = _block_words((a, a_block), (b, b_block), j.x, i.y)
    multiple = max(_LINE // itemsize, a_block)
    return _Call("blocks", (rows, columns, itemsize), "copy", outer, words, a.count, b.count * itemsize, multiple)


def _block_words(a: tuple[Loop, int], b: tuple[Loop, int], x_step: int, y_step: int) -> dict[str, int]:
    """The words of the kernel that copies blocks. a, b: its two axes, each with its elements per block."""
    words = {"x_step": x_step, "y_step": y_step}
    for name, (axis, block) in (("a", a), ("b", b)):
        words |= {name: axis.count, f"{name}_block": block, f"{name}_x": axis.x, f"{name}_y": axis.y}
    return words


def _dense(outer: tuple[Loop, ...], i: Loop, j: Loop, columns: int, itemsize: int) -> _Call:
    """The kernel that interleaves a few rows: a block has all of j, so the kernel's second axis walks further rows."""
    left, rows = _rows(list(outer))
    fits = [n for n in range(1, rows.count + 1) if rows.count % n == 0]
    least = next((n for n in fits if n * i.count * j.count * itemsize >= _UNIT), rows.count)
    if least < rows.count and len(left) < OUTER:
        left = (*left, Loop(rows.count // least, (rows.x * least, rows.y * least)))
        rows = replace(rows, count=least)
    words = _block_words((i, columns), (rows, 1), j.x, i.y)
    each = rows.count * j.count * itemsize
    return _Call("blocks", (j.count, columns, itemsize), "dense", left, words, i.count, each, columns)


def _section(
    engine: Engine, call: _Call, axes: list[Loop], starts: tuple[int, int], itemsize: int, source: Array | None
) -> KernelCall:
    """The call of a copy: words, extents, and how it is cut into tiles."""
    chunk = call.count
    if engine.threads > 1 or (call.kind == "blocks" and call.count * call.each > 4 * _UNIT):
        work = TILE_BYTES if engine.threads > 1 else _UNIT
        chunk = -(-max(1, work // max(call.each, 1)) // call.multiple) * call.multiple
    unit = min(chunk, call.count) * call.each
    shared = outer_words(("x", "y"), call.outer, (-(-call.count // chunk), chunk), unit, engine.threads)
    words = {**call.words, **shared, "x*": starts[0], "y*": starts[1]}
    extents = [start + itemsize for start in starts]
    for axis in axes:
        for operand, step in enumerate((axis.x, axis.y)):
            extents[operand] += max(0, (axis.count - 1) * step)
    lowest = [start + sum(min(0, (axis.count - 1) * axis.x) for axis in axes) for start in starts[:1]]
    if min(*lowest, starts[1]) < 0:
        raise ValueError("a copy begins before its operand")
    rows, vectors, unroll = call.block
    spec = KernelSpec(call.kind, engine.isa.name, rows, vectors, unroll, call.form, "bytes", False)
    arrays = {} if source is None else {"x*": source}
    operands = {"x*": 0, "y*": 1} if source is None else {"y*": 1}
    return engine.kernels.call(spec, operands, words, (extents[0] if source is None else 0, extents[1]), arrays)


def _power(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << (n.bit_length() - 1)


@frozen
class Move:
    """One loop of a copy in terms of operands: an axis and a step, in elements, of the source and of the result."""

    count: int
    x_axis: int
    x_step: int
    y_axis: int
    y_step: int


class Copy(Operation):
    """y[...] = x[...] along `moves`, beginning at the elements x_first and y_first; `fills` are boxes of y (first
    element, counts) that get the constant `value`.

    Elements have 1, 2, 4 or 8 bytes. The bytes of a result's border are not written.
    orders: the memory orders of source and result; "any": a program may choose one (`with_layout`); by default C order.
    view: source and result are the same bytes.
    """

    narrows = True

    def __init__(
        self,
        engine: Engine,
        operands: tuple[Operand, Operand],
        orders: tuple[Order, Order],
        moves: Sequence[Move],
        x_first: Sequence[int] = (),
        y_first: Sequence[int] = (),
        fills: Sequence[tuple[Sequence[int], Sequence[int]]] = (),
        value: Array | None = None,
        view: bool = False,
    ) -> None:
        self.view = view
        self.engine, self.operands, self.orders = engine, operands, orders
        if operands[0].dtype.itemsize not in SIZES or operands[0].dtype.hasobject:
            raise Declined(f"elements of {operands[0].dtype.itemsize} bytes")
        self._moves, self._first = tuple(moves), (tuple(x_first), tuple(y_first))
        self._fills = tuple((tuple(first), tuple(counts)) for first, counts in fills)
        self._value = np.zeros((), operands[1].dtype) if value is None else value

    @property
    def order(self) -> Order:  # type: ignore[override]
        """The order of the result's elements in memory."""
        return self.orders[1]

    @property
    def source_order(self) -> Order:
        """The order of the source's elements in memory."""
        return self.orders[0]

    def with_layout(self, order: Order) -> Copy:
        x, y = self.operands
        return Copy(self.engine, (x, y), (order, order), self._moves, *self._first, self._fills, self._value)

    def with_element_type(self, dtype: np.dtype[Any]) -> Copy | None:
        """The same copy of elements of another type; None if its order of elements forbids this."""
        if self.orders not in (("plain", "plain"), ("any", "any")):
            return None
        x, y = (Operand(operand.shape, dtype) for operand in self.operands)
        value = self._value.astype(dtype)
        return Copy(self.engine, (x, y), self.orders, self._moves, *self._first, self._fills, value, self.view)

    def axes(self, strides: Sequence[int]) -> list[Loop]:
        """The loops, with steps in bytes, for operands whose rows are `strides` bytes apart."""
        if self.source_order == "any" and any(strides):
            raise ValueError("rows of a copy whose order is not known")
        x, y = self._operand_strides(strides)
        return [
            Loop(m.count, (m.x_step * x.steps[m.x_axis] if m.x_step else 0, m.y_step * y.steps[m.y_axis]))
            for m in self._moves
        ]

    @property
    def loops(self) -> int:
        """The number of loops whose count is not 1."""
        return sum(move.count != 1 for move in self._moves)

    def view_strides(self, read: bool) -> tuple[int, ...] | None:
        """The strides in bytes of the result in the operand's memory; if not `read`, of the operand in the result's
        memory. None if the copy does more than reorder axes."""
        if self.view or self._fills or any(map(any, self._first)) or self.orders != ("plain", "plain"):
            return None
        axes = sorted(self._moves, key=lambda move: move.y_axis if read else move.x_axis)
        whole = list(range(len(axes)))
        if [m.x_axis for m in sorted(axes, key=lambda m: m.x_axis)] != whole or sorted(m.y_axis for m in axes) != whole:
            return None
        if any((m.x_step, m.y_step) != (1, 1) or m.count != self.operands[0].shape[m.x_axis] for m in axes):
            return None
        x, y = self._operand_strides((0, 0))
        return tuple(x.steps[m.x_axis] if read else y.steps[m.y_axis] for m in axes)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self._operand_strides(strides)
        starts = [
            index.start + sum(f * s for f, s in zip(first, index.steps, strict=False))
            for index, first in zip((x, y), self._first, strict=True)
        ]
        itemsize = self.result.dtype.itemsize
        sections = list(copies(self.engine, self.axes(strides), (starts[0], starts[1]), itemsize))
        for first, counts in self._fills:
            start = y.start + sum(f * s for f, s in zip(first, y.steps, strict=True))
            box = [Loop(n, (0, s)) for n, s in zip(counts, y.steps, strict=True)]
            sections += fills(self.engine, box, start, self._value)
        return tuple(sections)


def arrange(engine: Engine, x: Operand, x_order: Order, y: Operand, y_order: Order, *, view: bool = False) -> Copy:
    """The copy of x from one order in memory to another. If y has a border, that is not written.

    "channels" means C order for shapes with fewer than three axes. view: both are the same bytes: no copy is needed.
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{x.dtype}{list(x.shape)} is not {y.dtype}{list(y.shape)} in another order")
    return Copy(engine, (x, y), (x_order, y_order), _identity_moves(x.shape), view=view)


def view(engine: Engine, x_shape: Sequence[int], y_shape: Sequence[int], dtype: np.dtype[Any]) -> Copy:
    """A reshape in C order, as a view: a program need not copy it. Raises ValueError if the sizes differ."""
    if size(x_shape) != size(y_shape):
        raise ValueError(f"{list(x_shape)} has not as many elements as {list(y_shape)}")
    moves = [Move(size(x_shape), -1, 1, -1, 1)] if len(x_shape) and len(y_shape) else []
    return Copy(engine, (_operand(x_shape, dtype), _operand(y_shape, dtype)), ("plain", "plain"), moves, view=True)


def transpose_copy(
    engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], perm: Sequence[int], order: Order = "plain"
) -> Copy:
    """Axis i of the result is axis perm[i] of the operand; both are in `order`.

    Two cases of C order are views instead: axis 1 becomes the last one, and the operand is channels-last in memory; or
    the last axis becomes axis 1, and the result is channels-last.
    """
    x, perm = _operand(shape, dtype), [int(axis) for axis in perm]
    operands = (x, _operand([x.shape[axis] for axis in perm], dtype))
    moves = [Move(x.shape[axis], axis, 1, index, 1) for index, axis in enumerate(perm)]
    axes = list(range(len(perm)))
    if order == "plain" and len(perm) > 2:
        if perm == [0, *axes[2:], 1]:
            return Copy(engine, operands, ("channels", "plain"), moves, view=True)
        if perm == [0, axes[-1], *axes[1:-1]]:
            return Copy(engine, operands, ("plain", "channels"), moves, view=True)
    return Copy(engine, operands, (order, order), moves)


def shuffle_copy(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], groups: int) -> Copy:
    """A channel shuffle: channels [groups][n] become [n][groups], in [N, C, spatial...] lying channels-last."""
    x = _operand(shape, dtype)
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{list(shape)} has no {groups} groups of channels")
    each = x.shape[1] // groups
    moves = [move for move in _identity_moves(x.shape) if move.x_axis != 1]
    moves += [Move(groups, 1, each, 1, 1), Move(each, 1, 1, 1, groups)]
    return Copy(engine, (x, x), ("channels", "channels"), moves)


def slice_copy(
    engine: Engine,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    starts: Sequence[int],
    steps: Sequence[int],
    counts: Sequence[int],
    order: Order = "plain",
) -> Copy:
    """A slice: along each axis `counts` elements from `starts` on, `steps` (not 0) apart; both are in `order`."""
    x = _operand(shape, dtype)
    for n, start, step, count in zip(x.shape, starts, steps, counts, strict=True):
        if count < 0 or (count and not (0 <= start < n and 0 <= start + (count - 1) * step < n)):
            raise ValueError(f"{count} elements from {start} in steps of {step} are not among {n}")
    moves = [Move(int(n), axis, int(step), axis, 1) for axis, (n, step) in enumerate(zip(counts, steps, strict=True))]
    return Copy(engine, (x, _operand(counts, dtype)), (order, order), moves, x_first=[int(s) for s in starts])


def broadcast_copy(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], whole: Sequence[int]) -> Copy:
    """The operand broadcast to the shape `whole`, which has at least as many axes; both are in C order."""
    x, y = _operand(shape, dtype), _operand(whole, dtype)
    missing = len(y.shape) - len(x.shape)
    if missing < 0 or any(n not in (1, own) for n, own in zip(x.shape, y.shape[missing:], strict=True)):
        raise ValueError(f"{list(shape)} does not broadcast to {list(whole)}")
    own = (1,) * missing + x.shape
    moves = [Move(n, max(axis - missing, 0), int(own[axis] != 1), axis, 1) for axis, n in enumerate(y.shape)]
    return Copy(engine, (x, y), ("plain", "plain"), moves)


def pad_copy(
    engine: Engine, shape: Sequence[int], value: Array, begin: Sequence[int], end: Sequence[int], order: Order = "plain"
) -> Copy:
    """Pads each axis with `value`, of rank 0, on both sides; negative amounts remove elements. Both lie in `order`."""
    x = _operand(shape, value.dtype)
    begin, end = ([int(n) for n in amounts] for amounts in (begin, end))
    grown = [n + b + e for n, b, e in zip(x.shape, begin, end, strict=True)]
    if min(grown, default=0) < 0:
        raise ValueError(f"padding by {list(begin)} and {list(end)} removes more than {list(shape)} has")
    inside = []
    for n, b, g in zip(x.shape, begin, grown, strict=True):
        first = min(max(0, b), g)
        inside.append((first, max(first, min(n + b, g))))
    moves = [Move(last - first, axis, 1, axis, 1) for axis, (first, last) in enumerate(inside)]
    boxes = []
    for axis, (first, last) in enumerate(inside):
        for low, high in ((0, first), (last, grown[axis])):
            firsts = [a for a, _ in inside[:axis]] + [low] + [0] * (len(grown) - axis - 1)
            counts = [b - a for a, b in inside[:axis]] + [high - low] + grown[axis + 1 :]
            if size(counts):
                boxes.append((firsts, counts))
    x_first = [a - b for (a, _), b in zip(inside, begin, strict=True)]
    y_first = [a for a, _ in inside]
    operands = (x, _operand(grown, value.dtype))
    return Copy(engine, operands, (order, order), moves, x_first, y_first, boxes, value)


def _operand(shape: Sequence[int], dtype: np.dtype[Any]) -> Operand:
    """The operand of a shape and a type."""
    return Operand(tuple(int(n) for n in shape), np.dtype(dtype))


def _identity_moves(shape: Sequence[int]) -> list[Move]:
    """The moves of a copy that keeps all axes."""
    return [Move(n, axis, 1, axis, 1) for axis, n in enumerate(shape)]


class Triangle(Operation):
    """A triangle of x [..., n, m], zeros elsewhere. Elements have 1, 2, 4 or 8 bytes.

    upper: row i keeps its elements from column i + diagonal on; else those before it.
    """

    def __init__(self, engine: Engine, x: Operand, diagonal: int, upper: bool) -> None:
        if x.dtype.itemsize not in SIZES or x.dtype.hasobject or len(x.shape) < 2:
            raise ValueError(f"{x.dtype.name}{list(x.shape)} has no matrices of bytes")
        self.engine, self.diagonal, self.upper, self.operands = engine, diagonal, upper, (x, x)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, item, isa = self.result, self.result.dtype.itemsize, self.engine.isa
        *_, lines, columns = x.shape
        words = row_tiles(size(x.shape[:-1]), columns * item, self.engine.threads)
        words |= {"lines": lines, "columns": columns, "diagonal": self.diagonal}
        form = "upper" if self.upper else "lower"
        spec = KernelSpec("triangle", isa.name, 4 * isa.lanes // item, 1, item, form, "bytes", False)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)
