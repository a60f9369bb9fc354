"""Loops, branches and shared tiles on top of the IR writer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import NamedTuple

from qrun.declare.frozen import changeable
from qrun.native.emit.spec import DOUBT
from qrun.native.emit.values import Operand, Value
from qrun.native.emit.writer import Writer


@changeable
class Turn:
    """One turn of a loop: the index, carried values at its start, and what `next` says they are at its end."""

    index: Value
    carried: list[Value]
    end: list[Value] = field(default_factory=list)

    def next(self, *values: Value) -> None:
        self.end = list(values)


class Carry(NamedTuple):
    """A value that `repeat` carries from turn to turn: its name, what it is first, its next name, and what is added."""

    name: str
    start: Value
    after: str
    step: int = 0


class Flow(Writer):
    """A Writer with loops that nest."""

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        super().__init__(fused, permutes)
        self.blocks = 0

    @contextmanager
    def loop(self, first: Operand, end: Operand, step: Operand, carried: Sequence[Value] = ()) -> Iterator[Turn]:
        """The body for each i64 index of range(first, end, step), signed; after it, `carried` has the last values."""
        self.blocks += 1
        head, body, out = (f"{name}{self.blocks}" for name in ("head", "body", "out"))
        before = self.here
        self.jump(head)
        self.label(head)
        place = len(self.lines)
        starts = [self.value("i64", "0").like(first), *carried]
        # What the next turn's values are is not known yet: these lines are written again below.
        index, *values = (self.let(start.kind, "phi") for start in starts)
        turn = Turn(index, values)
        self.branch(index.test("slt", end), body, out)
        self.label(body)
        yield turn
        following = [index + step, *turn.end]
        self.lines[place : place + len(starts)] = [
            f"  {value} = phi {value.kind} [{start}, %{before}], [{last}, %{self.here}]"
            for value, start, last in zip([index, *values], starts, following, strict=True)
        ]
        self.jump(head)
        self.label(out)

    @contextmanager
    def part(self, number: Value, size: Operand, end: Value) -> Iterator[Value]:
        """The body for each index of a part of range(end)."""
        with self.loop(*number.part(size, end), 1) as turn:
            yield turn.index

    def runs(self, first: Value, end: Value, counts: Iterable[int]) -> Iterator[tuple[Value, int]]:
        """The body for runs of range(first, end), signed: the first index and the number of each.

        One loop for each of `counts`, the last of which is 1: those before leave to it what they cannot fill.
        """
        for count in counts:
            with self.loop(first, end + (1 - count) if count > 1 else end, count) as turn:
                yield turn.index, count
            first = turn.index

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """The body if an i1 is true; it makes no values that are used after it."""
        self.blocks += 1
        inside, after = f"then{self.blocks}", f"after{self.blocks}"
        self.branch(condition, inside, after)
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

    @contextmanager
    def tiles(self, count: Value) -> Iterator[Value]:
        """The body for each tile that no other thread took; then the kernel returns how many that were.

        The counter decides only who does a tile, not what others see of memory: monotonic is enough.
        """
        before = self.here
        self.jump("claim")
        self.label("claim")
        place = len(self.lines)
        done = self.let("i64", "phi")
        tile = self.let("i64", "atomicrmw add ptr %next, i64 1 monotonic")
        self.branch(tile.test("ult", count), "work", "exit")
        self.label("exit")
        self.do(f"ret i64 {done}")
        self.label("work")
        yield tile
        following = done + 1
        self.lines[place] = f"  {done} = phi i64 [0, %{before}], [{following}, %{self.here}]"
        self.jump("claim")

    @contextmanager
    def named_tiles(self, count: Value) -> Iterator[Value]:
        """As `tiles`, in names that do not change with the kernel; the body ends in the block `block_end`."""
        self.jump("claim")
        self.label("claim")
        done = self.turn("%done", self.value("i64", 0), "entry", "%done1", "block_end")
        tile = self.let("i64", "atomicrmw add ptr %next, i64 1 monotonic", "%tile")
        self.branch(tile.test("ult", count, "%some"), "work", "exit")
        self.label("exit")
        self.do(f"ret i64 {done}")
        self.label("work")
        done.plus(1, "%done1")
        yield tile
        self.jump("claim")

    @contextmanager
    def repeat(self, body: str, out: str, more: str, end: Value, carried: Sequence[Carry]) -> Iterator[list[Value]]:
        """The body until the first of the carried values, an unsigned index, reaches `end`: at least once.

        The test, called `more`, stands at the end. body, out: labels of the loop and of what follows it. The values of
        the next turn have the names that `carried` says: the body makes them, but for those that move by a step.
        """
        before = self.here
        self.jump(body)
        self.label(body)
        place = len(self.lines)
        values = [self.let(carry.start.kind, "phi", carry.name) for carry in carried]
        yield values
        moved = [
            self.at(value, carry.step, carry.after) if value.kind == "ptr" else value.plus(carry.step, carry.after)
            for value, carry in zip(values, carried, strict=True)
            if carry.step
        ]
        self.lines[place : place + len(carried)] = [
            f"  {carry.name} = phi {carry.start.kind} [{carry.start}, %{before}], [{carry.after}, %{self.here}]"
            for carry in carried
        ]
        self.branch(moved[0].test("ult", end, more), body, out)
        self.label(out)

    def undecided(self) -> None:
        """Say that a result is not decided. All threads store the same, and who reads it does so after the run."""
        self.do(f"store atomic i64 1, ptr {self.value('ptr', '%args') + DOUBT} monotonic, align 8")

    def prefetch(self, pointer: Value) -> None:
        """Prefetch the cache line at an address. Addresses past the end of the array are harmless."""
        self.run("llvm.prefetch.p0", pointer, ("i32", "0"), ("i32", "2"), ("i32", "1"))


def unpacking(count: int, piece: int, half: int, run: int = 1) -> list[int]:
    """The order that interleaves two vectors of `count` elements piece by piece, as x86's unpack instructions do.

    Of a piece of 8 elements of a and of b:   half 0: a0 b0 a1 b1 a2 b2 a3 b3   half 1: a4 b4 a5 b5 a6 b6 a7 b7
    In runs of two elements:                  half 0: a0 a1 b0 b1 a2 a3 b2 b3   half 1: a4 a5 b4 b5 a6 a7 b6 b7
    """
    starts = [base + half * piece // 2 + i for base in range(0, count, piece) for i in range(0, piece // 2, run)]
    return [start + source + i for start in starts for source in (0, count) for i in range(run)]


def interleaved(rows: list[Value]) -> list[Value]:
    """Vectors [rows][count] of integers to [count][rows], in pieces of 16 bytes, or one smaller piece.

    The number of rows is a power of two, or 3 of at least 16 bytes. Longer rows are taken as lanes of 16 bytes: the
    first lanes of all pieces come before the second ones, and `joined` or `sixteens` puts them in order.
    """
    size, count = _bytes(rows[0]), rows[0].lanes
    each = min(count, 16 // size)
    if len(rows) == 3:
        return _three(rows, count, each)
    pieces = [[row] for row in rows]
    while len(pieces) > 1:
        half = len(pieces) // 2
        pieces = [
            [piece for x, y in zip(pieces[i], pieces[i + half], strict=True) for piece in _pair(x, y, each)]
            for i in range(half)
        ]
        each = min(2 * each, 16 // size)
    return pieces[0]


def _bytes(vector: Value) -> int:
    """The size in bytes of an integer vector's element."""
    return int(vector.element[1:]) // 8


