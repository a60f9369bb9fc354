"""The order of the layers, who may import what, and every operator's signature against onnx.defs."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import pytest

import qrun
from qrun.errors import OperatorError
from qrun.ir import Array, Node
from qrun.ir.schema import OPSETS, Formal, schema
from qrun.ops import REGISTRY, OpDef, find

ROOT = Path(qrun.__file__).parent
LAYERS = [
    *("errors", "files", "child", "memory", "cpus", "shapes", "ir", "native", "ops", "passes", "plan", "foresight"),
    *("dispatch", "steps", "extents"),
    *("machine", "profiling", "programs", "execution", "sizes", "fitting", "feeds", "session", "differences", "peers"),
    *("ortnodes", "ortprofile", "arrays", "randoms", "inline", "inputerrors", "inputs", "outputs", "rules"),
    *("refusals", "ties", "vectors", "checking", "runners", "comparing", "report", "cli", "pytest_plugin", "__main__"),
]
FLAT = ("ops", "passes", "rules")
OWNERS = {
    "onnx": ("ir", "child", "peers", "ortnodes", "ortprofile", "report.header"),
    "onnxruntime": ("child",),
    "rich": ("report", "cli"),
    "click": ("cli",),
    "llvmlite": ("native",),
    "ctypes": ("native",),
}
"""Packages and the layers, or modules, that may import them; report.header prints onnx's version."""
NATIVE_SEES = ("errors", "memory", "shapes", "native")


