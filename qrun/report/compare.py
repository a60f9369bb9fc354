"""The report of one model on two sides: where they first differ, why, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qrun.comparing.causes import Reason
from qrun.comparing.runtimes import Compared, Comparison
from qrun.comparing.tensors import Pair
from qrun.differences import Difference
from qrun.inputs import Feeds
from qrun.ir.types import shape_text, type_name
from qrun.report.comparesheet import Block, Sheet, print_sheet, print_sheet_markdown
from qrun.report.grid import Column, Grid
from qrun.report.header import environment, model_fields
from qrun.report.nodes import op_names
from qrun.report.screen import Out
from qrun.report.text import number, percent, plural

NO_CAUSE = "inherited"


def print_comparison(out: Out, found: Comparison, top: int | None) -> None:
    """The text report; the verdict only when quiet. top: rows of differing tensors, None for all."""
    print_sheet(out, sheet(found, top))


def print_comparison_markdown(out: Out, found: Comparison, top: int | None) -> None:
    print_sheet_markdown(out, sheet(found, top))


def sheet(found: Comparison, top: int | None) -> Sheet:
    blocks = []
    if found.piecewise is not None:
        said = dict(found.piecewise.facts).get("got", found.piecewise.message)
        facts = [(found.names[1], said), ("instead", f"node by node, each fed the values of {found.names[0]}")]
        blocks.append(Block("The whole model is refused", facts=facts))
    if found.first is not None:
        nodes = plural(len(found.model.nodes), "node")
        blocks.append(
            Block(f"First difference  node {found.first.node.index} of {nodes}", facts=_first(found, found.first))
        )
        blocks.append(_after(found, top))
    causes = _causes(found)
    if causes:
        blocks.append(Block("Causes (qrun explain causes)", Grid(_CAUSE_COLUMNS, causes), folds=False))
    if found.outputs:
        blocks.append(_outputs(found))
    each = f", each node fed the values of {found.names[1]}" if found.isolate else ""
    title = f"{found.a} and {found.b}, {plural(len(found.model.nodes), 'node')}, {plural(len(found.tensors), 'tensor')} on both sides{each}"
    return Sheet(title, blocks, verdict(found))


def verdict(found: Comparison) -> str:
    """The last line: equal, or where and by how much the sides first differ."""
    tensors = plural(len(found.tensors), "tensor")
    first = found.first
    if first is None:
        exact = all(t.pair.identical for t in found.tensors)
        return f"equal: {tensors}, bit for bit." if exact else f"equal within the tolerance: {tensors}."
    at = f"differ: first at node {first.node.index}"
    own = sum(t.guilt is not None for t in found.tensors)
    rest = f"{len(found.differing)} of {len(found.tensors)} tensors are not equal"
    rest += "" if found.isolate or found.piecewise else f", {own} by themselves"
    cause = f", {first.guilt.reason.cause}" if first.guilt else ""
    return f"{at}{_by(first.pair.difference)}{cause}; {rest}."


def _by(d: Difference) -> str:
    if d.form is not None:
        return f" ({d.form[0]} and {d.form[1]})"
    return f" by {plural(int(d.largest), 'step')}" if d.integral else f" by {number(d.largest)}" if d.largest else ""


def _first(found: Comparison, t: Compared) -> list[tuple[str, str]]:
    pair, guilt = t.pair, t.guilt
    group = f" and {plural(len(t.unit.group) - 1, 'other node')}" if len(t.unit.group) > 1 else ""
    facts = [("node", f"{t.node.label}  {t.node.op}{group}"), ("output", t.name)]
    facts += _measures(found, pair, guilt.exact if guilt and guilt.pair == pair else None)
    facts.append(("inputs", _inputs(found, t)))
    if guilt is not None and guilt.pair != pair:
        facts += [("by itself", f"fed the values of {found.names[1]}, it differs too"),
                  *_measures(found, guilt.pair, guilt.exact)[1:]]  # fmt: skip
    facts += _reason(guilt.reason, guilt.pair) if guilt else [("cause", _inherited(found, t))]
    return facts


def _measures(found: Comparison, pair: Pair, exact: float | None) -> list[tuple[str, str]]:
    d = pair.difference
    if d.form is not None:
        return [("type", f"{found.names[0]} {d.form[0]}   {found.names[1]} {d.form[1]}")]
    largest = plural(int(d.largest), "step") if d.integral else number(d.largest)
    before = f"   before rounding {exact:.9g}" if exact is not None else ""
    a, b = (v if isinstance(v, str) else f"{v:.9g}" if isinstance(v, float) else str(v) for v in (pair.a, pair.b))
    where = f"{shape_text(d.worst) if d.worst else ''}  {found.names[0]} {a}   {found.names[1]} {b}{before}".lstrip()
    return [("type", pair.type), ("differ", f"{d.differing} of {plural(d.total, 'element')}, largest {largest}"),
            ("where", where)]  # fmt: skip


def _inputs(found: Comparison, t: Compared) -> str:
    if found.isolate or found.piecewise:
        return f"those of {found.names[0 if found.piecewise else 1]} on both sides"
    states = {True: "equal bit for bit", False: "not equal", None: f"not known of {found.names[1]}"}
    return states[t.inputs]


def _inherited(found: Comparison, t: Compared) -> str:
    if not t.checked:
        return "not known: not all tensors that it reads are there on both sides"
    origin = next((o for o in found.tensors if not o.pair.identical), None)
    if origin is None or origin.node.index >= t.node.index:
        return "inherited: fed the other side's values, it gives the same"
    largest = number(origin.pair.max_abs) if origin.pair.max_abs else "within the tolerance"
    return (f"inherited: fed the other side's values, it gives the same. Other bits start at node {origin.node.index} "
            f"{origin.node.label} ({origin.node.op}), by {largest} at most")  # fmt: skip


def _reason(reason: Reason, pair: Pair) -> list[tuple[str, str]]:
    facts = [("cause", f"{reason.cause}: {reason.text}")]
    if reason.explained:
        facts.append(("evidence", f"{reason.explained} of {plural(pair.difference.differing, 'differing element')} reproduced bit for bit"
                                  + (", and all others" if reason.explained < pair.difference.total else "")))  # fmt: skip
    if reason.farthest is not None and reason.nearest is not None:
        exact = f"{plural(reason.ties, 'exact tie')}, the others " if reason.ties else ""
        away = f"{reason.nearest:.2g} to {reason.farthest:.2g} LSB from the middle between two steps"
        whole = reason.ties == pair.difference.differing
        facts.append(("ties", "all are exact ties" if whole else exact + away))
    return facts


_ROW_COLUMNS = [Column("#", right=True), Column("tensor", shrink=2), Column("op", optional=3), Column("type", optional=4),
                Column("differ", right=True), Column("max step", right=True), Column("max abs", right=True, optional=2),
                Column("SQNR", right=True, optional=1), Column("cause")]  # fmt: skip
_CAUSE_COLUMNS = [
    Column("cause"),
    Column("tensors", right=True),
    Column("elements", right=True),
    Column("first", shrink=1),
]


def _after(found: Comparison, top: int | None) -> Block:
    rows, op = found.differing[:top], op_names(found.model.nodes)
    left = len(found.differing) - len(rows)
    isolate = "" if found.isolate or found.piecewise else "--isolate, "
    more = f"{plural(left, 'more tensor')} differ   --top all, {isolate}--json" if left else ""
    title = "By node" if found.isolate or found.piecewise else "After that"
    if any(_own(t) for t in rows):
        title += " (elements that differ by themselves)"
    return Block(title,
                 Grid(_ROW_COLUMNS, [_row(t, op(t.node)) for t in rows]), more=more, folds=True)  # fmt: skip


def _row(t: Compared, op: str) -> list[str]:
    d, p = t.pair.difference, t.pair
    cause = t.guilt.reason.cause if t.guilt else NO_CAUSE if t.checked else "-"
    cause += f" ({_own(t)})" if _own(t) else ""
    share = (
        ("missing" if d.form[1] == "nothing" else "form")
        if d.form
        else percent(d.differing / d.total if d.total else 0)
    )
    small = share == "0.0%" and d.differing
    return [str(t.node.index), t.name, op, p.type, f"{d.differing}" if small else share,
            f"{d.largest:.0f}" if d.integral and not d.form else "-", "-" if p.max_abs is None else number(p.max_abs),
            decibels(p.sqnr), cause]  # fmt: skip


def _own(t: Compared) -> int:
    """How many elements differ by themselves, where that is not how many differ."""
    own = t.guilt.pair.difference.differing if t.guilt else 0
    return 0 if own == t.pair.difference.differing else own


def _causes(found: Comparison) -> list[list[str]]:
    groups: dict[str, list[Compared]] = {}
    for t in found.tensors:
        if t.guilt is not None:
            groups.setdefault(t.guilt.reason.cause, []).append(t)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return [
        [cause, str(len(ts)), str(sum(t.guilt.pair.difference.differing for t in ts if t.guilt)),
         f"#{ts[0].node.index} {ts[0].node.label}"]
        for cause, ts in ordered
    ]  # fmt: skip


def _outputs(found: Comparison) -> Block:
    columns = [Column("name", shrink=1), Column("max abs", right=True), Column("max rel", right=True, optional=2),
               Column("SQNR", right=True, optional=1), Column("argmax"), Column("verdict")]  # fmt: skip
    return Block("Outputs", Grid(columns, [_output(found, name, pair) for name, pair in found.outputs]))


def _output(found: Comparison, name: str, p: Pair) -> list[str]:
    limit = found.tolerance
    d = p.difference
    unit = f"lsb {limit.lsb}" if d.integral else f"rtol {limit.rtol:g}, atol {limit.atol:g}"
    verdict = (
        "equal"
        if p.identical
        else "missing or of another form"
        if d.form
        else f"{'within' if p.equal else 'over'} {unit}"
    )
    sizes = ("0", "0") if p.identical else ("-" if v is None else number(v) for v in (p.max_abs, p.max_rel))
    return [name, *sizes, decibels(p.sqnr), _argmax(p), verdict]


def _argmax(p: Pair) -> str:
    if p.argmax is None:
        return "-"
    a, b = (",".join(map(str, place)) for place in p.argmax)
    return f"same ({a})" if a == b else f"{a} and {b}"


def decibels(value: float | None) -> str:
    return "-" if value is None or value != value else "inf" if value == float("inf") else f"{value:.1f} dB"


def comparison_fields(found: Comparison, feeds: Feeds) -> dict[str, Any]:
    """The body of the JSON report: every tensor, with its cause and the evidence."""
    t = found.tolerance
    first = found.first
    return {
        "kind": "runtimes",
        "model": model_fields(found.model),
        "environment": environment(found.names[0], found.a),
        "inputs": [
            {"name": n, "type": type_name(x.dtype), "shape": list(x.shape), "source": feeds.sources.get(n, "")}
            for n, x in feeds.arrays.items()
        ],
        "sides": [{"name": n, "label": text} for n, text in zip(found.names, (found.a, found.b), strict=True)],
        "tolerance": {"lsb": t.lsb, "rtol": t.rtol, "atol": t.atol},
        "isolate": found.isolate,
        "refused": None if found.piecewise is None else dict(found.piecewise.facts).get("got", found.piecewise.message),
        "equal": found.equal,
        "first": None if first is None else {"node": first.node.index, "tensor": first.name},
        "summary": {
            "nodes": len(found.model.nodes), "tensors": len(found.tensors), "differing": len(found.differing),
            "by_themselves": sum(t.guilt is not None for t in found.tensors),
            "identical": sum(t.pair.identical for t in found.tensors),
        },
        "tensors": [_tensor_fields(t) for t in found.tensors],
        "outputs": [{"name": name, **_pair_fields(pair)} for name, pair in found.outputs],
    }  # fmt: skip


def _tensor_fields(t: Compared) -> dict[str, Any]:
    own = None
    if t.guilt is not None:
        r = t.guilt.reason
        own = {**_pair_fields(t.guilt.pair), "before_rounding": t.guilt.exact, "cause": r.cause, "text": r.text,
               "explained": r.explained, "exact_ties": r.ties, "nearest_tie": r.nearest, "farthest_tie": r.farthest}  # fmt: skip
    return {
        "name": t.name, "node": t.node.index, "label": t.node.label, "domain": t.node.domain or "ai.onnx",
        "op": t.node.op_type, "group": [n.index for n in t.unit.group], **_pair_fields(t.pair),
        "inputs_equal": t.inputs, "checked": t.checked, "by_itself": own,
    }  # fmt: skip


def _pair_fields(p: Pair) -> dict[str, Any]:
    d = p.difference
    return {
        "type": p.type, "form": None if d.form is None else list(d.form), "equal": p.equal, "identical": p.identical,
        "elements": d.total, "differing": d.differing, "largest": d.largest,
        "unit": "step" if d.integral else "absolute", "where": _listed(d.worst) if d.differing else None,
        "a": p.a, "b": p.b, "max_abs": p.max_abs, "max_rel": p.max_rel, "sqnr_db": p.sqnr,
        "argmax": None if p.argmax is None else [list(place) for place in p.argmax],
    }  # fmt: skip


def _listed(index: Sequence[int]) -> list[int]:
    return [int(i) for i in index]
