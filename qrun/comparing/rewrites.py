"""Repeats those graph rewrites of onnxruntime's default session that change the results of a model with
DequantizeLinear and QuantizeLinear. Measured with onnxruntime 1.20.1, 1.22.1, 1.24.4, 1.31.1 and 1.32.0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ops import channel_axis, to_unsigned
from qrun.ops._quantize import limits


@frozen
class Rewrite:
    """One place that onnxruntime rewrites.

    node:      the node to name in a finding.
    tensor:    the tensor whose meaning changes.
    text:      what onnxruntime does, as a clause.
    nodes:     the new nodes, by the first output of the node that they replace.
    constants: the stored tensors that the rewrite adds.
    """

    node: Node
    tensor: str
    text: str
    nodes: Mapping[str, tuple[Node, ...]]
    constants: Mapping[str, Array]

    def apply(self, model: Model) -> Model:
        """The rewritten model. New nodes have the index of the node that they replace."""
        made = (
            replace(new, index=node.index)
            for node in model.nodes
            for new in self.nodes.get(next(iter(node.outputs), ""), (node,))
        )
        return replace(model, nodes=tuple(made), constants={**model.constants, **self.constants})


@frozen
class StoredParameters:
    """A DequantizeLinear or QuantizeLinear with stored parameters."""

    node: Node
    scale: Array
    zero: Array | None

    @property
    def is_scalar(self) -> bool:
        """Whether there is one scale."""
        return self.scale.size == 1

    def same(self, other: StoredParameters) -> bool:
        """Whether scales and zero points are equal."""
        zero, others = (np.zeros(1) if p.zero is None else p.zero for p in (self, other))
        return np.array_equal(self.scale.ravel(), other.scale.ravel()) and np.array_equal(zero.ravel(), others.ravel())


def parameters(model: Model, node: Node | None, op_type: str = "DequantizeLinear") -> StoredParameters | None:
    """The parameters of an `op_type` node; None for other nodes, or if its scale or zero point is not stored."""
    if node is None or node.op_type != op_type or node.domain not in ("", MS) or len(node.inputs) < 2:
        return None
    stored = {name: model.constants.get(name) for name in node.inputs[1:3] if name}
    if any(array is None or not array.size for array in stored.values()) or node.inputs[1] not in stored:
        return None
    scale, zero, *_ = (stored.get(name) for name in (*node.inputs[1:3], ""))
    return None if scale is None or scale.dtype.kind not in "fV" else StoredParameters(node, scale, zero)


def number(node: Node, name: str, default: float = 0) -> float:
    """A numeric attribute; the default if it is missing or not a number."""
    value = node.attributes.get(name, default)
    return value if isinstance(value, int | float) else default


def readers(model: Model, node: Node) -> Sequence[Node]:
    """The nodes that read a node's first output; none if it has no output."""
    return model.consumers.get(node.outputs[0], ()) if node.outputs else ()


def only_reader(model: Model, node: Node) -> Node | None:
    """The only reader of a node's first output; None if there are several, or if the output is one of the graph's."""
    found = readers(model, node)
    alone = len(found) == 1 and all(value.name != node.outputs[0] for value in model.outputs)
    return found[0] if alone else None


def product_end(model: Model, node: Node) -> Node:
    """The node that ends a product: the Add of a stored vector after a MatMul of two matrices, else the node itself."""
    add = only_reader(model, node) if node.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or not add.outputs:
        return node
    vector = next((model.constants.get(name) for name in add.inputs if name != node.outputs[0]), None)
    matrices = all(_rank(model, name) == 2 for name in node.inputs[:2])
    return add if vector is not None and vector.ndim == 1 and matrices else node


