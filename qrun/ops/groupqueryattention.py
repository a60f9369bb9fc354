"""GroupQueryAttention of com.microsoft: decoders whose keys and values have fewer heads than the queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ops._attention import attend, check_bias, default_scale, hidden, merged_heads
from qrun.ops._body import node
from qrun.ops._context import Given
from qrun.ops._decoder import Places, angles, keep, number, places_of, rotary_width, rotated, seen_places
from qrun.ops._float import single
from qrun.ops._groupquery import GroupQueryAttributes, GroupQueryInputs, check_modes, check_pasts, codes_of, heads_of
from qrun.ops._op import Array, Context, Shape, both_or_none, contrib_op, refuse, with_shape
from qrun.ops._promises import Whole
from qrun.ops._signature import FLOATS
from qrun.ops.lowering.groupquery import GroupQuery, group_query_kernel
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, require_type
from qrun.shapes import broadcasts_to

_TOTAL, _SINK, _SCORES = 6, 11, 3
"""Numbers of the inputs total_sequence_length and head_sink, and of the output output_qk."""
_PLACES = (("query", 1), ("past_key", 2))


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
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
    """Attention of N heads of queries to M of keys, with a cache: output [B,S,N*H], both presents, and output_qk.

    query [B,S,N*H] with key and value [B,S,M*H], or [B,S,(N+2M)*H] with all three. past_key and past_value [B,M,C,H];
    of sequence b seqlens_k[b] + 1 places are used, of which the last S are new; where total_sequence_length, the
    greatest of those, is S, no past is used. The presents have C rows, or as many as total_sequence_length if that is
    more: the places in order, then 0. With sliding_window_cache they have C rows of the last places, as the operator's
    page says. Queries and keys turn with do_rotary (RotaryEmbedding, cos_cache and sin_cache [places,dim/2]), by their
    place or position_ids int64 [B,S] (of a first prompt the first of them, from which on places count).
    A query sees keys up to its own place, all with causal = 0, with local_window_size the last so many. attention_bias
    [B or 1,N or 1,S,T]. head_sink [N], or 0 with smooth_softmax, counts in the sums of Softmax. q_norm_weight and
    k_norm_weight [H]: RMSNormalization before turning. output_qk [B,N,S,T]: scores before (1) or after (2) Softmax.

    Caches of codes, with k_quant_type and v_quant_type: new keys, after they turn, and values become codes as
    QuantizeLinear makes them, and all of them are read as DequantizeLinear reads them: int8 or float8e4m3fn for
    kv_cache_bit_width 8; for 4 two codes of uint8 in a byte, the first in its low half, with zero point 8. k_scale and
    v_scale: one number (PER_TENSOR) or [1,M,1,H] (PER_CHANNEL).

    As nodes of ai.onnx: MatMul, Mul by scale, softcap (Div, Tanh, Mul), Add, Softmax, MatMul, each rounded to the type.
    Rows of a sequence shorter than S that are no places of it are 0. Raises OperatorError for shapes, numbers and
    attributes that do not fit.
    """
    q, k, v = heads_of(given, attributes)
    check_modes(attributes)
    total, length = number(given.total_sequence_length), q.shape[2]
    check_pasts(k, given, attributes)
    codes = codes_of(given, attributes, k, ctx)
    room = 0 if given.past_key is None else given.past_key.shape[2]
    steps = places_of(given.seqlens_k, total, k.shape[0], k.shape[2], room, attributes.kept)
    q, k = _normalized(q, k, given, attributes.qk_norm_epsilon, ctx)
    if attributes.do_rotary:
        q, k = _turned(q, k, given, steps, total, bool(attributes.rotary_interleaved), ctx)
    check_bias(given.attention_bias, (*q.shape[:3], total))
    sink = _sink_of(given, attributes, q.dtype)
    cached = [kind.stored(x, ctx) for kind, x in zip(codes, (k, v), strict=True)] if codes else [k, v]
    rows = room if attributes.kept else max(room, total)
    shape = (*k.shape[:2], rows, cached[0].shape[3])
    ctx.claim((2, *shape), cached[0].itemsize, "present")
    presents = np.zeros(shape, cached[0].dtype), np.zeros(shape, cached[0].dtype)
    ctx.claim((*q.shape[:3], total + q.shape[3]), q.itemsize)
    y, scores = np.zeros(q.shape, q.dtype), np.zeros((*q.shape[:3], total), q.dtype)
    for place, step in enumerate(steps):
        own, rows = slice(place, place + 1), min(length, step.total)
        pasts = (given.past_key, given.past_value)
        used = [_extended(past, new, own, step) for past, new in zip(pasts, cached, strict=True)]
        for present, all_rows in zip(presents, used, strict=True):
            keep(present[place], all_rows[0], step, attributes.kept)
        used = [kind.read(x, q.dtype, ctx) for kind, x in zip(codes, used, strict=True)] if codes else used
        columns = used[0].shape[2]
        bias = _bias_of(given.attention_bias, place, rows, step, columns)
        seen = seen_places(step, rows, columns, bool(attributes.causal), attributes.local_window_size)
        first = step.total - columns
        if not first:
            used, bias, seen = [_longer(x, total, 2) for x in used], _longer(bias, total, 3), _longer(seen, total, 1)
        found, told = _attended(q[own, :, :rows], used, bias, seen, sink, attributes, ctx)
        y[own, :, :rows] = found
        scores[own, :, :rows, first : first + seen.shape[1]] = told
    return merged_heads(y, ctx), *presents, scores


@group_query_attention.native
def _lower(site: LoweringContext) -> NativeKernel:
    given, attributes = site.given(GroupQueryInputs), GroupQueryAttributes.of(site.attributes)
    q, k, _ = heads_of(given, attributes)
    check_modes(attributes)
    check_pasts(k, given, attributes)
    if attributes.quantized:
        raise declined("its cache holds codes")
    require_type(q.dtype == np.float32, q.dtype, "attention of {}")
    site.require_constant(_TOTAL)
    total, (batch, heads, length, size) = number(given.total_sequence_length), q.shape
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
    """Declined for forms of the operator that have no native kernel."""
    site.require_constant(_SINK)
    names = ("position_ids", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight")
    for name in names:
        if getattr(given, name) is not None:
            raise declined(f"{name} is given")
    if attributes.kept:
        raise declined("its cache slides")
    if site.ctx.wants(_SCORES):
        raise declined("its scores are asked for")
    if given.seqlens_k.shape not in ((len(given.query),), (len(given.query), 1)):
        raise declined("seqlens_k has not one number for each sequence")


def _sink_of(given: GroupQueryInputs, attributes: GroupQueryAttributes, dtype: np.dtype[Any]) -> Array | None:
    """One more score for each head, checked; None for none."""
    sink = with_shape(given.head_sink, "head_sink", (attributes.num_heads,))
    return np.zeros(attributes.num_heads, dtype) if sink is None and attributes.smooth_softmax == 1 else sink


def _bias_shape(given: GroupQueryInputs, shape: Shape) -> Shape | None:
    """The shape of attention_bias, which fits scores of this one; else Declined."""
    if given.attention_bias is None:
        return None
    found = given.attention_bias.shape
    if len(found) != 4 or found[2:] != shape[2:] or not broadcasts_to(found, shape):
        raise declined("attention_bias does not fit")
    return tuple(found)


def _angles_of(given: GroupQueryInputs, size: int) -> Shape:
    """The shape of cos_cache and sin_cache, which fit heads of this size; else Declined."""
    cos, sin = given.cos_cache, given.sin_cache
    if cos is None or sin is None or cos.shape != sin.shape or cos.ndim != 2 or not 0 < 2 * cos.shape[1] <= size:
        raise declined("its angles do not fit")
    return tuple(cos.shape)


def _attended(
    q: Array,
    used: Sequence[Array],
    bias: Array | None,
    seen: Array,
    sink: Array | None,
    attributes: GroupQueryAttributes,
    ctx: Context,
) -> tuple[Array, Array]:
    """The results of one sequence with the keys and values `used`, and its scores or shares, as qk_output asks. Hidden
    scores are 0."""
    mask = None if seen.all() else hidden(seen, -np.inf, q.dtype, ctx)
    scale = default_scale(attributes.scale, q.shape[3])
    found = attend(q, used[0], used[1], [bias, mask], ctx, scale=scale, softcap=attributes.softcap, sink=sink)
    if attributes.qk_output == 2:
        return found.y, found.shares
    return found.y, np.where(seen, found.biased, np.zeros((), found.biased.dtype))


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
    with_shape(position_ids, "position_ids", (q.shape[0], length))
    if position_ids is not None and total == length and position_ids.size:
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


def _longer(x: Given, count: int, axis: int) -> Given:
    """x with zeros behind it along the axis, up to `count`: scores of all sequences then have one length, and their
    sums are made in one order."""
    if x is None or x.shape[axis] == count:
        return x
    behind = [(0, count - n if place == axis else 0) for place, n in enumerate(x.shape)]
    return np.pad(x, behind)


def _bias_of(bias: Array | None, number: int, rows: int, step: Places, columns: int) -> Array | None:
    if bias is None:
        return None
    own = number if bias.shape[0] > 1 else 0
    return bias[own : own + 1, :, :rows, step.total - columns : step.total]
