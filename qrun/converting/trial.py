"""Runs both forms of a converted model on the same inputs and compares them, group by group and end to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.converting.conversion import ConvertedModel, Group, names_in_use
from qrun.declare.frozen import frozen
from qrun.declare.stored import constants_of, parts
from qrun.ir import Array, Model, Node
from qrun.running.session import Session


@frozen
class GroupTrial:
    """The codes of a group in its new form against those of the old one, from the same inputs.

    differing: how many of `total` codes differ; most: by how many steps, at most.
    """

    group: Group
    differing: int
    total: int
    most: int

    @property
    def is_broken(self) -> bool:
        """Whether they differ by more than the verdict says."""
        bound = self.group.verdict.bound
        return bound is not None and self.most > bound


@frozen
class OutputTrial:
    """An output of the converted model against the source's. most: the largest difference; None for NaN on one side
    only, or values that are no numbers."""

    name: str
    differing: int
    total: int
    most: float | None


@frozen
class Trial:
    """The comparison of both forms on some inputs."""

    groups: tuple[GroupTrial, ...]
    outputs: tuple[OutputTrial, ...]

    @property
    def broken(self) -> tuple[GroupTrial, ...]:
        """The groups that differ by more than their verdicts say."""
        return tuple(each for each in self.groups if each.is_broken)


def try_both(
    original: Model, conversion: ConvertedModel, feeds: Mapping[str, Array], session: Callable[[Model], Session]
) -> Trial:
    """Run both forms. original: the model as loaded. session: loads a model as written. Raises RunError if one fails.

    Each group's new nodes run beside its old ones and read the same codes, so that a difference is the group's own. The
    outputs are those of the whole model in either form.
    """
    both, names = _both(conversion)
    old_names = {new: old for old, new in names.items()}
    waiting: dict[str, Array] = {}
    differences: dict[str, tuple[int, int, int]] = {}

    def see(name: str, value: Array) -> None:
        group = old_names.get(name, name)
        if group not in names:
            return
        if group not in waiting:
            waiting[group] = value.copy()
            return
        apart = np.abs(value.astype(np.int64) - waiting.pop(group).astype(np.int64))
        differences[group] = int(np.count_nonzero(apart)), apart.size, int(apart.max(initial=0))

    if names:
        session(both).watch(feeds, see, (*names, *old_names))
    old, new = session(original).run(feeds), session(conversion.model).run(feeds)
    groups = tuple(GroupTrial(group, *differences[group.output]) for group in conversion.groups)
    return Trial(groups, tuple(_compare(name, old[name], new[name]) for name in old))


def _both(conversion: ConvertedModel) -> tuple[Model, Mapping[str, str]]:
    """The source with the new nodes of each group right after its own, so that no code is kept for long; and the name
    of each group's new codes, by that of the old ones."""
    source = conversion.source
    taken = names_in_use(source, conversion.model)
    beside, names = dict[str, Sequence[Node]](), dict[str, str]()
    for number, group in enumerate(conversion.groups):
        ending = f"_{number}_converted"
        while any(f"{name}{ending}" in taken for node in group.new for name in node.outputs):
            ending += "_"
        renamed = {name: f"{name}{ending}" for node in group.new for name in node.outputs if name}
        beside[group.output] = [
            replace(node, inputs=_renamed(node.inputs, renamed), outputs=_renamed(node.outputs, renamed))
            for node in group.new
        ]
        names[group.output] = renamed[group.output]
    nodes = [
        each for old in source.nodes for each in (old, *(new for name in old.outputs for new in beside.get(name, ())))
    ]
    constants = constants_of({**parts(conversion.model.constants), **parts(source.constants)})
    opsets = {**conversion.model.opsets, **source.opsets}
    return replace(source, nodes=tuple(nodes), constants=constants, opsets=opsets), names


def in_time(model: Model) -> Model:
    """The model with nodes of constants right before their first reader. Files often start with the DequantizeLinear of
    all weights, whose results take four times the memory of the weights."""
    known, waiting, nodes = {"", *model.constants}, dict[str, Node](), list[Node]()
    for node in model.nodes:
        if any(node.inputs) and len(node.outputs) == 1 and known.issuperset(node.inputs) and not any(node.subgraphs):
            waiting[node.outputs[0]] = node
            continue
        nodes += [waiting.pop(name) for name in (*node.inputs, *node.captured) if name in waiting]
        nodes.append(node)
    nodes += waiting.values()
    return replace(model, nodes=tuple(replace(node, index=at, name=node.label) for at, node in enumerate(nodes)))


def _renamed(names: Sequence[str], renamed: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(renamed.get(name, name) for name in names)


def _compare(name: str, old: Array, new: Array) -> OutputTrial:
    """Compare an output; NaN equals NaN."""
    if old.dtype != new.dtype or old.shape != new.shape or old.dtype.kind not in "iufbV":
        same = old.dtype == new.dtype and old.shape == new.shape and bool((old == new).all())
        return OutputTrial(name, 0 if same else old.size, old.size, 0 if same else None)
    first, second = (array.astype(np.float64) for array in (old, new))
    with np.errstate(all="ignore"):
        unequal = ~((first == second) | (np.isnan(first) & np.isnan(second)))
        apart = np.abs(first - second)[unequal]
    most = float(apart.max(initial=0))
    return OutputTrial(name, int(unequal.sum()), old.size, most if np.isfinite(most) else None)
