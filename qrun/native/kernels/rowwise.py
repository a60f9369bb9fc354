"""Plans operations on float32 rows, which are read in place or computed from operands; and normalizations: of rows by
mean and deviation, or by the root mean square, and of channels by constants or neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.native.emit.expression import form_of, operand_names
from qrun.native.emit.spec import NARROW, OUTER
from qrun.native.kernels.copy import Loop, merge
from qrun.native.kernels.elementwise import Expression
from qrun.native.machine.engine import Engine, KernelCall, KernelSpec, Operand, Operation, Order, row_tiles, size
from qrun.native.machine.memory import Array, aligned_copy

_FLOAT = np.dtype(np.float32)
_SHORT = 512
"""The most elements of rows that are processed together."""
_FETCHED = 256
"""The fewest elements of a row for which the operands of later rows are prefetched; for shorter rows the processor
does so by itself."""


class FloatRows(Operation):
    """Base of operations that turn each row of `length` elements of x into another row, or into one number (y_shape).
    Both are float32 in C order.

    epsilon:  the number added below a root, in kinds that have one.
    source:   the expression that computes x from the operands, inside the kernel; None if x is the operand.
    reduces:  whether rows become numbers.
    together: rows that a kernel processes at once if they are short. words, arrays: the kind's own parts of the struct.
    """

    kind: str
    reduces = False
    together = 1
    source: Expression | None = None
    words: Mapping[str, int] = {}

    def __init__(
        self,
        engine: Engine,
        shape: Sequence[int],
        length: int,
        y_shape: Sequence[int] | None = None,
        epsilon: float = 0.0,
    ) -> None:
        shapes = shape, shape if y_shape is None else y_shape
        self.operands = tuple(Operand(tuple(s), _FLOAT) for s in shapes)
        self.engine, self.length, self.epsilon = engine, length, epsilon
        self.out = "f32"
        self.arrays = self._arrays()

    def _arrays(self) -> Mapping[str, Array]:
        """The constant arrays of the call."""
        return {}

    def with_narrow_results(self, dtype: np.dtype[Any]) -> FloatRows:
        return self.again(out=NARROW[dtype.name])

    def fuse_source(self, source: Operation) -> Operation | None:
        """This operation with an elementwise source computed on the way; None if that is not possible."""
        if not isinstance(source, Expression) or not source.decides or source.kind != "f":
            return None
        made = self.again(source=source, operands=(*source.operands[:-1], self.result))
        return made if made._loops() else None

    def _loops(self) -> tuple[tuple[Loop, ...], Loop] | None:
        """The loops of the source: OUTER loops over rows, and the one loop along a row. None without a source; if a row
        is more than one loop, shorter than a vector, or not whole axes; or if there are more than OUTER outer loops."""
        source = self.source
        if source is None:
            return None
        loops, split = source.axes(), _split(source.result.shape, self.length)
        inner, outer = merge(loops[split:]), merge(loops[:split])
        whole = size(source.result.shape[split:]) == self.length >= self.engine.isa.lanes
        if not whole or len(inner) != 1 or len(outer) > OUTER:
            return None
        padding = Loop(1, (0,) * len(source.operands))
        return (*[padding] * (OUTER - len(outer)), *outer), inner[0]

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        y = self.result
        rows = size(y.shape) // (1 if self.reduces else self.length) if self.length else 0
        if not rows:
            return ()
        return (self._call(self.engine, rows, self._loops(), None),)

    @property
    def sources(self) -> tuple[str, ...]:
        """The words that point to the operands that are read."""
        return tuple(f"{name}*" for name in (operand_names(len(self.operands) - 1)[:-1] if self.source else ("x",)))

    def keeps(self, index: int, shape: tuple[int, ...]) -> bool:
        """Whether operand number `index` has the shape of x, and rows of x are computed from it row by row."""
        if self.source is None:
            return self.operands[0].shape == shape
        return self.operands[index].shape == self.source.result.shape == shape and self._loops() is not None

    def row_steps(self, index: int) -> tuple[int, ...]:
        """Bytes from one row of operand number `index` to the next, along each axis of x but the last."""
        loops = self.source.axes() if self.source else ()
        return tuple(loop.steps[index] for loop in loops[:-1])

    def block(self, engine: Engine, rows: int, near: int) -> KernelCall:
        """The call for `rows` rows along the last axis but one, with pointers to the first of them. near: the number of
        the operand that is in the thread's memory, where the result is too."""
        found, padding = None, Loop(1, (0,) * len(self.operands))
        if self.source:
            *_, axis, inner = self.source.axes()
            found = (*[padding] * (OUTER - 1), Loop(rows, axis.steps)), inner
        pointers = {name: number + 2 - (number > near) for number, name in enumerate(self.sources) if number != near}
        return self._call(engine, rows, found, pointers)

    def _call(
        self,
        engine: Engine,
        rows: int,
        found: tuple[tuple[Loop, ...], Loop] | None,
        pointers: Mapping[str, int] | None,
    ) -> KernelCall:
        """The kernel call. pointers: by word, the number of its operand; None if words point to operands in order."""
        isa = engine.isa
        words = row_tiles(rows, 32 * self.length, engine.threads)
        words |= {"length": self.length, **self.words}
        together = self.together if self.length <= _SHORT else 1
        arrays = dict(self.arrays)
        form, kinds, extents = self.kind, "", [4 * rows * self.length]
        if found and self.source:
            outer, inner = found
            *sources, _ = self.source.operands
            form = form_of(self.source.steps)
            kinds = "".join(k if step else k.upper() for k, step in zip(self.source.kinds, inner.steps, strict=False))
            words |= {"n1": outer[1].count, "n2": outer[2].count}
            steps = [loop.steps[n] for n in range(len(sources)) for loop in outer]
            arrays |= {
                "strides*": np.array(steps, np.int64),
                "constants*": np.array([*self.source.constants, 0], _FLOAT),
            }
            extents = [
                source.dtype.itemsize + sum((loop.count - 1) * loop.steps[n] for loop in (*outer, inner))
                for n, source in enumerate(sources)
            ]
        fetched = int(bool(kinds) and self.length >= _FETCHED)
        spec = KernelSpec(self.kind, isa.name, isa.lanes, together, 1, form, self.out, False, fetched, kinds)
        names, scratch = (*self.sources, "y*"), 4 * together * self.length * bool(kinds)
        pointing = {name: number for number, name in enumerate(names)} if pointers is None else pointers
        words |= dict.fromkeys(names, 0)
        given = spec, pointing, words, (*extents, 4 * size(self.result.shape)), arrays
        return engine.kernels.call(*given, scratch=scratch)


