"""Plans reductions of rows to one number each, of float32, integers or bool; running sums and products; the places of
the greatest or least elements (ArgMax, ArgMin, TopK), and the elements at such places; and OneHot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.expression import KIND_OF, KINDS
from qrun.native.emit.spec import NARROW, OUTER
from qrun.native.errors import Declined
from qrun.native.kernels.copy import SIZES, Loop, merge, outer_words
from qrun.native.kernels.rowwise import FloatRows
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size
from qrun.native.machine.operation import TILE_BYTES

FLOAT_KINDS = ("sum", "mean", "sum_abs", "sum_square", "norm", "log_sum", "log_sum_exp", "greatest", "least")
ARG_KINDS = ("float32", "int32", "int64", "uint8", "int8")


class Reduction(FloatRows):
    """A reduction of each row of `length` float32 elements; results have the shape y_shape.

    kind: one of FLOAT_KINDS: ``sum``, ``mean``, ``sum_abs`` (of magnitudes), ``sum_square`` (of squares), ``norm`` (its
          square root), ``log_sum`` (the sum's logarithm), ``log_sum_exp`` (the logarithm of the exponentials' sum),
          ``greatest`` or ``least`` (NaN if there is one; -0 is less than +0).
    """

    reduces = True

    def __init__(
        self,
        engine: Engine,
        kind: str,
        shape: Sequence[int],
        length: int,
        y_shape: Sequence[int],
    ) -> None:
        self.kind = kind
        super().__init__(engine, shape, length, y_shape)


_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FORMS = ("sum", "product", "sum_abs", "sum_square", "mean", "greatest", "least")


class IntegerReduction(Operation):
    """A reduction of each row of `length` >= 1 integers; results have the shape y_shape.

    kind: ``sum``, ``product``, ``sum_abs`` (of magnitudes) or ``sum_square`` (of squares), which wrap; ``mean`` (exact,
          then truncated toward zero; for up to 32 bits); ``greatest`` or ``least``, also of bool.

    Raises Declined for other kinds, and for types that they do not take.
    """

    def __init__(
        self,
        engine: Engine,
        kind: str,
        dtype: np.dtype[Any],
        shape: Sequence[int],
        length: int,
        y_shape: Sequence[int],
    ) -> None:
        taken = dtype.name in _INTEGERS or (dtype == np.bool_ and kind in ("greatest", "least"))
        if kind not in _FORMS or not taken or (kind == "mean" and dtype.itemsize == 8):
            raise Declined(f"no native {kind.replace('_', ' of ')} of {dtype.name}")
        self.engine, self.kind, self.length, self.element = engine, kind, length, KIND_OF[dtype.name]
        self.operands = Operand(tuple(shape), dtype), Operand(tuple(y_shape), dtype)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, rows, item = self.engine, size(self.result.shape), KINDS[self.element][1]
        lanes = 4 * engine.isa.lanes // item
        words = row_tiles(rows, self.length * item, engine.threads)
        words |= {"length": self.length, "whole": self.length - self.length % lanes}
        spec = KernelSpec("folded", engine.isa.name, lanes, 1, 1, self.kind, "bytes", False, operands=self.element)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)


_RUNNING = ("float32", "float64", "int32", "int64", "uint32", "uint64")


class Accumulated(Operation):
    """Running sums or products: y[i] = x[0] + ... + x[i], or x[0] * ... * x[i], along an axis of a shape that is not
    empty. float32 is accumulated in float64, and each result rounded once.

    what: ``sum`` or ``product``; integers wrap. exclusive: up to x[i - 1], so that y[0] is 0 or 1. reverse: from the
    end. Raises Declined for other types."""

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, exclusive: bool, reverse: bool) -> None:
        if x.dtype.name not in _RUNNING:
            raise Declined(f"no native running {what} of {x.dtype.name}")
        self.engine, self.axis, self.what, self.operands = engine, axis, what, (x, x)
        self.exclusive, self.reverse, self.out = exclusive, reverse, "bytes"

    def with_narrow_results(self, dtype: np.dtype[Any]) -> Accumulated:
        return self.again(out=NARROW[dtype.name])

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, engine = self.result, self.engine
        length, after, item = x.shape[self.axis], size(x.shape[self.axis + 1 :]), x.dtype.itemsize
        lanes = 4 * engine.isa.lanes // item
        lanes = lanes if after >= lanes else 1
        blocks, step = -(-after // lanes), after * item
        words = row_tiles(size(x.shape[: self.axis]) * blocks, length * lanes * item, engine.threads)
        words |= {
            "units": words.pop("rows"),
            "outer": length * step,
            "blocks": blocks,
            "last": after - lanes,
            "first": (length - 1) * step if self.reverse else 0,
            "step": -step if self.reverse else step,
            "steps": length - self.exclusive,
        }
        form, kind = self.what + "_before" * self.exclusive, KIND_OF[x.dtype.name]
        spec = KernelSpec("running", engine.isa.name, lanes, 1, 1, form, self.out, False, operands=kind)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)


class Arg(Operation):
    """The place of the greatest or least element along an axis, as int64. The axis stays, with a length of 1. A NaN is
    both the greatest and the least.

    what: ``max`` or ``min``, with ``_last`` for the last of equals, else the first. x: of ARG_KINDS."""

    narrows = True

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, lies: Order = "plain") -> None:
        if x.dtype.name not in ARG_KINDS or x.shape[axis] >= 1 << 31:
            raise Declined(f"no native places of {x.dtype.name}")
        self.engine, self.axis, self.what, self.order = engine, axis, what, lies
        shape = tuple(1 if index == axis else n for index, n in enumerate(x.shape))
        self.operands = (x, Operand(shape, np.dtype(np.int64)))

    def with_layout(self, order: Order) -> Arg:
        return self.again(order=order)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self._operand_strides(strides)
        source = self.operands[0]
        length, along, itemsize = source.shape[self.axis], x.steps[self.axis], source.dtype.itemsize
        loops = merge(
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
    """The places of the best elements in each row, along the last axis of x, as int64 [..., count]; the best first.

    what: ``max``, or ``min`` for the least. Of equal elements the first is the best. NaN is greater than all numbers,
    and -0 equals 0."""

    narrows = True

    def __init__(self, engine: Engine, x: Operand, count: int, what: str) -> None:
        if x.dtype.name not in TOP_KINDS or x.shape[-1] >= 1 << 31:
            raise Declined(f"no native order of {x.dtype.name}")
        if not 0 <= count <= x.shape[-1]:
            raise ValueError(f"{count} of {x.shape[-1]} elements")
        self.engine, self.count, self.what = engine, count, what
        self.operands = (x, Operand((*x.shape[:-1], count), _PLACES))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x = self.operands[0]
        words = _words(self.engine, x.shape, self.count, 16 * x.shape[-1])
        words["levels"] = self.count.bit_length()
        lanes, kind = self.engine.isa.lanes, KIND_OF[x.dtype.name]
        spec = KernelSpec("top", self.engine.isa.name, lanes, 1, 1, self.what, "i64", False, operands=kind)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole, scratch=8 * self.count),)


class Along(Operation):
    """The elements of x [..., length] at places [..., count] of each row. Places must be 0 to length - 1."""

    narrows = True

    def __init__(self, engine: Engine, x: Operand, places: Operand) -> None:
        if x.shape[:-1] != places.shape[:-1] or places.dtype != _PLACES:
            raise ValueError(f"places {list(places.shape)} of {list(x.shape)}")
        self.engine = engine
        self.operands = (x, places, Operand(places.shape, x.dtype))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, count = self.operands[0], self.result.shape[-1]
        words = _words(self.engine, x.shape, count, 16 * count)
        spec = KernelSpec("along", self.engine.isa.name, 0, 0, x.dtype.itemsize, "copy", "bytes", False)
        return (self.engine.kernels.call(spec, ("x*", "at*", "y*"), words, self.whole),)


def _words(engine: Engine, shape: Sequence[int], count: int, row_bytes: int) -> dict[str, int]:
    """The words of kernels whose rows are along the last axis."""
    return row_tiles(size(shape[:-1]), row_bytes, engine.threads) | {"length": shape[-1], "count": count}


ONE_HOT_KINDS = ("int32", "int64", "uint8", "int8")


class OneHot(Operation):
    """values[1] where the place along a new axis equals the index in x, else values[0].

    x: indices, of ONE_HOT_KINDS. depth: length of the new axis. least: the least valid index; negative ones count from
    the end."""

    def __init__(self, engine: Engine, x: Operand, axis: int, depth: int, values: Array, least: int) -> None:
        if x.dtype.name not in ONE_HOT_KINDS or values.dtype.itemsize not in SIZES or values.dtype.hasobject:
            raise Declined(f"no native choice of {values.dtype.name} by {x.dtype.name}")
        if values.shape != (2,) or not -depth <= least <= 0:
            raise ValueError(f"values {list(values.shape)}, indices from {least} of {depth}")
        self.engine, self.axis, self.depth, self.values, self.least = engine, axis, depth, values, least
        self.operands = (x, Operand((*x.shape[:axis], depth, *x.shape[axis:]), values.dtype))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
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
