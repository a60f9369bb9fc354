"""The records of a conversion: its groups, and what each of them changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, constants_of, parts
from qrun.ir import Array, Model, Node

EQUAL, TIES, DIFFERS = "bit-equal", "next-to-ties", "differs"
"""Kinds of a `Agreement`."""
NOT_EQUAL = "not bit-equal"
"""The start of the reason why `strict` leaves a node as it is."""
CLIP = 12
"""The opset from which Clip limits integers."""


@frozen
class Agreement:
    """How the codes of a group in its new form differ from those of the old one, in any run.

    kind:   EQUAL; TIES, by one code where the real quotient is so near to a tie that the float32 steps of the QDQ form
            decide; DIFFERS, by up to `bound` codes.
    bound:  the largest difference in codes; None if none is known.
    reason: the proof, or the cause, as a clause.
    """

    kind: str
    bound: int | None
    reason: str


@frozen
class Group:
    """A group in both forms.

    name:   the label of its operator. op: the operator in the old form; becomes: in the new one.
    output: the tensor of its codes. old, new: its nodes in either form, in order.
    """

    name: str
    op: str
    becomes: str
    output: str
    old: tuple[Node, ...]
    new: tuple[Node, ...]
    verdict: Agreement


@frozen
class KeptNode:
    """A node that stays as it is, and why."""

    name: str
    op: str
    reason: str


@frozen
class ConvertedModel:
    """A converted model.

    form:   ``qoperator``, ``qdq`` or ``integer``. family: the arithmetic of `integer`, "" for others.
    source: the model as loaded, but for moves that change no bit. model: the new form.
    """

    form: str
    source: Model
    model: Model
    groups: tuple[Group, ...]
    left: tuple[KeptNode, ...]
    family: str = ""


def names_in_use(*models: Model) -> set[str]:
    """The names of the tensors of these models and of the graphs in their nodes, which may not have them twice."""
    found = set[str]()
    for model in models:
        found.update(model.constants, model.fed, model.producers)
        found |= names_in_use(*(graph for node in model.nodes for graph in node.subgraphs))
    return found


class NewTensors:
    """The constants of a model that is rewritten, and the names in use. others: models with further names."""

    def __init__(self, model: Model, *others: Model) -> None:
        self._model = model
        self.constants: dict[str, Part] = dict(parts(model.constants))
        self._taken = names_in_use(model, *others)

    def name(self, base: str) -> str:
        """A name that is not in use; it is reserved."""
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def add(self, value: Array, base: str) -> str:
        """Add a constant; returns its name, which is `base` if an equal constant has it."""
        known = None if base in self._model.fed else self.constants.get(base)
        if isinstance(known, np.ndarray) and known.dtype == value.dtype and np.array_equal(known, value):
            return base
        name = self.name(base)
        self.constants[name] = value
        return name

    def model(self, nodes: Sequence[Node]) -> Model:
        """The model with these nodes, numbered by their places, and with the constants that they read."""
        numbered = tuple(replace(node, index=at, name=node.label) for at, node in enumerate(nodes))
        read = {name for node in numbered for name in (*node.inputs, *node.captured)}
        read.update(value.name for value in (*self._model.outputs, *self._model.defaults))
        kept = {name: part for name, part in self.constants.items() if name in read}
        return replace(self._model, nodes=numbered, constants=constants_of(kept))
