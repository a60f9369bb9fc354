"""The report of ``qrun inspect``: what is in a model; as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from shlex import quote
from typing import Any

from qrun.checking.rules._scope import Scope, nodes
from qrun.documents.record import encode
from qrun.errors import CallError
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.types import shape_text, type_name
from qrun.report.grid import Column, Grid
from qrun.report.header import model_fields
from qrun.report.modelfacts import ModelFacts, OperatorFacts
from qrun.report.nodes import op_names
from qrun.report.screen import Screen
from qrun.report.stats import SHOWN, listed, stats
from qrun.report.text import file_size, plural


def print_overview(screen: Screen, facts: ModelFacts) -> None:
    """File, origin, size, quantization and support; inputs and outputs; operators."""
    model = facts.model
    rows = [
        ("file", _file(model)),
        ("made by", _origin(model)),
        ("size", _size(facts)),
        ("quantized", _quantized(facts)),
        ("runs here", f"no: {facts.obstacle}" if facts.obstacle else "yes"),
    ]
    for label, value in rows:
        screen.wrapped(f"  {label:<9}  ", " " * 13, value)
    screen.line()
    screen.line(("Inputs and outputs", "bold"))
    columns = [Column(""), Column("name", shrink=1), Column("type"), Column("shape", shrink=2)]
    screen.grid(Grid(columns, [_value_row(kind, value) for kind, value in _values(model)]))
    if facts.operators:
        screen.line()
        screen.line(("Operators", "bold"))
        _print_operators(screen, facts)
    if model.path:
        screen.line()
        screen.line(f"graph view: netron {quote(str(model.path))}")


def _values(model: Model) -> list[tuple[str, TensorType]]:
    return [
        *(("in", v) for v in model.inputs),
        *(("in, optional", v) for v in model.defaults if model.ir_version >= 4),
        *(("out", model.types.get(v.name, v)) for v in model.outputs),
    ]


def _value_row(kind: str, value: TensorType) -> list[str]:
    if value.kind != "tensor":
        return [kind, value.name, value.kind, "-"]
    return [kind, value.name, type_name(value.dtype), shape_text(value.shape)]


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
        parts.append(f"MMAC n/a ({facts.uncounted}{counted})")
    else:
        assumed = ", ".join(f"{symbol}=1" for symbol in facts.symbols)
        parts.append(f"{_mmac(facts.macs)} MMAC" + (f" ({assumed})" if assumed else ""))
    return ", ".join(parts)


def _mmac(macs: int) -> str:
    return f"{macs / 1e6:.4g}" if macs < 10**9 else f"{macs / 1e6:.0f}"


def _short(count: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def _quantized(facts: ModelFacts) -> str:
    if facts.form == "float":
        return "no, float"
    activations, weights = facts.quantized
    parts = [f"activations {', '.join(activations)}"] if activations else []
    parts += [f"weights {', '.join(weights)}"] if weights else []
    return "; ".join([facts.form, ", ".join(parts)]) if parts else facts.form


def _print_operators(screen: Screen, facts: ModelFacts) -> None:
    def inputs(f: OperatorFacts) -> str:
        return (f.inputs[0] if f.inputs else "-") + (f" and {len(f.inputs) - 1} more" if len(f.inputs) > 1 else "")

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


def print_nodes(screen: Screen, model: Model) -> None:
    """A row for each node in execution order; nodes of inner graphs follow the node that holds them.

    Where the rows are too wide, what a node reads and makes stands below its name.
    """
    columns = [Column("#", right=True), Column("name", shrink=1), Column("op"), Column("inputs -> outputs", below=True)]
    op = op_names(node for _, node in nodes(model))
    screen.grid(Grid(columns, [_node_row(scope, node, op(node)) for scope, node in _in_order(model)]))


def _in_order(model: Model) -> list[tuple[Scope, Node]]:
    return sorted(nodes(model), key=lambda pair: pair[0].at(pair[1])["index"])


def _node_row(scope: Scope, node: Node, op: str) -> list[str]:
    where = scope.at(node)
    inputs = ", ".join(_tensor_text(scope, name) for name in node.inputs)
    outputs = ", ".join(_tensor_text(scope, name) for name in node.outputs)
    return [str(where["index"]), where["node"], op, f"{inputs} -> {outputs}".strip()]


def _tensor_text(scope: Scope, name: str) -> str:
    """``x uint8 [1,3,224,224]``, as far as it is known; ``-`` for an omitted one."""
    if not name:
        return "-"
    dtype, shape = scope.dtype(name), scope.shape(name)
    parts = [
        name,
        *([type_name(dtype)] if dtype is not None else []),
        *([shape_text(shape)] if shape is not None else []),
    ]
    return " ".join(parts)


# Stored tensors


def match_stored(facts: ModelFacts, patterns: Sequence[str]) -> dict[str, Array]:
    """The stored tensors whose names match shell patterns; CallError for a pattern without a match."""
    chosen: dict[str, Array] = {}
    for pattern in patterns:
        found = [pattern] if pattern in facts.stored else [n for n in facts.stored if fnmatchcase(n, pattern)]
        if not found:
            raise _no_match(facts, pattern)
        chosen |= {name: facts.stored[name] for name in found}
    return chosen


def _no_match(facts: ModelFacts, pattern: str) -> CallError:
    names = list(facts.stored)
    near = get_close_matches(pattern.strip("*?"), names, 3, 0.5)
    model = facts.model
    path = quote(str(model.path)) if model.path else "-"
    made = pattern in model.producers or any(v.name == pattern for v in model.inputs)
    return CallError(
        "QR006",
        f"no stored tensor matches {pattern!r}",
        where=[model.label],
        facts=[("stored", f"{len(names)} tensors, such as {', '.join(names[:3])}" if names else "none")],
        why=f"{pattern} is made while the model runs: qrun run -t shows it." if made else "",
        fixes=[f"did you mean {' or '.join(near)}?" if near else f"qrun inspect {path} -t '*' shows all of them"],
    )


# JSON


def inspect_fields(facts: ModelFacts, with_nodes: bool, tensors: Mapping[str, Array] | None) -> dict[str, Any]:
    """The report for programs."""
    model = facts.model
    activations, weights = facts.quantized
    body: dict[str, Any] = {
        "model": {**encode(model_fields(model)), "size": model.size, "external_files": list(model.external_files)},
        "parameters": facts.parameters,
        "macs": facts.macs,
        "macs_unknown": facts.uncounted or None,
        "assumed": dict.fromkeys(facts.symbols, 1),
        "quantization": {"form": facts.form, "activations": list(activations), "weights": list(weights)},
        "runs": not facts.obstacle,
        "obstacle": facts.obstacle or None,
        "inputs": [_value_fields(v, optional=kind != "in") for kind, v in _values(model) if kind != "out"],
        "outputs": [_value_fields(v) for kind, v in _values(model) if kind == "out"],
        "operators": facts.operators,
    }
    if with_nodes:
        body["nodes"] = [_node_fields(scope, node) for scope, node in _in_order(model)]
    if tensors is not None:
        body["tensors"] = [_tensor_fields(name, array) for name, array in tensors.items()]
    return body


def _value_fields(value: TensorType, **more: bool) -> dict[str, Any]:
    return {
        "name": value.name,
        "kind": value.kind,
        "type": type_name(value.dtype) if value.dtype is not None else None,
        "shape": list(value.shape) if value.shape is not None else None,
        **more,
    }


def _node_fields(scope: Scope, node: Node) -> dict[str, Any]:
    where = scope.at(node)

    def tensor(name: str) -> dict[str, Any] | None:
        if not name:
            return None
        dtype, shape = scope.dtype(name), scope.shape(name)
        return {
            "name": name,
            "type": None if dtype is None else type_name(dtype),
            "shape": None if shape is None else list(shape),
        }

    return {
        "index": where["index"],
        "name": where["node"],
        "domain": node.full_domain,
        "op": node.op_type,
        "version": node.version,
        "inputs": [tensor(name) for name in node.inputs],
        "outputs": [tensor(name) for name in node.outputs],
    }


def _tensor_fields(name: str, array: Array) -> dict[str, Any]:
    s = stats(array)
    return {
        "name": name,
        "type": type_name(array.dtype),
        "shape": list(array.shape),
        "min": s.low,
        "max": s.high,
        "nan": s.nan,
        "inf": s.inf,
        "values": listed(array, SHOWN),
    }
