"""A model while a pass rewrites it: one slot of new nodes for each old one, and the names that must stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, StoredArray, constants_of, parts
from qrun.ir import Array, Model, Node, TensorType
from qrun.ir.schema import OPSETS, version
from qrun.ops import Arith

if TYPE_CHECKING:
    from qrun.passes import _evaluate
    from qrun.passes._shapes import Dims
else:
    _evaluate = Later("qrun.passes._evaluate")

_SMALL = 1 << 20
_DEPTH = 8


class Refused(Exception):
    """Raised where a pass leaves a node as it is; the text says why."""


@frozen
class Rewritten:
    """The result of a pass.

    origins: for each node of `model`, the indices of the nodes of the pass's input model that it replaces; empty if
    `model` is that input model.
    refused: by index, why a node of the input model stays as it is.
    """

    model: Model
    origins: tuple[tuple[int, ...], ...]
    refused: Mapping[int, str]


class Draft:
    """The model, its constants so far, and for each of its nodes a slot with the nodes that replace it.

    A node's index must be its place. Names keep their meaning: a tensor that an old node made is made, under its name,
    by new nodes of its slot or of another one, unless no node reads it any more.
    """

    def __init__(self, model: Model, keep: Iterable[str], arith: Arith) -> None:
        self.model = model
        self.arith: Arith = arith
        self.constants: dict[str, Part] = dict(parts(model.constants))
        self._read: dict[str, Array] = {}
        self._keep = keep
        self.refused: dict[int, str] = {}
        self._types: dict[str, TensorType] = {}
        self._slots: dict[int, tuple[tuple[Node, tuple[int, ...]], ...]] = {}
        self._aliases: dict[str, str] = {}
        self._fed = {v.name for v in model.defaults}
        self._given = {v.name for v in model.inputs} | set(model.constants)
        self._zeros: dict[tuple[np.dtype, tuple[int, ...]], str] = {}
        self._computed: dict[str, Array | None] = {}

    @cached_property
    def preserved(self) -> frozenset[str]:
        """Names of tensors that must stay: requested, outputs of the graph, or read by a subgraph."""
        return (
            frozenset(self._keep) | {v.name for v in self.model.outputs} | frozenset(_captured_names(self.model.nodes))
        )

    @cached_property
    def _used(self) -> set[str]:
        """Names that are in use."""
        found = self._given | set(self.constants) | self.preserved
        return found.union(*((*node.inputs, *node.outputs) for node in self.model.nodes))

    @cached_property
    def _fixed(self) -> set[str]:
        """Names of the tensors that nodes compute from constants alone."""
        found: set[str] = set()
        for node in self.model.nodes:
            known = (not n or n in found or (n in self.constants and n not in self._fed) for n in node.inputs)
            if all(known) and not any(node.subgraphs):
                found.update(node.outputs)
        return found

    def value(self, name: str) -> Array | None:
        """The value of a constant, or None. Initializers that may be fed are not constants."""
        part = None if name in self._fed else self.constants.get(name)
        if isinstance(part, StoredArray):
            part = self._read[name] = self._read[name] if name in self._read else part.read()
        return part

    def constant_value(self, name: str, depth: int = _DEPTH) -> Array | None:
        """The value of a constant, or of a small tensor that nodes compute from constants alone; else None."""
        found = self.value(name)
        if found is not None or name not in self._fixed or not depth:
            return found
        if name not in self._computed:
            node = self.model.producers[name]
            args = [self.constant_value(i, depth - 1) if i else None for i in node.inputs]
            known = all(a is not None or not i for a, i in zip(args, node.inputs, strict=True))
            small = known and sum(a.nbytes for a in args if a is not None) <= _SMALL
            made = _evaluate.evaluate(node, args, self.arith, _SMALL * 8) if small else None
            for output, array in zip(node.outputs, made or [None] * len(node.outputs), strict=False):
                self._computed[output] = array
        return self._computed.get(name)

    @cached_property
    def shapes(self) -> Mapping[str, Dims]:
        """Shapes known before any run."""
        from qrun.passes._shapes import known_shapes

        return known_shapes(self.model)

    def producer(self, name: str) -> Node | None:
        """The node that makes a tensor."""
        return self.model.producers.get(name)

    def consumers(self, name: str) -> tuple[Node, ...]:
        """The nodes that read a tensor."""
        return self.model.consumers.get(name, ())

    def type(self, name: str) -> TensorType | None:
        """The type of a tensor that the file states or a pass has added; None if there is none."""
        return self._types.get(name) or self.model.types.get(name)

    def fresh(self, base: str) -> str:
        """A name that is not in use; it is reserved."""
        name, number = base, 2
        while name in self._used:
            name, number = f"{base}_{number}", number + 1
        self._used.add(name)
        return name

    def constant(self, array: Array, base: str) -> str:
        """Add a constant; returns its name."""
        name = self.fresh(base)
        array = np.array(array)
        array.setflags(write=False)
        self.constants[name] = array
        return name

    def zeros(self, dtype: np.dtype, shape: tuple[int, ...]) -> str:
        """The name of a constant of zeros, the default of an omitted zero point."""
        key = (dtype, shape)
        if key not in self._zeros:
            self._zeros[key] = self.constant(np.zeros(shape, dtype), "zero_point")
        return self._zeros[key]

    def state(self, name: str, dtype: np.dtype, like: str) -> None:
        """Note the element type of a tensor that has the shape of another one."""
        known = self.type(like)
        self._types[name] = TensorType(name, dtype, known.shape if known else None)

    def put(self, index: int, *nodes: tuple[Node, Iterable[int]]) -> None:
        """Fill a slot: nodes, each with the indices of the nodes that it replaces. Their inputs are made before, in
        earlier slots or in this one."""
        self._slots[index] = tuple((node, tuple(sorted(set(origins)))) for node, origins in nodes)

    def alias(self, name: str, same: str, index: int) -> None:
        """Make `name`, an output of the node with this index, and `same` one tensor; they have one value and type.

        One of the names disappears; if both must stay, or no node makes `same`, the node becomes an Identity.
        """
        same = self._resolve(same)
        self.put(index)
        if name not in self.preserved:
            self._aliases[name] = same
        elif same not in self.preserved and same not in self._given and same not in self.constants:
            self._aliases[same] = name
        else:
            node = self.model.nodes[index]
            if node.op_type != "Identity":
                latest = version("", "Identity", OPSETS[-1])
                node = Node(index, node.label, "", "Identity", latest, (), (name,))
            self.put(index, (replace(node, inputs=(same,)), (index,)))

    def finish(self) -> Rewritten:
        """The rewritten model, without nodes that only replaced nodes needed."""
        old = self.model.nodes
        if not self._slots:
            return unchanged_model(self.model, self.refused)
        needed = set(self.preserved) | self._leaves()
        live = []
        for index in range(len(old) - 1, -1, -1):
            for node, origins in reversed(self._slots.get(index, ((old[index], (index,)),))):
                outputs = tuple(map(self._resolve, node.outputs))
                if not outputs or not needed.isdisjoint(outputs):
                    inputs = tuple(map(self._resolve, node.inputs))
                    needed.update(inputs)
                    live.append((node, inputs, outputs, origins))
        live.reverse()
        nodes = tuple(
            Node(i, node.label, node.domain, node.op_type, node.version, inputs, outputs, node.attributes)
            for i, (node, inputs, outputs, _) in enumerate(live)
        )
        constants = {n: a for n, a in self.constants.items() if n in needed or n in self._fed}
        opsets = {**{node.domain: node.version for node in nodes}, **self.model.opsets}
        types = {**self.model.types, **self._types}
        model = replace(self.model, nodes=nodes, constants=constants_of(constants), opsets=opsets, types=types)
        return Rewritten(model, tuple(entry[-1] for entry in live), self.refused)

    def _resolve(self, name: str) -> str:
        """The final name of a tensor."""
        while name in self._aliases:
            name = self._aliases[name]
        return name

    def _leaves(self) -> set[str]:
        """The outputs of nodes whose outputs nothing reads. Such nodes still run, and may fail."""
        consumers = self.model.consumers
        found: set[str] = set()
        for node in self.model.nodes:
            if not any(name in consumers or name in self.preserved for name in node.outputs):
                found.update(name for name in node.outputs if name)
        return found


def unchanged_model(model: Model, refused: Mapping[int, str] | None = None) -> Rewritten:
    """The result of a pass that found nothing to rewrite."""
    return Rewritten(model, (), refused or {})


def _captured_names(nodes: Iterable[Node]) -> Iterator[str]:
    """Names that subgraphs may read from outside."""
    for node in nodes:
        for graph in node.subgraphs:
            yield from (v.name for v in graph.outputs)
            yield from (name for inner in graph.nodes for name in inner.inputs if name)
            yield from _captured_names(graph.nodes)
