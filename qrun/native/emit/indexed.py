"""Generated copies of what an index table of each axis names: runs of bytes, or one element after the other."""

from __future__ import annotations

from qrun.native.emit.kernel import Value, emitter, names
from qrun.native.emit.strided import StridedEmitter, copy_run

NAMES = names("""
    x* y* n1 n2 y_0 y_1 y_2 chunks chunk units share tiles at_0* at_1* at_2* at* count y_row bytes
""")
"""One 8-byte word each. n1 to tiles: as in emit/strided.py.

at_0 to at_2  int64: for each index of the outer axes, where in x it reads, in bytes
at            the same for each index of the innermost axis, of `count`
y_row         bytes from one index of the innermost axis to the next
bytes         of a run
"""


@emitter("indexed")
class IndexedEmitter(StridedEmitter):
    """What each row and its element, or run, is copied from stands in a table.

    form: ``runs`` of bytes, `vectors` vectors of `unroll` bytes at a time, the last of a run overlapping; ``elements`` of
    `unroll` bytes; ``repeats``: elements that follow each other in x, `rows` times each, `vectors` of them at a time.
    """

    names = NAMES
    frozen = True

    def offset(self, name: str, axis: int, index: Value) -> Value:
        if name == "x":
            return (self.a[f"at_{axis}"] + index * 8).load("i64", 8)
        return super().offset(name, axis, index)

    def _chunk(self, first: Value, end: Value) -> None:
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
        """Chunks and rows are multiples of the repeats; the last vectors of a row overlap."""
        spec = self.spec
        times, size, lanes = spec.rows, spec.unroll, spec.vectors
        x, y = self.starts["x"] + self.a.at.load("i64", 8), self.starts["y"]
        last = self.a.count // times - lanes
        with self.w.loop(first // times, end // times, lanes) as turn:
            place = turn.index.least(last)
            vector = (x + place * size).load(f"<{lanes} x i{8 * size}>")
            for number in range(times):
                order = [(number * lanes + lane) // times for lane in range(lanes)]
                (y + place * (size * times) + number * lanes * size).store(vector.shuffled(order))
