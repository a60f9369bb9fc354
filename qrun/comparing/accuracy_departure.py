"""Where a quantized model does something else than the measurement of its nodes takes it to do."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping

import numpy as np

from qrun.comparing.accuracy_rows import Rows
from qrun.comparing.accuracy_sums import ErrorSums, decibels
from qrun.comparing.matching_graph import Reals
from qrun.comparing.matching_writer import is_dequantize
from qrun.comparing.ranking import Ranking
from qrun.comparing.ranking_groups import RoundingGroup
from qrun.declare.frozen import frozen
from qrun.io.feeds import check_feeds
from qrun.ir import Array, Node

_APART = 6.0
"""Decibels between both from which what was measured of the nodes says nothing about the model."""
_EXACT = 1e-9
"""Noise to signal ratio (90 dB) below which both are exact enough."""
_PART = 0.5
"""Share of a tensor's noise that the measurement must miss for the tensor to be where it starts."""


@frozen
class Departure:
    """The outputs of the model, and those with all its quantized nodes measured together, are not of one accuracy.

    real, measured: both as SQNR in dB.
    node:           the first one that makes something else than the measurement of it; None if no tensor shows it.
    floats:         the reference's nodes that should do the same.
    hint:           in words, what the node reads with another scale or zero point than it was made with, or what to look at.
    """

    real: float
    measured: float
    node: Node | None
    floats: tuple[Node, ...]
    hint: str


def departure(
    rows: Rows, ranking: Ranking, feeds: Mapping[str, Array], real: float, measured: float
) -> Departure | None:
    """Do noise to signal ratios of the model and of its nodes measured together go apart? feeds: a run to look where."""
    ends = [decibels(max(ratio, _EXACT)) for ratio in (real, measured)]
    if not ranking.watches or not abs(ends[0] - ends[1]) > _APART:
        return None
    group = _first(rows, ranking, feeds)
    if group is None:
        return Departure(decibels(real), decibels(measured), None, (), "")
    return Departure(decibels(real), decibels(measured), group.node, group.floats, _hint(rows.b, group))


def _first(rows: Rows, ranking: Ranking, feeds: Mapping[str, Array]) -> RoundingGroup | None:
    """The first group that makes something else of the model's own values than the model does."""
    clean = ranking.mixed.clean(check_feeds(rows.a.model, feeds))
    groups = {watch.group.value: watch.group for watch in ranking.watches}
    own: dict[str, Array] = {}
    for match, got, want in rows.pairs(rows.run(feeds), clean):
        group = groups.get(match.value)
        if group is not None:
            missed, noise = ErrorSums(), ErrorSums()
            missed.add(ranking.mixed.made(group, ChainMap(own, clean)), got)
            noise.add(got, want)
            if missed.odd or missed.noise > _PART * noise.noise:
                return group
        own[rows.a.settled(match.other)] = got.reshape(want.shape)
    return None


def _hint(b: Reals, group: RoundingGroup) -> str:
    """Codes that an operator of the group reads with other parameters than the node that made them had; or a guess."""
    for place in group.region.operators:
        node = b.nodes[place]
        source = b.sources.get(node.inputs[0]) if is_dequantize(node) else None
        if source is None or not source.path:
            continue
        pairs = zip(("scale", "zero point"), node.inputs[1:], b.nodes[source.path[-1]].inputs[1:], strict=False)
        for what, read, written in pairs:
            one, other = (_number(b.constant(name)) for name in (read, written))
            if one is not None and other is not None and one != other:
                return f"it reads {node.inputs[0]} with {what} {one:.4g}, which was made with {other:.4g}"
    return (
        "look at its scales and zero points" if group.whole else "what it reads has no counterpart in the first model"
    )


def _number(array: Array | None) -> float | None:
    return float(np.asarray(array, np.float64).reshape(-1)[0]) if array is not None and array.size == 1 else None
