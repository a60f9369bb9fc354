"""Sums of two uint8 * int8 products, as onnxruntime's kernels for x86 CPUs without VNNI add them: in int16."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._observed import tensors
from qrun.checking.rules._weights import Weight
from qrun.ir import Array, Model
from qrun.ops import Context, find
from qrun.ops._conv import conv_window
from qrun.ops._window import padded, patches
from qrun.shapes import broadcast_shapes

SAFE = 128
"""255 * 128 = 32640 fits int16; 255 * 129 = 32895 and -32895 do not."""
_LIMITS = np.iinfo(np.int16)


def by_pairs(w: Weight) -> Array:
    """The weights with the axis of the sum second, in the order in which the kernels walk it."""
    codes = w.codes
    if not w.is_conv:
        summed = codes.ndim - 2 if w.axis == codes.ndim - 1 else codes.ndim - 1
        moved = np.moveaxis(codes, (summed, w.axis), (-2, -1))
        return moved.reshape(-1, *moved.shape[-2:])
    if codes.shape[1] % 2 == 0:
        return codes
    return np.moveaxis(codes, 1, -1).reshape(len(codes), -1)


def saturated(model: Model, weights: Sequence[Weight], feeds: Mapping[str, Array]) -> list[tuple[int, int]] | None:
    """For each node, how many sums of two products leave int16 with these inputs, of how many.

    The model is run once. None if it cannot be, or if an operand is not known.
    """
    if any(w.scope.outer is not None for w in weights):
        return None
    values = tensors(model, feeds, [w.x.tensor for w in weights])
    return [_count(w, values[w.x.tensor]) for w in weights] if values else None


def _count(w: Weight, x: Array) -> tuple[int, int]:
    count = total = 0
    for columns, codes in _products(w, x):
        first, second = (codes[start : len(codes) // 2 * 2 : 2].astype(np.int32) for start in (0, 1))
        unsafe = np.abs(first + second) > SAFE
        total += unsafe.size * columns.shape[1]
        for pair in np.flatnonzero(unsafe.any(1)):
            a, b = (part[pair, unsafe[pair], None] for part in (first, second))
            sums = a * columns[2 * pair].astype(np.int32) + b * columns[2 * pair + 1].astype(np.int32)
            count += int(np.count_nonzero((sums > _LIMITS.max) | (sums < _LIMITS.min)))
    return count, total


def _products(w: Weight, x: Array) -> Iterator[tuple[Array, Array]]:
    """The matrix products of a node: columns of x [terms, positions] and weights [terms, channels], in kernel order."""
    if w.is_conv:
        yield from _convolutions(w, x)
        return
    if x.dtype == np.float32:
        dynamic: Any = find("", "DynamicQuantizeLinear", 11)
        x = dynamic(x, ctx=Context())[0]
    turned = w.node.attributes.get("transA", 0)
    x = x.T if isinstance(turned, int) and turned else np.atleast_2d(x)
    matrices = by_pairs(w)
    if len(matrices) == 1:
        yield x.reshape(-1, x.shape[-1]).T, matrices[0]
        return
    lead = broadcast_shapes(x.shape[:-2], w.codes.shape[:-2])
    rows = np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(math.prod(lead), *x.shape[-2:])
    placed = np.broadcast_to(matrices.reshape(*w.codes.shape[:-2], *matrices.shape[1:]), (*lead, *matrices.shape[1:]))
    for one, matrix in zip(rows, placed.reshape(-1, *matrices.shape[1:]), strict=True):
        yield one.T, matrix


def _convolutions(w: Weight, x: Array) -> Iterator[tuple[Array, Array]]:
    given: Any = w.node.attributes
    group = given.get("group", 1)
    window = conv_window(x, w.codes, group, given.get("kernel_shape", ()), given.get("strides", ()),
                         given.get("dilations", ()), given.get("pads", ()), given.get("auto_pad", "NOTSET"))  # fmt: skip
    fill = 0 if w.x.zero is None else int(w.x.zero.reshape(-1)[0])
    rank, depth = len(window.kernel), w.codes.shape[1]
    for image in x:
        seen = patches(padded(image, window, fill, Context()), window)
        for g, codes in enumerate(np.split(w.codes, group)):
            part = np.moveaxis(seen[g * depth : (g + 1) * depth], 0, rank)
            yield part.reshape(depth * np.prod(window.kernel, dtype=int), -1), _terms(codes)


def _terms(codes: Array) -> Array:
    """[channels, depth, kernel...] as [kernel... * depth, channels]."""
    return np.moveaxis(codes, 1, -1).reshape(len(codes), -1).T
