"""The instructions beyond AVX2 that kernels use, as functions in LLVM IR for a CPU that has AVX2.

Their semantics are those of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, under the names
given here. What the hardware would refuse ends in an illegal instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qrun.native._flow import Flow
from qrun.native._ir import constants, indices

Write = Callable[[Flow, list[str]], str]
BYTES, WORDS, INTS, FLOATS = "<64 x i8>", "<32 x i16>", "<16 x i32>", "<16 x float>"
MASK = "<64 x i1>"
ROW, ROWS, TILES = 64, 16, 8
PREFIX = "emulated."
STATE = ROW * (1 + ROWS * TILES)
"""Bytes of the state of all tiles."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """An intrinsic of x86 as a function.

    feature:  what a CPU needs to run it, by LLVM's name.
    write:    writes the body for the names of the operands, and returns its result.
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
        names = [f"%x{i}" for i in range(self.tiles + len(self.operands))]
        result = self.write(w, names)
        w.do(f"ret {self.result} {result}".rstrip())
        kinds = ["ptr"] * self.tiles + list(self.operands)
        operands = ", ".join(f"{kind} {value}" for kind, value in zip(kinds, names, strict=True))
        return w.function(f"define internal {self.result} @{PREFIX}{name}({operands})")


def _parts(kind: str) -> tuple[int, str]:
    count, _, element = kind.strip("<>").split()
    return int(count), element


