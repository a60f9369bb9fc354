"""Planned OneHot."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.emit.expression import KIND_OF
from qrun.native.errors import Declined
from qrun.native.kernels.strided import SIZES
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size

KINDS = ("int32", "int64", "uint8", "int8")


class OneHot(Operation):
    """values[1] where the place along a new axis of x's shape is the index, else values[0].

    x: indices, of KINDS. depth: of the new axis. least: the least index that exists; those below 0 count from the end.
    """

    def __init__(self, engine: Engine, x: Operand, axis: int, depth: int, values: Array, least: int) -> None:
        if x.dtype.name not in KINDS or values.dtype.itemsize not in SIZES or values.dtype.hasobject:
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
