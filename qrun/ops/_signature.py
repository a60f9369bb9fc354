"""Reads an operator's declaration: the function's signature as inputs and as attributes with types and defaults; how
results depend on inputs; the real operator of a quantized one. Also checks nodes against it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field
from functools import cache
from types import CodeType, NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin

import numpy as np

from qrun.declare.frozen import field_types, fields_of, frozen
from qrun.errors import OperatorError, close_matches
from qrun.ir import Attribute, Model, Node, TensorType
from qrun.ir.schema import Formal, Schema
from qrun.ir.types import BY_ONNX_NAME
from qrun.ops._context import refuse

Form = Literal["", "pointwise", "broadcast", "moves", "shape"]
"""The elements of its inputs on which an output element depends.

pointwise: on the one at its place in the first input. The other inputs are parameters: each is one number, or has one
           for each place along the attribute `axis`, or along axis 1 if there is no such attribute.
broadcast: on those at its place in all inputs, which broadcast as in numpy.
moves:     it is an element of the first input; the others, and the attributes, say which.
shape:     on none, only on the inputs' shapes.

For nodes with one output, without training mode or blocks. An empty form promises nothing.
"""
Compounds = Literal["", "passes", "makes"]
"""How an operator handles values that are not tensors (qrun/ir/compound.py). "": it takes none. passes: it passes them
on. makes: it makes or reads them."""
Granularity = Literal["tensor", "channel", "row", "column", "gemm", "axis"]
"""How many scales a quantized tensor may have.

tensor: one. channel: one, or one for each index of the first axis (output channels of a weight).
row, column: one, or one for each row or column of a matrix. gemm: as column, of a matrix that transB may turn.
axis: by the node's axis and block_size.
"""


@frozen
class Real:
    """The operator of ai.onnx that a quantized operator computes with the real values of its codes.

    per:  granularity of the tensors that may have more than one scale; the weight is last.
    bias: the input that is added, one number for each scale that the weight may have.
    """

    op_type: str
    per: Mapping[str, Granularity] = field(default_factory=dict)
    bias: str = ""


@frozen
class Whole:
    """The value of an input such as a sequence length or mask at which all elements of other inputs count.

    of:   inputs whose elements are counted, each with the axis, or with the attribute that has its number (0 if left
          out). They add up; inputs that are left out count 0.
    less: a number to subtract.
    mask: with two axes or more it is a mask, 1 for each element that counts, instead of a count.
    """

    of: tuple[tuple[str, int | str], ...] = ()
    less: int = 0
    mask: bool = False


MASK = Whole(mask=True)
"""An input that is 1 for each element that counts, however many axes it has."""


T = TypeVar("T")
Types = Mapping[str, tuple[str, str]]
"""Type variables, each with the ONNX types that it allows and the tensors that have it."""
FLOATS = "float float16 bfloat16"
"""The floating-point types of most operators of com.microsoft."""


class InputRecord:
    """Base of records of inputs that several functions share: a parameter of such a type declares the record's fields
    as inputs."""

    __slots__ = ()


class Attributes:
    """Base of records of attributes that several operators share: a keyword-only parameter of such a type declares the
    record's fields as attributes."""

    __slots__ = ()

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Self:
        """The record of a node's attributes; `attributes` may lack some, and may have others too."""
        return cls(**{name: attributes[name] for name in fields_of(cls) if name in attributes})

    def by_name(self) -> dict[str, Any]:
        """All attributes by name."""
        return {name: getattr(self, name) for name in fields_of(type(self))}


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
        """The attribute's type in words."""
        names = {np.ndarray: "a tensor", TensorType: "a type", int: "an int", float: "a float", str: "a string"}
        if self.kind is tuple:
            return f"a list of {names[self.item or int].split()[-1]}s"
        return names.get(self.kind, self.kind.__name__)

    def fits(self, value: Attribute) -> bool:
        """Whether a value has the attribute's type."""
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


def formals_of(inputs: Sequence[Param], types: Types) -> tuple[Formal, ...]:
    """The types of inputs, as declared. A zero point that `types` does not name has the types of its tensor, which may
    be the output; a scale that `types` does not name is float32."""
    named = {name: (variable, allowed) for variable, (allowed, names) in types.items() for name in names.split()}
    lower = {name.lower(): known for name, known in named.items()}
    found = []
    for p in inputs:
        implied = (
            ("float", "float") if p.name.endswith("_scale") else lower.get(p.name.removesuffix("_zero_point").lower())
        )
        variable, allowed = named.get(p.name) or implied or ("", "")
        dtypes = frozenset(BY_ONNX_NAME[t] for t in allowed.split()) or None
        found.append(Formal(p.name, variable, dtypes, "Variadic" if p.variadic else "Optional", bool(variable)))
    return tuple(found)


def attributes_of(signature: inspect.Signature) -> Mapping[str, AttributeSpec]:
    """The keyword-only parameters except `ctx`, by the specification's names: `axis_` means ``axis``."""
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
    """Like inspect.signature with eval_str, but each distinct annotation is compiled once, as there are few."""
    written = inspect.signature(function)
    parameters = [p.replace(annotation=_type(p.annotation, function.__globals__)) for p in written.parameters.values()]
    return written.replace(parameters=parameters)


