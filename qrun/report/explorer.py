"""Files for Model Explorer: graphs of models, node data (time, SQNR, cause), and which nodes of two graphs go together.

Formats: ai-edge-model-explorer 0.1.34, its graph_builder.py and node_data_builder.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from qrun.declare import grouped
from qrun.documents.record import Item
from qrun.ir import Model, Node
from qrun.ir.types import shape_text, type_name
from qrun.report.html.collect import Document, items
from qrun.report.json import text

GRAPH, AGAINST, SYNC = "graph.json", "against.json", "sync.json"
WHITE, RED = "#ffffff", "#e2574c"
COLORS = ("#f4b183", "#9dc3e6", "#a9d18e", "#ffd966", "#c5a5cf", "#bfbfbf")
"""Of causes, in the order in which they come; the others have the last one."""
DATA = ("time.json", "sqnr.json", "cause.json")
ENDS = "inputs", "outputs"
"""Ids of the nodes for the inputs and the outputs of a graph; those of operators are their numbers."""

Values = Mapping[int, float | str]
"""Values of nodes by the node's number."""


def explorer_files(model: Model, documents: Sequence[Document], other: Model | None = None) -> dict[str, bytes]:
    """The files by name: graph.json and node data; with another model (the float model), against.json and sync.json.

    documents: the profile of the model, and its comparison, if one was made. Node data without a value is left out.
    """
    made: dict[str, Any] = {GRAPH: _collection(model, model.label)}
    made |= {name: {model.label: each} for name, each in _node_data(documents).items()}
    if other is not None:
        name = other.label if other.label != model.label else f"{other.label} (against)"
        made |= {AGAINST: _collection(other, name), SYNC: _sync(other, model, documents)}
    return {name: text(value, 1).encode() + b"\n" for name, value in made.items()}


# Graphs


def _collection(model: Model, name: str) -> dict[str, Any]:
    return {"label": name, "graphs": [{"id": name, "nodes": list(_nodes(model))}]}


def _nodes(model: Model) -> Iterator[dict[str, Any]]:
    """The inputs, the operators, the outputs. Nodes of inner graphs are not drawn."""
    places = {value.name: (ENDS[0], at) for at, value in enumerate(model.inputs)}
    places |= {name: (str(node.index), at) for node in model.nodes for at, name in enumerate(node.outputs) if name}
    names = [value.name for value in model.inputs]
    yield {"id": ENDS[0], "label": ENDS[0], "namespace": "", "outputsMetadata": _tensors(model, names)}
    for node in model.nodes:
        yield {
            "id": str(node.index),
            "label": node.op,
            "namespace": "/".join(part for part in node.label.split("/")[:-1] if part),
            "attrs": [{"key": key, "value": value} for key, value in _attributes(model, node)],
            "incomingEdges": _edges(node.inputs, places),
            "outputsMetadata": _tensors(model, node.outputs),
        }
    ends = [value.name for value in model.outputs]
    yield {"id": ENDS[1], "label": ENDS[1], "namespace": "", "incomingEdges": _edges(ends, places)}


def _attributes(model: Model, node: Node) -> Iterator[tuple[str, str]]:
    yield "name", node.label
    yield "number", str(node.index)
    for name in dict.fromkeys(name for name in node.inputs if name in model.constants):
        array = model.constants[name]
        yield name, f"{type_name(array.dtype)} {shape_text(array.shape)}"


def _edges(names: Sequence[str], places: Mapping[str, tuple[str, int]]) -> list[dict[str, str]]:
    return [
        {
            "sourceNodeId": places[name][0],
            "sourceNodeOutputId": str(places[name][1]),
            "targetNodeInputId": str(at),
        }
        for at, name in enumerate(names)
        if name in places
    ]


def _tensors(model: Model, names: Sequence[str]) -> list[dict[str, Any]]:
    made = []
    for at, name in enumerate(names):
        known = model.types.get(name)
        told = {"tensor_name": name}
        if known is not None and known.dtype is not None and known.shape is not None:
            told["tensor_shape"] = f"{type_name(known.dtype)} {shape_text(known.shape)}"
        made.append({"id": str(at), "attrs": [{"key": key, "value": value} for key, value in told.items()]})
    return made