def _rank(model: Model, name: str) -> int | None:
    """The number of axes of a tensor as the file states it, for the tensor or the one that it is quantized from."""
    while True:
        stored, stated = model.constants.get(name), model.types.get(name)
        if stored is not None:
            return stored.ndim
        if stated is not None and stated.shape is not None:
            return len(stated.shape)
        maker = model.producers.get(name)
        if maker is None or maker.op_type not in ("DequantizeLinear", "QuantizeLinear") or not maker.inputs:
            return None
        name = maker.inputs[0]


def is_quantized(model: Model, node: Node) -> bool:
    """Is a QuantizeLinear the only reader of a node's result?"""
    reader = only_reader(model, node)
    return reader is not None and reader.op_type == "QuantizeLinear"


def misread_axes(model: Model) -> Iterator[tuple[Node, StoredParameters, int, int]]:
    """Yield operators whose weights have scales along an axis that onnxruntime misreads as scales of the output
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
    """Does onnxruntime 1.32 make an integer operator with such weights?

    Gemm stays float if the number of scales differs from that of channels, and so does MatMul before QuantizeLinear;
    MatMulIntegerToFloat has scales only for the columns of matrices.
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
    """The com.microsoft operator that multiplies the codes and returns floats: MatMulIntegerToFloat or QGemm."""
    (a, a_scale, a_zero), (b, b_scale, b_zero) = ((*n.inputs, "", "")[:3] for n in (x, w))
    if node.op_type == "MatMul":
        inputs: tuple[str, ...] = (a, b, a_scale, b_scale, a_zero, b_zero)
        return replace(node, domain=MS, op_type="MatMulIntegerToFloat", version=1, inputs=inputs, attributes={})
    inputs = (a, a_scale, a_zero, b, b_scale, b_zero)
    kept = {key: value for key, value in node.attributes.items() if key in ("alpha", "transA", "transB")}
    return replace(node, domain=MS, op_type="QGemm", version=1, inputs=inputs, attributes=kept)


_INT_MIN = -(2**31)


_SUMS = ("Conv", "ConvTranspose", "Gemm")
"""Operators whose float bias becomes int32. A MatMul followed by the Add of a vector counts as Gemm."""


def bias_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime turns a stored float bias into int32 codes of x_scale * w_scale, and stored weights into int8."""
    for node in model.nodes:
        end = product_end(model, node)
        if (node.op_type not in _SUMS and end is node) or node.domain or len(node.inputs) < 2:
            continue
        x = parameters(model, model.producers.get(node.inputs[0]))
        if x is None or not x.is_scalar or not _is_requantized(model, end):
            continue
        w_scale, parts = _weight_scale(model, node)
        name = _bias(node, end)
        bias = model.constants.get(name)
        if w_scale is not None and bias is not None and bias.dtype == np.float32 and bias.ndim == 1:
            parts = [*parts, _coded_bias(end, name, bias, x.scale, w_scale)]
        if parts:
            joined = _join(node, end, parts)
            yield _with_wrapping_sums(model, node, end, joined) or joined


def _bias(node: Node, end: Node) -> str:
    """The name of a node's bias, or of the vector that the Add `end` adds; "" for none."""
    if end is node:
        return node.inputs[2] if len(node.inputs) > 2 else ""
    return next((name for name in end.inputs if name != node.outputs[0]), "")


_Part = tuple[str, str, Node, Mapping[str, Array]]
"""A changed tensor: its name, the clause for the text, the node that now makes it, and the constants it reads."""


