"""The interface of native lowerings: their argument, the kernel they return, and helpers that make kernels of
operations.

A lowering runs when a node first meets new shapes. It makes the reference kernel's own checks, then returns a
NativeKernel or raises Declined with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import Part, StoredArray, hold
from qrun.errors import MemoryLimitError
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.native.errors import Declined
from qrun.ops._complete import Complete
from qrun.ops._context import Context

if TYPE_CHECKING:
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operand, Operation

T = TypeVar("T")
FLOAT = np.dtype(np.float32)
EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))
Lowering = Callable[["LoweringContext"], "NativeKernel"]
Inputs = Sequence[Any]
"""Arrays, and None where an optional input is omitted."""


@frozen
class NativeSection:
    """Output channels that share a machine-code kernel; the form of its requantization; and the reason why that form is
    not a cheaper one ("" if it is the cheapest, or the only one)."""

    kernel: str
    form: str
    first: int
    channels: int
    why: str = ""


@frozen
class Stage:
    """An operation of a kernel. inputs, output: inputs and outputs of the node by number, other values by name."""

    operation: Operation
    inputs: tuple[int | str, ...]
    output: int | str = 0


@frozen
class NativeKernel:
    """A node's native kernel for fixed input shapes.

    run:       maps all inputs of the node to its output, or to a tuple of its outputs.
    complete:  tests whether the reference kernel would observe nothing in a result (wrap-around, NaN, saturation).
    shown:     the operations, or sections, that a profile names.
    stages:    the operations of `run`, for programs that place operands themselves; none if `run` does more than that.
    plain:     tests whether the reference kernel would observe nothing in changing inputs; None if that holds for all.
    room:      as `run`, with outputs of the same shape, type and order whose elements are not computed; None if `run`
               is as cheap.
    """

    run: Callable[[Inputs], Any]
    complete: Complete
    shown: tuple[Operation | NativeSection, ...]
    stages: tuple[Stage, ...] = ()
    plain: Callable[[Inputs], bool] | None = None
    room: Callable[[Inputs], Any] | None = None

    def read(self, inputs: Sequence[Part | None]) -> Inputs:
        """Read the inputs for `run`. Constants that no stage reads, since they were packed, stay in their file."""
        if not any(isinstance(part, StoredArray) for part in inputs):
            return inputs
        places = {value for stage in self.stages for value in stage.inputs}
        every = not isinstance(self.run, StagesRun)
        return [hold(part) if every or index in places else part for index, part in enumerate(inputs)]

    @property
    def sections(self) -> tuple[NativeSection, ...]:
        """The sections that a profile shows of the kernel."""
        told = ((part,) if isinstance(part, NativeSection) else _sections(part) for part in self.shown)
        return tuple([section for sections in told for section in sections])


@frozen
class LoweringContext:
    """The argument of a lowering: a node with known inputs.

    inputs:     an array for each of the operator's parameters, None where omitted; fixed: those that never change.
    names:      the parameters' names.
    attributes: all attributes, with their defaults.
    reference:  calls the reference kernel with (inputs, context) and these attributes.
    memo:       keeps results for the same constants and other shapes, from earlier kernels of this node.
    narrow:     float16 or bfloat16, the node's type, if its inputs of that type are given as float32; else None.
    results:    the types of the outputs, as far as the operator's declaration states them."""

    engine: Engine
    inputs: tuple[Any, ...]
    fixed: tuple[bool, ...]
    names: tuple[str, ...]
    attributes: Mapping[str, Any]
    ctx: Context
    reference: Callable[[Inputs, Context], Any]
    memo: Memo = field(default_factory=Memo)
    narrow: np.dtype[Any] | None = None
    results: tuple[np.dtype[Any] | None, ...] = ()

    def input_record(self, kind: type[T]) -> T:
        """The inputs as an instance of `kind`, the operator's record of them."""
        return kind(*self.inputs)

    def require_constants(self) -> None:
        """Raise Declined unless all inputs but the first are constant."""
        for index in range(1, len(self.fixed)):
            self.require_constant(index)

    def require_constant(self, index: int) -> None:
        """Raise Declined unless input number `index` is constant."""
        if not self.fixed[index]:
            raise decline_error(f"{self.names[index]} is not constant")

    def afford(self, nbytes: int) -> None:
        """Raise Declined if the run must not take this much memory."""
        try:
            self.ctx.claim((nbytes,), 1, "native kernel")
        except MemoryLimitError:
            raise decline_error("its tables need more memory than is allowed") from None


