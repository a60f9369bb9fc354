"""The section on differences between two runtimes, or on the cost of quantization, from a document of qrun compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from math import isfinite

from qrun.comparing.differences import Tolerance
from qrun.documents.record import Item, decode
from qrun.report.accuracy import accuracy_tables, real, text_of
from qrun.report.accuracyjson import EXCLUDE, correction
from qrun.report.compare import limits, share_text
from qrun.report.grid import Column, Grid
from qrun.report.html.collect import MOST, items
from qrun.report.html.markup import Markup, blocks, search, section, table, tag
from qrun.report.sheet import Block
from qrun.report.text import decibel, number, plural


def comparison_section(found: Item) -> Markup:
    """found: a document of qrun compare."""
    parts = _runtimes(found) if is_of_runtimes(found) else blocks(_models(found))
    return section("comparison", "Comparison", _about(found), parts)


def is_of_runtimes(found: Item) -> bool:
    return found["kind"].text == "runtimes"


def _sides(found: Item) -> list[str]:
    if is_of_runtimes(found):
        return [side["label"].text for side in found["sides"]]
    return [text_of(found[side], "path") for side in ("reference", "quantized")]


def _differing_section(found: Item) -> list[Item]:
    """The tensors beyond the tolerance."""
    return [t for t in found["tensors"] if not t["equal"].truth]


def _same(found: Item) -> int:
    return sum(t["identical"].truth for t in found["tensors"])


def _about(found: Item) -> str:
    a, b = _sides(found)
    if not is_of_runtimes(found):
        return f"{b} against {a}, its float model; {plural(found['runs'].size, 'set')} of inputs."
    each = f", each node fed the values of {b}" if found["isolate"].truth else ""
    tolerance = _tolerance(found)
    count, differing, same = len(list(found["tensors"])), len(_differing_section(found)), _same(found)
    within = count - differing - same
    counts = [
        f"{differing} beyond the tolerance ({tolerance})" if tolerance else f"{differing} differ",
        *([f"{within} within it"] if within else []),
        f"{same} the same bit for bit",
    ]
    told = "".join(f" {claim['sentence'].text}" for claim in items(found, "arithmetic"))
    return f"{a} against {b}{each}. {plural(count, 'tensor')}: {', '.join(counts)}.{told}"


def least(found: Item) -> float | None:
    """The SQNR of the worst output in dB, exact outputs left out; None if all are exact."""
    known = [value for o in found["outputs"] if (value := real(o, "sqnr_db")) is not None and isfinite(value)]
    return min(known, default=None)


def headline(found: Item) -> tuple[str, str, bool]:
    """The tile's big number, the words below it, and whether the sides are equal."""
    worst, equal, (a, b) = least(found), found["equal"].truth, _sides(found)
    noise = "" if worst is None else decibel(worst)
    if not is_of_runtimes(found):
        return noise or ("equal" if equal else "differs"), f"SQNR against {a}", equal
    count, differing = len(list(found["tensors"])), len(_differing_section(found))
    against, tensors = f"against {b}", plural(count, "tensor")
    if equal:
        exact = _same(found) == count
        return "equal", f"{'bit for bit' if exact else 'within the tolerance'}, {tensors}, {against}", True
    if noise:
        return noise, f"SQNR of the outputs; {differing} of {tensors} differ, {against}", equal
    return f"{differing} differ", f"of {tensors}, {against}; the outputs are the same", equal


def answer(found: Item) -> tuple[str, str, bool | None]:
    """The answer as a sentence, split into a bold part and the rest; and whether that is good, None if nothing
    says what is."""
    equal, (a, b) = found["equal"].truth, _sides(found)
    big, small, _ = headline(found)
    if not is_of_runtimes(found):
        passed, noisy = found.find("passed"), big.endswith("dB")
        if passed is None and noisy:
            return big, f" SQNR against {a}{_classes(found)}.", equal or None
        good = equal if passed is None else passed.truth
        return (
            "Accurate" if good else "Differs",
            f" from {a}: {big} SQNR{_classes(found)}." if noisy else f" from {a}.",
            good,
        )
    if equal:
        return "Equal", f": {small}.", True
    first = _first(found)
    cause = f" ({why})" if (why := _own(first, "cause", "")) else ""
    where = f" first at node {_place(first)}, {first['name'].text}" if first else ""
    return "Differs", f"{where}{cause}, against {b}.", False


