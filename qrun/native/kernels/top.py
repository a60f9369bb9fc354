"""Planned TopK: the places of the greatest or least elements of rows, and the elements there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.errors import Declined
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Order, Planned, row_tiles, size

KINDS = {"float32": "f", "int32": "i"}
_PLACES = np.dtype(np.int64)


class TopPlaces(Planned):
    """int64 [..., count]: where in each row, along the last axis of x, the best elements are, the best first.

    what: ``max``, or ``min`` for the least. Of equals the first is the best; NaN is greater than all numbers, and -0 is 0.
    """

    order: Order = "plain"
    narrows = True

    def __init__(self, engine: Engine, x: Operand, count: int, what: str) -> None:
        if x.dtype.name not in KINDS or x.shape[-1] >= 1 << 31:
            raise Declined(f"no native order of {x.dtype.name}")
        if not 0 <= count <= x.shape[-1]:
            raise ValueError(f"{count} of {x.shape[-1]} elements")
        self.engine, self.count, self.what = engine, count, what
        self.operands = (x, Operand((*x.shape[:-1], count), _PLACES))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x = self.operands[0]
        words = _words(self.engine, x.shape, self.count, 16 * x.shape[-1])
        words["levels"] = self.count.bit_length()
        lanes, kind = self.engine.isa.lanes, KINDS[x.dtype.name]
        spec = KernelSpec("top", self.engine.isa.name, lanes, 1, 1, self.what, "i64", False, operands=kind)
        return (self._whole(spec, ("x*", "y*"), words, scratch=8 * self.count),)


class Along(Planned):
    """x [..., length] at places [..., count] of each row, which must be 0 to length - 1."""

    order: Order = "plain"
    narrows = True

    def __init__(self, engine: Engine, x: Operand, places: Operand) -> None:
        if x.shape[:-1] != places.shape[:-1] or places.dtype != _PLACES:
            raise ValueError(f"places {list(places.shape)} of {list(x.shape)}")
        self.engine = engine
        self.operands = (x, places, Operand(places.shape, x.dtype))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, count = self.operands[0], self.result.shape[-1]
        words = _words(self.engine, x.shape, count, 16 * count)
        spec = KernelSpec("along", self.engine.isa.name, 0, 0, x.dtype.itemsize, "copy", "bytes", False)
        return (self._whole(spec, ("x*", "at*", "y*"), words),)


def _words(engine: Engine, shape: Sequence[int], count: int, row_bytes: int) -> dict[str, int]:
    """Of rows along the last axis."""
    return row_tiles(size(shape[:-1]), row_bytes, engine.threads) | {"length": shape[-1], "count": count}
