"""The one node of a case, of which defects compute what a wrong runtime would answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from qrun.conform.suite import Case
from qrun.ir import Array
from qrun.ir.load import load
from qrun.ops import Context, find
from qrun.ops._quantize import limits

Inputs = dict[str, Array | None]


class Node:
    """The one node of a case: its inputs by the specification's names, its attributes, and what it should give."""

    def __init__(self, case: Case) -> None:
        model = load(case.model)
        (self.node,) = model.nodes
        values = {**model.constants, **case.inputs}
        found = find(self.node.domain, self.node.op_type, self.node.version)
        assert found is not None
        self.definition = found
        self.names = [p.name for p in found.inputs]
        given = [values[name] if name else None for name in self.node.inputs]
        self.inputs: Inputs = dict(zip(self.names, given, strict=False))
        self.expected = next(iter(case.expected.values()))
        self.exact = case.exact.get("y0")

    def made(self, attributes: Mapping[str, Any] | None = None, **inputs: Array | None) -> Array:
        """What the reference kernel gives with other inputs or attributes."""
        values = {**self.inputs, **inputs}
        bound = {**self.definition.bind(self.node), **(attributes or {})}
        context = {"ctx": Context(version=self.node.version, observing=False)} if self.definition.takes_context else {}
        with np.errstate(all="ignore"):
            return np.asarray(
                self.definition(*[values.get(name) for name in self.names[: len(self.node.inputs)]], **bound, **context)
            )

    def zero(self) -> Array:
        """The zero point of the output, of which there is one."""
        found = next(
            (
                self.inputs[n]
                for n in ("y_zero_point", "Y_zero_point", "C_zero_point")
                if self.inputs.get(n) is not None
            ),
            None,
        )
        return np.zeros(()) if found is None or found.size != 1 else found.reshape(()).astype(np.float64)

    def coded(self, whole: Array) -> Array:
        low, high = limits(self.expected.dtype)
        return (
            np.clip(np.nan_to_num(whole, nan=low, posinf=high, neginf=low), low, high)
            .astype(np.int64)
            .astype(self.expected.dtype)
        )


Defect = Callable[[Node], Array | None]
"""What a runtime with the defect answers; None for a node that the defect does not concern."""


class Planted(NamedTuple):
    """A defect with the words that select cases of its operators, and the cause by which it must be told, if any. told:
    words of the text that names it as a rival of another cause."""

    name: str
    defect: Defect
    words: list[str]
    cause: str = ""
    told: str = ""
