"""Generated finish of a matrix product: int32 sums plus terms known at run time, to int32, 8-bit or float32 results."""

from __future__ import annotations

from qrun.native._flow import Flow
from qrun.native._ir import argument_loader, every
from qrun.native._requantize_ir import Requantizer
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

ARGUMENTS = (
    "acc*", "y*", "rows0*", "rows1*", "columns*", "constants*",
    "rows", "panels", "acc_row", "y_row", "chunk", "tiles", "mask", "zero_point!",
)  # fmt: skip
"""One 8-byte word each.

rows0, rows1  int32 [rows]; columns int32 [panels][terms][width]: term t adds rows_t[m] * columns_t[n], modulo 2**32
constants     of the form: as forms.py says; ``ort`` with out f32: float32 multiplier and bias; ``real``: float64 multiplier,
              reach, remainder of the multiplier, bias; all [panels][field][width]
acc_row, y_row  bytes from one row to the next; reads of sums may run over the row's end, to whole vectors
chunk         rows per tile
mask          lanes of the last vector of a row that exist
"""
CONSTANTS = {"ort": 8, "real": 32}
"""Bytes of constants per column of the forms that give float32."""

_INFINITY = "0x7FF0000000000000"
_SPLITTER = "0x41A0000002000000"


class Scale:
    """Writes one kernel: `vectors` vectors of a row at a time, `rows` terms (0 to 2).

    out f32: ``ort``   fl32(fl32(float32(acc) * multiplier) + bias)
             ``real``  acc * (multiplier + remainder) + bias rounded once. A float64 estimate decides where it rounds to one
                       float32 on both ends of its reach; else the sum is taken exactly and rounded to odd.
    other out: the forms of requantization (forms.py).
    """

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.spec, self.isa, self.w = spec, isa, Flow()
        w = self.w
        w.label("entry")
        self.a = argument_loader(w, ARGUMENTS)
        self.floats = spec.out == "f32"
        form, out = ("i32", "i32") if self.floats else (spec.form, spec.out)
        self.epilogue = Requantizer(w, isa, form, out, spec.vectors, self.a["zero_point"], self.a["mask"])
        size = CONSTANTS[spec.form] if self.floats else 0
        self.panel_bytes = size * spec.vectors * isa.lanes or self.epilogue.panel_bytes()

    def text(self) -> str:
        w, a = self.w, self.a
        with w.tiles(a["tiles"]) as tile:
            first = w.mul(tile, a["chunk"])
            with w.loop(first, w.least(w.add(first, a["chunk"]), a["rows"]), 1) as row:
                self._row(row.index)
        return w.kernel()

    def _row(self, row: str) -> None:
        w, a, spec, lanes = self.w, self.a, self.spec, self.isa.lanes
        width = spec.vectors * lanes
        factors = []
        for term in range(spec.rows):
            value = w.load("i32", w.at(a[f"rows{term}"], w.mul(row, 4)), 4)
            factors.append(w.splat(lanes, "i32", value))
        acc, y = (w.at(a[name], w.mul(row, a[f"{name}_row"])) for name in ("acc", "y"))
        pointers = [("ptr", acc), ("ptr", y), ("ptr", a["columns"]), ("ptr", a["constants"])]
        steps = (4 * width, width if spec.out in ("u8", "s8") else 4 * width, 4 * width * spec.rows, self.panel_bytes)
        with w.loop("0", a["panels"], 1, pointers) as panel:
            sums, target, columns, held = panel.carried
            self.epilogue.set_panel(w.let(f"icmp eq i64 {w.add(panel.index, 1)}, {a['panels']}"))
            values = self._sums(sums, columns, factors)
            if self.floats:
                values = [self._float(value, place, held) for place, value in enumerate(values)]
            self.epilogue.store_block([values], held, target, "0")
            panel.next([w.at(p, step) for p, step in zip(panel.carried, steps, strict=True)])

    def _sums(self, acc: str, columns: str, factors: list[str]) -> list[str]:
        w, spec, kind = self.w, self.spec, f"<{self.isa.lanes} x i32>"
        size, values = 4 * self.isa.lanes, []
        for place in range(spec.vectors):
            value = w.load(kind, w.at(acc, place * size), 4)
            for term, factor in enumerate(factors):
                column = w.load(kind, w.at(columns, (term * spec.vectors + place) * size), size)
                value = w.let(f"add {kind} {value}, {w.let(f'mul {kind} {factor}, {column}')}")
            values.append(value)
        return values

    def _constant(self, held: str, field: int, place: int, kind: str) -> str:
        size = 8 if kind == "double" else 4
        offset = (field * self.spec.vectors + place) * self.isa.lanes * size
        return self.w.load(f"<{self.isa.lanes} x {kind}>", self.w.at(held, offset), size)

    def _float(self, acc: str, place: int, held: str) -> str:
        w, n = self.w, self.isa.lanes
        single, ints = f"<{n} x float>", f"<{n} x i32>"
        if self.spec.form == "real":
            return self._real(acc, place, held)
        number = w.let(f"sitofp {ints} {acc} to {single}")
        product = w.let(f"fmul {single} {number}, {self._constant(held, 0, place, 'float')}")
        total = w.let(f"fadd {single} {product}, {self._constant(held, 1, place, 'float')}")
        return w.let(f"bitcast {single} {total} to {ints}")

    def _real(self, acc: str, place: int, held: str) -> str:
        w, n = self.w, self.isa.lanes
        kind, ints, bits = f"<{n} x double>", f"<{n} x i32>", f"i{n}"
        number = w.let(f"sitofp {ints} {acc} to {kind}")
        factor, reach, bias = (self._constant(held, field, place, "double") for field in (0, 1, 3))
        product = w.let(f"fmul {kind} {number}, {factor}")
        total = w.let(f"fadd {kind} {product}, {bias}")
        low, high = (self._single(w.let(f"{step} {kind} {total}, {reach}")) for step in ("fsub", "fadd"))
        differ = w.let(f"bitcast <{n} x i1> {w.let(f'icmp ne {ints} {low}, {high}')} to {bits}")
        doubtful = w.let(f"icmp ne {bits} {differ}, 0")
        before = w.here
        w.do(f"br i1 {doubtful}, label %exact{place}, label %rounded{place}")
        w.label(f"exact{place}")
        remainder = self._constant(held, 2, place, "double")
        exact = self._exactly(number, factor, remainder, product, total, bias)
        w.jump(f"rounded{place}")
        after = w.here
        w.label(f"rounded{place}")
        return w.let(f"phi {ints} [{low}, %{before}], [{exact}, %{after}]")

    def _single(self, value: str) -> str:
        """float64 to the bits of float32."""
        w, n = self.w, self.isa.lanes
        narrow = w.let(f"fptrunc <{n} x double> {value} to <{n} x float>")
        return w.let(f"bitcast <{n} x float> {narrow} to <{n} x i32>")

    def _exactly(self, number: str, factor: str, remainder: str, product: str, total: str, bias: str) -> str:
        """number * (factor + remainder) + bias rounded once, where that is finite."""
        w, n = self.w, self.isa.lanes
        kind, wide, bools = f"<{n} x double>", f"<{n} x i64>", f"<{n} x i1>"
        zero, one = "zeroinitializer", every("i64", "1", n)
        error = self._error(number, factor, product)
        error = w.let(f"fadd {kind} {error}, {w.let(f'fmul {kind} {number}, {remainder}')}")
        _, lost = self._two_sum(product, bias, total)
        middle, least = self._two_sum(lost, error)
        top, rest = self._two_sum(total, middle)
        nothing = w.let(f"fcmp oeq {kind} {middle}, {zero}")
        top = w.let(f"select {bools} {nothing}, {kind} {total}, {kind} {top}")
        rest = w.let(f"select {bools} {w.let(f'fcmp une {kind} {rest}, {zero}')}, {kind} {rest}, {kind} {least}")
        whole = w.let(f"bitcast {kind} {top} to {wide}")
        odd = w.let(f"icmp ne {wide} {w.let(f'and {wide} {whole}, {one}')}, {zero}")
        above = [w.let(f"fcmp ogt {kind} {value}, {zero}") for value in (rest, top)]
        inward = w.let(f"xor {bools} {above[0]}, {above[1]}")
        step = w.let(f"select {bools} {inward}, {wide} {every('i64', '-1', n)}, {wide} {one}")
        exact = w.let(f"fcmp oeq {kind} {rest}, {zero}")
        stays = w.let(f"or {bools} {odd}, {exact}")
        step = w.let(f"select {bools} {stays}, {wide} {zero}, {wide} {step}")
        moved = w.let(f"bitcast {wide} {w.let(f'add {wide} {whole}, {step}')} to {kind}")
        size = w.call(kind, f"llvm.fabs.v{n}f64", (kind, total))
        finite = w.let(f"fcmp olt {kind} {size}, {every('double', _INFINITY, n)}")
        return self._single(w.let(f"select {bools} {finite}, {kind} {moved}, {kind} {total}"))

    def _two_sum(self, a: str, b: str, total: str = "") -> tuple[str, str]:
        """a + b, and what its rounding lost."""
        w, kind = self.w, f"<{self.isa.lanes} x double>"
        total = total or w.let(f"fadd {kind} {a}, {b}")
        t = w.let(f"fsub {kind} {total}, {a}")
        back = w.let(f"fsub {kind} {a}, {w.let(f'fsub {kind} {total}, {t}')}")
        return total, w.let(f"fadd {kind} {back}, {w.let(f'fsub {kind} {b}, {t}')}")

    def _error(self, a: str, b: str, product: str) -> str:
        """a * b - product, exactly (Dekker 1971 where there is no fma)."""
        w, kind = self.w, f"<{self.isa.lanes} x double>"
        if self.isa.fma:
            negative = w.let(f"fneg {kind} {product}")
            return w.call(kind, f"llvm.fma.v{self.isa.lanes}f64", (kind, a), (kind, b), (kind, negative))
        (a1, a2), (b1, b2) = self._halves(a), self._halves(b)
        error = w.let(f"fsub {kind} {w.let(f'fmul {kind} {a1}, {b1}')}, {product}")
        for x, y in ((a1, b2), (a2, b1), (a2, b2)):
            error = w.let(f"fadd {kind} {error}, {w.let(f'fmul {kind} {x}, {y}')}")
        return error

    def _halves(self, a: str) -> tuple[str, str]:
        w, n = self.w, self.isa.lanes
        kind = f"<{n} x double>"
        c = w.let(f"fmul {kind} {a}, {every('double', _SPLITTER, n)}")
        high = w.let(f"fsub {kind} {c}, {w.let(f'fsub {kind} {c}, {a}')}")
        return high, w.let(f"fsub {kind} {a}, {high}")
