"""Walks a model with its subgraphs, and finds values, shapes and types of tensors without running anything."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from operator import itemgetter
from typing import Any

import numpy as np

from qrun.checking.rules._ort import known_schema
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, borrow, parts
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ir.types import DTYPES
from qrun.ops import Slot, facts, quantizers

Shape = tuple[int | str | None, ...]
_HOPS = 8
_QUANTIZE = ("QuantizeLinear", "DequantizeLinear")


@frozen(slots=False)
class Scope:
    """One graph of a model as a name scope: names are looked up here, then in the graphs around it.

    path:   the prefix of node labels: "" in the main graph, ``If_1/then_branch/`` in a subgraph of If_1.
    index:  the index of the outermost node around this graph; None in the main graph.
    holder: the node of the outer graph that holds this one.
    """

    model: Model
    outer: Scope | None = None
    path: str = ""
    index: int | None = None
    holder: Node | None = None

    def at(self, node: Node, tensor: Slot | str = "") -> dict[str, Any]:
        """The Finding fields that locate a node, with an input or another tensor:
        ``Finding("...", **scope.at(node, q.scale))``."""
        index = node.index if self.index is None else self.index
        where = {"node": self.path + node.label, "index": index, "op": f"{node.op}-{node.version}"}
        named = tensor if isinstance(tensor, str) else f"{tensor.tensor} (input {tensor.place}, {tensor.name})"
        return {**where, "tensor": named}

    def home(self, name: str) -> Scope | None:
        """The innermost graph that defines `name`."""
        model = self.model
        if name in model.constants or name in model.producers or name in model.fed:
            return self
        return self.outer.home(name) if self.outer else None

    def value(self, name: str) -> Array | None:
        """The stored value of an initializer or Constant, even if a caller may override it; None if there is none."""
        return borrow(self.part(name))

    def part(self, name: str) -> Part | None:
        """Like `value`, but does not read data that is still in a file."""
        home = self.home(name) if name else None
        if home is None:
            return None
        if name in home.model.constants:
            return parts(home.model.constants)[name]
        return constant_value(home.model.producers[name]) if name in home.model.producers else None

    def producer(self, name: str) -> tuple[Node, Scope] | None:
        """The node that makes `name`, and the graph of the node; None if no node does."""
        home = self.home(name) if name else None
        node = home.model.producers.get(name) if home else None
        return (node, home) if node is not None and home is not None else None

    def shape(self, name: str) -> Shape | None:
        """A tensor's shape: exact for stored tensors, else as the file states it; None if unknown."""
        if name not in self._shapes:
            self._shapes[name] = self._shape(name)
        return self._shapes[name]

    @cached_property
    def _shapes(self) -> dict[str, Shape | None]:
        """A cache of `shape`, by name."""
        return {}

    def _shape(self, name: str) -> Shape | None:
        scope = self
        for _ in range(_HOPS):
            home = scope.home(name) if name else None
            if home is None:
                return None
            part = home.part(name)
            if part is not None:
                return tuple(part.shape)
            stated = home.model.types.get(name)
            if stated is not None and stated.shape is not None:
                return stated.shape
            node = home.model.producers.get(name)
            if node is None or node.op_type not in (*_QUANTIZE, "Identity") or not node.inputs:
                return None
            scope, name = home, node.inputs[0]
        return None

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """A tensor's element type: as stored, as stated, or from the operator that makes it; None if unknown."""
        home = self.home(name) if name else None
        return home.dtypes.get(name) if home else None

    @cached_property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The known element types of this graph's tensors, without disputed tensors."""
        return self._typed[0]

    @property
    def disputed(self) -> frozenset[str]:
        """Tensors whose element type in the file is not the one that their node makes: QR213, QR303."""
        return self._typed[1]

    def type_from_producer(self, name: str) -> np.dtype[Any] | None:
        """The element type of a tensor of this graph by the node that makes it;
        None if the node does not determine it, or if it is disputed."""
        return None if name in self._typed[2] else self.dtypes.get(name)

    @cached_property
    def mistyped(self) -> dict[Hashable, Sequence[int]]:
        """A cache: places of inputs with wrong types, by operator and types of the inputs."""
        return {}

    @cached_property
    def read_as(self) -> Mapping[str, frozenset[np.dtype[Any]]]:
        """The known types of the zero points with which this graph's nodes read its tensors, by tensor."""
        found: dict[str, set[np.dtype[Any]]] = {}
        for node in self.model.nodes:
            for q in quantizers(node):
                zero = self.dtype(q.zero_point.tensor) if q.zero_point and not q.is_output else None
                if zero is not None:
                    found.setdefault(q.tensor.tensor, set()).add(zero)
        return {name: frozenset(types) for name, types in found.items()}

    @cached_property
    def _typed(self) -> tuple[Mapping[str, np.dtype[Any]], frozenset[str], frozenset[str]]:
        """Types, disputed tensors, and tensors whose nodes do not determine their type; one pass in execution order."""
        found = {v.name: v.dtype for v in self.model.types.values() if v.dtype is not None}
        found |= {name: part.dtype for name, part in parts(self.model.constants).items()}
        disputed, not_given = set(), set()

        def dtype(name: str) -> np.dtype[Any] | None:
            return found.get(name) or (self.outer.dtype(name) if self.outer and name else None)

        for node in self.model.nodes:
            for place, name in enumerate(node.outputs):
                made = type_of_output(node, place, dtype) if name else None
                if made is None:
                    not_given.add(name)
                elif found.setdefault(name, made) != made:
                    disputed.add(name)
                    del found[name]
        return found, frozenset(disputed), frozenset(not_given)


