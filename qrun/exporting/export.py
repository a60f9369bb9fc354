"""Collects the layers of a model, runs it in a family's arithmetic, and writes what is wanted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from qrun.arithmetics.family import Arithmetic
from qrun.converting.qoperator import to_qoperator
from qrun.declare.frozen import frozen
from qrun.errors import CallError, OperatorError, close_matches
from qrun.exporting.context import ExportContext
from qrun.exporting.elementwise import MAKERS
from qrun.exporting.layer import Layer, LayerTensor, NotExported, RemainingNode
from qrun.exporting.narrow import widen
from qrun.exporting.products import QUANTIZED, SUMS, product_layer
from qrun.exporting.tables import code_functions, table_layer
from qrun.io.outputs import match_tensors
from qrun.ir import Array, Model, Node
from qrun.memory import ResourceLimits
from qrun.running.session import Session

Form = Literal["c", "raw", "hex", "json"]
LARGE = 10**9
"""Bytes that are not written without being asked for."""
_CODES = (*QUANTIZED, *SUMS)
_BOTH = ("MaxPool", "Clip")
"""Operators of codes and of floats."""
_NO_INTEGERS: Mapping[str, str] = {
    "QLinearSoftmax": "each code depends on a whole row, through exponentials, for which qrun has no integer form",
    "MatMulNBits": "multiplies floats by weights in blocks, each with its own scale, so that no sum is an integer",
}
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
_BYTES: Mapping[str, tuple[float, float]] = {"raw": (1, 1), "hex": (3, 2.25), "c": (5, 2.75), "json": (5, 2.75)}
"""Characters of an 8-bit number, and of each byte of a longer one."""


@frozen
class ExportOptions:
    """What a call asks for. layers: shell patterns of layers; none: all. tensors: those of tensors to write as well."""

    form: Form
    family: Arithmetic
    layout: str
    layers: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


@frozen
class NamedLayer:
    """A layer and the identifier under which it is written."""

    name: str
    layer: Layer


@frozen
class NamedTensor:
    """A chosen tensor and the identifier under which it is written."""

    name: str
    tensor: LayerTensor


class Exporter:
    """A model's layers, and its runs. Raises CallError for a pattern without a match."""

    def __init__(self, model: Model, wishes: ExportOptions) -> None:
        self.source = model
        self.wishes = wishes
        wide, self._narrow = widen(model)
        conversion = to_qoperator(wide)
        self.model = conversion.model
        self._left = {each.name: each.reason for each in conversion.left}
        self._codes: dict[str, bool] = {}
        self.remaining: list[RemainingNode] = []
        self._functions = code_functions(self.model)
        self._inside = {each.index for found in self._functions.values() for each in found.nodes}
        self._candidates = [node for node in map(self._shown, self.model.nodes) if self._is_candidate(node)]
        self.nodes = _chosen(self._candidates, wishes.layers, model)
        self._tensors = _chosen_tensors(model, self.model, wishes.tensors)
        self._runs: dict[str, list[Array]] = {}

    def _shown(self, node: Node) -> Node:
        """The node that stands for a function of codes which ends in this node; else the node itself."""
        found = self._functions.get(node.index)
        return found.node if found else node

    def _is_candidate(self, node: Node) -> bool:
        return node.op_type in (*_CODES, *MAKERS) or node.index in self._functions

    @property
    def is_float(self) -> bool:
        """Whether the model has no operator on codes."""
        return all(node.op_type in _BOTH and node.index not in self._functions for node in self._candidates)

    def run(self, sets: Sequence[Mapping[str, Array]], limits: ResourceLimits) -> None:
        """Run the model on each set of inputs and keep the codes. Raises RunError if a run fails."""
        names = {name for node in self.nodes for name in (*node.inputs, *node.outputs) if name}
        chosen = frozenset(self._tensors)
        names |= chosen
        wanted = [name for name in dict.fromkeys(names) if self.model.constant(name) is None]
        produced = tuple(name for name in wanted if name in self.model.producers)
        with Session(self.model, arith=self.wishes.family.name, fuse=False, **limits) as session:
            for feeds in sets:
                seen: dict[str, Array] = {name: value for name, value in feeds.items() if name in names}

                def see(name: str, value: Array, seen: dict[str, Array] = seen) -> None:
                    self._codes[name] = value.dtype.kind in "iu" and value.dtype.itemsize <= 2
                    if name in chosen or (name in names and value.dtype.kind in "iu"):
                        seen[name] = value.copy()

                session.watch(feeds, see, produced)
                for name, value in seen.items():
                    if name in chosen or value.dtype.kind in "iu":
                        self._runs.setdefault(name, []).append(value)

    def entries(self) -> Iterator[NamedLayer]:
        """The layers, one after another; nodes without a layer are added to `remaining`."""
        context, chosen, count = self._context(), {node.index for node in self.nodes}, 0
        for node in map(self._shown, self.model.nodes):
            if node.index not in chosen:
                if node.index not in self._inside or node.index in self._functions:
                    self.remaining.append(RemainingNode(node, self._reason(node)))
                continue
            try:
                function = self._functions.get(node.index)
                layer = table_layer(function, context) if function else _layer(node, context)
            except NotExported as reason:
                self.remaining.append(RemainingNode(node, str(reason)))
            except OperatorError as error:
                self.remaining.append(RemainingNode(node, error.message))
            else:
                yield NamedLayer(identifier(node.label, count), layer)
                count += 1

    def tensors(self) -> Iterator[NamedTensor]:
        """The chosen tensors. Raises CallError for one without numbers, or with several shapes."""
        context = self._context()
        for at, name in enumerate(self._tensors):
            try:
                found = context.numbers("tensor", name)
                if not found.vector:
                    found = replace(found, layout="")
            except NotExported as reason:
                raise CallError("QR005", f"--tensor {name}: {reason}", fixes=[f"omit --tensor {name}"]) from reason
            yield NamedTensor(identifier(name, at, "t"), found)

    def _context(self) -> ExportContext:
        alike = [(each.node.inputs[0], each.node.outputs[0]) for each in self._functions.values()]
        return ExportContext(self.model, self.wishes.family, self.wishes.layout, self._runs, self._narrow, alike)

    def estimate(self) -> int:
        """About how many bytes will be written."""
        short, wide = _BYTES[self.wishes.form]
        total = 0.0
        for node in self.nodes:
            for name in dict.fromkeys(name for name in node.inputs if name):
                value = self.model.constant(name)
                arrays = [value] if value is not None else self._runs.get(name, [])
                total += sum(each.nbytes * (short if each.dtype.itemsize == 1 else wide) for each in arrays)
            codes = sum(each.size for each in self._runs.get(node.outputs[0], []))
            total += codes * (short + (4 * wide if node.op_type in _CODES else 0))
        for name in self._tensors:
            value = self.model.constant(name)
            arrays = [value] if value is not None else self._runs.get(name, [])
            total += sum(each.nbytes * (short if each.dtype.itemsize == 1 else wide) for each in arrays)
        return int(total)

    def _reason(self, node: Node) -> str:
        """Why a node is no layer."""
        if self._is_candidate(node) and node not in self.nodes and self.wishes.layers:
            return "--layers leaves it out"
        if node.label in self._left:
            return self._left[node.label]
        if node.op_type in _QUANTIZERS:
            return "converts between floats and codes"
        if node.op_type in _NO_INTEGERS:
            return _NO_INTEGERS[node.op_type]
        if node.op_type.startswith("QLinear"):
            return f"qrun has no integer reference of {node.op_type}"
        names = [name for name in (*node.inputs[:1], *node.outputs[:1]) if name]
        if names and all(self._codes.get(name) for name in names):
            return "moves codes and computes nothing"
        return "computes with floats"


