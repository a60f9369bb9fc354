"""The parts of a program: operations on values by name, chains of them, and Python steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from functools import cached_property

from qrun.declare.frozen import frozen
from qrun.native.machine.operation import Operation

Key = Hashable


@frozen
class Task:
    """An operation on values by name: its inputs, in the operation's order, and its output."""

    operation: Operation
    inputs: tuple[Key, ...]
    output: Key

    @property
    def outputs(self) -> tuple[Key, ...]:
        return (self.output,)

    @property
    def tasks(self) -> tuple[Task, ...]:
        return (self,)


@frozen
class Chain:
    """Tasks of one step, in order. Values between two of them have keys of their own."""

    tasks: tuple[Task, ...]

    @property
    def inputs(self) -> tuple[Key, ...]:
        return tuple(key for task in self.tasks for key in task.inputs)

    @property
    def outputs(self) -> tuple[Key, ...]:
        return tuple(task.output for task in self.tasks)


@frozen
class PythonStep:
    """A step that runs in Python, on arrays; nothing runs for one without outputs. loose: whether it is bound to no
    shapes."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    loose: bool = False

    @property
    def tasks(self) -> tuple[Task, ...]:
        return ()


Item = Task | Chain | PythonStep
IDLE = PythonStep((), ())
"""Replaces an item whose work another one does."""


def item_of(tasks: Sequence[Task]) -> Item:
    """The item of these tasks, in order."""
    return Chain(tuple(tasks)) if len(tasks) > 1 else tasks[0] if tasks else IDLE


class Links:
    """The items that make and read each value, by number, and how often each value is read, `wanted` included. All are
    computed on first access, as many programs contain nothing that a pass looks for."""

    def __init__(self, items: Sequence[Item], wanted: Sequence[Key]) -> None:
        self._items, self._wanted = items, wanted

    @cached_property
    def uses(self) -> Counter[Key]:
        """How often each key is read, by items and as a result."""
        return Counter([*self._wanted, *(key for item in self._items for key in item.inputs)])

    @cached_property
    def makers(self) -> dict[Key, int]:
        """The number of the item that makes each key."""
        return {key: number for number, item in enumerate(self._items) for key in item.outputs}

    @cached_property
    def readers(self) -> dict[Key, int]:
        """The number of the last item that reads each key."""
        return {key: number for number, item in enumerate(self._items) for key in item.inputs}

    def maker(self, key: Key) -> int:
        """The item that makes a value which is read only once; -1 if there is none."""
        return self.makers.get(key, -1) if self.uses[key] == 1 else -1

    def reader(self, key: Key) -> int:
        """The only item that reads a value, once; -1 if there is none."""
        return self.readers.get(key, -1) if self.uses[key] == 1 else -1
