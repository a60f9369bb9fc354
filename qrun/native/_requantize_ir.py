"""From int32 accumulators to results: one generated sequence for every form of epilogue.py, and the stores.

Saturation is exact because every form delivers the rounded value itself, far from the ends of int32.
"""

from __future__ import annotations

from dataclasses import dataclass

from qrun.native._dot import int32s
from qrun.native._ir import Writer, indices
from qrun.native.forms import BYTES, LIMITS, MAGIC_BITS, TABLE
from qrun.native.isa import Isa

_MAGIC32 = "0x4168000000000000"
_MAGIC64 = "0x4338000000000000"


@dataclass(slots=True)
class Requantizer:
    """Writes the epilogue of one kernel.

    form, out: how (forms.py), and "u8", "s8" or "i32".
    by_lanes:  vector j of 4 holds channels 4j..4j+3 of every 16; no vector is cut.
    vectors:   vectors per row; the last one may be cut by `mask` (lane bits).
    """

    w: Writer
    isa: Isa
    form: str
    out: str
    vectors: int
    zero_point: str
    mask: str
    shift: str = ""
    magic: str = ""
    full: str = ""
    lanes_on: str = ""
    by_lanes: bool = False

    def __post_init__(self) -> None:
        w, n = self.w, self.isa.lanes
        if self.form in ("y32", "x32", "ort"):
            self.magic = w.splat(n, "float", _MAGIC32)
            self.shift = w.splat(n, "i32", w.let(f"sub i32 {self.zero_point}, {MAGIC_BITS}"))
        elif self.form == "f64":
            self.magic = w.splat(n, "double", _MAGIC64)
            self.shift = w.splat(n, "i32", self.zero_point)

    def set_panel(self, last: str) -> None:
        """Choose the mask: `last` is an i1, true for the last panel."""
        w, n = self.w, self.isa.lanes
        mask = w.let(f"select i1 {last}, i64 {self.mask}, i64 {(1 << n) - 1}")
        bits = w.let(f"trunc i64 {mask} to i{n}")
        self.lanes_on = w.let(f"bitcast i{n} {bits} to <{n} x i1>")
        self.full = w.let(f"icmp eq i{n} {bits}, -1")

    def panel_bytes(self) -> int:
        return BYTES[self.form] * self.vectors * self.isa.lanes

    def row(self, acc: list[str], constants: str) -> list[str]:
        """One row of accumulators to int32 results: before saturation, or for a table after it."""
        if self.form == "i32":
            return acc
        step = {"y32": self._y32, "x32": self._x32, "f64": self._f64, "ort": self._ort, "table": self._table}[self.form]
        constants = self.w.hide(constants) if self.form in ("y32", "x32", "ort") else constants
        return [step(value, place, constants) for place, value in enumerate(acc)]

    def _constant(self, constants: str, field: int, place: int, kind: str = "float") -> str:
        n, size = self.isa.lanes, 8 if kind == "double" else 4
        offset = (field * self.vectors + place) * n * size
        return self.w.load(f"<{n} x {kind}>", self.w.at(constants, offset), min(64, n * 4))

    def _fma(self, a: str, b: str, c: str) -> str:
        kind = f"<{self.isa.lanes} x float>"
        if self.isa.fma:
            return self.w.call(kind, f"llvm.fma.v{self.isa.lanes}f32", (kind, a), (kind, b), (kind, c))
        return self.w.let(f"fadd {kind} {self.w.let(f'fmul {kind} {a}, {b}')}, {c}")

    def _from_magic(self, value: str) -> str:
        kind = int32s(self.isa)
        bits = self.w.let(f"bitcast <{self.isa.lanes} x float> {value} to {kind}")
        return self.w.let(f"add {kind} {bits}, {self.shift}")

    def _y32(self, acc: str, place: int, constants: str) -> str:
        a, b, offset = (self._constant(constants, field, place) for field in range(3))
        number = self.w.let(f"bitcast {int32s(self.isa)} {acc} to <{self.isa.lanes} x float>")
        return self._from_magic(self._fma(self._fma(number, a, offset), b, self.magic))

    def _x32(self, acc: str, place: int, constants: str) -> str:
        kind = f"<{self.isa.lanes} x float>"
        a, b = (self._constant(constants, field, place) for field in range(2))
        number = self.w.let(f"sitofp {int32s(self.isa)} {acc} to {kind}")
        return self._from_magic(self._fma(self.w.let(f"fmul {kind} {number}, {a}"), b, self.magic))

    def _f64(self, acc: str, place: int, constants: str) -> str:
        w, n = self.w, self.isa.lanes
        multiplier = self._constant(constants, 0, place, "double")
        number = w.let(f"sitofp {int32s(self.isa)} {acc} to <{n} x double>")
        product = w.let(f"fmul <{n} x double> {number}, {multiplier}")
        rounded = w.let(f"fadd <{n} x double> {product}, {self.magic}")
        bits = w.let(f"bitcast <{n} x double> {rounded} to <{n} x i64>")
        low = w.let(f"trunc <{n} x i64> {bits} to {int32s(self.isa)}")
        return w.let(f"add {int32s(self.isa)} {low}, {self.shift}")

    def _ort(self, acc: str, place: int, constants: str) -> str:
        w, n = self.w, self.isa.lanes
        kind = f"<{n} x float>"
        number = w.let(f"sitofp {int32s(self.isa)} {acc} to {kind}")
        value = w.let(f"fmul {kind} {number}, {self._constant(constants, 0, place)}")
        for compare, bound in zip(("ogt", "olt"), LIMITS[self.out], strict=True):
            limit = w.let(f"sitofp i32 {w.let(f'sub i32 {bound}, {self.zero_point}')} to float")
            limits = w.splat(n, "float", limit)
            inside = w.let(f"fcmp {compare} {kind} {value}, {limits}")
            value = w.let(f"select <{n} x i1> {inside}, {kind} {value}, {kind} {limits}")
        return self._from_magic(w.let(f"fadd {kind} {value}, {self.magic}"))

    def _table(self, acc: str, place: int, constants: str) -> str:
        w, n = self.w, self.isa.lanes
        kind, lanes = int32s(self.isa), self.vectors * n
        tables = w.at(constants, place * n * TABLE * 4)
        flip, cap = (
            w.load(kind, w.at(constants, lanes * TABLE * 4 + (field * lanes + place * n) * 4), 4) for field in (0, 1)
        )
        value = w.let(f"xor {kind} {acc}, {flip}")
        on = f"<{', '.join(['i1 true'] * n)}>"
        found = "zeroinitializer"
        for bit in range(7, -1, -1):
            probe = w.let(f"add {kind} {found}, {indices(lane * TABLE + (1 << bit) - 1 for lane in range(n))}")
            where = w.let(f"getelementptr i32, ptr {tables}, {kind} {probe}")
            step = w.call(
                kind, f"llvm.masked.gather.v{n}i32.v{n}p0",
                (f"<{n} x ptr>", where), ("i32", "4"), (f"<{n} x i1>", on), (kind, "poison"),
            )  # fmt: skip
            reached = w.let(f"icmp sge {kind} {value}, {step}")
            higher = w.let(f"add {kind} {found}, {indices([1 << bit] * n)}")
            found = w.let(f"select <{n} x i1> {reached}, {kind} {higher}, {kind} {found}")
        count = w.call(kind, f"llvm.smin.v{n}i32", (kind, found), (kind, cap))
        return w.let(f"add {kind} {count}, {indices([LIMITS[self.out][0]] * n)}")

    def finish(self, row: list[str]) -> list[str]:
        """int32 results to what is stored: one value per vector, or a single one for the whole row."""
        if self.out == "i32":
            return row
        if self.by_lanes:
            return [self._packed(row)]
        if self.form != "table" and self.isa.lanes == 16:
            return [self._pack64(row)]
        if self.form != "table" and self.isa.architecture == "aarch64" and self.vectors == 4:
            return [self._pack16(row)]
        return [self._narrow(value) for value in row]

    def store_block(self, block: list[list[str]], constants: str, first: str, step: str) -> None:
        """Results of all rows of accumulators, the first stored at `first`, each further one `step` bytes on.

        Ends in the label store_end; the last panel's cut vector is stored through the mask.
        """
        w = self.w
        if self.isa.dot == "madd256" and self.vectors <= 2 and self.out != "i32" and self.form != "table":
            done = self._packed32([self.row(acc, constants) for acc in block])
        else:
            done = [self.finish(self.row(acc, constants)) for acc in block]
        w.do(f"br i1 {self.full}, label %store_whole, label %store_cut")
        for name, whole in (("store_whole", True), ("store_cut", False)):
            w.label(name)
            target = first
            for i, row in enumerate(done):
                if i:
                    target = w.at(target, step)
                self.store(row, target, whole)
            w.do("br label %store_end")
        w.label("store_end")

    def _narrow(self, value: str) -> str:
        w, n, kind = self.w, self.isa.lanes, int32s(self.isa)
        if self.form != "table":
            low, high = LIMITS[self.out]
            value = w.call(kind, f"llvm.smax.v{n}i32", (kind, value), (kind, indices([low] * n)))
            value = w.call(kind, f"llvm.smin.v{n}i32", (kind, value), (kind, indices([high] * n)))
        return w.let(f"trunc {kind} {value} to <{n} x i8>")

    def _pack64(self, row: list[str]) -> str:
        """Up to four vectors as the first bytes of one."""
        w, kind = self.w, "<16 x i32>"
        packed = self._packed([row[i % len(row)] for i in range(4)])
        words = w.let(f"bitcast <64 x i8> {packed} to {kind}")
        order = indices(4 * block + vector for vector in range(4) for block in range(4))
        return w.let(
            f"bitcast {kind} {w.let(f'shufflevector {kind} {words}, {kind} poison, {kind} {order}')} to <64 x i8>"
        )

    def _packed(self, four: list[str]) -> str:
        """Four vectors as one of bytes: of every 16, four are the first vector's, four the second one's ..."""
        n = self.isa.lanes
        family, suffix = ("avx512", ".512") if n == 16 else ("avx2", "")
        narrow = "packuswb" if self.out == "u8" else "packsswb"
        words = [
            self.w.call(
                f"<{2 * n} x i16>", f"llvm.x86.{family}.packssdw{suffix}", *((int32s(self.isa), v) for v in pair)
            )
            for pair in (four[:2], four[2:])
        ]
        operands = ((f"<{2 * n} x i16>", word) for word in words)
        return self.w.call(f"<{4 * n} x i8>", f"llvm.x86.{family}.{narrow}{suffix}", *operands)

    def _packed32(self, rows: list[list[str]]) -> list[list[str]]:
        """What is stored of each row of up to two vectors of eight, four vectors narrowed at a time."""
        w, kind = self.w, "<8 x i32>"
        values = [value for row in rows for value in row]
        width, done = 8 * self.vectors, []
        order = indices(4 * half + vector for vector in range(4) for half in range(2))
        for first in range(0, len(values), 4):
            four = [values[min(first + i, len(values) - 1)] for i in range(4)]
            packed = self._packed(four)
            words = w.let(f"bitcast <32 x i8> {packed} to {kind}")
            ordered = w.let(f"shufflevector {kind} {words}, {kind} poison, {kind} {order}")
            whole = w.let(f"bitcast {kind} {ordered} to <32 x i8>")
            for start in range(0, min(32, 8 * (len(values) - first)), width):
                lanes = indices(range(start, start + width))
                done.append([w.let(f"shufflevector <32 x i8> {whole}, <32 x i8> poison, <{width} x i32> {lanes}")])
        return done

    def _pack16(self, row: list[str]) -> str:
        """Four vectors of four, in order, through NEON's saturating narrowing."""
        w, neon = self.w, "llvm.aarch64.neon."
        words = [w.call("<4 x i16>", f"{neon}sqxtn.v4i16", ("<4 x i32>", value)) for value in row]
        narrow = "sqxtun" if self.out == "u8" else "sqxtn"
        halves = []
        for low, high in (words[:2], words[2:]):
            both = w.let(f"shufflevector <4 x i16> {low}, <4 x i16> {high}, <8 x i32> {indices(range(8))}")
            halves.append(w.call("<8 x i8>", f"{neon}{narrow}.v8i8", ("<8 x i16>", both)))
        return w.let(f"shufflevector <8 x i8> {halves[0]}, <8 x i8> {halves[1]}, <16 x i32> {indices(range(16))}")

    def _store64(self, packed: str, pointer: str, whole: bool) -> None:
        """The bytes of the row's vectors, the last one cut by the mask unless `whole`."""
        w, before = self.w, 16 * (self.vectors - 1)
        if whole and self.vectors == 4:
            w.store("<64 x i8>", packed, pointer)
            return
        bits = str((1 << (before + 16)) - 1)
        if not whole:
            bits = w.let(f"or i64 {w.let(f'shl i64 {self.mask}, {before}')}, {(1 << before) - 1}")
        on = w.let(f"bitcast i64 {bits} to <64 x i1>")
        w.call("void", "llvm.masked.store.v64i8.p0",
               ("<64 x i8>", packed), ("ptr", pointer), ("i32", "1"), ("<64 x i1>", on))  # fmt: skip

    def store(self, row: list[str], pointer: str, whole: bool) -> None:
        """Store one finished row; with `whole` false the last vector is cut by the mask."""
        w, n = self.w, self.isa.lanes
        kind = f"<{n} x {'i32' if self.out == 'i32' else 'i8'}>"
        size = n * (4 if self.out == "i32" else 1)
        if self.by_lanes:
            w.store(f"<{4 * n} x i8>", row[0], pointer)
            return
        if n == 16 and self.out != "i32" and self.form != "table":
            self._store64(row[0], pointer, whole)
            return
        if len(row) < self.vectors:
            if whole:
                w.store("<16 x i8>", row[0], pointer)
                return
            row = [
                w.let(f"shufflevector <16 x i8> {row[0]}, <16 x i8> poison, <{n} x i32> {indices(range(i, i + n))}")
                for i in range(0, 16, n)
            ]
        for place, value in enumerate(row):
            target = w.at(pointer, place * size)
            if whole or place < self.vectors - 1:
                w.store(kind, value, target)
            else:
                element = "i32" if self.out == "i32" else "i8"
                w.call("void", f"llvm.masked.store.v{n}{element}.p0",
                       (kind, value), ("ptr", target), ("i32", "1"), (f"<{n} x i1>", self.lanes_on))  # fmt: skip
