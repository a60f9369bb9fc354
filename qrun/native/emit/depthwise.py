"""The generated depthwise convolution: every output channel reads its own input channel; a few pixels share weights."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.native.emit.bytes import Bytes, flip_sign_bit
from qrun.native.emit.dot import dot, int32s, multiply_add
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import WIDE, taps_per_turn

ARGUMENTS = names("""
    x* padding* offsets* weights* bias* constants* y*
    x_image y_image y_row last_row blocks taps panels last_channel
    chunks chunk tiles mask zero_point!
""")
"""As for the dense kernel, but a tile is a run of blocks with all panels; `last_channel` is where the last panel
starts: panels overlap rather than run over, unless there are fewer channels than one vector (then `mask` cuts it)."""


@emitter("depthwise")
class DepthwiseEmitter(KernelEmitter):
    """Writes one kernel: `rows` pixels x `vectors` vectors of channels; `unroll` pixels share the activations read."""

    names = ARGUMENTS
    step = 1
    """Taps per iteration of the loop, which reads one int32 of weights per channel and sharing pixel."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a = self.a
        self.units = spec.rows // spec.unroll
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.turn_weights = spec.unroll * spec.vectors * self.bytes
        self.panel_weights = a.taps // self.step * self.turn_weights
        self.epilogue = Requantizer(self.w, isa, spec.form, spec.out, spec.vectors, a.zero_point, a.mask)
        self.epilogue.by_lanes = self.step > 1

    def write_tile(self, tile: Value) -> None:
        """Make one tile: some of an image's blocks, each with all panels of channels."""
        w, a, spec = self.w, self.a, self.spec
        lanes, size = spec.vectors * self.isa.lanes, 4 if spec.out in WIDE else 1
        image, chunk = divmod(tile, a.chunks)
        first, end = chunk.part(a.chunk, a.blocks)
        x = a.x + image * a.x_image
        y = a.y + image * a.y_image
        with w.loop(first, end, 1, once=True) as block:
            offsets = a.offsets + block.index * (a.taps * (4 * self.units))
            row = y + (block.index * spec.rows).least(a.last_row) * a.y_row
            with w.loop(0, a.panels, 1, once=True) as turn:
                p = turn.index
                channel = (p * lanes).least(a.last_channel)
                panel = a.weights + p * self.panel_weights
                constants = a.constants + p * self.epilogue.panel_bytes()
                bias = a.bias + p * (4 * lanes)
                self.epilogue.set_panel((p + 1).test("eq", a.panels))
                start = [(bias + j * self.bytes).load(self.kind, 16) for j in range(spec.vectors)]
                sums = self._taps(x + channel, offsets, panel, start)
                self.epilogue.store_block(sums, constants, row + channel * size, a.y_row)

    def _taps(self, x: Value, offsets: Value, panel: Value, start: list[Value]) -> list[list[Value]]:
        """The sums of a block and a panel over all taps. start: the start values of each pixel's sums."""
        spec, a = self.spec, self.a
        with self.w.loop(0, a.taps, self.step, [offsets, panel, *start * spec.rows], once=True) as tap:
            here, position, *sums = tap.carried
            weights = [(position + j * self.bytes).load(self.kind, 16) for j in range(spec.unroll * spec.vectors)]
            for unit in range(self.units):
                rows = (row_at(x, here + 4 * (n * self.units + unit), a.padding) for n in range(self.step))
                self._multiply(unit, rows, weights, sums)
            tap.next(here + 4 * self.units * self.step, position + self.turn_weights, *sums)
        sums = tap.carried[2:]
        return [sums[i : i + spec.vectors] for i in range(0, len(sums), spec.vectors)]

    def _multiply(self, unit: int, rows: Iterator[Value], weights: list[Value], sums: list[Value]) -> None:
        """Add the products of a unit's pixels to the sums, [rows][vectors].
        rows: the addresses of the pixels' channels, tap by tap."""
        n, row = self.isa.lanes, next(rows)
        for j, weight in enumerate(weights):
            x = (row + j * n).load(f"<{n} x i8>").extend("i32", self.spec.signed)
            position = unit * self.spec.vectors + j
            sums[position] = multiply_add(self.isa, sums[position], x, weight)


@emitter("interleaved")
class InterleavedEmitter(DepthwiseEmitter):
    """The same for four vectors of channels at once. Their taps are interleaved to feed instructions that add several
    products: four taps per iteration, or two as 16-bit numbers.

    x86's unpack instructions work within 16 bytes, so vector j holds channels 4j..4j+3 of every sixteen; the packs of
    the epilogue put them back in order. For taps p, q, r, s of channels 0 to 15:

        p and q     p0 q0 p1 q1 ... p7 q7    r and s     r0 s0 r1 s1 ... r7 s7     (and the same of 8 to 15)
        of both     vector 0: p0 q0 r0 s0 ... p3 q3 r3 s3                vector 1: p4 q4 r4 s4 ... p7 q7 r7 s7
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.step = taps_per_turn(isa)
        super().__init__(spec, isa)
        self.vectors = Bytes(self.w, isa)

    def _multiply(self, unit: int, rows: Iterator[Value], weights: list[Value], sums: list[Value]) -> None:
        """Multiply the taps of one unit of channels by their weights, and add the products to `sums`."""
        taps = [row.load(f"<{self.bytes} x i8>") for row in rows]
        if self.spec.signed:
            taps = [*map(flip_sign_bit, taps)]
        for j, x in enumerate(self._quads(taps) if self.step == 4 else self.vectors.pairs(*taps)):
            for pixel in range(self.spec.unroll):
                position, weight = 4 * (unit * self.spec.unroll + pixel) + j, weights[4 * pixel + j]
                if self.step == 4:
                    sums[position] = dot(self.isa, sums[position], (x,), (weight,))
                else:
                    sums[position] = multiply_add(self.isa, sums[position], x, weight)

    def _quads(self, taps: list[Value]) -> Iterator[Value]:
        """Bytes of four taps, interleaved."""
        for half in (0, 1):
            first, second = (
                self.vectors.unpack(taps[t], taps[t + 1], half).bitcast(self.vectors.ints16) for t in (0, 2)
            )
            for quarter in (0, 1):
                yield self.vectors.unpack(first, second, quarter).bitcast(self.kind)
