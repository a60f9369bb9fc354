"""Rotary positional embedding: RotaryEmbedding of ai.onnx and of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.ops._attention import positive, split_heads
from qrun.ops._decoder import angles, rotary_width, rotated
from qrun.ops._op import Array, Context, bad_shape, contrib_op, op, refuse, with_shape
from qrun.ops._signature import FLOATS


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
    """Pairs of elements turned by the angles of their position, in each head: (cos*a - sin*b, sin*a + cos*b).

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
    return _as(rotated(x, cos, sin, width, bool(interleaved), ctx), X)


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
    return _as(rotated(x, cos, sin, width, bool(interleaved), ctx), input)


def _by_head(x: Array, name: str, heads: int) -> Array:
    if x.ndim == 4:
        return x
    if x.ndim != 3:
        raise bad_shape(name, "rank 3 or 4", x)
    return split_heads(x, positive("num_heads", heads, x.shape[2]))


def _as(made: Array, x: Array) -> Array:
    """[B,N,S,H] in the shape of the input."""
    return made if x.ndim == 4 else made.transpose(0, 2, 1, 3).reshape(x.shape)
