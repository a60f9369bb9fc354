"""Values that follow from the shapes of a model's inputs: lengths, the shapes computed from them, and scales of a resize.

Exporters write them as nodes that read no data: Shape, Gather, Unsqueeze, Concat, and so on to a Reshape. For inputs of
known shapes they are constants, and what reads them can be planned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from qrun.ir import Array, Model
from qrun.ops import Arith, Context, find
from qrun.running.plan import Step

SMALL = 1024
"""Elements of the largest value that is kept: shapes are small, and what they fill is not."""


class TensorLike(Protocol):
    """Anything with the type and shape of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[np.generic]: ...


def derived_tensors(model: Model) -> frozenset[str]:
    """Names of the tensors made by nodes that see shapes only, or constants and such tensors."""
    found: set[str] = set()
    for node in model.nodes:
        definition = find(node.domain, node.op_type, node.version)
        if definition is None:
            continue
        if definition.form == "shape" or all(
            not name or name in found or model.constant(name) is not None for name in node.inputs
        ):
            found.update(name for name in node.outputs if name)
    return frozenset(found)


def derived_values(
    model: Model, steps: Sequence[Step], derived: frozenset[str], infos: Mapping[str, TensorLike], arith: Arith
) -> dict[str, Array]:
    """The values of derived tensors of at most SMALL elements, by name; a node has all of its outputs there, or none.

    infos: types and shapes of all tensors of a run.
    """
    found: dict[str, Array] = {}
    for step in steps:
        node = step.node
        names = [name for name in node.outputs if name]
        if not names or not derived.issuperset(names) or any(math.prod(infos[name].shape) > SMALL for name in names):
            continue
        args = [_value(model, step, name, found, infos) for name in node.inputs]
        if any(name and array is None for name, array in zip(node.inputs, args, strict=True)):
            continue
        ctx = Context(arith, node.version, len(node.outputs), tuple(map(bool, node.outputs)))
        made = step.definition.compute(args, step.kwargs, ctx)
        made = made if isinstance(made, tuple) else (made,)
        found |= {name: np.asarray(a) for name, a in zip(node.outputs, made, strict=False) if name}
    return found


def _value(
    model: Model, step: Step, name: str, found: Mapping[str, Array], infos: Mapping[str, TensorLike]
) -> Array | None:
    """What the step reads: for one that sees shapes only, an array of the shape that takes no memory."""
    if not name:
        return None
    if step.definition.form == "shape":
        info = infos[name]
        return np.broadcast_to(np.zeros((), info.dtype), info.shape)
    return found[name] if name in found else model.constant(name)