def _split(shape: Sequence[int], length: int) -> int:
    """The number of axes before those that together have `length` elements."""
    axis = len(shape)
    while length > 1 and axis:
        axis -= 1
        length //= max(shape[axis], 1)
    return axis


class _Means(FloatRows):
    """Base of operations in which epsilon is added to the mean of a row's squares."""

    weights: Mapping[str, Array] = {}
    """float32 [length], by word."""

    def _arrays(self) -> Mapping[str, Array]:
        """The constant arrays of the call: epsilon, the row's length, and float64 weights."""
        wide = {name: aligned_copy(values.astype(np.float64)) for name, values in self.weights.items()}
        return {"numbers*": np.array([self.epsilon, self.length]), **wide}


class LayerNorm(_Means):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias; scale and bias (None for none) float32 [length]."""

    kind, together = "standardize", 4
    own_words = ("numbers*", "scale*", "bias*")

    def __init__(self, engine: Engine, shape: Sequence[int], scale: Array, bias: Array | None, epsilon: float) -> None:
        self.weights = {"scale*": scale, "bias*": np.full(scale.shape, -0.0, _FLOAT) if bias is None else bias}
        super().__init__(engine, shape, scale.size, epsilon=epsilon)

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        if not isinstance(other, LayerNorm) or (other.length, other.out) != (self.length, self.out):
            return None
        if other.source is not None or self.source is not None:
            return None
        return self.again(operands=other.operands, _sizes=(self, other))


class ChannelNorm(_Means):
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of x [N, C, spatial...], where a row is a group of channels.
    scale, bias: float64 [C]."""

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
    """1 / sqrt(mean of the squares + epsilon); results have the shape y_shape."""

    kind, reduces = "inverse_rms", True


class _Pixels(Operation):
    """Base of operations of one kernel over the pixels of float32 [N, C, spatial...], all channels of a pixel together.

    block: channels at once. unit_bytes: bytes of work per channel. arrays, words: the kernel's own parts of the struct.
    scratch: bytes of memory per thread.
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

    def with_narrow_results(self, dtype: np.dtype[Any]) -> _Pixels:
        return self.again(out=NARROW[dtype.name])

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
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
