"""The report of `qrun compare` on a float model and quantized ones: outputs, costly nodes, nodes to keep in float,
tensors; for several quantized models, a ranking with the best one first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from qrun.comparing.accuracy import Accuracy, OutputAccuracy
from qrun.declare.frozen import replace
from qrun.documents.answers import RanNode
from qrun.documents.record import Item, decode, encode
from qrun.io.inputs import Feeds
from qrun.report.accuracyjson import accuracy_fields, classes, corrections, departure_text, hurry, notes, tips, verdict
from qrun.report.comparefiles import files_block, in_the_files
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, headline
from qrun.report.nodes import op_names
from qrun.report.screen import BAD, GOOD, NAME, OPEN
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
    """Lays out the report of one comparison. top: rows per table, None for all; sources: where each input came from."""
    reached = found.equal if found.min_sqnr is None else found.passed
    about = [*filter(None, [hurry(found)]), _how(found), *filter(None, [departure_text(found)])]
    later = (
        ["Then compare again: nodes to keep in float appear once these are corrected."]
        if found.wrong and found.suggestion
        else []
    )
    advice = [Block("Correct first", lines=[*corrections(found), *later], style=GOOD)] if found.corrections else []
    if not found.wrong and found.suggestion is not None:
        advice += [Block("Keep in float", lines=tips(found), style=GOOD)]
    models = [headline(found.reference, Feeds(dict(found.feeds), dict(sources))), headline(found.quantized)]
    told, style = verdict(found) + chance(sources), OPEN if not found.judged else GOOD if reached else BAD
    stored = in_the_files(found.reference, found.quantized)
    files = [] if stored is None else [files_block(stored, top)]
    operators = found.suggestion.operators if found.suggestion else ()
    outputs = [replace(output, parts=()) for output in found.outputs]
    outputs += [
        replace(o, name=p.name, other=p.name, noise=p.noise, decided=None, parts=())
        for o in found.outputs
        for p in o.parts
    ]
    parts = {"outputs": outputs, "costs": found.costs, "operators": operators, "tensors": found.tensors}
    tables = accuracy_tables(Item(encode(parts), "qrun compare"), top)
    return Sheet([*files, *tables, *advice], told, style, models, about, notes(found))


def _how(found: Accuracy) -> str:
    strays = [one for one in found.left if not one.inside]
    counts = Counter(row.how for row in found.tensors)
    ways = ", ".join(f"{counts[how]} {text}" for how, text in FOUND_BY.items() if counts[how])
    alone = sum(one.side == "quantized" for one in strays)
    return (
        f"{plural(found.runs, 'set')} of inputs; {len(found.tensors)} of {len(found.tensors) + alone} tensors matched "
        f"through the graph ({ways})"
    )


def accuracy_tables(found: Item, top: int | None, causes: bool = False) -> list[Block]:
    """The tables of a comparison of two models. found: its JSON document, or the parts of it that hold tables.
    causes: add a column with the kind of reason why each node costs accuracy."""
    outputs, costs, tensors = (list(found[key]) for key in ("outputs", "costs", "tensors"))
    parts = [part for output in outputs for part in _list(output, "parts")]
    tables = [Block("Outputs", Grid.of(_OUTPUTS, [*outputs, *parts]))] if outputs else []
    if costs:
        together = percent(sum(cost["share"].real for cost in costs[top:])) if top is not None else ""
        left = more(0 if top is None else len(costs) - top, "node").replace(
            "   ", f", together {together} of the noise   "
        )
        title = "What costs most, one node at a time"
        tables.append(Block(title, _costs(costs[:top], causes), legends=_LEGENDS, more=left, folds=True))
    operators = list(_list(found, "operators"))
    if operators:
        tables.append(
            Block("Output SQNR with every node of one type kept in float", Grid.of(_OPERATORS, operators[:top]))
        )
    shown = worst(tensors, top)
    if shown:
        left = more(len(tensors) - len(shown), "tensor")
        title = "Least accurate tensors, in graph order" if left else "Tensors, in graph order"
        tables.append(Block(title, Grid.of(_TENSORS, shown), legends=_LEGENDS, more=left, folds=True))
    return tables


_LEGENDS = {
    "share": "output: SQNR of the outputs with only this node quantized; share: its part of the noise of all nodes",
    "cumulative": "cumulative: SQNR with all nodes quantized",
    "this node alone": "this node alone: SQNR of its result with only this node quantized",
}


def _list(item: Item, key: str) -> Iterable[Item]:
    return item.find(key) or ()


def _true(item: Item, key: str) -> bool:
    return (found := item.find(key)) is not None and found.truth


def text_of(item: Item, key: str) -> str:
    """The text under a key; "" if the key is missing."""
    return found.text if (found := item.find(key)) else ""


def real(item: Item | None, key: str) -> float | None:
    """The number under a key; None if the key is missing."""
    found = item.find(key) if item else None
    return found.real if found else None


def _decibel(item: Item | None, key: str = "sqnr_db") -> str:
    return decibel(real(item, key))


def _cosine(item: Item | None) -> str:
    value = real(item, "cosine")
    return "-" if value is None else f"{value:.6f}"


def _place(item: Item, key: str) -> str:
    return str(found.size) if (found := item.find(key)) else "-"


def _output_name(output: Item) -> str:
    name, other = output["name"].text, text_of(output, "other")
    return f"{name} / {other}" if other not in ("", name) else name


def _unless_codes(show: Callable[[Item], str], codes: str = "-") -> Callable[[Item], str]:
    """Wraps a column's function: for a tensor of quantized values (`codes`) the cell is the text `codes`."""
    return lambda item: codes if _true(item, "codes") else show(item)