def _classes(found: Item) -> str:
    """``, same class in 498 of 500``; "" if no output has classes."""
    outputs = [o for o in found["outputs"] if real(o, "argmax_total")]
    agreed, total = (sum(o[key].size for o in outputs) for key in ("argmax_agreed", "argmax_total"))
    return f", same class in {agreed} of {total}" if total else ""


def _first(found: Item) -> Item | None:
    """The first tensor that differs."""
    first, differing = found.find("first"), _differing_section(found)
    name = first["tensor"].text if first else None
    return next((t for t in differing if t["name"].text == name), next(iter(differing), None))


def _place(tensor: Item) -> str:
    return str(node.size) if (node := tensor.find("node")) else "-"


def _own(tensor: Item | None, key: str, default: str) -> str:
    """A text about a tensor's difference by itself; the default if it does not differ by itself."""
    own = tensor.find("by_itself") if tensor else None
    return (text_of(own, key) or default) if own else default


def accuracies(found: Item) -> dict[int, float]:
    """The lowest SQNR (dB) of each node's outputs, by its index; for runtimes only where something differs."""
    low: dict[int, float] = {}
    for tensor in found["tensors"]:
        node, noise = tensor.find("node"), tensor if is_of_runtimes(found) else tensor.find("cumulated")
        value = real(noise, "sqnr_db")
        if node is not None and value is not None and isfinite(value):
            low[node.size] = min(value, low.get(node.size, value))
    return low


def _runtimes(found: Item) -> Iterator[Markup]:
    refused, differing, outputs = found.find("refused"), _differing_section(found)[:MOST], list(found["outputs"])
    if refused:
        yield tag("p", f"The other side does not run the whole model: {refused.text}")
    shown = [Block("First difference", facts=_facts(found, first))] if (first := _first(found)) else []
    if outputs:
        shown.append(Block("Outputs", _outputs_grid(outputs, _tolerance(found))))
    yield from blocks(shown)
    if differing:
        yield tag("h3", "Tensors that differ")
        grid = _differing_grid(differing, _tolerance(found))
        cause = [column.header for column in grid.columns].index("cause")
        yield search("pair-table", "Filter by name, operator or cause", f"1 2 {cause}")
        yield tag("div", table("tensors that differ", grid), id="pair-table")


def _facts(found: Item, first: Item) -> list[tuple[str, str]]:
    """The place where the difference begins, in the words of the terminal."""
    own = first.find("by_itself")
    at, exact, inputs = first.find("where"), real(own, "before_rounding"), first.find("inputs_equal")
    a, b = [side["name"].text for side in found["sides"]]
    position = "" if at is None else f"[{','.join(str(i.size) for i in at)}]  "
    before = "" if exact is None else f"   before rounding {exact:.9g}"
    sides = [f"{name} {value.value}" for name, key in ((a, "a"), (b, "b")) if (value := first.find(key)) is not None]
    read = f"not known of {b}" if inputs is None else "equal bit for bit" if inputs.truth else "not equal"
    inside = own.find("inside") if own else None
    turn = inside.find("iteration") if inside else None
    where = f" in iteration {turn.size}" if turn else ""
    cause = _own(first, "cause", "inherited")
    return [
        ("node", f"#{_place(first)} {text_of(first, 'label')}  {text_of(first, 'op')}"),
        ("output", first["name"].text),
        ("type", text_of(first, "type")),
        ("differ", f"{first['differing'].size:,} of {first['elements'].size:,} elements"),
        ("where", position + "   ".join(sides) + before if sides else ""),
        ("inputs", read),
        ("inside", f"{inside['graph'].text}{where}, tensor {inside['first'].text}" if inside else ""),
        ("cause", cause if cause == "inherited" else f"{cause}: {_own(first, 'text', '')}"),
        *(("also fits", rival.text) for rival in items(own, "also")),
    ]


