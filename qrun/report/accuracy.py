"""The report of a float model against a quantized one: outputs, costly nodes, what to keep in float, tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from qrun.comparing.accuracy import Accuracy
from qrun.comparing.accuracy_rows import OutputAccuracy, TensorAccuracy
from qrun.comparing.ranking import Cost
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
        tables.append(
            Block("All nodes of one operator in float", Grid.of(_OPERATORS, found.suggestion.operators[:top]))
        )
    tensors = worst(found.tensors, top)
    if tensors:
        more = len(found.tensors) - len(tensors)
        title = "Least accurate tensors, in graph order" if more else "Tensors, in graph order"
        left = f"{plural(more, 'more tensor')}   --top all, --json" if more else ""
        tables.append(Block(title, Grid.of(_TENSORS, tensors), more=left, folds=True))
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
    def told(text: Callable[[OutputAccuracy], str]) -> Callable[[OutputAccuracy], str]:
        return lambda o: "-" if o.codes else text(o)

    return Grid.of(
        [
            Column("name", shrink=1, cell=lambda o: o.name if o.name == o.other else f"{o.name} / {o.other}"),
            Column("SQNR", right=True, cell=lambda o: "codes" if o.codes else decibel(o.noise.sqnr)),
            Column("cosine", right=True, cell=told(lambda o: f"{o.noise.cosine:.6f}")),
            Column("max abs", right=True, cell=told(lambda o: number(o.noise.largest))),
            Column(
                "argmax", right=True, cell=told(lambda o: "-" if o.decided is None else f"{o.agreed} of {o.decided}")
            ),
            Column("NaN/Inf", right=True, optional=1, cell=told(lambda o: str(o.noise.odd))),
        ],
        found.outputs,
    )


def _costs(costs: Sequence[Cost]) -> Grid:
    op = op_names([cost.node for cost in costs])
    return Grid.of(
        [
            Column("#", right=True, cell=lambda c: str(c.node.index)),
            Column("node", shrink=2, cell=lambda c: c.node.label),
            Column("op", shrink=1, optional=2, cell=lambda c: op(c.node)),
            Column("output", right=True, cell=lambda c: ("" if c.measured else "~") + decibel(c.sqnr)),
            Column("share", right=True, cell=lambda c: percent(c.share)),
            Column("local", right=True, optional=1, cell=lambda c: decibel(c.local.noise.sqnr)),
            Column("reason", wrap=True, below=True, cell=lambda c: c.why),
        ],
        costs,
    )


_OPERATORS = [
    Column("operator", shrink=1, cell=lambda row: row.name),
    Column("nodes", right=True, cell=lambda row: str(row.nodes)),
    Column("output", right=True, cell=lambda row: decibel(row.sqnr)),
]


def worst(tensors: Sequence[TensorAccuracy], top: int | None) -> list[TensorAccuracy]:
    """Those with the lowest cumulated SQNR, in graph order; without `top` all, else none that are exact."""
    known = [i for i, t in enumerate(tensors) if t.cumulated is not None and t.cumulated.ratio]

    def order(i: int) -> float:
        noise = tensors[i].cumulated
        return 0.0 if noise is None or noise.sqnr != noise.sqnr else noise.sqnr

    return list(tensors) if top is None else [tensors[i] for i in sorted(sorted(known, key=order)[:top])]


_TENSORS = [
    Column("#", right=True, cell=lambda t: "-" if t.node is None else str(t.node.index)),
    Column("tensor", shrink=2, cell=lambda t: t.tensor),
    Column("stands for", shrink=1, cell=lambda t: t.reference),
    Column("cumulated", right=True, cell=lambda t: "codes" if t.codes else decibel(t.cumulated and t.cumulated.sqnr)),
    Column("local", right=True, cell=lambda t: decibel(t.local.noise.sqnr) if t.local else "-"),
    Column("cosine", right=True, optional=1, cell=lambda t: f"{t.cumulated.cosine:.6f}" if t.cumulated else "-"),
    Column("max abs", right=True, optional=2, cell=lambda t: number(t.cumulated and t.cumulated.largest)),
    Column("matched", optional=3, cell=lambda t: FOUND_BY[t.how]),
]


def _advice(found: Accuracy) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of what to do."""
    if found.misfits:
        yield "Correct first", corrections(found)
    elif found.suggestion is not None:
        yield "Keep in float", kept(found)
