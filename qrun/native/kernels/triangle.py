"""Planned triangles of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.native.kernels.strided import SIZES
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles, size


class Triangle(Operation):
    """x [..., n, m] of elements of 1, 2, 4 or 8 bytes, with zeros before the place i + diagonal of each row i, or from it on.

    upper: whether it is before.
    """

    def __init__(self, engine: Engine, x: Operand, diagonal: int, upper: bool) -> None:
        if x.dtype.itemsize not in SIZES or x.dtype.hasobject or len(x.shape) < 2:
            raise ValueError(f"{x.dtype.name}{list(x.shape)} has no matrices of bytes")
        self.engine, self.diagonal, self.upper, self.operands = engine, diagonal, upper, (x, x)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, item, isa = self.result, self.result.dtype.itemsize, self.engine.isa
        *_, lines, columns = x.shape
        words = row_tiles(size(x.shape[:-1]), columns * item, self.engine.threads)
        words |= {"lines": lines, "columns": columns, "diagonal": self.diagonal}
        form = "upper" if self.upper else "lower"
        spec = KernelSpec("triangle", isa.name, 4 * isa.lanes // item, 1, item, form, "bytes", False)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole),)
