"""The records of a conversion: its groups, and what each of them changes."""

from __future__ import annotations

from qrun.declare.frozen import frozen
from qrun.ir import Model, Node

EQUAL, TIES, DIFFERS = "bit-equal", "next-to-ties", "differs"
"""Kinds of a `Agreement`."""


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
