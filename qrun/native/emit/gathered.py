"""Generated rows that indices of the run name."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS
from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names
from qrun.native.emit.strided import copy_block, copy_run

NAMES = names(
    "x* indices* y* sizes* depth count outer_step lines line_step index_outer index_row run last rows chunk tiles"
)
"""One 8-byte word each.

indices      int32 or int64, `depth` of them for a row
sizes        int64 [depth][2]: the length of the axis in which an index counts, and the bytes from one of its places to the next
count        rows for each place along the axes before these
outer_step   bytes of x from one of those places to the next; index_outer: of the indices
lines        rows begin at x and `line_step` bytes further on by turns, so many; index_row: bytes from a row's indices to the
             next one's
run, last    bytes of a row, and where its last block starts: it overlaps
rows         of y, which follow each other; a tile is `chunk` of them
"""


@emitter("gathered")
class GatheredEmitter(KernelEmitter):
    """Rows of `vectors` vectors of `unroll` bytes, or more, at once. operands: the kind of the indices.

    A run with an index that names no place ends undecided.
    """

    names = NAMES

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            outer, place = divmod(row, a.count)
            x = a.x + outer * a.outer_step + place % a.lines * a.line_step
            self._row(x + self._offset(a.indices + outer * a.index_outer + place * a.index_row), a.y + row * a.run)

    def _offset(self, indices: Value) -> Value:
        """The bytes to the place that these indices name."""
        w, a = self.w, self.a
        element, size = KINDS[self.spec.operands]
        with w.loop(0, a.depth, 1, [w.value("i64", 0)]) as turn:
            index = (indices + turn.index * size).load(element, size)
            index = index.sext("i64") if size < 8 else index
            length, step = ((a.sizes + turn.index * 16 + 8 * word).load("i64", 8) for word in (0, 1))
            place = index.test("slt", 0).select(index + length, index)
            inside = place.test("ult", length)
            with w.when(~inside):
                w.undecided()
            turn.next(turn.carried[0] + inside.select(place, 0) * step)
        return turn.carried[0]

    def _row(self, x: Value, y: Value) -> None:
        if self.spec.form == "block":
            copy_block(self, x, y)
        else:
            copy_run(self, x, y, self.a.last)
