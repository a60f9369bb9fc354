"""The report of ``qrun ops``: operators with versions and types, as text and as JSON; and the page of one operator for
``qrun explain``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from qrun.checking.rules import RULES
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.ir.schema import MCT, ML, QONNX, QUARK, STANDARD, VAI, schema_versions
from qrun.ir.types import type_name
from qrun.ops import REGISTRY, RUNNER, OpDef, facts, find, near_operators, operators
from qrun.report.grid import Column, Grid
from qrun.report.screen import NAME, Screen

FAMILIES = (("u", "uint"), ("i", "int"), ("bf", "bfloat"), ("f", "float"), ("c", "complex"))
WIDE = 120
"""Columns from which a table also shows the rules."""
NUMERIC = frozenset(map(np.dtype, "BHIQbhiqefd"))
PYTHON = re.compile(r"\bRaises \w+Error\b.*?\.(?: |\n|$)", re.DOTALL)
"""What docstrings of operators tell callers in Python."""


@frozen
class Supported:
    """An operator that runs.

    versions: the schema versions that run, oldest first; definition: the newest version's.
    inputs:   (names that share a type, allowed types) of the inputs that hold data, at the newest version.
    """

    domain: str
    op_type: str
    versions: tuple[int, ...]
    definition: OpDef
    inputs: tuple[tuple[tuple[str, ...], frozenset[np.dtype[Any]] | None], ...]
    limits: str

    @property
    def op(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def text(self) -> str:
        """The declaration's docstring without what concerns Python only, and its sources: the operator's own page
        before others that it names."""
        told = PYTHON.sub("", inspect.cleandoc(self.definition.__doc__ or "")).replace("``", "").rstrip()
        if self.op_type in told.partition("Source: ")[2]:
            return told
        pages = {"": "ONNX operators, {}-{}", ML: "ONNX-ML operators, {}-{}", QONNX: "QONNX custom operators, {}-{}"}
        pages |= dict.fromkeys((QUARK, VAI, MCT), f"{self.domain}.{{}}")
        pages |= {domain: f"ONNX operators, {domain}.{{}}-{{}}" for domain in STANDARD if domain not in pages}
        page = pages.get(self.domain, f"onnxruntime ContribOperators, {self.domain}.{{}}")
        own = f"Source: {page.format(self.op_type, *self.versions[-1:])}"
        return told.replace("Source: ", f"{own}; ") if "Source: " in told else f"{told}\n{own}."

    @property
    def ran_by(self) -> str:
        return RUNNER if self.definition.runner == RUNNER else "qrun"

    @property
    def types(self) -> str:
        """``x u8/i8, w u8/i8``."""
        return ", ".join(f"{' '.join(names)} {compact(types)}".strip() for names, types in self.inputs)

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules about this operator."""
        return tuple(_rules().get(self.op, ()))


@cache
def _rules() -> dict[str, list[str]]:
    """The rules about each operator, by the operator's name as users write it."""
    return grouped((op, rule.id) for rule in RULES.values() for op in dict.fromkeys(rule.applies))


def supported_operators() -> tuple[Supported, ...]:
    """All operators that run, ai.onnx first, by name."""
    return tuple(_describe_operator(domain, op_type) for domain, op_type in operators())


def matching_operators(known: Iterable[Supported], name: str) -> tuple[Supported, ...]:
    """The operators whose name contains `name`, in any case."""
    return tuple(s for s in known if name.lower() in s.op.lower())


def _describe_operator(domain: str, op_type: str) -> Supported:
    declared, versions = REGISTRY.get((domain, op_type), ()), _versions(domain, op_type)
    definition = declared[-1] if declared else find(domain, op_type, versions[-1])
    assert definition is not None
    text = definition.__doc__ or ""
    limits = next((line.strip()[8:] for line in text.splitlines() if line.strip().startswith("Limits: ")), "")
    inputs = _inputs(definition, versions[-1]) if versions else ()
    return Supported(domain, op_type, versions, definition, inputs, limits.rstrip("."))


def _versions(domain: str, op_type: str) -> tuple[int, ...]:
    found = {v for v in schema_versions(domain, op_type) if find(domain, op_type, v)}
    return tuple(sorted(found | {d.since for d in REGISTRY.get((domain, op_type), ()) if d.contrib or not found}))


def _inputs(definition: OpDef, version: int) -> tuple[tuple[tuple[str, ...], frozenset[np.dtype[Any]] | None], ...]:
    """Inputs that hold data, and outputs whose type is given by their zero point; grouped by type variable."""
    formals = {f.name: f for f in definition.formals(version)}
    data = dict(formals)
    known = facts(definition.domain, definition.op_type)
    if known and known.bias and known.integer_bias:
        del data[known.names[known.bias[0]]]
    for tensor, *parameters, _ in known.quantized if known else ():
        for name in (known.names[place] for place in parameters if known and place >= 0):
            formal = data.pop(name)
            if tensor < 0 and name.endswith("_zero_point"):
                data[name.split("_")[0]] = formal
    groups = grouped((f.variable or name, name) for name, f in data.items())
    return tuple((tuple(names), data[names[0]].types) for names in groups.values())


