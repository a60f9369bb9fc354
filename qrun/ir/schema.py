"""Operator schemas of onnx.defs: the version that an opset selects, and the element types that it allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.model import Model
from qrun.ir.types import BY_ONNX_NAME

OPSETS = range(1, 29)
"""Versions of ai.onnx that qrun reads; an operator from before opset 7 runs if its version was still valid in opset 7
or later."""
MS = "com.microsoft"
ML = "ai.onnx.ml"
STANDARD = {"": OPSETS, ML: range(1, 6), "ai.onnx.preview.training": range(1, 2), "ai.onnx.preview": range(1, 2)}
"""The domains of onnx.defs, and their versions."""
DOMAINS = (*STANDARD, MS)
QONNX = "qonnx.custom_op.general"
FORMER = {"onnx.brevitas": QONNX, "finn.custom_op.general": QONNX}
"""Former names of a domain, which some files still use."""
QUARK = "com.amd.quark"
VAI = "com.vai.quantize"
"""The domain of vai_q_onnx, whose operators have other names in its successor Quark."""
MCT = "mct_quantizers"
VENDORS = (QONNX, *FORMER, QUARK, VAI, MCT)
"""Domains of quantizers that qrun runs operators of, though neither ONNX nor onnxruntime has them."""
NAMELESS = ("Quant", "BipolarQuant")
"""Operators of QONNX that files of 2021 use without a domain; ai.onnx has none of these names."""
ASSUMED = {MS: 1, QONNX: 1, **dict.fromkeys(FORMER, 1)}
"""The version of a domain that a file uses without importing it. onnxruntime's quantizer writes such files where all
nodes of com.microsoft are inside other nodes; the tools of QONNX also assume version 1."""
OWN = "qrun"
"""The domain of operators that exist only in models rewritten by qrun; in a file it is as unknown as any other."""


def home(domain: str, op_type: str) -> str:
    """The current domain of an operator that a file has in `domain`, which may be a former name or empty."""
    return FORMER.get(domain, domain) if domain or op_type not in NAMELESS else QONNX


@frozen
class Formal:
    """An input or output of a schema: name, type variable, allowed types (None: not a plain tensor).

    homogeneous: all tensors of a variadic one have the same type.
    """

    name: str
    variable: str
    types: frozenset[np.dtype[Any]] | None
    option: str
    homogeneous: bool = True


@frozen
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
    """The schema that `opset` selects, or None if the operator is not in onnx.defs at this opset.

    onnx.defs takes 15 ms and 7 MB for its first answer, so what it says is kept in schemas.txt.
    """
    if domain in (OWN, MS, *VENDORS) or not 1 <= opset < 2**31:
        return None
    stored = opset in STANDARD.get(domain, ())
    return stored_schema(domain, op_type, opset) if stored else onnx_schema(domain, op_type, opset)


def onnx_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The same as `schema`, from onnx.defs."""
    import onnx.defs

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


def stored_schema(domain: str, op_type: str, opset: int) -> Schema | None:
    """The same as `schema`, for an opset of STANDARD, from schemas.txt; scripts/make_schemas.py explains its format."""
    found = [fields for fields in _read_schemas()[1].get((domain, op_type), ()) if int(fields[0]) <= opset]
    if not found or len(found[-1]) == 1:
        return None
    since, inputs, outputs, counts, attributes, variables = found[-1]
    least, most, results = map(int, counts.split())
    constraints = {name: _stored_types(number) for name, _, number in (v.partition("@") for v in variables.split())}

    def formal(text: str) -> Formal:
        name, _, variable = text.partition(":")
        types = constraints[variable] if variable in constraints else _dtypes([variable])
        option = {"?": "Optional", "*": "Variadic", "+": "Variadic"}.get(name[-1], "Single")
        return Formal(name.rstrip("?*+"), variable, types, option, name[-1] != "+")

    return Schema(
        int(since),
        tuple(map(formal, inputs.split())),
        tuple(map(formal, outputs.split())),
        least,
        most,
        results,
        frozenset(attributes.split()),
    )


def schema_versions(domain: str, op_type: str) -> tuple[int, ...]:
    """The since_versions that opsets select, oldest first; none for an operator that is not in onnx.defs."""
    opsets = STANDARD.get(domain, ())
    since = [int(fields[0]) for fields in _read_schemas()[1].get((domain, op_type), ())]
    selected = [stored_schema(domain, op_type, opset) for opset in (*opsets[:1], *since) if opset in opsets]
    return tuple(sorted({found.version for found in selected if found is not None}))


def standard_operators() -> tuple[tuple[str, str], ...]:
    """Domain and name of the operators that onnx.defs has in some version."""
    return tuple(key for key in _read_schemas()[1] if schema_versions(*key))


def stated_attributes(domain: str, op_type: str, opset: int) -> Mapping[str, tuple[Any, Any]]:
    """An operator's attributes in onnx.defs, by name: the Python type, and the default: None if there is none, `...` if
    the attribute is required."""
    import onnx.defs

    raw: Any = onnx.defs.get_schema(op_type, opset, domain)
    return {name: (_PYTHON[a.type.name], ... if a.required else _default(a)) for name, a in raw.attributes.items()}


_PYTHON: Mapping[str, Any] = {
    "INT": int,
    "FLOAT": float,
    "STRING": str,
    "TENSOR": np.ndarray,
    "GRAPH": Model,
    "INTS": tuple[int, ...],
    "FLOATS": tuple[float, ...],
    "STRINGS": tuple[str, ...],
}


def _default(attribute: Any) -> Any:
    """The default value of an attribute in onnx.defs; None if it has none."""
    import onnx.helper

    if not attribute.default_value.name or attribute.type.name == "TENSOR":
        return None
    value = onnx.helper.get_attribute_value(attribute.default_value)
    return value.decode() if isinstance(value, bytes) else tuple(value) if isinstance(value, list) else value


@cache
def _read_schemas() -> tuple[Mapping[str, str], Mapping[tuple[str, str], Sequence[Sequence[str]]]]:
    """The contents of schemas.txt: sets of types by number; the fields of each version of each operator, in order."""
    sets: dict[str, str] = {}
    operators: dict[tuple[str, str], list[list[str]]] = {}
    for line in Path(__file__).with_name("schemas.txt").read_text("ascii").splitlines()[1:]:
        name, *fields = line.split("\t")
        if fields:
            domain, _, op_type = name.rpartition("::")
            operators.setdefault((domain, op_type), []).append(fields)
        else:
            number, _, names = line[1:].partition(" ")
            sets[number] = names
    return sets, operators


@cache
def _stored_types(number: str) -> frozenset[np.dtype[Any]] | None:
    """The element types of a stored type list; None if there are none."""
    return frozenset(BY_ONNX_NAME[name] for name in _read_schemas()[0][number].split()) or None


def version(domain: str, op_type: str, opset: int) -> int:
    """The since_version that `opset` selects; `opset` itself where onnx.defs has no such operator; 0 in OWN."""
    if domain == OWN:
        return 0
    found = schema(domain, op_type, opset)
    return found.version if found else opset


def _dtypes(names: Any) -> frozenset[np.dtype[Any]] | None:
    """The element types among ONNX's type strings; None if there are none."""
    found = {BY_ONNX_NAME[n[7:-1]] for n in names if n.startswith("tensor(") and n[7:-1] in BY_ONNX_NAME}
    return frozenset(found) or None
