"""The Context of a kernel: arithmetic, requested outputs, memory, and a place for observations. Also the errors by
which kernels refuse inputs and attributes, and the checks that many operators make, including those of scales and zero
points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qrun.declare import Later
from qrun.declare.frozen import changeable, frozen
from qrun.declare.memo import Memo
from qrun.errors import CallError, OperatorError, suggest
from qrun.ir import Array, TensorType
from qrun.ir.types import shape_text, type_name
from qrun.memory import Budget

if TYPE_CHECKING:
    from qrun import arithmetics
else:
    arithmetics = Later("qrun.arithmetics")

Arith = str
"""The name of an arithmetic: one of FLOATS, or of an integer engine."""
FLOATS: tuple[Arith, ...] = ("exact", "ort", "onnx-ref")
"""The arithmetics that are no integer engine's."""


def integer_engine(arith: Arith) -> arithmetics.IntegerEngine | None:
    """The integer engine of this name; None for other arithmetics."""
    return None if arith in FLOATS else arithmetics.ENGINES.get(arith)


def known_arithmetics() -> tuple[Arith, ...]:
    """The values of ``--arith``."""
    return (*FLOATS, *arithmetics.ENGINES)


def check_arith(name: str) -> None:
    """Raise CallError unless there is an arithmetic of this name."""
    if name not in FLOATS and integer_engine(name) is None:
        near = suggest(name, known_arithmetics())
        facts = [("expected", "exact, ort, onnx-ref, or an integer engine such as tfl-double")]
        fixes = [*([f"did you mean {near!r}?"] if near else []), "qrun explain arithmetics lists the integer engines"]
        raise CallError("QR005", f"arith {name!r} does not exist", facts=facts, fixes=fixes)


Claim = tuple[tuple[int, ...], int, str]
Given = TypeVar("Given", Array, Array | None)
"""An input: None only if None was given."""


@frozen
class Observation:
    """Something a kernel saw in its values that a rule may report.

    kind:  accumulator-wrap, nan-quantized, infinite-quantized, saturated, bad-scale, ...
    param: the operator's input or output it concerns, by the specification's name.
    count, total: the number of elements concerned, and of all.
    first: index of the first one, if it is worth naming.
    """

    kind: str
    param: str
    count: int
    total: int
    first: tuple[int, ...] = ()
    detail: str = ""


Repeated = tuple[int, list[Array], list[Array]]
"""The number of iterations of a graph, the loop-carried values after the last one, and the scan outputs, each along a
first axis."""


@frozen
class Body:
    """A graph inside a node. run: maps the values of its inputs to those of its outputs, both in order.

    repeat: makes iterations that follow each other, each on the results of the one before; None if they must be made
    one by one. It takes the inputs of the first iteration and its number; scanned arrays in place of the last inputs,
    with one element per iteration along a first axis; the most iterations; and the bytes kept from earlier ones.
    """

    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    run: Callable[[Sequence[Array]], Sequence[Array]]
    repeat: Callable[[Sequence[Array], int, Sequence[Array], int, int], Repeated | None] = lambda *_: None


@changeable
class Context:
    """The object given to kernels that declare ``ctx``.

    arith:     how quotients of scales are rounded (numerics: exact, or as onnxruntime or onnx.reference do); or an
               integer engine, see `integer_engine`.
    version:   the operator's schema version on this node.
    outputs:   the number of outputs that the node names; `wants` says whether one is used.
    observing: False while profiling: observations cost time.
    claims:    the memory claims so far (shape, bytes per element, purpose), or None if they are not recorded.
    bodies:    the graphs inside the node, by attribute.
    memo:      a cache, shared by the node's runs, of values that follow from the attributes alone.
    lost:      the errors of an emulated kernel in sums of products: maps codes [..., M, K] and [..., K, N] to int64
               [..., M, N], or broadcasting to it; None for exact sums.
    fixed:     which inputs the model stores, by place; onnxruntime packs them, and adds in another order.
    sums:      how float32 products were added, as text: the kernel notes it.
    """

    arith: Arith = "exact"
    version: int = 2**31
    outputs: int = 1
    wanted: tuple[bool, ...] = (True,)
    observing: bool = True
    budget: Budget = field(default_factory=Budget)
    observations: list[Observation] = field(default_factory=list)
    claims: list[Claim] | None = None
    bodies: Mapping[str, Body] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo)
    lost: Callable[[Array, Array], Array] | None = None
    fixed: tuple[bool, ...] = ()
    sums: list[str] = field(default_factory=list)

    @property
    def integer_engine(self) -> arithmetics.IntegerEngine | None:
        """The integer engine whose arithmetic is requested; None for qrun's own arithmetics. What an engine does not
        define is exact."""
        return integer_engine(self.arith)

    def stores(self, index: int) -> bool:
        """Whether this input is a constant of the model."""
        return index < len(self.fixed) and self.fixed[index]

    def wants(self, index: int) -> bool:
        """Whether output number `index` is asked for."""
        return index < len(self.wanted) and self.wanted[index]

    def claim(self, shape: Sequence[int], itemsize: int = 1, what: str = "output") -> None:
        """Call before making a tensor whose size the inputs do not bound. Raises MemoryLimitError."""
        self.budget.claim(shape, itemsize, what)
        if self.claims is not None:
            self.claims.append((tuple(int(n) for n in shape), itemsize, what))

    def observe(
        self, kind: str, param: str, count: int, total: int, first: Sequence[int] = (), detail: str = ""
    ) -> None:
        """Note something about a tensor's elements, such as saturation, for the rules to report."""
        if count and self.observing:
            self.observations.append(Observation(kind, param, count, total, tuple(int(i) for i in first), detail))


