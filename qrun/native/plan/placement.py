"""Places the values of a program: their order in memory, which share a buffer, when a buffer is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from qrun.declare.frozen import changeable, frozen
from qrun.declare.memo import Memo
from qrun.native.machine.memory import Need, align_up, arrange
from qrun.native.machine.operation import Operand, Operation, Order, size
from qrun.native.plan.items import Item, Key, PythonStep, Task

Conversion = Callable[[Operand, Order, Operand, Order], Operation]


@changeable(eq=False)
class Storage:
    """A value in memory, or one form of it.

    order: ``channels`` or ``plain``; key: of the C-contiguous array that holds it; None if it lies in the arena.
    beyond: for a returned value, in an array that each run makes: its virtual place for the search of barriers, in
    bytes from the arena's start, behind the arena's end.
    parent: the storage that contains it, `start` bytes on; gaps: its rows lie as far apart as the parent's.
    first, last: the steps between which it is needed. readers: operations, and which of their operands it is.
    offset: in the arena, of a storage without a parent. shown: whether it is read from outside.
    home, ahead, stride: the outermost parent once all are known, bytes from its start, from row to row (0: no gaps).
    """

    operand: Operand
    order: Order
    key: Key | None = None
    parent: Storage | None = None
    start: int = 0
    gaps: bool = False
    first: int = 0
    last: int = 0
    children: list[Storage] = field(default_factory=list)
    readers: list[tuple[Operation, int]] = field(default_factory=list)
    offset: int = 0
    shown: bool = False
    beyond: int | None = None
    home: Storage | None = None
    ahead: int = 0
    stride: int = 0

    @property
    def root(self) -> Storage:
        """The storage whose memory this one is a part of, or itself."""
        return self.home or self

    @property
    def place(self) -> int:
        """Bytes from the start of the arena or array."""
        return self.root.offset + self.ahead

    @property
    def row_bytes(self) -> int:
        """The bytes of one row."""
        return self.operand.row_bytes("channels" if self.order == "channels" else "rows")

    @property
    def nbytes(self) -> int:
        """The bytes in memory, with the border."""
        operand = self.operand
        return (
            size(operand.memory_shape(self.order)) * operand.dtype.itemsize if any(operand.border) else operand.nbytes
        )

    @property
    def is_written(self) -> bool:
        """Whether calls may write to its memory."""
        return self.root.key is None or self.root.beyond is not None

    def become_part(self, parent: Storage, start: int, gaps: bool) -> None:
        """Lie inside `parent` from byte `start`; `gaps`: with gaps between the rows."""
        while parent.parent is not None and not parent.gaps:
            parent, start = parent.parent, start + parent.start
        self.parent, self.start, self.gaps = parent, start, gaps
        parent.children.append(self)

    def settle(self) -> None:
        """Set home, ahead and stride; all its parents are known now."""
        path = [self]
        while path[-1].home is None and (outer := path[-1].parent) is not None:
            path.append(outer)
        for storage in reversed(path):
            outer = storage.parent
            if outer is None or storage.home is not None:
                storage.home = storage.root
                continue
            storage.home, storage.ahead = outer.root, outer.ahead + storage.start
            storage.stride = outer.stride or (outer.row_bytes if storage.gaps else 0)

    def lifetime(self) -> tuple[int, int]:
        """The numbers of the first and last task that use this storage or its parts."""
        first, last, inside = self.first, self.last, list(self.children)
        while inside:
            part = inside.pop()
            first, last = min(first, part.first), max(last, part.last)
            inside += part.children
        return first, last


@frozen
class Placed:
    """An operation on storages, the result last. item: the number of its item."""

    operation: Operation
    storages: tuple[Storage, ...]
    item: int


class Placement:
    """Storages for a list of items.

    given: operands of the arrays that come from outside, by key. wanted: keys of values to be kept to the end.
    placed: operations in order, including conversions. forms: of each value by key; the first is seen from outside.
    borders: storages whose border is filled once. arena: its size in bytes.
    """

    def __init__(
        self, items: Sequence[Item], given: dict[Key, Operand], wanted: Sequence[Key], convert: Conversion
    ) -> None:
        self.convert, self._wanted = convert, frozenset(wanted)
        self.placed: list[Placed] = []
        self.forms = {key: [Storage(operand, "plain", key)] for key, operand in given.items()}
        self._producers: dict[Storage, Operation] = {}
        self._conversions: dict[Storage, Operation] = {}
        self._memo = Memo()
        for number, item in enumerate(items):
            if isinstance(item, PythonStep):
                for key in item.inputs:
                    self._keep(key, number)
                for key in item.outputs:
                    self.forms[key] = [Storage(given[key], "plain", key, first=number, last=number)]
            else:
                for task in item.tasks:
                    self._task(task, number)
        for key in wanted:
            self.forms[key].sort(key=lambda form: form.order != "plain")
            self._keep(key, len(items))
        self._merge()
        self._join()
        self._allocate(len(items), wanted)

    def _keep(self, key: Key, number: int) -> None:
        """Note that the value is read from outside at this step."""
        storage = self.forms[key][0]
        storage.last, storage.shown = number, True

    def _task(self, task: Task, number: int) -> None:
        """Place the operands and the result of a task."""
        source, result = self._orders(task)
        operation = task.operation
        if operation.source_order == "any":
            operation = self._memo.once((operation, source), lambda: task.operation.with_layout(source))
        inputs = []
        for index, key in enumerate(task.inputs):
            operand = operation.operands[index]
            storage = self._form(key, operand, _memory(source, operand.shape), number)
            storage.last = number
            storage.readers.append((operation, index))
            inputs.append(storage)
        output = Storage(operation.result, _memory(result, operation.result.shape), first=number, last=number)
        self.forms[task.output] = [output]
        if operation.view and not inputs[0].gaps:
            output.key = inputs[0].key
            output.become_part(inputs[0], operation.start, False)
        else:
            self._producers[output] = operation
            self.placed.append(Placed(operation, (*inputs, output), number))
        if task.output in self._wanted:
            self._form(task.output, operation.result, "plain", number)

    def _orders(self, task: Task) -> tuple[Order, Order]:
        """The orders in memory in which the operation reads its operands, and in which it writes its result."""
        operation = task.operation
        if operation.source_order != "any":
            return operation.source_order, operation.result_order
        forms = [self.forms[key][0] for key in task.inputs]
        chosen = next((f.order for f in forms if f.key is None), forms[0].order if forms else "plain")
        return chosen, chosen

    def _form(self, key: Key, operand: Operand, order: Order, number: int) -> Storage:
        """The value in this order and with this border; made by a conversion if it does not exist yet."""
        forms = self.forms[key]
        for storage in forms:
            if storage.order == order and storage.operand.same_border(operand):
                return storage
        plain = Operand(operand.shape, operand.dtype)
        if not any(operand.border):
            for storage in forms:
                if _same_memory(operand.shape) and not any(storage.operand.border):
                    twin = Storage(plain, order, storage.key, first=number, last=number)
                    twin.become_part(storage, 0, False)
                    forms.append(twin)
                    return twin
        source = next(s for s in forms if not any(s.operand.border))
        made = Storage(operand, order, first=number, last=number)
        source.last = max(source.last, number)
        operation = self._memo.once(how := (source.operand, source.order, operand, order), lambda: self.convert(*how))
        source.readers.append((operation, 0))
        self._producers[made] = self._conversions[made] = operation
        self.placed.append(Placed(operation, (source, made), number))
        forms.append(made)
        return made

    def _merge(self) -> None:
        """Where a result is only converted, let its operation write the converted form, if it can."""
        makers = {p.storages[-1]: n for n, p in enumerate(self.placed)}
        gone = set()
        for number, placed in enumerate(self.placed):
            source, made = placed.storages[0], placed.storages[-1]
            if placed.operation is not self._conversions.get(made) or source not in makers or source.shown:
                continue
            maker = self.placed[makers[source]]
            direct = maker.operation.writing_to(made.operand, made.order) if len(source.readers) == 1 else None
            if direct is None or source.children:
                continue
            if any(s.order != _memory(direct.source_order, s.operand.shape) for s in maker.storages[:-1]):
                continue
            made.first = maker.item
            self._producers[made] = direct
            self.placed[makers[source]] = Placed(direct, (*maker.storages[:-1], made), maker.item)
            gone.add(number)
        self.placed = [placed for number, placed in enumerate(self.placed) if number not in gone]

    def _join(self) -> None:
        """Let producers write directly into the results of concatenations that would copy their results."""
        for placed in self.placed:
            concat = placed.operation
            whole = placed.storages[-1]
            for index, storage in enumerate(placed.storages[: len(concat.copied)]):
                if concat.copied[index] and self._can_join(storage, concat.order):
                    storage.become_part(whole, concat.parts[index], True)

    def _can_join(self, storage: Storage, order: Order) -> bool:
        """Whether a storage may become a part of a larger one with gaps between its rows."""
        producer = self._producers.get(storage)
        if producer is None or not producer.gaps or any(storage.operand.border):
            return False
        if storage.parent is not None or storage.key is not None or any(not child.gaps for child in storage.children):
            return False
        flat = len(storage.operand.shape) == 2
        fits = ("channels", "rows", "any") if flat else ("channels", "any") if order == "channels" else ("rows",)
        if order == "channels" and storage.order != "channels" and not flat:
            return False
        if any(reader.operands[index].tight for reader, index in storage.readers):
            return False
        return producer.result_order in fits and all(reader.source_order in fits for reader, _ in storage.readers)

    def _allocate(self, end: int, wanted: Sequence[Key]) -> None:
        """Give all storages an offset in the arena, or outside if they are results."""
        for forms in self.forms.values():
            for storage in forms:
                storage.settle()
        returned = [root for key in wanted if (root := self._returned_storage(key)) is not None]
        roots = list(dict.fromkeys(s.root for placed in self.placed for s in placed.storages if s.root.key is None))
        lives = [(0, end) if any(root.operand.border) else root.lifetime() for root in roots]
        needs = [Need(root.nbytes, first, last) for root, (first, last) in zip(roots, lives, strict=True)]
        offsets, self.arena = arrange(needs)
        for root, offset in zip(roots, offsets, strict=True):
            root.offset = offset
        self.borders = [root for root in roots if any(root.operand.border)]
        beyond = self.arena
        for root in returned:
            root.beyond = beyond
            beyond += align_up(root.nbytes)

    def _returned_storage(self, key: Key) -> Storage | None:
        """The storage of a returned value, if it holds that value alone, as its user sees it; else None. It gets the
        value's key: each run makes an array for it, and returns that."""
        storage = self.forms[key][0]
        root, packed = storage.root, storage.order == "plain" or _same_memory(storage.operand.shape)
        apart = storage.stride or storage.ahead or storage.nbytes != root.nbytes
        if root.key is not None or any(root.operand.border) or apart or not packed:
            return None
        root.key = key
        return root


def _memory(order: Order, shape: Sequence[int]) -> Order:
    """The order in memory: only images have channels last."""
    return "channels" if order == "channels" and len(shape) > 2 else "plain"


def _same_memory(shape: Sequence[int]) -> bool:
    """Whether an array without gaps has the same bytes in both orders."""
    return len(shape) < 3 or shape[1] == 1 or size(shape[2:]) == 1 or not np.prod(shape, dtype=np.int64)
