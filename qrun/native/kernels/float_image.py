"""Planned conversion of float32 images to float64, for convolutions that read each pixel several times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native.emit.spec import KernelSpec
from qrun.native.machine.call import KernelCall
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand, Order, Planned, share, size

_LINE = 8
"""float64 numbers of a line of 64 bytes."""


class WideImage(Planned):
    """float32 [N, C, spatial...] as float64, with the sums of squares of each group's channels behind those of a pixel."""

    order: Order = "channels"
    gaps = False

    def __init__(self, engine: Engine, shape: Sequence[int], group: int) -> None:
        super().__init__()
        self.engine, self.group = engine, group
        images, channels, *spatial = (int(n) for n in shape)
        numbers = -(-(channels + group) // _LINE) * _LINE
        self.operands = (
            Operand((images, channels, *spatial), np.dtype(np.float32)),
            Operand((images, numbers, *spatial), np.dtype(np.float64), tight=True),
        )

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        (images, channels, *spatial), numbers = self.operands[0].shape, self.result.shape[1]
        pixels, x_row = images * size(spatial), strides[0] or 4 * channels
        if not pixels:
            return ()
        each = share(pixels, 8 * numbers, self.engine.threads)
        spec = KernelSpec("widen", self.engine.isa.name, 1, 4, 1, "cast", "f64", False)
        words = {"x_row": x_row, "y_row": 8 * numbers, "rows": pixels, "share": each, "tiles": -(-pixels // each)}
        words |= {"depth": channels // self.group, "groups": self.group, "squares_at": 8 * channels}
        extents = (pixels - 1) * x_row + 4 * channels, 8 * numbers * pixels
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, extents),)
