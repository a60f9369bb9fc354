"""Generated pools: for every pixel the largest element, or a function of the sum of codes, over a table of offsets."""

from __future__ import annotations

from qrun.native._bytes import Bytes
from qrun.native._flow import Flow, shuffled, store_first
from qrun.native._ir import argument_loader, constants, every, indices
from qrun.native.forms import LIMITS
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

POOL = (
    "x*", "padding*", "offsets*", "y*", "x_image", "y_image", "y_row", "taps", "panels", "last_channel", "columns",
    "pixels", "chunk", "chunks", "strip", "strips", "tiles",
)  # fmt: skip
SUM = (*POOL, "constants*", "table*", "shift!", "zero!", "scale")
MEAN = (*POOL, "constants*", "x_zero!", "scale!", "divide!", "zero!")
"""One 8-byte word each.

padding      a panel of the code that padding has, read where an offset is negative
offsets      int32 [pixels][taps]: bytes from the image's start
panels, last_channel   channels are done in panels; the last one starts at last_channel and overlaps
columns      channels, where they are fewer than one panel of 16
chunk, strip      pixels and panels of a tile
constants    8 bytes per pixel: two float32 a and b, a float64, or an int64: where in `table` the code of sum 0 is
scale        a float64 by which sums are multiplied before the division (q64)
shift        added to a sum of unsigned codes
"""
NARROW = 16
BLOCK = 240
"""Taps whose unsigned codes fit in 16 bits; a multiple of every unroll."""


class _Pool:
    """Panels of `vectors` vectors of `rows` bytes; 0 vectors are one of 16 bytes of which only some are stored.
    `unroll` taps per turn of the loop."""

    names: tuple[str, ...] = POOL

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.lanes, self.w = spec, spec.rows // 4, Flow()
        self.bytes = Bytes(self.w, isa, self.lanes)
        self.vectors = max(spec.vectors, 1)
        self.kind = f"<{spec.rows} x i8>"
        self.w.label("entry")
        self.a = argument_loader(self.w, self.names)

    def text(self) -> str:
        w, a = self.w, self.a
        with w.tiles(a["tiles"]) as tile:
            rest, strip = w.split(tile, a["strips"])
            image, chunk = w.split(rest, a["chunks"])
            x = w.at(a["x"], w.mul(image, a["x_image"]))
            y = w.at(a["y"], w.mul(image, a["y_image"]))
            first, panel = w.mul(chunk, a["chunk"]), w.mul(strip, a["strip"])
            end = w.least(w.add(first, a["chunk"]), a["pixels"])
            panel_end = w.least(w.add(panel, a["strip"]), a["panels"])
            with w.loop(first, end, 1) as pixel:
                offsets = w.at(a["offsets"], w.mul(pixel.index, w.mul(a["taps"], 4)))
                constant = w.at(a["constants"], w.mul(pixel.index, 8)) if "constants" in a else ""
                row = w.at(y, w.mul(pixel.index, a["y_row"]))
                with w.loop(panel, panel_end, 1) as at:
                    channel = w.least(w.mul(at.index, self.vectors * self.spec.rows), a["last_channel"])
                    values = self._window(w.at(x, channel), offsets, constant)
                    self._store(values, w.at(row, channel))
        return w.kernel()

    def _window(self, x: str, offsets: str, constant: str) -> list[str]:
        """The panel's results over the window whose taps lie at `offsets` from x."""
        raise NotImplementedError

    def _taps(self, x: str, offsets: str, tap: str) -> list[list[str]]:
        """The codes of `unroll` taps from number `tap` on."""
        w, spec = self.w, self.spec
        taps = []
        here = w.at(offsets, w.mul(tap, 4))
        for number in range(spec.unroll):
            offset = w.load("i32", w.at(here, 4 * number), 4)
            outside = w.let(f"icmp slt i32 {offset}, 0")
            inside = w.at(x, w.let(f"sext i32 {offset} to i64"))
            row = w.let(f"select i1 {outside}, ptr {self.a['padding']}, ptr {inside}")
            taps.append([w.load(self.kind, w.at(row, spec.rows * v)) for v in range(self.vectors)])
        return taps

    def _store(self, values: list[str], y: str) -> None:
        w, spec = self.w, self.spec
        if spec.vectors:
            for place, value in enumerate(values):
                w.store(self.kind, value, w.at(y, place * spec.rows))
            return
        store_first(w, values[0], self.a["columns"], y)


