"""Shared by EmbedLayerNormalization and QEmbedLayerNormalization: rows of tables, added, and what a mask counts."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._attention import misfit, with_shape
from qrun.ops._body import node
from qrun.ops._context import Context, refuse


def check_tables(tables: tuple[Array, Array, Array | None], gamma: Array, beta: Array) -> None:
    """Refuse embeddings that are no matrices, or of several widths."""
    names = ("word_embedding", "position_embedding", "segment_embedding")
    if tables[0].ndim != 2:
        raise misfit(names[0], "[words,n]", tables[0])
    width = tables[0].shape[1]
    for name, table in zip(names, tables, strict=True):
        if table is not None and (table.ndim != 2 or table.shape[1] != width):
            raise misfit(name, f"[rows,{width}]", table)
    with_shape(gamma, "gamma", (width,))
    with_shape(beta, "beta", (width,))


def embedded(
    ids: Array, segments: Array | None, positions: Array | None, tables: tuple[Array, Array, Array | None], ctx: Context
) -> Array:
    """The sum of the embeddings [B,S,n], each addition rounded."""
    if ids.ndim != 2:
        raise misfit("input_ids", "[batch,length]", ids)
    words, places, kinds = tables
    if (segments is None) != (kinds is None):
        name = "segment_ids" if segments is None else "segment_embedding"
        raise refuse(f"{name} is missing", name, "segment_ids and segment_embedding, or neither", "one", code="QR205")
    total = _rows(words, ids, "input_ids", ctx)
    if positions is None:
        given = np.arange(ids.shape[1], dtype=np.int32)[None]
    else:
        given = with_shape(positions, "position_ids", ids.shape, (1, ids.shape[1]))
    total = node("Add", [total, _rows(places, given, "position_ids", ctx)], ctx)
    if segments is not None and kinds is not None:
        with_shape(segments, "segment_ids", ids.shape)
        total = node("Add", [total, _rows(kinds, segments, "segment_ids", ctx)], ctx)
    return np.asarray(total)


def _rows(table: Array, ids: Array, name: str, ctx: Context) -> Array:
    if ids.size and (ids.min() < 0 or ids.max() >= len(table)):
        bad = int(ids.max() if ids.max() >= len(table) else ids.min())
        raise refuse(f"there is no row {bad}", name, f"0 to {len(table) - 1}", str(bad), code="QR208")
    return np.asarray(node("Gather", [table, ids], ctx, axis=0))


def counted(mask: Array | None, ids: Array, mask_index_type: int | None) -> Array:
    """How many elements of each line of the mask are 1: int32 [B]."""
    if mask_index_type not in (None, 0, 1):
        raise refuse("mask_index_type is unknown", "mask_index_type", "0, 1", str(mask_index_type), code="QR204")
    if mask is None:
        return np.zeros(ids.shape[:1], np.int32)
    return np.asarray(np.sum(with_shape(mask, "mask", ids.shape) == 1, axis=1, dtype=np.int32))