def _weight_scale(model: Model, node: Node) -> tuple[Array | None, list[_Part]]:
    """The scale that onnxruntime gives a node's weights, and the tensors that it changes. It keeps that of dequantized
    weights (here None if in blocks or along another axis than the output channels), and quantizes stored float32
    weights to int8 with one scale and zero point over their range; None for others."""
    name = node.inputs[1]
    stored, made = model.constants.get(name), parameters(model, model.producers.get(name))
    if made is not None:
        of_channels = made.is_scalar or number(made.node, "axis", 1) == channel_axis(node) % 2
        return (made.scale if of_channels and not number(made.node, "block_size") else None), []
    if stored is None or stored.dtype != np.float32 or stored.ndim < 2 or not np.any(stored):
        return None, []
    least, most = (np.float32(limit(stored.ravel(), initial=0)) for limit in (np.min, np.max))
    scale = np.float32((most - least) / np.float32(255))
    zero = np.rint(np.float32(-128) - least / scale)
    codes = np.clip(np.rint(stored / scale) + zero, -128, 127).astype(np.int8)
    text = f"turns the float weights {name} into int8 codes with one scale, {float(scale):.6g}"
    return np.asarray(scale), [(name, text, *_store(node, name, codes, np.asarray(scale), zero.astype(np.int8)))]


def _coded_bias(node: Node, name: str, bias: Array, x_scale: Array, w_scale: Array) -> _Part:
    """The nodes and constants of a bias as int32 codes."""
    codes, scale = bias_codes(bias, x_scale, w_scale)
    text = f"turns the float bias {name} into int32 codes with the scale x_scale * w_scale"
    beyond = codes == _INT_MIN
    if beyond.any():
        channel = int(np.argmax(beyond))
        wanted = float(bias[channel]) / float(np.broadcast_to(scale, bias.shape)[channel])
        text += f", which overflow: {wanted:.6g} in channel {channel} becomes {_INT_MIN}"
    return name, text, *_store(node, name, codes, scale)


def bias_codes(bias: Array, x_scale: Array, w_scale: Array) -> tuple[Array, Array]:
    """The int32 codes that onnxruntime makes of a bias, and their scale. Values that overflow become -2**31, as in
    x86's conversion."""
    scale = (x_scale.astype(np.float32).ravel()[0] * w_scale.astype(np.float32)).reshape(w_scale.shape)
    with np.errstate(all="ignore"):
        steps = np.rint(bias / scale.ravel()).astype(np.float64)
    fits = np.abs(steps) < 2**31
    return np.where(fits, steps, _INT_MIN).astype(np.int64).astype(np.int32), np.asarray(scale, np.float32)


def _store(node: Node, name: str, *arrays: Array) -> tuple[Node, Mapping[str, Array]]:
    """A new DequantizeLinear in place of the tensor `name`, and its constants. arrays: codes, scale, zero point."""
    start = f"{node.label}/{name}"
    names = tuple(f"{start}/{part}" for part, _ in zip(("codes", "scale", "zero point"), arrays, strict=False))
    outputs = (f"{start}/dequantized",)
    made = Node(node.index, f"{start}/dequantize", "", "DequantizeLinear", 13, names, outputs, {"axis": 0})
    return made, dict(zip(names, map(np.asarray, arrays), strict=True))


def _join(node: Node, end: Node, parts: list[_Part]) -> Rewrite:
    """The rewrite of a node, and of the Add `end` that follows it, with their stored tensors replaced by `parts`."""
    made = {tensor: new for tensor, _, new, _ in parts}
    constants = {name: array for *_, stored in parts for name, array in stored.items()}
    nodes: dict[str, tuple[Node, ...]] = {}
    for changed in (node, end):
        inputs = tuple(made[name].outputs[0] if name in made else name for name in changed.inputs)
        before = tuple(made[name] for name in changed.inputs if name in made)
        nodes[changed.outputs[0]] = (*before, replace(changed, inputs=inputs))
    return Rewrite(end, parts[-1][0], "; ".join(text for _, text, *_ in parts), nodes, constants)


