"""The instructions beyond AVX2 that kernels use, as functions in LLVM IR for a CPU that has AVX2.

Their semantics are those of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, under the names
given here. What the hardware would refuse ends in an illegal instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qrun.native.emit.flow import Flow
from qrun.native.emit.values import Value, constants

Write = Callable[[Flow, list[Value]], Value | None]
BYTES, WORDS, INTS, FLOATS = "<64 x i8>", "<32 x i16>", "<16 x i32>", "<16 x float>"
LONGS, DOUBLES = "<8 x i64>", "<8 x double>"
MASK = "<64 x i1>"
ROW, ROWS, TILES = 64, 16, 8
PREFIX = "emulated."
STATE = ROW * (1 + ROWS * TILES)
"""Bytes of the state of all tiles."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An intrinsic of x86 as a function.

    feature:  what a CPU needs to run it, by LLVM's name.
    write:    writes the body for the operands, and returns its result.
    result, operands: LLVM types. Those of AMX have the state of the tiles as one more operand before the others.
    """

    feature: str
    write: Write
    result: str
    operands: tuple[str, ...]

    @property
    def tiles(self) -> bool:
        return self.feature.startswith("amx")

    def text(self, name: str) -> str:
        w = Flow()
        w.label("entry")
        kinds = ["ptr"] * self.tiles + list(self.operands)
        values = [w.value(kind, f"%x{i}") for i, kind in enumerate(kinds)]
        result = self.write(w, values)
        w.do(f"ret {self.result} {result}" if result else "ret void")
        operands = ", ".join(f"{value.kind} {value}" for value in values)
        return w.function(f"define internal {self.result} @{PREFIX}{name}({operands})")


def _halves(narrow: str, result: str) -> Write:
    """What a 512-bit instruction does in each 128-bit lane, by the 256-bit one of AVX or AVX2."""

    def write(w: Flow, values: list[Value]) -> Value:
        count, whole, parts = values[0].lanes, w.value(result, "poison"), []
        for first in (0, count // 2):
            cut = [value.shuffle(range(first, first + count // 2)) for value in values]
            parts.append(w.call(f"<{whole.lanes // 2} x {whole.element}>", f"llvm.x86.{narrow}", *cut))
        return parts[0].shuffle(range(whole.lanes), parts[1])

    return write


def _masked_conversion(w: Flow, values: list[Value]) -> Value:
    """VCVTPS2DQ with the rounding mode of MXCSR: 0x80000000 for what int32 cannot hold, and where the mask is 0 x1."""
    floats, kept, mask, rounding = values
    _refuse(w, rounding.test("ne", 4))
    made = _halves("avx.cvt.ps2dq.256", INTS)(w, [floats])
    assert made is not None
    return mask.bitcast("<16 x i1>").select(made, kept)


def _products(bits: int, signed: bool) -> Callable[[Flow, list[Value]], Value]:
    """x0 + the products of each 32-bit lane's fields of `bits` bits, modulo 2**32; those of x2 are signed."""

    def field(value: Value, place: int, signed: bool) -> Value:
        top = value << 32 - bits * (place + 1)
        return top.ashr(32 - bits) if signed else top.lshr(32 - bits)

    def write(w: Flow, values: list[Value]) -> Value:
        total, a, b = values
        for place in range(32 // bits):
            total = total + field(a, place, signed) * field(b, place, True)
        return total

    return write


def _two_tables(w: Flow, values: list[Value]) -> Value:
    """VPERMI2B, VPERMI2PD: entry number x1[i], modulo how many there are, of x0 and x2 one after the other."""
    first, places, second = values
    tables, size = w.let("ptr", "alloca [128 x i8], align 64"), 64 // first.lanes
    tables.store(first, 64)
    (tables + 64).store(second, 64)
    wrapped = places & 2 * first.lanes - 1
    found = w.value(first.kind, "poison")
    for i in range(first.lanes):
        place = wrapped.extract(i)
        place = place.zext("i64") if place.kind != "i64" else place
        found = found.insert((tables + place * size).load(first.element), i)
    return found


def _one_table(w: Flow, values: list[Value]) -> Value:
    """VPERMPS: entry number x1[i], modulo how many there are, of x0."""
    table, places = values
    wrapped, found = places & table.lanes - 1, w.value(table.kind, "poison")
    memory = w.let("ptr", "alloca [64 x i8], align 64")
    memory.store(table, 64)
    for i in range(table.lanes):
        found = found.insert((memory + wrapped.extract(i).zext("i64") * 4).load(table.element), i)
    return found


def _refuse(w: Flow, fault: Value) -> None:
    with w.when(fault):
        w.run("llvm.trap")


@dataclass(frozen=True, slots=True)
class _Tile:
    """One of the tiles of a state: its 16 rows of 64 bytes, and the configured number of rows and of bytes in each.

    The state is the 64 bytes of configuration and then the tiles. All beyond a tile's configured size is zero.
    """

    data: Value
    rows: Value
    width: Value

    @classmethod
    def of(cls, w: Flow, state: Value, number: Value) -> _Tile:
        n = number.zext("i64")
        rows = (state + 48 + n).load("i8").zext("i64")
        width = (state + 16 + n * 2).load("i16").zext("i64")
        _refuse(w, rows.test("eq", 0))
        return cls(state + ROW + n * (ROW * ROWS), rows, width)

    def mask(self, w: Flow, row: Value) -> Value:
        """Its bytes of one of 16 rows."""
        bits = w.value("i64", -1).lshr(ROW - self.width)
        return row.test("slt", self.rows).select(bits, 0).bitcast(MASK)


def _configure(w: Flow, values: list[Value]) -> None:
    """LDTILECFG of palette 1, which refuses sizes too large and reserved bytes that are not zero. Tiles become zero."""
    state, source = values
    given = source.load(BYTES)
    limits = constants("i8", [1, *[0] * 15, *[ROW, 0] * TILES, *[0] * 16, *[ROWS] * TILES, *[0] * 8])
    _refuse(w, given.test("ugt", limits).any())
    _refuse(w, given.extract(0).test("ne", 1))
    for tile in range(TILES):
        sizes = [given.extract(place) for place in (16 + 2 * tile, 48 + tile)]
        none = [size.test("eq", 0) for size in sizes]
        _refuse(w, none[0] ^ none[1])
    state.store(given)
    with w.loop(1, 1 + TILES * ROWS, 1) as row:
        (state + row.index * ROW).store(w.zero(BYTES))


def _release(w: Flow, values: list[Value]) -> None:
    """TILERELEASE: no tile is configured any more."""
    values[0].store(w.zero(BYTES))


def _load(w: Flow, values: list[Value]) -> None:
    """TILELOADD: rows from memory, x3 bytes apart; what is beyond the tile's size becomes zero."""
    state, number, base, stride = values
    tile = _Tile.of(w, state, number)
    with w.loop(0, ROWS, 1) as row:
        source = base + row.index * stride
        made = source.masked_load(BYTES, tile.mask(w, row.index))
        (tile.data + row.index * ROW).store(made)


def _store(w: Flow, values: list[Value]) -> None:
    """TILESTORED: rows to memory, x3 bytes apart."""
    state, number, base, stride = values
    tile = _Tile.of(w, state, number)
    with w.loop(0, ROWS, 1) as row:
        held = (tile.data + row.index * ROW).load(BYTES)
        target = base + row.index * stride
        target.masked_store(held, tile.mask(w, row.index))


def _tile_product(signed: bool) -> Write:
    """TDPBSSD, TDPBUSD: the rows of tile x1 += four bytes of the row of tile x2, each, times the rows of tile x3."""

    def write(w: Flow, values: list[Value]) -> None:
        state, *numbers = values
        for one, other in ((0, 1), (0, 2), (1, 2)):
            _refuse(w, numbers[one].test("eq", numbers[other]))
        sums, a, b = (_Tile.of(w, state, number) for number in numbers)
        depth = b.rows << 2
        for x, y in ((sums.rows, a.rows), (a.width, depth), (sums.width, b.width)):
            _refuse(w, x.test("ne", y))
        with w.loop(0, sums.rows, 1) as row:
            along = row.index * ROW
            target, left = sums.data + along, a.data + along
            with w.loop(0, b.rows, 1, [target.load(INTS)]) as step:
                four = (left + step.index * 4).load("i32").splat(ROWS)
                right = (b.data + step.index * ROW).load(INTS)
                step.next(_products(8, signed)(w, [step.carried[0], four, right]))
            target.store(step.carried[0])

    return write


def _by_halves(narrow: str, result: str, operand: str) -> Instruction:
    """VPACKSSDW, VPACKSSWB, VPACKUSWB, VPMADDWD and VPSHUFB."""
    return Instruction("avx512bw", _halves(narrow, result), result, (operand, operand))


def _dot(feature: str, lanes: int, bits: int) -> Instruction:
    """VPDPBUSD and VPDPWSSD."""
    kind = f"<{lanes} x i32>"
    return Instruction(feature, _products(bits, signed=bits == 16), kind, (kind,) * 3)


def _masked_load(w: Flow, values: list[Value]) -> Value:
    """VMOVDQU8 from memory: bytes where the mask is 0 are not read, and stay as they are in x3."""
    pointer, _, mask, kept = values
    return w.call(BYTES, "llvm.masked.load.v64i8.p0", pointer, ("i32", "1"), mask, kept)


def _masked_store(w: Flow, values: list[Value]) -> None:
    """VMOVDQU8 to memory: bytes where the mask is 0 are not written."""
    value, pointer, _, mask = values
    pointer.masked_store(value, mask)


_MEMORY = ("i8", "ptr", "i64")
INSTRUCTIONS = {
    "masked.load.v64i8.p0": Instruction("avx512bw", _masked_load, BYTES, ("ptr", "i32", MASK, BYTES)),
    "masked.store.v64i8.p0": Instruction("avx512bw", _masked_store, "void", (BYTES, "ptr", "i32", MASK)),
    "x86.avx512.packssdw.512": _by_halves("avx2.packssdw", WORDS, INTS),
    "x86.avx512.packsswb.512": _by_halves("avx2.packsswb", BYTES, WORDS),
    "x86.avx512.packuswb.512": _by_halves("avx2.packuswb", BYTES, WORDS),
    "x86.avx512.psad.bw.512": _by_halves("avx2.psad.bw", "<8 x i64>", BYTES),
    "x86.avx512.pmaddw.d.512": _by_halves("avx2.pmadd.wd", INTS, WORDS),
    "x86.avx512.pmaddubs.w.512": _by_halves("avx2.pmadd.ub.sw", WORDS, BYTES),
    "x86.avx512.pshuf.b.512": _by_halves("avx2.pshuf.b", BYTES, BYTES),
    "x86.avx512.mask.cvtps2dq.512": Instruction("avx512f", _masked_conversion, INTS, (FLOATS, INTS, "i16", "i32")),
    "x86.avx512.vpdpbusd.512": _dot("avx512vnni", 16, 8),
    "x86.avx512.vpdpwssd.512": _dot("avx512vnni", 16, 16),
    "x86.avx512.vpdpbusd.256": _dot("avxvnni", 8, 8),
    "x86.avx512.vpdpwssd.256": _dot("avxvnni", 8, 16),
    "x86.avx512.vpermi2var.qi.512": Instruction("avx512vbmi", _two_tables, BYTES, (BYTES,) * 3),
    "x86.avx512.vpermi2var.pd.512": Instruction("avx512f", _two_tables, DOUBLES, (DOUBLES, LONGS, DOUBLES)),
    "x86.avx512.permvar.sf.512": Instruction("avx512f", _one_table, "<16 x float>", ("<16 x float>", "<16 x i32>")),
    "x86.ldtilecfg": Instruction("amx-tile", _configure, "void", ("ptr",)),
    "x86.tilerelease": Instruction("amx-tile", _release, "void", ()),
    "x86.tileloadd64": Instruction("amx-tile", _load, "void", _MEMORY),
    "x86.tilestored64": Instruction("amx-tile", _store, "void", _MEMORY),
    "x86.tdpbssd": Instruction("amx-int8", _tile_product(signed=True), "void", ("i8",) * 3),
    "x86.tdpbusd": Instruction("amx-int8", _tile_product(signed=False), "void", ("i8",) * 3),
}
"""By name of the intrinsic, without "llvm."."""
