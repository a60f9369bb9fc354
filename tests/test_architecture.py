"""The order of the layers, who may import what, and every operator's signature against onnx.defs."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx.defs
import pytest

import qrun
from qrun.errors import OperatorError
from qrun.ir import Array, Node, TensorType
from qrun.ir.schema import OPSETS, Formal, schema
from qrun.native.emit.isa import ISAS
from qrun.native.emit.kernel import emitters
from qrun.ops import REGISTRY, OpDef, find

ROOT = Path(qrun.__file__).parent
LAYERS = [
    *(
        "declare",
        "errors",
        "child",
        "memory",
        "shapes",
        "formulas",
        "ir",
        "arithmetics",
        "native",
        "ops",
        "passes",
        "io",
    ),
    *("running", "documents", "dumps", "peers", "comparing", "conform"),
    *(
        "backend",
        "probe",
        "checking",
        "converting",
        "exporting",
        "evaluating",
        "report",
        "cli",
        "pytest_plugin",
        "__main__",
    ),
]
"""From the ground up: a module imports what stands before its layer, and its own."""
FLAT = ("ops", "passes", "checking.rules", "report.formats")
"""Packages whose public modules import none of each other."""
OWNERS = {
    "onnx": (
        "ir",
        "child",
        "peers",
        "backend",
        "report.header",
        "conform.adapters",
        "conform.reproduce",
        "converting",
        "probe.models",
    ),
    "onnxruntime": ("child",),
    "rich": ("report", "cli"),
    "click": ("cli",),
    "llvmlite": ("native",),
    "ctypes": ("native", "conform.adapters", "ops._custom"),
}
"""Packages, and the layers or modules that may import them; report.header prints onnx's version."""
NATIVE_SEES = ("declare", "errors", "memory", "shapes", "formulas", "native")
ENGINE = ("errors", "emit", "machine", "proof", "kernels", "plan")
"""The rooms of the native engine, from the ground up; only `emit` names instruction sets."""


