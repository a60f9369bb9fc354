"""Compares two result files value by value: .npz files, or profiles, runs or checks saved with ``--json``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite, prod
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from qrun.comparing.differences import EXACT, Difference, Tolerance, difference, plain, sqnr
from qrun.declare import grouped
from qrun.declare.frozen import frozen, keys, replace
from qrun.documents.answers import ProfileNode, RunOutput, Samples
from qrun.documents.record import Item, decode, read_document
from qrun.errors import CallError
from qrun.io.arrays import Npz, no_such_file
from qrun.io.jsonfile import damage_error, parse_json
from qrun.io.polygraphy import IterationFile, iterations
from qrun.ir import Array
from qrun.ir.types import NUMBERS, describe
from qrun.memory import Budget, default_limit


@frozen
class Setting:
    """A setting that differs between two documents, such as ``backend``. a, b: its value in each."""

    name: str
    a: str
    b: str


def settings(first: Item, second: Item) -> tuple[Setting, ...]:
    """The differences in model, environment, options and inputs that two documents record."""
    return differing_settings(_settings(first), _settings(second))


def differing_settings(a: dict[str, str], b: dict[str, str]) -> tuple[Setting, ...]:
    """The settings in which two documents differ."""
    names = dict.fromkeys([*a, *b])
    return tuple(Setting(n, a.get(n, "-"), b.get(n, "-")) for n in names if a.get(n) != b.get(n))


def unpaired_names(a: Iterable[str], b: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that are only in `a`, and the names that are only in `b`."""
    first, second = dict.fromkeys(a), dict.fromkeys(b)
    return tuple(name for name in first if name not in second), tuple(name for name in second if name not in first)


def text(value: object) -> str:
    """A value for display: strings as they are, other values as JSON without its outer braces."""
    return value if isinstance(value, str) else json.dumps(value).strip("{}") or "none"


def _settings(document: Item) -> dict[str, str]:
    """The settings of a document, by name."""
    told: dict[str, str] = {}
    for key in ("qrun", "backend", "arith", "fail_on", "tolerance"):
        found = document.find(key)
        if found is not None:
            told[key] = text(found.value)
    model = document.find("model")
    if model is not None:
        for key, name in (("path", "model"), ("sha256", "model sha256")):
            found = model.find(key)
            told[name] = found.text if found is not None else "-"
    if (where := document.find("environment")) is not None:
        told |= {key: text(where[key].value) for key in where.keys if where.find(key) is not None}
    inputs = document.find("inputs")
    for item in inputs or ():
        name = item["name"].text
        told[f"input {name}"] = f"{item['type'].text} {text(item['shape'].value)}"
        if (sha := item.find("sha256")) is not None:
            told[f"input {name} sha256"] = sha.text
    return told


LEAST = 10
"""The fewest runs of a profile for which a change of its median is judged."""

Verdict = Literal["slower", "faster", "same", "few runs", "other work"]


@frozen
class Change:
    """Median times in ms, and a verdict: "slower" or "faster" if the interquartile ranges do not overlap.

    With 10 or more runs an interquartile range contains the notch, median +- 1.57 * IQR / sqrt(runs), and medians whose
    notches do not overlap differ at a level of about 5 % (McGill, Tukey, Larsen, "Variations of Box Plots", The
    American Statistician 32(1), 1978). With fewer runs, or for different work, there is no verdict. The spread of one
    call does not include what changes between calls, such as other programs or the clock rate.
    """

    before: float
    after: float
    verdict: Verdict

    @property
    def relative(self) -> float | None:
        """0.1 for 10 % more time; None if the time before is 0 or the work differs."""
        return self.after / self.before - 1 if self.before and self.verdict != "other work" else None


@frozen
class NodeChange:
    """A node in both profiles, described as in the second. note: says if the number of fused nodes in it changed."""

    index: int
    name: str
    op: str
    change: Change
    note: str = ""


@frozen
class Lone:
    """A node that is in one profile only, and its median time in ms."""

    index: int
    name: str
    op: str
    median: float


