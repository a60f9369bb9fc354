"""The JSON body of an accuracy report, and the sentences that all its forms share: verdict, advice, notes."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qrun.comparing.accuracy import Accuracy, OutputAccuracy
from qrun.comparing.differences import decibels
from qrun.comparing.matching.match import Left
from qrun.comparing.ranking.advice import HALF, TOGETHER, Suggestion
from qrun.documents.record import Item, encode
from qrun.errors import percent, some
from qrun.io.inputs import Feeds
from qrun.ir import Model
from qrun.report.compare import limits
from qrun.report.comparefiles import in_the_files
from qrun.report.header import input_fields, model_fields
from qrun.report.sheet import NONE, Sources
from qrun.report.text import decibel, duration, plural


def accuracy_fields(found: Accuracy, sources: Sources = NONE) -> dict[str, Any]:
    """The body of the JSON report; SQNR in dB, energies relative to that of the true values. sources: of the inputs."""
    return {
        "reference": model_fields(found.reference),
        "quantized": model_fields(found.quantized),
        "inputs": input_fields(Feeds(dict(found.feeds), dict(sources))),
        "runs": found.runs,
        "stored": in_the_files(found.reference, found.quantized),
        "tolerance": {name: getattr(found.tolerance, name) for name in ("rtol", "atol", "lsb", "eps")},
        "min_sqnr_db": found.min_sqnr,
        "equal": found.equal,
        "passed": found.passed if found.judged else None,
        "outputs": [
            {**encode(output), "passed": found.reaches(output) if found.judged else None} for output in found.outputs
        ],
        "costs": found.costs,
        "quantized_nodes": found.quantizing,
        "measured_nodes": found.measured,
        "budget_s": None if found.seconds == math.inf else found.seconds,
        "out_of_time": found.budget_exceeded,
        "operators": found.suggestion.operators if found.suggestion else (),
        "departure": _departure(found),
        "corrections": found.corrections,
        "keep_in_float": _suggestion_json(found),
        "tensors": found.tensors,
        "unmatched": found.left,
        "notes": [*filter(None, [hurry(found), departure_text(found)]), *corrections(found), *notes(found)],
    }


def _departure(found: Accuracy) -> dict[str, Any] | None:
    gone = found.departure
    if gone is None:
        return None
    node = gone.node and {key: getattr(gone.node, name) for key, name in _NODE.items()}
    return {"real_sqnr_db": gone.sqnr, "measured_sqnr_db": gone.measured, "node": node, "why": departure_text(found)}


_NODE = {"index": "index", "name": "name", "domain": "full_domain", "op": "op_type"}


def _suggestion_json(found: Accuracy) -> dict[str, Any] | None:
    kept = found.suggestion
    if kept is None or found.wrong:
        return None
    return {
        "count": kept.count,
        "nodes": [node.label for node in kept.nodes],
        "readers": [node.label for node in kept.around],
        "exclude": json.loads(excluded_list(found)) if kept.count else [],
        "exclude_sqnr_db": kept.listed if kept.around else dict(kept.tried).get(kept.count) if kept.count else None,
        "tried": [{"nodes": n, "output_sqnr_db": value} for n, value in kept.tried],
        "runs": kept.runs,
        "reached": kept.reached,
    }


EXCLUDE = "nodes_to_exclude"
"""The argument of onnxruntime's quantizers that lists the nodes to keep in float."""


def excluded_list(found: Accuracy) -> str:
    """The suggested nodes as a Python list."""
    kept = found.suggestion
    nodes = {node.index: node for node in ((*kept.nodes, *kept.around) if kept else ())}
    return json.dumps([nodes[index].label for index in sorted(nodes)])


def verdict(found: Accuracy) -> str:
    """Says how far off the worst output is, in how many rows the classes agree, and whether that is good enough."""
    flips = classes(found) + lost(found)
    if not found.judged:
        low = worst_output(found.outputs)
        where = f" ({low.name}, the worst of {len(found.outputs)} outputs)" if found.outputs[1:] else ""
        against = f"{decibel(low.noise.sqnr)} SQNR against {found.reference.label}"
        return f"{found.quantized.label}: {against}{where}{flips}."
    off = [o for o in found.outputs if not found.reaches(o)]
    counted = any(o.counted for o in off or found.outputs)
    within = limits(found.tolerance if counted else replace(found.tolerance, lsb=0)) or "no tolerance"
    if found.min_sqnr is None and found.equal:
        return f"equal: all outputs within {within}{flips}."
    codes = next((o for o in off if o.codes), None)
    if codes is not None:
        return f"differ: {codes.name} holds codes in one model only, and no node gives their scale{flips}."
    low = worst_output(off or found.outputs)
    others = f" and {plural(len(off) - 1, 'more output')}" if len(off) > 1 else ""
    part = min(low.parts, key=lambda one: one.noise.sqnr, default=None)
    worse = part if part is not None and part.noise.sqnr < low.noise.sqnr else None
    reached = f"SQNR {decibel((worse or low).noise.sqnr)}"
    name = worse.name if worse is not None and found.min_sqnr is not None else low.name
    if found.min_sqnr is None:
        reached = f"SQNR {decibel(low.noise.sqnr)}"
        return f"differ: {low.name}{others} over {within}; {reached}{flips}."
    if off:
        return f"too noisy: {name}{others} below {found.min_sqnr:g} dB; {reached}{flips}."
    return f"accurate: all outputs at {found.min_sqnr:g} dB or more; {name} has {reached}{flips}."


