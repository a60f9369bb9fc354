"""Generated int8 products that copy activations first: widened to 16 bits, or clipped so that vpmaddubsw is exact.

A tile is some blocks of rows by some panels of channels. The kernel copies the blocks to the thread's memory, then
each panel walks over the copies.

vpmaddubsw adds two products of a uint8 and an int8 in 16 bits, and saturates. The clipped product adds the results of
two such instructions, so a lane holds four products. For each lane the plan bounds the sum of four activations times
any channel's weights. Where the sum could leave int16, the copy keeps only the lower bits of eight activations (two
quads), and a list holds their upper bits."""

from __future__ import annotations

from qrun.native.emit.dot import activations, dot, int16s, int32s, neighbours, pairs, weights
from qrun.native.emit.flow import Flow
from qrun.native.emit.kernel import Arguments, Isa, KernelEmitter, KernelSpec, Value, emitter, names, row_at
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import EIGHT, WIDE
from qrun.native.emit.values import ZERO, Operand

ARGUMENTS = names("""
    x* padding* offsets* weights* bias* constants* y*
    x_image y_image y_row last_row blocks taps depth
    panels shares share chunks chunk tiles last_channel mask zero_point!
    groups x_group y_group
""")
"""The argument words, 8 bytes each.

padding      a row of x_zero_point, read where an offset is negative
offsets      int32 [blocks][taps][rows]: bytes from the image's start
x_image, y_image  bytes from one image to the next; y_row: bytes from one output row to the next
last_row     where the last block starts: blocks overlap rather than run over
depth        bytes per tap
panels       panels of a group's channels; shares, share: the number of parts they are cut into, and panels per part
chunks, chunk     the number of parts the rows are cut into, and blocks per part
tiles        images * chunks * groups * shares
last_channel where the last panel starts: panels overlap rather than run over, unless there is only one; then `mask`
             has the lanes of its last vector that exist
x_group, y_group  bytes from one group's channels to the next one's
"""

VECTOR = 32
LOW = 6
"""Bits that clipped activations keep: the products of four, 4 * 63 * 128 = 32,256, fit in int16."""
ENTRY = BLOCK = 16
"""Bytes of an entry, in the list and in the table of blocks."""
BYTES, WORDS = "<32 x i8>", "<16 x i16>"
_EIGHTS = "<4 x i64>"
_FLIP = -0x7F7F7F7F7F7F7F80
"""0x80 in each of eight bytes, as an int64: xor with it turns int8 into uint8 that are 128 higher."""
_MOST = 127 * 256
"""The largest bound of a lane that fits. Bounds treat weights of -128 as -127: the sum is at least -128 * 256."""


class CopiedEmitter(KernelEmitter):
    """Writes one kernel: a block's sums are `rows` x `vectors` vectors of int32.

    vector: bytes of a vector. width: bytes of a row's sums.
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
        """Pointers to the data that the sums of the first block read, each with the bytes from one block's data to the
        next one's."""
        raise NotImplementedError

    def panel_weights(self) -> Value:
        """The size of one panel's weights in bytes."""
        raise NotImplementedError

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        """The sums of a block and a panel as int32 vectors, row by row. copies: pointers to the block's data."""
        raise NotImplementedError

    def text(self) -> str:
        """Write the kernel's LLVM IR."""
        self.steps, self.matrix_bytes = self.copies(), self.panel_weights()
        return super().text()

    def write_tile(self, tile: Value) -> None:
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
        """Make all blocks of the chunk for one panel of a group's channels. number: the panel's, over all groups."""
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
"""Activations that are copied together; the last piece of a tap overlaps the one before. If a tap is shorter than a
piece, the next copy overwrites the excess."""