@frozen
class SavedProfiles:
    """The comparison of two saved profiles: the whole run, the common nodes in graph order, and the other nodes.

    same_work: did both measure the same model on inputs of the same types and shapes?
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
        """Did both measure the same work? Times vary between machines and from hour to hour, so a change of them is
        reported but is no failure."""
        return self.same_work


def compare_profiles(a: Path, b: Path, first: Item, second: Item) -> SavedProfiles:
    """Compare two profile documents. Nodes are matched by index, name and operator, then by name alone."""
    differ = settings(first, second)
    same = not any(s.name == "model sha256" or s.name.startswith("input ") for s in differ)
    whole = change(_samples(first["run"]), _samples(second["run"]), same)
    left, right = _nodes(first), _nodes(second)
    pairs = _match_nodes(left, right)
    nodes = tuple(_node(left[i], right[j], same) for i, j in pairs)
    lone_a = tuple(_lone(row) for at, row in enumerate(left) if at not in {i for i, _ in pairs})
    lone_b = tuple(_lone(row) for at, row in enumerate(right) if at not in {j for _, j in pairs})
    return SavedProfiles(a, b, differ, whole, nodes, lone_a, lone_b, same)


def change(before: tuple[float, ...], after: tuple[float, ...], same_work: bool = True) -> Change:
    """The change between two lists of samples in ms; for different work only the times."""
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
    """The nodes of a saved profile."""
    return [replace(decode(ProfileNode, node), samples_ms=_samples(node)) for node in document["nodes"]]


def _samples(item: Item) -> tuple[float, ...]:
    """The times of a node in milliseconds. Raises CallError for damaged ones."""
    samples = decode(Samples, item).samples_ms
    if not samples or not all(isfinite(s) and s >= 0 for s in samples):
        raise damage_error(item.source, f"{item.place}.samples_ms: times of 0 or more, at least one", f"{samples}"[:60])
    return samples


def _match_nodes(left: list[ProfileNode], right: list[ProfileNode]) -> list[tuple[int, int]]:
    """Pairs of positions of the same node in `left` and `right`, in the order of `left`."""
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
    """The change of a node's time."""
    before, now = (max(len(node.group), 1) for node in (a, b))
    note = f"{now} nodes, {before} before" if before != now else ""
    return NodeChange(b.index, b.name, b.op, change(a.samples_ms, b.samples_ms, same_work), note)


def _lone(row: ProfileNode) -> Lone:
    """A node that only one profile has."""
    return Lone(row.index, row.name, row.op, float(np.median(row.samples_ms)))


KINDS = ("profile", "run", "check")
HOW = "qrun run, qrun profile and qrun check --json write such a file"
SCRATCH = 40
"""Bytes per element that a comparison needs for distances, limits and masks."""


@frozen
class ElementPair:
    """One element of an array in both files."""

    index: tuple[int, ...]
    a: Any
    b: Any


@frozen
class ArrayPair:
    """An array in both files: a key of .npz files, or an output of runs.

    a, b:         type and shape, such as ``uint8 [1,10]``.
    equal:        are they equal within the tolerance? For outputs: have they the same bytes, by SHA-256?
    difference:   how b differs from a; None for outputs that differ if a file lacks the values.
    first, worst: the first element outside the tolerance, and the one with the largest difference.
    sqnr:         in dB, with `a` as the signal; None if no elements were compared or they are not real numbers.
    low, high, mean: minimum, maximum and mean of an output in both runs.
    """

    KEYS = keys(
        "name a b equal total=difference.total differing=difference.differing largest=difference.largest "
        "difference first worst sqnr min=low max=high mean"
    )

    name: str
    a: str
    b: str
    equal: bool
    difference: Difference | None
    first: ElementPair | None = None
    worst: ElementPair | None = None
    sqnr: float | None = None
    low: tuple[float | None, float | None] = (None, None)
    high: tuple[float | None, float | None] = (None, None)
    mean: tuple[float | None, float | None] = (None, None)


@frozen
class SavedArrays:
    """The comparison of two .npz files or saved runs: the pairs in the order of `a`, and the names that only one has.

    kind: ``npz`` or ``runs``. tolerance: None for runs, whose outputs are compared bit for bit. settings: the settings
    that differ between the runs.
    """

    KEYS = keys("a b settings tolerance pairs only_a only_b")

    kind: str
    a: Path
    b: Path
    pairs: tuple[ArrayPair, ...]
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    tolerance: Tolerance | None = None
    settings: tuple[Setting, ...] = ()

    @property
    def equal(self) -> bool:
        """Have both the same names, and for each name the same type, shape and, within the tolerance, elements?"""
        return not self.only_a and not self.only_b and all(pair.equal for pair in self.pairs)


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
        """Identifies the finding across files; the message is left out because the values in it may change."""
        return self.model, self.rule, self.level, self.node, self.tensor


