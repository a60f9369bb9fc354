"""Reports on files: what two models store differently, two .npz or saved results compared, a run against a record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from qrun.comparing.modeldiff import KINDS, StoredDifference, stored_differences
from qrun.comparing.record import Recorded
from qrun.comparing.recordchanges import RecordComparison, TensorChange
from qrun.comparing.saved import LEAST, ArrayPair, Change, ElementPair, SavedArrays, SavedChecks, SavedProfiles
from qrun.declare import grouped
from qrun.declare.frozen import keys, replace
from qrun.documents.record import encode
from qrun.io.inputs import Feeds
from qrun.ir import Model
from qrun.ir.types import shape_text
from qrun.report.compare import limits
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, input_fields
from qrun.report.modelfacts import ModelFacts
from qrun.report.screen import BAD, GOOD, NAME, OPEN
from qrun.report.sheet import NONE, Block, Sheet, Sources, name_tables, settings_block, top_rows
from qrun.report.text import decibel, duration, file_size, number, plural

VERDICTS = {
    "close": "within the tolerance",
    "unknown": "not known",
    "form": "a different form",
    "same": "no measurable change",
    "few runs": f"below {LEAST} runs",
    "other work": "-",
}
"""The text of a verdict on a tensor or a time, where it is not the verdict's own name."""
Files = SavedArrays | SavedProfiles | SavedChecks | RecordComparison


def files_sheet(found: Files, top: int | None, sources: Sources = NONE) -> Sheet:
    """Lays out the report. top: rows per table, None for all; sources: where each input of a run came from."""
    sheet = _SHEETS[type(found)](found, top)
    return replace(sheet, verdict=sheet.verdict + chance(sources))


def files_fields(found: Files, feeds: Feeds | None = None) -> dict[str, Any]:
    """The body of the JSON report: ``files`` names the kind; everything compared is included. feeds: of a run."""
    kind = found.kind if isinstance(found, SavedArrays) else _KINDS[type(found)]
    fields = {"files": kind, "equal": found.equal, **_inputs_json(feeds), **encode(found)}
    if kind == "runs":
        fields["outputs"] = fields.pop("pairs")
    if isinstance(found, RecordComparison):
        fields["tensors"] = [_tensor_fields(change) for change in found.tensors]
    return fields


def _tensor_fields(change: TensorChange) -> dict[str, Any]:
    """The recorded and the present values of a tensor are included only if they differ."""
    now = change.now
    fields = {"name": now.name, "node": now.node, "op": now.op, "verdict": change.verdict}
    if change.verdict == "equal":
        return fields
    both = {
        side: {key: getattr(entry, name) for key, name in _ENTRY.items()}
        for side, entry in (("recorded", change.recorded), ("now", now))
    }
    return {**fields, **encode(change), **encode(both), "inputs_equal": change.inputs_equal}


_ENTRY = keys("name node op type shape sha256 min=low max=high mean nan inf saturated histogram quantiles sample ties")
"""The keys of a tensor's facts in this document, and their attributes. All are present; record.json leaves out empty
ones."""


def recorded_sheet(made: Recorded, sources: Sources = NONE, own: bool = False) -> Sheet:
    """Says what was written and its size. own: the results are qrun's own, which cannot show another runtime's."""
    what = f"recorded {plural(made.tensors, 'tensor')} in {made.folder} ({file_size(made.nbytes)})"
    notes = [
        "these are qrun's own results. A later comparison shows changes in qrun, or between machines, not what another "
        "runtime computes; to record onnxruntime's results, add --against ort or --against ort-optimized."
    ]
    return Sheet(verdict=f"{what}.{random}" if (random := chance(sources)) else what, notes=notes if own else ())


def recorded_fields(made: Recorded, feeds: Feeds | None = None) -> dict[str, Any]:
    return {**_inputs_json(feeds), "record": {"path": str(made.folder), "tensors": made.tensors, "bytes": made.nbytes}}


