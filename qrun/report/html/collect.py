"""Collects what a page shows from the JSON documents of one model, and sorts documents by model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from shlex import quote
from typing import Any

from qrun.checking.rules import LEVELS, Finding
from qrun.declare.frozen import frozen
from qrun.documents.answers import (
    Environment,
    FedInput,
    GroupTimes,
    InsideTimes,
    ModelFile,
    ProfileNode,
    RunOutput,
    Samples,
    TensorCodes,
)
from qrun.documents.record import Item, decode, encode
from qrun.errors import CallError
from qrun.evaluating.evaluation import Evaluation
from qrun.io.jsonfile import damage_error
from qrun.running.machine import Machine

Document = tuple[str, Item]
"""The NAME of a document's schema ``qrun/NAME/1.x``, and its content."""
KINDS = ("check", "profile", "run", "compare", "eval")
MEASURED = ("profile", "run", "compare")
"""Kinds of documents about one model each, in the order in which they decide which model that is."""


def items(item: Item | None, key: str) -> Iterable[Item]:
    """The values of a list; () if it is missing."""
    found = item.find(key) if item else None
    return found or ()


MOST = 2000
"""The most nodes on a page, the slowest of larger models; and the most tensors, the first of larger models."""


@frozen
class Measurement:
    """The circumstances of a measurement, as a document states them in addition to its results."""

    model: ModelFile | None = None
    quantized: ModelFile | None = None
    environment: Environment | None = None
    inputs: tuple[FedInput, ...] = ()
    symbols: Mapping[str, int] = field(default_factory=dict)
    machine: Machine | None = None
    run: Samples | None = None
    load_ms: float | None = None
    time_ms: float | None = None
    peak_bytes: int | None = None
    notes: tuple[str, ...] = ()


@frozen
class CheckedModel:
    """The findings, worst first, the number of rules that ran, and the vectors by status.

    paths: the model of each finding, if there are several models. rules: 0 for those of qrun run.
    """

    findings: tuple[Finding, ...]
    paths: tuple[str, ...]
    rules: int = 0
    vectors: Mapping[str, int] = field(default_factory=dict)


@frozen
class PageContent:
    """Everything that a page shows.

    told:  each fact from the first document that has it; time: of whole runs, None if unknown.
    nodes: in graph order, the slowest if there are more than MOST; all_nodes: how many the model has.
    inside: the slowest nodes of graphs inside nodes, at most MOST.
    sum_ms, macs: of all nodes; run_ms: of a run, at least sum_ms.
    edges: from a node to one that reads it, by index; none for saved results. outputs: of a run.
    against: in a profile, another runtime; groups: of nodes that either of them ran as a whole.
    comparison: a document of qrun compare; evaluation: of qrun eval.
    data: the documents themselves, for other programs.
    """

    command: Sequence[str]
    date: str
    model: ModelFile
    told: Measurement
    checked: CheckedModel | None
    time: Samples | None
    nodes: Sequence[ProfileNode]
    all_nodes: int
    sum_ms: float
    run_ms: float
    macs: int
    inside: Sequence[InsideTimes]
    tensors: Sequence[TensorCodes]
    all_tensors: int
    outputs: Sequence[RunOutput]
    edges: Sequence[tuple[int, int]]
    against: Item | None
    groups: Sequence[GroupTimes]
    comparison: Item | None
    evaluation: Evaluation | None
    data: Mapping[str, Any]


