"""Generated pooling: for every pixel the maximum of a window, a requantized mean of codes, or the mean of float32 in
float64. A table of offsets lists what each window reads."""

from __future__ import annotations

import math

from qrun.native.emit.bytes import Bytes, flip_sign_bit, store_first
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.spec import LIMITS
from qrun.native.emit.values import MAGIC64, splat_constant

POOL = names("""
    x* padding* offsets* y* x_image y_image y_row taps panels last_channel columns
    pixels chunk chunks strip strips tiles
""")
SUM = (*POOL, "constants*", "table*", "shift!", "zero!", "scale")
MEAN = (*POOL, "constants*", "x_zero!", "scale!", "divide!", "zero!")
"""The argument words, 8 bytes each.

padding      a panel filled with the code of padding, read where an offset is negative
offsets      int32 [pixels][taps]: bytes from the image's start
panels, last_channel   panels of channels; the last one starts at last_channel and overlaps the one before
columns      channels, where they are fewer than one panel of 16
chunk, strip      pixels and panels of a tile
constants    8 bytes per pixel: two float32 a and b, a float64, or an int64: the place in `table` of the code of sum 0
scale        float64, multiplies sums before the division (q64)
shift        int32, added to a sum of unsigned codes
"""
BLOCK = 240
"""Taps that are added in 16 bits, 240 * 255 < 2**16; a multiple of every unroll."""


class PoolEmitter(KernelEmitter):
    """Base of the pools. A panel is `vectors` vectors of `rows` bytes; with 0 vectors it is one vector of 16 bytes, of
    which only the first `columns` are stored. The loop does `unroll` taps per iteration."""

    names: tuple[str, ...] = POOL

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.lanes = spec.rows // 4
        self.bytes = Bytes(self.w, isa, self.lanes)
        self.vectors = max(spec.vectors, 1)
        self.kind = f"<{spec.rows} x i8>"

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        rest, strip = divmod(tile, a.strips)
        image, chunk = divmod(rest, a.chunks)
        x, y = a.x + image * a.x_image, a.y + image * a.y_image
        panels = strip.part(a.strip, a.panels)
        with w.part(chunk, a.chunk, a.pixels) as pixel:
            offsets = a.offsets + pixel * (a.taps * 4)
            self._pixel(pixel)
            row = y + pixel * a.y_row
            with w.loop(*panels, 1) as at:
                channel = (at.index * (self.vectors * self.spec.rows)).least(a.last_channel)
                self._store(self._window(x + channel, offsets), row + channel)

    def _pixel(self, number: Value) -> None:
        """Find the constants of a pixel, by its number."""

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        """The panel's results over the window whose taps lie at `offsets` from x."""
        raise NotImplementedError

    def _taps(self, x: Value, offsets: Value, tap: Value) -> list[list[Value]]:
        """The codes of `unroll` taps, from number `tap` on: a list of vectors for each tap."""
        spec, taps, here = self.spec, [], offsets + tap * 4
        for number in range(spec.unroll):
            row = row_at(x, here + 4 * number, self.a.padding)
            taps.append([(row + spec.rows * v).load(self.kind) for v in range(self.vectors)])
        return taps

    def _store(self, values: list[Value], y: Value) -> None:
        """Store the results of one pixel; only the existing columns if there are few."""
        if not self.spec.vectors:
            store_first(self.w, values[0], self.a.columns, y)
            return
        for position, value in enumerate(values):
            (y + position * self.spec.rows).store(value)


@emitter("max_pool")
class MaxPoolEmitter(PoolEmitter):
    """The maximum of each window; of equal zeros the first one; NaN if an element is NaN."""

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        """The largest elements of a window, as vectors of channels."""
        w, spec = self.w, self.spec
        if spec.out == "f32":
            least = w.value(self.bytes.floats, -math.inf)
        else:
            least = w.value(self.kind, -128) if spec.signed else w.zero(self.kind)
        with w.loop(0, self.a.taps, spec.unroll, [least] * self.vectors) as turn:
            most = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                most = [self._larger(a, b) for a, b in zip(most, tap, strict=True)]
            turn.next(*most)
        return [value.bitcast(self.kind) for value in turn.carried]

    def _larger(self, most: Value, x: Value) -> Value:
        """The larger of two elements, lane by lane; NaN wins."""
        if self.spec.out != "f32":
            return most.intrinsic("smax" if self.spec.signed else "umax", x)
        x = x.bitcast(most.kind)
        return x.test("uno", x).select(x, x.where("ogt", most))