def _with_wrapping_sums(model: Model, node: Node, end: Node, joined: Rewrite) -> Rewrite | None:
    """The rewrite to an integer operator, whose sums wrap around; None without one or if no bias code overflows."""
    last = only_reader(model, end)
    codes = [array for array in joined.constants.values() if array.dtype == np.int32]
    plain = all(number(node, name, 1) == 1 for name in ("alpha", "beta"))
    x, w = (model.producers.get(name) for name in node.inputs[:2])
    if not codes or not np.any(codes[0] == _INT_MIN) or not plain or x is None or w is None or last is None:
        return None
    if last.op_type != "QuantizeLinear" or not all(len(n.inputs) == 3 for n in (x, w, last)):
        return None
    bias = next(name for name, array in joined.constants.items() if array is codes[0])
    if node.op_type == "Conv":
        inputs: tuple[str, ...] = (*x.inputs, *w.inputs, *last.inputs[1:], bias)
        made = replace(node, op_type="QLinearConv", version=10, inputs=inputs, outputs=last.outputs)
    elif node.op_type in ("Gemm", "MatMul"):
        inputs = (*x.inputs, *w.inputs, bias, *last.inputs[1:])
        kept = {key: value for key, value in node.attributes.items() if key in ("transA", "transB")}
        made = Node(node.index, node.label, MS, "QGemm", 1, inputs, last.outputs, kept)
    else:
        return None
    return replace(joined, nodes={node.outputs[0]: (), end.outputs[0]: (), last.outputs[0]: (made,)})


def _is_requantized(model: Model, node: Node) -> bool:
    """Is the only reader of the result a QuantizeLinear, or a Relu or Clip whose only reader is a QuantizeLinear?"""
    found = readers(model, node)
    if len(found) == 1 and found[0].op_type in ("Relu", "Clip"):
        found = readers(model, found[0])
    return len(found) == 1 and found[0].op_type == "QuantizeLinear"


MOVES = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Slice", "MaxPool")
"""Operators after which onnxruntime repeats a DequantizeLinear that precedes them, behind a QuantizeLinear."""
_MOVED = "/moved"


def dequantizers_with_movers(model: Model) -> Iterator[tuple[StoredParameters, Node]]:
    """Yield each DequantizeLinear with one scale, with each operator of MOVES that reads its result. Its codes are
    computed (the caller checks their type), or stored int32; these count only before a Transpose: onnxruntime folds the
    others."""
    for node in model.nodes:
        p = parameters(model, node)
        stored = model.constants.get(node.inputs[0]) if p is not None else None
        if p is None or not p.is_scalar or (stored is not None and stored.dtype != np.int32):
            continue
        for reader in readers(model, node):
            folded = stored is not None and reader.op_type != "Transpose"
            if reader.op_type in MOVES and reader.outputs and not folded and reader.inputs[0] == node.outputs[0]:
                yield p, reader


def int32_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime rounds to uint8 after an operator that moves dequantized int32 codes without a zero point."""
    for p, mover in dequantizers_with_movers(model):
        value, codes = model.types.get(p.node.inputs[0]), model.constants.get(p.node.inputs[0])
        dtype = codes.dtype if codes is not None else value.dtype if value is not None else None
        if p.zero is not None or dtype != np.int32 or mover.outputs[0].endswith(_MOVED):
            continue
        start, made = mover.outputs[0], mover.outputs[0] + _MOVED
        quantize = Node(
            mover.index, f"{start}/q", "", "QuantizeLinear", 13, (made, p.node.inputs[1]), (f"{start}/codes",), {}
        )
        inputs = (f"{start}/codes", p.node.inputs[1])
        dequantize = Node(mover.index, f"{start}/dq", "", "DequantizeLinear", 13, inputs, (start,), {})
        text = f"rounds the result of {mover.label} to uint8, with the scale of the int32 codes {p.node.inputs[0]}"
        yield Rewrite(mover, start, text, {start: (replace(mover, outputs=(made,)), quantize, dequantize)}, {})


_ROUNDED = "/rounded later"


def rounding_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime moves a QuantizeLinear that alone reads the result of an operator in MOVES before that operator."""
    for node in model.nodes:
        reader = only_reader(model, node) if node.op_type in MOVES else None
        q = parameters(model, reader, "QuantizeLinear")
        if q is None or not q.is_scalar or node.outputs[0].endswith(_ROUNDED):
            continue
        start, made = node.outputs[0], node.outputs[0] + _ROUNDED
        codes = f"{start}/rounded codes"
        quantize = replace(q.node, inputs=(made, *q.node.inputs[1:]), outputs=(codes,))
        kept = {key: value for key, value in q.node.attributes.items() if key == "axis"}
        inputs = (codes, *q.node.inputs[1:])
        dequantize = Node(node.index, f"{start}/dq", "", "DequantizeLinear", q.node.version, inputs, (start,), kept)
        text = f"quantizes before {node.label}, so that {start} has the values that {q.node.label} rounds it to"
        yield Rewrite(node, start, text, {start: (replace(node, outputs=(made,)), quantize, dequantize)}, {})


