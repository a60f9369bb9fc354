"""MultiHeadAttention of com.microsoft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._attention import Cache, attend, biases_of, default_scale, merged_heads, misfit, positive, split_heads
from qrun.ops._attention import with_shape as shaped
from qrun.ops._body import node
from qrun.ops._op import Array, Context, Shape, op, refuse

_TYPES = "float float16 bfloat16"
_FILTER = -10000.0


def _cross_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    q, y = inputs[0], outputs[0]
    keys = inputs[1] if len(inputs) > 1 and inputs[1] else q
    length = keys[2] if len(keys) == 4 else keys[1]
    return y[0] * y[1] * length * 2 * y[2]


@op(
    "MultiHeadAttention",
    since=1,
    domain="com.microsoft",
    cost=_cross_macs,
    types={
        "T": (_TYPES, "query key value bias attention_bias past_key past_value"),
        "M": ("int32", "key_padding_mask past_sequence_length cache_indirection"),
    },
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

    query [B,S,D] with key [B,L,D] and value [B,L,Dv], or key [B,L,N,2,H] with the values in it, or query [B,L,N,3,H] with
    both; or key and value [B,N,L,H], which take no bias. bias [D+D+Dv] is added to each. past_key and past_value [B,N,P,H]
    go before; with past_sequence_length [1] so many of them are filled, and the present has their shape. Masks, scale
    and steps are those of Attention of com.microsoft; qk has the scores before Softmax.
    Raises OperatorError for shapes and attributes that do not fit, and for cache_indirection: beams are not searched here.
    Source: onnxruntime ContribOperators, com.microsoft.MultiHeadAttention.
    """
    if cache_indirection is not None:
        raise refuse("keys are taken from other beams", "cache_indirection", "no cache_indirection", cache_indirection)
    if (past_key is None) != (past_value is None):
        raise refuse(
            "only one of past_key and past_value is given", "past_key", "both, or neither", "one", code="QR205"
        )
    q, k, v, straight = _queries(query, key, value, positive("num_heads", num_heads))
    q, k, v = _with_bias(q, k, v, bias, straight, ctx)
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        raise misfit("key", f"heads as those of query {shape_text(q.shape)} and value {shape_text(v.shape)}", k)
    shared = past_key is not None and past_sequence_length is not None
    keys, present_key, past = Cache(past_key, shared, past_sequence_length).extended(k, "past_key", ctx)
    values, present_value, _ = Cache(past_value, shared, past_sequence_length).extended(v, "past_value", ctx)
    options = (mask_filter_value, bool(unidirectional))
    shape = (*q.shape[:3], keys.shape[2])
    biases = biases_of(key_padding_mask, "key_padding_mask", attention_bias, shape, past, options, q.dtype, ctx)
    found = attend(q, keys, values, biases, ctx, scale=default_scale(scale, q.shape[3]))
    return merged_heads(found.y, ctx), present_key, present_value, found.biased


def _queries(query: Array, key: Array | None, value: Array | None, heads: int) -> tuple[Array, Array, Array, bool]:
    """Queries, keys and values by head, and whether keys and values are taken as they are."""
    if query.ndim == 5:
        if key is not None or value is not None or query.shape[2:4] != (heads, 3):
            raise misfit("query", f"[batch,length,{heads},3,size], and neither key nor value", query)
        q, k, v = (query[:, :, :, part].transpose(0, 2, 1, 3) for part in range(3))
        return q, k, v, False
    if query.ndim != 3 or key is None:
        raise misfit("query", "[batch,length,width] with key, or [batch,length,heads,3,size]", query)
    q = split_heads(query, positive("num_heads", heads, query.shape[2]))
    if key.ndim == 5 and value is None and key.shape[2:4] == (heads, 2):
        k, v = (key[:, :, :, part].transpose(0, 2, 1, 3) for part in range(2))
        return q, k, v, False
    if value is None or key.ndim != value.ndim or key.ndim not in (3, 4):
        raise misfit(
            "key",
            "[batch,length,width] with value, [batch,heads,length,size] with value, or "
            "[batch,length,heads,2,size] without",
            key,
        )
    if key.ndim == 4:
        return q, key, value, True
    for name, x in (("key", key), ("value", value)):
        if x.shape[2] % heads:
            raise misfit(name, f"a width that {heads} heads divide", x)
    return q, split_heads(key, heads), split_heads(value, heads), False


def _with_bias(
    q: Array, k: Array, v: Array, bias: Array | None, straight: bool, ctx: Context
) -> tuple[Array, Array, Array]:
    if bias is None:
        return q, k, v
    heads = q.shape[1]
    widths = [heads * x.shape[3] for x in (q, k, v)]
    shaped(bias, "bias", (sum(widths),))
    parts = [part.reshape(heads, 1, -1) for part in np.split(bias, np.cumsum(widths)[:2])]
    q = node("Add", [q, parts[0]], ctx)
    return (q, k, v) if straight else (q, node("Add", [k, parts[1]], ctx), node("Add", [v, parts[2]], ctx))
