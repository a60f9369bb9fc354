"""Write qrun/ir/schemas.txt, what onnx.defs says about its operators:
python scripts/make_schemas.py

A line for each set of element types, `@number names...`, then one for each version of each operator:
name, since_version, inputs, outputs, least and most inputs, most outputs, attributes, types of the type variables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnx.defs

from qrun.ir.schema import STANDARD
from qrun.ir.types import BY_ONNX_NAME

TARGET = Path(__file__).parents[1] / "qrun" / "ir" / "schemas.txt"
OPTIONS = {"Single": "", "Optional": "?", "Variadic": "*"}


def main() -> None:
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if s.domain in STANDARD]
    sets: dict[str, int] = {}
    lines = [line(s, sets) for s in sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version))]
    heads = [f"onnx {onnx.__version__}", *(f"@{number} {names}".rstrip() for names, number in sets.items())]
    TARGET.write_text("\n".join([*heads, *lines]) + "\n", encoding="ascii")


def line(schema: Any, sets: dict[str, int]) -> str:
    if schema.deprecated:
        return f"{known(schema)}\t{schema.since_version}"
    inputs, outputs = (" ".join(formal(p) for p in formals) for formals in (schema.inputs, schema.outputs))
    counts = f"{schema.min_input} {schema.max_input} {schema.max_output}"
    variables = " ".join(
        f"{c.type_param_str}@{sets.setdefault(plain(c.allowed_type_strs), len(sets))}" for c in schema.type_constraints
    )
    fields = (
        known(schema),
        schema.since_version,
        inputs,
        outputs,
        counts,
        " ".join(sorted(schema.attributes)),
        variables,
    )
    return "\t".join(map(str, fields))


def known(schema: Any) -> str:
    return f"{schema.domain}::{schema.name}" if schema.domain else str(schema.name)


def formal(p: Any) -> str:
    option = OPTIONS[p.option.name]
    return f"{p.name}{option if p.is_homogeneous else '+'}:{p.type_str}"


def plain(names: Any) -> str:
    """The tensor types among them, as numpy can hold them."""
    found = (n[7:-1] for n in names if n.startswith("tensor("))
    return " ".join(sorted(n for n in found if n in BY_ONNX_NAME))


if __name__ == "__main__":
    main()
