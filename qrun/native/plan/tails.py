"""Elementwise operations on int32 sums, made where the sums are: in the kernel that has them in its registers.

What follows the integer product of a dynamically quantized layer is a Cast, the product with the scales, the sum with a
bias, and often Relu or Clip. Each rounds to float32 in the kernel as it does by itself, so that results stay the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from qrun.native.emit.spec import SOURCES
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.kernels.sums import DynamicSums, Prepare, Tail
from qrun.native.machine.operation import Operand
from qrun.native.plan.placement import Chain, Item, Key, PythonStep, Task

_STEPS = {"mul": "m", "add": "a", "relu": "r", "clip": "c"}
"""Steps of a tail, by function."""
_FLOAT = np.dtype(np.float32)


def tailed(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """The items with tails joined to products: a task that the kernel of an earlier item also does becomes a step without
    outputs. The list keeps its length.
    """
    made = list(items)
    products = [number for number, item in enumerate(items) if _is_product(item)]
    uses = Counter([*wanted, *(key for item in items for key in item.inputs)])
    readers = {key: number for number, item in enumerate(items) for key in item.inputs}
    makers = {key: number for number, item in enumerate(items) for key in _outputs(item)}
    for number in products:
        item = items[number]
        assert isinstance(item, Chain)
        tail, taken = _TailBuilder(item), list[int]()
        while uses[tail.output] == 1 and tail.output in readers:
            reader = readers[tail.output]
            task = items[reader]
            there = all(makers.get(key, -1) < number for key in task.inputs if key != tail.output)
            if not there or not isinstance(task, Task) or not tail.take(task):
                break
            taken.append(reader)
        if taken:
            made[number] = tail.chain()
            for reader in taken:
                made[reader] = PythonStep((), ())
    return made


def _is_product(item: Item) -> bool:
    return isinstance(item, Chain) and isinstance(item.tasks[-1].operation, DynamicSums)


def _outputs(item: Item) -> Iterator[Key]:
    if isinstance(item, PythonStep):
        yield from item.outputs
    else:
        yield from (task.output for task in (item.tasks if isinstance(item, Chain) else (item,)))


class _TailBuilder:
    """The tail of some sums, as far as it goes; output: what it makes."""

    def __init__(self, item: Chain) -> None:
        self.item, self.sums = item, item.tasks[-1].operation
        self.output: Key = item.tasks[-1].output
        self.real = False
        self.steps, self.limits = "", (0, 0)
        self.operands: list[Operand] = []
        self.sources: list[Key] = []

    def take(self, task: Task) -> bool:
        """Whether a task that reads what there is so far, and nothing that is made later, is part of the tail from now on."""
        operation = task.operation
        if not isinstance(operation, Elementwise) or operation.result.shape != self.sums.result.shape:
            return False
        if not self.real:
            self.real = taken = operation.function == "cast"
        else:
            taken = self._step(operation, task.inputs)
        self.output = task.output if taken else self.output
        return taken

    def _step(self, operation: Elementwise, inputs: Sequence[Key]) -> bool:
        step = _STEPS.get(operation.function, "")
        if not step or (step == "c" and step in self.steps):
            return False
        if step in "ma":
            place = next(place for place, key in enumerate(inputs) if key != self.output)
            operand = operation.operands[place]
            if operand.dtype != _FLOAT or len(self.sources) == len(SOURCES) or not self._by_channel(operand):
                return False
            self.operands.append(operand)
            self.sources.append(inputs[place])
        elif step == "c":
            self.limits = operation.limits
        self.steps += step
        return True

    def _by_channel(self, operand: Operand) -> bool:
        """Whether an operand has one element, or one for each channel of the sums."""
        shape, whole = operand.shape, self.sums.result.shape
        axis = 1 if self.sums.order == "channels" else len(whole) - 1
        wide = [place + len(whole) - len(shape) for place, n in enumerate(shape) if n != 1]
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
