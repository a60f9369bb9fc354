"""Native lowerings of integer convolutions and products, and what their sums become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, NEVER, Complete, FewEnds
from qrun.ops._window import SlidingWindow
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, kernel_of, require_shape, require_type
from qrun.ops.lowering.turned import turned_kernel

if TYPE_CHECKING:
    from qrun.native.kernels.conv import Conv
    from qrun.native.proof.epilogue import Target

_GROUPS = 256


def planned_conv(
    site: LoweringContext,
    x: Array,
    w: Array,
    zeros: tuple[Array | None, Array | None],
    win: SlidingWindow,
    bias: Array | None = None,
    target: Target | None = None,
    **options: Any,
) -> Conv:
    """A checked convolution as the engine plans it. options: kinds and stores, as Conv has them."""
    from qrun.native.kernels.conv import Conv, planning_bytes

    group, channels = int(site.attributes["group"]), w.shape[0]
    if group > _GROUPS and not (channels == group and w.shape[1] == 1):
        raise declined(f"more than {_GROUPS} groups")
    site.afford(planning_bytes(w.shape, group, int(np.prod(win.out, dtype=np.int64)), site.engine.isa.lanes))
    x_zero = np.zeros((), x.dtype) if zeros[0] is None else zeros[0]
    conv = Conv(
        site.engine,
        x.shape,
        w,
        x_zero_point=x_zero,
        w_zero_point=zeros[1],
        bias=bias,
        target=target,
        memo=site.memo,
        **win.geometry(group),
        **options,
    )
    require_shape(conv.result.shape, (x.shape[0], channels, *win.out))
    return conv


def conv_kernel(
    site: LoweringContext, conv: Conv, target: Target | None = None, *, channels_last: bool = False
) -> NativeKernel:
    """The kernel of a planned convolution of site.inputs[0], whose channels may be its last axis."""
    from qrun.native.kernels.conv import ChannelsLast

    return kernel_of(site, ChannelsLast(conv) if channels_last else conv, (0,), completeness(conv.may_wrap, target))


def gemm_kernel(
    site: LoweringContext,
    a: Array,
    b: Array,
    zeros: tuple[Array | None, Array | None],
    bias: Array | None,
    target: Target | None,
    *,
    transpose: bool = False,
) -> NativeKernel:
    """The kernel of a checked product of a [...,K] and the constant matrix b [K,N]; site.inputs[0] is a, or a.T."""
    from qrun.native.kernels.conv import Gemm

    if b.ndim != 2:
        raise declined("the constant operand is not a matrix")
    if zeros[0] is not None and zeros[0].ndim:
        raise declined("the zero point of the first operand is per row")
    rows, columns = int(np.prod(a.shape[:-1], dtype=np.int64)), b.shape[1]
    site.afford(rows * 36 + b.size * 16 + columns * 8192)
    site.ctx.claim((rows, columns), 8 if target is None else 2, "native product")
    x_zero = np.zeros((), a.dtype) if zeros[0] is None else zeros[0]
    gemm = Gemm(
        site.engine, a.shape, b, x_zero_point=x_zero, w_zero_point=zeros[1], bias=bias, target=target, memo=site.memo
    )
    kernel = kernel_of(site, gemm, (0,), completeness(gemm.conv.may_wrap, target))
    return turned_kernel(site, kernel, (0,), {0: (1, 0)}) if transpose else kernel


def native_target(site: LoweringContext, x_scale: Array, w_scale: Array, y_scale: Array, y_zero: Array) -> Target:
    """The requantization of checked parameters: all scalars, but w_scale may have one value per channel."""
    from qrun.native.emit.spec import CODES
    from qrun.native.proof.epilogue import Target

    out = CODES.get(y_zero.dtype)
    if out is None:
        raise declined(f"no native {type_name(y_zero.dtype)} results")
    if site.ctx.arith == "onnx-ref":
        raise declined("no native kernels for onnx-ref arithmetic")
    if x_scale.ndim:
        raise declined("the scale of the first operand is per row")
    return Target(_number(x_scale), w_scale.reshape(-1), _number(y_scale), out, int(y_zero), site.ctx.arith)


def _number(scale: Array) -> np.float32:
    require_type(scale.dtype == np.float32, scale.dtype, "{} scales")
    return np.float32(scale)


def completeness(may_wrap: bool, target: Target | None) -> Complete:
    """Conservative: where sums may wrap, or a multiplier gives NaN, no result is complete."""
    if may_wrap or not (target is None or _is_finite(target)):
        return NEVER
    if target is None:
        return ALWAYS
    return FewEnds.of(np.dtype(np.uint8 if target.out == "u8" else np.int8), target.zero_point)


def _is_finite(target: Target) -> bool:
    dtype = np.float32 if target.arith == "ort" else np.float64
    with np.errstate(all="ignore"):
        m = np.asarray(target.x_scale, dtype) * target.w_scale.astype(dtype) / np.asarray(target.y_scale, dtype)
    return bool(np.isfinite(m).all())
