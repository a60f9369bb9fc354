"""What a program is made of: operations on values by name, chains of them, and steps that run elsewhere."""

from __future__ import annotations

from collections.abc import Hashable

from qrun.declare.frozen import frozen
from qrun.native.machine.operation import Operation

Key = Hashable


@frozen
class Task:
    """An operation on values by name: what it reads, in the operation's order, and what it makes."""

    operation: Operation
    inputs: tuple[Key, ...]
    output: Key


@frozen
class Chain:
    """Tasks of one step, in order, whose values between each other have keys of their own."""

    tasks: tuple[Task, ...]

    @property
    def inputs(self) -> tuple[Key, ...]:
        return tuple(key for task in self.tasks for key in task.inputs)


@frozen
class PythonStep:
    """A step that runs elsewhere, on arrays; nothing runs for one without outputs. loose: whether it is bound to no shapes."""

    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    loose: bool = False


Item = Task | Chain | PythonStep
