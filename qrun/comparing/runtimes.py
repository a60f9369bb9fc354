"""One model on two sides, tensor by tensor: what differs, where it starts, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from qrun.comparing.causes import CRASHED, REFUSED, Reason, Suspect, reason, same
from qrun.comparing.groups import Group
from qrun.comparing.sides import Side, Unit, Values
from qrun.comparing.tensors import PLAIN, Code, Pair, pair
from qrun.differences import EXACT, Tolerance, integral
from qrun.errors import MemoryLimitError, QrunError
from qrun.ir import Array, Model, Node

Progress = Callable[[int, int, float | None], None]
"""Told the nodes done, all nodes, and the seconds left if that is known."""


@dataclass(frozen=True, slots=True)
class Guilt:
    """A tensor that differs although both sides read the same values.

    pair:   first side's result from the second side's inputs, and the second side's.
    exact:  the value before rounding at the largest difference, zero point added, in steps; None if not known.
    """

    pair: Pair
    reason: Reason
    exact: float | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One tensor that a node or group makes.

    pair:   both sides' results as they ran (with `isolate`: the first side's from the second side's inputs).
    inputs: are the tensors that the unit reads the same, bit for bit? None: not known, the second side has not all.
    guilt:  whether it differs by itself, and why; None: it does not, or only inherits.
    checked: was it made anew from the other side's inputs?
    """

    unit: Unit
    name: str
    pair: Pair
    inputs: bool | None
    guilt: Guilt | None = None
    checked: bool = False

    @property
    def node(self) -> Node:
        return self.unit.node

    @property
    def differs(self) -> bool:
        return not self.pair.equal

    @property
    def refused(self) -> bool:
        """Does the second side refuse to make it, or crash?"""
        return self.guilt is not None and self.guilt.reason.cause in (REFUSED, CRASHED)

    @property
    def crashed(self) -> bool:
        """Does the second side crash?"""
        return self.guilt is not None and self.guilt.reason.cause == CRASHED


@dataclass(frozen=True, slots=True)
class Comparison:
    """All tensors that both sides have, in graph order.

    a, b:      labels of the sides; names: what tables call them. isolate: was every node fed the second side's values?
    outputs:   the graph's outputs that nodes make, as the sides ran.
    piecewise: what the second side said when it refused the whole model, or crashed; it then ran node by node on the first one's.
    """

    model: Model
    a: str
    b: str
    names: tuple[str, str]
    tensors: tuple[Compared, ...]
    outputs: tuple[tuple[str, Pair], ...]
    tolerance: Tolerance
    isolate: bool = False
    piecewise: QrunError | None = None

    @property
    def differing(self) -> tuple[Compared, ...]:
        return tuple(t for t in self.tensors if t.differs)

    @property
    def refused(self) -> tuple[Compared, ...]:
        """The tensors that the second side refuses to make, or crashes on."""
        return tuple(t for t in self.tensors if t.refused)

    @property
    def first(self) -> Compared | None:
        """The first tensor that differs; a refused one only if no other does."""
        return next((t for t in self.differing if not t.refused), next(iter(self.differing), None))

    @property
    def equal(self) -> bool:
        """Is every tensor within the tolerance?"""
        return not self.differing


