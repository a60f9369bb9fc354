"""What the generated products share that copy activations first: a tile is some blocks of rows and some panels of channels.

The blocks are copied to memory that the calling thread brings, then each panel walks over the copies.
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native._dot import int32s
from qrun.native._flow import Flow
from qrun.native._ir import argument_loader
from qrun.native._requantize_ir import Requantizer
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (
    "x*", "padding*", "offsets*", "weights*", "bias*", "constants*", "y*",
    "x_image", "y_image", "y_row", "last_row", "blocks", "taps", "depth",
    "panels", "shares", "share", "chunks", "chunk", "tiles", "last_channel", "mask", "zero_point!",
    "groups", "x_group", "y_group",
)  # fmt: skip
"""One 8-byte word each.

padding      a row of x_zero_point, read where an offset is negative
offsets      int32 [blocks][taps][rows]: bytes from the image's start
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
last_row     where the last block starts: blocks overlap rather than run over
depth        bytes per tap
panels       panels of a group's channels; shares, share: parts they are cut into, and panels in each
chunks, chunk     parts of the rows the work is cut into, and blocks in each
tiles        images * chunks * groups * shares
last_channel where the last panel starts: panels overlap rather than run over, unless there is only one (then `mask` tells
             which lanes of its last vector exist)
x_group, y_group  bytes from one group's channels to the next one's
"""


class Copied:
    """Writes one kernel: blocks of `rows` x `vectors` of int32. Its third parameter is memory of the calling thread.

    vector: bytes of one. width: bytes of a row's sums.
    """

    def __init__(self, spec: KernelSpec, isa: Isa, names: Sequence[str] = ARGUMENTS) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        self.kind, self.vector = int32s(isa), 4 * isa.lanes
        self.width = spec.vectors * self.vector
        self.w.label("entry")
        self.a = a = argument_loader(self.w, names)
        self.epilogue = Requantizer(self.w, isa, spec.form, spec.out, spec.vectors, a["zero_point"], a["mask"])

    def copy_blocks(self, x: str, first: str, end: str) -> None:
        """Copy the rows of some blocks of the image at x."""
        raise NotImplementedError

    def copies(self) -> list[tuple[str, str]]:
        """Where what is known of each block starts, and bytes from one block to the next."""
        raise NotImplementedError

    def panel_weights(self) -> str:
        """Bytes of a panel's weights."""
        raise NotImplementedError

    def sums(self, copies: list[str], bias: str, matrix: str) -> list[str]:
        """The sums of a block and a panel, row by row."""
        raise NotImplementedError

    def text(self) -> str:
        w, a = self.w, self.a
        self.steps, panel_weights = self.copies(), self.panel_weights()
        with w.tiles(a["tiles"]) as tile:
            rest, share = w.split(tile, a["shares"])
            rest, group = w.split(rest, a["groups"])
            image, chunk = w.split(rest, a["chunks"])
            first = w.mul(chunk, a["chunk"])
            end = w.least(w.add(first, a["chunk"]), a["blocks"])
            x = w.at(w.at(a["x"], w.mul(image, a["x_image"])), w.mul(group, a["x_group"]))
            self.copy_blocks(x, first, end)
            panel, before = w.mul(share, a["share"]), w.mul(group, a["panels"])
            y = w.at(w.at(a["y"], w.mul(image, a["y_image"])), w.mul(group, a["y_group"]))
            with w.loop(panel, w.least(w.add(panel, a["share"]), a["panels"]), 1) as turn:
                number = w.add(before, turn.index)
                matrix = w.at(a["weights"], w.mul(number, panel_weights))
                self._panel(turn.index, number, matrix, y, first, end)
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next, ptr noalias %scratch)")

    def source(self, x: str, place: str) -> str:
        """Where the row is that the offset at `place` tells."""
        w = self.w
        offset = w.load("i32", place, 4)
        inside = w.at(x, w.let(f"sext i32 {offset} to i64"))
        outside = w.let(f"icmp slt i32 {offset}, 0")
        return w.let(f"select i1 {outside}, ptr {self.a['padding']}, ptr {inside}")

    def _panel(self, panel: str, number: str, matrix: str, y: str, first: str, end: str) -> None:
        """All blocks of the chunk for one panel of a group's channels; number: of it among those of all groups."""
        w, a, spec = self.w, self.a, self.spec
        channels = spec.vectors * self.isa.lanes
        bias = w.at(a["bias"], w.mul(number, 4 * channels))
        values = w.at(a["constants"], w.mul(number, self.epilogue.panel_bytes()))
        size = 4 if spec.out == "i32" else 1
        y = w.at(y, w.mul(w.least(w.mul(panel, channels), a["last_channel"]), size))
        self.epilogue.set_panel(w.let(f"icmp eq i64 {w.add(panel, 1)}, {a['panels']}"))
        with w.loop(first, end, 1, [("ptr", start) for start, _ in self.steps]) as turn:
            row = w.least(w.mul(turn.index, spec.rows), a["last_row"])
            sums = self.sums(turn.carried, bias, matrix)
            block = [sums[i * spec.vectors : (i + 1) * spec.vectors] for i in range(spec.rows)]
            self.epilogue.store_block(block, values, w.at(y, w.mul(row, a["y_row"])), a["y_row"])
            turn.next([w.at(copy, step) for copy, (_, step) in zip(turn.carried, self.steps, strict=True)])
