"""The first difference of a comparison: where it is, by how much, and why."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import isfinite

from qrun.comparing.causes import Reason
from qrun.comparing.comparison import ComparedTensor, Comparison, GraphDifference
from qrun.comparing.differences import Tolerance
from qrun.comparing.tensors import TensorPair
from qrun.ir.types import shape_text
from qrun.report.text import number, plural


def limits(t: Tolerance) -> str:
    """The tolerance in words; "" if there is none."""
    steps = [f"lsb {t.lsb}"] if t.lsb else []
    floats = [f"rtol {t.rtol:g}, atol {t.atol:g}"] if t.rtol or t.atol else []
    return ", ".join([*steps, *floats, *([f"{t.eps} eps"] if t.eps else [])])


def limit(t: Tolerance, pair: TensorPair) -> str:
    """What of the tolerance holds for a tensor; "" if nothing does."""
    if pair.difference.integral:
        return limits(Tolerance(t.lsb, 0, 0))
    return "" if pair.type.startswith(("bool", "string")) else applied(t, [pair])


def applied(t: Tolerance, pairs: Iterable[TensorPair]) -> str:
    """The tolerance in words, without the steps and the noise that no one of these tensors is allowed."""
    found = list(pairs)
    steps = any(pair.difference.integral or pair.stepped for pair in found)
    return limits(replace(t, lsb=t.lsb if steps else 0, eps=t.eps if any(pair.noise for pair in found) else 0))


def odd(pair: TensorPair) -> str:
    """``NaN`` or ``inf`` if the farthest elements are that on one side only (or are of other signs), else ""."""
    return "" if isfinite(pair.beyond) else "NaN" if "nan" in f"{pair.a} {pair.b}" else "inf"


def apart(pair: TensorPair) -> str:
    """The largest difference of real numbers; where that is none, as one side is NaN or infinite, what it is."""
    return odd(pair) or number(pair.max_abs)


def largest(pair: TensorPair) -> str:
    """By how much the farthest of the elements beyond the tolerance differs."""
    if special := odd(pair):
        return f"{special} on one side"
    return plural(int(pair.beyond), "step") if pair.difference.integral else number(pair.beyond)


def refusal(found: Comparison) -> list[tuple[str, str]]:
    """What the second side says to the whole model, and what to do."""
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
    """What the second side does to tensors that it does not make: the verb."""
    crashed = [t.crashed for t in tensors]
    return "crashes on" if all(crashed) else "refuses or crashes on" if any(crashed) else "refuses"


def first_facts(found: Comparison, t: ComparedTensor) -> list[tuple[str, str]]:
    """Labels and values: the node, its output, how it differs, what it read, and why."""
    pair, guilt = t.pair, t.guilt
    group = f" and {plural(len(t.unit.group) - 1, 'other node')}" if len(t.unit.group) > 1 else ""
    facts = [("node", f"{t.node.label}  {t.node.op}{group}"), ("output", t.name)]
    facts += _measures(found, pair, guilt.exact if guilt and guilt.pair == pair else None)
    facts.append(("inputs", _inputs(found, t)))
    if guilt is not None and guilt.pair != pair:
        own = [fact for fact in _measures(found, guilt.pair, guilt.exact)[1:] if fact not in facts]
        told = "it differs too" if own else "it differs by the same numbers"
        facts += [("by itself", f"fed the values of {found.names[1]}, {told}"), *own]
    if guilt is not None and guilt.inside is not None:
        return facts + _inside(guilt.inside)
    return facts + (_reason(found, guilt.reason, guilt.pair) if guilt else _inherited(found, t))


def _inside(inside: GraphDifference) -> list[tuple[str, str]]:
    """The first difference in a graph of the node: its facts stand for the node's cause."""
    t, found = inside.tensor, inside.found
    counted = "" if inside.turn is None else " (the first is 0)"
    fed = f", fed what {found.names[1]} made of the iteration before" if inside.turn else ""
    adds = "; each iteration is within the tolerance, the differences add up" if inside.slight else ""
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
        which = "largest finite difference" if odd(pair) else "largest"
        facts.append(("other bits", f"{plural(pair.other_bits, 'element')}, {which} {most}"))
    before = f"   before rounding {exact:.9g}" if exact is not None else ""
    a, b = (v if isinstance(v, str) else f"{v:.9g}" if isinstance(v, float) else str(v) for v in (pair.a, pair.b))
    where = f"{shape_text(d.worst) if d.worst else ''}  {found.names[0]} {a}   {found.names[1]} {b}{before}".lstrip()
    return [*facts, ("where", where)]


