"""Folds weights and zero points into kernels' terms: int8 weights, an int32 bias, bounds of the accumulator."""

from __future__ import annotations

import math
from dataclasses import field
from functools import cached_property
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.declare.memo import Memo, memoize
from qrun.declare.stored import Reloadable
from qrun.native.emit.spec import EIGHT
from qrun.native.machine.memory import Ints
from qrun.native.proof.search import INT32

Int8s = np.ndarray[Any, np.dtype[np.int8]]
Int32s = np.ndarray[Any, np.dtype[np.int32]]
Words = np.ndarray[Any, np.dtype[np.uint16]]
Centred = np.ndarray[Any, np.dtype[np.int8 | np.int16]]

_WIDE = 1 << 23
"""Fewer weights, of at most 255 each, have a sum that fits int32."""
_SPAN = 255
"""The greatest magnitude of a code minus its zero point."""
_NEAR = 1 << 17
_NEAR_BOUNDS = 1 << 18
"""Weights that are processed together: temporary arrays stay in the second-level cache."""


@frozen(slots=False)
class Folded:
    """sum of (x - x_zero) * (w - w_zero) + bias, for channels [N], as sum of kernel activations * centred + constant.

    weights:  int8 or int16 [N, taps, k]: w - w_zero, within -255..255; `centred` reads them.
    bias:     int64 [N]. ends: the least and the greatest x - x_zero.
    total:    int64 [N]: the sum of each channel's weights.
    memo:     the same sums cut otherwise, and the packed forms of these, for products of other shapes.
    """

    weights: Reloadable
    bias: Ints
    ends: tuple[int, int]
    x_zero: int
    total: Ints
    memo: Memo = field(default_factory=Memo)

    @property
    def centred(self) -> Centred:
        """The weights with their zero points subtracted."""
        return self.weights.array

    @property
    def shape(self) -> tuple[int, ...]:
        """The weights' shape."""
        return self.weights.shape

    @memoize
    def part(self, first: int, end: int) -> Folded:
        """The sums of some channels."""
        own = slice(first, end)
        return Folded(Reloadable(self.centred[own]), self.bias[own], self.ends, self.x_zero, self.total[own])

    @cached_property
    def constant(self) -> Ints:
        """int64 [N]: the terms of the bias and of the activations' zero point."""
        return np.asarray(self.bias - self.x_zero * self.total)

    @cached_property
    def bounds(self) -> tuple[Ints, Ints]:
        """int64 [N] each: the least and the greatest sum before it wraps."""
        size, (least, most) = _magnitude(self.centred), self.ends
        above, below = (self.total + size) // 2, (self.total - size) // 2
        return self.bias + above * least + below * most, self.bias + above * most + below * least

    @property
    def may_wrap(self) -> bool:
        """Whether some activations would take a sum out of int32. The weights are read only if there are many."""
        _, *many = self.shape
        if _SPAN * _SPAN * math.prod(many) + int(np.abs(self.bias).max(initial=0)) <= INT32[1]:
            return False
        low, high = self.bounds
        return bool((low < INT32[0]).any() or (high > INT32[1]).any())

    def starts(self, shift: int) -> Int32s:
        """int32 [N]: the start values of sums, modulo 2**32, where a kernel reads activations higher by `shift`."""
        return wrap_to_int32(self.constant - shift * self.total)

    @cached_property
    def taps(self) -> tuple[Reloadable, list[int]]:
        """The weights as int8 taps: see `int8_taps`."""
        if self.weights.dtype == np.int8:
            return self.weights, list(range(self.shape[1]))
        weights, taps = int8_taps(self.centred)
        return Reloadable(weights), taps

    @memoize
    def merge_groups(self, groups: int, count: int) -> Folded:
        """The same sums with `count` neighbouring groups as one, the weights between them zero."""
        n, taps, k = self.shape
        each = n // groups
        spread = np.zeros((groups // count, count, each, taps, count, k), self.centred.dtype)
        own = self.centred.reshape(groups // count, count, each, taps, k)
        for group in range(count):
            spread[:, group, :, :, group] = own[:, group]
        return replace(self, weights=Reloadable(spread.reshape(n, taps, count * k)), memo=Memo())

    @memoize
    def lines(self, kernel: tuple[int, int]) -> Folded:
        """The same sums with a whole kernel row as one tap."""
        n, _, k = self.shape
        return replace(self, weights=Reloadable(self.centred.reshape(n, kernel[0], kernel[1] * k)), memo=Memo())


def fold(w: np.ndarray[Any, Any], w_zero: np.ndarray[Any, Any], bias: Ints, x_zero: int, signed: bool) -> Folded:
    """w: int8 or uint8 [N, taps, k]; w_zero, bias: [N]; x_zero: of activations, which are int8 if `signed`."""
    centred = _centre(w, w_zero)
    ends = (-128 - x_zero, 127 - x_zero) if signed else (-x_zero, 255 - x_zero)
    return Folded(Reloadable(centred), bias, ends, x_zero, _total(centred))


def _centre(w: np.ndarray[Any, Any], w_zero: np.ndarray[Any, Any]) -> Centred:
    """w - w_zero; w itself where nothing is subtracted."""
    if w.dtype == np.int8 and not w_zero.any():
        return w
    if w.dtype == np.uint8 and (w_zero == 128).all():
        return np.asarray((w ^ 128).view(np.int8))
    wide = w.astype(np.int16) - w_zero.astype(np.int16)[:, None, None]
    fits = wide.min(initial=0) >= -128 and wide.max(initial=0) <= 127
    return wide.astype(np.int8) if fits else wide


def magnitudes(w: np.ndarray[Any, Any], w_zero: np.ndarray[Any, Any] | None) -> Ints:
    """int64 [N]: the sum of the magnitudes of w - w_zero for each channel; w int8 or uint8 [N, ...], w_zero of one
    element or [N]."""
    zeros = np.zeros(1, w.dtype) if w_zero is None else w_zero.reshape(-1)
    return _magnitude(_centre(w.reshape(len(w), 1, -1), np.broadcast_to(zeros, len(w))))


def _total(centred: np.ndarray[Any, Any]) -> Ints:
    """int64 [N]: the sum of each channel's weights, of int [N, taps, k]."""
    dtype = np.int32 if centred[:1].size < _WIDE else np.int64
    return np.asarray(centred.sum(axis=2, dtype=dtype).sum(axis=1, dtype=np.int64))


def _magnitude(centred: Centred) -> Ints:
    """int64 [N]: the sum of the weights' magnitudes. It takes as many at once as stay in the cache: channels, or each
    channel's weights, whichever lie farther apart."""
    axis = 0 if centred.strides[0] >= centred.strides[2] else 2
    step = max(1, _NEAR * centred.shape[axis] // max(centred.size, 1))
    parts = np.split(centred, range(step, centred.shape[axis], step), axis)
    sums = [_total(np.abs(part).view(f"u{part.itemsize}")) for part in parts]
    return np.concatenate(sums) if axis == 0 else np.sum(sums, axis=0, dtype=np.int64)


def wrap_to_int32(values: Ints) -> Int32s:
    """int64 to int32 modulo 2**32."""
    return (values & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def int8_taps(centred: Centred) -> tuple[Int8s, list[int]]:
    """Write weights of -255..255 as sums of int8 taps: int8 [N, more taps, k], and the tap that each one reads.

    Weights that fit stay as they are; the others (up to 255) take two or three passes over the taps concerned.
    """
    taps = list(range(centred.shape[1]))
    if centred.dtype == np.int8:
        return centred.astype(np.int8, copy=False), taps
    parts, sources = [], []
    rest = centred
    while True:
        part = np.clip(rest, -128, 127)
        parts.append(part.astype(np.int8))
        sources += taps
        rest = rest - part
        keep = np.flatnonzero(rest.any(axis=(0, 2)))
        if not len(keep):
            return np.concatenate(parts, axis=1), sources
        rest, taps = rest[:, keep], [taps[i] for i in keep]


def lane_bounds(weights: Int8s, depth: int) -> tuple[Int8s, Int8s]:
    """Factors that bound the 16-bit sum of a lane, which has four activations. Each activation times its first factor,
    plus the largest of the four times the second factor, is at least the sum of products with any channel's weights.

    weights: int8 [N, taps, k]. Returns int8 [taps, depth] for each of the two factors. A lane of weights 100, 60, -20,
    0 in its only channel: the most that one weight gives is 100, two 160; so factors 60 and 40 bound all sums.

    With s(k) the largest sum of k of the lane's weights that have one sign, in any channel, and sorted activations x,
    sums are at most the sum of (x[k] - x[k+1]) * s(k), and so at most x[0] * s(1) + (x[1] + x[2] + x[3]) * d for a d of
    at least (s(k) - s(1)) / (k - 1).
    """
    count, taps, k = weights.shape
    size = taps * depth
    most = [np.zeros((size // EIGHT, pairs, 2), np.uint16) for pairs in (2, 2, 1, 1)]
    nothing, least = np.zeros(size, np.int8), np.full(size, -127, np.int8)
    step = max(1, _NEAR_BOUNDS // size)
    for start in range(0, count, step):
        part = weights[start : start + step]
        if k < depth:
            part = np.pad(part, ((0, 0), (0, 0), (0, depth - k)))
        part = np.maximum(part.reshape(-1, size), least)
        for values in (np.maximum(part, nothing), -np.minimum(part, nothing)):
            for total, found in zip(most, _largest_sums(values), strict=True):
                np.maximum(total, found.reshape(total.shape), out=total)
    one, pair, apart, four = (total.max(axis=1) for total in most)
    each = np.minimum(one, np.maximum(np.maximum(pair, apart) - one, (four - one + 1) // 2))
    spread = np.zeros((2, size // EIGHT, 2, 2, 2), np.int8)
    spread[0] = each[:, None, :, None]
    spread[1, ..., 0] = (one - each)[:, None]
    bounds = spread.reshape(2, taps, depth)
    return bounds[0], bounds[1]


def _largest_sums(values: Int8s) -> tuple[Words, Words, Words, Words]:
    """The largest over N of values [N, size], none negative. Of eight values a lane reads the first and third pair, or
    the second and fourth. Returns the largest value of each pair; sum of each pair; sum of two values of a lane, one of
    each pair; and sum of a lane's four."""
    pairs = values.view(np.uint16)
    low, high = pairs & 0xFF, pairs >> 8
    larger, sums = np.maximum(low, high), low + high
    return larger.max(axis=0), sums.max(axis=0), _largest_pair_sums(larger), _largest_pair_sums(sums)


def _largest_pair_sums(pairs: Words) -> Words:
    """The largest sums of a lane's two pairs. One word has the first pairs of two lanes, the next word the second
    pairs."""
    words = pairs.view(np.uint32)
    sums = (words[:, ::2] + words[:, 1::2]).view(np.uint16)
    most: Words = sums.max(axis=0)
    return most
