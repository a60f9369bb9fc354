"""Kernel calls that Python makes: prepared once, repeated on buffers that differ from run to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.machine.call import WORDS, invoke
from qrun.native.machine.engine import Engine, wait_for
from qrun.native.machine.memory import Ints, address, aligned, forget, unwritten

_LINES = -(-WORDS // 8) * 8
_WORTH = 12
"""Tiles, of some microseconds at least, from which on it is worth to wake other threads."""
T = TypeVar("T")


@frozen
class BatchCall:
    """A kernel, its argument struct, in how many tiles threads can share it, and the memory each one brings."""

    kernel: Any
    arguments: Ints
    tiles: int = 1
    scratch: int = 0


class Buffer:
    """An array, and where it is."""

    __slots__ = ("array", "start")

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array, self.start = array, address(array)

    @classmethod
    def empty(cls, shape: tuple[int, ...], dtype: Any) -> Buffer:
        return cls(unwritten(shape, dtype))


def buffer(room: dict[Any, Any], name: str, shape: tuple[int, ...], dtype: Any) -> Buffer:
    """An array of a run's own memory, not initialised; one name stands for one shape."""
    found: Buffer | None = room.get(name)
    if found is None:
        found = room[name] = Buffer(aligned(shape, dtype))
    else:
        forget(found.array)
    return found


class Batch:
    """Calls that do not depend on each other, and their structs. For one run at a time.

    Each run begins with `renew`; then `move` adds to words that hold offsets, and `execute` calls the kernels.
    """

    def __init__(self, engine: Engine, calls: Sequence[BatchCall]) -> None:
        self.pool = engine.pool
        self.template = np.zeros((len(calls), _LINES), np.int64)
        self.template[:, :WORDS] = [call.arguments for call in calls]
        self.words = aligned(self.template.shape, np.int64, 0)
        base, step = address(self.words), self.words.strides[0]
        self.starts = [(call.kernel, base + number * step, call.scratch) for number, call in enumerate(calls)]
        tiles = sum(call.tiles for call in calls)
        self.helpers = min(engine.threads, tiles) - 1 if tiles >= _WORTH else 0
        self._first = self.template[0].tolist()
        self._only: Any = memoryview(self.words.reshape(-1).data) if len(calls) == 1 else None

    def renew(self) -> None:
        self.words[...] = self.template

    def move(self, word: int, value: int) -> None:
        """Add an address or a number to this word of all structs."""
        if self._only is not None:
            self._only[word] = self._first[word] + value
        else:
            self.words[:, word] += value

    def execute(self, *keep: object) -> None:
        """Make the calls; keep: what they work on."""
        if self.pool is None or self.helpers < 1:
            _walk(self.starts, keep)
            return
        waiting = [self.pool.submit(_walk, self.starts, (self, keep)) for _ in range(self.helpers)]
        _walk(self.starts, keep)
        wait_for(waiting)


def _walk(starts: Sequence[tuple[Any, int, int]], keep: object) -> None:
    """What every thread does: take the tiles of each call that are left."""
    for start in starts:
        invoke(*start)


class BufferPool(Generic[T]):
    """Memory for runs: each takes some of its own, and gives it back for the next one.

    A run that fails keeps it: its helpers might still be at work there.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._free: list[T] = []

    def take(self) -> T:
        try:
            return self._free.pop()
        except IndexError:
            return self._make()

    def give(self, room: T) -> None:
        self._free.append(room)
