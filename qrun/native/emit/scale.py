"""Generated float32 results of integer products: sums times scales that come with the run, plus a bias."""

from __future__ import annotations

from operator import add, sub

from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter
from qrun.native.emit.numbers import product_error, rounded_once
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import FACTOR_BYTES
from qrun.native.emit.widen import first_lanes

SCALE = ("acc*", "y*", "factors*", "rows", "panels", "acc_row", "y_row", "chunk", "tiles", "mask")
"""One 8-byte word each.

factors       of the form, as `factors` makes them: ``ort``: float32 multiplier and bias; ``real``: float64 multiplier, reach,
              remainder of the multiplier, bias; all [panels][field][lanes]
acc_row, y_row  bytes from one row to the next; reads of sums may run over the row's end, to whole vectors
chunk         rows per tile
mask          lanes of a row's last vector that exist
"""
FACTORS = ("left*", "right*", "bias*", "y*", "columns", "panels", "tiles", "most!", "slope!")
"""One 8-byte word each.

left        float32, a scale; slope: the bits of a float32 number that it is multiplied with (operands ``m``)
right       float32: the other scale, one number (operands ``s``) or one for each column (``v``)
bias        float32 [columns] (operands ``b``), or none
y           [panels][field][lanes], what `scale` reads
most        the greatest magnitude that a sum can have, below 2**32
"""
_REACH = 2.0**-51
"""More than twice the relative error of a product and a sum in float64."""


@emitter("scale")
class ScaleEmitter(KernelEmitter):
    """A vector of a row at a time.

    ``ort``   fl32(fl32(float32(acc) * multiplier) + bias)
    ``real``  acc * (multiplier + remainder) + bias rounded once. A float64 estimate decides where it rounds to one
              float32 on both ends of its reach; else the sum is taken exactly and rounded to odd.
    """

    names = SCALE

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.store = Requantizer(self.w, isa, "i32", "i32", 1, self.w.value("i32", 0), self.a.mask)

    def tile(self, tile: Value) -> None:
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
        size, kind = (8, "double") if self.spec.form == "real" else (4, "float")
        kind = f"<{self.isa.lanes} x {kind}>"
        return (factors + field * self.isa.lanes * size).load(kind, size)

    def _float(self, acc: Value, factors: Value) -> Value:
        return (acc.sitofp("float") * self._factor(factors, 0) + self._factor(factors, 1)).bitcast("i32")

    def _real(self, acc: Value, factors: Value) -> Value:
        number = acc.sitofp("double")
        factor, reach, bias = (self._factor(factors, field) for field in (0, 1, 3))
        product = number * factor
        total = product + bias
        low, high = (op(total, reach).single().bitcast("i32") for op in (sub, add))

        def exact() -> list[Value]:
            return [rounded_once(number, factor, self._factor(factors, 2), product, total, bias)]

        (made,) = self.w.instead([low], low.test("ne", high).any(), exact)
        return made


@emitter("factors")
class FactorsEmitter(KernelEmitter):
    """What `scale` reads, in the form ``real`` or ``ort``: the product of the scales, and the bias."""

    names = FACTORS

    def tile(self, tile: Value) -> None:
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
        """float32 numbers of a vector of columns: one for each column, or one for all."""
        lanes = self.isa.lanes
        if not each:
            return start.load("float", 4).splat(lanes)
        return (start + first * 4).masked_load(f"<{lanes} x float>", mask, 4)

    def _left(self) -> tuple[Value, Value | None]:
        """The left scale, times the slope if there is one."""
        slope = self.a.slope.bitcast("float") if "m" in self.spec.operands else None
        return self.a.left.load("float", 4), slope

    def _float(self, right: Value, bias: Value) -> list[Value]:
        left, slope = self._left()
        left = left if slope is None else slope * left
        return [right * left.splat(self.isa.lanes), bias]

    def _real(self, right: Value, bias: Value) -> list[Value]:
        """Products of two float32 numbers are exact in float64; of three, the remainder is kept."""
        left, slope = self._left()
        wide = left.double() if slope is None else left.double() * slope.double()
        factors = right.double(), wide.splat(self.isa.lanes)
        product = factors[0] * factors[1]
        rest = self.w.zero(product.kind) if slope is None else product_error(*factors, product)
        most = self.a.most.uitofp("double") * (2 * _REACH)
        reach = abs(product) * most.splat(self.isa.lanes) + abs(bias.double()) * _REACH
        return [product, reach, rest, bias.double()]
