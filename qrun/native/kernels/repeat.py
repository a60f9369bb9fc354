"""Planned copies that repeat elements, or move them between channels and blocks of pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.kernels.copy import Copy, Move
from qrun.native.machine.engine import Engine, Operand, Order


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
