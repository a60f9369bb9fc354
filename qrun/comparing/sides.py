"""The sides of a comparison: qrun or another runtime, which runs a model, or one of its nodes on given inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Protocol, Unpack

import numpy as np

from qrun.comparing.differences import same
from qrun.declare.frozen import frozen
from qrun.errors import LimitError, QrunError
from qrun.ir import Array, Model, Node, TensorType
from qrun.memory import ResourceLimits
from qrun.ops import Arith
from qrun.passes import optimize
from qrun.peers import Nodes, Peer, optimized_peer, runtime_label
from qrun.running.session import Session

Values = Mapping[str, Array]
Results = Mapping[str, Array | None]
"""Tensors by name; None for an output that the runtime omitted."""
_ABSENT = ("QR012", "QR014")
"""Error codes that mean that a runtime is unavailable for any model."""


def refusal(error: QrunError) -> QrunError:
    """Return the error of a side that refuses a model or node, or crashes; raise an error that ends the comparison."""
    if isinstance(error, LimitError) or error.code in _ABSENT:
        raise error
    return error


@frozen
class Unit:
    """A unit of comparison: one node, or a group of nodes that one side runs as one.

    node:  the model's node that names the unit. group: the model's nodes in it, in order.
    given: names of the tensors to compare; None: all that it makes.
    """

    node: Node
    group: tuple[Node, ...]
    given: tuple[str, ...] | None = None

    @property
    def gives(self) -> tuple[str, ...]:
        """The tensors of the group that can be compared."""
        return self.made if self.given is None else self.given

    @property
    def made(self) -> tuple[str, ...]:
        """Names of the tensors that its nodes compute."""
        return tuple(names_made_by(self.group))

    @property
    def read(self) -> tuple[str, ...]:
        """Names of the tensors that it reads from outside, constants included."""
        inside = set(self.made)
        return tuple(dict.fromkeys(n for node in self.group for n in _reads(node) if n not in inside))


class Side(Protocol):
    """One way to run a model.

    name: one word, for tables. label: the name with versions and settings. model: the model as written.
    """

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def name(self) -> str:
        """The side's short name."""

    @property
    def label(self) -> str:
        """The side's name on screens."""

    @property
    def units(self) -> Sequence[Unit]:
        """The model's nodes, in order, grouped as this side runs them."""
        ...

    def run(self, feeds: Values) -> Results:
        """Run the model and return all tensors that the side exposes; None for omitted outputs. Raises QrunError."""
        ...

    def alone(self, unit: Unit, values: Values) -> Results:
        """Run one unit on tensors of the other side and return its results. Raises QrunError."""
        ...

    def inside(self, node: Node, graph: str, part: Model) -> Side:
        """The same side for a subgraph of a node. graph: the attribute's name. part: the subgraph as a model."""
        ...


