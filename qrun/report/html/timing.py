"""Where the time goes: a strip of the nodes in graph order, the operators, the table of the nodes, and another
runtime's times beside qrun's, where both were measured in turn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qrun.declare.frozen import frozen
from qrun.documents.answers import GroupTimes, OperatorTimes, ProfileNode
from qrun.documents.record import Item, decode
from qrun.report.html.collect import PageContent
from qrun.report.html.frame import section
from qrun.report.html.models import items
from qrun.report.html.tags import Cell, HtmlColumn, Markup, join, table, tag, void
from qrun.report.nodes import STEPS, fused_text, step_names
from qrun.report.text import duration, plural, ratio_text

GAP, WIDE = 0.05, 0.2
"""Percent of the strip: what is left free after a block, if the block is wider than WIDE."""
TINY = 0.005
"""Percent of the strip that is not drawn."""
OVERHEAD = "call overhead"
COLOURS = 7
"""Operators with a colour of their own, the slowest; all others share the one after."""


class Palette:
    """A colour for each operator, by the time that its nodes take."""

    def __init__(self, nodes: Iterable[ProfileNode]) -> None:
        sums: dict[str, float] = {}
        for node in nodes:
            sums[node.op] = sums.get(node.op, 0.0) + node.median_ms
        self.order = sorted(sums, key=lambda op: -sums[op])

    def __getitem__(self, op: str) -> str:
        """The class of an operator's colour."""
        return f"c{min(self.order.index(op), COLOURS)}"


def label(node: ProfileNode) -> str:
    return f"#{node.index} {node.label} {fused_text(node, node.op)}"


def time_section(page: PageContent, palette: Palette) -> Markup:
    """Empty without nodes."""
    if not page.nodes:
        return Markup()
    spent, whole = page.sum_ms, page.run_ms
    left = duration((whole - spent) * 1e6)
    rest = f"; the last block is the call overhead, {left}" if whole > spent else ""
    about = f"One block for each node, as wide as its time{rest}. Point at a block to see the node's name."
    return section(
        "time",
        "Time, in graph order",
        about,
        _strip(page.nodes, spent, whole, palette),
        tag("div", tag("span", "0"), tag("span", duration(whole * 1e6)), class_="ends"),
        tag("h3", "By operator"),
        _operators(page.nodes, spent, palette, TimeUnit.of(spent)),
        (tag("p", f"Note: {note}") for note in page.told.notes),
    )


def _strip(nodes: Sequence[ProfileNode], spent: float, whole: float, palette: Palette) -> Markup:
    """spent: by all nodes of the model, also those that the page does not have; whole: by a run, at least that, ms."""
    blocks, at = [], 0.0
    for node in nodes:
        width = 100 * node.median_ms / whole if whole else 0
        told = f"{label(node)} {duration(node.median_ms * 1e6)}"
        blocks.append(_block(told, at, width - GAP * (width > WIDE), palette[node.op]))
        at += width
    for what, until, style in (("other nodes", spent, f"c{COLOURS}"), (OVERHEAD, whole, "rest")):
        width = 100 * until / whole - at if whole else 0
        if width > TINY:
            blocks.append(_block(f"{what} {duration(whole * width / 100 * 1e6)}", at, width, style))
            at += width
    times = f"{duration(spent * 1e6)} of a run of {duration(whole * 1e6)}"
    name = f"Time of {plural(len(nodes), 'node')} in graph order, {times}"
    return tag("svg", blocks, class_="strip", role="img", aria_label=name)


def _block(told: str, at: float, width: float, style: str) -> Markup:
    return tag("rect", tag("title", told), x=f"{at:.2f}%", width=f"{width:.2f}%", class_=style)


def _operators(nodes: Sequence[ProfileNode], total: float, palette: Palette, unit: TimeUnit) -> Markup:
    """total: of all nodes of the model, ms."""
    rows = []
    for op in palette.order:
        own = [n for n in nodes if n.op == op]
        spent, macs = sum(n.median_ms for n in own), sum(n.macs for n in own)
        speed = macs / spent / 1e6 if macs and spent else None
        rows.append(OperatorTimes(op, len(own), spent, spent / (total or 1.0), macs, speed, None, {}))
    largest = max(row.share for row in rows)
    columns = [
        HtmlColumn("operator", lambda row: join([tag("i", class_=palette[row.op]), row.op]), name=True),
        HtmlColumn("nodes", lambda row: str(row.nodes), number=True),
        HtmlColumn(f"median {unit.name}", lambda row: unit(row.median_ms), number=True),
        HtmlColumn("share", lambda row: share(row.share, largest), number=True),
        HtmlColumn("GMAC/s", lambda row: gmacs(row.gmacs), number=True),
    ]
    return table("operators", columns, rows, sortable=True, box="narrow")


def share(part: float | None, largest: float) -> Cell:
    """A percentage with a bar behind it, which is as wide as the cell for the largest."""
    if part is None:
        return Cell(tag("td", "–"))
    bar = f"--part:{100 * part / largest:.0f}%" if largest else None
    return Cell(tag("td", f"{100 * part:.1f}%", style=bar))


@frozen
class TimeUnit:
    """In which the times of a table are, so that a fast model has digits too."""

    name: str
    factor: float
    digits: int

    @classmethod
    def of(cls, total_ms: float) -> TimeUnit:
        return cls("ms", 1, 3) if total_ms >= 1 else cls("us", 1e3, 2)

    def __call__(self, milliseconds: float | None) -> str:
        return "–" if milliseconds is None else f"{milliseconds * self.factor:.{self.digits}f}"


def gmacs(value: float | None) -> str:
    return f"{value:.1f}" if value else "–"