def _agreement_text(output: Item) -> str:
    total = output.find("argmax_total")
    return "-" if total is None else f"{output['argmax_agreed'].size} of {total.size}"


_OUTPUTS = [
    Column("name", style=NAME, shrink=1, cell=_output_name),
    Column("SQNR", right=True, cell=_unless_codes(_decibel, "codes")),
    Column("cosine", right=True, cell=_unless_codes(_cosine)),
    Column("max abs", right=True, cell=_unless_codes(lambda o: number(real(o, "max_abs")))),
    Column("argmax", right=True, cell=_unless_codes(_agreement_text)),
    Column("NaN/Inf", right=True, optional=1, cell=_unless_codes(lambda o: _place(o, "odd"))),
]


def _costs(costs: Sequence[Item], causes: bool) -> Grid:
    nodes = [decode(RanNode, cost) for cost in costs]
    op = op_names(nodes)
    columns = [
        Column("#", right=True, cell=lambda row: str(row[0].index)),
        Column("node", style=NAME, shrink=2, cell=lambda row: row[0].label),
        Column("op", shrink=1, optional=2, cell=lambda row: op(row[0])),
        Column("output", right=True, cell=lambda row: _effect_text(row[1]) + _decibel(row[1], "output_sqnr_db")),
        Column("share", right=True, cell=lambda row: percent(row[1]["share"].real)),
        Column("this node alone", right=True, optional=1, cell=lambda row: _decibel(row[1].find("local"))),
        Column("cause", cell=lambda row: text_of(row[1], "reason")) if causes else None,
        Column("why", wrap=True, below=True, cell=lambda row: text_of(row[1], "why")),
    ]
    return Grid.of(columns, zip(nodes, costs, strict=True))


def _effect_text(cost: Item) -> str:
    return "" if cost.find("measured") is None or _true(cost, "measured") else "~"


_OPERATORS = [
    Column("operator", shrink=1, cell=lambda row: decode(RanNode, row, index=0).qualified),
    Column("nodes", right=True, cell=lambda row: str(row["nodes"].size)),
    Column("output", right=True, cell=lambda row: _decibel(row, "output_sqnr_db")),
]


def worst(tensors: Sequence[Item], top: int | None) -> list[Item]:
    """The `top` tensors with the lowest cumulative SQNR, in graph order, without exact ones; all if `top` is None."""
    noises = [real(tensor.find("cumulated"), "sqnr_db") for tensor in tensors]
    order = {at: 0.0 if sqnr != sqnr else sqnr for at, sqnr in enumerate(noises) if sqnr is not None}
    known = sorted((at for at in order if order[at] != float("inf")), key=order.__getitem__)
    return list(tensors) if top is None else [tensors[at] for at in sorted(known[:top])]


_TENSORS = [
    Column("#", right=True, cell=lambda t: _place(t, "node")),
    Column("tensor", style=NAME, shrink=2, cell=lambda t: text_of(t, "tensor")),
    Column("float tensor", shrink=1, cell=lambda t: text_of(t, "reference")),
    Column("cumulative", right=True, cell=_unless_codes(lambda t: _decibel(t.find("cumulated")), "codes")),
    Column("this node alone", right=True, cell=lambda t: _decibel(t.find("local"))),
    Column("cosine", right=True, optional=1, cell=lambda t: _cosine(t.find("cumulated"))),
    Column("max abs", right=True, optional=2, cell=lambda t: number(real(t.find("cumulated"), "max_abs"))),
    Column("matched", optional=3, cell=lambda t: FOUND_BY.get(text_of(t, "matched"), "")),
]


