"""Reports of comparisons with files: two .npz, two saved results, a run with a record; as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from qrun.comparing.archives import Archives, ArrayPair, ElementPair
from qrun.comparing.records.compare import RecordComparison, TensorChange
from qrun.comparing.records.record import Recorded
from qrun.comparing.saved import SavedChecks, SavedRuns
from qrun.comparing.savedprofiles import SavedProfiles
from qrun.declare.frozen import keys
from qrun.documents.record import encode
from qrun.io.inputs import Feeds
from qrun.ir.types import shape_text
from qrun.report.compare import limits
from qrun.report.comparesaved import answer, check_sheet, profile_sheet, run_sheet
from qrun.report.grid import Column
from qrun.report.header import chance, input_fields
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.sheet import NONE, Block, Sheet, Sources, listed, settings_block, top_rows
from qrun.report.text import decibel, file_size, number, percent, plural

VERDICTS = {"close": "within the tolerance", "unknown": "not known", "form": "another form"}
Files = Archives | SavedRuns | SavedProfiles | SavedChecks | RecordComparison


def files_sheet(found: Files, top: int | None, sources: Sources = NONE) -> Sheet:
    """The report. top: rows of each table, None for all; sources: of a run's inputs."""
    sheet = _KINDS[type(found)][1](found, top)
    return replace(sheet, verdict=sheet.verdict + chance(sources))


def files_fields(found: Files, feeds: Feeds | None = None) -> dict[str, Any]:
    """The body of the JSON report: ``files`` names the kind; everything that was compared, whole. feeds: of a run."""
    fields = {"files": _KINDS[type(found)][0], "equal": found.equal, **_fed(feeds), **encode(found)}
    if isinstance(found, RecordComparison):
        fields["tensors"] = [_tensor_fields(change) for change in found.tensors]
    return fields


def _tensor_fields(change: TensorChange) -> dict[str, Any]:
    """What was recorded and what is now only where the two differ."""
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
"""What this document calls the facts of a tensor, which has all of them:
record.json leaves out what there is nothing of."""


def recorded_sheet(made: Recorded, sources: Sources = NONE, own: bool = False) -> Sheet:
    """What was written and how large it is. own: of qrun's own results, which cannot show what another runtime does."""
    what = f"recorded {plural(made.tensors, 'tensor')} in {made.folder} ({file_size(made.nbytes)})"
    notes = [
        "these are qrun's own results: a later comparison shows what changed in qrun, or from machine to machine, not what "
        "another runtime computes; --against ort, or ort-optimized, records that one."
    ]
    return Sheet(verdict=f"{what}.{random}" if (random := chance(sources)) else what, notes=notes if own else ())


def recorded_fields(made: Recorded, feeds: Feeds | None = None) -> dict[str, Any]:
    return {**_fed(feeds), "record": {"path": str(made.folder), "tensors": made.tensors, "bytes": made.nbytes}}


def _fed(feeds: Feeds | None) -> dict[str, Any]:
    return {"inputs": input_fields(feeds)} if feeds else {}


