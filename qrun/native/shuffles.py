"""Channel shuffles: a change of shape, a transposition and another change of shape that are one copy of pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qrun.native.copy import Copy, arrange, shuffled
from qrun.native.engine import Engine
from qrun.native.operation import size
from qrun.native.placement import Item, Key, Task
from qrun.native.strided import Axis, coalesced


def fused(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items; where three are a shuffle, the first and the last only hand the array on, channels-last."""
    made = list(items)
    uses = Counter([*wanted, *(key for item in items for key in item.inputs)])
    makers = {item.output: number for number, item in enumerate(items) if isinstance(item, Task)}
    for end in range(len(items)):
        places, copies = _trio(items, makers, end)
        outputs = [item.output for item in (items[place] for place in places[:2]) if isinstance(item, Task)]
        if len(copies) < 3 or any(uses[key] != 1 for key in outputs):
            continue
        x = copies[0].operands[0]
        groups = shuffle_groups(*copies)
        if groups:
            handed = arrange(engine, x, "channels", x, "channels", view=True)
            shuffle = shuffled(engine, x.shape, x.dtype, groups)
            for place, operation in zip(places, (handed, shuffle, handed), strict=True):
                item = made[place]
                assert isinstance(item, Task)
                made[place] = replace(item, operation=operation)
    return made


def _trio(items: Sequence[Item], makers: dict[Key, int], end: int) -> tuple[list[int], list[Copy]]:
    """Up to three copies in a row, the last of them item `end`: their numbers and operations."""
    places: list[int] = []
    copies: list[Copy] = []
    while end >= 0 and len(places) < 3:
        item = items[end]
        if not isinstance(item, Task) or not isinstance(item.operation, Copy):
            break
        places.insert(0, end)
        copies.insert(0, item.operation)
        end = makers.get(item.inputs[0], -1)
    return places, copies


def shuffle_groups(first: Copy, middle: Copy, last: Copy) -> int:
    """How many groups of channels are shuffled by a view of [N, C, spatial...], a copy, and a view of the same shape;
    0 if that is no shuffle."""
    x, y = first.operands[0], last.result
    plain = ("plain", "plain")
    if x != y or len(x.shape) < 3 or not size(x.shape) or not first.view or not last.view or middle.view:
        return 0
    if not first.orders == middle.orders == last.orders == plain:
        return 0
    images, channels, pixels = x.shape[0], x.shape[1], size(x.shape[2:])
    axes = coalesced(middle.axes((0, 0)))
    step = x.dtype.itemsize
    for groups in {axis.count for axis in axes if channels % axis.count == 0}:
        each = channels // groups
        shuffle = [
            Axis(images, channels * pixels * step, channels * pixels * step),
            Axis(each, pixels * step, groups * pixels * step),
            Axis(groups, each * pixels * step, pixels * step),
            Axis(pixels, step, step),
        ]
        if coalesced(shuffle) == axes:
            return groups
    return 0
