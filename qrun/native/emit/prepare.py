"""Generated preparation of int8 products whose zero points, scales or right operand are known only in the run.

With constant weights w and a zero point of the run, sum (x - zero) * w = sum x * w - zero * sum w. `prepare` computes
the start values of the sums, the row that is read for padding, and the constants of the float32 operations that follow.

With two operands of the run, int8 weights w = b - shift, and d = shift - b_zero:

    sum (a - a_zero) * (b - b_zero) = sum a * w  - a_zero * sum w  + (sum a - K * a_zero) * d
                                      products     `pack`, a column    `row_terms`, a row

A vector of packed weights holds a quad, that is four rows, of one column per lane. For rows k to k + 3 and columns a,
b, c, ...:

    in b       row k:  ak bk ck ...          packed   ak ak+1 ak+2 ak+3 | bk bk+1 bk+2 bk+3 | ck ...
"""

from __future__ import annotations

from collections.abc import Iterator

from qrun.native.emit.dot import activations, dot, int32s, weights
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import SOURCES, TAIL, constant_bytes
from qrun.native.emit.values import splat_constant

PREPARE = names("zero* first* sums* places* starts* padding* constants* fill tiles low! high!") + SOURCES
"""The argument words, 8 bytes each. A tile is a panel of `vectors` vectors of channels, in the product's own order.

zero         the 8-bit zero point
first, sums, places  int32 [tiles][width], by lane: the start value for a zero point of 0, the sum of the weights, and
             the channel
starts       int32 [tiles][width]: first - zero * sums
padding      `fill` bytes, a multiple of 64, of the zero point
constants    float32 [tiles][fields][width], the constants of the form's steps
low, high    the limits of a step c. Sources are the operands of steps m and a: one number (operands ``s``) or one for
             each channel (``v``)
"""
_FILL = 64
PACK = names("b* zero* first* weights* starts* matrix line depth quads panels tiles factor! flip!")
"""The argument words, 8 bytes each.

b            matrices of `depth` rows, at least one, `line` bytes apart; matrix: bytes from one matrix to the next.
             Reads may run over a row's end, to whole vectors
zero         the left operand's 8-bit zero point (operands ``zero``)
weights      int8 [matrices][panels][quads][width][4]; 0 for k from `depth` on
first        int32 [panels][width]; starts int32 [matrices][panels][width]: first - (factor + zero) * the weights' sum
flip         xor-ed with four codes to make them int8
"""
ROW_TERMS = names("a* a_zero* b_zero* y* rows depth chunk tiles a_value! b_value! shift!")
"""The argument words, 8 bytes each.

a            8-bit [rows][depth]; y int32 [rows]: (sum a - depth * a_zero) * (shift - b_zero)
a_zero, b_zero  8-bit zero points of the run (operands ``a``, ``b`` or both); a_value, b_value: those known before
chunk        rows per tile
"""
_ONES = 0x01010101
"""Four weights of 1: a product with them sums bytes."""
_CODES = 16
"""Codes that are added at once."""


@emitter("prepare")
class PrepareEmitter(KernelEmitter):
    names = PREPARE

    def write_tile(self, tile: Value) -> None:
        w, a, n, form = self.w, self.a, self.isa.lanes, self.spec.form
        code, width = a.zero.load("i8"), self.spec.vectors * n
        zero = code.extend("i32", self.spec.signed).splat(n)
        constants = a.constants + tile * (constant_bytes(form) * width)
        for vector in range(self.spec.vectors):
            address = tile * (4 * width) + 4 * n * vector
            first, sums = ((start + address).load(zero.kind, 4) for start in (a.first, a.sums))
            (a.starts + address).store(first - zero * sums, 4)
            if constant_bytes(form):
                channels = (a.places + address).load(zero.kind, 4)
                for field, value in enumerate(self._fields(channels)):
                    (constants + (field * width + vector * n) * 4).store(value, 4)
        with w.when(tile.test("eq", 0)), w.loop(0, a.fill, _FILL) as piece:
            (a.padding + piece.index).store(code.splat(_FILL))

    def _fields(self, channels: Value) -> list[Value]:
        """The bits of the constants of a vector of channels: one vector for each field of the form."""
        on = self.w.value(channels.type_of("i1"), splat_constant("i1", "true", self.isa.lanes))
        found, sources = [], iter(zip(SOURCES, self.spec.operands, strict=False))
        for step in self.spec.form[len(TAIL) :]:
            if step in "ma":
                name, kind = next(sources)
                source = self.a[name.rstrip("*")]
                one = kind == "s"
                found.append(source.load("i32").splat(self.isa.lanes) if one else source.gather("i32", channels, on, 4))
            elif step == "c":
                found += [self.a[name].splat(self.isa.lanes) for name in ("low", "high")]
        return found


