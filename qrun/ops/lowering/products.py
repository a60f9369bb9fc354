"""Native lowerings of float32 matrix products and convolutions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._chains import SumOrder
from qrun.ops._complete import ALWAYS
from qrun.ops._window import SlidingWindow
from qrun.ops.lowering.kernel import (
    FLOAT,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    kernel_after,
    kernel_of,
    require_shape,
    require_type,
    staged_kernel,
    transpose_stage,
)


def require_order(order: SumOrder, k: int) -> None:
    """Raise Declined if the order of a sum of k products gives other bits than the kernels' order."""
    if not order.is_default(k):
        raise decline_error(f"no native kernel adds in {order.text}")


def matmul_kernel(
    site: LoweringContext,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    turned: tuple[bool, bool] = (False, False),
) -> NativeKernel:
    """The kernel of a checked alpha * a @ b + beta * c of the node's first three inputs. turned: which of a and b are
    transposed first."""
    from qrun.native.kernels.fma_product import FloatMatmul

    require_type(a.dtype == FLOAT, a.dtype, "{} products")
    if not (np.isfinite(alpha) and np.isfinite(beta)):
        raise decline_error("a factor is not finite")
    left, right = (x.T if turn else x for x, turn in zip((a, b), turned, strict=True))
    operands, weights, constant, before = [0], None, None, dict[int, Stage]()
    if site.fixed[1]:
        weights = right
    else:
        operands.append(1)
    if c is not None and site.fixed[2]:
        constant = _broadcast_c(c, left.shape[0], right.shape[1])
    elif c is not None:
        before |= _repeat_column(site, c, right.shape[1])
        operands.append(2)
    operation = FloatMatmul(
        site.engine,
        left.shape,
        right.shape if site.fixed[1] else b.shape,
        weights=weights,
        addend=None if c is None or constant is not None else (*c.shape[:-1], right.shape[1]),
        constant=constant,
        alpha=alpha,
        beta=beta,
        memo=site.memo,
        begins=True,
        turned=turned[1] and not site.fixed[1],
    )
    site.afford(operation.packed_bytes)
    kernel = kernel_of(site, operation, operands, ALWAYS)
    before |= {0: transpose_stage(site, 0)} if turned[0] else {}
    return kernel_after(site, kernel, operands, before) if before else kernel


def _repeat_column(site: LoweringContext, c: Array, columns: int) -> dict[int, Stage]:
    """By input, the stage that repeats a C of the run that has one value per row; empty if it has one per column."""
    from qrun.native.kernels.copy import broadcast_copy

    if c.shape[-1:] == (columns,):
        return {}
    return {2: Stage(broadcast_copy(site.engine, c.shape, c.dtype, (*c.shape[:-1], columns)), (2,), "spread")}


def _broadcast_c(c: Array, rows: int, columns: int) -> Array:
    """C broadcast to all columns of the result, with one row or all rows."""
    shape = (rows, columns) if c.ndim == 2 and c.shape[0] != 1 else (columns,)
    return np.broadcast_to(c.reshape(c.shape[-1:]) if len(shape) == 1 and c.ndim else c, shape)


def float_conv_kernel(
    site: LoweringContext, x: Array, w: Array, bias: Array | None, win: SlidingWindow
) -> NativeKernel:
    """The kernel of a checked convolution."""
    from qrun.native.kernels.float_conv import FloatConv

    require_type(x.dtype == FLOAT, x.dtype, "{} convolutions")
    rows, taps = math.prod(win.out), math.prod(win.kernel)
    site.afford(rows * taps * (16 if x.ndim <= 4 else 24) + w.nbytes)
    if not (site.fixed[1] and site.fixed[2]):
        return _conv_of_run(site, x, w, bias, win)
    operation = FloatConv(
        site.engine,
        x.shape,
        w,
        bias=bias,
        memo=site.memo,
        **win.geometry(int(site.attributes["group"])),
    )
    require_shape(operation.result.shape, (x.shape[0], w.shape[0], *win.out))
    return kernel_of(site, operation, (0,), ALWAYS)


def _conv_of_run(site: LoweringContext, x: Array, w: Array, bias: Array | None, win: SlidingWindow) -> NativeKernel:
    """The kernel of a convolution whose weights or bias come with the run."""
    from qrun.native.kernels.float_conv import FloatConvOfRun

    if not x.size or not w.size:
        raise decline_error("X or W has no elements")
    operation = FloatConvOfRun(
        site.engine,
        x.shape,
        w.shape,
        bias=bias is not None,
        **win.geometry(int(site.attributes["group"])),
    )
    require_shape(operation.result.shape, (x.shape[0], w.shape[0], *win.out))
    apart, turned, matrix = operation.matrix(w.shape)
    last = Stage(operation, (0, "matrix", *([2] if bias is not None else [])))
    stages = (
        Stage(apart, (1,), "apart"),
        Stage(turned, ("apart",), "turned"),
        Stage(matrix, ("turned",), "matrix"),
        last,
    )
    return staged_kernel(site, stages, (operation,), ALWAYS)


def float_conv_transpose_kernel(
    site: LoweringContext, x: Array, w: Array, bias: Array | None, y_shape: Sequence[int], **geometry: Any
) -> NativeKernel:
    """The kernel of a checked transposed convolution. geometry: further arguments of FloatConvTranspose."""
    from qrun.native.kernels.float_conv_transpose import FloatConvTranspose

    require_type(x.dtype == FLOAT, x.dtype, "{} convolutions")
    site.require_constants()
    if not np.isfinite(w).all():
        raise decline_error("a weight is not finite")
    site.afford(16 * max(y_shape[2:], default=1) * math.prod(w.shape[2:]) + 2 * w.nbytes)
    operation = FloatConvTranspose(site.engine, x.shape, w, y_shape, bias=bias, **geometry)
    if operation.before is None:
        return kernel_of(site, operation, (0,), ALWAYS)
    stages = Stage(operation.before, (0,), "padded"), Stage(operation, ("padded",))
    return staged_kernel(site, stages, (operation,), ALWAYS)
