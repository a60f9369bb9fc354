"""Planned running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.expression import KIND_OF
from qrun.native.emit.spec import NARROW
from qrun.native.errors import Declined
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size

_TYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")


class Accumulated(Operation):
    """y[i] = x[0] joined with ... x[i] along an axis of a shape with elements; float32 in float64, each result rounded once.

    what: ``sum`` or ``product``; integers wrap. exclusive: up to x[i - 1], so that y[0] is 0 or 1. reverse: from the end.
    Raises Declined for other types.
    """

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, exclusive: bool, reverse: bool) -> None:
        if x.dtype.name not in _TYPES:
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
            "units": words.pop("rows"), "outer": length * step, "blocks": blocks, "last": after - lanes,
            "first": (length - 1) * step if self.reverse else 0, "step": -step if self.reverse else step,
            "steps": length - self.exclusive,
        }  # fmt: skip
        form, kind = self.what + "_before" * self.exclusive, KIND_OF[x.dtype.name]
        spec = KernelSpec("running", engine.isa.name, lanes, 1, 1, form, self.out, False, operands=kind)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)
