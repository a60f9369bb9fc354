"""The roofline plot: each node's multiply-adds per second over its multiply-adds per byte, below the machine's limits.

Williams, Waterman, Patterson: Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from qrun.declare.frozen import frozen
from qrun.documents.answers import ProfileNode
from qrun.memory import human
from qrun.report.html.collect import PageContent
from qrun.report.html.markup import Markup, join, picture, pointed, section, shape, tag
from qrun.report.html.profile import HINT, Palette
from qrun.report.text import percent, plural, shorten_all, width_of
from qrun.running.machine import Machine

LEVELS = ((1 << 15, "L1"), (1 << 20, "L2"), (1 << 24, "L3"))
"""A buffer of up to this many bytes counts as in that cache; a larger one is in RAM."""
LABELLED = 5
"""The slowest nodes, whose names stand beside their dots."""
WIDE, HIGH = 700, 380
"""Pixels of the narrowest plot with names, and of every plot: labels are placed so that they stay apart there."""
ABOVE = 2.0
"""A node faster than the roof by more than this factor was not measured well."""
NAME = 22
"""The most characters of a node's name in a label."""
LETTER, LINE = 7.4, 14
"""Pixels of a label's characters, and of its line."""
MARGIN = 0.12
"""Decades left free beyond the outermost values of an axis."""


