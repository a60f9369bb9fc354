"""The generated int8 matrix product on AMX tiles: 16 rows by 16 channels of sums, 64 of k at a time.

A tile of activations is up to 16 rows that lie evenly spaced in memory: in the image itself or, where padding or
strides forbid that, in a copy that the kernel makes first. The kernel requantizes one block while the products of the
next one begin. Activations keep their type: nothing is shifted.

One product of tiles adds, for each row i and channel j, the products of 64 bytes of k:

    activations     row i of 16:   x[i, 0] x[i, 1] ... x[i, 63]
    weights         row q of 16:   w[4q, 0] .. w[4q+3, 0] | w[4q, 1] .. w[4q+3, 1] | ... | w[4q, 15] .. w[4q+3, 15]
    sums            row i of 16:   s[i, 0] s[i, 1] ... s[i, 15]     int32

For a block two tiles high and four vectors wide, the CPU's tiles 0 to 7 hold:

    sums 0, 2   of rows  0-15, two vectors      activations 4   rows  0-15      weights 6, 7   by turns
    sums 1, 3   of rows 16-31, the same         activations 5   rows 16-31
"""

from __future__ import annotations

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import WIDE
from qrun.native.emit.values import constants

ARGUMENTS = names("""
    x* padding* gather* places* targets* weights* bias* constants* y*
    x_image y_image y_row gathered depth pitch blocks taps steps line rows
    panels shares share chunks chunk tiles mask zero_point!
""")
"""The argument words, 8 bytes each.

gather       int32 [chunks][gathered]: the pieces that a chunk of blocks copies, as bytes from the image's start
depth, pitch      bytes of one copied piece, and from one to the next in the copy
padding      `depth` bytes of x_zero_point, copied where `gather` is negative
places       int32 [blocks][taps][tiles of a block]: their first rows, as bytes from the image's or the copy's start
line, rows   bytes from one row of a tile to the next; rows per tile
targets      int32 [blocks][spec.rows]: where the rows of a block's tiles go in y, negative for nowhere
taps, steps  runs of k, and 64-byte steps in each; activations read beyond k are multiplied by zero weights
weights      int8 [panels][groups of vectors][taps][steps][16][channels of the group][4]: see groups()
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
panels       panels of channels; shares, share: the number of parts they are cut into, and panels per part
chunks, chunk     the number of parts the rows are cut into, and blocks per part
tiles        images * chunks * shares
mask         lanes of the very last vector that exist
"""

TILE, STEP = 16, 64
"""A tile has TILE rows of TILE int32 sums each; a row has STEP bytes."""
_ROWS_AT_ONCE = 4
_LONG = 24
"""A product of more k-steps than this saves its last tile between two of them (see `_products`)."""
_NOWHERE = 64
_SUMS = _NOWHERE + 4 * STEP
"""Offsets in the thread's memory: unwanted rows, behind the tile configuration; a block's sums; then the copy."""
_HELD = {"y32": 3, "x32": 2, "ort": 1, "f64": 1}
"""By the form of an epilogue: how many vectors of constants it keeps in registers for each vector of channels."""


def groups(spec: KernelSpec) -> list[range]:
    """Groups of vectors of channels that are multiplied together. A group fills four tiles of sums, or is the rest."""
    width = 4 * TILE // spec.rows
    return [range(j, min(j + width, spec.vectors)) for j in range(0, spec.vectors, width)]


def scratch_bytes(spec: KernelSpec, copied: int = 0) -> int:
    """Bytes of memory, aligned to 64 bytes, that the kernel needs from each thread.
    copied: size in bytes of the copy that tiles read."""
    return _SUMS + spec.rows * spec.vectors * STEP + copied


class _Holding(Requantizer):
    """A requantizer that loads its constants once per panel instead of once per row, as far as registers hold them."""

    def hold(self, held: Value) -> None:
        """Load the constants of all result columns into registers, where the form has few enough of them."""
        element, load = "double" if self.form == "f64" else "float", super()._constant
        places = [(number, vector) for number in range(_HELD.get(self.form, 0)) for vector in range(self.vectors)]
        self.loaded = {(number, vector): load(held, number, vector, element) for number, vector in places}

    def _constant(self, held: Value, field: int, vector: int, element: str = "float") -> Value:
        """The constant of a field for one vector of columns: from a register if it is held, else from memory."""
        found = self.loaded.get((field, vector))
        return super()._constant(held, field, vector, element) if found is None else found


