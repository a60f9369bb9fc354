"""Collects the facts about an operator's tensors that the rules of targets test."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from qrun.checking.rules._scope import static_shape
from qrun.checking.targets._view import BOTH, DEQUANTIZE, QUANTIZE, Op, TargetView
from qrun.ir import Array
from qrun.ir.types import ONNX_NAMES
from qrun.ops import Quantizer, bias, operands, quantizers

Facts = dict[str, Any]
_NAMES = {"x": 0, "w": 1, "b": 2}
_REAL = ("float", "float16", "bfloat16", "double")


def ports(view: TargetView, op: Op, port: str) -> Sequence[Facts]:
    """The facts of each tensor at a port of an operator; the package's docstring lists the ports."""
    if port == "q":
        return [_codes(view, op)]
    if port == "y":
        return [_output(view, op, op.outputs[0])]
    if port == "outputs":
        return [_output(view, op, name) for name in op.outputs if name]
    if port in ("inputs", "data"):
        found = [f for f in (_input(view, op, name) for name in _operands(op)) if _is_real(f)]
        return found if port == "inputs" else [f for f in found if not f["const"]]
    return [_input(view, op, _named(op, port))]


def _operands(op: Op) -> Sequence[str]:
    """The inputs, without the scales, zero points and bias of an integer operator."""
    return [name for name, _ in operands(op.node)] if op.integer and op.node is not None else op.inputs


def _named(op: Op, port: str) -> str:
    """The tensor at the port of an input; "" if there is none. x, w and b are operands also of integer operators."""
    index = _NAMES[port] if port in _NAMES else int(port)
    names = op.inputs
    if op.integer and op.node is not None and port in _NAMES:
        own = bias(op.node)
        names = [*_operands(op), "", ""][:2] + ([own.bias.tensor] if own is not None else [])
    return names[index] if index < len(names) else ""


def _is_real(facts: Facts) -> bool:
    """Does the tensor represent real numbers, and no shape or index?"""
    return bool(facts["given"]) and (facts["quantized"] or facts["type"] in (*_REAL, "int8", "uint8"))


def _input(view: TargetView, op: Op, name: str) -> Facts:
    """The facts of an input."""
    if not name:
        return {"given": False}
    if ("read", name) not in view.found:
        view.found["read", name] = _read(view, name)
    facts = view.found["read", name]
    if op.integer and op.node is not None and not facts["quantized"]:
        own = next((q for q in quantizers(op.node) if not q.is_output and q.tensor.tensor == name), None)
        facts = facts if own is None else facts | _own(view, own)
    return facts


def _read(view: TargetView, name: str) -> Facts:
    """The facts of a tensor that an operator reads."""
    maker = view.maker.get(name)
    real = view.type(name)
    facts: Facts = {"given": True, "tensor": name, "quantized": False, "type": real, "real": real}
    facts |= {"const": view.constant(name), "readers": len(view.read(name)), "stored": view.array(name) is not None}
    facts |= _size(view, name) | {"prev": "" if maker is None else maker.op_type}
    if maker is not None and maker.op_type == DEQUANTIZE:
        source = view.maker.get(maker.inputs[0])
        facts |= {"quantized": True, "stored": view.array(maker.inputs[0]) is not None} | _parameters(view, maker)
        facts |= _types(view, maker.inputs[0], source)
        facts["spread"] = source is not None and source.spread
        if source is not None and source.op_type == QUANTIZE:
            before = view.maker.get(source.inputs[0])
            facts["prev"] = "" if before is None else before.op_type
    return facts


