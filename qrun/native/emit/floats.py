"""The generated product of float32 matrices: sums in float64 that round as the real sums do.

A tile is a block of rows by some panels of columns. For each block of k its rows are converted to float64 once, and each
panel's part of the right matrix too; the sums of `rows` by `vectors`, a strip, stay in registers, begin at 0 for each
block of k, and wait in memory between blocks. The lengths of rows and columns are found on the way: they bound what a sum
is off, which rounding.py looks at when the last block is done.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import or_

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter, row_at
from qrun.native.emit.rounding import REACH, RoundingEmitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value

NAMES = (
    "a*", "b*", "addend*", "y*", "batches*", "offsets*", "padding*", "a_row", "b_row", "addend_row", "y_row",
    "rows", "columns", "taps", "depth", "tap_step", "depth_step", "row_block", "panels", "panel_block",
    "slot", "right_at", "squares_at", "lengths_at", "sums_at", "ahead", "known*", "known_odd", "tiles", "numbers*", "recheck*",
)  # fmt: skip
"""One 8-byte word each.

batches      int64 [number][5]: bytes from where a, b, addend, y and known start to a product's own
offsets      int32 [rows][taps]: bytes from where a product's a starts to what a tap of a row reads, or -1 for `padding`
a_row, b_row, addend_row, y_row  bytes from row to row; of rows with taps, a_row is that of `offsets`
columns      of the result
taps, depth  k is a tap of the row and an element there; tap_step, depth_step: of each in a block of k
row_block    rows of a tile; panel_block: of the panels
slot         bytes from one strip's sums to the next one's; 0 if there is one block of k
..._at       where the thread's memory has a panel; squares of rows; lengths of rows, then of columns; sums
ahead        how many bytes on the right matrix is fetched (direct, with prefetch)
known        float64, the lengths of columns (known); known_odd: 1 if some are not finite
tiles        products * blocks of rows * blocks of panels
numbers      float64 (rounding.py)
recheck      makes elements that nothing else decides, of their row (of all products') and column
"""
BATCH, DEPTH, UNROLL = 40, 128, 4
"""Bytes of an entry of `batches`; elements of a block of k; of which so many are added in a turn."""
PITCH = 8 * DEPTH + 64
"""Bytes from one converted row to the next: it has room for a turn more, and rows do not fall into the same cache set."""


@emitter("float_product")
class FloatProductEmitter(RoundingEmitter):
    """operands: ``rows`` or ``taps``, then ``packed``, or what converts the right matrix as it reads it: ``direct``, where
    there is one strip, or ``known``, where the columns' lengths are known."""

    names = NAMES
    turn = UNROLL
    """How many elements of a row a turn of the loop reads; zeros follow the row's last one."""
    panel: Value
    lengths: Value
    panel_lengths: Value
    known_lengths: Value
    tap: Value
    tap_count: Value
    start: Value
    size: Value
    steps: Value
    opens: Value
    ends: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a = self.a
        kind, _, how = spec.operands.partition("-")
        self.tapped, self.packed, self.known = kind == "taps", how == "packed", how == "known"
        self.right, self.squares = self.scratch + a.right_at, self.scratch + a.squares_at
        self.lengths, self.sums = self.scratch + a.lengths_at, self.scratch + a.sums_at

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        row_blocks, panel_blocks = parts(a.rows, a.row_block), parts(a.panels, a.panel_block)
        self.batch, rest = divmod(tile, row_blocks * panel_blocks)
        columns, block = divmod(rest, row_blocks)
        starts = a.batches + self.batch * BATCH
        x, b, addend, y = (start + (starts + 8 * n).load("i64", 8) for n, start in enumerate((a.a, a.b, a.addend, a.y)))
        self.row_starts = x, b, addend, y
        self.first = (block * a.row_block).least(a.rows - self.spec.rows)
        self.count = a.row_block.least(a.rows - self.first)
        panels = columns.part(a.panel_block, a.panels)
        self.odd_rows.store(w.value("i64", 0), 8)
        if self.known:
            self.known_lengths = a.known + (starts + 32).load("i64", 8)
            self.odd_panel.store(a.known_odd, 8)
        with w.loop(0, a.taps, a.tap_step) as tap, w.loop(0, a.depth, a.depth_step) as inner:
            self.tap, self.start = tap.index, inner.index
            self.tap_count, self.size = a.tap_step.least(a.taps - self.tap), a.depth_step.least(a.depth - self.start)
            self.opens = (self.tap | self.start).test("eq", 0)
            self.ends = (self.tap + a.tap_step).test("sge", a.taps) & (self.start + a.depth_step).test("sge", a.depth)
            self.steps = self.tap_count * self.size
            self._convert_rows()
            self._panels(*panels)
        self.doubts.end()

    def _panels(self, first: Value, end: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        strips = (self.count + (rows - 1)) // rows
        with w.loop(first, end, 1) as panel:
            self.panel = panel.index
            self.left, self.column = a.columns - panel.index * self.width, panel.index * (4 * self.width)
            place = panel.index - first
            self.panel_lengths = self.lengths + (a.row_block + place * self.width) * 8
            if self.known:
                self.panel_lengths = self.known_lengths + panel.index * (8 * self.width)
            if self.packed:
                self._pack()
            if not self.packed and not self.known:
                self._strip(w.value("i64", 0), place)
            else:
                with w.loop(0, strips, 1) as strip:
                    row = (strip.index * rows).least(self.count - rows)
                    self._strip(row, place * strips + strip.index)

    def row_part(self, row: Value, tap: Value) -> Value:
        a, start = self.a, self.row_starts[0]
        if not self.tapped:
            return start + row * a.a_row
        return row_at(start, a.offsets + row * a.a_row + tap * 4, a.padding)

    def strip_lengths(self, row: Value) -> list[tuple[Value, Value]]:
        columns = [(self.panel_lengths + 8 * self.lanes * j).load(self.kind, 8) for j in range(self.spec.vectors)]
        lengths = [self._row_length(row + i) for i in range(self.spec.rows)]
        return [(length, column) for length in lengths for column in columns]

    def lengths_at(self, row: Value, vector: Value, slot: Value) -> tuple[Value, Value]:
        return self._row_length(row), (self.panel_lengths + vector * (8 * self.lanes)).load(self.kind, 8)

    def _row_length(self, row: Value) -> Value:
        return (self.lengths + row * 8).load("double", 8).splat(self.lanes)

    def _convert_rows(self) -> None:
        """Convert the tile's rows to float64. After the last block of k, the lengths of the rows are known."""
        w, a = self.w, self.a
        with w.loop(0, self.count, 1) as row:
            target, held = self.scratch + row.index * PITCH, self.squares + row.index * (8 * self.lanes)
            total = self.opens.select(w.zero(self.kind), held.load(self.kind, 8))
            with w.loop(0, self.tap_count, 1, [total]) as tap:
                source = self.row_part(self.first + row.index, self.tap + tap.index) + self.start * 4
                tap.next(self._convert(source, target + tap.index * self.size * 8, tap.carried[0]))
            held.store(tap.carried[0], 8)
            for place in range(0, 8 * self.turn, 8):
                (target + self.steps * 8 + place).store(w.value("double", 0.0), 8)
        with w.when(self.ends), w.loop(0, self.count, 1) as row:
            squares = (self.squares + row.index * (8 * self.lanes)).load(self.kind, 8)
            length = _folded(squares).sqrt() * (a.numbers + REACH).load("double", 8)
            (self.lengths + row.index * 8).store(length, 8)
            with w.when(~length.test("olt", math.inf)):
                self.odd_rows.store(w.value("i64", 1), 8)

    def _convert(self, source: Value, target: Value, total: Value) -> Value:
        """Convert a part of a row to float64. Returns `total` plus the part's sum of squares."""
        w, size, lanes = self.w, self.size, self.lanes
        sums, done = [total, *[w.zero(self.kind)] * 3], w.value("i64", 0)
        for count in (4, 1):
            step = count * lanes
            with w.loop(done, size - (step - 1), step, sums[:count]) as turn:
                made = []
                for n, square in enumerate(turn.carried):
                    place = turn.index + n * lanes
                    x = self.numbers_at(source + place * 4, None)
                    (target + place * 8).store(x, 8)
                    made.append(x.fma(x, square))
                turn.next(*made)
            done, sums = turn.index, [reduce(Value.__add__, turn.carried)]
        with w.loop(done, size, 1, [w.value("double", 0.0)]) as turn:
            single = (source + turn.index * 4).load("float", 4).double()
            (target + turn.index * 8).store(single, 8)
            turn.next(turn.carried[0] + single * single)
        return sums[0] + w.value(self.kind, 0.0).insert(turn.carried[0], 0)

    def _part(self) -> Value:
        """The address of the panel's part of the right matrix."""
        return self.row_starts[1] + (self.tap * self.a.depth + self.start) * self.a.b_row + self.column

    def _squares(self) -> list[Value]:
        """The sums of squares of the panel's columns over the earlier blocks of k."""
        zero, held = self.w.zero(self.kind), self.panel_lengths
        vectors = range(self.spec.vectors)
        return [self.opens.select(zero, (held + 8 * self.lanes * j).load(self.kind, 8)) for j in vectors]

    def _keep_squares(self, squares: Sequence[Value]) -> None:
        """Store the sums of squares; after the last block of k, their square roots."""
        odd = []
        for j, square in enumerate(squares):
            made = self.ends.select(square.sqrt(), square)
            (self.panel_lengths + 8 * self.lanes * j).store(made, 8)
            odd.append(made.test("olt", math.inf).bits().test("ne", (1 << self.lanes) - 1))
        self.odd_panel.store(reduce(or_, odd).zext("i64"), 8)

    def _pack(self) -> None:
        """Convert the panel's part of the right matrix to float64, with zeros up to the end of a turn."""
        w, source, before = self.w, self._part(), self._squares()
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(self.spec.vectors)]
            with w.loop(0, self.steps, 1, before) as k:
                squares, place = [], source + k.index * self.a.b_row
                for line in range(0, 4 * self.width, 64):
                    w.prefetch(place + (4 * self.width + line))
                for j, mask in enumerate(masks):
                    x = self.numbers_at(place + 4 * self.lanes * j, mask)
                    (self.right + k.index * (8 * self.width) + 8 * self.lanes * j).store(x, 8)
                    squares.append(x.fma(x, k.carried[j]))
                k.next(*squares)
            self._keep_squares(k.carried)
        end = self.right + self.steps * (8 * self.width)
        with w.loop(0, (UNROLL - 1) * 8 * self.width, 8 * self.lanes) as rest:
            (end + rest.index).store(w.zero(self.kind), 8)

    def _strip(self, row: Value, number: Value) -> None:
        """Add a block of k to the sums of a strip, which is the tile's rows from this one on; round them after the last."""
        w = self.w
        sums = self._sums(row) if self.packed else self._sums_direct(row)
        slot = self.sums + number * self.a.slot
        w.blocks += 1
        n, before = w.blocks, w.here
        w.branch(self.opens, f"added{n}", f"add{n}")
        w.label(f"add{n}")
        more = [new + (slot + 8 * self.lanes * place).load(self.kind, 8) for place, new in enumerate(sums)]
        w.jump(f"added{n}")
        w.label(f"added{n}")
        sums = [w.phi((new, before), (both, f"add{n}")) for new, both in zip(sums, more, strict=True)]
        for last in w.either(self.ends, f"round{n}", f"keep{n}", f"made{n}"):
            if last:
                self.round_strip(row, slot, sums)
            else:
                self.keep(slot, sums)

    def _sums(self, row: Value) -> list[Value]:
        w, rows, vectors = self.w, self.spec.rows, self.spec.vectors
        zeros = [w.zero(self.kind)] * (rows * vectors)
        start = self.scratch + row * PITCH
        with w.loop(0, self.steps, UNROLL, [*zeros, start, self.right]) as turn:
            *sums, left, right = turn.carried
            for step in range(UNROLL):
                b = [(right + 8 * (step * self.width + j * self.lanes)).load(self.kind, 8) for j in range(vectors)]
                self._multiply(left + 8 * step, b, sums)
            turn.next(*sums, left + 8 * UNROLL, right + 8 * UNROLL * self.width)
        return turn.carried[:-2]

    def _multiply(self, left: Value, b: Sequence[Value], sums: list[Value]) -> None:
        """Add to the sums the products of one element of each row with these vectors of b."""
        for i in range(self.spec.rows):
            x = (left + i * PITCH).load("double", 8).splat(self.lanes)
            for j, vector in enumerate(b):
                sums[i * len(b) + j] = x.fma(vector, sums[i * len(b) + j])

    def _sums_direct(self, row: Value) -> list[Value]:
        """As `_sums`; the squares of the right matrix are added on the way, unless its lengths are known."""
        w, vectors, source = self.w, self.spec.vectors, self._part()
        before = [] if self.known else self._squares()
        start = self.scratch + row * PITCH
        zeros = [w.zero(self.kind)] * (self.spec.rows * vectors)
        ends = []
        for whole in self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(vectors)]
            carried, done = [*zeros, *before, start, source], w.value("i64", 0)
            for count in (UNROLL, 1) if whole else (1,):
                with w.loop(done, self.steps - (count - 1), count, carried) as turn:
                    sums, squares = turn.carried[: len(zeros)], turn.carried[len(zeros) : -2]
                    left, right = turn.carried[-2:]
                    for step in range(count):
                        for line in range(self.spec.prefetch):
                            w.prefetch(right + self.a.ahead + 64 * line)
                        b = [self.numbers_at(right + 4 * self.lanes * j, mask) for j, mask in enumerate(masks)]
                        if not self.known:
                            squares = [x.fma(x, square) for x, square in zip(b, squares, strict=True)]
                        self._multiply(left + 8 * step, b, sums)
                        right = right + self.a.b_row
                    turn.next(*sums, *squares, left + 8 * count, right)
                carried, done = turn.carried, turn.index
            if not self.known:
                self._keep_squares(carried[len(zeros) : -2])
            ends.append((carried[: len(zeros)], w.here))
        return [w.phi(*((made[place], label) for made, label in ends)) for place in range(len(zeros))]


def parts(count: Value, size: Value) -> Value:
    """How many parts of this size cover `count` elements."""
    return (count + size - 1) // size


def _folded(vector: Value) -> Value:
    """The sum of all lanes of a vector."""
    lanes = vector.lanes
    while lanes > 1:
        lanes //= 2
        vector = vector.shuffled(range(lanes)) + vector.shuffled(range(lanes, 2 * lanes))
    return vector.extract(0)