def worst_output(outputs: Sequence[OutputAccuracy]) -> OutputAccuracy:
    return min(outputs, key=lambda o: 0.0 if math.isnan(o.noise.sqnr) else o.noise.sqnr)


def classes(found: Accuracy) -> str:
    """In how many rows the models choose the same class: ``, same class in 498 of 500``; "" without classes."""
    told = [o for o in found.outputs if o.decided]
    return "".join(f", same class{f' of {o.name}' if told[1:] else ''} in {o.agreed} of {o.decided}" for o in told)


def lost(found: Accuracy) -> str:
    """The parts of outputs that quantization lost, with their ranges in both models."""
    gone = [part for output in found.outputs for part in output.parts if part.lost]
    first, second = found.reference.label, found.quantized.label
    return "".join(f"; {p.name} is lost: {_range(p.wanted)} in {first}, {_range(p.got)} in {second}" for p in gone)


def _range(ends: tuple[float, float]) -> str:
    low, high = (f"{end:.4g}" for end in ends)
    return f"all {low}" if low == high else f"{low} to {high}"


def _at(found: Accuracy) -> str:
    return "the outputs" if found.averaged < 2 else f"the outputs (mean of {found.averaged})"


def departure_text(found: Accuracy) -> str:
    """Says why nodes are not ranked and where to look; "" if they are ranked."""
    gone = found.departure
    if gone is None:
        return ""
    text = f"Nodes are not ranked: measured together, the quantized nodes give {decibel(gone.measured)} at {_at(found)}, but the model itself gives {decibel(gone.sqnr)}."
    if gone.node is None:
        return text
    does = f"node {gone.node.index} {gone.node.label}"
    like = f"the first model's {some([n.label for n in gone.floats])}" if gone.floats else "the first model"
    verb = "compute" if len(gone.floats) > 1 else "computes"
    return f"{text} It starts at {does}, which does not compute what {like} {verb}: {gone.hint}."


def corrections(found: Accuracy) -> list[str]:
    """The mistakes to correct before anything else, one per line."""
    return [correction(Item(encode(one), "qrun compare")) for one in found.corrections]


def correction(one: Item) -> str:
    """A mistake to correct at a node, with the SQNR at the outputs before and after if that was measured."""
    node, text = f"node {one['index'].size} {one['name'].text}", one["text"].text
    before, after = one.find("before_db"), one.find("after_db")
    if before is None or after is None:
        return f"{node}: {text}"
    where = f"first {node}" if text.startswith(TOGETHER) else node
    return f"{text}: {before.real:.1f} -> {decibel(after.real)} ({where})"


def tips(found: Accuracy) -> list[str]:
    """The lines on which nodes to keep in float: the measured SQNR, the setting that excludes them, and what else to
    try; or why no list is suggested. [] without a suggestion, or if mistakes must be corrected first."""
    advice = found.suggestion
    if advice is None or found.wrong:
        return []
    whole, steps = decibel(dict(advice.tried)[0]), f"({', '.join(f'{n}: {decibel(v)}' for n, v in advice.tried if n)})"
    if decibel(found.sqnr) != whole:
        whole += f" (the model itself: {decibel(found.sqnr)})"
    if not advice.count:
        return [_no_list(found, advice, whole, steps)]
    raised = decibel(dict(advice.tried)[advice.count])
    goal = f", which reaches --min-sqnr {found.min_sqnr:g}" if found.min_sqnr is not None and not found.passed else ""
    lines = [
        f"Keeping {plural(advice.count, 'node')} in float raises {_at(found)} from {whole} to {raised}{goal}.",
        f"{EXCLUDE}={excluded_list(found)}",
    ]
    if advice.reached and goal and advice.count * 2 > len(found.costs):
        lines.append("That is more than half of them: 16-bit activations or other calibration data may cost less.")
    if advice.around and advice.listed is not None:
        one = len(advice.around) == 1
        who = f"{some([node.label for node in advice.around])} {'is' if one else 'are'} listed too"
        why = f"{'it consumes' if one else 'they consume'} these results and would requantize them"
        also = "" if decibel(advice.listed) == raised else f" ({decibel(advice.listed)} with the whole list)"
        lines.append(f"{who}: {why}{also}.")
    if _some_stay_in_float(found):
        lines.append("The list omits nodes that are already in float: add it to the nodes that you already exclude.")
    return lines


