"""The generated int8 matrix product: rows found through a table of offsets, weights packed by panels of channels.

Serves convolutions (indirect: one offset per output pixel and kernel tap) and matrix products (one tap).

Weights lie as the loops read them: a panel's taps, each tap's k-steps, each k-step's vectors. A vector holds four k of
each of its channels, and meets the four activations of one row in every lane; for channels a, b, c, ... of a vector:

    weights       a0 a1 a2 a3 | b0 b1 b2 b3 | c0 c1 c2 c3 | ...
    activations   x0 x1 x2 x3 | x0 x1 x2 x3 | x0 x1 x2 x3 | ...
    sum           += a . x    | += b . x    | += c . x    | ...

The loops are tiles, blocks, taps and k. They test at their end, and share counters and labels: flow helpers would write
other blocks, which LLVM schedules in another way.
"""

from __future__ import annotations

from qrun.native._dot import activations, dot, int32s, weights
from qrun.native._flow import Kernel, row_at
from qrun.native._ir import Value
from qrun.native._requantize_ir import Requantizer
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (
    "x*", "padding*", "offsets*", "weights*", "bias*", "constants*", "y*",
    "x_image", "y_image", "y_row", "last_row", "blocks", "taps", "depth",
    "panels", "chunks", "chunk", "tiles", "mask", "zero_point!",
    "group_panels", "x_group", "y_group", "chunk_step", "panel_step",
)  # fmt: skip
"""One 8-byte word each.

padding      a row of x_zero_point, read where an offset is negative
offsets      int32 [blocks][taps][rows]: bytes from the image's start
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
last_row     where the last block starts: blocks overlap rather than run over
depth        k-steps of 4 * unroll bytes per tap
chunks, chunk     parts of the rows a panel's work is cut into, and blocks in each
tiles        images * panels * chunks
mask         lanes of a group's very last vector that exist
group_panels panels of a group; x_group, y_group: bytes from one group's channels to the next one's
chunk_step, panel_step  tile // step, modulo their number, is the tile's chunk or panel
"""

_FLIP = -0x7F7F7F80
"""0x80808080 as an int32: the sign bits of four bytes."""


