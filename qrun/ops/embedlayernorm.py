"""The first layer of BERT: EmbedLayerNormalization of com.microsoft."""

from __future__ import annotations

from qrun.ir import Array
from qrun.ops._body import node
from qrun.ops._context import Context
from qrun.ops._embedding import check_tables, counted, embedded
from qrun.ops._op import op

_EPSILON = 9.999999960041972e-13


@op(
    "EmbedLayerNormalization",
    since=1,
    domain="com.microsoft",
    types={
        "T1": ("int32", "input_ids segment_ids mask position_ids"),
        "T": ("float float16", "word_embedding position_embedding segment_embedding gamma beta"),
    },
)
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    mask_index_type: int | None = None,
    ctx: Context,
) -> tuple[Array, Array, Array]:
    """LayerNormalization of the sum of a word's, its position's and its segment's embeddings: output, mask_index, embedding_sum.

    input_ids, segment_ids and mask int32 [B,S]; position_ids [B,S] or [1,S], 0 to S-1 where they are left out; embeddings
    [rows,n], gamma and beta [n]. mask_index int32 [B]: how many elements of each line of the mask are 1, 0 without a mask.
    As the nodes of ai.onnx: Gather, Add of the position's, Add of the segment's, each rounded, which is embedding_sum, then
    LayerNormalization. Raises OperatorError for shapes, numbers and attributes that do not fit.
    Source: onnxruntime ContribOperators, com.microsoft.EmbedLayerNormalization.
    """
    tables = (word_embedding, position_embedding, segment_embedding)
    check_tables(tables, gamma, beta)
    total = embedded(input_ids, segment_ids, position_ids, tables, ctx)
    y = node("LayerNormalization", [total, gamma, beta], ctx, epsilon=epsilon)[0]
    return y, counted(mask, input_ids, mask_index_type), total