@frozen(slots=False)
class QrunSide:
    """qrun as a side.

    backend: reference or native. fuse: replace QDQ groups by integer operators. arith: as in Session.
    keep: tensors that groups must not remove.
    max_memory: bytes that a run may hold. max_time: seconds that a run may take.
    """

    model: Model
    backend: str = "reference"
    fuse: bool = False
    arith: Arith = "exact"
    max_memory: int | None = None
    max_time: float | None = None
    name: str = "qrun"
    keep: frozenset[str] = frozenset()

    @property
    def label(self) -> str:
        """The side's name on screens."""
        from qrun import __version__

        parts = [self.backend, "groups fused" if self.fuse else "graph as written"]
        parts += [f"arith {self.arith}"] if self.arith != "exact" else []
        return f"qrun {__version__} ({', '.join(parts)})"

    @cached_property
    def _ran(self) -> tuple[Model, Mapping[int, tuple[int, ...]]]:
        """The model as it runs, and the original nodes of each of its nodes."""
        if not self.fuse:
            return self.model, {}
        done = optimize(self.model, self.keep, self.arith)
        return done.model, done.groups

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """The groups of nodes that run as one."""
        return units_of(self.model, *self._ran)

    def run(self, feeds: Values) -> Results:
        """Run the model and return all tensors."""
        model, known = self._ran[0], set(self.model.producers)
        names = [name for node in model.nodes for name in node.outputs if name in known]
        return self._tensors(model, feeds, names) if names else {}

    def alone(self, unit: Unit, values: Values) -> Results:
        """Run one group of nodes on these values."""
        model, groups = self._ran
        wanted = {node.index for node in unit.group}
        nodes = unit.group if not groups else tuple(n for n in model.nodes if wanted >= set(groups[n.index]))
        try:
            part = extract(model, nodes, values)
        except KeyError:  # the executed graph reads tensors that only it has
            if not self.fuse:
                raise
            part = self._fuse_alone(unit, values)
        return self._tensors(part, {v.name: values[v.name] for v in part.inputs}, names_made_by(part.nodes))

    def _fuse_alone(self, unit: Unit, values: Values) -> Model:
        """A group of the model's nodes, fused by itself. Raises KeyError if `values` lacks an input."""
        part = extract(self.model, unit.group, values)
        part = replace(part, outputs=tuple(v for v in part.outputs if v.name in unit.gives))
        return optimize(part, frozenset(), self.arith).model

    def inside(self, node: Node, graph: str, part: Model) -> Side:
        """The side of a graph inside a node."""
        return replace(self, model=part)

    @property
    def limits(self) -> ResourceLimits:
        """The limits of memory and time."""
        return {"max_memory": self.max_memory, "max_time": self.max_time}

    def _tensors(self, model: Model, feeds: Values, names: Sequence[str]) -> Mapping[str, Array]:
        """Run `model`, the whole executed model or a part of it, and return the named tensors."""
        session = Session(model, backend=self.backend, arith=self.arith, fuse=False, **self.limits)
        return session.values(feeds, names)


def units_of(model: Model, ran: Model, groups: Mapping[int, tuple[int, ...]]) -> tuple[Unit, ...]:
    """The units of a model that runs as the rewritten model `ran`. groups: maps the index of each node of `ran` to the
    indices of the model's nodes in it; empty if `ran` is the model itself."""
    if not groups:
        return tuple(Unit(node, (node,)) for node in model.nodes)
    nodes = {node.index: node for node in model.nodes}
    found = []
    for node in ran.nodes:
        members = tuple(nodes[i] for i in groups[node.index])
        found.append(Unit(nodes.get(node.index, members[0]), members, tuple(n for n in node.outputs if n)))
    return tuple(found)


def run_alone(
    model: Model,
    nodes: Sequence[Node],
    values: Values,
    backend: str | None,
    arith: Arith,
    **limits: Unpack[ResourceLimits],
) -> dict[str, Array]:
    """Run some nodes of a model in qrun on `values` and return all tensors they make. Raises QrunError, KeyError."""
    part = extract(model, nodes, values)
    session = Session(part, backend=backend, arith=arith, fuse=False, **limits)
    return session.values({v.name: values[v.name] for v in part.inputs}, names_made_by(part.nodes))


def names_made_by(nodes: Iterable[Node]) -> list[str]:
    """The names of all tensors that the nodes make."""
    return [name for node in nodes for name in node.outputs if name]


def extract(model: Model, nodes: Sequence[Node], values: Values) -> Model:
    """Some nodes of a model as a model of their own. Tensors that they read are constants where the model stores them
    and `values` has no other value for them, else inputs of the type and shape in `values`.
    Raises KeyError if `values` lacks an input.
    """
    made = set(names_made_by(nodes))
    names = list(dict.fromkeys(n for node in nodes for n in _reads(node) if n not in made))
    stored = {n: array for n in names if (array := model.constants.get(n, model.constant(n))) is not None}
    constants = {
        n: array for n, array in stored.items() if n not in values or array is values[n] or same(array, values[n])
    }
    inputs = tuple(TensorType(n, values[n].dtype, values[n].shape) for n in names if n not in constants)
    outputs = tuple(TensorType(name, None, None) for name in sorted(made))
    moved = tuple(replace(node, index=index) for index, node in enumerate(nodes))
    return replace(model, nodes=moved, inputs=inputs, outputs=outputs, constants=constants, types={}, defaults=())


def _reads(node: Node) -> Iterable[str]:
    """Names of the tensors that a node and its subgraphs read."""
    yield from (name for name in node.inputs if name)
    for graph in node.subgraphs:
        inner = {n for other in graph.nodes for n in other.outputs} | set(graph.constants)
        inner |= {value.name for value in (*graph.inputs, *graph.defaults)}
        yield from (name for other in graph.nodes for name in _reads(other) if name not in inner)
        yield from (value.name for value in graph.outputs if value.name not in inner)


