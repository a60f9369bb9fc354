"""Two results saved with ``--json``: two profiles, two runs or two checks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

from qrun.comparing.savedprofiles import SavedProfiles, compare_profiles
from qrun.comparing.settings import Setting, differing, lone, settings
from qrun.declare.frozen import frozen, keys
from qrun.documents.answers import RunOutput
from qrun.documents.record import Item, damaged, decode, read_document
from qrun.errors import CallError

KINDS = ("profile", "run", "check")
HOW = "qrun run, qrun profile and qrun check write such a file with --json"


@frozen
class OutputPair:
    """An output of both runs.

    a, b:   type and shape.
    equal:  the same bytes, by SHA-256.
    differing, largest, first: how many elements differ, the largest difference and the first element (index and both
            values), where both files hold the values; else None.
    low, high, mean: of both runs.
    """

    KEYS = keys("name a b equal total differing largest first min=low max=high mean")

    name: str
    a: str
    b: str
    equal: bool
    total: int
    differing: int | None = None
    largest: float | None = None
    first: tuple[tuple[int, ...], Any, Any] | None = None
    low: tuple[float | None, float | None] = (None, None)
    high: tuple[float | None, float | None] = (None, None)
    mean: tuple[float | None, float | None] = (None, None)


@frozen
class SavedRuns:
    """Two saved runs: their outputs in the order of `a`, those of one only, and in what the runs differed."""

    a: Path
    b: Path
    settings: tuple[Setting, ...]
    outputs: tuple[OutputPair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """The same outputs, bit for bit, whatever made them."""
        return not self.only_a and not self.only_b and all(pair.equal for pair in self.outputs)


@frozen
class Found:
    """A finding of a saved check."""

    model: str
    rule: str = ""
    name: str = ""
    level: str = ""
    node: str = ""
    tensor: str = ""
    message: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same finding in another file; the message may tell of other values."""
        return self.model, self.rule, self.level, self.node, self.tensor


@frozen
class SavedChecks:
    """Two saved checks.

    new, gone: findings of `b` only, and of `a` only; kept: how many are in both.
    vectors:   model, vector, and its status in `a` and in `b`, where they differ; ``-`` where it is missing.
    only_a, only_b: models. One model on either side is the same model, whatever its path.
    """

    a: Path
    b: Path
    settings: tuple[Setting, ...]
    new: tuple[Found, ...]
    gone: tuple[Found, ...]
    kept: int
    vectors: tuple[tuple[str, str, str, str], ...] = ()
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        return not (self.new or self.gone or self.vectors or self.only_a or self.only_b)


def compare_saved(a: Path, b: Path) -> SavedRuns | SavedProfiles | SavedChecks:
    """Compare two files that qrun wrote with ``--json``; `a` is the earlier one.

    Raises CallError for a file that is missing, is no such document, is of a later major version, tells of a failure,
    or if one is of another kind than the other.
    """
    (kind, first), (other, second) = (read_document(path, KINDS, HOW) for path in (a, b))
    if kind != other:
        where = [str(a), str(b)]
        facts = [("expected", "two profiles, two runs or two checks"), ("got", f"{a}: {kind}, {b}: {other}")]
        fixes = [f"qrun {kind} MODEL --json > OTHER.json makes a {kind} to compare {a} with"]
        message = f"a saved {kind} and a saved {other} cannot be compared"
        raise CallError("QR005", message, where=where, facts=facts, fixes=fixes)
    if kind == "profile":
        return compare_profiles(a, b, first, second)
    return _runs(a, b, first, second) if kind == "run" else _checks(a, b, first, second)


def _runs(a: Path, b: Path, first: Item, second: Item) -> SavedRuns:
    left, right = _by_name(first["outputs"]), _by_name(second["outputs"])
    pairs = tuple(_outputs(left[name], right[name]) for name in left if name in right)
    return SavedRuns(a, b, settings(first, second), pairs, *lone(left, right))


def _by_name(items: Item) -> dict[str, tuple[RunOutput, Item]]:
    found: dict[str, tuple[RunOutput, Item]] = {}
    for item in items:
        output = decode(RunOutput, item)
        if output.name in found:
            raise damaged(item.source, f"{item.place}: a new name", f"{output.name!r} again")
        found[output.name] = output, item
    return found


def _outputs(first: tuple[RunOutput, Item], second: tuple[RunOutput, Item]) -> OutputPair:
    (a, item), (b, other) = first, second
    equal, total = a.form == b.form and a.sha256 == b.sha256, prod(a.shape)
    low, high, mean = (a.min, b.min), (a.max, b.max), (a.mean, b.mean)
    pair = OutputPair(
        a.name, str(a.form), str(b.form), equal, total, 0 if equal else None, low=low, high=high, mean=mean
    )
    if a.form != b.form or a.values is None or b.values is None:
        return pair
    left, right = _flat(a, item), _flat(b, other)
    places = [at for at, (x, y) in enumerate(zip(left, right, strict=True)) if x != y and not (x != x and y != y)]
    steps = [abs(left[at] - right[at]) for at in places if not isinstance(left[at], str)]
    largest = max((float(step) for step in steps if isfinite(step)), default=0.0)
    if not places:
        return replace(pair, differing=0, largest=largest)
    index = tuple(int(i) for i in np.unravel_index(places[0], a.shape))
    return replace(pair, differing=len(places), largest=largest, first=(index, left[places[0]], right[places[0]]))


def _flat(output: RunOutput, item: Item) -> list[Any]:
    """The elements of the nested lists ``values``: numbers, or for element types that are none, texts."""
    texts = output.type in ("string", "complex64", "complex128")
    pending = [item["values"]]
    for _ in range(max(len(output.shape), 1)):
        pending = [inner for outer in pending for inner in outer]
    if len(pending) != prod(output.shape):
        raise damaged(item.source, f"{item.place}.values: {prod(output.shape)} elements", str(len(pending)))
    return [json.dumps(i.value) if texts else int(i.value) if isinstance(i.value, bool) else i.number for i in pending]


def _checks(a: Path, b: Path, first: Item, second: Item) -> SavedChecks:
    left, right = ({model["path"].text: model for model in document["models"]} for document in (first, second))
    if len(left) == len(right) == 1:
        right = {next(iter(left)): next(iter(right.values()))}
    both = [path for path in left if path in right]
    before, after = (
        [decode(Found, f, model=path) for path in both for f in side[path]["findings"]] for side in (left, right)
    )
    new, gone = _without(after, before), _without(before, after)
    changed = [(path, *change) for path in both for change in _vectors(left[path], right[path])]
    kept = len(before) - len(gone)
    told = settings(first, second)
    return SavedChecks(a, b, told, tuple(new), tuple(gone), kept, tuple(changed), *lone(left, right))


def _without(found: Sequence[Found], others: Sequence[Found]) -> list[Found]:
    """The findings that `others` lacks; each of the others is the counterpart of one finding with its key."""
    left = Counter(other.key for other in others)
    kept = []
    for finding in found:
        left[finding.key] -= 1
        if left[finding.key] < 0:
            kept.append(finding)
    return kept


def _vectors(a: Item, b: Item) -> list[tuple[str, str, str]]:
    left, right = ({v["name"].text: v["status"].text for v in model["vectors"]} for model in (a, b))
    return [(change.name, change.a, change.b) for change in differing(left, right)]
