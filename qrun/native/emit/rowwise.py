"""Generated work on float32 rows: where they are read, or what they are made of, sums over them, and rows in doubt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

from qrun.native.emit.expression import KINDS, operand_names
from qrun.native.emit.functions import StepsEmitter
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value
from qrun.native.emit.numbers import RecheckEmitter, differ
from qrun.native.emit.spec import OUTER
from qrun.native.emit.widen import folded

_SOURCE = ("n1", "n2", "strides*", "constants*", "slots")
ROWS = ("y*", "rows", "chunk", "tiles", "length", "recheck*", "numbers*")
"""One 8-byte word each.

n1, n2     of rows that a form makes: lengths of the second and third of the axes that they are along
strides    int64 [operands][OUTER]: the operands' bytes along these
constants  of the form, as in emit/elementwise.py
slots      rows for which the thread's memory has room
chunk      rows of a tile; length: elements of a row
recheck    makes rows, of their elements, where float64 does not decide how a result rounds
numbers    float64, those of the kernel
"""

Term = Callable[[int, Value], Value]
"""(n, index) to what is added: n float64 of a row, from this index on."""
Result = Callable[[int, Value], tuple[Value, Value]]
"""(n, index) to the ends of what n results may be."""
Part = tuple[Value, Value, Value]
"""Where a part of a row begins, where the last vector of it has ended, and where the part ends."""
REACH, SHARE = 0, 8
"""Places in `numbers`: the reach of a sum relative to that of all sizes, and of a logarithm relative to its size."""
SUMS = 2
"""Partial sums of a row, vectors that do not wait for each other."""


class RowwiseEmitter(KernelEmitter):
    """Rows one after another, `rows` elements at once and what is left one by one.

    A row is read where it lies. With operands (then the form is the steps), it is computed from them into a slot of the
    thread's memory, behind `vectors` rows of float64; doubtful rows keep their slots. `vectors` rows are made together.
    """

    own: tuple[str, ...] = ROWS
    own_memory = True
    frozen = True
    reduces = False
    """Whether a row has a single result."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))[:-1] or ("x",)
        self.names = (*(f"{name}*" for name in self.operands), *(_SOURCE if spec.operands else ()), *self.own)
        super().__init__(spec, isa)
        self.n, a = spec.rows, self.a
        self.whole = a.length & -self.n
        self.made = self.w.value("i64", 1) if self.reduces else a.length
        self.doubts = RecheckEmitter(self.w, a.recheck, a.length, self.made)
        self.steps = (
            [StepsEmitter(spec.form, spec.operands, n, a.constants) for n in (self.n, 1)] if spec.operands else []
        )

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        most = self.spec.vectors
        for row, count in w.runs(*tile.part(a.chunk, a.rows), (most, 1) if most > 1 else (1,)):
            numbers = [row + number for number in range(count)]
            slot = self.doubts.count.load("i64", 8)
            xs = [
                self._source(number, slot + place) if self.steps else a.x + number * a.length * 4
                for place, number in enumerate(numbers)
            ]
            ys = [a.y + number * self.made * 4 for number in numbers]
            for x, y, doubted in zip(xs, ys, self.made_rows(xs, ys), strict=True):
                with w.when(doubted):
                    self.doubted(x, y)
            if self.steps:
                self.doubts.end(a.slots if most == 1 else 1)
        self.doubts.end()

    def made_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> Sequence[Value]:
        """Make rows of each x, into each y. Returns an i1 for each: whether float64 leaves some result in doubt."""
        return [self.made_row(x, y) for x, y in zip(xs, ys, strict=True)]

    def _source(self, row: Value, slot: Value) -> Value:
        """Compute a row from its operands. Returns where it lies."""
        w, a = self.w, self.a
        made, (rest, i2) = self.scratch + (slot * 4 + 8 * self.spec.vectors) * a.length, divmod(row, a.n2)
        starts = [a[name] for name in self.operands]
        for axis, index in enumerate((*divmod(rest, a.n1), i2)):
            for number, start in enumerate(starts):
                starts[number] = start + index * (a.strides + 8 * (number * OUTER + axis)).load("i64", 8)
        kinds = list(enumerate(self.spec.operands))
        same = [{n: steps.same(n, starts[n]) for n, kind in kinds if kind.isupper()} for steps in self.steps]
        for at, count in w.runs(0, a.length, (self.n, 1)):
            steps = self.steps[count != self.n]
            for n, kind in (
                kinds if count > 1 and self.spec.prefetch else ()
            ):  # what lies there belongs to later rows, or is harmless
                if not kind.isupper():
                    w.prefetch(starts[n] + (at + a.length * self.spec.vectors) * KINDS[kind][1])
            values = [
                same[count != self.n][n] if kind.isupper() else steps.loaded(n, starts[n], at) for n, kind in kinds
            ]
            for number in range(steps.read, steps.last + 1):
                values.append(steps.made(number, [values[value] for value in steps.step(number).values]))
            (made + at * 4).store(values[-1], 4)
        return made

    def doubted(self, x: Value, y: Value) -> None:
        """Make a row again whose results float64 leaves in doubt."""
        self.doubts.add(x, y)

    def made_row(self, x: Value, y: Value) -> Value:
        """Make the row at x, into y. Returns an i1: whether float64 leaves some result in doubt."""
        raise NotImplementedError

    def number(self, place: int) -> Value:
        return (self.a.numbers + place).load("double", 8)

    def loaded(self, n: int, start: Value, index: Value) -> Value:
        return (start + index * 4).load(f"<{n} x float>", 4).double()

    def sum(self, term: Term) -> Value:
        """The sum of all terms."""
        return self.joined(term, self.w.zero(f"<{self.n} x double>"), add)

    def extreme(self, x: Value, worst: float, better: Callable[[Value, Value], Value]) -> Value:
        """The best element of the row at x, float; `better` chooses between the best so far and a later one."""
        first = self.w.value(f"<{self.n} x float>", worst)
        return self.joined(lambda n, at: (x + at * 4).load(f"<{n} x float>", 4), first, better)

    def joined(self, term: Term, first: Value, join: Callable[[Value, Value], Value]) -> Value:
        """`first` joined with all terms: within each lane, then over the lanes,
        then with the elements that fill no vector."""
        w, n = self.w, self.n
        block = self.a.length & -(SUMS * n)
        with w.loop(0, block, SUMS * n, [first] * SUMS) as turns:
            terms = [term(n, turns.index + number * n) for number in range(SUMS)]
            turns.next(*map(join, turns.carried, terms))
        with w.loop(block, self.whole, n, [reduce(join, turns.carried)]) as turn:
            turn.next(join(turn.carried[0], term(n, turn.index)))
        with w.loop(self.whole, self.a.length, 1, [folded(turn.carried[0], join).splat(1)]) as rest:
            rest.next(join(rest.carried[0], term(1, rest.index)))
        return rest.carried[0].extract(0)

    def stored(self, y: Value, result: Result, part: Part | None = None) -> Value:
        """Store all results of a row, or of a part of it. Returns an i1: whether some are in doubt."""

        def made(n: int, index: Value) -> Value:
            low, high = (end.single() for end in result(n, index))
            (y + index * 4).store(low, 4)
            return differ(low, high)

        return self.some(made, part)

    def some(self, made: Term, part: Part | None = None) -> Value:
        """An i1: whether one of those that `made` gives for the elements of a row, or of a part of it, is true."""
        w = self.w
        first, whole, end = part or (0, self.whole, self.a.length)
        with w.loop(first, whole, self.n, [w.zero(f"<{self.n} x i1>")]) as turn:
            turn.next(turn.carried[0] | made(self.n, turn.index))
        with w.loop(whole, end, 1, [turn.carried[0].any().splat(1)]) as rest:
            rest.next(rest.carried[0] | made(1, rest.index))
        return rest.carried[0].any()
