"""The report of one model on two sides: where they first differ, why, and what becomes of it."""

from __future__ import annotations

from typing import Any

from qrun.comparing.causes import INHERITED
from qrun.comparing.causes.seen import CRASH
from qrun.comparing.choices import EMULATED
from qrun.comparing.comparison import ComparedTensor, Comparison
from qrun.comparing.tensors import TensorPair
from qrun.declare import grouped
from qrun.declare.frozen import replace
from qrun.documents.record import encode
from qrun.io.inputs import Feeds
from qrun.report.comparefirst import apart, applied, first_facts, largest, limit, odd, refusal, refuses
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, environment, input_fields, model_fields
from qrun.report.nodes import op_names
from qrun.report.screen import BAD, GOOD, OPEN
from qrun.report.sheet import NONE, Block, Sheet, Sources
from qrun.report.text import decibel, number, percent, plural

LEAST = 0.001
"""The smallest share that is told as it is."""


def comparison_sheet(found: Comparison, top: int | None, sources: Sources = NONE) -> Sheet:
    """The report. top: rows of differing tensors, None for all; sources: of the inputs."""
    blocks = []
    if found.piecewise is not None:
        does = f"crashes {found.names[1]}" if found.piecewise.code == CRASH else "is refused"
        blocks.append(Block(f"The whole model {does}", facts=refusal(found)))
    if found.first is not None:
        nodes = plural(len(found.model.nodes), "node")
        title = "crash" if found.first.crashed else "refusal" if found.first.refused else "difference"
        title = f"First {title}  node {found.first.node.index} of {nodes}"
        blocks += [Block(title, facts=first_facts(found, found.first)), _differing(found, top)]
        inside = found.first.guilt and found.first.guilt.inside
        if inside:
            title = f"Inside node {found.first.node.index}, {inside.where}: tensors that differ"
            blocks.append(replace(_differing(inside.found, top), title=title))
    causes = _causes(found)
    if causes:
        blocks.append(Block("Causes (qrun explain CAUSE)", Grid.of(_CAUSE_COLUMNS, causes.items())))
    if found.outputs:
        blocks.append(_outputs(found))
    each = f", each node fed the values of {found.names[1]}" if found.isolate else ""
    title = f"{found.a} and {found.b}, {plural(len(found.model.nodes), 'node')}, {plural(len(found.tensors), 'tensor')} on both sides{each}"
    style = GOOD if found.equal else OPEN if found.first and found.first.refused else BAD
    return Sheet(blocks, verdict(found) + chance(sources), style, about=[title])


def verdict(found: Comparison) -> str:
    """Equal, or where and by how much the sides first differ."""
    tensors = plural(len(found.tensors), "tensor")
    first, refused = found.first, len(found.refused)
    told = applied(found.tolerance, (t.pair for t in found.tensors))
    if first is None:
        exact = all(t.pair.identical for t in found.tensors)
        return f"equal: {tensors}, bit for bit." if exact else f"equal within the tolerance, {told}: {tensors}."
    if first.refused:
        rest = [t for t in found.tensors if not t.refused]
        how = "equal bit for bit" if all(t.pair.identical for t in rest) else f"equal within {told}"
        others = f"; {'the other is' if len(rest) == 1 else f'the other {len(rest)} are'} {how}" if rest else ""
        return f"not compared in full: {found.names[1]} {refuses(found.refused)} {refused} of {tensors}, first at node {first.node.index}{others}."
    where = f"first at node {first.node.index}{_by(first.pair)}{_why(found, first)}; {'; '.join(_counts(found))}."
    return f"differ: {_at_outputs(found)}{where}"


def _at_outputs(found: Comparison) -> str:
    """Of a CPU that is emulated, what becomes of the outputs; "" of other sides."""
    if found.names[1] not in EMULATED:
        return ""
    parts = []
    for name, p in found.outputs:
        agreed, decided = p.agreed or (0, 0)
        moved = f", argmax changed in {decided - agreed} of {decided}" if agreed < decided else ""
        same = ", argmax the same" if decided and not moved else ""
        parts.append(f"{name} {'equal' if p.identical else f'SQNR {decibel(p.sqnr)}{moved or same}'}")
    rest = f" and {plural(len(parts) - 4, 'more output')}" if parts[4:] else ""
    return f"without VNNI {'; '.join(parts[:4])}{rest}; " if parts else ""


