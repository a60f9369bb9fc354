"""The generated int8 matrix product: rows found through a table of offsets, weights packed by panels of channels.

Serves convolutions (indirect: one offset per output pixel and kernel tap) and matrix products (one tap).

Weights lie as the loops read them: a panel's taps, each tap's k-steps, each k-step's vectors. A vector holds four k of
each of its channels, and meets the four activations of one row in every lane; for channels a, b, c, ... of a vector:

    weights       a0 a1 a2 a3 | b0 b1 b2 b3 | c0 c1 c2 c3 | ...
    activations   x0 x1 x2 x3 | x0 x1 x2 x3 | x0 x1 x2 x3 | ...
    sum           += a . x    | += b . x    | += c . x    | ...

The loops are tiles, blocks, taps and k; the sums stay in registers through the last two.
"""

from __future__ import annotations

from qrun.native.emit.dot import activations, dot, int32s, weights
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import WIDE

ARGUMENTS = names("""
    x* padding* offsets* weights* bias* constants* y*
    x_image y_image y_row last_row blocks taps depth
    panels chunks chunk tiles mask zero_point!
    group_panels x_group y_group weights_group bias_group constants_group
    chunk_step panel_step rows* rows_group
""")
"""The argument words, 8 bytes each.

padding      a row of x_zero_point, read where an offset is negative
offsets      int32 [blocks][taps][rows]: bytes from the image's start
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
last_row     where the last block starts: blocks overlap rather than run over
depth        k-steps of 4 * unroll bytes per tap
chunks, chunk     the number of parts that a panel's rows are cut into, and blocks per part
tiles        images * panels * chunks
mask         lanes of a group's very last vector that exist
group_panels panels of a group; x_group, y_group: bytes from one group's channels to the next one's; weights_group,
             bias_group and constants_group likewise
chunk_step, panel_step  the tile's chunk is tile // chunk_step % chunks, its panel tile // panel_step % panels
rows         int32, added to all sums of a row; rows_group: bytes from one group's to the next one's (operands ``rows``)
"""

_FLIP = -0x7F7F7F80
"""0x80808080 as an int32: the sign bits of four bytes."""


