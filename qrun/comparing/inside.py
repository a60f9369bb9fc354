"""The graphs inside If, Loop and Scan on two sides, node by node and turn by turn, to find where they first differ."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.comparison import Comparison, GraphDifference
from qrun.comparing.differences import EXACT, Tolerance, same
from qrun.comparing.sides import Results, Side, Values, extract
from qrun.errors import LimitError, QrunError
from qrun.ir import Array, Model, Node
from qrun.ir.compound import is_compound

_MOST = 256
"""Turns that are looked at."""
Compare = Callable[[Side, Side, Values, Tolerance], Comparison]
Feeds = dict[str, Array]
Turns = Generator[Feeds, Sequence[Array], None]
"""Yields what a graph's inputs are in each turn, and is sent what its outputs were."""


def look_inside(
    a: Side, b: Side, node: Node, values: Values, tolerance: Tolerance, compare: Compare
) -> GraphDifference | None:
    """Where the sides first differ in the graphs of a node that reads `values`.
    Each turn is fed what `b` made of the one before.

    None if the node has no such graph, a side cannot run it by itself, or nothing differs in the turns looked at.
    """
    try:
        graph, turns = _graph(node, values)
    except (KeyError, IndexError, AttributeError, StopIteration):
        return None
    name = next(name for name, known in node.graphs() if known is graph)
    try:
        return _first(a, b, node, name, graph, turns, values, tolerance, compare)
    except LimitError:
        raise
    except (QrunError, KeyError, ValueError, StopIteration):
        return None


def _graph(node: Node, values: Values) -> tuple[Model, Turns]:
    """The graph that runs, and its turns."""
    graphs = dict(node.graphs())
    args = [values[name] if name else None for name in node.inputs]
    if node.op_type == "If" and args[0] is not None:
        return graphs["then_branch" if args[0].all() else "else_branch"], _once()
    body = graphs["body"]
    if node.op_type == "Loop":
        return body, _loop(body, args)
    if node.op_type != "Scan" or node.version < 9:
        raise KeyError(node.op_type)
    return body, _scan(body, node, [a for a in args if a is not None])


def _once() -> Turns:
    yield {}


def _loop(body: Model, args: Sequence[Array | None]) -> Turns:
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


def _scan(body: Model, node: Node, args: Sequence[Array]) -> Turns:
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


def _first(
    a: Side,
    b: Side,
    node: Node,
    name: str,
    graph: Model,
    turns: Turns,
    values: Values,
    tolerance: Tolerance,
    compare: Compare,
) -> GraphDifference | None:
    feeds, turn = next(turns), 0
    outer = {n: values[n] for n in graph.captured if n in values}
    part = _part(a.model, graph, {**outer, **feeds})
    one, other = a.inside(node, name, part), b.inside(node, name, part)
    slight: tuple[int, Feeds] | None = None
    while True:
        given = {v.name: {**outer, **feeds}[v.name] for v in part.inputs}
        mine, theirs = one.run(given), other.run(given)
        if not all(_same(mine.get(n), theirs.get(n)) for n in mine):
            found = _found(name, turn, node, compare(one, other, given, tolerance))
            if found is not None:
                return found
            slight = slight or (turn, given)
        known = {**part.constants, **outer, **feeds, **theirs}
        try:
            feeds = turns.send([_array(known, v.name) for v in graph.outputs])
        except StopIteration:
            break
        turn += 1
    return None if slight is None else _found(name, slight[0], node, compare(one, other, slight[1], EXACT), True)


def _array(known: Results, name: str) -> Array:
    made = known[name]
    if made is None:
        raise KeyError(name)
    return made


def _same(mine: Array | None, theirs: Array | None) -> bool:
    return mine is None or theirs is None or same(mine, theirs)


def _part(model: Model, graph: Model, values: Values) -> Model:
    """The graph as a model of its own: what the one around it stores is stored, what it makes is fed."""
    if any(map(is_compound, values.values())):
        raise KeyError("a value that is no tensor")
    stored = {n: model.constants[n] for n in graph.captured if n in model.constants}
    whole = replace(graph, constants={**stored, **graph.constants}, opsets=graph.opsets or model.opsets)
    part = extract(whole, graph.nodes, values)
    inputs = tuple(replace(value, shape=None) for value in part.inputs)
    outputs = tuple(value for value in graph.outputs if value.name in part.producers)
    return replace(part, inputs=inputs, outputs=outputs, path=None, source=f"a graph of {model.label}")


def _found(name: str, turn: int, node: Node, found: Comparison, slight: bool = False) -> GraphDifference | None:
    first = found.first
    if first is not None and first.guilt is None and found.origin is not None:
        first = found.origin
    if first is None:
        return None
    return GraphDifference(name, None if node.op_type == "If" else turn, first, found, slight)