def compare_runtimes(
    a: Side,
    b: Side,
    feeds: Values,
    tolerance: Tolerance = EXACT,
    *,
    isolate: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Run one model on two sides and compare every tensor that both have.

    feeds:   the model's inputs by name.
    isolate: make each node of side `a` anew from the values of side `b`, so that errors do not add up.

    A difference is looked into where the node's result differs though it reads the same values. If `b` refuses the
    whole model, or crashes, it runs node by node on the values of `a`. Raises QrunError if `a` cannot run the model.
    """
    mine = a.run(feeds)
    refused = None
    theirs: Mapping[str, Array | None] | None
    try:
        theirs = b.run(feeds)
    except MemoryLimitError:
        raise
    except QrunError as error:
        refused, theirs = error, None
    grouped = a if len(a.units) < len(b.units) else b
    work = _Work(a, b, feeds, mine, theirs, tolerance, isolate)
    found: list[Compared] = []
    for place, unit in enumerate(grouped.units):
        if progress:
            progress(place, len(grouped.units), None)
        found += work.unit(work.grown(unit))
    pairs = {t.name: t.pair for t in found} if theirs is None else work.ran()
    outputs = tuple((v.name, pairs[v.name]) for v in a.model.outputs if v.name in pairs)
    names = (a.name, b.name)
    return Comparison(a.model, a.label, b.label, names, tuple(found), outputs, tolerance, isolate, refused)


@dataclass(frozen=True)
class _Work:
    """What the units of one comparison share."""

    a: Side
    b: Side
    feeds: Values
    mine: Mapping[str, Array | None]
    theirs: Mapping[str, Array | None] | None
    tolerance: Tolerance
    isolate: bool

    def ran(self) -> dict[str, Pair]:
        """The graph's outputs as both sides ran."""
        names = [v.name for v in self.a.model.outputs if v.name in self.mine and v.name in (self.theirs or {})]
        return {n: self._pair(n, self.mine[n], (self.theirs or {})[n]) for n in names}

    def grown(self, unit: Unit) -> Unit:
        """The unit with the nodes before it whose results the second side does not have."""
        if self.theirs is None:
            return unit
        known = {*self.theirs, *self.feeds, *self.a.model.constants}
        producers = self.a.model.producers
        while missing := [n for n in unit.read if n not in known and n in producers]:
            members = {node.index: node for node in (*unit.group, *(producers[n] for n in missing))}
            unit = Unit(unit.node, tuple(members[i] for i in sorted(members)), unit.given)
        return unit

    def unit(self, unit: Unit) -> Iterator[Compared]:
        if self.theirs is None:
            yield from self._piece(unit)
            return
        names = [n for n in unit.gives if n in self.mine and n in self.theirs]
        inputs = self._inputs(unit)
        alike = self._alike(unit)
        pairs = {n: self._pair(n, self.mine[n], self.theirs[n]) for n in names}
        differ = [n for n in names if not pairs[n].equal]
        anew: Mapping[str, Array | None] | None = None
        if inputs is not None and (self.isolate or differ):
            anew = self.mine if alike else self._anew(unit, inputs)
        for name in names:
            guilt = None
            if anew is not None and name in anew:
                own = self._pair(name, anew[name], self.theirs[name])
                if not own.equal:
                    guilt = self._guilt(unit, name, inputs or {}, own, anew[name], self.theirs[name], None)
                if self.isolate:
                    yield Compared(unit, name, own, True, guilt, True)
                    continue
            yield Compared(unit, name, pairs[name], alike, guilt, anew is not None)

    def _piece(self, unit: Unit) -> Iterator[Compared]:
        """A unit that side `b` runs by itself on the values of `a`."""
        inputs = self._read(unit, self.mine)
        error: QrunError | None = None
        made: Mapping[str, Array | None] = {}
        try:
            made = self.b.alone(unit, inputs or {})
        except MemoryLimitError:
            raise
        except QrunError as raised:
            error = raised
        for name in unit.gives:
            mine, theirs = self.mine.get(name), made.get(name)
            if mine is None:
                continue
            own = self._pair(name, mine, theirs)
            guilt = None if own.equal else self._guilt(unit, name, inputs or {}, own, mine, theirs, error)
            yield Compared(unit, name, own, True, guilt, True)

    def _pair(self, name: str, mine: Array | None, theirs: Array | None) -> Pair:
        whole = mine is not None and integral(mine.dtype)
        return pair(mine, theirs, self.tolerance, self._code(name, mine.dtype) if whole and mine is not None else PLAIN)

    def _code(self, name: str, dtype: np.dtype[Any]) -> Code:
        """Scale and zero point of a tensor of codes: of the node that quantizes it, through those that move codes."""
        model = self.a.model
        while (node := model.producers.get(name)) is not None and node.inputs:
            if "Quantize" in node.op_type or node.op_type.startswith("Q"):
                arrays = [self._stored(n) for n in node.inputs]
                for scale, zero in zip(arrays[-2:0:-1], arrays[:1:-1], strict=False):
                    if scale is not None and zero is not None and zero.dtype == dtype and scale.size == zero.size == 1:
                        return Code(float(scale.reshape(())), float(zero.reshape(())))
                return PLAIN
            name = node.inputs[0]
        return PLAIN

    def _stored(self, name: str) -> Array | None:
        return self.a.model.constants.get(name, self.feeds.get(name))

    def _read(self, unit: Unit, values: Mapping[str, Array | None]) -> dict[str, Array] | None:
        """What a unit reads, of these values; None if something is missing."""
        found: dict[str, Array] = {}
        constants = self.a.model.constants
        for name in unit.read:
            array = self.feeds[name] if name in self.feeds else values.get(name, constants.get(name))
            if array is None:
                return None
            found[name] = array
        return found

    def _inputs(self, unit: Unit) -> dict[str, Array] | None:
        assert self.theirs is not None
        return self._read(unit, self.theirs)

    def _alike(self, unit: Unit) -> bool | None:
        """Did both sides read the same? None if one of them does not tell."""
        a, b = self._read(unit, self.mine), self._inputs(unit)
        if a is None or b is None:
            return None
        return all(a[n] is b[n] or same(a[n], b[n]) for n in a)

    def _anew(self, unit: Unit, inputs: Values) -> Mapping[str, Array | None] | None:
        try:
            return self.a.alone(unit, inputs)
        except MemoryLimitError:
            raise
        except (QrunError, KeyError):
            return None

    def _guilt(
        self, unit: Unit, name: str, inputs: Values, own: Pair, mine: Array | None, theirs: Array | None,
        error: QrunError | None,
    ) -> Guilt | None:  # fmt: skip
        if mine is None:
            return None
        again = self._again(unit, name, inputs)
        group = Group(self.a.model, unit, name, inputs)
        suspect = Suspect(
            self.a.model, unit, name, inputs, mine, theirs, error, again, group.forms(), group.before_rounding
        )
        exact = suspect.exact
        place = own.difference.worst
        at = (
            float(exact[place])
            if exact is not None and own.difference.form is None and own.difference.differing
            else None
        )
        return Guilt(own, reason(suspect), at)

    def _again(self, unit: Unit, name: str, inputs: Values) -> Callable[[], Array | None]:
        def run() -> Array | None:
            try:
                return self.b.alone(unit, inputs).get(name)
            except QrunError:
                return None

        return run