def _some_stay_in_float(found: Accuracy) -> bool:
    """Does the second model leave nodes in float, of types that it quantizes elsewhere?"""
    floats = [node for cost in found.costs for node in cost.floats]
    types, ranked = {node.op_type for node in floats}, {node.index for node in floats}
    return any(node.op_type in types and node.index not in ranked for node in found.reference.nodes)


def _no_list(found: Accuracy, advice: Suggestion, whole: str, steps: str) -> str:
    """Says why no list of nodes is suggested: none was found in time, or those that were tried do not help."""
    tried = f"{whole} with all nodes quantized, and with the first ones in float {steps}"
    if advice.reached is False:
        missed = "in time" if advice.budget_exceeded else "with any list"
        return f"--min-sqnr {found.min_sqnr:g} was not reached {missed}: {tried}."
    if found.budget_exceeded:
        return f"No list was found in time: {tried}."
    return f"No short list helps: {tried}. qrun suggests a list only if it removes {percent(HALF, 0)} of the noise ({decibels(1 - HALF):.0f} dB)."


def hurry(found: Accuracy) -> str:
    """Says what was not measured for lack of time, and how to get it; "" if the time sufficed."""
    if not found.budget_exceeded:
        return ""
    parts = []
    if found.measured < found.quantizing:
        left = found.quantizing - found.measured
        parts.append(f"{left} of {found.quantizing} nodes not measured alone (~: estimated from sets of nodes)")
    advice = found.suggestion
    if advice is not None and advice.runs < found.runs:
        parts.append(f"lists to keep in float measured with {advice.runs} of {found.runs} sets of inputs")
    when = f"after {duration(found.seconds * 1e9)}" if found.seconds else "at once"
    return f"{', '.join([f'Stopped {when}', *parts])}; raise --budget (10m, or none)."


CANCELLED = 1.0
"""A node whose own SQNR is this many dB below that of all together is noted: others cancel a fifth of its noise."""


def notes(found: Accuracy) -> list[str]:
    """What the reader should know about these numbers."""
    made = []
    if found.exchanged:
        made.append(
            f"{found.reference.label} is quantized and {found.quantized.label} is not; name the float model first."
        )
    whole = decibel(found.sqnr)
    worse = [c for c in found.costs if c.measured and c.sqnr < found.sqnr - CANCELLED]
    if worse:
        one = f"{worse[0].node.label} alone adds more noise to the outputs ({decibel(worse[0].sqnr)})"
        others = f", and so do {len(worse) - 1} more" if worse[1:] else ""
        why = "the errors of different nodes partly cancel, so the shares rank the nodes but do not add up"
        made.append(f"{one} than all nodes together ({whole}){others}: {why}.")
    if found.unranked:
        names = some([f"{node.label} ({node.op_type})" for node in found.unranked])
        count = plural(len(found.unranked), "node")
        verb = "reads" if len(found.unranked) == 1 else "read"
        made.append(f"the ranking does not cover {count} that {verb} codes of weights directly: {names}.")
    if found.partly:
        names, count = some([node.label for node in found.partly]), plural(len(found.partly), "quantized node")
        made.append(f"for {count}, only the rounding of the result is measured: {names}.")
    for side, model in (("quantized", found.quantized), ("reference", found.reference)):
        strays = [one for one in found.left if one.side == side and not one.inside]
        if strays:
            names, count = some([_stray(model, one) for one in strays]), plural(len(strays), "tensor")
            where = f"node {strays[0].index}: {strays[0].why}"
            made.append(f"no counterpart for {count} of the {side} model: {names} ({where}).")
    if any(not node.name for cost in found.costs for node in cost.floats):
        made.append("some nodes of the first model have no names; quantizers exclude nodes by name.")
    return made


def _stray(model: Model, one: Left) -> str:
    """The tensor's name; for a step inside a quantized operator, the operator."""
    node = next(n for n in model.nodes if n.index == one.index)
    return one.tensor if one.tensor in node.outputs else f"a step of {node.label}"
