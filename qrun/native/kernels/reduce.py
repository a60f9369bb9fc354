"""Planned reductions of rows to one number each, of float32, and of integers or bool; and running sums and products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.expression import KIND_OF, KINDS
from qrun.native.emit.spec import NARROW
from qrun.native.errors import Declined
from qrun.native.kernels.rowwise import FloatRows
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size

FLOAT_KINDS = ("sum", "mean", "sum_abs", "sum_square", "norm", "log_sum", "log_sum_exp", "greatest", "least")


class Reduction(FloatRows):
    """What a row of `length` elements comes to, of shape y_shape.

    kind: of FLOAT_KINDS. ``sum``, ``mean``, ``sum_abs`` (of magnitudes), ``sum_square`` (of squares), ``norm`` (the
          root of that), ``log_sum`` (its logarithm), ``log_sum_exp`` (that of the exponentials' sum),
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
    """What a row of `length` elements comes to, one or more of them, of shape y_shape.

    kind: ``sum``, ``product``, ``sum_abs`` (of magnitudes) or ``sum_square`` (of squares), which wrap; ``mean`` (the
          exact one, toward zero; of up to 32 bits); ``greatest`` or ``least``, of bool too.

    Raises Declined for other kinds, and types that they do not take.
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

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        engine, rows, item = self.engine, size(self.result.shape), KINDS[self.element][1]
        lanes = 4 * engine.isa.lanes // item
        words = row_tiles(rows, self.length * item, engine.threads)
        words |= {"length": self.length, "whole": self.length - self.length % lanes}
        spec = KernelSpec("folded", engine.isa.name, lanes, 1, 1, self.kind, "bytes", False, operands=self.element)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)


_RUNNING = ("float32", "float64", "int32", "int64", "uint32", "uint64")


class Accumulated(Operation):
    """y[i] = x[0] joined with ... x[i] along an axis of a shape with elements;
    float32 in float64, each result rounded once.

    what: ``sum`` or ``product``; integers wrap. exclusive: up to x[i - 1], so that y[0] is 0 or 1. reverse: from the
    end. Raises Declined for other types.
    """

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, exclusive: bool, reverse: bool) -> None:
        if x.dtype.name not in _RUNNING:
            raise Declined(f"no native running {what} of {x.dtype.name}")
        self.engine, self.axis, self.what, self.operands = engine, axis, what, (x, x)
        self.exclusive, self.reverse, self.out = exclusive, reverse, "bytes"

    def narrowed(self, dtype: np.dtype[Any]) -> Accumulated:
        return self.again(out=NARROW[dtype.name])

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
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
