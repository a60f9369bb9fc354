"""The arithmetics against the same choices in exact fractions, one sum at a time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from qrun.arithmetics import FAMILIES, Arithmetic, Scales
from qrun.arithmetics.family import DERIVE, HOLD, STEPS, TIES, ZERO
from qrun.arithmetics.primitives import ROUND, multiply_high

RNG = np.random.default_rng(43)
HALF = Fraction(1, 2)
EXACT = {
    "even": round,
    "away": lambda v: math.floor(v + HALF) if v >= 0 else math.ceil(v - HALF),
    "up": lambda v: math.floor(v + HALF),
    "down": lambda v: math.ceil(v - HALF),
    "zero": lambda v: math.ceil(v - HALF) if v >= 0 else math.floor(v + HALF),
    "floor": math.floor,
    "cut": math.trunc,
}


def single(v: Fraction) -> Fraction:
    """The nearest float32."""
    return Fraction(float(np.float32(float(v)))) if Fraction(float(v)) == v else _nearest(v)


def _nearest(v: Fraction) -> Fraction:
    """The nearest float32 of a number that float64 does not hold; ties to even."""
    _, exponent = math.frexp(float(v))
    unit = Fraction(2) ** (exponent - 24)
    return round(v / unit) * unit


def double(v: Fraction) -> Fraction:
    """The nearest float64: Python divides integers with one rounding."""
    return Fraction(v.numerator / v.denominator)


def multiplier(way: str, x: Fraction, w: Fraction, y: Fraction) -> Fraction:
    if way == "double":
        return double(double(x * w) / y)
    if way == "mixed":
        return double(single(x * w) / y)
    if way == "reciprocal":
        return single(single(x * w) * single(1 / y))
    if way == "weights first":
        return single(x * single(w / y))
    if way == "truncated":
        near = single(x * w)
        return near if near <= x * w else Fraction(float(np.nextafter(np.float32(float(near)), np.float32(0))))
    if way == "reciprocals":
        return single(1 / single(single(1 / x) * single(1 / w)))
    return single(single(x * w) / y)


def held(m: Fraction, bits: int) -> tuple[int, int]:
    """The multiplier as q * 2^-shift."""
    _, exponent = math.frexp(float(m))
    q = EXACT["away"](m * Fraction(2) ** (bits - exponent))
    return (q >> 1, bits - exponent - 1) if q == 1 << bits else (q, bits - exponent)


def due(family: Arithmetic, acc: int, x: Fraction, w: Fraction, y: Fraction, zero: int) -> int:
    """The code of one sum, from the five choices."""
    m, ties = multiplier(family.derive, x, w, y), EXACT[family.ties]
    if family.hold.startswith("float"):
        fit = single if family.hold == "float32" else double
        value = fit(fit(Fraction(acc)) * fit(m))
        first = m if family.derive in ("reciprocals", "truncated") else single(x * w)
        if family.steps == "two products":
            value = single(single(single(Fraction(acc)) * first) / y)
        if family.steps == "two products, reciprocal":
            value = single(single(single(Fraction(acc)) * first) * single(1 / y))
        whole = ties(fit(value + zero)) if family.zero == "before" else ties(value) + zero
    elif family.hold == "power of two":
        whole = ties(acc * Fraction(2) ** round(math.log2(m))) + zero
    else:
        bits = int(family.hold.split()[0])
        q, shift = held(m, bits)
        if family.steps == "high half":
            high = EXACT["up"](Fraction((acc << max(bits - shift, 0)) * q, 2**31))
            whole = ties(Fraction(high, 2 ** max(shift - bits, 0))) + zero
        else:
            whole = ties(acc * q * Fraction(2) ** -shift) + zero
    return min(max(whole, -128 if family.low is None else family.low), 127)


def drawn(kind: str) -> tuple[list[np.float32], list[int]]:
    """Scales, and sums that give codes in the range, many of them ties or beside ties."""
    if kind == "powers of two":
        x, w, y = (np.float32(2.0 ** -int(RNG.integers(2, 6))) for _ in range(3))
    else:
        x, w, y = (np.float32(RNG.uniform(0.01, 0.3)) for _ in range(3))
    m = float(x) * float(w) / float(y)
    ties = [round((k + 0.5) / m) for k in RNG.integers(-130, 130, 20)]
    return [x, w, y], [*ties, *(tie + 1 for tie in ties[:5]), *(int(n) for n in RNG.integers(-2000, 2000, 10))]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "rndnu16"])
def test_codes_are_those_of_fractions(name: str) -> None:
    family = FAMILIES[name]
    for kind in ("powers of two", "random") * 6:
        given, sums = drawn(kind)
        x, w, y = (Fraction(float(v)) for v in given)
        zero = int(RNG.integers(-20, 20))
        scales = Scales(*(np.asarray(v) for v in given))
        got = family.codes(np.asarray(sums), scales, zero, -128, 127)
        want = [due(family, acc, x, w, y, zero) for acc in sums]
        assert got.tolist() == want, (name, kind, given, zero, sums)


@pytest.mark.parametrize("ties", list(ROUND))
def test_shifts_round_as_their_names_say(ties: str) -> None:
    products = [int(p) for p in RNG.integers(-(2**61), 2**61, 40)] + list(range(-9, 10)) + [2**62 - 1, -(2**62) + 1]
    for n in (-1, 0, 1, 2, 3, 31, 61, 62, 63, 70):
        inside = [p for p in products if n >= 0 or abs(p) < 2**60]
        got = ROUND[ties][1](np.asarray(inside), n)
        assert got.tolist() == [EXACT[ties](p * Fraction(2) ** -n) for p in inside], n


@pytest.mark.parametrize("ties", list(ROUND))
def test_floats_round_as_their_names_say(ties: str) -> None:
    below = float(np.nextafter(0.5, 0))
    values = [*np.arange(-4, 4, 0.25), below, -below, 1.5 + 2**-50, -2.5 - 2**-50]
    got = ROUND[ties][0](np.asarray(values))
    assert got.tolist() == [EXACT[ties](Fraction(float(v))) for v in values]


def test_only_the_square_of_the_least_saturates() -> None:
    least = -(2**31)
    assert multiply_high(least, least) == 2**31 - 1
    assert multiply_high(least, 2**31 - 1) == -(2**31) + 1


def test_each_choice_is_described() -> None:
    rows = FAMILIES.values()
    for choice, known in (("derive", DERIVE), ("hold", HOLD), ("steps", STEPS), ("ties", TIES), ("zero", ZERO)):
        assert {getattr(row, choice) for row in rows} <= set(known)
    assert all(row.users and row.source for row in rows)
