"""Native lowerings of QuantizeLinear and DequantizeLinear: float32 to 8 bits and back, per tensor or per axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, NEVER, Between, Complete
from qrun.ops._granularity import Grain
from qrun.ops._native import LoweringContext, NativeKernel, declined, kernel_of

_SINGLE = np.dtype(np.float32)
_EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))


def quantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked QuantizeLinear that divides in float32."""
    from qrun.native.kernels.quantize import Quantize

    if x.dtype != _SINGLE or scale.dtype != _SINGLE or target not in _EIGHT:
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise declined(f"no native division of {names} to {type_name(target)}")
    site.require_constants()
    scale, zero, axis = _parameters(scale, zero, target, form)
    operation = Quantize(site.engine, x.shape, scale, zero, axis)
    return kernel_of(site, operation, (0,), _complete(scale, zero))


def dequantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked DequantizeLinear."""
    from qrun.native.kernels.quantize import Dequantize

    if x.dtype not in (*_EIGHT, np.dtype(np.int32)) or scale.dtype != _SINGLE or target != _SINGLE:
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise declined(f"no native product of {names} to {type_name(target)}")
    site.require_constants()
    operation = Dequantize(site.engine, x.shape, *_parameters(scale, zero, x.dtype, form))
    return kernel_of(site, operation, (0,), ALWAYS)


def _parameters(scale: Array, zero: Array | None, dtype: np.dtype[Any], form: Grain) -> tuple[Array, Array, int | None]:
    """Scale and zero point of rank 0, or [n] along the axis."""
    if form.kind == "blocked":
        raise declined("the scales are blocked")
    shape, axis = ((), None) if form.kind == "per-tensor" else ((-1,), form.axis)
    zero = np.zeros(scale.shape, dtype) if zero is None else zero
    return scale.reshape(shape), zero.reshape(shape), axis


def _complete(scale: Array, zero: Array) -> Complete:
    """Conservative: the least and the largest code may stand for NaN or infinity."""
    info = np.iinfo(zero.dtype)
    with np.errstate(invalid="ignore"):
        plain = bool((np.isfinite(scale) & (scale > 0)).all())
    return Between(int(info.min), int(info.max)) if plain else NEVER
