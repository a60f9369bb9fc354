"""The instruction-set specific leaf: int32 lanes += four 8-bit activations times four signed 8-bit weights.

Activations are unsigned, or signed for sdot and smull (Isa.shift). Every form is exact modulo 2**32. The 16-bit forms of
x86 add products of even and of odd bytes: vpmaddubsw saturates, and serves _clipped.py alone.
"""

from __future__ import annotations

from qrun.native._ir import Writer, constants, indices
from qrun.native.isa import Isa

Operand = tuple[str, ...]

_VNNI = {"vnni512": "llvm.x86.avx512.vpdpbusd.512", "vnni256": "llvm.x86.avx512.vpdpbusd.256"}
_MADD = {"madd512": "llvm.x86.avx512.pmaddw.d.512", "madd256": "llvm.x86.avx2.pmadd.wd"}
_MAC16 = {"vnni512": "llvm.x86.avx512.vpdpwssd.512", "vnni256": "llvm.x86.avx512.vpdpwssd.256"}
_NEON = "llvm.aarch64.neon."
_WHOLE = (*_VNNI, "usdot", "sdot", "smull")
"""Those that take packed bytes as they are."""


def int32s(isa: Isa) -> str:
    return f"<{isa.lanes} x i32>"


def int16s(isa: Isa) -> str:
    return f"<{2 * isa.lanes} x i16>"


def activations(w: Writer, isa: Isa, packed: str) -> Operand:
    """`packed`: int32 lanes of four bytes each."""
    if isa.dot in _WHOLE:
        return (packed,)
    kind = int16s(isa)
    pairs = w.let(f"bitcast {int32s(isa)} {packed} to {kind}")
    even = w.let(f"and {kind} {pairs}, {constants('i16', [255] * 2 * isa.lanes)}")
    odd = w.let(f"lshr {kind} {pairs}, {constants('i16', [8] * 2 * isa.lanes)}")
    return even, odd


def weights(w: Writer, isa: Isa, packed: str) -> Operand:
    """`packed`: int32 lanes of four signed bytes each."""
    if isa.dot in _WHOLE:
        return (packed,)
    kind, eight = int16s(isa), constants("i16", [8] * 2 * isa.lanes)
    pairs = w.let(f"bitcast {int32s(isa)} {packed} to {kind}")
    low = w.let(f"shl {kind} {pairs}, {eight}")
    return w.let(f"ashr {kind} {low}, {eight}"), w.let(f"ashr {kind} {pairs}, {eight}")


def dot(w: Writer, isa: Isa, acc: str, x: Operand, weight: Operand, name: str = "") -> str:
    kind = int32s(isa)
    if isa.dot in _VNNI:
        return w.call(kind, _VNNI[isa.dot], (kind, acc), (kind, x[0]), (kind, weight[0]), name=name)
    if isa.dot in _WHOLE:
        return _neon(w, isa, acc, x[0], weight[0], name)
    even, odd = (pairs(w, isa, a, b) for a, b in zip(x, weight, strict=True))
    return w.let(f"add {kind} {acc}, {w.let(f'add {kind} {even}, {odd}')}", name)


def _neon(w: Writer, isa: Isa, acc: str, x: str, weight: str, name: str) -> str:
    kind, half, pairs = "<16 x i8>", "<8 x i8>", "<8 x i16>"
    a, b = (w.let(f"bitcast {int32s(isa)} {value} to {kind}") for value in (x, weight))
    if isa.dot != "smull":
        pair = ((kind, a), (kind, b)) if isa.dot == "usdot" else ((kind, b), (kind, a))
        return w.call(int32s(isa), f"{_NEON}{isa.dot}.v4i32.v16i8", (int32s(isa), acc), *pair, name=name)
    sums = []
    for first in (0, 8):
        lanes = indices(range(first, first + 8))
        left, right = (w.let(f"shufflevector {kind} {v}, {kind} poison, <8 x i32> {lanes}") for v in (a, b))
        product = w.call(pairs, f"{_NEON}smull.v8i16", (half, left), (half, right))
        sums.append(w.call(int32s(isa), f"{_NEON}saddlp.v4i32.v8i16", (pairs, product)))
    four = w.call(int32s(isa), f"{_NEON}addp.v4i32", *((int32s(isa), value) for value in sums))
    return w.let(f"add {int32s(isa)} {acc}, {four}", name)


def pairs(w: Writer, isa: Isa, a: str, b: str) -> str:
    """Sums of neighbouring products of int16."""
    kind, half = int32s(isa), int16s(isa)
    if isa.dot in _MADD:
        return w.call(kind, _MADD[isa.dot], (half, a), (half, b))
    wide = f"<{2 * isa.lanes} x i32>"
    product = w.let(f"mul nsw {wide} {w.let(f'sext {half} {a} to {wide}')}, {w.let(f'sext {half} {b} to {wide}')}")
    parts = []
    for first in (0, 1):
        lanes = indices(range(first, 2 * isa.lanes, 2))
        parts.append(w.let(f"shufflevector {wide} {product}, {wide} poison, <{isa.lanes} x i32> {lanes}"))
    return w.let(f"add {kind} {parts[0]}, {parts[1]}")


def multiply_add(w: Writer, isa: Isa, acc: str, x: str, weight: str, name: str = "") -> str:
    """acc + x * weight, lane by lane: x int32 lanes within int16, weight int32 lanes that hold an int16 zero-extended."""
    kind, half = int32s(isa), int16s(isa)
    if isa.dot in _MAC16:
        return w.call(kind, _MAC16[isa.dot], (kind, acc), (kind, x), (kind, weight), name=name)
    if isa.dot in _WHOLE:
        low = f"<{isa.lanes} x i16>"
        pair = ((low, w.let(f"trunc {kind} {value} to {low}")) for value in (x, weight))
        return w.let(f"add {kind} {acc}, {w.call(kind, f'{_NEON}smull.v4i32', *pair)}", name)
    a = w.let(f"bitcast {kind} {x} to {half}")
    b = w.let(f"bitcast {kind} {weight} to {half}")
    return w.let(f"add {kind} {acc}, {pairs(w, isa, a, b)}", name)
