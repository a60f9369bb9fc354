"""Made-up devices that run the probe, with choices that no known engine combines; one sum at a time, in fractions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from qrun.probe.design import OFFSET, Branch, signal

Array = np.ndarray[Any, Any]
HALF = Fraction(1, 2)
ROUND = {
    "even": round,
    "away": lambda v: math.floor(abs(v) + HALF) * (1 if v > 0 else -1),
    "up": lambda v: math.floor(v + HALF),
    "down": lambda v: math.ceil(v - HALF),
    "zero": lambda v: math.ceil(abs(v) - HALF) * (1 if v > 0 else -1),
    "floor": math.floor,
    "cut": math.trunc,
}


def nearest(v: Fraction, bits: int) -> Fraction:
    """The nearest number with a mantissa of `bits` bits, ties to even."""
    if not v:
        return v
    unit = Fraction(2) ** (_exponent(v) - bits)
    return round(v / unit) * unit


def _exponent(v: Fraction) -> int:
    """e with 2^(e-1) <= |v| < 2^e."""
    e = abs(v.numerator).bit_length() - v.denominator.bit_length()
    return e + 1 if abs(v) >= Fraction(2) ** e else e


@dataclass(frozen=True)
class Device:
    """derive, hold, steps, ties, zero: as in qrun.arithmetics. padding: the code that pads; None for the zero point.
    relu: the code where a Relu clips; None for the zero point. bias: added to the sum, or as a "float" after scaling.
    bits: of the accumulator, which wraps, or saturates. least: the lowest code.
    """

    derive: str = "double"
    hold: str = "float64"
    steps: str = "one"
    ties: str = "even"
    zero: str = "after"
    padding: int | None = None
    relu: int | None = None
    bias: str = "sum"
    bits: int = 64
    saturates: bool = False
    least: int = -128

    def run(self, branches: Sequence[Branch]) -> dict[str, Array]:
        """The codes of each branch."""
        return {branch.name: self._branch(branch) for branch in branches}

    def _branch(self, branch: Branch) -> Array:
        x, w, y = (Fraction(float(part)) for part in (branch.scales.x, branch.scales.w, branch.scales.y))
        m = self._multiplier(x, w, y)
        sums = branch.weights.astype(object) @ (signal().astype(object) - branch.offset)
        if branch.around is not None and self.padding is not None:
            sums = sums + 8 * branch.around.astype(object).sum(axis=1) * (self.padding - OFFSET)
        bias = [0] * len(sums) if branch.bias is None else branch.bias.tolist()
        low = max(self.least, (branch.zero if self.relu is None else self.relu) if branch.relu else -128)
        made = []
        for acc, more in zip(sums, bias, strict=True):
            extra = Fraction(0)
            if self.bias == "float" and more:
                extra = nearest(nearest(more * nearest(x * w, 24), 24) / y, 24)
            else:
                acc += more
            made.append(min(max(self._code(self._held(acc), m, branch.zero, extra), low), 127))
        return np.asarray(made).astype(np.int8)

    def _held(self, acc: int) -> int:
        end = 1 << (self.bits - 1)
        return min(max(acc, -end), end - 1) if self.saturates else (acc + end) % (2 * end) - end

    def _multiplier(self, x: Fraction, w: Fraction, y: Fraction) -> Fraction:
        product = nearest(x * w, 24)
        return {
            "double": lambda: nearest(nearest(x * w, 53) / y, 53),
            "mixed": lambda: nearest(product / y, 53),
            "single": lambda: nearest(product / y, 24),
            "reciprocal": lambda: nearest(product * nearest(1 / y, 24), 24),
            "weights first": lambda: nearest(x * nearest(w / y, 24), 24),
        }[self.derive]()

    def _code(self, acc: int, m: Fraction, zero: int, extra: Fraction) -> int:
        inside, after = (zero, 0) if self.zero == "before" else (0, zero)
        ties = ROUND[self.ties]
        if self.hold.startswith("float"):
            size = 24 if self.hold == "float32" else 53
            value = nearest(nearest(Fraction(acc), size) * nearest(m, size), size)
            value = nearest(value + extra, size)
            return int(ties(nearest(value + inside, size) if inside else value)) + after
        bits = int(self.hold.split()[0])
        unit = Fraction(2) ** (_exponent(m) - bits)
        held = nearest(m, 24) if bits == 24 else ROUND["away"](m / unit) * unit
        if self.steps == "high half":  # the product without its lowest bits, twice
            finer = Fraction(2) ** min(0, _exponent(held))
            return int(ties(ROUND["up"](acc * held / finer) * finer + inside)) + after
        return int(ties(acc * held + inside)) + after


def disturbed(codes: Mapping[str, Array], rng: np.random.Generator, share: float = 0.01) -> dict[str, Array]:
    """Codes of which a share is off by one."""
    return {
        name: np.where(
            rng.random(c.size) < share, np.clip(c.astype(np.int64) + rng.choice([-1, 1], c.size), -128, 127), c
        ).astype(np.int8)
        for name, c in codes.items()
    }


def drawn(rng: np.random.Generator) -> Device:
    """A device with random choices."""
    kind = rng.choice(["float", "integer", "integer", "double"])
    ties, zero = str(rng.choice(list(ROUND))), str(rng.choice(["after", "before"]))
    derive = str(rng.choice(["double", "mixed", "single", "reciprocal", "weights first"]))
    hold = {
        "float": rng.choice(["float32", "float64"]),
        "integer": f"{rng.integers(6, 32)} bits",
        "double": f"{rng.choice([15, 16, 24, 31])} bits",
    }[str(kind)]
    return Device(derive, str(hold), "high half" if kind == "double" else "one", ties, zero)
