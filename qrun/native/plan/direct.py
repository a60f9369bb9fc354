"""Runs that are one call from Python: of a program of kernels alone, whose results are arrays that each run makes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import (
    COUNT_AT,
    DOUBTFUL_AT,
    DOUBTS_AT,
    END_AT,
    MEMORY_AT,
    PLACE,
    PLACES_AT,
    SCRATCH_AT,
    STATE_AT,
    STRUCT,
)
from qrun.native.machine.call import scratch
from qrun.native.machine.memory import Array, address, elements_at, fresh, new_aligned
from qrun.native.plan.instance import Instance
from qrun.native.plan.items import Key
from qrun.native.plan.program import Program

_ARRAYS = (DOUBTS_AT + 8) // 8
_LARGE = 1024
"""Bytes from which on a result begins on a boundary of 64 bytes; for smaller ones that takes longer than it saves."""
_NONE = np.zeros((0, 3), np.int64)


class Direct:
    """Runs of a program that do what `Program.run` does, without an account of memory or time, and without telling times.

    read: the arrays from outside that kernels read. made: of each result its key, shape and type, and how many bytes its memory
    is to have, 0 if it is small and those of its elements are enough. nbytes: what a run takes at most.
    """

    def __init__(self, program: Program, wanted: Sequence[Key]) -> None:
        listing = program.listing
        self.program, self._free, self._scratch = program, program.free, listing.scratch
        self._call = listing.engine.runner.direct
        self.read = tuple(key for key in listing.pointers if key in listing.given and key not in listing.fixed)
        forms = {key: (view.shape, view.dtype, nbytes) for key, (view, nbytes) in listing.returned.items()}
        self.made = tuple([(key, *forms[key][:2], forms[key][2] if _lined(*forms[key]) else 0) for key in wanted])
        self.nbytes = program.nbytes + sum(nbytes for *_, nbytes in forms.values())

    @classmethod
    def of(cls, program: Program, wanted: Sequence[Key]) -> Direct | None:
        """For runs that return these; None where one call is not enough."""
        listing = program.listing
        if len(listing.segments) != 1 or listing.segments[0].item >= 0 or listing.guards or elements_at() < 0:
            return None
        if set(listing.wanted) != set(wanted) or listing.returned.keys() != set(wanted):
            return None
        made = cls(program, wanted)
        return made if all(listing.given[key].nbytes >= listing.room.get(key, 0) for key in made.read) else None

    def run(self, arrays: Mapping[Any, Array]) -> dict[Any, Array] | None:
        """The results of arrays that have the operands' shapes and types; None where it takes `Program.run`: where one has gaps,
        memory is short, or a kernel could not decide."""
        given = [arrays[key] for key in self.read]
        try:
            instance = self._free.pop()
        except IndexError:
            return None
        try:
            return None if instance.measuring else self.run_with(instance, given)
        except MemoryError:
            return None
        finally:
            self._free.append(instance)

    def run_with(self, instance: Instance, given: Sequence[Array]) -> dict[Any, Array] | None:
        """As `run`, in this memory; given: what is read."""
        told = instance.direct if type(instance.direct) is _Told else self._told(instance)
        words, at = told.words, _ARRAYS
        for array in given:
            if not array.flags.c_contiguous:
                return None
            words[at] = id(array)
            at += 1
        made: dict[Any, Array] = {}
        for key, shape, dtype, nbytes in self.made:
            made[key] = array = new_aligned(shape, dtype, nbytes)[0] if nbytes else fresh(shape, dtype)
            words[at] = id(array)
            at += 1
        if self._scratch:
            words[SCRATCH_AT // 8] = scratch(self._scratch)
        if instance.helped:
            instance.call_helpers()
        if not self._call(told.start):
            return made
        if (failed := instance.doubt()) is not None and not isinstance(failed, Exception):
            raise failed
        return None

    def _told(self, instance: Instance) -> _Told:
        found = instance.direct = _Told(instance, [*self.read, *(key for key, *_ in self.made)])
        return found


class _Told:
    """What the function `direct` is told of this memory; the words from _ARRAYS on are each run's. keys: of the arrays."""

    def __init__(self, instance: Instance, keys: Sequence[Key]) -> None:
        listing, structs = instance.listing, address(instance.structs)
        told = np.zeros(_ARRAYS + len(keys), np.int64)
        self.start, self.words = address(told), told.data
        first = self.start + 8 * _ARRAYS
        self._places = np.array(
            [
                (first + 8 * at, structs + call * STRUCT + 8 * word, offset)
                for at, key in enumerate(keys)
                for call, word, offset in listing.pointers.get(key, _NONE).tolist()
            ],
            np.int64,
        ).reshape(-1, PLACE // 8)
        told[STATE_AT // 8], told[END_AT // 8] = instance.start, listing.segments[0].end
        told[MEMORY_AT // 8] = elements_at()
        told[PLACES_AT // 8], told[COUNT_AT // 8] = address(self._places), len(self._places)
        told[DOUBTFUL_AT // 8], told[DOUBTS_AT // 8] = address(instance.doubtful), len(instance.doubtful)


def _lined(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> bool:
    """Whether a result is to be on a boundary of 64 bytes, or needs more memory than its elements."""
    return nbytes >= _LARGE or nbytes > math.prod(shape) * dtype.itemsize
