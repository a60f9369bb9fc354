"""Cast to floats in Python fractions, from the tables of ONNX Cast and the formats' definitions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Format:
    """mantissa: stored bits; least: exponent of the smallest normal number; largest: FLT_MAX."""

    mantissa: int
    least: int
    largest: Fraction
    inf: bool = False
    nan: bool = True
    negative_zero: bool = True


FORMATS = {
    "float32": Format(23, -126, Fraction(2**24 - 1) * 2**104, inf=True),
    "float16": Format(10, -14, Fraction(65504), inf=True),
    "bfloat16": Format(7, -126, Fraction(255) * 2**120, inf=True),
    "float8_e4m3fn": Format(3, -6, Fraction(448)),
    "float8_e4m3fnuz": Format(3, -7, Fraction(240), negative_zero=False),
    "float8_e5m2": Format(2, -14, Fraction(57344), inf=True),
    "float8_e5m2fnuz": Format(2, -15, Fraction(57344), negative_zero=False),
    "float6_e2m3fn": Format(3, 0, Fraction(15, 2), nan=False),
    "float6_e3m2fn": Format(2, -2, Fraction(28), nan=False),
    "float4_e2m1fn": Format(1, 0, Fraction(6), nan=False),
}
LARGEST = {name: float(form.largest) for name, form in FORMATS.items()}
HUGE = 128
"""Beyond all formats."""
SMALL = [name for name in FORMATS if name != "float32"]


def nearest(value: Fraction, dtype: Any) -> float:
    """The number of this type nearest to a real one, ties to even; beyond the type an infinity, if it has one."""
    return cast(value, np.dtype(dtype).name, False)


def scaled(x: Fraction, exponent: int) -> tuple[int, int]:
    """x / 2**exponent, above and below the line: whole numbers take a small part of the time of fractions."""
    return x.numerator << max(-exponent, 0), x.denominator << max(exponent, 0)


def floor_log2(x: Fraction) -> int:
    guess = x.numerator.bit_length() - x.denominator.bit_length()
    above, below = scaled(x, guess)
    return guess if above >= below else guess - 1


def nearest_whole(above: int, below: int) -> int:
    """Ties to even."""
    whole, rest = divmod(above, below)
    return whole + (2 * rest > below or (2 * rest == below and whole % 2 == 1))


def cast(x: float | Fraction, name: str, saturate: bool, version: int = 28) -> float:
    """The value that x becomes in this version of Cast."""
    f, most = FORMATS[name], LARGEST[name]
    saturate = (saturate or not f.nan) and name not in ("float32", "float16", "bfloat16")
    beyond = most if saturate else math.inf if f.inf else math.nan
    if isinstance(x, Fraction):
        sign = -1.0 if x.numerator < 0 else 1.0
    elif x != x:
        return math.nan if f.nan else most
    else:
        sign = math.copysign(1.0, x) if isinstance(x, float) else (-1.0 if x < 0 else 1.0)
        if x in (math.inf, -math.inf):
            return math.nan if version < 24 and name.endswith("fnuz") else sign * beyond
    exact = abs(Fraction(x))
    exponent = max(f.least, floor_log2(exact)) if exact else f.least
    if exponent > HUGE:
        return sign * beyond
    quantum = exponent - f.mantissa
    rounded = math.ldexp(nearest_whole(*scaled(exact, quantum)), quantum)
    if rounded > most:
        return sign * beyond
    return sign * rounded if rounded or f.negative_zero else 0.0


def power(x: float | int, mode: str, saturate: bool) -> float:
    """The value that x becomes in float8e8m0; negative numbers, which the tables leave open, are NaN."""
    least, most = Fraction(1, 2**127), Fraction(2**127)
    if x != x or x < 0:
        return math.nan
    if x == math.inf or Fraction(x) > most:
        return float(most) if saturate else math.nan
    exact = Fraction(x)
    if exact < least:
        return float(least) if saturate else math.nan
    low = Fraction(2) ** floor_log2(exact)
    up = {"up": exact > low, "down": False, "nearest": exact >= low * Fraction(3, 2)}[mode]
    return float(low * 2 if up else low)
