"""Native kernels of a plan's steps, made before the first one runs:
a thread compiles them while the next ones are planned."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qrun.declare.collector import without_collector
from qrun.declare.stored import Part
from qrun.ir import Array
from qrun.memory import Budget
from qrun.ops import Context
from qrun.running.derived import SMALL
from qrun.running.dispatch import NativeKernels
from qrun.running.plan import Plan, Step
from qrun.running.steps import reference
from qrun.running.typecheck import check_types

LARGE = 1 << 26
"""Bytes of a value whose readers are not bound ahead: what binding takes grows with it,
and only a run counts what it takes."""


def bind_ahead(plan: Plan, values: Mapping[str, Part], natives: NativeKernels, budget: Budget) -> None:
    """Bind the steps whose inputs have shapes that are known. values: constants and what is fed.

    A step that cannot be bound fails when it runs, with its place in the model.
    """
    with without_collector():
        _bind_all(plan, values, natives, budget)


def _bind_all(plan: Plan, values: Mapping[str, Part], natives: NativeKernels, budget: Budget) -> None:
    known, made = dict(values), set[str]()
    for step in plan.steps:
        names = [name for name in step.node.inputs if name]
        if step.bodies or any(name not in known or (name in made and name in natives.derived) for name in names):
            continue
        try:
            found = _outputs(step, [known[name] if name else None for name in step.node.inputs], natives, budget)
        except Exception:
            continue
        found = {name: array for name, array in found.items() if array.nbytes <= LARGE}
        known |= found
        made |= {name for name, array in found.items() if not array.flags.owndata}


def _outputs(step: Step, args: list[Part | None], natives: NativeKernels, budget: Budget) -> dict[str, Array]:
    """The step's outputs as far as known: small values that follow from shapes; for others, arrays of their shapes."""
    check_types(step, args)
    bound = natives.bind(step, args, budget)
    node = step.node
    small = all(a is None or a.size <= SMALL for a in args)
    if natives.derived.issuperset(filter(None, node.outputs)) and (small or node.op_type == "Shape"):
        ctx = Context(natives.arith, node.version, len(node.outputs), tuple(map(bool, node.outputs)), False, Budget())
        made = reference(step, args, ctx)
        made = made if isinstance(made, tuple) else (made,)
        return {name: np.array(array) for name, array in zip(node.outputs, made, strict=False) if name}
    return dict(zip(node.outputs, bound.shaped, strict=False))
