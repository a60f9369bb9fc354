"""The operators Attention, QAttention and MultiHeadAttention of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._attention import Cache, attend, biases_of, default_scale, merge_heads, positive, split_heads
from qrun.ops._body import node
from qrun.ops._context import same_type, scalar
from qrun.ops._matmul import float_matmul
from qrun.ops._op import Array, Context, Shape, bad_shape, both_or_none, contrib_op, refuse, with_shape
from qrun.ops._signature import FLOATS, Whole

_FILTER = -10000.0
"""The number added to the scores of masked keys, unless an attribute gives another one."""
_NAME = "QAttention"
_WHOLE = {"mask_index": Whole((("input", 1), ("past", 3)), mask=True)}


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """Multiply-adds of the projection, and of both products; those of a cache are unknown here."""
    (batch, rows, depth), y = inputs[0], outputs[0]
    return batch * rows * (depth * inputs[1][1] + 2 * rows * y[2])


@contrib_op(
    "Attention",
    cost=_macs,
    types={
        "T": (FLOATS, "input weights bias past attention_bias"),
        "M": ("int32", "mask_index past_sequence_length"),
    },
    wholes=_WHOLE,
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
    """Self-attention that projects queries, keys and values in one product.

    Outputs: output [B,S,Dv] and present [2,B,N,T,H].

    input is [B,S,Di]; weights [Di,D+D+Dv] and bias have three parts, each with num_heads heads. mask_index (int32) is
    [B,T] or [B,S,T], with 1 for visible keys; [B,1,M,M], with one such row per position; [B], the number of keys;
    [2*B], the number of keys, then the first key; or [3*B+2], whose first B elements count. attention_bias
    [B or 1,N or 1,S,T] is added. past is [2,B,N,P,H]; with past_present_share_buffer it is [2,B,N,M,H], and
    past_sequence_length [1] says how much is filled. mask_filter_value is added to the scores of hidden keys; with
    unidirectional, the scores of later positions are lowered by the type's largest number.

    The steps are those of ai.onnx, each rounded to the type: Gemm with the bias, then for each head MatMul, Mul by
    scale, Add of attention_bias, Add of the mask, Softmax and MatMul. do_rotary is refused, because the operator's page
    does not define the angles. Raises OperatorError for shapes and attributes that do not fit.
    """
    widths = _check_projection(input, weights, ("input", "weights"), num_heads, qkv_hidden_sizes, do_rotary)
    with_shape(bias, "bias", weights.shape[1:])
    rows = input.reshape(input.shape[0] * input.shape[1], input.shape[2])
    projected = node("Gemm", [rows, weights, bias], ctx).reshape(*input.shape[:2], weights.shape[1])
    cache = Cache(past, bool(past_present_share_buffer), past_sequence_length)
    options = (mask_filter_value, bool(unidirectional), scale)
    return _self_attention(projected, widths, num_heads, mask_index, attention_bias, cache, options, ctx)


@contrib_op(
    _NAME,
    cost=_macs,
    types={
        "T1": ("int8 uint8", "input"),
        "T2": ("int8 uint8", "weight"),
        "T3": ("float float16", "bias input_scale weight_scale past"),
        "T4": ("int32", "mask_index"),
    },
    wholes=_WHOLE,
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
    """Attention of com.microsoft with quantized input [B,S,Di] and weight [Di,3*D].

    Outputs: output [B,S,D] and present [2,B,N,T,H]. Queries, keys and values come from one product, whose exact value
    is rounded once, as in MatMulIntegerToFloat:

        acc = sum over k of (input - input_zero_point) * (weight - weight_zero_point)            int32, wrapping
        QKV = acc * input_scale * weight_scale + bias

    bias is [3*D], float32 or float16 like the scales and results. input_scale and input_zero_point are scalars;
    weight_scale and weight_zero_point are scalars or [3*D]. Everything else is as in Attention.
    Raises OperatorError for shapes and attributes that do not fit, and for past_present_share_buffer, as no input says
    how much of the past is filled.
    """
    widths = _check_projection(input, weight, ("input", "weight"), num_heads, None, do_rotary)
    with_shape(bias, "bias", weight.shape[1:])
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
    """The widths of Q, K and V among the columns of the weights: `sizes`, or thirds. names: of x and weights, for
    messages. Raises OperatorError where they do not fit, and for do_rotary."""
    if do_rotary:
        raise refuse(
            "the angles are not known", "do_rotary", "0, and RotaryEmbedding or GroupQueryAttention", "1", code="QR204"
        )
    if x.ndim != 3:
        raise bad_shape(names[0], "[batch,length,width]", x)
    if weights.ndim != 2 or weights.shape[0] != x.shape[2]:
        raise bad_shape(names[1], f"[{x.shape[2]},widths of Q, K and V]", weights)
    width = weights.shape[1]
    if sizes is None and width % 3:
        expected = f"[{x.shape[2]},3 * width], as wide for Q as for K and V; num_heads = {heads} divides the width"
        raise bad_shape(names[1], expected, weights)
    positive("num_heads", heads, width // 3 if sizes is None else None)
    if sizes is None:
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
    """Attention of projected queries, keys and values; returns Y and the new cache."""
    ends = np.cumsum(widths)[:2]
    q, k, v = (split_heads(part, heads) for part in np.split(projected, ends, axis=2))
    past = cache.past
    if past is not None and (past.ndim != 5 or past.shape[0] != 2 or k.shape[3] != v.shape[3]):
        raise bad_shape("past", f"[2,{shape_text(k.shape[:2])[1:-1]},past,{k.shape[3]}]", past)
    keys, present_keys, before = cache.part(0).extend(k, "past", ctx)
    values, present_values, _ = cache.part(1).extend(v, "past", ctx)
    shape = (*q.shape[:3], keys.shape[2])
    biases = biases_of(mask, "mask_index", bias, shape, before, options[:2], q.dtype, ctx)
    found = attend(q, keys, values, biases, ctx, scale=default_scale(options[2], q.shape[3]))
    present = np.empty(0, q.dtype)
    if ctx.wants(1):
        if present_keys.shape != present_values.shape:
            expected = "values as wide as keys, or present left out"
            raise refuse("present has no shape", "qkv_hidden_sizes", expected, str(tuple(widths)), code="QR204")
        ctx.claim((2, *present_keys.shape), q.itemsize)
        present = np.stack([present_keys, present_values])
    return merge_heads(found.y, ctx), present


def _cross_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of MultiHeadAttention."""
    q, y = inputs[0], outputs[0]
    keys = inputs[1] if len(inputs) > 1 and inputs[1] else q
    length = keys[2] if len(keys) == 4 else keys[1]
    return y[0] * y[1] * length * 2 * y[2]


