"""Products of floats that read where a transpose would read, and write where one would write, in its place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qrun.native.kernels.copy import Copy
from qrun.native.kernels.float_matmul import FloatMatmul
from qrun.native.plan.placement import Item, Key, PythonStep, Task


def moved(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items; a copy whose rows only a product reads, or that only moves a product's rows, becomes a step that does
    nothing."""
    made, uses = list(items), Counter([*wanted, *(key for item in items for key in item.inputs)])
    makers = {item.output: number for number, item in enumerate(items) if isinstance(item, Task)}
    readers = {key: number for number, item in enumerate(items) for key in item.inputs}
    for number, item in enumerate(items):
        if not isinstance(item, Task) or not isinstance(item.operation, FloatMatmul):
            continue
        for place, key in enumerate(item.inputs):
            _take(made, number, place, makers.get(key) if uses[key] == 1 else None)
        _take(made, number, -1, readers.get(item.output) if uses[item.output] == 1 else None)
    return made


def _take(made: list[Item], number: int, place: int, other: int | None) -> None:
    """Let a product do what the copy of this number does with its operand of this place, or with its result (-1)."""
    task, item = made[number], made[other] if other is not None else None
    assert isinstance(task, Task)
    assert isinstance(task.operation, FloatMatmul)
    if other is None or not isinstance(item, Task) or not isinstance(item.operation, Copy):
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
