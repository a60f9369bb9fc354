"""Loops, branches and shared tiles on top of the IR writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from qrun.native._ir import Typed, Writer
from qrun.native._runner import DOUBT


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

    def runs(self, first: str, end: str, counts: Iterable[int]) -> Iterator[tuple[str, int]]:
        """The body for runs of range(first, end), signed: the first index and the number of each.

        One loop for each of `counts`, the last of which is 1: those before leave to it what they cannot fill.
        """
        for count in counts:
            with self.loop(first, self.add(end, 1 - count) if count > 1 else end, count) as turn:
                yield turn.index, count
            first = turn.index

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """The body if an i1 is true; it makes no values that are used after it."""
        self.blocks += 1
        inside, after = f"then{self.blocks}", f"after{self.blocks}"
        self.do(f"br i1 {condition}, label %{inside}, label %{after}")
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

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

    def undecided(self) -> None:
        """Say that a result is not decided."""
        self.do(f"store atomic i64 1, ptr {self.at('%args', DOUBT)} monotonic, align 8")

    def split(self, number: str, by: str) -> tuple[str, str]:
        """Quotient and remainder of non-negative i64."""
        return self.let(f"udiv i64 {number}, {by}"), self.let(f"urem i64 {number}, {by}")

    def kernel(self) -> str:
        return self.function("define i64 @kernel(ptr noalias %args, ptr noalias %next)")


def interleaved(w: Writer, element: str, size: int, rows: list[str], count: int) -> list[str]:
    """Vectors [rows][count] of elements of `size` bytes to [count][rows], in pieces of 16 bytes, or one smaller piece.

    The number of rows is a power of two, or 3 of at least 16 bytes. Longer rows are taken as lanes of 16 bytes: the
    first lanes of all pieces come before the second ones, and `joined` or `sixteens` puts them in order.
    """
    lanes = max(count * size // 16, 1)
    each = count // lanes
    if len(rows) == 3:
        return _three(w, element, rows, count, each)
    pieces = [[row] for row in rows]
    while len(pieces) > 1:
        half = len(pieces) // 2
        pieces = [
            [
                p
                for x, y in zip(pieces[i], pieces[i + half], strict=True)
                for p in _pair(w, element, size, x, y, each, lanes)
            ]
            for i in range(half)
        ]
        each = min(2 * each, 16 // size)
    return pieces[0]


def _pair(w: Writer, element: str, size: int, a: str, b: str, each: int, lanes: int) -> list[str]:
    """Elements of a and b by turns, in every lane of `each`: as one vector if it has at most 16 bytes, else as two."""
    order = [
        [lane * each + i + source * each * lanes for i in range(each) for source in (0, 1)] for lane in range(lanes)
    ]
    if 2 * each * size <= 16:
        return [shuffled(w, element, each * lanes, a, b, order[0])]
    return [shuffled(w, element, each * lanes, a, b, [i for o in order for i in o[part]])
            for part in (slice(each), slice(each, None))]  # fmt: skip


def joined(w: Writer, element: str, pieces: list[str], count: int) -> list[str]:
    """Pieces of 32 bytes, `count` elements, to vectors that hold neighbouring 16 bytes."""
    half = count // 2
    return [
        shuffled(w, element, count, a, b, [*range(start, start + half), *range(count + start, count + start + half)])
        for start in (0, half)
        for a, b in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def sixteens(w: Writer, element: str, pieces: list[str], count: int, size: int) -> list[str]:
    """Pieces of `count` elements, several times 16 bytes, to the 16 bytes of each lane, in order."""
    each = 16 // size
    return [
        shuffled(w, element, count, piece, "poison", range(start, start + each))
        for start in range(0, count, each)
        for piece in pieces
    ]


def shuffled(w: Writer, element: str, count: int, a: str, b: str, order: Iterable[int]) -> str:
    kind, lanes = f"<{count} x {element}>", ["i32 poison" if i < 0 else f"i32 {i}" for i in order]
    return w.let(f"shufflevector {kind} {a}, {kind} {b}, <{len(lanes)} x i32> <{', '.join(lanes)}>")


def _three(w: Writer, element: str, rows: list[str], count: int, each: int) -> list[str]:
    """In each lane of `each` elements the elements of three rows by turns."""
    pieces = []
    for first in range(0, 3 * each, each):
        two, three = [], []
        for place, (lane, p) in enumerate(
            (lane, p) for lane in range(0, count, each) for p in range(first, first + each)
        ):
            source = lane + p // 3
            two.append(source + p % 3 * count if p % 3 < 2 else -1)
            three.append(place if p % 3 < 2 else count + source)
        pieces.append(shuffled(w, element, count, shuffled(w, element, count, rows[0], rows[1], two), rows[2], three))
    return pieces


def store_first(w: Flow, value: str, count: str, pointer: str) -> None:
    """The first `count` of 16 bytes, count less than 16."""
    for size in (8, 4, 2, 1):
        some = w.let(f"and i64 {count}, {size}")
        on = w.let(f"icmp ne i64 {some}, 0")
        with w.when(on):
            w.store(f"<{size} x i8>", shuffled(w, "i8", 16, value, "poison", range(size)), pointer)
        rest = shuffled(w, "i8", 16, value, "poison", [(i + size) % 16 for i in range(16)])
        value = w.let(f"select i1 {on}, <16 x i8> {rest}, <16 x i8> {value}")
        pointer = w.at(pointer, some)