def refuse(message: str, param: str = "", expected: str = "", got: Any = "", **more: str) -> OperatorError:
    """The error of a kernel that refuses `param`; `got` may be an array, whose shape is then shown."""
    text = shape_text(got.shape) if isinstance(got, np.ndarray) else str(got)
    return OperatorError(message, param=param, expected=expected, got=text, **more)


def misfit(message: str, param: str, expected: str, got: Any, **more: str) -> OperatorError:
    """The error for an input that does not fit the node's other inputs or its attributes."""
    return refuse(message, param, expected, got, **more, code="QR208")


def bad_shape(param: str, expected: str, got: Array, why: str = "") -> OperatorError:
    """The error for an input whose shape does not fit."""
    return misfit(f"{param} has shape {shape_text(got.shape)}", param, expected, got, why=why)


def with_shape(array: Given, name: str, *allowed: tuple[int, ...]) -> Given:
    """Returns the array, or None; refuses an array that has none of these shapes."""
    if array is not None and array.shape not in allowed:
        raise bad_shape(name, " or ".join(shape_text(shape) for shape in dict.fromkeys(allowed)), array)
    return array


def check_range(places: Array, count: int, name: str, what: str, code: str = "QR209", more: str = "") -> None:
    """Refuse integers outside 0 to count - 1. what: the noun for one, as in "no row 7"; more: text after the range."""
    if places.size and (places.min() < 0 or places.max() >= count):
        bad = int(places.max() if places.max() >= count else places.min())
        raise refuse(f"no {what} {bad}", name, f"0 to {count - 1}{more}", str(bad), code=code)


def first_place(found: Array) -> tuple[int, ...]:
    """The index of the first element that is true; index 0 on all axes if none is."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(found)), found.shape))


def bad_attribute(name: str, expected: str, got: Any) -> OperatorError:
    """The error for an attribute whose value is not allowed."""
    return refuse(f"{name} is {got}", name, expected, got, code="QR204")


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
    """Refuse an attribute whose value is not one of these."""
    if value not in (known := tuple(allowed)):
        raise bad_attribute(name, ", ".join(map(str, known)), value)


def require(name: str, fits: bool, expected: str, got: Any) -> None:
    """Refuse an attribute whose value does not fit."""
    if not fits:
        raise bad_attribute(name, expected, got)


def require_count(name: str, fits: bool, expected: str, count: int) -> None:
    """Refuse an attribute with the wrong number of elements."""
    if not fits:
        raise refuse(f"{name} has {count} elements", name, expected, count, code="QR204")


def both_or_none(**given: Array | None) -> None:
    """Refuse inputs if only some of them are given."""
    missing = [name for name, array in given.items() if array is None]
    if missing and len(missing) < len(given):
        expected = f"all of {', '.join(given)}, or none"
        raise refuse(f"{missing[0]} is missing", missing[0], expected, "the others only", code="QR205")


def scalar(array: Given, name: str, op_type: str) -> Given:
    """A per-tensor parameter: rank 0 or shape [1], returned as rank 0."""
    if array is None:
        return None
    if array.ndim > 1 or array.size != 1:
        why, fix = f"{op_type}: {name} is per tensor.", f"export a single {parameter_kind(name)}"
        raise bad_parameter(name, "a scalar or [1] (one for the tensor)", array, why=why, fix=fix)
    return array.reshape(())


def per_channel(array: Given, name: str, channels: int, op_type: str) -> Given:
    """A scalar, [1], or one element for each of `channels`; returned as rank 0 or [channels]."""
    if array is None:
        return None
    if array.ndim > 1 or array.size not in (1, channels) or (array.ndim == 0 and array.size != 1):
        expected, kind = f"a scalar, or [{channels}] (one per output channel)", parameter_kind(name)
        why = f"{op_type}: a 1-D {name} has as many elements as output channels."
        fix = f"export one {kind} per output channel, or a single {kind}"
        raise bad_parameter(name, expected, array, why=why, fix=fix)
    return array.reshape(()) if array.size == 1 and channels != 1 else array.reshape(-1)


def parameter_kind(name: str) -> str:
    """ "zero point" or "scale"."""
    return "zero point" if "zero_point" in name else "scale"


def bad_parameter(name: str, expected: str, got: Array, **more: str) -> OperatorError:
    """The error for a scale or a zero point whose shape does not fit."""
    code = "QR302" if "zero_point" in name else "QR301"
    return refuse(f"{name} has shape {shape_text(got.shape)}", name, expected, got, **more, code=code)


def assumed_axis(axis: int | None, scale: Array, name: str, ctx: Context) -> int:
    """The axis, or 1 if com.microsoft's operator has none, as in onnxruntime; observed if it makes a difference."""
    if axis is None and scale.size != 1:
        ctx.observe("axis-assumed", name, 1, 1, (), "axis is missing; 1 is assumed")
    return 1 if axis is None else axis


def same_type(zero_point: Array | None, dtype: np.dtype[Any], name: str, tensor: str) -> None:
    """Refuse a zero point whose element type differs from its tensor's."""
    if zero_point is not None and zero_point.dtype != dtype:
        what = f"{name} is {type_name(zero_point.dtype)}, but {tensor} is {type_name(dtype)}"
        why = "a zero point has the type of its tensor."
        raise refuse(what, name, type_name(dtype), type_name(zero_point.dtype), why=why, code="QR303")


def note_scale(ctx: Context, scale: Array, name: str, signed: bool = False) -> None:
    """Observe scales that are not finite, or not positive unless `signed`; they follow IEEE 754."""
    if ctx.observing:
        with np.errstate(invalid="ignore"):
            bad = ~(np.isfinite(scale) & (signed | (scale > 0)))
        if bad.any():
            where = first_place(bad)
            ctx.observe("bad-scale", name, int(bad.sum()), scale.size, where, f"{float(scale[where])!r}")
