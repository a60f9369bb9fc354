"""onnxruntime reads scales along another axis of weights as scales of the output channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from qrun.comparing.rewrites._rewrite import Rewrite, StoredParameters, is_quantized, parameters
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ops import channel_axis


def misread_axes(model: Model) -> Iterator[tuple[Node, StoredParameters, int, int]]:
    """Operators whose weights have one scale per slice of an axis, which onnxruntime takes for scales of the output
    channels: the operator, the weights' parameters, their axis, and the number of channels."""
    for node in model.nodes:
        if node.op_type not in ("Conv", "Gemm", "MatMul") or node.domain or len(node.inputs) < 2 or not node.outputs:
            continue
        x, w = (model.producers.get(name) for name in node.inputs[:2])
        found = parameters(model, w)
        codes = None if found is None else model.constants.get(found.node.inputs[0])
        if found is None or codes is None or found.is_scalar or found.scale.ndim != 1 or x is None:
            continue
        axis, due = found.node.attributes.get("axis", 1), channel_axis(node) % codes.ndim
        small = codes.dtype.name in ("int8", "uint8") and codes.ndim > 1 and x.op_type == "DequantizeLinear"
        if not small or not isinstance(axis, int) or found.scale.size != codes.shape[axis % codes.ndim]:
            continue
        if _takes_axis(
            node, is_quantized(model, node), axis % codes.ndim == due, codes, found.scale.size == codes.shape[due]
        ):
            yield node, found, axis % codes.ndim, codes.shape[due]


def _takes_axis(node: Node, requantized: bool, right: bool, codes: Array, fits: bool) -> bool:
    """Does onnxruntime 1.32 make an integer operator of such weights?

    Gemm with another number of scales stays float, as MatMul does before QuantizeLinear; MatMulIntegerToFloat has
    scales for the columns of matrices only.
    """
    if node.op_type == "MatMul":
        return not requantized and (codes.ndim > 2 or not right)
    return not right and (requantized if node.op_type == "Conv" else fits)


def axis_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime reads scales along another axis of weights as scales of the output channels."""
    for node, w, axis, channels in misread_axes(model):
        codes = w.node.inputs[0]
        if w.scale.size != channels or (node.op_type == "MatMul" and model.constants[codes].ndim > 2):
            continue
        due = channel_axis(node) % model.constants[codes].ndim
        named = f"{w.node.outputs[0]}/axis {due}"
        turned = replace(w.node, outputs=(named,), attributes={**w.node.attributes, "axis": due})
        nodes: tuple[Node, ...] = (turned, replace(node, inputs=(node.inputs[0], named, *node.inputs[2:])))
        if not is_quantized(model, node):
            nodes = (_float_product(node, model.producers[node.inputs[0]], w.node),)
        text = f"reads the scales of {codes} along axis {axis} as scales along axis {due}"
        yield Rewrite(w.node, codes, text, {node.outputs[0]: nodes}, {})


def _float_product(node: Node, x: Node, w: Node) -> Node:
    """The operator of com.microsoft that multiplies codes and gives floats."""
    (a, a_scale, a_zero), (b, b_scale, b_zero) = ((*n.inputs, "", "")[:3] for n in (x, w))
    if node.op_type == "MatMul":
        inputs: tuple[str, ...] = (a, b, a_scale, b_scale, a_zero, b_zero)
        return replace(node, domain=MS, op_type="MatMulIntegerToFloat", version=1, inputs=inputs, attributes={})
    inputs = (a, a_scale, a_zero, b, b_scale, b_zero)
    kept = {key: value for key, value in node.attributes.items() if key in ("alpha", "transA", "transB")}
    return replace(node, domain=MS, op_type="QGemm", version=1, inputs=inputs, attributes=kept)