@frozen
class SavedChecks:
    """The comparison of two saved checks.

    new, gone: findings only in `b`, and only in `a`; kept: the number of findings in both.
    vectors:   model, vector, and its status in `a` and in `b`, if they differ; ``-`` where it is missing.
    only_a, only_b: paths of models. If each file has one model, they count as the same model, whatever the paths.
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
        """Whether nothing changed."""
        return not (self.new or self.gone or self.vectors or self.only_a or self.only_b)


def compare_npz(a: Path, b: Path, tolerance: Tolerance, *, max_memory: int | None = None) -> SavedArrays:
    """Compare two .npz files, or results of Polygraphy (.json). `a` is the expected result. Of .npz files, one pair of
    arrays is in memory at a time. Arrays of types that .npz lacks are compared as the unsigned integers in which they
    are stored.

    max_memory: bytes to hold at once; None: 80 % of the free memory.
    Raises CallError for a file that is missing, damaged or holds pickles, MemoryLimitError above the limit.
    """
    with _arrays(a) as left, _arrays(b) as right:
        pairs = []
        for key in left.members:
            if key in right.members:
                budget = Budget(default_limit if max_memory is None else max_memory)
                one, other = (_read(side, key, budget) for side in (left, right))
                budget.claim((one.size,), SCRATCH, key)
                pairs.append(_pair(key, one, other, tolerance))
        return SavedArrays("npz", a, b, tuple(pairs), *unpaired_names(left.members, right.members), tolerance)


def _open(path: Path) -> IO[bytes]:
    """Open a file to be read. Raises CallError."""
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:
        raise no_such_file(path, error) from None


@contextmanager
def _arrays(path: Path) -> Iterator[Npz | IterationFile]:
    """The arrays of a file. Raises CallError."""
    if path.suffix.lower() == ".json":
        yield IterationFile(str(path))
        return
    with _open(path) as stream:
        yield Npz(str(path), stream)


def is_polygraphy(path: Path) -> bool:
    """Whether a JSON file holds inputs or results of Polygraphy, not a result of qrun. Raises CallError if it is no
    JSON."""
    return iterations(parse_json(path, HOW), str(path)) is not None


def _read(side: Npz | IterationFile, key: str, budget: Budget) -> Array:
    """Read an array of an archive; unknown types as bits."""
    array = side.read(key, budget)
    budget.hold(array)
    if array.dtype.kind == "V" and array.dtype not in NUMBERS:
        bits = array.dtype.itemsize
        array = array.view(f"u{bits}" if bits in (1, 2, 4, 8) else f"({bits},)u1")
    return array


def _pair(name: str, a: Array, b: Array, tolerance: Tolerance) -> ArrayPair:
    """Compare two arrays of the same name."""
    found = difference(b, a, tolerance)
    if found.form is not None:
        return ArrayPair(name, describe(a), describe(b), False, found)
    first, worst = (
        ElementPair(at, plain(a[at]), plain(b[at])) if found.differing else None for at in (found.first, found.worst)
    )
    noise = None if a.dtype.kind in "USOcb" else sqnr(b, a)
    return ArrayPair(name, describe(a), describe(b), found.equal, found, first, worst, noise)


def compare_saved(a: Path, b: Path) -> SavedArrays | SavedProfiles | SavedChecks:
    """Compare two files that qrun wrote with ``--json``; `a` is the earlier one.

    Raises CallError for a file that is missing, is no such document, has a later major version or records a failure,
    and if the two are of different kinds.
    """
    (kind, first), (other, second) = (read_document(path, KINDS, HOW) for path in (a, b))
    if kind != other:
        where = [str(a), str(b)]
        facts = [("expected", "two profiles, two runs or two checks"), ("got", f"{a}: {kind}, {b}: {other}")]
        fixes = [f"qrun {kind} MODEL --json > OTHER.json creates a {kind} to compare with {a}"]
        message = f"a saved {kind} and a saved {other} cannot be compared"
        raise CallError("QR005", message, where=where, facts=facts, fixes=fixes)
    if kind == "profile":
        return compare_profiles(a, b, first, second)
    return _runs(a, b, first, second) if kind == "run" else _checks(a, b, first, second)


def _runs(a: Path, b: Path, first: Item, second: Item) -> SavedArrays:
    """Compare two saved runs."""
    left, right = _by_name(first["outputs"]), _by_name(second["outputs"])
    pairs = tuple(_outputs(*left[name], *right[name]) for name in left if name in right)
    return SavedArrays("runs", a, b, pairs, *unpaired_names(left, right), settings=settings(first, second))


def _by_name(items: Item) -> dict[str, tuple[RunOutput, Array | None]]:
    """The outputs of a saved run by name, with their values if stored."""
    found: dict[str, tuple[RunOutput, Array | None]] = {}
    for item in items:
        output = decode(RunOutput, item)
        if output.name in found:
            raise damage_error(item.source, f"{item.place}: a new name", f"{output.name!r} again")
        found[output.name] = output, None if output.values is None else _values(output, item)
    return found


def _outputs(a: RunOutput, left: Array | None, b: RunOutput, right: Array | None) -> ArrayPair:
    """Compare an output of two saved runs."""
    equal, form = a.form == b.form and a.sha256 == b.sha256, (str(a.form), str(b.form))
    told: dict[str, Any] = {
        "a": form[0],
        "b": form[1],
        "equal": equal,
        "low": (a.min, b.min),
        "high": (a.max, b.max),
        "mean": (a.mean, b.mean),
    }
    if a.form != b.form:
        return ArrayPair(name=a.name, difference=Difference(prod(a.shape), form=form), **told)
    if equal or left is None or right is None:
        return ArrayPair(name=a.name, difference=Difference(prod(a.shape)) if equal else None, **told)
    return replace(_pair(a.name, left, right, EXACT), **told)


def _values(output: RunOutput, item: Item) -> Array:
    """The nested lists ``values`` as an array: numbers, or strings for complex and string tensors."""
    pending = [item["values"]]
    for _ in output.shape:
        pending = [inner for outer in pending for inner in outer]
    if len(pending) != prod(output.shape):
        raise damage_error(item.source, f"{item.place}.values: {prod(output.shape)} elements", str(len(pending)))
    texts = output.type in ("string", "complex64", "complex128")
    found = [
        json.dumps(each.value) if texts else int(each.value) if isinstance(each.value, bool) else each.number
        for each in pending
    ]
    dtype: type = object if texts else {"u": np.uint64, "i": np.int64, "b": np.int64}.get(output.type[:1], np.float64)
    if output.type == "bfloat16" or any(isinstance(each, float) for each in found):
        dtype = np.float64
    try:
        return np.array(found, dtype).reshape(output.shape)
    except (OverflowError, ValueError):
        raise damage_error(item.source, f"{item.place}.values: elements of {output.form}", "others") from None


def _checks(a: Path, b: Path, first: Item, second: Item) -> SavedChecks:
    """Compare two saved documents of qrun check."""
    left, right = ({model["path"].text: model for model in document["models"]} for document in (first, second))
    if len(left) == len(right) == 1:
        right = {next(iter(left)): next(iter(right.values()))}
    both = [path for path in left if path in right]
    before, after = (
        [decode(Found, f, model=path) for path in both for f in side[path]["findings"]] for side in (left, right)
    )
    new, gone = unmatched(after, before), unmatched(before, after)
    changed = [(path, *change) for path in both for change in _vectors(left[path], right[path])]
    kept = len(before) - len(gone)
    told = settings(first, second)
    return SavedChecks(a, b, told, tuple(new), tuple(gone), kept, tuple(changed), *unpaired_names(left, right))


def unmatched(found: Sequence[Found], others: Sequence[Found]) -> list[Found]:
    """The findings without a counterpart in `others`; each of the others matches one finding with the same key."""
    left = Counter(other.key for other in others)
    kept = []
    for finding in found:
        left[finding.key] -= 1
        if left[finding.key] < 0:
            kept.append(finding)
    return kept


def _vectors(a: Item, b: Item) -> list[tuple[str, str, str]]:
    """The recorded vectors whose status changed."""
    left, right = ({v["name"].text: v["status"].text for v in model["vectors"]} for model in (a, b))
    return [(change.name, change.a, change.b) for change in differing_settings(left, right)]
