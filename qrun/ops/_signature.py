"""A function's signature, read as the schema of an operator: inputs, and attributes with their types and defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType, NoneType, UnionType
from typing import Any, get_args, get_origin

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Attribute


@frozen
class Param:
    """An input of the operator: the specification's name, and whether it may be omitted or repeats."""

    name: str
    optional: bool
    variadic: bool


@frozen
class AttributeSpec:
    """An attribute: its Python type (int, float, str, ndarray, or tuple of one) and whether it must be given."""

    name: str
    kind: type
    item: type | None
    required: bool

    @property
    def text(self) -> str:
        names = {np.ndarray: "a tensor", int: "an int", float: "a float", str: "a string"}
        if self.kind is tuple:
            return f"a list of {names[self.item or int].split()[-1]}s"
        return names.get(self.kind, self.kind.__name__)

    def fits(self, value: Attribute) -> bool:
        if self.kind is tuple:
            return isinstance(value, tuple) and all(isinstance(v, self.item or int) for v in value)
        return isinstance(value, self.kind)


def inputs_of(signature: inspect.Signature) -> tuple[Param, ...]:
    """The positional parameters."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return tuple(
        Param(
            p.name,
            p.default is not inspect.Parameter.empty or NoneType in get_args(p.annotation),
            p.kind is inspect.Parameter.VAR_POSITIONAL,
        )
        for p in signature.parameters.values()
        if p.kind in kinds
    )


def attributes_of(signature: inspect.Signature) -> Mapping[str, AttributeSpec]:
    """The keyword-only parameters but for `ctx`, by the specification's names: `axis_` stands for ``axis``."""
    found = {}
    for p in signature.parameters.values():
        if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name != "ctx":
            kinds = get_args(p.annotation) if isinstance(p.annotation, UnionType) else (p.annotation,)
            kind = next(k for k in kinds if k is not NoneType)
            item = get_args(kind)[0] if get_origin(kind) is tuple else None
            required = p.default is inspect.Parameter.empty
            name = p.name.removesuffix("_")
            found[name] = AttributeSpec(name, get_origin(kind) or kind, item, required)
    return found


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """As inspect.signature with eval_str, which compiles every annotation anew; there are few different ones."""
    written = inspect.signature(function)
    parameters = [
        p.replace(annotation=eval(_compiled(p.annotation), function.__globals__))
        if isinstance(p.annotation, str)
        else p
        for p in written.parameters.values()
    ]
    return written.replace(parameters=parameters)


@cache
def _compiled(annotation: str) -> CodeType:
    return compile(annotation, "<annotation>", "eval")
