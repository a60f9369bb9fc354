"""Generated TopK: where the greatest or least elements of a row are, and the elements at such places."""

from __future__ import annotations

from qrun.native.emit.arg import key_of
from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names

TOP = names("x* y* rows chunk length count levels tiles")
ALONG = names("x* at* y* rows chunk length count tiles")
"""One 8-byte word each.

rows, chunk     rows, and those of a tile
length, count   elements of a row, and of them those that are wanted
levels          of a heap of so many
at              int64 [rows][count]: places in each row
"""
_REST = 0xFFFFFFFF


@emitter("top")
class TopEmitter(KernelEmitter):
    """form: ``max`` or ``min``. `rows` elements are looked at together.

    The thread's memory holds the best elements so far as a heap, the worst of them first: int64 whose upper half grows as
    elements get better, and whose lower half is less for a later place. At the end the worst one is taken out again and again.
    """

    names = TOP
    own_memory = True
    frozen = True

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            self._row(a.x + row * (a.length * 4), a.y + row * (a.count * 8))

    def _row(self, x: Value, y: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        with w.loop(0, a.count, 1) as turn:
            (self.scratch + turn.index * 8).store(self._entry(x, turn.index), 8)
        half = a.count.lshr(1)
        with w.loop(0, half, 1) as turn:
            place = half - 1 - turn.index
            self._sink((self.scratch + place * 8).load("i64", 8), place, a.count)
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
        return "float" if self.spec.operands == "f" else "i32"

    def _entry(self, x: Value, index: Value) -> Value:
        key = key_of((x + index * 4).load(f"<1 x {self._element}>", 4), self.spec.form).extract(0)
        return (key.sext("i64") << 32) | (_REST - index)

    def _offer(self, x: Value, index: Value) -> None:
        """Put an element in the place of the worst one if it is better."""
        entry = self._entry(x, index)
        with self.w.when(entry.test("sgt", self.scratch.load("i64", 8))):
            self._sink(entry, self.w.value("i64", 0), self.a.count)

    def _take(self, y: Value, place: Value) -> None:
        (y + place * 8).store(_REST - (self.scratch.load("i64", 8) & _REST), 8)

    def _sink(self, entry: Value, place: Value, size: Value) -> None:
        """Put an entry into the heap of this size at a place that is free, or below it."""
        w, last = self.w, size - 1
        with w.loop(0, self.a.levels, 1, [place]) as level:
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
    """Elements of `unroll` bytes."""

    names = ALONG

    def tile(self, tile: Value) -> None:
        w, a, size = self.w, self.a, self.spec.unroll
        with w.part(tile, a.chunk, a.rows) as row:
            x, first = a.x + row * (a.length * size), row * a.count
            with w.loop(0, a.count, 1) as turn:
                place = (a.at + (first + turn.index) * 8).load("i64", 8)
                (a.y + (first + turn.index) * size).store((x + place * size).load(f"i{8 * size}", size), size)
