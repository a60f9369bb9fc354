"""Runs one model on two sides and compares every tensor: what differs, where it starts, and why. Follows differences
into the graphs of If, Loop and Scan, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from functools import cached_property, partial
from math import isfinite, pi, sqrt
from typing import Any

import numpy as np

from qrun.comparing.causes import Suspect, reason
from qrun.comparing.causes.sums import SUMS
from qrun.comparing.comparison import ComparedTensor, Comparison, GraphDifference, Guilt, first_difference
from qrun.comparing.differences import (
    EXACT,
    IDENTITY,
    NARROW,
    Difference,
    TensorPair,
    Tolerance,
    is_integral,
    magnitude,
    pair,
    same,
)
from qrun.comparing.emulated import NodeGroup
from qrun.comparing.matching.operators import moves
from qrun.comparing.meanings import TensorScales
from qrun.comparing.sides import PeerSide, QrunSide, Results, Side, Unit, Values, extract, refusal
from qrun.comparing.votes import NodeVote, claims, vote
from qrun.declare.frozen import frozen
from qrun.errors import LimitError, QrunError
from qrun.ir import Array, Model, Node
from qrun.ir.compound import form_difference, is_compound, numbers

_SUMS = (
    *SUMS,
    *("MatMulIntegerToFloat", "DynamicQuantizeMatMul"),
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "MeanVarianceNormalization", "LRN"),
)
_SLOPES = {
    **dict.fromkeys(("Relu", "LeakyRelu", "Clip", "Abs", "Neg", "Tanh", "Max", "Min", "MaxPool"), 1.0),
    **dict.fromkeys(("Concat", "Pad", "Identity"), 1.0),
    "Erf": 2 / sqrt(pi),
    "Gelu": 1.13,
}
"""The steepest slope of elementwise operators, and of operators that choose elements of several inputs."""


def noises(model: Model, sides: Sequence[Results], tolerance: Tolerance) -> Mapping[str, float]:
    """The absolute difference that `eps` of a tolerance allows in each tensor; tensors without one are left out.

    The rounding error of a sum is in proportion to its terms, even where these cancel (Higham 2002, section 4.2): a
    node that sums is allowed `eps` times the largest finite magnitude of its result, on the side where that is smaller.
    Later nodes inherit this noise to first order: nodes that move elements pass it on unchanged, others multiply it by
    their slope, additions add it up. Nodes of unknown slope pass on nothing.
    """
    work = _Noises(model.constants, sides)
    for node in model.nodes if tolerance.eps else ():
        for name in filter(None, node.outputs):
            allowed = tolerance.noise(work.peak(name)) if _is_op(node, *_SUMS) else work.inherited_noise(node)
            if allowed and isfinite(allowed):
                work.found[name] = allowed
    return work.found


@frozen
class _Noises:
    constants: Mapping[str, Array]
    sides: Sequence[Results]
    found: dict[str, float] = field(default_factory=dict)

    def peak(self, name: str) -> float:
        """The largest finite magnitude of a tensor, on the side where it is smaller."""
        arrays = [array for side in (self.constants, *self.sides) if (array := side.get(name)) is not None]
        return min(map(magnitude, arrays), default=0.0)

    def inherited_noise(self, node: Node) -> float:
        """The noise of a node's output that its inputs' noise makes."""
        noises = [self.found.get(name, 0.0) for name in node.inputs]
        if not any(noises):
            return 0.0
        if _is_op(node, "Add", "Sub", "Sum"):
            return sum(noises)
        if _is_op(node, "Mul"):
            return sum(noise * self.peak(other) for noise, other in zip(noises, reversed(node.inputs), strict=True))
        if _is_op(node, "Div", "BatchNormalization"):
            return noises[0] * self._slope(node)
        return max(noises) * (1.0 if moves(node) else _SLOPES.get(node.op_type, 0.0))

    def _slope(self, node: Node) -> float:
        """The largest factor by which a linear node multiplies its first input; 0 if its constants are not known."""
        parameters = [self.constants.get(name) for name in node.inputs[1:]]
        with np.errstate(all="ignore"):
            if node.op_type == "Div" and parameters[0] is not None:
                return magnitude(1 / parameters[0])
            if node.op_type == "BatchNormalization" and parameters[0] is not None and parameters[3] is not None:
                return magnitude(parameters[0] / np.sqrt(parameters[3] + node.attributes.get("epsilon", 1e-5)))
        return 0.0


def _is_op(node: Node, *names: str) -> bool:
    """Whether a node has one of these operators of ai.onnx or com.microsoft."""
    return node.op_type in names and node.domain in ("", "com.microsoft")


_MOST = 256
"""The most turns of a loop that are compared."""
Feeds = dict[str, Array]
Turns = Generator[Feeds, Sequence[Array], None]
"""Yields the inputs of a graph for each turn, and receives the outputs of that turn through `send`."""


def look_inside(a: Side, b: Side, node: Node, values: Values, tolerance: Tolerance) -> GraphDifference | None:
    """Find the first difference inside the graph that a node runs when it reads `values`.
    Each turn reads what `b` made in the turn before.

    None if the node has no graph to follow, a side cannot run the graph, or nothing differs in the first _MOST turns.
    """
    try:
        graph, turns = _graph(node, values)
    except (KeyError, IndexError, AttributeError, StopIteration):
        return None
    name = next(name for name, known in node.graphs() if known is graph)
    try:
        return _first_difference(a, b, node, name, graph, turns, values, tolerance)
    except LimitError:
        raise
    except (QrunError, KeyError, ValueError, StopIteration):
        return None


def _graph(node: Node, values: Values) -> tuple[Model, Turns]:
    """The graph that the node runs, and its turns."""
    graphs = dict(node.graphs())
    args = [values[name] if name else None for name in node.inputs]
    if node.op_type == "If" and args[0] is not None:
        return graphs["then_branch" if args[0].all() else "else_branch"], _if_turns()
    body = graphs["body"]
    if node.op_type == "Loop":
        return body, _loop_turns(body, args)
    if node.op_type != "Scan" or node.version < 9:
        raise KeyError(node.op_type)
    return body, _scan_turns(body, node, [a for a in args if a is not None])


def _if_turns() -> Turns:
    """The turns of an If: one, without inputs."""
    yield {}


def _loop_turns(body: Model, args: Sequence[Array | None]) -> Turns:
    """The inputs of each turn of a Loop; the outputs of the turn before are sent in."""
    trips, condition, *state = args
    names = [value.name for value in body.inputs]
    shape = body.inputs[0].shape or ()
    most = _MOST if trips is None else min(_MOST, int(trips.item()))
    goes_on, turn = condition is None or bool(condition.all()), 0
    while goes_on and turn < most:
        counted = np.full([1] * len(shape), turn, np.int64)
        going = np.full([1] * len(body.inputs[1].shape or ()), True)
        made = yield {n: x for n, x in zip(names, [counted, going, *state], strict=True) if x is not None}
        goes_on, state, turn = bool(made[0].all()), list(made[1 : 1 + len(state)]), turn + 1


def _scan_turns(body: Model, node: Node, args: Sequence[Array]) -> Turns:
    """The inputs of each turn of a Scan; the outputs of the turn before are sent in."""
    given: dict[str, Any] = dict(node.attributes)
    many = given["num_scan_inputs"]
    axes, directions = (given.get(f"scan_input_{what}") or (0,) * many for what in ("axes", "directions"))
    state, scanned = list(args[: len(args) - many]), args[len(args) - many :]
    names = [value.name for value in body.inputs]
    for turn in range(min(_MOST, scanned[0].shape[axes[0]])):
        places = [-1 - turn if backwards else turn for backwards in directions]
        slices = [np.take(x, at, axis) for x, at, axis in zip(scanned, places, axes, strict=True)]
        made = yield dict(zip(names, [*state, *slices], strict=True))
        state = list(made[: len(state)])


def _first_difference(
    a: Side,
    b: Side,
    node: Node,
    name: str,
    graph: Model,
    turns: Turns,
    values: Values,
    tolerance: Tolerance,
) -> GraphDifference | None:
    """The first difference inside a node's graph; None if there is none."""
    feeds, turn = next(turns), 0
    outer = {n: values[n] for n in graph.captured if n in values}
    part = _part(a.model, graph, {**outer, **feeds})
    one, other = a.inside(node, name, part), b.inside(node, name, part)
    slight: tuple[int, Feeds] | None = None
    while True:
        given = {v.name: {**outer, **feeds}[v.name] for v in part.inputs}
        mine, theirs = one.run(given), other.run(given)
        pairs = ((mine[n], theirs.get(n)) for n in mine)
        if not all(x is None or y is None or same(x, y) for x, y in pairs):
            found = _difference(name, turn, node, compare_runtimes(one, other, given, tolerance))
            if found is not None:
                return found
            slight = slight or (turn, given)
        known = {**part.constants, **outer, **feeds, **theirs}
        try:
            feeds = turns.send([_array(known, v.name) for v in graph.outputs])
        except StopIteration:
            break
        turn += 1
    if slight is None:
        return None
    return _difference(name, slight[0], node, compare_runtimes(one, other, slight[1], EXACT), True)


