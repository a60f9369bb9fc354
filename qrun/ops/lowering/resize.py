"""Native lowerings of resampling: copies of the nearest elements, and sums of elements times weights.

_resample.py computes indices and weights, which tests compare with fractions; the kernel computes the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qrun.native.kernels.resample import Resample, WeighedTaps
from qrun.native.machine.operation import Operand
from qrun.ops._complete import ALWAYS
from qrun.ops._resample import ResampledAxis, ResizeAttributes, axis_table, in_order, resampled_shape
from qrun.ops.lowering.copies import INDICES, indexed_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, decline_error, require_type, staged_kernel
from qrun.ops.lowering.narrow import NARROW, narrow_kernel

if TYPE_CHECKING:
    from qrun.native.machine.operation import Order

_SUMMED = (np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int8))


def resize_kernel(
    site: LoweringContext, options: ResizeAttributes, axes: Callable[[], Sequence[ResampledAxis] | None]
) -> NativeKernel:
    """The kernel that resamples the first input along some axes. axes: returns them; None if there are none."""
    x, found = site.inputs[0], axes() or ()
    shape = resampled_shape(x, found, options, site.ctx)
    site.require_constants()
    if 0 in shape:
        return indexed_kernel(site, {a.axis: np.zeros(a.out, np.int64) for a in found if a.out != a.length})
    if options.coordinate_transformation_mode == "tf_crop_and_resize":
        raise decline_error("tf_crop_and_resize")
    if sum(axis.out for axis in found) > INDICES:
        raise decline_error(f"axes of more than {INDICES} elements")
    if options.mode != "nearest" and options.antialias:
        raise decline_error("antialias")
    tables = {a.axis: table for a in found if (table := axis_table(a, options, site.ctx)) is not None}
    if options.mode == "nearest" or not tables:
        return indexed_kernel(site, {axis: index for axis, (index, _) in tables.items()})
    if x.dtype in NARROW:
        alone = replace(site, inputs=site.inputs[:1], fixed=site.fixed[:1], names=site.names[:1])
        return narrow_kernel(lambda wide: _sum_kernel(wide, tables), alone, x.dtype)
    return _sum_kernel(site, tables)


def _sum_kernel(site: LoweringContext, tables: dict[int, tuple[np.ndarray, np.ndarray | None]]) -> NativeKernel:
    """The kernel of sums along these axes, in order, with one operation per axis, or one for the last two if they are
    neighbours."""

    x = site.inputs[0]
    require_type(x.dtype in _SUMMED, x.dtype, "sums of {}")
    taps = {}
    for axis, (index, weights) in tables.items():
        if weights is None or not in_order(weights):
            raise decline_error("its sums are in no one order")
        taps[axis] = WeighedTaps.of(index, weights)
    axes = list(taps)
    last = 2 if len(axes) > 1 and axes[-2] + 1 == axes[-1] else 1
    groups = [[axis] for axis in axes[:-last]] + [axes[-last:]]
    stages: list[Stage] = []
    operand = Operand(x.shape, x.dtype)
    for number, group in enumerate(groups):
        ends = number == len(groups) - 1
        loose = x.ndim > 2 and group[0] >= 2 and group[-1] == x.ndim - 1
        lies: Order = "any" if loose else "plain"
        cut = ends and site.ctx.arith == "ort"
        dtype = x.dtype if ends else np.dtype(np.float64)
        made = Resample(site.engine, operand, {axis: taps[axis] for axis in group}, dtype, lies, cut)
        _ = made.tight
        stages.append(Stage(made, (stages[-1].output if stages else 0,), 0 if ends else f"sums {number}"))
        operand = made.result
    return staged_kernel(site, stages, [stage.operation for stage in stages], ALWAYS)
