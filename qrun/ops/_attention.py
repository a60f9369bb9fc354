"""Code that the attention operators share: heads, caches, masks as numbers that are added, and the steps from scores to
output; for decoders, the positions of sequences and their caches, and rotary embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._body import node
from qrun.ops._context import check_range
from qrun.ops._float import bounds, narrow, round_to_type, single
from qrun.ops._op import Array, Context, Shape, bad_attribute, bad_shape, misfit, refuse, with_shape


def positive(name: str, value: int, divides: int | None = None) -> int:
    """Returns the attribute, a number of heads; refuses one below 1, or one that does not divide `divides`."""
    if value < 1 or (divides is not None and divides % value):
        expected = "1 or more" if divides is None else f"a divisor of {divides}"
        raise bad_attribute(name, expected, value)
    return value


def split_heads(x: Array, count: int) -> Array:
    """[B,S,count*H] as [B,count,S,H], a view."""
    return x.reshape(*x.shape[:2], count, x.shape[2] // count).transpose(0, 2, 1, 3)


def merge_heads(x: Array, ctx: Context) -> Array:
    """[B,N,S,H] as [B,S,N*H]."""
    ctx.claim(x.shape, x.itemsize)
    batch, count, length, size = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, length, count * size)


def append_to_cache(past: Array | None, new: Array, ctx: Context) -> Array:
    """Joins the cache and the new keys or values: [B,N,P+L,H]."""
    ctx.claim((*new.shape[:2], new.shape[2] + (0 if past is None else past.shape[2]), new.shape[3]), new.itemsize)
    return np.array(new, order="C") if past is None else np.concatenate([past, new], axis=2)


def check_past(past: Array | None, new: Shape, name: str) -> None:
    """Refuse a cache [B,N,P,H] that does not fit the new keys or values [B,N,L,H]."""
    if past is not None and (past.ndim != 4 or past.shape[:2] != new[:2] or past.shape[3] != new[3]):
        raise bad_shape(name, f"[{new[0]},{new[1]},past,{new[3]}]", past)


def check_bias(bias: Array | None, shape: Shape) -> None:
    """Refuse an attention_bias that is not [B or 1,N or 1,S,T], for scores [B,N,S,T]."""
    if bias is not None:
        batch, heads, *places = shape
        with_shape(bias, "attention_bias", *((b, n, *places) for b in (batch, 1) for n in (heads, 1)))


@frozen
class Attended:
    """The results of `attend`. y: [B,N,S,Hv]. products: of Q and K. capped, biased: after those steps. shares: after
    Softmax.

    The last four are [B,N,S,T].
    """

    y: Array
    products: Array
    capped: Array
    biased: Array
    shares: Array


def attend(
    q: Array,
    k: Array,
    v: Array,
    biases: Sequence[Array | None],
    ctx: Context,
    *,
    scale: float = 1.0,
    softcap: float = 0.0,
    softmax_type: Any = None,
    sink: Array | None = None,
    empty_rows: Array | None = None,
) -> Attended:
    """Softmax(scale * q @ k' + biases) @ v, as these nodes of ai.onnx, each rounded to q's type: MatMul, Mul (unless
    scale is 1), Div, Tanh and Mul (if there is a softcap), Add of each bias, Softmax, MatMul.

    q [B,N,S,H]; k [B,M,T,H] and v [B,M,T,Hv], where each head serves N / M heads of q; biases broadcast to [B,N,S,T].
    sink: [N] scores that count only in the sums of Softmax. empty_rows: rows whose shares are 0, whatever the scores
    are.
    """
    products = _grouped_product(q, np.swapaxes(k, -1, -2), ctx)
    if scale != 1.0:
        products = node("Mul", [products, np.asarray(scale, q.dtype)], ctx)
    capped = products
    if softcap:
        cap = np.asarray(single(softcap), q.dtype)
        capped = node("Mul", [node("Tanh", [node("Div", [capped, cap], ctx)], ctx), cap], ctx)
    biased = capped
    for bias in biases:
        biased = biased if bias is None else node("Add", [biased, bias], ctx)
    scores = biased if softmax_type is None else node("Cast", [biased], ctx, to=softmax_type)
    shares = node("Softmax", [scores], ctx) if sink is None else _softmax_beside(scores, sink, ctx)
    if empty_rows is not None and empty_rows.any():
        shares = np.where(empty_rows, np.zeros((), shares.dtype), shares)
    shares = shares.astype(q.dtype, copy=False) if softmax_type is None else round_to_type(shares, q.dtype)
    return Attended(_grouped_product(shares, v, ctx), products, capped, biased, shares)


def _softmax_beside(scores: Array, sink: Array, ctx: Context) -> Array:
    """Softmax of rows extended by one score each, whose share is left out of the result."""
    ctx.claim((*scores.shape[:3], scores.shape[3] + 1), 8)
    beside = np.broadcast_to(sink.astype(scores.dtype)[:, None, None], (*scores.shape[:3], 1))
    return np.ascontiguousarray(node("Softmax", [np.concatenate([scores, beside], axis=3)], ctx)[..., :-1])


def _grouped_product(a: Array, b: Array, ctx: Context) -> Array:
    """MatMul of a [B,N,S,K] and b [B,M,K,C], each of whose matrices serves N / M of a's."""
    batch, heads, rows, depth = a.shape
    if heads == b.shape[1]:
        return _product(a, b, ctx)
    groups = b.shape[1]
    made = _product(a.reshape(batch, groups, heads // groups, rows, depth), b[:, :, None], ctx)
    return made.reshape(batch, heads, rows, b.shape[-1])


def _product(a: Array, b: Array, ctx: Context) -> Array:
    """MatMul; operands of two types are multiplied in float64, and rounded to the first type."""
    if a.dtype == b.dtype:
        return np.asarray(node("MatMul", [a, b], ctx))
    wide = node("MatMul", [a.astype(np.float64), b.astype(np.float64)], ctx)
    return narrow(wide, a.dtype)


def causal_mask(rows: int, columns: int, offset: Array | int) -> Array:
    """Whether row i may see column j: j <= i + offset. bool [rows,columns], or [B,1,rows,columns] for offsets [B]."""
    ends = np.arange(rows)[:, None] + np.asarray(offset).reshape(-1, 1, 1, 1)
    seen = np.arange(columns) <= ends
    return np.asarray(seen[0, 0] if np.ndim(offset) == 0 else seen)


def additive_mask(seen: Array, value: float, dtype: Any, ctx: Context) -> Array:
    """The mask to add to scores: 0 where an element is seen, else `value`."""
    ctx.claim(seen.shape, np.dtype(dtype).itemsize, "mask")
    return np.where(seen, np.zeros((), dtype), np.asarray(value, dtype))


def default_scale(scale: float | None, head_size: int) -> float:
    """The attribute; if it is missing or 0, 1 / sqrt(head size). Each is a float32 number."""
    if scale:
        return single(scale)
    return float(np.float32(1) / np.float32(math.sqrt(head_size))) if head_size else 1.0


class Cache:
    """Keys or values of earlier positions. shared: the array has room for more than the `filled` ones."""

    def __init__(self, past: Array | None, shared: bool = False, filled: Array | None = None) -> None:
        self.past = past
        self.shared = shared and past is not None
        self.filled = filled

    def part(self, number: int) -> Cache:
        """The cache of keys (0) or values (1)."""
        return Cache(None if self.past is None else self.past[number], self.shared, self.filled)

    def extend(self, new: Array, name: str, ctx: Context) -> tuple[Array, Array, int]:
        """All keys [B,N,P+L,H], the present, and P. Refuses a cache that does not fit the new keys [B,N,L,H]."""
        past = self.past
        if past is None:
            made = append_to_cache(None, new, ctx)
            return made, made, 0
        check_past(past, new.shape, name)
        if not self.shared:
            made = append_to_cache(past, new, ctx)
            return made, made, past.shape[2]
        if self.filled is None or self.filled.size != 1:
            raise refuse(
                "past_sequence_length is not a number", "past_sequence_length", "[1]", self.filled, code="QR205"
            )
        count = int(self.filled.reshape(-1)[0])
        if not 0 <= count <= past.shape[2] - new.shape[2]:
            expected = f"0 to {past.shape[2] - new.shape[2]}, as {name} has room for {past.shape[2]}"
            raise misfit(f"past_sequence_length is {count}", "past_sequence_length", expected, str(count))
        ctx.claim(past.shape, past.itemsize)
        present = np.array(past, order="C")
        present[:, :, count : count + new.shape[2]] = new
        return present[:, :, : count + new.shape[2]], present, count


def biases_of(
    mask: Array | None,
    name: str,
    bias: Array | None,
    shape: Shape,
    past: int,
    options: tuple[float, bool],
    dtype: Any,
    ctx: Context,
) -> list[Array | None]:
    """The terms to add to scores [B,N,S,T]: the bias, the mask, and the mask of later positions."""
    rows, columns = shape[2:]
    check_bias(bias, shape)
    seen = None if mask is None else keys_shown_by(mask, name, shape, past)
    made = [bias, None if seen is None else additive_mask(seen, single(options[0]), dtype, ctx)]
    if options[1]:
        made.append(additive_mask(causal_mask(rows, columns, past), bounds(dtype)[0], dtype, ctx))
    return made


def keys_shown_by(mask: Array, name: str, shape: Shape, past: int) -> Array | None:
    """Which keys a mask shows, bool, to broadcast to [B,N,S,T]; None for all."""
    batch, _, rows, columns = shape
    places = np.arange(columns)
    if mask.shape in ((batch, columns), (batch, rows, columns)):
        return np.expand_dims(mask > 0, tuple(range(1, 5 - mask.ndim)))
    if mask.shape in ((batch, 1), (1, 1)):
        return None
    if mask.shape in ((batch,), (2 * batch,), (3 * batch + 2,)):
        seen = places < mask[:batch, None]
        if mask.shape == (2 * batch,):
            seen &= places >= mask[batch:, None]
        return np.asarray(seen[:, None, None])
    if mask.ndim == 4 and mask.shape[:2] == (batch, 1) and mask.shape[2] == mask.shape[3] >= past + rows:
        return np.asarray(mask[:, :, past : past + rows, :columns] > 0)
    expected = (
        f"[{batch},{columns}], [{batch},{rows},{columns}], [{batch}], [{2 * batch}] or [{batch},1,longest,longest]"
    )
    raise bad_shape(name, expected, mask)


def rotary_width(head_size: int, asked: int) -> int:
    """The number of elements of a head that are rotated."""
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


def rotate(x: Array, cos: Array, sin: Array, width: int, interleaved: bool, ctx: Context) -> Array:
    """Rotates the first `width` elements of each head of [B,N,S,H]. cos and sin [B,1,S,width/2]."""
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
    """The positions of one sequence. total: all of them; new: those given now, the last ones.

    kept: the number of filled rows of its cache; they hold the last positions before the new ones.
    """

    total: int
    new: int
    kept: int

    @property
    def first(self) -> int:
        """The first new position."""
        return self.total - self.new


def total_length(total: Array) -> int:
    """The one number of total_sequence_length."""
    if total.size != 1:
        raise bad_shape("total_sequence_length", "a scalar", total)
    return int(total.reshape(-1)[0])


def places_of(ends: Array, total: int, batch: int, new: int, room: int, window: int) -> list[Places]:
    """The positions of each sequence, checked. window: of a cache that keeps only the last positions, else 0."""
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
    """The number of rows that a sliding cache of `room` rows holds of `total` positions, always the last ones."""
    if total <= room:
        return total
    apart = room - window + 1
    return total - apart * -(-(total - room) // apart)


def keep(present: Array, rows: Array, step: Places, window: int) -> None:
    """Store the rows [M,kept+new,H] in the cache of one sequence [M,C,H]."""
    count = _resident(step.total, present.shape[1], window) if window else rows.shape[1]
    present[:, :count] = rows[:, rows.shape[1] - count :]


def seen_places(step: Places, rows: int, columns: int, causal: bool, window: int) -> Array:
    """Which keys each of `rows` new positions sees; the keys are the last `columns` positions. bool [rows,columns]."""
    keys = np.arange(step.total - columns, step.total)
    own = step.first + np.arange(rows)[:, None]
    seen = keys <= own if causal else np.ones((rows, columns), bool)
    return np.asarray(seen & (keys > own - window) if window > 0 else seen)
