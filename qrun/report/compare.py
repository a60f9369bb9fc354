"""The report of one model on two sides: where they first differ, by how much, why, and the effect on the outputs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from qrun.comparing.causes import INHERITED, Reason
from qrun.comparing.causes.seen import CRASH
from qrun.comparing.choices import EMULATED
from qrun.comparing.comparison import ComparedTensor, Comparison, GraphDifference
from qrun.comparing.differences import TensorPair, Tolerance
from qrun.comparing.votes import ArithmeticClaim, NodeVote
from qrun.declare import grouped
from qrun.declare.frozen import replace
from qrun.documents.record import encode
from qrun.io.inputs import Feeds
from qrun.ir.types import shape_text
from qrun.report.grid import Column, Grid
from qrun.report.header import chance, environment, input_fields, model_fields
from qrun.report.nodes import op_names
from qrun.report.screen import BAD, GOOD, NAME, OPEN
from qrun.report.sheet import NONE, Block, Sheet, Sources
from qrun.report.text import decibel, number, percent, plural


def limits(t: Tolerance) -> str:
    """The tolerance as text; "" if there is none."""
    steps = [f"lsb {t.lsb}"] if t.lsb else []
    floats = [f"rtol {t.rtol:g}, atol {t.atol:g}"] if t.rtol or t.atol else []
    return ", ".join([*steps, *floats, *([f"{t.eps} eps"] if t.eps else [])])


def limit(t: Tolerance, pair: TensorPair) -> str:
    """The part of the tolerance that applies to a tensor, as text; "" if no part does."""
    if pair.difference.integral:
        return limits(Tolerance(t.lsb, 0, 0))
    return "" if pair.type.startswith(("bool", "string")) else tolerance_text(t, [pair])


def tolerance_text(t: Tolerance, pairs: Iterable[TensorPair]) -> str:
    """The tolerance as text, without steps and without noise if neither applies to any of these tensors."""
    found = list(pairs)
    steps = any(pair.difference.integral or pair.stepped for pair in found)
    return limits(replace(t, lsb=t.lsb if steps else 0, eps=t.eps if any(pair.noise for pair in found) else 0))


def non_finite(pair: TensorPair) -> str:
    """``NaN`` or ``inf`` if the farthest elements are that on one side only (or differ in sign), else ""."""
    return "" if isfinite(pair.beyond) else "NaN" if "nan" in f"{pair.a} {pair.b}" else "inf"


def apart(pair: TensorPair) -> str:
    """The largest difference between real numbers; ``NaN`` or ``inf`` where one side is that."""
    return non_finite(pair) or number(pair.max_abs)


def largest(pair: TensorPair) -> str:
    """The difference of the element that is farthest beyond the tolerance, as text; ``NaN on one side`` where it is no
    number."""
    if special := non_finite(pair):
        return f"{special} on one side"
    return plural(int(pair.beyond), "step") if pair.difference.integral else number(pair.beyond)


def refusal(found: Comparison) -> list[tuple[str, str]]:
    """The second side's message about the whole model, and a fix if one is known."""
    assert found.piecewise is not None
    said = dict(found.piecewise.facts).get("got", found.piecewise.message)
    facts = [(found.names[1], said), ("instead", f"node by node, each fed the values of {found.names[0]}")]
    versions = re.search(r"No implementation for operator '.*' domain '' and version (\d+), found ([\d, ]+)", said)
    later = [int(v) for v in re.findall(r"\d+", versions[2]) if int(v) > int(versions[1])] if versions else []
    if later:
        call = f"onnx.version_converter.convert_version(model, {min(later)})"
        facts.append(("fix", f"convert the model to opset {min(later)}: {call}"))
    return facts


def refuses(tensors: Sequence[ComparedTensor]) -> str:
    """The verb for what the second side does with nodes whose tensors it does not produce."""
    crashed = [t.crashed for t in tensors]
    return "crashes on" if all(crashed) else "refuses or crashes on" if any(crashed) else "refuses"


