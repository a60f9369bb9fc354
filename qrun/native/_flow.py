"""Loops, branches and shared tiles on top of the IR writer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qrun.native._ir import Typed, Writer


@dataclass(slots=True)
class Turn:
    """One turn of a loop: the index, carried values at its start, and what `next` says they are at its end."""

    index: str
    carried: list[str]
    end: list[str] = field(default_factory=list)

    def next(self, values: list[str]) -> None:
        self.end = values


class Flow(Writer):
    """A Writer that knows which block it is in, so that loops nest."""

    def __init__(self) -> None:
        super().__init__()
        self.here = ""
        self.blocks = 0

    def label(self, name: str) -> None:
        super().label(name)
        self.here = name

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    @contextmanager
    def loop(self, first: str, end: str, step: int | str, carried: list[Typed] | None = None) -> Iterator[Turn]:
        """The body for each i64 index of range(first, end, step), signed; after it, `carried` has the last values."""
        self.blocks += 1
        head, body, out = (f"{name}{self.blocks}" for name in ("head", "body", "out"))
        before = self.here
        self.jump(head)
        self.label(head)
        place = len(self.lines)
        kinds = [kind for kind, _ in carried or ()]
        index = self.let("phi")
        turn = Turn(index, [self.let("phi") for _ in kinds])
        inside = self.let(f"icmp slt i64 {index}, {end}")
        self.do(f"br i1 {inside}, label %{body}, label %{out}")
        self.label(body)
        yield turn
        following = self.add(index, step)
        starts = [first, *(value for _, value in carried or ())]
        names = zip([index, *turn.carried], ["i64", *kinds], starts, [following, *turn.end], strict=True)
        self.lines[place : place + 1 + len(kinds)] = [
            f"  {name} = phi {kind} [{start}, %{before}], [{last}, %{self.here}]" for name, kind, start, last in names
        ]
        self.jump(head)
        self.label(out)

    @contextmanager
    def tiles(self, count: str) -> Iterator[str]:
        """The body for each tile that no other thread took; then the kernel returns how many that were."""
        before = self.here
        self.jump("claim")
        self.label("claim")
        place = len(self.lines)
        done = self.let("phi")
        tile = self.let("atomicrmw add ptr %next, i64 1 monotonic")
        some = self.let(f"icmp ult i64 {tile}, {count}")
        self.do(f"br i1 {some}, label %work, label %exit")
        self.label("exit")
        self.do(f"ret i64 {done}")
        self.label("work")
        yield tile
        following = self.add(done, 1)
        self.lines[place] = f"  {done} = phi i64 [0, %{before}], [{following}, %{self.here}]"
        self.jump("claim")

    def split(self, number: str, by: str) -> tuple[str, str]:
        """Quotient and remainder of non-negative i64."""
        return self.let(f"udiv i64 {number}, {by}"), self.let(f"urem i64 {number}, {by}")

    def kernel(self) -> str:
        return self.function("define i64 @kernel(ptr noalias %args, ptr noalias %next)")


def interleaved(w: Writer, element: str, size: int, rows: list[str], count: int) -> list[str]:
    """Vectors [rows][count] of elements of `size` bytes to [count][rows], in pieces of 16 bytes, or one smaller piece.

    The number of rows is a power of two, or 3 of whole 16 bytes.
    """
    if len(rows) == 3:
        return _three(w, element, rows, count)
    pieces = [[row] for row in rows]
    while len(pieces) > 1:
        half = len(pieces) // 2
        pieces = [
            [p for x, y in zip(pieces[i], pieces[i + half], strict=True) for p in _pair(w, element, size, x, y, count)]
            for i in range(half)
        ]
        count = min(2 * count, 16 // size)
    return pieces[0]


def _pair(w: Writer, element: str, size: int, a: str, b: str, count: int) -> list[str]:
    """Elements of a and b by turns: as one vector if it has at most 16 bytes, else as two."""
    kind = f"<{count} x {element}>"
    order = [i + source * count for i in range(count) for source in (0, 1)]
    parts = [order] if 2 * count * size <= 16 else [order[:count], order[count:]]
    return [
        w.let(f"shufflevector {kind} {a}, {kind} {b}, <{len(p)} x i32> <{', '.join(f'i32 {i}' for i in p)}>")
        for p in parts
    ]


def _three(w: Writer, element: str, rows: list[str], count: int) -> list[str]:
    kind = f"<{count} x {element}>"
    pieces = []
    for first in range(0, 3 * count, count):
        places = range(first, first + count)
        two = [f"i32 {p // 3 + p % 3 * count}" if p % 3 < 2 else "i32 poison" for p in places]
        both = w.let(f"shufflevector {kind} {rows[0]}, {kind} {rows[1]}, <{count} x i32> <{', '.join(two)}>")
        all_three = [f"i32 {i if p % 3 < 2 else count + p // 3}" for i, p in enumerate(places)]
        pieces.append(w.let(f"shufflevector {kind} {both}, {kind} {rows[2]}, <{count} x i32> <{', '.join(all_three)}>"))
    return pieces
