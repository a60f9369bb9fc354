"""Generated finish of a matrix product: int32 sums plus terms known at run time, to int32, 8-bit or float32 results."""

from __future__ import annotations

from operator import add, sub

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import KernelEmitter, emitter
from qrun.native.emit.numbers import product_error, rounded_once
from qrun.native.emit.requantize import Requantizer
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value

ARGUMENTS = (
    "acc*", "y*", "rows0*", "rows1*", "columns*", "constants*",
    "rows", "panels", "acc_row", "y_row", "chunk", "tiles", "mask", "zero_point!",
)  # fmt: skip
"""One 8-byte word each.

rows0, rows1  int32 [rows]; columns int32 [panels][terms][width]: term t adds rows_t[m] * columns_t[n], modulo 2**32
constants     of the form: as emit/spec.py says; ``ort`` with out f32: float32 multiplier and bias; ``real``: float64 multiplier,
              reach, remainder of the multiplier, bias; all [panels][field][width]
acc_row, y_row  bytes from one row to the next; reads of sums may run over the row's end, to whole vectors
chunk         rows per tile
mask          lanes of the last vector of a row that exist
"""
CONSTANTS = {"ort": 8, "real": 32}
"""Bytes of constants per column of the forms that give float32."""


@emitter("scale")
class ScaleEmitter(KernelEmitter):
    """Writes one kernel: `vectors` vectors of a row at a time, `rows` terms (0 to 2).

    out f32: ``ort``   fl32(fl32(float32(acc) * multiplier) + bias)
             ``real``  acc * (multiplier + remainder) + bias rounded once. A float64 estimate decides where it rounds to one
                       float32 on both ends of its reach; else the sum is taken exactly and rounded to odd.
    other out: the forms of requantization (emit/spec.py).
    """

    names = ARGUMENTS

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.floats = spec.out == "f32"
        form, out = ("i32", "i32") if self.floats else (spec.form, spec.out)
        self.epilogue = Requantizer(self.w, isa, form, out, spec.vectors, self.a.zero_point, self.a.mask)
        size = CONSTANTS[spec.form] if self.floats else 0
        self.panel_bytes = size * spec.vectors * isa.lanes or self.epilogue.panel_bytes()

    def tile(self, tile: Value) -> None:
        with self.w.part(tile, self.a.chunk, self.a.rows) as row:
            self._row(row)

    def _row(self, row: Value) -> None:
        w, a, spec, lanes = self.w, self.a, self.spec, self.isa.lanes
        width = spec.vectors * lanes
        factors = [(a[f"rows{term}"] + row * 4).load("i32", 4).splat(lanes) for term in range(spec.rows)]
        acc, y = a.acc + row * a.acc_row, a.y + row * a.y_row
        steps = (4 * width, width if spec.out in ("u8", "s8") else 4 * width, 4 * width * spec.rows, self.panel_bytes)
        with w.loop(0, a.panels, 1, [acc, y, a.columns, a.constants]) as panel:
            sums, target, columns, held = panel.carried
            self.epilogue.set_panel((panel.index + 1).test("eq", a.panels))
            values = self._sums(sums, columns, factors)
            if self.floats:
                make = self._real if spec.form == "real" else self._float
                values = [make(value, place, held) for place, value in enumerate(values)]
            self.epilogue.store_block([values], held, target, w.value("i64", 0))
            panel.next(*(pointer + step for pointer, step in zip(panel.carried, steps, strict=True)))

    def _sums(self, acc: Value, columns: Value, factors: list[Value]) -> list[Value]:
        spec, kind = self.spec, f"<{self.isa.lanes} x i32>"
        size, values = 4 * self.isa.lanes, []
        for place in range(spec.vectors):
            value = (acc + place * size).load(kind, 4)
            for term, factor in enumerate(factors):
                column = (columns + (term * spec.vectors + place) * size).load(kind, size)
                value = value + factor * column
            values.append(value)
        return values

    def _constant(self, held: Value, field: int, place: int, element: str) -> Value:
        size = 8 if element == "double" else 4
        offset = (field * self.spec.vectors + place) * self.isa.lanes * size
        return (held + offset).load(f"<{self.isa.lanes} x {element}>", size)

    def _float(self, acc: Value, place: int, held: Value) -> Value:
        product = acc.sitofp("float") * self._constant(held, 0, place, "float")
        return (product + self._constant(held, 1, place, "float")).bitcast("i32")

    def _real(self, acc: Value, place: int, held: Value) -> Value:
        w = self.w
        number = acc.sitofp("double")
        factor, reach, bias = (self._constant(held, field, place, "double") for field in (0, 1, 3))
        product = number * factor
        total = product + bias
        low, high = ((op(total, reach)).single().bitcast("i32") for op in (sub, add))
        doubtful = low.test("ne", high).any()
        before = w.here
        w.branch(doubtful, f"exact{place}", f"rounded{place}")
        w.label(f"exact{place}")
        remainder = self._constant(held, 2, place, "double")
        exact = rounded_once(number, factor, remainder, product, total, bias)
        w.jump(f"rounded{place}")
        after = w.here
        w.label(f"rounded{place}")
        return w.phi((low, before), (exact, after))


FACTORS = ("left*", "base*", "y*", "panels", "tiles", "slope!")
"""One 8-byte word each.

left        float32, a scale that comes with the run; slope: the bits of a float32 number that it is multiplied with (operands
            ``slope``)
base, y     [panels][field][lanes] as `scale` reads them: for a scale of 1, and for this one
"""
_REACH = 2.0**-51
"""More than twice the error of one addition, relative to its operands."""


@emitter("factors")
class FactorsEmitter(KernelEmitter):
    """The constants of `scale` in the form ``real`` or ``ort``, times a scale."""

    names = FACTORS

    def tile(self, tile: Value) -> None:
        w, a, lanes, form = self.w, self.a, self.isa.lanes, self.spec.form
        real, sloped = form == "real", self.spec.operands == "slope"
        left, slope = a.left.load("float", 4), a.slope.bitcast("float")
        if real:
            left = left.double() * slope.double() if sloped else left.double()
        elif sloped:
            left = slope * left
        kind, left = f"<{lanes} x {left.kind}>", left.splat(lanes)
        size = lanes * (8 if real else 4)
        count = CONSTANTS[form] * lanes // size
        with w.loop(0, a.panels, 1) as panel:
            at = panel.index * (count * size)
            fields = [(a.base + at + number * size).load(kind, 8 if real else 4) for number in range(count)]
            made = [fields[0] * left, fields[-1]]
            if real:
                lost = product_error(fields[0], left, made[0]) if sloped else fields[2]
                made[1:1] = [fields[1] * left + abs(fields[3]) * _REACH, lost]
            for number, value in enumerate(made):
                (a.y + at + number * size).store(value, 8 if real else 4)
