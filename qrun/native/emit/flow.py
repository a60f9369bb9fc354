"""Control flow of one function in LLVM IR: labelled blocks, loops, conditions, and the loop in which threads share
tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field

from qrun.declare.frozen import changeable
from qrun.native.emit.spec import DOUBT, UNDECIDED
from qrun.native.emit.values import Instructions, Operand, Typed, Value

Pause = tuple[str, Sequence[Typed]]
"""An intrinsic without a result, and its operands."""
_ENDED_AT = 32
_ENDED = 1 << _ENDED_AT
"""Added to a counter of tiles, it counts one finished tile."""


@changeable
class Turn:
    """One iteration of a loop: the index, the carried values at its start, and those at its end, set by `next`."""

    index: Value
    carried: list[Value]
    end: list[Value] = field(default_factory=list)

    def next(self, *values: Value) -> None:
        """End the turn of a loop with these values for the next turn."""
        self.end = list(values)


class Flow(Instructions):
    """Instructions of one function in labelled blocks, and loops that nest.

    frozen: hides from LLVM that indices are recurrences, so that it does not search for other induction variables. The
            search takes a third of the time to compile a long body, and saves little there.
    here:   the label of the block that is being written.
    done:   how many tiles this call of the kernel made; known after `tiles` and `rounds`.
    """

    done: Value

    def __init__(self, fused: bool = False, permutes: bool = False) -> None:
        super().__init__(fused, permutes)
        self.here, self.blocks, self.frozen = "", 0, False

    def labels(self, *names: str) -> list[str]:
        """New labels, unique in the function, that begin with these names."""
        self.blocks += 1
        return [f"{name}{self.blocks}" for name in names]

    def label(self, name: str) -> None:
        """Begin a basic block."""
        self.lines.append(f"{name}:")
        self.here = name

    def jump(self, label: str) -> None:
        """Branch to a label."""
        self.do(f"br label %{label}")

    def branch(self, condition: Value, yes: str, no: str) -> None:
        """Branch to one of two labels."""
        self.do(f"br i1 {condition}, label %{yes}, label %{no}")

    def phi(self, *cases: tuple[Value, str]) -> Value:
        """The value whose label is that of the block executed before. cases: values with their blocks' labels."""
        kind = cases[0][0].kind
        return self.let(kind, f"phi {kind} {', '.join(f'[{value}, %{label}]' for value, label in cases)}")

    def head(self, label: str, starts: Sequence[Value]) -> tuple[int, list[Value]]:
        """Begin a block to which loops go back. Returns the head, for `back`, and its values, at first `starts`."""
        before = self.here
        self.jump(label)
        self.label(label)
        return len(self.lines), [self.phi((start, before)) for start in starts]

    def back(self, head: int, following: Sequence[Value]) -> None:
        """Set the values that a head gets when this block jumps back to it."""
        for position, value in enumerate(following, head):
            self.lines[position] += f", [{value}, %{self.here}]"

    def function(self, head: str) -> str:
        """The LLVM IR of a module with this one function."""
        return "\n".join([*sorted(self.declared), "", f"{head} {{", *self.lines, "}", ""])

    @contextmanager
    def loop(
        self, first: Operand, end: Operand, step: Operand, carried: Sequence[Value] = (), once: bool = False
    ) -> Iterator[Turn]:
        """Run the body for each i64 index of range(first, end, step), signed. After it, `carried` has the last values.

        once: test after the body instead of before it, so that the body runs for `first` even if the range is empty.
        """
        start, body, out = self.labels("head", "body", "out")
        head, (index, *values) = self.head(body if once else start, [self.value("i64", "0").like(first), *carried])
        turn = Turn(index, values)
        if not once:
            self.branch(index.test("slt", end), body, out)
            self.label(body)
        yield turn
        following = [index + step, *turn.end]
        if self.frozen:
            following[0] = self.let("i64", f"freeze i64 {following[0]}")
        self.back(head, following)
        if once:
            turn.index, turn.carried = following[0], following[1:]
            self.branch(turn.index.test("slt", end), body, out)
        else:
            self.jump(start)
        self.label(out)

    @contextmanager
    def part(self, number: Value, size: Operand, end: Value) -> Iterator[Value]:
        """Run the body for each index of part `number` of range(end), cut into parts of this size."""
        with self.loop(*number.part(size, end), 1) as turn:
            yield turn.index

    def runs(self, first: Operand, end: Value, counts: Iterable[int]) -> Iterator[tuple[Value, int]]:
        """Run the body for runs of neighbours in range(first, end), signed. Yields each run's first index and length.

        Writes one loop for each of `counts`, the last of which is 1: each loop leaves the rest to the next one.
        """
        for count in counts:
            with self.loop(first, end + (1 - count) if count > 1 else end, count) as turn:
                yield turn.index, count
            first = turn.index

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Run the body if an i1 is true. Values made in it must not be used after it."""
        inside, after = self.labels("then", "after")
        self.branch(condition, inside, after)
        self.label(inside)
        yield
        self.jump(after)
        self.label(after)

    def either(self, condition: Value) -> Iterator[bool]:
        """Write the body twice: with True for the branch where the i1 is true, with False for the other one."""
        yes, no, after = self.labels("yes", "no", "after")
        self.branch(condition, yes, no)
        for name in (yes, no):
            self.label(name)
            yield name == yes
            self.jump(after)
        self.label(after)

    def instead(self, values: Sequence[Value], where: Value, make: Callable[[], Sequence[Value]]) -> list[Value]:
        """These values, or if an i1 is true, those that `make` computes instead."""
        other, after = self.labels("other", "after")
        before = self.here
        self.branch(where, other, after)
        self.label(other)
        made, end = make(), self.here
        self.jump(after)
        self.label(after)
        return [self.phi((value, before), (better, end)) for value, better in zip(values, made, strict=True)]

    @contextmanager
    def tiles(self, count: Value, carried: Sequence[Value] = ()) -> Iterator[Turn]:
        """Run the body for each tile that no other thread took.
        Values are carried from one tile of this thread to its next one.

        The counter decides only who makes a tile, and orders no other memory: monotonic is enough.
        """
        head, (self.done, *values) = self.head("claim", [self.value("i64", 0), *carried])
        turn = Turn(self.atomic("add", self.value("ptr", "%next"), 1, "monotonic"), values)
        self.branch(turn.index.test("ult", count), "work", "exit")
        self.label("work")
        yield turn
        self.back(head, [self.done + 1, *turn.end])
        self.jump("claim")
        self.label("exit")

    @contextmanager
    def rounds(self, count: Value, size: Value, pause: Pause) -> Iterator[Value]:
        """As `tiles`, in rounds of `size` tiles: a thread takes a tile only when all tiles of earlier rounds are done.
        While it waits it holds no tile, so that no other thread waits for it; a single thread makes all rounds.

        The upper half of the counter counts ended tiles: adding to it is a release, reading it an acquire.
        pause: the intrinsic that a waiting thread calls in each iteration.
        """
        counter = self.value("ptr", "%next")
        head, (self.done,) = self.head("look", [self.value("i64", 0)])
        seen = self.atomic_load(counter, "acquire")
        tile = seen & (_ENDED - 1)
        self.branch(tile.test("ult", count), "open", "exit")
        self.label("open")
        self.branch(seen.lshr(_ENDED_AT).test("uge", tile - tile % size), "claim", "again")
        self.label("again")
        self.run(pause[0], *pause[1])
        self.back(head, [self.done])
        self.jump("look")
        self.label("claim")
        took = self.let("{ i64, i1 }", f"cmpxchg ptr {counter}, i64 {seen}, i64 {seen + 1} acquire monotonic")
        self.back(head, [self.done])
        self.branch(self.let("i1", f"extractvalue {took.kind} {took}, 1"), "work", "look")
        self.label("work")
        yield tile
        self.atomic("add", counter, _ENDED, "release")
        self.back(head, [self.done + 1])
        self.jump("look")
        self.label("exit")

    def atomic(self, what: str, pointer: Value, number: Operand, order: str) -> Value:
        """Change an i64 by one `atomicrmw`. Returns its previous value."""
        return self.let("i64", f"atomicrmw {what} ptr {pointer}, i64 {number} {order}")

    def atomic_load(self, pointer: Value, order: str) -> Value:
        """Load an int64 atomically with LLVM's memory `order`."""
        return self.let("i64", f"load atomic i64, ptr {pointer} {order}, align 8")

    def atomic_store(self, number: Operand, pointer: Value, order: str) -> None:
        """Store an int64 atomically with LLVM's memory `order`."""
        self.do(f"store atomic i64 {number}, ptr {pointer} {order}, align 8")

    def mark_undecided(self) -> None:
        """Mark the call's result as undecided, in the DOUBT word of its struct. The mark is read after the run."""
        self.atomic("umax", self.value("ptr", "%args") + DOUBT, UNDECIDED, "monotonic")

    def prefetch(self, pointer: Value, near: bool = False) -> None:
        """Prefetch the cache line at an address, into the first-level cache if it is needed soon. Addresses past the
        end of the array are harmless."""
        self.run("llvm.prefetch.p0", pointer, ("i32", "0"), ("i32", "3" if near else "2"), ("i32", "1"))


def functions(written: Mapping[str, Callable[..., Value | None]]) -> str:
    """The LLVM IR of a module of several functions. written: for each head, such as ``i64 @lead(ptr %state)``, the
    Python function that writes the body. It takes a Flow and the parameters, and returns the result, or None."""
    declared, lines = set[str](), list[str]()
    for head, write in written.items():
        w = Flow()
        w.label("entry")
        parameters = head.partition("(")[2].rstrip(")").split(", ")
        made = write(w, *(w.value(*parameter.split()) for parameter in parameters if parameter))
        w.do(f"ret {made.kind} {made}" if made else "ret void")
        declared |= w.declared
        lines += [f"define {head} {{", *w.lines, "}", ""]
    return "\n".join([*sorted(declared), "", *lines])