def _array(known: Results, name: str) -> Array:
    """A tensor of a run. Raises KeyError if it was not computed."""
    made = known[name]
    if made is None:
        raise KeyError(name)
    return made


def _part(model: Model, graph: Model, values: Values) -> Model:
    """A subgraph as a model: constants of the outer graph become constants, its other tensors become inputs."""
    if any(map(is_compound, values.values())):
        raise KeyError("a value that is not a tensor")
    stored = {n: model.constants[n] for n in graph.captured if n in model.constants}
    whole = replace(graph, constants={**stored, **graph.constants}, opsets=graph.opsets or model.opsets)
    part = extract(whole, graph.nodes, values)
    inputs = tuple(replace(value, shape=None) for value in part.inputs)
    outputs = tuple(value for value in graph.outputs if value.name in part.producers)
    return replace(part, inputs=inputs, outputs=outputs, path=None, source=f"a graph of {model.label}")


def _difference(name: str, turn: int, node: Node, found: Comparison, slight: bool = False) -> GraphDifference | None:
    """The first difference of a turn; None if there is none."""
    first = found.first
    if first is not None and first.guilt is None and found.origin is not None:
        first = found.origin
    if first is None:
        return None
    return GraphDifference(name, None if node.op_type == "If" else turn, first, found, slight)


