"""The report of a float model against a quantized one: outputs, costly nodes, what to keep in float, tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from qrun.comparing.accuracy import Accuracy
from qrun.comparing.accuracy_rows import TensorAccuracy
from qrun.comparing.ranking import Cost
from qrun.comparing.ranking_lists import OperatorCost
from qrun.report.accuracyjson import accuracy_fields, corrections, departed, hurry, kept, notes, verdict
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, headline
from qrun.report.nodes import op_names
from qrun.report.screen import BAD, GOOD
from qrun.report.sheet import NONE, Block, Sheet, Sources
from qrun.report.text import decibel, number, percent, plural

__all__ = ["accuracy_fields", "accuracy_sheet"]

FOUND_BY = {
    "input": "as inputs",
    "output": "as outputs",
    "weights": "by weights",
    "operator": "by operator and inputs",
    "reader": "by readers",
}


def accuracy_sheet(found: Accuracy, top: int | None, sources: Sources = NONE) -> Sheet:
    """The report. top: rows of each table, None for all; sources: of the inputs."""
    reached = found.equal if found.min_sqnr is None else found.passed
    about = [*filter(None, [hurry(found)]), _how(found), *filter(None, [departed(found)])]
    advice = [Block(title, lines=lines) for title, lines in _advice(found)]
    models = [headline(found.reference, found.feeds, sources), headline(found.quantized)]
    return Sheet(
        [*_tables(found, top), *advice],
        verdict(found) + chance(sources),
        GOOD if reached else BAD,
        models,
        about,
        notes(found),
    )


def _tables(found: Accuracy, top: int | None) -> list[Block]:
    tables = [Block("Outputs", _outputs(found))]
    if found.costs:
        shown = found.costs[:top]
        more = len(found.costs) - len(shown)
        rest = f"{plural(more, 'more node')}, together {percent(sum(c.share for c in found.costs[len(shown) :]))} of the noise   --top all, --json"
        tables.append(
            Block("Most costly nodes, each quantized alone", _costs(shown), more=rest if more else "", folds=True)
        )
    if found.suggestion is not None and found.suggestion.operators:
        tables.append(Block("All nodes of one operator in float", _operators(found.suggestion.operators, top)))
    tensors = worst(found.tensors, top)
    if tensors:
        more = len(found.tensors) - len(tensors)
        title = "Least accurate tensors, in graph order" if more else "Tensors, in graph order"
        left = f"{plural(more, 'more tensor')}   --top all, --json" if more else ""
        tables.append(Block(title, _tensors(tensors), more=left, folds=True))
    return tables


def _how(found: Accuracy) -> str:
    strays = [one for one in found.left if not one.inside]
    counts = Counter(row.how for row in found.tensors)
    ways = ", ".join(f"{counts[how]} {text}" for how, text in FOUND_BY.items() if counts[how])
    alone = sum(one.side == "quantized" for one in strays)
    return (
        f"{plural(found.runs, 'set')} of inputs; {len(found.tensors)} of {len(found.tensors) + alone} tensors matched "
        f"through the graph ({ways})"
    )


def _outputs(found: Accuracy) -> Grid:
    columns = [
        Column("name", shrink=1),
        Column("SQNR", right=True),
        Column("cosine", right=True),
        Column("max abs", right=True),
        Column("argmax", right=True),
        Column("NaN/Inf", right=True, optional=1),
    ]
    rows = []
    for o in found.outputs:
        name = o.name if o.name == o.other else f"{o.name} / {o.other}"
        same = "-" if o.decided is None else f"{o.agreed} of {o.decided}"
        numbers = [decibel(o.noise.sqnr), f"{o.noise.cosine:.6f}", number(o.noise.largest), same, str(o.noise.odd)]
        rows.append([name, *(["codes", "-", "-", "-", "-"] if o.codes else numbers)])
    return Grid(columns, rows)


def _costs(costs: Sequence[Cost]) -> Grid:
    op = op_names([cost.node for cost in costs])
    columns = [
        Column("#", right=True),
        Column("node", shrink=2),
        Column("op", shrink=1, optional=2),
        Column("output", right=True),
        Column("share", right=True),
        Column("local", right=True, optional=1),
        Column("reason", wrap=True, below=True),
    ]
    rows = [
        [
            str(c.node.index),
            c.node.label,
            op(c.node),
            decibel(c.sqnr) if c.measured else f"~{decibel(c.sqnr)}",
            percent(c.share),
            decibel(c.local.noise.sqnr),
            c.why,
        ]
        for c in costs
    ]
    return Grid(columns, rows)


def _operators(operators: Sequence[OperatorCost], top: int | None) -> Grid:
    columns = [Column("operator", shrink=1), Column("nodes", right=True), Column("output", right=True)]
    return Grid(columns, [[row.name, str(row.nodes), decibel(row.sqnr)] for row in operators[:top]])


def worst(tensors: Sequence[TensorAccuracy], top: int | None) -> list[TensorAccuracy]:
    """Those with the lowest cumulated SQNR, in graph order; without `top` all, else none that are exact."""
    known = [i for i, t in enumerate(tensors) if t.cumulated is not None and t.cumulated.ratio]

    def order(i: int) -> float:
        noise = tensors[i].cumulated
        return 0.0 if noise is None or noise.sqnr != noise.sqnr else noise.sqnr

    return list(tensors) if top is None else [tensors[i] for i in sorted(sorted(known, key=order)[:top])]


def _tensors(tensors: Sequence[TensorAccuracy]) -> Grid:
    columns = [
        Column("#", right=True),
        Column("tensor", shrink=2),
        Column("stands for", shrink=1),
        Column("cumulated", right=True),
        Column("local", right=True),
        Column("cosine", right=True, optional=1),
        Column("max abs", right=True, optional=2),
        Column("matched", optional=3),
    ]
    rows = []
    for t in tensors:
        noise = t.cumulated
        rows.append(
            [
                "-" if t.node is None else str(t.node.index),
                t.tensor,
                t.reference,
                "codes" if t.codes else decibel(noise.sqnr if noise else None),
                decibel(t.local.noise.sqnr) if t.local else "-",
                f"{noise.cosine:.6f}" if noise else "-",
                number(noise.largest if noise else None),
                FOUND_BY[t.how],
            ]
        )
    return Grid(columns, rows)


def _advice(found: Accuracy) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of what to do."""
    if found.misfits:
        yield "Correct first", corrections(found)
    elif found.suggestion is not None:
        yield "Keep in float", kept(found)
