"""Defects of rewritten graphs: the model is changed, and qrun runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qrun
from qrun.conform.suite import Case
from qrun.ir import Array

Change = Callable[[onnx.ModelProto], bool]
"""Changes a model in place; false if the defect does not concern it."""


def answers(case: Case, change: Change) -> Mapping[str, Array] | None:
    """What qrun gives for the changed model."""
    model = onnx.load_from_string(case.model)
    if not change(model):
        return None
    made = qrun.Session(model, backend="reference", fuse=False).run(dict(case.inputs))
    return {name: np.asarray(made[name]) for name in case.expected}


def nodes(model: onnx.ModelProto, op: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == op]


def maker(model: onnx.ModelProto, name: str) -> onnx.NodeProto | None:
    return next((node for node in model.graph.node if name in node.output), None)


def constant(model: onnx.ModelProto, name: str) -> onnx.TensorProto | None:
    return next((tensor for tensor in model.graph.initializer if tensor.name == name), None)


def without(op: str) -> Change:
    """The operator is skipped: its input goes on."""

    def change(model: onnx.ModelProto) -> bool:
        found = nodes(model, op)
        for node in found:
            for reader in model.graph.node:
                for at, name in enumerate(reader.input):
                    if name == node.output[0]:
                        reader.input[at] = node.input[0]
            model.graph.node.remove(node)
        return bool(found)

    return change


def scale_of_first(op: str) -> Change:
    """Both operands are read with the scale and zero point of the first."""

    def change(model: onnx.ModelProto) -> bool:
        changed = False
        for node in nodes(model, op):
            makers = [maker(model, name) for name in node.input]
            if any(m is None or m.op_type != "DequantizeLinear" for m in makers):
                continue
            first = makers[0]
            for other in makers[1:]:
                if first is not None and other is not None and other is not first:
                    for at in range(1, len(other.input)):
                        changed |= other.input[at] != first.input[at]
                        other.input[at] = first.input[at]
        return changed

    return change


def attribute(op: str, name: str, value: Callable[[object], object]) -> Change:
    def change(model: onnx.ModelProto) -> bool:
        changed = False
        for node in nodes(model, op):
            for found in node.attribute:
                if found.name == name:
                    old = helper.get_attribute_value(found)
                    new = value(old)
                    changed |= new != old
                    found.CopyFrom(helper.make_attribute(name, new))
        return changed

    return change


def initializer(op: str, place: int, value: Callable[[Array], Array]) -> Change:
    """An input of the operator that is an initializer, or is dequantized from one, has other values."""

    def change(model: onnx.ModelProto) -> bool:
        changed = False
        for node in nodes(model, op):
            if place >= len(node.input):
                continue
            source = maker(model, node.input[place])
            found = constant(model, source.input[0] if source is not None else node.input[place])
            if found is not None:
                old = numpy_helper.to_array(found)
                new = np.asarray(value(old)).astype(old.dtype).reshape(old.shape)
                changed |= not np.array_equal(old, new)
                found.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(new), found.name))
        return changed

    return change


def residual_read_after(model: onnx.ModelProto) -> bool:
    """A residual is added before the codes between are made: their Quantize and Dequantize are skipped."""
    changed = False
    for node in nodes(model, "Add"):
        for at, name in enumerate(node.input):
            dequantized = maker(model, name)
            quantized = maker(model, dequantized.input[0]) if dequantized is not None else None
            if quantized is not None and quantized.op_type == "QuantizeLinear":
                node.input[at] = quantized.input[0]
                changed = True
    return changed


def padded_with_least(model: onnx.ModelProto) -> bool:
    """Pads are the value of code 0, not 0.0."""
    changed = False
    for node in nodes(model, "Pad"):
        source = maker(model, node.input[0])
        if source is None or len(source.input) < 3 or len(node.input) > 2:
            continue
        scale, zero = (constant(model, name) for name in source.input[1:3])
        if scale is None or zero is None:
            continue
        value = -numpy_helper.to_array(scale) * float(numpy_helper.to_array(zero))
        model.graph.initializer.append(numpy_helper.from_array(np.float32(value), "pad_value"))
        node.input.append("pad_value")
        changed = True
    return changed


def bias_without_scale(model: onnx.ModelProto) -> bool:
    """The codes of a bias count as multiples of x_scale * w_scale."""
    changed = False
    for node in [node for node in model.graph.node if node.op_type in ("Conv", "Gemm") and len(node.input) > 2]:
        sources = [maker(model, name) for name in node.input]
        if any(source is None or source.op_type != "DequantizeLinear" for source in sources):
            continue
        x, w, b = (numpy_helper.to_array(constant(model, source.input[1])) for source in sources)  # type: ignore[union-attr, arg-type]
        if not np.array_equal(np.broadcast_to(x * w, b.shape), b):
            constant(model, sources[2].input[1]).CopyFrom(  # type: ignore[union-attr]
                numpy_helper.from_array(np.broadcast_to(x * w, b.shape).copy(), sources[2].input[1])  # type: ignore[union-attr]
            )
            changed = True
    return changed


def whole_output_of_first(model: onnx.ModelProto) -> bool:
    """All outputs are quantized with the zero point of the first, of its type."""
    found = nodes(model, "QuantizeLinear")
    for node in found[1:]:
        node.input[2] = found[0].input[2]
    return len(found) > 1


PLANTED: list[tuple[str, Change, str]] = [
    ("Relu skipped", without("Relu"), "graph"),
    ("Clip skipped", without("Clip"), "graph"),
    ("Add with one scale", scale_of_first("Add"), "graph"),
    ("Concat with one scale", scale_of_first("Concat"), "graph"),
    ("bias of Conv lost", initializer("Conv", 2, np.zeros_like), "graph"),
    ("bias of Gemm shifted", initializer("Gemm", 2, lambda b: np.roll(b, 1)), "graph"),
    ("bias of Gemm without its scale", bias_without_scale, "graph.matmul"),
    ("weights of depthwise filters shifted", initializer("Conv", 1, lambda w: np.roll(w, 1, 0)), "graph.conv"),
    ("codes between convolution and residual skipped", residual_read_after, "graph.conv"),
    ("Pad with code 0", padded_with_least, "graph.moves"),
    ("Pad begin and end swapped", initializer("Pad", 1, lambda p: np.concatenate([p[len(p) // 2 :], p[: len(p) // 2]])), "graph.moves"),
    ("pads of AveragePool counted", lambda m: any(n.attribute.append(helper.make_attribute("count_include_pad", 1)) or True for n in nodes(m, "AveragePool") if not any(a.name == "count_include_pad" for a in n.attribute)), "graph.pool"),
    ("one zero point for all outputs", whole_output_of_first, "graph"),
]  # fmt: skip
"""Name of the defect, change of the model, beginning of the ids of its cases."""
