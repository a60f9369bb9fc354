"""Generated reductions of rows to one number each. float32: sums in float64, norms, logarithms of sums, and extremes.
Integers: sums and products that wrap, means and extremes. Also running sums and products along an axis, ArgMax, ArgMin,
TopK, the elements at such places, and OneHot."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.formulas.wide import log
from qrun.native.emit.expression import KINDS, UNSIGNED
from qrun.native.emit.functions import exp
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.rowwise import RowwiseEmitter
from qrun.native.emit.softmax import SoftmaxF32Emitter
from qrun.native.emit.strided import StridedEmitter, outer_names
from qrun.native.emit.values import constants
from qrun.native.emit.widen import fold_lanes

ARG = (*outer_names(("x", "y")), *names("count x_step y_step length along"))
"""The argument words, 8 bytes each.

count           results of the kernel's own axis
x_step, y_step  bytes from one of them to the next
length, along   elements that are reduced to one result, and bytes from one to the next
"""
_LOADED = {"f": ("float", "i32"), "i": ("i32", "i32"), "l": ("i64", "i64"), "u": ("i8", "i32"), "b": ("i8", "i32")}
_LEAST = {"i32": -(1 << 31), "i64": -(1 << 63)}
_SIZE = (1 << 31) - 1


@emitter("sum")
class SumEmitter(RowwiseEmitter):
    """sum x."""

    reduces = True

    def term(self, x: Value) -> Value:
        """An element's contribution to the sum."""
        return x

    def result(self, total: Value) -> Value:
        """The kernel's result, from the sum."""
        return total

    def make_row(self, x: Value, y: Value) -> None:
        """Store the sum of a row's terms."""
        total = self.sum(lambda at, on: self.term(self.load_double(x, at, on)))
        y.store(self.result(total.splat(1)).single(), 4)


@emitter("mean")
class MeanEmitter(SumEmitter):
    """sum x / length."""

    def result(self, total: Value) -> Value:
        """The sum divided by the row's length."""
        return total / self.a.length.uitofp("double").splat(1)


@emitter("sum_abs")
class SumAbsEmitter(SumEmitter):
    """sum |x|."""

    def term(self, x: Value) -> Value:
        """abs(x)."""
        return abs(x)


@emitter("sum_square")
class SumSquareEmitter(SumEmitter):
    """sum x * x. Squares of float32 numbers are exact in float64."""

    def term(self, x: Value) -> Value:
        """x * x."""
        return x * x


@emitter("norm")
class NormEmitter(SumEmitter):
    """sqrt(sum x * x)."""

    term = SumSquareEmitter.term

    def result(self, total: Value) -> Value:
        """The square root of the sum."""
        return total.sqrt()


@emitter("log_sum")
class LogSumEmitter(SumEmitter):
    """log(sum x)."""

    def result(self, total: Value) -> Value:
        """The logarithm of the sum."""
        made: Value = log(total)
        return made


@emitter("greatest")
class GreatestEmitter(RowwiseEmitter):
    """The greatest element, where +0 > -0; NaN if there is one."""

    reduces = True
    better, worst = "maximum", -math.inf

    def make_row(self, x: Value, y: Value) -> None:
        """Store the extreme element of a row."""
        # The later operand first: the other way round took 23 microseconds, not 20, for 384 rows of 384 on AVX-512.
        y.store(self.extreme(x, self.worst, lambda best, more: more.intrinsic(self.better, best)), 4)


@emitter("least")
class LeastEmitter(GreatestEmitter):
    """The least element, where -0 < +0; NaN if there is one."""

    better, worst = "minimum", math.inf


@emitter("log_sum_exp")
class LogSumExpEmitter(SoftmaxF32Emitter):
    """log(sum exp(x - greatest)) + greatest, or + 0 if the greatest element is not finite."""

    reduces = True
    exponential = staticmethod(exp)

    def make_row(self, x: Value, y: Value) -> None:
        """Store log(sum(exp(x))) of a row; the greatest element is subtracted first."""
        greatest = self.greatest(x)
        top = abs(greatest).test("olt", math.inf).select(greatest, 0.0)
        made = log(self.total(x, top).splat(1)) + top.double().splat(1)
        y.store(made.single(), 4)

    def make_rows(self, xs: Sequence[Value], ys: Sequence[Value]) -> None:
        """Write several rows, one after the other."""
        RowwiseEmitter.make_rows(self, xs, ys)