def page_of(documents: Sequence[Document], command: Sequence[str], date: str) -> PageContent:
    """Collects everything that a page shows.

    documents: reports of one model; a later one replaces an earlier one of the same kind. Kinds in addition to KINDS:
               ``quantization``, with one record a tensor under ``tensors``, ``outputs``,
               and ``graph`` with its ``edges``.
    command:   the command that makes the page again; date: the page's date, as it is shown.
    Raises CallError if a value is of another kind than its schema says, or the reports are of different models.
    """
    by_kind, one = dict(documents), page_model(documents)
    told = {kind: decode(Measurement, by_kind[kind], True) for kind in MEASURED if kind in by_kind}
    checked, ran = _find_checks(by_kind, one), by_kind.get("profile") or by_kind.get("run")
    every, runs = [_node(n) for n in items(ran, "nodes")], next(iter(told.values()), Measurement())
    total, against = sum(n.median_ms for n in every), ran.find("against") if ran else None
    time = runs.run or (Samples(runs.time_ms) if runs.time_ms else Samples())
    whole = max(total, time.median_ms) if ran else total
    ranked = sorted(range(len(every)), key=lambda at: -every[at].median_ms)
    nodes = [replace(every[at], share=every[at].median_ms / total if total else 0.0) for at in sorted(ranked[:MOST])]
    tensors, comparison = list(items(by_kind.get("quantization"), "tensors")), by_kind.get("compare")
    if comparison is not None and comparison["kind"].text not in ("runtimes", "models"):
        raise damage_error(
            comparison.source,
            "a comparison of two runtimes or of two models",
            comparison["kind"].text,
            "qrun compare MODEL --against RUNTIME --json, or qrun compare FLOAT MODEL --json, saves one",
        )
    shown = {n.index for n in nodes}
    return PageContent(
        command,
        date,
        _model(told.values(), by_kind),
        _together(told.values()),
        checked,
        runs.run or (Samples(runs.time_ms, samples_ms=(runs.time_ms,)) if runs.time_ms is not None else None),
        nodes,
        len(every),
        total,
        whole,
        sum(n.macs for n in every),
        sorted((decode(InsideTimes, item) for item in items(ran, "inside")), key=lambda row: -row.time_ms)[:MOST],
        [decode(TensorCodes, t, True) for t in tensors[:MOST]],
        len(tensors),
        [decode(RunOutput, o) for o in items(by_kind.get("outputs") or by_kind.get("run"), "outputs")][:MOST],
        [(a.size, b.size) for a, b in items(by_kind.get("graph"), "edges")],
        against,
        list(_groups(against, every)),
        comparison,
        decode(Evaluation, by_kind["eval"]) if "eval" in by_kind else None,
        {kind: _data(item, shown) for kind, item in by_kind.items()},
    )


def _together(told: Iterable[Measurement]) -> Measurement:
    """Merges measurements: each field is taken from the first measurement that has it."""
    found: dict[str, Any] = {}
    for each in told:
        values = (
            (name, getattr(each, name))
            for name in ("environment", "inputs", "symbols", "machine", "load_ms", "peak_bytes", "notes")
        )
        found = {**{name: value for name, value in values if value}, **found}
    return Measurement(**found)


def _model(told: Iterable[Measurement], by_kind: Mapping[str, Item]) -> ModelFile:
    for each in told:
        if model := each.model or each.quantized:
            return model
    models = next((records(kind, by_kind[kind]) for kind in ("check", "eval") if kind in by_kind), [])
    return models[0] if len(models) == 1 else ModelFile(f"{len(models)} models" if models else None)


def _find_checks(by_kind: Mapping[str, Item], page: ModelFile | None) -> CheckedModel | None:
    check, run = by_kind.get("check"), by_kind.get("run")
    if check is None:
        if run is None or not run.find("findings"):
            return None
        found = [(_finding(f), "") for f in items(run, "findings")]
        return _order(found)
    models = list(items(check, "models"))
    same = models if page is None else of_model(models, page)
    several = len(same) > 1
    found = [(_finding(f), m["path"].text if several else "") for m in same for f in items(m, "findings")]
    states = [v["status"].text for m in same for v in items(m, "vectors")]
    rules = len({r.text for m in same for r in items(m, "rules")})
    return replace(_order(found), rules=rules, vectors={state: states.count(state) for state in dict.fromkeys(states)})


def _order(found: list[tuple[Finding, str]]) -> CheckedModel:
    worst = sorted(found, key=lambda pair: LEVELS.index(pair[0].level))
    return CheckedModel(tuple(f for f, _ in worst), tuple(path for _, path in worst))


def _finding(item: Item) -> Finding:
    finding = decode(Finding, item)
    return finding if finding.level in LEVELS else replace(finding, level="note")


def _node(item: Item) -> ProfileNode:
    """A node of a profile, or of a run, whose time becomes its median; times are rounded to nanoseconds."""
    node = decode(ProfileNode, item, True)
    time = item.find("time_ms") if item.find("median_ms") is None else None
    median = round(node.median_ms if time is None else time.real, 6)
    return replace(
        node,
        median_ms=median,
        median_ns=median * 1e6,
        roof_ns=None if node.roof_share is None else node.roof_share * median * 1e6,
        p90_ms=None if node.p90_ms is None else round(node.p90_ms, 6),
        gmacs=round(node.macs / median / 1e6, 3) if node.macs and median else None,
        ran_by=node.ran_by or node.kernel_text,
        samples_ms=(),
    )


def _groups(against: Item | None, rows: Sequence[ProfileNode]) -> Iterator[GroupTimes]:
    """The groups of nodes that ran, with the nodes of both runtimes. rows: qrun's."""
    other_rows = [_node(n) for n in items(against, "nodes")]
    for item in items(against, "groups"):
        group = decode(GroupTimes, item, True)
        if max(group.events, default=-1) >= len(rows) or max(group.other_events, default=-1) >= len(other_rows):
            raise damage_error(item.source, f"{item.place}: places of nodes", "places where no node is")
        mine, others = [rows[at] for at in group.events], [other_rows[at] for at in group.other_events]
        top = max(mine or others, key=lambda row: (row.macs, row.median_ns), default=None)
        if not group.folded:
            yield replace(group, mine=tuple(mine), others=tuple(others), heaviest=top)


