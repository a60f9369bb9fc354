"""Planned copies: the same elements in another order, with other strides, with constants around them,
or zeros in a triangle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.errors import Declined
from qrun.native.kernels.strided import SIZES, Loop, copies, fills
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size


@frozen
class Move:
    """One loop of a copy in terms of operands: axis and step, in elements, of the source and of the result."""

    count: int
    x_axis: int
    x_step: int
    y_axis: int
    y_step: int


class Copy(Operation):
    """y[...] = x[...] along `moves`, beginning at the elements x_first and y_first; `fills` are boxes of y (first
    element, counts) that get the constant `value`.

    Elements of 1, 2, 4 or 8 bytes. The bytes of a result's border are not written.
    orders: how source and result lie; "any": as whoever places them likes (`lying`), alone in C order.
    view: both are the same bytes.
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
        return self.orders[1]

    @property
    def source_order(self) -> Order:
        return self.orders[0]

    def lying(self, order: Order) -> Copy:
        x, y = self.operands
        return Copy(self.engine, (x, y), (order, order), self._moves, *self._first, self._fills, self._value)

    def moving(self, dtype: np.dtype[Any]) -> Copy | None:
        if self.orders not in (("plain", "plain"), ("any", "any")):
            return None
        x, y = (Operand(operand.shape, dtype) for operand in self.operands)
        value = self._value.astype(dtype)
        return Copy(self.engine, (x, y), self.orders, self._moves, *self._first, self._fills, value, self.view)

    def axes(self, strides: Sequence[int]) -> list[Loop]:
        """The loops, in bytes, for rows of operands `strides` bytes apart."""
        if self.source_order == "any" and any(strides):
            raise ValueError("rows of a copy whose order is not known")
        x, y = self._lying(strides)
        return [
            Loop(m.count, (m.x_step * x.steps[m.x_axis] if m.x_step else 0, m.y_step * y.steps[m.y_axis]))
            for m in self._moves
        ]

    @property
    def loops(self) -> int:
        """How many loops take more than one turn."""
        return sum(move.count != 1 for move in self._moves)

    def lying_as(self, read: bool) -> tuple[int, ...] | None:
        """Bytes from one element of the result to the next along each axis where the operand has them; or, unless
        `read`, of the operand's where the result has them. None if that is not all that the copy does."""
        if self.view or self._fills or any(map(any, self._first)) or self.orders != ("plain", "plain"):
            return None
        axes = sorted(self._moves, key=lambda move: move.y_axis if read else move.x_axis)
        whole = list(range(len(axes)))
        if [m.x_axis for m in sorted(axes, key=lambda m: m.x_axis)] != whole or sorted(m.y_axis for m in axes) != whole:
            return None
        if any((m.x_step, m.y_step) != (1, 1) or m.count != self.operands[0].shape[m.x_axis] for m in axes):
            return None
        x, y = self._lying((0, 0))
        return tuple(x.steps[m.x_axis] if read else y.steps[m.y_axis] for m in axes)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self._lying(strides)
        starts = [
            place.start + sum(f * s for f, s in zip(first, place.steps, strict=False))
            for place, first in zip((x, y), self._first, strict=True)
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

    "channels" of shapes with fewer than three axes is C order. view: nothing need be copied, as both are the same.
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        raise ValueError(f"{x.dtype}{list(x.shape)} is not {y.dtype}{list(y.shape)} in another order")
    return Copy(engine, (x, y), (x_order, y_order), _whole(x.shape), view=view)


def view(engine: Engine, x_shape: Sequence[int], y_shape: Sequence[int], dtype: np.dtype[Any]) -> Copy:
    """Another shape of as many elements, in C order: who places operands need not copy them."""
    if size(x_shape) != size(y_shape):
        raise ValueError(f"{list(x_shape)} has not as many elements as {list(y_shape)}")
    moves = [Move(size(x_shape), -1, 1, -1, 1)] if len(x_shape) and len(y_shape) else []
    return Copy(engine, (_operand(x_shape, dtype), _operand(y_shape, dtype)), ("plain", "plain"), moves, view=True)


def transposed(
    engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], perm: Sequence[int], order: Order = "plain"
) -> Copy:
    """Axis i of the result is axis perm[i] of the operand; both lie in `order`.

    Only, in C order it is a view where axis 1 becomes the last one, of an operand that lies channels-last, or the
    last one axis 1, of a result that does.
    """
    x, perm = _operand(shape, dtype), [int(axis) for axis in perm]
    operands = (x, _operand([x.shape[axis] for axis in perm], dtype))
    moves = [Move(x.shape[axis], axis, 1, place, 1) for place, axis in enumerate(perm)]
    axes = list(range(len(perm)))
    if order == "plain" and len(perm) > 2:
        if perm == [0, *axes[2:], 1]:
            return Copy(engine, operands, ("channels", "plain"), moves, view=True)
        if perm == [0, axes[-1], *axes[1:-1]]:
            return Copy(engine, operands, ("plain", "channels"), moves, view=True)
    return Copy(engine, operands, (order, order), moves)


