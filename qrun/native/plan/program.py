"""Program: a listing that several threads can run at once, each in its own memory, which is kept for the next run.

Direct: runs it with little Python: one native call for all kernels, or for those between two Python steps.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.memory import Budget
from qrun.native.emit.spec import (
    COUNT_AT,
    DOUBTFUL_AT,
    DOUBTS_AT,
    END_AT,
    FIRST_AT,
    MEMORY_AT,
    PLACE,
    PLACES_AT,
    SCRATCH_AT,
    STATE_AT,
    STRUCT,
)
from qrun.native.machine.call import scratch
from qrun.native.machine.memory import Array, address, elements_at, fresh, new_aligned
from qrun.native.plan.instance import Instance, Looks, PythonCall
from qrun.native.plan.items import Key
from qrun.native.plan.listing import Listing
from qrun.native.plan.stamps import Segment, StampedResult

if TYPE_CHECKING:
    from qrun.native.plan.schedule import Schedule


class Program:
    """A listing, and the memory of its runs: `nbytes` each. schedule: its source, None if another process made it.

    `run` may be called from several threads at once; each run has memory of its own, kept for the next one: `free`
    holds the memory that no run uses.
    """

    def __init__(self, listing: Listing, schedule: Schedule | None = None) -> None:
        self.listing, self.schedule, self.nbytes = listing, schedule, listing.nbytes
        self.free: deque[Instance] = deque()

    @classmethod
    def of(cls, schedule: Schedule) -> Program:
        """The program of a schedule."""
        return cls(Listing.of(schedule), schedule)

    def run(
        self,
        arrays: Mapping[Any, Array],
        call_python: PythonCall,
        budget: Budget,
        looks: Looks | None = None,
        timed: bool = True,
    ) -> StampedResult:
        """Run once. arrays: the values that come from outside, already counted. call_python: computes an item's outputs
        from its number and inputs. timed: whether the result has stamps.

        Raises Unplanned if an array does not have the type and shape of its operand, Undecided if a kernel could not
        decide, Late.
        """
        instance = self._memory(budget)
        try:
            return instance.run(arrays, call_python, budget, looks, timed)
        finally:
            self.free.append(instance)

    def _memory(self, budget: Budget) -> Instance:
        """Memory for a run, which no other run uses."""
        try:
            instance = self.free.pop()
        except IndexError:
            budget.reserve(self.nbytes, "native program")
            return Instance(self.listing)
        budget.reserve(self.nbytes, "native program", there=True)
        return instance


_ARRAYS = (DOUBTS_AT + 8) // 8
_LARGE = 1024
"""Results from this size, in bytes, begin on 64-byte boundaries; smaller ones lose more time than they gain."""
_NONE = np.zeros((0, 3), np.int64)


class Direct:
    """Runs a program as `Program.run` does, but without times; the caller counts the memory and the time.

    read: keys of the arrays from outside that kernels read. made: for each result of kernels its key, shape and type,
    and the bytes of its memory, 0 if the result is small and needs no more than its elements take. copied: keys of
    results that are values from outside, or parts of others. alone: whether the program is one native call, without
    Python steps. nbytes: the most memory of a run, without results of such steps.
    """

    def __init__(self, program: Program, wanted: Sequence[Key]) -> None:
        listing = program.listing
        self.program, self.listing, self.wanted = program, listing, tuple(wanted)
        self._free, self._scratch = program.free, listing.scratch
        self._call = listing.engine.runner.direct
        self.alone = len(listing.segments) == 1 and listing.segments[0].item < 0
        self.later = tuple([key for s in listing.segments if s.item >= 0 for key in listing.steps[s.item].outputs])
        pointed = listing.given.keys() & listing.pointers.keys()
        self.read = tuple([key for key in listing.given if key in pointed and key not in {*listing.fixed, *self.later}])
        returned = listing.returned
        forms = {
            key: (v.shape, v.dtype, n if n >= _LARGE or n > math.prod(v.shape) * v.dtype.itemsize else 0)
            for key, (v, n) in returned.items()
        }
        order = sorted(forms, key=lambda key: self.wanted.index(key) if key in self.wanted else -1)
        self.made = tuple([(key, *forms[key]) for key in order])
        self.copied = tuple([key for key in self.wanted if key not in {*returned, *self.later}])
        copies = (listing.given.get(key) or listing.views[key] for key in self.copied)
        self.nbytes = program.nbytes + sum(nbytes for _, nbytes in returned.values())
        self.nbytes += sum(math.prod(form.shape) * form.dtype.itemsize for form in copies)

    @classmethod
    def of(cls, program: Program, wanted: Sequence[Key]) -> Direct | None:
        """The direct runs that return `wanted`; None if the program returns other values, or cannot run directly."""
        listing = program.listing
        if not listing.segments or elements_at() < 0 or set(listing.wanted) != set(wanted):
            return None
        made = cls(program, wanted)
        whole = all(listing.given[key].nbytes >= listing.room.get(key, 0) for key in made.read)
        loose = any(step.loose for step in listing.steps.values())
        return made if whole and not loose else None

    def run(self, arrays: Mapping[Any, Array], call_python: PythonCall | None = None) -> dict[Any, Array] | None:
        """The results for arrays that have the operands' shapes and types and that nobody changes meanwhile. None if
        `Program.run` must compute them: an array has gaps, memory is short, or a kernel could not decide. call_python:
        as in `Program.run`; not called if `alone`.

        Raises what `call_python` raises. The arrays that `call_python` makes may share their memory with other
        arrays."""
        try:
            instance = self._free.pop()
        except IndexError:
            return None
        try:
            return None if instance.measuring else self.run_with(instance, arrays, call_python)
        except MemoryError:
            return None
        finally:
            self._free.append(instance)

    def run_with(
        self, instance: Instance, arrays: Mapping[Any, Array], call_python: PythonCall | None
    ) -> dict[Any, Array] | None:
        """The same as `run`, in this memory."""
        direct_words = instance.direct if type(instance.direct) is _DirectWords else self._build_words(instance)
        words, at = direct_words.words, _ARRAYS
        for key in self.read:
            array = arrays[key]
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
        if self.alone:
            if not self._run_calls(instance, direct_words, 0):
                return None
            return self._with_copies(instance, made, arrays) if self.copied else made
        assert call_python is not None
        return self._in_turn(instance, direct_words, {**arrays, **made}, call_python)

    def _run_calls(self, instance: Instance, direct_words: _DirectWords, first: int) -> bool:
        """Run the calls from the first one on; whether all results were decided."""
        if first in instance.helped:
            instance.call_helpers()
        if not self._call(direct_words.start):
            return True
        instance.doubt()
        return False

    def _in_turn(
        self, instance: Instance, direct_words: _DirectWords, values: dict[Any, Array], call_python: PythonCall
    ) -> dict[Any, Array] | None:
        """Run segment after segment. values: all existing arrays, which it keeps alive until the end."""
        words, steps = direct_words.words, self.listing.steps
        for segment, count in direct_words.segments:
            if segment.item < 0:
                words[FIRST_AT // 8], words[END_AT // 8] = segment.first, segment.end
                words[COUNT_AT // 8] = count
                if not self._run_calls(instance, direct_words, segment.first):
                    return None
                continue
            step = steps[segment.item]
            found = call_python(segment.item, [instance.value(key, values) for key in step.inputs])
            for key, array in zip(step.outputs, found, strict=True):
                if array.base is not None and np.may_share_memory(array, instance.memory):
                    array = array.copy()
                values[key] = array
                if (at := direct_words.places.get(key)) is not None:
                    if not self._fits(key, array):
                        return None
                    words[at] = id(array)
        return self._with_copies(instance, {key: values[key] for key in self.wanted if key in values}, values)

    def _with_copies(self, instance: Instance, made: dict[Any, Array], arrays: Mapping[Any, Array]) -> dict[Any, Array]:
        """These results, and copies of the results that have no arrays yet. arrays: all other existing ones, by key."""
        values = {**arrays, **made}
        return made | {key: instance.value(key, values).copy() for key in self.copied}

    def _fits(self, key: Key, array: Array) -> bool:
        """Whether kernels may read an array as it is."""
        form = self.listing.given[key]
        fits = array.shape == form.shape and array.dtype == form.dtype and array.flags.c_contiguous
        return bool(fits and array.nbytes >= self.listing.room.get(key, 0))

    def _build_words(self, instance: Instance) -> _DirectWords:
        """The words by which an instance is run without Python between."""
        found = instance.direct = _DirectWords(instance, [*self.read, *(key for key, *_ in self.made)], self.later)
        return found


class _DirectWords:
    """The words that the function `direct` reads (emit/spec.py), for this memory. Each run sets those from _ARRAYS on.

    there: keys of the arrays that exist when a run begins; later: keys of those that Python steps make, in order.
    places: the word of each later array that kernels read, by key. segments: each with the number of existing places.
    """

    def __init__(self, instance: Instance, there: Sequence[Key], later: Sequence[Key]) -> None:
        listing, structs = instance.listing, address(instance.structs)
        keys = [*there, *(key for key in later if key in listing.pointers)]
        direct_words = np.zeros(_ARRAYS + len(keys), np.int64)
        self.start, self.words = address(direct_words), direct_words.data
        first, rows, counts = self.start + 8 * _ARRAYS, list[tuple[int, int, int]](), dict[Key, int]()
        for at, key in enumerate(keys):
            pointers = listing.pointers.get(key, _NONE).tolist()
            rows += [(first + 8 * at, structs + call * STRUCT + 8 * word, offset) for call, word, offset in pointers]
            counts[key] = len(rows)
        self.places = {key: _ARRAYS + at for at, key in enumerate(keys) if at >= len(there)}
        self.segments, count = list[tuple[Segment, int]](), counts[there[-1]] if there else 0
        for segment in listing.segments:
            self.segments.append((segment, count))
            made = listing.steps[segment.item].outputs if segment.item >= 0 else ()
            count = max([count, *(counts[key] for key in made if key in counts)])
        self._rows = np.array(rows, np.int64).reshape(-1, PLACE // 8)
        direct_words[STATE_AT // 8], direct_words[END_AT // 8] = instance.start, listing.segments[0].end
        direct_words[MEMORY_AT // 8] = elements_at()
        direct_words[PLACES_AT // 8], direct_words[COUNT_AT // 8] = address(self._rows), len(rows)
        direct_words[DOUBTFUL_AT // 8], direct_words[DOUBTS_AT // 8] = (
            address(instance.doubtful),
            len(instance.doubtful),
        )
