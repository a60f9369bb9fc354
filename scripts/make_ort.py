"""Write qrun/checking/rules/onnxruntime.txt, what onnxruntime says about its operators and CPU kernels:
python scripts/make_ort.py

The first line is the version. Then a line for each set of element types, `@number names...`; for each operator of
com.microsoft, ``schema name inputs outputs least-and-most-inputs most-outputs attributes variables``; and for each
operator with CPU kernels, ``cpu domain name kernel...`` with kernels as ``first-last variable@number ...``.
``?since:opset`` before them: from that opset on, this version of the operator can also be run as an ONNX function.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx.defs
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state

from qrun.ir.schema import MS, OPSETS
from qrun.ir.types import BY_ONNX_NAME

TARGET = Path(__file__).parents[1] / "qrun" / "checking" / "rules" / "onnxruntime.txt"
OPTIONS = {"Single": "", "Optional": "?", "Variadic": "*"}


def main() -> None:
    sets: dict[str, int] = {}
    lines = [schema(s, sets) for s in sorted(state.get_all_operator_schema(), key=lambda s: s.name) if s.domain == MS]
    lines += kernels(sets)
    heads = [f"onnxruntime {onnxruntime.__version__}", *(f"@{n} {names}".rstrip() for names, n in sets.items())]
    TARGET.write_text("\n".join([*heads, *lines]) + "\n", encoding="ascii")


def schema(s: Any, sets: dict[str, int]) -> str:
    inputs, outputs = (" ".join(formal(p) for p in formals) for formals in (s.inputs, s.outputs))
    variables = " ".join(f"{c.type_param_str}@{number(c.allowed_type_strs, sets)}" for c in s.type_constraints)
    counts = f"{s.min_input} {s.max_input} {s.max_output}"
    return "\t".join(("schema", s.name, inputs, outputs, counts, " ".join(sorted(s.attributes)), variables))


def formal(p: Any) -> str:
    same = "+" if p.option.name == "Variadic" and not p.isHomogeneous else ""
    return f"{p.name}{same or OPTIONS[p.option.name]}:{p.typeStr}".replace(" ", "_")


def kernels(sets: dict[str, int]) -> Iterator[str]:
    found: dict[tuple[str, str], dict[str, None]] = {}
    for k in state.get_all_opkernel_def():
        first, last = k.version_range
        if k.provider == "CPUExecutionProvider" and k.domain in ("", MS) and last >= OPSETS[0] * (not k.domain):
            types = [f"{name}@{number(allowed, sets)}" for name, allowed in sorted(k.type_constraints.items())]
            row = " ".join((f"{first}-{last if last < 2**31 - 1 else ''}", *types))
            found.setdefault((k.domain, k.op_name), {})[row] = None
    for (domain, name), rows in sorted(found.items()):
        yield "\t".join(("cpu", domain, name, *functions(name, domain), *rows))


def functions(name: str, domain: str) -> Iterator[str]:
    for s in onnx.defs.get_all_schemas_with_history():
        opsets = [*s.function_opset_versions, *s.context_dependent_function_opset_versions]
        if (s.domain, s.name) == (domain, name) and opsets:
            yield f"?{s.since_version}:{min(opsets)}"


def number(names: Any, sets: dict[str, int]) -> int:
    """The number of a set of types; those that are no plain tensors stand as ``-``."""
    plain = sorted({n[7:-1] if n.startswith("tensor(") and n[7:-1] in BY_ONNX_NAME else "-" for n in names})
    return sets.setdefault(" ".join(plain), len(sets))


if __name__ == "__main__":
    main()
