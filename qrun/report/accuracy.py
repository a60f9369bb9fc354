"""The report of a float model against a quantized one: outputs, costly nodes, what to keep in float, tensors;
and of several models, the best one first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from qrun.comparing.accuracy import Accuracy, OutputAccuracy, TensorAccuracy
from qrun.comparing.ranking.rank import Cost
from qrun.declare.frozen import replace
from qrun.io.inputs import Feeds
from qrun.report.accuracyjson import accuracy_fields, classes, corrections, departed, hurry, kept, notes, verdict
from qrun.report.comparefiles import files_block, in_the_files
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, headline
from qrun.report.nodes import op_names
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.sheet import NONE, Block, Sheet, Sources, more, top_rows
from qrun.report.text import decibel, file_size, number, percent, plural

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
    later = (
        ["Then compare again: nodes to keep in float are told once these are right."]
        if found.wrong and found.suggestion
        else []
    )
    advice = [Block("Correct first", lines=[*corrections(found), *later])] if found.corrections else []
    if not found.wrong and found.suggestion is not None:
        advice += [Block("Keep in float", lines=kept(found))]
    models = [headline(found.reference, Feeds(dict(found.feeds), dict(sources))), headline(found.quantized)]
    told, style = verdict(found) + chance(sources), OPEN if not found.judged else GOOD if reached else BAD
    stored = in_the_files(found.reference, found.quantized)
    files = [] if stored is None else [files_block(stored, top)]
    return Sheet([*files, *_tables(found, top), *advice], told, style, models, about, notes(found))


def _tables(found: Accuracy, top: int | None) -> list[Block]:
    tables = [Block("Outputs", _outputs(found))]
    if found.costs:
        shown = found.costs[:top]
        together = percent(sum(c.share for c in found.costs[len(shown) :]))
        left = more(len(found.costs) - len(shown), "node").replace("   ", f", together {together} of the noise   ")
        tables.append(Block("Most costly nodes, each quantized alone", _costs(shown), more=left, folds=True))
    if found.suggestion is not None and found.suggestion.operators:
        tables.append(
            Block("All nodes of one operator in float", Grid.of(_OPERATORS, found.suggestion.operators[:top]))
        )
    tensors = worst(found.tensors, top)
    if tensors:
        left = more(len(found.tensors) - len(tensors), "tensor")
        title = "Least accurate tensors, in graph order" if left else "Tensors, in graph order"
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

    columns = [
        Column("name", shrink=1, cell=_output_name),
        Column("SQNR", right=True, cell=lambda o: "codes" if o.codes else decibel(o.noise.sqnr)),
        Column("cosine", right=True, cell=told(lambda o: f"{o.noise.cosine:.6f}")),
        Column("max abs", right=True, cell=told(lambda o: number(o.noise.largest))),
        Column("argmax", right=True, cell=told(lambda o: "-" if o.decided is None else f"{o.agreed} of {o.decided}")),
        Column("NaN/Inf", right=True, optional=1, cell=told(lambda o: str(o.noise.odd))),
    ]
    parts = [replace(o, name=p.name, other=p.name, noise=p.noise, decided=None) for o in found.outputs for p in o.parts]
    return Grid.of(columns, [*found.outputs, *parts])


def _output_name(output: OutputAccuracy) -> str:
    return output.name if output.name == output.other else f"{output.name} / {output.other}"


def _costs(costs: Sequence[Cost]) -> Grid:
    op = op_names([cost.node for cost in costs])
    columns = [
        Column("#", right=True, cell=lambda c: str(c.node.index)),
        Column("node", shrink=2, cell=lambda c: c.node.label),
        Column("op", shrink=1, optional=2, cell=lambda c: op(c.node)),
        Column("output", right=True, cell=lambda c: ("" if c.measured else "~") + decibel(c.sqnr)),
        Column("share", right=True, cell=lambda c: percent(c.share)),
        Column("local", right=True, optional=1, cell=lambda c: decibel(c.local.noise.sqnr)),
        Column("reason", wrap=True, below=True, cell=lambda c: c.why),
    ]
    return Grid.of(columns, costs)


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


Candidate = tuple[str, Accuracy]
"""The path of a model as it was given, and what was found of it."""


def ranked(found: Sequence[Candidate]) -> list[Candidate]:
    """Those first whose outputs are good enough, then by the least SQNR of an output, then the smaller file."""
    return sorted(found, key=lambda each: (not each[1].passed, -least(each[1]), each[1].quantized.size))


def least(found: Accuracy) -> float:
    """The SQNR of the worst output; -inf if one is of codes that nothing tells the scale of,
    or has NaN in one model only."""
    if any(output.codes for output in found.outputs):
        return float("-inf")
    values = [output.noise.sqnr for output in found.outputs]
    return min((value if value == value else float("-inf") for value in values), default=float("inf"))


def candidates_sheet(found: Sequence[Candidate], first: str, top: int | None, sources: Sources = NONE) -> Sheet:
    """The report. found: as `ranked` gives them; first: the path of the model that they are compared with."""
    best, reference = found[0][1], found[0][1].reference
    good = sum(each.passed for _, each in found)
    goal = f"--min-sqnr {best.min_sqnr:g}" if best.min_sqnr is not None else "the tolerance"
    words = ("equal", "differ") if best.min_sqnr is None else ("accurate", "too noisy")
    said = f"{words[not best.passed]}: the best is {found[0][0]}, SQNR {decibel(least(best))}{classes(best)}; {good} of {len(found)} reach {goal}."
    if not best.judged:
        said = f"{found[0][0]}: {decibel(least(best))} SQNR against {first}{classes(best)}, the best of {len(found)}."
    about = [f"{plural(best.runs, 'set')} of inputs; SQNR is that of the worst output"]
    notes = [f"{path}: {text}" for path, each in found for text in (hurry(each), departed(each)) if text]
    columns = [column for column in _CANDIDATES if best.judged or column.header != "good enough"]
    (block,) = top_rows("Models, the best first", columns, found, top, "model")
    tip = f"qrun compare {first} {found[0][0]} with the same inputs tells what each node costs"
    models = [headline(reference, Feeds(dict(best.feeds), dict(sources)))]
    style = OPEN if not best.judged else GOOD if best.passed else BAD
    return Sheet([replace(block, lines=[tip])], said + chance(sources), style, models, about, notes)


_CANDIDATES = [
    Column("model", shrink=1, cell=lambda each: each[0]),
    Column("SQNR", right=True, cell=lambda each: decibel(least(each[1]))),
    Column("argmax", right=True, cell=lambda each: _same(each[1].outputs)),
    Column("good enough", cell=lambda each: "yes" if each[1].passed else "no"),
    Column("size", right=True, optional=1, cell=lambda each: file_size(each[1].quantized.size)),
    Column("quantized nodes", right=True, optional=2, cell=lambda each: _quantized(each[1])),
    Column("costs most", shrink=2, optional=3, cell=lambda each: _dearest(each[1])),
]


def _quantized(found: Accuracy) -> str:
    return str(found.quantizing + len(found.unranked))


def _dearest(found: Accuracy) -> str:
    return f"{found.costs[0].node.label} ({decibel(found.costs[0].sqnr)})" if found.costs else "-"


def _decisions(outputs: Sequence[OutputAccuracy]) -> tuple[int, int]:
    told = [(o.agreed, o.decided) for o in outputs if o.agreed is not None and o.decided is not None]
    return sum(agreed for agreed, _ in told), sum(decided for _, decided in told)


def _same(outputs: Sequence[OutputAccuracy]) -> str:
    """In how many rows argmax is the same."""
    agreed, decided = _decisions(outputs)
    return f"{agreed} of {decided}" if decided else "-"


def candidates_fields(found: Sequence[Candidate], sources: Sources = NONE) -> dict[str, Any]:
    """The body of the JSON report: of each model what a comparison of two tells, the best first."""
    return {
        "candidates": [{"path": path, "sqnr_db": least(each), **accuracy_fields(each, sources)} for path, each in found]
    }
