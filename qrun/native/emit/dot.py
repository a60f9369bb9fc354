"""The dot product of each instruction set: int32 lanes += four 8-bit activations times four signed 8-bit weights.

Activations are unsigned, or signed for sdot and smull (Isa.shift). Every form is exact modulo 2**32. For a lane's bytes
x0 x1 x2 x3 and w0 w1 w2 w3, first to last:

    vnni, usdot, sdot   x0 w0 + x1 w1 + x2 w2 + x3 w3 by one instruction
    smull               the four products in 16 bits, then neighbours added twice
    madd, generic       x0 | x2 and w0 | w2 as int16 give x0 w0 + x2 w2 in 32 bits (vpmaddwd); x1 | x3 and w1 | w3 give
                        the rest

vpmaddubsw takes bytes directly, but saturates: `neighbours` uses it where sums of products stay within 16 bits.
"""

from __future__ import annotations

from qrun.native.emit.isa import Isa
from qrun.native.emit.values import Value

Bytes4 = tuple[Value, ...]
"""Four bytes per lane: one vector of bytes, or two vectors of int16 with the even and the odd bytes."""

_VNNI = {"vnni512": "llvm.x86.avx512.vpdpbusd.512", "vnni256": "llvm.x86.avx512.vpdpbusd.256"}
_MADD = {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd", 4: "sse2.pmadd.wd"}
"""By the number of int32 in the result."""
_BYTES = {16: "avx512.pmaddubs.w.512", 8: "avx2.pmadd.ub.sw"}
"""By the number of int32 that an operand has room for."""
_MAC16 = {"vnni512": "llvm.x86.avx512.vpdpwssd.512", "vnni256": "llvm.x86.avx512.vpdpwssd.256"}
_NEON = "llvm.aarch64.neon."
_WHOLE = (*_VNNI, "usdot", "sdot", "smull")
"""Dot products that take packed bytes as they are."""


def int32s(isa: Isa) -> str:
    """LLVM's type of a vector of int32."""
    return f"<{isa.lanes} x i32>"


def int16s(isa: Isa) -> str:
    """LLVM's type of a vector of int16."""
    return f"<{2 * isa.lanes} x i16>"


def activations(isa: Isa, packed: Value) -> Bytes4:
    """Activations in the form that `dot` takes. packed: int32 lanes of four bytes each."""
    if isa.dot in _WHOLE:
        return (packed,)
    words = packed.bitcast(int16s(isa))
    return words & 255, words.lshr(8)


def weights(isa: Isa, packed: Value) -> Bytes4:
    """Weights in the form that `dot` takes. packed: int32 lanes of four signed bytes each."""
    if isa.dot in _WHOLE:
        return (packed,)
    words = packed.bitcast(int16s(isa))
    return (words << 8).ashr(8), words.ashr(8)


def dot(isa: Isa, acc: Value, x: Bytes4, weight: Bytes4) -> Value:
    """acc plus the sum of the four products in each lane."""
    if isa.dot in _VNNI:
        return acc.w.call(acc.kind, _VNNI[isa.dot], acc, x[0], weight[0])
    if isa.dot in _WHOLE:
        return _neon(isa, acc, x[0], weight[0])
    even, odd = (pairs(a, b) for a, b in zip(x, weight, strict=True))
    return acc + (even + odd)


def _neon(isa: Isa, acc: Value, x: Value, weight: Value) -> Value:
    """Add the products of groups of four bytes to `acc` on AArch64."""
    w, kind = acc.w, acc.kind
    a, b = (value.bitcast("<16 x i8>") for value in (x, weight))
    if isa.dot != "smull":
        pair = (a, b) if isa.dot == "usdot" else (b, a)
        return w.call(kind, f"{_NEON}{isa.dot}.v4i32.v16i8", acc, *pair)
    sums = []
    for first in (0, 8):
        left, right = (value.shuffle(range(first, first + 8)) for value in (a, b))
        product = w.call("<8 x i16>", f"{_NEON}smull.v8i16", left, right)
        sums.append(w.call(kind, f"{_NEON}saddlp.v4i32.v8i16", product))
    return acc + w.call(kind, f"{_NEON}addp.v4i32", *sums)


def pairs(a: Value, b: Value) -> Value:
    """int32 sums of the products of neighbouring int16, on x86."""
    lanes = a.lanes // 2
    return a.w.call(f"<{lanes} x i32>", f"llvm.x86.{_MADD[lanes]}", a, b)


def neighbours(x: Value, weight: Value) -> Value:
    """int16 sums of the products of neighbouring bytes, on x86 with AVX2. They saturate. x: unsigned bytes, weight:
    signed bytes, both as vectors of any integers."""
    lanes, kind = x.lanes * int(x.element[1:]) // 32, f"<{x.lanes * int(x.element[1:]) // 8} x i8>"
    return x.w.call(f"<{2 * lanes} x i16>", f"llvm.x86.{_BYTES[lanes]}", x.bitcast(kind), weight.bitcast(kind))


def multiply_add(isa: Isa, acc: Value, x: Value, weight: Value) -> Value:
    """acc + x * weight, lane by lane. x: int32 lanes within int16. weight: int32 lanes with a zero-extended int16.
    On x86 lanes may hold two int16 each, whose products are added; and vectors may have fewer lanes than the
    instruction set's."""
    if isa.dot in _MAC16 and acc.lanes == isa.lanes:
        return acc.w.call(acc.kind, _MAC16[isa.dot], acc, x, weight)
    if isa.architecture == "aarch64":
        low = (value.trunc("i16") for value in (x, weight))
        return acc + acc.w.call(acc.kind, f"{_NEON}smull.v4i32", *low)
    halves = f"<{2 * acc.lanes} x i16>"
    return acc + pairs(x.bitcast(halves), weight.bitcast(halves))
