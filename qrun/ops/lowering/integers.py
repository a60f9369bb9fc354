"""Native lowerings of integer convolutions and matrix products: the requantization of sums, zero points or right
operands that are known only in the run, float32 results, and dynamic quantization."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._complete import ALWAYS, NEVER, Complete, FewEnds, Settled
from qrun.ops._context import Context, note_scale
from qrun.ops._matmul import matmul_shape
from qrun.ops._window import SlidingWindow
from qrun.ops.lowering.kernel import (
    EIGHT,
    Inputs,
    LoweringContext,
    NativeKernel,
    Stage,
    decline_error,
    kernel_of,
    require_shape,
    require_type,
    staged_kernel,
    transpose_stage,
    transposed_kernel,
)
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.native.kernels.conv import Conv
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operand, Operation
    from qrun.native.proof.epilogue import Target

_GROUPS = 256


def plan_conv(
    site: LoweringContext,
    x: Array,
    w: Array,
    zeros: tuple[Array | None, Array | None],
    win: SlidingWindow,
    bias: Array | None = None,
    target: Target | None = None,
    **options: Any,
) -> Conv:
    """The engine's plan of a checked convolution. options: `kinds` and `stores` of Conv."""
    from qrun.native.kernels.conv import Conv, planning_bytes

    group, channels = int(site.attributes["group"]), w.shape[0]
    if group > _GROUPS and not (channels == group and w.shape[1] == 1):
        raise decline_error(f"more than {_GROUPS} groups")
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
        memo=site.memo,
        **win.geometry(group),
        **options,
    )
    require_shape(conv.result.shape, (x.shape[0], channels, *win.out))
    return conv


def conv_kernel(
    site: LoweringContext, conv: Conv, target: Target | None = None, *, channels_last: bool = False
) -> NativeKernel:
    """The kernel that runs the planned `conv` on site.inputs[0]. target: the one that `conv` was planned with, which
    decides which results are complete. channels_last: input and result have their channels last."""
    from qrun.native.kernels.conv import ChannelsLast

    return kernel_of(site, ChannelsLast(conv) if channels_last else conv, (0,), completeness(conv.may_wrap, target))


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
        raise decline_error("the constant operand is not a matrix")
    if zeros[0] is not None and zeros[0].ndim:
        raise decline_error("the zero point of the first operand is per row")
    rows, columns = int(np.prod(a.shape[:-1], dtype=np.int64)), b.shape[1]
    site.afford(rows * 36 + b.size * 16 + columns * 8192)
    site.ctx.claim((rows, columns), 8 if target is None else 2, "native product")
    x_zero = np.zeros((), a.dtype) if zeros[0] is None else zeros[0]
    gemm = Gemm(
        site.engine, a.shape, b, x_zero_point=x_zero, w_zero_point=zeros[1], bias=bias, target=target, memo=site.memo
    )
    kernel = kernel_of(site, gemm, (0,), completeness(gemm.conv.may_wrap, target))
    return transposed_kernel(site, kernel, (0,), {0: (1, 0)}) if transpose else kernel


def native_target(site: LoweringContext, x_scale: Array, w_scale: Array, y_scale: Array, y_zero: Array) -> Target:
    """The requantization of checked parameters: scalars, except that w_scale may have one value per channel. Raises
    Declined for result types, arithmetic and scales that kernels do not support."""
    from qrun.native.emit.spec import CODES
    from qrun.native.proof.epilogue import Target

    out = CODES.get(y_zero.dtype)
    if out is None:
        raise decline_error(f"no native {type_name(y_zero.dtype)} results")
    if site.ctx.arith not in ("exact", "ort"):
        raise decline_error(f"no native kernels for {site.ctx.arith} arithmetic")
    if x_scale.ndim:
        raise decline_error("the scale of the first operand is per row")
    return Target(_number(x_scale), w_scale.reshape(-1), _number(y_scale), out, int(y_zero), site.ctx.arith)


def _number(scale: Array) -> np.float32:
    """A float32 scale as a number. Raises Declined for other types."""
    require_type(scale.dtype == np.float32, scale.dtype, "{} scales")
    return np.float32(scale)