@emitter("amx", "amx_copy")
class AmxEmitter(KernelEmitter):
    """Writes one kernel: a block is spec.rows / 16 tiles high, one or two, and spec.vectors vectors wide.

    Kind amx reads rows where they are; kind amx_copy copies them first.
    """

    names = ARGUMENTS
    own_memory = True

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, a = self.w, self.a
        self.copies = spec.kind == "amx_copy"
        self.high = spec.rows // TILE
        self.groups = groups(spec)
        self.width = spec.vectors * STEP
        self.epilogue = _Holding(w, isa, spec.form, spec.out, spec.vectors, a.zero_point, a.mask)
        self.total = a.taps * a.steps
        self.panel_weights = self.total * (TILE * self.width)
        self.long = self.total.test("ugt", _LONG)
        self.nowhere, self.copy = self.scratch + _NOWHERE, self.scratch + scratch_bytes(spec)
        first = self.scratch + _SUMS
        self.sums = [first, first + a.rows * self.width]

    def text(self) -> str:
        """Write the kernel's LLVM IR."""
        w = self.w
        self._configure()
        with w.tiles(self.a.tiles, [w.value("i64", -1)]) as tile:
            tile.next(self._place(tile.index, tile.carried[0]))
            with w.loop(self.first_panel, self.end_panel, 1) as turn:
                self._panel(turn.index)
        w.run("llvm.x86.tilerelease")
        return self.end_kernel()

    def _configure(self) -> None:
        """Configure the tiles: 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.

        The 64 bytes of LDTILECFG are: palette 1; from byte 16 on, each tile's bytes per row as int16; from byte 48 on,
        each tile's rows as a byte. The rows of sums and activations are known only at run time.
        """
        w = self.w
        config = [1, *[0] * 15, *[STEP, 0] * 8, *[0] * 22, TILE, TILE, *[0] * 8]
        self.scratch.store(w.value("<64 x i8>", constants("i8", config)), 64)
        count = self.a.rows.trunc("i8")
        for tile in range(6):
            (self.scratch + (48 + tile)).store(count)
        w.run("llvm.x86.ldtilecfg", self.scratch)

    def _place(self, tile: Value, before: Value) -> Value:
        """Find the tile's image, chunk and panels. Copy the chunk unless this thread's previous tile had the same one.
        Returns the chunk's number, counted over all images. before: the number of the previous tile's chunk."""
        w, a = self.w, self.a
        position, share = divmod(tile, a.shares)
        image, chunk = divmod(position, a.chunks)
        self.first, self.end = chunk.part(a.chunk, a.blocks)
        self.first_panel, self.end_panel = share.part(a.share, a.panels)
        self.x = a.x + image * a.x_image
        self.y = a.y + image * a.y_image
        if self.copies:
            with w.when(position.test("ne", before)):
                self._copy(a.gather + chunk * (a.gathered * 4))
        return position

    def _copy(self, table: Value) -> None:
        """Copy the rows of a chunk, 64 bytes at a time. Reads no byte beyond a row's end."""
        w, a, kind = self.w, self.a, "<64 x i8>"
        whole = (a.depth + -1).lshr(6)
        past = (0 - a.depth) & 63
        tail = w.value("i64", -1).lshr(past).bitcast("<64 x i1>")
        end = whole << 6
        with w.loop(0, a.gathered, 1) as row:
            source = row_at(self.x, table + row.index * 4, a.padding)
            target = self.copy + row.index * a.pitch
            with w.loop(0, end, STEP) as part:
                value = (source + part.index).load(kind)
                (target + part.index).store(value)
            value = (source + end).masked_load(kind, tail)
            (target + end).store(value)

    def _panel(self, panel: Value) -> None:
        """Multiply all blocks of the chunk. Each iteration begins one block and stores the results of the one
        before."""
        w, a, spec = self.w, self.a, self.spec
        channels = spec.vectors * TILE
        weights = a.weights + panel * self.panel_weights
        self.weights = [weights + self.total * (TILE * STEP * group.start) for group in self.groups]
        self.fetch = weights + self.panel_weights
        self.bias = a.bias + panel * (4 * channels)
        self.constants = a.constants + panel * self.epilogue.panel_bytes()
        self.y_panel = self.y + panel * (channels * (4 if spec.out in WIDE else 1))
        self.epilogue.set_panel((panel + 1).test("eq", a.panels))
        self.epilogue.hold(self.constants)
        with w.loop(self.first, self.end + 1, 1) as turn:
            block, last = turn.index, len(self.groups) - 1
            more = block.test("ult", self.end)
            places = a.places + block * (a.taps * (4 * self.high))
            for begins in w.either(more):
                if begins:
                    self._step(0, self._rows(places), self.weights[0], last)
                else:
                    for cell in range(self.high * len(self.groups[last])):
                        self._save(last, cell)
            with w.when(block.test("ugt", self.first)):
                self._results(a.targets + (block + -1) * (4 * spec.rows))
            with w.when(more):
                for group in range(len(self.groups)):
                    if group:
                        self._step(group, self._rows(places), self.weights[group], group - 1)
                    self._products(group, places, block - self.first)

    def _rows(self, places: Value) -> list[Value]:
        """The addresses of the first rows of the block's tiles of activations."""
        base = self.copy if self.copies else self.x
        offsets = [(places + 4 * i).load("i32", 4) for i in range(self.high)]
        return [base + offset.sext("i64") for offset in offsets]

    def _tile(self, what: str, tile: int, pointer: Value, stride: Value | int) -> None:
        """Load, store or zero (`what`) a tile register; `stride` is the bytes between its rows in memory."""
        self.w.run(f"llvm.x86.tile{what}64", ("i8", f"{tile}"), pointer, ("i64", f"{stride}"))

    def _save(self, group: int, cell: int) -> None:
        """Store a tile of sums in the thread's memory, where a row holds all channels of the panel."""
        j, i = divmod(cell, self.high)
        vector = self.groups[group].start + j
        self._tile("stored", cell, self.sums[i] + STEP * vector, self.width)

    def _step(self, group: int, rows: list[Value], b: Value, before: int | None = None) -> None:
        """Write one k-step of a group. before: given for the first step: the group whose sums the tiles still hold.

        Those sums are saved one by one between the products: four saves in a row would keep the multiplier waiting.
        """
        w, mine = self.w, self.groups[group]
        old = 0 if before is None else self.high * len(self.groups[before])
        product = f"llvm.x86.{'tdpbssd' if self.spec.signed else 'tdpbusd'}"
        for i, row in enumerate(rows):
            self._tile("loadd", 4 + i, row, self.a.line)
        for j, vector in enumerate(mine):
            self._tile("loadd", 6 + j % 2, b + STEP * j, STEP * len(mine))
            for i in range(self.high):
                cell = j * self.high + i
                if before is not None and cell < old:
                    self._save(before, cell)
                if before is not None:
                    self._tile("loadd", cell, self.bias + STEP * vector, 0)
                w.run(product, *(("i8", str(tile)) for tile in (cell, 4 + i, 6 + j % 2)))
        for cell in range(self.high * len(mine), old):
            self._save(before or 0, cell)

    def _products(self, group: int, places: Value, turn: Value) -> None:
        """Write all k-steps of a group except the first."""
        w, a, size, lines = self.w, self.a, TILE * STEP * len(self.groups[group]), self.spec.prefetch
        if lines:
            fetch = self.fetch + (turn * len(self.groups) + group) * self.total * (STEP * lines)
        with w.loop(0, a.taps, 1) as tap:
            with w.when(self.long):
                # Without a save every 32 products or so, the next one costs the processor hundreds of cycles.
                self._tile("stored", 4, self.scratch, 0)
            rows = self._rows(places + tap.index * (4 * self.high))
            first = tap.index * a.steps
            begun = tap.index.test("eq", 0).zext("i64")
            with w.loop(begun, a.steps, 1) as step:
                position = first + step.index
                for line in range(lines):
                    w.prefetch(fetch + position * (STEP * lines) + STEP * line)
                along = step.index * STEP
                self._step(group, [row + along for row in rows], self.weights[group] + position * size)

    def _results(self, targets: Value) -> None:
        """Requantize and store the block whose sums are complete."""
        w, spec = self.w, self.spec
        count = 1 if spec.form == "table" else _ROWS_AT_ONCE
        with w.loop(0, self.a.rows * self.high, count) as row:
            sums, numbers = self.sums[0] + row.index * self.width, targets + row.index * 4
            done, places = [], []
            for i in range(count):
                acc = [(sums + (i * self.width + STEP * j)).load("<16 x i32>", 64) for j in range(spec.vectors)]
                done.append(self.epilogue.finish(self.epilogue.row(acc, self.constants)))
                number = (numbers + 4 * i).load("i32", 4)
                inside = self.y_panel + number.sext("i64") * self.a.y_row
                places.append(number.test("slt", 0).select(self.nowhere, inside))
            for whole in w.either(self.epilogue.full):
                for values, position in zip(done, places, strict=True):
                    self.epilogue.store(values, position, whole)
