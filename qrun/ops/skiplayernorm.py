"""Layer normalization of a sum: SkipLayerNormalization and SkipSimplifiedLayerNormalization of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._body import InnerNode, nodes_kernel, run_nodes
from qrun.ops._float import single, widen
from qrun.ops._native import LoweringContext, NativeKernel, declined
from qrun.ops._op import Array, Context, op, refuse

_TYPES = "float float16 bfloat16"
_EPSILON = 9.999999960041972e-13
Made = tuple[Array, Array, Array, Array]


@op(
    "SkipLayerNormalization",
    since=1,
    domain="com.microsoft",
    types={"T": (_TYPES, "input skip gamma beta bias")},
)
def skip_layer_normalization(
    input: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    ctx: Context,
) -> Made:
    """LayerNormalization of input + skip + bias over the last axis: output, mean, inv_std_var, input_skip_bias_sum.

    input [...,n]; skip broadcasts to it; gamma, beta and bias [n]; of one type. Mean and 1 / sqrt(var + epsilon) are
    float32, with 1 in place of the last axis. As the nodes of ai.onnx: two Add from left to right, each rounded, whose
    result is input_skip_bias_sum, then LayerNormalization with scale gamma and bias beta.
    Raises OperatorError for shapes that do not fit.
    Source: onnxruntime ContribOperators, com.microsoft.SkipLayerNormalization.
    """
    _check(input, skip, gamma=gamma, beta=beta, bias=bias)
    made = run_nodes(_nodes(bias, "LayerNormalization", (2, 3), 4, epsilon), (input, skip, gamma, beta, bias), ctx)
    y, mean, inverse = made[""]
    return y, mean, inverse, made["sum"]


@skip_layer_normalization.native
def _lower(site: LoweringContext) -> NativeKernel:
    x, skip, gamma, beta, bias = site.inputs
    _check(x, skip, gamma=gamma, beta=beta, bias=bias)
    if any(site.ctx.wants(place) for place in (1, 2, 3)):
        raise declined("its sum, mean or deviation is asked for")
    return nodes_kernel(site, _nodes(bias, "LayerNormalization", (2, 3), 4, site.attributes["epsilon"]))


@op(
    "SkipSimplifiedLayerNormalization",
    since=1,
    domain="com.microsoft",
    types={"T": (_TYPES, "input skip gamma bias")},
)
def skip_simplified_layer_normalization(
    input: Array,
    skip: Array,
    gamma: Array,
    bias: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    ctx: Context,
) -> Made:
    """RMSNormalization of input + skip + bias over the last axis: output, mean, inv_std_var, input_skip_bias_sum.

    As SkipLayerNormalization, but RMSNormalization with scale gamma follows the additions: inv_std_var is
    1 / sqrt(mean of the squares + epsilon), float32, and there is no mean. Raises OperatorError for shapes that do not
    fit, and where the mean is asked for.
    Source: onnxruntime ContribOperators, com.microsoft.SkipSimplifiedLayerNormalization.
    """
    _check(input, skip, gamma=gamma, bias=bias)
    if ctx.wants(1):
        raise refuse("there is no mean", "mean", "output 1 left out: squares are not centred", "output 1")
    made = run_nodes(_nodes(bias, "RMSNormalization", (2,), 3, epsilon), (input, skip, gamma, bias), ctx)
    none = np.empty(0, np.float32)
    inverse = _inverse(made["sum"], epsilon) if ctx.wants(2) else none
    return made[""], none, inverse, made["sum"]


def _inverse(x: Array, epsilon: float) -> Array:
    with np.errstate(all="ignore"):
        mean = np.mean(np.square(widen(x)), axis=-1, keepdims=True)
        return np.asarray(1.0 / np.sqrt(mean + single(epsilon))).astype(np.float32)


def _nodes(
    bias: Array | None, normalization: str, weights: Sequence[int], place: int, epsilon: float
) -> list[InnerNode]:
    """weights: inputs of the normalization besides the sum; place: of the bias."""
    first = InnerNode("Add", (0, 1), {}, "sum" if bias is None else "skipped")
    then = [] if bias is None else [InnerNode("Add", ("skipped", place), {}, "sum")]
    return [first, *then, InnerNode(normalization, ("sum", *weights), {"epsilon": epsilon})]


def _check(x: Array, skip: Array, **weights: Array | None) -> None:
    """Refuse a scalar, what does not broadcast to it, and weights that are not one number for each element of a row."""
    if not x.ndim:
        raise refuse("the input is a scalar", "input", "rank 1 or more", x, code="QR208")
    lead = x.ndim - skip.ndim
    if lead < 0 or any(n not in (1, m) for n, m in zip(skip.shape, x.shape[lead:], strict=True)):
        expected = f"a shape that broadcasts to {shape_text(x.shape)}"
        raise refuse("skip does not fit the input", "skip", expected, skip, code="QR208")
    for name, weight in weights.items():
        if weight is not None and weight.shape != x.shape[-1:]:
            raise refuse(f"{name} does not fit the input", name, shape_text(x.shape[-1:]), weight, code="QR208")
