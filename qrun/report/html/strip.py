"""The strip of a run's time: the nodes in graph order, in the colours of their operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qrun.documents.answers import ProfileNode
from qrun.report.html.markup import Markup, tag
from qrun.report.nodes import fused_text
from qrun.report.text import duration, plural

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
            sums[node.qualified] = sums.get(node.qualified, 0.0) + node.median_ms
        self.order = sorted(sums, key=lambda op: -sums[op])

    def __getitem__(self, op: str) -> str:
        """The class of an operator's colour."""
        return f"c{min(self.order.index(op), COLOURS)}"


def label(node: ProfileNode) -> str:
    return f"#{node.index} {node.label} {fused_text(node, node.op)}"


def strip(nodes: Sequence[ProfileNode], spent: float, whole: float, palette: Palette) -> Markup:
    """spent: by all nodes of the model, also those that the page does not have; whole: by a run, at least that, ms."""
    blocks, at = [], 0.0
    for node in nodes:
        width = 100 * node.median_ms / whole if whole else 0
        told = f"{label(node)} {duration(node.median_ms * 1e6)}"
        blocks.append(_block(told, at, width - GAP * (width > WIDE), palette[node.qualified]))
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
