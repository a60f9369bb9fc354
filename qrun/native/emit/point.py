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

from qrun.native.emit.bytes import flipped, permuted
from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter
from qrun.native.emit.rows import RowsEmitter
from qrun.native.emit.spec import SHUFFLED, VBMI, KernelSpec
from qrun.native.emit.values import Value

ENTRIES = 256
"""Bytes of a table."""
_LINES = ("lines*", "add!")
OWN = {
    "clamp": ("low!", "high!"), "affine": ("a!", "b!", "add!"), "affines": _LINES,
    "permute": ("table*",), "shuffle": ("table*",), "lookup": ("table*",), "table": ("table*",), "tables": ("table*",),
}  # fmt: skip
"""Words of each form."""
_SHUFFLES = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}
_NEON = "llvm.aarch64.neon."


@emitter("point")
class PointEmitter(RowsEmitter):
    """y = f(x)."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, OWN[spec.form])
        a, form = self.a, spec.form
        self.constants: list[Value] = []
        self.feature = VBMI if form == "permute" else ""
        if form == "clamp":
            self.constants = [limit.trunc("i8").splat(self.width) for limit in (a.low, a.high)]
        elif form in ("affine", "affines"):
            self.add = self.added()
            self.constants = [self.splat(name) for name in ("a", "b")] if form == "affine" else []
        elif spec.vectors:
            count, step = {"permute": (4, 64), "shuffle": (16, SHUFFLED), "lookup": (16, 16)}[form]
            self.constants = [(a.table + i * step).load(self.kind, 16) for i in range(count)]

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        (x,) = operands
        if self.spec.form in ("affine", "affines"):
            return self._affine(x, start)
        make = {"clamp": self._clamp, "permute": self._permuted, "shuffle": self._shuffle, "lookup": self._lookup}
        return make[self.spec.form](x)

    def _clamp(self, x: Value) -> Value:
        low, high = self.constants
        sign = "s" if self.spec.signed else "u"
        return x.intrinsic(f"{sign}max", low).intrinsic(f"{sign}min", high)

    def _affine(self, x: Value, start: Value) -> Value:
        values = self.bytes.numbers(flipped(x) if self.spec.signed else x)
        lines = [(self.constants[0], self.constants[1])] * 4 if self.constants else self._lines(start)
        made = [value.fma(a, b) for value, (a, b) in zip(values, lines, strict=True)]
        return self.bytes.stored(made, self.add, self.spec.out)

    def _lines(self, start: Value) -> list[tuple[Value, Value]]:
        """The slopes and offsets of a vector of columns, four vectors of each, in the order of the lanes."""
        panel = self.a.lines + start * 8
        loaded = [(panel + i * self.width).load(self.bytes.floats, 16) for i in range(8)]
        return list(zip(loaded[:4], loaded[4:], strict=True))

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        table = self.a.table
        if self.spec.form == "tables":
            table = table + column * ENTRIES + ENTRIES * offset
        return (table + operands[0].zext("i64")).load("i8")

    def _permuted(self, x: Value) -> Value:
        return permuted(self.constants, x)

    def _shuffle(self, x: Value) -> Value:
        """Look codes up with shuffles, which give 0 for negative indices and use only the low four bits of others."""
        name, found = f"llvm.x86.{_SHUFFLES[self.width]}", None
        for first, index in ((0, x), (8, flipped(x))):
            for piece in range(first, first + 8):
                if piece > first:
                    index = index.intrinsic("ssub.sat", 16)
                entry = self.w.call(self.kind, name, self.constants[piece], index)
                found = entry if found is None else found ^ entry
        assert found is not None
        return found

    def _lookup(self, x: Value) -> Value:
        """Look codes up in four quarters of the table: TBL gives 0 for indices from 64 on, TBX what was found before."""
        found = self.w.call(self.kind, f"{_NEON}tbl4.v16i8", *self.constants[:4], x)
        for first in range(4, 16, 4):
            x = x - 64
            found = self.w.call(self.kind, f"{_NEON}tbx4.v16i8", found, *self.constants[first : first + 4], x)
        return found
