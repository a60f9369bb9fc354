"""The report of a model and a device's dump: the comparison, and below it how the dump's tensors were mapped."""

from __future__ import annotations

from typing import Any

from qrun.comparing.comparison import Comparison
from qrun.comparing.dumped import DumpMap
from qrun.comparing.mapping.fit import MappedTensor
from qrun.declare.frozen import replace
from qrun.documents.record import encode
from qrun.errors import some
from qrun.io.inputs import Feeds
from qrun.report.compare import comparison_fields, comparison_sheet
from qrun.report.grid import Column, Grid
from qrun.report.screen import NAME
from qrun.report.sheet import NONE, Block, Sheet, Sources
from qrun.report.text import plural


def dump_sheet(found: Comparison, mapped: DumpMap, top: int | None, sources: Sources = NONE) -> Sheet:
    """Lays out the report. top: rows of each table, None for all; sources: where each input came from."""
    sheet = comparison_sheet(found, top, sources)
    left = len(mapped.open)
    verdict = f"{sheet.verdict} {plural(left, 'tensor')} of the dump not decided." if left else sheet.verdict
    return replace(sheet, verdict=verdict, blocks=[*sheet.blocks, *_map_blocks(mapped, top)])


def _map_blocks(mapped: DumpMap, top: int | None) -> list[Block]:
    """The pairs, what is not decided, and the tensors that are none of the model's."""
    pairs, left = mapped.pairs, max(len(mapped.pairs) - (top or len(mapped.pairs)), 0)
    columns = [
        Column("dump", style=NAME, shrink=2, cell=lambda row: row.dump),
        Column("tensor", style=NAME, shrink=1, cell=lambda row: row.onnx),
        Column("read as", cell=_read_as),
        Column("why", optional=1, cell=lambda row: row.why) if mapped.proposed else None,
    ]
    title = f"Map of the dump{', proposed' if mapped.proposed else ''}: {mapped.path}"
    more = f"{plural(left, 'more pair')}   --top all" if left else ""
    blocks = [Block(title, Grid.of(columns, pairs[:top]), more=more)]
    if mapped.open:
        columns = [
            Column("dump", style=NAME, shrink=1, cell=lambda row: row.dump),
            Column("candidates", wrap=True, cell=lambda row: ", ".join(row.candidates)),
            Column("why", wrap=True, cell=lambda row: row.why),
        ]
        line = f'write the right name as "onnx" in {mapped.path}, then --map {mapped.path}'
        blocks.append(Block("Not decided", Grid.of(columns, mapped.open), lines=[line]))
    if mapped.others:
        rows = mapped.others[:top]
        facts = [(row.dump, row.why) for row in rows]
        left = len(mapped.others) - len(rows)
        more = f"{plural(left, 'more tensor')}   --top all" if left else ""
        blocks.append(Block("Not compared", facts=facts, more=more))
    if mapped.floats:
        told = f"{some(mapped.floats)}: floats that no quantization of the model explains"
        blocks.append(Block("", lines=[f"{told}. The device computed in floats, or with other scales."]))
    return blocks


def _read_as(row: MappedTensor) -> str:
    """``int8 NHWC of 16 channels``, ``float NHWC, dequantized``."""
    channels = f" of {row.channels} channels" if row.channels else ""
    return f"{row.dtype} {row.layout or ''}".strip() + channels + (", dequantized" if row.dequantized else "")


def dump_fields(found: Comparison, mapped: DumpMap, feeds: Feeds) -> dict[str, Any]:
    """The body of the JSON report: that of two runtimes, with the map."""
    names = {"path": str(mapped.path), "proposed": mapped.proposed, "tensors": [encode(row) for row in mapped.rows]}
    return {**comparison_fields(found, feeds), "map": {**names, "unexplained_floats": list(mapped.floats)}}
