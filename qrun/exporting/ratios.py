"""Rescalings as integers: quotients of scales that 64 bits hold."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from qrun.exporting.layer import NotExported, Rescale

MOST = 1 << 62
"""Products and divisors stay below this."""


def simplest(ratio: Fraction, reach: int) -> Fraction:
    """A fraction with small terms that rounds as `ratio` does: round(v * ratio) is the same for all |v| <= reach.

    A tie lies at an odd number over 2 * v. If the ratio has no such denominator, both of its neighbours among the
    fractions with denominators up to 2 * reach enclose no tie, so that their mediant is on the same side of each.
    """
    limit = 2 * max(1, reach)
    if ratio.denominator <= limit:
        return ratio
    below, above, n, d = (0, 1), (1, 0), ratio.numerator, ratio.denominator
    while True:
        whole = n // d
        if below[1] + whole * above[1] > limit:
            break
        below, above = above, (below[0] + whole * above[0], below[1] + whole * above[1])
        n, d = d, n - whole * d
    count = (limit - below[1]) // above[1]
    other = (below[0] + count * above[0], below[1] + count * above[1])
    return Fraction(other[0] + above[0], other[1] + above[1])


def exact(ratio: Fraction, reach: int, count: int = 1) -> Rescale:
    """The correctly rounded product of an integer and a ratio. reach: its largest magnitude, before it is divided by up
    to `count`. Raises NotExported where 64 bits do not hold it."""
    found = simplest(ratio, reach)
    if found.numerator * max(1, reach) >= MOST or 2 * found.denominator * count >= MOST:
        raise NotExported("64 bits do not hold the exact quotient of its scales")
    return Rescale.ratio(found.numerator, found.denominator)


def terms(first: Fraction, second: Fraction, reach: int) -> tuple[int, int, int]:
    """Two ratios as numerators of one denominator. Raises NotExported where 64 bits do not hold them."""
    least = np.lcm.reduce([first.denominator, second.denominator], dtype=object)
    left, right = (int(each * least) for each in (first, second))
    if (abs(left) + abs(right)) * reach >= MOST or 2 * least >= MOST:
        raise NotExported("64 bits do not hold the exact sum of its scales")
    return left, right, int(least)