FOLDED = names("x* y* rows chunk tiles length whole")
"""The argument words, 8 bytes each.

rows    contiguous rows of `length` elements; a tile is `chunk` of them
whole   the elements of a row that are reduced as vectors; the rest is reduced one by one
"""


@emitter("folded")
class FoldedEmitter(KernelEmitter):
    """Reduces rows of integers, `rows` elements at once. operands: the kind of the elements. form: ``sum``,
    ``product``, ``sum_abs``, ``sum_square``, ``mean`` (of up to 32 bits, toward zero), ``greatest`` or ``least``."""

    names = FOLDED

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.unsigned, self.wide = spec.operands in UNSIGNED, "i64" if spec.form == "mean" else self.element

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x = a.x + row * a.length * self.size
            lanes = self.spec.rows
            first = w.value(f"<{lanes} x {self.wide}>", self._neutral())
            with w.loop(0, a.whole, lanes, [first]) as turn:
                turn.next(self._combine(turn.carried[0], self._term(x, turn.index, lanes)))
            with w.loop(a.whole, a.length, 1, [fold_lanes(turn.carried[0], self._combine)]) as rest:
                rest.next(self._combine(rest.carried[0], self._term(x, rest.index, 0)))
            made = rest.carried[0]
            if self.spec.form == "mean":
                made = made.op("sdiv", a.length)
                made = made.trunc(self.element)
            (a.y + row * self.size).store(made, self.size)

    def _term(self, x: Value, position: Value, lanes: int) -> Value:
        """The contribution of `lanes` elements from this position on; of a single element if lanes is 0."""
        kind = f"<{lanes} x {self.element}>" if lanes else self.element
        value = (x + position * self.size).load(kind, self.size)
        if self.spec.operands == "t":
            return value.test("ne", 0).zext(self.element)
        if self.spec.form == "mean":
            return value.extend(self.wide, not self.unsigned)
        if self.spec.form == "sum_square":
            return value * value
        if self.spec.form == "sum_abs" and not self.unsigned:
            return value.test("slt", 0).select(value.like(0) - value, value)
        return value

    def _combine(self, a: Value, b: Value) -> Value:
        """Combine two elements: sum, product, maximum or minimum."""
        if self.spec.form in ("greatest", "least"):
            return a.intrinsic(("u" if self.unsigned else "s") + ("max" if self.spec.form == "greatest" else "min"), b)
        return a * b if self.spec.form == "product" else a + b

    def _neutral(self) -> int:
        """The neutral element of the reduction."""
        bits = 8 * self.size
        if self.spec.form in ("greatest", "least"):
            low, high = (0, 2**bits - 1) if self.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return low if self.spec.form == "greatest" else high
        return int(self.spec.form == "product")


RUNNING = names("x* y* outer blocks last first step steps units chunk tiles")
"""The argument words, 8 bytes each.

outer         bytes from one place along the axes before to the next
blocks, last  blocks of neighbours along the axes behind, and the place of the last one's first element: it overlaps
first, step   bytes to the first element that is added, and from one to the next
steps         how many elements are added
units, chunk  blocks in all, over all places along the axes before; blocks of a tile
"""


