"""Fuses operations of a program: tails of products, transposes, shuffles, attention, chains of functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.spec import SOURCES
from qrun.native.kernels.conv import DynamicSums, Prepare, Tail
from qrun.native.kernels.copy import Copy, Loop, arrange, merge, shuffle_copy
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Operation, size
from qrun.native.plan.chains import drop_conversions, join_chains
from qrun.native.plan.items import IDLE, Chain, Item, Key, Links, Task, item_of


def fuse(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items, with operations fused: one does the work of several, and the others become idle."""
    memo = Memo()
    items = fuse_clips(fuse_scales(fuse_tails(drop_conversions(items, wanted), wanted), wanted), wanted)
    items = _fuse_shuffles(engine, fuse_transposes(items, wanted, memo), wanted)
    return fuse_attention(engine, join_chains(items, wanted, memo), wanted, memo)


def _fuse_shuffles(engine: Engine, items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items; where three copies are a channel shuffle, the first and the last become channels-last views."""
    made, links = list(items), Links(items, wanted)
    for end in range(len(items)):
        places, copies = _trio(items, links.makers, end)
        if len(copies) < 3 or any(links.uses[key] != 1 for index in places[:2] for key in items[index].outputs):
            continue
        x = copies[0].operands[0]
        groups = shuffle_groups(*copies)
        if groups:
            handed = arrange(engine, x, "channels", x, "channels", view=True)
            shuffle = shuffle_copy(engine, x.shape, x.dtype, groups)
            for index, operation in zip(places, (handed, shuffle, handed), strict=True):
                made[index] = replace(items[index].tasks[0], operation=operation)
    return made


def fuse_attention(engine: Engine, items: list[Item], wanted: Sequence[Key], memo: Memo) -> list[Item]:
    """As many items, with attention fused: where a product, a softmax and a product with its result follow each other,
    one task in place of the last does the work of all three, so that scores never leave the cache."""
    if not any(isinstance(item, Task) and item.operation.attends for item in items):
        return items
    from qrun.native.kernels.attention import Attention

    made, maker = list(items), Links(items, wanted).maker
    for number, item in enumerate(items):
        middle = maker(item.inputs[0]) if isinstance(item, Task) and item.inputs else -1
        softmax = items[middle] if middle >= 0 else IDLE
        if not isinstance(item, Task) or not isinstance(softmax, Task) or not softmax.operation.attends:
            continue
        for index, first in enumerate(map(maker, softmax.inputs)):
            scores = items[first] if first >= 0 else IDLE
            if not isinstance(scores, Task):
                continue
            three = scores.operation, softmax.operation, item.operation
            operation = memo.once((*three, index), partial(Attention.of, engine, *three, index))
            if operation is not None:
                others = [key for n, key in enumerate(softmax.inputs) if n != index]
                made[number] = replace(item, operation=operation, inputs=(*scores.inputs, *others, *item.inputs[1:]))
                made[first] = made[middle] = IDLE
                break
    return made


def fuse_clips(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with Relu or Clip joined to the product of floats before it; theirs become idle. The list keeps its
    length."""
    made, links = list(items), Links(items, wanted)
    for number, item in enumerate(items):
        if not isinstance(item, Task) or len(item.inputs) != 1 or item.operation.between is None:
            continue
        maker = links.maker(item.inputs[0])
        tasks = made[maker].tasks if maker >= 0 else ()
        operation = tasks[-1].operation.with_limits(*item.operation.between) if tasks else None
        if operation is not None:
            last = replace(tasks[-1], operation=operation, output=item.output)
            made[maker], made[number] = item_of([*tasks[:-1], last]), IDLE
    return made


def fuse_scales(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with Mul and Add joined to the product of floats before them, if their other operand exists before the
    product; theirs become idle. The list keeps its length."""
    made, links = list(items), Links(items, wanted)
    makers = dict(links.makers)
    for number, item in enumerate(items):
        operation = item.operation if isinstance(item, Task) and len(item.inputs) == 2 else None
        if not isinstance(operation, Elementwise) or operation.constants or operation.steps[0].narrow:
            continue
        for index, key in enumerate(item.inputs):
            maker, other = makers.get(key, -1), item.inputs[1 - index]
            alone = links.uses[key] == 1 and operation.operands[index].shape == operation.result.shape
            tasks = made[maker].tasks if maker >= 0 and alone and makers.get(other, -1) < maker else ()
            joined = tasks[-1].operation.then(operation.function, operation.operands[1 - index]) if tasks else None
            if joined is not None:
                last = Task(joined, (*tasks[-1].inputs, other), item.outputs[0])
                made[maker], made[number] = item_of([*tasks[:-1], last]), IDLE
                makers[last.output] = maker
                break
    return made


def fuse_transposes(items: Sequence[Item], wanted: Sequence[Key], memo: Memo | None = None) -> Sequence[Item]:
    """The items with transposes joined to products of floats: a transpose whose rows only a product reads, or that only
    moves a product's rows, becomes idle, and the product reads or writes in its place. The list keeps its length.

    memo: operations already made from the same operations.
    """
    memo = memo or Memo()
    copies = [item.operation for item in items if isinstance(item, Task) and isinstance(item.operation, Copy)]
    if all(copy.view for copy in copies):
        return items
    made, links = list(items), Links(items, wanted)
    for number, item in enumerate(items):
        if not isinstance(item, Task):
            continue
        for index, key in enumerate(item.inputs):
            _take(made, number, index, links.maker(key), memo)
        _take(made, number, -1, links.reader(item.output), memo)
    return made


def _take(made: list[Item], number: int, index: int, other: int, memo: Memo) -> None:
    """Let the task `number` also do the work of the copy `other`, on its operand `index` or its result (-1)."""
    task, item = made[number], made[other] if other >= 0 else None
    if not isinstance(task, Task) or not isinstance(item, Task) or not isinstance(item.operation, Copy):
        return
    copy = item.operation
    operation = memo.once((task.operation, copy, index), lambda: _fuse_copy(task, copy, index))
    if operation is None:
        return
    if index < 0:
        made[number] = replace(task, operation=operation, output=item.output)
    else:
        inputs = (*task.inputs[:index], *item.inputs, *task.inputs[index + 1 :])
        made[number] = replace(task, operation=operation, inputs=inputs)
    made[other] = IDLE


def _fuse_copy(task: Task, copy: Copy, index: int) -> Operation | None:
    """The task's operation that also does the copy's work, on its operand `index` or its result (-1); or None."""
    steps = copy.view_strides(read=index >= 0)
    return task.operation.move_operand(index, copy.operands[-1 if index < 0 else 0], steps) if steps else None


def _trio(items: Sequence[Item], makers: dict[Key, int], end: int) -> tuple[list[int], list[Copy]]:
    """The chain of at most three copies that ends with item `end`: their numbers and operations."""
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
    """How many groups of channels are shuffled by a view of [N, C, spatial...], a copy, and a view of the same shape; 0
    if that is no shuffle."""
    x, y = first.operands[0], last.result
    plain = ("plain", "plain")
    if x != y or len(x.shape) < 3 or not size(x.shape) or not first.view or not last.view or middle.view:
        return 0
    if not first.orders == middle.orders == last.orders == plain:
        return 0
    images, channels, pixels = x.shape[0], x.shape[1], size(x.shape[2:])
    axes = merge(middle.axes((0, 0)))
    step = x.dtype.itemsize
    for groups in {axis.count for axis in axes if channels % axis.count == 0}:
        each = channels // groups
        shuffle = [
            Loop(images, (channels * pixels * step, channels * pixels * step)),
            Loop(each, (pixels * step, groups * pixels * step)),
            Loop(groups, (each * pixels * step, pixels * step)),
            Loop(pixels, (step, step)),
        ]
        if merge(shuffle) == axes:
            return groups
    return 0


_STEPS = {"mul": "m", "add": "a", "relu": "r", "clip": "c"}
"""Letters of a tail's steps, by function."""
_FLOAT = np.dtype(np.float32)


def fuse_tails(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with tails joined to products: a task that an earlier item's kernel can also do becomes a step without
    outputs. The list keeps its length."""
    made, links = list(items), Links(items, wanted)
    for number, item in enumerate(items):
        if not isinstance(item, Chain) or not isinstance(item.tasks[-1].operation, DynamicSums):
            continue
        tail, taken = _TailBuilder(item), list[int]()
        while (reader := links.reader(tail.output)) >= 0:
            task = items[reader]
            there = all(links.makers.get(key, -1) < number for key in task.inputs if key != tail.output)
            if not there or not isinstance(task, Task) or not tail.take(task):
                break
            taken.append(reader)
        if taken:
            made[number] = tail.chain()
            for reader in taken:
                made[reader] = IDLE
    return made


class _TailBuilder:
    """Collects the tail of some sums. output: the key of the tail's result so far."""

    def __init__(self, item: Chain) -> None:
        self.item, self.sums = item, item.tasks[-1].operation
        self.output: Key = item.tasks[-1].output
        self.real = False
        self.steps, self.limits = "", (0, 0)
        self.operands: list[Operand] = []
        self.sources: list[Key] = []

    def take(self, task: Task) -> bool:
        """Add a task to the tail if the product's kernel can do it; returns whether it was added. The task reads the
        tail's result so far, and nothing that is made after the product."""
        operation = task.operation
        if not isinstance(operation, Elementwise) or operation.result.shape != self.sums.result.shape:
            return False
        if any(step.narrow for step in operation.steps):
            return False
        if not self.real:
            self.real = taken = operation.function == "cast"
        else:
            taken = self._step(operation, task.inputs)
        self.output = task.output if taken else self.output
        return taken

    def _step(self, operation: Elementwise, inputs: Sequence[Key]) -> bool:
        """Add a function to the end of a product; False if it cannot be one."""
        step = _STEPS.get(operation.function, "")
        if not step or (step == "c" and step in self.steps):
            return False
        if step in "ma":
            index = next(index for index, key in enumerate(inputs) if key != self.output)
            operand = operation.operands[index]
            if operand.dtype != _FLOAT or len(self.sources) == len(SOURCES) or not self._by_channel(operand):
                return False
            self.operands.append(operand)
            self.sources.append(inputs[index])
        elif step == "c":
            self.limits = operation.limits
        self.steps += step
        return True

    def _by_channel(self, operand: Operand) -> bool:
        """Whether an operand has one element, or one for each channel of the sums."""
        shape, whole = operand.shape, self.sums.result.shape
        axis = 1 if self.sums.order == "channels" else len(whole) - 1
        wide = [index + len(whole) - len(shape) for index, n in enumerate(shape) if n != 1]
        return not wide or wide == [axis]

    def chain(self) -> Chain:
        """The item with its tail."""
        *before, prepare, sums = self.item.tasks
        assert isinstance(sums.operation, DynamicSums)
        assert isinstance(prepare.operation, Prepare)
        plan = sums.operation.plan.with_tail(Tail(self.steps, tuple(self.operands), self.limits))
        prepared = replace(prepare, operation=Prepare(plan), inputs=(*prepare.inputs, *self.sources))
        made = replace(sums, operation=DynamicSums(plan, sums.operation.result.shape), output=self.output)
        return Chain((*before, prepared, made))
