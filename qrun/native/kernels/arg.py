"""Planned ArgMax and ArgMin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.spec import OUTER
from qrun.native.errors import Declined
from qrun.native.kernels.copy import OperandStrides
from qrun.native.kernels.strided import Loop, merged, outer_words
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Order, Planned
from qrun.native.machine.operation import TILE_BYTES

KINDS = {"float32": "f", "int32": "i", "int64": "l", "uint8": "u", "int8": "s"}


class Arg(Planned):
    """int64: where along an axis, which stays with a length of 1, the greatest or least element is; a NaN counts as both.

    what: ``max`` or ``min``, with ``_last`` for the last one of equals, else the first one. x: of KINDS.
    """

    narrows = True

    def __init__(self, engine: Engine, x: Operand, axis: int, what: str, lies: Order = "plain") -> None:
        if x.dtype.name not in KINDS or x.shape[axis] >= 1 << 31:
            raise Declined(f"no native places of {x.dtype.name}")
        self.engine, self.axis, self.what, self.order = engine, axis, what, lies
        shape = tuple(1 if place == axis else n for place, n in enumerate(x.shape))
        self.operands = (x, Operand(shape, np.dtype(np.int64)))

    def lying(self, order: Order) -> Arg:
        return self.again(order=order)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = (OperandStrides.of(o, self.order, s) for o, s in zip(self.operands, strides, strict=True))
        source = self.operands[0]
        length, along, itemsize = source.shape[self.axis], x.steps[self.axis], source.dtype.itemsize
        loops = merged(
            Loop(n, (x.steps[axis], y.steps[axis])) for axis, n in enumerate(self.result.shape) if axis != self.axis
        ) or [Loop(1, (itemsize, 8))]  # fmt: skip
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
        kinds = KINDS[source.dtype.name]
        spec = KernelSpec("arg", self.engine.isa.name, rows, 1, 1, f"{self.what}:{how}", "i64", False, operands=kinds)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents),)
