"""Generated quantization of float32 numbers to bytes, and the way back."""

from __future__ import annotations

from qrun.native._bytes import Bytes
from qrun.native._flow import Flow, interleaved, shuffled, sixteens, store_first
from qrun.native._ir import Typed, argument_loader
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ROWS = (
    "x*", "y*", "x_row", "y_row", "rows", "chunk", "chunks", "columns", "part", "parts", "last", "tiles", "constants*",
    "fields", "zero!",
)  # fmt: skip
IMAGE = (
    "x*", "y*", "x_image", "x_plane", "x_line", "y_image", "y_line", "lines", "chunk", "chunks", "columns", "last",
    "tiles", "constants*", "fields", "zero!",
)  # fmt: skip
"""One 8-byte word each.

chunk, chunks     rows (or lines) of a tile, and tiles that share all of them; part, parts: the same for columns
columns, last     of a row (pixels of a line), and where the last block of one starts: it overlaps
constants         float32 numbers, one of each field, or for each column one: then `fields` is the bytes of a field
zero              zero point
"""
NARROW = 16


class _Floats:
    """`rows` elements at a time; 0 vectors: only some of 16 are stored. form: see Quantize; ``axis``: per column."""

    names: tuple[str, ...] = ROWS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.w = spec, Flow()
        self.lanes = min(isa.lanes, max(spec.rows // self.pieces, 1))
        self.bytes = Bytes(self.w, isa, self.lanes)
        self.kind = self.bytes.floats
        self.axis = spec.form.endswith("axis")
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)
        self.single: dict[int, str] = {}

    pieces = 4
    """Vectors of lanes in a block, at least."""

    def _constants(self, *fields: int) -> None:
        """Load the fields that are the same for all columns."""
        if not self.axis:
            for field in fields:
                value = self.w.load("float", self.w.at(self.a["constants"], 4 * field), 4)
                self.single[field] = self.w.splat(self.lanes, "float", value)

    def _constant(self, field: int, column: str, piece: int) -> str:
        if not self.axis:
            return self.single[field]
        w = self.w
        start = w.at(self.a["constants"], w.mul(self.a["fields"], field))
        place = w.at(w.at(start, w.mul(column, 4)), 4 * piece * self.lanes)
        return w.load(self.kind, place, 4)

    def _rows(self) -> None:
        w, a, spec = self.w, self.a, self.spec
        with w.tiles(a["tiles"]) as tile:
            chunk, part = w.split(tile, a["parts"])
            first, column = w.mul(chunk, a["chunk"]), w.mul(part, a["part"])
            end = w.least(w.add(first, a["chunk"]), a["rows"])
            column_end = w.least(w.add(column, a["part"]), a["columns"])
            with w.loop(first, end, 1) as row:
                x = w.at(a["x"], w.mul(row.index, a["x_row"]))
                y = w.at(a["y"], w.mul(row.index, a["y_row"]))
                with w.loop(column, column_end, spec.rows) as at:
                    self._block(x, y, w.least(at.index, a["last"]))

    def _block(self, x: str, y: str, column: str) -> None:
        raise NotImplementedError


class Quantize(_Floats):
    """float32 to bytes. form: ``div`` x / scale rounded to float32; ``mul`` two float32 numbers whose sum is nearly
    1 / scale, of which constants prove that the results are the same (quantize.py)."""

    def text(self) -> str:
        self._prepare()
        self._rows()
        return self.w.kernel()

    def _prepare(self) -> None:
        self._constants(*range(5 if self.spec.form == "mul" else 3))
        zero = self.w.let(f"trunc i32 {self.a['zero']} to i16")
        self.zero = self.w.splat(2 * self.lanes, "i16", zero)

    def _block(self, x: str, y: str, column: str) -> None:
        w, spec = self.w, self.spec
        codes = self._codes(w.at(x, w.mul(column, 4)), column)
        if spec.vectors:
            w.store(self.bytes.kind, codes, w.at(y, column))
        else:
            store_first(w, codes, self.a["columns"], y)

    def _codes(self, x: str, column: str) -> str:
        """The codes of as many numbers as a vector has bytes."""
        w, n = self.w, self.lanes
        numbers = [w.load(self.kind, w.at(x, 4 * n * i), 4) for i in range(4)]
        quotients = [self._quotient(x, column, i) for i, x in enumerate(numbers)]
        add = self.zero
        if self.axis:
            quotients = [self._placed(q, self._constant(3, column, i)) for i, q in enumerate(quotients)]
            add = "zeroinitializer"
        packed = self.bytes.stored(quotients, add, self.spec.out)
        if n == 4:
            return packed
        words = w.let(f"bitcast {self.bytes.kind} {packed} to <{n} x i32>")
        order = [4 * block + vector for vector in range(4) for block in range(n // 4)]
        return w.let(f"bitcast <{n} x i32> {shuffled(w, 'i32', n, words, 'poison', order)} to {self.bytes.kind}")

    def _quotient(self, x: str, column: str, i: int) -> str:
        w = self.w
        if self.spec.form == "mul":
            x = self._between(x, *(self._constant(field, column, i) for field in (1, 2)))
            rest = w.let(f"fmul {self.kind} {x}, {self._constant(4, column, i)}")
            return self.bytes.fma(x, self._constant(3, column, i), rest)
        quotient = w.let(f"fdiv {self.kind} {x}, {self._constant(0, column, i)}")
        return self._between(quotient, *(self._constant(field, column, i) for field in (1, 2)))

    def _between(self, x: str, low: str, high: str) -> str:
        """x within low and high; NaN becomes low."""
        w = self.w
        for compare, limit in (("ogt", low), ("olt", high)):
            inside = w.let(f"fcmp {compare} {self.kind} {x}, {limit}")
            x = w.let(f"select <{self.lanes} x i1> {inside}, {self.kind} {x}, {self.kind} {limit}")
        return x

    def _placed(self, quotient: str, zero: str) -> str:
        """A small number rounded to an integer, then the zero point added."""
        w, kind = self.w, self.kind
        magic = f"<{', '.join(['float 0x4168000000000000'] * self.lanes)}>"
        high = w.let(f"fadd {kind} {quotient}, {magic}")
        return w.let(f"fadd {kind} {w.let(f'fsub {kind} {high}, {magic}')}, {zero}")


class QuantizeImage(Quantize):
    """Planes of float32 to pixels of `vectors` bytes: one to four planes, `rows` pixels at a time."""

    names = IMAGE

    def text(self) -> str:
        self._prepare()
        w, a, planes = self.w, self.a, self.spec.vectors
        with w.tiles(a["tiles"]) as tile:
            image, chunk = w.split(tile, a["chunks"])
            x, y = w.at(a["x"], w.mul(image, a["x_image"])), w.at(a["y"], w.mul(image, a["y_image"]))
            first = w.mul(chunk, a["chunk"])
            with w.loop(first, w.least(w.add(first, a["chunk"]), a["lines"]), 1) as line:
                source, target = w.at(x, w.mul(line.index, a["x_line"])), w.at(y, w.mul(line.index, a["y_line"]))
                with w.loop("0", a["columns"], self.spec.rows) as at:
                    place = w.least(at.index, a["last"])
                    self._pixels(w.at(source, w.mul(place, 4)), w.at(target, w.mul(place, planes)))
        return w.kernel()

    def _pixels(self, x: str, y: str) -> None:
        w, spec = self.w, self.spec
        codes = []
        for plane in range(spec.vectors):
            x = w.at(x, self.a["x_plane"]) if plane else x
            codes.append(self._codes(x, "0"))
        if spec.vectors == 1:
            w.store(self.bytes.kind, codes[0], y)
            return
        pieces = interleaved(w, "i8", 1, codes, spec.rows)
        if spec.rows > NARROW:
            pieces = sixteens(w, "i8", pieces, spec.rows, 1)
        for number, piece in enumerate(pieces):
            w.store("<16 x i8>", piece, w.at(y, NARROW * number))


class Dequantize(_Floats):
    """(x - zero) * scale of bytes, or of int32 (out: i32) without zero point. `vectors` vectors at a time."""

    pieces = 1

    def text(self) -> str:
        self._constants(0)
        self._zero = self.w.splat(self.lanes, "i32", self.a["zero"])
        self._rows()
        return self.w.kernel()

    def _block(self, x: str, y: str, column: str) -> None:
        w, spec, n = self.w, self.spec, self.lanes
        size = 4 if spec.out == "i32" else 1
        x, y = w.at(x, w.mul(column, size)), w.at(y, w.mul(column, 4))
        for i in range(spec.rows // n):
            codes, kind = self._wide(w.at(x, size * n * i))
            if not self.axis:
                codes = w.let(f"sub {kind} {codes}, {self._zero}")
            number = w.let(f"sitofp {kind} {codes} to {self.kind}")
            if self.axis:
                number = w.let(f"fsub {self.kind} {number}, {self._constant(1, column, i)}")
            product = w.let(f"fmul {self.kind} {number}, {self._constant(0, column, i)}")
            w.store(self.kind, product, w.at(y, 4 * n * i), 4)

    def _wide(self, x: str) -> Typed:
        w, n = self.w, self.lanes
        kind = f"<{n} x i32>"
        if self.spec.out == "i32":
            return w.load(kind, x), kind
        codes = w.load(f"<{n} x i8>", x)
        return w.let(f"{'sext' if self.spec.signed else 'zext'} <{n} x i8> {codes} to {kind}"), kind
