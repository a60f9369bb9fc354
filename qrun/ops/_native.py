"""Native lowerings: what they are given, the kernels they return, and the steps that several operators share.

A lowering runs at the node's first execution with new shapes. It makes the reference kernel's own checks, then
returns a NativeKernel or raises Declined with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.errors import MemoryLimitError
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, Complete
from qrun.ops._context import Context

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operation, Order

T = TypeVar("T")
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
    room:      all inputs of the node to its output or outputs as `run` makes them, but for their elements; None: `run` is as
               cheap.
    """

    run: Callable[[Inputs], Any]
    complete: Complete
    sections: tuple[NativeSection, ...]
    stages: tuple[Stage, ...] = ()
    plain: Callable[[Inputs], bool] | None = None
    room: Callable[[Inputs], Any] | None = None


@frozen
class LoweringContext:
    """A node whose inputs are known.

    inputs:     an array for each of the operator's parameters, None where omitted; fixed: those that never change.
    names:      the parameters' names.
    attributes: all of them, with their defaults.
    reference:  (inputs, context) to what the reference kernel makes, with these attributes.
    memo:       what earlier kernels of this node made of the same constants, for other shapes.
    narrow:     the type of the node's floats, where its inputs are given as float32 in place of a narrower one.
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
    """A lowering that looks at shapes and types of inputs, never at values: nodes with other constants share its kernel."""


class EveryType(_Lowering):
    """A lowering that takes float16 and bfloat16 itself. Others are given the same numbers as float32 (_native_narrow.py)."""


def kernel_of(site: LoweringContext, operation: Operation, operands: Sequence[int], complete: Complete) -> NativeKernel:
    """The kernel that runs an operation on the node's inputs of these numbers."""
    from qrun.native.machine.operation import must_reach

    engine, (*sources, result) = site.engine, operation.operands
    orders = [(result, operation.result_order)]
    if operation.source_order == "channels":
        orders += [(source, operation.source_order) for source in sources]
    site.afford(sum(int(np.prod(o.stored(order), dtype=np.int64)) * o.dtype.itemsize + 4096 for o, order in orders))
    must_reach(operation.tight, int(np.prod(result.shape, dtype=np.int64)) * result.dtype.itemsize)
    sections = tuple(
        NativeSection(s.spec.key(), s.spec.shown_form, s.first, s.channels, s.why) for s in operation.tight
    )

    def run(inputs: Inputs) -> Array:
        arrays = [array for array in (inputs[place] for place in operands) if array is not None]
        return engine.run(operation, arrays)

    def room(inputs: Inputs) -> Array:
        return engine.room(operation)[1]

    return NativeKernel(run, complete, sections, (Stage(operation, tuple(operands)),), room=room)


_NOT_MADE = np.empty(0, np.float32)
"""An output before the last one that nobody asked for."""


def staged_kernel(
    site: LoweringContext,
    stages: Sequence[Stage],
    shown: Sequence[Operation],
    complete: Complete,
    plain: Callable[[Inputs], bool] | None = None,
) -> NativeKernel:
    """The kernel that runs stages one after the other. shown: the operations whose kernel calls a profile names."""
    from qrun.native.machine.operation import must_reach

    engine = site.engine
    for stage in stages:
        result = stage.operation.result
        nbytes = int(np.prod(result.shape, dtype=np.int64)) * result.dtype.itemsize
        site.afford(nbytes + 4096)
        must_reach(stage.operation.tight, nbytes)
    sections = tuple(
        NativeSection(s.spec.key(), s.spec.shown_form, s.first, s.channels, s.why) for o in shown for s in o.tight
    )
    count = 1 + max(stage.output for stage in stages if isinstance(stage.output, int))

    def run(inputs: Inputs) -> Any:
        made: dict[int | str, Array] = {}
        for stage in stages:
            arrays = [inputs[value] if isinstance(value, int) else made[value] for value in stage.inputs]
            made[stage.output] = engine.run(stage.operation, [array for array in arrays if array is not None])
        return made[0] if count == 1 else tuple(made.get(place, _NOT_MADE) for place in range(count))

    def room(inputs: Inputs) -> Any:
        made = {stage.output: engine.room(stage.operation)[1] for stage in stages if isinstance(stage.output, int)}
        return made[0] if count == 1 else tuple(made.get(place, _NOT_MADE) for place in range(count))

    return NativeKernel(run, complete, sections, tuple(stages), plain, room)


