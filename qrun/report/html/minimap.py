"""A small picture of the graph: one box per node, in layers from left to right, coloured by time or by accuracy, linked
to its row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from qrun.declare.frozen import frozen
from qrun.documents.answers import ProfileNode
from qrun.report.html.collect import PageContent
from qrun.report.html.comparison import accuracies
from qrun.report.html.markup import Markup, join, section, shape, tag
from qrun.report.html.profile import label
from qrun.report.text import duration, plural

STEP, BOX = 12, 8
"""Pixels from one box to the next, and the size of a box."""
ACROSS = 80
"""Layers in a line of the picture; the next layers go into the next line."""
SHARES = (0.5, 0.2, 0.05, 0.01)
"""Parts of the slowest node's time; a node at or above the first, second ... has the first, second ... colour."""
ABOUT = (
    "One box for each node, from the inputs to the outputs; the darker, the more time it takes. A box is a link to the node's "
    "row. Nodes that read constants only are left out."
)
DECIBELS = (20.0, 30.0, 40.0, 60.0)
"""A node with an SQNR below the first, second ... has the first, second ... colour."""


@frozen
class Place:
    """The position of a box. line: of the picture; layer: in the line; lane: counted from above."""

    line: int
    layer: int
    lane: int


def graph_section(page: PageContent) -> Markup:
    """Empty without edges; saved results have none."""
    if len(page.nodes) < 2 or not page.edges:
        return Markup()
    links = between(page.nodes, page.edges)
    if not links:
        return Markup()
    places = layout(links)
    largest = max(node.median_ms for node in page.nodes)
    parts = [_map("time", page.nodes, links, places, lambda node: _shade_and_text(node, largest))]
    noise = accuracies(page.comparison) if page.comparison else {}
    worst = {
        node.index: min(found) for node in page.nodes if (found := [noise[i] for i in members(node) if i in noise])
    }
    if worst:
        about = "The same graph by accuracy: the darker, the lower the SQNR of the node's output."
        parts.append(tag("p", about, class_="about"))
        parts.append(_map("accuracy", page.nodes, links, places, lambda node: _accurate(worst.get(node.index))))
    return section("graph", "Graph", ABOUT, parts)


def members(node: ProfileNode) -> tuple[int, ...]:
    """The model's nodes that a row covers."""
    return node.group or (node.index,)


def between(nodes: Sequence[ProfileNode], edges: Sequence[tuple[int, int]]) -> Mapping[int, tuple[int, ...]]:
    """For each row the rows that it reads, by index; rows without links are left out.

    Nodes that ran as one step are one row. A node without a row, or in several rows such as a DequantizeLinear with
    many readers, is skipped: its readers link to the rows it reads.
    """
    rows: dict[int, set[int]] = {}
    for node in nodes:
        for member in members(node):
            rows.setdefault(member, set()).add(node.index)
    made: dict[int, dict[int, None]] = {}
    found: dict[int, dict[int, None]] = {node.index: {} for node in nodes}
    for start, end in sorted(edges, key=lambda edge: (edge[1], edge[0])):
        own = rows.get(start, set())
        makers = dict.fromkeys(own) if len(own) == 1 else made.get(start, {})
        made.setdefault(end, {}).update(makers)
        for row in rows.get(end, ()):
            found[row].update({maker: None for maker in makers if maker != row})
    used = {index for index, read in found.items() if read} | {maker for read in found.values() for maker in read}
    return {index: tuple(read) for index, read in found.items() if index in used}


def layout(links: Mapping[int, tuple[int, ...]]) -> Mapping[int, Place]:
    """Places each row one layer after all rows that it reads, in the lane of one of them if that is free; rows that
    read nothing are placed before their first reader."""
    depths = _depths(links)
    lanes: dict[int, int] = {}
    taken: set[tuple[int, int]] = set()
    for index in sorted(links, key=lambda index: (depths[index], index)):
        depth = depths[index]
        wanted = [lanes[read] for read in sorted(links[index], key=lambda read: -depths[read]) if read in lanes]
        lane = next((lane for lane in wanted if (depth, lane) not in taken), 0)
        while (depth, lane) in taken:
            lane += 1
        taken.add((depth, lane))
        lanes[index] = lane
    return {index: Place(depth // ACROSS, depth % ACROSS, lanes[index]) for index, depth in depths.items()}


def _depths(links: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    depths: dict[int, int] = {}
    pending = list(links)
    while pending:
        ready = [index for index in pending if all(read in depths for read in links[index])] or pending[:1]
        for index in ready:
            depths[index] = 1 + max((depths[read] for read in links[index] if read in depths), default=-1)
        done = set(ready)
        pending = [index for index in pending if index not in done]
    first: dict[int, int] = {}
    for index, read in links.items():
        for maker in read:
            first[maker] = min(depths[index], first.get(maker, depths[index]))
    return {index: depth if links[index] else max(first[index] - 1, 0) for index, depth in depths.items()}


def _map(
    name: str,
    nodes: Sequence[ProfileNode],
    links: Mapping[int, tuple[int, ...]],
    places: Mapping[int, Place],
    colour: Callable[[ProfileNode], tuple[int, str]],
) -> Markup:
    """Draws the picture. colour: gives a row the number of its colour, darkest first, and the words for it."""
    lanes = [
        1 + max((p.lane for p in places.values() if p.line == line), default=0)
        for line in range(1 + max(p.line for p in places.values()))
    ]
    tops = [sum(lanes[:line]) * STEP + line * STEP for line in range(len(lanes))]
    at = {index: (p.layer * STEP + 2, tops[p.line] + p.lane * STEP + 2) for index, p in places.items()}
    width = STEP * (1 + max(p.layer for p in places.values()))
    height = tops[-1] + lanes[-1] * STEP
    boxes = []
    for node in (node for node in nodes if node.index in at):
        shade, words = colour(node)
        told, (x, y) = f"{label(node)}: {words}", map(str, at[node.index])
        box = tag("rect", tag("title", told), x=x, y=y, width=str(BOX), height=str(BOX), class_=f"m{shade}")
        boxes.append(tag("a", box, href=f"#n{node.index}", tabindex="-1", aria_label=told))
    lines = shape("path", d=" ".join(_lines(links, places, at)))
    size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    name = f"Graph of {plural(len(at), 'node')}, by {name}"
    return tag("figure", tag("svg", lines, join(boxes), class_="map", **size, role="group", aria_label=name))


def _lines(
    links: Mapping[int, tuple[int, ...]], places: Mapping[int, Place], at: Mapping[int, tuple[int, int]]
) -> Iterator[str]:
    """A line for each link; only its two ends are drawn if it leads to another line of the picture."""
    half = BOX // 2
    for end, starts in links.items():
        x, y = at[end]
        for start in starts:
            a, b = at[start]
            if places[start].line == places[end].line:
                yield f"M{a + BOX} {b + half}L{x} {y + half}"
            else:
                yield f"M{a + BOX} {b + half}h{STEP - BOX}M{x} {y + half}h{BOX - STEP}"


def _shade_and_text(node: ProfileNode, largest: float) -> tuple[int, str]:
    part = node.median_ms / largest if largest else 0.0
    shade = next((place for place, least in enumerate(SHARES) if part >= least), len(SHARES))
    return shade, f"{duration(node.median_ms * 1e6)}, {100 * node.share:.1f}%"


def _accurate(sqnr: float | None) -> tuple[int, str]:
    if sqnr is None:
        return len(DECIBELS), "equal, or not compared"
    return next((place for place, most in enumerate(DECIBELS) if sqnr < most), len(DECIBELS)), f"{sqnr:.1f} dB"
