"""One block of memory for buffers that are not all needed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Need:
    """A buffer of `nbytes` that is in use from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def arrange(needs: Sequence[Need]) -> tuple[list[int], int]:
    """Offsets of the buffers, multiples of ALIGNMENT, and the size of the whole; the largest are placed first.

    Buffers in use at the same step do not overlap.
    """
    offsets = [0] * len(needs)
    placed: list[int] = []
    for i in sorted(range(len(needs)), key=lambda i: (-needs[i].nbytes, needs[i].first)):
        need = needs[i]
        at = 0
        rivals = (j for j in placed if needs[j].first <= need.last and need.first <= needs[j].last)
        for j in sorted(rivals, key=lambda j: offsets[j]):
            if at + need.nbytes <= offsets[j]:
                break
            at = max(at, aligned_up(offsets[j] + needs[j].nbytes))
        offsets[i] = at
        placed.append(i)
    return offsets, max((o + aligned_up(n.nbytes) for o, n in zip(offsets, needs, strict=True)), default=0)


def aligned_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