# Node data


def _node_data(documents: Sequence[Document]) -> dict[str, dict[str, Any]]:
    """Node data by file: that of the profile, and that of the comparison."""
    times, sqnr, causes = node_values(documents)
    found = (
        _data("time, us", times, [WHITE, RED]),
        _data("SQNR of the result, dB", sqnr, [RED, WHITE]),
        _data("cause", causes),
    )
    return {name: each for name, each in zip(DATA, found, strict=True) if each["results"]}


def node_values(documents: Sequence[Document]) -> tuple[Values, Values, Values]:
    """Time in us, SQNR in dB and cause of nodes. Of nodes that ran fused, the first has the time."""
    by_kind = dict(documents)
    compared = by_kind.get("compare")
    times = {n["index"].size: n["median_ms"].real * 1000 for n in items(by_kind.get("profile"), "nodes")}
    return times, _sqnr(compared), _causes(compared)


def node_texts(model: Model, documents: Sequence[Document]) -> dict[str, dict[str, str]]:
    """The same as texts by key, by the first output of each node: ``time_us``, ``sqnr_db``, ``cause``."""
    found: dict[str, dict[str, str]] = {}
    for key, values in zip(("time_us", "sqnr_db", "cause"), node_values(documents), strict=True):
        for index, value in values.items():
            first = next(filter(None, model.nodes[index].outputs), "") if index < len(model.nodes) else ""
            found.setdefault(first, {})[key] = value if isinstance(value, str) else f"{value:.4g}"
    return found


def _data(name: str, values: Values, colors: Sequence[str] = ()) -> dict[str, Any]:
    kept: dict[str, dict[str, Any]] = {
        str(index): {"value": v} for index, v in values.items() if isinstance(v, str) or isfinite(v)
    }
    words = list(dict.fromkeys(v for v in values.values() if isinstance(v, str)))
    for each in kept.values():
        if each["value"] in words:
            each["bgColor"] = COLORS[min(words.index(each["value"]), len(COLORS) - 1)]
    shades = [{"stop": stop, "bgColor": color} for stop, color in enumerate(colors)]
    return {"results": kept, "name": name, **({"gradient": shades} if shades else {})}


def _sqnr(compared: Item | None) -> dict[int, float]:
    """The SQNR of each node's result, of several the worst; nodes without noise have none."""
    found: dict[int, float] = {}
    for tensor in items(compared, "tensors"):
        whole = tensor.find("cumulated") or tensor
        node, value = tensor.find("node"), whole.find("sqnr_db")
        if node is not None and value is not None:
            found[node.size] = min(found.get(node.size, value.real), value.real)
    return found


def _causes(compared: Item | None) -> dict[int, str]:
    """Why each node costs accuracy, or differs."""
    found: dict[int, str] = {}
    for cost in items(compared, "costs"):
        if reason := cost.find("reason"):
            found[cost["index"].size] = reason.text
    for tensor in items(compared, "tensors"):
        own = tensor.find("by_itself")
        cause, node = own.find("cause") if own else None, tensor.find("node")
        if cause is not None and node is not None:
            found.setdefault(node.size, cause.text)
    return found


# Two graphs in step


def _sync(first: Model, second: Model, documents: Sequence[Document]) -> dict[str, Any]:
    """Pairs of nodes: those that make tensors which the comparison matched, and those of one name and operator."""
    named = {(node.label, node.op_type): node for node in first.nodes if node.name}
    pairs = [(named[key], node) for node in second.nodes if (key := (node.label, node.op_type)) in named]
    for tensor in items(dict(documents).get("compare"), "tensors"):
        one, other = tensor.find("reference"), tensor.find("tensor")
        makers = first.producers.get(one.text if one else ""), second.producers.get(other.text if other else "")
        if makers[0] is not None and makers[1] is not None:
            pairs.append((makers[0], makers[1]))
    sides = grouped((str(a.index), str(b.index)) for a, b in pairs)
    entries = [{"leftNodeIds": [a], "rightNodeIds": list(dict.fromkeys(ids))} for a, ids in sides.items()]
    entries += [{"leftNodeIds": [end], "rightNodeIds": [end]} for end in ENDS]
    return {"mappingEntries": entries}
