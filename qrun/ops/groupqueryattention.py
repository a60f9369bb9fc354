"""Decoders: GroupQueryAttention of com.microsoft, whose keys and values have fewer heads than the queries;
LinearAttention of com.microsoft; RotaryEmbedding of ai.onnx and of com.microsoft."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ops._attention import (
    Places,
    additive_mask,
    angles,
    attend,
    check_bias,
    default_scale,
    keep,
    merge_heads,
    places_of,
    positive,
    rotary_width,
    rotate,
    seen_places,
    split_heads,
    total_length,
)
from qrun.ops._body import node
from qrun.ops._context import Given
from qrun.ops._float import narrow, single, widen
from qrun.ops._groupquery import GroupQueryAttributes, GroupQueryInputs, check_modes, check_pasts, codes_of, heads_of
from qrun.ops._op import (
    Array,
    Context,
    Shape,
    bad_shape,
    both_or_none,
    contrib_op,
    one_of,
    op,
    refuse,
    require,
    with_shape,
)
from qrun.ops._signature import FLOATS, Whole
from qrun.ops.lowering.groupquery import GroupQuery, group_query_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, require_type
from qrun.shapes import broadcasts_to

_TOTAL, _SINK, _SCORES = 6, 11, 3
"""Numbers of the inputs total_sequence_length and head_sink, and of the output output_qk."""
_PLACES = (("query", 1), ("past_key", 2))


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of GroupQueryAttention."""
    y = outputs[0]
    length = outputs[1][2] if len(outputs) > 1 and len(outputs[1]) == 4 else y[1]
    return 2 * y[0] * y[1] * y[2] * length