def _data(item: Item, nodes: Set[int]) -> Mapping[str, Any]:
    """A document without the parts that a page omits: nodes that are left out, tensors after the first, single
    samples."""
    kept: dict[str, Any] = {}
    for key, value in item.value.items():
        if key == "nodes" and isinstance(value, list):
            kept[key] = [_without_samples(node) for node in value if node["index"] in nodes]
        else:
            kept[key] = value[:MOST] if key == "tensors" else _without_samples(value)
    try:
        return dict(encode(kept))
    except RecursionError:
        raise damage_error(item.source, "a document", "values deep inside of each other") from None


def _without_samples(value: Any) -> Any:
    return {k: v for k, v in value.items() if k != "samples_ms"} if isinstance(value, dict) else value


def by_model(documents: Sequence[Document]) -> list[list[Document]]:
    """Sorts documents into groups of one model each, in the order in which the models come.

    A second document of the same kind and model gets a group of its own, such as one before a change and one after. A
    document of several models (a check of a folder, an evaluation) goes into each of their groups; a comparison of
    several models with a first one becomes one comparison for each. Raises CallError if a document of several models
    has none in common with the others.
    """
    several, groups = [], list[list[Document]]()
    for kind, item in (one for document in documents for one in _each(*document)):
        mine = records(kind, item)
        if len(mine) > 1:
            several.append((kind, item))
            continue
        group = next((g for g in groups if kind not in dict(g) and _same(records(*g[0]), mine)), None)
        if group is None:
            groups.append([(kind, item)])
        else:
            group.append((kind, item))
    if not groups:
        return [several]
    for kind, item in several:
        fitting = [g for g in groups if kind not in dict(g) and _same(records(*g[0]), records(kind, item))]
        if not fitting:
            raise _different(groups[0][0][1], records(*groups[0][0]), kind, item, records(kind, item))
        for group in fitting:
            group.append((kind, item))
    return groups


def _each(kind: str, item: Item) -> list[Document]:
    """Splits a document that compares several models with a first one into comparisons; keeps any other one."""
    if kind != "compare" or not item.find("candidates"):
        return [(kind, item)]
    return [(kind, Item({**one.value, "kind": "models"}, one.source, one.place)) for one in item["candidates"]]


def _same(first: Sequence[ModelFile], second: Sequence[ModelFile]) -> bool:
    """Whether they have a model in common; a document about no model fits any."""
    return not first or not second or any(a.is_the(b) for a in first for b in second)


def records(kind: str, item: Item) -> list[ModelFile]:
    """The models that a document is about; a check has several."""
    if kind == "check":
        return [decode(ModelFile, m) for m in items(item, "models")]
    if kind == "eval":
        return [ModelFile(m["label"].text, m["sha256"].text) for m in items(item, "models")]
    found = (item.find("model") or item.find("quantized")) if kind in MEASURED else None
    return [] if found is None else [decode(ModelFile, found)]


def of_model(found: Iterable[Item], model: ModelFile) -> list[Item]:
    """The models of a check that are this one: those with its path, or with its content if none has its path."""
    same = [(item, record) for item in found if (record := decode(ModelFile, item)).is_the(model)]
    return [item for item, record in same if record.path == model.path] or [item for item, _ in same]


def page_model(documents: Sequence[Document]) -> ModelFile | None:
    """The model of a page; None if only checks state models. Raises CallError if two documents have no model in
    common."""
    told = [(kind, item, records(kind, item)) for kind, item in documents]
    ranks = {kind: rank for rank, kind in enumerate(MEASURED)}
    told = [each for each in sorted(told, key=lambda each: ranks.get(each[0], len(ranks))) if each[2]]
    if not told:
        return None
    first_kind, first, mine = told[0]
    for kind, item, others in told[1:]:
        if not _same(mine, others):
            raise _different(first, mine, kind, item, others)
    return mine[0] if first_kind in MEASURED else None


def _different(first: Item, mine: Sequence[ModelFile], kind: str, item: Item, others: Sequence[ModelFile]) -> CallError:
    facts = [
        (number, f"{document.source}: {'; '.join(map(str, found))}")
        for number, document, found in (("first", first, mine), ("second", item, others))
    ]
    fixes = [
        f"one page for each: qrun report {quote(d.source)} -o {name}.html"
        for d, name in ((first, "first"), (item, "second"))
    ]
    if path := mine[0].path:
        fixes.append(f"qrun {kind} {quote(path)} --json > OTHER.json goes with {first.source}")
    where = [first.source, item.source]
    return CallError("QR005", "these reports are of different models", where=where, facts=facts, fixes=fixes)
