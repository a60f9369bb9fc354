"""The sums of oracle/linear.py for large tensors: whole numbers of 64 bits in numpy, which no such sum leaves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from oracle import linear

LARGE = 20_000
"""The number of products from which on loops are too slow."""


def conv(x: np.ndarray, w: np.ndarray, x_zero: int, w_zero: Sequence[int], bias: Sequence[int] | None, *, group: int = 1,
         strides: Sequence[int] = (), dilations: Sequence[int] = (), pads: Sequence[int] = (),
         auto_pad: str = "NOTSET") -> np.ndarray:  # fmt: skip
    """int32 accumulators [N,M,out...] as `oracle.linear.conv` gives them, a tap of the kernel at a time."""
    rank, size, kernel = x.ndim - 2, x.shape[2:], w.shape[2:]
    steps, holes = strides or [1] * rank, dilations or [1] * rank
    out, begin = linear.geometry(size, kernel, steps, holes, pads or [0] * (2 * rank), auto_pad)
    real = x.astype(np.int64) - x_zero
    weights = w.astype(np.int64) - np.array(w_zero, np.int64).reshape(-1, *(1,) * (w.ndim - 1))
    room = [(o - 1) * s + (k - 1) * h + 1 for o, s, k, h in zip(out, steps, kernel, holes, strict=True)]
    after = [max(r - b - n, 0) for r, b, n in zip(room, begin, size, strict=True)]
    real = np.pad(real, [(0, 0), (0, 0), *zip(begin, after, strict=True)])
    share, depth = w.shape[0] // group, w.shape[1]
    sums = np.zeros((x.shape[0], w.shape[0], *out), np.int64)
    for number in range(group):
        filters = slice(number * share, (number + 1) * share)
        part = real[:, number * depth : (number + 1) * depth]
        for tap in product(*map(range, kernel)):
            seen = part[(slice(None), slice(None), *(slice(k * h, k * h + (o - 1) * s + 1, s)
                         for k, h, o, s in zip(tap, holes, out, steps, strict=True)))]  # fmt: skip
            sums[:, filters] += np.moveaxis(np.tensordot(weights[(filters, slice(None), *tap)], seen, ([1], [1])), 0, 1)
    if bias is not None:
        sums += np.array(bias, np.int64).reshape(-1, *(1,) * rank)
    return wrapped(sums)


def matmul(a: np.ndarray, b: np.ndarray, a_zero: np.ndarray, b_zero: np.ndarray) -> np.ndarray:
    """int32 accumulators as `oracle.linear.matmul` gives them."""
    left, right = (
        codes.astype(np.int64) - linear.rows(zero, codes, columns=columns).astype(np.int64)
        for codes, zero, columns in ((a, a_zero, False), (b, b_zero, True))
    )
    return wrapped(left @ right)


def wrapped(sums: np.ndarray) -> np.ndarray:
    return ((sums + 2**31) % 2**32 - 2**31).astype(np.int32)
