"""Generated elementwise functions of one or two 8-bit codes. A tile is some rows and columns of an image.

Functions of one code are a clamp, a line, or a table in the fastest form that the CPU has:

clamp    limits from below and above
affine   y = saturate(RNE(u * a + b) + add), u the code, 128 higher if it is int8: one line
affines  the same with a line for each column
permute  a table in four registers (AVX512-VBMI)
shuffle  pieces of 16 entries, each stored as xor with the piece before: those up to the code's own are looked up and
         xor-ed
lookup   pieces of 64 entries (AArch64)
table    a table lookup for one code after the other
tables   the same with a table for each column

Functions of two codes u and v (int8 codes are 128 higher, except in fma):

int    y = saturate(RNE(w * m + c) + add), w = u * A + v * B + offset in int32, A and B int16
fma    y = saturate(RNE(u * a + (v * b + c)) + add) in float32, u and v the codes themselves
mul    y = saturate(RNE((u - u_zero) * (v * s + t) * m + c) + add) in float32, everything before m exact
f64    y = low word of (((U * a + (V * b + c)) + snap) + turn) + add, saturated, in float64; U = u + 4096, V = v + 4096;
       snap and turn are large enough to round: first to a grid that makes ties exact, then to integers
table  a lookup for one pair after the other in a table of all 65,536 pairs, indexed by the codes' bits
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.bytes import Bytes, flip_sign_bit, look_up_bytes
from qrun.native.emit.kernel import Isa, KernelEmitter, KernelSpec, Value, emitter, names
from qrun.native.emit.spec import PIECE, SHUFFLED, VBMI, masks

ENTRIES = 256
"""Bytes of a table."""
_LINES = ("lines*", "add!")
_POINT = {
    "clamp": names("low! high!"),
    "affine": names("a! b! add!"),
    "affines": _LINES,
    **dict.fromkeys(("permute", "shuffle", "lookup", "table", "tables"), ("table*",)),
}
"""The argument words of each form."""
_SHUFFLES = {64: "avx512.pshuf.b.512", 32: "avx2.pshuf.b", 16: "ssse3.pshuf.b.128"}
_NEON = "llvm.aarch64.neon."
_PAIR = {
    "int": names("weights! offset! m! c! add!"),
    "fma": names("a! b! c! add!"),
    "f64": names("a b c snap turn add!"),
    "mul": names("u_zero! s! t! m! c! add!"),
    "table": ("table*",),
}
"""The argument words of each form; weights: A and B * 2**16."""
_GRID = ("columns", "rows", "chunk", "chunks", "part", "parts", "tiles", "last", "mask")
_TOGETHER = 8
"""How many bytes an iteration of the scalar loop computes one by one and stores together."""


def struct_names(operands: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    """The names of the argument words, 8 bytes each. own: the words of the kernel's form.

    columns, rows     size of an image
    chunk, chunks     rows of a tile, and tiles that share an image's rows; part, parts: the same for columns
    last              where the last vector of a row starts: it overlaps the one before rather than run over
    mask              the bytes of a vector that exist, if rows are shorter than one (where stores can be masked)
    """
    steps = [f"{name}_{step}" for name in operands for step in ("image", "row")]
    return (*(f"{name}*" for name in operands), *steps, *_GRID, *own)


class RowsEmitter(KernelEmitter):
    """Base of kernels that compute each result byte from the bytes at the same place in one or two operands.

    They handle `vectors` pieces of 16 bytes at once, or single bytes if that is 0.
    """

    operands: tuple[str, ...] = ("x", "y")

    def __init__(self, spec: KernelSpec, isa: Isa, own: Sequence[str]) -> None:
        self.names = struct_names(self.operands, own)
        super().__init__(spec, isa)
        self.bytes = Bytes(self.w, isa, 4 * spec.vectors)
        self.width = PIECE * spec.vectors
        self.kind = self.bytes.kind if spec.vectors else "i8"

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        """The results of the vectors at a column. start: the loop's index; it is greater than the column where the last
        vector overlaps."""
        raise NotImplementedError

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        """The result of single bytes, `offset` bytes after this column."""
        raise NotImplementedError

    def text(self) -> str:
        """Write the kernel's LLVM IR."""
        if masks(self.spec.vectors):
            self.on, self.whole = self.a.mask.bitcast("<64 x i1>"), self.a.mask.test("eq", -1)
        return super().text()

    def write_tile(self, tile: Value) -> None:
        w, a = self.w, self.a
        rest, part = divmod(tile, a.parts)
        image, chunk = divmod(rest, a.chunks)
        columns = part.part(a.part, a.columns)
        images = [(name, a[name] + image * a[f"{name}_image"]) for name in self.operands]
        with w.part(chunk, a.chunk, a.rows) as row:
            lines = [start + row * a[f"{name}_row"] for name, start in images]
            (self._vectors if self.spec.vectors else self._entries)(lines, *columns)

    def _vectors(self, lines: list[Value], column: Value, end: Value) -> None:
        """Write the loop over the vectors of a row from `column` to `end`."""
        with self.w.loop(column, end, self.width) as at:
            position = at.index.least(self.a.last)
            *sources, target = [line + position for line in lines]
            self._store(self.value([self._load(source) for source in sources], position, at.index), target)

    def _entries(self, lines: list[Value], column: Value, end: Value) -> None:
        """Compute the bytes of these rows one by one."""
        for first, count in self.w.runs(column, end, (_TOGETHER, 1)):
            *sources, target = [line + first for line in lines]
            together = self.w.value(f"<{count} x i8>", "poison")
            for i in range(count):
                together = together.insert(self.entry([(source + i).load("i8") for source in sources], first, i), i)
            target.store(together)

    def splat(self, name: str) -> Value:
        """The float argument of this name, in every lane."""
        return self.a[name].bitcast("float").splat(self.bytes.lanes)

    def splat_addend(self) -> Value:
        """The argument `add` in every 16-bit lane."""
        return self.a.add.trunc("i16").splat(2 * self.bytes.lanes)

    def _load(self, pointer: Value) -> Value:
        """Load a vector of elements; a mask leaves out those past the row's end."""
        return pointer.masked_load(self.kind, self.on) if masks(self.spec.vectors) else pointer.load(self.kind)

    def _store(self, value: Value, pointer: Value) -> None:
        """Store a vector of elements; a mask leaves out those past the row's end."""
        if not masks(self.spec.vectors):
            pointer.store(value)
            return
        for whole in self.w.either(self.whole):
            if whole:
                pointer.store(value)
            else:
                pointer.masked_store(value, self.on)


