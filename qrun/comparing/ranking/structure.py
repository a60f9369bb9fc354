"""Faults of a group's operators: a missing, different or extra operator, other attributes, exchanged inputs. A fault is
proved if it alone turns the first model's operators into what the second model computes with the first's constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qrun.comparing.differences import sqnr
from qrun.comparing.matching.graph import Reals
from qrun.comparing.ranking.constants import Constants
from qrun.comparing.ranking.faults import FINE, Fault
from qrun.comparing.ranking.groups import NO_PATHS, Operation, RoundingGroup, operate, simulate
from qrun.comparing.sides import Values
from qrun.errors import QrunError
from qrun.ir import Array, Node

MISSING = "missing-operator"
_ALIKE = 60.0
"""dB above which two float32 computations are the same."""


class _Edits:
    """Changes to one of the two sides, each with the fault that it stands for."""

    def __init__(self, a: Reals, b: Reals, group: RoundingGroup, constants: Constants, label: str) -> None:
        self.a, self.b, self.group, self.constants, self.label = a, b, group, constants, label
        self.pairs = pairs = group.pairs
        folded = [{at for at, _ in side.chain} for sides in constants.products.values() for side in sides]
        done = set().union(*folded)
        self.extra = [p for p in group.region.operators if p not in pairs and p not in done]
        self.lost = [q for q in group.there.operators if q not in pairs.values() and q not in done]

    def of_first(self) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Changes to the first model's operators that may turn them into the second model's."""
        for other in self.lost:
            node = self.a.nodes[other]
            for read in [at for at, _ in self.a.inputs(other)]:
                text = f"{_an(node.op_type)} of {self.label} is missing here"
                yield Fault(MISSING, text), {other: partial(_through, read)}
        for place, other in self.pairs.items():
            yield from self._attributes(place, other)
            yield from self._exchanged(other, self.a.nodes[other])
        for other in self.lost:
            for place in self.extra:
                yield from self._replaced(place, other)
        if len(self.lost) > 1:
            names = ", ".join(self.a.nodes[q].op_type for q in self.lost)
            gone: dict[int, Operation] = {
                q: partial(_through, next(at for at, _ in self.a.inputs(q))) for q in self.lost
            }
            yield Fault(MISSING, f"{names} of {self.label} are missing here"), gone

    def _attributes(self, place: int, other: int) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        mine, theirs = self.b.nodes[place], self.a.nodes[other]
        if mine.op_type != theirs.op_type:
            yield from self._replaced(place, other)
            return
        names = [
            n
            for n in {**mine.attributes, **theirs.attributes}
            if not _equal(mine.attributes.get(n), theirs.attributes.get(n))
        ]
        for name in [*names, *([None] if len(names) > 1 else [])]:
            changed = [name] if name else names
            kept = {k: v for k, v in theirs.attributes.items() if k not in changed}
            node = replace(theirs, attributes=kept | {k: v for k, v in mine.attributes.items() if k in changed})
            said = "; ".join(
                f"{k} of its {mine.op_type} {_is(mine, k)} here, {_value(theirs, k)} in {self.label}" for k in changed
            )
            yield Fault("other-attribute", said), {other: partial(self.a.apply, node)}
        for at, (one, two) in enumerate(zip(mine.inputs, theirs.inputs, strict=False)):
            got, want = self.b.constant(one), self.a.constant(two)
            if got is not None and want is not None and got.dtype.kind in "iu" and not np.array_equal(got, want):
                said = f"input {at} of its {mine.op_type} is {got.tolist()} here, {want.tolist()} in {self.label}"
                yield Fault("other-attribute", said), {other: partial(_given, self.a, theirs, at, got)}

    def _exchanged(self, other: int, node: Node) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        if len(node.inputs) == 2 and all(node.inputs):
            text = f"the inputs of its {node.op_type} are exchanged here"
            yield Fault("exchanged-inputs", text), {other: lambda args: self.a.apply(node, args[::-1])}

    def _replaced(self, place: int, other: int) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """An operator of the second model in place of one of the first."""
        mine, theirs = self.b.nodes[place], self.a.nodes[other]
        read = [[at for at, _ in side.inputs(p)] for side, p in ((self.b, place), (self.a, other))]
        if not read[0] or not read[1]:
            return
        text = f"{_an(theirs.op_type)} of {self.label} is {_an(mine.op_type)} here"
        if mine.op_type == theirs.op_type:
            text = f"the inputs of its {mine.op_type} are exchanged here"
        for order in (1, -1) if len(read[0]) == len(read[1]) == 2 else (1,):
            made = partial(self._as_mine, mine, read[0], read[1][::order])
            yield Fault("other-operator" if mine.op_type != theirs.op_type else "exchanged-inputs", text), {other: made}

    def _as_mine(self, node: Node, into: list[int], read: list[int], args: list[Array | None]) -> tuple[Array, ...]:
        given = [self.b.constant(name) for name in node.inputs]
        for at, from_ in zip(into, read, strict=False):
            given[at] = args[from_]
        return self.b.apply(node, given)

    def of_second(self) -> Iterator[tuple[Fault, dict[int, Operation]]]:
        """Operators that only the second model has."""
        for place in self.extra:
            for read in [at for at, _ in self.b.inputs(place)]:
                text = f"{self.label} has no {self.b.nodes[place].op_type} here"
                yield Fault("extra-operator", text), {place: partial(_through, read)}


