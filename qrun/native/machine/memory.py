"""Memory for kernels: arrays on 64-byte boundaries, which tests can poison to find reads of unwritten memory, and an
allocator that places buffers with known lifetimes in one block."""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from ctypes import addressof, c_char, c_ssize_t
from functools import cache
from heapq import heappop, heappush
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen

Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int64]]
_LARGEST_REUSED = 1 << 24
LINE = 64
"""Bytes of a cache line, and of the widest vector."""

poison: int | None = None
"""The byte with which tests fill memory whose contents nobody may rely on; None leaves it as it is."""


def keep_freed_memory() -> None:
    """Make glibc's malloc keep memory that is freed while plans are made. It would return large arrays to the system
    and take them again, a page fault at a time; it keeps blocks up to the largest size that was ever freed."""
    np.empty(_LARGEST_REUSED, np.uint8)


def aligned(shape: tuple[int, ...] | int, dtype: Any, fill: int | None = None) -> Array:
    """An array on a 64-byte boundary, uninitialised unless `fill` is given."""
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    raw = (np.zeros if fill == 0 else np.empty)(prod(shape) * dtype.itemsize + 64, np.uint8)
    array: Array = np.ndarray(shape, dtype, raw, -address(raw) % 64)
    if fill is None:
        forget(array)
    elif fill:
        array[...] = fill
    return array


def fresh(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array."""
    array: Array = np.empty(shape, dtype)
    if poison is not None:
        forget(array)
    return array


def new_aligned(shape: tuple[int, ...], dtype: np.dtype[Any], nbytes: int) -> tuple[Array, int]:
    """An uninitialised array on a 64-byte boundary, with at least `nbytes` of memory from there on; and its address."""
    raw = np.empty(nbytes + 64, np.uint8)
    forget(raw)
    start = address(raw)
    ahead = -start % 64
    return np.ndarray(shape, dtype, raw, ahead), start + ahead


@cache
def elements_at() -> int:
    """The offset in an array object, in bytes, of the address of its first element, as in numpy's C headers: right
    after the header of every object. -1 where that is not so."""
    if sys.implementation.name != "cpython":
        return -1
    offset = object.__basicsize__
    seen = [np.zeros(1), np.arange(24.0).reshape(2, 3, 4)[1:, ::2], np.frombuffer(b"01234567", np.uint8, 5, 2)]
    return offset if all(c_ssize_t.from_address(id(a) + offset).value == address(a) for a in seen) else -1


def aligned_copy(values: np.ndarray[Any, Any], dtype: Any = None) -> Array:
    """A contiguous copy on a 64-byte boundary, of the type `dtype` if it is given."""
    made = aligned(values.shape, values.dtype if dtype is None else dtype)
    made[...] = values
    return made


def address(array: np.ndarray[Any, Any]) -> int:
    """The address of the array's first element."""
    buffer: Any = array
    try:
        return addressof(c_char.from_buffer(buffer))
    except (TypeError, ValueError):  # it has no writable buffer, or no elements
        return int(array.__array_interface__["data"][0])


def align_up(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines."""
    return -(-nbytes // LINE) * LINE


def forget(array: np.ndarray[Any, Any]) -> None:
    """Mark this contiguous array's contents as invalid: they must be written before they are read."""
    if poison is not None:
        array.reshape(-1).view(np.uint8)[...] = poison


MANY = 512
"""Up to this many buffers are placed by size."""


@frozen
class Need:
    """A buffer of `nbytes` that is in use from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def arrange(needs: Sequence[Need]) -> tuple[list[int], int]:
    """Offsets of the buffers, at the start of cache lines, and the size of the whole.

    Buffers in use at the same step do not overlap. The largest are placed first, in the first gap: this leaves few gaps
    but looks at all buffers in use at once. More than MANY are placed in the order in which they are needed, in the
    smallest gap.
    """
    if len(needs) > MANY:
        return _in_time(needs)
    offsets, firsts = [0] * len(needs), sorted({need.first for need in needs})
    begun: list[list[tuple[int, int]]] = [[] for _ in firsts]
    there: list[list[tuple[int, int]]] = [[] for _ in firsts]
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, needs[i].first)):
        need, at = needs[i], 0
        first, last = bisect_left(firsts, need.first), bisect_right(firsts, need.last)
        for start, end in sorted(chain(there[first], *begun[first + 1 : last])):
            if at + need.nbytes <= start:
                break
            at = max(at, end)
        offsets[i] = at
        own = at, align_up(at + need.nbytes)
        begun[first].append(own)
        for others in there[first:last]:
            others.append(own)
    return offsets, max((o + align_up(n.nbytes) for o, n in zip(offsets, needs, strict=True)), default=0)


def _in_time(needs: Sequence[Need]) -> tuple[list[int], int]:
    """Offsets, and total bytes, by placing the buffers in the order of their first use."""
    offsets = [0] * len(needs)
    ends: list[tuple[int, int, int]] = []
    gaps = _Gaps()
    for i in sorted(range(len(needs)), key=lambda i: needs[i].first):
        while ends and ends[0][0] < needs[i].first:
            gaps.give(*heappop(ends)[1:])
        room = align_up(needs[i].nbytes)
        if room:
            offsets[i] = gaps.take(room)
            heappush(ends, (needs[i].last, offsets[i], offsets[i] + room))
    return offsets, gaps.top


class _Gaps:
    """The free memory below `top`: by size, and by first and last byte."""

    def __init__(self) -> None:
        self.top = 0
        self._sizes: list[tuple[int, int]] = []
        self._ends: dict[int, int] = {}
        self._starts: dict[int, int] = {}

    def take(self, room: int) -> int:
        """Allocate `room` bytes and return their start: from the smallest gap that has them, else at the top."""
        at = bisect_left(self._sizes, (room, 0))
        if at == len(self._sizes):
            self.top += room
            return self.top - room
        size, start = self._sizes.pop(at)
        self._remove(start)
        if size > room:
            self._add(start + room, start + size)
        return start

    def give(self, start: int, end: int) -> None:
        """Free these bytes, and join them with free neighbours."""
        before, after = self._starts.get(start), self._ends.get(end)
        for gap, last in ((before, start), (end if after is not None else None, after)):
            if gap is not None and last is not None:
                del self._sizes[bisect_left(self._sizes, (last - gap, gap))]
                self._remove(gap)
        self._add(start if before is None else before, end if after is None else after)

    def _add(self, start: int, end: int) -> None:
        """Add a gap."""
        insort(self._sizes, (end - start, start))
        self._ends[start], self._starts[end] = end, start

    def _remove(self, start: int) -> None:
        """Remove a gap."""
        del self._starts[self._ends.pop(start)]
