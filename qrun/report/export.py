"""The screen and the JSON of ``qrun export``: the layers that were written, and what was not."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from qrun.declare import grouped
from qrun.exporting.export import Exporter
from qrun.exporting.write import ExportWriter, manifest
from qrun.report.grid import Column, Grid
from qrun.report.screen import BAD, GOOD, NAME
from qrun.report.sheet import Block, Sheet, top_rows
from qrun.report.text import plural

Fields = Mapping[str, Any]


def export_fields(exporter: Exporter, writer: ExportWriter) -> dict[str, Any]:
    """The body of the JSON document; its schema is qrun/schemas/export-1.0.json."""
    return {**(writer.fields or manifest(exporter, (), ())), "files": writer.files, "bytes": writer.nbytes}


def export_sheet(exporter: Exporter, writer: ExportWriter, folder: str, top: int | None) -> Sheet:
    """folder: where it was written. top: layers to list, None for all."""
    fields = export_fields(exporter, writer)
    columns = [
        Column("layer", shrink=1, style=NAME, cell=lambda each: each["name"]),
        Column("operator", cell=lambda each: each["op"].rpartition("::")[2]),
        Column("arithmetic", cell=lambda each: each["arithmetic"] or "no rounding"),
        Column("from exact", cell=_deviation),
        Column("values", right=True, cell=lambda each: f"{_values(each):,}"),
        Column("file", shrink=1, optional=1, cell=lambda each: each["identifier"]),
    ]
    layers = fields["layers"]
    if not layers:
        return Sheet(_left(fields["remaining"]), "nothing written: no quantized layer", BAD, title="qrun export")
    legends = {"from exact": "from exact: the largest difference from the correctly rounded code, for any input"}
    if any(each["arithmetic"] == "table" for each in layers):
        legends["arithmetic"] = "table: the model's output code for each of the 256 input codes"
    block = top_rows("Layers", columns, layers, top, "layer", folds=True)
    block = [Block(each.title, each.grid, each.facts, legends, each.lines, each.more, each.folds) for each in block]
    size = f"{plural(len(writer.files), 'file')}, {writer.nbytes:,} bytes in {folder}"
    verdict = f"exported: {plural(len(layers), 'layer')} as {fields['form']}, {fields['layout']}; {size}"
    blocks = [*block, *_left(fields["remaining"])]
    if fields["form"] == "c":
        shown = quote(folder.rstrip(os.sep))
        lines = [f"cc -std=c99 -O2 -I {shown} {shown}/*.c -o check && ./check"]
        blocks.append(Block("Check", lines=lines))
    return Sheet(blocks, verdict, GOOD, title="qrun export")


def _deviation(layer: Fields) -> str:
    """``0``, ``up to 1``, or nothing for sums alone."""
    if layer["deviation"] is None:
        return "no bound" if layer["arithmetic"] not in ("", "table") else ""
    return f"up to {layer['deviation']}" if layer["deviation"] else "0"


def _values(layer: Fields) -> int:
    """How many numbers a layer has."""
    total = 0
    for tensor in layer["tensors"]:
        count = 1
        for size in tensor["shape"]:
            count *= size
        total += count
    return total


def _left(remaining: Sequence[Fields]) -> list[Block]:
    """The nodes that are not exported, by reason."""
    reasons = grouped((each["reason"], each) for each in remaining)
    rows = sorted(reasons.items(), key=lambda row: -len(row[1]))
    columns = [
        Column("nodes", right=True, cell=lambda row: str(len(row[1]))),
        Column("first", shrink=1, style=NAME, cell=lambda row: row[1][0]["name"]),
        Column("operator", cell=lambda row: row[1][0]["op"].rpartition("::")[2]),
        Column("reason", wrap=True, below=True, cell=lambda row: row[0]),
    ]
    return [Block("Not exported", Grid.of(columns, rows))] if rows else []
