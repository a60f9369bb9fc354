"""Generated functions of two 8-bit codes u and v, int8 ones 128 higher (but for fma).

int    y = saturate(RNE(w * m + c) + add), w = u * A + v * B + offset in int32, A and B int16
fma    y = saturate(RNE(u * a + (v * b + c)) + add) in float32, u and v the codes themselves
mul    y = saturate(RNE((u - u_zero) * (v * s + t) * m + c) + add) in float32, everything before m exact
f64    y = low word of (((U * a + (V * b + c)) + snap) + turn) + add, saturated, in float64; U = u + 4096, V = v + 4096; snap
       and turn are large enough to round: first to a grid that makes ties exact, then to integers
table  one pair after the other in a table of all 65,536, by the codes' bits
"""

from __future__ import annotations

from qrun.native.emit.bytes import flipped
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter
from qrun.native.emit.rows import RowsEmitter
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.values import Value

OWN = {
    "int": ("weights!", "offset!", "m!", "c!", "add!"), "fma": ("a!", "b!", "c!", "add!"),
    "f64": ("a", "b", "c", "snap", "turn", "add!"),
    "mul": ("u_zero!", "s!", "t!", "m!", "c!", "add!"), "table": ("table*",),
}  # fmt: skip
"""Words of each form; weights: A and B * 2**16."""


@emitter("pair")
class PairEmitter(RowsEmitter):
    """y = f(x0, x1)."""

    operands = ("x0", "x1", "y")

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, OWN[spec.form])
        self.known: dict[str, Value] = {}
        if spec.form == "table":
            return
        self.add = self.added()
        for name in (name.rstrip("!") for name in OWN[spec.form][:-1]):
            if spec.form == "f64":
                self.known[name] = self.a[name].bitcast("double").splat(self.bytes.lanes // 2)
            elif name in ("weights", "offset"):
                self.known[name] = self.a[name].splat(self.bytes.lanes)
            else:
                self.known[name] = self.splat(name)

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        u, v = operands
        if self.spec.signed and self.spec.form != "fma":
            u, v = flipped(u), flipped(v)
        if self.spec.form == "f64":
            return self.bytes.saturated(self._doubles(u, v), self.add, self.spec.out)
        made = {"int": self._int, "fma": self._fma, "mul": self._mul}[self.spec.form](u, v)
        return self.bytes.stored(made, self.add, self.spec.out)

    def _int(self, u: Value, v: Value) -> list[Value]:
        k = self.known
        sums = self.bytes.weighted(u, v, k["weights"], k["offset"])
        return [total.sitofp("float").fma(k["m"], k["c"]) for total in sums]

    def _fma(self, u: Value, v: Value) -> list[Value]:
        k = self.known
        left, right = (self.bytes.numbers(value, self.spec.signed) for value in (u, v))
        inner = [number.fma(k["b"], k["c"]) for number in right]
        return [number.fma(k["a"], rest) for number, rest in zip(left, inner, strict=True)]

    def _doubles(self, u: Value, v: Value) -> list[Value]:
        left, right = self.bytes.doubles(u), self.bytes.doubles(v)
        halves = [[self._double(*both) for both in zip(a, b, strict=True)] for a, b in zip(left, right, strict=True)]
        return [self.bytes.low_words(*pair) for pair in halves]

    def _double(self, u: Value, v: Value) -> Value:
        """A float64 estimate. Its products are exact, so that it does not matter whether they are fused with the sums."""
        k = self.known
        return u.fma(k["a"], v.fma(k["b"], k["c"])) + k["snap"] + k["turn"]

    def _mul(self, u: Value, v: Value) -> list[Value]:
        k = self.known
        left = [number - k["u_zero"] for number in self.bytes.numbers(u)]
        right = [number.fma(k["s"], k["t"]) for number in self.bytes.numbers(v)]
        products = (a * b for a, b in zip(left, right, strict=True))
        return [product * k["m"] + k["c"] for product in products]

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        row, place = (code.zext("i64") for code in operands)
        return (self.a.table + (row << 8) + place).load("i8")
