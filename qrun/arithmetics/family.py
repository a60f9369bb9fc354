"""One requantization arithmetic as five choices, and the codes that it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qrun.arithmetics.primitives import (
    ROUND,
    fixed_point,
    mantissa24,
    multiply_high,
    shift_half_up,
    wrap32,
)
from qrun.declare.frozen import frozen
from qrun.ir import Array

f32, f64 = np.float32, np.float64
Numbers = Any
"""Arrays of numbers, whose types numpy's operators decide."""


@frozen
class Scales:
    """The scales of a node, float32, in shapes that broadcast with its sums. x, w: the operands'; y: the output's."""

    x: Array
    w: Array
    y: Array


DERIVE: Mapping[str, tuple[str, Callable[[Scales], Array]]] = {
    "double": ("double(sx) * double(sw) / double(sy)", lambda s: _wide(s.x) * _wide(s.w) / _wide(s.y)),
    "mixed": ("double(float32(sx * sw)) / double(sy)", lambda s: _wide(_single(s.x) * _single(s.w)) / _wide(s.y)),
    "single": ("float32(float32(sx * sw) / sy)", lambda s: _wide(_single(s.x) * _single(s.w) / _single(s.y))),
    "reciprocal": (
        "float32(float32(sx * sw) * float32(1 / sy))",
        lambda s: _wide(_single(s.x) * _single(s.w) * (f32(1) / _single(s.y))),
    ),
    "weights first": (
        "float32(sx * float32(sw / sy))",
        lambda s: _wide(_single(s.x) * (_single(s.w) / _single(s.y))),
    ),
    "reciprocals": (
        "float32(1 / float32(float32(1 / sx) * float32(1 / sw))), then float32(1 / sy)",
        lambda s: _wide(f32(1) / ((f32(1) / _single(s.x)) * (f32(1) / _single(s.w)))),
    ),
}
"""How the multiplier is made from the scales: in words, and as a function to float64."""
HOLD: Mapping[str, str] = {
    "float64": "in float64",
    "float32": "in float32",
    "31 bits": "as an integer of 31 bits and a shift",
    "24 bits": "as the 24 bits of a float32 and a shift",
    "15 bits": "as an integer of 15 bits and a shift",
    "8 bits": "as an integer of 8 bits and a shift",
    "power of two": "as the nearest power of two",
}
STEPS: Mapping[str, str] = {
    "one": "rounds once",
    "high half": "rounds the product at 2^31, then at the shift",
    "16 bits": "rounds the sum to 16 bits, then the product at 2^15",
    "two products": "multiplies by sx * sw in float32, then divides by sy in float32",
    "two products, reciprocal": "multiplies by sx * sw in float32, then by 1 / sy in float32",
}
ZERO: Mapping[str, str] = {"after": "after rounding", "before": "before rounding"}
TIES: Mapping[str, str] = {
    "even": "to even",
    "away": "away from zero",
    "up": "up",
    "zero": "toward zero",
    "down": "down",
    "floor": "not at all: rounds down",
    "cut": "not at all: drops the fraction",
}

CHOICES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "derive": ("multiplier", {name: text for name, (text, _) in DERIVE.items()}),
    "hold": ("held", HOLD),
    "steps": ("steps", STEPS),
    "ties": ("ties", TIES),
    "zero": ("zero point", ZERO),
}
"""The five choices by field of Arithmetic: the label of each, and its values in words."""


