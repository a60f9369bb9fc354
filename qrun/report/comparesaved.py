"""Reports of two saved profiles, runs or checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from qrun.comparing.archives import Archives
from qrun.comparing.saved import OutputPair, SavedChecks, SavedRuns
from qrun.comparing.savedprofiles import LEAST, Change, SavedProfiles
from qrun.ir.types import shape_text
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.sheet import Block, Sheet, listed, settings_block, top_rows
from qrun.report.text import duration, number, plural

VERDICTS = {
    "slower": "slower",
    "faster": "faster",
    "same": "within the spread",
    "few runs": f"below {LEAST} runs",
    "other work": "-",
}


def profile_sheet(found: SavedProfiles, top: int | None) -> Sheet:
    """Whole run first, then the nodes whose median changed most, in ms."""
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
        return f"differ: not the same model on the same inputs, so their times cannot be compared: {times}."
    told = {
        "slower": "slower, more than the spread",
        "faster": "faster, more than the spread",
        "same": "no change of the whole run beyond the spread",
        "few runs": f"fewer than {LEAST} runs, which tell no spread",
    }[c.verdict]
    return f"{told}: {times} ({_relative(c)}){_nodes(found)}."


def _nodes(found: SavedProfiles) -> str:
    """How many nodes changed by more than the spread, and which way."""
    counts = {way: sum(n.change.verdict == way for n in found.nodes) for way in ("slower", "faster")}
    told = [f"{plural(count, 'node')} {way}" for way, count in counts.items() if count]
    return f"; {' and '.join(told)}, more than the spread" if told else ""


def _times(change: Callable[[Any], Change]) -> list[Column]:
    return [
        Column("before", right=True, cell=lambda row: duration(change(row).before * 1e6)),
        Column("after", right=True, cell=lambda row: duration(change(row).after * 1e6)),
        Column("change", right=True, cell=lambda row: _relative(change(row))),
        Column("verdict", cell=lambda row: VERDICTS[change(row).verdict]),
    ]


def _relative(c: Change) -> str:
    """``+2.5%``; from ten times as long on ``115 x``."""
    if c.relative is None:
        return "-"
    return f"{c.relative * 100:+.1f}%" if c.relative < 9 else f"{c.relative + 1:.0f} x"


_NODE_COLUMNS = [
    Column("#", right=True, cell=lambda n: str(n.index)),
    Column("node", shrink=2, cell=lambda n: n.name or f"{n.op}_{n.index}"),
    Column("op", shrink=1, optional=2, cell=lambda n: n.op),
]
_LONE_COLUMNS = [*_NODE_COLUMNS, Column("median", right=True, cell=lambda n: duration(n.median * 1e6))]


def run_sheet(found: SavedRuns, top: int | None) -> Sheet:
    """The outputs that differ."""
    title = f"a: {found.a}, b: {found.b}, {plural(len(found.outputs), 'output')} in both"
    differ = [pair for pair in found.outputs if not pair.equal]
    blocks = settings_block(found.settings, "a", "b")
    blocks += top_rows("Outputs that differ", _OUTPUT_COLUMNS, differ, top, "output")
    blocks += listed([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    parts = [f"{len(differ)} of {plural(len(found.outputs), 'output')}, first {differ[0].name}"] if differ else []
    same = f"{plural(len(found.outputs), 'output')}, bit for bit"
    return answer(found, blocks, title, same, parts, "output")


def answer(
    found: Archives | SavedRuns | SavedChecks,
    blocks: Sequence[Block],
    title: str,
    same: str,
    parts: Sequence[str],
    noun: str,
) -> Sheet:
    """The report of two files. same: what is equal; parts: what differs, besides each `noun` that only one file has."""
    only = len(found.only_a) + len(found.only_b)
    told = [*parts, *([f"{plural(only, noun)} in one file only"] if only else [])]
    verdict = f"equal: {same}." if found.equal else f"differ: {'; '.join(told)}."
    return Sheet(blocks, verdict, GOOD if found.equal else BAD, about=[title])


def _first(pair: OutputPair) -> str:
    if pair.first is None:
        return "-"
    index, *values = pair.first
    return f"{shape_text(index)} {' / '.join(v if isinstance(v, str) else number(v) for v in values)}"


def _both(ends: tuple[Any, Any]) -> str:
    return number(ends[0]) if ends[0] == ends[1] else f"{number(ends[0])} / {number(ends[1])}"


_OUTPUT_COLUMNS = [
    Column("output", shrink=1, cell=lambda p: p.name),
    Column("a", cell=lambda p: p.a),
    Column("b", optional=4, cell=lambda p: p.b),
    Column("differ", right=True, cell=lambda p: "?" if p.differing is None else f"{p.differing} of {p.total}"),
    Column("largest", right=True, cell=lambda p: number(p.largest)),
    Column("first", optional=1, cell=_first),
    Column("min", optional=3, cell=lambda p: _both(p.low)),
    Column("max", optional=3, cell=lambda p: _both(p.high)),
    Column("mean", optional=2, cell=lambda p: _both(p.mean)),
]


def check_sheet(found: SavedChecks, top: int | None) -> Sheet:
    """Findings that are new, those that are gone, and vectors with another status."""
    title = f"a: {found.a}, b: {found.b}, {plural(found.kept, 'finding')} in both"
    blocks = settings_block(found.settings, "a", "b")
    blocks += top_rows("New findings", _FINDING_COLUMNS, found.new, top, "finding")
    blocks += top_rows("Findings that are gone", _FINDING_COLUMNS, found.gone, top, "finding")
    blocks += top_rows("Vectors", _VECTOR_COLUMNS, found.vectors, top, "vector")
    blocks += listed([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    parts = [f"{len(found.new)} new and {len(found.gone)} gone of the findings"] if found.new or found.gone else []
    parts += [f"{plural(len(found.vectors), 'vector')} with another status"] if found.vectors else []
    return answer(found, blocks, title, plural(found.kept, "finding"), parts, "model")


_FINDING_COLUMNS = [
    Column("level", cell=lambda f: f.level),
    Column("rule", cell=lambda f: f"{f.rule} {f.name}"),
    Column("model", shrink=1, optional=1, cell=lambda f: f.model),
    Column("node", shrink=3, cell=lambda f: f.node),
    Column("tensor", shrink=2, cell=lambda f: f.tensor),
    Column("message", wrap=True, below=True, cell=lambda f: f.message),
]
_VECTOR_COLUMNS = [
    Column("model", shrink=1, cell=itemgetter(0)),
    Column("vector", shrink=2, cell=itemgetter(1)),
    Column("a", cell=itemgetter(2)),
    Column("b", cell=itemgetter(3)),
]