def modules() -> dict[str, str]:
    """Dotted names below qrun, without the package itself, and their sources."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    del found[""]
    return found


def imports(source: str) -> Iterator[str]:
    """Everything a module imports, also inside functions, but not under TYPE_CHECKING."""
    pending: list[ast.AST] = [ast.parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending += ast.iter_child_nodes(node)


def violations(name: str, source: str) -> list[str]:
    layer = name.split(".")[0]
    found = [] if layer in LAYERS else [f"{name} belongs to no layer: add it to LAYERS"]
    for target in imports(source):
        top, _, rest = target.partition(".")
        if top in OWNERS and layer not in OWNERS[top] and name not in OWNERS[top]:
            found.append(f"{name} imports {top}; only {', '.join(OWNERS[top])} may")
        if top != "qrun" or rest.split(".")[0] not in LAYERS or layer not in LAYERS:
            continue
        other, *inner = rest.split(".")
        if LAYERS.index(other) > LAYERS.index(layer):
            found.append(f"{name} imports {target}, a later layer")
        if layer == "native" and other not in NATIVE_SEES:
            found.append(f"{name} imports {target}: native knows no ONNX")
        inside = other == layer in FLAT and name not in FLAT and bool(inner)
        if inside and not inner[0].startswith("_") and (ROOT / other / f"{inner[0]}.py").exists():
            found.append(f"{name} imports its sibling {target}")
    return found


def operator_names(source: str) -> list[str]:
    known = {s.name for s in onnx.defs.get_all_schemas()} | {op_type for _, op_type in REGISTRY}
    strings = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return [s for s in strings if s in known]


def test_layers() -> None:
    found = modules()
    assert len(found) > 50
    assert {name.split(".")[0] for name in found} >= {"errors", "ir", "native", "ops", "plan", "session", "rules"}
    assert [v for name, source in found.items() for v in violations(name, source)] == []


@pytest.mark.parametrize("name", ["plan", "dispatch", "steps", "session"])
def test_no_operator_is_special(name: str) -> None:
    assert operator_names(modules()[name]) == []


@pytest.mark.parametrize(
    ("name", "source", "seen"),
    [
        ("ir.load", "from qrun.ops import find", "later layer"),
        ("ir.load", "def f():\n    from qrun import session", "later layer"),
        ("ops.gather", "import qrun.ops.cast", "sibling"),
        ("ops.gather", "from qrun.ops import cast", "sibling"),
        ("ops._shape", "from qrun.ops.cast import cast", "sibling"),
        ("session", "import onnx.defs", "only ir"),
        ("rules.x", "from rich.table import Table", "only report"),
        ("native.kernels", "from qrun.ir import Node", "native"),
        ("ops.conv", "import llvmlite.binding", "only native"),
        ("ops.conv", "import ctypes", "only native"),
        ("somewhere", "", "no layer"),
    ],
)
def test_violations_are_seen(name: str, source: str, seen: str) -> None:
    assert any(seen in v for v in violations(name, source))


def test_what_is_allowed() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import onnx\n    from qrun.cli import main\n"
    assert violations("session", source) == []
    assert violations("ops.gather", "from qrun.ops._op import op\nfrom qrun.ops import _shape, Context") == []
    assert operator_names("x = 'Conv'") == ["Conv"]


# Signatures against onnx.defs

KINDS = {
    "INT": (int, None),
    "FLOAT": (float, None),
    "STRING": (str, None),
    "TENSOR": (np.ndarray, None),
    "INTS": (tuple, int),
    "FLOATS": (tuple, float),
    "STRINGS": (tuple, str),
}
NOT_HELD = ("GRAPH", "GRAPHS", "SPARSE_TENSOR", "SPARSE_TENSORS", "TYPE_PROTO")
"""Attribute types for which kernels have no parameter: the loader refuses them, or they hold subgraphs."""
OPERATORS = sorted(op_type for domain, op_type in REGISTRY if not domain)


def schemas(op_type: str) -> dict[int, Any]:
    """The versions that opsets 7 to 28 select, by since_version."""
    found = {}
    for opset in OPSETS:
        try:
            raw = onnx.defs.get_schema(op_type, opset, "")
        except onnx.defs.SchemaError:
            continue
        if not raw.deprecated:
            found[raw.since_version] = raw
    return found


def default(raw: Any) -> Any:
    if not raw.default_value.name:
        return None
    value = onnx.helper.get_attribute_value(raw.default_value)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if isinstance(value, list) else value


def same_default(got: Any, want: Any) -> bool:
    if want is None:
        return got is None or got == ()
    if isinstance(want, float):
        return isinstance(got, float) and np.float32(got) == np.float32(want)
    return type(got) is type(want) and bool(got == want)


def mismatches(definition: OpDef, versions: dict[int, Any]) -> list[str]:
    """Where a declaration differs from the schema versions that it covers."""
    found = []
    defaults = {p.name.removesuffix("_"): p.default for p in definition.signature.parameters.values()}
    for version, raw in versions.items():
        want = [(i.name, i.option.name) for i in raw.inputs]
        got = [
            (p.name, "Variadic" if p.variadic else "Optional" if p.optional else "Single") for p in definition.inputs
        ]
        if got != want:
            found.append(f"{version}: inputs {got}, in onnx.defs {want}")
    union = {name: a for raw in versions.values() for name, a in raw.attributes.items() if a.type.name not in NOT_HELD}
    if set(union) != set(definition.attributes):
        found.append(f"attributes {sorted(definition.attributes)}, in onnx.defs {sorted(union)}")
    for name, spec in definition.attributes.items():
        given = [raw.attributes.get(name) for raw in versions.values()]
        if spec.required and not all(a is not None and a.required for a in given):
            found.append(f"attribute {name} is required here only")
        for version, a in zip(versions, given, strict=True):
            if a is None:
                continue
            if a.required and not spec.required:
                found.append(f"{version}: attribute {name} is required in onnx.defs")
            if (spec.kind, spec.item) != KINDS[a.type.name]:
                found.append(f"{version}: attribute {name} is {spec.text}, in onnx.defs {a.type.name}")
            if not spec.required and not same_default(defaults[name], default(a)):
                found.append(f"{version}: attribute {name} defaults to {defaults[name]!r}, in onnx.defs {default(a)!r}")
    return found


@pytest.mark.parametrize("op_type", OPERATORS)
def test_signature(op_type: str) -> None:
    versions = schemas(op_type)
    assert versions, f"onnx.defs has no {op_type}"
    uncovered = [v for v in versions if find("", op_type, v) is None]
    assert not uncovered, f"no declaration covers versions {uncovered}"
    for definition in REGISTRY["", op_type]:
        covered = {v: raw for v, raw in versions.items() if find("", op_type, v) is definition}
        assert covered, f"{definition} covers no version that opsets 7 to 28 select"
        assert min(covered) == definition.since, f"{definition} begins at version {min(covered)}"
        assert mismatches(definition, covered) == [], definition


def test_signatures_are_compared() -> None:
    assert len(OPERATORS) >= 50
    assert sum(len(schemas(op_type)) for op_type in OPERATORS) >= 200


def wrong(**changed: Any) -> OpDef:
    """Gather with parts of its signature replaced."""
    data = inspect.Parameter("data", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Array)
    indices = inspect.Parameter("indices", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Array)
    axis = inspect.Parameter("axis", inspect.Parameter.KEYWORD_ONLY, default=0, annotation=int)
    parts = {"data": data, "indices": indices, "axis": axis}
    for name, change in changed.items():
        parts[name] = parts[name].replace(**change)

    def kernel() -> None: ...

    kernel.__signature__ = inspect.Signature(list(parts.values()))  # type: ignore[attr-defined]
    return OpDef("", "Gather", 1, kernel, {}, lambda *_: 0)


def test_wrong_signatures_are_seen() -> None:
    versions = schemas("Gather")
    assert mismatches(wrong(), versions) == []
    assert "inputs" in mismatches(wrong(data={"name": "x"}), versions)[0]
    assert "inputs" in mismatches(wrong(indices={"default": None}), versions)[0]
    assert "attributes" in mismatches(wrong(axis={"name": "dim"}), versions)[0]
    assert "defaults" in mismatches(wrong(axis={"default": 1}), versions)[0]
    assert "required" in mismatches(wrong(axis={"default": inspect.Parameter.empty}), versions)[0]
    assert "INT" in mismatches(wrong(axis={"annotation": float, "default": 0.0}), versions)[0]


def test_attribute_newer_than_the_node_is_refused() -> None:
    definition = find("", "Reshape", 5)
    assert definition is not None
    node = Node(0, "n", "", "Reshape", 5, ("data", "shape"), ("reshaped",), {"allowzero": 1})
    with pytest.raises(OperatorError, match="no attribute 'allowzero'"):
        definition.bind(node)
    assert definition.bind(Node(0, "n", "", "Reshape", 14, ("data", "shape"), ("y",), {"allowzero": 1}))


def test_heterogeneous_variadic_inputs_are_marked() -> None:
    loop = schema("", "Loop", 21)
    assert loop is not None
    assert [f.homogeneous for f in loop.inputs] == [True, True, False]
    concat = schema("", "Concat", 13)
    assert concat is not None
    assert concat.inputs == (Formal("inputs", "T", concat.inputs[0].types, "Variadic"),)