def declined(reason: str) -> Exception:
    from qrun.native.errors import Declined

    return Declined(reason)


def quiet(site: LoweringContext) -> Context:
    """A context for checks of parameters that may be others in the next run: it observes nothing."""
    return replace(site.ctx, observing=False)


_SIZES = (1, 2, 4, 8)
INDICES = 1 << 16
"""Of the axes of a result whose elements are named one by one: each has an index, or some and their weights."""
_AXES = 5
"""Of so many axes every copy is possible; of more, it must be tried."""


def moving_kernel(site: LoweringContext, operation: Callable[[Array, Array], Operation]) -> NativeKernel:
    """The kernel of an operator that moves its first input by constants; operation: of the input and its result."""
    x = site.inputs[0]
    y = np.asarray(site.reference(site.inputs, site.ctx))
    site.require_constants()
    if x.dtype.itemsize not in _SIZES or x.dtype.hasobject:
        raise declined(f"no native copies of {type_name(x.dtype)}")

    def run(inputs: Inputs) -> Array:
        return np.asarray(site.reference(inputs, Context(site.ctx.arith, site.ctx.version)))

    made = operation(x, y)
    if not made.view and x.ndim > _AXES:
        _ = made.tight
    return NativeKernel(run, ALWAYS, (), (Stage(made, (0,)),))


def view_kernel(site: LoweringContext) -> NativeKernel:
    """The kernel of an operator that gives its input another shape."""
    from qrun.native.kernels.copy import view

    return moving_kernel(site, lambda x, y: view(site.engine, x.shape, y.shape, x.dtype))


def transpose_kernel(site: LoweringContext, perm: Sequence[int]) -> NativeKernel:
    from qrun.native.kernels.copy import transposed

    return moving_kernel(site, lambda x, y: transposed(site.engine, x.shape, x.dtype, perm))


def slice_kernel(site: LoweringContext, cuts: Callable[[], Sequence[slice]]) -> NativeKernel:
    from qrun.native.kernels.copy import sliced

    def operation(x: Array, y: Array) -> Operation:
        bounds = [cut.indices(n) for cut, n in zip(cuts(), x.shape, strict=True)]
        starts = [start if n else 0 for (start, _, _), n in zip(bounds, y.shape, strict=True)]
        return sliced(site.engine, x.shape, x.dtype, starts, [step for _, _, step in bounds], y.shape, _order(x))

    return moving_kernel(site, operation)


def pad_kernel(
    site: LoweringContext,
    value: Callable[[], Array],
    amounts: Callable[[], tuple[list[int], list[int]]],
) -> NativeKernel:
    from qrun.native.kernels.copy import padded

    return moving_kernel(site, lambda x, y: padded(site.engine, x.shape, value(), *amounts(), _order(x)))


def indexed_kernel(site: LoweringContext, places: Mapping[int, Array]) -> NativeKernel:
    """The kernel of an operator that takes elements of its first input by indices along some axes, and all along others."""
    from qrun.native.errors import Declined
    from qrun.native.kernels.indexed import Indexed
    from qrun.native.machine.operation import Operand

    x = site.inputs[0]
    if x.dtype.itemsize not in _SIZES or x.dtype.hasobject:
        raise declined(f"no native copies of {type_name(x.dtype)}")

    def made(order: Order) -> Indexed:
        return Indexed(site.engine, Operand(x.shape, x.dtype), [places.get(a) for a in range(x.ndim)], order)

    operation = made("any")
    try:
        _ = operation.tight, operation.lying("channels").tight
    except Declined:
        operation = made("plain")
    return kernel_of(site, operation, (0,), ALWAYS)


def _order(x: Array) -> Order:
    return "any" if x.ndim <= _AXES else "plain"
