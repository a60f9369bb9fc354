"""The records of a conversion: its groups, and what each of them changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from qrun.declare.frozen import frozen
from qrun.declare.stored import constants_of, parts
from qrun.ir import Model, Node

EQUAL, TIES, DIFFERS = "bit-equal", "next-to-ties", "differs"
"""Kinds of a `Verdict`."""


@frozen
class Verdict:
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

    name:    the label of its operator. op: the operator in the old form; becomes: in the new one.
    output:  the tensor of its codes.
    literal: the nodes of the QDQ form; integer: those of the form with integer operators.
    """

    name: str
    op: str
    becomes: str
    output: str
    literal: tuple[Node, ...]
    integer: tuple[Node, ...]
    verdict: Verdict


@frozen
class Left:
    """A node that stays as it is, and why."""

    name: str
    op: str
    reason: str


@frozen(slots=False)
class Conversion:
    """A converted model.

    form:   ``qoperator`` or ``qdq``.
    source: the model as loaded, but for moves that change no bit. model: the new form.
    """

    form: str
    source: Model
    model: Model
    groups: tuple[Group, ...]
    left: tuple[Left, ...]

    @cached_property
    def trial(self) -> tuple[Model, Mapping[str, str]]:
        """The source with the groups' new nodes beside its own, which read the same tensors; and the name of each
        group's new codes, by the name of the old ones."""
        taken = {*self.source.producers, *self.source.fed, *self.source.constants, *self.model.producers}
        nodes, pairs = list(self.source.nodes), dict[str, str]()
        for number, group in enumerate(self.groups):
            new = group.integer if self.form == "qoperator" else group.literal
            names = {name: f"{name}_{number}_converted" for node in new for name in node.outputs if name}
            while not taken.isdisjoint(names.values()):
                names = {name: f"{made}_" for name, made in names.items()}
            nodes += (
                replace(
                    node,
                    inputs=tuple(names.get(name, name) for name in node.inputs),
                    outputs=tuple(names.get(name, name) for name in node.outputs),
                )
                for node in new
            )
            pairs[group.output] = names[group.output]
        numbered = tuple(replace(node, index=at, name=node.label) for at, node in enumerate(nodes))
        constants = constants_of({**parts(self.model.constants), **parts(self.source.constants)})
        opsets = {**self.model.opsets, **self.source.opsets}
        return replace(self.source, nodes=numbered, constants=constants, opsets=opsets), pairs
