"""Generated dynamic quantization: the range of float32 values, and their codes for a scale known at run time."""

from __future__ import annotations

import math
from operator import add

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import MAGIC_BITS
from qrun.native.emit.values import MAGIC32
from qrun.native.emit.widen import first_lanes, folded

RANGE = ("x*", "found*", "count", "chunk", "tiles")
CODES = ("x*", "parameters*", "y*", "count", "chunk", "tiles")
PARAMETERS = ("found*", "y*", "ranges", "tiles")
"""One 8-byte word each.

found       float32 [ranges][4]: least value or 0, greatest or 0, NaN if one is infinite or NaN
chunk       elements per tile
parameters  float32 scale; fl32(1 / scale), or NaN where that has not full precision; int32 zero point
"""
LEAST = 2.0**-100
"""The least scale whose inverse has full precision; its inverse is the greatest such scale."""
_SURE = 0.5 - 2.0**-14
"""At most this far from the nearest integer, the product rounds to the same integer as the quotient: both are no larger
than 255, and the product has two roundings and the quotient one, of at most 2**-24 each, relative to that."""
_UNROLL = 4


class _Elements(KernelEmitter):
    """Walks over float32 elements, four vectors at a time, then one."""

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
    """The least and the greatest of a tile's elements, and NaN if one is infinite or NaN: three numbers a tile."""

    names = RANGE

    def tile(self, tile: Value) -> None:
        w, a, n = self.w, self.a, self.isa.lanes
        first, cut, end = self._bounds(tile)
        with w.loop(first, cut, _UNROLL * n, [w.zero(self.kind)] * 3 * _UNROLL) as block:
            values = []
            for number in range(_UNROLL):
                x = (a.x + (block.index + number * n) * 4).load(self.kind, 4)
                values += self._taken(x, block.carried[3 * number : 3 * number + 3])
            block.next(*values)
        with w.loop(cut, end, n, block.carried[:3]) as one:
            start, mask = a.x + one.index * 4, first_lanes(end - one.index, n)
            one.next(*self._taken(start.masked_load(self.kind, mask, 4), one.carried))
        found = one.carried
        for number in range(1, _UNROLL):
            found = self._joined(found, block.carried[3 * number : 3 * number + 3])
        joins = (lambda a, b: a.where("olt", b), lambda a, b: a.where("ogt", b), add)
        for number, (value, join) in enumerate(zip(found, joins, strict=True)):
            (a.found + tile * 16 + 4 * number).store(folded(value, join), 4)

    def _taken(self, x: Value, state: list[Value]) -> list[Value]:
        """The state with one more vector. x - x is 0 for finite x, else NaN."""
        nothing = x - x
        return self._joined([x, x, nothing], state)

    @staticmethod
    def _joined(values: list[Value], state: list[Value]) -> list[Value]:
        least, most, bad = values
        return [least.where("olt", state[0]), most.where("ogt", state[1]), bad + state[2]]


@emitter("codes")
class DynamicQuantizerEmitter(_Elements):
    """y = saturate(RNE(fl32(x / scale)) + zero_point), uint8; NaN becomes 0.

    x * inverse, cut to what does not saturate, differs from the quotient by less than 2**-14. Where it is farther than
    that from a tie, the nearest integer is the result; a block with another element, or without an inverse, is divided.
    """

    names = CODES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        w, n, parameters = self.w, isa.lanes, self.a.parameters
        scale, inverse = ((parameters + place).load("float", 4) for place in (0, 4))
        zero = (parameters + 8).load("i32", 4)
        self.epilogue = Requantizer(w, isa, "ort", "u8", _UNROLL, zero, w.value("i64", 0))
        self.scale, self.inverse = scale.splat(n), inverse.splat(n)
        # Without an inverse, which then is NaN, nothing is sure.
        self.sure = (inverse * "0.0" + _SURE).splat(n)
        limits = (end - zero for end in (0, 255))
        self.low, self.high = (limit.sitofp("float").splat(n) for limit in limits)
        self.magic = w.value("float", MAGIC32).splat(n)
        self.shift = (zero - MAGIC_BITS).splat(n)

    def tile(self, tile: Value) -> None:
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
            code = self._shifted(self._divided(x)).trunc("i8")
            (a.y + one.index).masked_store(code, mask)

    def _block(self, values: list[Value]) -> list[Value]:
        """The codes of these vectors, before saturation."""
        w, raised = self.w, []
        doubts: list[Value] = []
        for x in values:
            guess = (x * self.inverse).within(self.low, self.high)
            raised.append(guess + self.magic)
            far = abs(guess - (raised[-1] - self.magic)).test("ugt", self.sure)
            doubts.append(doubts[-1] | far if doubts else far)
        made = w.instead(raised, doubts[-1].any(), lambda: [*map(self._divided, values)])
        return [*map(self._shifted, made)]

    def _divided(self, x: Value) -> Value:
        """x / scale rounded to an integer, in the low bits of a float."""
        return (x / self.scale).within(self.low, self.high) + self.magic

    def _shifted(self, raised: Value) -> Value:
        return raised.bitcast("i32") + self.shift


@emitter("parameters")
class ParametersEmitter(KernelEmitter):
    """What a range says of its quantization. form: ``scale``, the ``zero`` point, or the ``parameters`` of codes.

    scale = (top - bottom) / 255, 1 where that is 0; zero point = RNE(0 - bottom / scale) within 0..255; each step is
    one of float32. A range that is not finite is not decided.
    """

    names = PARAMETERS

    def tile(self, tile: Value) -> None:
        scale, zero = parameters_of(*self._range())
        self._store(scale, zero)

    def _range(self) -> tuple[Value, Value]:
        """The least and the greatest number of all tiles. The kernel is undecided if one of them is not finite."""
        w = self.w
        with w.loop(0, self.a.ranges, 1, [w.value("float", "0.0")] * 3) as turn:
            at = self.a.found + turn.index * 16
            low, high, bad = ((at + 4 * place).load("float", 4) for place in range(3))
            bottom, top, unknown = turn.carried
            less, more = low.test("olt", bottom), high.test("ogt", top)
            turn.next(less.select(low, bottom), more.select(high, top), unknown + bad)
        bottom, top, unknown = turn.carried
        with w.when(unknown.test("une", "0.0")):
            w.undecided()
        return bottom, top

    def _store(self, scale: Value, zero: Value) -> None:
        y = self.a.y
        if self.spec.form == "zero":
            y.store(zero.trunc("i8"))
            return
        y.store(scale, 4)
        if self.spec.form == "scale":
            return
        small, large = scale.test("oge", LEAST), scale.test("ole", 1 / LEAST)
        inverse = "1.0" / scale
        full = (small & large).select(inverse, math.nan)
        (y + 4).store(full, 4)
        (y + 8).store(zero, 4)


def parameters_of(bottom: Value, top: Value) -> tuple[Value, Value]:
    """Scale, float32, and zero point, i32, of numbers between these, of which one is 0 or less and one 0 or more."""
    scale = (top - bottom) / "255.0"
    nothing = scale.test("oeq", "0.0")
    zero = "0.0" - bottom / scale
    # The lesser of the two; 255 where it is NaN.
    zero = zero.where("olt", "255.0")
    zero = zero + MAGIC32 - MAGIC32
    return nothing.select("1.0", scale), nothing.select("0.0", zero).fptosi("i32")
