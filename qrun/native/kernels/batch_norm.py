"""Planned batch normalization of float32, its parameters constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, share, size

Array = np.ndarray[Any, Any]


class BatchNorm(Planned):
    """y = (x - mean) * factor + bias of float32 [N, C, spatial...], not empty; mean, factor, bias: float64 [C].

    Each step is rounded to float64, and the last once more, to float32.
    """

    order: Order = "channels"

    def __init__(self, engine: Engine, shape: Sequence[int], mean: Array, factor: Array, bias: Array) -> None:
        super().__init__()
        operand = Operand(tuple(int(n) for n in shape), np.dtype(np.float32))
        self.engine, self.operands = engine, (operand, operand)
        given = {"mean*": mean, "factor*": factor, "bias*": bias}
        self.arrays = {name: np.ascontiguousarray(values, np.float64) for name, values in given.items()}

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        channels, isa = self.result.shape[1], self.engine.isa
        rows = size(self.result.shape) // channels
        block = isa.lanes if channels >= isa.lanes else 1
        spec = KernelSpec("batch_norm", isa.name, block, 1, 1, "normalize", "f32", False)
        steps = [stride or 4 * channels for stride in strides]
        chunk = share(rows, 8 * channels, self.engine.threads)
        words = {"x_row": steps[0], "y_row": steps[1], "rows": rows, "chunk": chunk, "tiles": -(-rows // chunk)}
        words |= {"channels": channels, "last": channels - block}
        extents = tuple((rows - 1) * step + 4 * channels for step in steps)
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents, self.arrays, channels=channels),)
