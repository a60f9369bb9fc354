"""Declares causes: functions that take a node whose result differs by itself (Suspect), and compute what the other side
would give if this were the cause (Hypothesis)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from qrun.comparing.differences import TensorPair, same
from qrun.comparing.sides import Results, Unit, Values
from qrun.comparing.ties import before_rounding
from qrun.declare.frozen import frozen, keys
from qrun.errors import QrunError, percent
from qrun.ir import Array, Model, Node
from qrun.ops import Arith, Context, OpDef, find
from qrun.ops._quantize import limits

TIE = 1e-9
"""Distance in steps within which a float64 value counts as a tie:
its rounding error is far smaller, and real near-ties are farther."""
_FAILURES = (QrunError, ValueError, IndexError, OverflowError, ZeroDivisionError, MemoryError, KeyError, TypeError)


@frozen
class AlternativeForm:
    """Another way to run a group of nodes. cause: the cause that it would be. text: its description. run: runs it.

    bound: returns, per element, how far float32 sums in another order may be from its result; None without a bound.
    """

    cause: str
    text: str
    run: Callable[[], Array | None]
    bound: Callable[[], Array | None] | None = None


@frozen(slots=False)
class Suspect:
    """A tensor that differs although both sides read the same values.

    values: everything that the unit reads, by name, as the other side read it.
    mine:   qrun's exact output from them; theirs: the other side's, None if it gave none (then perhaps an `error`).
    again:  runs the other side once more; None if it cannot.
    forms:  other forms of a group of nodes, such as fused into one operator.
    fused:  returns the values that a group rounds if it fuses into one integer operator, or those that a node rounds,
            if they are known by other means; None if it does not.
    judge:  compares an array with the other side's, within the tolerance of the comparison.
    seen:   all tensors that the other side exposed, by name.
    fusing: returns the integer operator that a group fuses into, as a suspect of its own; None if there is no such
            operator.
    integer: returns the integer operator that computes a group's sums, as a suspect of its own, with the least and the
            greatest code that a Relu or Clip leaves; None if there is no such operator.
    """

    model: Model
    unit: Unit
    tensor: str
    values: Values
    mine: Array
    theirs: Array | None
    error: QrunError | None = None
    again: Callable[[], Array | None] | None = None
    forms: Sequence[AlternativeForm] = ()
    fused: Callable[[], Array | None] | None = None
    judge: Callable[[Array], TensorPair] | None = None
    seen: Results | None = None
    fusing: Callable[[], Suspect | None] | None = None
    integer: Callable[[], tuple[Suspect, int, int] | None] | None = None

    @cached_property
    def fused_node(self) -> Suspect | None:
        """The integer operator that the group fuses into, as a suspect; None if there is none."""
        return self.fusing() if self.fusing else None

    @property
    def node(self) -> Node:
        """The node."""
        return self.unit.node

    def exposed_tensor(self, name: str) -> Array | None:
        """A tensor as the other side exposed it, or as the model stores it; None if neither."""
        return self.model.constants.get(name) if self.seen is None or name not in self.seen else self.seen[name]

    @property
    def alone(self) -> bool:
        """Is the unit a single node, and not a group?"""
        return len(self.unit.group) == 1

    @cached_property
    def definition(self) -> OpDef | None:
        """The operator's declaration; None for groups of nodes."""
        node = self.node
        return find(node.domain, node.op_type, node.version) if self.alone else None

    @cached_property
    def args(self) -> tuple[Array | None, ...]:
        """The node's inputs in order; () for a group."""
        return tuple(self.values[name] if name else None for name in self.node.inputs) if self.alone else ()

    @property
    def stored(self) -> tuple[bool, ...]:
        """For each input of the node: does the model store it?"""
        return tuple(bool(name) and self.model.constant(name) is not None for name in self.node.inputs)

    def is_op(self, *names: str) -> bool:
        """Whether the node has one of these operators of ai.onnx or com.microsoft."""
        return self.alone and self.node.op_type in names and self.node.domain in ("", "com.microsoft")

    def arg(self, name: str) -> Array | None:
        """An input by the specification's name, ignoring case; None if absent."""
        for index, param in enumerate(self.definition.inputs if self.definition else ()):
            if param.name.lower() == name.lower():
                return self.args[index] if index < len(self.args) else None
        return None

    @cached_property
    def exact(self) -> Array | None:
        """The real numbers that the node rounds, in steps of the output, zero point added; None if not known.
        See qrun.comparing.ties."""
        value = self.fused() if self.fused else None
        value = before_rounding(self.node, self.args) if value is None and self.alone else value
        return value if value is not None and value.shape == self.mine.shape else None

    @cached_property
    def zero(self) -> Array:
        """The output's zero point as float64, to broadcast with it; 0 if there is none."""
        for name in ("z_zero_point", "y_zero_point", "C_zero_point"):
            value = self.arg(name)
            if value is not None and value.dtype == self.mine.dtype:
                return self.along(value)
        return np.zeros(())

    def along(self, parameter: Array) -> Array:
        """A parameter of the node in a shape that broadcasts with the output, see `broadcast`."""
        axis, block = self.node.attributes.get("axis", 1), self.node.attributes.get("block_size", 0)
        return broadcast(parameter, self.mine, axis, block)

    def to_codes(self, values: Array, zero: Any = 0.0) -> Array | None:
        """Whole float64 values plus a zero point, saturated to the output's type; None if that is no integer type."""
        try:
            low, high = limits(self.mine.dtype)
        except KeyError:
            return None
        whole = np.clip(np.nan_to_num(values + zero, nan=low, posinf=high, neginf=low), low, high)
        return np.asarray(whole.astype(np.int64).astype(np.int32).astype(self.mine.dtype))

    @cached_property
    def _in_arith(self) -> dict[Arith, Array | None]:
        """The node's results by arithmetic, as far as computed."""
        return {}

    def in_arith(self, arith: Arith) -> Array | None:
        """The node's result from qrun's kernel in this arithmetic, computed once; None if it refuses."""
        if arith not in self._in_arith:
            self._in_arith[arith] = self.evaluate(arith)
        return self._in_arith[arith]

    def evaluate(
        self,
        arith: Arith = "exact",
        *,
        attributes: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Array | None] | None = None,
    ) -> Array | None:
        """The node's result from qrun's kernel with other arithmetic, attributes or inputs; None if it refuses them.

        inputs: by the specification's names.
        """
        if self.definition is None:
            return None
        args = list(self.args)
        names = [p.name for p in self.definition.inputs]
        for name, array in (inputs or {}).items():
            args[names.index(name)] = array
        node = replace(self.node, attributes={**self.node.attributes, **(attributes or {})})
        made = compute_node(node, args, arith, fixed=self.stored)
        return None if made is None else made[node.outputs.index(self.tensor)]

    def form_results(self, cause: str) -> Iterator[tuple[Array, str]]:
        """Yield the results of all forms of this cause, with their texts."""
        for form in self.forms:
            made = form.run() if form.cause == cause else None
            if made is not None:
                yield made, form.text

    def is_explained_by(self, array: Array) -> bool:
        """Does this array equal the other side's result in every element? NaN equals NaN."""
        return self.theirs is not None and same(array, self.theirs)

    @property
    def beyond(self) -> int:
        """The number of elements of qrun's output that are beyond the tolerance."""
        return self.judge(self.mine).difference.differing if self.judge else 0

    def residual(self, array: Array) -> float | None:
        """The largest remaining difference of this array, if it is within the tolerance and qrun's output is not."""
        made = self.judge(array) if self.judge and self.beyond else None
        return made.difference.largest if made is not None and made.equal else None


