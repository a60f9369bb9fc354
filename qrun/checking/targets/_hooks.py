"""Conditions on an operator that the vocabulary of target files cannot express; a file names them: {"hook": NAME}."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qrun.checking.rules._scope import static_shape
from qrun.checking.targets._facts import ports
from qrun.checking.targets._view import QUANTIZE, Op, TargetView

Hook = Callable[[TargetView, Op], "bool | None"]


def _name(op: Op, at: int) -> str:
    """The name of an input; "" if the node leaves it out."""
    return op.inputs[at] if at < len(op.inputs) else ""


def _grows_by_2_4_8(view: TargetView, op: Op) -> bool | None:
    """Are height and width of the result 2, 4 or 8 times the input's, or has the input one pixel?"""
    shapes = [static_shape(view.shape(name)) for name in (_name(op, 0), op.outputs[0])]
    if shapes[0] is None or shapes[1] is None or len(shapes[0]) != len(shapes[1]):
        return None
    before, after = shapes[0][2:], shapes[1][2:]
    if before == after or set(before) == {1}:
        return True
    ratios = {new / old for old, new in zip(before, after, strict=True) if old}
    return len(ratios) == 1 and ratios <= {2.0, 4.0, 8.0}


def _reduces_few(view: TargetView, op: Op) -> bool | None:
    """Are fewer than 65536 elements reduced to one?"""
    shapes = [static_shape(view.shape(name)) for name in (_name(op, 0), op.outputs[0])]
    if shapes[0] is None or shapes[1] is None:
        return None
    sizes = [1, 1]
    for at, shape in enumerate(shapes):
        for size in shape or ():
            sizes[at] *= size
    return sizes[0] < 65536 * max(sizes[1], 1)


def _scales_of_one_axis(view: TargetView, op: Op) -> bool | None:
    """Do the blocks of a QuantizeLinear or DequantizeLinear lie along one axis, and divide it?"""
    shape = static_shape(view.shape(_name(op, 0)))
    scales = static_shape(view.shape(_name(op, 1)))
    if shape is None or scales is None:
        return None
    if len(scales) != len(shape):
        return len(scales) < 2
    differing = [(whole, part) for whole, part in zip(shape, scales, strict=True) if whole != part]
    return len(differing) <= 1 and all(part and whole % part == 0 for whole, part in differing)


def _shift_of_bias(view: TargetView, op: Op) -> bool | None:
    """Can the NPU shift the bias? By how much it can depends on the shift of the result."""
    x, w, b, y = (ports(view, op, port)[0].get("scale") for port in ("x", "w", "b", "y"))
    if x is None or w is None or b is None or y is None or any(s.size != 1 or not s > 0 for s in (x, w, b, y)):
        return None
    product = np.log2(x) + np.log2(w)
    cut, shift = np.log2(y) - product, np.log2(b) - product
    return bool(np.minimum(0, cut - 16) <= shift <= 15)


def _one_zero_point(view: TargetView, op: Op) -> bool | None:
    """Have the weights one zero point for all channels?"""
    zero = ports(view, op, "w")[0].get("zero")
    return None if zero is None else len(zero) <= 1


def _scale_for_each_channel(view: TargetView, op: Op) -> bool | None:
    """Have the weights of a Conv, or the matrix of a product, one scale, or as many as there are output channels?"""
    facts = ports(view, op, "w")[0]
    if "scale" not in facts or not facts.get("dim"):
        return None
    many, dims = len(facts["scale"]), facts["dim"]
    if many == 1 or op.op_type == "Conv":
        return many in (1, dims[0])
    turned = op.node is not None and op.node.attributes.get("transB")
    return len(dims) == 2 and many == dims[0 if turned else 1]


def _scale_like_data(view: TargetView, op: Op) -> bool | None:
    """Has the scale the element type of what is quantized?"""
    types = [view.type(name) for name in (_name(op, 0), _name(op, 1))]
    return None if "" in types else types[0] == types[1]


