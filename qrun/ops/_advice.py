"""Fixes for nodes that their operator refuses, or that have no operator here: texts that errors of a run and findings
of check share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array, Node
from qrun.ir.foreign import foreign_domain
from qrun.ir.schema import DOMAINS, MS, OPSETS, VENDORS, schema
from qrun.ir.types import is_extension, shape_text, type_name

PER_AXIS = "export one scale per channel of the quantized axis, or a single scale"


def type_fix(node: Node, index: int, dtype: np.dtype[Any]) -> str:
    """The fix for an input whose element type the operator does not accept."""
    for opset in range(node.version + 1, OPSETS[-1] + 1) if node.domain in DOMAINS else ():
        known = schema(node.domain, node.op_type, opset)
        if known is None or index >= len(known.inputs):
            break
        types = known.inputs[index].types
        if types is not None and dtype in types:
            version = known.version
            return (
                f"opset {version} allows {type_name(dtype)}: onnx.version_converter.convert_version(model, {version})"
            )
    if node.op_type == "QuantizeLinear" and index == 0:
        return f"dequantize {node.inputs[0]} before this node, or leave the node out where it is quantized already"
    return "cast the tensor to a type that the operator takes"


def axis_fix(shape: Sequence[int | str | None], count: int, axis: int) -> str:
    """The fix for `count` scales along an axis of another length."""
    fitting = [str(index) for index, size in enumerate(shape) if size == count]
    if not fitting:
        return PER_AXIS
    note = " (axis is 1 unless the node sets it)" if axis == 1 else ""
    return (
        f"write one scale per slice of axis {axis}, or set axis={' or axis='.join(fitting)}, along which there are "
        f"{count} slices{note}"
    )


def zero_point_fix(zero: Array | None, dtype: np.dtype[Any] | None, scale: Sequence[int]) -> str:
    """The fix for a zero point whose shape is not its scale's. zero: its value, if it is stored; dtype: its type."""
    if zero is not None and zero.size and (zero == zero.reshape(-1)[0]).all():
        home = "ml_dtypes" if is_extension(zero.dtype) else "np"
        value = zero.reshape(-1)[0]
        return f"store it as np.full({tuple(scale)}, {value}, {home}.{zero.dtype.name})"
    if zero is not None and zero.size:
        return f"store one scale for each of the {zero.size} zero points"
    kind = "" if dtype is None else f"{type_name(dtype)} "
    return (
        f"store it as {kind}{shape_text(tuple(scale))}, one zero point for each scale"
        if scale
        else "store one zero point"
    )


def attribute_fix(node: Node, name: str) -> str:
    """The fix for an attribute that this version of the operator does not have."""
    versions = [] if node.domain else list(OPSETS)
    having = [v for v in versions if (known := schema("", node.op_type, v)) and name in known.attributes]
    now = schema(node.domain, node.op_type, node.version)
    places = [] if now is None else [formal.name for formal in now.inputs]
    if name in places:
        return f"{name} is an input of {node.op_type}-{node.version}: store it as a tensor, and name it as input {places.index(name)}"
    later = next((v for v in having if v > node.version), None)
    if later is not None:
        return f"convert the model to opset {later}: onnx.version_converter.convert_version(model, {later})"
    if having:
        return f"import opset {having[-1]} or earlier, which has {name}"
    who = "the operator" if node.domain in ("", MS) else f"{node.op_type} of {node.domain}"
    return f"no version of {who} has {name}: export without it, if the model means the same then"


def instead(node: Node) -> str:
    """What to use in place of this node, or "" if nothing is known."""
    foreign = foreign_domain(node.domain)
    return "" if foreign is None else foreign.instead


def why_without(node: Node) -> str:
    """Why qrun does not run this node."""
    foreign = foreign_domain(node.domain)
    if foreign is not None:
        return foreign.why(node.domain)
    if node.domain not in {*DOMAINS, *VENDORS}:
        return f"domain {node.domain!r} is not one that qrun knows."
    return ""


def runs_in_ort(node: Node) -> bool:
    """Whether onnxruntime itself has the operators of a domain that is not part of ONNX."""
    foreign = foreign_domain(node.domain)
    return foreign is not None and foreign.with_ort
