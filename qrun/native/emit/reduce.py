"""Generated reductions of rows to one number each: of float32 sums in float64, their logarithms and extremes;
of integers sums and products that wrap, means and extremes; and running sums and products along an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.formulas.wide import log
from qrun.native.emit import polynomials
from qrun.native.emit.expression import KINDS, UNSIGNED
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.rowwise import RowwiseEmitter
from qrun.native.emit.softmax import SoftmaxF32Emitter
from qrun.native.emit.widen import folded


@emitter("sum")
class SumEmitter(RowwiseEmitter):
    """sum x."""

    reduces = True

    def term(self, x: Value) -> Value:
        """What an element adds to the sum."""
        return x

    def result(self, total: Value) -> Value:
        """What the kernel makes of a sum."""
        return total

    def make_row(self, x: Value, y: Value) -> None:
        total = self.sum(lambda at, on: self.term(self.loaded(x, at, on)))
        y.store(self.result(total.splat(1)).single(), 4)


@emitter("mean")
class MeanEmitter(SumEmitter):
    """sum x / length."""

    def result(self, total: Value) -> Value:
        return total / self.a.length.uitofp("double").splat(1)


@emitter("sum_abs")
class SumAbsEmitter(SumEmitter):
    """sum |x|."""

    def term(self, x: Value) -> Value:
        return abs(x)


@emitter("sum_square")
class SumSquareEmitter(SumEmitter):
    """sum x * x. float64 has the squares of float32 numbers."""

    def term(self, x: Value) -> Value:
        return x * x


@emitter("norm")
class NormEmitter(SumEmitter):
    """sqrt(sum x * x)."""

    term = SumSquareEmitter.term

    def result(self, total: Value) -> Value:
        return total.sqrt()


@emitter("log_sum")
class LogSumEmitter(SumEmitter):
    """log(sum x)."""

    def result(self, total: Value) -> Value:
        made: Value = log(total)
        return made


@emitter("greatest")
class GreatestEmitter(RowwiseEmitter):
    """The greatest element, +0 being greater than -0; NaN if there is one."""

    reduces = True
    better, worst = "maximum", -math.inf

    def make_row(self, x: Value, y: Value) -> None:
        # The later one first: the other way round took 23 microseconds, not 20, for 384 rows of 384 on AVX-512.
        y.store(self.extreme(x, self.worst, lambda best, more: more.intrinsic(self.better, best)), 4)


@emitter("least")
class LeastEmitter(GreatestEmitter):
    """The least element, -0 being less than +0; NaN if there is one."""

    better, worst = "minimum", math.inf


@emitter("log_sum_exp")
class LogSumExpEmitter(SoftmaxF32Emitter):
    """log(sum exp(x - greatest)) + greatest, or + 0 if the greatest element is not finite."""

    reduces = True
    exponential = staticmethod(polynomials.exp)

    def make_row(self, x: Value, y: Value) -> None:
        greatest = self.greatest(x)
        top = abs(greatest).test("olt", math.inf).select(greatest, 0.0)
        made = log(self.total(x, top).splat(1)) + top.double().splat(1)
        y.store(made.single(), 4)

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        RowwiseEmitter.make_rows(self, xs, ys)


FOLDED = names("x* y* rows chunk tiles length whole")
"""One 8-byte word each.

rows    of `length` elements, one after the other; a tile is `chunk` of them
whole   the elements of a row that are made `rows` at once; the rest is made one by one
"""


@emitter("folded")
class FoldedEmitter(KernelEmitter):
    """`rows` elements at once. operands: the kind of the elements. form: ``sum``, ``product``, ``sum_abs``,
    ``sum_square``, ``mean`` (of up to 32 bits, toward zero), ``greatest`` or ``least``."""

    names = FOLDED

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.unsigned, self.wide = spec.operands in UNSIGNED, "i64" if spec.form == "mean" else self.element

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x = a.x + row * a.length * self.size
            lanes = self.spec.rows
            first = w.value(f"<{lanes} x {self.wide}>", self._neutral())
            with w.loop(0, a.whole, lanes, [first]) as turn:
                turn.next(self._joined(turn.carried[0], self._term(x, turn.index, lanes)))
            with w.loop(a.whole, a.length, 1, [folded(turn.carried[0], self._joined)]) as rest:
                rest.next(self._joined(rest.carried[0], self._term(x, rest.index, 0)))
            made = rest.carried[0]
            if self.spec.form == "mean":
                made = made.op("sdiv", a.length)
                made = made.trunc(self.element)
            (a.y + row * self.size).store(made, self.size)

    def _term(self, x: Value, place: Value, lanes: int) -> Value:
        """What elements from this place on add: so many, or one where that is 0."""
        kind = f"<{lanes} x {self.element}>" if lanes else self.element
        value = (x + place * self.size).load(kind, self.size)
        if self.spec.operands == "t":
            return value.test("ne", 0).zext(self.element)
        if self.spec.form == "mean":
            return value.extended(self.wide, not self.unsigned)
        if self.spec.form == "sum_square":
            return value * value
        if self.spec.form == "sum_abs" and not self.unsigned:
            return value.test("slt", 0).select(value.like(0) - value, value)
        return value

    def _joined(self, a: Value, b: Value) -> Value:
        if self.spec.form in ("greatest", "least"):
            return a.intrinsic(("u" if self.unsigned else "s") + ("max" if self.spec.form == "greatest" else "min"), b)
        return a * b if self.spec.form == "product" else a + b

    def _neutral(self) -> int:
        """What changes nothing that it is joined with."""
        bits = 8 * self.size
        if self.spec.form in ("greatest", "least"):
            low, high = (0, 2**bits - 1) if self.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return low if self.spec.form == "greatest" else high
        return int(self.spec.form == "product")


RUNNING = names("x* y* outer blocks last first step steps units chunk tiles")
"""One 8-byte word each.

outer         bytes from one place along the axes before to the next
blocks, last  blocks of neighbours along the axes behind, and the place of the last one's first element: it overlaps
first, step   bytes to the first element that is added, and from one to the next
steps         how many are added
units, chunk  blocks of all places before, and those of a tile
"""


@emitter("running")
class RunningEmitter(KernelEmitter):
    """`rows` neighbours at once. operands: the kind of the elements;
    float32 is added in float64, and each result rounded.

    form: ``sum`` or ``product``, with ``_before`` where an element is not part of its own result.
    """

    names = RUNNING
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.what, _, self.before = spec.form.partition("_")
        self.wide = "double" if spec.operands == "f" else self.element

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        kind = f"<{self.spec.rows} x {self.wide}>"
        with w.part(tile, a.chunk, a.units) as unit:
            outer, block = divmod(unit, a.blocks)
            place = outer * a.outer + (block * self.spec.rows).least(a.last) * self.size + a.first
            y = a.y + place
            if self.before:
                self._store(w.value(kind, int(self.what == "product")), y)
                y = y + a.step
            # What is joined with the first element leaves it as it is: -0 keeps a -0.
            start = w.value(kind, 1 if self.what == "product" else -0.0 if self.wide == "double" else 0)
            with w.loop(0, a.steps, 1, [a.x + place, y, start]) as turn:
                x, y, total = turn.carried
                total = self._joined(total, x.load(f"<{self.spec.rows} x {self.element}>", self.size))
                self._store(total, y)
                turn.next(x + a.step, y + a.step, total)

    def _joined(self, total: Value, x: Value) -> Value:
        x = x.double() if x.element == "float" else x
        return total * x if self.what == "product" else total + x

    def _store(self, made: Value, y: Value) -> None:
        y.store(made.single() if self.element == "float" else made, self.size)