def _archives(found: Archives, top: int | None) -> Sheet:
    differ = [pair for pair in found.pairs if not pair.difference.equal]
    forms, valued = ([p for p in differ if (p.difference.form is None) is alike] for alike in (False, True))
    blocks = top_rows("Arrays that differ", _PAIR_COLUMNS, valued, top, "array")
    blocks += top_rows("Types or shapes that differ", _FORM_COLUMNS, forms, top, "array")
    blocks += listed([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    title = (
        f"a: {found.a}, b: {found.b}, {plural(len(found.pairs), 'array')} in both; "
        f"tolerance {limits(found.tolerance) or 'none'}"
    )
    parts = [f"{len(differ)} of {plural(len(found.pairs), 'array')}, first {differ[0].name}"] if differ else []
    return answer(found, blocks, title, plural(len(found.pairs), "array"), parts, "array")


def _largest(pair: ArrayPair) -> str:
    return f"{pair.difference.largest:.0f}" if pair.difference.integral else number(pair.difference.largest)


def _elements(header: str, place: Callable[[ArrayPair], ElementPair | None], optional: int = 0) -> list[Column]:
    """The columns of an element: where it is, and both values."""

    def told(text: Callable[[ElementPair], Any]) -> Callable[[ArrayPair], str]:
        return lambda p: "-" if (e := place(p)) is None else v if isinstance(v := text(e), str) else number(v)

    return [
        Column(header, shrink=not optional, optional=optional, cell=told(lambda e: shape_text(e.index))),
        Column("a", right=True, optional=optional, cell=told(lambda e: e.a)),
        Column("b", right=True, optional=optional, cell=told(lambda e: e.b)),
    ]


_PAIR_COLUMNS = [
    Column("key", shrink=2, cell=lambda p: p.name),
    Column("type", optional=4, cell=lambda p: p.a),
    Column("differ", right=True, cell=lambda p: percent(p.difference.differing / p.difference.total)),
    Column("largest", right=True, cell=_largest),
    Column("SQNR", right=True, optional=2, cell=lambda p: decibel(p.sqnr)),
    *_elements("first", lambda p: p.first),
    *_elements("worst", lambda p: p.worst, optional=1),
]


_FORM_COLUMNS = [
    Column("key", shrink=1, cell=lambda p: p.name),
    Column("a", cell=lambda p: p.a),
    Column("b", cell=lambda p: p.b),
]


def _record(found: RecordComparison, top: int | None) -> Sheet:
    changed = [t for t in found.tensors if t.verdict != "equal"]
    title = f"{found.now or 'this run'}, and in {found.folder} {found.recorded}, {plural(len(found.tensors), 'tensor')}"
    blocks = settings_block(found.settings, "recorded", "now")
    if found.first is not None:
        blocks.append(Block("First difference", facts=_first(found.first)))
        later = [t for t in changed if t is not found.first]
        blocks += top_rows("Others, of which at least so much differs", _CHANGE_COLUMNS, later, top, "tensor", True)
    blocks += listed([("Only in the record", found.only_recorded), ("Only in this run", found.only_now)], top)
    told = _record_verdict(found, len(changed))
    return Sheet(blocks, told, GOOD if found.equal else BAD if told.startswith("differ") else OPEN, about=[title])


def _record_verdict(found: RecordComparison, changed: int) -> str:
    """Equal, different, or not known."""
    if found.first is None:
        return f"equal: {plural(len(found.tensors), 'tensor')}, bit for bit."
    count = f"{changed} of {plural(len(found.tensors), 'tensor')} with other bits"
    if found.equal:
        return f"equal within the tolerance: {count}."
    undecided, differ = len(found.undecided), sum(t.verdict in ("differs", "form") for t in found.tensors)
    if not differ:
        these = f"{undecided} whether {'it is' if undecided == 1 else 'they are'}"
        return (
            f"not decided: {count}; the record cannot tell of {these} within the tolerance. "
            "To decide, save all tensors of both runs (qrun run -t '*' -o FILE.npz) and compare the files."
        )
    parts = [f"{differ} beyond the tolerance"] if differ < changed else []
    parts += [f"of {undecided} the record cannot tell"] if undecided else []
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
    states = {True: "equal bit for bit", False: "other bits", None: "not all known"}
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


_INPUTS = {True: "equal", False: "other bits", None: "-"}
_CHANGE_COLUMNS = [
    Column("#", right=True, cell=lambda c: str(c.now.node)),
    Column("tensor", shrink=2, cell=lambda c: c.now.name),
    Column("op", optional=2, cell=lambda c: c.now.op),
    Column("type", optional=1, cell=_form),
    Column("elements", right=True, cell=lambda c: str(c.elements)),
    Column("by", right=True, cell=lambda c: number(c.step) if c.step else "-"),
    Column("inputs", optional=3, cell=lambda c: _INPUTS[c.inputs_equal]),
    Column("verdict", cell=lambda c: VERDICTS.get(c.verdict, c.verdict)),
]
_KINDS: Mapping[type, tuple[str, Callable[[Any, int | None], Sheet]]] = {
    Archives: ("npz", _archives),
    SavedRuns: ("runs", run_sheet),
    SavedProfiles: ("profiles", profile_sheet),
    SavedChecks: ("checks", check_sheet),
    RecordComparison: ("record", _record),
}
"""What each comparison is called in JSON, and its report."""