def requantizations(model: Model) -> Iterator[tuple[Node, Node]]:
    """Yield each DequantizeLinear whose only reader is a QuantizeLinear, with that QuantizeLinear."""
    for node in model.nodes:
        reader = only_reader(model, node) if node.op_type == "DequantizeLinear" else None
        if reader is not None and reader.op_type == "QuantizeLinear" and reader.inputs[0] == node.outputs[0]:
            yield node, reader


@frozen
class TwoPairs:
    """Two successive pairs of QuantizeLinear and DequantizeLinear, which onnxruntime merges into one.

    between: the first DequantizeLinear. last: each DequantizeLinear after the second QuantizeLinear.
    """

    first: StoredParameters
    second: StoredParameters
    between: Node
    last: tuple[Node, ...]

    def merge_ranges(self) -> tuple[Array, Array]:
        """The scale and zero point of the intersection of both ranges."""
        assert self.first.zero is not None
        assert self.second.zero is not None
        kind = self.first.zero.dtype
        low, high = (np.float32(limit) for limit in limits(kind))
        pairs = [
            (np.float32(p.scale.item()), np.float32(p.zero.item()))
            for p in (self.first, self.second)
            if p.zero is not None
        ]
        least = max((low - zero) * scale for scale, zero in pairs)
        most = min((high - zero) * scale for scale, zero in pairs)
        scale = np.float32((most - least) / (high - low))
        zero = np.clip(np.rint(low - least / scale), low, high) if scale > 0 else low
        return np.asarray(scale), np.asarray(zero).astype(kind)


def _merged_pairs(model: Model) -> Iterator[TwoPairs]:
    """Pairs of QuantizeLinear and DequantizeLinear that requantize what was just quantized."""
    for inner, outer in requantizations(model):
        first = parameters(model, model.producers.get(inner.inputs[0]), "QuantizeLinear")
        before, second = parameters(model, inner), parameters(model, outer, "QuantizeLinear")
        if first is None or before is None or second is None or only_reader(model, first.node) is not inner:
            continue
        last = tuple(readers(model, outer))
        ends = [parameters(model, reader) for reader in last]
        named = any(value.name in outer.outputs for value in model.outputs)
        if not ends or named or not all(end is not None and end.same(second) for end in ends):
            continue
        plain = first.is_scalar and second.is_scalar and first.same(before) and not first.same(second)
        if plain and first.zero is not None and second.zero is not None and first.zero.dtype == second.zero.dtype:
            yield TwoPairs(first, second, inner, last)


