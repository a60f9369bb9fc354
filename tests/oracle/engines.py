"""Integer engines in Python's integers, one element at a time. Shares no code with qrun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

Tensor = tuple[Any, int]
"""The scale of a tensor, float32, and its zero point."""
Rule = Callable[[int], int]
"""From an integer to the nearest code without zero point."""


def shifted(n: int, s: int, ties: str) -> int:
    """n / 2^s to the nearest integer."""
    if s <= 0:
        return n << -s
    whole, rest = divmod(n, 1 << s)
    half = 1 << (s - 1)
    above = {"up": True, "away": n >= 0, "even": whole % 2 == 1}[ties]
    return whole + (rest > half or (rest == half and above))


def binary(m: Fraction, bits: int, ties: str) -> tuple[int, int]:
    """m > 0 as q / 2^s with q of so many bits."""
    s = bits - (m.numerator.bit_length() - m.denominator.bit_length())
    while m * Fraction(2) ** s >= 1 << bits:
        s -= 1
    while m * Fraction(2) ** s < 1 << (bits - 1):
        s += 1
    exact = m * Fraction(2) ** s
    whole, rest = divmod(exact.numerator, exact.denominator)
    twice = 2 * rest - exact.denominator
    q = whole + (twice > 0 or (twice == 0 and (ties == "up" or whole % 2 == 1)))
    return (q // 2, s - 1) if q == 1 << bits else (q, s)


def single(v: Fraction) -> Fraction:
    """The nearest float32 of a normal number."""
    if v < 0:
        return -single(-v)
    if not v:
        return v
    q, s = binary(v, 24, "even")
    return q * Fraction(1, 2) ** s


def double(v: Fraction) -> Fraction:
    return Fraction(v.numerator / v.denominator)


def exactly(scale: Any) -> Fraction:
    return Fraction(float(scale))


def twice(m: Fraction, second: str) -> Rule:
    """TFLite: round n * m at 2^31, up, then at the rest of the shift."""
    q, s = binary(m, 31, "up")
    left = max(31 - s, 0)
    return lambda n: shifted(shifted(n * q << left, 31, "up"), s - 31 + left, second)


def once(m: Fraction, bits: int, ties: str) -> Rule:
    q, s = binary(m, bits, "up")
    return lambda n: shifted(n * q, s, ties)


def in_float(m: Fraction) -> Rule:
    """The float32 product of n and m, to the nearest integer, ties to even."""
    q, s = binary(m, 24, "even")
    return lambda n: shifted(to_24_bits(to_24_bits(n) * q), s, "even")


def to_24_bits(n: int) -> int:
    """The nearest integer of 24 significant bits, as float32 holds it."""
    drop = max(n.bit_length() - 24, 0)
    return shifted(n, drop, "even") << drop


def requantized(engine: str, x: Any, w: Any, y: Any) -> Rule:
    """From a sum of products to a code before the zero point. x, w, y: scales."""
    sx, sw, sy = map(exactly, (x, w, y))
    wide, narrow = double(double(sx * sw) / sy), single(single(sx * sw) / sy)
    if engine in ("fp32", "xnnpack", "ort-arm"):
        return in_float(narrow)
    rules: dict[str, Callable[[], Rule]] = {
        "tfl-double": lambda: twice(wide, "away"),
        "tfl-halfup2": lambda: twice(wide, "up"),
        "tfl-single": lambda: once(wide, 31, "up"),
        "rndnu": lambda: once(narrow, 24, "up"),
        "q15-away": lambda: once(wide, 15, "away"),
    }
    return rules[engine]()


def added(engine: str, a: Sequence[int], b: Sequence[int], of_a: Tensor, of_b: Tensor, y: Tensor) -> list[list[int]]:
    """The sums of all pairs, before the zero point."""
    (sa, za), (sb, zb), (sy, _) = of_a, of_b, y
    fa, fb, fy = map(exactly, (sa, sb, sy))
    if engine.startswith("tfl"):
        base = "tfl-double" if engine == "tfl-halfup2" else engine
        most = 2 * max(fa, fb)
        first, second = requantized(base, fa, 1, most), requantized(base, fb, 1, most)
        left, right = [first((n - za) * 2**20) for n in a], [second((n - zb) * 2**20) for n in b]
        last = requantized(base, most, 1, 2**20 * fy)
        return [[last(p + q) for q in right] for p in left]
    bits, ties = (21, "up") if engine in ("xnnpack", "rndnu") else (22, "away")
    ra, rb = single(fa / fy), single(fb / fy)
    _, s = binary(max(ra, rb), bits, "even")
    ka, kb = (round(r * Fraction(2) ** s) for r in (ra, rb))
    return [[shifted((p - za) * ka + (q - zb) * kb, s, ties) for q in b] for p in a]


def multiplied(
    engine: str, a: Sequence[int], b: Sequence[int], of_a: Tensor, of_b: Tensor, y: Tensor
) -> list[list[int]]:
    """The products of all pairs, before the zero point."""
    rule = requantized("tfl-double" if engine == "tfl-halfup2" else engine, of_a[0], of_b[0], y[0])
    return [[rule((p - of_a[1]) * (q - of_b[1])) for q in b] for p in a]


def rescaled(engine: str, codes: Sequence[int], x: Tensor, y: Tensor) -> list[int]:
    """Codes of another scale, before the zero point."""
    if x == y:
        return [n - x[1] for n in codes]
    if engine in ("xnnpack", "rndnu"):
        ratio = round(single(exactly(x[0]) / exactly(y[0])) * 256)
        return [shifted((n - x[1]) * ratio, 8, "up") for n in codes]
    rule = requantized(engine, x[0], 1, y[0])
    return [rule(n - x[1]) for n in codes]


def averaged(codes: Sequence[int]) -> int:
    """The average of codes, as a code."""
    exact = Fraction(sum(codes), len(codes))
    whole = abs(exact.numerator) * 2 + exact.denominator
    return (whole // (2 * exact.denominator)) * (1 if exact >= 0 else -1)


def cut(value: int, zero: int, low: int = -128, high: int = 127) -> int:
    return min(max(value + zero, low), high)


def conv(
    engine: str,
    x: Any,
    w: Any,
    bias: Any,
    of_x: Tensor,
    scales: Any,
    zeros: Any,
    y: Tensor,
    pad: int,
    stride: int,
    group: int,
) -> Any:
    """QLinearConv over two axes, with square kernels and pads."""
    (n, _, height, width), (m, depth, k, _) = x.shape, w.shape
    rows, columns = ((size + 2 * pad - k) // stride + 1 for size in (height, width))
    made = np.zeros((n, m, rows, columns), np.int8)
    each, rules = m // group, [requantized(engine, of_x[0], scale, y[0]) for scale in scales]
    for image, channel, row, column in np.ndindex(*made.shape):
        total = int(bias[channel])
        for c, i, j in np.ndindex(depth, k, k):
            r, t = row * stride + i - pad, column * stride + j - pad
            if 0 <= r < height and 0 <= t < width:
                code = int(x[image, channel // each * depth + c, r, t]) - of_x[1]
                total += code * (int(w[channel, c, i, j]) - int(zeros[channel]))
        made[image, channel, row, column] = cut(rules[channel](total), y[1])
    return made
