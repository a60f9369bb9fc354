"""Native lowerings of float32 arithmetic: elementwise functions, layer normalization and softmax.

Their results are those of the reference kernels, bit for bit: where the native float64 does not decide how a result
rounds, the reference kernel makes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS
from qrun.ops._float import broadcast, single
from qrun.ops._native import Lowering, LoweringContext, NativeKernel, OfShapes, declined, kernel_of
from qrun.ops._native_narrow import NARROW
from qrun.ops._native_pointwise import unary_kernel
from qrun.ops._op import Array, Context

FLOAT = np.dtype(np.float32)
_CAST = (*(np.dtype(t) for t in (np.float32, np.int64, np.int32, np.uint8, np.int8, np.bool_)), *NARROW)


def function(name: str, *attributes: str) -> Lowering:
    """The lowering of an operator that is a function of its first input; name: of native/emit/functions.py, whose
    constants are these attributes."""
    return lambda site: function_kernel(site, name, lambda: [single(site.attributes[a]) for a in attributes])


def pointwise(name: str) -> Lowering:
    """The lowering of such an operator on float32 and on 8-bit codes."""
    return lambda site: pointwise_kernel(site, name)


def function_kernel(site: LoweringContext, name: str, constants: Callable[[], Sequence[float]] = tuple) -> NativeKernel:
    """The kernel of a function of the first input; the other inputs are parameters."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    _called(site, np.empty(0, x.dtype))
    site.require_constants()
    if x.dtype != FLOAT and (name != "cast" or x.dtype not in _CAST):
        raise declined(f"no native kernel for {type_name(x.dtype)}")
    operand, parameters = Operand(x.shape, x.dtype), replace(site, inputs=(None, *site.inputs[1:]))
    operation = Elementwise(site.engine, name, [operand], constants(), lambda x: _called(parameters, x))
    return kernel_of(site, operation, (0,), ALWAYS)


def pointwise_kernel(
    site: LoweringContext, name: str, constants: Callable[[], Sequence[float]] = tuple
) -> NativeKernel:
    """The kernel of such a function, of float32 or of 8-bit codes."""
    x = site.inputs[0]
    if x is not None and x.dtype == FLOAT:
        return function_kernel(site, name, constants)
    return unary_kernel(site)


def elementwise(name: str, *inputs: str) -> Lowering:
    """The lowering of an operator on tensors that broadcast, named as the operator names them; name: of
    native/emit/functions.py."""
    return OfShapes(lambda site: elementwise_kernel(site, name, inputs or ("A", "B")))


def elementwise_kernel(site: LoweringContext, name: str, inputs: Sequence[str]) -> NativeKernel:
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    arrays = [x for x in site.inputs if x is not None]
    broadcast(site.ctx, arrays, inputs)
    operands = [Operand(x.shape, x.dtype) for x in arrays]
    return kernel_of(site, Elementwise(site.engine, name, operands), range(len(arrays)), ALWAYS)


def standardize_kernel(
    site: LoweringContext, axis: int, weights: Sequence[Array], epsilon: float, reference: Callable[[Array], Array]
) -> NativeKernel:
    """The kernel of a checked layer normalization over all axes from `axis` on, its scale and bias constant.

    reference: of rows [count, length].
    """
    from qrun.native.kernels.normalize import LayerNorm

    x = _rows(site)
    inner = x.shape[axis:]
    if any(size != 1 for w in weights for size in w.shape[: -len(inner)]):
        raise declined("its scale differs from row to row")
    rows = [w.reshape(w.shape[-len(inner) :]) for w in weights]
    scale, *bias = (np.ascontiguousarray(np.broadcast_to(w, inner)).reshape(-1) for w in rows)
    operation = LayerNorm(site.engine, x.shape, scale, bias[0] if bias else None, epsilon, reference)
    return kernel_of(site, operation, (0,), ALWAYS)


def shares_kernel(site: LoweringContext, axis: int, reference: Callable[[Array], Array]) -> NativeKernel:
    """The kernel of a softmax over all axes from `axis` on. reference: of rows [count, length]."""
    from qrun.native.kernels.normalize import SoftmaxF32

    x = _rows(site)
    return kernel_of(site, SoftmaxF32(site.engine, x.shape, math.prod(x.shape[axis:]), reference), (0,), ALWAYS)


def mean_kernel(
    site: LoweringContext, axes: Sequence[int], y_shape: Sequence[int], reference: Callable[[Array], Array]
) -> NativeKernel:
    """The kernel of a mean over the last axes. reference: of rows [count, length]."""
    from qrun.native.kernels.normalize import Mean

    x = _rows(site)
    if sorted(axes) != list(range(x.ndim - len(axes), x.ndim)) or not axes:
        raise declined("not over the last axes")
    length = math.prod(x.shape[axis] for axis in axes)
    return kernel_of(site, Mean(site.engine, x.shape, length, reference, y_shape), (0,), ALWAYS)


def _rows(site: LoweringContext) -> Array:
    x = site.inputs[0]
    if x.dtype != FLOAT:
        raise declined(f"no native kernel for {type_name(x.dtype)}")
    if not x.size:
        raise declined("no elements")
    return np.asarray(x)


def _called(site: LoweringContext, x: Array) -> Array:
    """The reference kernel's result for other values of the first input."""
    ctx = replace(site.ctx, budget=Context().budget, claims=None, observing=False)
    return np.asarray(site.reference((x, *site.inputs[1:]), ctx))
