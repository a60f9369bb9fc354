"""What ``qrun inspect`` answers: a model, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qrun.declare.frozen import frozen, keys
from qrun.documents.record import omitted, unwritten
from qrun.ir import Node
from qrun.ir.types import shape_text


@frozen
class OperatorFacts:
    """One operator of a model: how often, which versions, input types, bytes of stored inputs, and support.

    support: ``yes``, or why not.
    """

    KEYS = keys("op nodes versions inputs weights_bytes=weights supported")

    op: str
    nodes: int
    versions: tuple[int, ...]
    inputs: tuple[str, ...]
    weights: int
    support: str

    @property
    def supported(self) -> bool:
        return self.support == "yes"


@frozen
class DeclaredValue:
    """An input or output as the model declares it; None for what it does not. optional: may an input be left out?"""

    name: str
    kind: str
    type: str | None
    shape: tuple[int | str | None, ...] | None
    optional: bool | None = omitted(None)


@frozen
class NodeTensor:
    """A tensor that a node reads or makes, as far as it is known without running."""

    name: str
    type: str | None
    shape: tuple[int | str | None, ...] | None

    def __str__(self) -> str:
        """``x uint8 [1,3,224,224]``."""
        return " ".join(filter(None, (self.name, self.type, shape_text(self.shape) if self.shape is not None else "")))


@frozen
class NodeFacts:
    """A node, its place in the graph, and its tensors; None for those that are left out."""

    index: int
    name: str
    domain: str
    op: str
    version: int
    inputs: tuple[NodeTensor | None, ...]
    outputs: tuple[NodeTensor | None, ...]
    node: Node = unwritten(None)


@frozen
class StoredTensor:
    """A tensor in the file. min, max, nan, inf: see `qrun.report.stats.Stats`;
    values: nested lists, None of large ones."""

    name: str
    type: str
    shape: tuple[int, ...]
    min: float | int | None
    max: float | int | None
    nan: int
    inf: int
    values: Any


@frozen
class Quantization:
    """The form, and the types and granularities of activations and weights, the most frequent first."""

    form: str
    activations: tuple[str, ...]
    weights: tuple[str, ...]


@frozen
class Inspection:
    """The JSON of ``qrun inspect``. macs: None, with the reason in `macs_unknown`, where they are not known; `assumed`:
    sizes that they are counted with. obstacle: why qrun does not run the model."""

    model: Mapping[str, Any]
    parameters: int
    macs: int | None
    macs_unknown: str | None
    assumed: Mapping[str, int]
    quantization: Quantization
    runs: bool
    obstacle: str | None
    inputs: Sequence[DeclaredValue]
    outputs: Sequence[DeclaredValue]
    operators: Sequence[OperatorFacts]
    nodes: Sequence[NodeFacts] | None = omitted(None)
    tensors: Sequence[StoredTensor] | None = omitted(None)
