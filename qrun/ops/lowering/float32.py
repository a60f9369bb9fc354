"""Native lowerings of float32 arithmetic: elementwise functions, normalizations, softmax and reductions.

Their results equal those of the reference kernels, bit for bit: where native float64 does not decide how a result
rounds, the reference kernel computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS
from qrun.ops._float import broadcast, is_integer, single
from qrun.ops._op import Array, Context
from qrun.ops.lowering.kernel import (
    FLOAT,
    Lowering,
    LoweringContext,
    NativeKernel,
    OfShapes,
    Stage,
    decline_error,
    elementwise_of,
    kernel_of,
    require_type,
    staged_kernel,
    transposed_kernel,
)
from qrun.ops.lowering.narrow import NARROW
from qrun.ops.lowering.pointwise import unary_kernel

_CAST_TYPES = "float32 float64 int64 uint64 int32 uint32 int16 uint16 int8 uint8 bool"
_CAST = (*map(np.dtype, _CAST_TYPES.split()), *NARROW)


def function(name: str, *attributes: str) -> Lowering:
    """The lowering of an operator that is a function of its first input. name: a function of native/emit/functions.py;
    attributes: the operator's attributes that are the function's constants."""
    return lambda site: function_kernel(site, name, lambda: [single(site.attributes[a]) for a in attributes])


def pointwise(name: str) -> Lowering:
    """As `function`, without constants, for float32 and for 8-bit codes."""
    return lambda site: pointwise_kernel(site, name)


def function_kernel(site: LoweringContext, name: str, constants: Callable[[], Sequence[float]] = tuple) -> NativeKernel:
    """The kernel of a function of the first input; the other inputs must be constant parameters."""
    x = site.inputs[0]
    _call_reference(site, np.empty(0, x.dtype))
    site.require_constants()
    if x.dtype != FLOAT and (name != "cast" or x.dtype not in _CAST):
        raise decline_error(f"no native kernel for {type_name(x.dtype)}")
    return kernel_of(site, elementwise_of(site, name, x, constants=constants()), (0,), ALWAYS)


def pointwise_kernel(
    site: LoweringContext, name: str, constants: Callable[[], Sequence[float]] = tuple
) -> NativeKernel:
    """The kernel of a function of the first input, of float32 or of 8-bit codes."""
    x = site.inputs[0]
    if x is not None and x.dtype == FLOAT:
        return function_kernel(site, name, constants)
    return unary_kernel(site)


def elementwise(name: str, *inputs: str) -> Lowering:
    """The lowering of an operator on inputs that broadcast. name: the function in native/emit/functions.py; inputs: the
    operator's names of its inputs, by default A and B."""
    return OfShapes(lambda site: elementwise_kernel(site, name, inputs or ("A", "B")))


def elementwise_kernel(
    site: LoweringContext, name: str, inputs: Sequence[str], constants: Sequence[float] = ()
) -> NativeKernel:
    """The kernel of an operator on inputs that broadcast. inputs: the names of its first inputs, the operands."""
    arrays = [x for x in site.inputs[: len(inputs)] if x is not None]
    broadcast(site.ctx, arrays, inputs)
    operation = elementwise_of(site, name, *arrays, constants=constants)
    return kernel_of(site, operation, range(len(arrays)), ALWAYS)


def standardize_kernel(site: LoweringContext, axis: int, weights: Sequence[Array], epsilon: float) -> NativeKernel:
    """The kernel of a checked layer normalization over all axes from `axis` on. weights: constant scale and bias."""
    from qrun.native.kernels.rowwise import LayerNorm

    x = _rows(site)
    inner = x.shape[axis:]
    if any(size != 1 for w in weights for size in w.shape[: -len(inner)]):
        raise decline_error("its scale differs from row to row")
    rows = [w.reshape(w.shape[-len(inner) :]) for w in weights]
    scale, *bias = (np.ascontiguousarray(np.broadcast_to(w, inner)).reshape(-1) for w in rows)
    operation = LayerNorm(site.engine, x.shape, scale, bias[0] if bias else None, epsilon)
    return kernel_of(site, operation, (0,), ALWAYS)


