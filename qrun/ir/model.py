"""The loaded model: plain frozen data, free of protobuf."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import field
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from qrun.declare import InNotebook, grouped
from qrun.declare.frozen import frozen, replace
from qrun.declare.stored import Part, constants_of, hold, parts
from qrun.ir.types import ONNX_NAMES, shape_text, type_name

if TYPE_CHECKING:
    from qrun.declare.digest import Content

Array = np.ndarray[Any, np.dtype[Any]]
Attribute: TypeAlias = "int | float | str | bytes | tuple[Any, ...] | Array | Model | TensorType"

T = TypeVar("T")
_MODEL = re.compile(r"\bMODEL\b")


@frozen
class TensorType:
    """A named value of the graph: element type and shape; None means unknown.

    A dimension is a number, a symbol such as ``"N"``, or None.
    `kind` is ``tensor``; or ``sequence``, ``optional``, ``map``, whose values are described in compound.py; or
    ``sparse_tensor``, which qrun cannot run. Only a tensor has a dtype and a shape here.
    element: the type of the elements of a sequence, an optional or a map. key: the type of a map's keys.
    """

    name: str
    dtype: np.dtype | None
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"
    element: TensorType | None = None
    key: np.dtype | None = None

    @property
    def sizes(self) -> tuple[int | str, ...]:
        """The shape, with unknown dimensions named by their index: ``"input[1]"``. () if the shape is unknown."""
        shape = self.shape or ()
        if None not in shape:
            return shape  # type: ignore[return-value]
        return tuple(f"{self.name}[{index}]" if dim is None else dim for index, dim in enumerate(shape))

    @property
    def type(self) -> str:
        """The type in the words of onnxruntime: ``tensor(float)``, ``seq(tensor(int64))``."""
        names: Mapping[Any, str] = ONNX_NAMES
        inner = self.element.type if self.element else f"tensor({names.get(self.dtype, '?')})"
        if self.kind == "map":
            return f"map({names.get(self.key, '?')},{inner})"
        return inner if self.kind == "tensor" else f"{'seq' if self.kind == 'sequence' else self.kind}({inner})"

    def __str__(self) -> str:
        if self.kind == "map":
            return f"map of {type_name(self.key)} to {self.element or '?'}"
        if self.kind != "tensor":
            return f"{self.kind} of {self.element}" if self.element else self.kind
        return f"{type_name(self.dtype)} {shape_text(self.shape)}"


@frozen
class Node:
    """One operator of the graph.

    index:    place in execution order; the ``#`` of every table and message.
    domain:   ``""`` for ai.onnx.
    version:  the operator's since_version that the model's opset selects (the opset itself if the operator is unknown).
    inputs, outputs: tensor names; ``""`` for an omitted one.
    """

    index: int
    name: str
    domain: str
    op_type: str
    version: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The node's name, or ``Op_index`` as onnxruntime calls unnamed nodes."""
        return self.name or f"{self.op_type}_{self.index}"

    @property
    def op(self) -> str:
        """The operator with its domain unless that is ai.onnx."""
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def full_domain(self) -> str:
        """The operator's domain, with ai.onnx spelled out."""
        return self.domain or "ai.onnx"

    @property
    def subgraphs(self) -> Iterator[Model]:
        """The graphs in the node's attributes."""
        return (graph for _, graph in self.graphs())

    def graphs(self) -> Iterator[tuple[str, Model]]:
        """The graphs inside the node, by attribute; the graphs of a list are numbered: ``branches[0]``."""
        for name, value in self.attributes.items():
            if isinstance(value, Model):
                yield name, value
            elif isinstance(value, tuple) and value and isinstance(value[0], Model):
                yield from ((f"{name}[{index}]", item) for index, item in enumerate(value) if isinstance(item, Model))

    @property
    def captured(self) -> tuple[str, ...]:
        """Names that the node's subgraphs capture from outside, each once."""
        return tuple(dict.fromkeys(name for graph in self.subgraphs for name in graph.captured))


