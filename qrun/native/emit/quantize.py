"""Generated quantization of float32 to bytes, and dequantization. Also dynamic quantization, whose parameters come with
the run: the range of float32 numbers, the scale and zero point that follow from it, and the codes; and the float32
results of integer products: sums times scales, plus a bias."""

from __future__ import annotations

import math
from operator import add

from qrun.native.emit.bytes import Bytes, in_order, interleave, sixteens, store_first
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.numbers import SUM_REACH, differ, product_error, round_once, scaled_sum
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import FACTOR_BYTES, MAGIC_BITS, PIECE
from qrun.native.emit.values import MAGIC32
from qrun.native.emit.widen import first_lanes, fold_lanes

ROWS = names("x* y* x_row y_row rows chunk chunks columns part parts last tiles constants* fields zero!")
IMAGE = names("""
    x* y* x_image x_plane x_line y_image y_line lines chunk chunks columns last
    tiles constants* fields zero!
""")
"""The argument words, 8 bytes each.

chunk, chunks     rows (or lines) of a tile, and tiles that share all of them; part, parts: the same for columns
columns, last     of a row (pixels of a line), and where the last block of one starts: it overlaps
constants         float32: each field is one number, or one for each column; then `fields` is the bytes of a field
zero              zero point
"""

RANGE = ("x*", "found*", "count", "chunk", "tiles")
CODES = ("x*", "parameters*", "y*", "count", "chunk", "tiles")
PARAMETERS = ("found*", "y*", "ranges", "tiles")
"""The argument words, 8 bytes each.

found       float32 [ranges][4]: min(least value, 0), max(greatest value, 0), NaN if a value is infinite or NaN
chunk       elements per tile
parameters  float32 scale; fl32(1 / scale), or NaN if that lacks full precision; int32 zero point
"""
LEAST = 2.0**-100
"""The least scale whose inverse has full precision; its inverse is the greatest such scale."""
_SURE = 0.5 - 2.0**-14
"""A product at most this far from the nearest integer rounds to the same integer as the quotient: both are at most 255,
and the product has two roundings and the quotient one, each of at most 2**-24 relative to that."""
_UNROLL = 4


class _Floats(KernelEmitter):
    """Base of the kernels that walk rows, `rows` elements at a time; with 0 vectors, only some of 16 are stored.
    form: see `QuantizeEmitter`; one that ends with ``axis`` has constants per column."""

    names: tuple[str, ...] = ROWS
    pieces = 4
    """The fewest vectors of lanes in a block."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.lanes = min(isa.lanes, max(spec.rows // self.pieces, 1))
        self.bytes = Bytes(self.w, isa, self.lanes)
        self.kind = self.bytes.floats
        self.axis = spec.form.endswith("axis")
        self.single: dict[int, Value] = {}

    def _constants(self, *fields: int) -> None:
        """Load these fields, if all columns share them."""
        if not self.axis:
            for field in fields:
                self.single[field] = (self.a.constants + 4 * field).load("float", 4).splat(self.lanes)

    def _constant(self, field: int, column: Value, piece: int) -> Value:
        """A constant (0 scale, 1 zero point) of a vector of columns."""
        if not self.axis:
            return self.single[field]
        start = self.a.constants + self.a.fields * field
        return (start + column * 4 + 4 * piece * self.lanes).load(self.kind, 4)

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        chunk, part = divmod(tile, a.parts)
        columns = part.part(a.part, a.columns)
        with w.part(chunk, a.chunk, a.rows) as row:
            x, y = a.x + row * a.x_row, a.y + row * a.y_row
            with w.loop(*columns, self.spec.rows) as at:
                self._block(x, y, at.index.least(a.last))

    def _block(self, x: Value, y: Value, column: Value) -> None:
        """Write the conversion of a block of columns from x to y."""
        raise NotImplementedError


@emitter("quantize")
class QuantizeEmitter(_Floats):
    """Quantizes float32 to bytes. form: ``div``: x / scale rounded to float32; ``mul``: x times two float32 numbers
    whose sum is nearly 1 / scale, where it is proved that results are the same (kernels/quantize.py)."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self._constants(*range(5 if self.spec.form == "mul" else 3))
        self.zero = self.a.zero.trunc("i16").splat(2 * self.lanes)

    def _block(self, x: Value, y: Value, column: Value) -> None:
        """Write the quantization of a block of columns from x to y."""
        codes = self._codes(x + column * 4, column)
        if self.spec.vectors:
            (y + column).store(codes)
        else:
            store_first(self.w, codes, self.a.columns, y)

    def _codes(self, x: Value, column: Value) -> Value:
        """Quantize the next numbers of a row, as many as a vector has bytes."""
        n = self.lanes
        numbers = [(x + 4 * n * i).load(self.kind, 4) for i in range(4)]
        quotients = [self._quotient(number, column, i) for i, number in enumerate(numbers)]
        add = self.zero
        if self.axis:
            quotients = [self._round_quotient(q, self._constant(3, column, i)) for i, q in enumerate(quotients)]
            add = self.w.zero(self.bytes.ints16)
        packed = self.bytes.round_to_bytes(quotients, add, self.spec.out)
        return packed if n == 4 else in_order(packed)

    def _quotient(self, x: Value, column: Value, i: int) -> Value:
        """x / scale, clipped to the range that does not saturate; NaN becomes the lower limit."""
        if self.spec.form == "mul":
            x = x.within(*(self._constant(field, column, i) for field in (1, 2)))
            rest = x * self._constant(4, column, i)
            return x.fma(self._constant(3, column, i), rest)
        quotient = x / self._constant(0, column, i)
        return quotient.within(*(self._constant(field, column, i) for field in (1, 2)))

    @staticmethod
    def _round_quotient(quotient: Value, zero: Value) -> Value:
        """The quotient rounded to an integer, plus the zero point."""
        return quotient + MAGIC32 - MAGIC32 + zero


