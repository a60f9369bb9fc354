"""Planned normalization of float32: rows by mean and deviation,
and channels of a pixel by constants or neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.spec import NARROW
from qrun.native.kernels.rowwise import FloatRows
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size
from qrun.native.machine.memory import Array, aligned_copy

_FLOAT = np.dtype(np.float32)


class _Means(FloatRows):
    """epsilon is added to the mean of a row's squares."""

    weights: Mapping[str, Array] = {}
    """float32 [length], by word."""

    def _arrays(self) -> Mapping[str, Array]:
        wide = {name: aligned_copy(values.astype(np.float64)) for name, values in self.weights.items()}
        return {"numbers*": np.array([self.epsilon, self.length]), **wide}


class LayerNorm(_Means):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; scale and bias (None for none) float32 [length]."""

    kind, together = "standardize", 4
    own_words = ("numbers*", "scale*", "bias*")

    def __init__(self, engine: Engine, shape: Sequence[int], scale: Array, bias: Array | None, epsilon: float) -> None:
        self.weights = {"scale*": scale, "bias*": np.full(scale.shape, -0.0, _FLOAT) if bias is None else bias}
        super().__init__(engine, shape, scale.size, epsilon=epsilon)

    def sized_as(self, other: Operation, memo: Memo) -> Operation | None:
        if not isinstance(other, LayerNorm) or (other.length, other.out) != (self.length, self.out):
            return None
        if other.source is not None or self.source is not None:
            return None
        return self.again(operands=other.operands, _sizes=(self, other))


class ChannelNorm(_Means):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of x [N, C, spatial...],
    in rows of a group of channels each. scale, bias: float64 [C]."""

    kind = "standardize_channels"

    def __init__(
        self, engine: Engine, shape: Sequence[int], groups: int, scale: Array, bias: Array, epsilon: float
    ) -> None:
        channels = shape[1] // groups
        length = int(np.prod(shape[1:])) // groups
        self.weights = {"scale*": scale, "bias*": bias}
        self.words = {"groups": groups, "channels": channels, "piece": length // channels}
        super().__init__(engine, shape, length, epsilon=epsilon)


class RmsNorm(_Means):
    """x / sqrt(mean of the squares + epsilon) * scale; scale float32 [length]."""

    kind, together = "rms", 4

    def __init__(self, engine: Engine, shape: Sequence[int], scale: Array, epsilon: float) -> None:
        self.weights = {"scale*": scale}
        super().__init__(engine, shape, scale.size, epsilon=epsilon)


class InverseRms(_Means):
    """1 / sqrt(mean of the squares + epsilon), of shape y_shape."""

    kind, reduces = "inverse_rms", True


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
