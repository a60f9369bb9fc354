"""What the quantization of a model costs: outputs, the costliest nodes, what to keep in float, noise of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qrun.documents.record import Item
from qrun.report.html.cells import COSINE, INDEX, MAX_ABS, SQNR, inner_cell, label_cell, number_cell, real, text_cell
from qrun.report.html.collect import MOST
from qrun.report.html.models import items
from qrun.report.html.tags import Cell, HtmlColumn, Markup, table, tag
from qrun.report.html.timing import share


def accuracy_parts(found: Item) -> list[Markup]:
    """found: a document of qrun compare, of two models."""
    outputs, costs, tensors = list(found["outputs"]), list(found["costs"])[:MOST], list(found["tensors"])[:MOST]
    kept = [node.text for node in items(found.find("keep_in_float"), "nodes")]
    parts = []
    if outputs:
        agreed = HtmlColumn("same argmax", _agreed, number=True)
        columns = [HtmlColumn("output", text_cell("name"), name=True), SQNR, COSINE, MAX_ABS, agreed]
        parts += [tag("h3", "Outputs"), table("outputs", columns, outputs, box="narrow")]
    if costs:
        parts += [tag("h3", "What costs accuracy"), _costs(costs)]
    wrong = list(items(found, "corrections"))
    if wrong:
        parts += [tag("h3", "Correct first"), table("corrections", _CORRECTIONS, wrong)]
    if kept:
        parts += _keep(found["keep_in_float"], kept)
    if tensors:
        parts += [tag("h3", "Tensors, in graph order"), _noises(tensors)]
    return parts


_CORRECTIONS = [
    HtmlColumn("#", lambda r: str(r["index"].size), number=True),
    HtmlColumn("node", text_cell("name"), name=True),
    HtmlColumn("what", text_cell("text"), wide=True),
    HtmlColumn("outputs' SQNR dB", number_cell("before_db", 1), number=True),
    HtmlColumn("then", number_cell("after_db", 1), number=True),
]


def _keep(found: Item, kept: Sequence[str]) -> list[Markup]:
    """The list to keep in float, as onnxruntime's quantizer takes it, and what each length of it reaches."""
    exclude = [node.text for node in items(found, "exclude")] or kept
    parts = [
        tag("h3", "Keep in float"),
        tag("pre", "nodes_to_exclude=[" + ", ".join(f'"{name}"' for name in exclude) + "]"),
    ]
    tried, count = list(items(found, "tried")), found.find("count")
    chosen = count.size if count is not None else len(kept)

    def length(one: Item) -> str:
        return f"{one['nodes'].size}{' (this list)' if one['nodes'].size == chosen else ''}"

    columns = [
        HtmlColumn("nodes in float", length, short=True),
        HtmlColumn("outputs' SQNR dB", number_cell("output_sqnr_db", 1), number=True),
    ]
    return [*parts, table("nodes kept in float", columns, tried, box="narrow")] if tried else parts


def _agreed(output: Item) -> str:
    total = output.find("argmax_total")
    return f"{output['argmax_agreed'].size} of {total.size}" if total and total.size else "–"


def _costs(rows: Sequence[Item]) -> Markup:
    largest = max((real(r, "share") or 0 for r in rows), default=0)
    alone = "At the outputs, with only this node quantized"

    def part(row: Item) -> Cell:
        return share(real(row, "share"), largest)

    columns = [
        HtmlColumn("#", lambda r: str(r["index"].size), number=True, rising=True),
        HtmlColumn("node", label_cell, name=True),
        HtmlColumn("operator", text_cell("op"), short=True),
        HtmlColumn("share", part, number=True, about="Of the noise at the outputs"),
        HtmlColumn("output SQNR dB", number_cell("output_sqnr_db", 1), number=True, about=alone),
        HtmlColumn("own SQNR dB", inner_cell("local", SQNR.cell), number=True, about="Of the tensor it makes"),
        HtmlColumn("reason", text_cell("reason"), short=True),
        HtmlColumn("why", text_cell("why"), wide=True),
    ]
    return table("what costs accuracy", columns, rows, sortable=True, box="tall")


def _noises(rows: Sequence[Item]) -> Markup:
    own = "Of its own quantization alone"
    columns = [
        INDEX,
        HtmlColumn("tensor", text_cell("tensor"), name=True),
        HtmlColumn("of the float model", text_cell("reference"), name=True),
        *(replace(column, cell=inner_cell("cumulated", column.cell)) for column in (SQNR, COSINE, MAX_ABS)),
        HtmlColumn("own SQNR dB", inner_cell("local", SQNR.cell), number=True, about=own),
    ]
    return table("accuracy of tensors", columns, rows, sortable=True, box="tall")
