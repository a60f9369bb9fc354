"""Evaluates the conditions of a target's rules at an operator, and collects the facts about tensors that they test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.checking.targets._view import BOTH, DEQUANTIZE, QUANTIZE, Op, TargetView

Facts = dict[str, Any]
_NAMES = {"x": 0, "w": 1, "b": 2}
_REAL = ("float", "float16", "bfloat16", "double")


def ports(view: TargetView, op: Op, port: str, makes_unsigned: bool) -> Sequence[Facts]:
    """The facts of each tensor at a port of an operator; the package's docstring lists the ports."""
    if port == "y":
        return [_output(view, op.outputs[0], makes_unsigned)]
    if port == "outputs":
        return [_output(view, name, makes_unsigned) for name in op.outputs if name]
    if port in ("inputs", "data"):
        found = [f for f in (_input(view, name, makes_unsigned) for name in op.inputs) if _is_real(f)]
        return found if port == "inputs" else [f for f in found if not f["const"]]
    index = _NAMES[port] if port in _NAMES else int(port)
    return [_input(view, op.inputs[index] if index < len(op.inputs) else "", makes_unsigned)]


def _is_real(facts: Facts) -> bool:
    """Does the tensor represent real numbers, and no shape or index?"""
    return bool(facts["given"]) and (facts["quantized"] or facts["type"] in (*_REAL, "int8", "uint8"))


def _input(view: TargetView, name: str, makes_unsigned: bool) -> Facts:
    """The facts of an input."""
    if not name:
        return {"given": False}
    if ("read", name) in view.found:
        return view.found["read", name]
    maker = view.maker.get(name)
    real = view.type(name)
    facts: Facts = {"given": True, "quantized": False, "type": real, "real": real, "const": view.constant(name)}
    facts |= _size(view, name)
    if maker is not None and maker.op_type == DEQUANTIZE:
        facts |= {"quantized": True} | _parameters(view, maker)
        facts |= _types(view, maker.inputs[0], view.maker.get(maker.inputs[0]), makes_unsigned)
    view.found["read", name] = facts
    return facts


def _output(view: TargetView, name: str, makes_unsigned: bool) -> Facts:
    """The facts of an output."""
    if ("made", name) in view.found:
        return view.found["made", name]
    readers = view.read(name)
    quantizers = [op for op in readers if op.op_type == QUANTIZE]
    real = view.type(name)
    facts: Facts = {"given": True, "quantized": False, "type": real, "real": real, "readers": len(readers)}
    facts |= {"graph_output": name in view.results, "next": _next(view, name)}
    facts |= _size(view, name)
    if quantizers:
        facts |= {"quantized": True, "spread": quantizers[0].spread} | _parameters(view, quantizers[0])
        facts |= _types(view, quantizers[0].outputs[0], quantizers[0], makes_unsigned)
    view.found["made", name] = facts
    return facts


def _next(view: TargetView, name: str) -> str:
    """The operator of a tensor's only reader, if that has only one reader too; else ""."""
    readers = view.read(name)
    made = readers[0].outputs[0] if len(readers) == 1 else ""
    return readers[0].op_type if len(view.read(made)) == 1 and made not in view.results else ""


def _size(view: TargetView, name: str) -> Facts:
    """The rank, if known."""
    shape = view.shape(name)
    return {} if shape is None else {"rank": len(shape)}


def _types(view: TargetView, codes: str, maker: Op | None, makes_unsigned: bool) -> Facts:
    """The facts `declared` (the codes' type in the file) and `type` (the one that the target gives them). They differ
    where the target turns int8 into uint8 (`makes_unsigned`): for codes of a QuantizeLinear that `_read_once`
    accepts."""
    declared = view.type(codes)
    if not makes_unsigned or declared != "int8" or maker is None or maker.op_type != QUANTIZE:
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
    scale = view.array(op.inputs[1]) if len(op.inputs) > 1 else None
    given = len(op.inputs) > 2 and bool(op.inputs[2])
    zero = view.array(op.inputs[2]) if given else None
    attributes = op.node.attributes if op.node is not None else {}
    facts: Facts = {"zero_given": given}
    if scale is None or (given and zero is None):
        return facts | {"per": "unknown"}
    facts["scale"] = scale.astype(np.float64).reshape(-1)
    facts["zero"] = sorted(set(np.asarray(zero).astype(np.int64).reshape(-1).tolist())) if zero is not None else [0]
    facts["per"] = "block" if attributes.get("block_size") else "tensor" if scale.size == 1 else "channel"
    shape, axis = view.shape(op.inputs[0]), attributes.get("axis", 1)
    if facts["per"] != "tensor" and shape and isinstance(axis, int):
        facts["axis"] = axis % len(shape)
        facts["axis_back"] = len(shape) - facts["axis"]
    return facts


