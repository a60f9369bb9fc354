"""Outputs that mix ranges, such as boxes up to 640 beside scores up to 1: parts of unlike size, each judged alone."""

from __future__ import annotations

import numpy as np

from qrun.comparing.differences import ErrorSums, Noise
from qrun.declare.frozen import frozen, keys
from qrun.ir import Array

_UNLIKE = 16.0
"""The least factor between the largest values of two parts, and between their medians."""
_MOST = 4
"""The most parts of an output. More parts are not ranges, but values that happen to be small."""
_ENOUGH = 16
"""The fewest values along all other axes whose largest one shows a range."""
LOST = 3.0
"""dB below which a part is lost."""


@frozen
class Columns:
    """The places from `first` up to `last` along an axis."""

    axis: int
    first: int
    last: int

    def of(self, array: Array) -> Array:
        return array[(slice(None),) * self.axis + (slice(self.first, self.last),)]

    def name(self, output: str) -> str:
        return f"{output}[{':, ' * self.axis}{self.first}:{self.last}]"


def columns(array: Array) -> tuple[Columns, ...]:
    """The parts of an output along the axis on which ranges are mixed; () if none are."""
    if array.dtype.kind != "f" or array.ndim < 2 or not array.size or not np.isfinite(array).all():
        return ()
    for axis in range(1, array.ndim):
        count = array.shape[axis]
        if count < 2 or array.size // count < _ENOUGH:
            continue
        values = np.abs(np.moveaxis(array, axis, 0).reshape(count, -1))
        sizes, middles = values.max(1), np.median(values, 1)
        if middles.min() <= 0:
            continue
        apart = np.all([np.maximum(x[1:] / x[:-1], x[:-1] / x[1:]) >= _UNLIKE for x in (sizes, middles)], axis=0)
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), count]
        if 2 <= len(edges) - 1 <= _MOST and sizes.max() > 1:
            return tuple(Columns(axis, a, b) for a, b in zip(edges, edges[1:], strict=False))
    return ()


@frozen
class PartAccuracy:
    """A part of an output that mixes ranges. low, high: of its values, in the first model and in the second."""

    KEYS = keys("name sqnr_db=noise.sqnr max_abs=noise.largest reference=wanted quantized=got lost")

    name: str
    noise: Noise
    wanted: tuple[float, float]
    got: tuple[float, float]

    @property
    def lost(self) -> bool:
        return self.noise.sqnr < LOST


class PartSums:
    """Sums over a part of an output, run by run, and the values that it reaches in both models."""

    def __init__(self, part: Columns, output: str) -> None:
        self.part, self.name, self.sums = part, part.name(output), ErrorSums()
        self.ends = [[np.inf, -np.inf], [np.inf, -np.inf]]

    def add(self, got: Array, want: Array) -> None:
        pair = self.part.of(want), self.part.of(got)
        self.sums.add(pair[1], pair[0])
        for ends, array in zip(self.ends, pair, strict=True):
            ends[:] = min(ends[0], float(np.min(array))), max(ends[1], float(np.max(array)))

    def result(self) -> PartAccuracy:
        wanted, got = ((low, high) for low, high in self.ends)
        return PartAccuracy(self.name, self.sums.result(), wanted, got)