def modules() -> dict[str, str]:
    """Dotted names below qrun, without the package itself, and their sources."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path.read_text(encoding="utf-8")
    del found[""]
    return found


parse = cache(ast.parse)


def imports(source: str, typing: bool = False) -> Iterator[str]:
    """Everything a module imports, also inside functions; under TYPE_CHECKING only if `typing`."""
    pending: list[ast.AST] = [parse(source)]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing:
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        pending += (
            n for n in ast.iter_child_nodes(node) if isinstance(n, (ast.stmt, ast.excepthandler, ast.match_case))
        )


def engine_violations(name: str, source: str) -> list[str]:
    """Imports between the rooms of the native engine that lead up, and instruction sets that are named outside of emit.

    The kind of a kernel may be called like one; "fma" is also an operation.
    """
    layer, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    if layer != "native" or not room:
        return []
    found = [] if room in ENGINE else [f"{name} belongs to no room of the engine: add it to ENGINE"]
    for target in imports(source, typing=True):
        other = target.removeprefix("qrun.native.").partition(".")[0]
        if target.startswith("qrun.native.") and room in ENGINE:
            if other not in ENGINE:
                found.append(f"{name} imports {target}: rooms do not use what the package exports")
            elif ENGINE.index(other) > ENGINE.index(room):
                found.append(f"{name} imports {target}, a later room")
    if room != "emit":
        told = {known for isa in ISAS for known in (isa.name, isa.dot, *isa.needs)} - {*emitters(), "fma"}
        found += [f"{name} names {word!r}" for word in strings(source) if word in told]
    return found


def strings(source: str) -> list[str]:
    return [n.value for n in ast.walk(parse(source)) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def below(name: str, packages: Iterable[str]) -> str:
    """The one of these packages or modules that a module is, or is inside of; "" if none."""
    return next((package for package in packages if name == package or name.startswith(f"{package}.")), "")


def violations(name: str, source: str) -> list[str]:
    layer = name.split(".")[0]
    found = [] if layer in LAYERS else [f"{name} belongs to no layer: add it to LAYERS"]
    for target in imports(source, typing=True):
        top, _, rest = target.partition(".")
        if top != "qrun" or rest.split(".")[0] not in LAYERS or layer not in LAYERS:
            continue
        other = rest.split(".")[0]
        if LAYERS.index(other) > LAYERS.index(layer):
            found.append(f"{name} imports {target}, a later layer")
        if layer == "native" and other not in NATIVE_SEES:
            found.append(f"{name} imports {target}: native knows no ONNX")
        family = below(name, FLAT)
        sibling = rest.removeprefix(f"{family}.").split(".")[0]
        inside = family and name != family and below(rest, (family,)) and rest != family
        if inside and not sibling.startswith("_") and (ROOT / family.replace(".", "/") / f"{sibling}.py").exists():
            found.append(f"{name} imports its sibling {target}")
    for target in imports(source):
        top = target.partition(".")[0]
        if top in OWNERS and not below(name, OWNERS[top]):
            found.append(f"{name} imports {top}; only {', '.join(OWNERS[top])} may")
    return found


def circles(sources: Mapping[str, str]) -> list[list[str]]:
    """The first circle of modules that import each other, if any;
    type-checking imports and those in functions counted."""
    graph: dict[str, set[str]] = {}
    for name, source in sources.items():
        found = {target.removeprefix("qrun.") for target in imports(source, typing=True)}
        graph[name] = {inner for target in found if (inner := longest(target, sources)) and inner != name}
    order = TopologicalSorter(graph)
    try:
        order.prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


def longest(target: str, names: Container[str]) -> str:
    """The module that ``package.module.name`` names."""
    while target and target not in names:
        target = target.rpartition(".")[0]
    return target


def operator_names(source: str) -> list[str]:
    known = {s.name for s in onnx.defs.get_all_schemas()} | {op_type for _, op_type in REGISTRY}
    return [s for s in strings(source) if s in known]


def test_layers() -> None:
    found = modules()
    assert len(found) > 50
    assert {name.split(".")[0] for name in found} == set(LAYERS)
    assert [v for name, source in found.items() for v in violations(name, source)] == []


def test_few_modules_at_the_root() -> None:
    assert len([path for path in ROOT.iterdir() if path.suffix == ".py"]) <= 6


def test_rooms_of_the_engine() -> None:
    found = {name: source for name, source in modules().items() if name.startswith("native.")}
    assert len(found) > 50
    assert [v for name, source in found.items() for v in engine_violations(name, source)] == []


def class_homes(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public class names that stand in several modules, and those modules."""
    homes: dict[str, list[str]] = {}
    for name, source in sources.items():
        for node in ast.walk(parse(source)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    return {name: places for name, places in homes.items() if len(places) > 1}


def test_a_class_name_stands_in_one_module() -> None:
    assert class_homes(modules()) == {}
    two = {"a": "class A: ...\nclass _B: ...", "b": "class A: ...\nclass _B: ..."}
    assert class_homes(two) == {"A": ["a", "b"]}


def test_shapes_broadcast_up_to_64_axes() -> None:
    """numpy's own function stops at 32, qrun.shapes does not."""
    found = {name for name, source in modules().items() if re.search(r"np\.broadcast_shapes|np\.broadcast\(", source)}
    assert found == set()


def test_emitters_are_declared_where_they_are() -> None:
    """Each module of emit that declares emitters is found, and no kind is known that is declared nowhere."""
    declared = {
        kind
        for name, source in modules().items()
        for kinds in re.findall(r"^@emitter\((.*)\)$", source, re.M)
        for kind in re.findall(r'"(\w+)"', kinds)
        if name.startswith("native.emit.")
    }
    assert declared == set(emitters())
    assert len(declared) > 30


@pytest.mark.parametrize(
    ("name", "source", "seen"),
    [
        ("native.emit.dense", "from qrun.native.machine.compile import Kernels", "later room"),
        ("native.proof.fold", "def f():\n    from qrun.native.kernels import conv", "later room"),
        ("native.kernels.conv", "from qrun.native import Engine", "what the package exports"),
        ("native.kernels.conv", "wide = isa.name == 'avx2'", "names 'avx2'"),
        ("native.plan.arena", "dot = 'vnni512'", "names 'vnni512'"),
        ("native.other", "", "no room"),
    ],
)
def test_violations_in_the_engine_are_seen(name: str, source: str, seen: str) -> None:
    assert any(seen in v for v in engine_violations(name, source))


def test_no_circles() -> None:
    assert circles(modules()) == []
    pair = {"a": "if TYPE_CHECKING:\n    from qrun.b import B", "b": "from qrun import a"}
    assert circles(pair) == [["a", "b", "a"]] or circles(pair) == [["b", "a", "b"]]
    assert len(circles({"a": "import qrun.b", "b": "def f():\n    from qrun import a"})) == 1
    assert circles({"a": "import qrun.b", "b": "import qrun.c", "c": ""}) == []


def test_packages_say_what_they_are_for() -> None:
    packages = [ROOT / name for name in LAYERS if (ROOT / name).is_dir()]
    assert len(packages) >= 10
    for package in packages:
        told = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8"))) or ""
        assert "mported by" in told, f"{package.name}: who may import it?"
        assert re.search(r"[Kk]nows? (no|nothing|operators)|computes none|Names no", told), (
            f"{package.name}: what does it not know?"
        )


@pytest.mark.parametrize("name", ["plan", "dispatch", "steps", "session", "execution", "programs", "profiling"])
def test_no_operator_is_special(name: str) -> None:
    assert operator_names(modules()[f"running.{name}"]) == []


@pytest.mark.parametrize(
    ("name", "source", "seen"),
    [
        ("ir.load", "from qrun.ops import find", "later layer"),
        ("ir.load", "def f():\n    from qrun.running import session", "later layer"),
        ("ops.gather", "import qrun.ops.cast", "sibling"),
        ("ops.gather", "from qrun.ops import cast", "sibling"),
        ("ops._shape", "from qrun.ops.cast import cast", "sibling"),
        ("running.session", "import onnx.defs", "only ir"),
        ("peers._ort", "import onnxruntime", "only child"),
        ("checking.rules.x", "from qrun.checking.rules import graph", "sibling"),
        ("checking.rules.x", "from rich.table import Table", "only report"),
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
    assert any("later" in v for v in violations("running.session", source))
    assert violations("running.session", source.replace("from qrun.cli import main", "from qrun.ir import Model")) == []
    assert violations("ops.gather", "from qrun.ops._op import op\nfrom qrun.ops import _shape, Context") == []
    assert operator_names("x = 'Conv'") == ["Conv"]


# Signatures against onnx.defs

KINDS = {
    "INT": (int, None),
    "FLOAT": (float, None),
    "STRING": (str, None),
    "TENSOR": (np.ndarray, None),
    "SPARSE_TENSOR": (np.ndarray, None),
    "TYPE_PROTO": (TensorType, None),
    "INTS": (tuple, int),
    "FLOATS": (tuple, float),
    "STRINGS": (tuple, str),
}
NOT_HELD = ("GRAPH", "GRAPHS", "SPARSE_TENSORS")
"""Attribute types for which kernels have no parameter: the loader refuses them, or they hold subgraphs."""
OPERATORS = sorted(op_type for (domain, op_type), found in REGISTRY.items() if not (domain or found[-1].contrib))


def schemas(op_type: str) -> dict[int, Any]:
    """The versions that opsets 7 to 28 select, by since_version."""
    found = {}
    for opset in range(7, OPSETS[-1] + 1):
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
    return tuple(v.decode() if isinstance(v, bytes) else v for v in value) if isinstance(value, list) else value


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
    got = [(p.name, "Variadic" if p.variadic else "Optional" if p.optional else "Single") for p in definition.inputs]
    for version, raw in versions.items():
        want = [(i.name, i.option.name) for i in raw.inputs]
        earlier = version != max(versions)  # which may lack the last inputs, or require optional ones
        same = [(n, o) if (n, o) in want or not earlier else (n, o.replace("Optional", "Single")) for n, o in got]
        if (same[: len(want)] if earlier else same) != want:
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
        if definition.contrib:
            continue
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


@pytest.mark.parametrize(
    ("op_type", "earlier", "later", "count", "message"),
    [("Gemm", 9, 11, 2, "input 'C' is missing"), ("Pad", 13, 18, 4, "Pad has 4 inputs")],
)
def test_inputs_of_later_versions_are_refused(op_type: str, earlier: int, later: int, count: int, message: str) -> None:
    definition = find("", op_type, earlier)
    assert definition is not None
    assert definition is find("", op_type, later)
    before, after = (Node(0, "n", "", op_type, v, tuple("abcd"[:count]), ("y",), {}) for v in (earlier, later))
    with pytest.raises(OperatorError, match=message):
        definition.bind(before)
    assert definition.bind(after) == {}


def test_nodes_like_one_that_fits_fit_and_others_are_still_refused() -> None:
    definition = find("", "Softmax", 13)
    assert definition is not None
    for _ in range(2):
        given = definition.bind(Node(0, "n", "", "Softmax", 13, ("x",), ("y",), {"axis": 1}))
        assert given == {"axis": 1}
        given["axis"] = 2  # nobody else sees this
        for wrong, message in (
            ({"axis": 1.0}, "wrong type"),
            ({"axes": 1}, "no attribute"),
            ({"axis": "1"}, "wrong type"),
        ):
            with pytest.raises(OperatorError, match=message):
                definition.bind(Node(0, "n", "", "Softmax", 13, ("x",), ("y",), wrong))
        with pytest.raises(OperatorError, match="is missing"):
            definition.bind(Node(0, "n", "", "Softmax", 13, ("",), ("y",), {"axis": 1}))


def test_a_declaration_like_another_has_its_inputs_and_attributes() -> None:
    of_onnx, of_ms = find("", "QLinearConv", 10), find("com.microsoft", "QLinearConv", 1)
    assert of_onnx is not None
    assert of_ms is not None
    assert of_ms.inputs == of_onnx.inputs
    assert set(of_ms.attributes) - set(of_onnx.attributes) == {"channels_last"}


def test_heterogeneous_variadic_inputs_are_marked() -> None:
    loop = schema("", "Loop", 21)
    assert loop is not None
    assert [f.homogeneous for f in loop.inputs] == [True, True, False]
    concat = schema("", "Concat", 13)
    assert concat is not None
    assert concat.inputs == (Formal("inputs", "T", concat.inputs[0].types, "Variadic"),)
