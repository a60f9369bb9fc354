"""Float64 sums of products rounded to float32, or a narrower type, as the real sums are:
proved, or else added again without error.

A sum is proved if both ends of its reach round alike. The others are added again, product by product, with what each
addition lost (numbers.py, two_sum); if the remainder tells which way to go, the sum is rounded to odd, and so once.
What is still not known goes into a list, for `recheck` to make.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import or_

from qrun.native.emit.conversions import FORMATS, Format
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, row_at
from qrun.native.emit.numbers import RecheckEmitter, product_error, two_sum
from qrun.native.emit.requantize import clipped
from qrun.native.emit.values import ZERO
from qrun.native.emit.widen import first_lanes

REACH, ALPHA, BETA, FLAW, LOW, HIGH, ADDED = range(0, 56, 8)
"""Places in `numbers`: what a sum may be off, relative to both lengths; the factors of the sum and of the addend; what
the sum of all that was lost may be off, relative to that of its sizes; what results are limited to (Clip, Relu), and
the zero that is added to them: -0 leaves each as it is, 0 makes 0 of -0."""
BATCH = 48
"""Bytes of an entry of `batches`."""
_ADDEND = 2.0**-50
"""Several times the relative error of an addend and of its addition."""
_NAN = 0x7FC00000
_SINGLE = Format(24, 2.0**-126, 2.0**128)
_DIGITS = 53
"""Bits of the significand of a float64 number."""


class RoundingEmitter(KernelEmitter):
    """Ends strips of sums. form: ``sum``, ``bias`` (plus an addend per column), ``added`` (plus an addend per element),
    ``scaled`` (alpha * sum + beta * addend, of an element); ``+limits`` if Clip or Relu follows.

    batch, first, left: the product, the tile's first row, and the columns from this panel's first one to the last.
    row_starts: where the product's a, b, addend and y start; column: bytes from there to the panel's first float32, and
    right_column: where it is in b. begins: whether sums begin with the addend, for which their reach then pays.
    lengths: where the rows' reaches are kept. rounded_rows: rows of the result that are rounded together. mixes:
    whether sums of rows with infinities or NaN are not those of their products, so that they are made again.
    """

    own_memory = True
    begins = mixes = False
    batch: Value
    first: Value
    left: Value
    column: Value
    right_column: Value
    row_starts: tuple[Value, Value, Value, Value]
    lengths: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w = self.w
        self.form, _, self.limits = spec.form.partition("+")
        self.lanes = isa.lanes // 2
        self.kind, self.narrow = f"<{self.lanes} x double>", f"<{self.lanes} x float>"
        self.width, self.rounded_rows = spec.vectors * self.lanes, spec.rows
        self.odd_rows, self.odd_panel = (w.let("ptr", "alloca i64, align 8") for _ in range(2))
        self.doubts = RecheckEmitter(w, self.a.recheck, self.struct.address(), 0)

    @property
    def addend_row(self) -> Value:
        """Bytes from one row of what is added to the next."""
        return self.a.addend_row

    def take_batch(self, batch: Value, addend: Value | None = None) -> Value:
        """Find where the product of this number reads and writes. Returns where its entry of `batches` is. addend: from
        where its own is counted, if that is not as usual."""
        a, self.batch = self.a, batch
        starts, operands = a.batches + batch * BATCH, (a.a, a.b, a.addend if addend is None else addend, a.y)
        x, b, addend, y = (start + (starts + 8 * n).load("i64", 8) for n, start in enumerate(operands))
        self.row_starts = x, b, addend, y
        return starts

    def row_part(self, row: Value, tap: Value) -> Value:
        """The address at which a tap of a row starts."""
        a = self.a
        return row_at(self.row_starts[0], a.offsets + row * a.a_row + tap * 4, a.padding)

    def result_row(self, row: Value) -> Value:
        """The row of the product's result that a row of the tile is."""
        return self.first + row

    def tap_at(self, row: Value, tap: Value) -> Value:
        """As `row_part`, for a row of the tile."""
        return self.row_part(self.first + row, tap)

    def measured(self, row: Value, squares: Value) -> None:
        """Keep the reach of a row with this sum of squares."""
        (self.lengths + row * 8).store(self.row_reach(squares), 8)

    def row_reach(self, squares: Value) -> Value:
        """What the sums of a row with this sum of squares may be off, relative to a column's length."""
        return self._reach(squares.sqrt())

    def keep_reach(self, row: Value, length: Value) -> None:
        """Keep the reach of a row of this length."""
        (self.lengths + row * 8).store(self._reach(length), 8)

    def _reach(self, length: Value) -> Value:
        reach = length * (self.a.numbers + REACH).load("double", 8)
        with self.w.when(~reach.test("olt", math.inf)):
            self.odd_rows.store(self.w.value("i64", 1), 8)
        return reach

    def number(self, place: int) -> Value:
        return (self.a.numbers + place).load("double", 8).splat(self.lanes)

    def mask(self, vector: Value | int) -> Value:
        """Which columns of a panel's vector exist."""
        return first_lanes(self.left - vector * self.lanes, self.lanes)

    def whole_or_cut(self) -> Iterator[bool]:
        """The body for panels whose columns all exist, with True, and for the last one."""
        return self.w.either(self.left.test("sge", self.width))

    def strip_reaches(self, row: Value) -> list[Value]:
        """What each of a strip's sums of products may be off, or more: [rows][vectors]."""
        raise NotImplementedError

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        """As `strip_reaches`, for one vector of a strip whose sums are kept."""
        raise NotImplementedError

    def factors(self, part: Value, start: Value, k: Value, vector: Value, mask: Value) -> tuple[Value, Value]:
        """The factors of product k as float64: the row's element, in all lanes, and those of these columns."""
        left = (part + k * 4).load("float", 4).double().splat(self.lanes)
        return left, self.numbers_at(start + k * self.a.b_row, mask)

    def keep(self, slot: Value, sums: Sequence[Value]) -> None:
        """Store a strip's sums in the thread's memory."""
        for place, value in enumerate(sums):
            (slot + 8 * self.lanes * place).store(value, 8)

    def round_strip(self, row: Value, slot: Value, sums: Sequence[Value]) -> None:
        """Round the sums [rows][vectors] of a strip that begins at this row, and store them; settle those in doubt."""
        w, differ = self.w, []
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(self.spec.vectors)]
            differ.append((self._stored(row, sums, masks), w.here))
        some = w.phi(*differ).test("ne", ZERO).any()
        odd = (self.odd_rows.load("i64", 8) | self.odd_panel.load("i64", 8)).test("ne", 0)
        with w.when(some | odd):
            self.keep(slot, sums)
            vectors = (self.left + (self.lanes - 1)) // self.lanes
            with w.loop(0, self.rounded_rows, 1) as i, w.loop(0, vectors.least(self.spec.vectors), 1) as j:
                held = slot + (i.index * self.spec.vectors + j.index) * (8 * self.lanes)
                reach = self.reach_at(row + i.index, j.index, held)
                self.settle(row + i.index, j.index, held.load(self.kind, 8), reach)

    def _stored(self, row: Value, sums: Sequence[Value], masks: Sequence[Value | None]) -> Value:
        """Store the rounded sums. Returns bits, some of them set where the two ends of a sum's interval round apart."""
        vectors, apart, reaches = len(masks), list[Value](), self.strip_reaches(row)
        shared = [self._addend(row, j, mask) for j, mask in enumerate(masks)] if self.form == "bias" else None
        for i in range(self.rounded_rows):
            y = self._result(row + i)
            for j, mask in enumerate(masks):
                addend = self._addend(row + i, j, mask) if shared is None else shared[j]
                place = i * vectors + j
                _, low, high = self._ends(sums[place], reaches[place], addend)
                # +0 of equal numbers, but -0 of -0 less +0, and NaN of NaN and of infinities.
                bits = (low - high).bitcast("i32")
                apart.append(bits if mask is None else mask.select(bits, ZERO))
                target, made = y + 4 * self.lanes * j, self._limited(high)
                if mask is None:
                    target.store(made, 4)
                else:
                    target.masked_store(made, mask)
        return reduce(or_, apart)

    def _ends(self, total: Value, reach: Value, addend: Value | None) -> tuple[Value, Value, Value]:
        """The result in float64, and both ends of its interval rounded to float32."""
        if addend is not None and not self.begins:
            if self.form == "scaled":
                total = total * self.number(ALPHA) + 0.0
            total = total + addend
            reach = abs(addend).fma(_ADDEND, reach)
        return total, (total - reach).single(), (total + reach).single()

    def _limited(self, value: Value) -> Value:
        """float32 as the Clip or the Relu that follows makes it, if there is one."""
        if not self.limits:
            return value
        low, high, zero = ((self.a.numbers + n).load("double", 8).single() for n in (LOW, HIGH, ADDED))
        return clipped(value, *(limit.splat(self.lanes) for limit in (low, high))) + zero.splat(self.lanes)

    def _result(self, row: Value) -> Value:
        return self.row_starts[3] + self.result_row(row) * self.a.y_row + self.column

    def _addend(self, row: Value, vector: Value | int, mask: Value | None) -> Value | None:
        """What is added to these columns of a row, as float64; None if nothing is."""
        if self.form == "sum":
            return None
        start = self.row_starts[2] + self.result_row(row) * self.addend_row + self.column + vector * (4 * self.lanes)
        made = self.numbers_at(start, mask)
        return made * self.number(BETA) if self.form == "scaled" else made

    def numbers_at(self, source: Value, mask: Value | None) -> Value:
        """The float32 numbers at an address, as float64."""
        loaded = source.load(self.narrow, 4) if mask is None else source.masked_load(self.narrow, mask, 4)
        return loaded.double()

    def settle(self, row: Value, vector: Value, total: Value, reach: Value) -> None:
        """Make the columns of a vector again whose sums are in doubt."""
        w, mask = self.w, self.mask(vector)
        odd, addend = reach.test("uge", math.inf), self._addend(row, vector, mask)
        if self.mixes:
            reach = odd.select(math.inf, reach)
        value, low, high = self._ends(total, reach, addend)
        if self.mixes:
            (value,) = w.instead([value], odd.any(), lambda: self.added(row, vector, mask, addend)[:1])
        finite = abs(value).test("olt", math.inf)
        special = finite.test("eq", ZERO) & mask
        doubtful = low.bitcast("i32").test("ne", high.bitcast("i32")) & mask & finite
        y = self._result(row) + vector * (4 * self.lanes)
        y.masked_store(
            self._limited(high), mask
        )  # which differs from what the strip stored, if the reach is less than the strip's
        with w.when(special.any()):
            nan = value.single().like(w.value(f"<{self.lanes} x i32>", _NAN).bitcast("float"))
            y.masked_store(self._limited(value.test("uno", value).select(nan, value.single())), special)
        with w.when(doubtful.any()):
            made, known = self._decided(*self.added(row, vector, mask, addend))
            y.masked_store(self._limited(made.single()), doubtful & known)
            unknown = (doubtful & known.test("eq", ZERO)).bits().zext("i64")
            number = self.batch * self.a.rows + self.result_row(row)
            column = self.column.lshr(2) + vector * self.lanes
            with w.loop(0, self.lanes, 1) as lane, w.when((unknown.lshr(lane.index) & 1).test("ne", 0)):
                self.doubts.add(number, column + lane.index)

    def added(self, row: Value, vector: Value, mask: Value, addend: Value | None) -> tuple[Value, Value, Value, Value]:
        """The sum of products, what its additions lost, the sum of the magnitudes of what each lost, and the least
        magnitude of a product or addend that is not 0."""
        w, a, scaled = self.w, self.a, self.form == "scaled"
        begun = [*[w.zero(self.kind)] * 3, w.value(self.kind, math.inf)]
        with w.loop(0, a.taps, 1, begun) as tap:
            x = self.tap_at(row, tap.index)
            b = self.right_column + tap.index * a.depth * a.b_row + vector * (4 * self.lanes)
            with w.loop(0, a.depth, 1, tap.carried) as k:
                left, right = self.factors(x, b, k.index, vector, mask)
                left = left * self.number(ALPHA) if scaled else left
                product = left * right
                more = product_error(left, right, product) if scaled else None
                total, lost, sizes, least = k.carried
                k.next(*_with(total, lost, sizes, least, product, more))
            tap.next(*k.carried)
        total, lost, sizes, least = tap.carried
        return _with(total, lost, sizes, least, addend, None) if addend is not None else (total, lost, sizes, least)

    def _decided(self, total: Value, lost: Value, sizes: Value, least: Value) -> tuple[Value, Value]:
        """A float64 that rounds to the result's type as the real sum does, and an i1: whether that is certain."""
        top, rest = two_sum(total, lost)
        off = sizes * self.number(FLAW)
        exact = sizes.test("oeq", ZERO)
        sure = abs(rest).test("ogt", off)
        whole = top.bitcast("i64")
        inward = rest.test("ogt", ZERO) ^ top.test("ogt", ZERO)
        moves = (whole & 1).test("eq", ZERO) & sure
        odd = (whole + moves.select(inward.select(whole.like(-1), whole.like(1)), ZERO)).bitcast("double")
        form = FORMATS.get(self.spec.out, _SINGLE)
        dropped = (
            _DIGITS - form.digits
        )  # lower bits that results lack; in the middle between two results only the first of them is set
        middle = (whole & ((1 << dropped) - 1)).test("eq", 1 << (dropped - 1))
        near = middle | abs(top).test("olt", 2 * form.least)  # below that, results may have fewer bits
        far = near.test("eq", ZERO)
        small = off.test("olt", abs(top) * 2.0**-55)
        known = exact | (small & (sure | far))
        if self.form == "scaled":  # products by alpha are not exact in float64, so that `least` says nothing
            return odd, known
        near_zero = (abs(top) + abs(rest) + off).test("olt", least * 2.0**-_DIGITS)
        cancelled = near_zero & exact.test("eq", ZERO)
        return cancelled.select(ZERO, odd), known | cancelled


def _with(
    total: Value, lost: Value, sizes: Value, least: Value, term: Value, more: Value | None
) -> tuple[Value, Value, Value, Value]:
    """A sum, what it lost, the sizes of that and the least term, with another term; more: what the term itself lost."""
    total, error = two_sum(total, term)
    lost, sizes, size = lost + error, sizes + abs(error), abs(term)
    least = (size.test("ogt", ZERO) & size.test("olt", least)).select(size, least)
    return (total, lost, sizes, least) if more is None else (total, lost + more, sizes + abs(more), least)
