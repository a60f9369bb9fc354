"""Which types of a node the CPU provider of onnxruntime has a kernel for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from qrun.checking.rules._ort import Types, cpu_kernels, known_schema
from qrun.checking.rules._scope import Scope, nodes
from qrun.ir import Model, Node
from qrun.ir.schema import DOMAINS, MS, Schema
from qrun.ir.types import type_name

_Types = tuple[np.dtype[Any] | None, ...]
_Bound = tuple[tuple[str, np.dtype[Any]], ...]
"""The element types of a node by type variable, and by the name of the input or output."""
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


def without_kernel(model: Model) -> dict[tuple[str, int, _Bound], list[tuple[Scope, Node]]]:
    """The nodes with types that there is no kernel for, by operator, version and types."""
    missing: dict[tuple[str, int, _Bound], list[tuple[Scope, Node]]] = {}
    opset = model.opsets.get("", 0)
    if model.opsets.get(MS, 1) != 1:
        return missing
    served: set[Hashable] = set()
    for scope, node in nodes(model):
        given = tuple(map(scope.dtype, node.inputs)), tuple(map(scope.made, node.outputs))
        typed = node.domain, node.op_type, node.version, given
        if typed in served:
            continue
        known = known_schema(node) if node.domain in DOMAINS else None
        bound = _variables(scope, node, known, *given) if known is not None else None
        if bound is None:
            continue
        if _has_kernel(node.domain, node.op_type, node.version, opset, bound):
            served.add(typed)
        else:
            missing.setdefault((node.op, node.version, bound), []).append((scope, node))
    return missing


def _variables(scope: Scope, node: Node, known: Schema, inputs: _Types, outputs: _Types) -> _Bound | None:
    """The types of a node's variables as far as they are known. inputs, outputs: the types of its tensors.

    None if they contradict the schema, what the file states, or a zero point with which a node reads a tensor: other
    rules report that.
    """
    found: dict[str, np.dtype[Any]] = {}
    if not scope.disputed.isdisjoint(node.outputs):
        return None
    places = [(known.inputs, *place) for place in zip(count(), node.inputs, inputs, strict=False)]
    places += [(known.outputs, *place) for place in zip(count(), node.outputs, outputs, strict=False)]
    for formals, place, name, dtype in places:
        if not formals or dtype is None:
            continue
        if not scope.read_as.get(name, frozenset()) <= {dtype}:
            return None
        formal = formals[min(place, len(formals) - 1)]
        if formal.types is None or not formal.homogeneous or formal.variable.startswith("tensor("):
            continue
        if dtype not in formal.types or found.setdefault(formal.variable, dtype) != dtype:
            return None
    return tuple(found.items())


@cache
def _has_kernel(domain: str, op_type: str, version: int, opset: int, bound: _Bound) -> bool:
    kernels = cpu_kernels(domain, op_type)
    if kernels is None:
        return domain != MS
    if kernels.functions.get(version, opset + 1) <= opset:
        return True
    single = {name: _SINGLE if dtype == _HALF else dtype for name, dtype in bound}
    return any(_fits(row, dict(bound)) or _fits(row, single) for row in kernels.of(version))


def _fits(row: Mapping[str, Types], bound: Mapping[str, np.dtype[Any]]) -> bool:
    return all(dtype in row[name] for name, dtype in bound.items() if name in row)


def there_are(node: Node) -> str:
    """The combinations that there are kernels for."""
    kernels = cpu_kernels(node.domain, node.op_type)
    rows = list(kernels.of(node.version)) if kernels else []
    if not rows:
        return "another operator; it has no CPU kernel of this one"
    texts = [
        ", ".join(f"{name} {'/'.join(sorted(map(type_name, types)))}" for name, types in row.items()) for row in rows
    ]
    return "; or ".join(texts[:4]) + ("; ..." if len(texts) > 4 else "")
