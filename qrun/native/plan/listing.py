"""A schedule as numbers, ready to run: argument structs, which of their words are addresses, and where values lie. Also
the same without addresses, for another process: numbers replace the arrays to which structs point."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.native.emit.spec import DOUBT, ENTRY, STRUCT, KernelSpec
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints, address, aligned_copy
from qrun.native.machine.operation import Operand, OperandStrides
from qrun.native.plan.items import Key, PythonStep
from qrun.native.plan.stamps import Segment

if TYPE_CHECKING:
    from qrun.native.plan.placement import Storage
    from qrun.native.plan.schedule import Schedule


@frozen
class View:
    """A value as its user sees it, `start` bytes from the start of the arena, or of the array of this key."""

    key: Key | None
    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def of(self, memory: Array) -> Array:
        """The value in this memory, which is contiguous."""
        if not memory.size or 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        return np.ndarray(self.shape, self.dtype, memory.reshape(-1).view(np.uint8).data, self.start, self.strides)


@frozen
class Listing:
    """A schedule that is ready to run.

    structs:  [calls, STRUCT / 8], complete except for addresses of arena and arrays; kernels: of the calls. Calls that
              tiles of other calls make themselves come last.
    counts:   [calls, 4], without the latter: tiles; if all threads wait after it; the first since the wait before;
              item.
    parts:    [calls, 4], for each call with parts: number, the word that points to them, the first one, their count.
    pointers: [words, 3] by key, None for the arena: call, word, and how many bytes from the start.
    borders:  values of the arena that are filled once, and the fill.
    views:    values that are read from outside; arrays of their own key are returned, and made by each run.
    given, room: of arrays by key, type and shape, and the bytes that calls may touch; fixed: those that never change.
    steps:    Python steps, by item; items: their number. wanted: keys of the values that a run returns.
    doubtful: the calls that may leave a result undecided.
    joined:   items whose work another one does, with the number of that one.
    loose:    values from outside, of any shape and type.
    keep:     the owners of the memory to which structs point.
    held:     for calls with memory of each run: how it is made (KernelCall.held), by number.
    """

    engine: Engine
    structs: Ints
    kernels: Sequence[Any]
    counts: Ints
    parts: Ints
    pointers: Mapping[Key | None, Ints]
    borders: Sequence[tuple[View, int]]
    views: Mapping[Key, View]
    given: Mapping[Key, Operand]
    room: Mapping[Key, int]
    fixed: Mapping[Key, Array]
    segments: Sequence[Segment]
    steps: Mapping[int, PythonStep]
    items: int
    wanted: tuple[Key, ...]
    doubtful: Sequence[int]
    arena: int
    scratch: int
    helpers: int
    joined: Mapping[int, int]
    loose: AbstractSet[Key] = frozenset()
    keep: object = None
    held: Mapping[int, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Memory of one run."""
        held = sum([int(inner.turns.nbytes) for inner in self.held.values()])
        return self.arena + len(self.kernels) * (STRUCT + ENTRY) + self.engine.threads * self.scratch + held

    @property
    def returned(self) -> dict[Key, tuple[View, int]]:
        """The values for which each run makes arrays, and the bytes of these arrays."""
        own = {key: view for key, view in self.views.items() if view.key is not None and view.key == key}
        return {key: (v, max(prod(v.shape) * v.dtype.itemsize, self.room.get(key, 0))) for key, v in own.items()}

    @property
    def item_of(self) -> list[int]:
        """Each call's item."""
        found: list[int] = self.counts[:, 3].tolist()
        return found

    @classmethod
    def of(cls, schedule: Schedule) -> Listing:
        """A schedule as arrays of words, ready to be copied and run."""
        calls = schedule.calls
        structs = np.zeros((len(schedule.rows), STRUCT // 8), np.int64)
        counts = np.zeros((len(calls), 4), np.int64)
        for number, call in enumerate(schedule.rows):
            structs[number, : len(call.section.arguments)] = call.section.arguments
        for number, call in enumerate(calls):
            counts[number] = (call.section.tiles, schedule.barriers[number], schedule.since[number], call.placed.item)
        return cls(
            schedule.engine,
            structs,
            [call.section.kernel for call in schedule.rows],
            counts,
            schedule.parts,
            _pointers(schedule),
            [(_bordered_view(border), border.operand.fill) for border in schedule.placement.borders],
            {k: _view_of(f[0]) for k, f in schedule.placement.forms.items() if f[0].shown and k not in schedule.given},
            schedule.given,
            {key: room for key, room in schedule.room.items() if key is not None},
            schedule.fixed,
            schedule.segments,
            {n: item for n, item in enumerate(schedule.items) if isinstance(item, PythonStep) and item.outputs},
            len(schedule.items),
            schedule.wanted,
            schedule.doubtful,
            schedule.arena,
            schedule.scratch,
            schedule.helpers,
            schedule.joined,
            schedule.loose,
            calls,
            {number: call.section.held for number, call in enumerate(calls) if call.section.held is not None},
        )


class Sight:
    """Where values can be looked at when an item is done, before the next one."""

    def __init__(self, schedule: Schedule) -> None:
        self._forms = schedule.placement.forms
        self._made = {id(placed.storages[-1]): placed.item for placed in schedule.placement.placed}

    def of(self, key: Key, item: int) -> View | None:
        """A form of the value that is complete then, in memory that nothing overwrites before; or None."""
        for storage in self._forms.get(key, ()):
            outer: Storage | None = storage
            while outer is not None and self._made.get(id(outer), item + 1) > item and outer.is_written:
                outer = outer.parent
            if outer is not None and (storage.root.key is not None or storage.root.lifetime()[1] >= item):
                return _view_of(storage)
        return None


def _pointers(schedule: Schedule) -> Mapping[Key | None, Ints]:
    """For each root of memory, the words that point into it: (call, word, offset)."""
    found: dict[Key | None, list[tuple[int, int, int]]] = {}
    for number, call in enumerate(schedule.rows):
        for word, operand in call.section.pointers:
            storage = call.placed.storages[operand]
            start = int(call.section.arguments[word]) + storage.place
            found.setdefault(storage.root.key, []).append((number, word, start))
    return {key: np.array(rows, np.int64) for key, rows in found.items()}


def _bordered_view(storage: Storage) -> View:
    """All of a storage, with its border."""
    dtype, shape = storage.operand.dtype, (storage.nbytes // storage.operand.dtype.itemsize,)
    return View(storage.root.key, storage.place, dtype, shape, (dtype.itemsize,))


def _view_of(storage: Storage) -> View:
    """The view of an operand in its root's memory."""
    lies = OperandStrides.of(storage.operand, storage.order, storage.stride)
    return View(storage.root.key, storage.place + lies.start, storage.operand.dtype, storage.operand.shape, lies.steps)


_USER = range(1 << 32, 1 << 48)
"""Possible addresses of user memory. A word that is no pointer is checked only if its value is one of them."""


class Unportable(Exception):
    """Only the process that made this program can run it; the text says why."""


@frozen
class Portable:
    """A program for another process. listing: without kernels and arrays, its structs without addresses.

    specs:    of each call's kernel.
    arrays:   the arrays to which structs point; held: [words, 4]: call, word, array, bytes from its start.
    """

    listing: Listing
    specs: tuple[KernelSpec, ...]
    arrays: tuple[Array, ...]
    held: Ints


def portable(schedule: Schedule, listing: Listing) -> Portable:
    """The program for another process. Raises Unportable."""
    finder, structs = _Finder(), listing.structs.copy()
    moved = {(call, word) for rows in listing.pointers.values() for call, word in rows[:, :2].tolist()}
    for number, call in enumerate(schedule.rows):
        if schedule.engine.kernels.get(call.section.spec) is not call.section.kernel:
            raise Unportable("a kernel of another specification")
        for word in finder.look(number, call.section, moved):
            structs[number, word] = 0
    for rows in listing.pointers.values():
        structs[rows[:, 0], rows[:, 1]] = 0
    return Portable(
        replace(listing, structs=structs, kernels=(), keep=None),
        tuple(call.section.spec for call in schedule.rows),
        tuple(finder.arrays),
        np.array(finder.held, np.int64).reshape(-1, 4),
    )


class _Finder:
    """Finds the arrays to which words of structs point."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.held: list[tuple[int, int, int, int]] = []
        self._numbers: dict[int, int] = {}

    def look(self, number: int, section: KernelCall, moved: set[tuple[int, int]]) -> Iterator[int]:
        """The words of a call's struct that are addresses in arrays that the call keeps."""
        names = section.kernel.names
        places = [(address(array), array) for array in section.keep]
        for word, value in enumerate(section.arguments[: DOUBT // 8].tolist()):
            pointer = word < len(names) and names[word].endswith("*")
            if (number, word) in moved or not (pointer and value):
                if not pointer and value in _USER and any(0 <= value - at < a.nbytes for at, a in places):
                    raise Unportable("an address in a word that is none")
                continue
            array, start = _around(value, places)
            self.held.append((number, word, self._number(array), start))
            yield word

    def _number(self, array: Array) -> int:
        """The number of an array; equal arrays are listed once."""
        if id(array) not in self._numbers:
            self._numbers[id(array)] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[id(array)]


def _around(value: int, places: Sequence[tuple[int, Array]]) -> tuple[Array, int]:
    """The array that contains this address, and the distance in bytes from its start."""
    for start, array in places:
        if start <= value < start + max(array.nbytes, 1):
            if not array.flags.c_contiguous:
                raise Unportable("an array with gaps")
            return array, value - start
    raise Unportable("an address of what nobody keeps")


def build_listing(made: Portable, engine: Engine) -> Listing:
    """The program in this process."""
    structs = made.listing.structs.copy()
    # Arrays in a mapped file begin on such boundaries, unless the system maps the file otherwise.
    arrays = [aligned_copy(array) if address(array) % 64 else array for array in made.arrays]
    starts = np.array([address(array) for array in arrays], np.int64)
    if len(made.held):
        call, word, array, start = made.held.T
        structs[call, word] = starts[array] + start
    kernels = {spec: engine.kernels.get(spec) for spec in dict.fromkeys(made.specs)}
    return replace(
        made.listing,
        engine=engine,
        structs=structs,
        kernels=[kernels[spec] for spec in made.specs],
        keep=arrays,
    )