@emitter("dense")
class DenseEmitter(KernelEmitter):
    """Writes one kernel: `rows` x `vectors` int32 vectors of accumulators; the k loop is unrolled `unroll` times."""

    names = ARGUMENTS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, a = self.w, self.a
        self.kind = int32s(isa)
        self.bytes = 4 * isa.lanes
        self.panel_weights = a.taps * a.depth * (spec.unroll * spec.vectors * self.bytes)
        self.epilogue = Requantizer(w, isa, spec.form, spec.out, spec.vectors, a.zero_point, a.mask)
        self.flip = w.value("i32", _FLIP).splat(isa.lanes) if isa.shift(spec.signed) else None

    def write_tile(self, tile: Value) -> None:
        """Make one tile: a panel of channels, for a chunk of an image's blocks."""
        w, a, spec = self.w, self.a, self.spec
        chunk = tile // a.chunk_step % a.chunks
        panel = tile // a.panel_step % a.panels
        image = tile // a.chunks // a.panels
        group, position = divmod(panel, a.group_panels)
        first, end = chunk.part(a.chunk, a.blocks)
        channels = spec.vectors * self.isa.lanes
        x = a.x + image * a.x_image + group * a.x_group
        matrix = a.weights + group * a.weights_group + position * self.panel_weights
        bias = a.bias + group * a.bias_group + position * (4 * channels)
        constants = a.constants + group * a.constants_group + position * self.epilogue.panel_bytes()
        y = a.y + image * a.y_image + group * a.y_group
        y = y + position * (channels * (4 if spec.out in WIDE else 1))
        self.epilogue.set_panel((position + 1).test("eq", a.group_panels))
        with w.loop(first, end, 1, once=True) as block:
            offsets = a.offsets + block.index * (a.taps * (4 * spec.rows))
            row = (block.index * spec.rows).least(a.last_row)
            start = self._starts(bias, a.rows + group * a.rows_group + row * 4)
            fetch = []
            if spec.prefetch:
                turns = a.taps * a.depth
                done = (block.index - first) * turns * (64 * spec.prefetch)
                fetch = [matrix + self.panel_weights + done]
            sums = self._taps(x, offsets, matrix, start, fetch)
            self.epilogue.store_block(sums, constants, y + row * a.y_row, a.y_row)

    def _starts(self, bias: Value, rows: Value) -> list[Value]:
        """The start values of a block's sums. rows: the address of the number added to all sums of the first row."""
        columns = [(bias + j * self.bytes).load(self.kind, 16) for j in range(self.spec.vectors)]
        if self.spec.operands != "rows":
            return columns * self.spec.rows
        added = [(rows + 4 * i).load("i32", 4).splat(self.isa.lanes) for i in range(self.spec.rows)]
        return [column + more for more in added for column in columns]

    def _taps(
        self, x: Value, offsets: Value, matrix: Value, start: list[Value], fetch: list[Value]
    ) -> list[list[Value]]:
        """A block's sums. start: their start values. fetch: the address to prefetch from, if any."""
        w, a, spec = self.w, self.a, self.spec
        with w.loop(0, a.taps, 1, [offsets, matrix, *fetch, *start], once=True) as tap:
            position, *held = tap.carried
            rows = [row_at(x, position + 4 * i, a.padding) for i in range(spec.rows)]
            with w.loop(0, a.depth, 1, held, once=True) as k:
                matrix, *fetch = k.carried[: -len(start)]
                for line in range(spec.prefetch):
                    w.prefetch(fetch[0] + 64 * line)
                step = k.index * (4 * spec.unroll)
                sums = self._products([row + step for row in rows], matrix, k.carried[-len(start) :])
                fetch = [position + 64 * spec.prefetch for position in fetch]
                k.next(matrix + spec.unroll * spec.vectors * self.bytes, *fetch, *sums)
            tap.next(position + 4 * spec.rows, *k.carried)
        sums = tap.carried[-len(start) :]
        return [sums[i : i + spec.vectors] for i in range(0, len(sums), spec.vectors)]

    def _products(self, rows: list[Value], matrix: Value, sums: list[Value]) -> list[Value]:
        """Add the products of one iteration of the loop to `sums`, which it returns."""
        spec, isa, vectors = self.spec, self.isa, range(self.spec.vectors)
        held: dict[Value, Value] = {}
        for u in range(spec.unroll):
            panel = [weights(isa, (matrix + (u * spec.vectors + j) * self.bytes).load(self.kind, 16)) for j in vectors]
            for i, row in enumerate(rows):
                x = activations(isa, self._broadcast(row, u, held))
                for j in vectors:
                    position = i * spec.vectors + j
                    sums[position] = dot(isa, sums[position], x, panel[j])
        return sums

    def _broadcast(self, row: Value, u: int, held: dict[Value, Value]) -> Value:
        """A row's four activations of k-step u, in every lane.

        The dot products of NEON can take any lane of a vector: vectors of four k-steps are loaded, and kept in `held`
        by row.
        """
        lanes = self.isa.lanes
        by_lane = self.isa.dot in ("usdot", "sdot") and u - u % lanes + lanes <= self.spec.unroll
        if not by_lane:
            return self._flip_sign((row + 4 * u).load("i32").splat(lanes))
        if not u % lanes:
            held[row] = self._flip_sign((row + 4 * u).load(self.kind))
        return held[row].shuffle([u % lanes] * lanes)

    def _flip_sign(self, packed: Value) -> Value:
        """Convert int8 activations to uint8, or uint8 ones to int8, where the dot product takes the other type."""
        return packed if self.flip is None else packed ^ self.flip
