"""Native lowerings of pools, TopK, ArgMax and ArgMin. Windows become tables, and means become functions of sums, whose
rounding is the reference's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.ops._complete import ALWAYS, NEVER, FewEnds
from qrun.ops._context import Context
from qrun.ops._quantize import store
from qrun.ops._window import SlidingWindow
from qrun.ops.lowering.kernel import (
    EIGHT,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    kernel_of,
    require_type,
    staged_kernel,
    transpose_stage,
)

if TYPE_CHECKING:
    from qrun.native.kernels.layout import Taps
    from qrun.native.machine.operation import Operation, Order

_ENTRIES = 1 << 26
Rounding = Callable[[Array, Array], Array]
"""Maps sums of x - x_zero_point, float64, and their divisors to rounded quotients."""


def taps_of(site: LoweringContext, size: Sequence[int], win: SlidingWindow) -> Taps:
    """The taps of the windows over an image of this size."""
    from qrun.native.kernels.layout import Taps

    entries = math.prod(win.out) * math.prod(win.kernel)
    if entries <= _ENTRIES:
        site.afford(entries * 40)
    return Taps.of(size, win.kernel, win.strides, win.dilations, win.begin, win.out)


def largest_kernel(
    site: LoweringContext, x: Array, size: Sequence[int], win: SlidingWindow, order: Order
) -> NativeKernel:
    """The kernel of a maximum pool of x [N,C,spatial...], or in order ``rows`` [N,spatial...,C]."""
    from qrun.native.kernels.pool import MaxPool

    require_type(x.dtype in (*EIGHT, np.dtype(np.float32)), x.dtype, "pools of {}")
    if site.ctx.wants(1):
        raise decline_error("Indices are asked for")
    pool = MaxPool(site.engine, x.shape, x.dtype, taps_of(site, size, win), order)
    return kernel_of(site, pool, (0,), ALWAYS)


def mean_kernel(
    site: LoweringContext,
    x: Array,
    taps: Taps,
    divisors: Array,
    zeros: tuple[Array, Array],
    scales: tuple[Array, Array],
    rounding: Rounding | None,
    order: Order,
) -> NativeKernel:
    """The kernel of means. rounding: makes them functions of sums; None: they use onnxruntime's float32 arithmetic.

    divisors: one for each output pixel.
    """
    from qrun.native.kernels.pool import MeanPool, SumPool
    from qrun.native.proof.means import Means

    plain = all(np.isfinite(scale) and scale > 0 for scale in scales) and bool((divisors > 0).all())
    complete = FewEnds.of(x.dtype, int(zeros[1])) if plain else NEVER  # where a mean may be NaN
    if rounding is None:
        if not np.isfinite(scales[0]):
            raise decline_error("x_scale is not finite")
        both = np.float32(scales[0]), np.float32(scales[1])
        means = MeanPool(site.engine, x.shape, x.dtype, taps, int(zeros[0]), divisors, both, int(zeros[1]), order)
        return kernel_of(site, means, (0,), complete)

    info, start = np.iinfo(x.dtype), int(zeros[0])
    codes = int(info.min) - start, int(info.max) - start

    def rule(sums: Array, divisor: float) -> Array:
        made = np.empty(sums.shape, x.dtype)
        with np.errstate(all="ignore"):
            rounded = rounding(sums.astype(np.float64), np.full((1,) * sums.ndim, divisor))
        store(rounded, zeros[1], made, Context(observing=False), "Y")
        return made

    rounded_means = Means.of(
        rule,
        (float(scales[0]), float(scales[1])),
        taps.inside,
        divisors,
        codes,
        int(zeros[1]),
        "s8" if info.min else "u8",
    )
    pool = SumPool(site.engine, x.shape, x.dtype, taps, int(zeros[0]), rounded_means, order)
    return kernel_of(site, pool, (0,), complete)


def top_kernel(site: LoweringContext, count: int, axis: int, largest: bool) -> NativeKernel:
    """The kernel of the `count` greatest or least elements along an axis, and their places. axis: 0 or more."""
    from qrun.native.kernels.copy import transpose_copy, view
    from qrun.native.kernels.reduce import TOP_KINDS, Along, TopPlaces
    from qrun.native.machine.operation import Operand

    x, engine = site.inputs[0], site.engine
    require_type(x.dtype.name in TOP_KINDS, x.dtype)
    perm = [*(index for index in range(x.ndim) if index != axis), axis]
    turned = axis != x.ndim - 1
    back = [perm.index(index) for index in range(x.ndim)]
    operand = Operand(tuple(x.shape[index] for index in perm), x.dtype)
    stages = [transpose_stage(site, 0, perm)] if turned else []
    source: int | str = "turned 0" if turned else 0
    top = TopPlaces(engine, operand, count, "max" if largest else "min")

    def ended(made: Operand) -> Operation:
        if turned:
            return transpose_copy(engine, made.shape, made.dtype, back)
        return view(engine, made.shape, made.shape, made.dtype)

    stages.append(Stage(top, (source,), "places"))
    if site.ctx.wants(0):
        along = Along(engine, operand, top.result)
        stages.append(Stage(along, (source, "places"), "values" if turned else 0))
        if turned:
            stages.append(Stage(ended(along.result), ("values",), 0))
    if site.ctx.wants(1):
        stages.append(Stage(ended(top.result), ("places",), 1))
    return staged_kernel(site, stages, [top], ALWAYS)


def arg_kernel(site: LoweringContext, what: str, axis: int) -> NativeKernel:
    """The kernel of ArgMax or ArgMin along an axis that is not empty. what: ``max`` or ``min``. axis: 0 or more."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.reduce import ARG_KINDS, Arg
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    require_type(x.dtype.name in ARG_KINDS, x.dtype)
    word = what + ("_last" if site.attributes["select_last_index"] else "")
    made = Arg(site.engine, Operand(x.shape, x.dtype), axis, word, "any" if 2 < x.ndim <= 5 else "plain")
    if site.attributes["keepdims"]:
        return kernel_of(site, made, (0,), ALWAYS)
    left = made.result.shape[:axis] + made.result.shape[axis + 1 :]
    flat = view(site.engine, made.result.shape, left, made.result.dtype)
    return staged_kernel(site, [Stage(made, (0,), "places"), Stage(flat, ("places",))], [made], ALWAYS)
