"""QR604 shared-dequantize."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed, scopes
from qrun.ir import Model


@rule(
    "QR604",
    "shared-dequantize",
    level="note",
    since="0.1",
    spec="https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
    fix="give every reader a DequantizeLinear of its own (DedicatedQDQPair=True in onnxruntime's quantizer)",
    applies=("DequantizeLinear",),
)
def shared_dequantize(model: Model) -> Iterator[Finding]:
    """One DequantizeLinear is read by several nodes. One finding per graph.

    Why is this bad?
        It is not for qrun and onnxruntime 1.31.1, which give each reader its own. Compilers that look for a group of
        nodes whose inner tensors have one reader find none here and run the readers in float.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y, uint8[1,4] v)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
            d = Mul(af, af)
            v = QuantizeLinear(d, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y, uint8[1,4] v)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
            ag = DequantizeLinear(a, s, z)
            d = Mul(ag, ag)
            v = QuantizeLinear(d, s, z)
        }
    """
    for scope in scopes(model):
        readers = scope.model.consumers
        found = [
            node
            for node in scope.model.nodes
            if node.op_type == "DequantizeLinear" and node.outputs and len(readers.get(node.outputs[0], ())) > 1
        ]
        if found:
            first, labels = found[0], [node.label for node in found]
            names = [node.label for node in readers[first.outputs[0]]]
            yield Finding(
                f"{len(found)} DequantizeLinear with several readers: {listed(labels)}",
                **scope.at(first),
                tensor=f"{first.outputs[0]}, read by {listed(names)}",
                expected="one reader of each DequantizeLinear",
                got=f"{len(names)} readers of {first.outputs[0]}"
                + (f"; {len(found)} such nodes" if len(found) > 1 else ""),
                why="legal ONNX, but some compilers only fuse a group whose inner tensors have one reader.",
            )
