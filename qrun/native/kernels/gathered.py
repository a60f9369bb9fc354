"""Planned copies of rows that indices of the run name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.errors import Declined
from qrun.native.kernels.strided import SIZES
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Order, Planned, row_tiles, size

_KINDS = {np.dtype(np.int32): "i", np.dtype(np.int64): "l"}
_UNROLL = 4
"""Vectors of a block, where a row has as many."""


@frozen
class NamedRows:
    """Which rows of an array the indices name.

    named:  the lengths of the axes in which each of a row's indices counts, one after the other.
    before: places along the axes before these, each with indices of its own if `own`, else all with the same.
    lines:  rows, next to each other, that take neighbouring elements; after these come the rows of the next indices.
    run:    elements of a row. step: elements from one place along the last of `named` to the next.
    """

    named: tuple[int, ...]
    before: int
    own: bool
    lines: int
    run: int

    @property
    def step(self) -> int:
        return self.lines * self.run


class Gathered(Planned):
    """The rows of an array [before, *named, lines * run] that the indices name: -s to s-1 where s is the length of the axis.

    shapes: of the array and of the indices; y_shape: of the result. A run with an index beyond these ends undecided.
    Raises Declined for other indices than int32 and int64, and where there are no elements.
    """

    order: Order = "plain"
    narrows = True

    def __init__(
        self,
        engine: Engine,
        dtype: np.dtype[Any],
        index_type: np.dtype[Any],
        shapes: Sequence[tuple[int, ...]],
        places: NamedRows,
        y_shape: tuple[int, ...],
    ) -> None:
        if index_type not in _KINDS or dtype.itemsize not in SIZES or dtype.hasobject:
            raise Declined(f"no native copies of {dtype.name} by {index_type.name}")
        data, indices = shapes
        if not size(data) or not size(y_shape):
            raise Declined("no elements")
        whole = places.before * size(places.named) * places.step
        each = size(indices) // len(places.named)
        rows = each if places.own else each * places.before
        if whole != size(data) or rows * places.run != size(y_shape):
            raise ValueError(f"{list(data)} and {list(indices)} do not make {list(y_shape)}")
        self.engine, self.places = engine, places
        self.operands = Operand(data, dtype), Operand(indices, index_type), Operand(y_shape, dtype)

    def moving(self, dtype: np.dtype[Any]) -> Gathered:
        x, indices, y = self.operands
        return self.again(operands=(replace(x, dtype=dtype), indices, replace(y, dtype=dtype)))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        places, engine, (x, indices, y) = self.places, self.engine, self.operands
        item, number, depth = x.dtype.itemsize, indices.dtype.itemsize, len(places.named)
        run, rows = places.run * item, size(y.shape) // places.run
        vector = 1 << (min(run, 4 * engine.isa.lanes).bit_length() - 1)
        vectors = _UNROLL if run >= _UNROLL * vector else 1
        form = "block" if run == vectors * vector else "run"
        count = rows // places.before
        steps = [places.step * item * size(places.named[axis + 1 :]) for axis in range(depth)]
        words = row_tiles(rows, run + 16, engine.threads) | {
            "depth": depth, "count": count, "outer_step": size(places.named) * places.step * item,
            "lines": places.lines, "line_step": run, "index_outer": count * depth * number if places.own else 0,
            "index_row": depth * number, "run": run, "last": run - vectors * vector,
        }  # fmt: skip
        spec = KernelSpec(
            "gathered", engine.isa.name, 1, vectors, vector, form, "bytes", False, operands=_KINDS[indices.dtype]
        )
        arrays = {"sizes*": np.array(list(zip(places.named, steps, strict=True)), np.int64)}
        return (self._whole(spec, ("x*", "indices*", "y*"), words, arrays=arrays, decides=False),)
