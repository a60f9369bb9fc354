"""The generated depthwise kernel: every output channel reads its own input channel, weights shared by a few pixels."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.native._dot import dot, int16s, int32s, multiply_add
from qrun.native._flow import Kernel, unpacking
from qrun.native._ir import Value
from qrun.native._requantize_ir import Requantizer
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (
    "x*", "padding*", "offsets*", "weights*", "bias*", "constants*", "y*",
    "x_image", "y_image", "y_row", "last_row", "blocks", "taps", "panels", "last_channel",
    "chunks", "chunk", "tiles", "mask", "zero_point!",
)  # fmt: skip
"""As for the dense kernel, but a tile is a run of blocks with all panels; `last_channel` is where the last panel
starts: panels overlap rather than run over, unless there are fewer channels than one vector (then `mask` cuts it)."""

VECTORS = 4
"""Vectors of channels in a panel of the interleaved kernel."""


class Depthwise(Kernel):
    """Writes one kernel: `rows` pixels x `vectors` vectors of channels; `unroll` pixels share what is read."""

    names = ARGUMENTS
    step = 1
    """Taps per turn of the loop; a turn reads one int32 of weights per channel and sharing pixel."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a = self.a
        self.units = spec.rows // spec.unroll
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.cells = [(i, j) for i in range(spec.rows) for j in range(spec.vectors)]
        self.turn_weights = spec.unroll * spec.vectors * self.bytes
        self.panel_weights = a.taps // self.step * self.turn_weights
        self.epilogue = Requantizer(self.w, isa, spec.form, spec.out, spec.vectors, a.zero_point, a.mask)
        self.epilogue.by_lanes = self.step > 1

    def text(self) -> str:
        w, a = self.w, self.a
        w.jump("claim")
        image, chunk = divmod(w.claim_named(a.tiles), a.chunks)
        first = chunk * a.chunk
        self.end = (first + a.chunk).least(a.blocks)
        self.x = a.x + image * a.x_image
        self.y = a.y + image * a.y_image
        w.jump("block")
        self._place(first)
        self._taps()
        self._finish()
        return self.finished()

    def _place(self, first: Value) -> None:
        """What the block's pixels and the panel's channels are read from, and where results go."""
        w, a, spec = self.w, self.a, self.spec
        lanes = spec.vectors * self.isa.lanes
        w.label("block")
        self.m = w.turn("%m", first, "work", "%m1", "panel_end")
        self.offsets = a.offsets + self.m * (a.taps * (4 * self.units))
        self.y_first = self.y + (self.m * spec.rows).least(a.last_row) * a.y_row
        w.jump("panel")
        w.label("panel")
        self.p = w.turn("%p", w.value("i64", 0), "block", "%p1", "store_end")
        self.channel = (self.p * lanes).least(a.last_channel)
        self.panel = a.weights + self.p * self.panel_weights
        self.constants = a.constants + self.p * self.epilogue.panel_bytes()
        bias = a.bias + self.p * (4 * lanes)
        self.epilogue.set_panel((self.p + 1).test("eq", a.panels))
        self.start = [(bias + j * self.bytes).load(self.kind, 16) for j in range(spec.vectors)]
        self.x_channel = self.x + self.channel
        w.jump("tap")

    def _taps(self) -> None:
        w, spec = self.w, self.spec
        w.label("tap")
        tap = w.turn("%t", w.value("i64", 0), "panel", "%t1", "tap")
        self.here = w.turn("%o", self.offsets, "panel", "%o1", "tap")
        place = w.turn("%b", self.panel, "panel", "%b1", "tap")
        self.acc = {
            (i, j): w.turn(f"%acc_{i}_{j}", self.start[j], "panel", f"%next_{i}_{j}", "tap") for i, j in self.cells
        }
        weights = [(place + j * self.bytes).load(self.kind, 16) for j in range(spec.unroll * spec.vectors)]
        for unit in range(self.units):
            self._multiply(unit, weights)
        more = tap.plus(self.step, "%t1")
        w.at(self.here, 4 * self.units * self.step, "%o1")
        w.at(place, self.turn_weights, "%b1")
        w.branch(more.test("ult", self.a.taps, "%more_taps"), "tap", "finish")

    def _row(self, unit: int, tap: int) -> Value:
        """Where the pixels of a unit have their channels for a tap of this turn."""
        offset = (self.here + 4 * (tap * self.units + unit)).load("i32", 4)
        return offset.test("slt", 0).select(self.a.padding, self.x_channel + offset.sext("i64"))

    def _multiply(self, unit: int, weights: list[Value]) -> None:
        """The sums of a unit's pixels, with the products of this turn."""
        n, row, i = self.isa.lanes, self._row(unit, 0), unit
        for j, weight in enumerate(weights):
            x = (row + j * n).load(f"<{n} x i8>").extended("i32", self.spec.signed)
            self.acc[i, j] = multiply_add(self.isa, self.acc[i, j], x, weight, f"%next_{i}_{j}")

    def _finish(self) -> None:
        w, spec, a = self.w, self.spec, self.a
        w.label("finish")
        first = self.y_first + self.channel * (4 if spec.out == "i32" else 1)
        block = [[self.acc[i, j] for j in range(spec.vectors)] for i in range(spec.rows)]
        self.epilogue.store_block(block, self.constants, first, a.y_row)
        w.branch(self.p.plus(1, "%p1").test("ult", a.panels, "%more_panels"), "panel", "panel_end")
        w.label("panel_end")
        w.branch(self.m.plus(1, "%m1").test("ult", self.end, "%more_blocks"), "block", "block_end")
        w.label("block_end")
        w.jump("claim")