def _output(view: TargetView, op: Op, name: str) -> Facts:
    """The facts of an output."""
    if ("made", name) in view.found:
        return view.found["made", name]
    end = view.fused.get(name, name)
    readers = view.read(end)
    quantizing = [reader for reader in readers if reader.op_type == QUANTIZE]
    real = view.type(name)
    facts: Facts = {"given": True, "tensor": name, "quantized": False, "type": real, "real": real, "const": False}
    facts |= {"readers": len(readers), "q_readers": len(quantizing), "graph_output": end in view.results}
    facts |= {"next": _next(view, name)} | _size(view, name)
    if quantizing:
        facts |= {"quantized": True, "spread": quantizing[0].spread} | _parameters(view, quantizing[0])
        facts |= _types(view, quantizing[0].outputs[0], quantizing[0])
    elif op.integer and op.node is not None:
        own = next((q for q in quantizers(op.node) if q.is_output), None)
        facts |= {} if own is None or name != op.outputs[0] else _own(view, own)
    view.found["made", name] = facts
    return facts


def _codes(view: TargetView, op: Op) -> Facts:
    """The facts of the codes that a QuantizeLinear makes or a DequantizeLinear reads."""
    if ("codes", op.outputs[0]) in view.found:
        return view.found["codes", op.outputs[0]]
    codes = op.outputs[0] if op.op_type == QUANTIZE else op.inputs[0]
    source = op if op.op_type == QUANTIZE else view.maker.get(codes)
    facts: Facts = {"given": True, "tensor": codes, "quantized": True, "const": view.constant(op.inputs[0])}
    facts |= {"real": view.type(op.inputs[0] if op.op_type == QUANTIZE else op.outputs[0])}
    readers = view.read(op.outputs[0])
    facts |= {
        "readers": len(readers),
        "graph_output": op.outputs[0] in view.results,
        "next": _next(view, op.outputs[0]),
    }
    facts |= {"stored": view.array(codes) is not None} | _size(view, op.inputs[0])
    facts |= _parameters(view, op) | _types(view, codes, source)
    view.found["codes", op.outputs[0]] = facts
    return facts


def _next(view: TargetView, name: str) -> str:
    """The operator of a tensor's only reader, if that has only one reader too; else ""."""
    readers = view.read(name)
    made = readers[0].outputs[0] if len(readers) == 1 else ""
    return readers[0].op_type if len(view.read(made)) == 1 and made not in view.results else ""


def _size(view: TargetView, name: str) -> Facts:
    """Rank and sizes, as far as they are known."""
    shape = view.shape(name)
    if shape is None:
        return {}
    known = static_shape(shape)
    facts: Facts = {"rank": len(shape), "static": known is not None}
    sizes = [size if isinstance(size, int) else None for size in shape]
    facts |= {"batch": sizes[0], "last": sizes[-1]} if sizes else {}
    facts |= {"channels": sizes[1]} if len(sizes) > 1 else {}
    return facts if known is None else facts | {"dim": known, "size": prod(known)}


def _types(view: TargetView, codes: str, maker: Op | None) -> Facts:
    """The facts `declared` (the codes' type in the file) and `type` (the one that the target gives them). They differ
    where the target turns int8 into uint8 (`makes_unsigned`): for codes of a QuantizeLinear that `_read_once`
    accepts."""
    declared = view.type(codes)
    if not view.makes_unsigned or declared != "int8" or maker is None or maker.op_type != QUANTIZE:
        return {"declared": declared, "type": declared}
    return {"declared": declared, "type": "uint8" if _read_once(view, maker) else declared}


def _read_once(view: TargetView, quantize: Op) -> bool:
    """Does only a DequantizeLinear with at most one reader read the codes, and have both nodes a stored zero point?"""
    codes, readers = quantize.outputs[0], view.read(quantize.outputs[0])
    if (
        codes in view.results
        or len(readers) != 1
        or readers[0].op_type != DEQUANTIZE
        or view.constant(quantize.inputs[0])
    ):
        return False
    zeros = [view.array(op.inputs[2]) if len(op.inputs) > 2 else None for op in (quantize, readers[0])]
    if any(zero is None or zero.size != 1 for zero in zeros):
        return False
    made = readers[0].outputs[0]
    return len(view.read(made)) + (made in view.results) <= 1