@contrib_op(
    "GroupQueryAttention",
    cost=_macs,
    types={
        "T": (
            FLOATS,
            "query key value cos_cache sin_cache attention_bias head_sink q_norm_weight k_norm_weight",
        ),
        "T_CACHE": (f"{FLOATS} uint8 int8 float8e4m3fn", "past_key past_value"),
        "M": ("int32", "seqlens_k total_sequence_length"),
        "I": ("int64", "position_ids"),
        "T_KV_SCALE": ("float", "k_scale v_scale"),
    },
    wholes={"seqlens_k": Whole(_PLACES, less=1), "total_sequence_length": Whole(_PLACES)},
)
def group_query_attention(
    given: GroupQueryInputs, *, attributes: GroupQueryAttributes, ctx: Context
) -> tuple[Array, Array, Array, Array]:
    """Attention of N query heads to M key heads, with a cache: output [B,S,N*H], both presents, and output_qk.

    query is [B,S,N*H] with key and value [B,S,M*H], or [B,S,(N+2M)*H] with all three. past_key and past_value are
    [B,M,C,H]. Sequence b uses seqlens_k[b] + 1 positions; the last S are new. If total_sequence_length, the largest of
    these, is S, no past is used. The presents have C rows, or total_sequence_length if that is more: the positions in
    order, then 0. With sliding_window_cache they have C rows for the last positions, as the operator's page says.
    do_rotary rotates queries and keys (RotaryEmbedding, cos_cache and sin_cache [positions,dim/2]) by their position or
    by position_ids int64 [B,S] (for a first prompt, its first element is where positions start).
    A query sees keys up to its own position: all with causal = 0, only the last local_window_size if given.
    attention_bias is [B or 1,N or 1,S,T]. head_sink [N], or 0 with smooth_softmax, enters the sums of Softmax.
    q_norm_weight and k_norm_weight [H] apply RMSNormalization before the rotation. output_qk [B,N,S,T] holds the scores
    before (1) or after (2) Softmax.

    k_quant_type and v_quant_type make the caches quantized: QuantizeLinear converts new values and (rotated) keys, and
    DequantizeLinear reads the caches. kv_cache_bit_width 8 means int8 or float8e4m3fn; 4 means two codes per uint8
    byte, the first in the low half, with zero point 8. k_scale and v_scale are one number (PER_TENSOR) or [1,M,1,H]
    (PER_CHANNEL).

    The steps are nodes of ai.onnx, each rounded to the type: MatMul, Mul by scale, softcap (Div, Tanh, Mul), Add,
    Softmax, MatMul. Rows past the end of a sequence shorter than S are 0. Raises OperatorError for shapes, numbers and
    attributes that do not fit.
    """
    q, k, v = heads_of(given, attributes)
    check_modes(attributes)
    total, length = total_length(given.total_sequence_length), q.shape[2]
    check_pasts(k, given, attributes)
    codes = codes_of(given, attributes, k, ctx)
    room = 0 if given.past_key is None else given.past_key.shape[2]
    steps = places_of(given.seqlens_k, total, k.shape[0], k.shape[2], room, attributes.kept)
    q, k = _normalize(q, k, given, attributes.qk_norm_epsilon, ctx)
    if attributes.do_rotary:
        q, k = _rotate(q, k, given, steps, total, bool(attributes.rotary_interleaved), ctx)
    check_bias(given.attention_bias, (*q.shape[:3], total))
    sink = _sink_of(given, attributes, q.dtype)
    cached = [kind.encode(x, ctx) for kind, x in zip(codes, (k, v), strict=True)] if codes else [k, v]
    rows = room if attributes.kept else max(room, total)
    shape = (*k.shape[:2], rows, cached[0].shape[3])
    ctx.claim((2, *shape), cached[0].itemsize, "present")
    presents = np.zeros(shape, cached[0].dtype), np.zeros(shape, cached[0].dtype)
    ctx.claim((*q.shape[:3], total + q.shape[3]), q.itemsize)
    y, scores = np.zeros(q.shape, q.dtype), np.zeros((*q.shape[:3], total), q.dtype)
    for index, step in enumerate(steps):
        own, rows = slice(index, index + 1), min(length, step.total)
        pasts = (given.past_key, given.past_value)
        used = [_extend_cache(past, new, own, step) for past, new in zip(pasts, cached, strict=True)]
        for present, all_rows in zip(presents, used, strict=True):
            keep(present[index], all_rows[0], step, attributes.kept)
        used = [kind.read(x, q.dtype, ctx) for kind, x in zip(codes, used, strict=True)] if codes else used
        columns = used[0].shape[2]
        bias = _bias_of(given.attention_bias, index, rows, step, columns)
        seen = seen_places(step, rows, columns, bool(attributes.causal), attributes.local_window_size)
        first = step.total - columns
        if not first:
            used, bias, seen = (
                [_pad_to_length(x, total, 2) for x in used],
                _pad_to_length(bias, total, 3),
                _pad_to_length(seen, total, 1),
            )
        found, told = _attend(q[own, :, :rows], used, bias, seen, sink, attributes, ctx)
        y[own, :, :rows] = found
        scores[own, :, :rows, first : first + seen.shape[1]] = told
    return merge_heads(y, ctx), *presents, scores


@group_query_attention.native
def _lower(site: LoweringContext) -> NativeKernel:
    given, attributes = site.input_record(GroupQueryInputs), GroupQueryAttributes.of(site.attributes)
    q, k, _ = heads_of(given, attributes)
    check_modes(attributes)
    check_pasts(k, given, attributes)
    if attributes.quantized:
        raise decline_error("its cache holds codes")
    require_type(q.dtype == np.float32, q.dtype, "attention of {}")
    site.require_constant(_TOTAL)
    total, (batch, heads, length, size) = total_length(given.total_sequence_length), q.shape
    _decline_others(site, given, attributes, total)
    form = GroupQuery(
        batch=batch,
        groups=k.shape[1],
        each=heads // k.shape[1],
        places=length,
        size=size,
        total=total,
        past=None if given.past_key is None else given.past_key.shape,
        packed=given.key is None,
        scale=default_scale(attributes.scale, size),
        causal=bool(attributes.causal),
        window=attributes.local_window_size if 0 < attributes.local_window_size < total else 0,
        bias=_bias_shape(given, (batch, heads, length, total)),
        angles=_angles_of(given, size) if attributes.do_rotary else None,
        pairs=bool(attributes.rotary_interleaved),
        cap=single(attributes.softcap),
        sink=_sink_of(given, attributes, q.dtype),
    )
    return group_query_kernel(site, form)


