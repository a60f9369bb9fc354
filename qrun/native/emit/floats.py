"""The generated product of float32 matrices: sums in float64 that round as the real sums do.

A tile is a block of rows by some panels of columns. For each block of k its rows are converted to float64 once, strip
by strip as the first panel needs them, and each panel's part of the right matrix too; the sums of `rows` by `vectors`,
a strip, stay in registers, begin at 0 for each block of k, and wait in memory between blocks. The lengths of rows and
columns are found on the way: they bound what a sum is off, which rounding.py looks at when the last block is done.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from qrun.native.emit.float_panels import UNROLL, PanelEmitter, parts
from qrun.native.emit.kernel import Isa, KernelSpec, Value, emitter, names
from qrun.native.emit.widen import folded, widened

SHARED = names("a* b* addend* y* numbers*")
"""What the arguments of all kernels of products begin with."""
NAMES = names("""
    a* b* addend* y* numbers* batches* offsets* padding* a_row b_row addend_row y_row
    rows columns taps depth tap_step depth_step row_block panels panel_block
    slot right_at squares_at lengths_at sums_at ahead known* known_odd tiles recheck*
""")
"""One 8-byte word each.

batches      int64 [number][6]: bytes from where a, b, addend, y and known start to a product's own, and from its pixels
             to their squares (an image)
offsets      int32 [rows][taps]: bytes from where a product's a starts to what a tap of a row reads, or -1 for `padding`
a_row, b_row, addend_row, y_row  bytes from row to row; of rows with taps, a_row is that of `offsets`
columns      of the result
taps, depth  k is a tap of the row and an element there; tap_step, depth_step: of each in a block of k
row_block    rows of a tile; panel_block: of the panels
slot         bytes from one strip's sums to the next one's; 0 if there is one block of k
..._at       where the thread's memory has a panel; squares of rows; lengths of rows, then of columns; sums
ahead        how many bytes on the right matrix is fetched (direct, with prefetch), or the next line of an image lies
             (lines)