def _pair(a: Value, b: Value, each: int) -> list[Value]:
    """Elements of a and b by turns, in every lane of `each`: as one vector if it has at most 16 bytes, else as two."""
    low, high = (unpacking(a.lanes, each, half) for half in (0, 1))
    if 2 * each * _bytes(a) <= 16:
        return [a.shuffled(low + high, b)]
    return [a.shuffled(low, b), a.shuffled(high, b)]


def joined(pieces: list[Value]) -> list[Value]:
    """Pieces of 32 bytes to vectors that hold neighbouring 16 bytes."""
    count = pieces[0].lanes
    half = count // 2
    return [
        a.shuffled([*range(start, start + half), *range(count + start, count + start + half)], b)
        for start in (0, half)
        for a, b in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def sixteens(pieces: list[Value]) -> list[Value]:
    """Pieces of several lanes of 16 bytes as one list of the lanes, in order."""
    each = 16 // _bytes(pieces[0])
    return [piece.shuffled(range(start, start + each)) for start in range(0, pieces[0].lanes, each) for piece in pieces]


def _three(rows: list[Value], count: int, each: int) -> list[Value]:
    """The elements of three rows, interleaved within each lane of `each` elements."""
    pieces = []
    for first in range(0, 3 * each, each):
        two, three = [], []
        places = [(lane, p) for lane in range(0, count, each) for p in range(first, first + each)]
        for place, (lane, p) in enumerate(places):
            source = lane + p // 3
            two.append(source + p % 3 * count if p % 3 < 2 else -1)
            three.append(place if p % 3 < 2 else count + source)
        pieces.append(rows[0].shuffled(two, rows[1]).shuffled(three, rows[2]))
    return pieces


def store_first(w: Flow, value: Value, count: Value, pointer: Value) -> None:
    """The first `count` of 16 bytes, count less than 16: 8, 4, 2 and 1 of them, as the bits of count say."""
    for size in (8, 4, 2, 1):
        some = count & size
        on = some.test("ne", 0)
        with w.when(on):
            pointer.store(value.shuffled(range(size)))
        rest = value.shuffled((i + size) % 16 for i in range(16))
        value = on.select(rest, value)
        pointer = pointer + some