@emitter("point")
class PointEmitter(RowsEmitter):
    """Computes y = f(x) of 8-bit codes."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, _POINT[spec.form])
        a, form = self.a, spec.form
        self.constants: list[Value] = []
        self.feature = VBMI if form == "permute" else ""
        if form == "clamp":
            self.constants = [limit.trunc("i8").splat(self.width) for limit in (a.low, a.high)]
        elif form in ("affine", "affines"):
            self.add = self.splat_addend()
            self.constants = [self.splat(name) for name in ("a", "b")] if form == "affine" else []
        elif spec.vectors:
            count, step = {"permute": (4, 64), "shuffle": (16, SHUFFLED), "lookup": (16, 16)}[form]
            self.constants = [(a.table + i * step).load(self.kind, 16) for i in range(count)]

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        """The results of a vector of codes, in the way that the form names."""
        (x,) = operands
        if self.spec.form in ("affine", "affines"):
            return self._affine(x, start)
        if self.spec.form == "permute":
            return look_up_bytes(self.constants, x)
        return {"clamp": self._clamp, "shuffle": self._shuffle, "lookup": self._lookup}[self.spec.form](x)

    def _clamp(self, x: Value) -> Value:
        """Limit the codes to the range of the constants."""
        low, high = self.constants
        sign = "s" if self.spec.signed else "u"
        return x.intrinsic(f"{sign}max", low).intrinsic(f"{sign}min", high)

    def _affine(self, x: Value, start: Value) -> Value:
        """Compute a * code + b in float32 and round to bytes; a and b may differ by column."""
        values = self.bytes.numbers(flip_sign_bit(x) if self.spec.signed else x)
        lines = [(self.constants[0], self.constants[1])] * 4 if self.constants else self._lines(start)
        made = [value.fma(a, b) for value, (a, b) in zip(values, lines, strict=True)]
        return self.bytes.round_to_bytes(made, self.add, self.spec.out)

    def _lines(self, start: Value) -> list[tuple[Value, Value]]:
        """The slopes and offsets of a vector of columns: four vectors of each, in the order of the lanes."""
        panel = self.a.lines + start * 8
        loaded = [(panel + i * self.width).load(self.bytes.floats, 16) for i in range(8)]
        return list(zip(loaded[:4], loaded[4:], strict=True))

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        """The result of one code, from the table."""
        table = self.a.table
        if self.spec.form == "tables":
            table = table + column * ENTRIES + ENTRIES * offset
        return (table + operands[0].zext("i64")).load("i8")

    def _shuffle(self, x: Value) -> Value:
        """Look codes up with shuffles, which give 0 for negative indices and use only the low four bits of others."""
        name, found = f"llvm.x86.{_SHUFFLES[self.width]}", None
        for first, index in ((0, x), (8, flip_sign_bit(x))):
            for piece in range(first, first + 8):
                if piece > first:
                    index = index.intrinsic("ssub.sat", 16)
                entry = self.w.call(self.kind, name, self.constants[piece], index)
                found = entry if found is None else found ^ entry
        assert found is not None
        return found

    def _lookup(self, x: Value) -> Value:
        """Look codes up in the four quarters of the table. For indices from 64 on, TBL gives 0, and TBX keeps the value
        found before."""
        found = self.w.call(self.kind, f"{_NEON}tbl4.v16i8", *self.constants[:4], x)
        for first in range(4, 16, 4):
            x = x - 64
            found = self.w.call(self.kind, f"{_NEON}tbx4.v16i8", found, *self.constants[first : first + 4], x)
        return found


@emitter("pair")
class PairEmitter(RowsEmitter):
    """Computes y = f(x0, x1) of 8-bit codes."""

    operands = ("x0", "x1", "y")

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        super().__init__(spec, isa, _PAIR[spec.form])
        self.known: dict[str, Value] = {}
        if spec.form == "table":
            return
        self.add = self.splat_addend()
        for name in (name.rstrip("!") for name in _PAIR[spec.form][:-1]):
            if spec.form == "f64":
                self.known[name] = self.a[name].bitcast("double").splat(self.bytes.lanes // 2)
            elif name in ("weights", "offset"):
                self.known[name] = self.a[name].splat(self.bytes.lanes)
            else:
                self.known[name] = self.splat(name)

    def value(self, operands: list[Value], column: Value, start: Value) -> Value:
        """The results of two vectors of codes, in the way that the form names."""
        u, v = operands
        if self.spec.signed and self.spec.form != "fma":
            u, v = flip_sign_bit(u), flip_sign_bit(v)
        if self.spec.form == "f64":
            return self.bytes.saturate_to_bytes(self._doubles(u, v), self.add, self.spec.out)
        made = {"int": self._int, "fma": self._fma, "mul": self._mul}[self.spec.form](u, v)
        return self.bytes.round_to_bytes(made, self.add, self.spec.out)

    def _int(self, u: Value, v: Value) -> list[Value]:
        """Results before rounding: weighted integer sum, then one fused multiply-add."""
        k = self.known
        sums = self.bytes.weighted_sum(u, v, k["weights"], k["offset"])
        return [total.sitofp("float").fma(k["m"], k["c"]) for total in sums]

    def _fma(self, u: Value, v: Value) -> list[Value]:
        """Results before rounding: a * u + (b * v + c) with fused multiply-adds."""
        k = self.known
        left, right = (self.bytes.numbers(value, self.spec.signed) for value in (u, v))
        inner = [number.fma(k["b"], k["c"]) for number in right]
        return [number.fma(k["a"], rest) for number, rest in zip(left, inner, strict=True)]

    def _doubles(self, u: Value, v: Value) -> list[Value]:
        """The results as int32, computed in float64."""
        left, right = self.bytes.doubles(u), self.bytes.doubles(v)
        halves = [[self._double(*both) for both in zip(a, b, strict=True)] for a, b in zip(left, right, strict=True)]
        return [self.bytes.low_words(*pair) for pair in halves]

    def _double(self, u: Value, v: Value) -> Value:
        """The sum of the form f64, in the low word of a float64. Its products are exact, so that fusing them with the
        sums changes nothing."""
        k = self.known
        return u.fma(k["a"], v.fma(k["b"], k["c"])) + k["snap"] + k["turn"]

    def _mul(self, u: Value, v: Value) -> list[Value]:
        """Results before rounding: (u - zero) * (s * v + t) * m + c."""
        k = self.known
        left = [number - k["u_zero"] for number in self.bytes.numbers(u)]
        right = [number.fma(k["s"], k["t"]) for number in self.bytes.numbers(v)]
        products = (a * b for a, b in zip(left, right, strict=True))
        return [product * k["m"] + k["c"] for product in products]

    def entry(self, operands: list[Value], column: Value, offset: int) -> Value:
        """The result of one pair of codes, from the table of 256 * 256."""
        row, position = (code.zext("i64") for code in operands)
        return (self.a.table + (row << 8) + position).load("i8")
