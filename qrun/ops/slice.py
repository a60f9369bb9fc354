"""Slice."""

from __future__ import annotations

import builtins
from collections.abc import Sequence

from qrun.ops._float import axes_in
from qrun.ops._native import LoweringContext, NativeKernel, slice_kernel
from qrun.ops._op import Array, op, refuse
from qrun.ops._shape import ints, same_length


def _cuts(
    data: Array, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None, steps: Sequence[int] | None
) -> tuple[builtins.slice, ...]:
    same_length(ends, len(starts), "ends", "Slice: one end for each start.")
    if axes is None:
        axes = range(len(starts))
        if len(starts) > data.ndim:
            same_length(starts, data.ndim, "starts", "Slice: at most one start for each axis of data.")
    same_length(axes, len(starts), "axes", "Slice: one axis for each start.")
    if steps is None:
        steps = (1,) * len(starts)
    same_length(steps, len(starts), "steps", "Slice: one step for each start.")
    if 0 in steps:
        raise refuse("a step is 0", "steps", "steps other than 0", list(steps), code="QR204")
    cuts = [builtins.slice(None)] * data.ndim
    for axis, start, end, step in zip(axes_in(axes, data.ndim), starts, ends, steps, strict=True):
        cuts[axis] = _clamped(data.shape[axis], start, end, step)
    return tuple(cuts)


def _clamped(size: int, start: int, end: int, step: int) -> builtins.slice:
    """The slice with start in [0, size] (backward: [0, size-1]) and end in [0, size] (backward: [-1, size-1])."""
    start += size if start < 0 else 0
    end += size if end < 0 else 0
    if step > 0 or not size:
        return builtins.slice(min(max(start, 0), size), min(max(end, 0), size), step)
    end = min(max(end, -1), size - 1)
    return builtins.slice(min(max(start, 0), size - 1), None if end < 0 else end, step)


@op("Slice", since=1, form="moves")
def slice_1(
    data: Array, *, starts: tuple[int, ...], ends: tuple[int, ...], axes: tuple[int, ...] | None = None
) -> Array:
    """data[start:end] along each of `axes` (0, 1, ... if not given), clamped to the axis. A view.

    Source: ONNX operators, Slice-1.
    """
    return data[_cuts(data, starts, ends, axes, None)]


@op("Slice", since=10, form="moves")
def slice(data: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    """data[start:end:step] along each of `axes` (0, 1, ... if omitted). A view.

    starts, ends, axes, steps: 1-D int32 or int64 of one length. Negative starts and ends count from the end; then
    start is clamped to [0, size], end too; with a negative step to [0, size-1] and [-1, size-1]. So a backward slice
    that starts before the first element keeps that element, unlike numpy's.
    Refuses a step of 0 and axes named twice. Source: ONNX operators, Slice-13.
    """
    return data[_input_cuts(data, starts, ends, axes, steps)]


def _input_cuts(
    data: Array, starts: Array, ends: Array, axes: Array | None, steps: Array | None
) -> tuple[builtins.slice, ...]:
    return _cuts(
        data,
        ints(starts, "starts"),
        ints(ends, "ends"),
        None if axes is None else ints(axes, "axes"),
        None if steps is None else ints(steps, "steps"),
    )


@slice_1.native
def _lower_1(site: LoweringContext) -> NativeKernel:
    (data,), a = site.inputs, site.attributes
    return slice_kernel(site, lambda: _cuts(data, a["starts"], a["ends"], a["axes"], None))


@slice.native
def _lower(site: LoweringContext) -> NativeKernel:
    inputs = site.inputs
    return slice_kernel(site, lambda: _input_cuts(*inputs))
