"""Joins chains of elementwise tasks into one task: one pass over memory, and no arrays between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial

from qrun.declare.memo import Memo
from qrun.native.emit.expression import LONG, FunctionStep
from qrun.native.emit.spec import NARROW
from qrun.native.errors import Declined
from qrun.native.kernels.elementwise import Elementwise, Expression
from qrun.native.machine.operation import Operand, Order, size
from qrun.native.plan.items import IDLE, Item, Key, Links, PythonStep, Task, item_of

_OPERANDS, _LONG = 12, 6
"""The most operands that a kernel reads, and the most functions of many steps in it."""
_STEPS = 32


def join_chains(items: Sequence[Item], wanted: Sequence[Key], memo: Memo | None = None) -> list[Item]:
    """The items with chains of elementwise tasks joined: the last item of a chain does all of its work, the others
    become idle steps. The list keeps its length. memo: operations already made from the same operations."""
    memo = memo or Memo()
    made = list(items)
    if not any(isinstance(item, Task) and item.operation.steps for item in items):
        return made
    chains = _Chains(items, wanted, memo)
    for end in reversed(range(len(items))):
        if made[end] is items[end] and chains.expression(end):
            numbers, task = chains.chain_up_to(end)
            for number in numbers:
                made[number] = IDLE
            made[end] = task
    return _read(made, wanted, memo)


def _read(items: Sequence[Item], wanted: Sequence[Key], memo: Memo) -> list[Item]:
    """As many items; an operation on rows that alone reads a chain's result computes it as it reads rows."""
    made, chains = list(items), _Chains(items, wanted, memo)
    for number, item in enumerate(items):
        maker = chains.makers.get(item.inputs[0], -1) if isinstance(item, Task) and len(item.inputs) == 1 else -1
        source = chains.expression(maker) if maker >= 0 else None
        if not source or not source.decides or not isinstance(item, Task) or chains.readers[item.inputs[0]] != {number}:
            continue
        operation = memo.once((item.operation, source), partial(item.operation.fuse_source, source))
        if operation:
            made[number] = replace(item, operation=operation, inputs=items[maker].inputs)
            made[maker] = IDLE
    return made


class _Chains:
    """readers: by value, the numbers of the items that read it, and len(items), which no item has, if a run returns it.
    channels: whether some values may lie channels-last."""

    def __init__(self, items: Sequence[Item], wanted: Sequence[Key], memo: Memo) -> None:
        self.items, self.memo = items, memo
        operations = [task.operation for item in items for task in item.tasks]
        self.channels = any("channels" in (operation.source_order, operation.result_order) for operation in operations)
        self.makers = {item.output: n for n, item in enumerate(items) if isinstance(item, Task)}
        self.readers: dict[Key, set[int]] = {key: {len(items)} for key in wanted}
        for number, item in enumerate(items):
            for key in item.inputs:
                self.readers.setdefault(key, set()).add(number)

    def expression(self, number: int) -> Expression | None:
        """The item's elementwise expression; None if it is something else."""
        item = self.items[number]
        made = item.operation if isinstance(item, Task) else None
        return made if isinstance(made, Expression) and size(made.result.shape) else None

    def chain_up_to(self, end: int) -> tuple[set[int], Task]:
        """The largest chain with this last item: the numbers of its items, and the task that does its work."""
        chain, refused = _Chain(self, {end}), set[int]()
        while True:
            found = next((n for n in chain.makers() if n not in refused), None)
            if found is None:
                return chain.numbers, chain.task()
            longer = _Chain(self, {*chain.numbers, found})
            if longer.good():
                chain = longer
            else:
                refused.add(found)


class _Chain:
    """A chain of elementwise tasks; the last one makes its result."""

    def __init__(self, chains: _Chains, numbers: set[int]) -> None:
        self.chains, self.numbers, self.end = chains, numbers, max(numbers)
        self.parts: list[tuple[Task, Expression]] = []
        for number in sorted(numbers):
            item, expression = chains.items[number], chains.expression(number)
            assert isinstance(item, Task)
            assert expression is not None
            self.parts.append((item, expression))

    def makers(self) -> list[int]:
        """Numbers of items whose results only this chain reads, and which it can take in without an array."""
        found = []
        result = self.parts[-1][1].result
        for key, (kind, _) in self._operands.items():
            maker = self.chains.makers.get(key, -1)
            if maker < 0 or not self.chains.readers[key] <= self.numbers:
                continue
            made = self.chains.expression(maker)
            if made and made.kind == kind and made.result.shape == result.shape:
                found.append(maker)
        return found

    def good(self) -> bool:
        """Whether one kernel can do the whole chain, as fast as separate kernels do their parts."""
        if sum(len(part.steps) for _, part in self.parts) > _STEPS or len(self._operands) > _OPERANDS:
            return False
        try:
            whole = self._whole
        except Declined:
            return False
        if whole is None or sum(step.function in LONG for step in whole.steps) > _LONG:
            return False
        return all(self._keeps_rows(whole, order) for order in whole.row if order != "channels" or self.chains.channels)

    def _keeps_rows(self, whole: Expression, order: Order) -> bool:
        """Whether its rows are at least as long as a vector where the rows of a part are."""
        row = max(part.row.get(order, 0) for _, part in self.parts)
        return whole.row[order] >= min(whole.engine.isa.lanes, row)

    def task(self) -> Task:
        """The chain as one task."""
        task, _ = self.parts[-1]
        if len(self.parts) == 1:
            return task
        whole = self._whole
        assert whole is not None
        return Task(whole, tuple(self._operands), task.output)

    @cached_property
    def _operands(self) -> dict[Key, tuple[str, Operand]]:
        """The values that the chain reads: the kind of each, ? if parts read it as different kinds, and its operand."""
        inside = {task.output for task, _ in self.parts}
        found: dict[Key, tuple[str, Operand]] = {}
        for task, part in self.parts:
            for key, kind, operand in zip(task.inputs, part.kinds, part.operands[:-1], strict=True):
                if key not in inside:
                    known, _ = found.setdefault(key, (kind, operand))
                    found[key] = (kind if known == kind else "?", operand)
        return found

    @cached_property
    def _whole(self) -> Expression | None:
        """The chain as one operation; None if a value is read as two kinds. Raises Declined."""
        operands = self._operands
        kinds = "".join(kind for kind, _ in operands.values())
        if "?" in kinds:
            return None
        numbers = {key: number for number, key in enumerate(operands)}
        given, count = [], len(operands)
        for task, part in self.parts:
            given.append(tuple([numbers[key] for key in task.inputs]))
            count += len(part.steps)
            numbers[task.output] = count - 1
        parts = [part for _, part in self.parts]
        read = tuple([operand for _, operand in operands.values()])
        return self.chains.memo.once((*parts, *given), lambda: _join_expressions(read, kinds, parts, given))