@emitter("quantize_image")
class QuantizeImageEmitter(QuantizeEmitter):
    """Quantizes planes of float32 to pixels of `vectors` bytes: one to four planes, `rows` pixels at a time."""

    names = IMAGE

    def write_tile(self, tile: Value) -> None:
        w, a, planes = self.w, self.a, self.spec.vectors
        image, chunk = divmod(tile, a.chunks)
        x, y = a.x + image * a.x_image, a.y + image * a.y_image
        with w.part(chunk, a.chunk, a.lines) as line:
            source, target = x + line * a.x_line, y + line * a.y_line
            with w.loop(0, a.columns, self.spec.rows) as at:
                position = at.index.least(a.last)
                self._pixels(source + position * 4, target + position * planes)

    def _pixels(self, x: Value, y: Value) -> None:
        """Write the quantization of a block of pixels, from planes of float32 to interleaved codes."""
        spec, codes, column = self.spec, [], self.w.value("i64", 0)
        for plane in range(spec.vectors):
            x = x + self.a.x_plane if plane else x
            codes.append(self._codes(x, column))
        if spec.vectors == 1:
            y.store(codes[0])
            return
        pieces = interleave(codes)
        if spec.rows > PIECE:
            pieces = sixteens(pieces)
        for number, piece in enumerate(pieces):
            (y + PIECE * number).store(piece)


