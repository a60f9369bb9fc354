"""Shared by decoders: the places of sequences and of their caches, and how heads turn with places."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._body import node
from qrun.ops._context import Context, bad_shape, check_range, misfit, refuse


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
            raise bad_shape(name, f"[positions,{width // 2}]", cache)
        more = f", {name} being {shape_text(cache.shape)}"
        check_range(positions, len(cache), name, "position", "QR208", more)
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


@frozen
class Places:
    """Where the places of one sequence are. total: all of them; new: those given now, the last ones.

    kept: how many rows of its cache are filled, the last ones before the new.
    """

    total: int
    new: int
    kept: int

    @property
    def first(self) -> int:
        """The place of the first new one."""
        return self.total - self.new


def number(total: Array) -> int:
    if total.size != 1:
        raise bad_shape("total_sequence_length", "a scalar", total)
    return int(total.reshape(-1)[0])


def places_of(ends: Array, total: int, batch: int, new: int, room: int, window: int) -> list[Places]:
    """The places of each sequence, checked. window: of a cache that keeps the last places only, else 0."""
    if ends.shape not in ((batch,), (batch, 1)):
        raise bad_shape("seqlens_k", f"[{batch}]", ends)
    prompt = total == new
    if total < new:
        raise misfit(
            f"total_sequence_length is {total}", "total_sequence_length", f"{new} or more, the new places", str(total)
        )
    found = []
    for end in ends.reshape(-1).tolist():
        fresh = min(new, end + 1) if prompt else new
        kept = end + 1 - fresh
        if window:
            kept = _resident(kept, room, window)
        if end < 0 or end >= total or kept < 0 or kept > room:
            least = 0 if prompt else new - 1
            most = total - 1 if window else min(total - 1, room + new - 1) if not prompt else total - 1
            raise misfit(f"seqlens_k has {end}", "seqlens_k", f"{least} to {most}", str(end))
        found.append(Places(end + 1, fresh, kept))
    return found


def _resident(total: int, room: int, window: int) -> int:
    """How many of `total` places, always the last ones, a sliding cache of `room` rows holds."""
    if total <= room:
        return total
    apart = room - window + 1
    return total - apart * -(-(total - room) // apart)


def keep(present: Array, rows: Array, step: Places, window: int) -> None:
    """Store the rows [M,kept+new,H] in the cache of one sequence [M,C,H]."""
    count = _resident(step.total, present.shape[1], window) if window else rows.shape[1]
    present[:, :count] = rows[:, rows.shape[1] - count :]


def seen_places(step: Places, rows: int, columns: int, causal: bool, window: int) -> Array:
    """Which keys each of `rows` new places sees, keys being the last `columns` places: bool [rows,columns]."""
    keys = np.arange(step.total - columns, step.total)
    own = step.first + np.arange(rows)[:, None]
    seen = keys <= own if causal else np.ones((rows, columns), bool)
    return np.asarray(seen & (keys > own - window) if window > 0 else seen)