@emitter("running")
class RunningEmitter(KernelEmitter):
    """Running sums or products, `rows` neighbours at once. operands: the kind of the elements. float32 is added in
    float64, and each result is rounded.

    form: ``sum`` or ``product``, with ``_before`` where an element is not part of its own result (exclusive).
    """

    names = RUNNING
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.what, _, self.before = spec.form.partition("_")
        self.wide = "double" if spec.operands == "f" else self.element

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        kind = f"<{self.spec.rows} x {self.wide}>"
        with w.part(tile, a.chunk, a.units) as unit:
            outer, block = divmod(unit, a.blocks)
            position = outer * a.outer + (block * self.spec.rows).least(a.last) * self.size + a.first
            y = a.y + position
            if self.before:
                self._store(w.value(kind, int(self.what == "product")), y)
                y = y + a.step
            # The start value is neutral: adding it to -0 gives -0.
            start = w.value(kind, 1 if self.what == "product" else -0.0 if self.wide == "double" else 0)
            with w.loop(0, a.steps, 1, [a.x + position, y, start]) as turn:
                x, y, total = turn.carried
                total = self._combine(total, x.load(f"<{self.spec.rows} x {self.element}>", self.size))
                self._store(total, y)
                turn.next(x + a.step, y + a.step, total)

    def _combine(self, total: Value, x: Value) -> Value:
        """Add an element to the running total, or multiply the total by it."""
        x = x.double() if x.element == "float" else x
        return total * x if self.what == "product" else total + x

    def _store(self, made: Value, y: Value) -> None:
        """Store a running total in the output's type."""
        y.store(made.single() if self.element == "float" else made, self.size)


@emitter("arg")
class ArgEmitter(StridedEmitter):
    """ArgMax and ArgMin. form: ``max`` or ``min``, with ``_last`` for the last of equal elements, else the first; then,
    after a colon, ``rows``: a row's elements are contiguous, and `spec.rows` of them are compared at once; or
    ``columns``: `spec.rows` neighbours, each with a column of its own, are computed at once.

    The kernel compares integer keys, which grow with the elements, or for a minimum as elements decrease. Every NaN has
    the greatest key; both zeros have the same key."""

    names = ARG
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.what, self.how = spec.form.split(":")
        self.element, self.whole = _LOADED[spec.operands]
        self.last = self.what.endswith("_last")
        self.size = {"i64": 8, "i8": 1}.get(self.element, 4)

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the rows or columns `first` to `end`."""
        w, a = self.w, self.a
        end, x, y = end.least(a.count), self.starts["x"], self.starts["y"]
        if self.how == "rows":
            with w.loop(first, end, 1) as turn:
                self._row(x + turn.index * a.x_step, y + turn.index * a.y_step)
            return
        for at, n in w.runs(first, end, (self.spec.rows, 1) if self.spec.rows > 1 else (1,)):
            self._column(n, x + at * a.x_step, y + at * a.y_step)

    def _row(self, x: Value, y: Value) -> None:
        """Find the place in a row: within each lane, then among the lanes, then among the elements that fill no
        vector."""
        w, n, length = self.w, self.spec.rows, self.a.length
        whole = length & -n
        places = w.value(f"<{n} x i32>", constants("i32", range(n)))
        with w.loop(0, whole, n, [w.value(f"<{n} x {self.whole}>", _LEAST[self.whole]), places, places]) as turn:
            most, position, here = turn.carried
            more = self._key((x + turn.index * self.size).load(f"<{n} x {self.element}>", self.size))
            turn.next(*self._better(more, here, most, position), here + n)
        most, position = turn.carried[:2]
        while n > 1:
            n //= 2
            pairs = [(v.shuffle(range(n)), v.shuffle(range(n, 2 * n))) for v in (most, position)]
            most, position = self._greater_key(pairs[0], pairs[1])
        with w.loop(whole, length, 1, [most, position]) as rest:
            more = self._key((x + rest.index * self.size).load(f"<1 x {self.element}>", self.size))
            here = w.value("<1 x i32>", "poison").insert(rest.index.trunc("i32"), 0)
            rest.next(*self._better(more, here, *rest.carried))
        y.store(rest.carried[1].sext("i64"), 8)

    def _column(self, n: int, x: Value, y: Value) -> None:
        """Find the places of n neighbours, each in its own column."""
        w = self.w
        places = w.zero(f"<{n} x i32>")
        least = w.value(f"<{n} x {self.whole}>", _LEAST[self.whole])
        with w.loop(0, self.a.length, 1, [x, least, places, places]) as turn:
            source, most, position, here = turn.carried
            more = self._key(source.load(f"<{n} x {self.element}>", self.size))
            turn.next(source + self.a.along, *self._better(more, here, most, position), here + 1)
        y.store(turn.carried[2].sext("i64"), 8)

    def _better(self, key: Value, index: Value, most: Value, at: Value) -> tuple[Value, Value]:
        """The greater key and its place, of the greatest so far (`most`, `at`) and a later one."""
        later = key.test("sge" if self.last else "sgt", most)
        return later.select(key, most), later.select(index, at)

    def _greater_key(self, keys: tuple[Value, Value], places: tuple[Value, Value]) -> tuple[Value, Value]:
        """The greater of two keys and its place, whichever comes first in the row."""
        equal = keys[1].test("eq", keys[0]) & places[1].test("sgt" if self.last else "slt", places[0])
        other = keys[1].test("sgt", keys[0]) | equal
        return other.select(keys[1], keys[0]), other.select(places[1], places[0])

    def _key(self, x: Value) -> Value:
        """An int32 per element that orders like the elements; NaN comes first."""
        if self.element == "i8":
            x = x.extend("i32", self.spec.operands == "b")
        key = key_of(x, self.what)
        return nan_of(x).select(_SIZE, key) if self.element == "float" else key


def key_of(x: Value, what: str) -> Value:
    """Integer keys of float32 or integers: they grow with the elements, or for ``min`` as elements decrease. Both zeros
    have the same key, and NaN has the greatest before ``min`` inverts the keys."""
    if x.element != "float":
        return x ^ -1 if what.startswith("min") else x
    bits = (x + 0.0).bitcast("i32")
    key = nan_of(x).select(_SIZE, bits ^ (bits.ashr(31) & _SIZE))
    return key ^ -1 if what.startswith("min") else key


def nan_of(x: Value) -> Value:
    """An i1 in each lane: whether a float32 is NaN."""
    return x.test("uno", x)


TOP = names("x* y* rows chunk length count levels tiles")
ALONG = names("x* at* y* rows chunk length count tiles")
"""The argument words, 8 bytes each.