@emitter("widened")
class WidenedEmitter(CopiedEmitter):
    """Writes a product of int16: each iteration of the inner loop does a pair of k; `depth` is a multiple of STEP.

    With more per iteration LLVM would add in another order, which takes more registers than there are.
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.row = self.a.taps * self.a.depth * 2
        self.block = self.row * spec.rows
        self.last = (self.a.depth + -PIECE).intrinsic("smax", 0)

    def copies(self) -> list[tuple[Value, Operand]]:
        """The copies that the kernel makes of its input: (memory, bytes of one row)."""
        return [(self.scratch, self.block)]

    def panel_weights(self) -> Value:
        """The bytes of one panel of weights."""
        return self.row * (self.width // 4)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        """Copy blocks `first` to `end` of rows of the image as int16, in the order in which products read them."""
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
        """Copy the activations of one tap, widened to int16."""
        with self.w.loop(0, self.a.depth, PIECE) as k:
            position = k.index.least(self.last)
            wide = (source + position).load(f"<{PIECE} x i8>").extend("i16", self.spec.signed)
            (to + position * 2).store(wide, 4)

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        """The int32 sums of one strip of rows and one panel: multiplied as int16, added in pairs."""
        spec, half = self.spec, int16s(self.isa)
        rows = [copies[0] + self.row * i if i else copies[0] for i in range(spec.rows)]
        start = [(bias + self.vector * j).load(self.kind, 16) for j in range(spec.vectors)]
        with self.w.loop(0, self.row, 4, [matrix, *start * spec.rows]) as turn:
            position, *acc = turn.carried
            panel = [(position + self.vector * j).load(half, 16) for j in range(spec.vectors)]
            made = []
            for i, row in enumerate(rows):
                x = (row + turn.index).load("i32", 4).splat(self.isa.lanes).bitcast(half)
                products = [pairs(x, weights) for weights in panel]
                made += [acc[i * spec.vectors + j] + product for j, product in enumerate(products)]
            turn.next(position + self.width, *made)
        return turn.carried[1:]


class Clipping:
    """Writes the code that copies and clips blocks of `rows` rows.

    a:     the kernel's arguments. row, block: sizes in the copy, in bytes.
    copy, table, entries: addresses of the copy, the table and the list. The table has, for each block, the start and
           the length of its part of the list; the length is -1 if there were too many entries: then nothing is clipped.
           An entry is an int32 offset into a block's sums, an int32 offset into a panel's weights, and eight
           activations without their LOW lowest bits.
    width: bytes of a row's sums, and of a quad's weights.
    """

    def __init__(self, w: Flow, spec: KernelSpec, isa: Isa, a: Arguments, width: int) -> None:
        self.w, self.spec, self.a, self.width = w, spec, a, width
        self.flips = isa.shift(spec.signed) != 0
        self.scratch = w.value("ptr", "%scratch")
        self.row = a.taps * a.depth
        self.block = self.row * spec.rows
        self.eights = self.row // EIGHT
        self.copy = self.scratch + spec.rows * width
        self.table = self.copy + self.block * a.chunk
        self.entries = self.table + a.chunk * BLOCK

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        """Copy the rows of every block, tap by tap. Where the sum of a lane's products might leave int16, copy only the
        low bits of its eight activations, and list their upper bits. A block with more than `limit` such eights is
        copied whole; -1 stands for the length of its list."""
        w = self.w
        with w.loop(first, end, 1, [self.copy, self.table, self.entries]) as turn:
            copy, table, entry = turn.carried
            found = self._copy_block(x, turn.index, copy)
            table.store(entry, 8)
            many = found.test("ugt", self.a.limit)
            count = many.select(-1, found)
            (table + 8).store(count, 8)
            listed = many.select(0, found)
            with w.when(listed.test("ne", 0)):
                self._list(copy, entry)
            following = entry + listed * ENTRY
            turn.next(copy + self.block, table + BLOCK, following)

    def _copy_block(self, x: Value, block: Value, copy: Value) -> Value:
        """Copy a block's rows. Returns how many groups of eight activations do not fit."""
        w, a, rows = self.w, self.a, self.spec.rows
        offsets = a.offsets + block * (a.taps * (4 * rows))
        whole = a.depth & -VECTOR
        with w.loop(0, a.taps, 1, [offsets, w.zero(_EIGHTS)]) as tap:
            position, found = tap.carried
            before = tap.index * a.depth
            along, bounds = copy + before, [a.each + before, a.first + before]
            with w.loop(0, rows, 1, [position, along, found]) as row:
                position, to, found = row.carried
                source = row_at(x, position, a.padding)
                with w.loop(0, whole, VECTOR, [found]) as k:
                    codes = self._codes(_EIGHTS, source + k.index)
                    (to + k.index).store(codes, 8)
                    k.next(self._count(codes, bounds, k.index, k.carried[0]))
                with w.loop(whole, a.depth, EIGHT, k.carried) as rest:
                    eight = self._codes("i64", source + rest.index)
                    (to + rest.index).store(eight, 8)
                    codes = w.zero(_EIGHTS).insert(eight, 0)
                    rest.next(self._count(codes, bounds, rest.index, rest.carried[0]))
                row.next(position + 4, to + self.row, rest.carried[0])
            tap.next(row.carried[0], row.carried[2])
        return tap.carried[1].reduce_lanes("add")

    def _codes(self, kind: str, source: Value) -> Value:
        """Load as many activations as the type has bytes, as uint8."""
        codes = source.load(kind)
        return codes ^ _FLIP if self.flips else codes

    def _over(self, eights: Value, bounds: list[Value], position: Value) -> Value:
        """Which groups of eight have four activations whose products might not fit in int16: <4 x i1>.

        bounds: where `each` and `first` start. The four activations of a 16-bit lane are two neighbours of one quad
        and the two four bytes further on. Their bound is their products with `each`, plus the largest of them times
        `first`.
        """
        most = codes = eights.bitcast(BYTES)
        for distance in (1, 4):
            most = most.intrinsic("umax", self._swap_neighbours(most, distance))
        each, first = ((bound + position).load(BYTES) for bound in bounds)
        pairs = neighbours(codes, each).bitcast(BYTES)
        other = self._swap_neighbours(pairs, 4)
        total = neighbours(most, first)
        for part in (pairs, other):
            total = total.intrinsic("sadd.sat", part.bitcast(WORDS))
        return total.test("sgt", _MOST).sext("i16").bitcast(_EIGHTS).test("ne", ZERO)

    def _swap_neighbours(self, codes: Value, distance: int) -> Value:
        """The bytes, each swapped with its neighbour at this distance, a power of two."""
        return codes.shuffle(i ^ distance for i in range(VECTOR))

    def _count(self, eights: Value, bounds: list[Value], position: Value, found: Value) -> Value:
        """`found` plus the number of `eights` that do not fit. A true i1, sign-extended, is -1."""
        return found - self._over(eights, bounds, position).sext("i64")

    def _list(self, copy: Value, entry: Value) -> None:
        """Clip a block's copy, and list the upper bits that clipping removes."""
        w = self.w
        with (
            w.loop(0, self.a.stride, VECTOR, [entry]) as column,
            w.loop(column.index, self.block, self.a.stride, column.carried) as turn,
        ):
            here = copy + turn.index
            eights = here.load(_EIGHTS, 32)
            over = self._over(eights, [self.a.each, self.a.first], turn.index)
            self.scratch.store(turn.carried[0], 8)
            with w.when(over.any()):
                upper = self._clip(eights, over, here)
                self._enter(upper, over, turn.index.lshr(3), turn.carried[0])
            turn.next(self.scratch.load("ptr", 8))
            column.next(*turn.carried)

    def _clip(self, eights: Value, over: Value, here: Value) -> Value:
        """Clip the `eights` marked in `over`, in the copy. Returns the upper bits of all eights."""
        clipped = (eights.bitcast(BYTES) & (1 << LOW) - 1).bitcast(_EIGHTS)
        here.store(over.select(clipped, eights), 32)
        return (eights.lshr(LOW).bitcast(BYTES) & (1 << 8 - LOW) - 1).bitcast(_EIGHTS)

    def _enter(self, upper: Value, over: Value, number: Value, entry: Value) -> None:
        """Write a list entry for each eight marked in `over`. number: of the vector's first eight in the block."""
        for lane in range(4):
            row, position = divmod(number + lane, self.eights)
            entry.store((row * self.width).trunc("i32"), 4)
            distance = (position * (2 * self.width)).trunc("i32")
            (entry + 4).store(distance, 4)
            eight = upper.extract(lane)
            (entry + 8).store(eight, 8)
            entry = entry + over.extract(lane).zext("i64") * ENTRY
        self.scratch.store(entry, 8)