def _layer(node: Node, context: ExportContext) -> Layer:
    """The layer of a node. Raises NotExported."""
    first = context.runs.get(node.inputs[0])
    if node.op_type in _BOTH and first is None:
        raise NotExported("computes with floats")
    layer = MAKERS[node.op_type](node, context) if node.op_type in MAKERS else product_layer(node, context)
    if any(not each.array.size for each in layer.tensors):
        raise NotExported("a tensor is empty")
    return layer


def _chosen(nodes: Sequence[Node], patterns: Sequence[str], model: Model) -> list[Node]:
    """The nodes that shell patterns match by name, operator or output."""
    from fnmatch import fnmatchcase

    found: set[int] = set()
    for pattern in patterns:
        matched = {
            node.index
            for node in nodes
            if any(fnmatchcase(text, pattern) for text in (node.label, node.op_type, node.outputs[0]))
        }
        if not matched:
            names = [node.label for node in nodes]
            near = close_matches(pattern.strip("*?"), names, 3, 0.5)
            facts = [("layers", f"{len(names)}, such as {', '.join(names[:3])}" if names else "none")]
            fix = f"did you mean {' or '.join(near)}?" if near else "qrun inspect MODEL --nodes lists the nodes"
            raise CallError(
                "QR006", f"--layers {pattern}: no layer matches", where=[model.label], facts=facts, fixes=[fix]
            )
        found |= matched
    return [node for node in nodes if node.index in found] if patterns else list(nodes)


def _chosen_tensors(source: Model, converted: Model, patterns: Sequence[str]) -> tuple[str, ...]:
    """The tensors that shell patterns match by their own name or that of their node, and that the integer form has.
    Raises CallError for a pattern without one."""
    kept = {*converted.producers, *converted.fed, *converted.constants}
    found: dict[str, None] = {}
    for pattern in patterns:
        matched = match_tensors(source, [pattern])
        there = [name for name in matched if name in kept]
        if not there:
            fix = "choose the codes before or after it; --layers writes accumulators"
            message = f"--tensor {pattern}: {matched[0]} is inside a group that runs as one integer operator"
            raise CallError("QR006", message, where=[source.label], fixes=[fix])
        found.update(dict.fromkeys(there))
    return tuple(found)


def identifier(name: str, number: int, kind: str = "l") -> str:
    """A C identifier and file name for a layer, or a tensor of kind t; the number makes it unique."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:40].strip("_")
    return f"{kind}{number:03d}_{plain}" if plain else f"{kind}{number:03d}"


def base_name(model: Model) -> str:
    """The model's file name without its folder."""
    return os.path.basename(model.label)


def attribute_fields(node: Node) -> dict[str, Any]:
    """The attributes of a node for JSON; arrays and graphs are left out."""
    made: dict[str, Any] = {}
    for name, value in node.attributes.items():
        if isinstance(value, (int, float, str)):
            made[name] = value
        elif isinstance(value, tuple) and all(isinstance(item, (int, float, str)) for item in value):
            made[name] = list(value)
        elif isinstance(value, np.generic):
            made[name] = value.item()
    return made
