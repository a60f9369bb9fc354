"""Rewrites quantized operators as float ones: DequantizeLinear, the float operator, QuantizeLinear (`unfold`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir import Array, Attribute, Model, Node
from qrun.ir.schema import DOMAINS, MS
from qrun.ops import Bias, Quantizer, bias, find, operands, parameter_axis, quantizers, real_operator
from qrun.ops.matmulnbits import check_weights


class NodeWriter:
    """Collects the rewritten nodes. codes: names of integer tensors with their scale, zero point and attributes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: list[Node] = []
        self.codes: dict[str, tuple[str, str, Mapping[str, Attribute]]] = {}
        self.done: set[int] = set()
        self._real: dict[tuple[Any, ...], str] = {}
        self._names = set(model.constants) | {n for node in model.nodes for n in (*node.inputs, *node.outputs)}

    def name(self, base: str) -> str:
        """A new tensor name."""
        name, number = base, 1
        while name in self._names:
            name, number = f"{base}~{number}", number + 1
        self._names.add(name)
        return name

    def put(self, node: Node) -> None:
        """Add a node unchanged."""
        if is_quantize(node):
            kept = {k: v for k, v in node.attributes.items() if k in ("axis", "block_size")}
            self.codes[node.outputs[0]] = (node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else "", kept)
        self.nodes.append(node)

    def make(
        self,
        node: Node,
        op: str,
        version: int,
        inputs: tuple[str, ...],
        output: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add an operator of ai.onnx in place of `node` and return the name of its output."""
        output = output or self.name(f"{node.label}/{op}")
        self.nodes.append(Node(node.index, node.label, "", op, version, inputs, (output,), attributes or {}))
        return output

    def real(self, node: Node, codes: str, scale: str, zero: str = "", **attributes: Attribute) -> str:
        """Dequantize codes, once; returns the tensor's name. An axis has an effect only with one scale per place."""
        if not codes:
            return ""
        key = (codes, scale, zero, tuple(attributes.items()))
        if key not in self._real:
            parameters = [self._rank(node, name, attributes) for name in (scale, zero)]
            inputs = tuple(filter(None, (codes, *parameters)))
            self._real[key] = self.make(node, "DequantizeLinear", 21, inputs, "", attributes)
        return self._real[key]

    def _rank(self, node: Node, name: str, attributes: Mapping[str, Attribute]) -> str:
        """The name of a parameter, reshaped if needed to a scalar, or to rank 1 if it has several numbers."""
        value = self.model.constant(name) if name else None
        if value is None or "block_size" in attributes or value.ndim == (value.size != 1):
            return name
        shape = self.number(node, np.array([] if value.size == 1 else [value.size], np.int64))
        return self.make(node, "Reshape", 14, (name, shape))

    def number(self, node: Node, value: Array) -> str:
        """Write a Constant; returns its name."""
        return self.make(node, "Constant", 13, (), attributes={"value": value})

    def round(self, node: Node, real: str, scale: str, zero: str, output: str) -> bool:
        """Add a QuantizeLinear of the tensor `real`, whose output has the name `output`. Returns True."""
        scale, zero = self._rank(node, scale, {}), self._rank(node, zero, {})
        self.make(node, "QuantizeLinear", 21, tuple(filter(None, (real, scale, zero))), output)
        self.codes[output] = (scale, zero, {})
        return True


def is_quantize(node: Node) -> bool:
    """Whether a node is a QuantizeLinear."""
    return node.op_type == "QuantizeLinear" and node.domain in DOMAINS and len(node.inputs) > 1


def is_dequantize(node: Node) -> bool:
    """Whether a node is a DequantizeLinear."""
    return node.op_type == "DequantizeLinear" and node.domain in DOMAINS and len(node.inputs) > 1


def moves(node: Node) -> bool:
    """Does the node only move or select elements of its first input?"""
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form == "moves"


_ON_CODES = ("MaxPool", "GlobalMaxPool")
"""Operators, other than those that move elements, that may run on codes, because rounding is monotonic."""


def unfold(model: Model) -> tuple[Node, ...]:
    """The model's nodes with quantized operators replaced by float ones; operators without such a form stay.

    The model's tensors keep their names. A new node has the index of the node that it comes from.
    """
    writer = NodeWriter(model)
    for node in model.nodes:
        if node.index in writer.done or not any(node.outputs):
            continue
        form = _SPECIAL.get((node.domain, node.op_type), _write_quantized)
        if not form(writer, node) and not _write_move(writer, node):
            writer.put(node)
    return tuple(_needed_nodes(writer.nodes, {v.name for v in model.outputs}))


def _needed_nodes(nodes: Sequence[Node], outputs: set[str]) -> list[Node]:
    """The nodes on which the outputs depend."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            needed.update(name for graph in node.subgraphs for inner in graph.nodes for name in inner.inputs)
            found.append(node)
    return found[::-1]


def _write_move(writer: NodeWriter, node: Node) -> bool:
    """Write an operator that moves codes, or reads their shape, as one on real values. False for other operators."""
    source = node.inputs[0] if node.inputs else ""
    if source not in writer.codes or len(node.outputs) != 1:
        return False
    scale, zero, attributes = writer.codes[source]
    definition = find(node.domain, node.op_type, node.version)
    shape = definition is not None and definition.form == "shape"
    if not (shape or ((moves(node) or node.op_type in _ON_CODES) and not node.domain)):
        return False
    real = writer.real(node, source, scale, zero, **attributes)
    output = node.outputs[0] if shape else writer.name(f"{node.label}/{node.op_type}")
    inputs = (real, *node.inputs[1:])
    made = Node(node.index, node.label, "", node.op_type, node.version, inputs, (output,), node.attributes)
    writer.nodes.append(made)
    return shape or writer.round(node, output, scale, zero, node.outputs[0])


def _inputs(node: Node, count: int) -> tuple[str, ...]:
    """The first `count` inputs; "" for missing ones."""
    return (*node.inputs, *[""] * count)[:count]


def _write_quantized(writer: NodeWriter, node: Node) -> bool:
    """Write a quantized operator as DequantizeLinear, the float operator, QuantizeLinear. False if it has no form."""
    definition, found, b = real_operator(node), operands(node), bias(node)
    if definition is None or definition.op_type == "Identity" or node.attributes.get("channels_last", 0):
        return False
    given = [q for _, q in found if q]
    if any(q.form == "row" for q in given) and any(_has_matrix_scale(writer, q) for q in given):
        return False
    real = [_dequantize(writer, node, q) if q else name for name, q in found]
    if b and b.integer:
        real.append(_int32_bias(writer, node, b, *[q.scale.tensor for q in given if q.scale]))
    out = next((q for q in quantizers(node) if q.is_output and (q.zero_point or definition.op_type != "Gemm")), None)
    kept = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
    opset = node.attributes.get("opset")
    since = 11 if isinstance(opset, int) and opset < 13 else definition.since
    added = b if b and not b.integer else None
    y = writer.make(node, definition.op_type, since, tuple(real), "" if out or added else node.outputs[0], kept)
    if added:
        writer.make(node, "Add", 14, (y, added.bias.tensor), node.outputs[0])
    return out is None or writer.round(node, y, *_parameters(out), node.outputs[0])


def _parameters(q: Quantizer) -> tuple[str, str]:
    """The names of scale and zero point."""
    return q.scale.tensor if q.scale else "", q.zero_point.tensor if q.zero_point else ""


def _dequantize(writer: NodeWriter, node: Node, q: Quantizer) -> str:
    """Write the real value of a quantized input; returns its name."""
    scale, zero = _parameters(q)
    axis = {} if q.form == "tensor" else {"axis": parameter_axis(node, q.form)}
    return writer.real(node, q.tensor.tensor, scale, zero, **axis)


def _has_matrix_scale(writer: NodeWriter, q: Quantizer) -> bool:
    """Is the scale a constant of more than one axis?"""
    value = writer.model.constant(_parameters(q)[0])
    return value is not None and value.ndim > 1


def _int32_bias(writer: NodeWriter, node: Node, b: Bias, x_scale: str, w_scale: str) -> str:
    """Dequantize an int32 bias; its scale is the product of the operands' scales, and of alpha in Gemm."""
    gemm = b.form == "gemm"
    alpha = writer.number(node, np.array(node.attributes.get("alpha", 1.0), np.float32)) if gemm else ""
    scale = writer.make(node, "Mul", 14, (x_scale, w_scale))
    scale = writer.make(node, "Mul", 14, (scale, alpha)) if gemm else scale
    value = writer.model.constant(w_scale)
    shape = np.array([] if value is not None and value.size == 1 else [-1], np.int64)
    flat = writer.make(node, "Reshape", 14, (scale, writer.number(node, shape)))
    return writer.real(node, b.bias.tensor, flat, axis=-1 if gemm else 0)


def _dynamic(writer: NodeWriter, node: Node) -> bool:
    """Write DynamicQuantizeMatMul as DynamicQuantizeLinear, DequantizeLinear, MatMul and Add."""
    a, b, bs, bz, added = _inputs(node, 5)
    parts = tuple(writer.name(f"{node.label}/{part}") for part in ("codes", "scale", "zero_point"))
    writer.nodes.append(Node(node.index, node.label, "", "DynamicQuantizeLinear", 11, (a,), parts, {}))
    real = (writer.real(node, *parts), writer.real(node, b, bs, bz, axis=-1))
    y = writer.make(node, "MatMul", 13, real, "" if added else node.outputs[0])
    if added:
        writer.make(node, "Add", 14, (y, added), node.outputs[0])
    return True


def _blocks(writer: NodeWriter, node: Node) -> bool:
    """Write MatMulNBits with constant weights, each block with its own scale and integer zero point, as MatMul."""

    a, *parts, groups, added = _inputs(node, 6)
    values = [writer.model.constant(name) if name else None for name in parts]
    if groups or any(name and value is None for name, value in zip(parts, values, strict=True)):
        return False
    scales = values[1]
    assert scales is not None
    defaults = {"bits": 4, "weight_prepacked": 0, **node.attributes}
    depth, *rest, prepacked = (
        int(defaults[name])  # type: ignore[arg-type]
        for name in ("K", "N", "bits", "block_size", "weight_prepacked")
    )
    rows = np.empty((0, depth), scales.dtype)
    weights = check_weights(rows, (*values, None, None), (depth, *rest), prepacked)
    if weights.zeros().dtype != np.uint8:
        return False
    stored = (weights.unpack()[:, : weights.depth], weights.scales, weights.zeros())
    names = [writer.number(node, np.ascontiguousarray(array)) for array in stored]
    real = writer.real(node, *names, axis=1, block_size=weights.block)
    turned = writer.make(node, "Transpose", 13, (real,), "", {"perm": (1, 0)})
    y = writer.make(node, "MatMul", 13, (a, turned), "" if added else node.outputs[0])
    if added:
        writer.make(node, "Add", 14, (y, added), node.outputs[0])
    return True


def _integer(op: str, version: int, axis: int) -> Callable[[NodeWriter, Node], bool]:
    """A writer for MatMulInteger or ConvInteger, if the int32 sums are cast to float and multiplied by both scales."""

    def form(writer: NodeWriter, node: Node) -> bool:
        a, b, az, bz = _inputs(node, 4)
        end = _match_rescaling(writer.model, node, a)
        if end is None:
            return False
        last, a_scale, b_scale, passed = end
        real = (writer.real(node, a, a_scale, az), writer.real(node, b, b_scale, bz, axis=axis))
        writer.make(node, op, version, real, last.outputs[0], node.attributes)
        writer.done.update(passed)
        return True

    return form


def _match_rescaling(model: Model, node: Node, a: str) -> tuple[Node, str, str, set[int]] | None:
    """The Muls that rescale a node's int32 sums by both scales: the last Mul, the scale of the activation `a` (from its
    quantizer), the other scale, and the indices of the Casts and Muls up to that one. None if the sums are used
    otherwise."""
    source = model.producers.get(a)
    if source is None or (len(source.outputs) < 2 and not is_quantize(source)):
        return None
    a_scale = source.inputs[1] if is_quantize(source) else source.outputs[1]
    passed, at, factors = set(), node, []
    for _ in range(3):
        readers = model.consumers.get(at.outputs[0], ())
        if len(readers) != 1 or readers[0].domain or readers[0].op_type not in ("Cast", "Mul"):
            return None
        reader = readers[0]
        passed.add(reader.index)
        if reader.op_type == "Mul":
            factors.append(next((name for name in reader.inputs if name != at.outputs[0]), ""))
            found = [part for name in factors for part in _factors(model, name)]
            for parts in (factors, found):
                if a_scale in parts and len(parts) == 2:
                    return reader, a_scale, parts[1 - parts.index(a_scale)], passed
        at = reader
    return None


def _factors(model: Model, name: str) -> tuple[str, ...]:
    """The factors of a product of scales, or the scale itself."""
    node = model.producers.get(name)
    return node.inputs if node is not None and node.op_type == "Mul" and not node.domain else (name,)


_SPECIAL: Mapping[tuple[str, str], Callable[[NodeWriter, Node], bool]] = {
    (MS, "DynamicQuantizeMatMul"): _dynamic,
    (MS, "MatMulNBits"): _blocks,
    ("", "MatMulInteger"): _integer("MatMul", 13, -1),
    ("", "ConvInteger"): _integer("Conv", 11, 0),
}
