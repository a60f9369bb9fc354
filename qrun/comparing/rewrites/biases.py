"""A stored float bias becomes int32 codes of x_scale * w_scale, and stored float weights become int8."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from qrun.comparing.rewrites._rewrite import Rewrite, channel_axis, number, only_reader, parameters, readers
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS

_INT_MIN = -(2**31)


_SUMS = ("Conv", "ConvTranspose", "Gemm")


def bias_rewrites(model: Model) -> Iterator[Rewrite]:
    """A stored float bias becomes int32 codes of x_scale * w_scale, and stored float weights become int8."""
    for node in model.nodes:
        if node.op_type not in _SUMS or node.domain or len(node.inputs) < 2 or not _is_requantized(model, node):
            continue
        x = parameters(model, model.producers.get(node.inputs[0]))
        if x is None or not x.is_scalar:
            continue
        w_scale, parts = _weights(model, node)
        bias = model.constants.get(node.inputs[2]) if len(node.inputs) > 2 else None
        if w_scale is not None and bias is not None and bias.dtype == np.float32 and bias.ndim == 1:
            parts = [*parts, _coded_bias(node, bias, x.scale, w_scale)]
        if parts:
            joined = _joined(node, parts)
            yield _with_wrapping_sums(model, node, joined) or joined


_Part = tuple[str, str, int, Node, Mapping[str, Array]]
"""The tensor, the clause, the place of the input, what makes it now, and the constants."""


def _weights(model: Model, node: Node) -> tuple[Array | None, list[_Part]]:
    """The scale of the weights, and what they become if they are stored as floats."""
    name = node.inputs[1]
    stored, made = model.constants.get(name), parameters(model, model.producers.get(name))
    if made is not None:
        of_channels = made.is_scalar or number(made.node, "axis", 1) == channel_axis(node)
        return (made.scale if of_channels and not number(made.node, "block_size") else None), []
    if stored is None or stored.dtype != np.float32 or stored.ndim < 2 or not np.any(stored):
        return None, []
    least, most = (np.float32(limit(stored.ravel(), initial=0)) for limit in (np.min, np.max))
    scale = np.float32((most - least) / np.float32(255))
    zero = np.rint(np.float32(-128) - least / scale)
    codes = np.clip(np.rint(stored / scale) + zero, -128, 127).astype(np.int8)
    text = f"turns the float weights {name} into int8 codes with one scale, {float(scale):.6g}"
    return np.asarray(scale), [(name, text, 1, *_stored(node, name, codes, np.asarray(scale), zero.astype(np.int8)))]


def _coded_bias(node: Node, bias: Array, x_scale: Array, w_scale: Array) -> _Part:
    name = node.inputs[2]
    codes, scale = bias_codes(bias, x_scale, w_scale)
    text = f"turns the float bias {name} into int32 codes of x_scale * w_scale"
    beyond = codes == _INT_MIN
    if beyond.any():
        channel = int(np.argmax(beyond))
        wanted = float(bias[channel]) / float(np.broadcast_to(scale, bias.shape)[channel])
        text += f", which overflow: {wanted:.6g} in channel {channel} becomes {_INT_MIN}"
    return name, text, 2, *_stored(node, name, codes, scale)


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


def _joined(node: Node, parts: list[_Part]) -> Rewrite:
    inputs = list(node.inputs)
    constants: dict[str, Array] = {}
    for _, _, place, made, stored in parts:
        inputs[place] = made.outputs[0]
        constants |= stored
    changed = replace(node, inputs=tuple(inputs))
    tensor, text = parts[-1][0], "; ".join(part[1] for part in parts)
    return Rewrite(node, tensor, text, {node.outputs[0]: (*(part[3] for part in parts), changed)}, constants)


def _with_wrapping_sums(model: Model, node: Node, joined: Rewrite) -> Rewrite | None:
    """The rewrite with the integer operator, whose sums wrap around; None if no code of the bias makes them do so."""
    last = only_reader(model, node)
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
    elif node.op_type == "Gemm":
        inputs = (*x.inputs, *w.inputs, bias, *last.inputs[1:])
        kept = {key: value for key, value in node.attributes.items() if key in ("transA", "transB")}
        made = Node(node.index, node.label, MS, "QGemm", 1, inputs, last.outputs, kept)
    else:
        return None
    return replace(joined, nodes={node.outputs[0]: (), last.outputs[0]: (made,)})


def _is_requantized(model: Model, node: Node) -> bool:
    """Does only a QuantizeLinear read the result, or only a Relu or Clip that only a QuantizeLinear reads?"""
    found = readers(model, node)
    if len(found) == 1 and found[0].op_type in ("Relu", "Clip"):
        found = readers(model, found[0])
    return len(found) == 1 and found[0].op_type == "QuantizeLinear"
