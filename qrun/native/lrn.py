"""Planned local response normalization of float32."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.native._lrn import NAMES
from qrun.native.engine import Engine
from qrun.native.operation import Operand, Order, size
from qrun.native.planned import Planned, share
from qrun.native.section import Section, struct
from qrun.native.spec import KernelSpec


class Lrn(Planned):
    """y = x / (bias + factor * sum of x**2 over `before` + 1 + `after` channels) ** 0.75, float32 [N, C, spatial...].

    In float64: squares are added from the first channel to the last, the power is sqrt(base) * sqrt(sqrt(base)), and
    the quotient is rounded once more, to float32.
    """

    order: Order = "channels"

    def __init__(
        self, engine: Engine, shape: Sequence[int], before: int, after: int, factor: float, bias: float
    ) -> None:
        super().__init__()
        operand = Operand(tuple(shape), np.dtype(np.float32))
        self.engine, self.operands, self.before, self.after = engine, (operand, operand), before, after
        self.factor, self.bias = np.array([factor]), np.array([bias])

    def _plan(self, strides: Sequence[int]) -> tuple[Section, ...]:
        channels = self.result.shape[1]
        rows = size(self.result.shape) // channels if channels else 0
        if not rows:
            return ()
        isa, taps = self.engine.isa, self.before + 1 + self.after
        block = max(isa.lanes // 2, 2)
        block = block if channels >= block else 1
        spec = KernelSpec("lrn", isa.name, block, 1, 1, "power", "f32", False)
        steps = [stride or 4 * channels for stride in strides]
        chunk = share(rows, 64 * channels, self.engine.threads)
        words = {
            "x*": 0, "y*": 0, "x_row": steps[0], "y_row": steps[1], "rows": rows, "chunk": chunk, "channels": channels,
            "last": channels - block, "before": self.before, "after": self.after, "taps": taps, "tiles": -(-rows // chunk),
        }  # fmt: skip
        arrays = {"factor*": self.factor, "bias*": self.bias}
        pointers = tuple((NAMES.index(name), place) for place, name in enumerate(("x*", "y*")))
        extents = tuple((rows - 1) * step + 4 * channels for step in steps)
        return (
            Section(
                spec, self.engine.kernels.get(spec), struct(NAMES, words, arrays), pointers, extents, words["tiles"],
                channels=channels, keep=(self.factor, self.bias), scratch=8 * (channels + taps - 1),
            ),
        )  # fmt: skip
