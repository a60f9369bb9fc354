"""Shapes of arrays, for every rank that arrays may have."""

from __future__ import annotations

from collections.abc import Sequence

MOST_AXES = 64
"""The most axes of a numpy array."""


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape that these shapes broadcast to. numpy.broadcast_shapes says the same, but for at most 32 axes, while
    arrays may have 64. Raises ValueError if they do not broadcast."""
    rank = max(map(len, shapes), default=0)
    made = [1] * rank
    for shape in shapes:
        for index, length in enumerate(shape, rank - len(shape)):
            if length != made[index] and length != 1:
                if made[index] != 1:
                    raise ValueError(f"the shapes {', '.join(str(tuple(s)) for s in shapes)} do not broadcast")
                made[index] = length
    return tuple(made)


def broadcasts_to(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether an array of this shape broadcasts to the whole shape without changing that."""
    lead = len(whole) - len(shape)
    return lead >= 0 and all(n in (1, m) for n, m in zip(shape, whole[lead:], strict=True))
