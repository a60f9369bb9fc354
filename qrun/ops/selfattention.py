"""Attention and QAttention of com.microsoft: queries, keys and values are one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._attention import Cache, attend, biases_of, default_scale, merged_heads, misfit, positive, split_heads
from qrun.ops._attention import with_shape as shaped
from qrun.ops._body import node
from qrun.ops._matmul import float_matmul
from qrun.ops._op import Array, Context, Shape, op, refuse
from qrun.ops._quantize import same_type, scalar

_FILTER = -10000.0
_NAME = "QAttention"


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """Of the projection, and of both products; what is in a cache is not known here."""
    (batch, rows, depth), y = inputs[0], outputs[0]
    return batch * rows * (depth * inputs[1][1] + 2 * rows * y[2])


@op(
    "Attention",
    since=1,
    domain="com.microsoft",
    cost=_macs,
    types={
        "T": ("float float16 bfloat16", "input weights bias past attention_bias"),
        "M": ("int32", "mask_index past_sequence_length"),
    },
)
def attention_1(
    input: Array,
    weights: Array,
    bias: Array | None = None,
    mask_index: Array | None = None,
    past: Array | None = None,
    attention_bias: Array | None = None,
    past_sequence_length: Array | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = _FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] | None = None,
    rotary_embedding_dim: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    ctx: Context,
) -> tuple[Array, Array]:
    """Self-attention whose queries, keys and values are one product: output [B,S,Dv], present [2,B,N,T,H].

    input [B,S,Di], weights [Di,D+D+Dv] and bias of that width, each part of num_heads heads. mask_index int32: [B,T] or
    [B,S,T], 1 where a key is seen; [B,1,M,M] with such a line for each place; [B] the number of keys; [2*B] that, then the
    first of them; [3*B+2], of which the first B count. attention_bias [B or 1,N or 1,S,T] is added. past [2,B,N,P,H], with
    past_present_share_buffer [2,B,N,M,H], of which past_sequence_length [1] are filled. What is not seen is lowered by
    mask_filter_value; places after the own one, where unidirectional, by the type's largest number.

    As Gemm with the bias, then, for each head, MatMul, Mul by scale, Add of attention_bias, Add of the mask, Softmax and
    MatMul of ai.onnx, each rounded to the type. do_rotary is refused: the operator's page does not say which angles.
    Raises OperatorError for shapes and attributes that do not fit.
    Source: onnxruntime ContribOperators, com.microsoft.Attention.
    """
    widths = _check_projection(input, weights, ("input", "weights"), num_heads, qkv_hidden_sizes, do_rotary)
    if bias is not None:
        shaped(bias, "bias", weights.shape[1:])
    rows = input.reshape(-1, input.shape[2])
    projected = node("Gemm", [rows, weights, bias], ctx).reshape(*input.shape[:2], -1)
    cache = Cache(past, bool(past_present_share_buffer), past_sequence_length)
    options = (mask_filter_value, bool(unidirectional), scale)
    return _self_attention(projected, widths, num_heads, mask_index, attention_bias, cache, options, ctx)


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    cost=_macs,
    types={
        "T1": ("int8 uint8", "input input_zero_point"),
        "T2": ("int8 uint8", "weight weight_zero_point"),
        "T3": ("float float16", "bias input_scale weight_scale past"),
        "T4": ("int32", "mask_index"),
    },
)
def q_attention(
    input: Array,
    weight: Array,
    bias: Array,
    input_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    input_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    *,
    do_rotary: int = 0,
    mask_filter_value: float = _FILTER,
    num_heads: int,
    past_present_share_buffer: int = 0,
    scale: float | None = None,
    unidirectional: int = 0,
    ctx: Context,
) -> tuple[Array, Array]:
    """Attention of com.microsoft whose input [B,S,Di] and weight [Di,3*D] are codes: output [B,S,D], present [2,B,N,T,H].

    The queries, keys and values are one product, whose real value is rounded once, as in MatMulIntegerToFloat:

        acc = sum over k of (input - input_zero_point) * (weight - weight_zero_point)            int32, wrapping
        QKV = acc * input_scale * weight_scale + bias

    bias [3*D], float32 or float16 as scales and results. input_scale and input_zero_point are scalars, those of the weight scalars or [3*D]. All else as in Attention.
    Raises OperatorError for shapes and attributes that do not fit, and for past_present_share_buffer, as there is no
    input that says how much of the past is filled.
    Source: onnxruntime ContribOperators, com.microsoft.QAttention.
    """
    widths = _check_projection(input, weight, ("input", "weight"), num_heads, None, do_rotary)
    shaped(bias, "bias", weight.shape[1:])
    same_type(input_zero_point, input.dtype, "input_zero_point", "input")
    same_type(weight_zero_point, weight.dtype, "weight_zero_point", "weight")
    if past_present_share_buffer:
        raise refuse("past and present share memory", "past_present_share_buffer", "0", "1", code="QR204")
    scale_zero = (scalar(input_scale, "input_scale", _NAME), scalar(input_zero_point, "input_zero_point", _NAME))
    projected = float_matmul(input, *scale_zero, weight, weight_scale, weight_zero_point, bias, _NAME, ctx)
    options = (mask_filter_value, bool(unidirectional), scale)
    return _self_attention(projected, widths, num_heads, mask_index, None, Cache(past), options, ctx)


def _check_projection(
    x: Array, weights: Array, names: tuple[str, str], heads: int, sizes: tuple[int, ...] | None, do_rotary: int
) -> tuple[int, ...]:
    """The widths of queries, keys and values, checked."""
    if do_rotary:
        raise refuse(
            "the angles are not known", "do_rotary", "0, and RotaryEmbedding or GroupQueryAttention", "1", code="QR204"
        )
    if x.ndim != 3:
        raise misfit(names[0], "[batch,length,width]", x)
    if weights.ndim != 2 or weights.shape[0] != x.shape[2]:
        raise misfit(names[1], f"[{x.shape[2]},widths of Q, K and V]", weights)
    width = weights.shape[1]
    if sizes is None:
        positive("num_heads", heads, width // 3)
        sizes = (width // 3,) * 3
    if len(sizes) != 3 or sizes[0] != sizes[1] or sum(sizes) != width or any(s < 0 or s % heads for s in sizes):
        expected = f"three widths that num_heads = {heads} divides, the first two equal, {width} in all"
        raise refuse("the widths of Q, K and V do not fit", "qkv_hidden_sizes", expected, str(sizes), code="QR204")
    return sizes


def _self_attention(
    projected: Array,
    widths: Sequence[int],
    heads: int,
    mask: Array | None,
    bias: Array | None,
    cache: Cache,
    options: tuple[float, bool, float | None],
    ctx: Context,
) -> tuple[Array, Array]:
    ends = np.cumsum(widths)[:2]
    q, k, v = (split_heads(part, heads) for part in np.split(projected, ends, axis=2))
    past = cache.past
    if past is not None and (past.ndim != 5 or past.shape[0] != 2 or k.shape[3] != v.shape[3]):
        raise misfit("past", f"[2,{shape_text(k.shape[:2])[1:-1]},past,{k.shape[3]}]", past)
    keys, present_keys, before = cache.part(0).extended(k, "past", ctx)
    values, present_values, _ = cache.part(1).extended(v, "past", ctx)
    shape = (*q.shape[:3], keys.shape[2])
    biases = biases_of(mask, "mask_index", bias, shape, before, options[:2], q.dtype, ctx)
    found = attend(q, keys, values, biases, ctx, scale=default_scale(options[2], q.shape[3]))
    present = np.empty(0, q.dtype)
    if ctx.wants(1):
        if present_keys.shape != present_values.shape:
            raise refuse(
                "present has no shape",
                "qkv_hidden_sizes",
                "values as wide as keys, or present left out",
                str(tuple(widths)),
                code="QR204",
            )
        ctx.claim((2, *present_keys.shape), q.itemsize)
        present = np.stack([present_keys, present_values])
    return merged_heads(found.y, ctx), present
