"""Float32 sums of products from numerics.md, F1: their order step by step, and how far they may be from the real
sum. Python numbers and fractions, one element at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from oracle.cast import nearest
from oracle.products import products

BLOCK = 256
UNIT = Fraction(1, 2**24)
LEAST = Fraction(1, 2**150)
"""What rounding to a subnormal number loses at most."""


def rounded(above: int, power: int) -> float:
    """above / 2**power, not 0, as the nearest float32 number, ties to even."""
    size = abs(above)
    quantum = max(size.bit_length() - 1 - power, -126) - 23
    dropped = max(quantum + power, 0)
    whole = size >> dropped
    rest, half = size - (whole << dropped), 1 << dropped >> 1
    whole += rest > half or (rest == half and dropped > 0 and whole % 2)
    value = math.ldexp(whole, dropped - power)
    return math.copysign(value if value < 2.0**128 else math.inf, above)


def fma(a: float, b: float, c: float) -> float:
    """a * b + c of float32 numbers, rounded once to float32. Their product is a float64 number, and a sum of two such
    is 0, an infinity or NaN only if the real sum is."""
    total = a * b + c
    if not total or not math.isfinite(total):
        return total
    (n, d), (m, e) = (a * b).as_integer_ratio(), c.as_integer_ratio()
    under = max(d, e)
    return rounded(n * (under // d) + m * (under // e), under.bit_length() - 1)


def ordered(
    row: Sequence[float],
    column: Sequence[float],
    alpha: float = 1.0,
    first: float | None = None,
    bias: float | None = None,
) -> float:
    """One sum. first: beta * C, rounded, which it begins with; bias: what is added behind."""
    y = first
    for start in range(0, max(len(row), 1), BLOCK):
        chain = 0.0
        for a, b in zip(row[start : start + BLOCK], column[start : start + BLOCK], strict=True):
            chain = fma(a, b, chain)
        if y is None:
            y = chain if alpha == 1 else fma(alpha, chain, -0.0)
        else:
            y = fma(alpha, chain, y)
    assert y is not None
    return y if bias is None else fma(y, 1.0, bias)


def chained(
    row: Sequence[Fraction],
    column: Sequence[Fraction],
    dtype: Any,
    first: Fraction | None = None,
    bias: Fraction | None = None,
) -> float:
    """`ordered` of finite float32 numbers, rounded to the type."""
    added = (None if x is None else float(x) for x in (first, bias))
    total = ordered([float(x) for x in row], [float(x) for x in column], 1.0, *added)
    return nearest(Fraction(total), dtype)


def reach(row: Sequence[Fraction], column: Sequence[Fraction]) -> Fraction:
    """How far such a sum, with its bias as a last product, may be from the real one, where nothing is subnormal."""
    sizes = sum((abs(a * b) for a, b in zip(row, column, strict=True)), Fraction(0))
    return (BLOCK + Fraction(len(row), BLOCK) + 2) * sizes * UNIT


def ordered_product(a: np.ndarray, b: np.ndarray, alpha: Any = 1.0, first: Any = None, bias: Any = None) -> np.ndarray:
    """All sums of float32 [m,k] and [k,n]. first, bias: as of `ordered`, broadcast to the result."""
    made = np.empty((len(a), b.shape[1]), np.float32)
    rows, columns = a.astype(np.float64).tolist(), b.T.astype(np.float64).tolist()
    more = [None if x is None else np.broadcast_to(x, made.shape).astype(np.float64) for x in (first, bias)]
    for i, j in np.ndindex(*made.shape):
        added = [None if x is None else float(x[i, j]) for x in more]
        made[i, j] = ordered(rows[i], columns[j], float(alpha), *added)
    made[np.isnan(made)] = np.nan
    return made


def reaches(
    a: np.ndarray, b: np.ndarray, alpha: Any = 1, added: Any = None
) -> list[list[tuple[Fraction, Fraction, Fraction]]]:
    """Of finite [m,k] and [k,n], for each element: the real alpha * a @ b + added, how far a result may be from it, and
    what no step of it exceeds by more than that. Each rounding counts: those of a block's chain, one for each further
    block, one for alpha, beta or a bias."""
    k, factor = a.shape[1], Fraction(float(alpha))
    blocks = max(-(-k // BLOCK), 1)
    roundings = min(k, BLOCK) + Fraction(k, BLOCK) + (added is not None or factor != 1)
    lost = LEAST * (min(k, BLOCK) * blocks * max(abs(factor), 1) + blocks + 1)
    made = []
    more = np.zeros((len(a), b.shape[1])) if added is None else np.broadcast_to(added, (len(a), b.shape[1]))
    for i, (row, sizes) in enumerate(zip(products(a, b), products(np.abs(a), np.abs(b)), strict=True)):
        elements = []
        for j, (total, size) in enumerate(zip(row, sizes, strict=True)):
            last = Fraction(float(more[i, j]))
            whole = abs(factor) * size + abs(last)
            elements.append((factor * total + last, roundings * UNIT * whole + lost, max(whole, size)))
        made.append(elements)
    return made


def window_terms(
    x: np.ndarray, w: np.ndarray, group: int, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """A convolution as products: for each group the rows [N*out,k] that the windows read, and W as [k,M/group]. k runs
    over channels, then taps; padding is 0."""
    size, kernel, rank = x.shape[2:], w.shape[2:], x.ndim - 2
    strides, dilations, pads = strides or [1] * rank, dilations or [1] * rank, pads or [0] * 2 * rank
    out = [
        (n + pads[i] + pads[rank + i] - (t - 1) * dilations[i] - 1) // strides[i] + 1
        for i, (n, t) in enumerate(zip(size, kernel, strict=True))
    ]
    depth, each = w.shape[1], w.shape[0] // group
    rows = np.zeros((group, len(x), *out, depth, *kernel), np.float32)
    for index in np.ndindex(*rows.shape):
        g, image, places, channel, taps = index[0], index[1], index[2 : 2 + rank], index[2 + rank], index[3 + rank :]
        at = [p * s + t * d - b for p, s, t, d, b in zip(places, strides, taps, dilations, pads, strict=False)]
        if all(0 <= i < n for i, n in zip(at, size, strict=True)):
            rows[index] = x[(image, g * depth + channel, *at)]
    k = depth * math.prod(kernel)
    return [r.reshape(-1, k) for r in rows], [w[g * each : (g + 1) * each].reshape(each, k).T for g in range(group)]


def transposed_terms(
    x: np.ndarray, w: np.ndarray, group: int, strides: Sequence[int], dilations: Sequence[int], begin: Sequence[int],
    out: Sequence[int],
) -> dict[tuple[int, ...], tuple[list[np.ndarray], list[np.ndarray]]]:  # fmt: skip
    """A transposed convolution as products, for each place of the result: for each group the rows [N,k] and the columns
    [k,M/group]. k runs over channels, then those taps that meet an input or would, were the image endless; beyond the
    image is 0."""
    rank = x.ndim - 2
    depth, each = w.shape[0] // group, w.shape[1]
    made = {}
    for place in np.ndindex(*out):
        rows, columns = [], []
        for g in range(group):
            terms, weights = [], []
            for channel in range(g * depth, (g + 1) * depth):
                for tap in np.ndindex(*w.shape[2:]):
                    far = [place[i] + begin[i] - tap[i] * dilations[i] for i in range(rank)]
                    if any(f % s for f, s in zip(far, strides, strict=True)):
                        continue
                    at = [f // s for f, s in zip(far, strides, strict=True)]
                    inside = all(0 <= i < n for i, n in zip(at, x.shape[2:], strict=True))
                    terms.append(x[(slice(None), channel, *at)] if inside else np.zeros(len(x), np.float32))
                    weights.append(w[(channel, slice(None), *tap)])
            rows.append(np.array(terms, np.float32).reshape(-1, len(x)).T)
            columns.append(np.array(weights, np.float32).reshape(-1, each))
        made[place] = rows, columns
    return made
