"""Statistics of a model's quantized tensors: scales, used range, elements at the limits, and a histogram of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from qrun.checking.rules._scope import Scope
from qrun.declare.frozen import frozen
from qrun.documents.answers import TensorCodes
from qrun.ir import Array, Model, Node
from qrun.ir.types import type_name
from qrun.ops import quantizers

BINS = 20
BLOCK = 1 << 20
"""The number of elements counted at a time, so that counting takes little memory."""
EXACT = 2
"""The size in bytes of the widest type whose codes are counted one by one."""


@frozen
class Counted:
    """How often the codes of a tensor occur.

    limits: smallest and largest code of the type; at_low, at_high: elements there; used: smallest and largest value.
    bins:   histogram of the elements that are not at the limits, in bins of about equal width. They divide all codes of
            a type of at most 16 bits, else the used range. codes: the number of codes in each bin, without limits.
    """

    size: int
    limits: tuple[float, float]
    used: tuple[float, float] | None
    at_low: int
    at_high: int
    bins: tuple[int, ...]
    codes: tuple[int, ...]


@cache
def _codes(dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Every code of a type of one or two bytes in rising order, and the position of each bit pattern among them.

    Patterns that represent no number get the position after the last.
    """
    patterns = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    finite = np.isfinite(patterns)
    codes, places = np.unique(patterns[finite], return_inverse=True)
    found = np.full(patterns.size, codes.size)
    found[finite] = places
    return codes, found


def count_codes(array: Array) -> Counted | None:
    """Count the codes of an integer tensor, or of a float tensor of at most 16 bits; None for other types.

    The counts are exact. The bins of types wider than 16 bits divide the used range.
    """
    dtype = array.dtype
    flat = array.reshape(-1)
    if dtype.itemsize <= EXACT and dtype.kind not in "bOUS":
        return _exact(flat)
    return _wide(flat) if dtype.kind in "iu" else None


def _blocks(flat: Array) -> Iterator[Array]:
    return (flat[at : at + BLOCK] for at in range(0, flat.size, BLOCK))


def _exact(flat: Array) -> Counted:
    codes, places = _codes(flat.dtype)
    patterns = np.zeros(places.size, np.int64)
    for block in _blocks(flat):
        patterns += np.bincount(block.view(f"u{flat.dtype.itemsize}"), minlength=places.size)
    counts = np.bincount(places, patterns, codes.size + 1).astype(np.int64)[: codes.size]
    there = np.flatnonzero(counts)
    used = (float(codes[there[0]]), float(codes[there[-1]])) if there.size else None
    inner = counts.copy()
    inner[[0, -1]] = 0
    edges = _edges(0, codes.size)
    limits, ends = (float(codes[0]), float(codes[-1])), (int(counts[0]), int(counts[-1]))
    bins = np.add.reduceat(inner, edges[:-1])
    return Counted(flat.size, limits, used, *ends, tuple(bins.tolist()), _widths(edges, 0, codes.size - 1))


