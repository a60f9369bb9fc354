"""What the generated products share that copy activations first:
a tile is some blocks of rows and some panels of channels.

The blocks are copied to memory that the calling thread brings, then each panel walks over the copies.
"""

from __future__ import annotations

from qrun.native.emit.dot import int16s, int32s, pairs
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import WIDE
from qrun.native.emit.values import Operand

ARGUMENTS = names("""
    x* padding* offsets* weights* bias* constants* y*
    x_image y_image y_row last_row blocks taps depth
    panels shares share chunks chunk tiles last_channel mask zero_point!
    groups x_group y_group
""")
"""One 8-byte word each.

padding      a row of x_zero_point, read where an offset is negative
offsets      int32 [blocks][taps][rows]: bytes from the image's start
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
last_row     where the last block starts: blocks overlap rather than run over
depth        bytes per tap
panels       panels of a group's channels; shares, share: parts they are cut into, and panels in each
chunks, chunk     parts of the rows the work is cut into, and blocks in each
tiles        images * chunks * groups * shares
last_channel where the last panel starts: panels overlap rather than run over,
unless there is only one (then `mask` tells
             which lanes of its last vector exist)
x_group, y_group  bytes from one group's channels to the next one's
"""


class CopiedEmitter(KernelEmitter):
    """Writes one kernel: blocks of `rows` x `vectors` of int32.

    vector: bytes of one. width: bytes of a row's sums.
    """

    names: tuple[str, ...] = ARGUMENTS
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.kind, self.vector = int32s(isa), 4 * isa.lanes
        self.width = spec.vectors * self.vector
        self.epilogue = Requantizer(self.w, isa, spec.form, spec.out, spec.vectors, self.a.zero_point, self.a.mask)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        """Copy the rows of the blocks from `first` to `end` of the image at x."""
        raise NotImplementedError

    def copies(self) -> list[tuple[Value, Operand]]:
        """Pointers to what sums of the first block read,
        each with the bytes from one block's data to the next one's."""
        raise NotImplementedError

    def panel_weights(self) -> Value:
        """Bytes of the weights of one panel."""
        raise NotImplementedError

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        """int32 vectors of sums of a block and a panel, row by row, for the block whose data `copies` point to."""
        raise NotImplementedError

    def text(self) -> str:
        self.steps, self.matrix_bytes = self.copies(), self.panel_weights()
        return super().text()

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        rest, share = divmod(tile, a.shares)
        rest, group = divmod(rest, a.groups)
        image, chunk = divmod(rest, a.chunks)
        first, end = chunk.part(a.chunk, a.blocks)
        self.copy_blocks(a.x + image * a.x_image + group * a.x_group, first, end)
        panel, before = share * a.share, group * a.panels
        y = a.y + image * a.y_image + group * a.y_group
        with w.loop(panel, (panel + a.share).least(a.panels), 1) as turn:
            number = before + turn.index
            self._panel(turn.index, number, a.weights + number * self.matrix_bytes, y, first, end)

    def _panel(self, panel: Value, number: Value, matrix: Value, y: Value, first: Value, end: Value) -> None:
        """All blocks of the chunk for one panel of a group's channels; number: among those of all groups."""
        w, a, spec = self.w, self.a, self.spec
        channels = spec.vectors * self.isa.lanes
        bias = a.bias + number * (4 * channels)
        values = a.constants + number * self.epilogue.panel_bytes()
        y = y + (panel * channels).least(a.last_channel) * (4 if spec.out in WIDE else 1)
        self.epilogue.set_panel((panel + 1).test("eq", a.panels))
        with w.loop(first, end, 1, [start for start, _ in self.steps]) as turn:
            row = (turn.index * spec.rows).least(a.last_row)
            sums = self.sums(turn.carried, bias, matrix)
            block = [sums[i * spec.vectors : (i + 1) * spec.vectors] for i in range(spec.rows)]
            self.epilogue.store_block(block, values, y + row * a.y_row, a.y_row)
            turn.next(*(copy + step for copy, (_, step) in zip(turn.carried, self.steps, strict=True)))


STEP = 2
"""The number of activations per tap is a multiple of this."""
PIECE = 16
"""Activations that are copied together, the last ones of a tap again.
Of shorter taps, what is too much is written over."""


@emitter("widened")
class WidenedEmitter(CopiedEmitter):
    """Writes one kernel: a pair of k per turn of the inner loop; `depth` is a multiple of STEP.

    More per turn would be added in another order by LLVM, which takes more registers than there are.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.row = self.a.taps * self.a.depth * 2
        self.block = self.row * spec.rows
        self.last = (self.a.depth + -PIECE).intrinsic("smax", 0)

    def copies(self) -> list[tuple[Value, Operand]]:
        return [(self.scratch, self.block)]

    def panel_weights(self) -> Value:
        return self.row * (self.width // 4)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        w, a, rows = self.w, self.a, self.spec.rows
        each = a.taps * (4 * rows)
        with w.loop(first, end, 1, [self.scratch]) as block:
            offsets = a.offsets + block.index * each
            with w.loop(0, 4 * rows, 4, block.carried) as row:
                with w.loop(row.index, each, 4 * rows, row.carried) as tap:
                    to = tap.carried[0]
                    self._copy(row_at(x, offsets + tap.index, a.padding), to)
                    tap.next(to + a.depth * 2)
                row.next(*tap.carried)
            block.next(*row.carried)

    def _copy(self, source: Value, to: Value) -> None:
        """Copy the activations of one tap, widened."""
        with self.w.loop(0, self.a.depth, PIECE) as k:
            place = k.index.least(self.last)
            wide = (source + place).load(f"<{PIECE} x i8>").extended("i16", self.spec.signed)
            (to + place * 2).store(wide, 4)

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        spec, half = self.spec, int16s(self.isa)
        rows = [copies[0] + self.row * i if i else copies[0] for i in range(spec.rows)]
        start = [(bias + self.vector * j).load(self.kind, 16) for j in range(spec.vectors)]
        with self.w.loop(0, self.row, 4, [matrix, *start * spec.rows]) as turn:
            place, *acc = turn.carried
            panel = [(place + self.vector * j).load(half, 16) for j in range(spec.vectors)]
            made = []
            for i, row in enumerate(rows):
                x = (row + turn.index).load("i32", 4).splat(self.isa.lanes).bitcast(half)
                products = [pairs(x, weights) for weights in panel]
                made += [acc[i * spec.vectors + j] + product for j, product in enumerate(products)]
            turn.next(place + self.width, *made)
        return turn.carried[1:]