CLIPPED = (*ARGUMENTS, "each*", "first*", "limit", "stride")
"""ARGUMENTS, where `depth` is a multiple of 8, and

each, first  int8 [rows][taps][depth]: a lane's sum is at most its four activations times `each`, plus the largest of
             them times `first` (0 at odd places)
limit        the most entries that a block lists
stride       the bytes of a row if they fill vectors, else of a vector: the order of the list, chosen so that entries
             rarely add to the same sum twice in a row
"""


def scratch_bytes(spec: KernelSpec, block: int, chunk: int, limit: int) -> int:
    """Bytes of memory per thread: sums of a block, then the copy of a chunk, the table of its blocks, and the list.

    block: bytes of a block's copy. chunk: blocks of a chunk.
    """
    return spec.rows * spec.vectors * VECTOR + chunk * (block + BLOCK + limit * ENTRY) + 4 * ENTRY


@emitter("clipped")
class ClippedEmitter(CopiedEmitter):
    """Writes a product on vpmaddubsw: `unroll` quads per iteration, an even number; vectors have 8 lanes."""

    names = CLIPPED

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.clipping = Clipping(self.w, spec, isa, self.a, self.width)
        self.row = self.clipping.row

    def copies(self) -> list[tuple[Value, Operand]]:
        """The copies that the kernel makes of its input: the clipped bytes, and the table of clipped places."""
        return [(self.clipping.copy, self.clipping.block), (self.clipping.table, BLOCK)]

    def panel_weights(self) -> Value:
        """The bytes of one panel of weights."""
        return self.row * (self.width // 4)

    def copy_blocks(self, x: Value, first: Value, end: Value) -> None:
        """Copy blocks `first` to `end` of rows with large values clipped; the table lists the clipped places."""
        self.clipping.copy_blocks(x, first, end)

    def sums(self, copies: list[Value], bias: Value, matrix: Value) -> list[Value]:
        """The int32 sums of one strip and panel: products of clipped bytes, and the clipped rest added apart."""
        copy, table = copies
        count = (table + 8).load("i64", 8)
        listed = count.test("ne", 0)
        with self.w.when(listed):
            self._start_clipped_sums(count, table.load("ptr", 8), bias, matrix, copy)
        start = listed.select(self.scratch, bias)
        step = listed.select(self.w.value("i64", self.width), 0)
        rest = count.test("slt", 0).select(0, self.row)
        return self._products(start, step, rest, copy, matrix, exact=False)

    def _start_clipped_sums(self, count: Value, entry: Value, bias: Value, matrix: Value, copy: Value) -> None:
        """Store the start values of a block's sums: the bias plus the listed products, or all of them if count < 0."""
        w, spec, scratch = self.w, self.spec, self.scratch
        for j in range(spec.vectors):
            start = (bias + VECTOR * j).load(self.kind, 32)
            for i in range(spec.rows):
                (scratch + (i * self.width + VECTOR * j)).store(start, 32)
        with w.loop(0, count, 1, [entry]) as turn:
            here = turn.carried[0]
            target, address = (
                base + (here + 4 * field).load("i32", 4).zext("i64") for field, base in enumerate((scratch, matrix))
            )
            pair = [self._four(here + (8 + 4 * u)) for u in range(2)]
            for j in range(spec.vectors):
                total, one = self._eight(pair, self._pair_of_weights(address, j), 1 << LOW), target + VECTOR * j
                one.store(one.load(self.kind, 32) + total, 32)
            turn.next(here + ENTRY)
        rest = count.test("slt", 0).select(self.row, 0)
        sums = self._products(scratch, w.value("i64", self.width), rest, copy, matrix, exact=True)
        for number, total in enumerate(sums):
            (scratch + VECTOR * number).store(total, 32)

    def _products(self, start: Value, step: Value, size: Value, copy: Value, matrix: Value, exact: bool) -> list[Value]:
        """The block's sums: the values at `start`, rows `step` bytes apart, plus products of `size` bytes per row."""
        spec, sums = self.spec, []
        for i in range(spec.rows):
            line = start + step * i if i else start
            sums += [(line + VECTOR * j).load(self.kind, 32) for j in range(spec.vectors)]
        rows = [copy + self.row * i if i else copy for i in range(spec.rows)]
        with self.w.loop(0, size, 4 * spec.unroll, [matrix, *sums]) as turn:
            address, *acc = turn.carried
            add = self._exact if exact else self._fast
            for u in range(0, spec.unroll, 2):
                here = address + u * self.width
                acc = add(acc, [row + turn.index + 4 * u for row in rows], here)
            turn.next(address + spec.unroll * self.width, *acc)
        return turn.carried[1:]

    def _fast(self, acc: list[Value], rows: list[Value], address: Value) -> list[Value]:
        """Eight products per int32 lane for all rows and vectors, added in int16 pairs that cannot overflow."""
        panel, made = [self._pair_of_weights(address, j) for j in range(self.spec.vectors)], []
        for i, row in enumerate(rows):
            pair = [self._four(row + 4 * u) for u in range(2)]
            for j, matrix in enumerate(panel):
                made.append(acc[i * self.spec.vectors + j] + self._eight(pair, matrix, 1))
        return made

    def _exact(self, acc: list[Value], rows: list[Value], address: Value) -> list[Value]:
        """Eight products per int32 lane for all rows and vectors, without int16 sums between."""
        isa, vectors, acc = self.isa, self.spec.vectors, list(acc)
        for u in range(2):
            panel = [
                weights(isa, (address + (u * self.width + VECTOR * j)).load(self.kind, 32)) for j in range(vectors)
            ]
            for i, row in enumerate(rows):
                x = activations(isa, self._four(row + 4 * u))
                for j in range(vectors):
                    acc[i * vectors + j] = dot(isa, acc[i * vectors + j], x, panel[j])
        return acc

    def _four(self, pointer: Value) -> Value:
        """The four activations at this address, in every lane."""
        return pointer.load("i32").splat(self.isa.lanes)

    def _pair_of_weights(self, address: Value, j: int) -> list[Value]:
        """Vector j of the weights of two quads."""
        return [(address + (u * self.width + VECTOR * j)).load(BYTES, 32) for u in range(2)]

    def _eight(self, pair: list[Value], matrix: list[Value], scale: int) -> Value:
        """The sums of the products of two quads, times `scale`."""
        low, high = [neighbours(x, weight) for x, weight in zip(pair, matrix, strict=True)]
        both = low + high
        return self.w.call(self.kind, "llvm.x86.avx2.pmadd.wd", both, both.like(scale))
