"""The JSON body of a report of accuracy."""

from __future__ import annotations

import json
from typing import Any

from qrun.comparing.accuracy import Accuracy
from qrun.comparing.accuracy_rows import TensorAccuracy
from qrun.comparing.ranking import Cost
from qrun.documents.record import encode
from qrun.ir import Node
from qrun.report.accuracynotes import corrections, departed, excluded, notes
from qrun.report.header import input_fields, model_fields
from qrun.report.sheet import NONE, Sources


def accuracy_fields(found: Accuracy, sources: Sources = NONE) -> dict[str, Any]:
    """The body of the JSON report; SQNR in dB, energies relative to that of the true values. sources: of the inputs."""
    return {
        "reference": model_fields(found.reference),
        "quantized": model_fields(found.quantized),
        "inputs": input_fields(found.feeds, sources),
        "runs": found.runs,
        "tolerance": {name: getattr(found.tolerance, name) for name in ("rtol", "atol", "lsb", "eps")},
        "min_sqnr_db": found.min_sqnr,
        "equal": found.equal,
        "passed": found.passed,
        "outputs": [
            {"name": o.name, "other": o.other, **encode(o.noise), "argmax_agreed": o.agreed, "argmax_total": o.decided,
             "codes": o.codes, "equal": o.equal, "passed": found.reaches(o)}
            for o in found.outputs
        ],
        "costs": [_cost(cost) for cost in found.costs],
        "quantized_nodes": found.quantizing,
        "measured_nodes": found.measured,
        "departure": _departure(found),
        "keep_in_float": _suggested(found),
        "tensors": [_tensor(t) for t in found.tensors],
        "unmatched": [
            {"side": one.side, "tensor": one.tensor, "node": one.index, "inside": one.inside or None, "why": one.why}
            for one in found.left
        ],
        "notes": [*filter(None, [departed(found)]), *corrections(found), *notes(found)],
    }  # fmt: skip


def _node(node: Node) -> dict[str, Any]:
    return {"index": node.index, "name": node.name, "domain": node.domain or "ai.onnx", "op": node.op_type}


def _cost(cost: Cost) -> dict[str, Any]:
    local = {name: getattr(cost.local, name) for name in ("weights", "input", "rounding", "clipped", "before")}
    return {
        **_node(cost.node), "tensor": cost.target, "float_nodes": [node.label for node in cost.floats],
        "measured": cost.measured, "output_sqnr_db": cost.sqnr, "share": cost.share, "reason": cost.reason,
        "why": cost.why, "local": {**encode(cost.local.noise), **local}, "values": cost.spread, "fit": cost.fit,
        "range": cost.spread.range,
    }  # fmt: skip


def _departure(found: Accuracy) -> dict[str, Any] | None:
    gone = found.departure
    if gone is None:
        return None
    return {"real_sqnr_db": gone.real, "measured_sqnr_db": gone.measured,
            "node": None if gone.node is None else _node(gone.node), "why": departed(found)}  # fmt: skip


def _suggested(found: Accuracy) -> dict[str, Any] | None:
    kept = found.suggestion
    if kept is None or found.misfits:
        return None
    return {
        "count": kept.count,
        "nodes": [node.label for node in kept.nodes],
        "readers": [node.label for node in kept.around],
        "exclude": json.loads(excluded(found)) if kept.count else [],
        "tried": [{"nodes": n, "output_sqnr_db": value} for n, value in kept.tried],
        "runs": kept.runs,
    }


def _tensor(row: TensorAccuracy) -> dict[str, Any]:
    return {
        "tensor": row.tensor, "node": None if row.node is None else row.node.index, "reference": row.reference,
        "matched": row.how, "codes": row.codes, "cumulated": row.cumulated,
        "local": row.local and row.local.noise,
    }  # fmt: skip