def judge_structure(
    a: Reals,
    b: Reals,
    group: RoundingGroup,
    constants: Constants,
    clean: Values,
    inside: Callable[[Array], Array],
    label: str,
) -> tuple[float, Fault | None]:
    """How far apart both models' operators are with the first one's constants, in dB; and the fault that explains it.

    inside: clips values to the range of the result. label: the first model's.
    """
    raw = inside(clean[group.raw])
    fair = inside(simulate(b, group, clean, own=False, instead=constants.instead()).reshape(raw.shape))
    own = sqnr(fair, raw)
    if own >= _ALIKE:
        return own, None
    edits = _Edits(a, b, group, constants, label)
    held = {value: clean[a.settled(value)] for value in group.there.inputs}
    for fault, instead in edits.of_first():
        made = _made(lambda at=instead: operate(a, group.there, dict(held), NO_PATHS, at)[group.raw], raw)  # type: ignore[misc]
        if made is not None and sqnr(inside(made), fair) >= max(_ALIKE, own + FINE):
            return own, fault
    for fault, instead in edits.of_second():
        whole = {**constants.instead(), **instead}
        made = _made(lambda at=whole: simulate(b, group, clean, own=False, instead=at), raw)  # type: ignore[misc]
        if made is not None and sqnr(inside(made), raw) >= max(_ALIKE, own + FINE):
            return own, fault
    return own, None


def _made(compute: Callable[[], Array], like: Array) -> Array | None:
    """What a change makes; None if it cannot be made, or has another size."""
    try:
        array = compute()
    except (QrunError, ValueError, IndexError, TypeError):
        return None
    return array.reshape(like.shape) if array.size == like.size else None


def _through(read: int, args: list[Array | None]) -> tuple[Array, ...]:
    array = args[read]
    assert array is not None
    return (array,)


def _given(a: Reals, node: Node, at: int, array: Array, args: list[Array | None]) -> tuple[Array, ...]:
    return a.apply(node, [*args[:at], array, *args[at + 1 :]])


def _equal(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other)) if one is not None and other is not None else one is other


def _is(node: Node, name: str) -> str:
    return f"{'are' if name.endswith('s') and not name.endswith('axis') else 'is'} {_value(node, name)}"


def _value(node: Node, name: str) -> str:
    value = node.attributes.get(name)
    if value is None:
        return "not given"
    return str(list(value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else str(value)


def _an(op: str) -> str:
    return f"{'an' if op[:1] in 'AEIOU' else 'a'} {op}"
