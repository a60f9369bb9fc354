"""The times of another runtime beside qrun's, where both were measured in turn."""

from __future__ import annotations

from qrun.documents.item import Item
from qrun.report.html.frame import section
from qrun.report.html.models import items
from qrun.report.html.tags import HtmlColumn, Markup, table
from qrun.report.html.timing import TimeUnit

WORDS = {
    "faster": "qrun is faster",
    "slower": "{} is faster",
    "same": "not decided, the interquartile ranges overlap",
    "few runs": "not decided, there are too few runs",
}
"""A verdict of a profile in words; {} is the other runtime."""


def beside_section(against: Item | None) -> Markup:
    """against: of a profile that measured another runtime too. Empty without one."""
    groups = [group for group in items(against, "groups") if not group["folded"].truth]
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
    unit = TimeUnit.of(sum(_time(group, "median_ms") or 0.0 for group in groups))
    rows = sorted(groups, key=lambda group: -max(_time(group, "median_ms") or 0.0, _time(group, "other_ms") or 0.0))
    columns = [
        HtmlColumn("#", _first, number=True, rising=True),
        HtmlColumn("node", _named, name=True),
        HtmlColumn("operator", lambda g: g["op"].text, short=True),
        HtmlColumn(f"qrun {unit.name}", lambda g: unit(_time(g, "median_ms")), number=True),
        HtmlColumn(f"{runtime.partition(' ')[0]} {unit.name}", lambda g: unit(_time(g, "other_ms")), number=True),
        HtmlColumn("ratio", _ratio, number=True, about="Of its time to qrun's"),
    ]
    shown = table(f"times beside {runtime}", columns, rows, sortable=True, box="tall")
    return section("beside", f"Beside {runtime}", about, shown)


def _time(group: Item, key: str) -> float | None:
    return None if (found := group.find(key)) is None else found.real


def _first(group: Item) -> str:
    """Its first node; of what the other runtime inserted there is none."""
    return str(min((node.size for node in group["nodes"]), default="–"))


def _named(group: Item) -> str:
    others = group["nodes"].value
    return f"{group['name'].text}{f' +{len(others) - 1}' if len(others) > 1 else ''}"


def _ratio(group: Item) -> str:
    return "–" if (value := _time(group, "ratio")) is None else f"{value:.2f}"
