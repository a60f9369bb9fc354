"""What onnx.defs says about an operator: which version an opset selects, and which element types it allows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx.defs

from qrun.ir.types import BY_ONNX_NAME

OPSETS = range(7, 29)
"""Versions of ai.onnx that qrun reads."""
MS = "com.microsoft"
DOMAINS = ("", MS)


@dataclass(frozen=True, slots=True)
class Formal:
    """An input or output of a schema: name, type variable, allowed types (None: not a plain tensor).

    homogeneous: all tensors of a variadic one have the same type.
    """

    name: str
    variable: str
    types: frozenset[np.dtype[Any]] | None
    option: str
    homogeneous: bool = True


@dataclass(frozen=True, slots=True)
class Schema:
    """The part of an onnx.defs schema that qrun uses."""

    version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    min_inputs: int
    max_inputs: int
    max_outputs: int
    attributes: frozenset[str]


@cache
def schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The schema that `opset` selects, or None if the operator is not in onnx.defs at this opset."""
    if not 0 <= opset < 2**31:
        return None
    try:
        raw = onnx.defs.get_schema(op_type, opset, domain)
    except onnx.defs.SchemaError:
        return None
    if raw.deprecated:
        return None
    constraints = {c.type_param_str: _dtypes(c.allowed_type_strs) for c in raw.type_constraints}

    def formal(p: Any) -> Formal:
        types = constraints.get(p.type_str, _dtypes([p.type_str]))
        return Formal(p.name, p.type_str, types, p.option.name, p.is_homogeneous)

    return Schema(
        raw.since_version,
        tuple(formal(p) for p in raw.inputs),
        tuple(formal(p) for p in raw.outputs),
        raw.min_input,
        raw.max_input,
        raw.max_output,
        frozenset(raw.attributes),
    )


@cache
def standard_operators() -> frozenset[str]:
    """The names of the operators that ai.onnx has at the newest opset that qrun reads."""
    names = {raw.name for raw in onnx.defs.get_all_schemas() if raw.domain == ""}
    return frozenset(name for name in names if schema("", name, OPSETS[-1]) is not None)


def version(domain: str, op_type: str, opset: int) -> int:
    """The since_version that `opset` selects; `opset` itself for operators that are not in onnx.defs."""
    found = schema(domain, op_type, opset)
    return found.version if found else opset


def _dtypes(names: Any) -> frozenset[np.dtype[Any]] | None:
    found = {BY_ONNX_NAME[n[7:-1]] for n in names if n.startswith("tensor(") and n[7:-1] in BY_ONNX_NAME}
    return frozenset(found) or None
