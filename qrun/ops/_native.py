"""Native lowerings: what they are given, the kernels they return, and the steps that several operators share.

A lowering runs at the node's first execution with new shapes. It makes the reference kernel's own checks, then
returns a NativeKernel or raises Declined with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.errors import MemoryLimitError
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, NEVER, Complete, FewEnds
from qrun.ops._context import Context
from qrun.ops._window import SlidingWindow

if TYPE_CHECKING:
    from qrun.native.kernels.conv import Conv
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operation
    from qrun.native.proof.epilogue import Target

_GROUPS = 256
_OUT = {np.dtype(np.uint8): "u8", np.dtype(np.int8): "s8"}

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
    """

    run: Callable[[Inputs], Any]
    complete: Complete
    sections: tuple[NativeSection, ...]
    stages: tuple[Stage, ...] = ()
    plain: Callable[[Inputs], bool] | None = None


@frozen
class LoweringContext:
    """A node whose inputs are known.

    inputs:     an array for each of the operator's parameters, None where omitted; fixed: those that never change.
    names:      the parameters' names.
    attributes: all of them, with their defaults.
    reference:  (inputs, context) to what the reference kernel makes, with these attributes.
    memo:       what earlier kernels of this node made of the same constants, for other shapes.
    """

    engine: Engine
    inputs: tuple[Any, ...]
    fixed: tuple[bool, ...]
    names: tuple[str, ...]
    attributes: Mapping[str, Any]
    ctx: Context
    reference: Callable[[Inputs, Context], Any]
    memo: Memo = field(default_factory=Memo)

    def require_constants(self, first: int = 1) -> None:
        """Declined if an input, from number `first` on, is not constant."""
        for place in range(first, len(self.fixed)):
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

    return NativeKernel(run, complete, sections, (Stage(operation, tuple(operands)),))


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
        return made[0] if count == 1 else tuple(made[place] for place in range(count))

    return NativeKernel(run, complete, sections, tuple(stages), plain)


def turned_kernel(
    site: LoweringContext, kernel: NativeKernel, operands: Sequence[int], turns: Mapping[int, Sequence[int]]
) -> NativeKernel:
    """The kernel, of one stage, for operands of which those at the places `turns` are transposed so first."""
    before = [turning(site, place, perm) for place, perm in turns.items()]
    names: dict[int, int | str] = {place: stage.output for place, stage in zip(turns, before, strict=True)}
    last = replace(kernel.stages[0], inputs=tuple(names.get(place, place) for place in operands))

    def run(inputs: Inputs) -> Array:
        arrays = [x if x is None or place not in turns else x.transpose(turns[place]) for place, x in enumerate(inputs)]
        return np.asarray(kernel.run(arrays))

    return replace(kernel, run=run, stages=(*before, last))


def turning(site: LoweringContext, place: int, perm: Sequence[int] = (1, 0)) -> Stage:
    """What transposes the input of this number, a matrix unless `perm` says more."""
    from qrun.native.kernels.copy import transposed

    x = site.inputs[place]
    return Stage(transposed(site.engine, x.shape, x.dtype, perm), (place,), f"turned {place}")


def declined(reason: str) -> Exception:
    from qrun.native.errors import Declined

    return Declined(reason)


def conv_kernel(
    site: LoweringContext,
    x: Array,
    w: Array,
    zeros: tuple[Array | None, Array | None],
    bias: Array | None,
    win: SlidingWindow,
    target: Target | None,
    *,
    channels_last: bool = False,
) -> NativeKernel:
    """The kernel of a checked convolution; site.inputs[0] is x, perhaps with other axes."""
    from qrun.native.kernels.conv import ChannelsLast

    conv = planned_conv(site, x, w, zeros, bias, win, target, memo=site.memo)
    return kernel_of(site, ChannelsLast(conv) if channels_last else conv, (0,), completeness(conv.may_wrap, target))