def first_facts(found: Comparison, t: ComparedTensor) -> list[tuple[str, str]]:
    """The facts of the first difference, labelled: the node, its output, how it differs, its inputs, and the cause."""
    pair, guilt = t.pair, t.guilt
    group = f" and {plural(len(t.unit.group) - 1, 'other node')}" if len(t.unit.group) > 1 else ""
    facts = [("node", f"{t.node.label}  {t.node.op}{group}"), *_as_one(found, t), ("output", t.name)]
    facts += _measures(found, pair, guilt.exact if guilt and guilt.pair == pair else None)
    facts.append(("inputs", _inputs(found, t)))
    if guilt is not None and guilt.pair != pair:
        own = [fact for fact in _measures(found, guilt.pair, guilt.exact)[1:] if fact not in facts]
        told = "it differs too" if own else "it differs by the same amount"
        facts += [("isolated", f"fed the values of {found.names[1]}, {told}"), *own]
    if guilt is not None and guilt.inside is not None:
        return facts + _inside(guilt.inside)
    return facts + (_reason(found, guilt.reason, guilt.pair) if guilt else _inherited_facts(found, t))


def _as_one(found: Comparison, t: ComparedTensor) -> list[tuple[str, str]]:
    """Says that onnxruntime's optimized graph shows no tensor inside the group, and how to look inside."""
    if found.names[1] != "ort-optimized" or len(t.unit.group) == 1:
        return []
    cause = t.guilt.reason.cause if t.guilt else ""
    inside = {
        "pair-saturation": "; --emulate avx2 compares them one by one",
        "unknown": "; --emulate avx2 shows whether saturation on CPUs without VNNI is the cause",
    }.get(cause, "")
    told = f"onnxruntime shows no tensor between these {len(t.unit.group)} nodes, so they are compared as one"
    return [("group", told + inside)]


def _inside(inside: GraphDifference) -> list[tuple[str, str]]:
    """The first difference in a graph inside the node; its facts replace the node's cause."""
    t, found = inside.tensor, inside.found
    counted = "" if inside.turn is None else " (the first is 0)"
    fed = f", fed the previous iteration of {found.names[1]}" if inside.turn else ""
    adds = "; each iteration is within the tolerance, but the differences add up" if inside.slight else ""
    return [("inside", f"{inside.where}{counted}{fed}{adds}"), *first_facts(found, t)]


def _measures(found: Comparison, pair: TensorPair, exact: float | None) -> list[tuple[str, str]]:
    d, allowed = pair.difference, limit(found.tolerance, pair)
    if d.form is not None:
        return [("type", f"{found.names[0]} {d.form[0]}   {found.names[1]} {d.form[1]}")]
    elements = f"{d.differing} of {plural(d.total, 'element')}"
    differ = f"{elements} beyond {allowed}, largest of these" if allowed else f"{elements}, largest"
    facts = [("type", pair.type), ("differ", f"{differ} {largest(pair)}")]
    if allowed and pair.other_bits > d.differing:
        most = plural(int(d.largest), "step") if d.integral else number(d.largest)
        which = "largest finite difference" if non_finite(pair) else "largest"
        facts.append(("different bits", f"{plural(pair.other_bits, 'element')}, {which} {most}"))
    before = f"   before rounding {exact:.9g}" if exact is not None else ""
    a, b = (v if isinstance(v, str) else f"{v:.9g}" if isinstance(v, float) else str(v) for v in (pair.a, pair.b))
    where = f"{shape_text(d.worst) if d.worst else ''}  {found.names[0]} {a}   {found.names[1]} {b}{before}".lstrip()
    return [*facts, ("where", where)]


def _inputs(found: Comparison, t: ComparedTensor) -> str:
    proved = t.guilt is not None and t.guilt.reason.cause == "kept-in-float32"
    read = "but its node read" if proved else "its node may have read"
    maybe = f"; {read} {', '.join(t.unseen[:3])} in float32, unrounded" if t.unseen else ""
    if found.isolate or found.piecewise:
        return f"from {found.names[0 if found.piecewise else 1]}, on both sides{maybe}"
    if t.unseen:
        return f"equal in the outputs of {found.names[1]}{maybe}"
    unequal = "within the tolerance, but not equal bit for bit" if t is found.first else "not equal"
    states = {True: "equal bit for bit", False: unequal, None: f"not available from {found.names[1]}"}
    return states[t.inputs]


