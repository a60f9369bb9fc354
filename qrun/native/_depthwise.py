"""The generated depthwise kernel: every output channel reads its own input channel, weights shared by a few pixels."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.native._dot import dot, int32s, multiply_add
from qrun.native._ir import Writer, argument_loader, indices
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


class Depthwise:
    """Writes one kernel: `rows` pixels x `vectors` vectors of channels; `unroll` pixels share what is read."""

    step = 1
    """Taps per turn of the loop; a turn reads one int32 of weights per channel and sharing pixel."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Writer()
        self.units = spec.rows // spec.unroll
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.cells = [(i, j) for i in range(spec.rows) for j in range(spec.vectors)]
        w = self.w
        w.label("entry")
        self.a = argument_loader(w, ARGUMENTS)
        self.turn_weights = spec.unroll * spec.vectors * self.bytes
        self.panel_weights = w.mul(w.let(f"udiv i64 {self.a['taps']}, {self.step}"), self.turn_weights)
        self.epilogue = Requantizer(w, isa, spec.form, spec.out, spec.vectors, self.a["zero_point"], self.a["mask"])
        self.epilogue.by_lanes = self.step > 1

    def text(self) -> str:
        w = self.w
        w.do("br label %claim")
        self._claim()
        self._place()
        self._taps()
        self._finish()
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next)")

    def _claim(self) -> None:
        w, a = self.w, self.a
        w.label("claim")
        w.let("phi i64 [0, %entry], [%done1, %block_end]", "%done")
        w.let("atomicrmw add ptr %next, i64 1 monotonic", "%tile")
        w.let(f"icmp ult i64 %tile, {a['tiles']}", "%some")
        w.do("br i1 %some, label %work, label %exit")
        w.label("exit")
        w.do("ret i64 %done")
        w.label("work")
        w.let("add i64 %done, 1", "%done1")
        image = w.let(f"udiv i64 %tile, {a['chunks']}")
        self.first = w.mul(w.let(f"urem i64 %tile, {a['chunks']}"), a["chunk"])
        self.end = w.least(w.add(self.first, a["chunk"]), a["blocks"])
        self.x = w.at(a["x"], w.mul(image, a["x_image"]))
        self.y = w.at(a["y"], w.mul(image, a["y_image"]))
        w.do("br label %block")

    def _place(self) -> None:
        w, a, spec = self.w, self.a, self.spec
        lanes = spec.vectors * self.isa.lanes
        w.label("block")
        w.let(f"phi i64 [{self.first}, %work], [%m1, %panel_end]", "%m")
        self.offsets = w.at(a["offsets"], w.mul("%m", w.mul(a["taps"], 4 * self.units)))
        row = w.least(w.mul("%m", spec.rows), a["last_row"])
        self.y_first = w.at(self.y, w.mul(row, a["y_row"]))
        w.do("br label %panel")
        w.label("panel")
        w.let("phi i64 [0, %block], [%p1, %store_end]", "%p")
        self.channel = w.least(w.mul("%p", lanes), a["last_channel"])
        self.panel = w.at(a["weights"], w.mul("%p", self.panel_weights))
        self.constants = w.at(a["constants"], w.mul("%p", self.epilogue.panel_bytes()))
        bias = w.at(a["bias"], w.mul("%p", 4 * lanes))
        self.epilogue.set_panel(w.let(f"icmp eq i64 {w.add('%p', 1)}, {a['panels']}"))
        self.start = [w.load(self.kind, w.at(bias, j * self.bytes), 16) for j in range(spec.vectors)]
        self.x_channel = w.at(self.x, self.channel)
        w.do("br label %tap")

    def _taps(self) -> None:
        w, spec = self.w, self.spec
        w.label("tap")
        w.let("phi i64 [0, %panel], [%t1, %tap]", "%t")
        w.let(f"phi ptr [{self.offsets}, %panel], [%o1, %tap]", "%o")
        w.let(f"phi ptr [{self.panel}, %panel], [%b1, %tap]", "%b")
        for i, j in self.cells:
            w.let(f"phi {self.kind} [{self.start[j]}, %panel], [%next_{i}_{j}, %tap]", f"%acc_{i}_{j}")
        weights = [w.load(self.kind, w.at("%b", j * self.bytes), 16) for j in range(spec.unroll * spec.vectors)]
        for unit in range(self.units):
            self._multiply(unit, weights)
        w.let(f"add i64 %t, {self.step}", "%t1")
        w.at("%o", 4 * self.units * self.step, "%o1")
        w.at("%b", self.turn_weights, "%b1")
        w.let(f"icmp ult i64 %t1, {self.a['taps']}", "%more_taps")
        w.do("br i1 %more_taps, label %tap, label %finish")

    def _row(self, unit: int, tap: int) -> str:
        """Where the pixels of a unit have their channels for a tap of this turn."""
        w = self.w
        offset = w.load("i32", w.at("%o", 4 * (tap * self.units + unit)), 4)
        outside = w.let(f"icmp slt i32 {offset}, 0")
        inside = w.at(self.x_channel, w.let(f"sext i32 {offset} to i64"))
        return w.let(f"select i1 {outside}, ptr {self.a['padding']}, ptr {inside}")

    def _multiply(self, unit: int, weights: list[str]) -> None:
        w, n, row, i = self.w, self.isa.lanes, self._row(unit, 0), unit
        for j, weight in enumerate(weights):
            x = w.load(f"<{n} x i8>", w.at(row, j * n))
            x = w.let(f"{'sext' if self.spec.signed else 'zext'} <{n} x i8> {x} to {self.kind}")
            multiply_add(w, self.isa, f"%acc_{i}_{j}", x, weight, f"%next_{i}_{j}")

    def _finish(self) -> None:
        w, spec, a = self.w, self.spec, self.a
        w.label("finish")
        size = 4 if spec.out == "i32" else 1
        first = w.at(self.y_first, w.mul(self.channel, size))
        block = [[f"%next_{i}_{j}" for j in range(spec.vectors)] for i in range(spec.rows)]
        self.epilogue.store_block(block, self.constants, first, a["y_row"])
        w.let("add i64 %p, 1", "%p1")
        w.let(f"icmp ult i64 %p1, {a['panels']}", "%more_panels")
        w.do("br i1 %more_panels, label %panel, label %panel_end")
        w.label("panel_end")
        w.let("add i64 %m, 1", "%m1")
        w.let(f"icmp ult i64 %m1, {self.end}", "%more_blocks")
        w.do("br i1 %more_blocks, label %block, label %block_end")
        w.label("block_end")
        w.do("br label %claim")


