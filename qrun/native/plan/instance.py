"""The memory of one run of a program, and the run: arrays in, kernels without Python between them, arrays out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import get_ident
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from qrun.memory import Budget
from qrun.native.emit.spec import DOUBT, DOZE, ENTRY, GONE, PLAN, SKIP, STATE, STRUCT, SYSCALL, TIMES, YIELD
from qrun.native.errors import Late, Undecided, Unplanned
from qrun.native.machine.call import scratch
from qrun.native.machine.memory import Array, address, aligned, forget, new_aligned
from qrun.native.machine.threads import system_call, yield_address
from qrun.native.plan.items import Key
from qrun.native.plan.listing import Listing
from qrun.native.plan.stamps import Alone, Segment, Stamp, StampedResult

PythonCall = Callable[[int, list[Array]], Sequence[Array]]


class Looks(Protocol):
    """An observer that looks at values while a program runs. items: the items after which it looks, in order."""

    items: Sequence[int]

    def look(self, item: int, value: Callable[[Key], Array]) -> None:
        """Called when an item is done and its inputs and outputs are in memory: `value` returns them by key."""

    def now(self) -> int:
        """perf_counter_ns, less the time spent looking."""


_PATIENCE = 20000
"""Turns of the waiting loop (tens of nanoseconds each) after which a helper goes back to sleep."""
_DOZE = 1_000_000
"""The most nanoseconds that a thread which waits for others sleeps if nobody wakes it."""
_FEW = 4
"""Up to this many words it is faster to set them one by one than at once."""
_WORTH = 32
"""Segments after the first wake helpers only if they have this many tiles (some microseconds each at least)."""


class Instance:
    """Memory for one run at a time: arena, argument structs, plan, state shared with helpers.

    direct: what the next run of `Direct` (native/plan/program.py) uses again. held: memory of calls, by number.
    """

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.memory = aligned(listing.arena, np.uint8, 0)
        calls, walked = len(listing.kernels), len(listing.counts)
        self.structs, self.plan = (aligned((calls, nbytes // 8), np.int64, 0) for nbytes in (STRUCT, ENTRY))
        self.state = aligned(STATE // 8, np.int64, 0)
        if listing.engine.threads > 1:
            self.state[YIELD // 8], self.state[SYSCALL // 8] = yield_address(), system_call()
            self.state[DOZE // 8 + 1] = _DOZE
        self.times = np.zeros((listing.engine.threads, walked + 1, 2), np.int64)
        self.start = address(self.state)
        self.state[PLAN // 8], self.state[TIMES // 8] = address(self.plan), address(self.times)
        self.lead = listing.engine.runner.lead
        self.rows: dict[int, int] = {}
        self.sent = 0
        self.alone = Alone(listing.counts[:, 0], listing.counts[:, 1])
        self.helped = (
            frozenset(s.first for s in listing.segments if s.item < 0 and (not s.first or s.tiles >= _WORTH))
            if listing.engine.pool
            else frozenset[int]()
        )
        self.lock = threading.Lock()
        self.direct: object = None
        rows = {key: rows for key, rows in listing.pointers.items() if len(rows) <= _FEW}
        self.words = {
            key: [(call * STRUCT // 8 + word, at) for call, word, at in r.tolist()] for key, r in rows.items()
        }
        self.cells: Any = self.structs.reshape(-1).data
        self.structs[...] = listing.structs
        self.move(None, address(self.memory))
        self.plan[:, 0] = [kernel.address for kernel in listing.kernels]
        self.plan[:, 1] = address(self.structs) + STRUCT * np.arange(calls)
        self.plan[:walked, 2:5] = listing.counts[:, :3]
        row, word, first, _ = listing.parts.T
        self.structs[row, word] = address(self.plan) + ENTRY * first
        self.doubtful = np.array(listing.doubtful, np.int64)
        self.doubts = self.structs[:walked, DOUBT // 8]
        self.measuring = listing.engine.threads > 1
        self.held = {number: inner.hold() for number, inner in listing.held.items()}
        for number, held in self.held.items():
            self.structs[number, listing.kernels[number].word("held*")] = address(held.words)
        self.forget()
        room = {key: listing.room.get(key, 0) for key in listing.pointers}
        forms = [(key, form) for key, form in listing.given.items() if key not in listing.loose]
        self.forms = {key: (form.shape, form.dtype, room.get(key)) for key, form in forms}
        self.known, self.returned = {**listing.fixed}, listing.returned
        self.lendable = frozenset(listing.wanted).difference(self.returned)
        self.kept = [self.point(key, array) for key, array in listing.fixed.items() if key in listing.pointers]

    def move(self, key: Key | None, start: int) -> None:
        """Set all words that are addresses in the array of this key (None: the arena), which begins at `start`."""
        if (words := self.words.get(key)) is not None:
            for cell, offset in words:
                self.cells[cell] = offset + start
        elif (rows := self.listing.pointers.get(key)) is not None:
            self.structs[rows[:, 0], rows[:, 1]] = rows[:, 2] + start

    def forget(self) -> None:
        """Mark the arena's contents as invalid, and fill the borders, which are filled once."""
        forget(self.memory)
        for border, fill in self.listing.borders:
            border.of(self.memory)[...] = fill

    def point(self, key: Key, array: Array) -> Array:
        """Make the calls that read this value read the array, or a copy; returns the one that must stay alive."""
        form = self.forms.get(key)
        if form is None:
            return array
        shape, dtype, room = form
        if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
            raise Unplanned(f"{array.dtype}{list(array.shape)} instead of {dtype}{list(shape)}")
        if room is None:
            return array
        if not array.flags.c_contiguous or array.nbytes < room:
            held = aligned(max(array.nbytes, room), np.uint8)
            held[array.nbytes :] = 0
            held[: array.nbytes].view(dtype).reshape(shape)[...] = array
            array = held
        self.move(key, address(array))
        return array

    def run(
        self, arrays: Mapping[Any, Array], call_python: PythonCall, budget: Budget, looks: Looks | None, timed: bool
    ) -> StampedResult:
        """Run the program once with these arrays."""
        listing, now = self.listing, looks.now if looks else perf_counter_ns
        values, copies = self.results(budget), dict[Key, Array]()
        stamps, timed = list[Stamp](), timed or self.measuring

        def take(arrays: Mapping[Any, Array]) -> None:
            values.update(arrays)
            for key, array in arrays.items():
                pointed = self.point(key, array)
                if pointed is not array:
                    copies[key] = pointed
                    budget.hold(pointed, str(key))

        take(arrays)
        for segment in listing.segments:
            self._in_time(segment, budget)
            begin = now() if timed else 0
            if segment.item < 0:
                if segment.first in self.helped:
                    self.call_helpers()
                for piece in self._pieces(segment, looks, budget) if looks or budget.deadline else (segment,):
                    self._lead(piece)
                    if timed:
                        stamps.append(self._stamp(piece, begin, now()))
                    if looks and piece.item >= 0:
                        looks.look(piece.item, lambda key: self.value(key, values))
                    begin = now() if looks else begin
            else:
                item = listing.steps[segment.item]
                made = call_python(segment.item, [self.value(key, values) for key in item.inputs])
                for key, array in zip(item.outputs, made, strict=True):
                    in_arena = array.base is not None and np.may_share_memory(array, self.memory)
                    own = array.copy() if in_arena else array  # later calls overwrite the arena
                    budget.hold_made(own, str(key))
                    take({key: own})
                if timed:
                    stamps.append(Stamp(segment, begin, now(), self.times[:, :1].copy()))
            for key in segment.frees:
                budget.release(values.pop(key))
                if key in copies:
                    budget.release(copies.pop(key))
        if self.measuring:
            self._measure(stamps)
        lent = not values.keys().isdisjoint(self.lendable)
        wanted = {key: self._copy(key, values, budget) for key in listing.wanted}
        return StampedResult(wanted, tuple(stamps), lent)

    def results(self, budget: Budget) -> dict[Key, Array]:
        """New arrays for the results of a run; its calls write to them."""
        made: dict[Key, Array] = {}
        for key, (view, nbytes) in self.returned.items():
            budget.reserve(nbytes, str(key))
            made[key], start = new_aligned(view.shape, view.dtype, nbytes)
            self.move(key, start)
        return made

    def _measure(self, stamps: Sequence[Stamp]) -> None:
        """Note the cost of a run's calls. After some runs helpers leave small calls to the leader: no helper is inside
        now, and a segment with only small calls wakes none."""
        self.alone.measure(stamps)
        if self.alone.known:
            self.measuring = False
            self.plan[: len(self.listing.counts), 5] = flags = self.alone.flags()
            segments = (segment for segment in self.listing.segments if segment.item < 0)
            self.helped = frozenset(
                s.first for s in segments if s.first in self.helped and not (flags[s.first : s.end] & SKIP).all()
            )

    def _in_time(self, segment: Segment, budget: Budget) -> None:
        """Raise Late if the run's time has passed."""
        if budget.deadline is not None and budget.deadline.passed:
            raise Late(segment.item if segment.item >= 0 else int(self.listing.counts[segment.first, 3]))

    def _pieces(self, segment: Segment, looks: Looks | None, budget: Budget) -> Iterator[Segment]:
        """A segment's calls, cut at each item after which `looks` looks, or for checks of the time limit."""
        cut = segment.cut(looks.items, self.listing.counts[:, 3]) if looks else None
        for piece in cut or ((segment,) if budget.deadline is None else segment.parts()):
            self._in_time(piece, budget)
            yield piece

    def _stamp(self, piece: Segment, begin: int, end: int) -> Stamp:
        """The times that these calls, which have just run, noted."""
        ticks = self.times[:, piece.first : piece.end + 1].copy()
        meter = self.listing.engine.runner.meter
        tick = meter.tick(begin, end, int(ticks[0, 0, 0]), int(ticks[0, -1, 0]))
        return Stamp(Segment(piece.first, piece.end), begin, end, ticks, tick, meter.step * tick)

    def value(self, key: Key, values: Mapping[Any, Array]) -> Array:
        """A value as an array: the array itself, or a view of the arena or of another array."""
        found = values.get(key)
        if found is None:
            found = self.known.get(key)
        if found is not None:
            return found
        view = self.listing.views[key]
        if view.key is None:
            found = self.known[key] = view.of(self.memory)
            return found
        return view.of(np.ascontiguousarray(self.value(view.key, values)))

    def _copy(self, key: Key, values: Mapping[Any, Array], budget: Budget) -> Array:
        """A contiguous copy of a result, or the result if Python made it so."""
        value = values.get(key)
        if value is not None and value.flags.c_contiguous:
            return value
        value = self.value(key, values)
        budget.reserve(value.nbytes, str(key))
        return value.copy()

    def _lead(self, segment: Segment) -> None:
        """Run the native calls of a segment. Raises Undecided if a result needs the slower, exact way."""
        own = scratch(self.listing.scratch) if self.listing.scratch else 0
        self.lead(self.start, segment.first, segment.end, own)
        if self.doubtful.size and self.doubt():
            raise Undecided

    def doubt(self) -> bool:
        """Whether a call could not decide its results; clears the marks."""
        found = bool(np.count_nonzero(self.doubts))
        if found:
            self.doubts[...] = 0
        return found

    def call_helpers(self) -> None:
        """Wake the helpers that are not already waiting for calls."""
        pool = self.listing.engine.pool
        assert pool is not None
        present = self.sent - int(self.state[GONE // 8])
        for _ in range(self.listing.helpers - present):
            self.sent += 1
            pool.submit(_follow, self)


def _follow(instance: Instance) -> None:
    """Help other threads with a program's tiles, until none is left."""
    engine = instance.listing.engine
    own = scratch(instance.listing.scratch)
    with instance.lock:
        row = instance.rows.setdefault(get_ident(), len(instance.rows) + 1)
    times = address(instance.times[row:])
    engine.runner.follow(address(instance.plan), instance.start, _PATIENCE, times, own)