def compute_node(
    node: Node,
    args: Sequence[Array | None],
    arith: Arith = "exact",
    **known: Any,
) -> tuple[Array, ...] | None:
    """A node's results from qrun's kernel; None if it refuses the node or there is none. known: fields of Context."""
    definition = find(node.domain, node.op_type, node.version)
    if definition is None:
        return None
    wanted = tuple(bool(name) for name in node.outputs)
    try:
        ctx = Context(arith, node.version, len(node.outputs), wanted, False, **known)
        with np.errstate(all="ignore"):
            made = definition.compute(args, definition.bind(node), ctx)
    except _FAILURES:
        return None
    return tuple(map(np.asarray, made if isinstance(made, tuple) else (made,)))


def in_known_order(s: Suspect) -> bool:
    """Does the node add float32 products in an order that qrun knows, for onnxruntime and for itself?"""
    return s.mine.dtype == np.float32 and s.is_op("MatMul", "Gemm", "Conv", "FusedMatMul", "TransposeMatMul")


def part(share: float) -> str:
    """Format a share of a bound in percent: ``12.3 %`` or ``less than 0.1 %``."""
    return percent(share) if share >= 0.001 or not share else f"less than {percent(0.001)}"


def broadcast(parameter: Array, like: Array, axis: Any, block: Any = 0) -> Array:
    """A per-tensor, per-axis or blocked parameter as float64, broadcast to `like`. block: the size of blocks; 0: its
    shape determines it."""
    value = np.asarray(parameter, np.float64)
    if value.size == 1:
        return value.reshape(())
    if value.ndim == 1 and isinstance(axis, int) and like.ndim and value.size == like.shape[axis % like.ndim]:
        return value.reshape([-1 if at == axis % like.ndim else 1 for at in range(like.ndim)])
    repeats = zip(like.shape, value.shape, strict=False) if value.ndim == like.ndim else ()
    for at, (size, parts) in enumerate(repeats):
        if parts != size:
            value = np.take(value, np.arange(size) // (block or -(-size // parts)), axis=at)
    return value


@frozen
class Hypothesis:
    """A possible result of the other side.

    array: the output; None if no reproduction is needed, as for a refusal, a missing output or an error bound.
    text:  a few words on what the other side does differently.
    tolerant: does the cause hold if every element is within the tolerance? For known behaviour of a runtime whose
           steps or sums qrun does not reproduce bit for bit.
    implies: causes that this hypothesis contains, with more: it is no rival of theirs.
    """

    array: Array | None
    text: str
    tolerant: bool = False
    implies: tuple[str, ...] = ()


@frozen
class Cause:
    """A declared cause. rank: causes of lower rank are more specific and are tried first."""

    KEYS = keys("cause=name summary source confirm fix=remedy")

    name: str
    rank: int
    source: str
    function: Callable[[Suspect], Iterator[Hypothesis]]

    @property
    def summary(self) -> str:
        """The first paragraph of the docstring."""
        return self._paragraphs[0]

    @property
    def confirm(self) -> str:
        """How a user confirms the cause."""
        return self._paragraph("To confirm: ")

    @property
    def remedy(self) -> str:
        """What a user can do about it."""
        return self._paragraph("To do: ")

    @property
    def _paragraphs(self) -> list[str]:
        """The paragraphs of the docstring."""
        return [" ".join(part.split()) for part in inspect.cleandoc(self.function.__doc__ or "").split("\n\n")]

    def _paragraph(self, start: str) -> str:
        """The paragraph of the docstring that begins with `start`."""
        return next(part.removeprefix(start) for part in self._paragraphs if part.startswith(start))


def recompute(array: Array | None, text: str) -> Iterator[Hypothesis]:
    """Yield the hypothesis that the other side gives this array; nothing if `array` is None."""
    if array is not None:
        yield Hypothesis(array, text)


CAUSES: dict[str, Cause] = {}


def cause(name: str, *, rank: int, source: str) -> Callable[[Callable[[Suspect], Iterator[Hypothesis]]], Cause]:
    """Declare a cause: a function of a Suspect that yields hypotheses, none if it does not apply. Its docstring has a
    summary and the paragraphs "To confirm: " and "To do: ". Raises ValueError if the name or rank is taken.
    """

    def register(function: Callable[[Suspect], Iterator[Hypothesis]]) -> Cause:
        if name in CAUSES or any(known.rank == rank for known in CAUSES.values()):
            raise ValueError(f"cause {name}, rank {rank}, is declared twice")
        CAUSES[name] = Cause(name, rank, source, function)
        return CAUSES[name]

    return register
