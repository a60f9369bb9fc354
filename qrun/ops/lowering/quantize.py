"""Native lowerings of QuantizeLinear and DequantizeLinear: float32 to 8 or 16 bits and back, per tensor or per axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, NEVER, Between, Complete
from qrun.ops._granularity import Grain
from qrun.ops.lowering.kernel import EIGHT, FLOAT, LoweringContext, NativeKernel, declined, kernel_of

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operation

_SIXTEEN = {np.dtype(np.uint16): "quantize_u16", np.dtype(np.int16): "quantize_i16"}
"""What native/emit/functions.py calls their quantization."""


def quantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked QuantizeLinear that divides in float32."""
    from qrun.native.kernels.quantize import Quantize

    if x.dtype != FLOAT or scale.dtype != FLOAT or target not in (*EIGHT, *_SIXTEEN):
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise declined(f"no native division of {names} to {type_name(target)}")
    site.require_constants()
    scale, zero, axis = _parameters(scale, zero, target, form)
    if target in _SIXTEEN:
        if site.narrow:
            raise declined(f"no native division in {type_name(site.narrow)}")
        info, start = np.iinfo(target), int(_single(zero))
        constants = float(_single(scale)), info.min - start, info.max - start, start
        return kernel_of(site, _function(site, _SIXTEEN[target], x, constants), (0,), _complete(scale, zero))
    operation = Quantize(site.engine, x.shape, scale, zero, axis)
    return kernel_of(site, operation, (0,), _complete(scale, zero))


def dequantize_kernel(
    site: LoweringContext, x: Array, scale: Array, zero: Array | None, target: np.dtype[Any], form: Grain
) -> NativeKernel:
    """The kernel of a checked DequantizeLinear."""
    from qrun.native.kernels.quantize import Dequantize

    if x.dtype not in (*EIGHT, *_SIXTEEN, np.dtype(np.int32)) or scale.dtype != FLOAT or target != FLOAT:
        names = " by ".join(type_name(t) for t in (x.dtype, scale.dtype))
        raise declined(f"no native product of {names} to {type_name(target)}")
    site.require_constants()
    scale, zero, axis = _parameters(scale, zero, x.dtype, form)
    if x.dtype in _SIXTEEN:
        constants = float(_single(scale)), float(_single(zero))
        return kernel_of(site, _function(site, "dequantize", x, constants), (0,), ALWAYS)
    operation = Dequantize(site.engine, x.shape, scale, zero, axis)
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


def _single(value: Array) -> Array:
    """The one number of all elements."""
    if value.ndim:
        raise declined("16-bit codes with a scale per axis")
    return value


def _function(site: LoweringContext, name: str, x: Array, constants: Sequence[float]) -> Operation:
    """An elementwise function, which chains take as well."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    return Elementwise(site.engine, name, [Operand(x.shape, x.dtype)], constants)