@emitter("dequantize")
class DequantizeEmitter(_Floats):
    """Dequantizes bytes: (x - zero) * scale, or int32 (out: i32) without a zero point. `vectors` vectors at a time."""

    pieces = 1

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self._constants(0)
        self._zero = self.a.zero.splat(self.lanes)

    def _block(self, x: Value, y: Value, column: Value) -> None:
        """Write the dequantization of a block of columns from x to y."""
        n = self.lanes
        size = 4 if self.spec.out == "i32" else 1
        x, y = x + column * size, y + column * 4
        for i in range(self.spec.rows // n):
            codes = self._wide(x + size * n * i)
            if self.axis:
                number = codes.sitofp("float") - self._constant(1, column, i)
            else:
                number = (codes - self._zero).sitofp("float")
            product = number * self._constant(0, column, i)
            (y + 4 * n * i).store(product, 4)

    def _wide(self, x: Value) -> Value:
        """Load codes as int32 lanes."""
        if self.spec.out == "i32":
            return x.load(f"<{self.lanes} x i32>")
        return x.load(f"<{self.lanes} x i8>").extend("i32", self.spec.signed)


class _Elements(KernelEmitter):
    """Base of kernels that walk over float32 elements, four vectors at a time, then one."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.kind = f"<{isa.lanes} x float>"

    def _bounds(self, tile: Value) -> tuple[Value, Value, Value]:
        """The indices of a tile's first element, of the first one after whole blocks, and of the end."""
        first, end = tile.part(self.a.chunk, self.a.count)
        cut = (end - first) % (_UNROLL * self.isa.lanes)
        return first, end - cut, end


@emitter("range")
class RangeEmitter(_Elements):
    """Finds three numbers for each tile: its least and its greatest element, and NaN if one is infinite or NaN."""

    names = RANGE

    def write_tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.isa.lanes
        first, cut, end = self._bounds(tile)
        with w.loop(first, cut, _UNROLL * n, [w.zero(self.kind)] * 3 * _UNROLL) as block:
            values = []
            for number in range(_UNROLL):
                x = (a.x + (block.index + number * n) * 4).load(self.kind, 4)
                values += self._update_state(x, block.carried[3 * number : 3 * number + 3])
            block.next(*values)
        with w.loop(cut, end, n, block.carried[:3]) as one:
            start, mask = a.x + one.index * 4, first_lanes(end - one.index, n)
            one.next(*self._update_state(start.masked_load(self.kind, mask, 4), one.carried))
        found = one.carried
        for number in range(1, _UNROLL):
            found = self._combine_states(found, block.carried[3 * number : 3 * number + 3])
        joins = (lambda a, b: a.where("olt", b), lambda a, b: a.where("ogt", b), add)
        for number, (value, join) in enumerate(zip(found, joins, strict=True)):
            (a.found + tile * 16 + 4 * number).store(fold_lanes(value, join), 4)

    def _update_state(self, x: Value, state: list[Value]) -> list[Value]:
        """The state updated with one more vector. x - x is 0 for finite x, else NaN."""
        nothing = x - x
        return self._combine_states([x, x, nothing], state)

    @staticmethod
    def _combine_states(values: list[Value], state: list[Value]) -> list[Value]:
        """Combine two ranges: minima, maxima and the counts of numbers that are not finite."""
        least, most, bad = values
        return [least.where("olt", state[0]), most.where("ogt", state[1]), bad + state[2]]


@emitter("codes")
class DynamicQuantizerEmitter(_Elements):
    """y = saturate(RNE(fl32(x / scale)) + zero_point), uint8; NaN becomes 0.

    x * inverse, clipped to the range that does not saturate, differs from the quotient by less than 2**-14. Where it is
    farther than that from a tie, the nearest integer is the result. A block with any other element, or without an
    inverse, is divided."""

    names = CODES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, n, parameters = self.w, isa.lanes, self.a.parameters
        scale, inverse = ((parameters + position).load("float", 4) for position in (0, 4))
        zero = (parameters + 8).load("i32", 4)
        self.epilogue = Requantizer(w, isa, "ort", "u8", _UNROLL, zero, w.value("i64", 0))
        self.scale, self.inverse = scale.splat(n), inverse.splat(n)
        # If there is no inverse, it is NaN; then `sure` is NaN, and every block is divided.
        self.sure = (inverse * "0.0" + _SURE).splat(n)
        limits = (end - zero for end in (0, 255))
        self.low, self.high = (limit.sitofp("float").splat(n) for limit in limits)
        self.magic = w.value("float", MAGIC32).splat(n)
        self.shift = (zero - MAGIC_BITS).splat(n)

    def write_tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.isa.lanes
        first, cut, end = self._bounds(tile)
        with w.loop(first, cut, _UNROLL * n) as block:
            at = a.x + block.index * 4
            values = [(at + 4 * n * i).load(self.kind, 4) for i in range(_UNROLL)]
            codes = self.epilogue.finish(self._block(values))
            self.epilogue.store(codes, a.y + block.index, True)
        with w.loop(cut, end, n) as one:
            mask = first_lanes(end - one.index, n)
            x = (a.x + one.index * 4).masked_load(self.kind, mask, 4)
            (a.y + one.index).masked_store(self._shift(self._divide(x)).trunc("i8"), mask)

    def _block(self, values: list[Value]) -> list[Value]:
        """The codes of these vectors as int32, before saturation."""
        w, raised = self.w, []
        unsafe: list[Value] = []
        for x in values:
            guess = (x * self.inverse).within(self.low, self.high)
            raised.append(guess + self.magic)
            far = abs(guess - (raised[-1] - self.magic)).test("ugt", self.sure)
            unsafe.append(unsafe[-1] | far if unsafe else far)
        made = w.instead(raised, unsafe[-1].any(), lambda: [*map(self._divide, values)])
        return [*map(self._shift, made)]

    def _divide(self, x: Value) -> Value:
        """x / scale rounded to an integer, in the low bits of a float32."""
        return (x / self.scale).within(self.low, self.high) + self.magic

    def _shift(self, raised: Value) -> Value:
        """The codes as int32, from numbers to which the rounding constant was added."""
        return raised.bitcast("i32") + self.shift


@emitter("parameters")
class ParametersEmitter(KernelEmitter):
    """Computes the quantization parameters of a range. form: ``scale``, the ``zero`` point, or the ``parameters`` that
    `codes` reads.

    scale = (top - bottom) / 255, 1 where that is 0; zero point = RNE(0 - bottom / scale) within 0..255; each step is in
    float32. A range that is not finite leaves the run undecided."""

    names = PARAMETERS

    def write_tile(self, tile: Value) -> None:
        y, form = self.a.y, self.spec.form
        scale, zero = parameters_of(*self._range())
        if form == "zero":
            y.store(zero.trunc("i8"))
            return
        y.store(scale, 4)
        if form == "parameters":
            small, large, inverse = scale.test("oge", LEAST), scale.test("ole", 1 / LEAST), "1.0" / scale
            (y + 4).store((small & large).select(inverse, math.nan), 4)
            (y + 8).store(zero, 4)

    def _range(self) -> tuple[Value, Value]:
        """The least and the greatest number of all tiles. The kernel is undecided if one of them is not finite."""
        w = self.w
        with w.loop(0, self.a.ranges, 1, [w.value("float", "0.0")] * 3) as turn:
            at = self.a.found + turn.index * 16
            low, high, bad = ((at + 4 * position).load("float", 4) for position in range(3))
            bottom, top, unknown = turn.carried
            less, more = low.test("olt", bottom), high.test("ogt", top)
            turn.next(less.select(low, bottom), more.select(high, top), unknown + bad)
        bottom, top, unknown = turn.carried
        with w.when(unknown.test("une", "0.0")):
            w.mark_undecided()
        return bottom, top


def parameters_of(bottom: Value, top: Value) -> tuple[Value, Value]:
    """The scale (float32) and zero point (i32) for numbers from bottom <= 0 to top >= 0."""
    scale = (top - bottom) / "255.0"
    nothing, zero = scale.test("oeq", "0.0"), "0.0" - bottom / scale
    zero = zero.where("olt", "255.0") + MAGIC32 - MAGIC32  # 255 where it is NaN
    return nothing.select("1.0", scale), nothing.select("0.0", zero).fptosi("i32")


SCALE = ("acc*", "y*", "factors*", "rows", "panels", "acc_row", "y_row", "chunk", "tiles", "mask")
"""The argument words, 8 bytes each.

factors       [panels][field][lanes], made by `factors`. Form ``ort``: float32 multiplier and bias; ``real``: float64
              multiplier, reach, remainder of the multiplier, bias
acc_row, y_row  bytes from one row to the next; reads of sums may run over the row's end, to whole vectors
chunk, mask   rows per tile; lanes of a row's last vector that exist
"""
FACTORS = ("left*", "right*", "bias*", "y*", "columns", "panels", "tiles", "most!", "slope!")
"""The argument words, 8 bytes each.

left        float32, a scale; slope: the bits of a float32 that multiplies it (operands ``m``)
right       float32: the other scale, one number (operands ``s``) or one for each column (``v``)
bias        float32 [columns] (operands ``b``), or none
y           [panels][field][lanes], the factors that `scale` reads
most        the greatest magnitude of a sum, below 2**32
"""


@emitter("scale")
class ScaleEmitter(KernelEmitter):
    """Turns int32 sums into float32, a vector of a row at a time.

    ``ort``   fl32(fl32(float32(acc) * multiplier) + bias)
    ``real``  acc * (multiplier + remainder) + bias rounded once. Where a float64 estimate does not decide it, the sum
              is computed exactly and rounded to odd. operands: ``m`` if there may be a remainder
    """

    names = SCALE

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.store = Requantizer(self.w, isa, "i32", "i32", 1, self.w.value("i32", 0), self.a.mask)

    def write_tile(self, tile: Value) -> None:
        w, a, lanes, form = self.w, self.a, self.isa.lanes, self.spec.form
        make = self._real if form == "real" else self._float
        steps = (4 * lanes, 4 * lanes, FACTOR_BYTES[form] * lanes)
        with w.part(tile, a.chunk, a.rows) as row:
            starts = [a.acc + row * a.acc_row, a.y + row * a.y_row, a.factors]
            with w.loop(0, a.panels, 1, starts) as panel:
                sums, target, factors = panel.carried
                self.store.set_panel((panel.index + 1).test("eq", a.panels))
                made = make(sums.load(f"<{lanes} x i32>", 4), factors)
                self.store.store_block([[made]], factors, target, w.value("i64", 0))
                panel.next(*(pointer + step for pointer, step in zip(panel.carried, steps, strict=True)))

    def _factor(self, factors: Value, field: int) -> Value:
        """A vector of factors: fields are factor, bias or reach, second part of the factor, float64 bias."""
        size, kind = (8, "double") if self.spec.form == "real" else (4, "float")
        return (factors + field * self.isa.lanes * size).load(f"<{self.isa.lanes} x {kind}>", size)

    def _float(self, acc: Value, factors: Value) -> Value:
        """Scale int32 sums in float32: sum * factor + bias."""
        return (acc.sitofp("float") * self._factor(factors, 0) + self._factor(factors, 1)).bitcast("i32")

    def _real(self, acc: Value, factors: Value) -> Value:
        """Scale int32 sums exactly: float64 where this decides the float32 result, else with one rounding."""
        number, factor, bias = acc.sitofp("double"), self._factor(factors, 0), self._factor(factors, 3)
        if "m" in self.spec.operands:
            total, reach = number * factor + bias, self._factor(factors, 1)
            near = (total - reach).single()
            doubtful = differ(near, (total + reach).single())
        else:
            near, doubtful = scaled_sum(number, factor, bias)

        def exact() -> list[Value]:
            return [round_once(number, factor, self._factor(factors, 2), bias)]

        (made,) = self.w.instead([near.bitcast("i32")], doubtful.any(), exact)
        return made


@emitter("factors")
class FactorsEmitter(KernelEmitter):
    """Computes the factors that `scale` reads in the form ``real`` or ``ort``: the product of the scales, the bias."""

    names = FACTORS

    def write_tile(self, tile: Value) -> None:
        w, a, lanes = self.w, self.a, self.isa.lanes
        make, size = (self._real, 8) if self.spec.form == "real" else (self._float, 4)
        with w.loop(0, a.panels, 1) as panel:
            first, to = panel.index * lanes, a.y + panel.index * (FACTOR_BYTES[self.spec.form] * lanes)
            mask = first_lanes(a.columns - first, lanes)
            right = self._column(a.right, first, mask, "v" in self.spec.operands)
            none = w.value("float", "-0.0").splat(lanes)
            bias = self._column(a.bias, first, mask, True) if "b" in self.spec.operands else none
            for number, field in enumerate(make(right, bias)):
                (to + number * size * lanes).store(field, size)

    def _column(self, start: Value, first: Value, mask: Value, each: bool) -> Value:
        """Load the float32 numbers of a vector of columns: one for each column, or one for all."""
        lanes = self.isa.lanes
        if not each:
            return start.load("float", 4).splat(lanes)
        return (start + first * 4).masked_load(f"<{lanes} x float>", mask, 4)

    def _load_left_factors(self) -> tuple[Value, Value | None]:
        """The left scale, and the slope if there is one."""
        slope = self.a.slope.bitcast("float") if "m" in self.spec.operands else None
        return self.a.left.load("float", 4), slope

    def _float(self, right: Value, bias: Value) -> list[Value]:
        """The float32 factors of a row's vectors: left scale times right scale, and the bias."""
        left, slope = self._load_left_factors()
        left = left if slope is None else slope * left
        return [right * left.splat(self.isa.lanes), bias]

    def _real(self, right: Value, bias: Value) -> list[Value]:
        """A product of two float32 numbers is exact in float64; for a product of three, the remainder is kept."""
        left, slope = self._load_left_factors()
        wide = left.double() if slope is None else left.double() * slope.double()
        factors = right.double(), wide.splat(self.isa.lanes)
        product = factors[0] * factors[1]
        rest = self.w.zero(product.kind) if slope is None else product_error(*factors, product)
        most = self.a.most.uitofp("double") * (2 * SUM_REACH)
        reach = abs(product) * most.splat(self.isa.lanes) + abs(bias.double()) * SUM_REACH
        return [product, reach, rest, bias.double()]