def completeness(may_wrap: bool, target: Target | None) -> Complete:
    """A conservative check of results: if sums may wrap, or a multiplier may give NaN, no result is complete."""
    if may_wrap or not (target is None or _is_finite(target)):
        return NEVER
    if target is None:
        return ALWAYS
    return FewEnds.of(np.dtype(np.uint8 if target.out == "u8" else np.int8), target.zero_point)


def _is_finite(target: Target) -> bool:
    """Whether all multipliers of a target are finite."""
    dtype = np.float32 if target.arith == "ort" else np.float64
    with np.errstate(all="ignore"):
        m = np.asarray(target.x_scale, dtype) * target.w_scale.astype(dtype) / np.asarray(target.y_scale, dtype)
    return bool(np.isfinite(m).all())


LIMIT = 2**31
"""The least positive sum that int32 does not hold."""


@frozen
class Given:
    """A value that comes with the run: the node's input of this number, or a stage's result of this name."""

    value: int | str
    operand: Operand

    @classmethod
    def input(cls, site: LoweringContext, index: int) -> Given:
        """The operand of a node's input."""
        from qrun.native.machine.operation import Operand

        array = site.inputs[index]
        return cls(index, Operand(array.shape, array.dtype))


class DynamicProduct:
    """The product of a checked node's operands, as stages of a program.

    a, b:    the operands, after those that are `turned` are transposed.
    places:  the inputs that are A, B, A's zero point and B's zero point; A and its zero point may come from stages.
    addend:  int32 [N], which is added to the sums.
    """

    def __init__(
        self,
        site: LoweringContext,
        a: Array,
        b: Array,
        places: tuple[int | str, int, int | Given, int],
        turned: tuple[bool, bool] = (False, False),
        addend: Array | None = None,
    ) -> None:
        if a.dtype not in EIGHT or b.dtype not in EIGHT:
            raise decline_error(f"no native {type_name(a.dtype if b.dtype in EIGHT else b.dtype)} products")
        self.site, self.a, self.b, self.places, self.turned, self.addend = site, a, b, places, turned, addend
        left, self.right = a[None, :] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
        lead = broadcast_shapes(left.shape[:-2], self.right.shape[:-2])
        self.k, self.n = left.shape[-1], self.right.shape[-1]
        self.rows = int(np.prod((*lead, left.shape[-2]), dtype=np.int64))
        nothing = np.broadcast_to(np.int32(0), (*lead, left.shape[-2], self.n))
        self.shape = matmul_shape(nothing, a, b).shape
        if not self.k * self.n * self.rows:
            raise decline_error("an empty product")

    @property
    def weighted(self) -> bool:
        """Whether B and its zero point are constant, and B is one matrix."""
        _, right, _, zero = self.places
        return self.site.fixed[right] and self.site.fixed[zero] and self.right.ndim == 2

    def _weights_zero(self) -> Array | None:
        """The weights' zero point as a vector; None if there is none."""
        zero = self.site.inputs[self.places[3]]
        return None if zero is None else zero.reshape(-1)

    def bounds(self) -> tuple[int, int]:
        """The least and the greatest possible sum, without wrapping."""
        if self.weighted:
            from qrun.native.kernels.conv import reach

            high = self.site.memo.once("reach", lambda: reach(self.right.T, self._weights_zero()))
            low = -high
        else:
            (a0, a1), (b0, b1) = self._span(self.a, self.places[2]), self._span(self.b, self.places[3])
            ends = [x * y * self.k for x in (a0, a1) for y in (b0, b1)]
            low, high = min(0, *ends), max(0, *ends)
        if self.addend is None:
            return low, high
        return low + int(self.addend.min()), high + int(self.addend.max())

    def _span(self, codes: Array, source: int | Given) -> tuple[int, int]:
        """The least and the greatest difference of a code and its zero point."""
        info = np.iinfo(codes.dtype)
        low = high = np.array(0)
        if isinstance(source, Given) or not self.site.fixed[source]:
            low, high = np.array(info.min), np.array(info.max)
        elif (zero := self.site.inputs[source]) is not None:
            low, high = zero.min(), zero.max()
        return int(info.min) - int(high), int(info.max) - int(low)

    @property
    def wraps(self) -> bool:
        """Whether some sum may leave int32. If K is small, no sum can."""
        most = 255 * 255 * self.k
        if self.addend is not None:
            most += max(-int(self.addend.min()), int(self.addend.max()))
        return most >= LIMIT and _may_wrap(*self.bounds())

    def stages(
        self, target: Target | None = None, matrices: int = 1, output: int | str = 0
    ) -> tuple[list[Stage], Operation]:
        """The stages that compute the sums, requantized if there is a `target`; and the operation that multiplies.

        matrices: the number of matrices of B that have scales of their own.
        """
        left, right = self.places[:2]
        before = []
        if self.turned[0]:
            assert isinstance(left, int)
            before.append(transpose_stage(self.site, left))
            left = before[-1].output
        if self.weighted and target is None:
            made, shown = self._with_weights(left, output)
            return [*before, *made], shown
        if self.turned[1]:
            before.append(transpose_stage(self.site, right))
        made, shown = self._stack_matrices(
            left, before[-1].output if self.turned[1] else right, target, matrices, output
        )
        return [*before, *made], shown

    def _zero(self, source: int | Given) -> int | Given:
        """A zero point of one value: a number, or a value of the run. Raises Declined for several values."""
        if isinstance(source, Given):
            return source
        zero = self.site.inputs[source]
        if zero is None:
            return 0
        if self.site.fixed[source] and (zero == zero.reshape(-1)[0]).all():
            return int(zero.reshape(-1)[0])
        if zero.size != 1:
            raise decline_error(f"{self.site.names[source]} has several values")
        return Given.input(self.site, source)

    def _with_weights(self, left: int | str, output: int | str) -> tuple[list[Stage], Operation]:
        """As `stages`, for constant weights, which are packed once."""
        from qrun.native.kernels.conv import KINDS, SUM_KINDS, Gemm, dynamic_sums
        from qrun.native.kernels.copy import view

        site, zero, w_zero = self.site, self._zero(self.places[2]), self._weights_zero()
        site.afford(self.rows * 36 + self.right.size * 16 + self.n * 8192)
        known, kinds = (zero, KINDS) if isinstance(zero, int) else (0, SUM_KINDS)
        gemm = Gemm(
            site.engine,
            self.a.shape,
            self.right,
            x_zero_point=np.array(known, self.a.dtype),
            w_zero_point=w_zero,
            bias=self.addend,
            kinds=kinds,
            memo=site.memo,
        )
        if isinstance(zero, Given):
            prepare, made = dynamic_sums(gemm, zero.operand, self.shape, site.memo)
            return [Stage(prepare, (zero.value,), "prepared"), Stage(made, (left, "prepared"), output)], made
        if gemm.result.shape == self.shape:
            return [Stage(gemm, (left,), output)], gemm
        shaped = view(site.engine, gemm.result.shape, self.shape, gemm.result.dtype)
        return [Stage(gemm, (left,), "column"), Stage(shaped, ("column",), output)], gemm

    def _stack_matrices(
        self, left: int | str, right: int | str, target: Target | None, matrices: int, output: int | str
    ) -> tuple[list[Stage], Operation]:
        """As `stages`, for matrices that are packed in each run; both zero points have one value."""
        from qrun.native.kernels.results import Results, requantization
        from qrun.native.kernels.stacked import Pack, RowTerms, Stack, StackProduct
        from qrun.native.machine.operation import Operand

        site, zeros = self.site, [self._zero(index) for index in self.places[2:]]
        site.afford(self.rows * 8 + self.n * matrices * 8192)
        results, low, high, wraps = Results(None, None), *self.bounds(), self.wraps
        if target is not None:
            results = requantization(site.engine, target, self.n * matrices, low, high, site.memo)
        a, b = (Operand(x.shape, x.dtype) for x in (self.a, self.b))
        engine, memo, least, most, plain = site.engine, site.memo, low // self.k, high // self.k, self.addend is None

        def requantized(k: int, n: int) -> Results | None:
            ends = least * k, most * k
            if target is None or not plain or _may_wrap(*ends) != wraps:
                return None
            return requantization(engine, target, n, *ends, memo)

        stack = Stack(site.engine, a, b, results, matrices, requantized)
        known = [zero.operand if isinstance(zero, Given) else zero for zero in zeros]
        of_a, of_b = ([zero.value] if isinstance(zero, Given) else [] for zero in zeros)
        stages = [Stage(Pack(stack, known[0], self.addend), (right, *of_a), "packed")]
        terms = known[1] != stack.shift
        if terms:
            stages.append(Stage(RowTerms(stack, *known), (left, *of_a, *of_b), "rows"))
        product = StackProduct(stack, terms, self.shape)
        stages.append(Stage(product, (left, "packed", *["rows"] * terms), output))
        return stages, product


