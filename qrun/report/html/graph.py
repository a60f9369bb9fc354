"""The graph: one box per node with its name, in layers from left to right that continue in the next line as text does;
coloured by time or by SQNR, each a link to its row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from qrun.declare.frozen import frozen
from qrun.documents.answers import ProfileNode
from qrun.report.html.collect import PageContent
from qrun.report.html.comparison import accuracies
from qrun.report.html.markup import Markup, picture, pointed, section, shape, tag, void
from qrun.report.html.profile import Palette
from qrun.report.nodes import fused_text
from qrun.report.text import decibel, duration, plural, shorten, shorten_all

WIDTH, HEIGHT = 164, 38
"""Size of a box in pixels."""
RIGHT, DOWN, EDGE = 186, 52, 22
"""Pixels from one box to the next, and around the picture and between its lines."""
LETTERS, SHORTER = 21, 16
"""The most characters of a box's name, and of the operator below it."""
FEWEST, WIDER = 5, 2.5
"""Layers in a line of the picture: at least FEWEST, and as many as make it WIDER than high by this factor."""
SHARES = (0.5, 0.2, 0.05, 0.01)
"""Parts of the slowest node's time; a node at or above the first, second ... has the first, second ... colour."""
DECIBELS = (20.0, 30.0, 40.0, 60.0)
"""A node with an SQNR below the first, second ... has the first, second ... colour."""
ABOUT = "From the inputs to the outputs; a line that ends at the right continues at the left of the next one. Nodes that read only constants are left out."
HINT = "Point at a node to see its tensor. Keys: up and down go from node to node, left and right follow the edges, + and - zoom, 0 fits."


@frozen
class Place:
    """The position of a box. line: of the picture; layer: in the line; lane: counted from above."""

    line: int
    layer: int
    lane: int


def graph_section(page: PageContent, palette: Palette) -> Markup:
    """Empty without edges; saved results have none."""
    boxes = members(page.nodes)
    links = between(boxes, page.edges)
    if not links:
        return Markup()
    known = accuracies(page.comparison) if page.comparison else {}
    noise = {box: min(found) for box, nodes in boxes.items() if (found := [known[n] for n in nodes if n in known])}
    drawn = _svg({node.index: node for node in page.nodes}, links, layout(links), noise, palette)
    box = tag("div", drawn, class_="scroll", tabindex="0", role="region", aria_label="graph")
    more = [_tools(bool(noise)), box]
    return section("graph", "Graph", ABOUT, picture(more, HINT, _legends(bool(noise)), data_by="time"))


def _tools(noise: bool) -> Markup:
    """Search, colours and zoom; visible only with scripts. noise: the nodes have colours by SQNR, too."""
    find = tag("label", "Find a node", void("input", type="search", autocomplete="off", spellcheck="false"))
    choice = tag("select", tag("option", "time", value="time"), tag("option", "SQNR", value="sqnr"))
    zoom = [
        tag("button", sign, type="button", aria_label=words, data_zoom=step)
        for sign, words, step in (
            ("−", "Zoom out", "0.8"),
            ("+", "Zoom in", "1.25"),
            ("Fit", "Fit the whole graph", "0"),
        )
    ]
    colour = tag("label", "Colour by", choice) if noise else ""
    return tag("div", find, tag("output"), colour, tag("span", zoom), class_="tools", hidden=True)


def _legends(noise: bool) -> Iterator[Markup]:
    """The meaning of the colours, darkest first, for each of the two choices."""
    times = [f"at least {100 * least:g} %" for least in SHARES]
    yield _legend("time", "Part of the slowest node's time", [*times, "less"])
    if noise:
        known = [f"below {most:g} dB" for most in DECIBELS]
        yield _legend("sqnr", "SQNR of the node's output", [*known, "more, or not compared"])


def _legend(by: str, title: str, words: Iterable[str]) -> Markup:
    parts = (tag("span", tag("i", class_=f"h{place}"), each) for place, each in enumerate(words))
    return tag("p", f"{title}: ", parts, class_=f"legend {by}")


def members(nodes: Sequence[ProfileNode]) -> Mapping[int, Sequence[int]]:
    """For each box the model's nodes that it stands for: those of a fused group, or of a step that ran as one."""
    groups = {node.index: node.group or (node.index,) for node in nodes}
    steps = {node.index: node.step for node in nodes if node.step}
    inside = {index for own, step in steps.items() for index in step if index != own}
    return {
        own: [index for row in steps.get(own, (own,)) for index in groups.get(row, (row,))]
        for own in groups
        if own not in inside
    }


