"""Shared by the operators of com.microsoft that attend: caches of keys and values, and masks in all their forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._attention import appended, causal, hidden, misfit
from qrun.ops._attention import with_shape as shaped
from qrun.ops._context import Context, refuse
from qrun.ops._float import bounds, single
from qrun.ops._op import Shape


class Cache:
    """Keys or values of earlier places. shared: the array has room for more than the `filled` ones."""

    def __init__(self, past: Array | None, shared: bool = False, filled: Array | None = None) -> None:
        self.past = past
        self.shared = shared and past is not None
        self.filled = filled

    def part(self, number: int) -> Cache:
        return Cache(None if self.past is None else self.past[number], self.shared, self.filled)

    def extended(self, new: Array, name: str, ctx: Context) -> tuple[Array, Array, int]:
        """All keys [B,N,P+L,H], the present, and P. Refuses a cache that does not fit what is new [B,N,L,H]."""
        past = self.past
        if past is None:
            made = appended(None, new, ctx)
            return made, made, 0
        if past.ndim != 4 or past.shape[:2] != new.shape[:2] or past.shape[3] != new.shape[3]:
            raise misfit(name, f"{shape_text(new.shape[:2])[:-1]},past,{new.shape[3]}]", past)
        if not self.shared:
            made = appended(past, new, ctx)
            return made, made, past.shape[2]
        if self.filled is None or self.filled.size != 1:
            raise refuse("past_sequence_length is no number", "past_sequence_length", "[1]", self.filled, code="QR205")
        count = int(self.filled.reshape(-1)[0])
        if not 0 <= count <= past.shape[2] - new.shape[2]:
            expected = f"0 to {past.shape[2] - new.shape[2]}, as {name} has room for {past.shape[2]}"
            raise refuse(f"past_sequence_length is {count}", "past_sequence_length", expected, str(count), code="QR208")
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
    """What is added to scores [B,N,S,T]: the bias, the mask, what hides later places."""
    batch, heads, rows, columns = shape
    if bias is not None:
        allowed = [(b, n, rows, columns) for b in (batch, 1) for n in (heads, 1)]
        shaped(bias, "attention_bias", *allowed)
    seen = None if mask is None else seen_by_mask(mask, name, shape, past)
    made = [bias, None if seen is None else hidden(seen, single(options[0]), dtype, ctx)]
    if options[1]:
        made.append(hidden(causal(rows, columns, past), bounds(dtype)[0], dtype, ctx))
    return made


def seen_by_mask(mask: Array, name: str, shape: Shape, past: int) -> Array | None:
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
    raise misfit(name, expected, mask)