def _may_wrap(low: int, high: int) -> bool:
    """Whether sums between these bounds may leave int32."""
    return low < -LIMIT or high >= LIMIT


def quantized_kernel(product: DynamicProduct, target: Target, matrices: int) -> NativeKernel:
    """The kernel of a requantized product; target.w_scale has 1, N or matrices * N values."""
    stages, shown = product.stages(target, matrices)
    return staged_kernel(product.site, stages, (shown,), completeness(product.wraps, target))


def float_kernel(
    product: DynamicProduct,
    scales: tuple[int, int],
    bias: int | None,
    plain: Callable[[Inputs], bool],
    slope: Array | None = None,
) -> NativeKernel:
    """The kernel of product * a_scale * b_scale * slope + bias as float32.

    scales, bias: their places among the inputs. plain: tests whether the reference kernel would observe nothing in a
    run's parameters.
    """
    stages, shown = scaled_stages(product, _parameter(product, scales[0]), scales[1], bias, slope)
    return staged_kernel(product.site, stages, shown, Settled(not product.wraps), plain)


def scaled_stages(
    product: DynamicProduct, left: Array | Given, scale: int, bias: int | None, slope: Array | None = None
) -> tuple[list[Stage], tuple[Operation, Operation]]:
    """The stages that compute output 0, float32; and two operations of them: the one that multiplies matrices, and the
    one that multiplies sums by scales."""
    from qrun.native.kernels.quantize import Factors, Scaled, Scaling

    site = product.site
    sources: list[Array | Given | None] = [left, _parameter(product, scale), None]
    if bias is not None and site.inputs[bias] is not None:
        sources[2] = _parameter(product, bias)
    first, second, added = (source.operand if isinstance(source, Given) else source for source in sources)
    assert first is not None
    assert second is not None
    scaling = Scaling(
        product.n,
        "ort" if site.ctx.arith == "ort" else "real",
        first,
        second,
        added,
        min(max(map(abs, product.bounds())), LIMIT),
        None if slope is None else float(slope),
    )
    factors = Factors(site.engine, scaling)
    stages, shown = product.stages(output="sums")
    scaled = Scaled(factors, stages[-1].operation.result.shape, product.shape)
    given = tuple(source.value for source in sources if isinstance(source, Given))
    return [*stages, Stage(factors, given, "factors"), Stage(scaled, ("sums", "factors"))], (shown, scaled)