@contrib_op(
    "MultiHeadAttention",
    cost=_cross_macs,
    types={
        "T": (FLOATS, "query key value bias attention_bias past_key past_value"),
        "M": ("int32", "key_padding_mask past_sequence_length cache_indirection"),
    },
    wholes={"key_padding_mask": Whole((("key", -2), ("past_key", 2)), mask=True)},
)
def multi_head_attention(
    query: Array,
    key: Array | None = None,
    value: Array | None = None,
    bias: Array | None = None,
    key_padding_mask: Array | None = None,
    attention_bias: Array | None = None,
    past_key: Array | None = None,
    past_value: Array | None = None,
    past_sequence_length: Array | None = None,
    cache_indirection: Array | None = None,
    *,
    mask_filter_value: float = _FILTER,
    num_heads: int,
    scale: float | None = None,
    unidirectional: int = 0,
    ctx: Context,
) -> tuple[Array, Array, Array, Array]:
    """Attention of queries, keys and values: output [B,S,Dv], present_key and present_value [B,N,T,H], qk [B,N,S,T].

    query [B,S,D] with key [B,L,D] and value [B,L,Dv], or key [B,L,N,2,H] with the values in it, or query [B,L,N,3,H]
    with both; or key and value [B,N,L,H], which take no bias. bias [D+D+Dv] is added to each. past_key and past_value
    [B,N,P,H] go before; with past_sequence_length [1] only that many are filled, and the present has their shape.
    Masks, scale and steps are as in Attention of com.microsoft; qk has the scores before Softmax. Raises OperatorError
    for shapes and attributes that do not fit, and for cache_indirection: beams are not searched here.
    """
    if cache_indirection is not None:
        raise refuse("keys are taken from other beams", "cache_indirection", "no cache_indirection", cache_indirection)
    both_or_none(past_key=past_key, past_value=past_value)
    q, k, v, straight = _queries(query, key, value, positive("num_heads", num_heads))
    q, k, v = _with_bias(q, k, v, bias, straight, ctx)
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        raise bad_shape("key", f"as many heads as query {shape_text(q.shape)} and value {shape_text(v.shape)}", k)
    shared = past_key is not None and past_sequence_length is not None
    keys, present_key, past = Cache(past_key, shared, past_sequence_length).extend(k, "past_key", ctx)
    values, present_value, _ = Cache(past_value, shared, past_sequence_length).extend(v, "past_value", ctx)
    options = (mask_filter_value, bool(unidirectional))
    shape = (*q.shape[:3], keys.shape[2])
    biases = biases_of(key_padding_mask, "key_padding_mask", attention_bias, shape, past, options, q.dtype, ctx)
    found = attend(q, keys, values, biases, ctx, scale=default_scale(scale, q.shape[3]))
    return merge_heads(found.y, ctx), present_key, present_value, found.biased