class Interleaved(Depthwise):
    """The same for four vectors of channels at once, whose taps are interleaved to feed instructions that add several
    products: four taps per turn, or two as 16-bit numbers.

    x86's unpack instructions work within 16 bytes, so vector j holds channels 4j..4j+3 of every sixteen; the packs of
    the epilogue put them back in order.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.step = taps_per_turn(isa)
        super().__init__(spec, isa)

    def _multiply(self, unit: int, weights: list[str]) -> None:
        w, isa, count = self.w, self.isa, self.bytes
        taps = [w.load(f"<{count} x i8>", self._row(unit, tap)) for tap in range(self.step)]
        if self.spec.signed:
            flip = w.splat(count, "i8", "-128")
            taps = [w.let(f"xor <{count} x i8> {tap}, {flip}") for tap in taps]
        for j, x in enumerate(self._quads(taps) if self.step == 4 else self._pairs(taps)):
            for pixel in range(self.spec.unroll):
                i, weight = unit * self.spec.unroll + pixel, weights[4 * pixel + j]
                acc, name = f"%acc_{i}_{j}", f"%next_{i}_{j}"
                if self.step == 4:
                    dot(w, isa, acc, (x,), (weight,), name)
                else:
                    multiply_add(w, isa, acc, x, weight, name)

    def _quads(self, taps: list[str]) -> Iterator[str]:
        """Bytes of four taps by turns."""
        for half in (0, 1):
            first, second = (self._words(self._unpack("i8", taps[t], taps[t + 1], half)) for t in (0, 2))
            for quarter in (0, 1):
                yield self._ints("i16", self._unpack("i16", first, second, quarter))

    def _pairs(self, taps: list[str]) -> Iterator[str]:
        """Bytes of two taps by turns, as 16-bit numbers."""
        for half in (0, 1):
            both = self._unpack("i8", taps[0], taps[1], half)
            for quarter in (0, 1):
                yield self._ints("i8", self._unpack("i8", both, "zeroinitializer", quarter))

    def _words(self, value: str) -> str:
        return self.w.let(f"bitcast <{self.bytes} x i8> {value} to <{self.bytes // 2} x i16>")

    def _ints(self, element: str, value: str) -> str:
        count = self.bytes if element == "i8" else self.bytes // 2
        return self.w.let(f"bitcast <{count} x {element}> {value} to {self.kind}")

    def _unpack(self, kind: str, a: str, b: str, half: int) -> str:
        """punpckl or punpckh: alternate the low or high halves of each 16 bytes."""
        lane, count = (16, self.bytes) if kind == "i8" else (8, self.bytes // 2)
        order = [
            base + half * lane // 2 + place + source * count
            for base in range(0, count, lane)
            for place in range(lane // 2)
            for source in (0, 1)
        ]
        vector = f"<{count} x {kind}>"
        return self.w.let(f"shufflevector {vector} {a}, {vector} {b}, <{count} x i32> {indices(order)}")


def taps_per_turn(isa: Isa) -> int:
    """How many products the instruction set adds at once, in depthwise kernels that interleave taps; 1 for none."""
    return {"vnni512": 4, "vnni256": 4, "madd512": 2, "madd256": 2}.get(isa.dot, 1)
