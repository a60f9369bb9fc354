"""Checks that a step's inputs have types that its operator takes, and custom operators' outputs those of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.stored import Part
from qrun.errors import OperatorError
from qrun.ir import Array
from qrun.ir.compound import of_type
from qrun.ir.types import describe, type_name
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


def check_stated(step: Step, made: Sequence[Array]) -> None:
    """Raise OperatorError for an output of a custom operator whose type or shape is not the one that the model states.

    The model's own operators are not held to that: a file may state an outdated shape, and qrun knows the right one.
    """
    for name, stated, array in zip(step.node.outputs, step.stated, made, strict=False):
        if stated is None or stated.kind != "tensor":
            continue
        sizes = stated.shape
        fits = sizes is None or (
            len(sizes) == array.ndim
            and all(not isinstance(size, int) or size == n for size, n in zip(sizes, array.shape, strict=True))
        )
        if not fits or not of_type(array, stated):
            raise OperatorError(
                f"{step.node.op} returned {describe(array)} for {name}",
                param=name,
                expected=f"{stated}, as the model states",
                got=describe(array),
                fix="correct the function, or the type that the model states for the tensor",
                code="QR210",
            )
