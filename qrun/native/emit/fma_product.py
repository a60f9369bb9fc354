"""The generated product of float32 matrices: each element is a sum in the order of numerics.md, F1.

A lane holds one element of the result, so that the cut into vectors, strips, tiles and threads changes no bit. A tile
is a block of rows by some panels of columns. For each block of k the sums of a strip, `rows` by `vectors`, are chains
of fused multiply-adds in registers; they are added to the sums of earlier blocks, which are kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.numbers import fma_once
from qrun.native.emit.requantize import clip
from qrun.native.emit.widen import first_lanes

BLOCK = 256
"""Elements of k that form one chain of multiply-adds."""
PITCH = 4 * BLOCK + 64
"""Bytes from one gathered row to the next."""
NAMES = names("""
    a* b* addend* y* numbers* batches* offsets* steps* padding* factor* term* residual* a_row b_row b_column addend_row
    residual_row y_row rows columns depth row_block panels panel_block right_at sums_at slot tiles
""")
"""The argument words, 8 bytes each.

batches      int64 [number][4]: for each product of the stack, bytes from the start of a, b, addend and y to its own
             part; [number][5] if there is a residual
a_row, b_row, addend_row, residual_row, y_row  bytes from row to row; b_column: from column to column of b (turned)
factor, term float32 [columns]: multiply results, and are added to them; they start where an addend does
residual     float32 [rows][columns]: added to results
offsets      int32 [rows]: bytes from where a product's a starts to a row (pixels, gathered); [rows][taps], -1 for
             `padding`, a zero (taps), with a_row bytes from row to row
steps        int32 [depth]: bytes from a row's start to element k (pixels, gathered); [depth][2]: bytes into a row of
             offsets, and from there (taps)
depth        elements of k
row_block    rows of a tile; panel_block: panels of a tile
right_at     offset of a packed panel in the thread's memory; sums_at: of the sums so far; slot: bytes of a strip's sums
numbers      float32: alpha, beta, the least and the greatest result, the zero that is added to it
"""
ALPHA, BETA, LOW, HIGH, ADDED = range(0, 20, 4)
TAIL: Mapping[str, Callable[[Value, Value], Value]] = {
    "factor": lambda y, x: y * x,
    "term": lambda y, x: y + x,
    "residual": lambda y, x: y + x,
}
"""float32 steps after a sum, each rounded. A step has the name of the word that points to its operand."""


class FloatSumsEmitter(KernelEmitter):
    """Common base of kernels of float32 sums: it finds the operands, applies the steps after a sum, and stores results.

    form: the form of the sum, then the steps that follow it in this order (TAIL), then ``+limits`` for Clip or Relu.
    starts: the addresses of the product's a, b, addend and y, and of its residual if there is one.
    """

    own_memory = True
    starts: Sequence[Value]
    channels: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.form, *tail = spec.form.split("+")
        self.tail, self.limits = [step for step in tail if step in TAIL], "limits" in tail
        self.lanes, self.kind = isa.lanes, f"<{isa.lanes} x float>"

    def take_batch(self, batch: Value) -> None:
        """Set `starts` to the operands of one product of the stack. batch: its number."""
        a = self.a
        operands = [a.a, a.b, a.addend, a.y, *([a.residual] if "residual" in self.tail else [])]
        entry = a.batches + batch * (8 * len(operands))
        places = [(entry + 8 * n).load("i64", 8) for n in range(len(operands))]
        self.starts, self.channels = [start + n for start, n in zip(operands, places, strict=True)], places[2]

    def load(self, source: Value, mask: Value | None) -> Value:
        """Load a vector of float32; only the lanes of `mask` if given."""
        return source.load(self.kind, 4) if mask is None else source.masked_load(self.kind, mask, 4)

    def number(self, index: int) -> Value:
        """A number of the call's list of scalars (such as alpha or beta) in all lanes."""
        return (self.a.numbers + index).load("float", 4).splat(self.lanes)

    def finish(
        self, value: Value, addend: Value | None, target: Value, mask: Value | None, tail: Sequence[Value] = ()
    ) -> None:
        """Store a vector of sums: add the addend, give every NaN one pattern, round to the result's type, apply the
        tail and the limits. addend, tail: the addresses of the operands that the form has."""
        if addend is not None:
            value = value + self.load(addend, mask)
        value = value.test("uno", value).select(value.like(math.nan), value)
        if self.w.narrowing:
            value = self.w.narrowing(value)
        for step, position in zip(self.tail, tail, strict=True):
            value = TAIL[step](value, self.load(position, mask))
        if self.limits:
            value = clip(value, self.number(LOW), self.number(HIGH)) + self.number(ADDED)
        if mask is None:
            target.store(value, 4)
        else:
            target.masked_store(value, mask)


