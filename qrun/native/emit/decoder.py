"""Generated kernels for transformer decoders: rotary position embedding, key and value caches that grow, and attention
masks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import inf

from qrun.native.emit.kernel import KernelEmitter, Value, emitter, names

ROTARY = names(
    "x* ends* cos* sin* y* heads places size half batch_step head_step place_step least span rows chunk tiles"
)
"""The argument words, 8 bytes each.

x, y       float32; rows of y are [batch][heads][places]
ends       int32 [batch], each from `least` to `least + span`; otherwise the run ends undecided
cos, sin   float32 [places][half], beginning with the first place of a sequence that ends at `least`
size       elements of a row; the first 2 * half are rotated
..._step   bytes from one batch, head and place of x to the next
rows       of y; a tile is `chunk` of them
"""


@emitter("rotary")
class RotaryEmitter(KernelEmitter):
    """Rotary embedding, `rows` elements at once. form: which elements are rotated together: ``halves``: element i and
    element half + i; ``pairs``: neighbours; ``copy``: none."""

    names = ROTARY
    frozen = True

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            rest, position = divmod(row, a.places)
            batch, head = divmod(rest, a.heads)
            later = _count_kept(self, a.ends + batch * 4)
            x = a.x + batch * a.batch_step + head * a.head_step + position * a.place_step
            self._row(x, a.y + row * a.size * 4, (position + later) * a.half * 4)

    def _row(self, x: Value, y: Value, angles: Value) -> None:
        """Make one row. angles: bytes from the start of `cos` and `sin` to the angles of the row's place."""
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
        """Rotate `count` pairs of elements, from pair number `at` on."""
        cos, sin = angles
        far = self.a.half * 4
        if self.spec.form == "pairs":
            both = _vector(x + at * 8, 2 * count)
            real, imaginary = (both.shuffle(range(start, 2 * count, 2)) for start in (0, 1))
        else:
            real, imaginary = (_vector(address, count) for address in (x + at * 4, x + at * 4 + far))
        made = cos * real - sin * imaginary, sin * real + cos * imaginary
        if self.spec.form == "pairs":
            order = chain.from_iterable((i, count + i) for i in range(count))
            (y + at * 8).store(made[0].shuffle(order, made[1]), 4)
            return
        for value, address in zip(made, (y + at * 4, y + at * 4 + far), strict=True):
            address.store(value, 4)


def _vector(address: Value, count: int) -> Value:
    """Load `count` float32 elements."""
    return address.load(f"<{count} x float>", 4)


PRESENT = names(
    "past* new* ends* y* heads room past_rows places size batch_step head_step place_step least span rows chunk tiles"
)
"""The argument words, 8 bytes each.

past       float32 [batch][heads][past_rows][size]; new: address of the first new row; y: [batch][heads][room][size]
ends       int32 [batch], each from `least` to `least + span`; otherwise the run ends undecided. ends - least is the
           number of rows of the past that are kept
..._step   bytes from one batch, head and place of new to the next
rows       of y; a tile is `chunk` of them
"""
HIDDEN = names("ends* y* places total window ahead least span rows chunk tiles")
"""The argument words, 8 bytes each. ends, least, span: as above.

y          float32 [batch][places][total]; rows and chunk count its rows
ahead      how many places after its own a row attends to
window     the most places a row attends to, including the last one
"""


@emitter("present")
class PresentEmitter(KernelEmitter):
    """The cache after a step: the kept rows of the past, the new rows, then zeros. Copies `rows` elements at once."""

    names = PRESENT
    frozen = True

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            head_of, position = divmod(row, a.room)
            batch, head = divmod(head_of, a.heads)
            kept = _count_kept(self, a.ends + batch * 4)
            old = a.past + (head_of * a.past_rows + position) * a.size * 4
            new = a.new + batch * a.batch_step + head * a.head_step + (position - kept) * a.place_step
            x, y = position.test("slt", kept).select(old, new), a.y + row * a.size * 4
            filled = position.test("slt", kept + a.places)
            with w.when(filled):
                for at, count in w.runs(0, a.size, (self.spec.rows, 1)):
                    (y + at * 4).store((x + at * 4).load(f"<{count} x float>", 4), 4)
            with w.when(~filled):
                _fill(self, y, w.value("i64", 0), a.size, 0.0)


@emitter("hidden")
class HiddenEmitter(KernelEmitter):
    """The attention mask: 0 where a place attends to another, else -infinity. Writes `rows` elements at once."""

    names = HIDDEN
    frozen = True

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            batch, position = divmod(row, a.places)
            kept = _count_kept(self, a.ends + batch * 4)
            end = (kept + position + a.ahead + 1).least(kept + a.places)
            first = end - a.window
            first = first.test("slt", 0).select(w.value("i64", 0), first)
            y = a.y + row * a.total * 4
            _fill(self, y, w.value("i64", 0), first, -inf)
            _fill(self, y, first, end, 0.0)
            _fill(self, y, end, a.total, -inf)


def _count_kept(kernel: KernelEmitter, address: Value) -> Value:
    """The number of rows kept, by the end stored at `address`. An invalid end gives 0 and leaves the run undecided."""
    w, a = kernel.w, kernel.a
    kept = address.load("i32", 4).sext("i64") - a.least
    fits = kept.test("ule", a.span)
    with w.when(~fits):
        w.mark_undecided()
    return fits.select(kept, 0)


def _fill(kernel: KernelEmitter, y: Value, first: Value, end: Value, number: float) -> None:
    """Store one number in the elements `first` to `end` of y."""
    for at, count in kernel.w.runs(first, end, (kernel.spec.rows, 1)):
        (y + at * 4).store(kernel.w.value(f"<{count} x float>", number), 4)