def shuffled(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], groups: int) -> Copy:
    """Channels [groups][n] to [n][groups]: Reshape, Transpose and Reshape back of [N, C, spatial...], channels-last."""
    x = _operand(shape, dtype)
    if len(x.shape) < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"{list(shape)} has no {groups} groups of channels")
    each = x.shape[1] // groups
    moves = [move for move in _whole(x.shape) if move.x_axis != 1]
    moves += [Move(groups, 1, each, 1, 1), Move(each, 1, 1, 1, groups)]
    return Copy(engine, (x, x), ("channels", "channels"), moves)


def sliced(
    engine: Engine,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    starts: Sequence[int],
    steps: Sequence[int],
    counts: Sequence[int],
    order: Order = "plain",
) -> Copy:
    """Along each axis `counts` elements from `starts` on, `steps` (not 0) apart; both lie in `order`."""
    x = _operand(shape, dtype)
    for n, start, step, count in zip(x.shape, starts, steps, counts, strict=True):
        if count < 0 or (count and not (0 <= start < n and 0 <= start + (count - 1) * step < n)):
            raise ValueError(f"{count} elements from {start} in steps of {step} are not among {n}")
    moves = [Move(int(n), axis, int(step), axis, 1) for axis, (n, step) in enumerate(zip(counts, steps, strict=True))]
    return Copy(engine, (x, _operand(counts, dtype)), (order, order), moves, x_first=[int(s) for s in starts])


def repeated(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], whole: Sequence[int]) -> Copy:
    """The operand broadcast to the shape `whole`, of at least as many axes; both lie in C order."""
    x, y = _operand(shape, dtype), _operand(whole, dtype)
    missing = len(y.shape) - len(x.shape)
    if missing < 0 or any(n not in (1, own) for n, own in zip(x.shape, y.shape[missing:], strict=True)):
        raise ValueError(f"{list(shape)} does not broadcast to {list(whole)}")
    own = (1,) * missing + x.shape
    moves = [Move(n, max(axis - missing, 0), int(own[axis] != 1), axis, 1) for axis, n in enumerate(y.shape)]
    return Copy(engine, (x, y), ("plain", "plain"), moves)


def padded(
    engine: Engine, shape: Sequence[int], value: Array, begin: Sequence[int], end: Sequence[int], order: Order = "plain"
) -> Copy:
    """`value`, of rank 0, before and after each axis; negative amounts remove elements. Both lie in `order`."""
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
    return Operand(tuple(int(n) for n in shape), np.dtype(dtype))


def _whole(shape: Sequence[int]) -> list[Move]:
    return [Move(n, axis, 1, axis, 1) for axis, n in enumerate(shape)]


class Triangle(Operation):
    """x [..., n, m] of elements of 1, 2, 4 or 8 bytes, with zeros before the place i + diagonal of each row i,
    or from it on.

    upper: whether it is before.
    """

    def __init__(self, engine: Engine, x: Operand, diagonal: int, upper: bool) -> None:
        if x.dtype.itemsize not in SIZES or x.dtype.hasobject or len(x.shape) < 2:
            raise ValueError(f"{x.dtype.name}{list(x.shape)} has no matrices of bytes")
        self.engine, self.diagonal, self.upper, self.operands = engine, diagonal, upper, (x, x)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, item, isa = self.result, self.result.dtype.itemsize, self.engine.isa
        *_, lines, columns = x.shape
        words = row_tiles(size(x.shape[:-1]), columns * item, self.engine.threads)
        words |= {"lines": lines, "columns": columns, "diagonal": self.diagonal}
        form = "upper" if self.upper else "lower"
        spec = KernelSpec("triangle", isa.name, 4 * isa.lanes // item, 1, item, form, "bytes", False)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)
