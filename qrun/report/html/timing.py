"""Where the time goes: a strip of the nodes in graph order, the operators, and the table of the nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qrun.declare.frozen import frozen
from qrun.report.html.tags import Cell, HtmlColumn, Markup, Row, join, table, tag, void
from qrun.report.text import duration, plural

Fields = Mapping[str, Any]
GAP, WIDE = 0.05, 0.2
"""Percent of the strip: what is left free after a block, if the block is wider than WIDE."""
TINY = 0.005
"""Percent of the strip that is not drawn."""
BESIDES = "a run besides its nodes' medians"
COLOURS = 7
"""Operators with a colour of their own, the slowest; all others share the one after."""


class Palette:
    """A colour for each operator, by the time that its nodes take."""

    def __init__(self, nodes: Iterable[Fields]) -> None:
        sums: dict[str, float] = {}
        for node in nodes:
            sums[kind(node)] = sums.get(kind(node), 0.0) + (node["median_ms"] or 0)
        self.order = sorted(sums, key=lambda op: -sums[op])

    def __getitem__(self, op: str) -> str:
        """The class of an operator's colour."""
        return f"c{min(self.order.index(op), COLOURS)}"


def kind(node: Fields) -> str:
    """The operator without what was fused with it."""
    return str(node["op"]).partition(" +")[0]


def label(node: Fields) -> str:
    return f"#{node['index']} {node['name']} {node['op']}"


def time_section(fields: Fields, palette: Palette) -> Markup:
    spent, whole = fields["all_nodes"]["sum_ms"], fields["all_nodes"]["run_ms"]
    rest = (
        f", the last one what a run takes besides these medians, {duration((whole - spent) * 1e6)}"
        if whole > spent
        else ""
    )
    about = f"One block a node, as wide as its time{rest}; a block's name shows under the pointer."
    parts = [
        tag("h2", "Time, in graph order", id="time"),
        tag("p", about, class_="about"),
        _strip(fields["nodes"], spent, whole, palette),
        tag("div", tag("span", "0 ms"), tag("span", duration(whole * 1e6)), class_="ends"),
        tag("h3", "By operator"),
        _operators(fields["nodes"], whole, palette, TimeUnit.of(spent)),
    ]
    return tag("section", parts, (tag("p", f"Note: {note}") for note in fields["notes"]))


def _strip(nodes: Sequence[Fields], spent: float, whole: float, palette: Palette) -> Markup:
    """spent: by all nodes of the model, also those that the page does not have; whole: by a run, at least that, ms."""
    blocks, at = [], 0.0
    for node in nodes:
        width = 100 * (node["median_ms"] or 0) / whole if whole else 0
        title = tag("title", f"{label(node)} {duration((node['median_ms'] or 0) * 1e6)}")
        blocks.append(
            tag("rect", title, x=f"{at:.2f}%", width=f"{width - GAP * (width > WIDE):.2f}%", class_=palette[kind(node)])
        )
        at += width
    for what, until, style in (("other nodes", spent, f"c{COLOURS}"), (BESIDES, whole, "rest")):
        width = 100 * until / whole - at if whole else 0
        if width > TINY:
            title = tag("title", f"{what} {duration(whole * width / 100 * 1e6)}")
            blocks.append(tag("rect", title, x=f"{at:.2f}%", width=f"{width:.2f}%", class_=style))
            at += width
    return tag("svg", blocks, class_="strip", role="img",
               aria_label=f"Time of {plural(len(nodes), 'node')} in graph order, {duration(spent * 1e6)} of a run of "
                          f"{duration(whole * 1e6)}")  # fmt: skip


def _operators(nodes: Sequence[Fields], whole: float, palette: Palette, unit: TimeUnit) -> Markup:
    total = whole or 1.0
    spent_by = {op: sum(n["median_ms"] or 0 for n in nodes if kind(n) == op) for op in palette.order}
    rows = []
    for op in palette.order:
        own = [n for n in nodes if kind(n) == op]
        spent, macs = sum(n["median_ms"] or 0 for n in own), sum(n["macs"] or 0 for n in own)
        swatch = join([tag("i", class_=palette[op]), op])
        rows.append(
            Row(
                [
                    swatch,
                    str(len(own)),
                    unit(spent),
                    share(spent / total, max(spent_by.values()) / total),
                    gmacs(macs / spent / 1e6 if spent else None),
                ]
            )
        )
    columns = [HtmlColumn("operator", name=True), HtmlColumn("nodes", number=True), HtmlColumn(f"median {unit.name}", number=True),
               HtmlColumn("share", number=True), HtmlColumn("GMAC/s", number=True)]  # fmt: skip
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


def nodes_section(fields: Fields) -> Markup:
    nodes, count = fields["nodes"], fields["all_nodes"]["count"]
    about = "In graph order; # is a node's place in the graph. Median and p90 are over all runs."
    if count > len(nodes):
        about = f"The slowest {len(nodes):,} of {count:,} nodes, in graph order; # is a node's place in the graph."
    return tag(
        "section", tag("h2", "Nodes", id="nodes"), tag("p", about, class_="about"),
        search("node-table", "Filter by name or operator", "1 2"), tag("div", _node_table(nodes, TimeUnit.of(fields["all_nodes"]["sum_ms"])), id="node-table"),
    )  # fmt: skip


def search(target: str, words: str, columns: str) -> Markup:
    """A box that hides the rows without its words in these columns, counted from 0; it shows where scripts run."""
    box = tag("label", words, void("input", type="search", autocomplete="off", spellcheck="false"))
    return tag("p", box, tag("output"), class_="filter", data_table=target, data_columns=columns, hidden=True)


def _node_table(nodes: Sequence[Fields], unit: TimeUnit) -> Markup:
    roofs = any(n["roof"] is not None for n in nodes)
    spread = any(n["p90_ms"] is not None for n in nodes)
    columns = [
        HtmlColumn("#", number=True, rising=True), HtmlColumn("node", name=True), HtmlColumn("operator", short=True),
        HtmlColumn(f"median {unit.name}", number=True), *([HtmlColumn(f"p90 {unit.name}", number=True)] if spread else []),
        HtmlColumn("share", number=True), HtmlColumn("GMAC/s", number=True),
        *([HtmlColumn("roof", number=True, about="Share of what the machine allows at this intensity")] if roofs else []),
        HtmlColumn("kernel", wide=True), HtmlColumn("output", short=True),
    ]  # fmt: skip
    largest = max((n["share"] or 0 for n in nodes), default=0)
    seen: set[int] = set()
    rows = []
    for n in nodes:
        cells = [
            str(n["index"]), n["name"], n["op"], unit(n["median_ms"]),
            *([unit(n["p90_ms"])] if spread else []), share(n["share"], largest), gmacs(n["gmacs"]),
            *([_roof(n)] if roofs else []), n["kernel"], n["output"],
        ]  # fmt: skip
        rows.append(Row(cells, None if n["index"] in seen else f"n{n['index']}"))
        seen.add(n["index"])
    return table("nodes", columns, rows, sortable=True, box="tall")


def _roof(node: Fields) -> str:
    return "–" if node["roof"] is None else f"{100 * node['roof']:.0f}% {node['bound']}"
