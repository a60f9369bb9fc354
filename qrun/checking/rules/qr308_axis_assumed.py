"""QR308 axis-assumed."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._parameters import MS, TABLE
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import known, nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model
from qrun.ir.types import shape_text


@rule(
    "QR308",
    "axis-assumed",
    level="warning",
    since="0.1",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DequantizeLinear",
    fix="write the axis attribute",
    applies=("com.microsoft::QuantizeLinear", "com.microsoft::DequantizeLinear"),
)
def axis_assumed(model: Model) -> Iterator[Finding]:
    """A com.microsoft QuantizeLinear or DequantizeLinear has one scale per channel, but no axis.

    Why is this bad?
        The operator's page says that without axis the scale is a scalar. onnxruntime takes axis 1, and so does qrun;
        another reader may refuse the model.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (int8[2,3] x) => (float[2,3] y)
        <float[3] scale = {0.5, 0.25, 0.5}, int8[3] zero = {0, 0, 0}>
        {
            y = com.microsoft.DequantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (int8[2,3] x) => (float[2,3] y)
        <float[3] scale = {0.5, 0.25, 0.5}, int8[3] zero = {0, 0, 0}>
        {
            y = com.microsoft.DequantizeLinear<axis = 1>(x, scale, zero)
        }
    """
    for scope, node in nodes(model, TABLE):
        if node.domain != MS or "axis" in node.attributes:
            continue
        for q in sound(scope, node):
            got = known(scope.shape(q.scale.tensor)) if q.form == "axis" and q.scale else None
            if got is not None and q.scale and len(got) == 1 and got != (1,):
                yield Finding(
                    f"{q.scale.name} has shape {shape_text(got)}, but the node has no axis",
                    **scope.at(node),
                    tensor=f"{q.scale.tensor} (input {q.scale.place}, {q.scale.name})",
                    expected="the axis attribute, or a scalar",
                    got=f"{shape_text(got)} and no axis; 1 is assumed",
                    why=f"{node.op}-{node.version}: without axis, the scale is per tensor.",
                    cause=f"QR308 {node.op}",
                )
