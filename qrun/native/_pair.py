"""Generated functions of two 8-bit codes u and v, int8 ones 128 higher (but for fma).

int    y = saturate(RNE(w * m + c) + add), w = u * A + v * B + offset in int32, A and B int16
fma    y = saturate(RNE(u * a + (v * b + c)) + add) in float32, u and v the codes themselves
mul    y = saturate(RNE((u - u_zero) * (v * s + t) * m + c) + add) in float32, everything before m exact
f64    y = low word of (((U * a + (V * b + c)) + snap) + turn) + add, saturated, in float64; U = u + 4096, V = v + 4096; snap
       and turn are large enough to round: first to a grid that makes ties exact, then to integers
table  one pair after the other in a table of all 65,536, by the codes' bits
"""

from __future__ import annotations

from qrun.native._rows import Rows
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

OWN = {
    "int": ("weights!", "offset!", "m!", "c!", "add!"), "fma": ("a!", "b!", "c!", "add!"),
    "f64": ("a", "b", "c", "snap", "turn", "add!"),
    "mul": ("u_zero!", "s!", "t!", "m!", "c!", "add!"), "table": ("table*",),
}  # fmt: skip
"""Words of each form; weights: A and B * 2**16."""


class Pair(Rows):
    """y = f(x0, x1)."""

    operands = ("x0", "x1", "y")

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, OWN[spec.form])
        self.floats: dict[str, str] = {}
        if spec.form == "table":
            return
        self.add = self.added()
        for name in OWN[spec.form]:
            name = name.rstrip("!")
            if spec.form == "f64" and name != "add":
                one = self.w.let(f"bitcast i64 {self.a[name]} to double")
                self.floats[name] = self.w.splat(self.bytes.lanes // 2, "double", one)
            elif name in ("weights", "offset"):
                self.floats[name] = self.w.splat(self.bytes.lanes, "i32", self.a[name])
            elif name != "add":
                self.floats[name] = self.splat(name)

    def value(self, operands: list[str], column: str, start: str) -> str:
        u, v = operands
        if self.spec.signed and self.spec.form != "fma":
            u, v = self.bytes.flipped(u), self.bytes.flipped(v)
        if self.spec.form == "f64":
            return self.bytes.saturated(self._doubles(u, v), self.add, self.spec.out)
        made = {"int": self._int, "fma": self._fma, "mul": self._mul}[self.spec.form](u, v)
        return self.bytes.stored(made, self.add, self.spec.out)

    def _int(self, u: str, v: str) -> list[str]:
        f, kind = self.floats, self.bytes.ints32
        sums = self.bytes.weighted(u, v, f["weights"], f["offset"])
        numbers = (self.w.let(f"sitofp {kind} {total} to {self.bytes.floats}") for total in sums)
        return [self.bytes.fma(number, f["m"], f["c"]) for number in numbers]

    def _fma(self, u: str, v: str) -> list[str]:
        f, fma = self.floats, self.bytes.fma
        left, right = (self.bytes.numbers(value, self.spec.signed) for value in (u, v))
        inner = [fma(number, f["b"], f["c"]) for number in right]
        return [fma(number, f["a"], rest) for number, rest in zip(left, inner, strict=True)]

    def _doubles(self, u: str, v: str) -> list[str]:
        left, right = self.bytes.doubles(u), self.bytes.doubles(v)
        halves = [[self._double(*both) for both in zip(a, b, strict=True)] for a, b in zip(left, right, strict=True)]
        return [self.bytes.low_words(*pair) for pair in halves]

    def _double(self, u: str, v: str) -> str:
        """Products are exact: whether they are fused with the sums does not matter."""
        w, f, kind = self.w, self.floats, self.bytes.floats64
        total = self._mul_add(u, f["a"], self._mul_add(v, f["b"], f["c"]))
        snapped = w.let(f"fadd {kind} {total}, {f['snap']}")
        return w.let(f"fadd {kind} {snapped}, {f['turn']}")

    def _mul_add(self, a: str, b: str, c: str) -> str:
        w, kind = self.w, self.bytes.floats64
        if self.isa.fma:
            return w.call(kind, f"llvm.fma.v{self.bytes.lanes // 2}f64", (kind, a), (kind, b), (kind, c))
        return w.let(f"fadd {kind} {w.let(f'fmul {kind} {a}, {b}')}, {c}")

    def _mul(self, u: str, v: str) -> list[str]:
        w, f, kind = self.w, self.floats, self.bytes.floats
        left = [w.let(f"fsub {kind} {number}, {f['u_zero']}") for number in self.bytes.numbers(u)]
        right = [self.bytes.fma(number, f["s"], f["t"]) for number in self.bytes.numbers(v)]
        products = (w.let(f"fmul {kind} {a}, {b}") for a, b in zip(left, right, strict=True))
        return [self.bytes.mul_add(product, f["m"], f["c"]) for product in products]

    def entry(self, operands: list[str], column: str, offset: int) -> str:
        w = self.w
        row, place = (w.let(f"zext i8 {code} to i64") for code in operands)
        return w.load("i8", w.at(w.at(self.a["table"], w.let(f"shl i64 {row}, 8")), place))
