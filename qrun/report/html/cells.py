"""Cells and columns of tables of a comparison's tensors and nodes."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite

from qrun.documents.record import Item
from qrun.report.html.tags import HtmlColumn
from qrun.report.text import number

Show = Callable[[Item], str]


def real(item: Item | None, key: str) -> float | None:
    """A finite number; None where there is none."""
    inner = item.find(key) if item else None
    return inner.real if inner and isfinite(inner.real) else None


def text_cell(key: str, default: str = "") -> Show:
    return lambda item: inner.text if (inner := item.find(key)) else default


def label_cell(item: Item) -> str:
    """The name of a node; of one without, ``MaxPool_4``, as everywhere."""
    return text_cell("name")(item) or f"{text_cell('op')(item)}_{item['index'].size}"


def inner_cell(key: str, show: Show) -> Show:
    """What of an object inside of a row is shown; "–" without it."""
    return lambda item: show(inner) if (inner := item.find(key)) else "–"


def number_cell(key: str, digits: int | None = None) -> Show:
    def show(item: Item) -> str:
        value = real(item, key)
        return "–" if value is None else number(value) if digits is None else f"{value:.{digits}f}"

    return show


def count_cell(key: str) -> Show:
    return lambda item: f"{item[key].size:,}"


def place(item: Item) -> str:
    return str(node.size) if (node := item.find("node")) else "–"


INDEX = HtmlColumn("#", place, number=True, rising=True)
SIZES = (
    HtmlColumn("elements", count_cell("elements"), number=True),
    HtmlColumn("differ", count_cell("differing"), number=True),
)
SQNR = HtmlColumn("SQNR dB", number_cell("sqnr_db", 1), number=True)
MAX_ABS = HtmlColumn("max abs", number_cell("max_abs"), number=True)
COSINE = HtmlColumn("cosine", number_cell("cosine", 6), number=True)
TYPE = HtmlColumn("type", text_cell("type"), short=True)
