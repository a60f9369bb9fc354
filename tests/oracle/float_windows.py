"""Sliding windows from the text of Conv, ConvTranspose, MaxPool and AveragePool: Python loops over exact Fractions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import ceil, floor
from typing import Any

import numpy as np

Index = tuple[int, ...]


def geometry(
    size: Index, kernel: Index, strides: Index, dilations: Index, pads: Index, auto_pad: str, ceil_mode: bool
) -> tuple[list[int], list[int], list[int]]:
    """(pads at the begin, pads at the end, output size) as the pages of MaxPool-22 and Conv-22 say."""
    rank = len(size)
    begin, end, out = [], [], []
    for i in range(rank):
        extent = (kernel[i] - 1) * dilations[i] + 1
        b, e = (pads[i], pads[rank + i]) if auto_pad == "NOTSET" else (0, 0)
        if auto_pad.startswith("SAME"):
            o = ceil(Fraction(size[i], strides[i]))
            total = max((o - 1) * strides[i] + extent - size[i], 0)
            b = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
            e = total - b
        else:
            count = Fraction(size[i] + b + e - extent, strides[i]) + 1
            o = ceil(count) if ceil_mode else floor(count)
            if ceil_mode and (o - 1) * strides[i] >= size[i] + b:
                o -= 1
        begin.append(b)
        end.append(e)
        out.append(o)
    return begin, end, out


def places(
    at: Index, kernel: Index, strides: Index, dilations: Index, begin: list[int]
) -> Iterator[tuple[Index, Index]]:
    """(tap, place in the unpadded input) of one window in row-major order."""
    for tap in product(*map(range, kernel)):
        yield (
            tap,
            tuple(a * s - b + t * d for a, s, b, t, d in zip(at, strides, begin, tap, dilations, strict=True)),
        )


def inside(place: Index, size: Index) -> bool:
    return all(0 <= p < n for p, n in zip(place, size, strict=True))


def conv(x: np.ndarray, w: np.ndarray, b: np.ndarray | None, group: int, **g: Any) -> np.ndarray:
    size, kernel = x.shape[2:], w.shape[2:]
    begin, _, out = geometry(size, kernel, ceil_mode=False, **g)
    y = np.zeros((x.shape[0], w.shape[0], *out), x.dtype)
    per, share = w.shape[1], w.shape[0] // group
    for n, m in product(range(x.shape[0]), range(w.shape[0])):
        for at in product(*map(range, out)):
            total = Fraction(0 if b is None else float(b[m]))
            for tap, place in places(at, kernel, g["strides"], g["dilations"], begin):
                if inside(place, size):
                    for c in range(per):
                        total += Fraction(float(x[(n, m // share * per + c, *place)])) * Fraction(
                            float(w[(m, c, *tap)])
                        )
            y[(n, m, *at)] = float(total)
    return y


def conv_transpose(
    x: np.ndarray, w: np.ndarray, b: np.ndarray | None, group: int, strides: Index, dilations: Index,
    begin: Index, out: Index,
) -> np.ndarray:  # fmt: skip
    """The scatter form, cropped to `out` from `begin` on."""
    m = w.shape[1]
    y = np.zeros((x.shape[0], m * group, *out), np.float64)
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for i in product(*map(range, x.shape[2:])):
            for tap in product(*map(range, w.shape[2:])):
                at = tuple(p * s + t * d - q for p, s, t, d, q in zip(i, strides, tap, dilations, begin, strict=True))
                if inside(at, out):
                    for k in range(m):
                        y[(n, c // (x.shape[1] // group) * m + k, *at)] += float(x[(n, c, *i)]) * float(w[(c, k, *tap)])
    if b is not None:
        y += b.astype(np.float64).reshape(-1, *(1,) * len(out))
    return y.astype(x.dtype)


def max_pool(x: np.ndarray, lowest: Any, column_major: bool, **g: Any) -> tuple[np.ndarray, np.ndarray]:
    size = x.shape[2:]
    ceil_mode = g.pop("ceil_mode")
    kernel = g.pop("kernel")
    begin, _, out = geometry(size, kernel, ceil_mode=ceil_mode, **g)
    y = np.full((*x.shape[:2], *out), lowest, x.dtype)
    where = np.full(y.shape, -1, np.int64)
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for at in product(*map(range, out)):
            found = None
            for _, place in places(at, kernel, g["strides"], g["dilations"], begin):
                if inside(place, size) and (found is None or x[(n, c, *place)] > x[(n, c, *found)]):
                    found = place
            if found is not None:
                y[(n, c, *at)] = x[(n, c, *found)]
                flat = 0
                for p, s in zip(*((found[::-1], size[::-1]) if column_major else (found, size)), strict=True):
                    flat = flat * s + p
                where[(n, c, *at)] = (n * x.shape[1] + c) * int(np.prod(size)) + flat
    return y, where


def average_pool(x: np.ndarray, include_pad: bool, **g: Any) -> np.ndarray:
    size = x.shape[2:]
    ceil_mode = g.pop("ceil_mode")
    kernel = g.pop("kernel")
    begin, end, out = geometry(size, kernel, ceil_mode=ceil_mode, **g)
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for n, c in product(range(x.shape[0]), range(x.shape[1])):
        for at in product(*map(range, out)):
            total, count = Fraction(0), 0
            for _, place in places(at, kernel, g["strides"], g["dilations"], begin):
                if inside(place, size):
                    total += Fraction(float(x[(n, c, *place)]))
                    count += 1
                elif include_pad and all(-b <= p < s + e for p, s, b, e in zip(place, size, begin, end, strict=True)):
                    count += 1
            y[(n, c, *at)] = float(total / count) if count else 0.0
    return y