def pair_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime merges two successive pairs of QuantizeLinear and DequantizeLinear, intersecting their ranges."""
    for pairs in _merged_pairs(model):
        scale, zero = pairs.merge_ranges()
        head, second = pairs.first.node, pairs.second.node
        names = f"{head.label}/merged scale", f"{head.label}/merged zero point"
        nodes: dict[str, tuple[Node, ...]] = {n.outputs[0]: () for n in (pairs.between, second)}
        nodes[head.outputs[0]] = (replace(head, inputs=(head.inputs[0], *names)),)
        for end in pairs.last:
            nodes[end.outputs[0]] = (replace(end, inputs=(head.outputs[0], *names)),)
        text = (
            f"merges {head.label} and {second.label} into one pair, with scale {scale.item():.6g} and "
            f"zero point {zero.item()}, which rounds only once"
        )
        yield Rewrite(second, second.inputs[0], text, nodes, dict(zip(names, (scale, zero), strict=True)))


def slice_rewrites(model: Model) -> Iterator[Rewrite]:
    """Rewrites in which a Softmax's output takes the first of several scales."""
    for node in model.nodes:
        if node.op_type != "Softmax" or node.domain:
            continue
        x = parameters(model, model.producers.get(node.inputs[0]))
        y = parameters(model, only_reader(model, node), "QuantizeLinear")
        if x is None or y is None or x.zero is None or y.zero is None or not x.is_scalar or y.is_scalar:
            continue
        if {x.zero.dtype, y.zero.dtype} != {np.dtype(np.uint8)}:
            continue
        names = f"{y.node.label}/first scale", f"{y.node.label}/first zero point"
        values = y.scale.ravel()[0], y.zero.ravel()[0]
        text = f"quantizes {node.outputs[0]} with the first of its {y.scale.size} scales, {float(values[0]):.6g}"
        made = replace(y.node, inputs=(y.node.inputs[0], *names))
        constants = {name: np.asarray(value) for name, value in zip(names, values, strict=True)}
        yield Rewrite(node, node.outputs[0], text, {y.node.outputs[0]: (made,)}, constants)


def with_unsigned_activations(model: Model) -> Model:
    """The model with all int8 activations as uint8."""
    for found in list(_unsigned_pairs(model)):
        model = found.apply(model)
    return model


def _unsigned_pairs(model: Model) -> Iterator[Rewrite]:
    """Rewrites that make the int8 codes between a QuantizeLinear and a DequantizeLinear uint8."""
    for node in model.nodes:
        q = parameters(model, node, "QuantizeLinear")
        dq = parameters(model, only_reader(model, node)) if q is not None else None
        if q is None or q.zero is None or dq is None or not _has_int8_zero(q) or not _has_int8_zero(dq):
            continue
        made = dq.node.outputs[0]
        uses = len(readers(model, dq.node)) + sum(value.name == made for value in model.outputs)
        if uses > 1 or number(node, "output_dtype") or node.inputs[0] in model.constants:
            continue
        zero = f"{node.label}/unsigned zero point"
        nodes = {n.outputs[0]: (replace(n, inputs=(*n.inputs[:2], zero)),) for n in (node, dq.node)}
        text = f"converts the codes of {node.label} to uint8"
        yield Rewrite(node, node.outputs[0], text, nodes, {zero: to_unsigned(q.zero)})


def _has_int8_zero(p: StoredParameters) -> bool:
    """Whether the zero point is one int8."""
    return p.zero is not None and p.zero.size == 1 and p.zero.dtype == np.int8


_CODES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
_BLOCK = 32
"""Block size of the MatMulNBits that replaces a product whose weights have no blocks."""
_SMALLEST = 16


def weight_only_rewrites(model: Model) -> Iterator[Rewrite]:
    """onnxruntime turns a float tensor times weights of up to 8 bits into MatMulNBits, which rounds it to int8."""
    for node in model.nodes:
        multiplies = bool(node.outputs) and _multiplies(node)
        w = parameters(model, model.producers.get(node.inputs[1])) if multiplies else None
        codes = model.constants.get(w.node.inputs[0]) if w is not None else None
        if w is None or codes is None or codes.ndim != 2 or codes.dtype.name not in _CODES:
            continue
        if _is_of_bytes(model, node.inputs[0]) or w.scale.dtype.name not in ("float32", "float16"):
            continue
        if only_reader(model, w.node) is None or node.inputs[0] in model.constants or _is_before_codes(model, node):
            continue
        block = _block(w, codes)
        if block is not None:
            yield _in_blocks(node, w, codes, block)


