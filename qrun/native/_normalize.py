"""Generated normalization of float32 rows by what they hold, in float64: by mean and deviation, and as shares of a sum."""

from __future__ import annotations

import math
from collections.abc import Callable

from qrun.native._doubts import Doubts
from qrun.native._flow import Flow
from qrun.native._ir import argument_loader, every, real
from qrun.native._numbers import Numbers
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

_ROWS = ("x*", "y*", "rows", "chunk", "tiles", "length", "settle*", "numbers*")
STANDARDIZE = (*_ROWS, "scale*", "bias*")
SHARES = MEAN = _ROWS
"""One 8-byte word each.

chunk        rows of a tile; length: elements of a row
scale, bias  float32 [length]
settle       makes rows, of their elements, where float64 does not decide how a result rounds
numbers      float64: the reach of a result relative to its size, or of a mean relative to that of all sizes; then for
             ``standardize`` its reach relative to the scale, epsilon, and the length
"""
REACH, SCALE_REACH, EPSILON, LENGTH = range(0, 32, 8)


class _Rows:
    """Rows one after another, `rows` elements at once and what is left one by one."""

    names: tuple[str, ...]
    reduces = False
    """Whether a row becomes one result."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.w, self.n = Flow(), spec.rows
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)
        self.wide, self.one = (Numbers(self.w, isa, n) for n in (self.n, 1))
        self.whole = self.w.let(f"and i64 {self.a['length']}, {-self.n}")
        self.made = "1" if self.reduces else self.a["length"]
        self.doubts = Doubts(self.w, self.a["settle"], self.a["length"], self.made)

    def text(self) -> str:
        w, a = self.w, self.a
        with w.tiles(a["tiles"]) as tile:
            first = w.mul(tile, a["chunk"])
            with w.loop(first, w.least(w.add(first, a["chunk"]), a["rows"]), 1) as row:
                sizes = (("x", a["length"]), ("y", self.made))
                x, y = (w.at(a[name], w.mul(w.mul(row.index, size), 4)) for name, size in sizes)
                with w.when(self._row(x, y)):
                    self.doubts.add(x, y)
            self.doubts.end()
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next, ptr noalias %scratch)")

    def _row(self, x: str, y: str) -> str:
        """Make a row; whether it is in doubt, i1."""
        raise NotImplementedError

    def _number(self, place: int) -> str:
        return self.w.load("double", self.w.at(self.a["numbers"], place), 8)

    def _all(self, numbers: Numbers, scalar: str) -> str:
        return self.w.splat(numbers.n, "double", scalar)

    def _loaded(self, numbers: Numbers, name: str, index: str) -> str:
        values = self.w.load(f"<{numbers.n} x float>", self.w.at(name, self.w.mul(index, 4)), 4)
        return numbers.wide(values)

    def _sum(self, term: Callable[[Numbers, str], str]) -> str:
        """The sum of what `term` makes of the elements at an index: in each lane, then of lanes, then of the rest."""
        w = self.w
        with w.loop("0", self.whole, self.n, [(self.wide.kind, "zeroinitializer")]) as turn:
            turn.next([self.wide.op("fadd", turn.carried[0], term(self.wide, turn.index))])
        start = (("double", "-0.0"), (self.wide.kind, turn.carried[0]))
        total = w.splat(1, "double", w.call("double", f"llvm.vector.reduce.fadd.v{self.n}f64", *start))
        with w.loop(self.whole, self.a["length"], 1, [(self.one.kind, total)]) as rest:
            rest.next([self.one.op("fadd", rest.carried[0], term(self.one, rest.index))])
        return w.let(f"extractelement {self.one.kind} {rest.carried[0]}, i32 0")

    def _stored(self, y: str, result: Callable[[Numbers, str], tuple[str, str]]) -> str:
        """Store the results at each index, known to within a reach; whether some are in doubt, i1."""
        w, flags = self.w, f"<{self.n} x i1>"

        def made(numbers: Numbers, index: str) -> str:
            value, reach = result(numbers, index)
            w.store(f"<{numbers.n} x float>", numbers.single(value), w.at(y, w.mul(index, 4)), 4)
            return numbers.differ(*(numbers.op(step, value, reach) for step in ("fsub", "fadd")))

        with w.loop("0", self.whole, self.n, [(flags, "zeroinitializer")]) as turn:
            turn.next([w.let(f"or {flags} {turn.carried[0]}, {made(self.wide, turn.index)}")])
        some = w.splat(1, "i1", self.wide.any(turn.carried[0]))
        with w.loop(self.whole, self.a["length"], 1, [("<1 x i1>", some)]) as rest:
            rest.next([w.let(f"or <1 x i1> {rest.carried[0]}, {made(self.one, rest.index)}")])
        return self.one.any(rest.carried[0])


class Standardize(_Rows):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""

    names = STANDARDIZE

    def _row(self, x: str, y: str) -> str:
        w, a = self.w, self.a
        length = self._number(LENGTH)
        mean = w.let(f"fdiv double {self._sum(lambda k, at: self._loaded(k, x, at))}, {length}")

        def apart(numbers: Numbers, index: str) -> str:
            return numbers.op("fsub", self._loaded(numbers, x, index), self._all(numbers, mean))

        def squared(numbers: Numbers, index: str) -> str:
            value = apart(numbers, index)
            return numbers.op("fmul", value, value)

        variance = w.let(f"fdiv double {self._sum(squared)}, {length}")
        root = w.call("double", "llvm.sqrt.f64", ("double", w.let(f"fadd double {variance}, {self._number(EPSILON)}")))
        inverse = w.let(f"fdiv double 1.0, {root}")
        away = w.let(f"fmul double {w.call('double', 'llvm.fabs.f64', ('double', mean))}, {inverse}")
        of_scale = w.let(f"fmul double {self._number(SCALE_REACH)}, {w.let(f'fadd double {away}, 1.0')}")
        of_size = self._number(REACH)

        def result(numbers: Numbers, index: str) -> tuple[str, str]:
            scale, bias = (self._loaded(numbers, a[name], index) for name in ("scale", "bias"))
            value = numbers.op("fmul", apart(numbers, index), self._all(numbers, inverse))
            scaled = numbers.op("fmul", value, scale)
            sizes = numbers.op("fadd", numbers.size(scaled), numbers.size(bias))
            reach = numbers.op("fmul", numbers.size(scale), self._all(numbers, of_scale))
            reach = numbers.op("fadd", reach, numbers.op("fmul", sizes, self._all(numbers, of_size)))
            return numbers.op("fadd", scaled, bias), reach

        return self._stored(y, result)


class Shares(_Rows):
    """exp(x - greatest) / sum exp(x - greatest). The exponentials of a row lie in the thread's memory."""

    names = SHARES

    def _row(self, x: str, y: str) -> str:
        w = self.w
        greatest = w.let(f"fpext float {self._greatest(x)} to double")

        def exponential(numbers: Numbers, index: str) -> str:
            below = numbers.op("fsub", self._loaded(numbers, x, index), self._all(numbers, greatest))
            made = numbers.exp(below)
            w.store(numbers.kind, made, w.at("%scratch", w.mul(index, 8)), 8)
            return made

        inverse = w.let(f"fdiv double 1.0, {self._sum(exponential)}")
        of_size = self._number(REACH)

        def result(numbers: Numbers, index: str) -> tuple[str, str]:
            made = w.load(numbers.kind, w.at("%scratch", w.mul(index, 8)), 8)
            share = numbers.op("fmul", made, self._all(numbers, inverse))
            return share, numbers.op("fmul", share, self._all(numbers, of_size))

        return self._stored(y, result)

    def _greatest(self, x: str) -> str:
        """Of a row's elements, float; of those that are no NaN, if there are others."""
        w, kind = self.w, f"<{self.n} x float>"
        least = every("float", real(-math.inf), self.n)
        with w.loop("0", self.whole, self.n, [(kind, least)]) as turn:
            block = w.load(kind, w.at(x, w.mul(turn.index, 4)), 4)
            more = w.let(f"fcmp ogt {kind} {block}, {turn.carried[0]}")
            turn.next([w.let(f"select <{self.n} x i1> {more}, {kind} {block}, {kind} {turn.carried[0]}")])
        most = w.call("float", f"llvm.vector.reduce.fmax.v{self.n}f32", (kind, turn.carried[0]))
        with w.loop(self.whole, self.a["length"], 1, [("float", most)]) as rest:
            value = w.load("float", w.at(x, w.mul(rest.index, 4)), 4)
            more = w.let(f"fcmp ogt float {value}, {rest.carried[0]}")
            rest.next([w.let(f"select i1 {more}, float {value}, float {rest.carried[0]}")])
        return rest.carried[0]


class Mean(_Rows):
    """sum x / length."""

    names = MEAN
    reduces = True

    def _row(self, x: str, y: str) -> str:
        w, one = self.w, self.one
        total, sizes = (
            w.splat(1, "double", self._sum(term))
            for term in (lambda k, at: self._loaded(k, x, at), lambda k, at: k.size(self._loaded(k, x, at)))
        )
        count = w.splat(1, "double", w.let(f"uitofp i64 {self.a['length']} to double"))
        mean = one.op("fdiv", total, count)
        w.store("<1 x float>", one.single(mean), y, 4)
        reach = one.op("fmul", one.op("fdiv", sizes, count), w.splat(1, "double", self._number(REACH)))
        return one.any(one.differ(*(one.op(step, mean, reach) for step in ("fsub", "fadd"))))
