"""A stored float bias becomes int32 codes of x_scale * w_scale, and stored float weights become int8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import (
    Rewrite,
    number,
    only_reader,
    parameters,
    product_end,
    readers,
)
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ops import channel_axis

_INT_MIN = -(2**31)


_SUMS = ("Conv", "ConvTranspose", "Gemm")
"""Operators whose float bias becomes int32. MatMul with a vector that is added to its result is Gemm."""


def bias_rewrites(model: Model) -> Iterator[Rewrite]:
    """A stored float bias becomes int32 codes of x_scale * w_scale, and stored float weights become int8."""
    for node in model.nodes:
        end = product_end(model, node)
        if (node.op_type not in _SUMS and end is node) or node.domain or len(node.inputs) < 2:
            continue
        x = parameters(model, model.producers.get(node.inputs[0]))
        if x is None or not x.is_scalar or not _is_requantized(model, end):
            continue
        w_scale, parts = _weights(model, node)
        name = _bias(node, end)
        bias = model.constants.get(name)
        if w_scale is not None and bias is not None and bias.dtype == np.float32 and bias.ndim == 1:
            parts = [*parts, _coded_bias(end, name, bias, x.scale, w_scale)]
        if parts:
            joined = _joined(node, end, parts)
            yield _with_wrapping_sums(model, node, end, joined) or joined


def _bias(node: Node, end: Node) -> str:
    """The bias of a node, or what Add adds to it."""
    if end is node:
        return node.inputs[2] if len(node.inputs) > 2 else ""
    return next((name for name in end.inputs if name != node.outputs[0]), "")


_Part = tuple[str, str, Node, Mapping[str, Array]]
"""The tensor, the clause, what makes it now, and the constants."""


def _weights(model: Model, node: Node) -> tuple[Array | None, list[_Part]]:
    """The scale of the weights, and what they become if they are stored as floats."""
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
    return np.asarray(scale), [(name, text, *_stored(node, name, codes, np.asarray(scale), zero.astype(np.int8)))]


def _coded_bias(node: Node, name: str, bias: Array, x_scale: Array, w_scale: Array) -> _Part:
    codes, scale = bias_codes(bias, x_scale, w_scale)
    text = f"turns the float bias {name} into int32 codes of x_scale * w_scale"
    beyond = codes == _INT_MIN
    if beyond.any():
        channel = int(np.argmax(beyond))
        wanted = float(bias[channel]) / float(np.broadcast_to(scale, bias.shape)[channel])
        text += f", which overflow: {wanted:.6g} in channel {channel} becomes {_INT_MIN}"
    return name, text, *_stored(node, name, codes, scale)


def bias_codes(bias: Array, x_scale: Array, w_scale: Array) -> tuple[Array, Array]:
    """The int32 codes that onnxruntime makes of a bias, and their scale. Overflow becomes the least number, as the
    conversion of x86 has it."""
    scale = (x_scale.astype(np.float32).ravel()[0] * w_scale.astype(np.float32)).reshape(w_scale.shape)
    with np.errstate(all="ignore"):
        steps = np.rint(bias / scale.ravel()).astype(np.float64)
    fits = np.abs(steps) < 2**31
    return np.where(fits, steps, _INT_MIN).astype(np.int64).astype(np.int32), np.asarray(scale, np.float32)


def _stored(node: Node, name: str, *arrays: Array) -> tuple[Node, Mapping[str, Array]]:
    """A DequantizeLinear of stored codes, a scale and a zero point, which makes this tensor."""
    start = f"{node.label}/{name}"
    names = tuple(f"{start}/{part}" for part, _ in zip(("codes", "scale", "zero point"), arrays, strict=False))
    outputs = (f"{start}/dequantized",)
    made = Node(node.index, f"{start}/dequantize", "", "DequantizeLinear", 13, names, outputs, {"axis": 0})
    return made, dict(zip(names, map(np.asarray, arrays), strict=True))


def _joined(node: Node, end: Node, parts: list[_Part]) -> Rewrite:
    """The node, and the Add that ends it, with what became of their stored tensors."""
    made = {tensor: new for tensor, _, new, _ in parts}
    constants = {name: array for *_, stored in parts for name, array in stored.items()}
    nodes: dict[str, tuple[Node, ...]] = {}
    for changed in (node, end):
        inputs = tuple(made[name].outputs[0] if name in made else name for name in changed.inputs)
        before = tuple(made[name] for name in changed.inputs if name in made)
        nodes[changed.outputs[0]] = (*before, replace(changed, inputs=inputs))
    return Rewrite(end, parts[-1][0], "; ".join(text for _, text, *_ in parts), nodes, constants)


def _with_wrapping_sums(model: Model, node: Node, end: Node, joined: Rewrite) -> Rewrite | None:
    """The rewrite with the integer operator, whose sums wrap around; None if no code of the bias makes them do so."""
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
    """Does only a QuantizeLinear read the result, or only a Relu or Clip that only a QuantizeLinear reads?"""
    found = readers(model, node)
    if len(found) == 1 and found[0].op_type in ("Relu", "Clip"):
        found = readers(model, found[0])
    return len(found) == 1 and found[0].op_type == "QuantizeLinear"
