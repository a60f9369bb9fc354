"""QEmbedLayerNormalization of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._body import node
from qrun.ops._context import Context, refuse
from qrun.ops._embedding import check_tables, counted, embedded
from qrun.ops._op import op
from qrun.ops._quantize import note_scale, same_type, scalar

_NAME = "QEmbedLayerNormalization"
_TABLES = ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")
_CODES = ("word_embedding_quant", "position_embedding_quant", "segment_embedding", "gamma_quant", "beta_quant")


@op(
    _NAME,
    since=1,
    domain="com.microsoft",
    types={
        "T1": ("int32", "input_ids segment_ids mask"),
        "T2": ("int8 uint8", " ".join((*_CODES, *(f"{name}_zero_point" for name in _TABLES)))),
        "T": ("float", " ".join(f"{name}_scale" for name in _TABLES)),
    },
)
def q_embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding_quant: Array,
    position_embedding_quant: Array,
    segment_embedding: Array | None,
    gamma_quant: Array,
    beta_quant: Array,
    mask: Array | None,
    word_embedding_scale: Array,
    position_embedding_scale: Array,
    segment_embedding_scale: Array | None,
    gamma_scale: Array,
    beta_scale: Array,
    word_embedding_zero_point: Array,
    position_embedding_zero_point: Array,
    segment_embedding_zero_point: Array | None,
    gamma_zero_point: Array,
    beta_zero_point: Array,
    *,
    epsilon: float = 9.999999960041972e-13,
    ctx: Context,
) -> tuple[Array, Array]:
    """EmbedLayerNormalization whose embeddings, gamma and beta are codes: layernorm_out [B,S,n], mask_index_out int32 [B].

        number = (code - zero_point) * scale            float32, as DequantizeLinear

    Scales and zero points are scalars. All else as in EmbedLayerNormalization.
    Raises OperatorError for shapes and numbers that do not fit, and where only some of a segment's inputs are given.
    Source: onnxruntime ContribOperators, com.microsoft.QEmbedLayerNormalization.
    """
    segment = (segment_ids, segment_embedding, segment_embedding_scale, segment_embedding_zero_point)
    if len({given is None for given in segment}) > 1:
        raise refuse(
            "some of the segment's inputs are missing", "segment_ids", "all four, or none", "some", code="QR205"
        )
    codes = (word_embedding_quant, position_embedding_quant, segment_embedding, gamma_quant, beta_quant)
    scales = (word_embedding_scale, position_embedding_scale, segment_embedding_scale, gamma_scale, beta_scale)
    zeros = (
        word_embedding_zero_point, position_embedding_zero_point, segment_embedding_zero_point, gamma_zero_point,
        beta_zero_point,
    )  # fmt: skip
    made: list[Array | None] = []
    for place, (code, scale, zero) in enumerate(zip(codes, scales, zeros, strict=True)):
        made.append(None if code is None else _numbers(place, code, scale, zero, ctx))
    words, places, kinds, gamma, beta = made
    assert words is not None
    assert places is not None
    assert gamma is not None
    assert beta is not None
    check_tables((words, places, kinds), gamma, beta)
    total = embedded(input_ids, segment_ids, None, (words, places, kinds), ctx)
    y = node("LayerNormalization", [total, gamma, beta], ctx, epsilon=epsilon)[0]
    return y, counted(mask, input_ids, None)


def _numbers(place: int, code: Array, scale: Array | None, zero: Array | None, ctx: Context) -> Array:
    name = _TABLES[place]
    same_type(zero, code.dtype, f"{name}_zero_point", _CODES[place])
    step, shift = scalar(scale, f"{name}_scale", _NAME), scalar(zero, f"{name}_zero_point", _NAME)
    if step is not None:
        note_scale(ctx, step, f"{name}_scale")
    ctx.claim(code.shape, 8)
    return np.asarray(node("DequantizeLinear", [code, step, shift], ctx, version=13))
