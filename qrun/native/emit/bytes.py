"""Conversion of vectors of bytes to int32 or float32 lanes and back, with the same results on every instruction set.

A vector of bytes holds pieces of 16 bytes. It becomes four vectors of lanes: vector j has bytes 4j..4j+3 of every
piece. Unpack instructions produce this order, and pack instructions expect it. For two pieces (eight lanes):

    bytes      0  1  2  3 |  4  5  6  7 |  8 .. 11 | 12 .. 15 || 16 17 18 19 | 20 .. 23 | 24 .. 27 | 28 .. 31
    vector 0   0  1  2  3 16 17 18 19      vector 1   4 ..  7 20 .. 23
    vector 2   8 .. 11 24 .. 27            vector 3  12 .. 15 28 .. 31
"""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.dot import multiply_add
from qrun.native.emit.flow import Flow
from qrun.native.emit.isa import Isa
from qrun.native.emit.spec import PIECE
from qrun.native.emit.values import ZERO, Value

_DOUBLES_TOP = 0x40B0
"""The upper two bytes of 4096.0."""
_NEON = "llvm.aarch64.neon."
_WORDS = {16: "avx512.packssdw.512", 8: "avx2.packssdw", 4: "sse2.packssdw.128"}
_U8 = {16: "avx512.packuswb.512", 8: "avx2.packuswb", 4: "sse2.packuswb.128"}
_S8 = {16: "avx512.packsswb.512", 8: "avx2.packsswb", 4: "sse2.packsswb.128"}


def packed_words(isa: Isa, a: Value, b: Value) -> Value:
    """int32 lanes of two vectors as int16, saturated. In each 16 bytes, a fills the first half and b the second."""
    w, n = a.w, a.lanes
    if isa.architecture == "aarch64":
        low, high = (w.call("<4 x i16>", f"{_NEON}sqxtn.v4i16", value) for value in (a, b))
        return low.shuffle(range(8), high)
    return w.call(f"<{2 * n} x i16>", f"llvm.x86.{_WORDS[n]}", a, b)


def packed_bytes(isa: Isa, out: str, a: Value, b: Value) -> Value:
    """int16 lanes of two vectors as bytes, saturated and ordered as in `packed_words`. out: "u8" or "s8"."""
    w, n = a.w, a.lanes
    if isa.architecture == "aarch64":
        narrow = f"{_NEON}{'sqxtun' if out == 'u8' else 'sqxtn'}.v8i8"
        low, high = (w.call("<8 x i8>", narrow, value) for value in (a, b))
        return low.shuffle(range(16), high)
    return w.call(f"<{2 * n} x i8>", f"llvm.x86.{(_U8 if out == 'u8' else _S8)[n // 2]}", a, b)


