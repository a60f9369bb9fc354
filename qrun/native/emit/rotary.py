"""Generated rows of heads: read where they lie, turned by the angles of their place, written one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names

NAMES = names(
    "x* ends* cos* sin* y* heads places size half batch_step head_step place_step least span rows chunk tiles"
)
"""One 8-byte word each.

x, y       float32; rows of y are [batch][heads][places]
ends       int32 [batch], each `least` to `least + span`: else the run ends undecided
cos, sin   float32 [places][half], of the first place on of a sequence that ends at `least`
size       elements of a row, of which 2 * half turn
..._step   bytes from one batch, head and place of x to the next
rows       of y; a tile is `chunk` of them
"""


@emitter("rotary")
class RotaryEmitter(KernelEmitter):
    """`rows` elements at once. form: which elements turn with each other: ``halves``, element i with element half + i;
    ``pairs``, neighbours; ``copy``: none do."""

    names = NAMES
    frozen = True

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            rest, place = divmod(row, a.places)
            batch, head = divmod(rest, a.heads)
            later = (a.ends + batch * 4).load("i32", 4).sext("i64") - a.least
            fits = later.test("ule", a.span)
            with w.when(~fits):
                w.undecided()
            x = a.x + batch * a.batch_step + head * a.head_step + place * a.place_step
            self._row(x, a.y + row * a.size * 4, (place + fits.select(later, 0)) * a.half * 4)

    def _row(self, x: Value, y: Value, angles: Value) -> None:
        """angles: bytes to those of the row's place."""
        w, a, n = self.w, self.a, self.spec.rows
        first = w.value("i64", 0)
        if self.spec.form != "copy":
            for at, count in w.runs(first, a.half, (n, 1)):
                cos, sin = (table + angles + at * 4 for table in (a.cos, a.sin))
                self._turn(x, y, at, [_vector(where, count) for where in (cos, sin)], count)
            first = a.half + a.half
        for at, count in w.runs(first, a.size, (n, 1)):
            (y + at * 4).store(_vector(x + at * 4, count), 4)

    def _turn(self, x: Value, y: Value, at: Value, angles: Sequence[Value], count: int) -> None:
        """So many elements of each kind, of the first of each pair from number `at` on."""
        cos, sin = angles
        far = self.a.half * 4
        if self.spec.form == "pairs":
            both = _vector(x + at * 8, 2 * count)
            real, imaginary = (both.shuffled(range(start, 2 * count, 2)) for start in (0, 1))
        else:
            real, imaginary = (_vector(place, count) for place in (x + at * 4, x + at * 4 + far))
        made = cos * real - sin * imaginary, sin * real + cos * imaginary
        if self.spec.form == "pairs":
            order = chain.from_iterable((i, count + i) for i in range(count))
            (y + at * 8).store(made[0].shuffled(order, made[1]), 4)
            return
        for value, place in zip(made, (y + at * 4, y + at * 4 + far), strict=True):
            place.store(value, 4)


def _vector(place: Value, count: int) -> Value:
    return place.load(f"<{count} x float>", 4)
