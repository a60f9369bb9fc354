"""QR405 bad-scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._observed import param_input, seen
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope
from qrun.ir import Model
from qrun.running.session import RunResult


@rule(
    "QR405",
    "bad-scale",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="keep the computed scale away from 0, for example with Max(scale, 1e-8)",
)
def bad_scale(model: Model, result: RunResult) -> Iterator[Finding]:
    """A scale that the graph computes, or that was fed, is zero, negative, infinite or NaN.

    Why is this bad?
        Dividing by it gives infinities and NaN, whose codes no specification defines. QR306 reports stored scales.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (float[2] y)
        <int8[2] x = {1, 2}, float minus = {-0.5}>
        {
            scale = Relu(minus)
            y = DequantizeLinear(x, scale)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (float[2] y)
        <int8[2] x = {1, 2}, float half = {0.5}>
        {
            scale = Relu(half)
            y = DequantizeLinear(x, scale)
        }
    """
    scope = Scope(model)
    for s in seen(model, result, "bad-scale"):
        name, tensor = param_input(s.node, s.param)
        stored = scope.value(name)
        if stored is not None and not np.all(np.isfinite(real := stored.astype(np.float64)) & (real > 0)):
            continue
        value = s.detail or "not positive and finite"
        place = f"[{','.join(map(str, s.first))}]" if s.first else ""
        yield Finding(
            f"{s.param} {name}{place} is {value} at run time",
            **at(s.node),
            tensor=tensor,
            expected="a positive, finite number",
            got=f"{value}{'' if s.total == 1 else f'; {s.count} of {s.total} scales'}",
            why=f"{s.node.op}-{s.node.version}: a scale is the distance between two codes.",
        )
