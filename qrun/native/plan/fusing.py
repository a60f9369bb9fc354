"""Operations of a program that do the work of several: tails of products, transposes, shuffles, chains of functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qrun.native.kernels.copy import Copy, arrange, shuffled
from qrun.native.kernels.strided import CopyAxis, coalesced
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import size
from qrun.native.plan.placement import Chain, Item, Key, PythonStep, Task


def fused(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items, in which one operation does the work of several, and the others' steps nothing."""
    shuffled_ones = _shuffled(engine, moved(limited(_tailed(items, wanted), wanted), wanted), wanted)
    return _attended(engine, _chained(shuffled_ones, wanted), wanted)


def _shuffled(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items; where three are a shuffle, the first and the last only hand the array on, channels-last."""
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


def _chained(items: list[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with chains of elementwise ones joined, if there are any such."""
    if not any(isinstance(item, Task) and item.operation.steps for item in items):
        return items
    from qrun.native.plan.chains import chained

    return chained(items, wanted)


def _attended(engine: Engine, items: list[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with attentions joined, if there are any."""
    if not any(isinstance(item, Task) and item.operation.attends for item in items):
        return items
    from qrun.native.plan.attention import attended

    return attended(engine, items, wanted)


def _tailed(items: Sequence[Item], wanted: Sequence[Key]) -> Sequence[Item]:
    """The items, those that follow integer sums made in the kernels of these."""
    if not any(isinstance(item, Chain) and item.tasks[-1].operation.leads for item in items):
        return items
    from qrun.native.plan.tails import tailed

    return tailed(items, wanted)


def limited(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items; Relu or Clip of what a product of floats makes becomes a step that does nothing: the product does it."""
    made, uses = list(items), Counter([*wanted, *(key for item in items for key in item.inputs)])
    makers = {_last(item).output: number for number, item in enumerate(items) if not isinstance(item, PythonStep)}
    for number, item in enumerate(items):
        limits = item.operation.between if isinstance(item, Task) and len(item.inputs) == 1 else None
        maker = makers.get(item.inputs[0]) if limits else None
        if limits is None or maker is None or not isinstance(item, Task) or uses[item.inputs[0]] != 1:
            continue
        product = made[maker]
        if isinstance(product, PythonStep):
            continue
        last = _last(product)
        operation = last.operation.limited(*limits)
        if operation is not None:
            last = replace(last, operation=operation, output=item.output)
            made[maker] = Chain((*product.tasks[:-1], last)) if isinstance(product, Chain) else last
            made[number] = PythonStep((), ())
    return made


def _last(item: Task | Chain) -> Task:
    return item.tasks[-1] if isinstance(item, Chain) else item


def moved(items: Sequence[Item], wanted: Sequence[Key]) -> Sequence[Item]:
    """As many items; a transpose whose rows only a product of floats reads, or that only moves such a product's rows,
    becomes a step that does nothing: the product reads where the transpose would, or writes there.
    """
    copies = [item.operation for item in items if isinstance(item, Task) and isinstance(item.operation, Copy)]
    if all(copy.view for copy in copies):
        return items
    made, uses = list(items), Counter([*wanted, *(key for item in items for key in item.inputs)])
    makers = {item.output: number for number, item in enumerate(items) if isinstance(item, Task)}
    readers = {key: number for number, item in enumerate(items) for key in item.inputs}
    for number, item in enumerate(items):
        if not isinstance(item, Task):
            continue
        for place, key in enumerate(item.inputs):
            _take(made, number, place, makers.get(key) if uses[key] == 1 else None)
        _take(made, number, -1, readers.get(item.output) if uses[item.output] == 1 else None)
    return made


def _take(made: list[Item], number: int, place: int, other: int | None) -> None:
    """Let a product do what the copy of this number does with its operand of this place, or with its result (-1)."""
    task, item = made[number], made[other] if other is not None else None
    if (
        other is None
        or not isinstance(task, Task)
        or not isinstance(item, Task)
        or not isinstance(item.operation, Copy)
    ):
        return
    copy = item.operation
    steps = copy.lying_as(read=place >= 0)
    operation = task.operation.moved(place, copy.operands[-1 if place < 0 else 0], steps) if steps else None
    if operation is None:
        return
    if place < 0:
        made[number] = replace(task, operation=operation, output=item.output)
    else:
        inputs = (*task.inputs[:place], *item.inputs, *task.inputs[place + 1 :])
        made[number] = replace(task, operation=operation, inputs=inputs)
    made[other] = PythonStep((), ())


def _trio(items: Sequence[Item], makers: dict[Key, int], end: int) -> tuple[list[int], list[Copy]]:
    """The copies that end with item `end`, each reading what the one before made, at most three: numbers and operations."""
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
            CopyAxis(images, channels * pixels * step, channels * pixels * step),
            CopyAxis(each, pixels * step, groups * pixels * step),
            CopyAxis(groups, each * pixels * step, pixels * step),
            CopyAxis(pixels, step, step),
        ]
        if coalesced(shuffle) == axes:
            return groups
    return 0
