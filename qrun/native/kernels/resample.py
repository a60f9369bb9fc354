"""Plans interpolation along one axis, or along two neighbouring axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.expression import KIND_OF
from qrun.native.emit.spec import NARROW, OUT_OF
from qrun.native.errors import Declined
from qrun.native.kernels.copy import Loop, merge, outer_words
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, KernelSpec, Operand, Operation, Order, size
from qrun.native.machine.operation import OperandStrides

_TYPES = ("float32", "float64", "uint8", "int8")
_NEAR = 1 << 16
"""Bytes of a row of sums that stay in a near cache."""
_FAR = 1 << 23
"""The most bytes of a row of sums."""
_TAPS = 8
_OUTER = 2


@frozen
class WeighedTaps:
    """The elements from which each result along an axis is interpolated: indices and float64 weights, both [out, taps].
    Each tap has a weight other than 0 somewhere."""

    index: Ints
    weights: Array

    @classmethod
    def of(cls, index: Ints, weights: Array) -> WeighedTaps:
        """The taps whose weights are not all 0. Raises Declined if there are none, or more than eight."""
        used = weights.any(axis=0)
        if not 0 < np.count_nonzero(used) <= _TAPS:
            raise Declined("no weights, or more than eight, for an element")
        return cls(index[:, used], weights[:, used])

    def table(self, step: int) -> Ints:
        """int64 [taps][out]: the indices times `step` bytes."""
        return np.ascontiguousarray(self.index.T * step)

    def weights_by_tap(self) -> Array:
        """The weights as float64 [taps][out]."""
        return np.ascontiguousarray(self.weights.T, np.float64)


_WHOLE = WeighedTaps(np.zeros((1, 1), np.int64), np.ones((1, 1)))
"""The taps of an axis of one element that does not change."""


class Resample(Operation):
    """y = sum of x at the taps' indices times their weights along an axis, then along the next one. All sums are in
    float64, in order from 0 on; the result is rounded once, to dtype. Integers are rounded to even, or truncated with
    `cut`, and saturate.

    taps: by axis, one or two neighbouring axes. x: float32, float64, uint8 or int8. lies: the memory order of both;
    ``any`` if the last of three or more axes is interpolated, and neither of the first two is."""

    def __init__(
        self,
        engine: Engine,
        x: Operand,
        taps: Mapping[int, WeighedTaps],
        dtype: Any,
        lies: Order = "plain",
        cut: bool = False,
    ) -> None:
        dtype = np.dtype(dtype)
        if x.dtype.name not in _TYPES or dtype.name not in _TYPES:
            raise Declined(f"no native sums of {x.dtype.name}")
        axes = sorted(taps)
        if not 1 <= len(axes) <= 2 or axes[-1] - axes[0] != len(axes) - 1:
            raise ValueError(f"axes {axes} are not one, or two that follow each other")
        for axis in axes:
            index = taps[axis].index
            if index.size and not 0 <= int(index.min()) <= int(index.max()) < x.shape[axis]:
                raise ValueError(f"indices from {index.min()} to {index.max()} of {x.shape[axis]}")
        self.engine, self.taps, self.order, self.cut = engine, dict(taps), lies, cut
        self.out = OUT_OF[dtype]
        shape = tuple(len(taps[axis].index) if axis in taps else n for axis, n in enumerate(x.shape))
        self.operands = (x, Operand(shape, dtype))

    def with_layout(self, order: Order) -> Resample:
        return self.again(order=order)

    def with_narrow_results(self, dtype: np.dtype[Any]) -> Resample:
        return self.again(out=NARROW[dtype.name]) if self.out == "f32" else self

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, y = self._operand_strides(strides)
        shape = self.result.shape
        stored = sorted(range(len(shape)), key=lambda axis: -y.steps[axis])
        axes = sorted(self.taps)
        index = [stored.index(axis) for axis in axes]
        last = len(stored) - 1
        first, second = (
            (axes[0], axes[-1]) if len(axes) == 2 else (None, axes[0]) if index[0] == last else (axes[0], None)
        )
        outer = merge(Loop(shape[axis], (x.steps[axis], y.steps[axis])) for axis in stored[: index[0]])
        columns = size([shape[axis] for axis in stored[index[-1] + 1 :]])
        return (self._call(first, second, outer, columns, (x, y)),)

    def _call(
        self,
        first: int | None,
        second: int | None,
        outer: Sequence[Loop],
        columns: int,
        places: tuple[OperandStrides, OperandStrides],
    ) -> KernelCall:
        """The call for an axis and the next one, either of which may be None. columns: elements inside of both axes."""
        if len(outer) > _OUTER:
            raise Declined("axes that do not follow each other")
        x, y = places
        lines, rows = (_WHOLE if axis is None else self.taps[axis] for axis in (first, second))
        size_x, size_y = (operand.dtype.itemsize for operand in self.operands)
        line = (0, 0) if first is None else (x.steps[first], y.steps[first])
        row = (0, 0) if second is None else (x.steps[second], y.steps[second])
        length = 1 if second is None else self.operands[0].shape[second]
        lanes = self.engine.isa.lanes // 2
        neighbours = columns == 1 and second is not None and row == (size_x, size_y)
        if neighbours:
            pitch, chunks, own, span = 0, (1, length), (1, length), length
        else:
            most = max(_NEAR // (8 * length) // lanes, 2) * lanes
            pitch = min(columns, most)
            chunks, own, span = (-(-columns // pitch), pitch), (length, columns), pitch * length
        if 8 * span > _FAR:
            raise Declined(f"rows of more than {_FAR // 8} elements")
        count, taps = len(rows.index), rows.index.shape[1]
        loops = [*outer, Loop(len(lines.index), (0, line[1]))]
        words = outer_words(("x", "y"), loops, chunks, max(own[1], count) * size_y, self.engine.threads)
        words |= {"lines": len(lines.index), "pitch": pitch, "length": own[0], "count": count, "columns": own[1]}
        words |= {"x_row": row[0], "y_row": row[1]}
        arrays: dict[str, Array] = {
            "line_at*": lines.table(line[0]),
            "line_weights*": lines.weights_by_tap(),
            "at*": rows.table(8 if neighbours else 8 * pitch),
            "weights*": rows.weights_by_tap(),
        }
        ends = [sum((loop.count - 1) * loop.steps[n] for loop in outer) for n in (0, 1)]
        extents = (
            ends[0] + int(lines.index.max()) * line[0] + (length - 1) * row[0] + columns * size_x,
            ends[1] + (len(lines.index) - 1) * line[1] + (count - 1) * row[1] + columns * size_y,
        )
        spec = self._spec(lanes, lines.index.shape[1], taps, "neighbours" if neighbours else "columns")
        return self.engine.kernels.call(spec, ("x*", "y*"), words, extents, arrays, scratch=8 * span)

    def _spec(self, lanes: int, line_taps: int, taps: int, form: str) -> KernelSpec:
        """The kernel's spec; `line_taps` and `taps` are the lines and columns that one result reads."""
        kind, form = KIND_OF[self.operands[0].dtype.name], form + ("+cut" if self.cut else "")
        return KernelSpec(
            "resample", self.engine.isa.name, lanes, line_taps, taps, form, self.out, False, operands=kind
        )
