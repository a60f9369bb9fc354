"""Checks that a step's inputs have types that its operator takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.stored import Part
from qrun.errors import OperatorError
from qrun.ir.types import type_name
from qrun.running.plan import Step


def check_types(step: Step, args: Sequence[Part | None]) -> None:
    """Raise OperatorError for element types that the operator does not take. Accepted ones are remembered."""
    key = tuple([None if a is None else a.dtype for a in args])
    if key in step.accepted:
        return
    bound: dict[str, tuple[np.dtype[Any], str]] = {}
    formals = step.formals
    for index, dtype in enumerate(key):
        if dtype is None or not formals:
            continue
        formal = formals[min(index, len(formals) - 1)]
        name = step.definition.param(index)
        if dtype.names and step.definition.compounds:
            continue
        if dtype.names or (formal.types is not None and dtype not in formal.types):
            from qrun.ops._advice import type_fix

            raise OperatorError(
                f"{name} is {type_name(dtype)}, which {step.node.op}-{step.node.version} does not take",
                param=name,
                expected=", ".join(sorted(type_name(t) for t in formal.types or ())) or "a tensor",
                got=type_name(dtype),
                fix="" if dtype.names else type_fix(step.node, index, dtype),
                code="QR203",
            )
        if formal.types is None or not formal.homogeneous:
            continue
        other, first = bound.setdefault(formal.variable, (dtype, name))
        if other != dtype:
            raise OperatorError(
                f"{name} is {type_name(dtype)}, but {first} is {type_name(other)}",
                param=name,
                expected=f"{type_name(other)}, as {first}",
                got=type_name(dtype),
                why=f"{step.node.op}-{step.node.version}: both have type {formal.variable}.",
                code="QR303" if "zero_point" in name.lower() else "QR203",
            )
    step.accepted.add(key)
