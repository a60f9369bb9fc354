"""Where a value of the exponential function lies with respect to a rational number: decided, not estimated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction


def exp_sum_exceeds(counts: Mapping[int, int], step: float, bound: Fraction) -> int:
    """Sign of  sum over k of counts[k] * exp(k * step)  -  bound; counts are positive, `step` is finite.

    Zero exactly where both are equal: for step = 0, or where only k = 0 occurs (e to a non-zero rational power is
    irrational, and so is every such sum: Lindemann & Weierstrass). Everything else is computed with growing
    precision until the sign is certain.
    """
    rational = sum(c for k, c in counts.items() if not k or not step)
    rest = {k: c for k, c in counts.items() if k and step}
    gap = bound - rational
    if not rest or gap <= 0:
        return (gap < 0) - (gap > 0) if not rest else 1
    return _compare(rest, step, gap)


def _compare(counts: Mapping[int, int], step: float, bound: Fraction) -> int:
    from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, localcontext

    exact = Context(prec=400, rounding=ROUND_HALF_EVEN, traps=[Inexact])
    arguments = {exact.multiply(Decimal(k), Decimal(step)): c for k, c in counts.items()}
    digits = 40
    while True:
        with localcontext(Context(prec=digits, rounding=ROUND_HALF_EVEN, traps=[])):
            total = sum((c * x.exp() for x, c in arguments.items()), Decimal(0))
            ratio = total * bound.denominator / bound.numerator
            error = Decimal(10) ** (6 - digits) * (1 + len(arguments))
            if ratio > 1 + error or ratio < 1 - error:
                return 1 if ratio > 1 else -1
        digits *= 2