class MaxPool(_Pool):
    """The largest elements; NaN, once it is met."""

    def _window(self, x: str, offsets: str, constant: str) -> list[str]:
        w, spec = self.w, self.spec
        kind, least = self.kind, constants("i8", [-128] * spec.rows) if spec.signed else "zeroinitializer"
        if spec.out == "f32":
            kind, least = self.bytes.floats, f"<{', '.join(['float 0xFFF0000000000000'] * self.lanes)}>"
        with w.loop("0", self.a["taps"], spec.unroll, [(kind, least)] * self.vectors) as turn:
            most = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                most = [self._larger(kind, a, b) for a, b in zip(most, tap, strict=True)]
            turn.next(most)
        return [w.let(f"bitcast {kind} {value} to {self.kind}") for value in turn.carried]

    def _larger(self, kind: str, most: str, x: str) -> str:
        w, spec = self.w, self.spec
        if spec.out != "f32":
            return w.call(kind, f"llvm.{'s' if spec.signed else 'u'}max.v{spec.rows}i8", (kind, most), (kind, x))
        x, bools = w.let(f"bitcast {self.kind} {x} to {kind}"), f"<{self.lanes} x i1>"
        larger = w.let(f"select {bools} {w.let(f'fcmp ogt {kind} {most}, {x}')}, {kind} {most}, {kind} {x}")
        return w.let(f"select {bools} {w.let(f'fcmp uno {kind} {most}, {most}')}, {kind} {most}, {kind} {larger}")


