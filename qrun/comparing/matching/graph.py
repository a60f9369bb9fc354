"""A view of a model as operators on real values, with the quantizers between each value and its readers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from qrun.comparing.differences import is_integral
from qrun.comparing.matching.operators import is_dequantize, is_quantize, unfold
from qrun.comparing.matching.products import SUMS, NativeProducts
from qrun.comparing.sides import Values
from qrun.declare.frozen import frozen
from qrun.errors import MemoryLimitError, OperatorError
from qrun.ir import Array, Model, Node
from qrun.memory import Budget
from qrun.ops import Body, Context, find
from qrun.running.plan import locate
from qrun.running.steps import bodies_of

Path = tuple[int, ...]
"""The quantizers that a value passes, in order: places of QuantizeLinear or DynamicQuantizeLinear nodes."""


@frozen
class Read:
    """A read of a value by input `place` of an operator; path: the quantizers in between.
    operator: the operator's place; -1: the graph's output number `place` reads the value."""

    operator: int
    place: int
    path: Path


@frozen
class Source:
    """The content of a tensor: a value, and the quantizers that it has passed."""

    value: str
    path: Path = ()


class Reals:
    """A model as operators on values. A value is an operator's result, or a graph input, before any quantizer.

    nodes:   the unfolded nodes (`unfold`); an operator is identified by its place among them.
    sources: the content of each tensor that is not constant, floats and codes.
    budget:  the memory account of computations.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.budget = Budget()
        self.nodes = unfold(model)
        self._products = NativeProducts(model)
        self.sources: dict[str, Source] = {v.name: Source(v.name) for v in (*model.inputs, *model.defaults)}
        self.names: dict[Source, str] = {source: name for name, source in self.sources.items()}
        self.codes: dict[Source, str] = {}
        self.operators: list[int] = []
        self.made: dict[str, int] = {}
        self.producers: dict[str, int] = {}
        self._constants: dict[str, Array | None] = {}
        self.readers: dict[str, list[Read]] = {}
        for index, node in enumerate(self.nodes):
            self._take(index, node)
        for index, output in enumerate(model.outputs):
            source = self.sources.get(output.name)
            if source is not None:
                self.readers.setdefault(source.value, []).append(Read(-1, index, source.path))

    def _take(self, index: int, node: Node) -> None:
        """Note what a node does to the real tensors: pass one on, quantize it, or compute a new one."""
        self.producers.update((name, index) for name in node.outputs if name)
        if all(self.is_constant(name) for name in node.inputs) and not any(node.subgraphs):
            return
        source = self.sources.get(node.inputs[0]) if node.inputs else None
        if is_quantize(node) and source is not None and all(map(self.is_constant, node.inputs[1:])):
            self._pass_source(node.outputs[0], Source(source.value, (*source.path, index)), codes=True)
        elif _is_dynamic(node) and source is not None:
            self._pass_source(node.outputs[0], Source(source.value, (*source.path, index)), codes=True)
            self.sources.update((name, Source(name)) for name in node.outputs[1:])
        elif (is_dequantize(node) and source is not None and self._undoes(node, source)) or (
            _is_alias(node) and source is not None and len(list(filter(None, node.outputs))) == 1
        ):
            self._pass_source(node.outputs[0], source)
        else:
            self.operators.append(index)
            for at, read in self.inputs(index):
                self.readers.setdefault(read.value, []).append(Read(index, at, read.path))
            for name in filter(None, node.outputs):
                self.made[name] = index
                self.sources[name] = Source(name)
                self.names[Source(name)] = name

    def _pass_source(self, name: str, source: Source, codes: bool = False) -> None:
        """Let a tensor stand for the same real tensor as another; `codes`: as its codes."""
        self.sources[name] = source
        (self.codes if codes else self.names).setdefault(source, name)

    def _undoes(self, node: Node, source: Source) -> bool:
        """Does a DequantizeLinear undo a quantizer: does it read its codes with the same parameters?"""
        if not source.path or self.codes.get(source) != node.inputs[0]:
            return False
        quantizer = self.nodes[source.path[-1]]
        want = quantizer.outputs[1:] if _is_dynamic(quantizer) else quantizer.inputs[1:]
        return all(self._same(a, b) for a, b in zip(_pair(node.inputs[1:]), _pair(want), strict=True))

    def same_parameters(self, one: int, other: int) -> bool:
        """Have two quantizers the same scale and zero point?"""
        first, second = self.nodes[one], self.nodes[other]
        if _is_dynamic(first) or _is_dynamic(second):
            return False
        return all(self._same(a, b) for a, b in zip(_pair(first.inputs[1:]), _pair(second.inputs[1:]), strict=True))

    def _same(self, a: str, b: str) -> bool:
        """Whether two scales or zero points hold the same numbers."""
        if a == b:
            return True
        first, second = (self.constant(name) if name else np.zeros(()) for name in (a, b))
        if first is None or second is None:
            return False
        return np.array_equal(first.astype(np.float64).reshape(-1), second.astype(np.float64).reshape(-1))

    @cached_property
    def running(self) -> tuple[int, ...]:
        """The places of nodes whose outputs are not constant."""
        return tuple(p for p, node in enumerate(self.nodes) if any(n in self.sources for n in node.outputs))

    @cached_property
    def quantizes(self) -> bool:
        """Is any value rounded to codes, or any constant stored as codes?"""
        return any(is_quantize(node) or is_dequantize(node) or _is_dynamic(node) for node in self.nodes)

    @cached_property
    def opaque(self) -> tuple[Node, ...]:
        """The operators that read stored codes of up to 8 bits directly, so that their rounding alone is not known."""
        return tuple(self.nodes[p] for p in self.operators if any(map(self._is_coded, self.constant_inputs(p))))

    @cached_property
    def scales(self) -> Mapping[str, Array]:
        """The scales that the model stores for constant codes, by name."""
        names = dict.fromkeys(
            node.inputs[1] for node in self.nodes if is_dequantize(node) and node.inputs[0] not in self.sources
        )
        return {name: self.model.constants[name] for name in names if name in self.model.constants}

    @cached_property
    def activation_scales(self) -> Mapping[str, float]:
        """The scalar scales of QuantizeLinear nodes, by the name of the model's constant."""
        names = [self.own_name(node.inputs[1]) for node in self.nodes if is_quantize(node)]
        stored = self.model.constants
        return {name: float(stored[name].reshape(())) for name in names if name in stored and stored[name].size == 1}

    def factors_of(self, name: str) -> tuple[str, ...]:
        """The model's constants whose product a constant of the unfolded nodes is; () for a constant of the model."""
        index = self.producers.get(name)
        if index is None or name in self.model.constants:
            return ()
        node = self.nodes[index]
        if node.op_type != "Mul":
            return self.factors_of(node.inputs[0]) if node.inputs else ()
        inner = [self.factors_of(part) or (self.own_name(part),) for part in node.inputs]
        return tuple(part for parts in inner for part in parts if part in self.model.constants)

    def own_name(self, name: str) -> str:
        """The name of the model's constant from which the unfolded nodes make the constant `name`."""
        while name and name not in self.model.constants and (index := self.producers.get(name)) is not None:
            if not self.nodes[index].inputs:
                break
            name = self.nodes[index].inputs[0]
        return name

    def _is_coded(self, name: str) -> bool:
        """Whether a constant is an 8-bit tensor."""
        value = self.model.constants.get(name)
        return value is not None and value.size > 1 and value.dtype.itemsize == 1 and is_integral(value.dtype)

    # Constants

    def is_constant(self, name: str) -> bool:
        """Whether a tensor is constant, or computed from constants."""
        if not name or name in self.model.constants:
            return name not in self.sources
        return name in self.producers and name not in self.sources

    def constant(self, name: str) -> Array | None:
        """A constant's value, computed at the first call; None if `name` is not constant."""
        if not name or not self.is_constant(name):
            return None
        if name in self.model.constants:
            return self.model.constants[name]
        if name not in self._constants:
            index = self.producers[name]
            made = self.compute(index, [self.constant(i) for i in self.nodes[index].inputs])
            self._constants.update(zip(self.nodes[index].outputs, made, strict=False))
        return self._constants[name]

    def quantized_constant(self, name: str) -> int | None:
        """The place of the DequantizeLinear from which a constant is computed; None if there is none."""
        index = self.producers.get(name)
        while index is not None and name not in self.sources:
            if is_dequantize(self.nodes[index]):
                return index
            name = self.nodes[index].inputs[0] if self.nodes[index].inputs else ""
            index = self.producers.get(name)
        return None

    # Values

    @cached_property
    def rounds(self) -> Mapping[str, Path]:
        """For each value, the quantizers that all of its readers share; they belong to the operator that makes it.

        A DynamicQuantizeLinear, and quantizers after it, belong to the operator that reads the value.
        """
        found = {}
        for value, reads in self.readers.items():
            shared = reads[0].path
            for read in reads[1:]:
                same = next((i for i, (a, b) in enumerate(zip(shared, read.path, strict=False)) if a != b), None)
                shared = shared[: min(len(shared), len(read.path)) if same is None else same]
            dynamic = next((i for i, q in enumerate(shared) if _is_dynamic(self.nodes[q])), len(shared))
            found[value] = shared[:dynamic]
        return found

    def name_after_rounding(self, value: str) -> str:
        """The name of the tensor that holds a value after its own quantizers (`rounds`)."""
        return self.names.get(Source(value, self.rounds.get(value, ())), value)

    def inputs(self, index: int) -> Iterator[tuple[int, Source]]:
        """The inputs of an operator that are not constant: their positions and contents."""
        for at, name in enumerate(self.nodes[index].inputs):
            if name in self.sources:
                yield at, self.sources[name]

    def constant_inputs(self, index: int) -> list[str]:
        """The names of an operator's constant inputs."""
        return [name for name in self.nodes[index].inputs if name and self.is_constant(name)]

    # Computing

    def compute(self, index: int, args: Sequence[Array | None], around: Values | None = None) -> tuple[Array, ...]:
        """Compute the outputs of a node. around: outer values that its subgraphs read. Raises RunError."""
        node = self.nodes[index]
        if node.op_type in SUMS:
            return self._products.run(index, node, args, [self.is_constant(name) for name in node.inputs], self.budget)
        try:
            bodies = bodies_of(self.model, node, around or {}, self.budget) if any(node.subgraphs) else {}
            return _call(node, args, self.budget, bodies)
        except OperatorError as error:
            raise locate(error, self.model, node) from None
        except MemoryLimitError as error:
            error.where = (self.model.label, f"node {node.index} {node.label} ({node.op}-{node.version})")
            raise

    def apply(self, node: Node, args: Sequence[Array | None]) -> tuple[Array, ...]:
        """Compute the outputs of a node without subgraphs, which need not be in the model. Raises OperatorError."""
        return _call(node, args, self.budget)

    def pass_through(self, array: Array, path: Iterable[int]) -> Array:
        """Quantize and dequantize an array with each quantizer of `path` in turn."""
        for index in path:
            node = self.nodes[index]
            if _is_dynamic(node):
                codes, scale, zero = self.compute(index, [array])
            else:
                scale, zero = (self.constant(name) for name in _pair(node.inputs[1:]))  # type: ignore[assignment]
                (codes,) = self.compute(index, [array, *(scale, zero)[: len(node.inputs) - 1]])
            array = _dequantize(codes, scale, zero, node)
        return array

    def dequantize(self, codes: Array, index: int) -> Array:
        """Dequantize codes that the quantizer at `index` made."""
        scale, zero = (self.constant(name) for name in _pair(self.nodes[index].inputs[1:]))
        return _dequantize(codes, scale, zero, self.nodes[index])


