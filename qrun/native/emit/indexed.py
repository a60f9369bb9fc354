"""Generated gathers and scatters: copies by tables of byte offsets; copies of rows that indices of the run name, and
updates of such rows."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS, UNSIGNED
from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names
from qrun.native.emit.strided import StridedEmitter, copy_block, copy_run

INDEXED = names("""
    x* y* n1 n2 y_0 y_1 y_2 chunks chunk units share tiles at_0* at_1* at_2* at* count y_row bytes
""")
"""The argument words, 8 bytes each. n1 to tiles: as in emit/strided.py.

at_0 to at_2  int64: for each index of the outer axes, the bytes that it adds to the address in x
at            the same for each of the `count` indices of the innermost axis
y_row         bytes of y from one index of the innermost axis to the next
bytes         bytes of a run
"""


@emitter("indexed")
class IndexedEmitter(StridedEmitter):
    """Copies elements or runs whose addresses in x come from tables.

    form: ``runs``: runs of bytes, `vectors` vectors of `unroll` bytes at a time, the last ones of a run overlapping;
    ``elements``: elements of `unroll` bytes; ``repeats``: contiguous elements of x, each repeated `rows` times,
    `vectors` of them at a time.
    """

    names = INDEXED
    frozen = True

    def offset(self, name: str, axis: int, index: Value) -> Value:
        """The byte offset of an operand for an index of an outer axis; x reads it from its table."""
        if name == "x":
            return (self.a[f"at_{axis}"] + index * 8).load("i64", 8)
        return super().offset(name, axis, index)

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the copy of the runs `first` to `end` of a row."""
        w, a, spec = self.w, self.a, self.spec
        end = end.least(a.count)
        if spec.form == "repeats":
            self._repeats(first, end)
            return
        with w.loop(first, end, 1) as turn:
            x = self.starts["x"] + (a.at + turn.index * 8).load("i64", 8)
            y = self.starts["y"] + turn.index * a.y_row
            if spec.form == "elements":
                y.store(x.load(f"i{8 * spec.unroll}"))
            else:
                copy_run(self, x, y, a.bytes - spec.vectors * spec.unroll)

    def _repeats(self, first: Value, end: Value) -> None:
        """Copy repeated elements. Chunks and rows are multiples of the repeats; a row's last vectors overlap."""
        spec = self.spec
        times, size, lanes = spec.rows, spec.unroll, spec.vectors
        x, y = self.starts["x"] + self.a.at.load("i64", 8), self.starts["y"]
        last = self.a.count // times - lanes
        with self.w.loop(first // times, end // times, lanes) as turn:
            position = turn.index.least(last)
            vector = (x + position * size).load(f"<{lanes} x i{8 * size}>")
            for number in range(times):
                order = [(number * lanes + lane) // times for lane in range(lanes)]
                (y + position * (size * times) + number * lanes * size).store(vector.shuffle(order))


GATHERED = names(
    "x* indices* y* sizes* depth count outer_step lines line_step index_outer index_row run last rows chunk tiles"
)
"""The argument words, 8 bytes each.

indices      int32 or int64, `depth` of them for a row
sizes        int64 [depth][2]: for each index, the length of its axis, and the bytes from one place of that axis to the
             next
count        rows for each place along the axes before the indexed ones
outer_step   bytes of x from one of those places to the next; index_outer: bytes of the indices
lines        how many starts rows take in turn: x, x + `line_step` and so on; index_row: bytes from a row's indices to
             the next one's
run, last    bytes of a row, and where its last block starts: it overlaps
rows         rows of y, which are contiguous; a tile is `chunk` of them
"""


@emitter("gathered")
class GatheredEmitter(KernelEmitter):
    """Copies the rows that indices name, `vectors` vectors of `unroll` bytes at a time. form ``block``: rows have just
    that length. operands: begin with the kind of the indices. A run with an index out of range ends undecided.
    """

    names = GATHERED

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            outer, position = divmod(row, a.count)
            x = a.x + outer * a.outer_step + position % a.lines * a.line_step
            self._row(x + self._offset(a.indices + outer * a.index_outer + position * a.index_row), a.y + row * a.run)

    def _offset(self, indices: Value) -> Value:
        """The byte offset of the place that the `depth` indices at this address name."""
        w, a = self.w, self.a
        element, size = KINDS[self.spec.operands[0]]
        with w.loop(0, a.depth, 1, [w.value("i64", 0)]) as turn:
            index = (indices + turn.index * size).load(element, size)
            index = index.sext("i64") if size < 8 else index
            length, step = ((a.sizes + turn.index * 16 + 8 * word).load("i64", 8) for word in (0, 1))
            position = index.test("slt", 0).select(index + length, index)
            inside = position.test("ult", length)
            with w.when(~inside):
                w.mark_undecided()
            turn.next(turn.carried[0] + inside.select(position, 0) * step)
        return turn.carried[0]

    def _row(self, x: Value, y: Value) -> None:
        """Write the copy of one row from x to y."""
        if self.spec.form == "block":
            copy_block(self, x, y)
        else:
            copy_run(self, x, y, self.a.last)


SCATTERED = names(
    "x* indices* updates* y* sizes* depth count outer_step lines line_step index_outer index_row run whole before chunk tiles"
)
"""As GATHERED, but the indices name rows of y, which has x's shape, and

updates  contiguous rows of `run` elements
whole    elements of each of the `before` places along the axes before; a tile is `chunk` of those places
"""


@emitter("scattered")
class ScatteredEmitter(GatheredEmitter):
    """Copies x, then combines the rows that indices name with the updates, in order: `rows` elements at once.
    operands: the kinds of the indices and of the elements. form: how they are combined: ``none`` (replace), ``add``,
    ``mul``, ``max`` or ``min``.
    """

    names = SCATTERED

    def write_tile(self, tile: Value) -> None:
        w, a, size = self.w, self.a, KINDS[self.spec.operands[1]][1]
        with w.part(tile, a.chunk, a.before) as outer:
            y, indices = a.y + outer * a.outer_step, a.indices + outer * a.index_outer
            self._combine("none", a.x + outer * a.outer_step, y, a.whole)
            with w.loop(0, a.count, 1) as turn:
                row = y + turn.index % a.lines * a.line_step + self._offset(indices + turn.index * a.index_row)
                updates = a.updates + (outer * a.count + turn.index) * a.run * size
                self._combine(self.spec.form, updates, row, a.run)

    def _combine(self, form: str, x: Value, y: Value, count: Value) -> None:
        """Combine `count` elements of y with those of x."""
        kind = self.spec.operands[1]
        element, size = KINDS[kind]
        for at, n in self.w.runs(0, count, (self.spec.rows, 1)):
            address = y + at * size
            new = (x + at * size).load(f"<{n} x {element}>", size)
            if form != "none":
                old = address.load(new.kind, size)
                sums = {"add": old.__add__, "mul": old.__mul__}
                new = sums[form](new) if form in sums else old.intrinsic(("u" if kind in UNSIGNED else "s") + form, new)
            address.store(new, size)