class Interleaved(Depthwise):
    """The same for four vectors of channels at once, whose taps are interleaved to feed instructions that add several
    products: four taps per turn, or two as 16-bit numbers.

    x86's unpack instructions work within 16 bytes, so vector j holds channels 4j..4j+3 of every sixteen; the packs of
    the epilogue put them back in order. For taps p, q, r, s of channels 0 to 15, each unpacking taking turns:

        p and q     p0 q0 p1 q1 ... p7 q7    r and s     r0 s0 r1 s1 ... r7 s7     (and the same of 8 to 15)
        of both     vector 0: p0 q0 r0 s0 ... p3 q3 r3 s3                vector 1: p4 q4 r4 s4 ... p7 q7 r7 s7
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.step = taps_per_turn(isa)
        super().__init__(spec, isa)

    def _multiply(self, unit: int, weights: list[Value]) -> None:
        taps = [self._row(unit, tap).load(f"<{self.bytes} x i8>") for tap in range(self.step)]
        if self.spec.signed:
            flip = self.w.value("i8", -128).splat(self.bytes)
            taps = [tap ^ flip for tap in taps]
        for j, x in enumerate(self._quads(taps) if self.step == 4 else self._pairs(taps)):
            for pixel in range(self.spec.unroll):
                i, weight = unit * self.spec.unroll + pixel, weights[4 * pixel + j]
                acc, name = self.acc[i, j], f"%next_{i}_{j}"
                if self.step == 4:
                    self.acc[i, j] = dot(self.isa, acc, (x,), (weight,), name)
                else:
                    self.acc[i, j] = multiply_add(self.isa, acc, x, weight, name)

    def _quads(self, taps: list[Value]) -> Iterator[Value]:
        """Bytes of four taps by turns."""
        for half in (0, 1):
            pairs = (self._unpack(taps[t], taps[t + 1], half).bitcast(int16s(self.isa)) for t in (0, 2))
            first, second = pairs
            for quarter in (0, 1):
                yield self._unpack(first, second, quarter).bitcast(self.kind)

    def _pairs(self, taps: list[Value]) -> Iterator[Value]:
        """Bytes of two taps by turns, as 16-bit numbers."""
        for half in (0, 1):
            both = self._unpack(taps[0], taps[1], half)
            for quarter in (0, 1):
                yield self._unpack(both, self.w.zero(both.kind), quarter).bitcast(self.kind)

    def _unpack(self, a: Value, b: Value, half: int) -> Value:
        """punpckl or punpckh: elements of the low or high halves of each 16 bytes, by turns."""
        return a.shuffled(unpacking(a.lanes, 16 * a.lanes // self.bytes, half), b)


def taps_per_turn(isa: Isa) -> int:
    """How many products the instruction set adds at once, in depthwise kernels that interleave taps; 1 for none."""
    return {"vnni512": 4, "vnni256": 4, "madd512": 2, "madd256": 2}.get(isa.dot, 1)
