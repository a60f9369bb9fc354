"""What onnxruntime's optimizer makes of Gelu and its approximations:
Gelu, BiasGelu, FastGelu, QuickGelu of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ops._complete import ALWAYS
from qrun.ops._elementwise import binary
from qrun.ops._functions import gelu, gelu_by_tanh, swish
from qrun.ops._op import Array, Context, contrib_op, misfit
from qrun.ops.lowering.float32 import function, function_kernel
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, Stage, require_type, staged_kernel

_FLOATS = "float16 float double bfloat16"


@contrib_op("Gelu", types={"T": (_FLOATS, "X")}, form="pointwise", native=function("gelu"))
def gelu_1(X: Array) -> Array:
    """Gelu of ai.onnx without approximation."""
    return gelu(X)


@contrib_op("QuickGelu", types={"T": (_FLOATS, "X")}, form="pointwise", native=function("swish", "alpha"))
def quick_gelu(X: Array, *, alpha: float = 1.7020000219345093) -> Array:
    """X * Sigmoid(alpha * X) in float32; float64 stays float64."""
    return swish(X, alpha)


@contrib_op("BiasGelu", types={"T": (_FLOATS, "A B")})
def bias_gelu(A: Array, B: Array, *, ctx: Context) -> Array:
    """Gelu(A + B): A [...,n], B [n], floating point of one type.

    The same bits as Add, then Gelu, each rounded once. Raises OperatorError for another shape of B.
    """
    return gelu(_sum(A, B, "B", ctx))


@bias_gelu.native
def _lower_bias_gelu(site: LoweringContext) -> NativeKernel:
    return _gelu_of_sum(site, "gelu", "B")


def _gelu_of_sum(site: LoweringContext, name: str, bias: str) -> NativeKernel:
    """The kernel of Add, then a function; name: of native/emit/functions.py;
    bias: how the operator names the second input."""
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.operation import Operand

    a, b = site.inputs
    _check(a, b, bias, site.ctx)
    require_type(a.dtype == FLOAT, a.dtype)
    x, added = (Operand(x.shape, x.dtype) for x in (a, b))
    first, last = Elementwise(site.engine, "add", [x, added]), Elementwise(site.engine, name, [x])
    return staged_kernel(site, [Stage(first, (0, 1), "sum"), Stage(last, ("sum",))], [first, last], ALWAYS)


@contrib_op("FastGelu", types={"T": (_FLOATS, "X bias")})
def fast_gelu(X: Array, bias: Array | None = None, *, ctx: Context) -> Array:
    """Gelu(X + bias) approximated by tanh: X [...,n], bias [n], floating point of one type.

    The same bits as Add, then Gelu of ai.onnx with approximate = "tanh", each rounded once, whose sqrt(2 / pi) the
    page of this operator gives as 0.797885. Raises OperatorError for another shape of bias.
    """
    if bias is None:
        ctx.claim(X.shape, X.itemsize)
    return gelu_by_tanh(X if bias is None else _sum(X, bias, "bias", ctx))


@fast_gelu.native
def _lower_fast_gelu(site: LoweringContext) -> NativeKernel:
    if site.inputs[1] is None:
        return function_kernel(site, "gelu_by_tanh")
    return _gelu_of_sum(site, "gelu_by_tanh", "bias")


def _sum(x: Array, bias: Array, name: str, ctx: Context) -> Array:
    _check(x, bias, name, ctx)
    return binary(np.add, x, bias, ctx)


def _check(x: Array, bias: Array, name: str, ctx: Context) -> None:
    """Refuse a bias that is not one number for each place along the last axis; claim the sum and the result."""
    if bias.shape != x.shape[-1:] or not x.ndim:
        expected = f"[{x.shape[-1]}]" if x.ndim else "a first input of rank 1 or more"
        raise misfit(f"{name} does not fit the input", name, expected, bias)
    ctx.claim(x.shape, 2 * x.itemsize)
