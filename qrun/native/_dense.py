"""The generated int8 matrix product: rows found through a table of offsets, weights packed by panels of channels.

Serves convolutions (indirect: one offset per output pixel and kernel tap) and matrix products (one tap).
"""

from __future__ import annotations

from qrun.native._dot import activations, dot, int32s, weights
from qrun.native._ir import Writer, argument_loader, indices
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


class Dense:
    """Writes one kernel: `rows` x `vectors` int32 vectors of accumulators, K unrolled by `unroll`."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Writer()
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.cells = [(i, j) for i in range(spec.rows) for j in range(spec.vectors)]
        w = self.w
        w.label("entry")
        self.a = argument_loader(w, ARGUMENTS)
        self.panel_weights = w.mul(w.mul(self.a["taps"], self.a["depth"]), spec.unroll * spec.vectors * self.bytes)
        self.epilogue = Requantizer(w, isa, spec.form, spec.out, spec.vectors, self.a["zero_point"], self.a["mask"])
        self.flip = w.splat(isa.lanes, "i32", str(-0x7F7F7F80)) if isa.shift(spec.signed) else ""

    def text(self) -> str:
        w = self.w
        w.do("br label %claim")
        self._claim()
        self._place()
        self._tap_head()
        self._products()
        self._tap_tail()
        self._finish()
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next)")

    def _claim(self) -> None:
        """Take the next tile from the shared counter; the kernel returns how many it did."""
        w = self.w
        w.label("claim")
        w.let("phi i64 [0, %entry], [%done1, %block_end]", "%done")
        w.let("atomicrmw add ptr %next, i64 1 monotonic", "%tile")
        w.let(f"icmp ult i64 %tile, {self.a['tiles']}", "%some")
        w.do("br i1 %some, label %work, label %exit")
        w.label("exit")
        w.do("ret i64 %done")
        w.label("work")
        w.let("add i64 %done, 1", "%done1")

    def _place(self) -> None:
        """Pointers of the tile's image, panel and blocks."""
        w, a, spec = self.w, self.a, self.spec
        chunk = w.rem(w.div("%tile", a["chunk_step"]), a["chunks"])
        panel = w.rem(w.div("%tile", a["panel_step"]), a["panels"])
        image = w.div(w.div("%tile", a["chunks"]), a["panels"])
        group, place = w.div(panel, a["group_panels"]), w.rem(panel, a["group_panels"])
        first = w.mul(chunk, a["chunk"])
        self.end = w.least(w.add(first, a["chunk"]), a["blocks"])
        channels = spec.vectors * self.isa.lanes
        self.x = w.at(w.at(a["x"], w.mul(image, a["x_image"])), w.mul(group, a["x_group"]))
        self.weights = w.at(a["weights"], w.mul(panel, self.panel_weights))
        bias = w.at(a["bias"], w.mul(panel, 4 * channels))
        self.constants = w.at(a["constants"], w.mul(panel, self.epilogue.panel_bytes()))
        y = w.at(w.at(a["y"], w.mul(image, a["y_image"])), w.mul(group, a["y_group"]))
        self.y = w.at(y, w.mul(place, channels * (4 if spec.out == "i32" else 1)))
        self.epilogue.set_panel(w.let(f"icmp eq i64 {w.add(place, 1)}, {a['group_panels']}"))
        w.do("br label %block")
        w.label("block")
        w.let(f"phi i64 [{first}, %work], [%m1, %store_end]", "%m")
        self.block_offsets = w.at(a["offsets"], w.mul("%m", w.mul(a["taps"], 4 * spec.rows)))
        self.start = [w.load(self.kind, w.at(bias, j * self.bytes), 16) for j in range(spec.vectors)]
        if spec.prefetch:
            turns = w.mul(a["taps"], a["depth"])
            done = w.mul(w.mul(w.let(f"sub i64 %m, {first}"), turns), 64 * spec.prefetch)
            self.fetch = w.at(w.at(self.weights, self.panel_weights), done)
        w.do("br label %tap")

    def _tap_head(self) -> None:
        """One row pointer per row of the block, for this tap."""
        w, spec = self.w, self.spec
        w.label("tap")
        w.let("phi i64 [0, %block], [%t1, %tap_end]", "%t")
        w.let(f"phi ptr [{self.block_offsets}, %block], [%o1, %tap_end]", "%o")
        w.let(f"phi ptr [{self.weights}, %block], [%b1, %tap_end]", "%b")
        for i, j in self.cells:
            w.let(f"phi {self.kind} [{self.start[j]}, %block], [%next_{i}_{j}, %tap_end]", f"%tap_{i}_{j}")
        if spec.prefetch:
            w.let(f"phi ptr [{self.fetch}, %block], [%f1, %tap_end]", "%f")
        self.rows = []
        for i in range(spec.rows):
            offset = w.load("i32", w.at("%o", 4 * i), 4)
            inside = w.at(self.x, w.let(f"sext i32 {offset} to i64"))
            outside = w.let(f"icmp slt i32 {offset}, 0")
            self.rows.append(w.let(f"select i1 {outside}, ptr {self.a['padding']}, ptr {inside}"))
        w.do("br label %k")

    def _products(self) -> None:
        w, spec, isa = self.w, self.spec, self.isa
        w.label("k")
        w.let("phi i64 [0, %tap], [%k1, %k]", "%k0")
        w.let("phi ptr [%b, %tap], [%b1, %k]", "%bk")
        if spec.prefetch:
            w.let("phi ptr [%f, %tap], [%f1, %k]", "%fk")
        acc = {}
        for i, j in self.cells:
            acc[i, j] = w.let(f"phi {self.kind} [%tap_{i}_{j}, %tap], [%next_{i}_{j}, %k]", f"%acc_{i}_{j}")
        self._prefetch()
        step = w.mul("%k0", 4 * spec.unroll)
        rows = [w.at(row, step) for row in self.rows]
        held: dict[str, str] = {}
        for u in range(spec.unroll):
            last = u == spec.unroll - 1
            panel = [
                weights(w, isa, w.load(self.kind, w.at("%bk", (u * spec.vectors + j) * self.bytes), 16))
                for j in range(spec.vectors)
            ]
            for i in range(spec.rows):
                x = activations(w, isa, self._broadcast(rows[i], u, held))
                for j in range(spec.vectors):
                    acc[i, j] = dot(w, isa, acc[i, j], x, panel[j], f"%next_{i}_{j}" if last else "")
        w.let("add i64 %k0, 1", "%k1")
        w.at("%bk", spec.unroll * spec.vectors * self.bytes, "%b1")
        w.let(f"icmp ult i64 %k1, {self.a['depth']}", "%more_k")
        w.do("br i1 %more_k, label %k, label %tap_end")

    def _broadcast(self, row: str, u: int, held: dict[str, str]) -> str:
        """A row's four activations of k-step u in every lane.

        The dot products of NEON take any lane of a vector: vectors of four k-steps are loaded, and `held` by row.
        """
        w, lanes = self.w, self.isa.lanes
        by_lane = self.isa.dot in ("usdot", "sdot") and u - u % lanes + lanes <= self.spec.unroll
        if by_lane and u % lanes:
            packed = held[row]
        elif by_lane:
            packed = held[row] = self._flipped(w.load(self.kind, w.at(row, 4 * u)))
        else:
            return self._flipped(w.splat(lanes, "i32", w.load("i32", w.at(row, 4 * u))))
        lane = indices([u % lanes] * lanes)
        return w.let(f"shufflevector {self.kind} {packed}, {self.kind} poison, <{lanes} x i32> {lane}")

    def _flipped(self, packed: str) -> str:
        """Activations of one sign as those of the other."""
        return self.w.let(f"xor {self.kind} {packed}, {self.flip}") if self.flip else packed

    def _prefetch(self) -> None:
        """Ask for a share of the next panel's weights; addresses past the end are harmless."""
        w, lines = self.w, self.spec.prefetch
        for line in range(lines):
            target = w.at("%fk", 64 * line)
            w.call("void", "llvm.prefetch.p0", ("ptr", target), ("i32", "0"), ("i32", "2"), ("i32", "1"))
        if lines:
            w.at("%fk", 64 * lines, "%f1")

    def _tap_tail(self) -> None:
        w = self.w
        w.label("tap_end")
        w.let("add i64 %t, 1", "%t1")
        w.at("%o", 4 * self.spec.rows, "%o1")
        w.let(f"icmp ult i64 %t1, {self.a['taps']}", "%more_taps")
        w.do("br i1 %more_taps, label %tap, label %finish")

    def _finish(self) -> None:
        w, spec, a = self.w, self.spec, self.a
        w.label("finish")
        row = w.least(w.mul("%m", spec.rows), a["last_row"])
        first = w.at(self.y, w.mul(row, a["y_row"]))
        block = [[f"%next_{i}_{j}" for j in range(spec.vectors)] for i in range(spec.rows)]
        self.epilogue.store_block(block, self.constants, first, a["y_row"])
        w.let("add i64 %m, 1", "%m1")
        w.let(f"icmp ult i64 %m1, {self.end}", "%more_blocks")
        w.do("br i1 %more_blocks, label %block, label %block_end")
        w.label("block_end")
        w.do("br label %claim")