rows, chunk     rows, and rows of a tile
length, count   elements of a row, and how many of them are wanted
levels          levels of a heap of `count` elements
at              int64 [rows][count]: places in each row
"""
_REST = 0xFFFFFFFF


@emitter("top")
class TopEmitter(KernelEmitter):
    """TopK: the places of the best elements of a row. form: ``max`` or ``min``. `rows` elements are compared at once.

    The thread's memory holds the best elements so far as a heap, the worst of them first: int64 whose upper half is
    greater for better elements, and whose lower half is less for later places. At the end the worst element is removed
    again and again."""

    names = TOP
    own_memory = True
    frozen = True

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            self._row(a.x + row * (a.length * 4), a.y + row * (a.count * 8))

    def _row(self, x: Value, y: Value) -> None:
        """Write the k greatest or least elements' indices of a row, by a heap of the best so far."""
        w, a, n = self.w, self.a, self.spec.rows
        with w.loop(0, a.count, 1) as turn:
            (self.scratch + turn.index * 8).store(self._entry(x, turn.index), 8)
        half = a.count.lshr(1)
        with w.loop(0, half, 1) as turn:
            slot = half - 1 - turn.index
            self._sink((self.scratch + slot * 8).load("i64", 8), slot, a.count)
        block = a.count + ((a.length - a.count) & -n)
        with w.loop(a.count, block, n) as turn:
            keys = key_of((x + turn.index * 4).load(f"<{n} x {self._element}>", 4), self.spec.form)
            worst = self.scratch.load("i64", 8).ashr(32).trunc("i32").splat(n)
            with w.when(keys.test("sgt", worst).any()), w.loop(turn.index, turn.index + n, 1) as own:
                self._offer(x, own.index)
        with w.loop(block, a.length, 1) as rest:
            self._offer(x, rest.index)
        with w.loop(1, a.count, 1) as turn:
            left = a.count - turn.index
            self._take(y, left)
            self._sink((self.scratch + left * 8).load("i64", 8), w.value("i64", 0), left)
        self._take(y, w.value("i64", 0))

    @property
    def _element(self) -> str:
        """LLVM's type of the elements."""
        return "float" if self.spec.operands == "f" else "i32"

    def _entry(self, x: Value, index: Value) -> Value:
        """The heap entry of an element, int64: its key, then its index reversed, so the first of equals wins."""
        key = key_of((x + index * 4).load(f"<1 x {self._element}>", 4), self.spec.form).extract(0)
        return (key.sext("i64") << 32) | (_REST - index)

    def _offer(self, x: Value, index: Value) -> None:
        """Replace the worst element of the heap by this one if it is better."""
        entry = self._entry(x, index)
        with self.w.when(entry.test("sgt", self.scratch.load("i64", 8))):
            self._sink(entry, self.w.value("i64", 0), self.a.count)

    def _take(self, y: Value, position: Value) -> None:
        """Store the index of the heap's root in the output."""
        (y + position * 8).store(_REST - (self.scratch.load("i64", 8) & _REST), 8)

    def _sink(self, entry: Value, free_slot: Value, size: Value) -> None:
        """Sink an entry into the heap of this size, from the free place `free_slot` downwards."""
        w, last = self.w, size - 1
        with w.loop(0, self.a.levels, 1, [free_slot]) as level:
            here = level.carried[0]
            left = here + here + 1
            places = [left.least(last), (left + 1).least(last)]
            entries = [(self.scratch + at * 8).load("i64", 8) for at in places]
            second = entries[1].test("slt", entries[0])
            child, below = second.select(places[1], places[0]), second.select(entries[1], entries[0])
            sinks = left.test("slt", size) & below.test("slt", entry)
            (self.scratch + here * 8).store(sinks.select(below, entry), 8)
            level.next(sinks.select(child, here))
        (self.scratch + level.carried[0] * 8).store(entry, 8)


