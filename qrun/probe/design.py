"""The sums and scales of the probe: each branch is one convolution whose codes answer one question.

A ladder reads the arithmetic rung by rung. Its multipliers are 2^-8 * (1 + d), and its sums are exact ties at d = 0. An
arithmetic that sees d rounds towards it; one that does not falls back on its tie rule. d goes from 2^-46, the smallest
that three float32 scales can make, to 2^-10. Sums next to ties, under random scales, show how the multiplier is
computed from the scales. Large sums show how it is held, and how wide the accumulator is.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from qrun.arithmetics import Scales
from qrun.declare.frozen import frozen
from qrun.ir import Array

f32 = np.float32
LENGTH = 128
"""Inputs of a branch: 127 of them are 127 and one is 1, so that weights of at most 64 reach any sum up to REACH.
Weights of 64 cannot saturate a pair of products in int16, not even with codes of 255."""
REACH = 127 * (LENGTH - 1) * 59
ZERO = 3
"""The output's zero point: odd, so that adding it before rounding moves ties."""
LOW, HIGH = -128, 127
RUNGS = (0.0, *(sign * 2.0**-j for j in (46, 40, 34, 30, 27, 24, 21, 18, 15, 12, 10) for sign in (-1, 1)))
"""The relative distances of the ladder's multipliers from 2^-8."""
BESIDE, PER_BRANCH = 12, 48
"""Branches of sums beside ties, and sums in each."""


APART = ("width_", "ends", "pairs", "padding", "relu")
"""Beginnings of the names of branches that answer questions of their own."""


@frozen
class Branch:
    """A convolution of the probe.

    name:  of its output. scales: of input, weights and output. sums: int64 [n], before requantization.
    zero:  zero point of the output. ties: are the sums exact ties of a power of two?
    bias:  int32 [n], the part of the sums that a bias makes; None if weights make them all.
    given: int8 [n, LENGTH], weights that matter themselves; None: any that make the sums.
    offset: zero point of the input. around: int8 [n, LENGTH], weights of a 3 x 3 kernel that meet only padding.
    relu:  does a Relu follow the convolution?
    """

    name: str
    scales: Scales
    sums: Array
    zero: int = ZERO
    ties: bool = False
    bias: Array | None = None
    given: Array | None = None
    offset: int = 0
    around: Array | None = None
    relu: bool = False

    @property
    def weights(self) -> Array:
        """int8 [n, LENGTH] that make the sums without the bias from `signal`."""
        if self.given is not None:
            return self.given
        rest = self.sums if self.bias is None else self.sums - self.bias
        return np.stack([_weights_of(int(target)) for target in rest])


def signal() -> Array:
    """The input: int8 [LENGTH]."""
    return np.append(np.full(LENGTH - 1, 127), 1).astype(np.int8)


def _weights_of(target: int) -> Array:
    """int8 weights w with 127 * sum(w[:-1]) + w[-1] == target, as even as possible."""
    quotient, rest = divmod(target + 63, 127)
    base, more = divmod(abs(quotient), LENGTH - 1)
    steps = np.full(LENGTH - 1, base)
    steps[:more] += 1
    made = np.append(np.sign(quotient) * steps, rest - 63)
    assert np.abs(made).max() <= 64, target
    return made.astype(np.int8)


@cache
def branches() -> tuple[Branch, ...]:
    """All branches, in the order of the probe's outputs."""
    return (
        *ladder(), *shifted_ties(), *beside_ties(), *gains(), *single_products(), *large_sums(), *wide_sums(), ends(),
        pairs(), padding(), relu(),
    )  # fmt: skip


def ladder() -> Iterator[Branch]:
    """A rung for each d of RUNGS: the same ties on both sides of 0. Those between 0 and minus the zero point show
    whether a rounding away from zero comes after the zero point."""
    half = np.unique(np.concatenate([k := np.linspace(-118, 118, 16).astype(np.int64), k + 1, np.arange(-5, 4)]))
    for number, d in enumerate(RUNGS):
        yield Branch(f"ladder_{number:02}", _rung(d), (2 * half + 1) * 128, ties=d == 0)