_Types = Callable[[str], np.dtype[Any] | None]


def type_of_output(node: Node, place: int, dtype: _Types) -> np.dtype[Any] | None:
    """The element type of a node's output, from its attributes, its zero point, or the type variables of its schema."""
    value = constant_value(node)
    if value is not None:
        return value.dtype
    number = node.attributes.get("to" if node.op_type == "Cast" else "output_dtype", 0)
    if isinstance(number, int) and number in DTYPES:
        return DTYPES[number]
    for q in quantizers(node) if place == 0 else ():
        if q.is_output and q.zero_point:
            return dtype(q.zero_point.tensor)
    if node.op_type == "QuantizeLinear":
        return np.dtype(np.uint8)
    return _by_schema(node, place, dtype)


def _by_schema(node: Node, place: int, dtype: _Types) -> np.dtype[Any] | None:
    defined = known_schema(node)
    if defined is None or not defined.outputs or any(node.subgraphs):
        return None
    out = defined.outputs[min(place, len(defined.outputs) - 1)]
    if out.types is None:
        return None
    for formal, name in zip(defined.inputs, node.inputs, strict=False):
        if formal.variable == out.variable and name:
            return dtype(name)
    return next(iter(out.types)) if len(out.types) == 1 else None


@once_per_model
def scopes(model: Model) -> tuple[Scope, ...]:
    """The model's main graph and all its subgraphs."""

    def within(here: Scope) -> Iterator[Scope]:
        yield here
        for node in here.model.nodes:
            index = node.index if here.index is None else here.index
            for name, graph in node.graphs():
                yield from within(Scope(graph, here, f"{here.path}{node.label}/{name}/", index, node))

    return tuple(within(Scope(model)))


def nodes(model: Model, operators: Iterable[tuple[str, str]] | None = None) -> Iterator[tuple[Scope, Node]]:
    """Yield every node of the model and its subgraphs, with its scope.

    operators: if given, only nodes with one of these (domain, type) pairs.
    """
    if operators is None:
        return ((scope, node) for scope in scopes(model) for node in scope.model.nodes)
    found = _by_operator(model)
    return (place[1:] for place in merge(*(found.get(op, ()) for op in dict.fromkeys(operators)), key=itemgetter(0)))


def nodes_with_parameters(model: Model, *more: str) -> Iterator[tuple[Scope, Node]]:
    """Yield the nodes whose inputs may be scales, zero points or a quantized bias,
    and the nodes of `more` operators of ai.onnx."""
    of_onnx = {("", op_type) for op_type in ("Conv", *more)}
    return nodes(model, [op for op in _by_operator(model) if op in of_onnx or facts(*op) is not None])


@once_per_model
def _by_operator(model: Model) -> Mapping[tuple[str, str], Sequence[tuple[int, Scope, Node]]]:
    """All nodes by domain and type, each with its position in the order of `nodes`."""
    return grouped(((node.domain, node.op_type), (at, scope, node)) for at, (scope, node) in enumerate(nodes(model)))


def names_read(graph: Model) -> set[str]:
    """The names that the graph's nodes, their subgraphs, and the graph's outputs read."""
    found = {v.name for v in graph.outputs}
    for node in graph.nodes:
        found.update(node.inputs)
        for inner in node.subgraphs:
            found |= names_read(inner)
    return found


_PLAIN: Mapping[str, type] = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def constant_value(node: Node) -> Array | None:
    """The value of a Constant node; None for other nodes and string constants."""
    if node.op_type != "Constant" or node.domain:
        return None
    for name in ("value", "sparse_value"):
        value = node.attributes.get(name)
        if isinstance(value, np.ndarray):
            return value
    for name, dtype in _PLAIN.items():
        plain = node.attributes.get(name)
        if isinstance(plain, int | float | tuple):
            return np.array(plain, dtype)
    return None


def static_shape(shape: Shape | None) -> tuple[int, ...] | None:
    """The shape if every size is a number, else None."""
    if shape is None or not all(isinstance(d, int) for d in shape):
        return None
    return tuple(d for d in shape if isinstance(d, int))


def differ(one: int | str | None, other: int | str | None) -> bool:
    """Are two sizes known and different?"""
    return isinstance(one, int) and isinstance(other, int) and one != other


def number(node: Node, name: str, default: int = 0) -> int:
    """An int attribute; the default if it is missing or of another type."""
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default


def ints(node: Node, name: str) -> tuple[int, ...]:
    """An attribute that is a list of ints; () if it is missing or of another type."""
    value = node.attributes.get(name)
    whole = isinstance(value, tuple) and all(isinstance(v, int) for v in value)
    return tuple(value) if isinstance(value, tuple) and whole else ()