class _Lowering:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def __call__(self, site: LoweringContext) -> NativeKernel:
        return self._lowering(site)


class OfShapes(_Lowering):
    """A lowering that depends on shapes and types of inputs, never on values, so that nodes with other constants share
    its kernel."""


class EveryType(_Lowering):
    """A lowering that takes float16 and bfloat16 itself. Others get the same numbers as float32 (narrow.py)."""


def kernel_of(site: LoweringContext, operation: Operation, operands: Sequence[int], complete: Complete) -> NativeKernel:
    """The kernel that runs an operation on the node's inputs of these numbers."""
    from qrun.native.machine.operation import size

    engine, (*sources, result) = site.engine, operation.operands
    orders = [(result, operation.result_order)]
    if operation.source_order == "channels":
        orders += [(source, operation.source_order) for source in sources]
    site.afford(sum(size(o.memory_shape(order)) * o.dtype.itemsize + 4096 for o, order in orders))
    _must_reach(operation)
    stages = (Stage(operation, tuple(operands)),)
    run = StagesRun(engine, stages)
    return NativeKernel(run, complete, (operation,), stages, room=run.room)


_NOT_MADE = np.empty(0, np.float32)
"""Stands for an output that is not wanted, if a later one is."""


@frozen
class StagesRun:
    """Runs stages one after the other: maps all inputs of a node to its output, or to a tuple of its outputs."""

    engine: Engine
    stages: tuple[Stage, ...]

    def __call__(self, inputs: Inputs) -> Any:
        made: dict[int | str, Array] = {}
        for stage in self.stages:
            arrays = [inputs[value] if isinstance(value, int) else made[value] for value in stage.inputs]
            made[stage.output] = self.engine.run(stage.operation, [array for array in arrays if array is not None])
        return self._outputs(made)

    def room(self, inputs: Inputs) -> Any:
        """The outputs of a run, with elements that are not computed."""
        shown = [stage for stage in self.stages if isinstance(stage.output, int)]
        return self._outputs({stage.output: self.engine.room(stage.operation)[1] for stage in shown})

    def _outputs(self, made: Mapping[int | str, Array]) -> Any:
        """The node's outputs: one array or a tuple; outputs not asked for are placeholders."""
        count = 1 + max(stage.output for stage in self.stages if isinstance(stage.output, int))
        return made[0] if count == 1 else tuple(made.get(index, _NOT_MADE) for index in range(count))


def with_sizes_of(own: NativeKernel, other: NativeKernel) -> NativeKernel | None:
    """The kernel `own` with the sizes of `other`, a kernel that differs only in sizes and constants; None if the node
    must be lowered anew."""
    if not isinstance(own.run, StagesRun) or not isinstance(other.run, StagesRun) or own.plain or other.plain:
        return None
    if len(own.stages) != len(other.stages):
        return None
    memo, stages = Memo(), []
    for mine, like in zip(own.stages, other.stages, strict=True):
        operation = mine.operation.with_sizes_of(like.operation, memo)
        if operation is None or (mine.inputs, mine.output) != (like.inputs, like.output):
            return None
        stages.append(Stage(operation, mine.inputs, mine.output))
    run, shown = StagesRun(own.run.engine, tuple(stages)), stages[-1].operation
    if own.shown != (own.stages[-1].operation,):
        return None
    return NativeKernel(run, own.complete, (shown,), run.stages, room=run.room)


def _must_reach(operation: Operation) -> None:
    """Raise if the operation's calls do not write their whole result."""
    from qrun.native.machine.operation import must_reach, size

    must_reach(operation.tight, size(operation.result.shape) * operation.result.dtype.itemsize)


def _sections(shown: Operation) -> Iterator[NativeSection]:
    """The sections that a profile shows of an operation: one for each kernel call."""
    for call in shown.tight:
        yield NativeSection(call.spec.key(), call.spec.shown_form, call.first, call.channels, call.why)