def between(boxes: Mapping[int, Sequence[int]], edges: Sequence[tuple[int, int]]) -> Mapping[int, tuple[int, ...]]:
    """For each box the boxes that it reads; boxes without links are left out. boxes: as of `members`.

    A node without a box, or in several such as a DequantizeLinear with many readers, is skipped: its readers link to
    the boxes that it reads.
    """
    rows: dict[int, set[int]] = {}
    for box, nodes in boxes.items():
        for node in nodes:
            rows.setdefault(node, set()).add(box)
    made: dict[int, dict[int, None]] = {}
    found: dict[int, dict[int, None]] = {box: {} for box in boxes}
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
    area = (1 + max(depths.values())) * (1 + max(lanes.values()))
    across = max(FEWEST, round(math.sqrt(WIDER * area * DOWN / RIGHT)))
    return {index: Place(depth // across, depth % across, lanes[index]) for index, depth in depths.items()}


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


def _svg(
    nodes: Mapping[int, ProfileNode],
    links: Mapping[int, tuple[int, ...]],
    places: Mapping[int, Place],
    noise: Mapping[int, float],
    palette: Palette,
) -> Markup:
    """Draws the graph, boxes in the order in which the arrow keys pass them. noise: the SQNR (dB) of boxes."""
    lines = range(1 + max(place.line for place in places.values()))
    lanes = [1 + max((p.lane for p in places.values() if p.line == line), default=0) for line in lines]
    tops = [EDGE // 2 + sum(lanes[:line]) * DOWN + line * EDGE for line in lines]
    at = {index: (EDGE + p.layer * RIGHT, tops[p.line] + p.lane * DOWN) for index, p in places.items()}
    width, height = max(x for x, _ in at.values()) + RIGHT, tops[-1] + lanes[-1] * DOWN
    names = dict(zip(places, shorten_all([palette.label(nodes[index]) for index in places], LETTERS), strict=True))
    largest = max(nodes[index].median_ms for index in places)
    boxes = []
    for index in sorted(places, key=lambda index: (places[index].line, places[index].layer, places[index].lane)):
        node, sqnr = nodes[index], noise.get(index)
        part = node.median_ms / largest if largest else 0.0
        hot = next((place for place, least in enumerate(SHARES) if part >= least), len(SHARES))
        noisy = next((place for place, most in enumerate(DECIBELS) if sqnr is not None and sqnr < most), len(DECIBELS))
        edges = shape("path", d="".join(_edges(places, at, index, links[index])))
        told = [*palette.describe(node), *([f"SQNR {decibel(sqnr)}"] if sqnr is not None else [])]
        parts = [edges, _box(names[index], node, sqnr, *at[index])]
        reads = " ".join(map(str, links[index]))
        boxes.append(pointed(told, parts, index, class_=f"t{hot} s{noisy}", data_reads=reads))
    size = {"width": str(width), "height": str(height), "viewBox": f"0 0 {width} {height}"}
    name = f"Graph of {plural(len(at), 'node')}"
    return tag("svg", boxes, class_="map", **size, role="group", aria_label=name)


def _box(name: str, node: ProfileNode, sqnr: float | None, x: int, y: int) -> Markup:
    """A node's box with its name, operator, time and SQNR (dB)."""
    texts = [
        name,
        shorten(fused_text(node, node.op), SHORTER),
        duration(node.median_ms * 1e6),
        "" if sqnr is None else decibel(sqnr),
    ]
    return tag("svg", shape("rect"), (tag("text", words) for words in texts if words), x=str(x), y=str(y))


def _edges(
    places: Mapping[int, Place], at: Mapping[int, tuple[int, int]], end: int, starts: Sequence[int]
) -> Iterator[str]:
    """The lines to a box from those that it reads: below the boxes between them, and only the two ends if the other box
    is in another line of the picture."""
    half, gap = HEIGHT // 2, RIGHT - WIDTH
    x, y = at[end]
    for start in starts:
        a, b = at[start]
        a, b, c = a + WIDTH, b + half, y + half
        if places[start].line != places[end].line:
            yield f"M{a} {b}h{gap // 2}M{x} {c}h-{gap // 2}"
        elif places[end].layer - places[start].layer == 1:
            yield f"M{a} {b}C{a + gap // 2} {b} {x - gap // 2} {c} {x} {c}"
        else:
            yield f"M{a} {b}q6 0 6 6V{b + DOWN // 2 - 6}q0 6 6 6H{x - 12}q6 0 6 {'6' if c > b else '-6'}V{c}H{x}"