def _inherited_facts(found: Comparison, t: ComparedTensor) -> list[tuple[str, str]]:
    if not t.checked:
        return [("cause", "not known: some of its inputs are missing on one side")]
    told = "inherited: with the other side's inputs, it returns the other side's result"
    origin = found.origin
    if origin is None:
        return [("cause", told)]
    tight = "--lsb 0" if origin.pair.difference.integral and found.tolerance.lsb else "--rtol 0 --atol 0"
    most = number(origin.pair.max_abs) if origin.pair.max_abs else "within the tolerance"
    told += (
        f". The bits first differ at node {origin.node.index} {origin.node.label} ({origin.node.op}), by at most {most}"
    )
    if origin.guilt is None:
        return [("cause", told), ("next", f"{tight} shows why")]
    why = f"{origin.guilt.reason.cause}: {origin.guilt.reason.text}"
    more = f"--isolate {tight} compares each node on its own and shows details of this one"
    return [("cause", told), ("there", why), ("next", more)]


def _reason(found: Comparison, reason: Reason, pair: TensorPair) -> list[tuple[str, str]]:
    facts = [("cause", f"{reason.cause}: {reason.text}")]
    if reason.residual is not None:
        left = plural(int(reason.residual), "step") if pair.difference.integral else number(reason.residual)
        elements = f"{plural(reason.explained, 'differing element')} and all others"
        within = f"within {limit(found.tolerance, pair)}, not bit for bit; at most {left} remains"
        facts.append(("evidence", f"recomputing brings {elements} {within}"))
    elif reason.explained:
        beyond_all = pair.other_bits == pair.difference.differing
        which = plural(pair.other_bits, "differing element" if beyond_all else "element")
        count = f"{reason.explained} of {which}{'' if beyond_all else ' with different bits'}"
        others = ", and all others" if reason.explained < pair.difference.total else ""
        facts.append(("evidence", f"{count} reproduced bit for bit{others}"))
    if reason.also:
        rest = f" and {len(reason.also) - 3} more   --json" if reason.also[3:] else ""
        facts.append(("also fits", "; or ".join(reason.also[:3]) + rest))
    if reason.farthest is not None and reason.nearest is not None:
        exact = f"{plural(reason.ties, 'exact tie')}, the others " if reason.ties else ""
        ends = list(dict.fromkeys(f"{v:.2g}" for v in (reason.nearest, reason.farthest)))
        whole = reason.ties == pair.other_bits
        away = f"{exact}{' to '.join(ends)} LSB from the midpoint between two codes"
        facts.append(("ties", "all are exact ties" if whole else away))
    return facts


_AS_USUAL = "onnxruntime's default session also optimizes the graph; --against ort-optimized compares with it."
LEAST = 0.001
"""The smallest share that is shown as a number."""


def comparison_sheet(found: Comparison, top: int | None, sources: Sources = NONE) -> Sheet:
    """Lays out the report. top: rows of differing tensors, None for all; sources: where each input came from."""
    blocks = []
    if found.piecewise is not None:
        does = f"crashes {found.names[1]}" if found.piecewise.code == CRASH else "is refused"
        blocks.append(Block(f"The whole model {does}", facts=refusal(found)))
    if found.first is not None:
        nodes = plural(len(found.model.nodes), "node")
        title = "crash" if found.first.crashed else "refusal" if found.first.refused else "difference"
        title = f"First {title}  node {found.first.node.index} of {nodes}"
        blocks += [Block(title, facts=first_facts(found, found.first)), _differing_block(found, top)]
        inside = found.first.guilt and found.first.guilt.inside
        if inside:
            title = f"Inside node {found.first.node.index}, {inside.where}: tensors that differ"
            blocks.append(replace(_differing_block(inside.found, top), title=title))
    causes = _causes(found)
    if causes:
        blocks.append(Block("Causes (qrun explain CAUSE)", Grid.of(_CAUSE_COLUMNS, causes.items())))
    if found.outputs:
        blocks.append(_outputs(found))
    if found.first is None and found.names[1] == "ort":
        blocks.append(Block("", lines=[_AS_USUAL]))
    each = f", each node fed the values of {found.names[1]}" if found.isolate else ""
    title = f"{found.a} and {found.b}, {plural(len(found.model.nodes), 'node')}, {plural(len(found.tensors), 'tensor')} on both sides{each}"
    about = [title, *(arithmetic_sentence(found, claim) for claim in found.arithmetic)]
    style = GOOD if found.equal else OPEN if found.first and found.first.refused else BAD
    return Sheet(blocks, verdict(found) + chance(sources), style, about=about)


