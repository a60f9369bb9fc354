"""What GroupQueryAttention is given, and the checks that both of its kernels make."""

from __future__ import annotations

from qrun.declare.frozen import frozen
from qrun.ops._attention import check_past, positive, split_heads
from qrun.ops._op import Array, bad_shape, both_or_none, misfit, one_of, require, with_shape
from qrun.ops._signature import Attributes, InputRecord

_NO_QUANTIZATION = "NONE"


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


def heads_of(given: GroupQueryInputs, attributes: GroupQueryAttributes) -> tuple[Array, Array, Array]:
    """Queries, keys and values as [batch,heads,length,size], checked."""
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


def check_modes(attributes: GroupQueryAttributes) -> None:
    """Refuse attributes that no inputs fit."""
    window, shift = attributes.local_window_size, attributes.sliding_window_cache
    one_of("causal", attributes.causal, (0, 1))
    one_of("qk_output", attributes.qk_output, (0, 1, 2))
    fits = window == -1 or (window > 0 and bool(attributes.causal))
    require("local_window_size", fits, "-1, or 1 and more with causal = 1", window)
    require("sliding_window_cache", not shift or window > 0, "0, or 1 with local_window_size", shift)
    for name, kind in (("k_quant_type", attributes.k_quant_type), ("v_quant_type", attributes.v_quant_type)):
        require(name, kind == _NO_QUANTIZATION, "NONE: caches of codes are not read", kind)


def check_pasts(k: Array, given: GroupQueryInputs, window: int) -> None:
    """Refuse caches that do not fit the keys. window: of one that keeps the last places only, else 0."""
    past_key, past_value = given.past_key, given.past_value
    both_or_none(past_key=past_key, past_value=past_value)
    for name, past in (("past_key", past_key), ("past_value", past_value)):
        check_past(past, k, name)
    if past_key is not None and past_value is not None:
        with_shape(past_value, "past_value", past_key.shape)
    if window and (past_key is None or past_key.shape[2] < window):
        got = "nothing" if past_key is None else past_key
        raise misfit("the cache is smaller than the window", "past_key", f"{window} rows or more", got)
