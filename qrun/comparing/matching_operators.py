"""Quantized operators written as real ones: DequantizeLinear, the float operator, QuantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qrun.comparing.matching_writer import Writer, is_quantize, moves
from qrun.ir import Model, Node
from qrun.ir.schema import MS
from qrun.ops import find

_ON_CODES = ("MaxPool", "GlobalMaxPool")
"""Operators, besides those that move elements, that may run on codes because rounding is monotonic."""


def unfold(model: Model) -> tuple[Node, ...]:
    """The model's nodes with float operators in place of quantized ones; what has no such form stays.

    The names of the model's tensors stay theirs; a node's index is that of the node it is made of.
    """
    writer = Writer(model)
    for node in model.nodes:
        if node.index in writer.done or not any(node.outputs):
            continue
        form = _FORMS.get((node.domain, node.op_type))
        if not (form and form(writer, node)) and not _moved(writer, node):
            writer.put(node)
    return tuple(_needed(writer.nodes, {v.name for v in model.outputs}))


def _needed(nodes: Sequence[Node], outputs: set[str]) -> list[Node]:
    """The nodes that the outputs depend on."""
    needed, found = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
            needed.update(name for graph in node.subgraphs for inner in graph.nodes for name in inner.inputs)
            found.append(node)
    return found[::-1]


def _moved(writer: Writer, node: Node) -> bool:
    """An operator on codes, as one on what they mean; its codes have the same parameters."""
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
    rest = node.inputs[1:]
    writer.nodes.append(
        Node(node.index, node.label, "", node.op_type, node.version, (real, *rest), (output,), node.attributes)
    )
    return shape or writer.round(node, output, scale, zero, node.outputs[0])


def _inputs(node: Node, count: int) -> tuple[str, ...]:
    return (*node.inputs, *[""] * count)[:count]


def _conv(writer: Writer, node: Node) -> bool:
    x, xs, xz, w, ws, wz, ys, yz, bias = _inputs(node, 9)
    if node.attributes.get("channels_last", 0):
        return False
    data, weights = writer.real(node, x, xs, xz), writer.real(node, w, ws, wz, axis=0)
    scale = writer.make(node, "Mul", 14, (xs, ws)) if bias else ""
    biases = (writer.real(node, bias, _flat(writer, node, scale, ws), axis=0),) if bias else ()
    kept = {k: v for k, v in node.attributes.items() if k != "channels_last"}
    y = writer.make(node, "Conv", 11, (data, weights, *biases), "", kept)
    return writer.round(node, y, ys, yz, node.outputs[0])


def _flat(writer: Writer, node: Node, scale: str, like: str) -> str:
    """A product of scales as a scalar, or of rank 1 if `like` has several numbers."""
    value = writer.model.constant(like)
    shape = np.array([] if value is not None and value.size == 1 else [-1], np.int64)
    return writer.make(node, "Reshape", 14, (scale, writer.number(node, shape)))


def _matmul(writer: Writer, node: Node) -> bool:
    a, as_, az, b, bs, bz, ys, yz = _inputs(node, 8)
    if any((value := writer.model.constant(name)) is not None and value.ndim > 1 for name in (as_, bs)):
        return False
    y = writer.make(node, "MatMul", 13, (writer.real(node, a, as_, az, axis=-2), writer.real(node, b, bs, bz, axis=-1)))
    return writer.round(node, y, ys, yz, node.outputs[0])


def _gemm(writer: Writer, node: Node) -> bool:
    a, as_, az, b, bs, bz, c, ys, yz = _inputs(node, 9)
    transposed = bool(node.attributes.get("transB", 0))
    data = writer.real(node, a, as_, az)
    weights = writer.real(node, b, bs, bz, axis=0 if transposed else 1)
    biases: tuple[str, ...] = ()
    if c:
        alpha = writer.number(node, np.array(node.attributes.get("alpha", 1.0), np.float32))
        scale = writer.make(node, "Mul", 14, (writer.make(node, "Mul", 14, (as_, bs)), alpha))
        biases = (writer.real(node, c, _flat(writer, node, scale, bs), axis=-1),)
    output = "" if yz else node.outputs[0]
    y = writer.make(node, "Gemm", 13, (data, weights, *biases), output, node.attributes)
    return writer.round(node, y, ys, yz, node.outputs[0]) if yz else True


def _binary(op: str) -> Callable[[Writer, Node], bool]:
    def form(writer: Writer, node: Node) -> bool:
        a, as_, az, b, bs, bz, ys, yz = _inputs(node, 8)
        y = writer.make(node, op, 14, (writer.real(node, a, as_, az), writer.real(node, b, bs, bz)))
        return writer.round(node, y, ys, yz, node.outputs[0])

    return form


def _unary(op: str, version: int) -> Callable[[Writer, Node], bool]:
    def form(writer: Writer, node: Node) -> bool:
        x, xs, xz, ys, yz = _inputs(node, 5)
        if node.attributes.get("channels_last", 0):
            return False
        kept = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
        opset = node.attributes.get("opset", version)
        since = 11 if op == "Softmax" and isinstance(opset, int) and opset < 13 else version
        y = writer.make(node, op, since, (writer.real(node, x, xs, xz),), "", kept)
        return writer.round(node, y, ys, yz, node.outputs[0])

    return form


def _concat(writer: Writer, node: Node) -> bool:
    ys, yz, *parts = node.inputs
    real = tuple(writer.real(node, *parts[at : at + 3]) for at in range(0, len(parts), 3))
    return writer.round(node, writer.make(node, "Concat", 13, real, "", node.attributes), ys, yz, node.outputs[0])


def _where(writer: Writer, node: Node) -> bool:
    condition, x, xs, xz, y, ys, yz, zs, zz = _inputs(node, 9)
    real = writer.make(node, "Where", 16, (condition, writer.real(node, x, xs, xz), writer.real(node, y, ys, yz)))
    return writer.round(node, real, zs, zz, node.outputs[0])


def _to_float(writer: Writer, node: Node) -> bool:
    """MatMulIntegerToFloat."""
    a, b, as_, bs, az, bz, bias = _inputs(node, 7)
    real = (writer.real(node, a, as_, az, axis=-2), writer.real(node, b, bs, bz, axis=-1))
    return _plus(writer, node, real, bias)


def _dynamic(writer: Writer, node: Node) -> bool:
    """DynamicQuantizeMatMul."""
    a, b, bs, bz, bias = _inputs(node, 5)
    parts = tuple(writer.name(f"{node.label}/{part}") for part in ("codes", "scale", "zero_point"))
    writer.nodes.append(Node(node.index, node.label, "", "DynamicQuantizeLinear", 11, (a,), parts, {}))
    return _plus(writer, node, (writer.real(node, *parts), writer.real(node, b, bs, bz, axis=-1)), bias)


def _plus(writer: Writer, node: Node, real: tuple[str, str], bias: str) -> bool:
    y = writer.make(node, "MatMul", 13, real, "" if bias else node.outputs[0])
    if bias:
        writer.make(node, "Add", 14, (y, bias), node.outputs[0])
    return True


def _integer(op: str, version: int, axis: int) -> Callable[[Writer, Node], bool]:
    """MatMulInteger or ConvInteger whose int32 sums are cast to float and multiplied by both scales."""

    def form(writer: Writer, node: Node) -> bool:
        a, b, az, bz = _inputs(node, 4)
        end = _scaled(writer.model, node, a)
        if end is None:
            return False
        last, a_scale, b_scale, passed = end
        real = (writer.real(node, a, a_scale, az), writer.real(node, b, b_scale, bz, axis=axis))
        writer.make(node, op, version, real, last.outputs[0], node.attributes)
        writer.done.update(passed)
        return True

    return form


def _scaled(model: Model, node: Node, a: str) -> tuple[Node, str, str, set[int]] | None:
    """The last Mul behind the sums, the names of both scales, and the nodes up to it."""
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
    node = model.producers.get(name)
    return node.inputs if node is not None and node.op_type == "Mul" and not node.domain else (name,)


_FORMS: Mapping[tuple[str, str], Callable[[Writer, Node], bool]] = {
    ("", "QLinearConv"): _conv,
    (MS, "QLinearConv"): _conv,
    ("", "QLinearMatMul"): _matmul,
    (MS, "QGemm"): _gemm,
    (MS, "QLinearAdd"): _binary("Add"),
    (MS, "QLinearMul"): _binary("Mul"),
    (MS, "QLinearSigmoid"): _unary("Sigmoid", 13),
    (MS, "QLinearLeakyRelu"): _unary("LeakyRelu", 16),
    (MS, "QLinearSoftmax"): _unary("Softmax", 13),
    (MS, "QLinearAveragePool"): _unary("AveragePool", 10),
    (MS, "QLinearGlobalAveragePool"): _unary("GlobalAveragePool", 1),
    (MS, "QLinearConcat"): _concat,
    (MS, "QLinearWhere"): _where,
    (MS, "MatMulIntegerToFloat"): _to_float,
    (MS, "DynamicQuantizeMatMul"): _dynamic,
    ("", "MatMulInteger"): _integer("MatMul", 13, -1),
    ("", "ConvInteger"): _integer("Conv", 11, 0),
}
