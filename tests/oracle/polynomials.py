"""Functions of float32 in fractions, step by step as numerics.md (F41) says: every step is rounded to float32."""

from __future__ import annotations

from fractions import Fraction as F

import numpy as np

from oracle.cast import nearest
from qrun.formulas import table

SINGLE = np.float32
MAGIC = F(3 * 2**22)


def r(value: F) -> F:
    """To float32, of which the greatest numbers are not reached."""
    return F(nearest(F(value), SINGLE))


def polynomial(coefficients, x: F) -> F:
    made = F(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        made = r(made * x + F(coefficient))
    return made


def limited(x: F, low: float, high: float) -> F:
    return min(max(x, F(low)), F(high))


def reduced(x: F, terms, log2=table.LN2) -> tuple[int, F]:
    """n and m with exp(x) = 2**n * (1 + m)."""
    count = r(r(x * F(table.LOG2E) + MAGIC) - MAGIC)
    rest = x
    for part in log2:
        rest = r(rest - count * F(part))
    return int(count), r(r(rest * rest) * polynomial(terms, rest) + rest)


def exp(x: F) -> F:
    n, m = reduced(limited(x, *table.EXP_RANGE), table.EXPM1)
    return r(r(1 + m) * F(2) ** n)


def sigmoid(x: F) -> F:
    n, m = reduced(-limited(x, *table.SIGMOID_RANGE), table.EXPM1_SHORT)
    one, power = F(2) ** table.SIGMOID_EXPONENT, F(2) ** (n + table.SIGMOID_EXPONENT)
    total = r(power + one)
    return r(one / r(r(m * power + r(one - r(total - power))) + total))


def tanh(x: F) -> F:
    size = limited(abs(x), 0, table.TANH_FARTHEST)
    square = r(size * size)
    made = r(r(size * square) * polynomial(table.TANH, square) + size)
    if size >= F(table.TANH_NEAR):
        n, m = reduced(r(2 * size), table.EXPM1_SHORT, table.LN2[:1])
        made = r(1 - r(2 / r(m * 2**n + r(F(2**n) + 1))))
    return made if x >= 0 else -made


def erf(x: F) -> F:
    size = limited(abs(x), 0, table.ERF_FARTHEST)
    made = r(size * polynomial(table.ERF, r(size * size)) + size)
    if size >= F(table.ERF_NEAR):
        made = polynomial(table.ERF_FAR, r(size - F(table.ERF_MIDDLE)))
    return made if x >= 0 else -made


def gelu(x: F) -> F:
    near = limited(abs(x), 0, table.TAIL_FARTHEST)
    square = r(near * near)
    lost = r(near * near - square)
    given = -square / 2
    count = r(r(given * F(table.LOG2E) + MAGIC) - MAGIC)
    rest = given
    for part in table.LN2:
        rest = r(rest - count * F(part))
    rest = r(rest - r(lost / 2))
    m, power = r(r(rest * rest) * polynomial(table.EXPM1, rest) + rest), F(2) ** int(count)
    above, below = (polynomial(part, near) for part in table.TAIL)
    low = r(r(r(r(m * power + power) * near) * above) / below)
    low = F(0) if abs(x) > F(table.TAIL_FARTHEST) else low
    return -low if x < 0 else r(x - low)


def swish(x: F, alpha: float = 1.0) -> F:
    return r(x * sigmoid(r(F(float(SINGLE(alpha))) * x)))


def gelu_by_tanh(x: F) -> F:
    high, low = map(F, table.GELU_BY_TANH)
    return r(x * sigmoid(r(x * r(r(x * x) * low + high))))


def share(x: F) -> F:
    if x < F(table.SHARE_LEAST):
        return F(0)
    n, m = reduced(x, table.EXPM1_SHORT)
    return r(r(1 + m) * F(2) ** n)


def softmax(row: list[F | None]) -> list[F]:
    """In the steps of F40; None is -infinity."""
    top = max(x for x in row if x is not None)
    made = [F(0) if x is None else share(r(x - top)) for x in row]
    parts = [0.0] * 16
    for place, number in enumerate(made):
        parts[place % 16] += float(number)
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [a + b for a, b in zip(parts[:half], parts[half:], strict=True)]
    inverse = r(F(1.0 / parts[0]))
    return [r(number * inverse) for number in made]
