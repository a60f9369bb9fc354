"""How LLVM IR writes types, and constants of them."""

from __future__ import annotations

import struct
from functools import cache

REAL = {"double": "f64", "float": "f32"}
"""LLVM types of real numbers, and their suffixes in the names of intrinsics."""


@cache
def parts(kind: str) -> tuple[int, str]:
    """Lanes (0 for a scalar) and element of a type."""
    if not kind.startswith("<"):
        return 0, kind
    count, _, element = kind[1:-1].partition(" x ")
    return int(count), element


def suffix(kind: str) -> str:
    """How a type is written in the names of overloaded intrinsics."""
    lanes, element = parts(kind)
    return (f"v{lanes}" if lanes else "") + REAL.get(element, element)


def real(value: float) -> str:
    """A constant of float or double, bit by bit; for float one that it can hold."""
    return f"0x{struct.pack('>d', value).hex().upper()}"


def every(kind: str, value: int | str, lanes: int) -> str:
    """A constant vector with the same value in every lane."""
    return f"<{', '.join([f'{kind} {value}'] * lanes)}>"
