"""Generated reductions of rows of integers to one each: sums and products that wrap, means and extremes."""

from __future__ import annotations

from qrun.native.emit.expression import KINDS, UNSIGNED
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.widen import folded

NAMES = names("x* y* rows chunk tiles length whole")
"""One 8-byte word each.

rows    of `length` elements, one after the other; a tile is `chunk` of them
whole   the elements of a row that are made `rows` at once; the rest is made one by one
"""


@emitter("folded")
class FoldedEmitter(KernelEmitter):
    """`rows` elements at once. operands: the kind of the elements. form: ``sum``, ``product``, ``sum_abs``, ``sum_square``,
    ``mean`` (of up to 32 bits, toward zero), ``greatest`` or ``least``."""

    names = NAMES

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa)
        self.element, self.size = KINDS[spec.operands]
        self.unsigned, self.wide = spec.operands in UNSIGNED, "i64" if spec.form == "mean" else self.element

    def tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        with w.part(tile, a.chunk, a.rows) as row:
            x = a.x + row * a.length * self.size
            lanes = self.spec.rows
            first = w.value(f"<{lanes} x {self.wide}>", self._neutral())
            with w.loop(0, a.whole, lanes, [first]) as turn:
                turn.next(self._joined(turn.carried[0], self._term(x, turn.index, lanes)))
            with w.loop(a.whole, a.length, 1, [folded(turn.carried[0], self._joined)]) as rest:
                rest.next(self._joined(rest.carried[0], self._term(x, rest.index, 0)))
            made = rest.carried[0]
            if self.spec.form == "mean":
                made = made.op("sdiv", a.length)
                made = made.trunc(self.element)
            (a.y + row * self.size).store(made, self.size)

    def _term(self, x: Value, place: Value, lanes: int) -> Value:
        """What elements from this place on add: so many, or one where that is 0."""
        kind = f"<{lanes} x {self.element}>" if lanes else self.element
        value = (x + place * self.size).load(kind, self.size)
        if self.spec.operands == "t":
            return value.test("ne", 0).zext(self.element)
        if self.spec.form == "mean":
            return value.extended(self.wide, not self.unsigned)
        if self.spec.form == "sum_square":
            return value * value
        if self.spec.form == "sum_abs" and not self.unsigned:
            return value.test("slt", 0).select(value.like(0) - value, value)
        return value

    def _joined(self, a: Value, b: Value) -> Value:
        if self.spec.form in ("greatest", "least"):
            return a.intrinsic(("u" if self.unsigned else "s") + ("max" if self.spec.form == "greatest" else "min"), b)
        return a * b if self.spec.form == "product" else a + b

    def _neutral(self) -> int:
        """What changes nothing that it is joined with."""
        bits = 8 * self.size
        if self.spec.form in ("greatest", "least"):
            low, high = (0, 2**bits - 1) if self.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            return low if self.spec.form == "greatest" else high
        return int(self.spec.form == "product")