@emitter("along")
class AlongEmitter(KernelEmitter):
    """Copies the elements of each row at the given places. Elements have `unroll` bytes."""

    names = ALONG

    def write_tile(self, tile: Value) -> None:
        w, a, size = self.w, self.a, self.spec.unroll
        with w.part(tile, a.chunk, a.rows) as row:
            x, first = a.x + row * (a.length * size), row * a.count
            with w.loop(0, a.count, 1) as turn:
                position = (a.at + (first + turn.index) * 8).load("i64", 8)
                (a.y + (first + turn.index) * size).store((x + position * size).load(f"i{8 * size}", size), size)


ONE_HOT = names("x* y* rows chunk tiles inner depth least on off")
"""The argument words, 8 bytes each.

rows, chunk  rows of the result, each of `depth` times `inner` elements, and rows of a tile
inner        indices of a row
least        the least valid index; negative indices count from the end
on, off      the bits of the two values
"""


@emitter("one_hot")
class OneHotEmitter(KernelEmitter):
    """OneHot with elements of `unroll` bytes, `rows` of them at once. operands: the kind of the indices."""

    names = ONE_HOT
    frozen = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        kind = f"i{8 * spec.unroll}"
        self.on, self.off = (value if kind == "i64" else value.trunc(kind) for value in (self.a.on, self.a.off))

    def write_tile(self, tile: Value) -> None:
        w, a, spec = self.w, self.a, self.spec
        total = a.depth * a.inner
        with w.part(tile, a.chunk, a.rows) as row:
            y = a.y + row * total * spec.unroll
            for at, n in w.runs(0, total, (spec.rows, 1)):
                (y + at * spec.unroll).store(self.off.splat(n), spec.unroll)
            with w.loop(0, a.inner, 1) as turn:
                index = self._index((row * a.inner + turn.index) * self.size)
                position = index + index.test("slt", 0).select(a.depth, 0)
                with w.when(index.test("sge", a.least) & index.test("slt", a.depth)):
                    (y + (position * a.inner + turn.index) * spec.unroll).store(self.on, spec.unroll)

    def _index(self, offset: Value) -> Value:
        """Load an index as int64."""
        value = (self.a.x + offset).load(self.element, self.size)
        return value if self.element == "i64" else value.extend("i64", self.spec.operands != "u")
