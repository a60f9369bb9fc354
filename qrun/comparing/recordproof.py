"""Why a tensor differs from a recorded one, shown by making the recorded bytes again, without having the tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from qrun.comparing.causes import CAUSES, UNKNOWN, Suspect, reason
from qrun.comparing.differences import integral
from qrun.comparing.record import Made
from qrun.comparing.recordentry import TIE, digest, exact_values, tie_distance
from qrun.comparing.sides import Unit
from qrun.ir import Array, Model
from qrun.ir.types import integer_range

RECORD_EXACT = "the record is exact"
SUBSETS = 10
"""Near-ties of which all subsets are tried."""
HASHED = 1 << 29
"""Bytes to hash at most while trying subsets."""


def proved(made: Made, model: Model, sha256: str) -> str:
    """Which cause, or which rounding of near-ties, leads from the node's inputs to the recorded hash; "" if none does.

    made: a tensor whose hash is another one, though its node read the same values. If the record has the exact result,
    it is told what led to this tensor instead. Only for tensors of integers.
    """
    if made.values is None or not integral(made.array.dtype):
        return ""
    values = {name: v for name, v in zip(made.node.inputs, made.values, strict=True) if v is not None}
    suspect = Suspect(model, Unit(made.node, (made.node,)), made.name, values, made.array, made.array)
    exact = suspect.evaluate()
    if exact is not None:
        suspect = replace(suspect, mine=exact)
        if digest(exact) == sha256:
            found = reason(suspect)
            named = f"now: {found.cause}: {found.text}" if found.cause != UNKNOWN else _ties(made, sha256)
            return f"{RECORD_EXACT}; {named}" if named else RECORD_EXACT
        for name, text, array in _hypotheses(suspect):
            if digest(array) == sha256:
                return f"the record has {name}: {text}"
    return _ties(made, sha256)


def _hypotheses(suspect: Suspect) -> Iterator[tuple[str, str, Array]]:
    blind = replace(suspect, theirs=None)
    for known in sorted(CAUSES.values(), key=lambda c: c.rank):
        for hypothesis in known.function(blind):
            if hypothesis.array is not None:
                yield known.name, hypothesis.text, hypothesis.array


def _ties(made: Made, sha256: str) -> str:
    """Tells that the recorded bytes follow if elements within 1e-5 LSB of a tie are rounded to the other side; "" if not."""
    array, exact = made.array, exact_values(made.array, made.node, made.values)
    if exact is None:
        return ""
    low, high = integer_range(array.dtype)
    flat, below = exact.reshape(-1), np.floor(exact.reshape(-1))
    now = array.reshape(-1).astype(np.float64)
    between = ((now == below) | (now == below + 1)) & (below >= low) & (below + 1 <= high)
    places = np.flatnonzero(between & (tie_distance(flat) <= TIE))
    other = 2 * below[places] + 1 - now[places]
    for chosen in _subsets(len(places), HASHED // max(array.nbytes, 1)):
        tried = array.reshape(-1).copy()
        tried[places[chosen]] = other[chosen].astype(np.int64).astype(array.dtype)
        if digest(tried.reshape(array.shape)) == sha256:
            return f"only near-ties: {len(chosen)} of {len(places)} elements within {TIE:g} LSB of one go to the other side"
    return ""


def _subsets(count: int, most: int) -> Iterator[list[int]]:
    """All of them first, then all smaller subsets, if there are at most `most`."""
    yield list(range(count))
    if count <= SUBSETS and 2**count <= most:
        for size in range(1, count):
            yield from map(list, combinations(range(count), size))