def arithmetic_sentence(found: Comparison, claim: ArithmeticClaim) -> str:
    """What the integer nodes say about the second side's requantization, in a sentence or two."""
    nodes = f"{plural(claim.nodes, 'integer node')}{f' ({claim.kind})' if claim.kind else ''}"
    rest = f" {' and '.join(claim.silent)} nodes alone do not show it." if claim.silent else ""
    rest += f" Not counted: {_node_list(claim.unlike)}, which differ by more than rounding." if claim.unlike else ""
    if claim.contradicting:
        told = " or ".join(claim.families[:3]) or "no known one"
        less = f"{told} fits {claim.nodes - len(claim.contradicting)} of {nodes}"
        return f"Arithmetic of {found.names[1]}: undecided, {less}; contradicting: {_node_list(claim.contradicting)}. {_DECIDE}{rest}"
    evidence = f"0 of {claim.elements:,} elements in {nodes} differ"
    if claim.next is not None and claim.next.differing:
        evidence += f"; next family {claim.next.differing} ({claim.next.family})"
    if not claim.named:
        many = len(claim.families)
        left = ", ".join(claim.families[:_LISTED]) + (f" and {many - _LISTED} more" if many > _LISTED else "")
        shared = f" ({claim.text})" if claim.text else ""
        return f"Arithmetic of {found.names[1]}: undecided, {left or 'no known family'} fit{shared}; {evidence}. {_DECIDE}{rest}"
    users = claim.users or "no known engine"
    return f"Arithmetic of {found.names[1]}: {claim.text} ({users}); {evidence}.{rest}"


_DECIDE = "qrun probe decides it."
_LISTED = 6


def _node_list(votes: Sequence[NodeVote]) -> str:
    """``node 12 conv3 (5 of 4096 differ)`` for up to three nodes."""
    told = [f"node {v.node.index} {v.node.label} ({v.least} of {v.counted:,} differ)" for v in votes[:3]]
    return ", ".join(told) + (f" and {len(votes) - 3} more" if votes[3:] else "")


def verdict(found: Comparison) -> str:
    """Says that the sides are equal, or where they first differ and by how much."""
    tensors = plural(len(found.tensors), "tensor")
    first, refused = found.first, len(found.refused)
    told = tolerance_text(found.tolerance, (t.pair for t in found.tensors))
    if first is None:
        exact = all(t.pair.identical for t in found.tensors)
        how = ", graph optimizations off" if found.names[1] == "ort" else ""
        return (
            f"equal: {tensors}, bit for bit{how}." if exact else f"equal within the tolerance, {told}: {tensors}{how}."
        )
    if first.refused:
        rest = [t for t in found.tensors if not t.refused]
        how = "equal bit for bit" if all(t.pair.identical for t in rest) else f"equal within {told}"
        others = f"; {'the other is' if len(rest) == 1 else f'the other {len(rest)} are'} {how}" if rest else ""
        return f"not compared in full: {found.names[1]} {refuses(found.refused)} the nodes of {refused} of {tensors}, first at node {first.node.index}{others}."
    where = f"first at node {first.node.index}{_by(first.pair)}{_why(found, first)}; {'; '.join(_counts(found))}."
    return f"differ: {_at_outputs(found)}{where}"


def _at_outputs(found: Comparison) -> str:
    """The effect on the outputs, for an emulated CPU; "" for other sides."""
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
    """Counts the tensors that differ, those whose difference is not inherited, and those that the second side
    refuses."""
    refused = len(found.refused)
    count, total = len(found.differing) - refused, plural(len(found.tensors) - refused, "tensor")
    told = _beyond(found)
    rest = f"{count} of {total} {f'beyond {told}' if told else 'differ'}"
    own = sum(t.guilt is not None for t in found.tensors)
    rest += "" if found.isolate or found.piecewise else f", {own} not inherited"
    bits = sum(not t.pair.identical for t in found.tensors) - refused
    counts = [rest + (f" ({bits} with different bits)" if bits > count else "")]
    return [*counts, f"{found.names[1]} {refuses(found.refused)} {refused} more"] if refused else counts


def _beyond(found: Comparison) -> str:
    """The tolerance that the differing tensors exceed."""
    return tolerance_text(found.tolerance, (t.pair for t in found.differing))


def _by(pair: TensorPair) -> str:
    form = pair.difference.form
    if form is not None:
        return f" ({form[0]} and {form[1]})"
    return "" if not pair.beyond else f" with {largest(pair)}" if non_finite(pair) else f" by {largest(pair)}"


