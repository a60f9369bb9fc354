"""The declaration of an operator: one Python function whose signature is the schema and whose body is the reference
kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

from qrun.declare.frozen import fields_of
from qrun.declare.registry import Registry
from qrun.ir import Array, Node
from qrun.ir.schema import DOMAINS, MS, OWN, STANDARD, Formal, Schema, home, schema
from qrun.ir.types import DTYPES
from qrun.ops._context import (
    Context,
    bad_attribute,
    bad_shape,
    both_or_none,
    check_range,
    first_place,
    misfit,
    one_of,
    refuse,
    require,
    require_count,
    with_shape,
)
from qrun.ops._signature import (
    Attributes,
    AttributeSpec,
    Compounds,
    Form,
    InputRecord,
    Param,
    Real,
    Types,
    Whole,
    attributes_given,
    attributes_of,
    check_places,
    flat,
    formals_of,
    inputs_of,
    records_of,
    signature_of,
)

if TYPE_CHECKING:
    import numpy as np

    from qrun.ops.lowering.kernel import Lowering

Shape = tuple[int, ...]
Cost = Callable[[Sequence[Shape], Sequence[Shape], Mapping[str, Any]], int]
Kernel = Callable[..., Any]

_ACCEPTED = 256
"""The number of different nodes of one operator, told apart by their attributes, for which `bind` is cached."""

RUNNER = "onnx.reference"
"""The name of the runner for operators of ONNX that qrun does not declare."""
CUSTOM = "numpy, yours"
"""The name of the runner for custom operators (ops/_custom.py)."""
LATEST = 2**31 - 1
"""A version of a domain that is later than any."""
_SEEDS = 1 << 24
"""Bound of the seeds for nodes without one: float32, the type of seed attributes, holds all integers below it."""


class OpDef:
    """A declared operator. Calling it runs the reference kernel: numpy arrays in, one array or a tuple out.

    domain, op_type, since: what it implements: every schema version from `since` up to the next declaration.
    types: for operators that are not in onnx.defs, {type variable: (allowed ONNX types, inputs that share it)}. A zero
           point that is not named has the type of its tensor (input or output); a scale not named is float32.
    cost:  (input shapes, output shapes, attributes) to multiply-adds.
    form:  see Form (ops/_signature.py).
    compounds: see Compounds.
    computes: for a quantized operator, the operator that it computes with real numbers.
    draws: whether it draws random numbers; a node without a seed then gets one from its label.
    wholes: by name, the inputs that say how many elements of other inputs count; see Whole.
    runner: ``reference``, RUNNER if that runs the operator because qrun has no kernel of its own, or CUSTOM.
    stated: makes the signature, if it comes from onnx.defs.
    like:  the declaration whose inputs and attributes this one has, in addition to attributes of its own.
    lowering: makes the native kernel of a node whose inputs are known, or None; declared with `native`.
    """

    def __init__(
        self,
        domain: str,
        op_type: str,
        since: int,
        reference: Kernel,
        types: Types,
        cost: Cost,
        form: Form = "",
        computes: Real | None = None,
        like: OpDef | None = None,
        graphs: Sequence[str] = (),
        compounds: Compounds = "",
        draws: bool = False,
        wholes: Mapping[str, Whole] | None = None,
    ) -> None:
        self.domain = domain
        self.op_type = op_type
        self.since = since
        self.reference = reference
        self.types = types
        self.cost = cost
        self.form: Form = form
        self.computes = computes
        self.like = like
        self.graphs = tuple(graphs)
        self.compounds: Compounds = compounds
        self.draws = draws
        self.wholes = wholes or {}
        self.lowering: Lowering | None = None
        self.runner = "reference"
        self.stated: Callable[[], inspect.Signature] | None = None
        self.__doc__ = reference.__doc__

    def native(self, lowering: Lowering) -> Lowering:
        """Declare the native lowering: ``@relu.native`` above a function (LoweringContext) -> NativeKernel."""
        self.lowering = lowering
        return lowering

    def __call__(self, *args: Any, ctx: Context | None = None, **kwargs: Any) -> Any:
        """Runs the reference kernel, in a new Context if none is given."""
        given = self._gather_records(kwargs) if self._records else kwargs
        if self._taken is not None:
            args = (self._taken(*args, **{name: given.pop(name) for name in fields_of(self._taken) if name in given}),)
        if self.takes_context:
            given["ctx"] = ctx or Context()
        return self.reference(*args, **given)

    def compute(self, args: Sequence[Array | None], kwargs: Mapping[str, Any], ctx: Context) -> Any:
        """Runs the reference kernel with attributes from `bind`.

        Memory as large as the first input is claimed here for pointwise operators, and for operators that have no `ctx`
        and no form and make no compounds. Other kernels with a `ctx` claim it once they know the output's shape.
        """
        if self._bounded and args and args[0] is not None:
            ctx.claim(args[0].shape, args[0].itemsize)
        return self(*args, **kwargs, ctx=ctx)

    def _gather_records(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes as the kernel's parameters; those that belong to a record are passed in that record."""
        own = {name: value for name, value in kwargs.items() if name not in self._inside}
        return {**{name: kind.of(kwargs) for name, kind in self._records.items()}, **own}

    def __repr__(self) -> str:
        return f"<op {self.domain + '::' if self.domain else ''}{self.op_type} since {self.since}>"

    @cached_property
    def _written(self) -> inspect.Signature:
        """The signature as declared, with records."""
        return self.stated() if self.stated else signature_of(self.reference)

    @cached_property
    def _records(self) -> Mapping[str, type[Attributes]]:
        """The records of attributes in the signature, by parameter."""
        return records_of(self._written, Attributes)

    @cached_property
    def _inside(self) -> frozenset[str]:
        """The attributes that are fields of records."""
        return frozenset(name for kind in self._records.values() for name in fields_of(kind))

    @cached_property
    def _taken(self) -> type[InputRecord] | None:
        """The record of inputs that the kernel takes, if any."""
        return next(iter(records_of(self._written, InputRecord).values()), None)

    @cached_property
    def signature(self) -> inspect.Signature:
        """The signature with records resolved into parameters."""
        own = flat(self._written)
        if self.like is None:
            return own
        more = {n: p for n, p in own.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}
        return own.replace(parameters=[*({**self.like.signature.parameters, **more}).values()])

    @property
    def contrib(self) -> bool:
        """Whether the declaration states the types, because onnx.defs does not have the operator."""
        return bool(self.types)

    @cached_property
    def takes_context(self) -> bool:
        """Whether the reference kernel takes a Context."""
        return "ctx" in self.signature.parameters

    @cached_property
    def _bounded(self) -> bool:
        """Whether the outputs' memory follows from the inputs, so that no claim is needed."""
        return self.form == "pointwise" or not (self.takes_context or self.form or self.compounds == "makes")

    @cached_property
    def inputs(self) -> tuple[Param, ...]:
        """The inputs."""
        return inputs_of(self.signature)

    @cached_property
    def attributes(self) -> Mapping[str, AttributeSpec]:
        """The attributes, by name."""
        return attributes_of(self.signature)

    def param(self, index: int) -> str:
        """The specification's name of input number `index`."""
        if index < len(self.inputs) and not self.inputs[index].variadic:
            return self.inputs[index].name
        return f"{self.inputs[-1].name}[{index - len(self.inputs) + 1}]" if self.inputs else str(index)

    def formals(self, version: int) -> tuple[Formal, ...]:
        """Allowed types of the inputs: from onnx.defs, or as declared."""
        known: Schema | None = None if self.types else schema(self.domain, self.op_type, version)
        return self._declared if known is None else known.inputs

    @cached_property
    def _declared(self) -> tuple[Formal, ...]:
        """The types that the inputs may have."""
        return formals_of(self.inputs, self.types)

    def result_types(
        self, version: int, inputs: Sequence[np.dtype[Any] | None], attributes: Mapping[str, Any]
    ) -> tuple[np.dtype[Any] | None, ...]:
        """The element types of the outputs, from output_dtype, or from onnx.defs with these types of the inputs; None
        if neither states one. Empty for an operator that onnx.defs lacks."""
        known: Schema | None = None if self.types else schema(self.domain, self.op_type, version)
        if known is None:
            return ()
        bound = {f.variable: t for f, t in zip(known.inputs, inputs, strict=False) if t is not None}
        stated = DTYPES.get(attributes.get("output_dtype", 0))
        return tuple(stated or bound.get(out.variable) for out in known.outputs)

    def bind(self, node: Node) -> dict[str, Any]:
        """The keyword arguments from the node's attributes. Raises OperatorError if they or the inputs do not fit."""
        attributes = node.attributes.items()
        if self.draws or not all(
            type(value) in (int, str) for _, value in attributes
        ):  # values of other types may be equal and still differ, as 0.0 and -0.0
            return self._bind(node)
        key = node.version, tuple(map(bool, node.inputs)), len(node.outputs), tuple(attributes)
        found = self._accepted.get(key)
        if found is None:
            found = self._bind(node)
            if len(self._accepted) < _ACCEPTED:
                self._accepted[key] = found
        return {**found}

    @cached_property
    def _accepted(self) -> dict[Hashable, dict[str, Any]]:
        """The results of `bind`, by inputs and attributes of the node."""
        return {}

    def _bind(self, node: Node) -> dict[str, Any]:
        """The node's attributes as keyword arguments. Raises OperatorError for unknown ones."""
        known = schema(self.domain, self.op_type, node.version)
        check_places(node, self.inputs, known)
        given = attributes_given(node, self.attributes, self.graphs, known)
        if self.draws and "seed" not in given:
            given["seed"] = float(crc32(node.label.encode()) % _SEEDS)
        parameters = self.signature.parameters
        return {name if name in parameters else f"{name}_": value for name, value in given.items()}


