"""Values of float16 and bfloat16 between tasks that work on the same numbers as float32: they stay float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from qrun.native.emit.spec import NARROW
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.plan.placement import Chain, Item, Key, PythonStep, Task

_PACKS = frozenset(f"to_{name}" for name in NARROW.values())


def widened(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items, in which what widens a value reads what was narrowed to it, or what widened it before, instead; what
    narrows values that nothing reads then is gone. A node that only moves elements moves narrow ones, unless what it reads,
    or makes, is there as float32 as well."""
    if not any(_narrows(task) or _widens(task) for item in items for task in _tasks(item)):
        return list(items)
    made = _joined(items, set(wanted))
    uses = Counter([*wanted, *(key for item in made for key in item.inputs)])
    for number in reversed(range(len(made))):
        tasks: list[Task] = []
        for task in reversed(_tasks(made[number])):
            if uses[task.output] or not (_narrows(task) or _widens(task)):
                tasks.insert(0, task)
            else:
                uses.subtract(task.inputs)
        if tasks:
            made[number] = _moved(tasks, uses) or _item(tasks)
        elif not isinstance(made[number], PythonStep):
            made[number] = PythonStep((), ())
    return made


def _tasks(item: Item) -> tuple[Task, ...]:
    return (item,) if isinstance(item, Task) else item.tasks if isinstance(item, Chain) else ()


def _item(tasks: Sequence[Task]) -> Item:
    return Chain(tuple(tasks)) if len(tasks) > 1 else tasks[0] if tasks else PythonStep((), ())


def _widens(task: Task) -> bool:
    made = task.operation
    return isinstance(made, Elementwise) and made.function == "cast" and made.operands[0].dtype.name in NARROW


def _narrows(task: Task) -> bool:
    return isinstance(task.operation, Elementwise) and task.operation.function in _PACKS


def _joined(items: Sequence[Item], wanted: set[Key]) -> list[Item]:
    """The items, each value widened once at most."""
    wide: dict[Key, Key] = {}
    other: dict[Key, Key] = {}
    made = []
    for item in items:
        kept = []
        for task in _tasks(item):
            task = replace(task, inputs=tuple(other.get(key, key) for key in task.inputs))
            if _narrows(task):
                wide[task.output] = task.inputs[0]
            elif _widens(task) and not any(step.narrow for step in task.operation.steps):
                known = wide.setdefault(task.inputs[0], task.output)
                if known != task.output and task.output not in wanted:
                    other[task.output] = known
                    continue
            kept.append(task)
        made.append(_item(kept) if not isinstance(item, PythonStep) else _other(item, other))
    return made


def _other(item: PythonStep, other: dict[Key, Key]) -> PythonStep:
    return PythonStep(tuple(other.get(key, key) for key in item.inputs), item.outputs)


def _moved(tasks: Sequence[Task], uses: Counter[Key]) -> Task | None:
    """What does the same as all of these, if they widen something, move it and narrow it again."""
    if len(tasks) < 3 or not _narrows(tasks[-1]):
        return None
    *before, middle, last = tasks
    if not all(_widens(task) and uses[task.output] == 1 for task in before):
        return None
    if uses[middle.output] != 1 or len(before) != len(middle.inputs):
        return None
    sources = {task.output: task.inputs[0] for task in before}
    operation = middle.operation.moving(last.operation.result.dtype)
    if operation is None or not sources.keys() >= set(middle.inputs):
        return None
    return Task(operation, tuple(sources[key] for key in middle.inputs), last.output)
