"""QR217 no-cpu-kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from qrun.checking.rules._ort import NEWEST_OPSET, Types, cpu_kernels, known_schema, runtime
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, made_type, nodes
from qrun.ir import Model, Node
from qrun.ir.schema import DOMAINS, MS, Schema
from qrun.ir.types import type_name

Bound = tuple[tuple[str, np.dtype[Any]], ...]
"""The element types of a node by type variable, and by the name of the input or output."""
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


@rule(
    "QR217",
    "no-cpu-kernel",
    level="warning",
    since="0.1",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md",
    fix="choose types that it has kernels for, such as uint8 activations, or put a Cast around the node",
)
def no_cpu_kernel(model: Model) -> Iterator[Finding]:
    """The types are legal, but the CPU provider of onnxruntime 1.31.1 has no kernel for them.

    One finding for each operator and combination of types. Known cases: QLinearConv and QLinearMatMul run uint8
    activations with any 8-bit weights, or int8 throughout, and nothing else; QuantizeLinear of int32 or bfloat16;
    float8 in QLinearMatMul; 16-bit integers in Relu and Max.

    Why is this bad?
        The model loads on no machine with that runtime ("Could not find an implementation"). float16 is not reported
        where a float32 kernel exists, because onnxruntime inserts the casts.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[2,2] x) => (int8[2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,2] w = {1, 2, 3, 4}, int8 zero = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, zero, s, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,2] w = {1, 2, 3, 4}, int8 zero = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, zero, s, z)
        }
    """
    opset = model.opsets.get("", 0)
    if opset > NEWEST_OPSET or model.opsets.get(MS, 1) != 1:
        return
    missing: dict[tuple[str, int, Bound], list[tuple[Scope, Node]]] = {}
    for scope, node in nodes(model):
        known = known_schema(node) if node.domain in DOMAINS else None
        bound = _bound(scope, node, known) if known is not None else None
        if bound is not None and not _has_kernel(node.domain, node.op_type, node.version, opset, bound):
            missing.setdefault((node.op, node.version, bound), []).append((scope, node))
    for (op, version, bound), places in missing.items():
        scope, node = places[0]
        count = f"{len(places)} node{'s' if len(places) > 1 else ''}"
        types = ", ".join(f"{name} {type_name(dtype)}" for name, dtype in bound) or "any types"
        yield Finding(
            f"{runtime()} has no CPU kernel for {op} with {types} ({count})",
            **scope.at(node),
            expected=_there_are(node),
            got=types,
            why=f"{op}-{version} allows these types; {runtime()} implements others on the CPU.",
        )


def _bound(scope: Scope, node: Node, known: Schema) -> Bound | None:
    """The types of a node's variables as far as they are known; None if they contradict the schema, or what the file
    states, which other rules report."""
    found: dict[str, np.dtype[Any]] = {}
    places = [(known.inputs, place, name, scope.dtype(name)) for place, name in enumerate(node.inputs) if name]
    places += [(known.outputs, p, n, made_type(node, p, scope.dtype)) for p, n in enumerate(node.outputs) if n]
    for formals, place, name, dtype in places:
        if not formals or dtype is None:
            continue
        if name in scope.disputed or _read_otherwise(scope, name, dtype):
            return None
        formal = formals[min(place, len(formals) - 1)]
        if formal.types is None or not formal.homogeneous:
            continue
        if formal.variable.startswith("tensor("):
            continue
        if dtype not in formal.types or found.setdefault(formal.variable, dtype) != dtype:
            return None
    return tuple(found.items())


def _read_otherwise(scope: Scope, name: str, dtype: np.dtype[Any]) -> bool:
    """Whether a node reads the tensor with a zero point of another type, which QR303 reports."""
    return not scope.read_as.get(name, frozenset()) <= {dtype}


@cache
def _has_kernel(domain: str, op_type: str, version: int, opset: int, bound: Bound) -> bool:
    kernels = cpu_kernels(domain, op_type)
    if kernels is None:
        return domain != MS
    if kernels.functions.get(version, opset + 1) <= opset:
        return True
    single = {name: _SINGLE if dtype == _HALF else dtype for name, dtype in bound}
    rows = list(kernels.of(version))
    return any(_fits(row, dict(bound)) or _fits(row, single) for row in rows)


def _fits(row: Mapping[str, Types], bound: Mapping[str, np.dtype[Any]]) -> bool:
    return all(dtype in row[name] for name, dtype in bound.items() if name in row)


def _there_are(node: Node) -> str:
    """The combinations that there are kernels for."""
    kernels = cpu_kernels(node.domain, node.op_type)
    rows = list(kernels.of(node.version)) if kernels else []
    if not rows:
        return "another operator; it has no CPU kernel of this one"
    texts = [
        ", ".join(f"{name} {'/'.join(sorted(map(type_name, types)))}" for name, types in row.items()) for row in rows
    ]
    return "; or ".join(texts[:4]) + ("; ..." if len(texts) > 4 else "")