def _decline_others(
    site: LoweringContext, given: GroupQueryInputs, attributes: GroupQueryAttributes, total: int
) -> None:
    """Raises Declined for forms of the operator that have no native kernel."""
    site.require_constant(_SINK)
    names = ("position_ids", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight")
    for name in names:
        if getattr(given, name) is not None:
            raise decline_error(f"{name} is given")
    if attributes.kept:
        raise decline_error("its cache slides")
    if site.ctx.wants(_SCORES):
        raise decline_error("its scores are asked for")
    if given.seqlens_k.shape not in ((len(given.query),), (len(given.query), 1)):
        raise decline_error("seqlens_k has not one number for each sequence")


def _sink_of(given: GroupQueryInputs, attributes: GroupQueryAttributes, dtype: np.dtype[Any]) -> Array | None:
    """One extra score per head, checked; None if there is none."""
    sink = with_shape(given.head_sink, "head_sink", (attributes.num_heads,))
    return np.zeros(attributes.num_heads, dtype) if sink is None and attributes.smooth_softmax == 1 else sink


def _bias_shape(given: GroupQueryInputs, shape: Shape) -> Shape | None:
    """The shape of attention_bias, if it fits scores of shape `shape`; else raises Declined."""
    if given.attention_bias is None:
        return None
    found = given.attention_bias.shape
    if len(found) != 4 or found[2:] != shape[2:] or not broadcasts_to(found, shape):
        raise decline_error("attention_bias does not fit")
    return tuple(found)


def _angles_of(given: GroupQueryInputs, size: int) -> Shape:
    """The shape of cos_cache and sin_cache, if they fit heads of this size; else raises Declined."""
    cos, sin = given.cos_cache, given.sin_cache
    if cos is None or sin is None or cos.shape != sin.shape or cos.ndim != 2 or not 0 < 2 * cos.shape[1] <= size:
        raise decline_error("its angles do not fit")
    return tuple(cos.shape)


def _attend(
    q: Array,
    used: Sequence[Array],
    bias: Array | None,
    seen: Array,
    sink: Array | None,
    attributes: GroupQueryAttributes,
    ctx: Context,
) -> tuple[Array, Array]:
    """The results of one sequence with the keys and values `used`, and its scores or shares, whichever qk_output
    requests. Hidden scores are 0."""
    mask = None if seen.all() else additive_mask(seen, -np.inf, q.dtype, ctx)
    scale = default_scale(attributes.scale, q.shape[3])
    found = attend(q, used[0], used[1], [bias, mask], ctx, scale=scale, softcap=attributes.softcap, sink=sink)
    if attributes.qk_output == 2:
        return found.y, found.shares
    return found.y, np.where(seen, found.biased, np.zeros((), found.biased.dtype))


def _normalize(q: Array, k: Array, given: GroupQueryInputs, epsilon: float, ctx: Context) -> tuple[Array, Array]:
    """Queries and keys with their RMS normalization, if the node has its weights."""
    q_weight, k_weight = given.q_norm_weight, given.k_norm_weight
    both_or_none(q_norm_weight=q_weight, k_norm_weight=k_weight)
    if q_weight is None or k_weight is None:
        return q, k
    made = []
    for name, x, weight in (("q_norm_weight", q, q_weight), ("k_norm_weight", k, k_weight)):
        with_shape(weight, name, q.shape[3:])
        made.append(node("RMSNormalization", [x, weight], ctx, epsilon=epsilon))
    return made[0], made[1]


def _rotate(
    q: Array,
    k: Array,
    given: GroupQueryInputs,
    steps: Sequence[Places],
    total: int,
    interleaved: bool,
    ctx: Context,
) -> tuple[Array, Array]:
    """Queries and keys with rotary embedding. Raises OperatorError if there are no angles."""
    cos_cache, sin_cache, position_ids = given.cos_cache, given.sin_cache, given.position_ids
    if cos_cache is None or sin_cache is None:
        raise refuse("no angles", "do_rotary", "cos_cache and sin_cache", "nothing", code="QR205")
    length = q.shape[2]
    firsts = np.array([0 if total == length else step.first for step in steps], np.int64)
    with_shape(position_ids, "position_ids", (q.shape[0], length))
    if position_ids is not None and total == length and position_ids.size:
        firsts = np.full(len(steps), int(position_ids.reshape(-1)[0]))
    places = firsts[:, None] + np.arange(length)
    places = places if position_ids is None or total == length else position_ids
    width = rotary_width(q.shape[3], 2 * cos_cache.shape[-1] if cos_cache.ndim else 0)
    cos, sin = angles(cos_cache, sin_cache, places, width, ctx)
    return rotate(q, cos, sin, width, interleaved, ctx), rotate(k, cos, sin, width, interleaved, ctx)


def _extend_cache(past: Array | None, new: Array, own: slice, step: Places) -> Array:
    """[1,M,kept+new,H]: the filled rows of the cache of one sequence, then the new ones."""
    fresh = new[own, :, : step.new]
    return np.array(fresh) if past is None else np.concatenate([past[own, :, : step.kept], fresh], axis=2)


def _pad_to_length(x: Given, count: int, axis: int) -> Given:
    """x with zeros appended along the axis, up to `count`: scores of all sequences then have one length, and their sums
    one order."""
    if x is None or x.shape[axis] == count:
        return x
    behind = [(0, count - n if index == axis else 0) for index, n in enumerate(x.shape)]
    return np.pad(x, behind)


def _bias_of(bias: Array | None, number: int, rows: int, step: Places, columns: int) -> Array | None:
    """The attention bias of one sample, cut to its columns."""
    if bias is None:
        return None
    own = number if bias.shape[0] > 1 else 0
    return bias[own : own + 1, :, :rows, step.total - columns : step.total]


@op("RotaryEmbedding", since=23)
def rotary_embedding(
    X: Array,
    cos_cache: Array,
    sin_cache: Array,
    position_ids: Array | None = None,
    *,
    interleaved: int = 0,
    num_heads: int | None = None,
    rotary_embedding_dim: int = 0,
    ctx: Context,
) -> Array:
    """Rotate pairs of elements in each head by the angles of their position: (cos*a - sin*b, sin*a + cos*b).

    X [B,N,S,H], or [B,S,N*H] with num_heads. The first rotary_embedding_dim elements of a head turn, all if that is 0:
    element i of the first half with element i of the second, or interleaved neighbours. cos_cache and sin_cache
    [positions,dim/2] with position_ids int64 [B,S], or [B,S,dim/2] without. All floating point of one type.
    As the nodes Mul, Mul, Sub and Mul, Mul, Add, each rounded.
    Raises OperatorError for shapes and positions that do not fit.
    """
    if X.ndim == 3 and num_heads is None:
        raise refuse("num_heads is left out", "num_heads", "num_heads, as X has three axes", "nothing", code="QR204")
    x = _by_head(X, "X", num_heads or 0)
    width = rotary_width(x.shape[3], rotary_embedding_dim)
    length = (*x.shape[:1], x.shape[2])
    if position_ids is not None:
        positions = with_shape(position_ids, "position_ids", length)
        cos, sin = angles(cos_cache, sin_cache, positions, width, ctx)
    else:
        cos, sin = (
            with_shape(c, name, (*length, width // 2))[:, None]
            for name, c in (("cos_cache", cos_cache), ("sin_cache", sin_cache))
        )
    return _as(rotate(x, cos, sin, width, bool(interleaved), ctx), X)


@contrib_op("RotaryEmbedding", types={"T": (FLOATS, "input cos_cache sin_cache"), "M": ("int64", "position_ids")})
def rotary_embedding_1(
    input: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
    ctx: Context,
) -> Array:
    """RotaryEmbedding of ai.onnx, with position_ids [B,S],
    or [1] for the position of the first element of all sequences.

    input [B,N,S,H] or [B,S,N*H]; without num_heads the width of a head of three axes is twice that of the caches.
    cos_cache and sin_cache [positions,H/2], or [positions,rotary_embedding_dim/2]. is_packed_batching and scale change
    nothing, as in onnxruntime, whose page does not say what they do. Raises OperatorError for shapes and positions that
    do not fit.
    """
    heads = num_heads
    if input.ndim == 3 and not heads:
        size = 2 * cos_cache.shape[-1] if cos_cache.ndim else 0
        if rotary_embedding_dim or not size or input.shape[2] % size:
            raise refuse(
                "num_heads is left out", "num_heads", "num_heads, as heads turn in part", "nothing", code="QR204"
            )
        heads = input.shape[2] // size
    x = _by_head(input, "input", heads)
    width = rotary_width(x.shape[3], rotary_embedding_dim)
    length = (x.shape[0], x.shape[2])
    positions = with_shape(position_ids, "position_ids", length, (1,))
    if positions.ndim == 1:
        positions = np.broadcast_to(position_ids + np.arange(length[1]), length)
    cos, sin = angles(cos_cache, sin_cache, positions, width, ctx)
    return _as(rotate(x, cos, sin, width, bool(interleaved), ctx), input)


def _by_head(x: Array, name: str, heads: int) -> Array:
    """x as [B,heads,length,size]. Raises OperatorError."""
    if x.ndim == 4:
        return x
    if x.ndim != 3:
        raise bad_shape(name, "rank 3 or 4", x)
    return split_heads(x, positive("num_heads", heads, x.shape[2]))


def _as(made: Array, x: Array) -> Array:
    """[B,N,S,H] in the shape of the input."""
    return made if x.ndim == 4 else made.transpose(0, 2, 1, 3).reshape(x.shape)


_FLOATS = "float float16 bfloat16"
_RULES = ("linear", "gated", "delta", "gated_delta")


@contrib_op("LinearAttention", types={"T": (_FLOATS, "query key value decay beta"), "S": (_FLOATS, "past_state")})
def linear_attention(
    query: Array,
    key: Array,
    value: Array,
    past_state: Array | None = None,
    decay: Array | None = None,
    beta: Array | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    state_window: int = 0,
    update_rule: str = "gated_delta",
    ctx: Context,
) -> tuple[Array, Array]:
    """Queries read a state that each token updates: output [B,T,H*dv] and present_state [B,Hk,dk,dv].

    query [B,T,Hq*dk], key [B,T,Hk*dk], value [B,T,Hk*dv], past_state as present_state, zeros if left out. H is the
    larger of Hq and Hk, which the smaller one divides: neighbouring heads share.
    For each token, with the lines that update_rule names:

        S = exp(decay) * S                      gated: decay [B,T,Hk] or [B,T,Hk*dk], one for each row of S
        v = beta * (value - S' key)             delta: beta [B,T,Hk] or [B,T,1]; else v = value
        S = S + key v'
        output = scale * S' query               scale 0 stands for 1 / sqrt(dk)

    In float64 for all tokens; output is then rounded once to its type, present_state to past_state's (query's, if left
    out). chunk_size changes nothing. Limits: state_window 0.
    Raises OperatorError for shapes and attributes that do not fit.
    """
    one_of("update_rule", update_rule, _RULES)
    one_of("state_window", state_window, (0,))
    tokens, state_shape = _check_tokens(query, key, value, q_num_heads, kv_num_heads)
    (batch, _, depth, width), heads = state_shape, max(q_num_heads, kv_num_heads)
    with_shape(past_state, "past_state", state_shape)
    gated, delta = update_rule.startswith("gated"), update_rule.endswith("delta")
    each = batch, tokens, kv_num_heads
    _check_rule("decay", decay, update_rule if gated else "", each, (batch, tokens, kv_num_heads * depth))
    _check_rule("beta", beta, update_rule if delta else "", each, (batch, tokens, 1))
    ctx.claim((batch, tokens, heads, 2 * width + 2 * depth), 8)
    ctx.claim((batch, heads, depth, width), 24)
    state = np.zeros(state_shape) if past_state is None else widen(past_state).copy()
    q, k, v = _linear_heads(query, q_num_heads), _linear_heads(key, kv_num_heads), _linear_heads(value, kv_num_heads)
    with np.errstate(all="ignore"):
        fades = np.exp(_linear_heads(decay, kv_num_heads)) if gated and decay is not None else None
        made = _attend_linear(q, k, v, state, fades, widen(beta) if delta and beta is not None else None)
        made *= single(scale) or 1 / math.sqrt(depth)
    present = narrow(state, (query if past_state is None else past_state).dtype)
    return narrow(made.reshape(batch, tokens, heads * width), query.dtype), present


def _check_rule(name: str, given: Array | None, rule: str, *shapes: tuple[int, ...]) -> None:
    """Refuse an input that is missing or has none of these shapes, if a rule takes it. rule: "" if the rule does
    not."""
    if rule and given is None:
        raise refuse(f"{name} is missing", name, f"{name}, for update_rule {rule}", "nothing", code="QR205")
    with_shape(given if rule else None, name, *shapes)


def _attend_linear(q: Array, k: Array, v: Array, state: Array, fades: Array | None, rates: Array | None) -> Array:
    """The output of each token [B,T,H,dv] from the state [B,Hk,dk,dv], updated in place; all float64, heads apart.
    fades: factors of the state's rows, [B,T,Hk,dk] or [B,T,Hk,1]; rates: beta."""
    heads, stored = max(q.shape[2], k.shape[2]), k.shape[2]
    made = np.empty((*v.shape[:2], heads, v.shape[3]))
    for t in range(v.shape[1]):
        if fades is not None:
            state *= fades[:, t, :, :, None]
        new = v[:, t]
        if rates is not None:
            new = rates[:, t, :, None] * (new - np.matmul(k[:, t, :, None], state)[:, :, 0])
        state += k[:, t, :, :, None] * new[:, :, None]
        seen = np.repeat(state, heads // stored, axis=1)
        asked = np.repeat(q[:, t], heads // q.shape[2], axis=1)
        made[:, t] = np.matmul(asked[:, :, None], seen)[:, :, 0]
    return made


def _linear_heads(x: Array, count: int) -> Array:
    """[B,T,count*d] in float64, as [B,T,count,d]."""
    return widen(x).reshape(*x.shape[:2], count, x.shape[2] // count)


def _check_tokens(query: Array, key: Array, value: Array, q_heads: int, kv_heads: int) -> tuple[int, Shape]:
    """The number of tokens, and the shape of the state; refuses what does not fit."""
    most, least = max(q_heads, kv_heads), min(q_heads, kv_heads)
    require("q_num_heads", least > 0 and most % least == 0, f"a divisor or multiple of {kv_heads}", q_heads)
    if query.ndim != 3 or query.shape[2] % q_heads or not query.shape[2]:
        raise bad_shape("query", f"[B,T,{q_heads}*dk]", query)
    batch, tokens, size = query.shape
    with_shape(key, "key", (batch, tokens, size // q_heads * kv_heads))
    if value.shape[:-1] != (batch, tokens) or value.shape[2] % kv_heads:
        raise bad_shape("value", f"[{batch},{tokens},{kv_heads}*dv]", value)
    return tokens, (batch, kv_heads, size // q_heads, value.shape[2] // kv_heads)