@emitter("pack")
class PackEmitter(KernelEmitter):
    """Packs a panel of `vectors` vectors: interleaves four rows at a time, each byte shifted to its place in the
    lane."""

    names = PACK

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a, lanes = self.a, isa.lanes
        self.kind, self.width = int32s(isa), spec.vectors * lanes
        factor = a.factor
        if spec.operands == "zero":
            factor = factor + a.zero.load("i8").extend("i32", spec.signed)
        self.factor, self.flip = factor.splat(lanes), a.flip.splat(lanes)
        self.ones = activations(isa, self.w.value("i32", _ONES).splat(lanes))

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        matrix, panel = divmod(tile, a.panels)
        b = a.b + matrix * a.matrix + panel * self.width
        weights = a.weights + tile * a.quads * (4 * self.width)
        whole, totals = a.depth.lshr(2), [w.zero(self.kind)] * self.spec.vectors
        with w.loop(0, whole, 1, [weights, *totals]) as quad:
            here, *totals = quad.carried
            first = quad.index * 4
            totals = self._quad([b + (first + i) * a.line for i in range(4)], None, here, totals)
            quad.next(here + 4 * self.width, *totals)
        with w.loop(whole, a.quads, 1, quad.carried) as quad:
            here, *totals = quad.carried
            first = quad.index * 4
            rows = [b + (first + i).least(a.depth - 1) * a.line for i in range(4)]
            there = (a.depth - first).intrinsic("smax", 0).trunc("i32")
            keep = (there.like(1) << there * 8) - 1
            totals = self._quad(rows, keep.splat(self.isa.lanes), here, totals)
            quad.next(here + 4 * self.width, *totals)
        position = panel * (4 * self.width)
        to = a.starts + tile * (4 * self.width)
        for number, total in enumerate(quad.carried[1:]):
            step = 4 * number * self.isa.lanes
            first = (a.first + position + step).load(self.kind, 4)
            (to + step).store(first - self.factor * total, 4)

    def _quad(self, rows: list[Value], keep: Value | None, to: Value, totals: list[Value]) -> list[Value]:
        """Pack a quad of all columns. Returns the sums of the weights, including this quad.
        keep: a mask of the bytes of a lane that exist; None for all."""
        n, made = self.isa.lanes, []
        for position, total in enumerate(totals):
            low, high = (x | y for x, y in self._pairs([row + position * n for row in rows]))
            packed = (low | high) ^ self.flip
            packed = packed if keep is None else packed & keep
            (to + 4 * position * n).store(packed, 16)
            made.append(dot(self.isa, total, self.ones, weights(self.isa, packed)))
        return made

    def _pairs(self, rows: list[Value]) -> Iterator[tuple[Value, Value]]:
        """The bytes of four rows shifted to their places in the lanes, two rows at a time."""
        parts = [row.load(f"<{self.isa.lanes} x i8>").zext("i32") << 8 * number for number, row in enumerate(rows)]
        return zip(parts[::2], parts[1::2], strict=True)


@emitter("row_terms")
class RowTermsEmitter(KernelEmitter):
    """Sums each row, sixteen bytes at a time, then one by one. form: the type of b's zero point."""

    names = ROW_TERMS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        a = self.a
        zeros = {"a": (a.a_value, a.a_zero, spec.signed), "b": (a.b_value, a.b_zero, spec.form == "s8")}
        known = {
            name: address.load("i8").extend("i32", signed) if name in spec.operands else value
            for name, (value, address, signed) in zeros.items()
        }
        self.nothing = a.depth.trunc("i32") * known["a"]
        self.factor = a.shift - known["b"]

    def write_tile(self, tile: Value) -> None:
        w, a, signed = self.w, self.a, self.spec.signed
        whole = a.depth & -_CODES
        with w.part(tile, a.chunk, a.rows) as row:
            start = a.a + row * a.depth
            with w.loop(0, whole, _CODES, [w.zero(f"<{_CODES} x i32>")]) as piece:
                codes = (start + piece.index).load(f"<{_CODES} x i8>").extend("i32", signed)
                piece.next(piece.carried[0] + codes)
            with w.loop(whole, a.depth, 1, [piece.carried[0].reduce_lanes("add")]) as one:
                code = (start + one.index).load("i8").extend("i32", signed)
                one.next(one.carried[0] + code)
            (a.y + row * 4).store((one.carried[0] - self.nothing) * self.factor, 4)
