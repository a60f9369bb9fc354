"""Exact oracle of integer convolutions and matrix products: Python integers, loops, written from the specification."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from oracle.quantize import RANGES, real, requantize, saturate


def wrap32(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def geometry(
    size: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: Sequence[int],
    auto_pad: str,
) -> tuple[list[int], list[int]]:
    """Output size and begin pads of each spatial axis."""
    out, begin = [], []
    for axis, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True)):
        extent = (k - 1) * d + 1
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            count = -(-n // s)
            total = max((count - 1) * s + extent - n, 0)
            first = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        else:
            first, last = (0, 0) if auto_pad == "VALID" else (pads[axis], pads[axis + len(size)])
            count = (n + first + last - extent) // s + 1
        out.append(count)
        begin.append(first)
    return out, begin


def conv(
    x: np.ndarray,
    w: np.ndarray,
    x_zero: int,
    w_zero: Sequence[int],
    bias: Sequence[int] | None,
    *,
    group: int = 1,
    strides: Sequence[int] = (),
    dilations: Sequence[int] = (),
    pads: Sequence[int] = (),
    auto_pad: str = "NOTSET",
) -> np.ndarray:
    """int32 accumulators [N,M,out...]; w_zero: one for each output channel."""
    rank = x.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    pads = pads or [0] * (2 * rank)
    size, kernel = x.shape[2:], w.shape[2:]
    out, begin = geometry(size, kernel, strides, dilations, pads, auto_pad)
    channels, depth = w.shape[0], w.shape[1]
    data, weights = x.tolist(), w.tolist()
    y = np.zeros((x.shape[0], channels, *out), np.int32)
    taps = list(product(*map(range, kernel)))
    for n, m, *place in product(range(x.shape[0]), range(channels), *map(range, out)):
        first = m // (channels // group) * depth
        total = bias[m] if bias is not None else 0
        for tap in taps:
            at = [o * s + k * d - b for o, s, k, d, b in zip(place, strides, tap, dilations, begin, strict=True)]
            if all(0 <= i < length for i, length in zip(at, size, strict=True)):
                for c in range(depth):
                    total += (pick(data[n][first + c], at) - x_zero) * (pick(weights[m][c], tap) - w_zero[m])
        y[(n, m, *place)] = wrap32(total)
    return y


def pick(nested: Any, index: Sequence[int]) -> int:
    for i in index:
        nested = nested[i]
    return int(nested)


def rows(array: np.ndarray, matrix: np.ndarray, *, columns: bool) -> np.ndarray:
    """A parameter, one element for each element of its operand [...,M,K] or [...,K,N]."""
    if array.size == 1:
        return np.broadcast_to(array.reshape(()), matrix.shape)
    if array.ndim == 1:
        array = array.reshape(1, -1) if columns else array.reshape(-1, 1)
    return np.broadcast_to(array, matrix.shape)


def matmul(a: np.ndarray, b: np.ndarray, a_zero: np.ndarray, b_zero: np.ndarray) -> np.ndarray:
    """int32 accumulators of numpy.matmul's shape."""
    shape = np.matmul(np.zeros(a.shape, np.int8), np.zeros(b.shape, np.int8)).shape
    left, right = centred(a, a_zero, columns=False), centred(b, b_zero, columns=True)
    if a.ndim == 1:
        left = left[None, :]
    if b.ndim == 1:
        right = right[:, None]
    lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (np.broadcast_to(m, (*lead, *m.shape[-2:])) for m in (left, right))
    full = (*lead, left.shape[-2], right.shape[-1])
    y = np.zeros(full, np.int32)
    for *batch, i, j in product(*map(range, full)):
        row, column = left[(*batch, i)], right[(*batch, slice(None), j)]
        y[(*batch, i, j)] = wrap32(sum(int(p) * int(q) for p, q in zip(row, column, strict=True)))
    return y.reshape(shape)


def centred(codes: np.ndarray, zero: np.ndarray, *, columns: bool) -> np.ndarray:
    return codes.astype(object) - rows(zero, codes, columns=columns).astype(object)


def requantize_all(acc: np.ndarray, factors: Sequence[np.ndarray], y_scale: Any, zero: np.ndarray) -> np.ndarray:
    """acc int32; factors broadcast to it."""
    y = np.zeros(acc.shape, zero.dtype)
    wide = [np.broadcast_to(f, acc.shape) for f in factors]
    scale = real(y_scale)
    for index in np.ndindex(*acc.shape):
        q = requantize(int(acc[index]), [real(f[index]) for f in wide], scale)
        y[index] = saturate(q, int(zero.reshape(())), RANGES[zero.dtype.name])
    return y


def thresholds(factors: Sequence[Fraction], y_scale: Fraction, zero: int, limits: tuple[int, int]) -> list[int]:
    """Every accumulator of 32 bits where requantization steps to the next code, for a positive multiplier."""
    multiplier = Fraction(1)
    for f in factors:
        multiplier *= f
    multiplier /= y_scale
    found = []
    for code in range(limits[0] - zero, limits[1] - zero):
        edge = Fraction(2 * code + 1, 2) / multiplier
        first = edge.numerator // edge.denominator
        if edge != first or code % 2 == 0:
            first += 1
        if -(2**31) < first < 2**31:
            found.append(first)
    return found