def _parameter(product: DynamicProduct, index: int) -> Array | Given:
    """The float32 parameter that is input number `index`: one element, or one per column. Raises Declined."""
    site = product.site
    array = site.inputs[index]
    if array.size not in (1, product.n):
        raise decline_error(f"{site.names[index]} differs from matrix to matrix")
    return array if site.fixed[index] else Given.input(site, index)


def quantize_stages(engine: Engine, x: Array, outputs: tuple[int | str, int | str, int | str]) -> list[Stage]:
    """The stages that quantize input 0 dynamically. x: that input, float32. outputs: where codes, scale and zero point
    go. Raises Declined for an empty tensor."""
    from qrun.native.kernels.quantize import Parameters, Quantized, Range

    if not x.size:
        raise decline_error("an empty tensor")
    codes, scale, zero = outputs
    ranges = Range(engine, x.shape)
    told = {"scale": scale, "zero": zero, "parameters": "parameters"}
    return [
        Stage(ranges, (0,), "ranges"),
        *(Stage(Parameters(engine, ranges.result, form), ("ranges",), output) for form, output in told.items()),
        Stage(Quantized(engine, x.shape), (0, "parameters"), codes),
    ]


def plain_scales(site: LoweringContext, *places: int) -> Callable[[Inputs], bool]:
    """A test of a run's inputs: whether the reference kernel would observe nothing in the scales at these places."""

    names = site.names

    def plain(inputs: Inputs) -> bool:
        probe = Context()
        for index in places:
            scale = inputs[index] if index < len(inputs) else None
            if scale is not None:
                note_scale(probe, scale, names[index])
        return not probe.observations

    return plain