def nodes_section(page: PageContent) -> Markup:
    """Empty without nodes."""
    if not page.nodes:
        return Markup()
    nodes, count = page.nodes, page.all_nodes
    some = f"The slowest {len(nodes):,} of {count:,} nodes" if count > len(nodes) else "All nodes"
    about = f"{some}, slowest first; # is a node's place in the graph. Median and p90 are over all runs."
    about += f" {STEPS[0].upper()}{STEPS[1:]}." if any(node.step for node in nodes) else ""
    shown = tag("div", _node_table(nodes, TimeUnit.of(page.sum_ms)), id="node-table")
    return section(
        "nodes", "Nodes", about, search("node-table", "Filter by name or operator", "1 2"), shown, _inside(page)
    )


def _inside(page: PageContent) -> list[Markup]:
    if not page.inside:
        return []
    about = (
        "Nodes of the graphs inside If, Loop and Scan, slowest first; runs and time are those in one run of the model."
    )
    unit = TimeUnit.of(page.sum_ms)
    columns = [
        HtmlColumn("inside", lambda row: row.path, name=True),
        HtmlColumn("operator", lambda row: row.op, short=True),
        HtmlColumn("runs", lambda row: str(row.runs), number=True),
        HtmlColumn(f"time {unit.name}", lambda row: unit(row.time_ms), number=True),
        HtmlColumn("kernel", lambda row: row.backend, wide=True),
    ]
    shown = table("inside nodes", columns, page.inside, sortable=True, box="tall")
    return [tag("h3", "Inside nodes"), tag("p", about, class_="about"), shown]


def search(target: str, words: str, columns: str) -> Markup:
    """A box that hides the rows without its words in these columns, counted from 0; it shows where scripts run."""
    box = tag("label", words, void("input", type="search", autocomplete="off", spellcheck="false"))
    return tag("p", box, tag("output"), class_="filter", data_table=target, data_columns=columns, hidden=True)


def _node_table(nodes: Sequence[ProfileNode], unit: TimeUnit) -> Markup:
    roofs = any(n.roof_share is not None for n in nodes)
    spread = any(n.p90_ms is not None for n in nodes)
    largest = max((n.share for n in nodes), default=0)
    first = {n.index: id(n) for n in reversed(nodes)}
    named = step_names((n.index, n.label) for n in nodes)
    columns = [
        HtmlColumn("#", lambda n: str(n.index), number=True, rising=True),
        HtmlColumn("node", lambda n: named(n, n.label), name=True),
        HtmlColumn("operator", lambda n: fused_text(n, n.op), short=True),
        HtmlColumn(f"median {unit.name}", lambda n: unit(n.median_ms), number=True, sorted="descending"),
        HtmlColumn(f"p90 {unit.name}", lambda n: unit(n.p90_ms), number=True) if spread else None,
        HtmlColumn("share", lambda n: share(n.share, largest), number=True),
        HtmlColumn("GMAC/s", lambda n: gmacs(n.gmacs), number=True),
        HtmlColumn("roof", _roof, number=True, about=ROOF) if roofs else None,
        HtmlColumn("kernel", lambda n: n.ran_by, wide=True),
        HtmlColumn("output", lambda n: n.output_text, short=True),
    ]

    def anchor(node: ProfileNode) -> str | None:
        return f"n{node.index}" if first[node.index] == id(node) else None

    slowest = sorted(nodes, key=lambda n: -n.median_ms)
    return table("nodes", columns, slowest, sortable=True, box="tall", id=anchor)


ROOF = "Share of what the machine allows at the node's arithmetic intensity"


def _roof(node: ProfileNode) -> str:
    return "–" if node.roof_share is None else f"{100 * node.roof_share:.0f}% {node.bound or ''}"


RATIO = "Of its time to qrun's"
WORDS = {
    "faster": "qrun is faster",
    "slower": "{} is faster",
    "same": "inconclusive, the interquartile ranges overlap",
    "few runs": "inconclusive, there are too few runs",
}
"""A verdict of a profile in words; {} is the other runtime."""


def beside_section(against: Item | None) -> Markup:
    """against: of a profile that measured another runtime too. Empty without one."""
    groups = [group for item in items(against, "groups") if not (group := decode(GroupTimes, item, True)).folded]
    if against is None or not groups:
        return Markup()
    runtime, ratio, verdict = against["runtime"].text, against.find("ratio"), against.find("verdict")
    told = WORDS.get(verdict.text if verdict else "", "").format(runtime)
    many = (
        f"A run of {runtime} takes {ratio.real:.2f} times as long as one of qrun"
        if ratio
        else "Both were measured in turn"
    )
    about = f"{many}{f': {told}' if told else ''}. Nodes that either ran as a whole are one row."
    unit = TimeUnit.of(sum(group.median_ms or 0.0 for group in groups))
    rows = sorted(groups, key=lambda group: -max(group.median_ms or 0.0, group.other_ms or 0.0))
    ratios = HtmlColumn("ratio", lambda g: "–" if g.ratio is None else ratio_text(g.ratio), number=True, about=RATIO)
    columns = [
        HtmlColumn("#", lambda g: str(min(g.nodes, default="–")), number=True, rising=True),
        HtmlColumn("node", lambda g: f"{g.name}{f' +{len(g.nodes) - 1}' if len(g.nodes) > 1 else ''}", name=True),
        HtmlColumn("operator", lambda g: g.op, short=True),
        HtmlColumn(f"qrun {unit.name}", lambda g: unit(g.median_ms), number=True),
        HtmlColumn(f"{runtime.partition(' ')[0]} {unit.name}", lambda g: unit(g.other_ms), number=True),
        ratios,
    ]
    shown = table(f"times beside {runtime}", columns, rows, sortable=True, box="tall")
    return section("beside", f"Beside {runtime}", about, shown)
