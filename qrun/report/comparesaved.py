"""Reports of two saved profiles, runs or checks."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.comparing.saved import Found, OutputPair, SavedChecks, SavedRuns
from qrun.comparing.savedprofiles import LEAST, Change, Lone, NodeChange, SavedProfiles
from qrun.ir.types import shape_text
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.sheet import Block, Sheet, listed, more, settings_block
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
    blocks.append(Block("Whole run", Grid(_times(), [_change(found.whole)])))
    ordered = sorted(found.nodes, key=lambda n: -abs(n.change.after - n.change.before))
    shown = sorted(found.nodes, key=lambda n: n.index) if top is None else ordered[:top]
    if shown:
        columns = [
            Column("#", right=True),
            Column("node", shrink=2),
            Column("op", shrink=1, optional=2),
            *_times(),
            Column("note", optional=1),
        ]
        rows = [_node(node) for node in shown]
        grid = Grid(columns, rows) if any(row[-1] for row in rows) else Grid(columns, rows).without(len(columns) - 1)
        heading = "Nodes, in graph order" if top is None else "Nodes that changed most, by the change of the median"
        blocks.append(Block(heading, grid, more=more(len(found.nodes) - len(shown), "node"), folds=True))
    blocks += _lone("Only before", found.only_a, top) + _lone("Only after", found.only_b, top)
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


def _times() -> list[Column]:
    return [Column("before", right=True), Column("after", right=True), Column("change", right=True), Column("verdict")]


def _change(c: Change) -> list[str]:
    return [duration(c.before * 1e6), duration(c.after * 1e6), _relative(c), VERDICTS[c.verdict]]


def _relative(c: Change) -> str:
    """``+2.5%``; from ten times as long on ``115 x``."""
    if c.relative is None:
        return "-"
    return f"{c.relative * 100:+.1f}%" if c.relative < 9 else f"{c.relative + 1:.0f} x"


def _node(node: NodeChange) -> list[str]:
    return [str(node.index), node.name or f"{node.op}_{node.index}", node.op, *_change(node.change), node.note]


def _lone(title: str, nodes: Sequence[Lone], top: int | None) -> list[Block]:
    if not nodes:
        return []
    columns = [Column("#", right=True), Column("node", shrink=2), Column("op", shrink=1), Column("median", right=True)]
    rows = [[str(n.index), n.name or f"{n.op}_{n.index}", n.op, duration(n.median * 1e6)] for n in nodes[:top]]
    return [Block(title, Grid(columns, rows), more=more(len(nodes) - len(rows), "node"), folds=True)]


def run_sheet(found: SavedRuns, top: int | None) -> Sheet:
    """The outputs that differ."""
    title = f"a: {found.a}, b: {found.b}, {plural(len(found.outputs), 'output')} in both"
    differ = [pair for pair in found.outputs if not pair.equal]
    blocks = settings_block(found.settings, "a", "b")
    if differ:
        columns = [
            Column("output", shrink=1),
            Column("a"),
            Column("b", optional=4),
            Column("differ", right=True),
            Column("largest", right=True),
            Column("first", optional=1),
            Column("min", optional=3),
            Column("max", optional=3),
            Column("mean", optional=2),
        ]
        shown = [_output(pair) for pair in differ[:top]]
        blocks.append(Block("Outputs that differ", Grid(columns, shown), more=more(len(differ) - len(shown), "output")))
    blocks += listed([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    if found.equal:
        return Sheet(blocks, f"equal: {plural(len(found.outputs), 'output')}, bit for bit.", GOOD, about=[title])
    only = len(found.only_a) + len(found.only_b)
    parts = [f"{len(differ)} of {plural(len(found.outputs), 'output')}, first {differ[0].name}"] if differ else []
    parts += [f"{plural(only, 'output')} in one file only"] if only else []
    return Sheet(blocks, f"differ: {'; '.join(parts)}.", BAD, about=[title])


def _output(pair: OutputPair) -> list[str]:
    ranges = [number(x) if x == y else f"{number(x)} / {number(y)}" for x, y in (pair.low, pair.high, pair.mean)]
    count = "?" if pair.differing is None else f"{pair.differing} of {pair.total}"
    first = "-"
    if pair.first is not None:
        index, a, b = pair.first
        values = [v if isinstance(v, str) else number(v) for v in (a, b)]
        first = f"{shape_text(index)} {values[0]} / {values[1]}"
    return [pair.name, pair.a, pair.b, count, number(pair.largest), first, *ranges]


def check_sheet(found: SavedChecks, top: int | None) -> Sheet:
    """Findings that are new, those that are gone, and vectors with another status."""
    title = f"a: {found.a}, b: {found.b}, {plural(found.kept, 'finding')} in both"
    blocks = settings_block(found.settings, "a", "b")
    blocks += _findings("New findings", found.new, top) + _findings("Findings that are gone", found.gone, top)
    if found.vectors:
        columns = [Column("model", shrink=1), Column("vector", shrink=2), Column("a"), Column("b")]
        rows = [list(row) for row in found.vectors[:top]]
        blocks.append(Block("Vectors", Grid(columns, rows), more=more(len(found.vectors) - len(rows), "vector")))
    blocks += listed([("Only in the first", found.only_a), ("Only in the second", found.only_b)], top)
    if found.equal:
        return Sheet(blocks, f"equal: {plural(found.kept, 'finding')}.", GOOD, about=[title])
    parts = [f"{len(found.new)} new and {len(found.gone)} gone of the findings"] if found.new or found.gone else []
    parts += [f"{plural(len(found.vectors), 'vector')} with another status"] if found.vectors else []
    only = len(found.only_a) + len(found.only_b)
    parts += [f"{plural(only, 'model')} in one file only"] if only else []
    return Sheet(blocks, f"differ: {'; '.join(parts)}.", BAD, about=[title])


def _findings(title: str, found: Sequence[Found], top: int | None) -> list[Block]:
    if not found:
        return []
    columns = [
        Column("level"),
        Column("rule"),
        Column("model", shrink=1, optional=1),
        Column("node", shrink=3),
        Column("tensor", shrink=2),
        Column("message", wrap=True, below=True),
    ]
    rows = [[f.level, f"{f.rule} {f.name}", f.model, f.node, f.tensor, f.message] for f in found[:top]]
    return [Block(title, Grid(columns, rows), more=more(len(found) - len(rows), "finding"))]