def reads_codes(view: TargetView, op: Op) -> bool:
    """Does an operator read a dequantized tensor that is not stored?"""
    if op.op_type in (*BOTH, "Constant", "Shape", "Size"):
        return False
    return any(not view.constant(maker.inputs[0]) for maker in _dequantizers(view, op))


def is_asked(view: TargetView, op: Op) -> bool:
    """Does the file want the operator in integers: is its result quantized, or a stored input?"""
    weights = any(view.constant(maker.inputs[0]) for maker in _dequantizers(view, op))
    return weights or any(reader.op_type == QUANTIZE for name in op.outputs for reader in view.read(name))


def _dequantizers(view: TargetView, op: Op) -> Sequence[Op]:
    """The DequantizeLinear nodes that make an operator's inputs."""
    makers = (view.maker.get(name) for name in op.inputs)
    return [maker for maker in makers if maker is not None and maker.op_type == DEQUANTIZE]


Condition = Mapping[str, Any]
_OF_SCALES = ("scale", "zero", "zero_given", "per", "axis", "axis_back", "declared", "spread")
_PARAMETERS = ("declared", "scale", "zero", "zero_given")


@dataclass(frozen=True)
class Conditions:
    """Evaluates the conditions of one target at the operators of one graph.

    define: conditions by name. options: a user's options, such as the architecture.
    makes_unsigned: as in `Preparation`.
    """

    view: TargetView
    define: Mapping[str, Condition]
    options: Mapping[str, Any]
    makes_unsigned: bool

    def hold(self, op: Op, condition: Condition) -> bool:
        """Does a condition hold at an operator? A test of an unknown fact passes."""
        c = condition
        if "use" in c:
            return self.hold(op, self.define[c["use"]])
        if "all" in c:
            return all(self.hold(op, part) for part in c["all"])
        if "any" in c:
            return any(self.hold(op, part) for part in c["any"])
        if "not" in c:
            return not self.hold(op, c["not"])
        if "same" in c:
            keys = _PARAMETERS if c["same"] == "parameters" else (c["same"],)
            found = [facts for port in c["ports"] for facts in self.at(op, port)]
            return all(len({str(np.asarray(facts.get(key)).tolist()) for facts in found}) <= 1 for key in keys)
        if "log2" in c:
            return self._within(op, c)
        if "attr" in c:
            value = op.node.attributes.get(c["attr"], c.get("default")) if op.node is not None else None
            return value is None or _passes(value, _test(c, "attr", "default")) is not False
        if "option" in c:
            return _passes(self.options.get(c["option"]), _test(c, "option")) is not False
        if "opset" in c:
            return _passes(self.view.scope.model.opsets.get(""), c["opset"]) is not False
        return self._fits(op, c)

    def at(self, op: Op, port: str) -> list[Facts]:
        """The facts of a port's tensors."""
        return [facts for facts in ports(self.view, op, port, self.makes_unsigned) if facts["given"]]

    def _within(self, op: Op, condition: Condition) -> bool:
        """Is the logarithm of a product of scales within its limits? True if a scale is unknown."""
        total: Any = np.zeros(1)
        for port, factor in condition["log2"].items():
            for facts in self.at(op, port):
                if "scale" not in facts:
                    return True
                with np.errstate(divide="ignore", invalid="ignore"):
                    term = factor * np.log2(facts["scale"])
                if 1 not in (term.size, total.size) and term.size != total.size:
                    return False
                total = total + term
        slack = condition.get("tol", 0)
        within = (total >= condition.get("min", -np.inf) - slack) & (total <= condition.get("max", np.inf) + slack)
        return bool(np.all(np.isfinite(total) & within))

    def _fits(self, op: Op, condition: Condition) -> bool:
        """Do the tensors of a port pass all tests?"""
        tests = {key: test for key, test in condition.items() if key != "port"}
        for facts in ports(self.view, op, condition["port"], self.makes_unsigned):
            if facts["given"] or "given" in tests:
                judged = {key: test for key, test in tests.items() if key not in _OF_SCALES or facts["quantized"]}
                if any(_passes(facts.get(key), test) is False for key, test in judged.items()):
                    return False
        return True


def _test(condition: Condition, *others: str) -> Any:
    """The test of a condition: its "is", or its own keys."""
    return condition["is"] if "is" in condition else {k: v for k, v in condition.items() if k not in others}


def _passes(value: Any, test: Any) -> bool | None:
    """Does a value, or each of several, pass a test? None if a value is not known."""
    if value is None:
        return None
    if isinstance(value, (list, tuple, np.ndarray)):
        results = [_passes(part, test) for part in value]
        return None if None in results else all(results)
    if not isinstance(test, Mapping):
        return value in test if isinstance(test, list) else bool(value == test)
    return (
        ("min" not in test or value >= test["min"])
        and ("max" not in test or value <= test["max"])
        and ("not" not in test or value not in test["not"])
    )