def _halves(narrow: str, result: str, operand: str) -> Write:
    """What a 512-bit instruction does in each 128-bit lane, by the 256-bit one of AVX or AVX2."""
    count, element = _parts(operand)
    total, made = _parts(result)
    half, half_result = f"<{count // 2} x {element}>", f"<{total // 2} x {made}>"

    def write(w: Flow, values: list[str]) -> str:
        parts = []
        for first in (0, count // 2):
            order = f"<{count // 2} x i32> {indices(range(first, first + count // 2))}"
            cut = [w.let(f"shufflevector {operand} {v}, {operand} poison, {order}") for v in values]
            parts.append(w.call(half_result, f"llvm.x86.{narrow}", *((half, v) for v in cut)))
        low, high = parts
        order = f"<{total} x i32> {indices(range(total))}"
        return w.let(f"shufflevector {half_result} {low}, {half_result} {high}, {order}")

    return write


def _masked_conversion(w: Flow, values: list[str]) -> str:
    """VCVTPS2DQ with the rounding mode of MXCSR: 0x80000000 for what int32 cannot hold, and where the mask is 0 x1."""
    floats, kept, mask, rounding = values
    _refuse(w, w.let(f"icmp ne i32 {rounding}, 4"))
    made = _halves("avx.cvt.ps2dq.256", INTS, FLOATS)(w, [floats])
    on = w.let(f"bitcast i16 {mask} to <16 x i1>")
    return w.let(f"select <16 x i1> {on}, {INTS} {made}, {INTS} {kept}")


def _products(lanes: int, bits: int, signed: bool) -> Write:
    """x0 + the products of each 32-bit lane's fields of `bits` bits, modulo 2**32; those of x2 are signed."""
    kind = f"<{lanes} x i32>"

    def field(w: Flow, value: str, place: int, shift: str) -> str:
        top = w.let(f"shl {kind} {value}, {constants('i32', [32 - bits * (place + 1)] * lanes)}")
        return w.let(f"{shift} {kind} {top}, {constants('i32', [32 - bits] * lanes)}")

    def write(w: Flow, values: list[str]) -> str:
        total, a, b = values
        for place in range(32 // bits):
            left, right = field(w, a, place, "ashr" if signed else "lshr"), field(w, b, place, "ashr")
            total = w.let(f"add {kind} {total}, {w.let(f'mul {kind} {left}, {right}')}")
        return total

    return write


def _two_tables(w: Flow, values: list[str]) -> str:
    """VPERMI2B: byte i is the entry number x1[i] modulo 128 of x0 and x2 one after the other."""
    first, places, second = values
    tables = w.let("alloca [128 x i8], align 64")
    w.store(BYTES, first, tables, 64)
    w.store(BYTES, second, w.at(tables, 64), 64)
    wrapped = w.let(f"and {BYTES} {places}, {constants('i8', [127] * 64)}")
    found = "poison"
    for i in range(64):
        place = w.let(f"zext i8 {w.let(f'extractelement {BYTES} {wrapped}, i32 {i}')} to i64")
        found = w.let(f"insertelement {BYTES} {found}, i8 {w.load('i8', w.at(tables, place))}, i32 {i}")
    return found


def _refuse(w: Flow, fault: str) -> None:
    with w.when(fault):
        w.call("void", "llvm.trap")


@dataclass(frozen=True, slots=True)
class _Tile:
    """One of the tiles of a state: its 16 rows of 64 bytes, and the configured number of rows and of bytes in each.

    The state is the 64 bytes of configuration and then the tiles. All beyond a tile's configured size is zero.
    """

    data: str
    rows: str
    width: str

    @classmethod
    def of(cls, w: Flow, state: str, number: str) -> _Tile:
        n = w.let(f"zext i8 {number} to i64")
        rows = w.let(f"zext i8 {w.load('i8', w.at(w.at(state, 48), n))} to i64")
        width = w.let(f"zext i16 {w.load('i16', w.at(w.at(state, 16), w.mul(n, 2)))} to i64")
        _refuse(w, w.let(f"icmp eq i64 {rows}, 0"))
        return cls(w.at(w.at(state, ROW), w.mul(n, ROW * ROWS)), rows, width)

    def mask(self, w: Flow, row: str) -> str:
        """Its bytes of one of 16 rows."""
        bits = w.let(f"lshr i64 -1, {w.let(f'sub i64 {ROW}, {self.width}')}")
        some = w.let(f"select i1 {w.let(f'icmp slt i64 {row}, {self.rows}')}, i64 {bits}, i64 0")
        return w.let(f"bitcast i64 {some} to {MASK}")


def _configure(w: Flow, values: list[str]) -> str:
    """LDTILECFG of palette 1, which refuses sizes too large and reserved bytes that are not zero. Tiles become zero."""
    state, source = values
    given = w.load(BYTES, source)
    limits = constants("i8", [1, *[0] * 15, *[ROW, 0] * TILES, *[0] * 16, *[ROWS] * TILES, *[0] * 8])
    beyond = w.let(f"bitcast <64 x i1> {w.let(f'icmp ugt {BYTES} {given}, {limits}')} to i64")
    _refuse(w, w.let(f"icmp ne i64 {beyond}, 0"))
    _refuse(w, w.let(f"icmp ne i8 {w.let(f'extractelement {BYTES} {given}, i32 0')}, 1"))
    for tile in range(TILES):
        sizes = [w.let(f"extractelement {BYTES} {given}, i32 {place}") for place in (16 + 2 * tile, 48 + tile)]
        none = [w.let(f"icmp eq i8 {size}, 0") for size in sizes]
        _refuse(w, w.let(f"xor i1 {none[0]}, {none[1]}"))
    w.store(BYTES, given, state)
    with w.loop("1", str(1 + TILES * ROWS), 1) as row:
        w.store(BYTES, "zeroinitializer", w.at(state, w.mul(row.index, ROW)))
    return ""


def _release(w: Flow, values: list[str]) -> str:
    """TILERELEASE: no tile is configured any more."""
    w.store(BYTES, "zeroinitializer", values[0])
    return ""


def _load(w: Flow, values: list[str]) -> str:
    """TILELOADD: rows from memory, x3 bytes apart; what is beyond the tile's size becomes zero."""
    state, number, base, stride = values
    tile = _Tile.of(w, state, number)
    with w.loop("0", str(ROWS), 1) as row:
        source = w.at(base, w.mul(row.index, stride))
        made = _masked_load(w, [source, "1", tile.mask(w, row.index), "zeroinitializer"])
        w.store(BYTES, made, w.at(tile.data, w.mul(row.index, ROW)))
    return ""


def _store(w: Flow, values: list[str]) -> str:
    """TILESTORED: rows to memory, x3 bytes apart."""
    state, number, base, stride = values
    tile = _Tile.of(w, state, number)
    with w.loop("0", str(ROWS), 1) as row:
        held = w.load(BYTES, w.at(tile.data, w.mul(row.index, ROW)))
        target = w.at(base, w.mul(row.index, stride))
        _masked_store(w, [held, target, "1", tile.mask(w, row.index)])
    return ""


def _tile_product(signed: bool) -> Write:
    """TDPBSSD, TDPBUSD: the rows of tile x1 += four bytes of the row of tile x2, each, times the rows of tile x3."""

    def write(w: Flow, values: list[str]) -> str:
        state, *numbers = values
        for one, other in ((0, 1), (0, 2), (1, 2)):
            _refuse(w, w.let(f"icmp eq i8 {numbers[one]}, {numbers[other]}"))
        sums, a, b = (_Tile.of(w, state, number) for number in numbers)
        depth = w.let(f"shl i64 {b.rows}, 2")
        for x, y in ((sums.rows, a.rows), (a.width, depth), (sums.width, b.width)):
            _refuse(w, w.let(f"icmp ne i64 {x}, {y}"))
        with w.loop("0", sums.rows, 1) as row:
            along = w.mul(row.index, ROW)
            target, left = w.at(sums.data, along), w.at(a.data, along)
            with w.loop("0", b.rows, 1, [(INTS, w.load(INTS, target))]) as step:
                four = w.splat(ROWS, "i32", w.load("i32", w.at(left, w.mul(step.index, 4))))
                right = w.load(INTS, w.at(b.data, w.mul(step.index, ROW)))
                step.next([_products(ROWS, 8, signed)(w, [step.carried[0], four, right])])
            w.store(INTS, step.carried[0], target)
        return ""

    return write


def _by_halves(narrow: str, result: str, operand: str) -> Instruction:
    """VPACKSSDW, VPACKSSWB, VPACKUSWB, VPMADDWD and VPSHUFB."""
    return Instruction("avx512bw", _halves(narrow, result, operand), result, (operand, operand))


def _dot(feature: str, lanes: int, bits: int) -> Instruction:
    """VPDPBUSD and VPDPWSSD."""
    kind = f"<{lanes} x i32>"
    return Instruction(feature, _products(lanes, bits, signed=bits == 16), kind, (kind,) * 3)


def _masked_load(w: Flow, values: list[str]) -> str:
    """VMOVDQU8 from memory: bytes where the mask is 0 are not read, and stay as they are in x3."""
    pointer, _, mask, kept = values
    operands = (("ptr", pointer), ("i32", "1"), (MASK, mask), (BYTES, kept))
    return w.call(BYTES, "llvm.masked.load.v64i8.p0", *operands)


def _masked_store(w: Flow, values: list[str]) -> str:
    """VMOVDQU8 to memory: bytes where the mask is 0 are not written."""
    value, pointer, _, mask = values
    w.call("void", "llvm.masked.store.v64i8.p0", (BYTES, value), ("ptr", pointer), ("i32", "1"), (MASK, mask))
    return ""


_MEMORY = ("i8", "ptr", "i64")
INSTRUCTIONS = {
    "masked.load.v64i8.p0": Instruction("avx512bw", _masked_load, BYTES, ("ptr", "i32", MASK, BYTES)),
    "masked.store.v64i8.p0": Instruction("avx512bw", _masked_store, "void", (BYTES, "ptr", "i32", MASK)),
    "x86.avx512.packssdw.512": _by_halves("avx2.packssdw", WORDS, INTS),
    "x86.avx512.packsswb.512": _by_halves("avx2.packsswb", BYTES, WORDS),
    "x86.avx512.packuswb.512": _by_halves("avx2.packuswb", BYTES, WORDS),
    "x86.avx512.pmaddw.d.512": _by_halves("avx2.pmadd.wd", INTS, WORDS),
    "x86.avx512.pshuf.b.512": _by_halves("avx2.pshuf.b", BYTES, BYTES),
    "x86.avx512.mask.cvtps2dq.512": Instruction("avx512f", _masked_conversion, INTS, (FLOATS, INTS, "i16", "i32")),
    "x86.avx512.vpdpbusd.512": _dot("avx512vnni", 16, 8),
    "x86.avx512.vpdpwssd.512": _dot("avx512vnni", 16, 16),
    "x86.avx512.vpdpbusd.256": _dot("avxvnni", 8, 8),
    "x86.avx512.vpdpwssd.256": _dot("avxvnni", 8, 16),
    "x86.avx512.vpermi2var.qi.512": Instruction("avx512vbmi", _two_tables, BYTES, (BYTES,) * 3),
    "x86.ldtilecfg": Instruction("amx-tile", _configure, "void", ("ptr",)),
    "x86.tilerelease": Instruction("amx-tile", _release, "void", ()),
    "x86.tileloadd64": Instruction("amx-tile", _load, "void", _MEMORY),
    "x86.tilestored64": Instruction("amx-tile", _store, "void", _MEMORY),
    "x86.tdpbssd": Instruction("amx-int8", _tile_product(signed=True), "void", ("i8",) * 3),
    "x86.tdpbusd": Instruction("amx-int8", _tile_product(signed=False), "void", ("i8",) * 3),
}
"""By name of the intrinsic, without "llvm."."""
