"""QR113 type-newer-than-ir."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import scopes
from qrun.ir import Model
from qrun.ir.types import BY_ONNX_NAME, type_name

_BROUGHT = {
    4: "bfloat16",
    9: "float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz",
    10: "uint4 int4",
    11: "float4e2m1",
    12: "float8e8m0",
    13: "uint2 int2",
    14: "float6e2m3 float6e3m2",
}
SINCE: Mapping[np.dtype[Any], int] = {BY_ONNX_NAME[n]: v for v, names in _BROUGHT.items() for n in names.split()}
"""The IR version that brought an element type, for those that were not in the first."""


@rule(
    "QR113",
    "type-newer-than-ir",
    level="warning",
    since="0.1",
    spec="https://github.com/onnx/onnx/blob/main/onnx/onnx.proto",
    fix="set model.ir_version to the version that brought the type",
)
def type_newer_than_ir(model: Model) -> Iterator[Finding]:
    """A tensor has an element type that the file's IR version does not have yet. One finding for each type.

    Why is this bad?
        A reader of that IR version does not know the type, and cannot tell before it meets it. It happens when a tool
        converts tensors to int4 or float8 but leaves ir_version as it was.

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
        stored = ((name, array.dtype) for name, array in scope.model.constants.items())
        stated = ((name, value.dtype) for name, value in scope.model.types.items())
        for name, dtype in dict((*stated, *stored)).items():
            if dtype is not None and SINCE.get(dtype, 0) > model.ir_version:
                newer.setdefault(dtype, []).append(name)
    for dtype, names in newer.items():
        since, others = SINCE[dtype], len(names) - 1
        yield Finding(
            f"{names[0]} is {type_name(dtype)}, which IR version {model.ir_version} does not have",
            tensor=names[0] + (f" and {others} more" if others else ""),
            expected=f"IR version {since} or later",
            got=f"IR version {model.ir_version}",
            why=f"onnx.proto: {type_name(dtype)} was added in IR version {since}.",
            fix=f"model.ir_version = {since}",
        )