class Dense(Kernel):
    """Writes one kernel: `rows` x `vectors` int32 vectors of accumulators, K unrolled by `unroll`."""

    names = ARGUMENTS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, a = self.w, self.a
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.cells = [(i, j) for i in range(spec.rows) for j in range(spec.vectors)]
        self.panel_weights = a.taps * a.depth * (spec.unroll * spec.vectors * self.bytes)
        self.epilogue = Requantizer(w, isa, spec.form, spec.out, spec.vectors, a.zero_point, a.mask)
        self.flip = w.value("i32", _FLIP).splat(isa.lanes) if isa.shift(spec.signed) else None

    def text(self) -> str:
        w = self.w
        w.jump("claim")
        self._place(w.claim_named(self.a.tiles))
        self._tap_head()
        self._products()
        self._tap_tail()
        self._finish()
        return self.finished()

    def _place(self, tile: Value) -> None:
        """Pointers of the tile's image, panel and blocks."""
        w, a, spec = self.w, self.a, self.spec
        chunk = tile // a.chunk_step % a.chunks
        panel = tile // a.panel_step % a.panels
        image = tile // a.chunks // a.panels
        group, place = divmod(panel, a.group_panels)
        first = chunk * a.chunk
        self.end = (first + a.chunk).least(a.blocks)
        channels = spec.vectors * self.isa.lanes
        self.x = a.x + image * a.x_image + group * a.x_group
        self.weights = a.weights + panel * self.panel_weights
        bias = a.bias + panel * (4 * channels)
        self.constants = a.constants + panel * self.epilogue.panel_bytes()
        y = a.y + image * a.y_image + group * a.y_group
        self.y = y + place * (channels * (4 if spec.out == "i32" else 1))
        self.epilogue.set_panel((place + 1).test("eq", a.group_panels))
        w.jump("block")
        w.label("block")
        self.m = w.turn("%m", first, "work", "%m1", "store_end")
        self.offsets = a.offsets + self.m * (a.taps * (4 * spec.rows))
        self.start = [(bias + j * self.bytes).load(self.kind, 16) for j in range(spec.vectors)]
        if spec.prefetch:
            turns = a.taps * a.depth
            done = (self.m - first) * turns * (64 * spec.prefetch)
            self.fetch = self.weights + self.panel_weights + done
        w.jump("tap")

    def _tap_head(self) -> None:
        """One row pointer per row of the block, for this tap."""
        w, spec = self.w, self.spec
        w.label("tap")
        self.t = w.turn("%t", w.value("i64", 0), "block", "%t1", "tap_end")
        self.o = w.turn("%o", self.offsets, "block", "%o1", "tap_end")
        self.b = w.turn("%b", self.weights, "block", "%b1", "tap_end")
        self.acc = {
            (i, j): w.turn(f"%tap_{i}_{j}", self.start[j], "block", f"%next_{i}_{j}", "tap_end") for i, j in self.cells
        }
        if spec.prefetch:
            self.fetch = w.turn("%f", self.fetch, "block", "%f1", "tap_end")
        self.rows = [row_at(self.x, self.o + 4 * i, self.a.padding) for i in range(spec.rows)]
        w.jump("k")

    def _products(self) -> None:
        """All k-steps of a tap."""
        w, spec, isa, vectors = self.w, self.spec, self.isa, range(self.spec.vectors)
        w.label("k")
        k = w.turn("%k0", w.value("i64", 0), "tap", "%k1", "k")
        place = w.turn("%bk", self.b, "tap", "%b1", "k")
        if spec.prefetch:
            self.fetch = w.turn("%fk", self.fetch, "tap", "%f1", "k")
        acc = {(i, j): w.turn(f"%acc_{i}_{j}", self.acc[i, j], "tap", f"%next_{i}_{j}", "k") for i, j in self.cells}
        self._prefetch()
        step = k * (4 * spec.unroll)
        rows = [row + step for row in self.rows]
        held: dict[Value, Value] = {}
        for u in range(spec.unroll):
            last = u == spec.unroll - 1
            panel = [weights(isa, (place + (u * spec.vectors + j) * self.bytes).load(self.kind, 16)) for j in vectors]
            for i, row in enumerate(rows):
                x = activations(isa, self._broadcast(row, u, held))
                for j in vectors:
                    acc[i, j] = dot(isa, acc[i, j], x, panel[j], f"%next_{i}_{j}" if last else "")
        self.acc = acc
        more = k.plus(1, "%k1")
        w.at(place, spec.unroll * spec.vectors * self.bytes, "%b1")
        w.branch(more.test("ult", self.a.depth, "%more_k"), "k", "tap_end")

    def _broadcast(self, row: Value, u: int, held: dict[Value, Value]) -> Value:
        """A row's four activations of k-step u in every lane.

        The dot products of NEON take any lane of a vector: vectors of four k-steps are loaded, and `held` by row.
        """
        lanes = self.isa.lanes
        by_lane = self.isa.dot in ("usdot", "sdot") and u - u % lanes + lanes <= self.spec.unroll
        if not by_lane:
            return self._flipped((row + 4 * u).load("i32").splat(lanes))
        if not u % lanes:
            held[row] = self._flipped((row + 4 * u).load(self.kind))
        return held[row].shuffled([u % lanes] * lanes)

    def _flipped(self, packed: Value) -> Value:
        """Activations of one sign as those of the other."""
        return packed if self.flip is None else packed ^ self.flip

    def _prefetch(self) -> None:
        """Ask for a share of the next panel's weights."""
        lines = self.spec.prefetch
        for line in range(lines):
            self.w.prefetch(self.fetch + 64 * line)
        if lines:
            self.w.at(self.fetch, 64 * lines, "%f1")

    def _tap_tail(self) -> None:
        w = self.w
        w.label("tap_end")
        more = self.t.plus(1, "%t1")
        w.at(self.o, 4 * self.spec.rows, "%o1")
        w.branch(more.test("ult", self.a.taps, "%more_taps"), "tap", "finish")

    def _finish(self) -> None:
        w, spec, a = self.w, self.spec, self.a
        w.label("finish")
        row = (self.m * spec.rows).least(a.last_row)
        block = [[self.acc[i, j] for j in range(spec.vectors)] for i in range(spec.rows)]
        self.epilogue.store_block(block, self.constants, self.y + row * a.y_row, a.y_row)
        w.branch(self.m.plus(1, "%m1").test("ult", self.end, "%more_blocks"), "block", "block_end")
        w.label("block_end")
        w.jump("claim")
