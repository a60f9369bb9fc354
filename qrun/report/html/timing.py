"""Where the time goes: a strip of the nodes in graph order, the operators, the table of the nodes, and the
roofline plot: each node's multiply-adds a second over its multiply-adds a byte, and what the machine allows.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from qrun.declare.frozen import frozen
from qrun.documents.answers import OperatorTimes, ProfileNode
from qrun.memory import human
from qrun.report.html.collect import PageContent
from qrun.report.html.tags import Cell, HtmlColumn, Markup, join, shape, table, tag, void
from qrun.report.text import duration, plural
from qrun.running.machine import Machine

GAP, WIDE = 0.05, 0.2
"""Percent of the strip: what is left free after a block, if the block is wider than WIDE."""
TINY = 0.005
"""Percent of the strip that is not drawn."""
BESIDES = "a run besides its nodes' medians"
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
    return f"#{node.index} {node.label} {node.op_text}"


def time_section(page: PageContent, palette: Palette) -> Markup:
    spent, whole = page.sum_ms, page.run_ms
    rest = (
        f", the last one what a run takes besides these medians, {duration((whole - spent) * 1e6)}"
        if whole > spent
        else ""
    )
    about = f"One block a node, as wide as its time{rest}; a block's name shows under the pointer."
    parts = [
        tag("h2", "Time, in graph order", id="time"),
        tag("p", about, class_="about"),
        _strip(page.nodes, spent, whole, palette),
        tag("div", tag("span", "0 ms"), tag("span", duration(whole * 1e6)), class_="ends"),
        tag("h3", "By operator"),
        _operators(page.nodes, whole, palette, TimeUnit.of(spent)),
    ]
    return tag("section", parts, (tag("p", f"Note: {note}") for note in page.told.notes))


def _strip(nodes: Sequence[ProfileNode], spent: float, whole: float, palette: Palette) -> Markup:
    """spent: by all nodes of the model, also those that the page does not have; whole: by a run, at least that, ms."""
    blocks, at = [], 0.0
    for node in nodes:
        width = 100 * node.median_ms / whole if whole else 0
        title = tag("title", f"{label(node)} {duration(node.median_ms * 1e6)}")
        blocks.append(
            tag("rect", title, x=f"{at:.2f}%", width=f"{width - GAP * (width > WIDE):.2f}%", class_=palette[node.op])
        )
        at += width
    for what, until, style in (("other nodes", spent, f"c{COLOURS}"), (BESIDES, whole, "rest")):
        width = 100 * until / whole - at if whole else 0
        if width > TINY:
            title = tag("title", f"{what} {duration(whole * width / 100 * 1e6)}")
            blocks.append(tag("rect", title, x=f"{at:.2f}%", width=f"{width:.2f}%", class_=style))
            at += width
    return tag(
        "svg",
        blocks,
        class_="strip",
        role="img",
        aria_label=f"Time of {plural(len(nodes), 'node')} in graph order, {duration(spent * 1e6)} of a run of "
        f"{duration(whole * 1e6)}",
    )


def _operators(nodes: Sequence[ProfileNode], whole: float, palette: Palette, unit: TimeUnit) -> Markup:
    rows = []
    for op in palette.order:
        own = [n for n in nodes if n.op == op]
        spent, macs = sum(n.median_ms for n in own), sum(n.macs for n in own)
        speed = macs / spent / 1e6 if macs and spent else None
        rows.append(OperatorTimes(op, len(own), spent, spent / (whole or 1.0), macs, speed, None, {}))
    largest = max(row.share for row in rows)
    return table(
        "operators",
        [
            HtmlColumn("operator", lambda row: join([tag("i", class_=palette[row.op]), row.op]), name=True),
            HtmlColumn("nodes", lambda row: str(row.nodes), number=True),
            HtmlColumn(f"median {unit.name}", lambda row: unit(row.median_ms), number=True),
            HtmlColumn("share", lambda row: share(row.share, largest), number=True),
            HtmlColumn("GMAC/s", lambda row: gmacs(row.gmacs), number=True),
        ],
        rows,
        sortable=True,
        box="narrow",
    )


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
    nodes, count = page.nodes, page.all_nodes
    about = "In graph order; # is a node's place in the graph. Median and p90 are over all runs."
    if count > len(nodes):
        about = f"The slowest {len(nodes):,} of {count:,} nodes, in graph order; # is a node's place in the graph."
    return tag(
        "section",
        tag("h2", "Nodes", id="nodes"),
        tag("p", about, class_="about"),
        search("node-table", "Filter by name or operator", "1 2"),
        tag("div", _node_table(nodes, TimeUnit.of(page.sum_ms)), id="node-table"),
        *_inside(page),
    )


def _inside(page: PageContent) -> list[Markup]:
    if not page.inside:
        return []
    unit, about = (
        TimeUnit.of(page.sum_ms),
        "Nodes of the graphs in If, Loop and Scan, in all their runs of one run, slowest first.",
    )
    return [
        tag("h3", "Inside nodes"),
        tag("p", about, class_="about"),
        table(
            "inside nodes",
            [
                HtmlColumn("inside", lambda row: row.path, name=True),
                HtmlColumn("operator", lambda row: row.op, short=True),
                HtmlColumn("runs", lambda row: str(row.runs), number=True),
                HtmlColumn(f"time {unit.name}", lambda row: unit(row.time_ms), number=True),
                HtmlColumn("kernel", lambda row: row.backend, wide=True),
            ],
            page.inside,
            sortable=True,
            box="tall",
        ),
    ]


def search(target: str, words: str, columns: str) -> Markup:
    """A box that hides the rows without its words in these columns, counted from 0; it shows where scripts run."""
    box = tag("label", words, void("input", type="search", autocomplete="off", spellcheck="false"))
    return tag("p", box, tag("output"), class_="filter", data_table=target, data_columns=columns, hidden=True)


def _node_table(nodes: Sequence[ProfileNode], unit: TimeUnit) -> Markup:
    roofs = any(n.roof_share is not None for n in nodes)
    spread = any(n.p90_ms is not None for n in nodes)
    largest = max((n.share for n in nodes), default=0)
    first = {n.index: id(n) for n in reversed(nodes)}
    return table(
        "nodes",
        [
            HtmlColumn("#", lambda n: str(n.index), number=True, rising=True),
            HtmlColumn("node", lambda n: n.label, name=True),
            HtmlColumn("operator", lambda n: n.op_text, short=True),
            HtmlColumn(f"median {unit.name}", lambda n: unit(n.median_ms), number=True),
            HtmlColumn(f"p90 {unit.name}", lambda n: unit(n.p90_ms), number=True) if spread else None,
            HtmlColumn("share", lambda n: share(n.share, largest), number=True),
            HtmlColumn("GMAC/s", lambda n: gmacs(n.gmacs), number=True),
            HtmlColumn("roof", _roof, number=True, about="Share of what the machine allows at this intensity")
            if roofs
            else None,
            HtmlColumn("kernel", lambda n: n.ran_by, wide=True),
            HtmlColumn("output", lambda n: n.output_text, short=True),
        ],
        nodes,
        sortable=True,
        box="tall",
        id=lambda n: f"n{n.index}" if first[n.index] == id(n) else None,
    )


def _roof(node: ProfileNode) -> str:
    return "–" if node.roof_share is None else f"{100 * node.roof_share:.0f}% {node.bound or ''}"


MARGIN = 0.12
"""Decades beside the outermost values of an axis."""


@frozen
class LogAxis:
    """A logarithmic axis; its ends are powers of ten, a decade or more apart."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> LogAxis:
        low, high = math.log10(min(values)) - MARGIN, math.log10(max(values)) + MARGIN
        wider = max(1.0 - (high - low), 0.0) / 2
        return cls(low - wider, high + wider)

    def __call__(self, value: float) -> float:
        """Percent of the axis."""
        return 100 * (math.log10(value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, with twice and five times of them on a short axis."""
        steps = (1, 2, 5) if self.high - self.low < 2 else (1,)
        decades = range(math.floor(self.low), math.ceil(self.high))
        found = [step * 10.0**decade for decade in decades for step in steps]
        return [value for value in found if 4 <= self(value) <= 96]


def roofline_section(page: PageContent, palette: Palette) -> Markup:
    """Empty without a node that has multiply-adds, bytes and a time."""
    nodes = [n for n in page.nodes if n.gmacs and n.bytes]
    if not nodes:
        return Markup()
    left = len(page.nodes) - len(nodes)
    about = "One dot a node, larger the more time it takes; both axes logarithmic."
    if left:
        about += f" {plural(left, 'node')} without multiply-adds {'is' if left == 1 else 'are'} not shown."
    machine = page.told.machine
    return tag(
        "section",
        tag("h2", "Roofline", id="roofline"),
        tag("p", about, class_="about"),
        tag(
            "figure",
            tag("div", tag("span", "GMAC/s, up"), tag("span", "MAC a byte, to the right"), class_="ends"),
            _plot(nodes, machine, palette),
            tag("figcaption", _caption(machine)) if machine else "",
        ),
    )


def _peaks(machine: Machine) -> list[tuple[str, float]]:
    """Flat roofs by name, in GMAC/s."""
    peaks = ((f"int8 {machine.instruction}".rstrip(), machine.int8), ("float32", machine.float32))
    return [(name, peak / 1e9) for name, peak in peaks if peak and peak > 0]


def _reads(machine: Machine) -> list[tuple[int, float]]:
    """Slopes: bytes of a buffer, and GB/s at which it is read."""
    return [(pair[0], pair[1] / 1e9) for pair in machine.memory if pair and pair[1] > 0]


def _caption(machine: Machine) -> str:
    peaks = ", ".join(f"{name} {gmacs:.0f} GMAC/s" for name, gmacs in _peaks(machine))
    reads = ", ".join(f"{speed:.0f} GB/s from {human(size)}" for size, speed in _reads(machine))
    return f"Lines: what {machine.cpu or 'this machine'} reached when it was measured. Flat: {peaks}. Slopes: reading {reads}."


def _plot(nodes: Sequence[ProfileNode], machine: Machine | None, palette: Palette) -> Markup:
    roofs, memory = (_peaks(machine), _reads(machine)) if machine else ([], [])
    top = max((gmacs for _, gmacs in roofs), default=0.0)
    across = [n.macs / n.bytes for n in nodes] + [top / speed for _, speed in memory if top]
    x, y = LogAxis.over(across), LogAxis.over([*(n.gmacs or 0.0 for n in nodes), *(gmacs for _, gmacs in roofs)])
    fastest = max((speed for _, speed in memory), default=0.0)
    parts = [*_grid(x, y), *(_slope(size, speed, top, x, y) for size, speed in memory if top)]
    parts += [_flat(gmacs, fastest, x, y) for _, gmacs in roofs]
    parts += [_dot(n, x, y, palette) for n in sorted(nodes, key=lambda n: -n.share)]
    parts += [
        tag(
            "text",
            f"{name} {gmacs:.0f} GMAC/s",
            x="100%",
            y=f"{100 - y(gmacs):.2f}%",
            dx="-6",
            dy="-6",
            text_anchor="end",
        )
        for name, gmacs in roofs
    ]
    name = f"Roofline of {plural(len(nodes), 'node')}: GMAC/s over MAC a byte"
    return tag("svg", parts, class_="plot", role="img", aria_label=name)


def _dot(node: ProfileNode, x: LogAxis, y: LogAxis, palette: Palette) -> Markup:
    intensity, gmacs = node.macs / node.bytes, node.gmacs or 0.0
    title = f"{label(node)}: {gmacs:.1f} GMAC/s, {intensity:.3g} MAC a byte"
    if node.roof_share is not None:
        title += f", {100 * node.roof_share:.0f}% of the roof ({node.bound or ''})"
    return tag(
        "circle",
        tag("title", title),
        cx=f"{x(intensity):.2f}%",
        cy=f"{100 - y(gmacs):.2f}%",
        r=f"{3.5 + 14 * math.sqrt(node.share):.1f}",
        class_=palette[node.op],
    )


def _grid(x: LogAxis, y: LogAxis) -> list[Markup]:
    parts = []
    for value in x.ticks:
        at = f"{x(value):.2f}%"
        parts += [
            shape("line", x1=at, x2=at, y1="0", y2="100%"),
            tag("text", f"{value:g}", x=at, y="100%", dx="4", dy="-6"),
        ]
    for value in y.ticks:
        at = f"{100 - y(value):.2f}%"
        parts += [shape("line", x1="0", x2="100%", y1=at, y2=at), tag("text", f"{value:g}", x="6", y=at, dy="-4")]
    return parts


def _slope(size: int, speed: float, top: float, x: LogAxis, y: LogAxis) -> Markup:
    """What reading from buffers of one size allows, up to the highest flat line."""
    start = max(10**x.low, 10**y.low / speed)
    title = tag("title", f"{speed:.1f} GB/s from {human(size)}")
    return tag(
        "line",
        title,
        class_="roof",
        x1=f"{x(start):.2f}%",
        y1=f"{100 - y(start * speed):.2f}%",
        x2=f"{x(top / speed):.2f}%",
        y2=f"{100 - y(top):.2f}%",
    )


def _flat(gmacs: float, fastest: float, x: LogAxis, y: LogAxis) -> Markup:
    """What the units allow, from where the nearest memory feeds them."""
    start = gmacs / fastest if fastest else 10**x.low
    at = f"{100 - y(gmacs):.2f}%"
    return shape("line", class_="roof", x1=f"{max(x(start), 0):.2f}%", y1=at, x2="100%", y2=at)
