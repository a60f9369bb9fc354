"""QR203 type-not-allowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from qrun.ir import Model, Node
from qrun.ir.schema import OPSETS, Formal, schema
from qrun.ir.types import type_name
from qrun.ops import find
from qrun.rules._ort import known_schema
from qrun.rules._parameters import bias, quantizers
from qrun.rules._rule import Finding, rule
from qrun.rules._scope import Scope, nodes


@rule(
    "QR203",
    "type-not-allowed",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/index.html",
    fix="cast the tensor, or import the opset that allows this type",
)
def type_not_allowed(model: Model) -> Iterator[Finding]:
    """An input has an element type that its operator does not take at this opset.

    Stored tensors, graph inputs and values whose type the file states are compared with the operator's type
    constraints; inputs that share a type variable must have one type.

    Why is this bad?
        Runtimes refuse the model, mostly with a text that names neither the input nor the opset that would allow it.

    Bad
        <ir_version: 10, opset_import: ["" : 13]>
        main (uint16[2] x) => (float[2] y)
        <float scale = {0.5}>
        {
            y = DequantizeLinear(x, scale)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (uint16[2] x) => (float[2] y)
        <float scale = {0.5}>
        {
            y = DequantizeLinear(x, scale)
        }
    """
    for scope, node in nodes(model):
        formals, names = _formals(node)
        if formals:
            yield from _judge(scope, node, formals, names)


def _formals(node: Node) -> tuple[Sequence[Formal], Sequence[str]]:
    definition = find(node.domain, node.op_type, node.version)
    if definition is not None:
        return definition.formals(node.version), [definition.param(i) for i in range(len(node.inputs))]
    known = known_schema(node)
    if known is None or not known.inputs:
        return (), ()
    last = len(known.inputs) - 1
    return known.inputs, [known.inputs[min(i, last)].name for i in range(len(node.inputs))]


def _judge(scope: Scope, node: Node, formals: Sequence[Formal], names: Sequence[str]) -> Iterator[Finding]:
    left = _left_to_others(scope, node)
    bound: dict[str, tuple[np.dtype[Any], str]] = {}
    op = f"{node.op}-{node.version}"
    for place, tensor in enumerate(node.inputs):
        dtype = scope.dtype(tensor)
        formal = formals[min(place, len(formals) - 1)]
        if dtype is None or formal.types is None or place in left:
            continue
        where = {**scope.at(node), "tensor": f"{tensor} (input {place}, {names[place]})", "got": type_name(dtype)}
        if dtype not in formal.types:
            yield Finding(
                f"{names[place]} is {type_name(dtype)}, which {op} does not take",
                **where,
                expected=", ".join(sorted(type_name(t) for t in formal.types)),
                why=f"{op} lists the types of {names[place]}.",
                fix=_newer(node, place, dtype),
            )
            return
        if formal.option == "Variadic" or not formal.variable:
            continue
        other, first = bound.setdefault(formal.variable, (dtype, names[place]))
        if other != dtype:
            yield Finding(
                f"{names[place]} is {type_name(dtype)}, but {first} is {type_name(other)}",
                **where,
                expected=f"{type_name(other)}, as {first}",
                why=f"{op}: {first} and {names[place]} have one type ({formal.variable}).",
            )
            return


def _left_to_others(scope: Scope, node: Node) -> set[int]:
    """Places that QR303 and QR305 judge: zero points beside a tensor of known type, and int32 biases."""
    found = {
        q.zero_point.place
        for q in quantizers(node)
        if q.zero_point and not q.is_output and scope.dtype(q.tensor.tensor) is not None
    }
    b = bias(node)
    return found | ({b.bias.place} if b and b.integer else set())


def _newer(node: Node, place: int, dtype: np.dtype[Any]) -> str:
    """The first later version of an ai.onnx operator that takes the type."""
    for opset in range(node.version + 1, OPSETS[-1] + 1):
        known = schema(node.domain, node.op_type, opset)
        if known is None or place >= len(known.inputs):
            break
        types = known.inputs[place].types
        if types is not None and dtype in types:
            return f"opset {known.version} allows {type_name(dtype)}: onnx.version_converter.convert_version"
    return ""
