"""Inputs whose element type their operator does not take. QR203 reports them; what else is wrong with them follows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._ort import known_schema
from qrun.checking.rules._parameters import Quantizer, bias, quantizers
from qrun.checking.rules._scope import Scope
from qrun.ir import Node
from qrun.ir.schema import Formal
from qrun.ops import find


def formals(node: Node) -> tuple[Sequence[Formal], Sequence[str]]:
    """The formal inputs of a node's operator, and the name of each input that is given; both empty if unknown."""
    definition = find(node.domain, node.op_type, node.version)
    if definition is not None:
        return definition.formals(node.version), [definition.param(i) for i in range(len(node.inputs))]
    known = known_schema(node)
    if known is None or not known.inputs:
        return (), ()
    last = len(known.inputs) - 1
    return known.inputs, [known.inputs[min(i, last)].name for i in range(len(node.inputs))]


def given_types(scope: Scope, node: Node) -> Mapping[int, tuple[np.dtype[Any], Formal]]:
    """Place of each input: its element type, as far as it is known, and the formal input it is held against."""
    known, _ = formals(node)
    found = {}
    for place, tensor in enumerate(node.inputs if known else ()):
        dtype, formal = scope.dtype(tensor), known[min(place, len(known) - 1)]
        if dtype is not None and formal.types is not None:
            found[place] = dtype, formal
    return found


def mistyped(scope: Scope, node: Node) -> Sequence[int]:
    """Places of the inputs whose element type the operator does not take at this version.

    None if only inputs that other rules judge are so.
    """
    types = tuple(scope.dtype(name) if name else "" for name in node.inputs)
    key = (node.domain, node.op_type, node.version, types)
    found = scope.mistyped.get(key)
    if found is None:
        given = given_types(scope, node).items()
        wrong = [p for p, (dtype, formal) in given if formal.types is not None and dtype not in formal.types]
        found = scope.mistyped[key] = wrong if not judged_elsewhere(scope, node).issuperset(wrong) else []
    return found


def sound(scope: Scope, node: Node) -> Iterator[Quantizer]:
    """The scales and zero points of a node, each with its tensor, where all three have types that the operator takes."""
    found = list(quantizers(node))
    wrong = mistyped(scope, node) if found else ()
    for q in found:
        slots = (None if q.is_output else q.tensor, q.scale, q.zero_point)
        if not any(slot and slot.place in wrong for slot in slots):
            yield q


def judged_elsewhere(scope: Scope, node: Node) -> set[int]:
    """Places whose types QR303 and QR305 judge: zero points beside a tensor of known type, and int32 biases."""
    found = {
        q.zero_point.place
        for q in quantizers(node)
        if q.zero_point and not q.is_output and scope.dtype(q.tensor.tensor) is not None
    }
    b = bias(node)
    return found | ({b.bias.place} if b and b.integer else set())