def _is_of_bytes(model: Model, name: str) -> bool:
    """Is the tensor dequantized from 8-bit codes, possibly followed by operators in MOVES?"""
    maker = model.producers.get(name)
    while maker is not None and maker.op_type in MOVES and maker.inputs:
        maker = model.producers.get(maker.inputs[0])
    if maker is None or maker.op_type != "DequantizeLinear":
        return False
    p = parameters(model, maker)
    return p is None or p.zero is None or p.zero.dtype.itemsize == 1


def _is_before_codes(model: Model, node: Node) -> bool:
    """Does onnxruntime treat the product as one with a quantized result, and leave its weights as they are?

    It also does so if a Relu or Clip comes before the QuantizeLinear, or if other nodes read the result too. It has no
    integer product for 16 bits: there, only if others read the result too, or if Relu or Clip changes it.
    """
    end = product_end(model, node)
    while (reader := only_reader(model, end)) is not None and reader.op_type in (*MOVES, "Identity") and reader.outputs:
        end = reader
    if reader is None:
        return any(n.op_type == "QuantizeLinear" for n in readers(model, end))
    last = only_reader(model, reader) if reader.op_type in ("Relu", "Clip") else reader
    p = parameters(model, last, "QuantizeLinear")
    if p is None or p.zero is None or p.zero.dtype.itemsize == 1:
        return last is not None and last.op_type == "QuantizeLinear"
    return reader.op_type == "Clip" or (last is not reader and p.zero.ravel()[0] != limits(p.zero.dtype)[0])


def _multiplies(node: Node) -> bool:
    """Is the node a MatMul or Gemm without factors or transposed operands?"""
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}
    at_once = all(number(node, name, value) == value for name, value in plain.items())
    return node.op_type in ("MatMul", "Gemm") and not node.domain and len(node.inputs) > 1 and at_once


def _block(w: StoredParameters, codes: Array) -> int | None:
    """The number of elements of a column that share a scale; None if onnxruntime does not use MatMulNBits."""
    axis, block = w.node.attributes.get("axis", 1), w.node.attributes.get("block_size", 0)
    if not isinstance(axis, int) or not isinstance(block, int):
        return None
    if block:
        power = block >= _SMALLEST and block & (block - 1) == 0
        return block if power and axis % 2 == 0 and w.scale.ndim == 2 else None
    return _BLOCK if w.is_scalar or (w.scale.ndim == 1 and axis % 2 == 1) else None


def _in_blocks(node: Node, w: StoredParameters, codes: Array, block: int) -> Rewrite:
    """The rewrite of a product to MatMulNBits with accuracy_level 4, whose B has a row per column of the weights."""
    depth, columns = codes.shape
    count = -(-depth // block)
    low, high = limits(codes.dtype)
    bits = int(high - low).bit_length()
    zero = np.zeros((), np.int64) if w.zero is None else w.zero.astype(np.int64)
    scales, zeros = (_per_block(each, count, columns) for each in (w.scale, zero - int(low)))
    full = np.full((columns, count * block), -int(low), np.int64)
    full[:, :depth] = codes.T.astype(np.int64) - int(low)
    arrays = (_pack(full, bits).reshape(columns, count, -1), scales.ravel(), _pack(zeros, bits).ravel())
    names = tuple(f"{node.label}/{part}" for part in ("B", "scales", "zero_points"))
    inputs = (node.inputs[0], *names, *(("", node.inputs[2]) if len(node.inputs) > 2 else ()))
    attributes = {"K": depth, "N": columns, "bits": bits, "block_size": block, "accuracy_level": 4}
    made = replace(node, domain=MS, op_type="MatMulNBits", version=1, inputs=inputs, attributes=attributes)
    text = (
        f"replaces {w.node.label} and {node.label} by a MatMulNBits with accuracy_level 4, which rounds blocks of "
        f"{block} elements of {node.inputs[0]} to int8"
    )
    constants = dict(zip(names, arrays, strict=True))
    return Rewrite(node, node.inputs[0], text, {node.outputs[0]: (made,)}, constants)


def _per_block(values: Array, count: int, columns: int) -> Array:
    """Broadcast one value, one per column or one per block of a column to [columns, blocks]."""
    if values.size == 1:
        return np.full((columns, count), values.reshape(()))
    return np.ascontiguousarray(np.broadcast_to(values.reshape(-1, columns).T, (columns, count)))


def _pack(codes: Array, bits: int) -> Array:
    """Pack codes of `bits` bits into bytes along the last axis, the first code in the lowest bits."""
    each = 8 // bits
    padded = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % each)])
    parts = padded.reshape(*padded.shape[:-1], -1, each) << (np.arange(each) * bits)
    return np.asarray(parts.sum(-1), np.uint8)


