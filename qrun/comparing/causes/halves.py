"""A cause: a runtime computes a chain of float16 nodes in float32, without rounding the tensors between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, compute_node
from qrun.comparing.causes._formulas import ErrorBound, bound_of
from qrun.comparing.differences import NARROW, same
from qrun.comparing.matching.operators import moves
from qrun.ir import Array, Node
from qrun.ir.types import NUMBERS, type_name
from qrun.ops._float import narrow

_DEEPEST = 16
"""The most successive nodes that are tried as a chain."""


@cause("kept-in-float32", rank=26, source="onnxruntime core/optimizer/insert_cast_transformer.cc")
def kept_in_float32(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime computes a chain of float16 nodes in float32 and rounds only the last result. This node reads values
    that were never rounded to float16.

    To confirm: Run the node alone, with the preceding tensors as inputs. The difference disappears.

    To do: Nothing is wrong with the model: allow one unit in the last place of float16 for each node of the chain. If
    the target rounds after every node, qrun's results match the target.
    """
    if s.theirs is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    halves = [a.dtype for name in s.unit.read if (a := s.values.get(name)) is not None and a.dtype in NARROW]
    if not halves:
        return
    tried = [s.mine]
    for through in (False, True):
        known = 0
        for depth in range(s.alone, _DEEPEST + 1):
            kept = list[str]()
            made = _chain(s, depth, through, kept, _float32)
            if made is None or len(kept) == known:
                break
            known = len(kept)
            result = made if made.dtype == s.mine.dtype else narrow(made, s.mine.dtype)
            if any(same(result, other) for other in tried):
                continue
            tried.append(result)
            names = ", ".join(kept[:3]) + (f" and {len(kept) - 3} more tensors" if kept[3:] else "")
            text = f"keeps {names} in float32 and does not round to {type_name(halves[0])}"
            yield Hypothesis(result, text)
            if s.is_explained_by(result):
                return
            if _within(s, depth, through) and not _within(s, 0, through):
                yield Hypothesis(None, f"{text}; the rest is within the error bound of float32 arithmetic")


def _chain(
    s: Suspect, depth: int, through: bool, kept: list[str], compute: Callable[[Node, Sequence[Any]], Any]
) -> Any:
    """Compute the unit's tensor without rounding the results of up to `depth` nodes before it, nor tensors inside it;
    None if it cannot be computed.

    through: do nodes that only move elements keep float32 too? kept: receives the names of the unrounded tensors.
    compute: returns a node's output from its inputs, which have narrow floats widened; None if it cannot.
    """
    known: dict[tuple[str, int], Any] = {}

    def read(name: str, left: int) -> Any:
        if not name:
            return None
        if (name, left) not in known:
            known[name, left] = wide(name, left)
        return known[name, left]

    def wide(name: str, left: int) -> Any:
        value = s.values.get(name, s.exposed_tensor(name))
        node = s.model.producers.get(name)
        if node is not None and name in inside:
            made = apply(node, left)
            if name not in kept and (isinstance(made, ErrorBound) or (made is not None and made.dtype == np.float32)):
                kept.append(name)
            return made
        if value is None or value.dtype not in NARROW:
            return value
        if not left or node is None or (not through and moves(node)) or len(node.outputs) > 1:
            return value.astype(np.float32)
        made = apply(node, left - 1)
        if made is None:
            return value.astype(np.float32)
        if name not in kept:
            kept.append(name)
        return made

    def apply(node: Node, left: int) -> Any:
        args = [read(name, left) for name in node.inputs]
        missing = any(name and arg is None for name, arg in zip(node.inputs, args, strict=True))
        return None if missing else compute(_in_float32(node), args)

    inside = set(s.unit.made) - {s.tensor}
    return apply(s.model.producers[s.tensor], depth)


def _in_float32(node: Node) -> Node:
    """The node itself, or for a Cast to a narrow type, a Cast to float32."""
    to = node.attributes.get("to")
    narrow_types = [NUMBERS[dtype] for dtype in NARROW]
    return replace(node, attributes={**node.attributes, "to": 1}) if to in narrow_types else node


def _float32(node: Node, args: Sequence[Any]) -> Array | None:
    """The node's one output in float32; None if it cannot be computed."""
    made = compute_node(node, args)
    return made[0] if made is not None and len(made) == 1 else None


def _bound(node: Node, args: Sequence[Any]) -> ErrorBound | None:
    """The node's result with bounds of its error; None if there is no formula."""
    return bound_of(node, [a if a is None or isinstance(a, ErrorBound) else ErrorBound.nearly(a) for a in args])


def _within(s: Suspect, depth: int, through: bool) -> bool:
    """Are the other side's numbers within the error bound of float32 steps of the chain, in any order?"""
    bound = _chain(s, depth, through, [], _bound)
    return s.theirs is not None and s.theirs.dtype in NARROW and bound is not None and bound.rounds_to(s.theirs)
