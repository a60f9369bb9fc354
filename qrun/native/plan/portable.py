"""Programs without addresses, which another process can run: what structs point to is named by number, and found again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.native.emit.spec import DOUBT, KernelSpec
from qrun.native.machine.call import KernelCall, Rechecker
from qrun.native.machine.engine import Engine
from qrun.native.machine.memory import Array, Ints, address, aligned_copy
from qrun.native.plan.listing import Listing

if TYPE_CHECKING:
    from qrun.native.plan.schedule import Schedule

_USER = range(1 << 32, 1 << 48)
"""Words that are no addresses, but might be some, are not in it."""


class Unportable(Exception):
    """A program that only the process can run that made it; the text says why."""


@frozen
class Portable:
    """listing: without kernels and arrays, its structs without addresses.

    specs:    of each call's kernel.
    arrays:   what structs point into; held: [words, 4]: call, word, array, bytes from its start.
    rechecks: [words, 3]: call, word, number of what makes results that the kernel does not decide.
    """

    listing: Listing
    specs: tuple[KernelSpec, ...]
    arrays: tuple[Array, ...]
    held: Ints
    rechecks: Ints


def portable(schedule: Schedule, listing: Listing) -> tuple[Portable, list[Rechecker]]:
    """The program, and its recheckers in the order of their numbers. Raises Unportable."""
    finder, structs = _Finder(), listing.structs.copy()
    moved = {(call, word) for rows in listing.pointers.values() for call, word in rows[:, :2].tolist()}
    if listing.held:
        raise Unportable("memory that calls have of their own")
    for number, call in enumerate(schedule.rows):
        if schedule.engine.kernels.get(call.section.spec) is not call.section.kernel:
            raise Unportable("a kernel of another specification")
        for word in finder.look(number, call.section, moved):
            structs[number, word] = 0
    for rows in listing.pointers.values():
        structs[rows[:, 0], rows[:, 1]] = 0
    made = Portable(
        replace(listing, structs=structs, kernels=(), keep=None),
        tuple(call.section.spec for call in schedule.rows),
        tuple(finder.arrays),
        np.array(finder.held, np.int64).reshape(-1, 4),
        np.array(finder.rechecked, np.int64).reshape(-1, 3),
    )
    return made, finder.recheckers


class _Finder:
    """What the words of structs point to."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.recheckers: list[Rechecker] = []
        self.held: list[tuple[int, int, int, int]] = []
        self.rechecked: list[tuple[int, int, int]] = []
        self._numbers: dict[int, int] = {}

    def look(self, number: int, section: KernelCall, moved: set[tuple[int, int]]) -> Iterator[int]:
        """The words of a call's struct that are addresses of what it keeps."""
        names = section.kernel.names
        places = [(address(array), array) for array in section.keep]
        rechecks = {recheck.address: recheck for recheck in section.rechecks}
        for word, value in enumerate(section.arguments[: DOUBT // 8].tolist()):
            pointer = word < len(names) and names[word].endswith("*")
            if (number, word) in moved or not (pointer and value):
                if not pointer and value in _USER and any(0 <= value - at < a.nbytes for at, a in places):
                    raise Unportable("an address in a word that is none")
                continue
            if value in rechecks:
                self.rechecked.append((number, word, self._number(rechecks[value], self.recheckers)))
            else:
                array, start = _around(value, places)
                self.held.append((number, word, self._number(array, self.arrays), start))
            yield word

    def _number(self, found: Any, known: list[Any]) -> int:
        if id(found) not in self._numbers:
            self._numbers[id(found)] = len(known)
            known.append(found)
        return self._numbers[id(found)]


def _around(value: int, places: Sequence[tuple[int, Array]]) -> tuple[Array, int]:
    """The array that has this address, and how many bytes from its start that is."""
    for start, array in places:
        if start <= value < start + max(array.nbytes, 1):
            if not array.flags.c_contiguous:
                raise Unportable("an array with gaps")
            return array, value - start
    raise Unportable("an address of what nobody keeps")


def listed(made: Portable, engine: Engine, rechecks: Sequence[Rechecker]) -> Listing:
    """The program in this process; rechecks: what takes the place of those that it was made with."""
    structs = made.listing.structs.copy()
    # Those that a mapped file holds begin on such boundaries, but if its system maps it otherwise.
    arrays = [aligned_copy(array) if address(array) % 64 else array for array in made.arrays]
    starts = np.array([address(array) for array in arrays], np.int64)
    if len(made.held):
        call, word, array, start = made.held.T
        structs[call, word] = starts[array] + start
    for number, place, recheck in made.rechecks.tolist():
        structs[number, place] = rechecks[recheck].address
    kernels: Mapping[KernelSpec, Any] = {spec: engine.kernels.get(spec) for spec in dict.fromkeys(made.specs)}
    return replace(
        made.listing,
        engine=engine,
        structs=structs,
        kernels=[kernels[spec] for spec in made.specs],
        keep=(arrays, rechecks),
    )
