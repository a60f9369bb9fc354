"""The generated product of float32 rows with constant weights in which two products in three take half the
multiplications.

For two elements x of a row and two y of a column (x1 + y2) * (x2 + y1) is both of their products, plus x1 * x2, which
depends on the row alone, plus y1 * y2, which depends on the column alone (Winograd 1968, "A new algorithm for inner
product"). That trades a multiplication for two additions, which units of their own make at the same time on some CPUs;
to keep both busy every third product is made as usual. Rows are multiplied by powers of two that make them about as
long as columns: then float64 has bits to spare for what sums gain in size,
and one number per column bounds what they are off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit.floats import FloatProductEmitter
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.widen import first_lanes, folded

NAMES = names("""
    a* b* addend* y* numbers* batches* a_row b_row addend_row y_row rows columns taps depth tap_step depth_step
    row_block panels panel_block slot right_at squares_at lengths_at sums_at known* known_odd weight* pairs* tiles recheck*
""")
"""As in floats.py, with one tap, but for these.

known   float64: what a column's sum may be off, relative to `numbers`, of rows as they are multiplied
weight  float64 [1]: the length that rows are given, but for a factor between the roots of 1/2 and of 2
pairs   float64, the sums of products of two neighbours of each column, which lie as `known`
squares_at  where the thread's memory has FACTOR, INVERSE and PAIRS of each row
"""
TURN, PAIRED = 6, 4
"""Elements of a row that a turn of the loop takes; how many of them in pairs.
Of a block of k the first ones are paired."""
DEPTH = 384
"""Elements of a block of k."""
PITCH = 8 * DEPTH + 192
"""Bytes from one converted row to the next: an odd number of cache lines,
so that rows do not fall into the same set."""
ROW, FACTOR, INVERSE, PAIRS = 24, 0, 8, 16
"""Bytes that are kept of a row, and where in them its power of two is, that one's inverse,
and the sum of products of two neighbours."""
_EXPONENT = 0x7FF << 52
"""The bits of a float64 that tell its power of two."""


@emitter("float_pairs")
class FloatPairsEmitter(FloatProductEmitter):
    """operands: ``rows-packed``."""

    names = NAMES
    mixes = True
    known_pairs: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.known, self.pitch = True, PITCH

    def take_product(self, batch: Value) -> Value:
        starts = super().take_product(batch)
        self.known_pairs = self.a.pairs + (starts + 32).load("i64", 8)
        return starts

    def before_blocks(self, starts: Value) -> None:
        """The factors and reaches of the tile's rows."""
        with self.w.loop(0, self.count, 1) as row:
            self._measure(row.index)

    def _measure(self, row: Value) -> None:
        w, a, zero = self.w, self.a, self.w.zero(self.kind)
        source = self.row_part(self.first + row, w.value("i64", 0))
        with w.loop(0, a.depth, a.depth_step, [zero, zero, zero, zero]) as block:
            size = a.depth_step.least(a.depth - block.index)
            ends = [block.index + self._paired(size).least(size), block.index + size]
            made, start = block.carried, block.index
            for end, paired in zip(ends, (True, False), strict=True):
                made = self._squares(source, start, end, made, paired)
                start = end
            block.next(*made)
        *squares, pairs = block.carried
        length = folded(squares[0] + (squares[1] + squares[2])).sqrt()
        finite = length.test("olt", math.inf)
        some = length.test("ogt", 0.0) & finite
        ratio = (a.weight.load("double", 8) / length).bitcast("i64") & _EXPONENT
        factor = some.select(ratio.bitcast("double"), 0.0)
        inverse = some.select(w.value("double", 1.0) / factor, 0.0)
        for place, value in ((FACTOR, factor), (INVERSE, inverse), (PAIRS, folded(pairs) * 0.5 * factor * factor)):
            (self.squares + row * ROW + place).store(value, 8)
        self.keep_reach(row, finite.select(inverse, math.inf))

    def _squares(self, source: Value, start: Value, end: Value, sums: Sequence[Value], paired: bool) -> list[Value]:
        """Three sums of squares with those of these elements, and twice the sum of products of neighbours,
        if they are paired."""
        w, lanes = self.w, self.lanes
        neighbours = [lane ^ 1 for lane in range(lanes)]

        def added(place: Value, mask: Value | None, carried: Sequence[Value], which: int) -> list[Value]:
            made, x = list(carried), self.numbers_at(source + place * 4, mask)
            made[which] = x.fma(x, made[which])
            if paired:
                made[3] = x.fma(x.shuffled(neighbours), made[3])
            return made

        carried, done = list(sums), start
        for count in (3, 1):
            with w.loop(done, end - (count * lanes - 1), count * lanes, carried) as turn:
                made = turn.carried
                for n in range(count):
                    made = added(turn.index + n * lanes, None, made, n)
                turn.next(*made)
            carried, done = turn.carried, turn.index
        with w.loop(done, end, lanes, carried) as turn:
            turn.next(*added(turn.index, first_lanes(end - turn.index, lanes), turn.carried, 0))
        return turn.carried

    def _paired(self, size: Value) -> Value:
        """How many elements of a block of k of this size are paired, with zeros that follow it."""
        return (size + (TURN - 1)) // TURN * PAIRED

    def convert(self, first: Value, opening: Value) -> None:
        """Convert a strip's rows to float64 times their factors if it opens, with zeros up to the end of a turn."""
        w, lanes = self.w, self.lanes
        with w.when(opening), w.loop(0, self.spec.rows, 1) as turn:
            row = first + turn.index
            target = self.converted + turn.index * self.pitch
            source = self.row_part(self.first + row, self.tap) + self.start * 4
            factor = (self.squares + row * ROW + FACTOR).load("double", 8).splat(lanes)
            done = w.value("i64", 0)
            for count in (4, 1):
                with w.loop(done, self.size - (count * lanes - 1), count * lanes) as k:
                    for n in range(count):
                        place = k.index + n * lanes
                        w.prefetch(source + place * 4 + self.a.a_row * self.spec.rows, near=True)
                        (target + place * 8).store(self.numbers_at(source + place * 4, None) * factor, 8)
                done = k.index
            with w.loop(done, self.size, lanes) as k:
                mask = first_lanes(self.size - k.index, lanes)
                (target + k.index * 8).store(self.numbers_at(source + k.index * 4, mask) * factor, 8)
            for rest in range(0, 8 * TURN, 8 * lanes):
                (target + self.size * 8 + rest).store(w.zero(self.kind), 8)

    def pack(self) -> None:
        """Convert the panel's part of the right matrix to float64, with zeros up to the end of a turn."""
        w, lanes, source = self.w, self.lanes, self.part()
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(self.spec.vectors)]
            for k, count in w.runs(0, self.steps, (4, 1)):
                for step in range(count):
                    place = source + (k + step) * self.a.b_row
                    for line in range(0, 4 * self.width, 64):
                        w.prefetch(place + (4 * self.width + line))
                    for j, mask in enumerate(masks):
                        x = self.numbers_at(place + 4 * lanes * j, mask)
                        (self.right + (k + step) * (8 * self.width) + 8 * lanes * j).store(x, 8)
        end = self.right + self.steps * (8 * self.width)
        with w.loop(0, (TURN - 1) * 8 * self.width, 8 * lanes) as rest:
            (end + rest.index).store(w.zero(self.kind), 8)

    def strip_sums(self, row: Value) -> list[Value]:
        """Each vector of columns has its own pointers to the rows, with equal addresses: an element that only one
        instruction reads is broadcast by that instruction's load, at no cost. With AVX-512 both factors are read again
        after the multiply-add (`read`), so that LLVM puts the new sum into the register of the old one; else it would
        move registers, and run out of them."""
        w, rows, vectors = self.w, self.spec.rows, range(self.spec.vectors)
        paired, line = self._paired(self.steps), 8 * self.width
        starts = [self.converted.hidden() for _ in vectors]
        starts += [(self.converted + paired * 8).hidden() for _ in vectors]
        starts += [self.right, self.right + paired * line]
        zeros = [w.zero(self.kind)] * (rows * self.spec.vectors)
        with w.loop(0, paired, PAIRED, [*zeros, *starts]) as turn:
            sums, places = turn.carried[: len(zeros)], turn.carried[len(zeros) :]
            left, alone = places[: self.spec.vectors], places[self.spec.vectors : -2]
            for step in range(0, PAIRED, 2):
                y = [[self._line(places[-2] + (step + n) * line, j) for j in vectors] for n in (1, 0)]
                for i in range(rows):
                    for j in vectors:
                        first, second = (self._element(left[j], i, step + n) + y[n][j] for n in (0, 1))
                        place = i * self.spec.vectors + j
                        sums[place] = first.fma(second, sums[place])
                        if self.isa.lanes == 16:
                            w.read(first, second)
                self._alone(alone, places[-1] + step // 2 * line, step // 2, sums)
            steps = [8 * PAIRED] * len(left) + [8 * (TURN - PAIRED)] * len(alone)
            steps += [PAIRED * line, (TURN - PAIRED) * line]
            turn.next(*sums, *(place + step for place, step in zip(places, steps, strict=True)))
        return turn.carried[: len(zeros)]

    def _alone(self, left: Sequence[Value], right: Value, number: int, sums: list[Value]) -> None:
        """Add the products of one element of each row with a line of the panel."""
        y = [self._line(right, j) for j in range(len(left))]
        for i in range(self.spec.rows):
            for j, vector in enumerate(y):
                place = i * len(y) + j
                sums[place] = self._element(left[j], i, number).fma(vector, sums[place])

    def _line(self, start: Value, vector: int) -> Value:
        return (start + 8 * self.lanes * vector).load(self.kind, 8)

    def _element(self, start: Value, row: int, number: int) -> Value:
        """An element of a strip's row, in all lanes."""
        return (start + (row * self.pitch + 8 * number)).load("double", 8).splat(self.lanes)

    def round_strip(self, row: Value, slot: Value, sums: Sequence[Value]) -> None:
        """Subtract the sums of neighbours' products, and undo the rows' factors, before the sums are rounded."""
        vectors, made = self.spec.vectors, []
        columns = [self._line(self.known_pairs + self.panel * (8 * self.width), j) for j in range(vectors)]
        for i in range(self.spec.rows):
            kept = self.squares + (row + i) * ROW
            inverse, pairs = ((kept + place).load("double", 8).splat(self.lanes) for place in (INVERSE, PAIRS))
            for total, column in zip(sums[i * vectors :], columns, strict=False):
                made.append((total - pairs - column).fma(inverse, self.w.zero(self.kind)))
        super().round_strip(row, slot, made)
