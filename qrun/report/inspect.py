"""The report of ``qrun inspect``: the contents of a model, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from shlex import quote
from typing import Any

import numpy as np

from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.targets import DeployTarget, NodeVerdict
from qrun.documents.answers import (
    DeclaredValue,
    Inspection,
    NodeFacts,
    NodeTensor,
    OperatorFacts,
    Quantization,
    StoredTensor,
)
from qrun.documents.record import encode
from qrun.errors import CallError, close_matches, some
from qrun.ir import Array, Model, TensorType
from qrun.ir.types import shape_text, sizes_text, type_name
from qrun.report.answer import Answer
from qrun.report.grid import Column, Grid
from qrun.report.header import model_fields
from qrun.report.modelfacts import ModelFacts
from qrun.report.nodes import op_names
from qrun.report.screen import NAME, Screen
from qrun.report.stats import SHOWN, stats, to_list
from qrun.report.text import file_size, plural
from qrun.shapes import MOST_AXES

_LONGEST = 300
"""The most characters of the shape of a node's tensor: a node may read the same tensor a million times."""
_VALUE_COLUMNS = [
    Column("", cell=lambda v: "out" if v.optional is None else "in, optional" if v.optional else "in"),
    Column("name", style=NAME, shrink=1, cell=lambda v: v.name),
    Column("type", cell=lambda v: (v.type or "?") if v.kind == "tensor" else v.kind),
    Column("shape", shrink=2, cell=lambda v: shape_text(v.shape) if v.kind == "tensor" else "-"),
]


def print_overview(screen: Screen, facts: ModelFacts) -> None:
    """Prints file, origin, size, quantization and support; inputs and outputs; operators."""
    model = facts.model
    rows = [
        ("file", _file(model)),
        ("made by", _origin(model)),
        ("size", _size(facts)),
        ("quantized", _quantization(facts)),
        ("runs here", _runs(facts)),
    ]
    screen.facts(rows)
    screen.line()
    screen.line(("Inputs and outputs", "bold"))
    inputs, outputs = _values(model)
    screen.grid(Grid.of(_VALUE_COLUMNS, [*inputs, *outputs]))
    if facts.operators:
        screen.line()
        screen.line(("Operators", "bold"))
        _print_operators(screen, facts)
    if model.path:
        screen.line()
        screen.line(f"graph view: netron {quote(str(model.path))}")


def inspect_answer(facts: ModelFacts) -> Answer:
    """``m.onnx: QDQ, 12 nodes, 61.7 k parameters, 0.42 MMAC; runs here: yes``, and the command that draws the graph."""
    path, parts = facts.model.path, [facts.form, _size(facts)]
    draw = [f"netron {quote(str(path))}"] if path else []
    return Answer(0, f"{facts.model.label.rpartition('/')[2]}: {', '.join(parts)}; runs here: {_runs(facts)}", draw)


def _runs(facts: ModelFacts) -> str:
    return f"no: {facts.obstacle}" if facts.obstacle else "yes"


def _file(model: Model) -> str:
    parts = [model.label, *([file_size(model.size)] if model.size else [])]
    external = f"external data in {', '.join(model.external_files[:3])}" if model.external_files else "no external data"
    more = len(model.external_files) - 3
    return ", ".join([*parts, external + (f" and {more} more files" if more > 0 else "")])


def _origin(model: Model) -> str:
    opsets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items())
    return f"{model.producer or 'unknown'}, IR {model.ir_version}, opset {opsets or 'none'}"


def _size(facts: ModelFacts) -> str:
    parts = [plural(facts.node_count, "node"), f"{_short(facts.parameters)} parameter{'s' * (facts.parameters != 1)}"]
    if facts.macs is None:
        counted = "" if facts.obstacle else "; qrun profile counts them"
        parts.append(f"MMAC unknown ({facts.uncounted}{counted})")
    else:
        assumed = sizes_text(dict.fromkeys(facts.symbols, 1))
        short = f"{facts.macs / 1e6:.4g}" if facts.macs < 10**9 else f"{facts.macs / 1e6:.0f}"
        parts.append(f"{short} MMAC" + (f" ({assumed})" if assumed else ""))
    return ", ".join(parts)


