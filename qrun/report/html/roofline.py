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
from qrun.report.html.markup import Markup, section, tag
from qrun.report.html.profile import Palette, label
from qrun.report.text import plural
from qrun.running.machine import Machine

LEVELS = ((1 << 15, "L1"), (1 << 20, "L2"), (1 << 24, "L3"))
"""A buffer of up to this many bytes counts as in that cache; a larger one is in RAM."""
LOWEST, LEFTMOST, NEAR_THE_END = 12.0, 10.0, 86.0
"""Percent of an axis: the place where names of slopes begin, clear of the other axis's numbers; and the place from
which labels are drawn on the other side of their line."""
TOP = 95.0
"""Percent of the upright axis: a label above this has no room above its line, where there are no dots."""
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
    nodes = [n for n in page.nodes if n.gmacs and n.bytes]
    if not nodes:
        return Markup()
    left = len(page.nodes) - len(nodes)
    about = "One dot for each node, the larger the more time it takes. Both axes are logarithmic."
    if left:
        about += f" {plural(left, 'node')} without multiply-adds {'is' if left == 1 else 'are'} not shown."
    machine = page.told.machine
    ends = ("Up: speed, 10⁹ multiply-adds a second (GMAC/s)", "To the right: multiply-adds for each byte moved")
    axes = tag("div", (tag("span", words) for words in ends), class_="ends")
    caption = tag("figcaption", _caption(machine)) if machine else ""
    return section("roofline", "Roofline", about, tag("figure", axes, _plot(nodes, machine, palette), caption))


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
    parts += [_dot(n, x, y, palette) for n in sorted(nodes, key=lambda n: -n.share)]
    for name, gmacs in roofs:
        parts.append(_text(f"{name} {gmacs:.0f} GMAC/s", 100, y(gmacs), -6, -6 if y(gmacs) < TOP else 14, end=True))
    named: set[str] = set()
    for size, speed in memory if top else ():
        level = next((name for limit, name in LEVELS if size <= limit), "RAM")
        if level not in named:
            named.add(level)
            parts.append(_slope_label(level, speed, top, x, y))
    name = f"Roofline of {plural(len(nodes), 'node')}: GMAC/s over MAC a byte"
    return tag("svg", parts, class_="plot", role="img", aria_label=name)


def _line(x1: float, y1: float, x2: float, y2: float, style: str | None = None, *inside: Markup) -> Markup:
    """A line from one point to another, each in percent of the axes."""
    return tag("line", *inside, class_=style, x1=_at(x1), y1=_at(100 - y1), x2=_at(x2), y2=_at(100 - y2))


def _text(words: str, x: float, y: float, dx: int, dy: int, end: bool = False) -> Markup:
    """Words beside a point: dx and dy pixels to its right and below it; end: the words end there."""
    place = {"x": _at(x), "y": _at(100 - y), "dx": str(dx), "dy": str(dy)}
    return tag("text", words, **place, text_anchor="end" if end else None)


def _at(percent: float) -> str:
    return f"{percent:.2f}%"


def _dot(node: ProfileNode, x: LogAxis, y: LogAxis, palette: Palette) -> Markup:
    intensity, gmacs = node.macs / node.bytes, node.gmacs or 0.0
    title = f"{label(node)}: {gmacs:.1f} GMAC/s, {intensity:.3g} MAC a byte"
    if node.roof_share is not None:
        title += f", {100 * node.roof_share:.0f}% of the roof ({node.bound or ''})"
    place = {"cx": _at(x(intensity)), "cy": _at(100 - y(gmacs)), "r": f"{3.5 + 14 * math.sqrt(node.share):.1f}"}
    return tag("circle", tag("title", title), **place, class_=palette[node.qualified])


def _grid(x: LogAxis, y: LogAxis) -> Iterator[Markup]:
    for value in x.ticks:
        at, right = x(value), x(value) > NEAR_THE_END
        yield _line(at, 0, at, 100)
        yield _text(f"{value:g}", at, 0, -4 if right else 4, -6, right)
    for value in y.ticks:
        yield _line(0, y(value), 100, y(value))
        yield _text(f"{value:g}", 0, y(value), 6, -4 if y(value) < NEAR_THE_END else 13)


def _slope(size: int, speed: float, top: float, x: LogAxis, y: LogAxis) -> Markup:
    """The limit from reading buffers of one size, drawn up to the highest flat line."""
    start = max(10**x.low, 10**y.low / speed)
    title = tag("title", f"{speed:.1f} GB/s from {human(size)}")
    return _line(x(start), y(start * speed), x(top / speed), y(top), "roof", title)


def _slope_label(name: str, speed: float, top: float, x: LogAxis, y: LogAxis) -> Markup:
    """The name of a slope, beside the place where it begins, or below the roof if it has reached that there."""
    beside = y(10 ** (x.low + LEFTMOST / 100 * (x.high - x.low)) * speed)
    up = min(max(LOWEST, beside), y(top))
    across = x(10 ** (y.low + up / 100 * (y.high - y.low)) / speed)
    return _text(name, max(across, LEFTMOST), up, 6, 14 if up == y(top) or up > NEAR_THE_END else 4)
