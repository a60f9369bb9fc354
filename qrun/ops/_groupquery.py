"""The inputs and attributes of GroupQueryAttention, and the checks that both of its kernels make."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from qrun.declare.frozen import frozen, replace
from qrun.ir.types import NUMBERS, type_name
from qrun.ops._attention import check_past, positive, split_heads
from qrun.ops._blockweights import unpack
from qrun.ops._body import node
from qrun.ops._context import bad_parameter, note_scale, refuse
from qrun.ops._op import Array, Context, Shape, bad_shape, both_or_none, misfit, one_of, require, with_shape
from qrun.ops._signature import Attributes, InputRecord

_NO_QUANTIZATION, _PER_TENSOR, _PER_CHANNEL = "NONE", "PER_TENSOR", "PER_CHANNEL"
_VERSION = 24
"""The version of QuantizeLinear and DequantizeLinear that writes and reads quantized caches."""
_WIDTHS = {"uint8": 4, "int8": 8, "float8e4m3fn": 8}
"""The types of quantized caches, with the value of kv_cache_bit_width for each."""


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
    def quantized(self) -> bool:
        """Whether caches are quantized."""
        return self.k_quant_type != _NO_QUANTIZATION

    @property
    def kept(self) -> int:
        """The number of last positions that a sliding cache keeps; 0: it does not slide."""
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
    """Refuse attributes that are invalid with any inputs."""
    window, shift = attributes.local_window_size, attributes.sliding_window_cache
    one_of("causal", attributes.causal, (0, 1))
    one_of("qk_output", attributes.qk_output, (0, 1, 2))
    fits = window == -1 or (window > 0 and bool(attributes.causal))
    require("local_window_size", fits, "-1, or 1 and more with causal = 1", window)
    require("sliding_window_cache", not shift or window > 0, "0, or 1 with local_window_size", shift)
    kinds = {"k_quant_type": attributes.k_quant_type, "v_quant_type": attributes.v_quant_type}
    for name, kind in kinds.items():
        one_of(name, kind, (_NO_QUANTIZATION, _PER_TENSOR, _PER_CHANNEL))
    quantized = (_PER_TENSOR, _PER_CHANNEL) if attributes.quantized else (_NO_QUANTIZATION,)
    expected = f"{' or '.join(quantized)}, as k_quant_type is {attributes.k_quant_type}"
    require("v_quant_type", attributes.v_quant_type in quantized, expected, attributes.v_quant_type)
    one_of("kv_cache_bit_width", attributes.kv_cache_bit_width, (4, 8) if attributes.quantized else (0,))


def check_pasts(k: Array, given: GroupQueryInputs, attributes: GroupQueryAttributes) -> None:
    """Refuse caches that do not fit the keys."""
    past_key, past_value = given.past_key, given.past_value
    both_or_none(past_key=past_key, past_value=past_value)
    fitting = cache_shape(k, attributes)
    for name, past in (("past_key", past_key), ("past_value", past_value)):
        check_past(past, fitting, name)
        if past is not None:
            _check_type(past, name, k.dtype, attributes)
    if past_key is not None and past_value is not None:
        with_shape(past_value, "past_value", past_key.shape)
    window = attributes.kept
    if window and (past_key is None or past_key.shape[2] < window):
        got = "nothing" if past_key is None else past_key
        raise misfit("the cache is smaller than the window", "past_key", f"{window} rows or more", got)


def cache_shape(k: Array, attributes: GroupQueryAttributes) -> Shape:
    """The shape of new rows of the cache [B,M,L,W]: a 4-bit code takes half an element."""
    width = k.shape[3]
    if attributes.kv_cache_bit_width == 4 and width % 2:
        raise misfit(
            f"heads have {width} elements", "kv_cache_bit_width", "an even number: a byte has two codes", width
        )
    return (*k.shape[:3], width // 2 if attributes.kv_cache_bit_width == 4 else width)


def _check_type(past: Array, name: str, dtype: np.dtype[Any], attributes: GroupQueryAttributes) -> None:
    """Refuse a cache whose type contradicts the attributes."""
    bits = attributes.kv_cache_bit_width
    allowed = [kind for kind, width in _WIDTHS.items() if width == bits] if bits else [type_name(dtype)]
    if type_name(past.dtype) not in allowed:
        kinds = "k_quant_type" if name == "past_key" else "v_quant_type"
        why = f"kv_cache_bit_width is {bits}, {kinds} is {getattr(attributes, kinds)}."
        got = type_name(past.dtype)
        raise refuse(f"{name} is {got}", name, " or ".join(allowed), got, why=why, code="QR203")


@frozen
class CacheCodes:
    """How keys, or values, are quantized. scale: one number, or one for each element of all heads."""

    dtype: np.dtype[Any]
    bits: int
    scale: Array

    def encode(self, x: Array, ctx: Context) -> Array:
        """The codes [B,M,L,W] of x [B,M,L,H]."""
        ctx.claim(x.shape, 4, "codes")
        if self.bits == 8:
            return self._by_channel("QuantizeLinear", x, np.zeros_like(self.scale, self.dtype), ctx)
        nibbles = self._by_channel("QuantizeLinear", x, np.full_like(self.scale, 8, ml_dtypes.uint4), ctx)
        nibbles = nibbles.astype(np.uint8)
        return np.asarray(nibbles[..., ::2] | nibbles[..., 1::2] << 4)

    def read(self, codes: Array, dtype: np.dtype[Any], ctx: Context) -> Array:
        """Dequantizes the codes [B,M,L,W]: [B,M,L,H]."""
        wide = unpack(codes, self.bits)
        ctx.claim(wide.shape, 4, "dequantized cache")
        zero = np.full_like(self.scale, 8 if self.bits == 4 else 0, wide.dtype)
        return self._by_channel("DequantizeLinear", wide, zero, ctx, output_dtype=NUMBERS[dtype])

    def _by_channel(self, op_type: str, x: Array, zero: Array, ctx: Context, **attributes: int) -> Array:
        """Quantize or dequantize a cache [B,heads,length,size] with a scale for each channel of each head."""
        batch, heads, length, size = x.shape
        rows = np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch * length, heads * size)
        own = replace(ctx, observing=False, version=_VERSION)
        made = node(op_type, [rows, self.scale, zero], own, _VERSION, axis=1, **attributes)
        return np.asarray(made).reshape(batch, length, heads, size).transpose(0, 2, 1, 3)


def codes_of(given: GroupQueryInputs, attributes: GroupQueryAttributes, k: Array, ctx: Context) -> list[CacheCodes]:
    """The quantization of the keys and of the values; [] if caches hold floats."""
    if not attributes.quantized:
        return []
    heads, size = k.shape[1], k.shape[3]
    made = []
    for name, kind in (("k_scale", attributes.k_quant_type), ("v_scale", attributes.v_quant_type)):
        scale = getattr(given, name)
        if scale is None:
            kinds = f"{name[0]}_quant_type"
            raise refuse(f"{name} is missing", name, f"a scale, as {kinds} is {kind}", "nothing", code="QR205")
        if kind == _PER_TENSOR:
            fits, expected = scale.size == 1, "[1]: one scale, as it is PER_TENSOR"
        else:
            fits = scale.shape in ((1, heads, 1, size), (heads, 1, size), (heads, size), (heads * size,))
            expected = f"[1,{heads},1,{size}]: one for each element of each head, as it is PER_CHANNEL"
        if not fits:
            raise bad_parameter(name, expected, scale)
        note_scale(ctx, scale, name)
        bits = attributes.kv_cache_bit_width
        past = given.past_key
        dtype = past.dtype if past is not None else np.dtype(np.uint8 if bits == 4 else np.int8)
        made.append(CacheCodes(dtype, bits, scale.reshape(-1) if scale.size > 1 else scale.reshape(())))
    return made