class SumPool(_Pool):
    """Results of sums of codes. form: x32, f64, q64 or table (means.py)."""

    names: tuple[str, ...] = SUM

    def _window(self, x: str, offsets: str, constant: str) -> list[str]:
        w, a, spec = self.w, self.a, self.spec
        ints, words = self.bytes.ints32, f"<{spec.rows // 2} x i16>"
        shift = w.splat(self.lanes, "i32", a["shift"])
        with w.loop("0", a["taps"], BLOCK, [(ints, shift)] * 4 * self.vectors) as block:
            end = w.least(w.add(block.index, BLOCK), a["taps"])
            start = [(words, "zeroinitializer")] * 2 * self.vectors
            with w.loop(block.index, end, spec.unroll, start) as turn:
                sums = turn.carried
                for tap in self._taps(x, offsets, turn.index):
                    parts = [self._unpacked("i8", self._codes(v), half) for v in tap for half in (0, 1)]
                    sums = [w.let(f"add {words} {s}, {p}") for s, p in zip(sums, parts, strict=True)]
                turn.next(sums)
            parts = [self._unpacked("i16", s, half) for s in turn.carried for half in (0, 1)]
            block.next([w.let(f"add {ints} {s}, {p}") for s, p in zip(block.carried, parts, strict=True)])
        step = {"x32": self._single, "f64": self._double, "q64": self._double, "table": self._lookup}[spec.form]
        numbers = step(block.carried, constant)
        add = w.splat(spec.rows // 2, "i16", w.let(f"trunc i32 {a['zero']} to i16"))
        return [self.bytes.stored(numbers[i : i + 4], add, spec.out) for i in range(0, len(numbers), 4)]

    def _codes(self, x: str) -> str:
        return self.bytes.flipped(x) if self.spec.signed else x

    def _unpacked(self, element: str, x: str, half: int) -> str:
        """The low or high halves of each 16 bytes, zero-extended to twice the size."""
        size = int(element[1:]) // 8
        count, each = self.spec.rows // size, 16 // size
        order = [
            base + half * each // 2 + i + source
            for base in range(0, count, each)
            for i in range(each // 2)
            for source in (0, count)
        ]
        wide = shuffled(self.w, element, count, x, "zeroinitializer", order)
        return self.w.let(f"bitcast <{count} x {element}> {wide} to <{count // 2} x i{16 * size}>")

    def _floats(self, values: list[str]) -> list[str]:
        return [self.w.let(f"sitofp {self.bytes.ints32} {value} to {self.bytes.floats}") for value in values]

    def _single(self, sums: list[str], constant: str) -> list[str]:
        w, kind = self.w, self.bytes.floats
        a, b = (w.splat(self.lanes, "float", w.load("float", w.at(constant, at), 4)) for at in (0, 4))
        products = [w.let(f"fmul {kind} {value}, {a}") for value in self._floats(sums)]
        return [w.let(f"fmul {kind} {value}, {b}") for value in products]

    def _double(self, sums: list[str], constant: str) -> list[str]:
        w, n = self.w, self.lanes
        kind, magic = f"<{n} x double>", f"<{', '.join(['double 0x4338000000000000'] * n)}>"
        m = w.splat(n, "double", w.load("double", constant, 8))
        numbers, scale = [], ""
        if self.spec.form == "q64":
            scale = w.splat(n, "double", w.let(f"bitcast i64 {self.a['scale']} to double"))
        for total in sums:
            wide = w.let(f"sitofp {self.bytes.ints32} {total} to {kind}")
            if scale:
                value = w.let(f"fdiv {kind} {w.let(f'fmul {kind} {wide}, {scale}')}, {m}")
            else:
                value = w.let(f"fmul {kind} {wide}, {m}")
            high = w.let(f"fadd {kind} {value}, {magic}")
            rounded = w.let(f"fsub {kind} {high}, {magic}")
            numbers.append(w.let(f"fptrunc {kind} {rounded} to {self.bytes.floats}"))
        return numbers

    def _lookup(self, sums: list[str], constant: str) -> list[str]:
        w, n, ints = self.w, self.lanes, self.bytes.ints32
        table = w.at(self.a["table"], w.load("i64", constant, 8))
        extend, on = indices([24] * n), w.splat(n, "i1", "true")
        codes = []
        for value in sums:
            where = w.let(f"getelementptr i8, ptr {table}, {ints} {value}")
            found = w.call(ints, f"llvm.masked.gather.v{n}i32.v{n}p0", (f"<{n} x ptr>", where), ("i32", "1"),
                           (f"<{n} x i1>", on), (ints, "poison"))  # fmt: skip
            high = w.let(f"shl {ints} {found}, {extend}")
            codes.append(w.let(f"{'ashr' if self.spec.out == 's8' else 'lshr'} {ints} {high}, {extend}"))
        return self._floats(codes)


class MeanPool(SumPool):
    """onnxruntime's mean: real values added in float32 in the order of the window, divided twice, zero point added."""

    names: tuple[str, ...] = MEAN

    def _window(self, x: str, offsets: str, constant: str) -> list[str]:
        w, a, spec, n = self.w, self.a, self.spec, self.lanes
        kind, ints = self.bytes.floats, self.bytes.ints32
        x_zero = w.splat(n, "i32", a["x_zero"])
        scale, divide, zero = (
            w.splat(n, "float", w.let(f"bitcast i32 {a[name]} to float")) for name in ("scale", "divide", "zero")
        )
        with w.loop("0", a["taps"], spec.unroll, [(kind, "zeroinitializer")] * 4 * self.vectors) as turn:
            sums = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                codes = [lane for v in tap for lane in self.bytes.ints(self._codes(v))]
                centred = [w.let(f"sub {ints} {code}, {x_zero}") for code in codes]
                reals = [w.let(f"fmul {kind} {value}, {scale}") for value in self._floats(centred)]
                sums = [w.let(f"fadd {kind} {s}, {r}") for s, r in zip(sums, reals, strict=True)]
            turn.next(sums)
        count = w.splat(n, "float", w.load("float", constant, 4))
        values = []
        for total in turn.carried:
            mean = w.let(f"fdiv {kind} {total}, {count}")
            values.append(w.let(f"fadd {kind} {w.let(f'fdiv {kind} {mean}, {divide}')}, {zero}"))
        values = [self._clipped(value) for value in values]
        return [self.bytes.stored(values[i : i + 4], "zeroinitializer", spec.out) for i in range(0, len(values), 4)]

    def _clipped(self, value: str) -> str:
        """Between the ends of the type; NaN becomes the lower one."""
        w, n, kind = self.w, self.lanes, self.bytes.floats
        for compare, limit in zip(("ogt", "olt"), LIMITS[self.spec.out], strict=True):
            end = every("float", f"{limit}.0", n)
            inside = w.let(f"fcmp {compare} {kind} {value}, {end}")
            value = w.let(f"select <{n} x i1> {inside}, {kind} {value}, {kind} {end}")
        return value