def _inputs(found: Comparison, t: ComparedTensor) -> str:
    proved = t.guilt is not None and t.guilt.reason.cause == "kept-in-float32"
    read = "but its node read" if proved else "its node may have read"
    maybe = f"; {read} {', '.join(t.unseen[:3])} in float32, not rounded" if t.unseen else ""
    if found.isolate or found.piecewise:
        return f"from {found.names[0 if found.piecewise else 1]}, on both sides{maybe}"
    if t.unseen:
        return f"equal as {found.names[1]} gives them out{maybe}"
    states = {True: "equal bit for bit", False: "not equal", None: f"not known of {found.names[1]}"}
    return states[t.inputs]


def _inherited(found: Comparison, t: ComparedTensor) -> list[tuple[str, str]]:
    if not t.checked:
        return [("cause", "not known: not all tensors that it reads are there on both sides")]
    told = "inherited: fed the other side's values, it gives the other side's result"
    origin = found.origin
    if origin is None:
        return [("cause", told)]
    tight = "--lsb 0" if origin.pair.difference.integral and found.tolerance.lsb else "--rtol 0 --atol 0"
    most = number(origin.pair.max_abs) if origin.pair.max_abs else "within the tolerance"
    told += f". Other bits start at node {origin.node.index} {origin.node.label} ({origin.node.op}), by {most} at most"
    if origin.guilt is None:
        return [("cause", told), ("next", f"{tight} shows why they start there")]
    why = f"{origin.guilt.reason.cause}: {origin.guilt.reason.text}"
    more = f"--isolate {tight} judges each node by itself and shows more of this one"
    return [("cause", told), ("there", why), ("next", more)]


def _reason(found: Comparison, reason: Reason, pair: TensorPair) -> list[tuple[str, str]]:
    facts = [("cause", f"{reason.cause}: {reason.text}")]
    if reason.residual is not None:
        left = plural(int(reason.residual), "step") if pair.difference.integral else number(reason.residual)
        within = f"recomputed within {limit(found.tolerance, pair)}, not bit for bit: at most {left} is left"
        facts.append(("evidence", f"{plural(reason.explained, 'differing element')}, and all others, {within}"))
    elif reason.explained:
        beyond_all = pair.other_bits == pair.difference.differing
        which = plural(pair.other_bits, "differing element" if beyond_all else "element")
        count = f"{reason.explained} of {which}{'' if beyond_all else ' with other bits'}"
        others = ", and all others" if reason.explained < pair.difference.total else ""
        facts.append(("evidence", f"{count} reproduced bit for bit{others}"))
    if reason.also:
        rest = f" and {len(reason.also) - 3} more   --json" if reason.also[3:] else ""
        facts.append(("also fits", "; or ".join(reason.also[:3]) + rest))
    if reason.farthest is not None and reason.nearest is not None:
        exact = f"{plural(reason.ties, 'exact tie')}, the others " if reason.ties else ""
        ends = list(dict.fromkeys(f"{v:.2g}" for v in (reason.nearest, reason.farthest)))
        whole = reason.ties == pair.other_bits
        away = f"{exact}{' to '.join(ends)} LSB from the middle between two steps"
        facts.append(("ties", "all are exact ties" if whole else away))
    return facts