@emitter("sum_pool")
class SumPoolEmitter(PoolEmitter):
    """Means of codes, requantized from the sums. form: x32, f64, q64 or table (proof/means.py)."""

    names = SUM

    def _pixel(self, number: Value) -> None:
        """Find the constants of an output pixel."""
        self.constant = self.a.constants + number * 8

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        """The rounded means of a window, as vectors of bytes: sums in int16 blocks, then int32."""
        w, a, spec = self.w, self.a, self.spec
        shift, nothing = a.shift.splat(self.lanes), w.zero(f"<{spec.rows // 2} x i16>")
        with w.loop(0, a.taps, BLOCK, [shift] * 4 * self.vectors) as block:
            end = (block.index + BLOCK).least(a.taps)
            with w.loop(block.index, end, spec.unroll, [nothing] * 2 * self.vectors) as turn:
                sums = turn.carried
                for tap in self._taps(x, offsets, turn.index):
                    parts = [self._wider(self._codes(v), "i16", half) for v in tap for half in (0, 1)]
                    sums = [s + p for s, p in zip(sums, parts, strict=True)]
                turn.next(*sums)
            parts = [self._wider(s, "i32", half) for s in turn.carried for half in (0, 1)]
            block.next(*(s + p for s, p in zip(block.carried, parts, strict=True)))
        step = {"x32": self._single, "f64": self._double, "q64": self._double, "table": self._lookup}[spec.form]
        numbers = step(block.carried)
        return self._round_to_bytes(numbers, a.zero.trunc("i16").splat(spec.rows // 2))

    def _round_to_bytes(self, numbers: list[Value], add: Value) -> list[Value]:
        """Round float32 numbers to bytes, four vectors at a time."""
        return [self.bytes.round_to_bytes(numbers[i : i + 4], add, self.spec.out) for i in range(0, len(numbers), 4)]

    def _codes(self, x: Value) -> Value:
        """Codes as uint8: the sign bit of int8 codes is flipped."""
        return flip_sign_bit(x) if self.spec.signed else x

    def _wider(self, x: Value, element: str, half: int) -> Value:
        """The elements in the low or high half of each 16 bytes, zero-extended to twice their size."""
        return self.bytes.unpack(x, self.w.zero(x.kind), half).bitcast(f"<{x.lanes // 2} x {element}>")

    def _single(self, sums: list[Value]) -> list[Value]:
        """Scale int32 sums by two float32 factors, one after the other."""
        a, b = ((self.constant + at).load("float", 4).splat(self.lanes) for at in (0, 4))
        products = [number * a for number in [value.sitofp("float") for value in sums]]
        return [value * b for value in products]

    def _double(self, sums: list[Value]) -> list[Value]:
        """Scale int32 sums in float64, by one factor or by a scale and a divisor, and round."""
        n, divides = self.lanes, self.spec.form == "q64"
        m = self.constant.load("double", 8).splat(n)
        scale = self.a.scale.bitcast("double").splat(n) if divides else m
        numbers = []
        for total in sums:
            value = total.sitofp("double") * scale
            value = value / m if divides else value
            numbers.append((value + MAGIC64 - MAGIC64).single())
        return numbers

    def _lookup(self, sums: list[Value]) -> list[Value]:
        """Look up the codes of these sums in the table. Reads four bytes for each, of which only the first counts."""
        table = self.a.table + self.constant.load("i64", 8)
        on, codes = self.w.value("i1", "true").splat(self.lanes), []
        for value in sums:
            high = table.gather("i8", value, on, 1) << 24
            codes.append(high.ashr(24) if self.spec.out == "s8" else high.lshr(24))
        return [code.sitofp("float") for code in codes]


@emitter("mean_pool")
class MeanPoolEmitter(SumPoolEmitter):
    """onnxruntime's mean: real values are added in float32 in the order of the window; the sum is divided by the count
    and by the scale, and the zero point is added."""

    names = MEAN

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        """The means of a window in onnxruntime's arithmetic: dequantized elements added in float32."""
        w, a, spec, n = self.w, self.a, self.spec, self.lanes
        x_zero = a.x_zero.splat(n)
        scale, divide, zero = (value.bitcast("float").splat(n) for value in (a.scale, a.divide, a.zero))
        with w.loop(0, a.taps, spec.unroll, [w.zero(self.bytes.floats)] * 4 * self.vectors) as turn:
            sums = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                codes = [lane for v in tap for lane in self.bytes.ints(self._codes(v))]
                centred = [code - x_zero for code in codes]
                numbers = [value.sitofp("float") for value in centred]
                reals = [value * scale for value in numbers]
                sums = [s + r for s, r in zip(sums, reals, strict=True)]
            turn.next(*sums)
        count = self.constant.load("float", 4).splat(n)
        means = [total / count / divide + zero for total in turn.carried]
        # `within` turns NaN into the lower end.
        ends = [splat_constant("float", f"{limit}.0", n) for limit in LIMITS[spec.out]]
        return self._round_to_bytes([mean.within(*ends) for mean in means], w.zero(self.bytes.ints16))


AVERAGE = (*POOL, "constants*")
"""As above. constants: a float64 per pixel: the number of elements of its mean."""


@emitter("average_pool")
class AveragePoolEmitter(PoolEmitter):
    """Means of float32 in float64. Sums begin at -0, which changes no number that is added. `unroll` divides `taps`."""

    names = AVERAGE

    def _pixel(self, number: Value) -> None:
        """Find the divisor of an output pixel."""
        self.divisor = (self.a.constants + number * 8).load("double", 8).splat(self.lanes)

    def _window(self, x: Value, offsets: Value) -> list[Value]:
        """The float32 means of a window, added in float64."""
        w, kind = self.w, f"<{self.lanes} x double>"
        with w.loop(0, self.a.taps, self.spec.unroll, [w.value(kind, -0.0)] * self.vectors) as turn:
            totals = turn.carried
            for tap in self._taps(x, offsets, turn.index):
                numbers = [value.bitcast(self.bytes.floats).double() for value in tap]
                totals = [total + number for total, number in zip(totals, numbers, strict=True)]
            turn.next(*totals)
        return [(total / self.divisor).single().bitcast(self.kind) for total in turn.carried]