@frozen(slots=False)
class Model(InNotebook):
    """A graph ready to plan: nodes in an order in which every input is defined before it is used.

    inputs:     graph inputs that must be fed; `defaults` are the inputs that have an initializer and may be fed.
    constants:  initializers by name, read-only arrays; large ones stay in files of external data until they are
                accessed (`qrun/declare/stored.py`).
    opsets:     domain (``""`` for ai.onnx) to imported version.
    types:      types that the file states for inputs, outputs and intermediate values.
    was_sorted: the file had its nodes in a valid order.
    source:     the name in messages of a model that did not come from a path.
    digest:     SHA-256 of a model that is not a regular file; see `sha256`.
    missing_files: files of external data that were missing, if `load` spared them; their tensors are 0.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    constants: Mapping[str, Array]
    opsets: Mapping[str, int]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    defaults: tuple[TensorType, ...] = ()
    path: Path | None = None
    source: str = ""
    ir_version: int = 0
    producer: str = ""
    size: int = 0
    digest: str = ""
    was_sorted: bool = True
    external_files: tuple[str, ...] = ()
    missing_files: tuple[str, ...] = ()

    def __repr__(self) -> str:
        ends = ", ".join(f"{v.name} {v}" for v in self.inputs[:3]) + (", ..." if len(self.inputs) > 3 else "")
        return f"<qrun.Model {self.label}: {self.opset}, {len(self.nodes)} nodes, inputs {ends or 'none'}>"

    @property
    def label(self) -> str:
        """The model's name in messages: its path as given."""
        return str(self.path) if self.path else self.source or self.name or "model"

    @cached_property
    def content(self) -> Content | None:
        """The bytes from which the model was made, or their digest, including external data. None where they are not
        kept, as for a model made by `replace`."""
        return None

    def with_content(self, content: Content | None) -> Model:
        """This same model, after `content` is set to the bytes from which it was made."""
        vars(self)["content"] = content
        return self

    def with_fed_defaults(self, replaced: Collection[str] = ()) -> Model:
        """The model for runs whose feeds replace the defaults with these names: these defaults become inputs, and the
        other ones constants."""
        if not self.defaults:
            return self
        fed = tuple(value for value in self.defaults if value.name in replaced)
        constants = {name: part for name, part in parts(self.constants).items() if name not in replaced}
        made = replace(self, inputs=(*self.inputs, *fed), constants=constants_of(constants), defaults=())
        return made if fed else made.with_content(self.content)

    def everywhere(self) -> Iterator[tuple[Node, str]]:
        """Every node of this graph and of the graphs inside it, with its path: ``If_1/then_branch/Relu_0``."""
        for node in self.nodes:
            yield node, node.label
            for name, graph in node.graphs():
                for inner, path in graph.everywhere():
                    yield inner, f"{node.label}/{name}/{path}"

    def fill_in(self, text: str) -> str:
        """`text` with the model's file, quoted for a shell, in place of MODEL; unchanged if the model is no file."""
        from shlex import quote

        return _MODEL.sub(lambda _: quote(str(self.path)), text) if self.path else text

    @property
    def opset(self) -> str:
        """The version of ai.onnx, or the operator sets of a model without it: ``opset 13``, ``opset ai.onnx.ml 3``."""
        others = ", ".join(f"{domain} {version}" for domain, version in self.opsets.items())
        return f"opset {self.opsets.get('', others or 'none')}"

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file's bytes; a regular file is read again on first access. "" if the file is gone."""
        if self.digest or self.path is None:
            return self.digest
        import hashlib

        try:
            with open(self.path, "rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError:
            return ""

    @cached_property
    def fed(self) -> Mapping[str, TensorType]:
        """The values that a run can be fed with, by name: graph inputs, and the defaults that may be replaced."""
        return {value.name: value for value in (*self.inputs, *self.defaults)}

    @cached_property
    def captured(self) -> tuple[str, ...]:
        """For a subgraph: names that it, or a graph inside it, captures from outside, each once."""
        own = {*self.fed, *self.constants, *(name for node in self.nodes for name in node.outputs)}
        read = [name for node in self.nodes for name in (*node.inputs, *node.captured)]
        return tuple(
            dict.fromkeys(name for name in (*read, *(v.name for v in self.outputs)) if name and name not in own)
        )

    @cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of this graph's nodes, subgraphs not included."""
        return frozenset(node.op_type for node in self.nodes)

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """Tensor name to the node that makes it."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """Tensor name to the nodes of this graph that read it, subgraphs not included."""
        found = grouped((name, node) for node in self.nodes for name in dict.fromkeys(node.inputs) if name)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def constant(self, name: str) -> Array | None:
        """The value of an initializer or of a Constant node's output, or None if it is known only when running."""
        return hold(self.part(name))

    def part(self, name: str) -> Part | None:
        """The same as `constant`, but data that stays in a file is not read."""
        if name in self.constants:
            return None if name in self.fed else parts(self.constants)[name]
        node = self.producers.get(name)
        if node is not None and node.op_type == "Constant" and not node.domain:
            value = node.attributes.get("value", node.attributes.get("sparse_value"))
            return value if isinstance(value, np.ndarray) else None
        return None


def once_per_model(find: Callable[[Model], T]) -> Callable[[Model], T]:
    """Decorate a function of a model so that it runs once per model; its result is kept with the model."""

    @wraps(find)
    def found(model: Model) -> T:
        store: dict[Callable[[Model], T], T] = vars(model).setdefault("_once_per_model", {})
        if find not in store:
            store[find] = find(model)
        return store[find]

    return found