@emitter("fma_product")
class FmaProductEmitter(FloatSumsEmitter):
    """form: ``sum``; ``bias``: an addend is added after the sum; ``first``: the sum begins with the addend; ``scaled``:
    it begins with beta times the addend, and each block is multiplied by alpha; ``alpha``: as scaled, without addend.

    operands: how left rows are found (``rows``; ``pixels``; ``taps`` and ``gathered``, whose blocks of k each tile
    copies first), the layout of b (``panels``; ``near``: rows, read in place; ``packed``: rows, copied first;
    ``turned``: columns, copied first), and the vectors of a panel.
    """

    names = NAMES
    first: Value
    count: Value
    k: Value
    size: Value
    opens: Value
    ends: Value
    panel: Value
    left: Value
    column: Value
    follows: Value
    fetch: Value
    fetch_step: Value

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.rows_are, self.right_is, vectors, *self.coding = spec.operands.split("-")
        self.panel_vectors = int(vectors)
        self.panel_width, self.width = self.panel_vectors * self.lanes, spec.vectors * self.lanes
        self.beside = spec.vectors // self.panel_vectors
        self.gathers = self.rows_are in ("taps", "gathered")

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        row_blocks, panel_blocks = parts(a.rows, a.row_block), parts(a.panels, a.panel_block)
        batch, rest = divmod(tile, row_blocks * panel_blocks)
        columns, block = divmod(rest, row_blocks)
        self.first = (block * a.row_block).least(a.rows - self.spec.rows)
        self.count = a.row_block.least(a.rows - self.first)
        self.take_batch(batch)
        first, end = columns.part(a.panel_block, a.panels)
        with w.loop(0, a.depth, BLOCK) as k:
            self.k, self.size = k.index, (a.depth - k.index).least(BLOCK)
            self.opens, self.ends = k.index.test("eq", 0), (k.index + BLOCK).test("sge", a.depth)
            if self.gathers:
                with w.loop(0, self.count, 1) as row:
                    self._gather(row.index)
            with w.loop(first, end, self.beside) as panel:
                self.follows = (panel.index + self.beside).test("slt", end)
                self._panel(panel.index.least(a.panels - self.beside), panel.index - first)

    def _panel(self, panel: Value, number: Value) -> None:
        """Add the block of k to all strips of some panels. number: the first panel's, counted in the tile."""
        w, a = self.w, self.a
        self.panel, self.column = panel, panel * self.panel_width
        self.left = a.columns - self.column
        self._pack()
        strips = parts(self.count, w.value("i64", self.spec.rows))
        if self.spec.prefetch:
            following = self._next_panels(panel - number)
            self.fetch_step = parts(w.value("i64", 4 * self.width), strips)
        with w.loop(0, strips, 1) as strip:
            row = (strip.index * self.spec.rows).least(self.count - self.spec.rows)
            slot = self.scratch + a.sums_at + (number // self.beside * strips + strip.index) * a.slot
            if self.spec.prefetch:
                self.fetch = following + strip.index * self.size * self.fetch_step
            self._strip(row, slot)

    def _next_panels(self, first: Value) -> Value:
        """The address of the panels that the tile reads next: those behind these, or its first panels in the next block
        of k; at the tile's end, these again."""
        a, start, wide = self.a, self._right_starts()[0], 4 * self.panel_width
        size = (a.depth - self.k - BLOCK).least(BLOCK)
        block = self.starts[1] + (self.k + BLOCK) * a.panels * wide + first * size * wide
        return self.follows.select(start + self.size * (4 * self.width), self.ends.select(start, block))

    def _fetch_next(self, k: Value) -> None:
        """Prefetch a part of the next panels: each strip prefetches a share of them, and each element of k a part of
        that share."""
        position = self.fetch + k * self.fetch_step
        for line in range(self.spec.prefetch):
            self.w.prefetch(position + 64 * line)

    def _strip(self, row: Value, slot: Value) -> None:
        """Compute a strip of rows: all of its sums if this block of depth is the last, partial ones in `slot` else."""
        w = self.w
        places = [slot + 4 * self.lanes * n for n in range(self.spec.rows * self.spec.vectors)]
        sums = self._add_earlier_sums(row, self._chains(row), places)
        for last in w.either(self.ends):
            if last:
                self._finish(row, sums)
            else:
                for slot_address, value in zip(places, sums, strict=True):
                    slot_address.store(value, 4)

    # The left rows.

    def _row_start(self, row: Value) -> Value:
        """The address of the block of k of a tile's row; for ``pixels``, the address from which `steps` counts."""
        a, of_all = self.a, self.first + row
        if self.gathers:
            return self.scratch + row * PITCH
        if self.rows_are == "pixels":
            return self._pixel(of_all)
        return self.starts[0] + of_all * a.a_row + self.k * 4

    def _pixel(self, row: Value) -> Value:
        """The address of the image's pixel that belongs to a row."""
        return self.starts[0] + (self.a.offsets + row * 4).load("i32", 4).sext("i64")

    def _left_step(self, k: Value, more: int) -> list[Value | int]:
        """Byte offsets whose sum leads from `_row_start` to element k + more of the block."""
        if self.rows_are == "pixels":
            return [self._step(self.k + k, more)]
        return [k * 4, 4 * more]

    def _gather(self, row: Value) -> None:
        """Copy a row's block of k into the thread's memory."""
        taps = self.rows_are == "taps"
        start = self.a.offsets + (self.first + row) * self.a.a_row if taps else self._pixel(self.first + row)
        done = self.w.value("i64", 0)
        for count in (8, 1):
            with self.w.loop(done, self.size - (count - 1), count) as k:
                places = [self.k + k.index + n for n in range(count)]
                sources = [self._tap(start, position) if taps else start + self._step(position) for position in places]
                found = [source.load("float", 4) for source in sources]
                for n, x in enumerate(found):
                    (self.scratch + row * PITCH + k.index * 4 + 4 * n).store(x, 4)
            done = k.index

    def _step(self, k: Value, more: int = 0) -> Value:
        """Bytes from a pixel to element k + more, counted over all blocks."""
        return (self.a.steps + k * 4 + 4 * more).load("i32", 4).sext("i64")

    def _tap(self, taps: Value, k: Value) -> Value:
        """The address of element k of a row whose taps have offsets of their own; `padding` for a negative one."""
        step = self.a.steps + k * 8
        tap = (taps + step.load("i32", 4).sext("i64")).load("i32", 4)
        inside = self.starts[0] + tap.sext("i64") + (step + 4).load("i32", 4).sext("i64")
        return tap.test("slt", 0).select(self.a.padding, inside)

    # The right matrix.

    def _right_starts(self) -> list[Value]:
        """The address of each panel's block of k."""
        a = self.a
        if self.right_is == "near":
            return [self.starts[1] + self.k * a.b_row + self.column * 4]
        if self.right_is != "panels":
            return [self.scratch + a.right_at]
        each = self.size * (4 * self.panel_width)
        start = self.starts[1] + self.k * a.panels * (4 * self.panel_width) + self.panel * each
        return [start, *(start + each * n for n in range(1, self.beside))]

    def _right_at(self, starts: Sequence[Value], masks: Sequence[Value | None], k: Value, more: int) -> Iterator[Value]:
        """The vectors of row k + more of b."""
        if self.right_is == "near":
            source = starts[0] + k * self.a.b_row + (self.a.b_row * more if more else 0)
            for j, mask in enumerate(masks):
                yield self.load(source + 4 * self.lanes * j, mask)
            return
        step, wide = k * (4 * self.panel_width), self.panel_vectors
        for j in range(self.spec.vectors):
            position = 4 * (more * self.panel_width + j % wide * self.lanes)
            yield (starts[j // wide] + step + position).load(self.kind, 4)

    def _masks(self) -> list[Value]:
        """For each vector, the mask of the columns that exist."""
        return [first_lanes(self.left - j * self.lanes, self.lanes) for j in range(self.spec.vectors)]

    def _whole_or_cut(self) -> Iterator[list[Value | None]]:
        """Write the body twice, for panels whose columns all exist and for cut ones. Yields the vectors' masks."""
        for whole in self.w.either(self.left.test("sge", self.width)):
            yield [None] * self.spec.vectors if whole else list(self._masks())

    def _pack(self) -> None:
        """Copy the panel's block of k into the thread's memory, unless it is read in place."""
        if self.right_is == "packed":
            self._pack_rows()
        elif self.right_is == "turned":
            self._pack_columns()

    def _pack_rows(self) -> None:
        """Copy the right matrix's block of this panel into the scratch memory, column vectors side by side."""
        w, source = self.w, self.starts[1] + self.k * self.a.b_row + self.column * 4
        target = self.scratch + self.a.right_at
        for masks in self._whole_or_cut():
            with w.loop(0, self.size, 1) as k:
                for j, mask in enumerate(masks):
                    x = self.load(source + k.index * self.a.b_row + 4 * self.lanes * j, mask)
                    (target + k.index * (4 * self.width) + 4 * self.lanes * j).store(x, 4)

    def _pack_columns(self) -> None:
        """Transpose columns to rows, a square of `lanes` by `lanes` at a time. There is room for one more square behind
        the panel. Columns beyond the last one repeat it."""
        w, a, n = self.w, self.a, self.lanes
        target, last = self.scratch + a.right_at, a.columns - 1
        for vector in range(self.spec.vectors):
            sources = [
                self.starts[1] + (self.column + (vector * n + i)).least(last) * a.b_column + self.k * 4
                for i in range(n)
            ]
            carried, done = self.size - (n - 1), w.value("i64", 0)
            for whole in (True, False):
                with w.loop(done, carried if whole else self.size, n) as k:
                    mask = None if whole else first_lanes(self.size - k.index, n)
                    square = [self.load(source + k.index * 4, mask) for source in sources]
                    for i, x in enumerate(transpose_square(square)):
                        (target + (k.index + i) * (4 * self.width) + 4 * n * vector).store(x, 4)
                done = k.index

    # Sums.

    def _chains(self, row: Value) -> list[Value]:
        """The chains of a strip in this block of k, [rows][vectors]."""
        zeros = [self.w.zero(self.kind)] * (self.spec.rows * self.spec.vectors)
        lefts, rights = [self._row_start(row + i) for i in range(self.spec.rows)], self._right_starts()
        if self.right_is != "near":
            return self._chain_loop(lefts, rights, [None] * self.spec.vectors, zeros)
        ends = []
        for masks in self._whole_or_cut():
            ends.append((self._chain_loop(lefts, rights, masks, zeros), self.w.here))
        return [self.w.phi(*((made[n], label) for made, label in ends)) for n in range(len(zeros))]

    def _chain_loop(
        self, lefts: Sequence[Value], rights: Sequence[Value], masks: Sequence[Value | None], sums: list[Value]
    ) -> list[Value]:
        """Continue the chains of fused multiply-adds over the block's depth; returns the sums."""
        w, done = self.w, self.w.value("i64", 0)
        for count in (self.spec.unroll, 1) if self.spec.unroll > 1 else (1,):
            with w.loop(done, self.size - (count - 1), count, sums) as turn:
                carried = list(turn.carried)
                for more in range(count):
                    if self.spec.prefetch:
                        self._fetch_next(turn.index + more)
                    step = self._left_step(turn.index, more)
                    self._multiply(lefts, step, self._right_at(rights, masks, turn.index, more), carried)
                turn.next(*carried)
            sums, done = turn.carried, turn.index
        return sums

    def _multiply(
        self, lefts: Sequence[Value], step: Sequence[Value | int], rights: Iterator[Value], sums: list[Value]
    ) -> None:
        """Multiply one element of each row by one row of b. step: byte offsets from `lefts` to the elements."""
        elements = list(lefts)
        for more in step:
            elements = [start + more for start in elements]
        add_products(elements, rights, sums, self.lanes)

    def _add_earlier_sums(self, row: Value, sums: list[Value], places: Sequence[Value]) -> list[Value]:
        """Add a strip's sums to those of earlier blocks, or to the values that they begin with."""
        w = self.w

        def held() -> list[Value]:
            return [address.load(self.kind, 4) for address in places]

        if self.form in ("sum", "bias"):
            return w.instead(sums, ~self.opens, lambda: [y + s for y, s in zip(held(), sums, strict=True)])
        if self.form == "alpha":
            alpha = self.number(ALPHA)
            begun = [alpha * s for s in sums]
            return w.instead(
                begun, ~self.opens, lambda: [fma_once(alpha, s, y) for y, s in zip(held(), sums, strict=True)]
            )
        ends = []
        for opens in w.either(self.opens):
            ends.append((self._begin(row) if opens else held(), w.here))
        ys = [w.phi(*((made[n], label) for made, label in ends)) for n in range(len(sums))]
        if self.form == "first":
            return [y + s for y, s in zip(ys, sums, strict=True)]
        alpha = self.number(ALPHA)
        return [fma_once(alpha, s, y) for y, s in zip(ys, sums, strict=True)]

    def _begin(self, row: Value) -> list[Value]:
        """The sums' first values: the addend's elements, times beta if the form is "scaled"."""
        masks = self._masks()
        made = [
            self.load(self._addend(row + i, j), mask) for i in range(self.spec.rows) for j, mask in enumerate(masks)
        ]
        return [value * self.number(BETA) for value in made] if self.form == "scaled" else made

    def _addend(self, row: Value, vector: int) -> Value:
        """The address of the addend's vector of columns for a row."""
        start = self.starts[2] + (self.first + row) * self.a.addend_row + self.column * 4
        return start + 4 * self.lanes * vector

    def _finish(self, row: Value, sums: Sequence[Value]) -> None:
        """Store the results of a strip."""
        for masks in self._whole_or_cut():
            for i in range(self.spec.rows):
                target = self.starts[3] + (self.first + row + i) * self.a.y_row + self.column * 4
                for j, mask in enumerate(masks):
                    addend = self._addend(row + i, j) if self.form == "bias" else None
                    tail = [self._tail_operand(step, row + i, j) for step in self.tail]
                    self.finish(sums[i * self.spec.vectors + j], addend, target + 4 * self.lanes * j, mask, tail)

    def _tail_operand(self, step: str, row: Value, vector: int) -> Value:
        """The address of a tail step's operand."""
        if step == "residual":
            start = self.starts[4] + (self.first + row) * self.a.residual_row
        else:
            start = (self.a.factor if step == "factor" else self.a.term) + self.channels
        return start + self.column * 4 + 4 * self.lanes * vector


def add_products(lefts: Sequence[Value], rights: Iterator[Value], sums: list[Value], lanes: int) -> None:
    """Add one element of each row times one row of b to sums, [rows][vectors]. lefts: the addresses of the elements.

    The shorter side stays in registers. The other one is loaded element by element, since the compiler would otherwise
    load it all first and spill sums.
    """
    vectors = len(sums) // len(lefts)
    own = (left.load("float", 4).splat(lanes) for left in lefts)
    if len(lefts) > vectors:
        held = list(rights)
        pairs = ((i, x, j, b) for i, x in enumerate(own) for j, b in enumerate(held))
    else:
        every = list(own)
        pairs = ((i, x, j, b) for j, b in enumerate(rights) for i, x in enumerate(every))
    for i, x, j, b in pairs:
        sums[i * vectors + j] = fma_once(x, b, sums[i * vectors + j])


def parts(count: Value, size: Value) -> Value:
    """How many parts of this size cover `count` elements."""
    return (count + size - 1) // size


def transpose_square(rows: Sequence[Value]) -> list[Value]:
    """The columns of a square of vectors. In log2(count) rounds, the lanes of each row of the first half alternate with
    those of its partner in the second half."""
    made, count, half = list(rows), len(rows), len(rows) // 2
    orders = [[side * half + lane // 2 + lane % 2 * count for lane in range(count)] for side in range(2)]
    for _ in range(count.bit_length() - 1):
        made = [made[n].shuffle(order, made[n + half]) for n in range(half) for order in orders]
    return made
