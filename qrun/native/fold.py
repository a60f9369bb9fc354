"""Weights and zero points to what kernels take: int8 weights, an int32 bias, and bounds of the accumulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qrun.native.thresholds import Ints

Int8s = np.ndarray[Any, np.dtype[np.int8]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Folded:
    """sum of (x - x_zero) * (w - w_zero) + bias, for channels [N], as sum of kernel activations * centred + constant.

    centred:  int16 [N, taps, k]: w - w_zero, within -255..255.
    constant: int32 [N]: bias and the activations' zero point, modulo 2**32.
    low, high: int64 [N]: bounds of the sum before it wraps.
    """

    centred: np.ndarray[Any, np.dtype[np.int16]]
    constant: Int32s
    low: Ints
    high: Ints

    def part(self, channels: slice, groups: int) -> Folded:
        """Some channels, made of `groups` groups, as one product over the inputs of all of them."""
        w = self.centred[channels]
        if groups > 1:
            n, taps, k = w.shape
            spread = np.zeros((groups, n // groups, taps, groups, k), np.int16)
            for group in range(groups):
                spread[group, :, :, group] = w.reshape(groups, -1, taps, k)[group]
            w = spread.reshape(n, taps, groups * k)
        return Folded(w, self.constant[channels], self.low[channels], self.high[channels])

    def shifted(self) -> Folded:
        """The same sums of activations that are read 128 higher."""
        total = self.centred.reshape(len(self.centred), -1).sum(axis=1, dtype=np.int64)
        return replace(self, constant=wrapped(self.constant.astype(np.int64) - 128 * total))

    def lines(self, kernel: tuple[int, int]) -> Folded:
        """The same sums with a whole kernel row as one tap."""
        n, _, k = self.centred.shape
        w = self.centred.reshape(n, kernel[0], kernel[1] * k)
        return Folded(w, self.constant, self.low, self.high)


def fold(
    w: np.ndarray[Any, Any], w_zero: np.ndarray[Any, Any], bias: Ints, x_zero: int, signed: bool, shifted: bool
) -> Folded:
    """w int8 or uint8 [N, taps, k]; w_zero and bias [N]; x_zero of activations that are int8 if `signed`.

    shifted: the kernel reads int8 activations as uint8, 128 higher.
    """
    centred = w.astype(np.int16) - w_zero.astype(np.int16)[:, None, None]
    flat = centred.reshape(len(w), -1)
    above = np.maximum(flat, 0).sum(axis=1, dtype=np.int64)
    below = np.minimum(flat, 0).sum(axis=1, dtype=np.int64)
    least, most = (-128 - x_zero, 127 - x_zero) if signed else (-x_zero, 255 - x_zero)
    read = x_zero + (128 if shifted else 0)
    constant = wrapped(bias - read * (above + below))
    return Folded(centred, constant, bias + above * least + below * most, bias + above * most + below * least)


def wrapped(values: Ints) -> Int32s:
    """int64 to int32 modulo 2**32."""
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def int8_taps(centred: np.ndarray[Any, np.dtype[np.int16]]) -> tuple[Int8s, list[int]]:
    """Write weights of -255..255 as sums of int8 taps: int8 [N, more taps, k], and the tap each one reads.

    Weights that fit need nothing; the others (up to 255) take two or three passes over the taps concerned.
    """
    parts, sources = [], []
    rest = centred
    taps = list(range(centred.shape[1]))
    while True:
        part = np.clip(rest, -128, 127)
        parts.append(part.astype(np.int8))
        sources += taps
        rest = rest - part
        keep = np.flatnonzero(rest.any(axis=(0, 2)))
        if not len(keep):
            return np.concatenate(parts, axis=1), sources
        rest, taps = rest[:, keep], [taps[i] for i in keep]


def aligned(shape: tuple[int, ...] | int, dtype: Any, fill: int | None = None) -> np.ndarray[Any, Any]:
    """An array on a 64-byte boundary, uninitialised unless `fill` is given."""
    shape = (shape,) if isinstance(shape, int) else shape
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + size].view(dtype).reshape(shape)
    if fill is not None:
        array[...] = fill
    return np.asarray(array)
