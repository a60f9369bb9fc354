"""Turns integer operators of ai.onnx and com.microsoft into groups of DequantizeLinear, a float operator and
QuantizeLinear."""

from __future__ import annotations

import math

import numpy as np

from qrun.converting.conversion import EQUAL, NOT_EQUAL, ConvertedModel, Group, KeptNode, NewTensors
from qrun.converting.verdicts import Values, judge
from qrun.ir import Array, Attribute, Model, Node
from qrun.ir.schema import version
from qrun.ops import find
from qrun.ops._quantized import Quantizer, bias, operands, parameter_axis, quantizers, real_operator
from qrun.passes._shapes import known_shapes

_QDQ, _PER_AXIS = 10, 13
"""The opsets from which QuantizeLinear exists, and from which it has several scales along an axis."""


class _Refused(Exception):
    """Raised where an operator stays; the text says why."""


def to_qdq(model: Model, *, strict: bool = False) -> ConvertedModel:
    """The model with QDQ groups. strict: only those whose codes are the same for all inputs."""
    return _Writer(model).convert(strict)


class _Writer:
    """The new nodes and constants so far."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.opset = model.opsets.get("", 1)
        self.tensors = NewTensors(model)
        self.values = Values(self._constant, known_shapes(model).get)

    def convert(self, strict: bool) -> ConvertedModel:
        """The conversion."""
        nodes, groups, left = list[Node](), [], []
        for node in self.model.nodes:
            made: tuple[Node, ...] = (node,)
            if any(quantizer.is_output for quantizer in quantizers(node)) and node.op_type != "QuantizeLinear":
                try:
                    group = self._group(node)
                    if strict and group.verdict.kind != EQUAL:
                        raise _Refused(f"{NOT_EQUAL}: {group.verdict.reason}")
                    groups.append(group)
                    made = group.new
                except _Refused as reason:
                    left.append(KeptNode(node.label, node.op, str(reason)))
            nodes += made
        return ConvertedModel("qdq", self.model, self.tensors.model(nodes), tuple(groups), tuple(left))

    def _group(self, node: Node) -> Group:
        """The group of an integer operator."""
        real = real_operator(node)
        if real is None:
            raise _Refused(f"{node.op_type} has no float form")
        if self.opset < _QDQ:
            raise _Refused(f"QuantizeLinear takes opset {_QDQ}")
        number = version("", real.op_type, self.opset)
        if find("", real.op_type, number) is None or not self._is_same(node, number):
            raise _Refused(f"{real.op_type} of opset {self.opset} is another function")
        sources, inputs = [], []
        for tensor, quantizer in operands(node):
            if quantizer is not None:
                sources.append(self._dequantize(node, quantizer))
                tensor = sources[-1].outputs[0]
            inputs.append(tensor)
        added = bias(node)
        if added is not None:
            sources.append(self._dequantize_bias(node, added.bias.tensor))
            inputs.append(sources[-1].outputs[0])
        codes = node.outputs[0]
        result = self.tensors.name(f"{codes}_float")
        kept = {name: value for name, value in node.attributes.items() if name in real.attributes}
        product = Node(node.index, node.label, "", real.op_type, number, tuple(inputs), (result,), kept)
        end = self._quantize(node, result)
        literal = (*sources, product, end)
        return Group(node.label, node.op, real.op_type, codes, (node,), literal, judge(literal, (node,), self.values))

    def _is_same(self, node: Node, number: int) -> bool:
        """Whether the attributes mean the same in this version of the float operator."""
        meant = node.attributes.get("opset")
        same = not isinstance(meant, int) or version("", "Softmax", meant) == number or meant >= 13 <= number
        return same and not node.attributes.get("channels_last", 0)

    def _dequantize(self, node: Node, quantizer: Quantizer) -> Node:
        """The DequantizeLinear of an operand. Each reader has its own, as some compilers expect (QR604)."""
        tensor = quantizer.tensor.tensor
        scale, zero, attributes = self._parameters(node, quantizer)
        inputs = (tensor, scale, zero) if zero else (tensor, scale)
        name = self.tensors.name(f"{tensor}_dequantized")
        number = version("", "DequantizeLinear", self.opset)
        return Node(-1, name, "", "DequantizeLinear", number, inputs, (name,), attributes)

    def _quantize(self, node: Node, result: str) -> Node:
        """The QuantizeLinear of the result."""
        quantizer = next(each for each in quantizers(node) if each.is_output)
        scale, zero, attributes = self._parameters(node, quantizer)
        if not zero:
            known = self.model.types.get(node.outputs[0])
            if known is None or known.dtype is None:
                raise _Refused("the type of its result is not stated")
            zero = self.tensors.add(np.zeros((), known.dtype), f"{node.outputs[0]}_zero_point")
        number = version("", "QuantizeLinear", self.opset)
        name = f"{node.outputs[0]}_quantize"
        return Node(-1, name, "", "QuantizeLinear", number, (result, scale, zero), node.outputs, attributes)

    def _parameters(self, node: Node, quantizer: Quantizer) -> tuple[str, str, dict[str, Attribute]]:
        """Names of scale and zero point of a Q/DQ node, and its attributes. One scale is a scalar there."""
        assert quantizer.scale is not None
        scale = self._constant(quantizer.scale.tensor)
        zero = self._constant(quantizer.zero_point.tensor) if quantizer.zero_point else None
        if scale is None or (quantizer.zero_point and zero is None):
            raise _Refused(f"scale or zero point of {quantizer.tensor.name} is not constant")
        names = [quantizer.scale.tensor, quantizer.zero_point.tensor if quantizer.zero_point else ""]
        if scale.size == 1 and (zero is None or zero.size == 1):
            for at, value in enumerate((scale, zero)):
                if value is not None and value.ndim:
                    names[at] = self.tensors.add(value.reshape(()), f"{names[at]}_scalar")
            return names[0], names[1], {}
        if self.opset < _PER_AXIS:
            raise _Refused(f"several scales of {quantizer.tensor.name} take opset {_PER_AXIS}")
        stored = self._constant(quantizer.tensor.tensor)
        if stored is None or scale.ndim != 1 or (zero is not None and zero.shape != scale.shape):
            raise _Refused(f"the scales of {quantizer.tensor.name} are not one per place along an axis")
        axis = parameter_axis(node, quantizer.form)
        return names[0], names[1], {"axis": axis % stored.ndim}

    def _dequantize_bias(self, node: Node, name: str) -> Node:
        """The DequantizeLinear of an int32 bias, whose scale is the product of the operands' scales."""
        stored = self._constant(name)
        scales = [self._constant(q.scale.tensor) for _, q in operands(node) if q is not None and q.scale is not None]
        if stored is None or any(scale is None for scale in scales):
            raise _Refused("its bias is not constant")
        alpha = np.float32(node.attributes.get("alpha", 1.0))  # type: ignore[arg-type]
        unit = math.prod((scale for scale in scales if scale is not None), start=alpha)
        unit = np.asarray(unit, np.float32).reshape(-1)
        if unit.size > 1 and (stored.ndim != 1 or self.opset < _PER_AXIS):
            raise _Refused("its bias has several scales, and is not one row")
        scale = self.tensors.add(unit if unit.size > 1 else unit.reshape(()), f"{name}_scale")
        attributes: dict[str, Attribute] = {"axis": 0} if unit.size > 1 else {}
        made = self.tensors.name(f"{name}_dequantized")
        number = version("", "DequantizeLinear", self.opset)
        return Node(-1, made, "", "DequantizeLinear", number, (name, scale), (made,), attributes)

    def _constant(self, name: str) -> Array | None:
        """The value of a constant."""
        found = self.tensors.constants.get(name)
        return self.model.constant(name) if found is None or name in self.model.constants else np.asarray(found)
