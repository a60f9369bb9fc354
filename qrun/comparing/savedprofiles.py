"""Two saved profiles: what became slower or faster, and by more than the runs of one profile differ among
themselves."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Literal

import numpy as np

from qrun.comparing.settings import Setting, settings
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.documents.answers import ProfileNode, Samples
from qrun.documents.record import Item, damaged, decode

LEAST = 10
"""Runs of a profile from which its quartiles can be told apart from another's."""

Verdict = Literal["slower", "faster", "same", "few runs", "other work"]


@frozen
class Change:
    """Median times in ms, and whether their change exceeds the spread: the ranges from the lower to the upper quartile
    do not overlap.

    From 10 runs on such boxes contain their notches, median +- 1.57 * IQR / sqrt(runs), and medians whose notches do
    not overlap differ at a level of about 5 % (McGill, Tukey, Larsen, "Variations of Box Plots", The American
    Statistician 32(1), 1978). With fewer runs nothing is said, and nothing of other work. What changes between two
    calls (other programs, another clock rate) is not in the spread of either.
    """

    before: float
    after: float
    verdict: Verdict

    @property
    def relative(self) -> float | None:
        """0.1 for 10 % more time; None if there was none before, or it was of other work."""
        return self.after / self.before - 1 if self.before and self.verdict != "other work" else None


@frozen
class NodeChange:
    """A node in both profiles, as the second one has it. note: it stands for another number of nodes than before."""

    index: int
    name: str
    op: str
    change: Change
    note: str = ""


@frozen
class Lone:
    """A node of one profile only, and its median time in ms."""

    index: int
    name: str
    op: str
    median: float


@frozen
class SavedProfiles:
    """Two saved profiles: the whole run, the nodes in graph order, and those of one profile only.

    same_work: both measured the same model on inputs of the same types and shapes.
    """

    a: Path
    b: Path
    settings: tuple[Setting, ...]
    whole: Change
    nodes: tuple[NodeChange, ...]
    only_a: tuple[Lone, ...] = ()
    only_b: tuple[Lone, ...] = ()
    same_work: bool = True

    @property
    def equal(self) -> bool:
        """Whether both measured the same work. Times are never equal and differ from machine to machine and hour to
        hour, so a change of them is told and is no failure."""
        return self.same_work


def compare_profiles(a: Path, b: Path, first: Item, second: Item) -> SavedProfiles:
    """Compare the content of two profile documents. Nodes are matched by place, name and operator, then by name."""
    differ = settings(first, second)
    same = not any(s.name == "model sha256" or s.name.startswith("input ") for s in differ)
    whole = change(_samples(first["run"]), _samples(second["run"]), same)
    left, right = _nodes(first), _nodes(second)
    pairs = _matched(left, right)
    nodes = tuple(_node(left[i], right[j], same) for i, j in pairs)
    lone_a = tuple(_lone(row) for at, row in enumerate(left) if at not in {i for i, _ in pairs})
    lone_b = tuple(_lone(row) for at, row in enumerate(right) if at not in {j for _, j in pairs})
    return SavedProfiles(a, b, differ, whole, nodes, lone_a, lone_b, same)


def change(before: tuple[float, ...], after: tuple[float, ...], same_work: bool = True) -> Change:
    """The change from some samples to others, both in ms; of other work only the times are told."""
    (low_a, mid_a, high_a), (low_b, mid_b, high_b) = (np.percentile(s, (25, 50, 75)) for s in (before, after))
    verdict: Verdict = "same"
    if not same_work:
        verdict = "other work"
    elif min(len(before), len(after)) < LEAST:
        verdict = "few runs"
    elif low_b > high_a:
        verdict = "slower"
    elif high_b < low_a:
        verdict = "faster"
    return Change(float(mid_a), float(mid_b), verdict)


def _nodes(document: Item) -> list[ProfileNode]:
    return [replace(decode(ProfileNode, node), samples_ms=_samples(node)) for node in document["nodes"]]


def _samples(item: Item) -> tuple[float, ...]:
    samples = decode(Samples, item).samples_ms
    if not samples or not all(isfinite(s) and s >= 0 for s in samples):
        raise damaged(item.source, f"{item.place}.samples_ms: times of 0 or more, at least one", f"{samples}"[:60])
    return samples


def _matched(left: list[ProfileNode], right: list[ProfileNode]) -> list[tuple[int, int]]:
    """Places of nodes that are the same in both, in the order of `left`."""
    pairs: dict[int, int] = {}
    taken: set[int] = set()
    for key in (lambda r: (r.index, r.name, r.op), lambda r: r.name):
        places = grouped((key(row), at) for at, row in enumerate(right) if at not in taken)
        for at, row in enumerate(left):
            found = places.get(key(row), [])
            if at not in pairs and key(row) and len(found) == 1:
                pairs[at] = found.pop()
                taken.add(pairs[at])
    return sorted(pairs.items())


def _node(a: ProfileNode, b: ProfileNode, same_work: bool) -> NodeChange:
    before, now = (max(len(node.group), 1) for node in (a, b))
    note = f"stands for {now} nodes, before for {before}" if before != now else ""
    return NodeChange(b.index, b.name, b.op, change(a.samples_ms, b.samples_ms, same_work), note)


def _lone(row: ProfileNode) -> Lone:
    return Lone(row.index, row.name, row.op, float(np.median(row.samples_ms)))