def _why(found: Comparison, first: ComparedTensor) -> str:
    if first.guilt:
        graphs, at = list[str](), first
        while at.guilt and at.guilt.inside:
            graphs.append(at.guilt.inside.where)
            at = at.guilt.inside.tensor
        where = f" inside its {', '.join(graphs)}, at {at.node.label}" if graphs else ""
        return f", {first.guilt.reason.cause}{where}"
    if (origin := found.origin) and origin.guilt:
        return f", inherited from {origin.guilt.reason.cause} at node {origin.node.index}"
    return ""


def _counts(found: Comparison) -> list[str]:
    """How many tensors differ: by how much, with whose fault, and beside how many others."""
    refused = len(found.refused)
    count, total = len(found.differing) - refused, plural(len(found.tensors) - refused, "tensor")
    told = _beyond(found)
    rest = f"{count} of {total} {f'beyond {told}' if told else 'differ'}"
    own = sum(t.guilt is not None for t in found.tensors)
    rest += "" if found.isolate or found.piecewise else f", {own} by {'itself' if own == 1 else 'themselves'}"
    bits = sum(not t.pair.identical for t in found.tensors) - refused
    counts = [rest + (f" ({bits} with other bits)" if bits > count else "")]
    return [*counts, f"{found.names[1]} {refuses(found.refused)} {refused} more"] if refused else counts


def _beyond(found: Comparison) -> str:
    """The tolerance that the tensors which differ are beyond."""
    return applied(found.tolerance, (t.pair for t in found.differing))


def _by(pair: TensorPair) -> str:
    form = pair.difference.form
    if form is not None:
        return f" ({form[0]} and {form[1]})"
    return "" if not pair.beyond else f" with {largest(pair)}" if odd(pair) else f" by {largest(pair)}"


def _differing(found: Comparison, top: int | None) -> Block:
    rows, op = found.differing[:top], op_names(found.model.nodes)
    left, told = len(found.differing) - len(rows), _beyond(found)
    isolate = "" if found.isolate or found.piecewise else "--isolate, "
    title = f"Tensors that differ{f', beyond {told}' if told else ''}"
    if all(t.refused for t in found.differing):
        title = f"Tensors that {found.names[1]} {refuses(found.refused)}"
    more = f"{plural(left, 'more tensor')}   --top all, {isolate}--json" if left else ""
    if any(_own(t) for t in rows):
        title += " (in brackets: elements that differ by themselves)"
    bits = any(t.pair.other_bits > t.pair.difference.differing for t in rows)
    columns = [
        Column("#", right=True, cell=lambda t: str(t.node.index)),
        Column("tensor", shrink=2, cell=lambda t: t.name),
        Column("op", optional=4, cell=lambda t: op(t.node)),
        Column("type", optional=5, cell=lambda t: t.pair.type),
        Column("beyond" if told else "differ", right=True, cell=_differ),
        Column("other bits", right=True, optional=4, cell=_other_bits) if bits else None,
        Column("max step", right=True, optional=1, cell=_steps),
        Column("max abs", right=True, optional=3, cell=lambda t: apart(t.pair)),
        Column("SQNR", right=True, optional=2, cell=lambda t: decibel(t.pair.sqnr)),
        Column("cause", cell=_cause),
    ]
    return Block(title, Grid.of(columns, rows), more=more, folds=True)


def _differ(t: ComparedTensor) -> str:
    """How much of it differs; of one without elements to compare, why."""
    d = t.pair.difference
    if d.form is not None:
        return "missing" if d.form[1] == "nothing" else "form"
    return _share(d.differing, d.total)


def _other_bits(t: ComparedTensor) -> str:
    return "-" if t.pair.difference.form else _share(t.pair.other_bits, t.pair.difference.total)


def _steps(t: ComparedTensor) -> str:
    d = t.pair.difference
    return f"{d.largest:.0f}" if d.integral and not d.form else "-"


