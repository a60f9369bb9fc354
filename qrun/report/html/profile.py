"""The sections on time: the strip, the tables of `qrun profile`, and the times of another runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qrun.documents.answers import ProfileNode, Samples
from qrun.documents.record import decode
from qrun.report.html.collect import PageContent
from qrun.report.html.markup import Markup, blocks, join, picture, pointed, search, section, shape, table, tag
from qrun.report.nodes import FUSED, STEPS, fused_text, inside_grid, op_names, step_names
from qrun.report.profile import faster, roof_text
from qrun.report.profilerows import against_grid, fallback_grid, node_grid, operator_grid, operator_rows
from qrun.report.sheet import Block
from qrun.report.text import duration, percent, plural

GAP, WIDE = 0.05, 0.2
"""Percent of the strip: the gap after a block that is wider than WIDE."""
TINY = 0.005
"""Percent of the strip; narrower blocks are not drawn."""
HINT = "Point at a node, or press Tab and the arrow keys, to see its name and tensor."
OVERHEAD = "call overhead"
COLOURS = 7
"""The slowest operators have a colour each; all others share the next one."""


class Palette:
    """A colour for each operator, in the order of the time that its nodes take, and words for each node."""

    def __init__(self, nodes: Sequence[ProfileNode]) -> None:
        self.names = step_names((node.index, node.label) for node in nodes)
        sums: dict[str, float] = {}
        for node in nodes:
            sums[node.qualified] = sums.get(node.qualified, 0.0) + node.median_ms
        self.order = sorted(sums, key=lambda op: -sums[op])

    def __getitem__(self, op: str) -> str:
        """The CSS class of an operator's colour."""
        return f"c{min(self.order.index(op), COLOURS)}"

    def label(self, node: ProfileNode) -> str:
        """The node's name, or the names of all nodes of its step."""
        return self.names(node, node.label)

    def describe(self, node: ProfileNode) -> list[str]:
        """Lines about a node: its number, name and operator; its time and what ran it; the tensors that it writes."""
        ran = f", {node.ran_by}" if node.ran_by else ""
        return [
            f"#{node.index} {self.label(node)}, {fused_text(node, node.op)}",
            f"{duration(node.median_ms * 1e6)}, {percent(node.share)} of the nodes' time{ran}",
            *(f"{tensor.name} {tensor}" for tensor in node.outputs[:TENSORS]),
        ]


TENSORS = 3
"""The most tensors of a node that are described."""


def time_section(page: PageContent, palette: Palette) -> Markup:
    """Empty without nodes."""
    if not page.nodes:
        return Markup()
    spent, whole = page.sum_ms, page.run_ms
    rest = f"; the last block is the call overhead, {duration((whole - spent) * 1e6)}" if whole > spent else ""
    about = f"One block for each node, as wide as its time{rest}."
    ends = (tag("span", words) for words in ("0", "time of a run", duration(whole * 1e6)))
    operators = operator_rows(page.nodes)
    grid = operator_grid(operators, _has_roofs(page))
    marked = [
        [join([tag("i", class_=palette[row.op]), row.op]), *cells[1:]]
        for row, cells in zip(operators, grid.rows, strict=True)
    ]
    return section(
        "time",
        "Time, in graph order",
        about,
        picture([_strip(page.nodes, spent, whole, palette), tag("div", ends, class_="ends")], HINT),
        tag("h3", "By operator"),
        table("operators", replace(grid, rows=marked)),
        (tag("p", f"Note: {note}") for note in page.told.notes),
    )


def _strip(nodes: Sequence[ProfileNode], spent: float, whole: float, palette: Palette) -> Markup:
    """spent: time of all nodes, also those not on the page; whole: time of a run, at least `spent`; both in ms."""
    blocks, at = [], 0.0
    for node in nodes:
        width = 100 * node.median_ms / whole if whole else 0
        blocks.append(
            _block(palette.describe(node), at, width - GAP * (width > WIDE), palette[node.qualified], node.index)
        )
        at += width
    for what, until, style in (("other nodes", spent, f"c{COLOURS}"), (OVERHEAD, whole, "rest")):
        width = 100 * until / whole - at if whole else 0
        if width > TINY:
            blocks.append(_block([f"{what} {duration(whole * width / 100 * 1e6)}"], at, width, style))
            at += width
    times = f"{duration(spent * 1e6)} of a run of {duration(whole * 1e6)}"
    name = f"Time of {plural(len(nodes), 'node')} in graph order, {times}"
    return tag("svg", blocks, class_="strip", role="group", aria_label=name)


def _block(told: Sequence[str], at: float, width: float, style: str, row: int | None = None) -> Markup:
    return pointed(told, shape("rect", x=f"{at:.2f}%", width=f"{width:.2f}%", class_=style), row)


def _has_roofs(page: PageContent) -> bool:
    return any(node.roof_share is not None for node in page.nodes)


def nodes_section(page: PageContent) -> Markup:
    """All nodes, the nodes inside nodes, and the reasons why some did not run natively. Empty without nodes."""
    if not page.nodes:
        return Markup()
    nodes, count, roofs = page.nodes, page.all_nodes, _has_roofs(page)
    some = f"The slowest {len(nodes):,} of {count:,} nodes" if count > len(nodes) else "All nodes, the slowest first"
    about = f"{some}; # is a node's place in the graph."
    about += f" {FUSED}." if any(node.group[1:] for node in nodes) else ""
    about += f" {STEPS[0].upper()}{STEPS[1:]}." if any(node.step for node in nodes) else ""
    slowest = sorted(nodes, key=lambda n: -n.median_ms)
    grid = node_grid(slowest, nodes, op_names(nodes), roofs)
    for at in reversed(range(len(grid.columns))):
        if grid.columns[at].header == "sum" or all(row[at] == "-" for row in grid.rows):
            grid = grid.without(at)
    first = {node.index: id(node) for node in reversed(nodes)}
    ids = [f"n{node.index}" if first[node.index] == id(node) else None for node in slowest]
    legends = {"roof": roof_text(page.told.machine)} if page.told.machine and roofs else {}
    shown = tag("div", table("nodes", grid, legends=legends, sorted="median", ids=ids), id="node-table")
    more = [Block("On the reference kernels", refused)] if (refused := fallback_grid(nodes)).rows else []
    if page.inside:
        title = "Inside nodes, of the last run"
        more.append(Block(title, inside_grid(page.inside, page.sum_ms, len(page.inside))))
    return section(
        "nodes", "Slowest nodes", about, search("node-table", "Filter by name or operator", "1 2"), shown, blocks(more)
    )


def beside_section(page: PageContent) -> Markup:
    """The times of another runtime that a profile measured too. Empty without one."""
    against, groups = page.against, page.groups
    if against is None or not groups:
        return Markup()
    runtime, verdict, run = against["runtime"].text, against.find("verdict"), against.find("run")
    told = faster(verdict.text, page.time, decode(Samples, run, True)) + " " if verdict and run and page.time else ""
    about = f"{told}A row is a group of nodes that both ran as a whole."
    integers = any(node.arithmetic == "integer" for group in groups for node in group.others)
    rows = sorted(groups, key=lambda group: -max(group.median_ms or 0.0, group.other_ms or 0.0))
    shown = table(f"times beside {runtime}", against_grid(rows, op_names(page.nodes), _has_roofs(page), integers))
    return section("beside", "Slowest groups of nodes", about, shown)
