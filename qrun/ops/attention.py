"""The operator Attention of ai.onnx."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._attention import (
    additive_mask,
    append_to_cache,
    attend,
    causal_mask,
    check_past,
    merge_heads,
    positive,
    split_heads,
)
from qrun.ops._body import node
from qrun.ops._float import single
from qrun.ops._op import Array, Context, Shape, bad_shape, both_or_none, misfit, one_of, op, refuse, require, with_shape
from qrun.ops._signature import MASK, Attributes, InputRecord, Whole
from qrun.shapes import broadcasts_to

_SOFTMAX_TYPES = (1, 10, 11, 16)
_PADDED = 24
"""Since this version a mask may be shorter than the keys."""


def _macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """The multiply-adds of Attention."""
    q, k, v = inputs[:3]
    past = inputs[4][2] if len(inputs) > 4 and len(inputs[4]) == 4 else 0
    if len(q) == 3:
        kv = attributes.get("kv_num_heads") or 1
        keys, width = k[1] + past, q[2] + v[2] // kv * (attributes.get("q_num_heads") or 1)
        return q[0] * q[1] * keys * width
    return q[0] * q[1] * q[2] * (k[2] + past) * (q[3] + v[3])


@frozen
class AttentionInputs(InputRecord):
    Q: Array
    K: Array
    V: Array
    attn_mask: Array | None = None
    past_key: Array | None = None
    past_value: Array | None = None
    nonpad_kv_seqlen: Array | None = None


@frozen
class AttentionAttributes(Attributes):
    is_causal: int = 0
    kv_num_heads: int | None = None
    left_window_size: int = -1
    q_num_heads: int | None = None
    qk_matmul_output_mode: int = 0
    right_window_size: int = -1
    scale: float | None = None
    softcap: float = 0.0
    softmax_precision: int | None = None


@op("Attention", since=23, cost=_macs, wholes={"attn_mask": MASK, "nonpad_kv_seqlen": Whole((("K", -2),))})
def attention(
    given: AttentionInputs, *, attributes: AttentionAttributes, ctx: Context
) -> tuple[Array, Array, Array, Array]:
    """Compute Softmax(scale * Q @ K' + mask) @ V for each head.

    Outputs: Y, present_key, present_value and qk_matmul_output. Everything is floating point; the outputs have Q's
    type, except that present_value has V's.

    Q [B,N,S,H], K [B,M,L,H] and V [B,M,L,Hv], where M divides N; or [B,S,N*H], [B,L,M*H] and [B,L,M*Hv] with
    q_num_heads and kv_num_heads. past_key [B,M,P,H] and past_value are prepended to K and V. attn_mask broadcasts to
    [B,N,S,P+L]. It is bool, True for visible keys, or a number that is added to the score. Since version 24 its last
    axis may be shorter; keys beyond its end are hidden. nonpad_kv_seqlen int64 [B] is the number of visible keys.

    The steps are the nodes of the operator's function body, each rounded to the type: Q and K times sqrt(scale) (a
    float32 number rounded to the type), MatMul, softcap, Add, Softmax (in softmax_precision), MatMul. A row without
    visible keys is 0.
    Raises OperatorError for shapes and attributes that do not fit.
    Source: ONNX operators, Attention-23, Attention-24 and Attention-25.
    """
    q, k, v = _by_head(given, attributes, ctx)
    _check_cache(k, v, given)
    _check_modes(attributes)
    past = 0 if given.past_key is None else given.past_key.shape[2]
    made = sum(math.prod((*x.shape[:2], past + x.shape[2], x.shape[3])) for x in (k, v))
    scores_size = math.prod(q.shape[:3]) * (past + k.shape[2] + v.shape[3])
    ctx.claim((made + scores_size,), q.itemsize, "present_key, present_value and scores")
    keys, values = append_to_cache(given.past_key, k, ctx), append_to_cache(given.past_value, v, ctx)
    shape, lengths = (*q.shape[:3], keys.shape[2]), given.nonpad_kv_seqlen
    bias = None if given.attn_mask is None else _bias(given.attn_mask, shape, q.dtype, ctx)
    window = attributes.left_window_size, attributes.right_window_size
    seen = _visible_keys(
        shape, past if lengths is None else lengths - q.shape[2], bool(attributes.is_causal), window, lengths
    )
    if seen is not None:
        mask = additive_mask(seen, -np.inf, q.dtype, ctx)
        bias = mask if bias is None else node("Add", [bias, mask], ctx)
    factor = _root(attributes.scale, q.shape[3], q.dtype)
    found = attend(
        node("Mul", [q, factor], ctx),
        node("Mul", [keys, factor], ctx),
        values,
        [bias],
        ctx,
        softcap=attributes.softcap,
        softmax_type=attributes.softmax_precision,
        empty_rows=None if bias is None or not keys.shape[2] else bias.max(axis=-1, keepdims=True) == -np.inf,
    )
    y = merge_heads(found.y, ctx) if given.Q.ndim == 3 else found.y
    scores = (found.products, found.capped, found.biased, found.shares)[attributes.qk_matmul_output_mode]
    return y, keys, values, scores


def _check_modes(attributes: AttentionAttributes) -> None:
    """Raise OperatorError for attributes outside their range."""
    for name in ("left_window_size", "right_window_size"):
        value = getattr(attributes, name)
        require(name, value >= -1, "-1 (no end), 0 or more", value)
    one_of("qk_matmul_output_mode", attributes.qk_matmul_output_mode, range(4))
    kind = attributes.softmax_precision
    known = kind is None or kind in _SOFTMAX_TYPES
    require("softmax_precision", known, "1 float32, 10 float16, 11 float64, 16 bfloat16", kind)


def _by_head(given: AttentionInputs, attributes: AttentionAttributes, ctx: Context) -> tuple[Array, Array, Array]:
    """Q, K and V as [B,heads,length,size], checked."""
    q, k, v = given.Q, given.K, given.V
    q_heads, kv_heads = attributes.q_num_heads, attributes.kv_num_heads
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise bad_shape("Q", "rank 3 or 4, as K and V", q)
    if q.ndim == 3:
        for name, value in (("q_num_heads", q_heads), ("kv_num_heads", kv_heads)):
            if value is None:
                raise refuse(f"{name} is left out", name, f"{name}, as Q has three axes", "nothing", code="QR204")
        assert q_heads is not None
        assert kv_heads is not None
        for name, x, count in (
            ("q_num_heads", q, q_heads),
            ("kv_num_heads", k, kv_heads),
            ("kv_num_heads", v, kv_heads),
        ):
            positive(name, count, x.shape[2])
        q, k, v = split_heads(q, q_heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise bad_shape("K", f"as Q [B,heads,length,size] {shape_text(q.shape)}, but for heads and length", k)
    if v.shape[:3] != k.shape[:3]:
        raise bad_shape("V", f"as K [B,heads,length,size] {shape_text(k.shape)}, but for size", v)
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        got = f"{q.shape[1]} and {k.shape[1]}"
        raise misfit("the number of heads of K does not divide Q's", "K", "a number of heads that divides Q's", got)
    return q, k, v


def _check_cache(k: Array, v: Array, given: AttentionInputs) -> None:
    """Raise OperatorError for a cache that does not fit keys and values."""
    past_key, past_value, lengths = given.past_key, given.past_value, given.nonpad_kv_seqlen
    both_or_none(past_key=past_key, past_value=past_value)
    for name, past, new in (("past_key", past_key, k), ("past_value", past_value, v)):
        check_past(past, new.shape, name)
    if lengths is None:
        return
    with_shape(lengths, "nonpad_kv_seqlen", k.shape[:1])
    if past_key is not None:
        raise refuse(
            "there are both past_key and nonpad_kv_seqlen", "nonpad_kv_seqlen", "one of them", "both", code="QR205"
        )
    if lengths.size and (lengths.min() < 0 or lengths.max() > k.shape[2]):
        bad = int(lengths[(lengths < 0) | (lengths > k.shape[2])][0])
        raise refuse(f"nonpad_kv_seqlen has {bad}", "nonpad_kv_seqlen", f"0 to {k.shape[2]}, the keys", str(bad))


def _bias(mask: Array, shape: Shape, dtype: Any, ctx: Context) -> Array:
    """The mask as numbers of type `dtype` that broadcast to `shape`."""
    if mask.ndim and mask.shape[-1] < shape[-1] and (ctx.version >= _PADDED or mask.shape[-1] != 1):
        gap = shape[-1] - mask.shape[-1]
        ctx.claim((*mask.shape[:-1], shape[-1]), mask.itemsize, "mask")
        away = False if mask.dtype == np.bool_ else -np.inf
        wide = mask if mask.dtype.kind not in "iu" else mask.astype(np.float64)
        rest = np.full((*mask.shape[:-1], gap), away, wide.dtype)
        mask = np.concatenate([wide, rest], axis=-1)
    if not broadcasts_to(mask.shape, shape):
        raise bad_shape("attn_mask", f"a shape that broadcasts to {shape_text(shape)}", mask)
    ctx.claim(mask.shape, 8, "mask")
    mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
    if mask.dtype == np.bool_:
        return additive_mask(mask, -np.inf, dtype, ctx)
    with np.errstate(all="ignore"):
        return mask.astype(dtype)


def _visible_keys(
    shape: Shape, offset: Any, is_causal: bool, window: tuple[int, int], lengths: Array | None
) -> Array | None:
    """The keys that each row may see by its position, bool [S,T] or [B,1,S,T]; None for all."""
    rows, columns = shape[2:]
    found: list[Array] = []
    left, right = window
    if is_causal:
        found.append(causal_mask(rows, columns, offset))
    if right >= 0:
        found.append(causal_mask(rows, columns, offset + right))
    if left >= 0:
        found.append(~causal_mask(rows, columns, offset - left - 1))
    if lengths is not None:
        found.append(np.arange(columns) < lengths.reshape(-1, 1, 1, 1))
    return np.logical_and.reduce(np.broadcast_arrays(*found)) if found else None


def _root(scale: float | None, head_size: int, dtype: Any) -> Array:
    """sqrt(scale), computed in float32, as an array of the type."""
    one = np.float32(1)
    with np.errstate(all="ignore"):
        given = one / np.sqrt(np.float32(head_size)) if scale is None else np.float32(single(scale))
        return np.asarray(np.sqrt(given)).astype(dtype)