REGISTRY: Registry[tuple[str, str], list[OpDef]] = Registry("qrun.ops")
INTERNAL: Registry[tuple[str, str], list[OpDef]] = Registry("qrun.ops")
"""The operators of qrun's own domain: only rewritten models have them, and nothing lists them."""


def no_cost(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """No multiply-adds."""
    return 0


def op(
    op_type: str,
    *,
    since: int,
    domain: str = "",
    types: Types | None = None,
    cost: Cost = no_cost,
    form: Form = "",
    computes: Real | None = None,
    like: OpDef | None = None,
    native: Lowering | None = None,
    graphs: Sequence[str] = (),
    compounds: Compounds = "",
    draws: bool = False,
    wholes: Mapping[str, Whole] | None = None,
) -> Callable[[Kernel], OpDef]:
    """Declare an operator.

    Positional parameters are the inputs in order (``= None``, or annotated ``| None``: optional, ``*xs``: variadic),
    keyword-only parameters are the attributes with their defaults; a record of `Attributes` declares several. ``ctx``
    receives the Context. native: its lowering, if that is a function of another module; else see `OpDef.native`.
    like: a declaration whose inputs and attributes this one takes over: ``*inputs`` and ``**attributes`` then mean
    those, and keyword-only parameters are added. graphs: attributes that are graphs; the kernel finds them in the
    Context's bodies. draws: whether it has a seed and draws random numbers.
    """

    def register(reference: Kernel) -> OpDef:
        definition = OpDef(
            domain, op_type, since, reference, types or {}, cost, form, computes, like, graphs, compounds, draws, wholes
        )
        definition.lowering = native
        versions = (INTERNAL if domain == OWN else REGISTRY).declared.setdefault((domain, op_type), [])
        versions.append(definition)
        versions.sort(key=lambda d: d.since)
        find.cache_clear()
        return definition

    return register


contrib_op = partial(op, since=1, domain=MS)
"""`op` for the operators of com.microsoft, which have one version."""


@lru_cache(4096)
def find(domain: str, op_type: str, version: int) -> OpDef | None:
    """The declaration for this operator version, or one made for onnx.reference to run it, or None.

    Raises CallError QR018 if an installed package declares the operator's domain and cannot be imported.
    """
    best = None
    name = home(domain, op_type), op_type
    declared = (INTERNAL if domain == OWN else REGISTRY).get(name)
    if declared is None and runs(domain, op_type) and (known := schema(domain, op_type, version)) is not None:
        return _of_standard(domain, op_type, known)
    if declared is None and domain not in (OWN, *DOMAINS):
        from qrun.ops._installed import load_installed

        declared = REGISTRY.get(name) if load_installed(domain) else None
    for definition in declared or ():
        if definition.since <= version:
            best = definition
    return best


def runs(domain: str, op_type: str) -> bool:
    """Whether onnx.reference has code for the operator, if onnx.defs has it."""
    return domain in STANDARD and op_type != "Gradient"


@cache
def _of_standard(domain: str, op_type: str, known: Schema) -> OpDef:
    """The definition of an ONNX operator that qrun does not declare."""
    from qrun.ops._standard import standard_kernel, standard_signature

    kernel = standard_kernel(domain, op_type, known)
    made = OpDef(domain, op_type, known.version, kernel, {}, no_cost, draws="seed" in known.attributes)
    made.runner, made.stated = RUNNER, partial(standard_signature, domain, op_type, known)
    return made


__all__ = ["Array", "Context", "OpDef", "Real", "contrib_op", "find", "op"]
__all__ += ["bad_attribute", "bad_shape", "both_or_none", "check_range", "first_place", "misfit", "one_of", "refuse"]
__all__ += ["require", "require_count", "with_shape"]