def _short(count: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def _quantization(facts: ModelFacts) -> str:
    if facts.form == "float":
        return "no, float"
    activations, weights = facts.quantized
    parts = [f"activations {', '.join(activations)}"] if activations else []
    parts += [f"weights {', '.join(weights)}"] if weights else []
    return "; ".join([facts.form, ", ".join(parts)]) if parts else facts.form


def _print_operators(screen: Screen, facts: ModelFacts) -> None:
    def inputs(f: OperatorFacts) -> str:
        return some(f.inputs, 3) if f.inputs else "-"

    columns = [
        Column("op", wrap=True, cell=lambda f: f.op),
        Column("nodes", right=True, cell=lambda f: str(f.nodes)),
        Column("version", right=True, optional=2, cell=lambda f: ", ".join(map(str, f.versions))),
        Column("inputs", wrap=True, cell=inputs),
        Column("weights", right=True, optional=1, cell=lambda f: file_size(f.weights) if f.weights else "-"),
        Column("supported", cell=lambda f: f.support),
    ]
    grid = Grid.of(columns, facts.operators)
    grid.styles.update({(at, 5): "bold red" for at, f in enumerate(facts.operators) if not f.supported})
    screen.grid(grid)


# Nodes


def print_nodes(screen: Screen, model: Model, targets: Sequence[DeployTarget] = ()) -> None:
    """Prints one row per node in execution order; nodes of inner graphs follow the node that holds them. A column for
    each target has what it does with the node.

    If the rows are too wide, a node's inputs and outputs move below its name.
    """
    found = _nodes(model, targets)
    op = op_names(n.node for n in found)
    columns = [
        Column("#", right=True, cell=lambda n: str(n.index)),
        Column("name", style=NAME, shrink=1, cell=lambda n: n.name),
        Column("op", cell=lambda n: op(n.node)),
        *(_target_column(target.id) for target in targets),
        Column(
            "inputs -> outputs", below=True, cell=lambda n: f"{_list_text(n.inputs)} -> {_list_text(n.outputs)}".strip()
        ),
    ]
    screen.grid(Grid.of(columns, found))


def _target_column(name: str) -> Column:
    return Column(name, cell=lambda n: n.targets[name] or "-")


def _by_target(model: Model, targets: Sequence[DeployTarget]) -> Mapping[str, Mapping[int, str]]:
    """What each target does with each node, by the target's name and the identity of the node."""
    judged = {target.id: target.verdict(model).judged for target in targets}
    return {name: {id(each.node): _effect(each) for each in nodes} for name, nodes in judged.items()}


def _effect(each: NodeVerdict) -> str:
    """What a target does with a node; "" if it is not meant to run in integers, and breaks no rule."""
    if each.rules:
        return each.consequence
    return "int" if each.integer else "not int" if each.wanted else ""


def _list_text(tensors: Sequence[NodeTensor | None]) -> str:
    return ", ".join("-" if tensor is None else str(tensor) for tensor in tensors)


# Stored tensors


def match_stored(facts: ModelFacts, patterns: Sequence[str]) -> dict[str, Array]:
    """The stored tensors whose names match shell patterns. Raises CallError for a pattern without a match."""
    chosen: dict[str, Array] = {}
    for pattern in patterns:
        found = [pattern] if pattern in facts.stored else [n for n in facts.stored if fnmatchcase(n, pattern)]
        if not found:
            raise _no_match(facts, pattern)
        chosen |= {name: facts.stored[name] for name in found}
    return chosen


def _no_match(facts: ModelFacts, pattern: str) -> CallError:
    names = list(facts.stored)
    near = close_matches(pattern.strip("*?"), names, 3, 0.5)
    model = facts.model
    path = quote(str(model.path)) if model.path else "-"
    made = pattern in model.producers or any(v.name == pattern for v in model.inputs)
    return CallError(
        "QR006",
        f"no stored tensor matches {pattern!r}",
        where=[model.label],
        facts=[("stored", f"{len(names)} tensors, such as {', '.join(names[:3])}" if names else "none")],
        why=f"{pattern} is computed while the model runs: qrun run -t shows it." if made else "",
        fixes=[_next(path, near, bool(names))],
    )


def _next(path: str, near: Sequence[str], stored: bool) -> str:
    if near:
        return f"did you mean {' or '.join(near)}?"
    return (
        f"qrun inspect {path} -t '*' shows all of them"
        if stored
        else f"qrun inspect {path} shows what the model contains"
    )


# The document


def _values(model: Model) -> tuple[list[DeclaredValue], list[DeclaredValue]]:
    """The inputs, optional ones last, and the outputs."""
    given = [_value(v, False) for v in model.inputs]
    given += [_value(v, True) for v in model.defaults if model.ir_version >= 4]
    return given, [_value(model.types.get(v.name, v), None) for v in model.outputs]


def _value(value: TensorType, optional: bool | None) -> DeclaredValue:
    return DeclaredValue(value.name, value.kind, _type(value.dtype), value.shape, optional)


def _nodes(model: Model, targets: Sequence[DeployTarget] = ()) -> list[NodeFacts]:
    """The nodes in execution order; nodes of inner graphs follow the node that holds them."""
    found = []
    effects = _by_target(model, targets)
    for scope, node in nodes(model):
        where = scope.at(node)
        inputs, outputs = (tuple(_read(scope, name) for name in names) for names in (node.inputs, node.outputs))
        told = {name: of_nodes.get(id(node)) or None for name, of_nodes in effects.items()} or None
        facts = (node.full_domain, node.op_type, node.version, inputs, outputs, node, told)
        found.append(NodeFacts(where["index"], where["node"], *facts))
    return sorted(found, key=lambda n: n.index)


def _read(scope: Scope, name: str) -> NodeTensor | None:
    if not name:
        return None
    shape = scope.shape(name)
    told = shape is None or (len(shape) <= MOST_AXES and sum(len(str(d)) + 1 for d in shape) <= _LONGEST)
    return NodeTensor(name, _type(scope.dtype(name)), shape if told else None)


def _type(dtype: np.dtype[Any] | None) -> str | None:
    return None if dtype is None else type_name(dtype)


def _describe_stored(name: str, array: Array) -> StoredTensor:
    s = stats(array)
    return StoredTensor(name, type_name(array.dtype), array.shape, s.low, s.high, s.nan, s.inf, to_list(array, SHOWN))


def inspection(
    facts: ModelFacts, with_nodes: bool, tensors: Mapping[str, Array] | None, targets: Sequence[DeployTarget] = ()
) -> Inspection:
    """The answer of ``qrun inspect --json``. with_nodes: include the nodes, with what these targets do with them;
    tensors: the stored tensors that were requested."""
    model = facts.model
    inputs, outputs = _values(model)
    return Inspection(
        {**encode(model_fields(model)), "size": model.size, "external_files": model.external_files},
        facts.parameters,
        facts.macs,
        facts.uncounted or None,
        dict.fromkeys(facts.symbols, 1),
        Quantization(facts.form, *facts.quantized),
        not facts.obstacle,
        facts.obstacle or None,
        inputs,
        outputs,
        facts.operators,
        _nodes(model, targets) if with_nodes else None,
        None if tensors is None else [_describe_stored(name, array) for name, array in tensors.items()],
    )
