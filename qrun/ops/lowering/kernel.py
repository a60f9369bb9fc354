"""Native lowerings: what they are given, the kernels they return, and how a kernel is made of operations.

A lowering runs at the node's first execution with new shapes. It makes the reference kernel's own checks, then
returns a NativeKernel or raises Declined with the reason.
"""

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
    """Output channels that share a machine-code kernel, the form in which it requantizes, and why that is not a cheaper
    one ("" if it is the cheapest, or the only one)."""

    kernel: str
    form: str
    first: int
    channels: int
    why: str = ""


@frozen
class Stage:
    """An operation of a kernel: it reads and makes the node's inputs and outputs by number, or other values by name."""

    operation: Operation
    inputs: tuple[int | str, ...]
    output: int | str = 0


@frozen
class NativeKernel:
    """A node's native kernel for fixed input shapes.

    run:       all inputs of the node to its output, or to a tuple of its outputs.
    complete:  whether a result leaves the reference kernel nothing to observe (wrap-around, NaN, saturation).
    stages:    what `run` does, for programs that place operands themselves; none if `run` does more than that.
    plain:     whether inputs that may change leave the reference kernel nothing to observe; None if all of them do.
    room:      as `run`, but the elements of the outputs, of the same shape, type and order, are not computed; None:
               `run` is as cheap.
    """

    run: Callable[[Inputs], Any]
    complete: Complete
    shown: tuple[Operation | NativeSection, ...]
    stages: tuple[Stage, ...] = ()
    plain: Callable[[Inputs], bool] | None = None
    room: Callable[[Inputs], Any] | None = None

    def read(self, inputs: Sequence[Part | None]) -> Inputs:
        """The inputs as `run` takes them: what was packed, so that no stage reads it, stays in its file."""
        if not any(isinstance(part, StoredArray) for part in inputs):
            return inputs
        places = {value for stage in self.stages for value in stage.inputs}
        every = not isinstance(self.run, StagesRun)
        return [hold(part) if every or place in places else part for place, part in enumerate(inputs)]

    @property
    def sections(self) -> tuple[NativeSection, ...]:
        """What a profile says of it."""
        told = ((part,) if isinstance(part, NativeSection) else _sections(part) for part in self.shown)
        return tuple([section for sections in told for section in sections])


@frozen
class LoweringContext:
    """A node whose inputs are known.

    inputs:     an array for each of the operator's parameters, None where omitted; fixed: those that never change.
    names:      the parameters' names.
    attributes: all of them, with their defaults.
    reference:  (inputs, context) to what the reference kernel makes, with these attributes.
    memo:       what earlier kernels of this node made of the same constants, for other shapes.
    narrow:     float16 or bfloat16, the node's type, if its inputs of that type are given as float32; else None.
    results:    the types of the outputs, as far as the operator's declaration states them.
    """

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

    def given(self, kind: type[T]) -> T:
        """The inputs as the operator's record of them."""
        return kind(*self.inputs)

    def require_constants(self) -> None:
        """Declined if an input but the first is not constant."""
        for place in range(1, len(self.fixed)):
            self.require_constant(place)

    def require_constant(self, place: int) -> None:
        """Declined if input number `place` is not constant."""
        if not self.fixed[place]:
            raise declined(f"{self.names[place]} is not constant")

    def afford(self, nbytes: int) -> None:
        """Declined if the run may not take so much memory."""
        try:
            self.ctx.claim((nbytes,), 1, "native kernel")
        except MemoryLimitError:
            raise declined("its tables need more memory than is allowed") from None


class _Lowering:
    def __init__(self, lowering: Lowering) -> None:
        self._lowering = lowering

    def __call__(self, site: LoweringContext) -> NativeKernel:
        return self._lowering(site)


class OfShapes(_Lowering):
    """A lowering that looks at shapes and types of inputs, never at values:
    nodes with other constants share its kernel."""


class EveryType(_Lowering):
    """A lowering that takes float16 and bfloat16 itself. Other lowerings are given the same numbers as float32
    (narrow.py)."""


def kernel_of(site: LoweringContext, operation: Operation, operands: Sequence[int], complete: Complete) -> NativeKernel:
    """The kernel that runs an operation on the node's inputs of these numbers."""
    from qrun.native.machine.operation import size

    engine, (*sources, result) = site.engine, operation.operands
    orders = [(result, operation.result_order)]
    if operation.source_order == "channels":
        orders += [(source, operation.source_order) for source in sources]
    site.afford(sum(size(o.stored(order)) * o.dtype.itemsize + 4096 for o, order in orders))
    _must_reach(operation)
    stages = (Stage(operation, tuple(operands)),)
    run = StagesRun(engine, stages)
    return NativeKernel(run, complete, (operation,), stages, room=run.room)


_NOT_MADE = np.empty(0, np.float32)
"""An output before the last one that nobody asked for."""


