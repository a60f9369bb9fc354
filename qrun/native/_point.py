"""Generated functions of one 8-bit code: a clamp, a line, or a table in the fastest form that the CPU has.

clamp    limits from below and above
affine   y = saturate(RNE(u * a + b) + add), u the code, 128 higher if it is int8: one line
affines  the same with a line for each column
permute  the table in four registers (AVX512-VBMI)
shuffle  pieces of 16 entries: each adds, where the code is beyond it, what changes from one piece to the next (xor)
lookup   pieces of 64 entries (AArch64)
table    one code after the other
tables   the same in a table for each column
"""

from __future__ import annotations

from qrun.native._ir import constants
from qrun.native._rows import Rows
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ENTRIES = 256
"""Bytes of a table."""
_LINES = ("lines*", "add!")
OWN = {
    "clamp": ("low!", "high!"), "affine": ("a!", "b!", "add!"), "affines": _LINES,
    "permute": ("table*",), "shuffle": ("table*",), "lookup": ("table*",), "table": ("table*",), "tables": ("table*",),
}  # fmt: skip
"""Words of each form."""
VBMI = "avx512vbmi"
SHUFFLED = 64
"""Bytes in which the shuffle form's table repeats each piece."""
_SHUFFLES = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}
_NEON = "llvm.aarch64.neon."


class Point(Rows):
    """y = f(x)."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, OWN[spec.form])
        w, a, form = self.w, self.a, spec.form
        self.constants: list[str] = []
        if form == "clamp":
            self.constants = [w.splat(self.width, "i8", w.let(f"trunc i32 {a[n]} to i8")) for n in ("low", "high")]
        elif form in ("affine", "affines"):
            self.add = self.added()
            self.constants = [self.splat(name) for name in ("a", "b")] if form == "affine" else []
        elif spec.vectors:
            count, step = {"permute": (4, 64), "shuffle": (16, SHUFFLED), "lookup": (16, 16)}[form]
            self.constants = [w.load(self.kind, w.at(a["table"], i * step), 16) for i in range(count)]

    def text(self) -> str:
        if self.spec.form == "permute":
            features = ",".join(f for f in (self.isa.features, f"+{VBMI}") if f)
            return super().text().replace("%next) {", f'%next) "target-features"="{features}" {{')
        return super().text()

    def value(self, operands: list[str], column: str, start: str) -> str:
        (x,) = operands
        if self.spec.form in ("affine", "affines"):
            return self._affine(x, start)
        make = {"clamp": self._clamp, "permute": self._permute, "shuffle": self._shuffle, "lookup": self._lookup}
        return make[self.spec.form](x)

    def _clamp(self, x: str) -> str:
        w, sign = self.w, "s" if self.spec.signed else "u"
        for limit, which in zip(self.constants, ("max", "min"), strict=True):
            x = w.call(self.kind, f"llvm.{sign}{which}.v{self.width}i8", (self.kind, x), (self.kind, limit))
        return x

    def _affine(self, x: str, start: str) -> str:
        values = self.bytes.numbers(self.bytes.flipped(x) if self.spec.signed else x)
        lines = [(self.constants[0], self.constants[1])] * 4 if self.constants else self._lines(start)
        return self.bytes.stored(
            [self.bytes.fma(v, a, b) for v, (a, b) in zip(values, lines, strict=True)], self.add, self.spec.out
        )

    def _lines(self, start: str) -> list[tuple[str, str]]:
        """Slopes and offsets of a vector of columns: four vectors of each, in the order of lanes."""
        w, kind = self.w, self.bytes.floats
        panel = w.at(self.a["lines"], w.mul(start, 8))
        loaded = [w.load(kind, w.at(panel, i * self.width), 16) for i in range(8)]
        return list(zip(loaded[:4], loaded[4:], strict=True))

    def entry(self, operands: list[str], column: str, offset: int) -> str:
        w, table = self.w, self.a["table"]
        if self.spec.form == "tables":
            table = w.at(w.at(table, w.mul(column, ENTRIES)), ENTRIES * offset)
        return w.load("i8", w.at(table, w.let(f"zext i8 {operands[0]} to i64")))

    def _permute(self, x: str) -> str:
        w, kind, t = self.w, self.kind, self.constants
        low, high = (
            w.call(kind, "llvm.x86.avx512.vpermi2var.qi.512", (kind, t[i]), (kind, x), (kind, t[i + 1])) for i in (0, 2)
        )
        upper = w.let(f"icmp slt {kind} {x}, zeroinitializer")
        return w.let(f"select <64 x i1> {upper}, {kind} {high}, {kind} {low}")

    def _shuffle(self, x: str) -> str:
        """Shuffles give 0 for negative indices, and use only the low four bits of the others."""
        w, kind = self.w, self.kind
        name = f"llvm.x86.{_SHUFFLES[self.width]}"
        sixteen = constants("i8", [16] * self.width)
        found = ""
        for first, index in ((0, x), (8, self.bytes.flipped(x))):
            for piece in range(first, first + 8):
                if piece > first:
                    index = w.call(kind, f"llvm.ssub.sat.v{self.width}i8", (kind, index), (kind, sixteen))
                entry = w.call(kind, name, (kind, self.constants[piece]), (kind, index))
                found = w.let(f"xor {kind} {found}, {entry}") if found else entry
        return found

    def _lookup(self, x: str) -> str:
        w, kind = self.w, self.kind
        sixty_four = constants("i8", [64] * self.width)
        found = ""
        for first in range(0, 16, 4):
            pieces = [(kind, piece) for piece in self.constants[first : first + 4]]
            if first:
                x = w.let(f"sub {kind} {x}, {sixty_four}")
                found = w.call(kind, f"{_NEON}tbx4.v16i8", (kind, found), *pieces, (kind, x))
            else:
                found = w.call(kind, f"{_NEON}tbl4.v16i8", *pieces, (kind, x))
        return found
