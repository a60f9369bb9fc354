"""The schemas of onnxruntime's operators and the types of its CPU kernels, from onnxruntime.txt;
scripts/make_ort.py documents the format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Node
from qrun.ir.schema import DOMAINS, MS, Formal, Schema, schema
from qrun.ir.types import BY_ONNX_NAME
from qrun.ops import find

PUBLISHED_IR = 14
"""The last IR version in onnx.proto of onnx 1.23."""

_OPEN = 2**31

Types = frozenset[np.dtype[Any]]


@frozen
class OrtKernels:
    """The CPU kernels of one operator.

    functions: maps a since_version to the opset from which it can run as an ONNX function, without a kernel.
    rows:      first and last version, and the types of the type variables.
    """

    functions: Mapping[int, int]
    rows: tuple[tuple[int, int, Mapping[str, Types]], ...]

    def of(self, version: int) -> Iterator[Mapping[str, Types]]:
        """Yield the type rows for this since_version; a row without a last version applies only to its first."""
        return (types for first, last, types in self.rows if first == version or (first < version <= last < _OPEN))


def runtime() -> str:
    """The runtime and version of the data: ``onnxruntime 1.32.0``."""
    return _lines()[0]


def known_schema(node: Node) -> Schema | None:
    """The schema of a node's operator in onnx.defs or onnxruntime; None if they do not define it."""
    return contrib(node.op_type) if node.domain == MS else schema(node.domain, node.op_type, node.version)


def is_unknown(node: Node) -> bool:
    """Is the node's domain known, but does it not define the operator at this opset?"""
    if node.domain not in DOMAINS or known_schema(node) is not None:
        return False
    definition = find(node.domain, node.op_type, node.version)
    return definition is None or not definition.contrib


@cache
def contrib(op_type: str) -> Schema | None:
    """The schema of an operator of com.microsoft."""
    fields = _table().get(("schema", op_type))
    if fields is None:
        return None
    inputs, outputs, counts, attributes, variables = fields
    least, most, results = map(int, counts.split())
    constraints = {name: _sets()[number] for name, _, number in (v.partition("@") for v in variables.split())}

    def formal(text: str) -> Formal:
        name, _, variable = text.partition(":")
        plain = variable[7:-1] if variable.startswith("tensor(") else ""
        types = constraints.get(variable) or (frozenset({BY_ONNX_NAME[plain]}) if plain in BY_ONNX_NAME else None)
        option = {"?": "Optional", "*": "Variadic", "+": "Variadic"}.get(name[-1], "Single")
        return Formal(name.rstrip("?*+"), variable, types, option, name[-1] != "+")

    ins, outs = (tuple(map(formal, text.split())) for text in (inputs, outputs))
    return Schema(1, ins, outs, least, most, results, frozenset(attributes.split()))


@cache
def cpu_kernels(domain: str, op_type: str) -> OrtKernels | None:
    """The kernels of an operator; None if the CPU provider has none."""
    fields = _table().get((f"cpu {domain}".rstrip(), op_type))
    if fields is None:
        return None
    rows, functions = [], {}
    for row in fields:
        if row.startswith("?"):
            since, _, opset = row[1:].partition(":")
            functions[int(since)] = int(opset)
            continue
        span, *variables = row.split()
        first, _, last = span.partition("-")
        types = {name: _sets()[number] for name, _, number in (v.partition("@") for v in variables)}
        rows.append((int(first), int(last or _OPEN), {name: t for name, t in types.items() if t}))
    return OrtKernels(functions, tuple(rows))


@cache
def _lines() -> Sequence[str]:
    return Path(__file__).with_name("onnxruntime.txt").read_text("ascii").splitlines()


@cache
def _table() -> Mapping[tuple[str, str], Sequence[str]]:
    found = {}
    for line in _lines()[1:]:
        kind, *fields = line.split("\t")
        if kind == "schema":
            found[kind, fields[0]] = fields[1:]
        elif kind == "cpu":
            found[f"cpu {fields[0]}".rstrip(), fields[1]] = fields[2:]
    return found


@cache
def _sets() -> Mapping[str, Types]:
    heads = (line[1:].partition(" ") for line in _lines() if line.startswith("@"))
    return {number: frozenset(BY_ONNX_NAME[n] for n in names.split() if n != "-") for number, _, names in heads}