def _join_expressions(
    read: Sequence[Operand], kinds: str, parts: Sequence[Expression], given: Sequence[Sequence[int]]
) -> Expression:
    """One operation for all parts. read, kinds: its operands and their kinds. given: for each part, the numbers of the
    values that it reads: first come the operands in `read`, then the results of all parts' steps."""
    steps: list[FunctionStep] = []
    constants: list[float] = []
    for part, own in zip(parts, given, strict=True):
        values = list(own)
        for step in part.steps:
            steps.append(replace(step, values=tuple(values[value] for value in step.values)))
            values.append(len(read) + len(steps) - 1)
        constants += part.constants
    last = parts[-1]
    return Expression(last.engine, [*read, last.result], kinds, steps, constants)


_PACKS = frozenset(f"to_{name}" for name in NARROW.values())


def drop_conversions(items: Sequence[Item], wanted: Sequence[Key]) -> list[Item]:
    """As many items, with fewer conversions between float32 and narrower types. A narrow value is widened at most once,
    and not at all where the float32 that it was narrowed from exists; narrowing whose result nothing reads is dropped.
    A node that only moves elements moves narrow ones, unless its operands or result are needed as float32 too."""
    if not any(_narrows(task) or _widens(task) for item in items for task in item.tasks):
        return list(items)
    made = _widen_once(items, set(wanted))
    uses = Links(made, wanted).uses
    for number in reversed(range(len(made))):
        tasks: list[Task] = []
        for task in reversed(made[number].tasks):
            if uses[task.output] or not (_narrows(task) or _widens(task)):
                tasks.insert(0, task)
            else:
                uses.subtract(task.inputs)
        if made[number].tasks:
            made[number] = _narrow_move(tasks, uses) or item_of(tasks)
    return made


def _widens(task: Task) -> bool:
    """Whether a task converts elements of a narrow type to float32."""
    made = task.operation
    return isinstance(made, Elementwise) and made.function == "cast" and made.operands[0].dtype.name in NARROW


def _narrows(task: Task) -> bool:
    """Whether a task converts float32 to a narrow type."""
    return isinstance(task.operation, Elementwise) and task.operation.function in _PACKS


def _widen_once(items: Sequence[Item], wanted: set[Key]) -> list[Item]:
    """The items, with each value widened at most once."""
    wide: dict[Key, Key] = {}
    other: dict[Key, Key] = {}
    made = []
    for item in items:
        kept = []
        for task in item.tasks:
            task = replace(task, inputs=tuple(other.get(key, key) for key in task.inputs))
            if _narrows(task):
                wide[task.output] = task.inputs[0]
            elif _widens(task) and not any(step.narrow for step in task.operation.steps):
                known = wide.setdefault(task.inputs[0], task.output)
                if known != task.output and task.output not in wanted:
                    other[task.output] = known
                    continue
            kept.append(task)
        made.append(item_of(kept) if not isinstance(item, PythonStep) else _other(item, other))
    return made


def _other(item: PythonStep, other: dict[Key, Key]) -> PythonStep:
    """A Python step that reads other keys."""
    return PythonStep(tuple(other.get(key, key) for key in item.inputs), item.outputs, item.loose)


def _narrow_move(tasks: Sequence[Task], uses: Counter[Key]) -> Task | None:
    """A task that moves narrow elements, in place of all these, if they widen, move and narrow them; else None."""
    if len(tasks) < 3 or not _narrows(tasks[-1]):
        return None
    *before, middle, last = tasks
    if not all(_widens(task) and uses[task.output] == 1 for task in before):
        return None
    if uses[middle.output] != 1 or len(before) != len(middle.inputs):
        return None
    sources = {task.output: task.inputs[0] for task in before}
    operation = middle.operation.with_element_type(last.operation.result.dtype)
    if operation is None or not sources.keys() >= set(middle.inputs):
        return None
    return Task(operation, tuple(sources[key] for key in middle.inputs), last.output)
