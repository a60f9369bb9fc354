"""Where two runtimes differ on the model, or what its quantization costs: tensors and nodes with sizes and causes."""

from __future__ import annotations

from collections.abc import Sequence

from qrun.documents.record import Item
from qrun.report.html.accuracy import accuracy_parts
from qrun.report.html.cells import (
    INDEX,
    MAX_ABS,
    SIZES,
    SQNR,
    TYPE,
    Show,
    count_cell,
    number_cell,
    place,
    real,
    text_cell,
)
from qrun.report.html.collect import MOST
from qrun.report.html.frame import facts, section
from qrun.report.html.tags import HtmlColumn, Markup, table, tag
from qrun.report.html.timing import search
from qrun.report.text import number, plural


def comparison_section(found: Item) -> Markup:
    """found: a document of qrun compare."""
    return section(
        "comparison", "Comparison", _about(found), _runtimes(found) if _is_of_runtimes(found) else accuracy_parts(found)
    )


def _is_of_runtimes(found: Item) -> bool:
    return found["kind"].text == "runtimes"


def _sides(found: Item) -> list[str]:
    if _is_of_runtimes(found):
        return [side["label"].text for side in found["sides"]]
    return [text_cell("path")(found[side]) for side in ("reference", "quantized")]


def _differing(found: Item) -> list[Item]:
    """The tensors beyond the tolerance."""
    return [t for t in found["tensors"] if not t["equal"].truth]


def _same(found: Item) -> int:
    return sum(t["identical"].truth for t in found["tensors"])


def _about(found: Item) -> str:
    a, b = _sides(found)
    if not _is_of_runtimes(found):
        return f"{b} against {a}, which it was quantized from; {plural(found['runs'].size, 'run')}."
    each = f", each node fed the values of {b}" if found["isolate"].truth else ""
    limits = found["tolerance"]
    tolerance = ", ".join(f"{name} {number(limits[name].real)}" for name in limits.keys if limits[name].real)
    count, differing, same = len(list(found["tensors"])), len(_differing(found)), _same(found)
    within = count - differing - same
    counts = [
        f"{differing} beyond the tolerance ({tolerance})" if tolerance else f"{differing} differ",
        *([f"{within} within it"] if within else []),
        f"{same} the same bit for bit",
    ]
    return f"{a} against {b}{each}. {plural(count, 'tensor')}: {', '.join(counts)}."


def headline(found: Item) -> tuple[str, str, bool]:
    """The big number, the words below it, and whether the sides are equal."""
    noise = [value for o in found["outputs"] if (value := real(o, "sqnr_db")) is not None]
    worst, equal, (a, b) = f"{min(noise):.1f} dB" if noise else "", found["equal"].truth, _sides(found)
    if not _is_of_runtimes(found):
        return worst or ("equal" if equal else "differs"), f"SQNR against {a}", equal
    count, differing = len(list(found["tensors"])), len(_differing(found))
    against, tensors = f"against {b}", plural(count, "tensor")
    if equal:
        exact = _same(found) == count
        return "equal", f"{'bit for bit' if exact else 'within the tolerance'}, {tensors}, {against}", True
    if worst:
        return worst, f"SQNR of the outputs; {differing} of {tensors} differ, {against}", equal
    return f"{differing} differ", f"of {tensors}, {against}; the outputs are the same", equal


def told(found: Item) -> tuple[str, str, bool]:
    """The answer as a sentence, in a strong part and the rest; and whether the sides are equal."""
    equal, (a, b) = found["equal"].truth, _sides(found)
    big, small, _ = headline(found)
    if not _is_of_runtimes(found):
        passed = found.find("passed")
        if passed is None and big.endswith("dB"):
            return big, f" SQNR of the outputs against {a}.", equal
        good = equal if passed is None else passed.truth
        return (
            ("Accurate" if good else "Differs"),
            f" from {a}: outputs at {big}." if big.endswith("dB") else f" from {a}.",
            good,
        )
    if equal:
        return "Equal", f": {small}.", True
    first = _first(found)
    where = f" first at node {place(first)}, {first['name'].text}" if first else ""
    return "Differs", f"{where}{_why(first)}, against {b}.", False


