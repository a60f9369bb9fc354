"""The differences between the files of two quantized models, which the report lists first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qrun.comparing.modeldiff import KINDS, StoredDifference, stored_differences
from qrun.declare import grouped
from qrun.declare.frozen import replace
from qrun.ir import Model
from qrun.report.grid import Column, Grid
from qrun.report.modelfacts import ModelFacts
from qrun.report.sheet import Block
from qrun.report.text import plural


def in_the_files(a: Model, b: Model) -> list[StoredDifference] | None:
    """All that two quantized models store differently; None if one of them is not quantized."""
    return None if "float" in (ModelFacts(a).form, ModelFacts(b).form) else stored_differences(a, b)


def _counted(found: Sequence[StoredDifference]) -> str:
    """How many there are of each kind."""
    counts = Counter(d.kind for d in found)
    return ", ".join(plural(n, kind) for kind, n in counts.items())


def _gathered(found: Sequence[StoredDifference]) -> list[StoredDifference]:
    """The differences, with one row for the nodes of one operator that only one model has: how many it has."""
    lone = [d for d in found if d.kind == "node" and "-" in (d.a, d.b)]
    rows = []
    for first, *others in grouped(((d.name, d.change), d) for d in lone).values():
        node = f"{first.node} and {plural(len(others), 'more node')}" if others else first.node
        a, b = (text if text == "-" else str(len(others) + 1) for text in (first.a, first.b))
        rows.append(replace(first, node=node, a=a, b=b))
    return sorted([*rows, *(d for d in found if d not in lone)], key=lambda d: KINDS.index(d.kind))


def files_block(found: Sequence[StoredDifference], top: int | None) -> Block:
    """The first `top` differences, None for all, and how many there are of each kind."""
    if not found:
        same = "Both have the same nodes, attributes, scales, zero points and weights."
        return Block("What differs in the files", lines=[same])
    rows = _gathered(found)
    shown, rest = rows[:top], rows[len(rows[:top]) :]
    more = f"{plural(len(rest), 'more row')}: {_counted(rest)}   --top all, --json" if rest else ""
    columns = [
        Column("what", cell=lambda d: d.kind),
        Column("name", shrink=1, cell=lambda d: d.name),
        Column("node", shrink=2, optional=1, cell=lambda d: d.node),
        Column("first", right=True, cell=lambda d: d.a),
        Column("second", right=True, cell=lambda d: d.b),
        Column("change", cell=lambda d: d.change),
    ]
    return Block(f"What differs in the files: {_counted(found)}", Grid.of(columns, shown), more=more)
