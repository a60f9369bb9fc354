"""QR402 saturated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.checking.rules._observed import param_input, seen
from qrun.checking.rules._parameters import quantizers
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope
from qrun.ir import Model, Node
from qrun.running.session import RunResult

SHARE = 0.05


@rule(
    "QR402",
    "saturated",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="calibrate with data like this input, or check its preprocessing (range, mean, layout)",
)
def saturated(model: Model, result: RunResult) -> Iterator[Finding]:
    """More than 5 % of a quantized tensor, and more than one element, lies outside the range of its codes.

    Infinity is not counted: QR411 reports it. One element alone says nothing: the largest value of a calibration lies at
    the edge of its range by construction.

    Not reported where it may be a Relu or Relu6 folded into quantization: values below a zero point at the smallest
    code, and a range that ends at 6.

    Why is this bad?
        Everything outside the range becomes the smallest or largest code, so its value is lost. Usual causes are
        calibration on other data, an input in 0..255 where 0..1 was meant, and a scale that is too small.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[4] y)
        <float[4] x = {1.0, 2.0, 3000.0, 4000.0}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (uint8[4] y)
        <float[4] x = {1.0, 2.0, 3000.0, 4000.0}, float scale = {20.0}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    infinite = {s.node.index: s.count for s in seen(model, result, "infinite-quantized")}
    for s in seen(model, result, "saturated"):
        s = replace(s, count=s.count - infinite.get(s.node.index, 0))
        if s.count < 2 or s.count <= SHARE * s.total or _folded(model, s.node):
            continue
        _, tensor = param_input(s.node, s.param)
        percent = f"{100 * s.count / s.total:.1f}%"
        yield Finding(
            f"{percent} of {tensor.split(' (')[0]} saturates ({s.share})",
            **at(s.node),
            tensor=tensor,
            expected=f"at most {SHARE:.0%} outside the range{_range(model, s.node)}",
            got=f"{percent}, {s.share}",
            why=f"{s.node.op}-{s.node.version} saturates: values outside become the smallest or largest code.",
        )


def _ends(model: Model, node: Node) -> tuple[float, float] | None:
    """The real values of the smallest and largest code of the output, if its parameters are stored scalars."""
    scope = Scope(model)
    for q in quantizers(node):
        scale = scope.value(q.scale.tensor) if q.is_output and q.scale else None
        zero = scope.value(q.zero_point.tensor) if q.zero_point else None
        dtype: np.dtype[Any] = zero.dtype if zero is not None else np.dtype(np.uint8)
        if scale is None or scale.size != 1 or dtype.kind not in "iu" or (zero is not None and zero.size != 1):
            continue
        offset = int(zero.reshape(())) if zero is not None else 0
        step, limits = float(scale.reshape(())), np.iinfo(dtype)
        return (limits.min - offset) * step, (limits.max - offset) * step
    return None


def _folded(model: Model, node: Node) -> bool:
    """May a Relu or Relu6 be folded into this node's range?

    QuantizeLinear counts both ends together, so one whose zero point is the smallest code and whose x another node
    makes is not judged at all; other operators do not count values below such a zero point.
    """
    ends = _ends(model, node)
    if ends is None or ends[0] != 0:
        return False
    made = node.op_type == "QuantizeLinear" and node.inputs[0] in model.producers
    return made or abs(ends[1] - 6) < 0.03


def _range(model: Model, node: Node) -> str:
    ends = _ends(model, node)
    if ends is None or not np.all(np.isfinite(ends)) or ends[0] == ends[1]:
        return ""
    return f" {min(ends):.4g} to {max(ends):.4g}"
