"""Values that follow from the shapes of a model's inputs: lengths, shapes computed from them, and scales of a resize.

Exporters write them as nodes that read no data: Shape, Gather, Unsqueeze, Concat, and so on to a Reshape. For inputs of
known shapes they are constants, and the nodes that read them can be planned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np

from qrun.declare.stored import borrow
from qrun.ir import Array, Model
from qrun.ops import CUSTOM, Arith, Context, find
from qrun.running.plan import Step

SMALL = 1024
"""Values of more elements are not kept: shapes are small, and tensors filled by them need not be."""


class TensorLike(Protocol):
    """Anything with the type and shape of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The elements' type."""


def derived_tensors(model: Model, shapes: bool = True) -> frozenset[str]:
    """Names of the outputs of nodes that read only constants or other such outputs, or (with `shapes`) only shapes."""
    found: set[str] = set()
    for node in model.nodes:
        definition = find(node.domain, node.op_type, node.version)
        if definition is None or definition.graphs or definition.compounds == "makes" or definition.runner == CUSTOM:
            continue
        if (shapes and definition.form == "shape") or all(
            not name or name in found or model.part(name) is not None for name in node.inputs
        ):
            found.update(name for name in node.outputs if name)
    return frozenset(found)


def derived_values(
    model: Model, steps: Sequence[Step], derived: frozenset[str], infos: Mapping[str, TensorLike], arith: Arith
) -> dict[str, Array]:
    """The values of derived tensors of at most SMALL elements, by name. Of a node's outputs either all are there or
    none.

    infos: types and shapes of all tensors of a run.
    """
    found: dict[str, Array] = {}

    def value(name: str) -> Array | None:
        return found[name] if name in found else borrow(model.part(name))

    for step in steps:
        node = step.node
        names = [name for name in node.outputs if name]
        if names and derived.issuperset(names) and all(math.prod(infos[name].shape) <= SMALL for name in names):
            ctx = Context(arith, node.version, len(node.outputs), tuple(map(bool, node.outputs)))
            found |= foretell(step, infos.get, value, ctx)
    return found


def foretell(
    step: Step, info: Callable[[str], TensorLike | None], value: Callable[[str], Array | None], ctx: Context
) -> dict[str, Array]:
    """A step's outputs by name, where they can be computed before the run; else nothing.

    info: a tensor's type and shape, value: its elements; None where they are not known. Raises what the kernel raises.
    """
    if step.bodies or step.definition.compounds == "makes":
        return {}
    args = [
        None if not name else _shape_of(info(name)) if step.definition.form == "shape" else value(name)
        for name in step.node.inputs
    ]
    if any(name and array is None for name, array in zip(step.node.inputs, args, strict=True)):
        return {}
    made = step.definition.compute(args, step.kwargs, ctx)
    outputs = zip(step.node.outputs, made if isinstance(made, tuple) else (made,), strict=False)
    return {name: np.asarray(array) for name, array in outputs if name}


def _shape_of(info: TensorLike | None) -> Array | None:
    """An array of this type and shape that takes no memory."""
    return None if info is None else blank(info.shape, info.dtype)


@lru_cache(1024)
def blank(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
    """Zeros that take no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