_UNIT = 2.0**-24


def sum_bound(nodes: Sequence[Node], tensor: str, values: Mapping[str, Array]) -> Array | None:
    """A bound on the difference between two results of the MatMulNBits that makes `tensor`, for any two orders of
    addition; None if no float32 MatMulNBits makes it."""
    node = next((n for n in nodes if n.op_type == "MatMulNBits" and tensor in n.outputs), None)
    if node is None or node.inputs[0] not in values or values[node.inputs[0]].dtype != np.float32:
        return None
    bits, block, depth, columns = (node.attributes[key] for key in ("bits", "block_size", "K", "N"))
    assert isinstance(bits, int)
    assert isinstance(block, int)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    packed, scales, zeros = (values[name] for name in node.inputs[1:4])
    count = packed.shape[1]
    codes = _unpack(packed.reshape(columns, -1), bits).reshape(columns, count, block)
    offset = _unpack(zeros.reshape(columns, -1), bits)[:, :count, None]
    weights = np.abs(codes - offset) * np.abs(scales.astype(np.float64)).reshape(columns, count, 1)
    x = np.abs(values[node.inputs[0]].astype(np.float64))
    sizes = x @ weights.reshape(columns, -1)[:, :depth].T
    bias = values.get(node.inputs[5]) if len(node.inputs) > 5 else None
    sizes = sizes * 2 if bias is None else sizes * 2 + np.abs(bias)
    return np.asarray(4 * (depth + 8) * _UNIT * sizes)


def _unpack(packed: Array, bits: int) -> Array:
    """Unpack codes of `bits` bits from bytes along the last axis, as int64."""
    parts = packed.astype(np.int64)[..., None] >> (np.arange(8 // bits) * bits)
    return np.asarray((parts & ((1 << bits) - 1)).reshape(*packed.shape[:-1], -1))


Kind = Callable[[Model], Iterator[Rewrite]]
"""Yields the places of a model that a runtime rewrites in one way."""
KINDS: Sequence[Kind] = (
    bias_rewrites,
    axis_rewrites,
    weight_only_rewrites,
    pair_rewrites,
    int32_rewrites,
    slice_rewrites,
    rounding_rewrites,
)
"""The rewrites of onnxruntime's default session."""


def apply_rewrites(model: Model, indices: Set[int], kinds: Sequence[Kind] = KINDS) -> tuple[Model, tuple[str, ...]]:
    """Apply every rewrite of nodes with these indices. Returns the model and a clause for each rewrite."""
    texts: list[str] = []
    for kind in kinds:
        while (found := next((r for r in kind(model) if _touches(model, r, indices)), None)) is not None:
            model = found.apply(model)
            texts.append(found.text)
    return model, tuple(texts)


def _touches(model: Model, rewrite: Rewrite, indices: Set[int]) -> bool:
    """Whether a rewrite changes one of these nodes."""
    return any(model.producers[name].index in indices for name in rewrite.nodes)