def _edges(low: int, stop: int) -> list[int]:
    """The starts of the bins that divide ``low .. stop - 1``, and `stop`."""
    parts = min(BINS, stop - low)
    return [low + (stop - low) * at // parts for at in range(parts + 1)]


def _widths(edges: Sequence[int], *limits: int) -> tuple[int, ...]:
    """The number of codes from each edge to the next, without the limits."""
    return tuple(stop - start - sum(start <= at < stop for at in limits) for start, stop in pairwise(edges))


def _wide(flat: Array) -> Counted:
    info = np.iinfo(flat.dtype)
    limits = float(info.min), float(info.max)
    if not flat.size:
        return Counted(0, limits, None, 0, 0, (0,), (0,))
    low, high = int(flat.min()), int(flat.max())
    edges = _edges(low, high + 1)
    starts = np.array(edges[:-1], flat.dtype)
    bins = np.zeros(starts.size, np.int64)
    ends = [0, 0]
    for block in _blocks(flat):
        bins += np.bincount(np.searchsorted(starts, block, "right") - 1, minlength=starts.size)
        ends[0] += int((block == info.min).sum())
        ends[1] += int((block == info.max).sum())
    bins[0] -= ends[0]
    bins[-1] -= ends[1]
    used = float(low), float(high)
    return Counted(flat.size, limits, used, ends[0], ends[1], tuple(bins.tolist()), _widths(edges, info.min, info.max))


@frozen
class QuantizedTensorNames:
    """A quantized tensor with the node that makes it or reads it first, and the names of its scale and zero point."""

    tensor: str
    node: Node
    scale: str
    zero_point: str


def places(model: Model) -> dict[str, QuantizedTensorNames]:
    """The quantized tensors of a graph by name, in graph order."""
    found: dict[str, QuantizedTensorNames] = {}
    for node in model.nodes:
        for place in _places(node):
            known = found.get(place.tensor)
            if known is None or (place.scale and not known.scale):
                found[place.tensor] = place
    return found


def _places(node: Node) -> Iterator[QuantizedTensorNames]:
    if node.op_type == "DynamicQuantizeLinear" and len(node.outputs) == 3:
        yield QuantizedTensorNames(node.outputs[0], node, node.outputs[1], node.outputs[2])
    for q in quantizers(node):
        if q.tensor.tensor:
            scale, zero = (slot.tensor if slot else "" for slot in (q.scale, q.zero_point))
            yield QuantizedTensorNames(q.tensor.tensor, node, scale, zero)


class CodeCounter:
    """Counts the codes of a model's quantized tensors: stored ones at once, others when they are passed to `see`."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.places = places(model)
        self._parameters: dict[str, Array | None] = {
            name: None for place in self.places.values() for name in (place.scale, place.zero_point) if name
        }
        self._seen: dict[str, tuple[str, tuple[int, ...], Counted]] = {}
        scope = Scope(model)
        self._stored = {name: v for name in self.places if (v := scope.value(name)) is not None}
        for name in self._parameters:
            self._parameters[name] = scope.value(name)
        for name, array in self._stored.items():
            self.see(name, array)

    @property
    def made(self) -> tuple[str, ...]:
        """The tensors that only a run computes, to be passed to `see`."""
        left = [name for name in self.places if name not in self._stored]
        left += [name for name, value in self._parameters.items() if value is None]
        return tuple(name for name in dict.fromkeys(left) if name in self.model.producers)

    def see(self, name: str, array: Array) -> None:
        """Count a tensor if it is quantized, and keep it if it is a scale or zero point."""
        if name in self._parameters:
            self._parameters[name] = np.array(array)
        if name in self.places and (found := count_codes(array)) is not None:
            self._seen[name] = type_name(array.dtype), array.shape, found

    def records(self) -> list[TensorCodes]:
        """One record for each tensor that was counted, in graph order."""
        return [self._record(place, *self._seen[name]) for name, place in self.places.items() if name in self._seen]

    def _record(self, place: QuantizedTensorNames, dtype: str, shape: tuple[int, ...], c: Counted) -> TensorCodes:
        stored = place.tensor in self._stored
        kind = "bias" if stored and dtype == "int32" else "weight" if stored else "activation"
        scale, zero = (_range(self._parameters.get(name)) for name in (place.scale, place.zero_point))
        form = place.tensor, place.node.index, place.node.name, kind, dtype, shape
        used = _plain(c.used) if c.used else None
        counts = c.at_low, c.at_high, c.bins, c.codes
        return TensorCodes(*form, scale, zero, c.size, _plain(c.limits), used, *counts)


def _range(values: Array | None) -> tuple[float, float] | None:
    """The smallest and the largest value; None if there are none."""
    if values is None or not values.size:
        return None
    wide = values.astype(np.float64)
    return _plain((float(wide.min()), float(wide.max())))


def _plain(pair: tuple[float, float]) -> tuple[float, float]:
    """Whole numbers as integers, others to nine digits, which distinguish any two float32 numbers."""
    low, high = (int(v) if v.is_integer() else float(f"{v:.9g}") for v in pair)
    return low, high