def in_order(packed: Value) -> Value:
    """Bytes packed from four vectors, reordered so that each vector's bytes are contiguous: a0 a1 a2 ... b0 b1 ..."""
    n = packed.lanes // 4
    order = [4 * block + vector for vector in range(4) for block in range(n // 4)]
    return packed.bitcast(f"<{n} x i32>").shuffle(order).bitcast(packed.kind)


def flip_sign_bit(codes: Value) -> Value:
    """int8 codes as uint8 codes that are 128 higher, or uint8 codes as int8 codes that are 128 lower."""
    return codes ^ -128


def look_up_bytes(table: Sequence[Value], x: Value) -> Value:
    """table[x] for 64 uint8 codes; table: its 256 bytes in four vectors.

    Each instruction takes entry x modulo 128 of two registers; codes of the upper ones have the sign bit set.
    """
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    low, high = (x.w.call(x.kind, name, table[i], x, table[i + 1]) for i in (0, 2))
    return x.test("slt", ZERO).select(high, low)


def byte_sums(x: Value) -> Value:
    """The sums of every 8 neighbours among 64 uint8 codes, as <8 x i64>."""
    return x.w.call("<8 x i64>", "llvm.x86.avx512.psad.bw.512", x, x.w.zero(x.kind))


class Bytes:
    """Writes the conversions of one kernel.

    lanes:   of each of the four vectors; by default those of the instruction set. width: bytes in a vector of bytes.
    kind, ints16, ints32, floats, floats64: the LLVM types of a vector of bytes; of half of it as int16; of a quarter
             as int32 or float32; and of half of the lanes of such a quarter as float64.
    """

    def __init__(self, w: Flow, isa: Isa, lanes: int = 0) -> None:
        self.w, self.isa = w, isa
        self.lanes = n = lanes or isa.lanes
        self.width = 4 * n
        self.kind, self.ints16, self.ints32 = f"<{4 * n} x i8>", f"<{2 * n} x i16>", f"<{n} x i32>"
        self.floats, self.floats64 = f"<{n} x float>", f"<{n // 2} x double>"

    def unpack(self, a: Value, b: Value, half: int) -> Value:
        """Elements of a and b in turn, from the lower (half 0) or upper half of each 16 bytes."""
        return a.shuffle(unpack_order(a.lanes, PIECE * a.lanes // self.width, half), b)

    def pairs(self, a: Value, b: Value) -> list[Value]:
        """int32 lanes whose low half is a byte of a and whose high half is the byte of b at the same place."""
        return [
            self.unpack(both, self.w.zero(self.kind), quarter).bitcast(self.ints32)
            for both in (self.unpack(a, b, half) for half in (0, 1))
            for quarter in (0, 1)
        ]

    def ints(self, x: Value, signed: bool = False) -> list[Value]:
        """Bytes, uint8 or int8, as int32 lanes. int8 is put at the top of its lane, then shifted down with its sign."""
        lanes, nothing, none = [], self.w.zero(self.kind), self.w.zero(self.ints16)
        for half in (0, 1):
            words = self.unpack(nothing, x, half) if signed else self.unpack(x, nothing, half)
            words = words.bitcast(self.ints16)
            for quarter in (0, 1):
                lane = self.unpack(none, words, quarter) if signed else self.unpack(words, none, quarter)
                lane = lane.bitcast(self.ints32)
                lanes.append(lane.ashr(24) if signed else lane)
        return lanes

    def numbers(self, x: Value, signed: bool = False) -> list[Value]:
        """Bytes, uint8 or int8, as float32 lanes."""
        return [lane.sitofp("float") for lane in self.ints(x, signed)]

    def doubles(self, x: Value) -> list[tuple[Value, Value]]:
        """uint8 codes plus 4096 as float64: for each of the four vectors of lanes, the two halves that `low_words`
        joins.

        Byte 5 of such a double is the code, so unpacking alone makes it:

            byte    7    6    5    4  3  2  1  0
                   0x40 0xB0 code  0  0  0  0  0
        """
        nothing, none, top = self.w.zero(self.kind), self.w.zero(self.ints32), self.w.value(self.ints16, _DOUBLES_TOP)
        made = []
        for half in (0, 1):
            words = self.unpack(nothing, x, half).bitcast(self.ints16)
            for quarter in (0, 1):
                lane = self.unpack(words, top, quarter).bitcast(self.ints32)
                low, high = (self.unpack(none, lane, side).bitcast(self.floats64) for side in (0, 1))
                made.append((low, high))
        return made

    def low_words(self, low: Value, high: Value) -> Value:
        """The low 32 bits of float64 values, as int32 lanes."""
        n = self.lanes
        words = [value.bitcast(self.ints32) for value in (low, high)]
        return words[0].shuffle([b + i + side for b in range(0, n, 4) for side in (0, n) for i in (0, 2)], words[1])

    def weighted_sum(self, a: Value, b: Value, weights: Value, offset: Value) -> list[Value]:
        """a * w0 + b * w1 + offset as int32 lanes. Each lane of `weights` has two int16:
        w0 is the low half, w1 the high one."""
        if self.isa.architecture == "aarch64":
            low = (weights << 16).ashr(16)
            high = weights.ashr(16)
            sums = [x * low + offset for x in self.ints(a)]
            return [x * high + total for x, total in zip(self.ints(b), sums, strict=True)]
        return [multiply_add(self.isa, offset, x, weights) for x in self.pairs(a, b)]

    def round_to_bytes(self, values: Sequence[Value], add: Value, out: str) -> Value:
        """float32 lanes as bytes: rounded to nearest, ties to even; then `add`, a vector of i16, is added;
        then saturated."""
        return self.saturate_to_bytes([self._round(value) for value in values], add, out)

    def saturate_to_bytes(self, lanes: Sequence[Value], add: Value, out: str) -> Value:
        """int32 lanes as bytes: `add`, a vector of i16, is added; then saturated."""
        words = [packed_words(self.isa, lanes[i], lanes[i + 1]) for i in (0, 2)]
        return packed_bytes(self.isa, out, *[word.intrinsic("sadd.sat", add) for word in words])

    def _round(self, value: Value) -> Value:
        """float32 lanes as int32, by the processor's rounding mode: to nearest, ties to even."""
        w, kind = self.w, self.ints32
        if self.isa.architecture == "aarch64":
            return w.call(kind, f"{_NEON}fcvtns.v4i32.v4f32", value)
        if self.lanes == 16:
            rest = (w.zero(kind), ("i16", "-1"), ("i32", "4"))
            return w.call(kind, "llvm.x86.avx512.mask.cvtps2dq.512", value, *rest)
        name = "llvm.x86.avx.cvt.ps2dq.256" if self.lanes == 8 else "llvm.x86.sse2.cvtps2dq"
        return w.call(kind, name, value)


def unpack_order(count: int, piece: int, half: int) -> list[int]:
    """The order that interleaves two vectors of `count` elements piece by piece, as x86's unpack instructions do.

    For pieces of 8 elements of a and of b:   half 0: a0 b0 a1 b1 a2 b2 a3 b3   half 1: a4 b4 a5 b5 a6 b6 a7 b7
    """
    starts = [base + half * piece // 2 + i for base in range(0, count, piece) for i in range(piece // 2)]
    return [start + source for start in starts for source in (0, count)]


def interleave(rows: list[Value]) -> list[Value]:
    """Transpose vectors [rows][count] of integers to [count][rows], in pieces of 16 bytes, or one smaller piece.

    The number of rows is a power of two, or 3 if rows have at least 16 bytes. Longer rows are treated as lanes of 16
    bytes: the first lanes of all pieces come before the second ones; `regroup_halves` or `sixteens` puts them in order.
    """
    size, count = _bytes(rows[0]), rows[0].lanes
    each = min(count, 16 // size)
    if len(rows) == 3:
        return _three(rows, count, each)
    pieces = [[row] for row in rows]
    while len(pieces) > 1:
        half = len(pieces) // 2
        pieces = [
            [piece for x, y in zip(pieces[i], pieces[i + half], strict=True) for piece in _pair(x, y, each)]
            for i in range(half)
        ]
        each = min(2 * each, 16 // size)
    return pieces[0]


def _bytes(vector: Value) -> int:
    """The size in bytes of an integer vector's element."""
    return int(vector.element[1:]) // 8


def _pair(a: Value, b: Value, each: int) -> list[Value]:
    """Alternate elements of a and b in lanes of `each`: one vector if the new lanes have at most 16 bytes, else two."""
    low, high = (unpack_order(a.lanes, each, half) for half in (0, 1))
    if 2 * each * _bytes(a) <= 16:
        return [a.shuffle(low + high, b)]
    return [a.shuffle(low, b), a.shuffle(high, b)]


def regroup_halves(pieces: list[Value]) -> list[Value]:
    """Pieces of 32 bytes, regrouped into vectors whose two halves of 16 bytes are neighbours."""
    count = pieces[0].lanes
    half = count // 2
    return [
        a.shuffle([*range(start, start + half), *range(count + start, count + start + half)], b)
        for start in (0, half)
        for a, b in zip(pieces[::2], pieces[1::2], strict=True)
    ]


def sixteens(pieces: list[Value]) -> list[Value]:
    """Split pieces into their lanes of 16 bytes: one list of all lanes, in order."""
    each = 16 // _bytes(pieces[0])
    return [piece.shuffle(range(start, start + each)) for start in range(0, pieces[0].lanes, each) for piece in pieces]


def _three(rows: list[Value], count: int, each: int) -> list[Value]:
    """The elements of three rows, interleaved within each lane of `each` elements."""
    pieces = []
    for first in range(0, 3 * each, each):
        two, three = [], []
        places = [(lane, p) for lane in range(0, count, each) for p in range(first, first + each)]
        for position, (lane, p) in enumerate(places):
            source = lane + p // 3
            two.append(source + p % 3 * count if p % 3 < 2 else -1)
            three.append(position if p % 3 < 2 else count + source)
        pieces.append(rows[0].shuffle(two, rows[1]).shuffle(three, rows[2]))
    return pieces


def store_first(w: Flow, value: Value, count: Value, pointer: Value) -> None:
    """Store the first `count` of 16 bytes, count < 16: one store each of 8, 4, 2 and 1 bytes, by the bits of count."""
    for size in (8, 4, 2, 1):
        some = count & size
        on = some.test("ne", 0)
        with w.when(on):
            pointer.store(value.shuffle(range(size)))
        rest = value.shuffle((i + size) % 16 for i in range(16))
        value = on.select(rest, value)
        pointer = pointer + some