def rms_kernel(site: LoweringContext, axis: int, inverse_type: np.dtype[Any] | None) -> NativeKernel:
    """The kernel of a checked RMSNormalization over all axes from `axis` on, with a constant scale.

    inverse_type: the type of the second result, if the operator has one.
    """
    from qrun.native.kernels.rowwise import InverseRms, RmsNorm

    x, scale, epsilon = _rows(site), site.inputs[1], single(site.attributes["epsilon"])
    inner, wanted = x.shape[axis:], inverse_type is not None and site.ctx.wants(1)
    site.require_constants()
    if scale.dtype != FLOAT:
        raise decline_error("a scale that is not float32")
    if any(size != 1 for size in scale.shape[: -len(inner)]):
        raise decline_error("its scale differs from row to row")
    if not epsilon >= 0:
        raise decline_error("epsilon is negative")
    if wanted and (inverse_type != FLOAT or site.narrow):
        raise decline_error("its inverse root is asked for, in another type")

    weight = np.ascontiguousarray(np.broadcast_to(scale.reshape(scale.shape[-len(inner) :]), inner)).reshape(-1)
    norm = RmsNorm(site.engine, x.shape, weight, epsilon)
    if not wanted:
        return kernel_of(site, norm, (0,), ALWAYS)
    shape = (*x.shape[:axis], *(1,) * len(inner))
    inverse = InverseRms(site.engine, x.shape, weight.size, shape, epsilon)
    return staged_kernel(site, [Stage(norm, (0,)), Stage(inverse, (0,), 1)], (norm,), ALWAYS)


def shares_kernel(site: LoweringContext, axis: int, logarithms: bool = False) -> NativeKernel:
    """The kernel of a softmax over all axes from `axis` on; with `logarithms`, of a log-softmax."""
    from qrun.native.kernels.softmax import LogSoftmaxF32, SoftmaxF32

    x, kind = _rows(site), LogSoftmaxF32 if logarithms else SoftmaxF32
    return kernel_of(site, kind(site.engine, x.shape, math.prod(x.shape[axis:])), (0,), ALWAYS)


def reduction_kernel(site: LoweringContext, kind: str, axes: Sequence[int], y_shape: Sequence[int]) -> NativeKernel:
    """The kernel of a reduction over `axes`, counted from the front. kind: a kind of native/kernels/reduce.py."""
    from qrun.native.kernels.reduce import FLOAT_KINDS, IntegerReduction, Reduction

    x = np.asarray(site.inputs[0])
    whole = is_integer(x.dtype) or x.dtype == np.bool_
    if not whole:
        x = _rows(site)
        if kind not in FLOAT_KINDS:
            raise decline_error("no native products of that many float32")
    if not x.size:
        raise decline_error("no elements")
    if not axes:
        raise decline_error("over no axes")
    length = math.prod(x.shape[axis] for axis in axes)
    if length == 1 and kind in _OF_ONE:
        return _of_single_elements(site, kind, x, y_shape)
    perm = [*(axis for axis in range(x.ndim) if axis not in axes), *sorted(axes)]
    moving = [axis for axis in perm if x.shape[axis] != 1]
    turned = moving != sorted(moving)
    shape = [x.shape[axis] for axis in perm] if turned else x.shape
    if whole:
        folded = IntegerReduction(site.engine, kind, x.dtype, shape, length, y_shape)
        kernel = kernel_of(site, folded, (0,), ALWAYS)
    else:
        kernel = kernel_of(site, Reduction(site.engine, kind, shape, length, y_shape), (0,), ALWAYS)
    return transposed_kernel(site, kernel, (0,), {0: perm}) if turned else kernel


_OF_ONE = ("sum", "mean", "greatest", "least")
"""Reductions that do not change a single element, except that sums of floats turn -0 into 0."""


def _of_single_elements(site: LoweringContext, kind: str, x: Array, y_shape: Sequence[int]) -> NativeKernel:
    """The kernel of a reduction of _OF_ONE over axes of size 1: each result is one element."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    stages = [Stage(view(site.engine, x.shape, y_shape, x.dtype), (0,))]
    if x.dtype == FLOAT and kind in ("sum", "mean"):
        added = Elementwise(site.engine, "sum", [Operand(tuple(y_shape), FLOAT)])
        stages = [replace(stages[0], output="elements"), Stage(added, ("elements",))]
    return staged_kernel(site, stages, [stage.operation for stage in stages[1:]], ALWAYS)


def _rows(site: LoweringContext) -> Array:
    """The first input, float32 and with elements. Raises Declined."""
    x = site.inputs[0]
    require_type(x.dtype == FLOAT, x.dtype)
    if not x.size:
        raise decline_error("no elements")
    return np.asarray(x)


def _call_reference(site: LoweringContext, x: Array) -> Array:
    """The reference kernel's result for other values of the first input."""
    ctx = replace(site.ctx, budget=Context().budget, claims=None, observing=False)
    return np.asarray(site.reference((x, *site.inputs[1:]), ctx))