def _differing_block(found: Comparison, top: int | None) -> Block:
    rows, op = found.differing[:top], op_names(found.model.nodes)
    left, told = len(found.differing) - len(rows), _beyond(found)
    isolate = "" if found.isolate or found.piecewise else "--isolate, "
    title = f"Tensors that differ{f', beyond {told}' if told else ''}"
    if all(t.refused for t in found.differing):
        title = f"Tensors that {found.names[1]} {refuses(found.refused)}"
    more = f"{plural(left, 'more tensor')}   --top all, {isolate}--json" if left else ""
    if any(_own(t) for t in rows):
        title += " (in brackets: elements whose difference is not inherited)"
    bits = any(t.pair.other_bits > t.pair.difference.differing for t in rows)
    columns = [
        Column("#", right=True, cell=lambda t: str(t.node.index)),
        Column("tensor", style=NAME, shrink=2, cell=lambda t: t.name),
        Column("op", optional=4, cell=lambda t: op(t.node)),
        Column("type", optional=5, cell=lambda t: t.pair.type),
        Column("beyond" if told else "differ", right=True, cell=_differ),
        Column("different bits", right=True, optional=4, cell=_other_bits) if bits else None,
        Column("max step", right=True, optional=1, cell=_steps),
        Column("max abs", right=True, optional=3, cell=lambda t: apart(t.pair)),
        Column("SQNR", right=True, optional=2, cell=lambda t: decibel(t.pair.sqnr)),
        Column("cause", cell=_cause),
    ]
    return Block(title, Grid.of(columns, rows), more=more, folds=True)


def _differ(t: ComparedTensor) -> str:
    """The share of elements that differ; for a tensor whose elements cannot be compared, the reason."""
    d = t.pair.difference
    if d.form is not None:
        return "missing" if d.form[1] == "nothing" else "form"
    return share_text(d.differing, d.total)


def _other_bits(t: ComparedTensor) -> str:
    return "-" if t.pair.difference.form else share_text(t.pair.other_bits, t.pair.difference.total)


def _steps(t: ComparedTensor) -> str:
    d = t.pair.difference
    return f"{d.largest:.0f}" if d.integral and not d.form else "-"


def _cause(t: ComparedTensor) -> str:
    cause = t.guilt.reason.cause if t.guilt else INHERITED if t.checked else "-"
    return f"{cause} ({own})" if (own := _own(t)) else cause


def share_text(count: int, total: int) -> str:
    """A percentage; a share that is too small to show but not zero is ``<0.1 %``."""
    share = percent(count / total if total else 0)
    return f"<{percent(LEAST)}" if count and share == percent(0) else share


def _own(t: ComparedTensor) -> int:
    """The number of elements that differ by themselves; 0 if it equals the number that differ."""
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
    Column("first", style=NAME, shrink=1, cell=lambda item: f"#{item[1][0].node.index} {item[1][0].node.label}"),
]


def _outputs(found: Comparison) -> Block:
    def size(told: str, pair: TensorPair) -> str:
        return "0" if pair.identical else told

    columns = [
        Column("name", style=NAME, shrink=1, cell=lambda o: o[0]),
        Column("max abs", right=True, cell=lambda o: size(apart(o[1]), o[1])),
        Column("max rel", right=True, optional=2, cell=lambda o: size(non_finite(o[1]) or number(o[1].max_rel), o[1])),
        Column("SQNR", right=True, optional=1, cell=lambda o: decibel(o[1].sqnr)),
        Column("argmax", cell=lambda o: _argmax(o[1])),
        Column("verdict", cell=lambda o: _verdict_text(found, o[1])),
    ]
    return Block("Outputs", Grid.of(columns, found.outputs))


def _verdict_text(found: Comparison, p: TensorPair) -> str:
    if p.identical or p.difference.form:
        return "equal" if p.identical else "missing, or of a different type or shape"
    told = limit(found.tolerance, p)
    return f"{'within' if p.equal else 'beyond'} {told}" if told else "differs"


def _argmax(p: TensorPair) -> str:
    """The position of the largest element; for several rows, the number of rows in which it is the same."""
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
        "arithmetic": [{"sentence": arithmetic_sentence(found, claim), **encode(claim)} for claim in found.arithmetic],
        "tensors": found.tensors,
        "outputs": [{"name": name, **encode(pair)} for name, pair in found.outputs],
    }
