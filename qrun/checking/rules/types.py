"""Rules on element types: of inputs, outputs and zero points, and types newer than the file's IR version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._forms import all_quantizers, formals, input_types, mistyped_inputs, places_of_other_rules
from qrun.checking.rules._ort import known_schema
from qrun.checking.rules._rule import Finding, operators, rule
from qrun.checking.rules._scope import Scope, nodes, number, scopes, type_of_output
from qrun.declare.stored import parts
from qrun.ir import Model, Node
from qrun.ir.schema import Formal
from qrun.ir.types import BY_ONNX_NAME, DTYPES, type_name
from qrun.ops import Slot, quantizers

_BROUGHT_BY_IR = {
    4: "bfloat16",
    9: "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz",
    10: "uint4 int4",
    11: "float4e2m1",
    12: "float8e8m0",
    13: "uint2 int2",
    14: "float6e2m3 float6e3m2",
}
_IR_OF_TYPE: Mapping[np.dtype[Any], int] = {
    BY_ONNX_NAME[n]: v for v, names in _BROUGHT_BY_IR.items() for n in names.split()
}
"""The IR version that introduced an element type, for types that were not in the first version."""


@rule(
    "QR113",
    "warning",
    spec="https://github.com/onnx/onnx/blob/main/onnx/onnx.proto",
    fix="set model.ir_version to the version that brought the type",
)
def type_newer_than_ir(model: Model) -> Iterator[Finding]:
    """A tensor has an element type that is newer than the file's IR version. One finding for each type.

    Why is this bad?
        A reader of that IR version does not know the type, and fails only when it meets the tensor. It happens when a
        tool converts tensors to int4 or float8 but leaves ir_version as it was.

    Bad
        <ir_version: 8, opset_import: ["" : 21]>
        main (int4[2] x) => (float[2] y)
        <float scale = {0.5}>
        {
            y = DequantizeLinear(x, scale)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (int4[2] x) => (float[2] y)
        <float scale = {0.5}>
        {
            y = DequantizeLinear(x, scale)
        }
    """
    if model.ir_version <= 0:
        return
    newer: dict[np.dtype[Any], list[str]] = {}
    for scope in scopes(model):
        stored = ((name, part.dtype) for name, part in parts(scope.model.constants).items())
        stated = ((name, value.dtype) for name, value in scope.model.types.items())
        for name, dtype in dict((*stated, *stored)).items():
            if dtype is not None and _IR_OF_TYPE.get(dtype, 0) > model.ir_version:
                newer.setdefault(dtype, []).append(name)
    for dtype, names in newer.items():
        since, others = _IR_OF_TYPE[dtype], len(names) - 1
        yield Finding(
            f"{names[0]} is {type_name(dtype)}, which IR version {model.ir_version} does not have",
            tensor=names[0] + (f" and {others} more" if others else ""),
            expected=f"IR version {since} or later",
            got=f"IR version {model.ir_version}",
            why=f"onnx.proto: {type_name(dtype)} was added in IR version {since}.",
            fix=f"model.ir_version = {since}",
        )


@rule("QR203", "error", spec="operators", fix="cast the tensor to a type that the operator takes", stops=True)
def type_not_allowed(model: Model) -> Iterator[Finding]:
    """An input has an element type that its operator does not take at this opset.

    The rule compares stored tensors, graph inputs and values with a stated type with the operator's type constraints.
    Inputs that share a type variable must have the same type.

    Why is this bad?
        Runtimes refuse the model, usually with a message that names neither the input nor the opset that would allow
        it.

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
        wrong = mistyped_inputs(scope, node)
        found = [_not_taken(scope, node, wrong)] if wrong else list(_not_one_type(scope, node))
        if not found:
            sound.add(key)
        yield from found


def _not_taken(scope: Scope, node: Node, wrong: Sequence[int]) -> Finding:
    """The finding for the first input of a type that the operator does not accept."""
    from qrun.ops._advice import type_fix

    given, place = input_types(scope, node), wrong[0]
    dtype, formal = given[place]
    op, name = f"{node.op}-{node.version}", formals(node)[1][place]
    return Finding(
        f"{name} is {type_name(dtype)}, which {op} does not take",
        **scope.at(node, Slot(name, place, node.inputs[place])),
        got=type_name(dtype),
        expected=", ".join(sorted(type_name(t) for t in formal.types or ())),
        why=f"{op} lists the types of {name}.",
        fix=_exchange(node, wrong, given) or type_fix(node, place, dtype),
    )


def _not_one_type(scope: Scope, node: Node) -> Iterator[Finding]:
    """Yield a finding for the first input whose type differs from another one of the same type variable."""
    bound: dict[str, tuple[np.dtype[Any], str]] = {}
    names, left = formals(node)[1], places_of_other_rules(scope, node)
    for place, (dtype, formal) in input_types(scope, node).items():
        if formal.option == "Variadic" or not formal.variable or place in left:
            continue
        other, first = bound.setdefault(formal.variable, (dtype, names[place]))
        if other != dtype:
            yield Finding(
                f"{names[place]} is {type_name(dtype)}, but {first} is {type_name(other)}",
                **scope.at(node, Slot(names[place], place, node.inputs[place])),
                got=type_name(dtype),
                expected=f"{type_name(other)}, as {first}",
                why=f"{node.op}-{node.version}: {first} and {names[place]} have one type ({formal.variable}).",
            )
            return


def _exchange(node: Node, wrong: Sequence[int], given: Mapping[int, tuple[np.dtype[Any], Formal]]) -> str:
    """The fix if the first input of a wrong type and a later one fit each other's place; else ""."""
    first, dtype, formal = wrong[0], *given[wrong[0]]
    for other in wrong[1:]:
        if dtype in (given[other][1].types or ()) and given[other][0] in (formal.types or ()):
            names = formals(node)[1]
            return f"swap inputs {first} and {other}: {names[first]} and {names[other]} fit each other's place"
    return ""


@rule(
    "QR213",
    "error",
    spec="IR",
    fix="correct the type in graph.output or graph.value_info, or run onnx.shape_inference.infer_shapes again",
)
def output_type(model: Model) -> Iterator[Finding]:
    """The file declares an output with a type that the node does not produce.

    Without a zero point, QuantizeLinear produces uint8, or the type of output_dtype. Where a zero point sets the type,
    QR303 checks it.

    Why is this bad?
        onnxruntime refuses the model ("output arg does not match expected type"); onnx.checker checks it only
        with full_check. Tools that trust the stated type read the wrong bytes.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (float[2] x) => (int8[2] y)
        <float s = {0.5}>
        {
            y = QuantizeLinear(x, s)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (float[2] x) => (int8[2] y)
        <float s = {0.5}>
        {
            y = QuantizeLinear<output_dtype = 3>(x, s)
        }
    """
    for scope, node in nodes(model):
        if scope.disputed.isdisjoint(node.outputs):
            continue
        by_zero_point = any(q.is_output and q.zero_point for q in quantizers(node))
        for place, name in enumerate(node.outputs):
            value = scope.model.types.get(name) if name else None
            if value is None or value.dtype is None or (not place and by_zero_point):
                continue
            made = type_of_output(node, place, scope.dtype)
            if made is not None and made != value.dtype and _is_allowed(node, place, made):
                yield Finding(
                    f"{name} is stated as {type_name(value.dtype)}, but the node produces {type_name(made)}",
                    **scope.at(node, f"{name} (output {place})"),
                    expected=type_name(made),
                    got=type_name(value.dtype),
                    why=f"{node.op}-{node.version}: the inputs and attributes determine the output's type.",
                )


def _is_allowed(node: Node, place: int, made: np.dtype[Any]) -> bool:
    """Does the schema allow an output of this type? If not, it follows from a wrong input, which QR203 reports."""
    known = known_schema(node)
    if known is None or not known.outputs:
        return True
    types = known.outputs[min(place, len(known.outputs) - 1)].types
    return types is None or made in types


@rule(
    "QR303",
    "error",
    spec="QLinearConv",
    fix="store the zero point with the element type of its tensor",
    applies=operators(),
    stops=True,
)
def zero_point_type(model: Model) -> Iterator[Finding]:
    """A zero point has a different element type from the tensor it belongs to.

    The zero point is a code of its tensor, so it has the same type: uint8 data, uint8 zero point. An output gets its
    type from the zero point.

    Why is this bad?
        In int8 and uint8, the codes of the same real value are 128 apart. Without full_check, onnx.checker accepts the
        mix for QLinearConv; onnxruntime says only that a type parameter of the operator is bound to different types.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, int8 xz = {0}, int8[1,1,1,1] w = {1}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {1}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }
    """
    for scope, node, q in all_quantizers(model):
        got, name = scope.dtype(q.zero_point.tensor) if q.zero_point else None, q.tensor.tensor
        stated = scope.model.types.get(name) if q.is_output else None
        owner = (stated.dtype if stated else None) if q.is_output else scope.dtype(name)
        written = number(node, "output_dtype") if q.is_output else 0
        param = q.tensor.name if q.tensor.name == name else f"{q.tensor.name} ({name})"
        what = f"output {name} is stated as" if q.is_output else f"{param} is"
        if written in DTYPES and got != DTYPES[written]:
            owner, what = DTYPES[written], "output_dtype is"
        if q.zero_point and got is not None and owner is not None and got != owner:
            yield Finding(
                f"{q.zero_point.name} is {type_name(got)}, but {what} {type_name(owner)}",
                **scope.at(node, q.zero_point),
                expected=type_name(owner),
                got=type_name(got),
                why=f"{node.op}-{node.version}: a zero point has the element type of its tensor.",
            )
