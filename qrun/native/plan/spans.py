"""Which bytes of the arena calls touch, and whether those of another call are among them."""

from __future__ import annotations

from bisect import bisect_right, insort

from qrun.declare.frozen import frozen
from qrun.native.machine.operation import size
from qrun.native.plan.placement import Storage


@frozen
class Span:
    """Bytes of the arena that a call touches; columns: of each row, where rows are `stride` bytes apart."""

    root: Storage
    first: int
    end: int
    stride: int
    columns: tuple[int, int]

    @classmethod
    def of(cls, storage: Storage) -> Span:
        root, row = storage.root, storage.row_bytes
        rows = size(storage.operand.shape) * storage.operand.dtype.itemsize // max(row, 1)
        place, stride = storage.place, storage.stride
        column = (place - root.place) % stride if stride else 0
        end = place + ((rows - 1) * stride + row if stride and rows else storage.nbytes)
        return cls(root, place, end, stride, (column, column + row))

    @property
    def grid(self) -> tuple[Storage, int] | None:
        """Spans of one grid meet only if their columns do."""
        return (self.root, self.stride) if self.stride else None


class Ranges:
    """Half-open ranges of numbers, joined where they meet; `tag`: what all of a joined range have in common, or None."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: dict[int, tuple[int, object]] = {}

    def meeting(self, first: int, end: int) -> list[int]:
        """Starts of the ranges that have a number in common with this one."""
        at = bisect_right(self._starts, first) - 1
        found = []
        for start in self._starts[max(at, 0) : at + 1]:
            if self._ranges[start][0] > first:
                found.append(start)
        for place in range(at + 1, len(self._starts)):
            if self._starts[place] >= end:
                break
            found.append(self._starts[place])
        return found

    def tag(self, start: int) -> object:
        return self._ranges[start][1]

    def add(self, first: int, end: int, tag: object = None) -> None:
        if first >= end:
            return
        for start in self.meeting(first - 1, end + 1):
            other, had = self._ranges[start]
            if had != tag and (start >= end or other <= first):
                continue
            del self._ranges[start]
            del self._starts[bisect_right(self._starts, start) - 1]
            first, end, tag = min(first, start), max(end, other), tag if had == tag else None
        insort(self._starts, first)
        self._ranges[first] = end, tag


class Touched:
    """The spans of some calls. Now and then it takes spans to meet that do not, where different grids overlap."""

    def __init__(self) -> None:
        self._bytes = Ranges()
        self._columns: dict[object, Ranges] = {}

    def meets(self, span: Span) -> bool:
        found = self._bytes.meeting(span.first, span.end)
        if not found or span.grid is None or any(self._bytes.tag(start) != span.grid for start in found):
            return bool(found)
        return bool(self._columns[span.grid].meeting(*span.columns))

    def add(self, span: Span) -> None:
        self._bytes.add(span.first, span.end, span.grid)
        if span.grid is not None:
            self._columns.setdefault(span.grid, Ranges()).add(*span.columns)
