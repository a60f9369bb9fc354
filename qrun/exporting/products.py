"""Layers that sum products: convolutions and matrix products, with their int32 sums and their requantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qrun.arithmetics.family import Arithmetic, Scales
from qrun.converting.integer import deviation
from qrun.converting.requantize import constants
from qrun.converting.verdicts import OperandRange, Values, bias_of, product_sums, quantized_tensors
from qrun.exporting.context import ExportContext
from qrun.exporting.layer import CodeScale, Layer, LayerTensor, NotExported, Rescale
from qrun.ir import Array, Node
from qrun.ops._quantized import bias
from qrun.ops._window import ConvGeometry, conv_window
from qrun.passes._evaluate import evaluate

_ROOM = 1 << 33
_INT32 = 2**31
QUANTIZED = ("QLinearConv", "QLinearMatMul", "QGemm")
SUMS = ("ConvInteger", "MatMulInteger")


def product_layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a QLinearConv, QLinearMatMul, QGemm, ConvInteger or MatMulInteger. Raises NotExported."""
    if node.attributes.get("channels_last", 0):
        raise NotExported("channels_last is not exported")
    if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("transA", 0):
        raise NotExported("alpha is not 1, or A is transposed")
    return _sums_alone(node, context) if node.op_type in SUMS else _requantized(node, context)


def _requantized(node: Node, context: ExportContext) -> Layer:
    """A product whose sums become codes."""
    values = Values(context.constant, context.shape)
    for quantizer, name in context.parameters(node):
        if context.constant(name) is None:
            raise NotExported(f"{quantizer} is not constant")
    x, w, y = quantized_tensors(node, values)
    if not (x.scale > 0).all() or not (w.scale > 0).all() or not (y.scale > 0).all():
        raise NotExported("a scale is not positive")
    if y.zero.size != 1 or x.zero.size != 1 or x.scale.size != 1:
        raise NotExported("its rows have several scales or zero points")
    reach = product_sums(node, (), values)
    if reach.low.min() < -_INT32 or reach.high.max() >= _INT32:
        raise NotExported("its sums may leave int32")
    family, info = context.family, np.iinfo(y.zero.dtype)
    apart = deviation(family, (x, w, y), reach.low, reach.high, (int(info.min), int(info.max)))
    scales = Scales(x.scale.reshape(()), w.scale.reshape(-1), y.scale.reshape(()))
    numbers, tensors = _product(node, (x, w), context)
    rescale = rescale_of(family, scales)
    largest = float(max(-reach.low.min(), reach.high.max()))
    if rescale.rule == "shift" and (largest * rescale.multiplier * 2.0**rescale.left >= 2.0**62).any():
        raise NotExported(f"64 bits do not hold its sums in {family.name}")
    tensors += [
        *rescale_tensors("", rescale),
        context.vector("output", node.outputs[0], CodeScale(y.scale, y.zero)),
    ]
    formula = "output = clip(rescale(accumulator) + zero point)"
    return Layer(node, _kind(node), numbers, tuple(tensors), family.name, apart, formula, {"": rescale})


def _sums_alone(node: Node, context: ExportContext) -> Layer:
    """A product of which only the sums are integers."""
    names = [*node.inputs, "", ""]
    found = []
    for name, zero in ((names[0], names[2]), (names[1], names[3])):
        own = context.constant(zero) if zero else None
        kind = context.dtype(name)
        found.append(OperandRange(name, np.ones(1, np.float32), np.zeros(1, kind) if own is None else own))
    numbers, tensors = _product(node, (found[0], found[1]), context)
    return Layer(node, _kind(node), numbers, tuple(tensors), "", None, "accumulator = sum of products")


def _kind(node: Node) -> str:
    return "conv" if node.op_type in ("QLinearConv", "ConvInteger") else "matmul"