def _pair(names: Sequence[str]) -> tuple[str, str]:
    """The first two names; "" for missing ones."""
    return (*names, "", "")[0], (*names, "", "")[1]


def _is_dynamic(node: Node) -> bool:
    """Whether a node is a DynamicQuantizeLinear."""
    return node.op_type == "DynamicQuantizeLinear" and not node.domain


def _is_alias(node: Node) -> bool:
    """Whether a node only passes its input on."""
    if node.domain:
        return False
    if node.op_type == "Cast":
        return node.attributes.get("to") == 1
    return node.op_type == "Identity" or (node.op_type == "Dropout" and len(node.inputs) < 3)


def _dequantize(codes: Array, scale: Array | None, zero: Array | None, quantizer: Node) -> Array:
    """Dequantize codes with the parameters and attributes of the node that made them."""
    kept = {k: v for k, v in quantizer.attributes.items() if k in ("axis", "block_size")}
    node = Node(quantizer.index, quantizer.label, "", "DequantizeLinear", 21, ("x", "s", "z"), ("y",), kept)
    return _call(node, [codes, scale, zero])[0]


def _call(
    node: Node, args: Sequence[Array | None], budget: Budget | None = None, bodies: Mapping[str, Body] | None = None
) -> tuple[Array, ...]:
    """Run a node's reference kernel."""
    definition = find(node.domain, node.op_type, node.version)
    assert definition is not None, node.op
    wanted = tuple(bool(name) for name in node.outputs)
    ctx = Context("exact", node.version, len(node.outputs), wanted, False, budget or Budget(), bodies=bodies or {})
    with np.errstate(all="ignore"):
        made = definition.compute(args, definition.bind(node), ctx)
    return made if isinstance(made, tuple) else (made,)


@frozen
class Region:
    """The operators, in order, that compute a value from known values. whole: do they read no other values?"""

    operators: tuple[int, ...]
    inputs: tuple[str, ...]
    whole: bool


def region(reals: Reals, value: str, known: set[str]) -> Region:
    """The region between a value and the known values from which it is computed."""
    found: set[int] = set()
    inputs: dict[str, None] = {}
    whole, pending = True, [value]
    while pending:
        at = pending.pop()
        index = reals.made.get(at)
        if index is None:
            whole = whole and at == value
            continue
        if index in found:
            continue
        found.add(index)
        for _, source in reals.inputs(index):
            if source.value in known and source.value != value:
                inputs[source.value] = None
            else:
                pending.append(source.value)
    inside = any(any(reals.nodes[index].subgraphs) for index in found)  # which may read anything
    return Region(tuple(sorted(found)), tuple(inputs), whole and not inside)
