"""Planned ArgMax, ArgMin and TopK: the places of the greatest or least elements; the elements at such places;
and OneHot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.expression import KIND_OF
from qrun.native.emit.spec import OUTER
from qrun.native.errors import Declined
from qrun.native.kernels.strided import SIZES, Loop, merged, outer_words
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size
from qrun.native.machine.operation import TILE_BYTES

ARG_KINDS = ("float32", "int32", "int64", "uint8", "int8")


class Arg(Operation):
    """int64: where along an axis, which stays with a length of 1, the greatest or least element is;
    a NaN counts as both.

    what: ``max`` or ``min``, with ``_last`` for the last one of equals, else the first one. x: of ARG_KINDS.
    """

    narrows = True

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, lies: Order = "plain") -> None:
        if x.dtype.name not in ARG_KINDS or x.shape[axis] >= 1 << 31:
            raise Declined(f"no native places of {x.dtype.name}")
        self.engine, self.axis, self.what, self.order = engine, axis, what, lies
        shape = tuple(1 if place == axis else n for place, n in enumerate(x.shape))
        self.operands = (x, Operand(shape, np.dtype(np.int64)))

    def lying(self, order: Order) -> Arg:
        return self.again(order=order)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self._lying(strides)
        source = self.operands[0]
        length, along, itemsize = source.shape[self.axis], x.steps[self.axis], source.dtype.itemsize
        loops = merged(
            Loop(n, (x.steps[axis], y.steps[axis])) for axis, n in enumerate(self.result.shape) if axis != self.axis
        ) or [Loop(1, (itemsize, 8))]
        *outer, own = loops
        if len(outer) > OUTER:
            raise Declined("axes that do not follow each other")
        lanes = self.engine.isa.lanes
        columns = own.steps == (itemsize, 8)
        if along == itemsize and not (columns and own.count > 1):
            how, rows = "rows", lanes
        else:
            how, rows = "columns", 2 * lanes if columns else 1
        each = length * itemsize
        chunk = min(own.count, -(-max(TILE_BYTES // max(each, 1), 1) // rows) * rows)
        words = outer_words(("x", "y"), outer, (-(-own.count // chunk), chunk), chunk * each, self.engine.threads)
        words |= {"x_step": own.steps[0], "y_step": own.steps[1], "count": own.count, "length": length, "along": along}
        extents = tuple(
            sum((loop.count - 1) * loop.steps[n] for loop in loops) + last
            for n, last in enumerate(((length - 1) * along + itemsize, 8))
        )
        kinds = KIND_OF[source.dtype.name]
        spec = KernelSpec("arg", self.engine.isa.name, rows, 1, 1, f"{self.what}:{how}", "i64", False, operands=kinds)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents),)


TOP_KINDS = ("float32", "int32")
_PLACES = np.dtype(np.int64)


class TopPlaces(Operation):
    """int64 [..., count]: where in each row, along the last axis of x, the best elements are, the best first.

    what: ``max``, or ``min`` for the least. Of equals the first is the best;
    NaN is greater than all numbers, and -0 is 0.
    """

    narrows = True

    def __init__(self, engine: Engine, x: Operand, count: int, what: str) -> None:
        if x.dtype.name not in TOP_KINDS or x.shape[-1] >= 1 << 31:
            raise Declined(f"no native order of {x.dtype.name}")
        if not 0 <= count <= x.shape[-1]:
            raise ValueError(f"{count} of {x.shape[-1]} elements")
        self.engine, self.count, self.what = engine, count, what
        self.operands = (x, Operand((*x.shape[:-1], count), _PLACES))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x = self.operands[0]
        words = _words(self.engine, x.shape, self.count, 16 * x.shape[-1])
        words["levels"] = self.count.bit_length()
        lanes, kind = self.engine.isa.lanes, KIND_OF[x.dtype.name]
        spec = KernelSpec("top", self.engine.isa.name, lanes, 1, 1, self.what, "i64", False, operands=kind)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole, scratch=8 * self.count),)


class Along(Operation):
    """x [..., length] at places [..., count] of each row, which must be 0 to length - 1."""

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
        return (self.engine.kernels.call(spec, ("x*", "at*", "y*"), words, self.whole),)


def _words(engine: Engine, shape: Sequence[int], count: int, row_bytes: int) -> dict[str, int]:
    """Of rows along the last axis."""
    return row_tiles(size(shape[:-1]), row_bytes, engine.threads) | {"length": shape[-1], "count": count}


ONE_HOT_KINDS = ("int32", "int64", "uint8", "int8")


class OneHot(Operation):
    """values[1] where the place along a new axis of x's shape is the index, else values[0].

    x: indices, of ONE_HOT_KINDS. depth: of the new axis. least: the least index that exists;
    those below 0 count from the end.
    """

    def __init__(self, engine: Engine, x: Operand, axis: int, depth: int, values: Array, least: int) -> None:
        if x.dtype.name not in ONE_HOT_KINDS or values.dtype.itemsize not in SIZES or values.dtype.hasobject:
            raise Declined(f"no native choice of {values.dtype.name} by {x.dtype.name}")
        if values.shape != (2,) or not -depth <= least <= 0:
            raise ValueError(f"values {list(values.shape)}, indices from {least} of {depth}")
        self.engine, self.axis, self.depth, self.values, self.least = engine, axis, depth, values, least
        self.operands = (x, Operand((*x.shape[:axis], depth, *x.shape[axis:]), values.dtype))

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, bytes_each = self.operands[0], self.values.dtype.itemsize
        rows, inner = size(x.shape[: self.axis]), size(x.shape[self.axis :])
        off, on = (int(bits) for bits in self.values.view(f"i{bytes_each}"))
        words = row_tiles(rows, self.depth * inner * bytes_each, self.engine.threads)
        words |= {"inner": inner, "depth": self.depth, "least": self.least, "on": on, "off": off}
        isa, kind = self.engine.isa, KIND_OF[x.dtype.name]
        spec = KernelSpec(
            "one_hot", isa.name, 4 * isa.lanes // bytes_each, 0, bytes_each, "choose", "bytes", False, operands=kind
        )
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)