def _rung(d: float) -> Scales:
    """Scales with sx * sw / sy = 2^-8 * (1 + d): one scale carries a d of at least 2^-23; for a smaller one,
    (1 + a e) (1 + b e) / (1 + (a + b) e) = 1 + a b e^2 + ..., with e = 2^-23."""
    e = 2.0**-23
    a = b = c = 0
    if abs(d) >= e:
        a = round(d / e)
    elif d:
        power = 46 - round(-np.log2(abs(d)))
        a, b = int(np.sign(d)) * 2 ** (power // 2), 2 ** (power - power // 2)
        c = a + b
    return _scales((1 + a * e) * 2.0**-4, (1 + b * e) * 2.0**-7, (1 + c * e) * 2.0**-3)


def shifted_ties() -> Iterator[Branch]:
    """Every sixteenth of a step at powers of two, which also engines without multipliers take: separates rules that
    round only ties from those that cut or round down."""
    sixteenths = np.arange(-1000, 1000, 31, dtype=np.int64)
    for number, shift in enumerate((4, 6, 8)):
        yield Branch(
            f"shift_{number}", _scales(2.0**-4, 2.0**-7, 2.0 ** (shift - 11)), sixteenths << (shift - 4), ties=True
        )


def beside_ties() -> Iterator[Branch]:
    """Random scales; the sums whose products are nearest to ties, without regard to any arithmetic."""
    rng = np.random.default_rng(1)
    for number in range(BESIDE):
        scales = _random_scales(rng, rng.uniform(8, 12.9))
        middle = np.rint(_halves() / _real(scales)).astype(np.int64)
        sums = np.unique(np.concatenate([middle - 1, middle, middle + 1]))
        yield Branch(f"tie_{number:02}", scales, _nearest_to_ties(sums[np.abs(sums) < REACH], _real(scales)))


def _random_scales(rng: np.random.Generator, shift: float) -> Scales:
    """Random scales with a multiplier of 2^-shift."""
    sx, sw = rng.uniform(0.01, 0.05), rng.uniform(0.001, 0.01)
    return _scales(sx, sw, sx * sw * 2.0**shift)


def _halves() -> Array:
    """The ties between codes, seen from the zero point."""
    return np.arange(LOW + 3 - ZERO, HIGH - 2 - ZERO) + 0.5


def _nearest_to_ties(sums: Array, real: float) -> Array:
    """The PER_BRANCH sums whose products with a multiplier are nearest to ties."""
    distance = np.abs(sums * real - np.floor(sums * real) - 0.5)
    return np.sort(sums[np.argsort(distance, kind="stable")[:PER_BRANCH]])


def gains() -> Iterator[Branch]:
    """Multipliers above 1: one that makes ties of odd sums, and one that makes none."""
    for number, (x, most) in enumerate(((1.25, 50), (1.7320508, 36))):
        sums = np.arange(-most, most, dtype=np.int64)
        yield Branch(f"gain_{number}", _scales(x, 2.0**-4, 2.0**-5), sums)


def single_products() -> Iterator[Branch]:
    """Sums of one product, 127 w, that are w / 2 codes but for the rounding of the output's scale. Sums of integers see
    only that; floats that multiply x * sx by w * sw round each product in a way of their own, in whatever order they
    add the zeros."""
    rng = np.random.default_rng(3)
    odd = np.arange(-127, 128, 2)
    for number in range(6):
        x, w = float(f32(rng.uniform(0.01, 0.05))), float(f32(rng.uniform(0.001, 0.01)))
        weights = np.zeros((odd.size, LENGTH), np.int8)
        weights[np.arange(odd.size), np.arange(odd.size) % (LENGTH - 1)] = odd
        scales = _scales(x, w, 254 * x * w)
        yield Branch(f"single_{number}", scales, 127 * odd.astype(np.int64), given=weights)


def large_sums() -> Iterator[Branch]:
    """Sums up to 2^30 next to ties, made by an int32 bias: beyond what float32 holds, they show every bit of a
    multiplier. The product of the first two scales of every second branch is a float32, so that arithmetics which
    round it see the same ties."""
    rng = np.random.default_rng(2)
    for number in range(8):
        scales = _random_scales(rng, rng.uniform(20 + number / 3, 20.3 + number / 3))
        if number % 2:
            scales = _scales(float(scales.x), 2.0**-8, float(scales.y) / float(scales.w) * 2.0**-8)
        sums = _nearest_to_ties(np.rint(_halves() / _real(scales)).astype(np.int64), _real(scales))
        yield Branch(f"large_{number}", scales, sums, bias=sums - sums % 127)


WIDTHS = {16: 9, 20: 13, 24: 17, 32: 25}
"""Widths of accumulators in bits, and the shift at which their ends become codes of about 64."""


def wide_sums() -> Iterator[Branch]:
    """Sums around the ends of accumulators of a width: exact, saturated and wrapped ones give codes far apart."""
    for bits, shift in WIDTHS.items():
        end = 1 << (bits - 1)
        sums = np.array(
            [end // 4, end // 2, end * 5 // 4, end * 3 // 2, -end // 2, -end * 5 // 4, -end * 3 // 2], np.int64
        )
        if bits == 32:  # a sum beyond int32 wraps everywhere that qrun knows; weights carry it over the end
            sums = np.array([end // 2, end - 500, end + 5000, -end // 2, -end + 500, -end - 5000], np.int64)
        bias = None if bits < 24 else np.clip(sums - np.sign(sums) * 10000, -(1 << 31), (1 << 31) - 1)
        yield Branch(f"width_{bits}", _scales(2.0**-4, 2.0**-7, 2.0 ** (shift - 11)), sums, 0, bias=bias)


def ends() -> Branch:
    """Sums far beyond the codes: is the least code -128 or -127?"""
    return Branch("ends", _scales(2.0**-4, 2.0**-7, 2.0**-3), np.array([-900000, 900000], np.int64), 0)


def pairs() -> Branch:
    """Two adjacent products of the greatest code and 127, alone: with codes of uint8, 2 * 255 * 127 leaves int16."""
    weights = np.zeros((2, LENGTH), np.int8)
    weights[0, :2], weights[1, :2] = 127, -127
    sums = weights.astype(np.int64) @ signal().astype(np.int64)
    return Branch("pairs", _scales(2.0**-4, 2.0**-7, 2.0**-2), sums, 0, given=weights)


OFFSET = 100
"""The input's zero point where padding shows: far from the codes 0 and -128 that a wrong padding takes."""


def padding() -> Branch:
    """A 3 x 3 convolution of one pixel: all but its middle meets padding, which adds nothing if its code is the input's
    zero point. The first half of the rows has only the middle."""
    middle, around = np.zeros((8, LENGTH), np.int8), np.zeros((8, LENGTH), np.int8)
    middle[:4, :8] = np.array([[60], [20], [-20], [-60]])
    around[4:6, :8], around[6:, :4] = np.array([[1], [-1]]), np.array([[1], [-1]])
    sums = middle.astype(np.int64) @ (signal().astype(np.int64) - OFFSET)
    return Branch("padding", _scales(2.0**-4, 2.0**-7, 2.0**-4), sums, given=middle, offset=OFFSET, around=around)


def relu() -> Branch:
    """Sums of both signs and a Relu; the zero point is far from the code 0, at which a wrong Relu clips."""
    return Branch(
        "relu", _scales(2.0**-4, 2.0**-7, 2.0**-3), np.arange(-100, 101, 20, dtype=np.int64) * 256, 40, relu=True
    )


def _scales(x: float, w: float, y: float) -> Scales:
    return Scales(*(np.asarray(value, f32) for value in (x, w, y)))


def _real(scales: Scales) -> float:
    """The multiplier in float64."""
    return float(scales.x) * float(scales.w) / float(scales.y)
