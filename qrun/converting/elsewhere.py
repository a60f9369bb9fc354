"""Finds new nodes that onnxruntime cannot run: by the rules of ``qrun check``, and by values that it refuses."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.checking.rules.runtimes import refused_by_ort, without_kernel
from qrun.converting.conversion import ConvertedModel
from qrun.ir import Model, Node
from qrun.ir.types import type_name
from qrun.ops._quantized import operands, quantizers

_POOLS = ("QLinearAveragePool", "QLinearGlobalAveragePool")
_LEAST, _MOST = 2.0**-16, 2.0**8
"""The quotients of scales that onnxruntime's pools take, for windows of up to 2^16 numbers."""


def refused_groups(made: ConvertedModel) -> Mapping[str, str]:
    """The groups whose new nodes onnxruntime does not run on a CPU, by their output, and why."""
    reasons: dict[int, str] = {}
    for (op, _, bound), places in without_kernel(made.model).items():
        types = " and ".join(dict.fromkeys(type_name(dtype) for _, dtype in bound if dtype.itemsize == 1))
        reasons |= {node.index: f"onnxruntime has no {op.rpartition('::')[2]} of {types}" for _, node in places}
    for finding in refused_by_ort.function(made.model):
        if finding.index is not None:
            reasons.setdefault(finding.index, finding.message)
    for group in made.groups:
        reason = _refused_value(group.new[0], made.model)
        if reason:
            reasons.setdefault(group.new[0].index, reason)
    names = {made.model.nodes[index].outputs[0]: reason for index, reason in reasons.items() if index >= 0}
    return {
        group.output: names[name]
        for group in made.groups
        for node in group.new
        for name in node.outputs
        if name in names
    }


def _refused_value(node: Node, model: Model) -> str:
    """Why onnxruntime does not compute a new node with its constants; "" if it does."""
    if node.op_type in _POOLS:
        x, y = (model.constant(q.scale.tensor) for q in quantizers(node) if q.scale)
        ratio = float(x.item()) / float(y.item()) if x is not None and y is not None else 1.0
        if not _LEAST <= ratio < _MOST:
            return f"onnxruntime has no {node.op_type} of scales whose quotient is {ratio:.3g}"
    if node.op_type == "QGemm":
        weights = model.constant(operands(node)[1][0])
        if weights is not None and not weights.size:
            return "onnxruntime writes no result for a QGemm without products"
    return ""
