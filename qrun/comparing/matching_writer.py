"""Nodes of a model while quantized operators are written as real ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qrun.ir import Array, Attribute, Model, Node
from qrun.ir.schema import DOMAINS
from qrun.ops import find


class NodeWriter:
    """The nodes so far. codes: names of integer tensors, and the scale, zero point and attributes that they mean."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.nodes: list[Node] = []
        self.codes: dict[str, tuple[str, str, Mapping[str, Attribute]]] = {}
        self.done: set[int] = set()
        self._real: dict[tuple[Any, ...], str] = {}
        self._names = set(model.constants) | {n for node in model.nodes for n in (*node.inputs, *node.outputs)}

    def name(self, base: str) -> str:
        name, number = base, 1
        while name in self._names:
            name, number = f"{base}~{number}", number + 1
        self._names.add(name)
        return name

    def put(self, node: Node) -> None:
        """Keep a node as it is."""
        if is_quantize(node):
            kept = {k: v for k, v in node.attributes.items() if k in ("axis", "block_size")}
            self.codes[node.outputs[0]] = (node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else "", kept)
        self.nodes.append(node)

    def make(
        self,
        node: Node,
        op: str,
        version: int,
        inputs: tuple[str, ...],
        output: str = "",
        attributes: Mapping[str, Attribute] | None = None,
    ) -> str:
        """Add an operator of ai.onnx in place of `node`; the name of what it makes."""
        output = output or self.name(f"{node.label}/{op}")
        self.nodes.append(Node(node.index, node.label, "", op, version, inputs, (output,), attributes or {}))
        return output

    def real(self, node: Node, codes: str, scale: str, zero: str = "", **attributes: Attribute) -> str:
        """The name of the real values that integers mean; axis, if given, counts only with a scale per place."""
        if not codes:
            return ""
        key = (codes, scale, zero, tuple(attributes.items()))
        if key not in self._real:
            inputs = tuple(
                filter(None, (codes, self._rank(node, scale, attributes), self._rank(node, zero, attributes)))
            )
            self._real[key] = self.make(node, "DequantizeLinear", 21, inputs, "", attributes)
        return self._real[key]

    def _rank(self, node: Node, name: str, attributes: Mapping[str, Attribute]) -> str:
        """The parameter as a scalar, or of rank 1 where it has one number for each place along the axis."""
        value = self.model.constant(name) if name else None
        if value is None or "block_size" in attributes or value.ndim == (value.size != 1):
            return name
        shape = self.number(node, np.array([] if value.size == 1 else [value.size], np.int64))
        return self.make(node, "Reshape", 14, (name, shape))

    def number(self, node: Node, value: Array) -> str:
        output = self.name(f"{node.label}/Constant")
        self.nodes.append(Node(node.index, node.label, "", "Constant", 13, (), (output,), {"value": value}))
        return output

    def round(self, node: Node, real: str, scale: str, zero: str, output: str) -> bool:
        """Quantize what `node` makes, under its own name."""
        scale, zero = self._rank(node, scale, {}), self._rank(node, zero, {})
        self.nodes.append(
            Node(
                node.index,
                node.label,
                "",
                "QuantizeLinear",
                21,
                tuple(filter(None, (real, scale, zero))),
                (output,),
                {},
            )
        )
        self.codes[output] = (scale, zero, {})
        return True


def is_quantize(node: Node) -> bool:
    return node.op_type == "QuantizeLinear" and node.domain in DOMAINS and len(node.inputs) > 1


def is_dequantize(node: Node) -> bool:
    return node.op_type == "DequantizeLinear" and node.domain in DOMAINS and len(node.inputs) > 1


def moves(node: Node) -> bool:
    """Does the node only choose among the elements of its first input?"""
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form == "moves"
