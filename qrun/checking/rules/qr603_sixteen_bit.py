"""QR603 sixteen-bit."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._groups import FORMS, dequantized_inputs, refused
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope
from qrun.ir import Model, Node


@rule(
    "QR603",
    "sixteen-bit",
    level="warning",
    since="0.1",
    spec="https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
    fix="use 8-bit activations for CPUs; 16 bits are for accelerators that have them",
    applies=FORMS,
)
def sixteen_bit(model: Model) -> Iterator[Finding]:
    """A group of operators on 16-bit tensors, which CPU runtimes run in float. One finding for each such tensor.

    Why is this bad?
        onnxruntime 1.31.1 makes no integer operator of such a group on its CPU provider, and qrun neither: the model is
        computed in float with roundings in between. The result is right, the speed is that of float or less.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (uint16[1,4] a, uint16[1,4] b) => (uint16[1,4] y)
        <float s = {0.5}, uint16 z = {32768}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }
    """
    told: set[str] = set()
    for scope, node, reason in refused(model):
        wide = reason.endswith((" is uint16", " is int16"))
        if wide and node.op_type in FORMS and not node.domain and dequantized_inputs(scope.model, node):
            met = _sixteen_bit(scope, node)
            if met and met <= told:
                continue
            told |= met
            yield Finding(
                f"{node.op_type} runs in float: {reason}",
                **scope.at(node),
                tensor=f"{node.outputs[0]} (output 0)",
                expected="int8 or uint8 tensors, for integer operators on a CPU",
                got=reason,
                why=f"{node.op}-{node.version} has integer forms for 8 bits only.",
                cause=f"QR603 {reason.rpartition(' ')[2]}",
            )


def _sixteen_bit(scope: Scope, node: Node) -> set[str]:
    """The 16-bit tensors that the node reads behind DequantizeLinear, or makes before QuantizeLinear."""
    model = scope.model
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    readers = [reader for name in node.outputs for reader in model.consumers.get(name, ())]
    names = {m.inputs[0] for m in made if m.op_type == "DequantizeLinear" and m.inputs}
    names |= {r.outputs[0] for r in readers if r.op_type == "QuantizeLinear" and r.outputs}
    types = scope.dtypes
    return {name for name in names if name in types and types[name].itemsize == 2}