def _as_many_channels(view: TargetView, op: Op) -> bool | None:
    """Have the weights of an integer convolution as many input channels as output channels?"""
    facts = ports(view, op, "w")[0]
    return None if facts.get("dim") is None or facts["rank"] < 2 else facts["batch"] == facts["channels"]


def _quantized_output(view: TargetView, op: Op) -> bool:
    """Is a result an output of the model, after QuantizeLinear and DequantizeLinear?"""
    return any(real in view.results for name in op.outputs for real in view.requantized(name))


def _each_pixel(view: TargetView, op: Op) -> bool | None:
    """Does a convolution without groups read each pixel, because its kernel is larger than one or its strides are 1?"""
    shape, node = static_shape(view.shape(_name(op, 1))), op.node
    if shape is None or node is None:
        return None
    strides: Any = node.attributes.get("strides", ())
    return set(shape[2:]) != {1} or node.attributes.get("group", 1) != 1 or set(strides) <= {1}


def _slope_along_channels(view: TargetView, op: Op) -> bool | None:
    """Is the slope of a PRelu one that cannot be taken for one along the channels (axis 1)?"""
    shape, slope = (static_shape(view.shape(name)) for name in (_name(op, 0), _name(op, 1)))
    if shape is None or slope is None:
        return None
    return len(shape) < 3 or len(slope) != 1 or slope[0] == 1 or slope[0] != shape[1]


def _codes_for_product(view: TargetView, op: Op) -> bool:
    """Does no MatMul in float read the result as its second input, through QuantizeLinear and DequantizeLinear of
    another scale?"""
    x = ports(view, op, "x")[0]
    for real in view.requantized(op.outputs[0]):
        for reader in view.read(real):
            if reader.op_type == "MatMul" and _name(reader, 1) == real:
                first, second = ports(view, reader, "x")[0], ports(view, reader, "w")[0]
                in_float = second["type"] != "int8" or first.get("zero", [0]) != [0]
                moved = second["type"] == "uint8" or not np.array_equal(x.get("scale", ()), second.get("scale", ()))
                if in_float and moved:
                    return False
    return True


def _quantized_after_bias(view: TargetView, op: Op) -> bool:
    """Does a QuantizeLinear read the result, after an Add of a stored vector for a MatMul, and after Relu or Clip?"""
    name = op.outputs[0]
    if op.op_type == "MatMul":
        add = view.only_reader(name, ("Add",))
        others = [other for other in add.inputs if other != name] if add is not None else []
        if add is None or len(others) != 1 or not view.constant(others[0]) or len(view.shape(others[0]) or ()) != 1:
            return False
        name = add.outputs[0]
    activation = view.only_reader(name, ("Relu", "Clip"))
    return view.only_reader(activation.outputs[0] if activation is not None else name, (QUANTIZE,)) is not None


def _depthwise(view: TargetView, op: Op) -> bool | None:
    """Has a convolution as many groups as input channels and as output channels?"""
    shape = static_shape(view.shape(_name(op, 1)))
    group: Any = op.node.attributes.get("group", 1) if op.node is not None else 1
    return None if shape is None or len(shape) < 2 else shape[0] == group > 1 == shape[1]


def _fixed_inputs(view: TargetView, op: Op) -> bool:
    """Are the shapes of the model's inputs fixed?"""
    return view.static


HOOKS: Mapping[str, Hook] = {
    "grows by 2, 4 or 8": _grows_by_2_4_8,
    "reduces fewer than 65536": _reduces_few,
    "shift of the bias": _shift_of_bias,
    "one zero point for weights": _one_zero_point,
    "scale in the type of the data": _scale_like_data,
    "as many channels in as out": _as_many_channels,
    "a quantized result is an output": _quantized_output,
    "blocks along one axis": _scales_of_one_axis,
    "reads each pixel": _each_pixel,
    "slope along the channels": _slope_along_channels,
    "codes for a product of codes": _codes_for_product,
    "a scale for each output channel": _scale_for_each_channel,
    "quantized after bias": _quantized_after_bias,
    "depthwise": _depthwise,
    "fixed shapes of inputs": _fixed_inputs,
}
