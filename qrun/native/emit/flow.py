"""The text of one function in LLVM IR: values get numbers, intrinsics declare themselves, loops nest, threads share tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import NamedTuple

from qrun.declare.frozen import changeable
from qrun.native.emit.spec import DOUBT, UNDECIDED
from qrun.native.emit.values import Instructions, Operand, Typed, Value

Pause = tuple[str, Sequence[Typed]]
"""An intrinsic without a result, and its operands."""
_ENDED_AT = 32
_ENDED = 1 << _ENDED_AT
"""Of a counter of tiles: one that has ended."""


class Writer(Instructions):
    """Instructions of one function in labelled blocks."""

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        super().__init__(fused, permutes)
        self.here = ""
        """The label of the block that is being written."""

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.here = name

    def jump(self, label: str) -> None:
        self.do(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def either(self, condition: Value, yes: str, no: str, after: str) -> Iterator[bool]:
        """The body twice, with True for where the i1 is true and False for where it is not, then the label `after`."""
        self.branch(condition, yes, no)
        for name in (yes, no):
            self.label(name)
            yield name == yes
            self.jump(after)
        self.label(after)

    def phi(self, *cases: tuple[Value, str]) -> Value:
        """The value that belongs to the block executed before. Values are given with their blocks' labels."""
        kind = cases[0][0].kind
        return self.let(kind, f"phi {kind} {', '.join(f'[{value}, %{label}]' for value, label in cases)}")

    def turn(self, name: str, first: Value, before: str, following: str, after: str) -> Value:
        """A value with a name: `first` if its block is entered from label `before`, `following` if from `after`."""
        return self.let(first.kind, f"phi {first.kind} [{first}, %{before}], [{following}, %{after}]", name)

    def function(self, head: str) -> str:
        """The LLVM IR of a module with this one function."""
        return "\n".join([*sorted(self.declared), "", f"{head} {{", *self.lines, "}", ""])


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
    """A Writer with loops that nest.

    frozen: LLVM sees no recurrence in an index, and does not search for what else it could count instead. The search takes
            a third of the time to compile a long body, and saves little there.
    """

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        super().__init__(fused, permutes)
        self.blocks = 0
        self.frozen = False

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
        if self.frozen:
            following[0] = self.let("i64", f"freeze i64 {following[0]}")
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

    def instead(self, value: Value, unsure: Value, again: Callable[[], tuple[Value, Value]]) -> tuple[Value, Value]:
        """A value and where it is unsure, or, if some lane is, what `again` makes of both."""
        self.blocks += 1
        other, after, before = f"again{self.blocks}", f"made{self.blocks}", self.here
        self.branch(unsure.any(), other, after)
        self.label(other)
        better = again()
        end = self.here
        self.jump(after)
        self.label(after)
        first, second = ((value, better[0]), (unsure, better[1]))
        made, rest = (self.phi((one, before), (two, end)) for one, two in (first, second))
        return made, rest

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
    def rounds(self, count: Value, size: Value, pause: Pause) -> Iterator[Value]:
        """As `tiles`, `size` of them a round: a tile is taken when all of the rounds before have ended. A thread that waits has
        taken none, so nobody waits for one that sleeps while it waits, and one alone goes through all.

        The counter's upper half counts those that have ended: adding to it is a release, reading it an acquire.
        pause: what a thread does that waits.
        """
        before = self.here
        self.jump("look")
        self.label("look")
        place = len(self.lines)
        done = self.let("i64", "phi")
        seen = self.let("i64", "load atomic i64, ptr %next acquire, align 8")
        tile = seen & (_ENDED - 1)
        self.branch(tile.test("ult", count), "open", "exit")
        self.label("exit")
        self.do(f"ret i64 {done}")
        self.label("open")
        self.branch(seen.lshr(_ENDED_AT).test("uge", tile - tile % size), "claim", "again")
        self.label("again")
        self.run(pause[0], *pause[1])
        self.jump("look")
        self.label("claim")
        took = self.let("{ i64, i1 }", f"cmpxchg ptr %next, i64 {seen}, i64 {seen + 1} acquire monotonic")
        self.branch(self.let("i1", f"extractvalue {took.kind} {took}, 1"), "work", "look")
        self.label("work")
        yield tile
        self.let("i64", f"atomicrmw add ptr %next, i64 {_ENDED} release")
        cases = f"[0, %{before}], [{done}, %again], [{done}, %claim], [{done + 1}, %{self.here}]"
        self.lines[place] = f"  {done} = phi i64 {cases}"
        self.jump("look")

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

    def undecided(self, mark: Value | int = UNDECIDED) -> None:
        """Say that a result is not decided, and why. Who reads it does so after the run."""
        self.do(f"atomicrmw umax ptr {self.value('ptr', '%args') + DOUBT}, i64 {mark} monotonic, align 8")

    def prefetch(self, pointer: Value, near: bool = False) -> None:
        """Prefetch the cache line at an address, into the first-level cache if it is needed soon. Addresses past the end of
        the array are harmless."""
        self.run("llvm.prefetch.p0", pointer, ("i32", "0"), ("i32", "3" if near else "2"), ("i32", "1"))
