"""QR203 type-not-allowed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.rules._typed import formals, given_types, judged_elsewhere, mistyped
from qrun.ir import Model, Node
from qrun.ir.schema import OPSETS, Formal, schema
from qrun.ir.types import type_name


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
    sound = set()
    for scope, node in nodes(model):
        key = (node.domain, node.op_type, node.version, *(scope.dtype(n) if n else "" for n in node.inputs))
        if key in sound:
            continue
        wrong = mistyped(scope, node)
        found = [_not_taken(scope, node, wrong)] if wrong else list(_not_one_type(scope, node))
        if not found:
            sound.add(key)
        yield from found


def _not_taken(scope: Scope, node: Node, wrong: Sequence[int]) -> Finding:
    """The first input of a type that the operator does not take."""
    given, place = given_types(scope, node), wrong[0]
    dtype, formal = given[place]
    op, name = f"{node.op}-{node.version}", formals(node)[1][place]
    return Finding(
        f"{name} is {type_name(dtype)}, which {op} does not take",
        **_where(scope, node, place, dtype),
        expected=", ".join(sorted(type_name(t) for t in formal.types or ())),
        why=f"{op} lists the types of {name}.",
        fix=_exchange(node, wrong, given) or _newer(node, place, dtype),
    )


def _not_one_type(scope: Scope, node: Node) -> Iterator[Finding]:
    """The first input of another type than one that shares its type variable."""
    bound: dict[str, tuple[np.dtype[Any], str]] = {}
    names, left = formals(node)[1], judged_elsewhere(scope, node)
    for place, (dtype, formal) in given_types(scope, node).items():
        if formal.option == "Variadic" or not formal.variable or place in left:
            continue
        other, first = bound.setdefault(formal.variable, (dtype, names[place]))
        if other != dtype:
            yield Finding(
                f"{names[place]} is {type_name(dtype)}, but {first} is {type_name(other)}",
                **_where(scope, node, place, dtype),
                expected=f"{type_name(other)}, as {first}",
                why=f"{node.op}-{node.version}: {first} and {names[place]} have one type ({formal.variable}).",
            )
            return


def _where(scope: Scope, node: Node, place: int, dtype: np.dtype[Any]) -> dict[str, Any]:
    tensor = f"{node.inputs[place]} (input {place}, {formals(node)[1][place]})"
    return {**scope.at(node), "tensor": tensor, "got": type_name(dtype)}


def _exchange(node: Node, wrong: Sequence[int], given: Mapping[int, tuple[np.dtype[Any], Formal]]) -> str:
    """What to do where the first input of a wrong type and a later one would fit each other's place."""
    first, dtype, formal = wrong[0], *given[wrong[0]]
    for other in wrong[1:]:
        if dtype in (given[other][1].types or ()) and given[other][0] in (formal.types or ()):
            names = formals(node)[1]
            return f"exchange inputs {first} and {other}: {names[first]} and {names[other]} fit each other's place"
    return ""


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