def _inputs_json(feeds: Feeds | None) -> dict[str, Any]:
    return {"inputs": input_fields(feeds)} if feeds else {}


def _answer(
    found: SavedArrays | SavedChecks, blocks: Sequence[Block], title: str, same: str, parts: Sequence[str], noun: str
) -> Sheet:
    """The report on two files. same: what is equal; parts: what differs, without each `noun` in one file only."""
    only = len(found.only_a) + len(found.only_b)
    told = [*parts, *([f"{plural(only, noun)} in one file only"] if only else [])]
    verdict = f"equal: {same}." if found.equal else f"differ: {'; '.join(told)}."
    return Sheet(blocks, verdict, GOOD if found.equal else BAD, about=[title])


def _arrays(found: SavedArrays, top: int | None) -> Sheet:
    """Lists the arrays that differ in value, then those that differ in type or shape."""
    noun = "array" if found.kind == "npz" else "output"
    differ = [pair for pair in found.pairs if not pair.equal]
    forms, valued = ([p for p in differ if bool(p.difference and p.difference.form) is odd] for odd in (True, False))
    blocks = settings_block(found.settings, "a", "b")
    blocks += top_rows(f"{noun.capitalize()}s that differ", _PAIR_COLUMNS[found.kind], valued, top, noun)
    blocks += top_rows("Types or shapes that differ", _FORM_COLUMNS, forms, top, noun)
    blocks += name_tables([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    total, within = plural(len(found.pairs), noun), found.tolerance
    title = f"a: {found.a}, b: {found.b}, {total} in both" + (
        f"; tolerance {limits(within) or 'none'}" if within else ""
    )
    parts = [f"{len(differ)} of {total}, first {differ[0].name}"] if differ else []
    return _answer(found, blocks, title, total if within else f"{total}, bit for bit", parts, noun)


def _largest(pair: ArrayPair) -> str:
    d = pair.difference
    return "-" if d is None else f"{d.largest:.0f}" if d.integral else number(d.largest)


def _elements(header: str, place: Callable[[ArrayPair], ElementPair | None], optional: int = 0) -> list[Column]:
    """Three columns about one element of a pair: its position and its value on each side."""

    def told(text: Callable[[ElementPair], Any]) -> Callable[[ArrayPair], str]:
        return lambda p: "-" if (e := place(p)) is None else v if isinstance(v := text(e), str) else number(v)

    return [
        Column(header, shrink=not optional, optional=optional, cell=told(lambda e: shape_text(e.index))),
        Column("a", right=True, optional=optional, cell=told(lambda e: e.a)),
        Column("b", right=True, optional=optional, cell=told(lambda e: e.b)),
    ]


def _both(ends: tuple[Any, Any]) -> str:
    return number(ends[0]) if ends[0] == ends[1] else f"{number(ends[0])} / {number(ends[1])}"


_VALUE_COLUMNS = [
    Column("name", style=NAME, shrink=2, cell=lambda p: p.name),
    Column("type", optional=4, cell=lambda p: p.a),
    Column(
        "differ",
        right=True,
        cell=lambda p: f"{p.difference.differing} of {p.difference.total}" if p.difference else "?",
    ),
    Column("largest", right=True, cell=_largest),
    Column("SQNR", right=True, optional=2, cell=lambda p: decibel(p.sqnr)),
    *_elements("first", lambda p: p.first),
    *_elements("worst", lambda p: p.worst, optional=1),
]
_PAIR_COLUMNS = {
    "npz": _VALUE_COLUMNS,
    "runs": [
        *_VALUE_COLUMNS,
        Column("min", optional=3, cell=lambda p: _both(p.low)),
        Column("max", optional=3, cell=lambda p: _both(p.high)),
        Column("mean", optional=2, cell=lambda p: _both(p.mean)),
    ],
}
_FORM_COLUMNS = [
    Column("name", style=NAME, shrink=1, cell=lambda p: p.name),
    Column("a", cell=lambda p: p.a),
    Column("b", cell=lambda p: p.b),
]


def _profiles(found: SavedProfiles, top: int | None) -> Sheet:
    """Shows the whole run first, then the nodes whose median changed most, in ms."""
    title = (
        f"before: {found.a}, after: {found.b}; a change exceeds the spread if the interquartile ranges do not overlap"
    )
    blocks = settings_block(found.settings, "before", "after")
    blocks.append(Block("Whole run", Grid.of(_times(lambda change: change), [found.whole])))
    heading = "Nodes, in graph order" if top is None else "Nodes that changed most, by the change of the median"
    ordered = sorted(found.nodes, key=lambda n: n.index if top is None else -abs(n.change.after - n.change.before))
    note = Column("note", optional=1, cell=lambda n: n.note) if any(n.note for n in ordered[:top]) else None
    blocks += top_rows(heading, [*_NODE_COLUMNS, *_times(lambda n: n.change), note], ordered, top, "node", True)
    for heading, nodes in (("Only before", found.only_a), ("Only after", found.only_b)):
        blocks += top_rows(heading, _LONE_COLUMNS, nodes, top, "node", True)
    ways = {"slower": BAD, "faster": GOOD} if found.same_work else {found.whole.verdict: BAD}
    return Sheet(blocks, _outcome(found), ways.get(found.whole.verdict, OPEN), about=[title])


def _outcome(found: SavedProfiles) -> str:
    c = found.whole
    times = f"{duration(c.before * 1e6)} before, {duration(c.after * 1e6)} after"
    if not found.same_work:
        return f"differ: the models or inputs are not the same, so the times cannot be compared: {times}."
    told = {
        "slower": "slower",
        "faster": "faster",
        "same": "no measurable change",
        "few runs": f"fewer than {LEAST} runs, too few to know the spread",
    }[c.verdict]
    return f"{told}: {times} ({_relative(c)}){_nodes(found)}."


def _nodes(found: SavedProfiles) -> str:
    """The number of nodes that became slower, and faster, by more than the spread."""
    counts = {way: sum(n.change.verdict == way for n in found.nodes) for way in ("slower", "faster")}
    told = [f"{plural(count, 'node')} {way}" for way, count in counts.items() if count]
    return f"; {' and '.join(told)}" if told else ""


def _times(change: Callable[[Any], Change]) -> list[Column]:
    return [
        Column("before", right=True, cell=lambda row: duration(change(row).before * 1e6)),
        Column("after", right=True, cell=lambda row: duration(change(row).after * 1e6)),
        Column("change", right=True, cell=lambda row: _relative(change(row))),
        Column("verdict", cell=lambda row: VERDICTS.get(change(row).verdict, change(row).verdict)),
    ]


def _relative(c: Change) -> str:
    """The relative change as ``+2.5 %``; as ``115 x`` if the time grew tenfold or more."""
    if c.relative is None:
        return "-"
    return f"{c.relative * 100:+.1f} %" if c.relative < 9 else f"{c.relative + 1:.0f} x"


_NODE_COLUMNS = [
    Column("#", right=True, cell=lambda n: str(n.index)),
    Column("node", style=NAME, shrink=2, cell=lambda n: n.name or f"{n.op}_{n.index}"),
    Column("op", shrink=1, optional=2, cell=lambda n: n.op),
]
_LONE_COLUMNS = [*_NODE_COLUMNS, Column("median", right=True, cell=lambda n: duration(n.median * 1e6))]


def _checks(found: SavedChecks, top: int | None) -> Sheet:
    """Lists new findings, findings that are gone, and vectors whose status changed."""
    title = f"a: {found.a}, b: {found.b}, {plural(found.kept, 'finding')} in both"
    blocks = settings_block(found.settings, "a", "b")
    blocks += top_rows("New findings", _FINDING_COLUMNS, found.new, top, "finding")
    blocks += top_rows("Findings that are gone", _FINDING_COLUMNS, found.gone, top, "finding")
    blocks += top_rows("Vectors", _VECTOR_COLUMNS, found.vectors, top, "vector")
    blocks += name_tables([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    parts = [f"{plural(len(found.new), 'new finding')}, {len(found.gone)} gone"] if found.new or found.gone else []
    parts += [f"{plural(len(found.vectors), 'vector')} with a different status"] if found.vectors else []
    return _answer(found, blocks, title, plural(found.kept, "finding"), parts, "model")


_FINDING_COLUMNS = [
    Column("level", cell=lambda f: f.level),
    Column("rule", cell=lambda f: f"{f.rule} {f.name}"),
    Column("model", shrink=1, optional=1, cell=lambda f: f.model),
    Column("node", style=NAME, shrink=3, cell=lambda f: f.node),
    Column("tensor", style=NAME, shrink=2, cell=lambda f: f.tensor),
    Column("message", wrap=True, below=True, cell=lambda f: f.message),
]
_VECTOR_COLUMNS = [
    Column("model", shrink=1, cell=itemgetter(0)),
    Column("vector", shrink=2, cell=itemgetter(1)),
    Column("a", cell=itemgetter(2)),
    Column("b", cell=itemgetter(3)),
]


def _record(found: RecordComparison, top: int | None) -> Sheet:
    changed = [t for t in found.tensors if t.verdict != "equal"]
    title = (
        f"{found.now or 'this run'} against {found.recorded} in {found.folder}, {plural(len(found.tensors), 'tensor')}"
    )
    blocks = settings_block(found.settings, "recorded", "now")
    if found.first is not None:
        blocks.append(Block("First difference", facts=_first(found.first)))
        later = [t for t in changed if t is not found.first]
        blocks += top_rows("Other tensors that differ, with lower bounds", _CHANGE_COLUMNS, later, top, "tensor", True)
    blocks += name_tables([("Only in the record", found.only_recorded), ("Only in this run", found.only_now)], top)
    told = _record_verdict(found, len(changed))
    return Sheet(blocks, told, GOOD if found.equal else BAD if told.startswith("differ") else OPEN, about=[title])


def _record_verdict(found: RecordComparison, changed: int) -> str:
    """Says equal, different, or inconclusive."""
    if found.first is None:
        return f"equal: {plural(len(found.tensors), 'tensor')}, bit for bit."
    count = f"{changed} of {plural(len(found.tensors), 'tensor')} with different bits"
    if found.equal:
        return f"equal within the tolerance: {count}."
    undecided, differ = len(found.undecided), sum(t.verdict in ("differs", "form") for t in found.tensors)
    if not differ:
        these = f"{plural(undecided, 'tensor')} {'is' if undecided == 1 else 'are'}"
        return (
            f"inconclusive: {count}; the record cannot tell whether {these} within the tolerance. "
            "To decide, save all tensors of both runs (qrun run -t '*' -o FILE.npz) and compare the files."
        )
    parts = [f"{differ} beyond the tolerance"] if differ < changed else []
    parts += [f"{undecided} undecided by the record"] if undecided else []
    at = found.first.now
    return f"differ: first at node {at.node}, {at.name}; {'; '.join([count, *parts])}."


def _first(change: TensorChange) -> list[tuple[str, str]]:
    old, new = change.recorded, change.now
    facts = [("tensor", new.name), ("node", f"{new.node}  {new.op}"), ("type", _form(change))]
    if change.verdict != "form":
        facts.append(("differ", f"at least {plural(change.elements, 'element')}" + _step(change)))
        facts += [
            ("where", f"{shape_text(s.index)}  recorded {number(s.recorded)}  now {number(s.now)}")
            for s in change.sampled[:1]
        ]
        facts.append(("sample", f"{len(change.sampled)} of {len(old.sample)} sampled elements differ"))
        pairs = [(told, getattr(old, name), getattr(new, name)) for told, name in _STATISTICS.items()]
        facts += [(told, f"recorded {number(x)}  now {number(y)}") for told, x, y in pairs if x != y]
    states = {True: "equal bit for bit", False: "different bits", None: "not all known"}
    facts.append(("inputs", states[change.inputs_equal]))
    return facts + ([("reading", change.reading)] if change.reading else [])


_STATISTICS = {"min": "low", "max": "high", "mean": "mean", "NaN": "nan", "Inf": "inf"}


def _form(change: TensorChange) -> str:
    texts = list(dict.fromkeys(f"{e.type} {shape_text(e.shape)}" for e in (change.recorded, change.now)))
    return texts[0] if len(texts) == 1 else f"recorded {texts[0]}  now {texts[1]}"


def _step(change: TensorChange) -> str:
    if not change.step:
        return ""
    steps = change.now.type.startswith(("int", "uint"))
    return f", one by at least {plural(round(change.step), 'step') if steps else number(change.step)}"


_INPUTS = {True: "equal", False: "different bits", None: "-"}
_CHANGE_COLUMNS = [
    Column("#", right=True, cell=lambda c: str(c.now.node)),
    Column("tensor", style=NAME, shrink=2, cell=lambda c: c.now.name),
    Column("op", optional=2, cell=lambda c: c.now.op),
    Column("type", optional=1, cell=_form),
    Column("elements", right=True, cell=lambda c: str(c.elements)),
    Column("by", right=True, cell=lambda c: number(c.step) if c.step else "-"),
    Column("inputs", optional=3, cell=lambda c: _INPUTS[c.inputs_equal]),
    Column("verdict", cell=lambda c: VERDICTS.get(c.verdict, c.verdict)),
]
_SHEETS: Mapping[type, Callable[[Any, int | None], Sheet]] = {
    SavedArrays: _arrays,
    SavedProfiles: _profiles,
    SavedChecks: _checks,
    RecordComparison: _record,
}
_KINDS = {SavedProfiles: "profiles", SavedChecks: "checks", RecordComparison: "record"}
"""The kind of each comparison in JSON."""


def in_the_files(a: Model, b: Model) -> list[StoredDifference] | None:
    """Everything that two quantized models store differently; None if one of them is not quantized."""
    return None if "float" in (ModelFacts(a).form, ModelFacts(b).form) else stored_differences(a, b)


def _kinds_text(found: Sequence[StoredDifference]) -> str:
    """The number of differences of each kind."""
    counts = Counter(d.kind for d in found)
    return ", ".join(plural(n, kind) for kind, n in counts.items())


def _group_differences(found: Sequence[StoredDifference]) -> list[StoredDifference]:
    """Merges the nodes of one operator that only one model has into one row with their number; keeps the rest."""
    lone = [d for d in found if d.kind == "node" and "-" in (d.a, d.b)]
    rows = []
    for first, *others in grouped(((d.name, d.change), d) for d in lone).values():
        node = f"{first.node} and {plural(len(others), 'more node')}" if others else first.node
        a, b = (text if text == "-" else str(len(others) + 1) for text in (first.a, first.b))
        rows.append(replace(first, node=node, a=a, b=b))
    return sorted([*rows, *(d for d in found if d not in lone)], key=lambda d: KINDS.index(d.kind))


def files_block(found: Sequence[StoredDifference], top: int | None) -> Block:
    """The first `top` differences, None for all, and the number of each kind."""
    if not found:
        same = "Both have the same nodes, attributes, scales, zero points and weights."
        return Block("What differs in the files", lines=[same])
    rows = _group_differences(found)
    shown, rest = rows[:top], rows[len(rows[:top]) :]
    more = f"{plural(len(rest), 'more row')}: {_kinds_text(rest)}   --top all, --json" if rest else ""
    columns = [
        Column("what", cell=lambda d: d.kind),
        Column("name", style=NAME, shrink=1, cell=lambda d: d.name),
        Column("node", style=NAME, shrink=2, optional=1, cell=lambda d: d.node),
        Column("first", right=True, cell=lambda d: d.a),
        Column("second", right=True, cell=lambda d: d.b),
        Column("change", cell=lambda d: d.change),
    ]
    return Block(f"What differs in the files: {_kinds_text(found)}", Grid.of(columns, shown), more=more)