def _product(
    node: Node, tensors: tuple[OperandRange, OperandRange], context: ExportContext
) -> tuple[dict[str, int], list[LayerTensor]]:
    """Geometry, operands, bias and sums."""
    x, w = tensors
    conv, alone = _kind(node) == "conv", node.op_type in SUMS
    weights = context.constant(w.name)
    xs = context.run(x.name)
    if conv and (weights is None or weights.ndim not in (3, 4)):
        raise NotExported("its weights are not constant" if weights is None else "it has more than two spatial axes")
    added = None
    if not alone and bias(node):
        added = bias_of(node, Values(context.constant, context.shape)).astype(np.int64)
    zeros = [_zeros(node, at, each, context) for at, each in enumerate((x, w))]
    if any(each.size != 1 for each in zeros[0]) or (weights is None and any(each.size != 1 for each in zeros[1])):
        raise NotExported("its rows have several zero points")
    sums = []
    for sample, codes in enumerate(xs):
        own = weights if weights is not None else context.run(w.name)[sample]
        sums.append(_accumulate(node, codes, own, [each[min(sample, len(each) - 1)] for each in zeros], added))
    first = weights if weights is not None else context.run(w.name)[0]
    numbers = _conv_numbers(node, xs[0], first) if conv else _matmul_numbers(node, xs[0], first)
    made = [context.vector("input_0", x.name, None if alone else CodeScale(x.scale, x.zero))]
    axis = None if w.scale.size == 1 else 0 if conv or node.attributes.get("transB", 0) else first.ndim - 1
    quantization = None if alone else CodeScale(w.scale, w.zero, axis)
    if weights is None:
        made.append(context.vector("input_1", w.name, quantization))
    else:
        stored = context.stored(w.name, context.weights(weights) if conv else weights)
        layout = context.weights_layout(weights.ndim) if conv else "OI" if node.attributes.get("transB", 0) else ""
        made.append(LayerTensor("weights", stored, False, w.name, layout, quantization))
    made = [*made, *_zero_points(zeros, weights is not None)]
    if added is not None:
        made.append(LayerTensor("bias", added.astype(np.int32), tensor=_bias_name(node)))
    layout = context.layout_of(node.outputs[0], sums[0].ndim)
    stack = np.stack([context.turn(each, node.outputs[0]) for each in sums])
    made.append(LayerTensor("accumulators", stack, True, node.outputs[0] if alone else "", layout))
    return numbers, made


def _bias_name(node: Node) -> str:
    found = bias(node)
    return found.bias.tensor if found else ""


def _zeros(node: Node, at: int, of: OperandRange, context: ExportContext) -> list[Array]:
    """The zero points of an operand: one array, or one for each sample where they are computed at run time."""
    place = at + 2
    if node.op_type in SUMS and len(node.inputs) > place and node.inputs[place]:
        name = node.inputs[place]
        if context.constant(name) is None:
            return [each.reshape(-1) for each in context.run(name)]
    return [of.zero.reshape(-1)]


def _zero_points(zeros: list[list[Array]], constant: bool) -> list[LayerTensor]:
    """The zero points as tensors; those of run time are vectors."""
    roles = ("input_0_zero_point", "weights_zero_point" if constant else "input_1_zero_point")
    made = []
    for role, each in zip(roles, zeros, strict=True):
        runtime = len(each) > 1
        array = np.stack(each).astype(np.int32) if runtime else each[0].astype(np.int32)
        made.append(LayerTensor(role, array.reshape(-1), runtime))
    return made


def _accumulate(node: Node, x: Array, w: Array, zeros: list[Array], added: Array | None) -> Array:
    """The int32 sums of a sample, with the bias."""
    conv = _kind(node) == "conv"
    kind = "ConvInteger" if conv else "MatMulInteger"
    if not conv and node.attributes.get("transB", 0):
        w = np.ascontiguousarray(w.T)
    kept: Mapping[str, Any] = {k: v for k, v in node.attributes.items() if k != "channels_last"} if conv else {}
    bare = Node(0, node.label, "", kind, 10, ("x", "w", "xz", "wz"), ("y",), kept)
    x_zero, w_zero = zeros[0].astype(x.dtype).reshape(()), zeros[1].astype(w.dtype)
    made = evaluate(bare, (x, w, x_zero, w_zero.reshape(()) if w_zero.size == 1 else w_zero), "exact", _ROOM)
    if made is None:
        raise NotExported(f"qrun's {kind} refuses its inputs")
    sums = made[0]
    if added is None:
        return sums
    wide = sums.astype(np.int64) + (added.reshape(-1, *[1] * (sums.ndim - 2)) if conv else added)
    if np.abs(wide).max(initial=0) >= _INT32:
        raise NotExported("its sums leave int32")
    return wide.astype(np.int32)