def _parameters(view: TargetView, op: Op) -> Facts:
    """The facts about scale and zero point of a QuantizeLinear or DequantizeLinear."""
    attributes = op.node.attributes if op.node is not None else {}
    scale, zero = (op.inputs[k] if len(op.inputs) > k else "" for k in (1, 2))
    block = attributes.get("block_size", 0)
    facts = _scales(view, scale, zero) | {"block": block if isinstance(block, int) else 0}
    facts["domain"] = op.domain
    facts["axis_given"] = "axis" in attributes
    if facts["per"] == "unknown":
        return facts
    facts["per"] = "block" if block else facts["per"]
    shape, axis = view.shape(op.inputs[0]), attributes.get("axis", 1)
    if facts["per"] != "tensor" and shape and isinstance(axis, int):
        facts["axis"] = axis % len(shape)
        facts["axis_back"] = len(shape) - facts["axis"]
    return facts


def _own(view: TargetView, own: Quantizer) -> Facts:
    """The facts about a tensor that an integer operator reads or makes: its codes are the tensor itself."""
    scale, zero = (slot.tensor if slot is not None else "" for slot in (own.scale, own.zero_point))
    declared = view.type(own.tensor.tensor) or view.type(zero)
    return _scales(view, scale, zero) | {"quantized": True, "type": declared, "declared": declared}


def _scales(view: TargetView, scale: str, zero: str) -> Facts:
    """The facts about a scale and a zero point, given by the names of their tensors."""
    if (scale, zero) in view.found:
        return view.found[scale, zero]
    scales, zeros = view.array(scale), view.array(zero) if zero else None
    facts: Facts = {"zero_given": bool(zero), "scale_type": view.type(scale), "scale_stored": scales is not None}
    if scales is None or (zero and zeros is None):
        facts["per"] = "unknown"
    else:
        facts["scale"] = scales.astype(np.float64).reshape(-1)
        facts["zero"] = _distinct(zeros) if zeros is not None else [0]
        facts["scalar"] = scales.ndim == 0 and (zeros is None or zeros.ndim == 0)
        facts["per"] = "tensor" if scales.size == 1 else "channel"
    view.found[scale, zero] = facts
    return facts


def _distinct(zeros: Array) -> list[int]:
    """The zero points, each once."""
    found = zeros.astype(np.float64)
    return [int(found.item())] if found.size == 1 else np.unique(found).astype(np.int64).tolist()


def reads_codes(view: TargetView, op: Op) -> bool:
    """Does an operator read a dequantized tensor that is not stored?"""
    if op.op_type in (*BOTH, "Constant", "Shape", "Size"):
        return False
    return any(not view.constant(maker.inputs[0]) for maker in dequantizers(view, op))


def is_asked(view: TargetView, op: Op) -> bool:
    """Does the file want the operator in integers: is its result quantized, or a stored input?"""
    weights = any(view.constant(maker.inputs[0]) for maker in dequantizers(view, op))
    return weights or any(reader.op_type == QUANTIZE for name in op.outputs for reader in view.read(name))


def dequantizers(view: TargetView, op: Op) -> Sequence[Op]:
    """The DequantizeLinear nodes that make an operator's inputs."""
    makers = (view.maker.get(name) for name in op.inputs)
    return [maker for maker in makers if maker is not None and maker.op_type == DEQUANTIZE]


def neighbours(view: TargetView, op: Op) -> Sequence[Op]:
    """The QuantizeLinear and DequantizeLinear nodes that belong to an operator: around its inputs and results."""
    found = list(dequantizers(view, op))
    for read in list(found):
        made = view.maker.get(read.inputs[0])
        found += [made] if made is not None and made.op_type == QUANTIZE else []
    for name in op.outputs:
        found += [reader for reader in view.read(view.fused.get(name, name)) if reader.op_type == QUANTIZE]
    return found


def type_names() -> frozenset[str]:
    """The element types that rules may name."""
    return frozenset(ONNX_NAMES.values())
