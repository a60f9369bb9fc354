"""Constants to correct before anything else, such as scales and zero points. The gain of each is measured by running
the quantized model with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic

from qrun.comparing.differences import decibels
from qrun.comparing.ranking.faults import Correction
from qrun.comparing.ranking.rank import Cost
from qrun.declare.frozen import frozen, keys
from qrun.ir import Model, Node

_LEAST_OF_FAULTS, _LEAST_OF_RANGES = 0.05, 0.5
"""dB that a correction must gain: for a proved fault, and for a range that may be wrong."""
_MOST = 16
"""Corrections that are tried."""
MANY = 3.0
"""dB from which corrections come before any list of nodes to keep in float."""


@frozen
class Corrected:
    """Something to correct.

    text:  the change, in words; before, after: SQNR at the outputs in dB, with all corrections up to this one made;
           None where no constant makes it right, so that it is not measured.
    """

    KEYS = keys("index=node.index name=node.label text before_db=before after_db=after")

    node: Node
    text: str
    before: float | None = None
    after: float | None = None


def corrections(
    costs: Sequence[Cost], model: Model, whole: float, measure: Callable[[Model], float], seconds: float
) -> tuple[Corrected, ...]:
    """The corrections of the quantized model, in the order of the costs.

    whole: noise to signal of the model's outputs; measure: gives it for a model with other constants.
    """
    begun, now, found = monotonic(), decibels(whole), []
    tried = 0
    for node, text, parts, least in _proposals(costs):
        if not parts:
            found.append(Corrected(node, text))
            continue
        if tried >= _MOST or (tried and monotonic() - begun > seconds):
            break
        tried += 1
        better = replace(model, constants={**model.constants, **{part.name: part.array for part in parts}})
        after = decibels(measure(better))
        if after >= now + least:
            changes = ", ".join(f"{part.name} {part.change}" for part in parts)
            found.append(Corrected(node, changes, now, after))
            model, now = better, after
    return tuple(found)


def _proposals(costs: Sequence[Cost]) -> Iterator[tuple[Node, str, tuple[Correction, ...], float]]:
    """The candidates, each constant once."""
    done: set[str] = set()
    for cost in costs:
        found = [(fault.text, fault.corrections, _LEAST_OF_FAULTS) for fault in cost.faults]
        found += [(cost.fit.text, cost.fit.corrections, _LEAST_OF_RANGES)] if cost.fit else []
        for text, parts, least in found:
            names = {part.name for part in parts}
            if done.isdisjoint(names):
                done |= names
                yield cost.node, text, parts, least