def _conv_numbers(node: Node, x: Array, w: Array) -> dict[str, int]:
    """Sizes of a convolution; one spatial axis becomes two, the first of size 1."""
    names = ConvGeometry.of(node.attributes)
    win = conv_window(x, w, names)
    one = x.ndim == 3

    def two(values: Any, none: int) -> tuple[int, int]:
        return (none, int(values[0])) if one else (int(values[0]), int(values[1]))

    return {
        **spatial(x.shape, two(x.shape[2:], 1), two(win.out, 1)),
        **dict(zip(("kernel_h", "kernel_w"), two(win.kernel, 1), strict=True)),
        **dict(zip(("stride_h", "stride_w"), two(win.strides, 1), strict=True)),
        **dict(zip(("dilation_h", "dilation_w"), two(win.dilations, 1), strict=True)),
        **dict(zip(("pad_top", "pad_left"), two(win.begin, 0), strict=True)),
        "channels_out": int(w.shape[0]),
        "groups": int(names.group),
    }


def spatial(shape: tuple[int, ...], size: tuple[int, int], out: tuple[int, int]) -> dict[str, int]:
    """The sizes of an image before and after a window."""
    return {
        "batch": int(shape[0]),
        "channels": int(shape[1]),
        "height": size[0],
        "width": size[1],
        "height_out": out[0],
        "width_out": out[1],
    }


def _matmul_numbers(node: Node, a: Array, b: Array) -> dict[str, int]:
    """Sizes of a matrix product: batch matrices of rows * depth, times one or as many matrices of depth * columns."""
    turned = int(bool(node.attributes.get("transB", 0)))
    if a.ndim < 1 or b.ndim < 2:
        raise NotExported("an operand is a vector")
    depth, columns = (b.shape[-1], b.shape[-2]) if turned else (b.shape[-2], b.shape[-1])
    if b.ndim == 2:
        return {"batch": 1, "rows": int(a.size // depth), "depth": depth, "columns": columns, "transposed": turned}
    if b.shape[:-2] != a.shape[:-2]:
        raise NotExported("its batches broadcast")
    count = int(np.prod(b.shape[:-2], dtype=np.int64))
    return {"batch": count, "rows": a.shape[-2], "depth": depth, "columns": columns, "transposed": turned}


def rescale_of(family: Arithmetic, scales: Scales) -> Rescale:
    """The constants of a family for these scales."""
    found = constants(family, scales)
    left = np.log2(found["left"].astype(np.float64)).astype(np.int64)
    rule = "high half" if family.steps == "high half" else "shift"
    flat = {name: np.asarray(found[name]).astype(np.int64).reshape(-1) for name in ("multiplier", "right")}
    return Rescale(rule, family.ties, flat["multiplier"], left.reshape(-1), flat["right"], np.ones(1, np.int64))


def rescale_tensors(name: str, of: Rescale) -> list[LayerTensor]:
    """The constants of a rescaling, as tensors. name: begins their roles."""
    roles = ["multiplier", "divisor"] if of.rule == "ratio" else ["multiplier", "left", "right"]
    parts = {"multiplier": of.multiplier, "divisor": of.divisor, "left": of.left, "right": of.right}
    wide = {"multiplier": np.int64, "divisor": np.int64, "left": np.uint8, "right": np.uint8}
    named = {"left": "shift_left", "right": "shift_right"}
    return [LayerTensor(f"{name}{named.get(role, role)}", parts[role].astype(wide[role])) for role in roles]