Progress = Callable[[int, int, float | None], None]
"""Called with the number of nodes done, the number of all nodes, and the seconds left if known."""


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
    isolate: recompute each node of side `a` from the values of side `b`, so that errors do not add up.

    The cause of a difference is sought where a node's result differs although both sides read the same values. If `b`
    refuses the whole model, or crashes, it runs node by node on the values of `a`. Raises QrunError if `a` cannot run
    the model, or if `b` is not available or exceeds a limit.
    """
    mine = a.run(feeds)
    refused = None
    theirs: Results | None
    try:
        theirs = b.run(feeds)
    except QrunError as error:
        refused, theirs = refusal(error), None
    grouped = a if len(a.units) < len(b.units) else b
    work = _Work(a, b, feeds, mine, theirs, tolerance, isolate)
    found: list[ComparedTensor] = []
    for index, unit in enumerate(grouped.units):
        if progress:
            progress(index, len(grouped.units), None)
        found += work.unit(work.grow(unit))
    pairs = {t.name: t.pair for t in found} if theirs is None else work.ran()
    outputs = tuple((v.name, pairs[v.name]) for v in a.model.outputs if v.name in pairs)
    names = (a.name, b.name)
    origin = work.origin(found)
    arithmetic = claims(list(work.votes(found)))
    return Comparison(
        a.model, a.label, b.label, names, tuple(found), outputs, tolerance, isolate, refused, origin, arithmetic
    )


@frozen(slots=False)
class _Work:
    """The state that all units of one comparison share, and the comparison of one unit."""

    a: Side
    b: Side
    feeds: Values
    mine: Results
    theirs: Results | None
    tolerance: Tolerance
    isolate: bool

    @cached_property
    def codes(self) -> TensorScales:
        """The scales of the model's tensors."""
        return TensorScales(self.a.model, self.feeds)

    @cached_property
    def noises(self) -> Mapping[str, float]:
        """The float noise that each tensor may have."""
        return noises(self.a.model, (self.mine, self.theirs or {}), self.tolerance)

    def ran(self) -> dict[str, TensorPair]:
        """Compare the graph's outputs from the sides' own runs."""
        names = [v.name for v in self.a.model.outputs if v.name in self.mine and v.name in (self.theirs or {})]
        return {n: self._pair(n, self.mine[n], (self.theirs or {})[n]) for n in names}

    def grow(self, unit: Unit) -> Unit:
        """Join a unit with the nodes before it whose results the second side lacks, so that it can be fed."""
        if self.theirs is None:
            return unit
        known = {*self.theirs, *self.feeds, *self.a.model.constants}
        producers = self.a.model.producers
        while missing := [n for n in unit.read if n not in known and n in producers]:
            members = {node.index: node for node in (*unit.group, *(producers[n] for n in missing))}
            unit = Unit(unit.node, tuple(members[i] for i in sorted(members)), unit.given)
        return unit

    def unit(self, unit: Unit) -> Iterator[ComparedTensor]:
        """The compared tensors of a group of nodes."""
        if self.theirs is None:
            yield from self._piece(unit)
            return
        names = [n for n in unit.gives if n in self.mine and n in self.theirs]
        inputs = self._inputs(unit)
        alike, unseen = self._same_inputs(unit), self._narrow_inputs(unit)
        told = None if alike and unseen else alike
        pairs = {n: self._pair(n, self.mine[n], self.theirs[n]) for n in names}
        differ = [n for n in names if not pairs[n].equal]
        anew: Results | None = None
        if inputs is not None and (self.isolate or differ):
            anew = self.mine if alike else self._recompute(unit, inputs)
        for name in names:
            guilt = None
            if anew is not None and name in anew:
                own = self._pair(name, anew[name], self.theirs[name])
                if not own.equal:
                    guilt = self._guilt(unit, name, inputs or {}, own, anew[name], self.theirs[name], None)
                if self.isolate:
                    yield ComparedTensor(unit, name, own, None if unseen else True, guilt, True, unseen)
                    continue
            yield ComparedTensor(unit, name, pairs[name], told, guilt, anew is not None, unseen if alike else ())

    def votes(self, found: Sequence[ComparedTensor]) -> Iterator[NodeVote]:
        """The votes of the integer nodes on the second side's arithmetic, if it is not qrun. A runtime that equals qrun
        in every integer is not asked: its nodes need not say more."""
        alike = all(t.pair.identical for t in found if t.pair.difference.integral)
        if self.theirs is None or isinstance(self.b, QrunSide) or (alike and isinstance(self.b, PeerSide)):
            return
        for t in found:
            inputs, theirs = self._inputs(t.unit), self.theirs[t.name]
            if inputs is not None and theirs is not None and t.pair.difference.form is None:
                made = vote(self.a.model, t.unit, t.name, inputs, theirs)
                if made is not None:
                    yield made

    def _piece(self, unit: Unit) -> Iterator[ComparedTensor]:
        """Compare a unit that side `b` runs by itself on the values of `a`."""
        inputs = self._read(unit, self.mine)
        error: QrunError | None = None
        made: Results = {}
        try:
            made = self.b.alone(unit, inputs or {})
        except QrunError as raised:
            error = refusal(raised)
        for name in unit.gives:
            mine, theirs = self.mine.get(name), made.get(name)
            if mine is None:
                continue
            own = self._pair(name, mine, theirs)
            guilt = None if own.equal else self._guilt(unit, name, inputs or {}, own, mine, theirs, error)
            yield ComparedTensor(unit, name, own, True, guilt, True)

    def _pair(self, name: str, mine: Array | None, theirs: Array | None, *, exact: bool = False) -> TensorPair:
        """Compare a tensor of the two sides; `exact`: without tolerance."""
        if mine is not None and theirs is not None and (form := form_difference(mine, theirs)):
            return TensorPair(form[0], Difference(max(numbers(mine).size, numbers(theirs).size), form=form), False)
        mine, theirs = (value if value is None else numbers(value) for value in (mine, theirs))
        whole = mine is not None and is_integral(mine.dtype)
        affine = self.codes.affine(name, mine.dtype) if whole and mine is not None else IDENTITY
        step = None if whole or mine is None else self.codes.step(name, mine)
        tolerance, noise = (EXACT, 0.0) if exact else (self.tolerance, self.noises.get(name, 0.0))
        return pair(mine, theirs, tolerance, affine, step, noise)

    def _read(self, unit: Unit, values: Results) -> dict[str, Array] | None:
        """The tensors that a unit reads, from feeds, `values` or constants; None if one is missing."""
        found: dict[str, Array] = {}
        constants = self.a.model.constants
        for name in unit.read:
            array = self.feeds[name] if name in self.feeds else values.get(name, constants.get(name))
            if array is None:
                return None
            found[name] = array
        return found

    def origin(self, found: Sequence[ComparedTensor]) -> ComparedTensor | None:
        """The first tensor with other bits among the tensors from which the first differing one is computed;
        None if that one differs by itself, or if the origin is not known."""
        first = first_difference(found)
        if first is None or first.guilt is not None or self.theirs is None or self.isolate:
            return None
        leading = _leading_tensors(self.a.model, first.unit, {t.name for t in found if t.pair.identical})
        for t in found:
            if t.name in leading:
                mine, theirs, inputs = self.mine[t.name], self.theirs[t.name], self._inputs(t.unit)
                own = self._pair(t.name, mine, theirs, exact=True)
                guilt = self._guilt(t.unit, t.name, inputs or {}, own, mine, theirs, None) if t.inputs else None
                return replace(t, guilt=guilt)
        return None

    def _inputs(self, unit: Unit) -> dict[str, Array] | None:
        """The other side's values of a group's inputs; None if one is missing."""
        assert self.theirs is not None
        return self._read(unit, self.theirs)

    def _same_inputs(self, unit: Unit) -> bool | None:
        """Did both sides read the same values? None if a side does not expose one of them."""
        a, b = self._read(unit, self.mine), self._inputs(unit)
        if a is None or b is None:
            return None
        return all(a[n] is b[n] or same(a[n], b[n]) for n in a)

    def _narrow_inputs(self, unit: Unit) -> tuple[str, ...]:
        """The unit's inputs of a narrow float type that nodes make, and that the second side may read as float32."""
        if not isinstance(self.b, PeerSide) or not self.b.widens:
            return ()
        made = ((name, (self.theirs or {}).get(name)) for name in unit.read if name in self.a.model.producers)
        return tuple(name for name, array in made if array is not None and array.dtype in NARROW)

    def _recompute(self, unit: Unit, inputs: Values) -> Results | None:
        """Compute a group from the other side's inputs; None if that fails."""
        try:
            return self.a.alone(unit, inputs)
        except LimitError:
            raise
        except (QrunError, KeyError):
            return None

    def _guilt(
        self,
        unit: Unit,
        name: str,
        inputs: Values,
        own: TensorPair,
        mine: Array | None,
        theirs: Array | None,
        error: QrunError | None,
    ) -> Guilt | None:
        """Why a group differs although it has the same inputs."""
        if mine is None:
            return None
        again = self._again(unit, name, inputs)
        group = NodeGroup(self.a.model, unit, name, inputs)
        forms, fused = group.forms(), group.before_rounding
        judge = partial(self._pair, name, theirs=theirs)
        seen = {**self.feeds, **(self.theirs or {})}
        suspect = Suspect(
            self.a.model,
            unit,
            name,
            inputs,
            mine,
            theirs,
            error,
            again,
            forms,
            fused,
            judge,
            seen,
            partial(group.fused_node, theirs),
            None if theirs is None else partial(group.integer_node, theirs),
        )
        exact, d = suspect.exact, own.difference
        known = exact is not None and d.form is None and d.differing
        before = float(exact[d.worst]) if exact is not None and known else None
        inside = None
        if suspect.alone and error is None and any(True for _ in unit.node.subgraphs):
            inside = look_inside(self.a, self.b, unit.node, inputs, self.tolerance)
        if inside is not None and inside.tensor.guilt is not None:
            return Guilt(own, inside.tensor.guilt.reason, before, inside)
        return Guilt(own, reason(suspect), before, inside)

    def _again(self, unit: Unit, name: str, inputs: Values) -> Callable[[], Array | None]:
        """A function that lets the other side compute a group alone."""

        def run() -> Array | None:
            try:
                return self.b.alone(unit, inputs).get(name)
            except QrunError:
                return None

        return run


def _leading_tensors(model: Model, unit: Unit, identical: Set[str]) -> set[str]:
    """All tensors from which a unit's are computed, without identical tensors and those that lead only to them."""
    found: set[str] = set()
    pending = list(unit.read)
    while pending:
        name = pending.pop()
        if name not in found and name not in identical:
            found.add(name)
            pending += [n for n in model.producers[name].inputs if n] if name in model.producers else []
    return found