def _queries(query: Array, key: Array | None, value: Array | None, heads: int) -> tuple[Array, Array, Array, bool]:
    """Queries, keys and values by head, and whether key and value have that layout already."""
    if query.ndim == 5:
        if key is not None or value is not None or query.shape[2:4] != (heads, 3):
            raise bad_shape("query", f"[batch,length,{heads},3,size], and neither key nor value", query)
        q, k, v = (query[:, :, :, part].transpose(0, 2, 1, 3) for part in range(3))
        return q, k, v, False
    if query.ndim != 3 or key is None:
        raise bad_shape("query", "[batch,length,width] with key, or [batch,length,heads,3,size]", query)
    q = split_heads(query, positive("num_heads", heads, query.shape[2]))
    if key.ndim == 5 and value is None and key.shape[2:4] == (heads, 2):
        k, v = (key[:, :, :, part].transpose(0, 2, 1, 3) for part in range(2))
        return q, k, v, False
    if value is None or key.ndim != value.ndim or key.ndim not in (3, 4):
        raise bad_shape(
            "key",
            "[batch,length,width] with value, [batch,heads,length,size] with value, or "
            "[batch,length,heads,2,size] without",
            key,
        )
    if key.ndim == 4:
        return q, key, value, True
    for name, x in (("key", key), ("value", value)):
        if x.shape[2] % heads:
            raise bad_shape(name, f"a width that {heads} heads divide", x)
    return q, split_heads(key, heads), split_heads(value, heads), False


def _with_bias(
    q: Array, k: Array, v: Array, bias: Array | None, straight: bool, ctx: Context
) -> tuple[Array, Array, Array]:
    """Queries, keys and values plus their parts of bias; `straight`: keys and values get none."""
    if bias is None:
        return q, k, v
    heads = q.shape[1]
    widths = [heads * x.shape[3] for x in (q, k, v)]
    with_shape(bias, "bias", (sum(widths),))
    parts = [part.reshape(heads, 1, -1) for part in np.split(bias, np.cumsum(widths)[:2])]
    q = node("Add", [q, parts[0]], ctx)
    return (q, k, v) if straight else (q, node("Add", [k, parts[1]], ctx), node("Add", [v, parts[2]], ctx))
