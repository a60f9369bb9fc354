"""Native lowerings of pools: windows as tables, and means as functions of sums that the reference rounds."""

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
from qrun.ops.lowering.kernel import EIGHT, LoweringContext, NativeKernel, declined, kernel_of, require_type

if TYPE_CHECKING:
    from qrun.native.kernels.layout import Taps
    from qrun.native.machine.operation import Order

_ENTRIES = 1 << 26
Rounding = Callable[[Array, Array], Array]
"""Sums of x - x_zero_point, float64, and their divisor to rounded quotients."""


def taps_of(site: LoweringContext, size: Sequence[int], win: SlidingWindow) -> Taps:
    """What the windows read of an image of this size."""
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
        raise declined("Indices are asked for")
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
    """The kernel of means that are functions of sums; None: of means in onnxruntime's float32 arithmetic.

    divisors: one for each output pixel.
    """
    from qrun.native.kernels.pool import MeanPool, SumPool
    from qrun.native.proof.means import Means

    plain = all(np.isfinite(scale) and scale > 0 for scale in scales) and bool((divisors > 0).all())
    complete = FewEnds.of(x.dtype, int(zeros[1])) if plain else NEVER  # where a mean may be NaN
    if rounding is None:
        if not np.isfinite(scales[0]):
            raise declined("x_scale is not finite")
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