known        float64, the lengths of columns (ordered); known_odd: 1 if some are not finite
tiles        products * blocks of rows * blocks of panels
numbers      float64 (rounding.py)
recheck      makes elements that nothing else decides, of their row (of all products') and column
"""
DEPTH = 128
"""Elements of a block of k."""
PITCH = 8 * DEPTH + 64
"""Bytes from one converted row to the next: it has room for a turn more,
and rows do not fall into the same cache set."""


@emitter("float_product")
class FloatProductEmitter(PanelEmitter):
    """operands: ``rows`` or ``taps``, or ``image`` where these are float64 already, and how the right matrix is read:
    ``packed`` converts each panel first, ``direct`` converts numbers as it reads them, for one strip. Where the matrix
    lies panel after panel and the lengths of its columns are known, these are ``panels`` and ``near``."""

    names = NAMES
    turn = UNROLL
    """How many elements of a row a turn of the loop reads; zeros follow the row's last one."""
    panel: Value
    known_lengths: Value
    tap_count: Value
    size: Value
    alone: Value
    converted: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a = self.a
        left, _, right = spec.operands.partition("-")
        self.image, self.tapped = left == "image", left != "rows"
        self.ordered, self.packed = right in ("panels", "near"), right in ("packed", "panels")
        self.known = self.ordered
        self.right, self.squares = self.scratch + a.right_at, self.scratch + a.squares_at
        self.lengths, self.sums = self.scratch + a.lengths_at, self.scratch + a.sums_at
        self.part_lanes = self.lanes // 2 if spec.halves else self.lanes
        self.pitch = PITCH

    def tile(self, tile: Value) -> None:
        a = self.a
        row_blocks, panel_blocks = parts(a.rows, a.row_block), parts(a.panels, a.panel_block)
        batch, rest = divmod(tile, row_blocks * panel_blocks)
        columns, block = divmod(rest, row_blocks)
        self.first = (block * a.row_block).least(a.rows - self.spec.rows)
        self.count = a.row_block.least(a.rows - self.first)
        self.product(batch, *columns.part(a.panel_block, a.panels))

    def product(self, batch: Value, first: Value, end: Value) -> None:
        """These panels of the tile's rows, of the product of this number."""
        w, a = self.w, self.a
        starts = self.take_product(batch)
        self.odd_rows.store(w.value("i64", 0), 8)
        if self.known:
            self.odd_panel.store(a.known_odd, 8)
        self.before_blocks(starts)
        with w.loop(0, a.taps, a.tap_step) as tap, w.loop(0, a.depth, a.depth_step) as inner:
            self.tap, self.start = tap.index, inner.index
            self.tap_count, self.size = a.tap_step.least(a.taps - self.tap), a.depth_step.least(a.depth - self.start)
            self.opens = (self.tap | self.start).test("eq", 0)
            self.ends = (self.tap + a.tap_step).test("sge", a.taps) & (self.start + a.depth_step).test("sge", a.depth)
            self.steps = self.tap_count * self.size
            self._panels(first, end)
        self.doubts.end()

    def take_product(self, batch: Value) -> Value:
        """Find what the product of this number reads and makes. Returns where its entry of `batches` is."""
        starts = self.take_batch(batch, self.addends(batch))
        if self.known:
            self.known_lengths = self.a.known + (starts + 32).load("i64", 8)
        return starts

    def addends(self, batch: Value) -> Value:
        """Where what is added to this product is counted from."""
        return self.a.addend

    def before_blocks(self, starts: Value) -> None:
        """What is done once for a tile; starts: of its product."""

    def _panels(self, first: Value, end: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        strips, self.alone = (self.count + (rows - 1)) // rows, (end - first).test("eq", 1)
        self.panel_step = a.taps * a.depth * a.b_row
        with w.loop(first, end, 1) as panel:
            place = panel.index - first
            self.take_panel(panel.index, place)
            if self.packed:
                self.pack()
            opening = place.test("eq", 0)
            if not self.packed and not self.known:
                self._converted_strip(w.value("i64", 0), place, opening)
            else:
                coming = self.coming(panel.index, first, end) if self.ordered else None
                with w.loop(0, strips, 1) as strip:
                    if coming is not None:
                        self.fetch(coming, strip.index, strips)
                    row = (strip.index * rows).least(self.count - rows)
                    self._converted_strip(row, place * strips + strip.index, opening)

    def take_panel(self, panel: Value, place: Value) -> None:
        """Find what the panel of this number reads and makes; place: its number among those that are made."""
        a, self.panel = self.a, panel
        self.left, self.column = a.columns - panel * self.width, panel * (4 * self.width)
        self.right_column = self.row_starts[1] + (panel * self.panel_step if self.ordered else self.column)
        self.panel_lengths = self.lengths + (a.row_block + place * self.width) * 8
        if self.known:
            self.panel_lengths = self.known_lengths + panel * (8 * self.width)

    def row_part(self, row: Value, tap: Value) -> Value:
        return super().row_part(row, tap) if self.tapped else self.row_starts[0] + row * self.a.a_row

    def strip_reaches(self, row: Value) -> list[Value]:
        """One for all rows: that of the longest."""
        lengths = [(self.lengths + (row + i) * 8).load("double", 8) for i in range(self.spec.rows)]
        longest = reduce(lambda a, b: a.where("ogt", b), lengths).splat(self.lanes)
        columns = [(self.panel_lengths + 8 * self.lanes * j).load(self.kind, 8) for j in range(self.spec.vectors)]
        return [longest * column for column in columns] * self.spec.rows

    def reach_at(self, row: Value, vector: Value, slot: Value) -> Value:
        length = (self.lengths + row * 8).load("double", 8).splat(self.lanes)
        return length * (self.panel_lengths + vector * (8 * self.lanes)).load(self.kind, 8)

    def _converted_strip(self, row: Value, number: Value, opening: Value) -> None:
        """`_strip`; opening: whether it is of the first panel, which converts the rows while they are near.

        Where it is the only panel as well, all strips convert theirs to the same place.
        """
        self.converted = self.scratch + self.alone.select(0, row) * self.pitch
        self.convert(row, opening)
        self._strip(row, number)

    def convert(self, first: Value, opening: Value) -> None:
        """Convert a strip's rows to float64 if it opens, and fetch the next strip's. After the last block of k, the
        lengths of the rows are known; a row that two strips share may seem longer, which leaves more in doubt."""
        w, zero = self.w, self.w.zero(self.kind)
        ahead = None if self.tapped else self.a.a_row * self.spec.rows
        with w.when(opening), w.loop(0, self.spec.rows, 1) as turn:
            row = first + turn.index
            target, held = self.converted + turn.index * PITCH, self.squares + row * (8 * self.lanes)
            total = self.opens.select(zero, held.load(self.kind, 8))
            with w.loop(0, self.tap_count, 1, [total, zero, zero, zero]) as tap:
                source = self.row_part(self.first + row, self.tap + tap.index) + self.start * 4
                to = target + tap.index * self.size * 8
                tap.next(*widened(w, self.lanes, source, to, self.size, tap.carried, ahead))
            squares = reduce(Value.__add__, tap.carried)
            held.store(squares, 8)
            for place in range(0, 8 * self.turn, 8 * self.lanes):
                (target + self.steps * 8 + place).store(zero, 8)
            with w.when(self.ends):
                self.measured(row, folded(squares))

    def _strip(self, row: Value, number: Value) -> None:
        """Add a block of k to the sums of a strip, which is the tile's rows from this one on;
        round them after the last."""
        own = self.strip_sums(row)
        slot = self.sums + number * self.a.slot

        def added() -> list[Value]:
            return [new + (slot + 8 * self.lanes * place).load(self.kind, 8) for place, new in enumerate(own)]

        sums = self.w.instead(own, ~self.opens, added)
        for last in self.w.either(self.ends):
            if last:
                self.round_strip(row, slot, sums)
            else:
                self.keep(slot, sums)

    def strip_sums(self, row: Value) -> list[Value]:
        """Sums of the products of this block of k, [rows][vectors]."""
        return self._sums() if self.packed else self._sums_direct()

    def _sums(self) -> list[Value]:
        w, rows, vectors = self.w, self.spec.rows, self.spec.vectors
        zeros = [w.zero(self.kind)] * (rows * vectors)
        with w.loop(0, self.steps, UNROLL, [*zeros, self.converted, self.right]) as turn:
            *sums, left, right = turn.carried
            for step in range(UNROLL):
                b = [(right + 8 * (step * self.width + j * self.lanes)).load(self.kind, 8) for j in range(vectors)]
                self._multiply(left + 8 * step, b, sums)
            turn.next(*sums, left + 8 * UNROLL, right + 8 * UNROLL * self.width)
        return turn.carried[:-2]

    def _multiply(self, left: Value, b: Iterable[Value], sums: list[Value]) -> None:
        """`multiply`, of converted rows that begin here."""
        self.multiply([left + i * PITCH for i in range(self.spec.rows)], b, sums)

    def multiply(self, rows: Sequence[Value], b: Iterable[Value], sums: list[Value]) -> None:
        """Add to the sums the products of one element of each row with these vectors of b.

        Of both, the fewer are held in registers. The others come one by one, as else the compiler loads all of them
        first, and sums have to make room.
        """
        vectors = len(sums) // len(rows)
        lefts = ((i, start.load("double", 8)) for i, start in enumerate(rows))
        rights = enumerate(b)
        if len(rows) > vectors:
            held = list(rights)
            pairs = ((i, x, j, vector) for i, x in lefts for j, vector in held)
        else:
            own = list(lefts)
            pairs = ((i, x, j, vector) for j, vector in rights for i, x in own)
        for i, x, j, vector in pairs:
            sums[i * vectors + j] = x.splat(vector.lanes).fma(vector, sums[i * vectors + j])

    def no_sums(self) -> list[Value]:
        """Sums of nothing, as `multiply` takes them."""
        vectors = self.spec.rows * self.spec.vectors * self.lanes // self.part_lanes
        return [self.w.zero(f"<{self.part_lanes} x double>")] * vectors

    @property
    def ahead(self) -> Value | int:
        """How many bytes on the right matrix is fetched."""
        return self.a.ahead

    def columns_at(self, right: Value, masks: Sequence[Value | None]) -> Iterator[Value]:
        """The numbers of a panel's columns in a row of the right matrix, in vectors of `part_lanes`;
        if some are cut off, of all lanes."""
        if None not in masks:
            yield from (self.numbers_at(right + 4 * self.lanes * j, mask) for j, mask in enumerate(masks))
            return
        kind = f"<{self.part_lanes} x float>"
        for place in range(0, self.width, self.part_lanes):
            yield (right + 4 * place).load(kind, 4).double()

    def joined(self, sums: Sequence[Value]) -> list[Value]:
        """Sums in vectors of all lanes."""
        if self.part_lanes == self.lanes:
            return list(sums)
        return [low.shuffled(range(self.lanes), high) for low, high in zip(sums[::2], sums[1::2], strict=True)]

    def _sums_direct(self) -> list[Value]:
        """As `_sums`; the squares of the right matrix are added on the way, unless its lengths are known."""
        w, vectors, source = self.w, self.spec.vectors, self.part()
        before = [] if self.known else self.earlier_squares()
        zeros = self.no_sums()
        ends = []
        for whole in (True,) if self.ordered else self.whole_or_cut():
            masks = [None if whole else self.mask(j) for j in range(vectors)]
            carried, done = [*zeros, *before, self.converted, source], w.value("i64", 0)
            for count in (UNROLL, 1) if whole else (1,):
                with w.loop(done, self.steps - (count - 1), count, carried) as turn:
                    sums, squares = turn.carried[: len(zeros)], turn.carried[len(zeros) : -2]
                    left, right = turn.carried[-2:]
                    for step in range(count):
                        for line in range(self.spec.prefetch):
                            w.prefetch(right + self.ahead + 64 * line, near=True)
                        b: Iterable[Value] = self.columns_at(right, masks)
                        if not self.known:
                            b = list(b)
                            squares = [x.fma(x, square) for x, square in zip(b, squares, strict=True)]
                        self._multiply(left + 8 * step, b, sums)
                        right = right + self.a.b_row
                    turn.next(*sums, *squares, left + 8 * count, right)
                carried, done = turn.carried, turn.index
            if not self.known:
                self.keep_squares(carried[len(zeros) : -2])
            ends.append((carried[: len(zeros)], w.here))
        if len(ends) == 1:
            return self.joined(ends[0][0])
        return self.joined([w.phi(*((made[place], label) for made, label in ends)) for place in range(len(zeros))])