@frozen
class LogAxis:
    """A logarithmic axis. low, high: decimal logarithms of its ends, at least 1 apart."""

    low: float
    high: float

    @classmethod
    def over(cls, values: Sequence[float]) -> LogAxis:
        low, high = math.log10(min(values)) - MARGIN, math.log10(max(values)) + MARGIN
        wider = max(1.0 - (high - low), 0.0) / 2
        return cls(low - wider, high + wider)

    def __call__(self, value: float) -> float:
        """The position of a value, in percent of the axis."""
        return 100 * (math.log10(value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """The powers of ten, and on a short axis their doubles and fivefolds."""
        steps = (1, 2, 5) if self.high - self.low < 2 else (1,)
        decades = range(math.floor(self.low), math.ceil(self.high))
        found = [step * 10.0**decade for decade in decades for step in steps]
        return [value for value in found if 4 <= self(value) <= 96]


def roofline_section(page: PageContent, palette: Palette) -> Markup:
    """Empty if no node has multiply-adds, bytes and a time."""
    known = [n for n in page.nodes if n.gmacs and n.bytes]
    nodes = [n for n in known if (n.roof_share or 0.0) <= ABOVE]
    if not nodes:
        return Markup()
    left = len(page.nodes) - len(known)
    about = "One dot per node; larger dots take more time. The slowest nodes are labelled. Both axes are logarithmic."
    if left:
        about += f" {plural(left, 'node')} without multiply-adds {'is' if left == 1 else 'are'} not shown."
    if above := len(known) - len(nodes):
        about += f" {plural(above, 'node')} more than {ABOVE:g} times above the roof {'is' if above == 1 else 'are'} not shown: the machine was busy."
    machine = page.told.machine
    axes = tag(
        "div",
        tag("span", "GMAC/s (10⁹ multiply-adds per second)", class_="up"),
        _plot(nodes, machine, palette),
        tag("span", "multiply-adds per byte moved", class_="across"),
        class_="axes",
    )
    caption = tag("figcaption", _caption(machine)) if machine else Markup()
    return section("roofline", "Roofline", about, picture(axes, HINT, caption))


def _peaks(machine: Machine) -> list[tuple[str, float]]:
    """The flat roofs by name, in GMAC/s."""
    peaks = ((f"int8 {machine.instruction}".rstrip(), machine.int8), ("float32", machine.float32))
    return [(name, peak / 1e9) for name, peak in peaks if peak and peak > 0]


def _reads(machine: Machine) -> list[tuple[int, float]]:
    """The slopes: bytes of a buffer, and the GB/s at which it is read."""
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
    parts += [
        _line(max(x(gmacs / fastest if fastest else 10**x.low), 0), y(gmacs), 100, y(gmacs), "roof")
        for _, gmacs in roofs
    ]
    slowest = sorted(nodes, key=lambda n: -n.share)
    parts += [_dot(n, x, y, palette) for n in slowest]
    labels, labelled = _Labels(), slowest[:LABELLED]
    places = [(x(node.macs / node.bytes), y(node.gmacs or 0.0), _radius(node)) for node in labelled]
    for place in places:
        labels.keep_free(*place)
    for name, gmacs in roofs:
        sides = [(-6.0, -6.0), (-6.0, 14.0)]
        parts.append(labels.beside(100, y(gmacs), sides, f"{name} {gmacs:.0f} GMAC/s"))
    names = shorten_all([palette.label(node) for node in labelled], NAME)
    for node, name, (left, up, radius) in zip(labelled, names, places, strict=True):
        parts.append(labels.beside(left, up, _around(radius, left), f"#{node.index}", f" {name}"))
    named: set[str] = set()
    for size, speed in memory if top else ():
        level = next((name for limit, name in LEVELS if size <= limit), "RAM")
        start = max(10**x.low, 10**y.low / speed) * 10**MARGIN
        if level not in named:
            parts.append(labels.beside(x(start), y(start * speed), [(6, 14), (-6, -6)], level, needed=False))
        named.add(level)
    name = f"Roofline of {plural(len(nodes), 'node')}: GMAC/s over multiply-adds per byte"
    return tag("svg", parts, class_="plot", role="group", aria_label=name)


class _Labels:
    """Finds places for labels where they do not cover each other, in a plot of WIDE x HIGH pixels."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, float, float, float]] = []

    def keep_free(self, x: float, y: float, radius: float) -> None:
        """Keeps labels off a dot; x and y in percent of the axes."""
        left, top = x / 100 * WIDE, (100 - y) / 100 * HIGH
        self.taken.append((left - radius, top - radius, left + radius, top + radius))

    def beside(
        self, x: float, y: float, sides: Sequence[tuple[float, float]], words: str, name: str = "", needed: bool = True
    ) -> Markup:
        """The label of a point (x, y in percent of the axes), with a line to it if it has neither the first nor the
        second place. sides: pixels to the right of it and below it, the best place first; a label at the left ends
        there. name: the part that narrow windows leave out. needed: if it fits nowhere it has the first place."""
        size, left, top = LETTER * (len(words) + width_of(name)), x / 100 * WIDE, (100 - y) / 100 * HIGH
        boxes = [
            (left + dx - size * (dx < 0), top + dy - LINE, left + dx + size * (dx > 0), top + dy + 2)
            for dx, dy in sides
        ]
        fitting = [place for place, box in enumerate(boxes) if self._fits(*box)]
        if not fitting and not needed:
            return Markup()
        place = next(iter(fitting), 0)
        self.taken.append(boxes[place])
        (dx, dy), shown = sides[place], join([words, tag("tspan", name) if name else ""])
        line = shape("path", d=f"M0 0L{dx:g} {dy - 4:g}") if place > 1 else ""
        return tag("svg", line, _text(shown, dx, dy, dx < 0), x=_at(x), y=_at(100 - y))

    def _fits(self, left: float, top: float, right: float, bottom: float) -> bool:
        inside = left >= 0 and right <= WIDE and top >= 0 and bottom <= HIGH
        return inside and all(right <= b[0] or left >= b[2] or bottom <= b[1] or top >= b[3] for b in self.taken)


def _around(radius: float, x: float) -> list[tuple[float, float]]:
    """Places for the label of a dot: beside it, first towards the middle of the plot, then above and below, then
    farther away. x: in percent of the axis."""
    near = radius + 5
    rings = [near + far for far in (0, 10, 24, 40, 60, 85, 110)]
    across = (near, -near) if x < 50 else (-near, near)
    return [*((dx, 4) for dx in across), *((dx, dy) for ring in rings for dy in (-ring, ring + 9) for dx in across)]


def _line(x1: float, y1: float, x2: float, y2: float, style: str | None = None) -> Markup:
    """A line from one point to another, each in percent of the axes."""
    return shape("line", class_=style, x1=_at(x1), y1=_at(100 - y1), x2=_at(x2), y2=_at(100 - y2))


def _text(words: str, x: float, y: float, end: bool = False) -> Markup:
    """Words at a place in pixels; end: they end there."""
    return tag("text", words, x=f"{x:g}", y=f"{y:g}", text_anchor="end" if end else None)


def _at(percent: float) -> str:
    return f"{percent:.2f}%"


def _radius(node: ProfileNode) -> float:
    return round(3.5 + 14 * math.sqrt(node.share), 1)


def _dot(node: ProfileNode, x: LogAxis, y: LogAxis, palette: Palette) -> Markup:
    intensity, gmacs = node.macs / node.bytes, node.gmacs or 0.0
    told = f"{gmacs:.1f} GMAC/s, {intensity:.3g} multiply-adds per byte"
    if node.roof_share is not None:
        told += f", {percent(node.roof_share)} of the roof ({node.bound or ''})"
    place = {"cx": _at(x(intensity)), "cy": _at(100 - y(gmacs)), "r": f"{_radius(node)}"}
    return pointed(
        [*palette.describe(node), told], shape("circle", **place, class_=palette[node.qualified]), node.index
    )


def _grid(x: LogAxis, y: LogAxis) -> Iterator[Markup]:
    """Lines at round numbers, which stand outside the plot."""
    for value in x.ticks:
        yield _line(x(value), 0, x(value), 100)
        yield tag("text", f"{value:g}", x=_at(x(value)), y="100%", dy="16", text_anchor="middle")
    for value in y.ticks:
        yield _line(0, y(value), 100, y(value))
        yield tag("text", f"{value:g}", y=_at(100 - y(value)), dx="-6", dy="4", text_anchor="end")


def _slope(size: int, speed: float, top: float, x: LogAxis, y: LogAxis) -> Markup:
    """The limit from reading buffers of one size, drawn up to the highest flat line."""
    start = max(10**x.low, 10**y.low / speed)
    line = _line(x(start), y(start * speed), x(top / speed), y(top), "roof")
    return pointed([f"{speed:.1f} GB/s from {human(size)}"], line, None)
