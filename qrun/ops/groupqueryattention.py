"""GroupQueryAttention of com.microsoft: decoders whose keys and values have fewer heads than the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ops._attention import (
    attend,
    default_scale,
    hidden,
    merged_heads,
    positive,
    split_heads,
    with_shape,
)
from qrun.ops._body import node
from qrun.ops._decoder import Places, angles, keep, number, places_of, rotary_width, rotated, seen_places
from qrun.ops._op import Array, Context, Shape, bad_shape, both_or_none, one_of, op, refuse, require
from qrun.ops._signature import Attributes, InputRecord

_TYPES = "float float16 bfloat16"
_NO_QUANTIZATION = "NONE"


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    y = outputs[0]
    length = outputs[1][2] if len(outputs) > 1 and len(outputs[1]) == 4 else y[1]
    return 2 * y[0] * y[1] * y[2] * length


@frozen
class GroupQueryInputs(InputRecord):
    query: Array
    key: Array | None
    value: Array | None
    past_key: Array | None
    past_value: Array | None
    seqlens_k: Array
    total_sequence_length: Array
    cos_cache: Array | None = None
    sin_cache: Array | None = None
    position_ids: Array | None = None
    attention_bias: Array | None = None
    head_sink: Array | None = None
    k_scale: Array | None = None
    v_scale: Array | None = None
    q_norm_weight: Array | None = None
    k_norm_weight: Array | None = None


@frozen
class GroupQueryAttributes(Attributes):
    kv_num_heads: int
    num_heads: int
    causal: int = 1
    do_rotary: int = 0
    k_quant_type: str = _NO_QUANTIZATION
    kv_cache_bit_width: int = 0
    local_window_size: int = -1
    qk_norm_epsilon: float = 1e-6
    qk_output: int = 0
    rotary_interleaved: int = 0
    scale: float | None = None
    sliding_window_cache: int = 0
    smooth_softmax: int = 0
    softcap: float = 0.0
    v_quant_type: str = _NO_QUANTIZATION

    @property
    def kept(self) -> int:
        """How many last places a cache that slides has; 0: it does not slide."""
        return self.local_window_size if self.sliding_window_cache else 0


@op(
    "GroupQueryAttention",
    since=1,
    domain="com.microsoft",
    cost=_macs,
    types={
        "T": (
            _TYPES,
            "query key value past_key past_value cos_cache sin_cache attention_bias head_sink q_norm_weight k_norm_weight",
        ),
        "M": ("int32", "seqlens_k total_sequence_length"),
        "I": ("int64", "position_ids"),
        "T_KV_SCALE": ("float", "k_scale v_scale"),
    },
)
def group_query_attention(
    given: GroupQueryInputs, *, attributes: GroupQueryAttributes, ctx: Context
) -> tuple[Array, Array, Array, Array]:
    """Attention of N heads of queries to M of keys, with a cache: output [B,S,N*H], present_key, present_value, output_qk.

    query [B,S,N*H] with key and value [B,S,M*H], or [B,S,(N+2M)*H] with all three. past_key and past_value [B,M,C,H]; of
    sequence b seqlens_k[b] + 1 places are used, of which the last S are new; where total_sequence_length, the greatest of
    those, is S, no past is used. The presents have C rows, or as many as total_sequence_length if that is more: the places
    in order, then 0. With sliding_window_cache they have C rows of the last places, as the operator's page says.
    Queries and keys turn with do_rotary (RotaryEmbedding, cos_cache and sin_cache [places,dim/2]), by their place or
    position_ids int64 [B,S] (of a first prompt the first of them, from which on places count).
    A query sees keys up to its own place, all with causal = 0, with local_window_size the last so many. attention_bias
    [B or 1,N or 1,S,T]. head_sink [N], or 0 with smooth_softmax, counts in the sums of Softmax. q_norm_weight and
    k_norm_weight [H]: RMSNormalization before turning. output_qk [B,N,S,T]: scores before (1) or after (2) Softmax.

    As nodes of ai.onnx: MatMul, Mul by scale, softcap (Div, Tanh, Mul), Add, Softmax, MatMul, each rounded to the type.
    Rows of a sequence shorter than S that are no places of it are 0. Raises OperatorError for shapes, numbers and
    attributes that do not fit, and for caches of codes.
    """
    q, k, v = _heads(given, attributes)
    _check_modes(attributes)
    total, length = number(given.total_sequence_length), q.shape[2]
    _check_pasts(k, given, attributes.kept)
    room = 0 if given.past_key is None else given.past_key.shape[2]
    steps = places_of(given.seqlens_k, total, k.shape[0], k.shape[2], room, attributes.kept)
    q, k = _normalized(q, k, given, attributes.qk_norm_epsilon, ctx)
    if attributes.do_rotary:
        q, k = _turned(q, k, given, steps, total, bool(attributes.rotary_interleaved), ctx)
    if given.attention_bias is not None:
        allowed = [(b, n, length, total) for b in (q.shape[0], 1) for n in (q.shape[1], 1)]
        with_shape(given.attention_bias, "attention_bias", *allowed)
    if given.head_sink is not None:
        with_shape(given.head_sink, "head_sink", (attributes.num_heads,))
    shape = (*k.shape[:2], room if attributes.kept else max(room, total), k.shape[3])
    ctx.claim((2, *shape), k.itemsize, "present")
    presents = np.zeros(shape, k.dtype), np.zeros(shape, k.dtype)
    ctx.claim((*q.shape[:3], total + q.shape[3]), q.itemsize)
    y, scores = np.zeros(q.shape, q.dtype), np.zeros((*q.shape[:3], total), q.dtype)
    for place, step in enumerate(steps):
        own, rows = slice(place, place + 1), min(length, step.total)
        used = [_extended(past, new, own, step) for past, new in ((given.past_key, k), (given.past_value, v))]
        for present, all_rows in zip(presents, used, strict=True):
            keep(present[place], all_rows[0], step, attributes.kept)
        columns = used[0].shape[2]
        bias = _bias_of(given.attention_bias, place, rows, step, columns)
        found, told = _attended(q[own, :, :rows], used, bias, step, given.head_sink, attributes, ctx)
        y[own, :, :rows] = found
        scores[own, :, :rows, step.total - columns : step.total] = told
    return merged_heads(y, ctx), *presents, scores


def _attended(
    q: Array,
    used: Sequence[Array],
    bias: Array | None,
    step: Places,
    sink: Array | None,
    attributes: GroupQueryAttributes,
    ctx: Context,
) -> tuple[Array, Array]:
    """Of one sequence, whose keys and values are `used`: results, and the scores or shares that are asked for. Scores that are
    hidden are 0, as those of other places are."""
    if sink is None and attributes.smooth_softmax == 1:
        sink = np.zeros(attributes.num_heads, q.dtype)
    seen = seen_places(step, q.shape[2], used[0].shape[2], bool(attributes.causal), attributes.local_window_size)
    mask = None if seen.all() else hidden(seen, -np.inf, q.dtype, ctx)
    scale = default_scale(attributes.scale, q.shape[3])
    found = attend(q, used[0], used[1], [bias, mask], ctx, scale=scale, softcap=attributes.softcap, sink=sink)
    if attributes.qk_output == 2:
        return found.y, found.shares
    return found.y, np.where(seen, found.biased, np.zeros((), found.biased.dtype))


def _heads(given: GroupQueryInputs, attributes: GroupQueryAttributes) -> tuple[Array, Array, Array]:
    query, key, value = given.query, given.key, given.value
    heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
    positive("num_heads", heads)
    positive("kv_num_heads", kv_heads, heads)
    if query.ndim != 3:
        raise bad_shape("query", "[batch,length,width]", query)
    both_or_none(key=key, value=value)
    if key is None or value is None:
        parts = positive("num_heads + 2 * kv_num_heads", heads + 2 * kv_heads, query.shape[2])
        size = query.shape[2] // parts
        packed = split_heads(query, parts) if size else None
        if packed is None:
            raise bad_shape("query", f"[batch,length,{parts} heads]", query)
        return packed[:, :heads], packed[:, heads : heads + kv_heads], packed[:, heads + kv_heads :]
    size = query.shape[2] // positive("num_heads", heads, query.shape[2])
    for name, x in (("key", key), ("value", value)):
        with_shape(x, name, (*query.shape[:2], kv_heads * size))
    return split_heads(query, heads), split_heads(key, kv_heads), split_heads(value, kv_heads)


def _check_modes(attributes: GroupQueryAttributes) -> None:
    window, shift = attributes.local_window_size, attributes.sliding_window_cache
    one_of("causal", attributes.causal, (0, 1))
    one_of("qk_output", attributes.qk_output, (0, 1, 2))
    fits = window == -1 or (window > 0 and bool(attributes.causal))
    require("local_window_size", fits, "-1, or 1 and more with causal = 1", window)
    require("sliding_window_cache", not shift or window > 0, "0, or 1 with local_window_size", shift)
    for name, kind in (("k_quant_type", attributes.k_quant_type), ("v_quant_type", attributes.v_quant_type)):
        require(name, kind == _NO_QUANTIZATION, "NONE: caches of codes are not read", kind)


def _check_pasts(k: Array, given: GroupQueryInputs, window: int) -> None:
    past_key, past_value = given.past_key, given.past_value
    both_or_none(past_key=past_key, past_value=past_value)
    for name, past in (("past_key", past_key), ("past_value", past_value)):
        if past is not None and (past.ndim != 4 or past.shape[:2] != k.shape[:2] or past.shape[3] != k.shape[3]):
            raise bad_shape(name, f"[{k.shape[0]},{k.shape[1]},past,{k.shape[3]}]", past)
    if past_key is not None and past_value is not None:
        with_shape(past_value, "past_value", past_key.shape)
    if window and (past_key is None or past_key.shape[2] < window):
        got = "nothing" if past_key is None else past_key
        raise refuse("the cache is smaller than the window", "past_key", f"{window} rows or more", got, code="QR208")


def _normalized(q: Array, k: Array, given: GroupQueryInputs, epsilon: float, ctx: Context) -> tuple[Array, Array]:
    q_weight, k_weight = given.q_norm_weight, given.k_norm_weight
    both_or_none(q_norm_weight=q_weight, k_norm_weight=k_weight)
    if q_weight is None or k_weight is None:
        return q, k
    made = []
    for name, x, weight in (("q_norm_weight", q, q_weight), ("k_norm_weight", k, k_weight)):
        with_shape(weight, name, q.shape[3:])
        made.append(node("RMSNormalization", [x, weight], ctx, epsilon=epsilon))
    return made[0], made[1]


def _turned(
    q: Array,
    k: Array,
    given: GroupQueryInputs,
    steps: Sequence[Places],
    total: int,
    interleaved: bool,
    ctx: Context,
) -> tuple[Array, Array]:
    cos_cache, sin_cache, position_ids = given.cos_cache, given.sin_cache, given.position_ids
    if cos_cache is None or sin_cache is None:
        raise refuse("there are no angles", "do_rotary", "cos_cache and sin_cache", "nothing", code="QR205")
    length = q.shape[2]
    firsts = np.array([0 if total == length else step.first for step in steps], np.int64)
    if position_ids is not None:
        with_shape(position_ids, "position_ids", (q.shape[0], length))
        if total == length and position_ids.size:
            firsts = np.full(len(steps), int(position_ids.reshape(-1)[0]))
    places = firsts[:, None] + np.arange(length)
    places = places if position_ids is None or total == length else position_ids
    width = rotary_width(q.shape[3], 2 * cos_cache.shape[-1] if cos_cache.ndim else 0)
    cos, sin = angles(cos_cache, sin_cache, places, width, ctx)
    return rotated(q, cos, sin, width, interleaved, ctx), rotated(k, cos, sin, width, interleaved, ctx)


def _extended(past: Array | None, new: Array, own: slice, step: Places) -> Array:
    """[1,M,kept+new,H]: the filled rows of the cache of one sequence, and the new ones."""
    fresh = new[own, :, : step.new]
    return np.array(fresh) if past is None else np.concatenate([past[own, :, : step.kept], fresh], axis=2)


def _bias_of(bias: Array | None, number: int, rows: int, step: Places, columns: int) -> Array | None:
    if bias is None:
        return None
    own = number if bias.shape[0] > 1 else 0
    return bias[own : own + 1, :, :rows, step.total - columns : step.total]
