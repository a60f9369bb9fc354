"""Finds new nodes that onnxruntime cannot run, by the rules of ``qrun check``."""

from __future__ import annotations

from collections.abc import Mapping

from qrun.checking.rules.runtimes import refused_by_ort, without_kernel
from qrun.converting.conversion import ConvertedModel
from qrun.ir.types import type_name


def refused_groups(made: ConvertedModel) -> Mapping[str, str]:
    """The groups whose new nodes onnxruntime does not run on a CPU, by their output, and why."""
    reasons: dict[int, str] = {}
    for (op, _, bound), places in without_kernel(made.model).items():
        types = " and ".join(dict.fromkeys(type_name(dtype) for _, dtype in bound if dtype.itemsize == 1))
        reasons |= {node.index: f"onnxruntime has no {op.rpartition('::')[2]} of {types}" for _, node in places}
    for finding in refused_by_ort.function(made.model):
        if finding.index is not None:
            reasons.setdefault(finding.index, finding.message)
    names = {made.model.nodes[index].outputs[0]: reason for index, reason in reasons.items() if index >= 0}
    return {
        group.output: names[name]
        for group in made.groups
        for node in group.new
        for name in node.outputs
        if name in names
    }
