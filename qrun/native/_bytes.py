"""Vectors of bytes as int32 or float32 lanes and back, the same on every instruction set.

A vector holds pieces of 16 bytes. As lanes it is four vectors: vector j has bytes 4j..4j+3 of every piece, which is what
unpacking makes of them and packing expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qrun.native._ir import Writer, constants, indices
from qrun.native.isa import Isa

PIECE = 16
DOUBLES = 4096.0
_DOUBLES_TOP = 0x40B0
_NEON = "llvm.aarch64.neon."
_WORDS = {16: "avx512.packssdw.512", 8: "avx2.packssdw", 4: "sse2.packssdw.128"}
_U8 = {16: "avx512.packuswb.512", 8: "avx2.packuswb", 4: "sse2.packuswb.128"}
_S8 = {16: "avx512.packsswb.512", 8: "avx2.packsswb", 4: "sse2.packsswb.128"}
_MADD = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
_MADD_ADD = {"vnni512": "llvm.x86.avx512.vpdpwssd.512", "vnni256": "llvm.x86.avx512.vpdpwssd.256"}


def lane_order(pieces: int) -> list[int]:
    """The byte that each lane of the four vectors holds, one vector after the other."""
    return [int(i) for i in np.arange(PIECE * pieces).reshape(pieces, 4, 4).transpose(1, 0, 2).reshape(-1)]


@dataclass(frozen=True, slots=True)
class Bytes:
    """Conversions of one kernel; narrow: lanes of each of the four vectors, if not as many as there are."""

    w: Writer
    isa: Isa
    narrow: int = 0

    @property
    def lanes(self) -> int:
        return self.narrow or self.isa.lanes

    @property
    def width(self) -> int:
        return 4 * self.lanes

    @property
    def ints32(self) -> str:
        return f"<{self.lanes} x i32>"

    @property
    def kind(self) -> str:
        return f"<{self.width} x i8>"

    @property
    def floats(self) -> str:
        return f"<{self.lanes} x float>"

    @property
    def neon(self) -> bool:
        return self.isa.architecture == "aarch64"

    @property
    def floats64(self) -> str:
        """Half of a vector's lanes."""
        return f"<{self.lanes // 2} x double>"

    def flipped(self, x: str) -> str:
        """int8 codes as uint8, 128 higher."""
        return self.w.let(f"xor {self.kind} {x}, {constants('i8', [-128] * self.width)}")

    def pairs(self, a: str, b: str) -> list[str]:
        """int32 lanes whose low half is a byte of a and whose high half is the byte of b."""
        return [
            self.w.let(f"bitcast {self.kind} {words} to {self.ints32}")
            for both in (self._unpack(a, b, half) for half in (0, 1))
            for words in (self._unpack(both, "zeroinitializer", half) for half in (0, 1))
        ]

    def ints(self, x: str, signed: bool = False) -> list[str]:
        """int32 lanes of bytes, uint8 or int8."""
        w, n, kind, half = self.w, self.lanes, self.ints32, f"<{2 * self.lanes} x i16>"
        lanes = []
        for part in (0, 1):
            pair = ("zeroinitializer", x) if signed else (x, "zeroinitializer")
            words = w.let(f"bitcast {self.kind} {self._unpack(*pair, part)} to {half}")
            for quarter in (0, 1):
                order = self._unpacking(2 * n, PIECE // 2, quarter)
                two = f"{half} zeroinitializer, {half} {words}" if signed else f"{half} {words}, {half} zeroinitializer"
                lane = w.let(f"bitcast {half} {w.let(f'shufflevector {two}, {order}')} to {kind}")
                lanes.append(w.let(f"ashr {kind} {lane}, {constants('i32', [24] * n)}") if signed else lane)
        return lanes

    def numbers(self, x: str, signed: bool = False) -> list[str]:
        """float32 lanes of bytes."""
        return [self.w.let(f"sitofp {self.ints32} {lane} to {self.floats}") for lane in self.ints(x, signed)]

    def doubles(self, x: str) -> list[tuple[str, str]]:
        """float64 of uint8 codes, DOUBLES higher: for each of the four vectors of lanes the halves that `low_words` joins.

        A double of this size has the code at the top of its sixth byte, so that unpacking alone makes it.
        """
        w, n, half, kind = self.w, self.lanes, f"<{2 * self.lanes} x i16>", self.ints32
        top, pairs = constants("i16", [_DOUBLES_TOP] * (2 * n)), []
        for part in (0, 1):
            words = w.let(f"bitcast {self.kind} {self._unpack('zeroinitializer', x, part)} to {half}")
            for quarter in (0, 1):
                order = self._unpacking(2 * n, PIECE // 2, quarter)
                lane = w.let(f"shufflevector {half} {words}, {half} {top}, {order}")
                lane = w.let(f"bitcast {half} {lane} to {kind}")
                orders = (self._unpacking(n, PIECE // 4, side) for side in (0, 1))
                sides = (w.let(f"shufflevector {kind} zeroinitializer, {kind} {lane}, {order}") for order in orders)
                low, high = (w.let(f"bitcast {kind} {side} to {self.floats64}") for side in sides)
                pairs.append((low, high))
        return pairs

    def low_words(self, low: str, high: str) -> str:
        """int32 lanes: the low halves of float64 values."""
        w, n, kind = self.w, self.lanes, self.ints32
        words = [w.let(f"bitcast {self.floats64} {value} to {kind}") for value in (low, high)]
        order = [base + i + side for base in range(0, n, 4) for side in (0, n) for i in (0, 2)]
        return w.let(f"shufflevector {kind} {words[0]}, {kind} {words[1]}, <{n} x i32> {indices(order)}")

    def weighted(self, a: str, b: str, weights: str, offset: str) -> list[str]:
        """int32 lanes a * low half + b * high half + offset; weights hold two int16."""
        w, kind, n = self.w, self.ints32, self.lanes
        if self.neon:
            shift = constants("i32", [16] * n)
            low = w.let(f"ashr {kind} {w.let(f'shl {kind} {weights}, {shift}')}, {shift}")
            high = w.let(f"ashr {kind} {weights}, {shift}")
            sums = [w.let(f"add {kind} {w.let(f'mul {kind} {x}, {low}')}, {offset}") for x in self.ints(a)]
            return [
                w.let(f"add {kind} {w.let(f'mul {kind} {x}, {high}')}, {total}")
                for x, total in zip(self.ints(b), sums, strict=True)
            ]
        if self.isa.dot in _MADD_ADD and n == self.isa.lanes:
            name = _MADD_ADD[self.isa.dot]
            return [w.call(kind, name, (kind, offset), (kind, x), (kind, weights)) for x in self.pairs(a, b)]
        half = f"<{2 * n} x i16>"
        right = w.let(f"bitcast {kind} {weights} to {half}")
        products = (
            w.call(kind, f"llvm.x86.{_MADD[n]}", (half, w.let(f"bitcast {kind} {x} to {half}")), (half, right))
            for x in self.pairs(a, b)
        )
        return [w.let(f"add {kind} {product}, {offset}") for product in products]

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once where the hardware does so, else twice."""
        if self.isa.fma:
            operands = ((self.floats, value) for value in (a, b, c))
            return self.w.call(self.floats, f"llvm.fma.v{self.lanes}f32", *operands)
        return self.mul_add(a, b, c)

    def mul_add(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded twice."""
        return self.w.let(f"fadd {self.floats} {self.w.let(f'fmul {self.floats} {a}, {b}')}, {c}")

    def stored(self, values: Sequence[str], add: str, out: str) -> str:
        """float32 lanes to bytes: rounded to nearest, ties to even; `add`, an i16 vector, added; saturated."""
        return self.saturated([self._rounded(value) for value in values], add, out)

    def saturated(self, lanes: Sequence[str], add: str, out: str) -> str:
        """int32 lanes to bytes: `add`, an i16 vector, added; saturated."""
        w, n = self.w, self.lanes
        half = f"<{2 * n} x i16>"
        words = [self._narrowed(lanes[i], lanes[i + 1]) for i in (0, 2)]
        sums = [w.call(half, f"llvm.sadd.sat.v{2 * n}i16", (half, word), (half, add)) for word in words]
        if self.neon:
            narrow = f"{_NEON}{'sqxtun' if out == 'u8' else 'sqxtn'}.v8i8"
            return self._join("i8", 8, *(w.call("<8 x i8>", narrow, (half, value)) for value in sums))
        narrow = (_U8 if out == "u8" else _S8)[n]
        return w.call(self.kind, f"llvm.x86.{narrow}", *((half, value) for value in sums))

    def _rounded(self, value: str) -> str:
        w, n, kind = self.w, self.lanes, self.ints32
        if self.neon:
            return w.call(kind, f"{_NEON}fcvtns.v4i32.v4f32", (self.floats, value))
        if n == 16:
            rest = ((kind, "zeroinitializer"), ("i16", "-1"), ("i32", "4"))
            return w.call(kind, "llvm.x86.avx512.mask.cvtps2dq.512", (self.floats, value), *rest)
        name = "llvm.x86.avx.cvt.ps2dq.256" if n == 8 else "llvm.x86.sse2.cvtps2dq"
        return w.call(kind, name, (self.floats, value))

    def _narrowed(self, a: str, b: str) -> str:
        w, n, kind = self.w, self.lanes, self.ints32
        if self.neon:
            return self._join("i16", 4, *(w.call("<4 x i16>", f"{_NEON}sqxtn.v4i16", (kind, v)) for v in (a, b)))
        return w.call(f"<{2 * n} x i16>", f"llvm.x86.{_WORDS[n]}", (kind, a), (kind, b))

    def _join(self, element: str, count: int, a: str, b: str) -> str:
        half = f"<{count} x {element}>"
        return self.w.let(f"shufflevector {half} {a}, {half} {b}, <{2 * count} x i32> {indices(range(2 * count))}")

    def _unpack(self, a: str, b: str, half: int) -> str:
        order = self._unpacking(self.width, PIECE, half)
        return self.w.let(f"shufflevector {self.kind} {a}, {self.kind} {b}, {order}")

    @staticmethod
    def _unpacking(count: int, piece: int, half: int) -> str:
        """Low or high halves of pieces of both operands, by turns."""
        places = [
            base + half * piece // 2 + i + source * count
            for base in range(0, count, piece)
            for i in range(piece // 2)
            for source in (0, 1)
        ]
        return f"<{count} x i32> {indices(places)}"