class PeerSide:
    """Another runtime as a side. It runs the graph as written, or with `optimize` in its default session.

    With `optimize` it exposes the outputs and the inner tensors that survive in onnxruntime's optimized graph. It
    exposes inner tensors only if that graph still gives the same output bits when they are outputs too.
    """

    def __init__(
        self,
        model: Model,
        backend: str,
        *,
        data: bytes | None = None,
        optimize: bool = False,
        **limits: Unpack[ResourceLimits],
    ) -> None:
        self.model, self._limits = model, limits
        self.backend = backend
        self.name = f"{backend}-optimized" if optimize else backend
        self._optimize = optimize
        self._nodes = Nodes(model, data)
        names = self._nodes.names
        wanted = [v.name for v in model.outputs] if optimize else [n for n in model.producers if n in names]
        self._names = [name for name in wanted if name in model.producers]
        self._peer: Peer | None = None
        self._inner: Peer | None = None
        self._seen = set(self._names)
        self.refused: QrunError | None = None
        try:
            self._peer = Peer(model, backend, data=data, outputs=self._names, optimize=optimize, **limits)
        except QrunError as error:
            self.refused = refusal(error)
        if optimize and self._peer is not None:
            self._inner = optimized_peer(model, data, self._names, **limits)

    @property
    def widens(self) -> bool:
        """Does the runtime compute float16 nodes in float32 and round only the outputs?"""
        return self.backend == "ort"

    @property
    def label(self) -> str:
        """The side's name on screens."""

        return self._peer.label if self._peer else runtime_label(self.backend, self._optimize)

    @property
    def units(self) -> tuple[Unit, ...]:
        """The groups of nodes whose results the runtime shows."""
        nodes = self.model.nodes
        if self._optimize and self.refused is not None:
            return (Unit(nodes[-1], nodes),) if nodes else ()
        return tuple(
            Unit(n, (n,), n.outputs) for n in nodes if not self._optimize or self._seen.intersection(n.outputs)
        )

    def run(self, feeds: Values) -> Results:
        """Run the model and return the tensors that the runtime shows. Raises if it refused the model."""
        if self._peer is None:
            assert self.refused is not None
            raise self.refused
        outputs = self._peer.execute(feeds).outputs if self._names else {}
        made = {name: _output_or_none(outputs[name]) for name in self._names}
        inside = self._inside(feeds, made)
        self._seen = {*made, *inside}
        return {**inside, **made}

    def _inside(self, feeds: Values, made: Results) -> Results:
        """The inner tensors that survive in the optimized graph, if its outputs equal `made`; else none."""
        if self._inner is None:
            return {}
        try:
            found = {name: _output_or_none(array) for name, array in self._inner.execute(feeds).outputs.items()}
        except QrunError as error:
            refusal(error)
            return {}
        pairs = ((found[name], array) for name, array in made.items())
        return found if all(a is b or (a is not None and b is not None and same(a, b)) for a, b in pairs) else {}

    def alone(self, unit: Unit, values: Values) -> Results:
        """Run one unit node by node; with `optimize`, run the whole model if `values` has all its inputs."""
        if self._optimize:
            return self.run(values) if all(v.name in values for v in self.model.inputs) else {}
        made: dict[str, Array | None] = {}
        for node in unit.group:
            inputs = {n: {**self.model.constants, **values}[n] for n in dict.fromkeys(_reads(node))}
            outputs = self._nodes.alone(node, inputs, self.backend, **self._limits)
            made |= dict(zip((n for n in node.outputs if n), map(_output_or_none, outputs), strict=True))
        return made

    def inside(self, node: Node, graph: str, part: Model) -> Side:
        """The side of a graph inside a node."""
        data = self._nodes.inside(node, graph, part)
        return PeerSide(part, self.backend, data=data, optimize=self._optimize, **self._limits)


def _output_or_none(array: Array) -> Array | None:
    """The output of a runtime; None if it is an object array that holds None, which marks an omitted output."""
    return None if array.dtype == np.object_ and array.ndim == 0 and array.item() is None else array
