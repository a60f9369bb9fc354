"""QR303 zero-point-type."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._parameters import TABLE, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Model
from qrun.ir.types import DTYPES, type_name


@rule(
    "QR303",
    "zero-point-type",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="store the zero point with the element type of its tensor",
    applies=operators(),
)
def zero_point_type(model: Model) -> Iterator[Finding]:
    """A zero point has another element type than the tensor it belongs to.

    The zero point is a code of its tensor, so it has the same type: uint8 data, uint8 zero point. For an output, the
    zero point is what gives the output its type.

    Why is this bad?
        int8 and uint8 place the same real value 128 codes apart. Without full_check, onnx.checker accepts the mixture
        for QLinearConv; onnxruntime says only that a type parameter of the operator is bound to different types.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, int8 xz = {0}, int8[1,1,1,1] w = {1}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {1}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            if not q.zero_point:
                continue
            got = scope.dtype(q.zero_point.tensor)
            stated = scope.model.types.get(q.tensor.tensor) if q.is_output else None
            owner = (stated.dtype if stated else None) if q.is_output else scope.dtype(q.tensor.tensor)
            number = node.attributes.get("output_dtype", 0) if q.is_output else 0
            name = q.tensor.tensor
            what = f"output {name} is stated as" if q.is_output else f"{_once(q.tensor.name, name)} is"
            if isinstance(number, int) and number in DTYPES and got != DTYPES[number]:
                owner, what = DTYPES[number], "output_dtype is"
            if got is None or owner is None or got == owner:
                continue
            yield Finding(
                f"{q.zero_point.name} is {type_name(got)}, but {what} {type_name(owner)}",
                **scope.at(node),
                tensor=f"{q.zero_point.tensor} (input {q.zero_point.place}, {q.zero_point.name})",
                expected=type_name(owner),
                got=type_name(got),
                why=f"{node.op}-{node.version}: a zero point has the element type of its tensor.",
            )


def _once(param: str, tensor: str) -> str:
    return param if param == tensor else f"{param} ({tensor})"
