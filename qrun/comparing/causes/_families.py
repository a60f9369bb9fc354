"""Which arithmetics give a node's codes: the int32 sums of the node, tried with every family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic, Scales
from qrun.arithmetics.groups import variants
from qrun.comparing.causes._cause import Suspect
from qrun.comparing.causes._steps import sums_and_scales
from qrun.comparing.ties import tie_distance
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._quantize import is_integer, limits

SAMPLE = 1 << 16
"""The most elements of a node on which every family is tried; families that fit there are then tried on all."""
_TELLING = 1 << 10
"""Elements of each kind on which the variants of families are tried: those that differ from the exact codes, those
nearest to a tie, and some that are spread over all."""


@frozen
class NodeSums:
    """The int64 sums of a node, its scales and zero points, which broadcast with them, and the ends of its codes."""

    acc: Array
    scales: Scales
    zero: Array
    low: int
    high: int

    def at(self, places: Array) -> NodeSums:
        """The sums at some flat indices."""
        x, w, y, zero = (
            v.reshape(()) if v.size == 1 else np.broadcast_to(v, self.acc.shape).reshape(-1)[places]
            for v in (self.scales.x, self.scales.w, self.scales.y, self.zero)
        )
        return NodeSums(self.acc.reshape(-1)[places], Scales(x, w, y), zero, self.low, self.high)

    def codes(self, row: Arithmetic) -> Array:
        """The codes that an arithmetic gives, as int64."""
        return row.codes(self.acc, self.scales, self.zero, self.low, self.high)


def node_sums(s: Suspect) -> NodeSums | None:
    """The sums of a QLinearConv, QLinearMatMul or QGemm, or of the group that fuses into one; None for others."""
    if not is_integer(s.mine.dtype) or not s.mine.size:
        return None
    found = (s, *limits(s.mine.dtype)) if s.alone else s.integer() if s.integer else None
    known = None if found is None else sums_and_scales(found[0])
    return None if found is None or known is None else NodeSums(*known, found[0].zero, *found[1:])


def count_differing(sums: NodeSums, theirs: Array) -> dict[str, int]:
    """By family, the number of codes that differ from `theirs` in a sample; 0 only if none differs in any element."""
    flat = theirs.reshape(-1)
    chunks = spread(flat.size, SAMPLE)
    first = next(chunks)
    part, due = sums.at(first), flat[first]
    counts = {name: int(np.count_nonzero(part.codes(row) != due)) for name, row in FAMILIES.items()}
    for places in chunks:
        part, due = sums.at(places), flat[places]
        left = (name for name, count in counts.items() if not count)
        counts |= {name: int(np.count_nonzero(part.codes(FAMILIES[name]) != due)) for name in left}
    return counts


def fitting_variants(sums: NodeSums, theirs: Array) -> frozenset[str]:
    """The names of the variants of families that give `theirs` in the elements that tell most."""
    places = _telling_places(sums, theirs)
    part, due = sums.at(places), theirs.reshape(-1)[places]
    return frozenset(row.name for row in variants() if np.array_equal(part.codes(row), due))


def fits(sums: NodeSums, theirs: Array, places: Array, rows: Iterable[Arithmetic]) -> list[Arithmetic]:
    """The arithmetics that give `theirs` at these flat indices; a few of them are tried first."""
    flat = theirs.reshape(-1)
    left = list(rows)
    for start in spread(places.size, SAMPLE):
        part, due = sums.at(places[start]), flat[places[start]]
        left = [row for row in left if np.array_equal(part.codes(row), due)]
    return left


def spread(size: int, most: int) -> Iterator[Array]:
    """All indices below `size`, in parts of up to `most`, each spread over all."""
    steps = max(1, -(-size // most))
    for start in range(steps):
        yield np.arange(start, size, steps)


def _telling_places(sums: NodeSums, theirs: Array) -> Array:
    """Flat indices of the elements that tell most."""
    factor = np.asarray(sums.scales.x, np.float64) * sums.scales.w / sums.scales.y
    exact = np.broadcast_to(sums.acc * factor, theirs.shape).reshape(-1)
    whole, flat = np.rint(exact) + np.broadcast_to(sums.zero, theirs.shape).reshape(-1), theirs.reshape(-1)
    inside = (whole > sums.low) & (whole < sums.high)
    away = np.where(inside, tie_distance(exact), 1.0)
    near = np.argpartition(away, _TELLING)[:_TELLING] if away.size > _TELLING else np.arange(away.size)
    other = np.flatnonzero(np.clip(whole, sums.low, sums.high) != flat)[:_TELLING]
    return np.unique(np.concatenate([near, other, next(spread(flat.size, _TELLING))]))