Candidate = tuple[str, Accuracy]
"""The path of a model as the user gave it, and the result of comparing that model."""


def rank_models(found: Sequence[Candidate]) -> list[Candidate]:
    """Sorts models: those with good enough outputs first, then by the worst output's SQNR, then the smaller file."""
    return sorted(found, key=lambda each: (not each[1].passed, -least(each[1]), each[1].quantized.size))


def least(found: Accuracy) -> float:
    """The SQNR of the worst output; -inf if an output holds quantized values of unknown scale, or NaN in one model
    only."""
    if any(output.codes for output in found.outputs):
        return float("-inf")
    values = [output.noise.sqnr for output in found.outputs]
    return min((value if value == value else float("-inf") for value in values), default=float("inf"))


def candidates_sheet(
    found: Sequence[Candidate], first: str, top: int | None, sources: Sources = NONE, command: str = ""
) -> Sheet:
    """Lays out the ranking. found: in the order of `rank_models`; first: path of the model they are compared with;
    command: compares the best one alone."""
    best, reference = found[0][1], found[0][1].reference
    good = sum(each.passed for _, each in found)
    goal = f"--min-sqnr {best.min_sqnr:g}" if best.min_sqnr is not None else "the tolerance"
    words = ("equal", "differ") if best.min_sqnr is None else ("accurate", "too noisy")
    said = f"{words[not best.passed]}: the best is {found[0][0]}, SQNR {decibel(least(best))}{classes(best)}; {good} of {len(found)} reach {goal}."
    if not best.judged:
        said = f"{found[0][0]}: {decibel(least(best))} SQNR against {first}{classes(best)}, the best of {len(found)}."
    about = [f"{plural(best.runs, 'set')} of inputs; SQNR of the worst output"]
    notes = [f"{path}: {text}" for path, each in found for text in (hurry(each), departure_text(each)) if text]
    columns = [column for column in _CANDIDATES if best.judged or column.header != "good enough"]
    (block,) = top_rows("Models, the best first", columns, found, top, "model")
    tips = [f"{command}   shows what each node costs"] if command else []
    models = [headline(reference, Feeds(dict(best.feeds), dict(sources)))]
    style = OPEN if not best.judged else GOOD if best.passed else BAD
    return Sheet([replace(block, lines=tips)], said + chance(sources), style, models, about, notes)


_CANDIDATES = [
    Column("model", shrink=1, cell=lambda each: each[0]),
    Column("SQNR", right=True, cell=lambda each: decibel(least(each[1]))),
    Column("argmax", right=True, cell=lambda each: _same(each[1].outputs)),
    Column("good enough", cell=lambda each: "yes" if each[1].passed else "no"),
    Column("size", right=True, optional=1, cell=lambda each: file_size(each[1].quantized.size)),
    Column("quantized nodes", right=True, optional=2, cell=lambda each: _count_quantized(each[1])),
    Column("costs most", shrink=2, optional=3, cell=lambda each: _dearest(each[1])),
]


def _count_quantized(found: Accuracy) -> str:
    return str(found.quantizing + len(found.unranked))


def _dearest(found: Accuracy) -> str:
    return f"{found.costs[0].node.label} ({decibel(found.costs[0].sqnr)})" if found.costs else "-"


def _decisions(outputs: Sequence[OutputAccuracy]) -> tuple[int, int]:
    told = [(o.agreed, o.decided) for o in outputs if o.agreed is not None and o.decided is not None]
    return sum(agreed for agreed, _ in told), sum(decided for _, decided in told)


def _same(outputs: Sequence[OutputAccuracy]) -> str:
    """The number of rows with the same argmax in both models, as ``498 of 500``."""
    agreed, decided = _decisions(outputs)
    return f"{agreed} of {decided}" if decided else "-"


def candidates_fields(found: Sequence[Candidate], sources: Sources = NONE) -> dict[str, Any]:
    """The body of the JSON report: for each model the fields of a comparison of two models, the best first."""
    return {
        "candidates": [{"path": path, "sqnr_db": least(each), **accuracy_fields(each, sources)} for path, each in found]
    }
