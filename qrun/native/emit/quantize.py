"""Generated quantization of float32 numbers to bytes, and the way back."""

from __future__ import annotations

from qrun.native.emit.bytes import Bytes, in_order, interleaved, sixteens, store_first
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import PIECE
from qrun.native.emit.values import MAGIC32

ROWS = names("x* y* x_row y_row rows chunk chunks columns part parts last tiles constants* fields zero!")
IMAGE = names("""
    x* y* x_image x_plane x_line y_image y_line lines chunk chunks columns last
    tiles constants* fields zero!
""")
"""One 8-byte word each.

chunk, chunks     rows (or lines) of a tile, and tiles that share all of them; part, parts: the same for columns
columns, last     of a row (pixels of a line), and where the last block of one starts: it overlaps
constants         float32 numbers, one of each field, or for each column one: then `fields` is the bytes of a field
zero              zero point
"""


class _Floats(KernelEmitter):
    """`rows` elements at a time; 0 vectors: only some of 16 are stored. form: see Quantize; ``axis``: per column."""

    names: tuple[str, ...] = ROWS
    pieces = 4
    """Vectors of lanes in a block, at least."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.lanes = min(isa.lanes, max(spec.rows // self.pieces, 1))
        self.bytes = Bytes(self.w, isa, self.lanes)
        self.kind = self.bytes.floats
        self.axis = spec.form.endswith("axis")
        self.single: dict[int, Value] = {}

    def _constants(self, *fields: int) -> None:
        """Load the constants that all columns share."""
        if not self.axis:
            for field in fields:
                self.single[field] = (self.a.constants + 4 * field).load("float", 4).splat(self.lanes)

    def _constant(self, field: int, column: Value, piece: int) -> Value:
        if not self.axis:
            return self.single[field]
        start = self.a.constants + self.a.fields * field
        return (start + column * 4 + 4 * piece * self.lanes).load(self.kind, 4)

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        chunk, part = divmod(tile, a.parts)
        columns = part.part(a.part, a.columns)
        with w.part(chunk, a.chunk, a.rows) as row:
            x, y = a.x + row * a.x_row, a.y + row * a.y_row
            with w.loop(*columns, self.spec.rows) as at:
                self._block(x, y, at.index.least(a.last))

    def _block(self, x: Value, y: Value, column: Value) -> None:
        raise NotImplementedError


@emitter("quantize")
class QuantizeEmitter(_Floats):
    """float32 to bytes. form: ``div`` x / scale rounded to float32; ``mul`` two float32 numbers whose sum is nearly
    1 / scale, of which constants prove that the results are the same (kernels/quantize.py)."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self._constants(*range(5 if self.spec.form == "mul" else 3))
        self.zero = self.a.zero.trunc("i16").splat(2 * self.lanes)

    def _block(self, x: Value, y: Value, column: Value) -> None:
        codes = self._codes(x + column * 4, column)
        if self.spec.vectors:
            (y + column).store(codes)
        else:
            store_first(self.w, codes, self.a.columns, y)

    def _codes(self, x: Value, column: Value) -> Value:
        """The codes of the next numbers of a row, as many as a vector has bytes."""
        n = self.lanes
        numbers = [(x + 4 * n * i).load(self.kind, 4) for i in range(4)]
        quotients = [self._quotient(number, column, i) for i, number in enumerate(numbers)]
        add = self.zero
        if self.axis:
            quotients = [self._placed(q, self._constant(3, column, i)) for i, q in enumerate(quotients)]
            add = self.w.zero(self.bytes.ints16)
        packed = self.bytes.stored(quotients, add, self.spec.out)
        return packed if n == 4 else in_order(packed)

    def _quotient(self, x: Value, column: Value, i: int) -> Value:
        """x / scale, limited to what does not saturate; NaN becomes the lower limit."""
        if self.spec.form == "mul":
            x = x.within(*(self._constant(field, column, i) for field in (1, 2)))
            rest = x * self._constant(4, column, i)
            return x.fma(self._constant(3, column, i), rest)
        quotient = x / self._constant(0, column, i)
        return quotient.within(*(self._constant(field, column, i) for field in (1, 2)))

    @staticmethod
    def _placed(quotient: Value, zero: Value) -> Value:
        """The quotient rounded to an integer, plus the zero point."""
        return quotient + MAGIC32 - MAGIC32 + zero


@emitter("quantize_image")
class QuantizeImageEmitter(QuantizeEmitter):
    """Planes of float32 to pixels of `vectors` bytes: one to four planes, `rows` pixels at a time."""

    names = IMAGE

    def tile(self, tile: Value) -> None:
        w, a, planes = self.w, self.a, self.spec.vectors
        image, chunk = divmod(tile, a.chunks)
        x, y = a.x + image * a.x_image, a.y + image * a.y_image
        with w.part(chunk, a.chunk, a.lines) as line:
            source, target = x + line * a.x_line, y + line * a.y_line
            with w.loop(0, a.columns, self.spec.rows) as at:
                place = at.index.least(a.last)
                self._pixels(source + place * 4, target + place * planes)

    def _pixels(self, x: Value, y: Value) -> None:
        spec, codes, column = self.spec, [], self.w.value("i64", 0)
        for plane in range(spec.vectors):
            x = x + self.a.x_plane if plane else x
            codes.append(self._codes(x, column))
        if spec.vectors == 1:
            y.store(codes[0])
            return
        pieces = interleaved(codes)
        if spec.rows > PIECE:
            pieces = sixteens(pieces)
        for number, piece in enumerate(pieces):
            (y + PIECE * number).store(piece)


@emitter("dequantize")
class DequantizeEmitter(_Floats):
    """(x - zero) * scale of bytes, or of int32 (out: i32) without zero point. `vectors` vectors at a time."""

    pieces = 1

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self._constants(0)
        self._zero = self.a.zero.splat(self.lanes)

    def _block(self, x: Value, y: Value, column: Value) -> None:
        n = self.lanes
        size = 4 if self.spec.out == "i32" else 1
        x, y = x + column * size, y + column * 4
        for i in range(self.spec.rows // n):
            codes = self._wide(x + size * n * i)
            if self.axis:
                number = codes.sitofp("float") - self._constant(1, column, i)
            else:
                number = (codes - self._zero).sitofp("float")
            product = number * self._constant(0, column, i)
            (y + 4 * n * i).store(product, 4)

    def _wide(self, x: Value) -> Value:
        """Bytes as int32 lanes."""
        if self.spec.out == "i32":
            return x.load(f"<{self.lanes} x i32>")
        return x.load(f"<{self.lanes} x i8>").extended("i32", self.spec.signed)