def _cause(t: ComparedTensor) -> str:
    cause = t.guilt.reason.cause if t.guilt else INHERITED if t.checked else "-"
    return f"{cause} ({own})" if (own := _own(t)) else cause


def _share(count: int, total: int) -> str:
    """In percent; next to nothing is ``<0.1%``."""
    share = percent(count / total if total else 0)
    return f"<{percent(LEAST)}" if count and share == percent(0) else share


def _own(t: ComparedTensor) -> int:
    """How many elements differ by themselves, where that is not how many differ."""
    own = t.guilt.pair.difference.differing if t.guilt else 0
    return 0 if own == t.pair.difference.differing else own


def _causes(found: Comparison) -> dict[str, list[ComparedTensor]]:
    """The tensors that differ by themselves, by cause, the most frequent first."""
    groups = grouped((t.guilt.reason.cause, t) for t in found.tensors if t.guilt is not None)
    return dict(sorted(groups.items(), key=lambda item: -len(item[1])))


_CAUSE_COLUMNS = [
    Column("cause", cell=lambda item: item[0]),
    Column("tensors", right=True, cell=lambda item: str(len(item[1]))),
    Column("elements", right=True, cell=lambda item: str(sum(t.guilt.pair.difference.differing for t in item[1]))),
    Column("first", shrink=1, cell=lambda item: f"#{item[1][0].node.index} {item[1][0].node.label}"),
]


def _outputs(found: Comparison) -> Block:
    def size(told: str, pair: TensorPair) -> str:
        return "0" if pair.identical else told

    columns = [
        Column("name", shrink=1, cell=lambda o: o[0]),
        Column("max abs", right=True, cell=lambda o: size(apart(o[1]), o[1])),
        Column("max rel", right=True, optional=2, cell=lambda o: size(odd(o[1]) or number(o[1].max_rel), o[1])),
        Column("SQNR", right=True, optional=1, cell=lambda o: decibel(o[1].sqnr)),
        Column("argmax", cell=lambda o: _argmax(o[1])),
        Column("verdict", cell=lambda o: _judged(found, o[1])),
    ]
    return Block("Outputs", Grid.of(columns, found.outputs))


def _judged(found: Comparison, p: TensorPair) -> str:
    if p.identical or p.difference.form:
        return "equal" if p.identical else "missing or of another form"
    told = limit(found.tolerance, p)
    return f"{'within' if p.equal else 'beyond'} {told}" if told else "differs"


def _argmax(p: TensorPair) -> str:
    """The place of the largest element; of several rows in how many it is the same."""
    if p.argmax is None or p.agreed is None:
        return "-"
    agreed, decided = p.agreed
    if decided > 1:
        return f"same in {agreed} of {decided}"
    a, b = (",".join(map(str, place)) for place in p.argmax)
    return f"same ({a})" if a == b else f"{a} and {b}"


def comparison_fields(found: Comparison, feeds: Feeds) -> dict[str, Any]:
    """The body of the JSON report: every tensor, with its cause and the evidence."""
    first, origin = found.first, found.origin
    start = origin and {"node": origin.node.index, "tensor": origin.name, "by_itself": origin.guilt}
    return {
        "kind": "runtimes",
        "model": model_fields(found.model),
        "environment": environment(found.names[0], found.a),
        "inputs": input_fields(feeds),
        "sides": [{"name": n, "label": text} for n, text in zip(found.names, (found.a, found.b), strict=True)],
        "tolerance": found.tolerance,
        "isolate": found.isolate,
        "refused": None if found.piecewise is None else dict(found.piecewise.facts).get("got", found.piecewise.message),
        "equal": found.equal,
        "first": first and {"node": first.node.index, "tensor": first.name, "origin": start},
        "summary": {
            "nodes": len(found.model.nodes),
            "tensors": len(found.tensors),
            "differing": len(found.differing),
            "by_themselves": sum(t.guilt is not None for t in found.tensors),
            "identical": sum(t.pair.identical for t in found.tensors),
            "refused": len(found.refused),
        },
        "tensors": found.tensors,
        "outputs": [{"name": name, **encode(pair)} for name, pair in found.outputs],
    }