def records_of(signature: inspect.Signature, base: type[T]) -> Mapping[str, type[T]]:
    """The parameters that are records with this base."""
    found = {p.name: p.annotation for p in signature.parameters.values()}
    return {name: kind for name, kind in found.items() if isinstance(kind, type) and issubclass(kind, base)}


def flat(signature: inspect.Signature) -> inspect.Signature:
    """The signature with each record replaced by its fields; if there are records of attributes, all attributes are
    sorted by name."""
    taken, records = records_of(signature, InputRecord), records_of(signature, Attributes)
    given = [p for p in signature.parameters.values() if p.name not in records]
    inputs: list[inspect.Parameter] = []
    for p in given:
        if p.name in taken:
            inputs += _fields(taken[p.name], inspect.Parameter.POSITIONAL_OR_KEYWORD)
        elif p.kind not in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            inputs.append(p)
    attributes = [p for p in given if p.kind is inspect.Parameter.KEYWORD_ONLY and p.name != "ctx"]
    if records:
        attributes += [field for kind in records.values() for field in _fields(kind, inspect.Parameter.KEYWORD_ONLY)]
        attributes.sort(key=lambda p: p.name.lower())
    last = [p for p in given if p.name == "ctx" or p.kind is inspect.Parameter.VAR_KEYWORD]
    return signature.replace(parameters=[*inputs, *attributes, *last])


def _fields(kind: type[Any], index: Any) -> Iterator[inspect.Parameter]:
    """The fields of a record as parameters."""
    names, written = vars(sys.modules[kind.__module__]), field_types(kind)
    for name, default in fields_of(kind).items():
        value = inspect.Parameter.empty if default is MISSING else default
        yield inspect.Parameter(name, index, default=value, annotation=_type(written[name], names))


def _type(annotation: Any, names: dict[str, Any]) -> Any:
    """The type of an annotation."""
    return eval(_compile(annotation), names) if isinstance(annotation, str) else annotation


@cache
def _compile(annotation: str) -> CodeType:
    """The code of an annotation."""
    return compile(annotation, "<annotation>", "eval")


def check_places(node: Node, inputs: Sequence[Param], known: Schema | None) -> None:
    """Refuse surplus inputs and outputs for the operator's version, and missing inputs.

    Among versions that share a declaration, an earlier one may lack its last inputs, or require optional ones.
    """
    inputs = inputs if known is None else inputs[: len(known.inputs)]
    if len(node.inputs) > len(inputs) and not (inputs and inputs[-1].variadic):
        expected = f"at most {len(inputs)}: {', '.join(p.name for p in inputs)}"
        raise refuse(f"{node.op_type} has {len(node.inputs)} inputs", "", expected, len(node.inputs), code="QR205")
    for index, p in enumerate(inputs):
        given = index < len(node.inputs) and bool(node.inputs[index])
        optional = p.optional if known is None else known.inputs[index].option == "Optional"
        if not given and not optional and not p.variadic:
            expected = f"input {index}, {p.name}; it is not optional in {node.op}-{node.version}"
            raise refuse(f"input {p.name!r} is missing", "", expected, "nothing", code="QR205")
    if known is not None and len(node.outputs) > known.max_outputs:
        count = len(node.outputs)
        raise refuse(f"{node.op_type} has {count} outputs", "", f"at most {known.max_outputs}", count, code="QR205")


def attributes_given(
    node: Node, specs: Mapping[str, AttributeSpec], graphs: Sequence[str], known: Schema | None
) -> dict[str, Any]:
    """The node's attributes except its graphs; refuses attributes that its version does not have, and missing ones."""
    for name in graphs:
        if not isinstance(node.attributes.get(name), Model):
            got = str(node.attributes.get(name))
            raise refuse(f"attribute {name!r} is not a graph", "", f"{name}, a graph", got, code="QR204")
    names = [name for name in specs if known is None or name in known.attributes]
    given = {name: value for name, value in node.attributes.items() if name not in graphs}
    for name, value in given.items():
        spec = specs.get(name)
        if spec is None or name not in names:
            raise _unknown(node, name, names)
        if not spec.fits(value):
            raise refuse(f"attribute {name!r} has the wrong type", "", spec.text, repr(value)[:60], code="QR204")
    missing = next((spec for spec in specs.values() if spec.required and spec.name not in given), None)
    if missing is not None:
        name = missing.name
        raise refuse(f"attribute {name!r} is missing", "", f"{name}, {missing.text}", "nothing", code="QR204")
    return given


def _unknown(node: Node, name: str, names: Sequence[str]) -> OperatorError:
    """The error of an attribute that the operator does not define."""
    from qrun.ops._advice import attribute_fix

    near = close_matches(name, names)
    expected = f"one of: {', '.join(names)}" if names else "no attributes"
    why = f"{node.op}-{node.version} does not define it."
    fix = f"did you mean {near[0]}?" if near else attribute_fix(node, name)
    return refuse(f"{node.op_type} has no attribute {name!r}", "", expected, name, why=why, fix=fix, code="QR204")
