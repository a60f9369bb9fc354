"""Planned copies that repeat elements, take some by their places, or move them between channels and blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.errors import Declined
from qrun.native.kernels.copy import Copy, Move
from qrun.native.machine.engine import Array, Engine, Operand, Order


def repeated(
    engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], times: Sequence[int], order: Order = "plain"
) -> Copy:
    """The operand times[i] times along each axis i of the result, whose last axes are the operand's; both lie in `order`.

    Orders other than ``plain`` are for results of the operand's rank.
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


def spread(
    engine: Engine,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    block: int,
    steps: tuple[int, int, int],
    order: Order = "plain",
    *,
    gathered: bool = False,
) -> Copy:
    """Channels of [N, C, H, W] that become blocks of pixels [N, C / block / block, H * block, W * block].

    steps: channels of the operand from one row of a block to the next, from one column, and from one channel of the result.
    gathered: the inverse, from blocks of pixels of that shape back to channels. Both lie in `order`.
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


def taken(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any], places: Array) -> tuple[Copy, Copy]:
    """Element places[i] of the operand, counted in C order, at each i; in whichever order both lie, and in C order.

    They are the same where places do not follow the operand's axes. Raises Declined unless places are, along each axis,
    evenly spaced steps or such steps repeated, and for no places.
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
    """Loops that count up to each number of a line that begins with 0: turns, step, and places from turn to turn."""
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
        raise Declined("its places are in no even steps")
    return [(length // run, far, run), (run, step, 1)]


def _along_axes(
    shape: Sequence[int], corner: Sequence[int], loops: Sequence[Sequence[tuple[int, int, int]]]
) -> list[Move] | None:
    """The loops from an element on as steps along the axes of the same number, if each stays within its own."""
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