def _tolerance(found: Item) -> str:
    """``rtol 0.001, atol 1e-07``; "" without a tolerance."""
    return limits(decode(Tolerance, found["tolerance"]))


def _share(key: str) -> Callable[[Item], str]:
    return lambda t: share_text(t[key].size, t["elements"].size)


def _step(tensor: Item) -> str:
    """The largest difference in steps; ``-`` for floats."""
    return number(real(tensor, "largest")) if text_of(tensor, "unit") == "step" else "-"


def _differing_grid(tensors: Sequence[Item], told: str) -> Grid:
    """The terminal's columns, and what is known about each cause. told: the tolerance."""
    bits = any(t.find("other_bits") and t["other_bits"].size > t["differing"].size for t in tensors)
    columns = [
        Column("#", right=True, cell=_place),
        Column("tensor", shrink=2, cell=lambda t: t["name"].text),
        Column("op", shrink=1, cell=lambda t: text_of(t, "op")),
        Column("type", cell=lambda t: text_of(t, "type")),
        Column("beyond" if told else "differ", right=True, cell=_share("differing")),
        Column("different bits", right=True, cell=_share("other_bits")) if bits else None,
        Column("max step", right=True, cell=_step),
        Column("max abs", right=True, cell=lambda t: number(real(t, "max_abs"))),
        Column("SQNR", right=True, cell=lambda t: decibel(real(t, "sqnr_db"))),
        Column("cause", cell=lambda t: _own(t, "cause", "inherited")),
        Column("details", wrap=True, cell=lambda t: _own(t, "text", "")),
    ]
    grid = Grid.of(columns, tensors)
    return grid if any(row[-1] for row in grid.rows) else grid.without(len(grid.columns) - 1)


def _outputs_grid(outputs: Sequence[Item], told: str) -> Grid:
    def verdict(output: Item) -> str:
        if output["identical"].truth:
            return "equal"
        return f"{'within' if output['equal'].truth else 'beyond'} {told}" if told else "differs"

    def argmax(output: Item) -> str:
        total = real(output, "argmax_total")
        return f"same in {number(real(output, 'argmax_agreed'))} of {number(total)}" if total else "-"

    columns = [
        Column("name", shrink=1, cell=lambda o: o["name"].text),
        Column("max abs", right=True, cell=lambda o: number(real(o, "max_abs"))),
        Column("max rel", right=True, cell=lambda o: number(real(o, "max_rel"))),
        Column("SQNR", right=True, cell=lambda o: decibel(real(o, "sqnr_db"))),
        Column("argmax", cell=argmax),
        Column("verdict", wrap=True, cell=verdict),
    ]
    return Grid.of(columns, outputs)


def _models(found: Item) -> list[Block]:
    """The tables of the terminal; then the mistakes to correct first, and the list to keep in float for onnxruntime's
    quantizer, with the SQNR that each length of it reaches."""
    first = {key: [item.value for item in found[key]][:MOST] for key in ("costs", "tensors")}
    shown = accuracy_tables(Item({**found.value, **first}, found.source), None, causes=True)
    wrong, kept = [correction(one) for one in items(found, "corrections")], found.find("keep_in_float")
    if wrong:
        shown.append(Block("Correct first", lines=wrong))
    names = [name.text for name in items(kept, "exclude") or items(kept, "nodes")]
    if kept and names:
        shown.append(Block("Keep in float", _steps(kept), lines=[f"{EXCLUDE}={json.dumps(names, ensure_ascii=False)}"]))
    return shown


def _steps(kept: Item) -> Grid | None:
    count = kept.find("count")
    chosen = count.size if count else -1

    def length(one: Item) -> str:
        return f"{one['nodes'].size}{' (this list)' if one['nodes'].size == chosen else ''}"

    columns = [
        Column("nodes in float", cell=length),
        Column("output", right=True, cell=lambda one: decibel(real(one, "output_sqnr_db"))),
    ]
    return Grid.of(columns, tried) if (tried := list(items(kept, "tried"))) else None
