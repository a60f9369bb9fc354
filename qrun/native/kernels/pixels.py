"""Planned normalizations of each pixel's channels of float32: by the squares of neighbouring channels, and by constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.native.emit.spec import NARROW
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size
from qrun.native.machine.memory import Array

_FLOAT = np.dtype(np.float32)


class _Pixels(Operation):
    """One kernel over the pixels of float32 [N, C, spatial...], the channels of each made together.

    block: channels at once. unit_bytes: of work, a channel. arrays, words: what is in the struct for this kernel alone.
    scratch: bytes that a calling thread brings.
    """

    order: Order = "channels"
    kind: str
    form: str
    unit_bytes: int

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        block: int,
        arrays: Mapping[str, Array],
        words: Mapping[str, int] | None = None,
        scratch: int = 0,
    ) -> None:
        operand = Operand(tuple(int(n) for n in shape), _FLOAT)
        self.engine, self.operands, self.block, self.scratch = engine, (operand, operand), block, scratch
        self.arrays = {name: np.ascontiguousarray(values, np.float64) for name, values in arrays.items()}
        self.words, self.out = words or {}, "f32"

    def narrowed(self, dtype: np.dtype[Any]) -> _Pixels:
        return self.again(out=NARROW[dtype.name])

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        channels, engine = self.result.shape[1], self.engine
        rows = size(self.result.shape) // channels
        block = self.block if channels >= self.block else 1
        spec = KernelSpec(self.kind, engine.isa.name, block, 1, 1, self.form, self.out, False)
        steps = [stride or 4 * channels for stride in strides]
        words = row_tiles(rows, self.unit_bytes * channels, engine.threads)
        words |= {"x_row": steps[0], "y_row": steps[1], "channels": channels, "last": channels - block, **self.words}
        given = spec, ("x*", "y*"), words, [(rows - 1) * step + 4 * channels for step in steps], self.arrays
        return (engine.kernels.call(*given, channels=channels, scratch=self.scratch),)


class Lrn(_Pixels):
    """y = x / (bias + factor * sum of x**2 over `before` + 1 + `after` channels) ** 0.75.

    In float64: squares are added from the first channel to the last, the power is sqrt(base) * sqrt(sqrt(base)), and
    the quotient is rounded once more, to float32.
    """

    kind, form, unit_bytes = "lrn", "power", 64

    def __init__(
        self, engine: Engine, shape: Sequence[int], before: int, after: int, factor: float, bias: float
    ) -> None:
        taps, arrays = before + 1 + after, {"factor*": np.array([factor]), "bias*": np.array([bias])}
        words, scratch = {"before": before, "after": after, "taps": taps}, 8 * (int(shape[1]) + taps - 1)
        super().__init__(engine, shape, max(engine.isa.lanes // 2, 2), arrays, words, scratch)


class BatchNorm(_Pixels):
    """y = (x - mean) * factor + bias, for mean, factor and bias of each channel, float64 [C].

    Each step is rounded to float64, and the last once more, to float32.
    """

    kind, form, unit_bytes = "batch_norm", "normalize", 8

    def __init__(self, engine: Engine, shape: Sequence[int], mean: Array, factor: Array, bias: Array) -> None:
        super().__init__(engine, shape, engine.isa.lanes, {"mean*": mean, "factor*": factor, "bias*": bias})
