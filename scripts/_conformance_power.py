"""Sizes and tensors for cases that enter the vector paths of kernels, their tails, and batches above 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from _conformance_case import Draft, Rng
from _conformance_conv import TYPES, codes, fitting, some_scale, zero
from oracle import sums

f32, u8, i8, i32 = np.float32, np.uint8, np.int8, np.int32
SIZES = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129)
"""Lengths around those of vectors of 8 to 128 elements."""
DEPTHS = (*SIZES[1:], 255, 256, 257, 511, 512, 513, 600)
"""Lengths of sums."""
CHANNELS = (1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)
PERIOD = 257
"""Large tensors repeat a random run of this prime length, which no vector's length divides, and so compress well."""


def patterned(rng: Rng, kind: Any, shape: Sequence[int], low: int | None = None, high: int | None = None) -> Any:
    """Random codes, repeated after `PERIOD` elements."""
    count = int(np.prod(shape))
    return np.resize(codes(rng, kind, (min(count, PERIOD),), low, high), shape)


def conv_node(
    rng: Rng, id: str, types: str, x: Sequence[int], w: Sequence[int], *, per_channel: bool = True, exact: bool = False,
    op: str = "QLinearConv", clause: str = "G3", attributes: Mapping[str, Any] = {},
) -> Draft:  # fmt: skip
    """A convolution of these shapes. Scale and zero point of w have one shape.

    exact: all scales are powers of two, so that the exact results are short; the bias is such that none is a tie,
    about which the text is silent.
    """
    xt, wt, yt = (TYPES[t] for t in types)
    form = (w[0],) if per_channel else ()
    data, weights = patterned(rng, xt, x), patterned(rng, wt, w)
    xz, wz = zero(rng, xt), zero(rng, wt, form)
    given = {k: v for k, v in attributes.items() if v}
    if op == "ConvInteger":
        return Draft(id, op, [data, weights, xz, wz], given, clause=clause)
    terms = rng.integers(-2000, 2000, w[0]).astype(i32)
    xs, ws = some_scale(rng), some_scale(rng, form)
    ys = fitting(rng, int(np.prod(w[1:])), xs, ws)
    if exact:
        wide, large = (
            np.asarray(2.0 ** rng.integers(-2, 1, form)).astype(f32),
            f32(2.0 ** int(4 + np.log2(np.prod(w[1:])) / 2)),
        )
        acc = sums.conv(data, weights, int(xz), np.broadcast_to(wz, (w[0],)).tolist(), None, **given).astype(np.int64)
        found = untied(rng, np.moveaxis(acc, 1, 0), np.broadcast_to(2 * large / wide, (w[0],)))
        if found is not None:
            terms, xs, ws, ys = found, f32(0.5), wide, large
    return Draft(id, op, [data, xs, xz, weights, ws, wz, ys, zero(rng, yt), terms], given, clause=clause)


def untied(rng: Rng, acc: Any, steps: Any) -> Any:
    """A bias for each channel with which no sum [M,...] is half a step, of which channel m has 1 / steps[m]."""
    made = []
    for channel, step in zip(acc, steps, strict=True):
        tries = rng.integers(-2000, 2000, 64)
        ties = (np.abs(channel.reshape(1, -1) + tries[:, None]) % int(step) == int(step) // 2).any(1)
        if ties.all():
            return None
        made.append(tries[~ties][0])
    return np.array(made, i32)


def pairwise(rng: Rng, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Of these rows, enough that each pair of values of two columns that occurs in any occurs in one."""
    left = list(rows)
    columns = list(combinations(range(len(left[0])), 2))
    numbers: dict[Any, int] = {}
    pairs = [[numbers.setdefault((a, row[a], b, row[b]), len(numbers)) for a, b in columns] for row in left]
    fresh = np.ones(len(numbers), bool)
    order = rng.permutation(len(left))
    table = np.array(pairs)
    while fresh.any():
        best = order[int(fresh[table[order[:4000]]].sum(1).argmax())]
        if not fresh[table[best]].any():
            order = np.roll(order, -4000)
            continue
        fresh[table[best]] = False
        yield left[best]
