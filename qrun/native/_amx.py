"""The generated int8 matrix product on AMX tiles: 16 rows by 16 channels of sums, 64 of k at a time.

A tile of activations is up to 16 rows that lie evenly spaced in memory: in the image itself or, where padding or
strides forbid that, in a copy that the kernel makes first. Results of a block are made while the next one's products
begin. Activations keep their type: nothing is shifted.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from qrun.native._flow import Flow
from qrun.native._ir import argument_loader, constants
from qrun.native._requantize_ir import Requantizer
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (
    "x*", "padding*", "gather*", "places*", "targets*", "weights*", "bias*", "constants*", "y*",
    "x_image", "y_image", "y_row", "gathered", "depth", "pitch", "blocks", "taps", "steps", "line", "rows",
    "panels", "shares", "share", "chunks", "chunk", "tiles", "mask", "zero_point!",
)  # fmt: skip
"""One 8-byte word each.

gather       int32 [chunks][gathered]: what a chunk of blocks copies, as bytes from the image's start
depth, pitch      bytes of one copied piece, and from one to the next in the copy
padding      `depth` bytes of x_zero_point, copied where `gather` is negative
places       int32 [blocks][taps][tiles of a block]: their first rows, as bytes from the image's or the copy's start
line, rows   bytes from one row of a tile to the next; rows per tile
targets      int32 [blocks][spec.rows]: where the rows of a block's tiles go in y, negative for nowhere
taps, steps  runs of k, and 64-byte steps in each; what is read beyond k meets zero weights
weights      int8 [panels][groups of vectors][taps][steps][16][channels of the group][4]: see groups()
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
panels       panels of channels; shares, share: parts they are cut into, and panels in each
chunks, chunk     parts of the rows the work is cut into, and blocks in each
tiles        images * chunks * shares
mask         lanes of the very last vector that exist
"""

TILE, STEP = 16, 64
_ROWS_AT_ONCE = 4
_LONG = 24
_NOWHERE = 64
_SUMS = _NOWHERE + 4 * STEP
_HELD = {"y32": 3, "x32": 2, "ort": 1, "f64": 1}


def groups(spec: KernelSpec) -> list[range]:
    """The vectors of a panel that are multiplied at a time: four tiles of sums, or what is left."""
    width = 4 * TILE // spec.rows
    return [range(j, min(j + width, spec.vectors)) for j in range(0, spec.vectors, width)]


def scratch_bytes(spec: KernelSpec, copied: int = 0) -> int:
    """Memory that a thread brings to the kernel, on a 64-byte boundary. copied: bytes of the copy that tiles may read."""
    return _SUMS + spec.rows * spec.vectors * STEP + copied


@dataclass(slots=True)
class _Holding(Requantizer):
    """An epilogue that loads its constants once per panel, if they are few."""

    held: dict[tuple[int, int], str] = field(default_factory=dict)

    def hold(self, constants: str) -> None:
        kind = "double" if self.form == "f64" else "float"
        for number in range(_HELD.get(self.form, 0)):
            for place in range(self.vectors):
                self.held[number, place] = super(_Holding, self)._constant(constants, number, place, kind)

    def _constant(self, constants: str, field: int, place: int, kind: str = "float") -> str:
        return self.held[field, place]


class Amx:
    """Writes one kernel: blocks of spec.rows / 16 tiles, one or two, by spec.vectors.

    Kind amx reads rows where they are, amx_copy gathers them first. The kernel's third parameter is memory of the
    calling thread.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.w = spec, Flow()
        self.copies = spec.kind == "amx_copy"
        self.high = spec.rows // TILE
        self.groups = groups(spec)
        self.width = spec.vectors * STEP
        w = self.w
        w.label("entry")
        self.a = a = argument_loader(w, ARGUMENTS)
        self.epilogue = _Holding(w, isa, spec.form, spec.out, spec.vectors, a["zero_point"], a["mask"])
        self.total = w.mul(a["taps"], a["steps"])
        self.panel_weights = w.mul(self.total, TILE * self.width)
        w.let(f"icmp ugt i64 {self.total}, {_LONG}", "%long")
        w.at("%scratch", _NOWHERE, "%nowhere")
        w.at("%scratch", _SUMS, "%sums")
        w.at("%sums", w.mul(a["rows"], self.width), "%sums1")
        w.at("%scratch", scratch_bytes(spec), "%copy")

    def text(self) -> str:
        w = self.w
        self._configure()
        w.jump("claim")
        w.label("claim")
        w.let("phi i64 [0, %entry], [%done1, %worked]", "%done")
        w.let("phi i64 [-1, %entry], [%place, %worked]", "%before")
        w.let("atomicrmw add ptr %next, i64 1 monotonic", "%tile")
        w.do(f"br i1 {w.let('icmp ult i64 %tile, ' + self.a['tiles'])}, label %work, label %exit")
        w.label("exit")
        w.call("void", "llvm.x86.tilerelease")
        w.do("ret i64 %done")
        w.label("work")
        w.let("add i64 %done, 1", "%done1")
        self._place()
        with w.loop(self.first_panel, self.end_panel, 1) as turn:
            self._panel(turn.index)
        w.jump("worked")
        w.label("worked")
        w.jump("claim")
        return w.function("define i64 @kernel(ptr noalias %args, ptr noalias %next, ptr noalias %scratch)")

    def _configure(self) -> None:
        """Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights."""
        w = self.w
        config = [1, *[0] * 15, *[STEP, 0] * 8, *[0] * 22, TILE, TILE, *[0] * 8]
        w.store("<64 x i8>", constants("i8", config), "%scratch", 64)
        count = w.let(f"trunc i64 {self.a['rows']} to i8")
        for tile in range(6):
            w.store("i8", count, w.at("%scratch", 48 + tile))
        w.call("void", "llvm.x86.ldtilecfg", ("ptr", "%scratch"))

    def _place(self) -> None:
        """The image, chunk and panels of this work. The copy that is there may still be the right one."""
        w, a = self.w, self.a
        share = w.rem("%tile", a["shares"])
        w.let(f"udiv i64 %tile, {a['shares']}", "%place")
        chunk, image = w.rem("%place", a["chunks"]), w.div("%place", a["chunks"])
        self.first = w.mul(chunk, a["chunk"])
        self.end = w.least(w.add(self.first, a["chunk"]), a["blocks"])
        self.first_panel = w.mul(share, a["share"])
        self.end_panel = w.least(w.add(self.first_panel, a["share"]), a["panels"])
        self.x = w.at(a["x"], w.mul(image, a["x_image"]))
        self.y = w.at(a["y"], w.mul(image, a["y_image"]))
        if self.copies:
            with w.when(w.let("icmp ne i64 %place, %before")):
                self._copy(w.at(a["gather"], w.mul(chunk, w.mul(a["gathered"], 4))))

    def _copy(self, table: str) -> None:
        w, a, kind = self.w, self.a, "<64 x i8>"
        whole = w.let(f"lshr i64 {w.add(a['depth'], -1)}, 6")
        past = w.let(f"and i64 {w.let('sub i64 0, ' + a['depth'])}, 63")
        tail = w.let(f"bitcast i64 {w.let(f'lshr i64 -1, {past}')} to <64 x i1>")
        end = w.let(f"shl i64 {whole}, 6")
        with w.loop("0", a["gathered"], 1) as row:
            offset = w.load("i32", w.at(table, w.mul(row.index, 4)), 4)
            inside = w.at(self.x, w.let(f"sext i32 {offset} to i64"))
            source = w.let(f"select i1 {w.let(f'icmp slt i32 {offset}, 0')}, ptr {a['padding']}, ptr {inside}")
            target = w.at("%copy", w.mul(row.index, a["pitch"]))
            with w.loop("0", end, STEP) as part:
                w.store(kind, w.load(kind, w.at(source, part.index)), w.at(target, part.index))
            last = (("ptr", w.at(source, end)), ("i32", "1"), ("<64 x i1>", tail), (kind, "zeroinitializer"))
            w.store(kind, w.call(kind, "llvm.masked.load.v64i8.p0", *last), w.at(target, end))

    def _panel(self, panel: str) -> None:
        """All blocks of the chunk. A turn begins one and ends the one before it."""
        w, a, spec = self.w, self.a, self.spec
        channels = spec.vectors * TILE
        weights = w.at(a["weights"], w.mul(panel, self.panel_weights))
        self.weights = [w.at(weights, w.mul(self.total, TILE * STEP * group.start)) for group in self.groups]
        self.fetch = w.at(weights, self.panel_weights)
        self.bias = w.at(a["bias"], w.mul(panel, 4 * channels))
        self.constants = w.at(a["constants"], w.mul(panel, self.epilogue.panel_bytes()))
        self.y_panel = w.at(self.y, w.mul(panel, channels * (4 if spec.out == "i32" else 1)))
        self.epilogue.set_panel(w.let(f"icmp eq i64 {w.add(panel, 1)}, {a['panels']}"))
        self.epilogue.hold(self.constants)
        with w.loop(self.first, w.add(self.end, 1), 1) as turn:
            block, last = turn.index, len(self.groups) - 1
            more = w.let(f"icmp ult i64 {block}, {self.end}")
            places = w.at(a["places"], w.mul(block, w.mul(a["taps"], 4 * self.high)))
            w.do(f"br i1 {more}, label %begin, label %stop")
            w.label("begin")
            self._step(0, self._rows(places), self.weights[0], last)
            w.jump("begun")
            w.label("stop")
            for cell in range(self.high * len(self.groups[last])):
                self._save(last, cell)
            w.jump("begun")
            w.label("begun")
            with w.when(w.let(f"icmp ugt i64 {block}, {self.first}")):
                self._results(w.at(a["targets"], w.mul(w.add(block, -1), 4 * spec.rows)))
            with w.when(more):
                for group in range(len(self.groups)):
                    if group:
                        self._step(group, self._rows(places), self.weights[group], group - 1)
                    self._products(group, places, w.let(f"sub i64 {block}, {self.first}"))

    def _rows(self, places: str) -> list[str]:
        """The first row of each tile of activations."""
        w, base = self.w, "%copy" if self.copies else self.x
        offsets = [w.load("i32", w.at(places, 4 * i), 4) for i in range(self.high)]
        return [w.at(base, w.let(f"sext i32 {offset} to i64")) for offset in offsets]

    def _tile(self, what: str, tile: int, pointer: str, stride: int | str) -> None:
        self.w.call("void", f"llvm.x86.tile{what}64", ("i8", f"{tile}"), ("ptr", pointer), ("i64", f"{stride}"))

    def _save(self, group: int, cell: int) -> None:
        """A tile of sums to memory, where a row has all channels of the panel."""
        j, i = divmod(cell, self.high)
        vector = self.groups[group].start + j
        self._tile("stored", cell, self.w.at("%sums1" if i else "%sums", STEP * vector), self.width)

    def _step(self, group: int, rows: list[str], b: str, before: int | None = None) -> None:
        """One k-step of a group. With `before` it is the first one, and the tiles still hold the sums of that group.

        Those are saved one by one between the products: four in a row would keep the multiplier waiting.
        """
        w, mine = self.w, self.groups[group]
        old = 0 if before is None else self.high * len(self.groups[before])
        product = f"llvm.x86.{'tdpbssd' if self.spec.signed else 'tdpbusd'}"
        for i, row in enumerate(rows):
            self._tile("loadd", 4 + i, row, self.a["line"])
        for j, vector in enumerate(mine):
            self._tile("loadd", 6 + j % 2, w.at(b, STEP * j), STEP * len(mine))
            for i in range(self.high):
                cell = j * self.high + i
                if before is not None and cell < old:
                    self._save(before, cell)
                if before is not None:
                    self._tile("loadd", cell, w.at(self.bias, STEP * vector), 0)
                w.call("void", product, *(("i8", str(tile)) for tile in (cell, 4 + i, 6 + j % 2)))
        for cell in range(self.high * len(mine), old):
            self._save(before or 0, cell)

    def _products(self, group: int, places: str, turn: str) -> None:
        """All k-steps of a group but its first."""
        w, a, size, lines = self.w, self.a, TILE * STEP * len(self.groups[group]), self.spec.prefetch
        if lines:
            number = w.add(w.mul(turn, len(self.groups)), group)
            fetch = w.at(self.fetch, w.mul(w.mul(number, self.total), STEP * lines))
        with w.loop("0", a["taps"], 1) as tap:
            with w.when("%long"):
                # Without a save every 32 products or so, the next one costs the processor hundreds of cycles.
                self._tile("stored", 4, "%scratch", 0)
            rows = self._rows(w.at(places, w.mul(tap.index, 4 * self.high)))
            first = w.mul(tap.index, a["steps"])
            begun = w.let(f"zext i1 {w.let(f'icmp eq i64 {tap.index}, 0')} to i64")
            with w.loop(begun, a["steps"], 1) as step:
                place = w.add(first, step.index)
                for line in range(lines):
                    where = w.at(w.at(fetch, w.mul(place, STEP * lines)), STEP * line)
                    w.call("void", "llvm.prefetch.p0", ("ptr", where), ("i32", "0"), ("i32", "2"), ("i32", "1"))
                along = w.mul(step.index, STEP)
                self._step(group, [w.at(row, along) for row in rows], w.at(self.weights[group], w.mul(place, size)))

    def _results(self, targets: str) -> None:
        """Results of the block whose sums are complete."""
        w, spec = self.w, self.spec
        count = 1 if spec.form == "table" else _ROWS_AT_ONCE
        with w.loop("0", w.mul(self.a["rows"], self.high), count) as row:
            sums, numbers = w.at("%sums", w.mul(row.index, self.width)), w.at(targets, w.mul(row.index, 4))
            done, places = [], []
            for i in range(count):
                acc = [w.load("<16 x i32>", w.at(sums, i * self.width + STEP * j), 64) for j in range(spec.vectors)]
                done.append(self.epilogue.finish(self.epilogue.row(acc, self.constants)))
                number = w.load("i32", w.at(numbers, 4 * i), 4)
                inside = w.at(self.y_panel, w.mul(w.let(f"sext i32 {number} to i64"), self.a["y_row"]))
                nowhere = w.let(f"icmp slt i32 {number}, 0")
                places.append(w.let(f"select i1 {nowhere}, ptr %nowhere, ptr {inside}"))
            w.do(f"br i1 {self.epilogue.full}, label %store_whole, label %store_cut")
            for name in ("store_whole", "store_cut"):
                w.label(name)
                for values, place in zip(done, places, strict=True):
                    self.epilogue.store(values, place, name == "store_whole")
                w.jump("stored")
            w.label("stored")