@frozen
class Arithmetic:
    """A requantization arithmetic: y = clip(round(acc * M) + zero point).

    derive, hold, steps, ties, zero: the five choices, keys of DERIVE, HOLD, STEPS, TIES and ZERO.
    users:  who computes so, separated by commas. source: where that is written.
    low:    the lowest code, if the type's own is not used.
    """

    name: str
    derive: str
    hold: str
    steps: str
    ties: str
    zero: str
    users: str
    source: str
    low: int | None = None

    def codes(self, acc: Array, scales: Scales, zero: Any, low: int, high: int) -> Array:
        """The codes of int64 sums, as int64. zero: the output's zero point; low, high: the ends of its type."""
        with np.errstate(all="ignore"):
            whole = (
                self._in_float(acc, scales, zero) if self.hold.startswith("float") else self._in_integers(acc, scales)
            )
            shift = 0 if self.zero == "before" else zero
            low = low if self.low is None else max(low, self.low)
            made = np.clip(np.nan_to_num(whole.astype(f64) + shift, nan=low, posinf=high, neginf=low), low, high)
        return np.asarray(made, np.int64)

    def describe(self) -> str:
        """The five choices in words."""
        return (
            f"multiplier {DERIVE[self.derive][0]} {HOLD[self.hold]}, {STEPS[self.steps]}, ties {TIES[self.ties]}, "
            f"zero point {ZERO[self.zero]}"
        )

    def _in_float(self, acc: Array, scales: Scales, zero: Any) -> Array:
        """The rounded products, with the zero point where it is added before rounding."""
        kind = f32 if self.hold == "float32" else f64
        multiplier: Numbers = DERIVE[self.derive][1](scales).astype(kind)
        value: Numbers = np.asarray(acc).astype(kind) * multiplier
        if self.steps == "two products":
            value = acc.astype(f32) * (_single(scales.x) * _single(scales.w)) / _single(scales.y)
        if self.steps == "two products, reciprocal":
            first = multiplier if self.derive == "reciprocals" else _single(scales.x) * _single(scales.w)
            value = acc.astype(f32) * first * (f32(1) / _single(scales.y))
        if self.zero == "before":
            value = value + np.asarray(zero, kind)
        return ROUND[self.ties][0](value.astype(f64))

    def _in_integers(self, acc: Numbers, scales: Scales) -> Array:
        """The rounded products of integers."""
        real, shift_ties = DERIVE[self.derive][1](scales), ROUND[self.ties][1]
        acc = np.asarray(acc, np.int64)
        if self.hold == "power of two":
            return shift_ties(acc, -np.rint(np.log2(real)).astype(np.int64))
        bits = int(self.hold.split()[0])
        q, shift = mantissa24(real) if bits == 24 else fixed_point(real, bits)
        if self.steps == "high half":
            left = np.maximum(bits - shift, 0)
            return shift_ties(multiply_high(wrap32(acc << np.minimum(left, 31)), q), np.maximum(shift - bits, 0))
        if self.steps == "16 bits":
            return _through_16_bits(acc, q, shift)
        return shift_ties(acc * q, shift)


def _through_16_bits(acc: Array, q: Array, shift: Array) -> Array:
    """XNNPACK's rndnu16: the sum is rounded to int16, saturating, the product of 15 bits at 2^15.

    Source: XNNPACK src/operators/../reference requantization, src/configs/gemm-config.c.
    """
    narrow = (q + (1 << 8)) >> 9
    full = narrow == 1 << 15
    narrow, left = np.where(full, narrow >> 1, narrow), np.where(full, 25 - shift, 24 - shift)
    moved = np.where(left >= 0, np.clip(acc << np.clip(left, 0, 31), -(1 << 15), (1 << 15) - 1), 0)
    moved = np.where(left >= 0, moved, np.clip(shift_half_up(acc, np.maximum(-left, 1)), -(1 << 15), (1 << 15) - 1))
    return np.asarray((moved * narrow + (1 << 14)) >> 15)


def _wide(values: Any) -> Numbers:
    """As float64."""
    return np.asarray(values, f64)


def _single(values: Any) -> Numbers:
    """As float32."""
    return np.asarray(values, f32)


def describe_choices(row: Arithmetic) -> tuple[tuple[str, str], ...]:
    """The five choices as labels and texts."""
    return tuple((label, words[getattr(row, choice)]) for choice, (label, words) in CHOICES.items())