def compact(types: frozenset[np.dtype[Any]] | None) -> str:
    """``u8/i8``; ``f8`` for all float8 types, ``numeric`` for all usual numbers, ``any`` with text or bool."""
    if types is None:
        return ""
    if types >= NUMERIC:
        return "any" if np.dtype(object) in types or np.dtype(bool) in types else "numeric"
    return "/".join(dict.fromkeys(short(t) for t in sorted(types, key=_rank)))


def short(dtype: np.dtype[Any]) -> str:
    """``u8``, ``f16``, ``bf16``, ``f8``, ``bool``, ``str``."""
    name = type_name(dtype)
    for letter, family in FAMILIES:
        if name.startswith(family):
            digits = name.removeprefix(family)
            return letter + (digits.split("e")[0] if not digits.isdigit() else digits)
    return {"string": "str"}.get(name, name)


def _rank(dtype: np.dtype[Any]) -> tuple[int, int, str]:
    text = short(dtype)
    letters = text.rstrip("0123456789")
    order = ["u", "i", "f", "bf"]
    return (order.index(letters) if letters in order else 9, int(text[len(letters) :] or 0), type_name(dtype))


def print_ops(screen: Screen, shown: Sequence[Supported], total: int, name: str = "") -> None:
    """Prints the table, without the rules if room is short, then how many of how many are shown. name: operators whose
    name begins with it come first."""
    wide, others = screen.width is None or screen.width >= WIDE, any(s.ran_by == RUNNER for s in shown)
    columns = [
        Column("operator", wrap=True, cell=lambda s: s.op),
        Column("versions", wrap=True, cell=lambda s: ", ".join(map(str, s.versions))),
        Column("types", wrap=True, cell=lambda s: s.types or "-"),
        Column("ran by", wrap=True, cell=lambda s: s.ran_by) if others else None,
        Column("checked by", wrap=True, cell=lambda s: ranges(s.rules) or "-") if wide else None,
    ]
    if shown:
        screen.grid(Grid.of(columns, sorted(shown, key=lambda s: not s.op_type.lower().startswith(name.lower()))))
    screen.line(count_text(shown, total))


def count_text(shown: Sequence[Supported], total: int) -> str:
    return f"{len(shown)} of {total} operators"


def ranges(codes: Sequence[str]) -> str:
    """``QR301-QR303, QR305``."""
    runs: list[list[str]] = []
    for code in codes:
        if runs and int(code[2:]) == int(runs[-1][-1][2:]) + 1:
            runs[-1].append(code)
        else:
            runs.append([code])
    return ", ".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def why_missing(name: str) -> str:
    """One sentence about an operator that does not run, with similar names."""
    near = near_operators(name.rpartition("::")[2])
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    return f"no operator has {name!r} in its name{hint}"


def ops_fields(shown: Sequence[Supported], total: int) -> dict[str, Any]:
    """The JSON report."""
    return {
        "operators": [
            {
                "op": s.op_type,
                "domain": s.domain or "ai.onnx",
                "versions": list(s.versions),
                "inputs": [
                    {"names": list(names), "types": sorted(map(type_name, types)) if types else None}
                    for names, types in s.inputs
                ],
                "ran_by": s.ran_by,
                "rules": list(s.rules),
                "limits": s.limits or None,
            }
            for s in shown
        ],
        "total": total,
    }


def print_operators(screen: Screen, found: Sequence[Supported]) -> None:
    """Prints everything known about these operators, such as one operator in several domains: versions, text, inputs,
    attributes, rules."""
    for number, s in enumerate(found):
        if number:
            screen.line()
        _print_operator(screen, s)


def _print_operator(screen: Screen, s: Supported) -> None:
    versions = ", ".join(map(str, s.versions))
    screen.line((s.op, "bold"), f"   version{'s' if len(s.versions) > 1 else ''} {versions}")
    screen.paragraphs(s.text, "  ")
    screen.line()
    formals = {f.name: f for f in s.definition.formals(s.versions[-1])}
    inputs = [
        [
            p.name,
            compact(formals[p.name].types) if p.name in formals else "",
            "repeats" if p.variadic else "optional" if p.optional else "",
        ]
        for p in s.definition.inputs
    ]
    if inputs:
        screen.grid(Grid([Column("input", style=NAME), Column("types", shrink=1), Column("")], inputs))
    attributes = [[a.name, a.text, _default(s, a.name, a.required)] for a in s.definition.attributes.values()]
    if attributes:
        screen.grid(Grid([Column("attribute", style=NAME), Column("kind"), Column("default", shrink=1)], attributes))
    if s.ran_by == RUNNER:
        screen.line(f"  ran by      {RUNNER}")
    if s.rules:
        screen.wrapped("  checked by  ", " " * 14, ranges(s.rules))
    if any("zero_point" in text for text in (s.text, *(p.name for p in s.definition.inputs))):
        screen.line("  see also    qrun explain numerics")


def _default(s: Supported, name: str, required: bool) -> str:
    if required:
        return "required"
    parameters = s.definition.signature.parameters
    value = parameters[name if name in parameters else f"{name}_"].default
    if value is None or value == ():
        return "-"
    return str(value)