@frozen
class StagesRun:
    """What runs stages one after the other: all inputs of a node to its output, or to a tuple of its outputs."""

    engine: Engine
    stages: tuple[Stage, ...]

    def __call__(self, inputs: Inputs) -> Any:
        made: dict[int | str, Array] = {}
        for stage in self.stages:
            arrays = [inputs[value] if isinstance(value, int) else made[value] for value in stage.inputs]
            made[stage.output] = self.engine.run(stage.operation, [array for array in arrays if array is not None])
        return self._outputs(made)

    def room(self, inputs: Inputs) -> Any:
        """The outputs as a run makes them, but their elements are not computed."""
        shown = [stage for stage in self.stages if isinstance(stage.output, int)]
        return self._outputs({stage.output: self.engine.room(stage.operation)[1] for stage in shown})

    def _outputs(self, made: Mapping[int | str, Array]) -> Any:
        count = 1 + max(stage.output for stage in self.stages if isinstance(stage.output, int))
        return made[0] if count == 1 else tuple(made.get(place, _NOT_MADE) for place in range(count))


def sized_as(own: NativeKernel, other: NativeKernel) -> NativeKernel | None:
    """The kernel `own` for operands of the sizes that `other` has, a kernel that differs in sizes and constants only;
    None if the node must be lowered anew."""
    if not isinstance(own.run, StagesRun) or not isinstance(other.run, StagesRun) or own.plain or other.plain:
        return None
    if len(own.stages) != len(other.stages):
        return None
    memo, stages = Memo(), []
    for mine, like in zip(own.stages, other.stages, strict=True):
        operation = mine.operation.sized_as(like.operation, memo)
        if operation is None or (mine.inputs, mine.output) != (like.inputs, like.output):
            return None
        stages.append(Stage(operation, mine.inputs, mine.output))
    run, shown = StagesRun(own.run.engine, tuple(stages)), stages[-1].operation
    if own.shown != (own.stages[-1].operation,):
        return None
    return NativeKernel(run, own.complete, (shown,), run.stages, room=run.room)


def _must_reach(operation: Operation) -> None:
    from qrun.native.machine.operation import must_reach, size

    must_reach(operation.tight, size(operation.result.shape) * operation.result.dtype.itemsize)


def _sections(shown: Operation) -> Iterator[NativeSection]:
    """What a profile says of the kernel calls of an operation."""
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
    """An array as the engine's operations take it: its shape and type."""
    from qrun.native.machine.operation import Operand

    return Operand(x.shape, x.dtype)


def elementwise_of(site: LoweringContext, name: str, *arrays: Array, constants: Sequence[float] = ()) -> Elementwise:
    """A function of native/emit/functions.py of the elements of these arrays."""
    from qrun.native.kernels.elementwise import Elementwise

    return Elementwise(site.engine, name, [operand(x) for x in arrays], constants)


def declined(reason: str) -> Exception:
    return Declined(reason)


def require_type(fits: bool, dtype: np.dtype[Any], what: str = "kernel for {}") -> None:
    """Declined unless the type fits. what: what there is no native one of, as in ``pools of {}``;
    {} stands for the type."""
    if not fits:
        raise declined(f"no native {what.format(type_name(dtype))}")


def require_copied(dtype: np.dtype[Any]) -> None:
    """Declined for elements of a size that copies do not take, and for strings."""
    from qrun.native.kernels.copy import SIZES

    require_type(dtype.itemsize in SIZES and not dtype.hasobject, dtype, "copies of {}")


def require_shape(made: Sequence[int], expected: Sequence[int]) -> None:
    """Declined where the engine makes a result of another shape than the reference kernel."""
    if tuple(made) != tuple(expected):
        raise declined("its output shape is an unusual one")


def quiet(site: LoweringContext) -> Context:
    """A context for checks of parameters that may be others in the next run: it observes nothing."""
    return replace(site.ctx, observing=False)


def turned_kernel(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], turns: Mapping[int, Sequence[int]]
) -> NativeKernel:
    """The one-stage kernel, reading these operands; `turns` has the permutations of those to transpose first."""
    return preceded(site, kernel, operands, {place: turning(site, place, perm) for place, perm in turns.items()})


def preceded(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], before: Mapping[int, Stage]
) -> NativeKernel:
    """The one-stage kernel, reading these operands; `before` has, by place, the stages that make some of them."""
    names: dict[int, int | str] = {place: stage.output for place, stage in before.items()}
    last = replace(kernel.stages[0], inputs=tuple(names.get(place, place) for place in operands))
    return staged_kernel(site, [*before.values(), last], [last.operation], kernel.complete)


def between_turns(site: LoweringContext, kernel: NativeKernel, perm: Sequence[int]) -> NativeKernel:
    """The one-stage kernel on the first input transposed by `perm`, with its result transposed back."""
    from qrun.native.kernels.copy import transposed

    (stage,), back = kernel.stages, [perm.index(axis) for axis in range(len(perm))]
    made = stage.operation.result
    last = Stage(transposed(site.engine, made.shape, made.dtype, back), ("made",))
    stages = (turning(site, 0, perm), Stage(stage.operation, ("turned 0",), "made"), last)
    return staged_kernel(site, stages, [stage.operation], kernel.complete)


def turning(site: LoweringContext, place: int, perm: Sequence[int] = (1, 0)) -> Stage:
    """The stage that transposes the input of this number, which is a matrix unless `perm` is given."""
    from qrun.native.kernels.copy import transposed

    x = site.inputs[place]
    return Stage(transposed(site.engine, x.shape, x.dtype, perm), (place,), f"turned {place}")