def staged_kernel(
    site: LoweringContext,
    stages: Sequence[Stage],
    shown: Sequence[Operation],
    complete: Complete,
    plain: Callable[[Inputs], bool] | None = None,
) -> NativeKernel:
    """The kernel that runs stages one after the other. shown: the operations whose kernel calls a profile names."""
    from qrun.native.machine.operation import size

    for stage in stages:
        result = stage.operation.result
        site.afford(size(result.shape) * result.dtype.itemsize + 4096)
        _must_reach(stage.operation)
    run = StagesRun(site.engine, tuple(stages))
    return NativeKernel(run, complete, tuple(shown), run.stages, plain, run.room)


def operand(x: Array) -> Operand:
    """The engine's description of an array: its shape and type."""
    from qrun.native.machine.operation import Operand

    return Operand(x.shape, x.dtype)


def elementwise_of(site: LoweringContext, name: str, *arrays: Array, constants: Sequence[float] = ()) -> Elementwise:
    """The operation that applies a function of native/emit/functions.py to the elements of these arrays."""
    from qrun.native.kernels.elementwise import Elementwise

    return Elementwise(site.engine, name, [operand(x) for x in arrays], constants)


def decline_error(reason: str) -> Exception:
    """The exception that says why there is no native kernel."""
    return Declined(reason)


def require_type(fits: bool, dtype: np.dtype[Any], what: str = "kernel for {}") -> None:
    """Raise Declined unless `fits`. what: completes the reason "no native ...", as in ``pools of {}``, where {} stands
    for the type."""
    if not fits:
        raise decline_error(f"no native {what.format(type_name(dtype))}")


def require_copied(dtype: np.dtype[Any]) -> None:
    """Raise Declined for elements of a size that copies do not support, and for strings."""
    from qrun.native.kernels.copy import SIZES

    require_type(dtype.itemsize in SIZES and not dtype.hasobject, dtype, "copies of {}")


def require_shape(made: Sequence[int], expected: Sequence[int]) -> None:
    """Raise Declined if the engine's result has another shape than the reference kernel's."""
    if tuple(made) != tuple(expected):
        raise decline_error("its output shape is an unusual one")


def quiet(site: LoweringContext) -> Context:
    """A context that observes nothing, for checks of parameters that may change in the next run."""
    return replace(site.ctx, observing=False)


def transposed_kernel(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], turns: Mapping[int, Sequence[int]]
) -> NativeKernel:
    """The one-stage kernel on these operands, some of which are transposed first. turns: their permutations."""
    return kernel_after(
        site, kernel, operands, {index: transpose_stage(site, index, perm) for index, perm in turns.items()}
    )


def kernel_after(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], before: Mapping[int, Stage]
) -> NativeKernel:
    """The one-stage kernel on these operands, some of which come from stages. before: these stages, by place."""
    names: dict[int, int | str] = {index: stage.output for index, stage in before.items()}
    last = replace(kernel.stages[0], inputs=tuple(names.get(index, index) for index in operands))
    return staged_kernel(site, [*before.values(), last], [last.operation], kernel.complete)


def between_turns(site: LoweringContext, kernel: NativeKernel, perm: Sequence[int]) -> NativeKernel:
    """The one-stage kernel on the first input transposed by `perm`, with its result transposed back."""
    from qrun.native.kernels.copy import transpose_copy

    (stage,), back = kernel.stages, [perm.index(axis) for axis in range(len(perm))]
    made = stage.operation.result
    last = Stage(transpose_copy(site.engine, made.shape, made.dtype, back), ("made",))
    stages = (transpose_stage(site, 0, perm), Stage(stage.operation, ("turned 0",), "made"), last)
    return staged_kernel(site, stages, [stage.operation], kernel.complete)


def transpose_stage(site: LoweringContext, index: int, perm: Sequence[int] = (1, 0)) -> Stage:
    """The stage that transposes the input of this number, which is a matrix unless `perm` is given."""
    from qrun.native.kernels.copy import transpose_copy

    x = site.inputs[index]
    return Stage(transpose_copy(site.engine, x.shape, x.dtype, perm), (index,), f"turned {index}")