def _first(found: Item) -> Item | None:
    """The first tensor that differs."""
    first = found.find("first")
    name = first["tensor"].text if first else None
    differing = _differing(found)
    return next((t for t in differing if t["name"].text == name), next(iter(differing), None))


def _why(tensor: Item | None) -> str:
    own = tensor.find("by_itself") if tensor else None
    return f" ({cause.text})" if own and (cause := own.find("cause")) else ""


def _begins(found: Item) -> list[Markup]:
    """Where the difference begins, in the words of the terminal."""
    first = _first(found)
    if first is None:
        return []
    a, b = [side["name"].text for side in found["sides"]]
    own = first.find("by_itself")
    at = first.find("where")
    position = f"[{','.join(str(i.size) for i in at)}]  " if at is not None else ""
    exact = real(own, "before_rounding")
    before = "" if exact is None else f"   before rounding {exact:.9g}"
    sides = [f"{name} {value.value}" for name, key in ((a, "a"), (b, "b")) if (value := first.find(key)) is not None]
    inputs = first.find("inputs_equal")
    read = f"not known of {b}" if inputs is None else "equal bit for bit" if inputs.truth else "not equal"
    rows = [
        ("node", f"#{place(first)} {text_cell('label')(first)}  {text_cell('op')(first)}"),
        ("output", first["name"].text),
        ("type", text_cell("type")(first)),
        ("differ", f"{count_cell('differing')(first)} of {count_cell('elements')(first)} elements"),
        ("where", position + "   ".join(sides) + before if sides else ""),
        ("inputs", read),
        *_inside(own),
        ("cause", f"{own['cause'].text}: {text_cell('text')(own)}" if own and own.find("cause") else "inherited"),
        *(("also fits", rival.text) for rival in (own.find("also") if own else None) or ()),
    ]
    return [tag("h3", "First difference"), facts(rows)]


def _inside(own: Item | None) -> list[tuple[str, str]]:
    """Where in a graph of the node the difference begins."""
    inside = own.find("inside") if own else None
    if inside is None:
        return []
    turn = inside.find("iteration")
    where = "" if turn is None else f" in iteration {turn.size}"
    return [("inside", f"{inside['graph'].text}{where}, tensor {inside['first'].text}")]


def accuracies(found: Item) -> dict[int, float]:
    """The lowest SQNR, dB, of what a node makes, by its index; of runtimes only where something differs."""
    low: dict[int, float] = {}
    for tensor in found["tensors"]:
        node, noise = tensor.find("node"), tensor if _is_of_runtimes(found) else tensor.find("cumulated")
        value = real(noise, "sqnr_db")
        if node is not None and value is not None:
            low[node.size] = min(value, low.get(node.size, value))
    return low


def _runtimes(found: Item) -> list[Markup]:
    refused, differing = found.find("refused"), _differing(found)
    parts = [tag("p", f"The other side does not run the whole model: {refused.text}")] if refused else []
    parts += _begins(found)
    outputs = list(found["outputs"])
    if outputs:
        columns = [HtmlColumn("output", text_cell("name"), name=True), TYPE, *SIZES, MAX_ABS, SQNR]
        parts += [tag("h3", "Outputs"), table("outputs", columns, outputs, box="narrow")]
    if differing:
        parts += [
            tag("h3", "Tensors that differ"),
            search("pair-table", "Filter by name, operator or cause", "1 2 3"),
            tag("div", _pairs(differing[:MOST]), id="pair-table"),
        ]
    return parts


def _pairs(rows: Sequence[Item]) -> Markup:
    def largest(item: Item) -> str:
        return number_cell("largest_beyond" if item.find("largest_beyond") else "largest")(item)

    def own(key: str, default: str) -> Show:
        return lambda item: text_cell(key, default)(inner) if (inner := item.find("by_itself")) else default

    columns = [
        INDEX,
        HtmlColumn("tensor", text_cell("name"), name=True),
        HtmlColumn("operator", text_cell("op"), short=True),
        HtmlColumn("cause", own("cause", "inherited"), short=True),
        TYPE,
        *SIZES,
        HtmlColumn("largest", largest, number=True, about="Of those that differ; integers: steps, else absolute"),
        MAX_ABS,
        SQNR,
        HtmlColumn("details", own("text", ""), short=True),
    ]
    return table("tensors that differ", columns, rows, sortable=True, box="tall")
