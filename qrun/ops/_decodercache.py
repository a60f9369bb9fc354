"""The places of a decoder's sequences: which are new, which its cache holds, which a query sees."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._attention import misfit
from qrun.ops._context import refuse


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
        raise misfit("total_sequence_length", "a scalar", total)
    return int(total.reshape(-1)[0])


def places_of(ends: Array, total: int, batch: int, new: int, room: int, window: int) -> list[Places]:
    """The places of each sequence, checked. window: of a cache that keeps the last places only, else 0."""
    if ends.shape not in ((batch,), (batch, 1)):
        raise misfit("seqlens_k", f"[{batch}]", ends)
    prompt = total == new
    if total < new:
        raise refuse(
            f"total_sequence_length is {total}",
            "total_sequence_length",
            f"{new} or more, the new places",
            str(total),
            code="QR208",
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
            raise refuse(f"seqlens_k has {end}", "seqlens_k", f"{least} to {most}", str(end), code="QR208")
        found.append(Places(end + 1, fresh, kept))
    return found


def _resident(total: int, room: int, window: int) -> int:
    """How many of so many places a cache of `room` rows holds that keeps the last ones."""
    if total <= room:
        return total
    apart = room - window + 1
    return total - apart * -(-(total - room) // apart)


def keep(present: Array, rows: Array, step: Places, window: int) -> None:
    """Store the rows [M,kept+new,H] in the cache of one sequence [M,C,H]."""
    count = _resident(step.total, present.shape[1], window) if window else rows.shape[1]
    present[:, :count] = rows[:, rows.shape[1] - count :]


def seen_places(step: Places, rows: int, columns: int, causal: bool, window: int) -> Array:
    """Which keys, the last `columns` places, each new place sees: bool [rows,columns]."""
    keys = np.arange(step.total - columns, step.total)
    own = step.first + np.arange(rows)[:, None]
    seen = keys <= own if causal else np.ones((rows, columns), bool)
    return np.asarray(seen & (keys > own - window) if window > 0 else seen)
