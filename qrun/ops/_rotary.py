"""Shared by the operators that turn pairs of elements by the angles of their position."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._attention import misfit
from qrun.ops._body import node
from qrun.ops._context import Context, refuse


def rotary_width(head_size: int, asked: int) -> int:
    """How many elements of a head turn."""
    width = asked or head_size
    if width < 0 or width > head_size or width % 2:
        expected = f"an even number up to {head_size}, the size of a head"
        raise refuse(f"{width} elements of a head turn", "rotary_embedding_dim", expected, str(width), code="QR204")
    return width


def angles(cos_cache: Array, sin_cache: Array, positions: Array, width: int, ctx: Context) -> tuple[Array, Array]:
    """cos and sin [B,1,S,width/2] of the positions [B,S]."""
    made = []
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        if cache.ndim != 2 or cache.shape[1] != width // 2:
            raise misfit(name, f"[positions,{width // 2}]", cache)
        if positions.size and (positions.min() < 0 or positions.max() >= len(cache)):
            bad = int(positions.max() if positions.max() >= len(cache) else positions.min())
            expected = f"0 to {len(cache) - 1}, {name} being {shape_text(cache.shape)}"
            raise refuse(f"there is no position {bad}", name, expected, str(bad), code="QR208")
        ctx.claim((*positions.shape, width // 2), cache.itemsize, name)
        made.append(cache[positions][:, None])
    return made[0], made[1]


def rotated(x: Array, cos: Array, sin: Array, width: int, interleaved: bool, ctx: Context) -> Array:
    """[B,N,S,H] with the first `width` elements of each head turned. cos and sin [B,1,S,width/2]."""
    half = width // 2
    first = x[..., 0:width:2] if interleaved else x[..., :half]
    second = x[..., 1:width:2] if interleaved else x[..., half:width]
    ctx.claim(x.shape, x.itemsize)
    made = np.array(x, order="C")

    def times(a: Array, b: Array) -> Array:
        return np.asarray(node("Mul", [a, b], ctx))

    real = node("Sub", [times(cos, first), times(sin, second)], ctx)
    imaginary = node("Add", [times(sin, first), times(cos, second)], ctx)
    made[..., slice(0, width, 2) if interleaved else slice(0, half)] = real
    made[..., slice(1, width, 2) if interleaved else slice(half, width)] = imaginary
    return made