def planned_conv(
    site: LoweringContext,
    x: Array,
    w: Array,
    zeros: tuple[Array | None, Array | None],
    bias: Array | None,
    win: SlidingWindow,
    target: Target | None,
    **options: Any,
) -> Conv:
    """A checked convolution as the engine plans it."""
    from qrun.native.kernels.conv import Conv
    from qrun.native.kernels.layout import planning_bytes

    group, channels = int(site.attributes["group"]), w.shape[0]
    if group > _GROUPS and not (channels == group and w.shape[1] == 1):
        raise declined(f"more than {_GROUPS} groups")
    site.afford(planning_bytes(w.shape, group, int(np.prod(win.out, dtype=np.int64)), site.engine.isa.lanes))
    x_zero = np.zeros((), x.dtype) if zeros[0] is None else zeros[0]
    conv = Conv(
        site.engine,
        x.shape,
        w,
        x_zero_point=x_zero,
        w_zero_point=zeros[1],
        bias=bias,
        target=target,
        group=group,
        strides=win.strides,
        dilations=win.dilations,
        pads=(*win.begin, *win.end),
        **options,
    )
    if conv.y_shape != (x.shape[0], channels, *win.out):
        raise declined("its output shape is an unusual one")
    return conv


def gemm_kernel(
    site: LoweringContext,
    a: Array,
    b: Array,
    zeros: tuple[Array | None, Array | None],
    bias: Array | None,
    target: Target | None,
    *,
    transpose: bool = False,
) -> NativeKernel:
    """The kernel of a checked product of a [...,K] and the constant matrix b [K,N]; site.inputs[0] is a, or a.T."""
    from qrun.native.kernels.conv import Gemm

    if b.ndim != 2:
        raise declined("the constant operand is not a matrix")
    if zeros[0] is not None and zeros[0].ndim:
        raise declined("the zero point of the first operand is per row")
    rows, columns = int(np.prod(a.shape[:-1], dtype=np.int64)), b.shape[1]
    site.afford(rows * 36 + b.size * 16 + columns * 8192)
    site.ctx.claim((rows, columns), 8 if target is None else 2, "native product")
    x_zero = np.zeros((), a.dtype) if zeros[0] is None else zeros[0]
    gemm = Gemm(
        site.engine, a.shape, b, x_zero_point=x_zero, w_zero_point=zeros[1], bias=bias, target=target, memo=site.memo
    )
    kernel = kernel_of(site, gemm, (0,), completeness(gemm.conv.may_wrap, target))
    return turned_kernel(site, kernel, (0,), {0: (1, 0)}) if transpose else kernel


def quiet(site: LoweringContext) -> Context:
    """A context for checks of parameters that may be others in the next run: it observes nothing."""
    return replace(site.ctx, observing=False)


def native_target(site: LoweringContext, x_scale: Array, w_scale: Array, y_scale: Array, y_zero: Array) -> Target:
    """The requantization of checked parameters: all scalars, but w_scale may have one value per channel."""
    from qrun.native.proof.epilogue import Target

    out = _OUT.get(y_zero.dtype)
    if out is None:
        raise declined(f"no native {type_name(y_zero.dtype)} results")
    if site.ctx.arith == "onnx-ref":
        raise declined("no native kernels for onnx-ref arithmetic")
    if x_scale.ndim:
        raise declined("the scale of the first operand is per row")
    return Target(_number(x_scale), w_scale.reshape(-1), _number(y_scale), out, int(y_zero), site.ctx.arith)


def _number(scale: Array) -> np.float32:
    if scale.dtype != np.float32:
        raise declined(f"no native {type_name(scale.dtype)} scales")
    return np.float32(scale)


def completeness(may_wrap: bool, target: Target | None) -> Complete:
    """Conservative: where sums may wrap, or a multiplier gives NaN, no result is complete."""
    if may_wrap or not (target is None or _is_finite(target)):
        return NEVER
    if target is None:
        return ALWAYS
    return FewEnds.of(np.dtype(np.uint8 if target.out == "u8" else np.int8), target.zero_point)


def _is_finite(target: Target) -> bool:
    dtype = np.float32 if target.arith == "ort" else np.float64
    with np.errstate(all="ignore"):
        m = np.asarray(target.x_scale, dtype) * target.w_scale.astype(dtype) / np.asarray(target.y_scale, dtype)
    return bool(np.isfinite(m).all())
