"""Plans int8 convolutions and matrix products with constant weights: from shapes, weights and scales it makes an
operation that turns activations into results. Also such products whose activations' zero point comes with each run, and
the float32 operations that follow their sums."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.declare.stored import Reloadable
from qrun.native.emit.spec import CODES, DTYPE_OF, SOURCES, TAIL, KernelSpec, constant_bytes
from qrun.native.errors import Declined
from qrun.native.kernels.layout import Layout, Window
from qrun.native.kernels.packing import LARGE
from qrun.native.kernels.product import Product, RelocatableCall, depthwise, groups_to_merge
from qrun.native.kernels.results import Results
from qrun.native.machine.engine import Array, Engine, Ints, KernelCall, Operand, Operation, Order, size
from qrun.native.machine.memory import address, align_up, aligned_copy
from qrun.native.proof.epilogue import Target
from qrun.native.proof.fold import Folded, fold, magnitudes, wrap_to_int32

if TYPE_CHECKING:
    from qrun.native.kernels.tiled import TiledPart

KINDS = frozenset({"tiled", "clipped", "widened"})
"""The kinds of dense kernels, other than the plain one. Their planners are imported only if they may be used."""
_FEW_CHANNELS = 16
_FEW_OFFSETS = 4096
"""Layouts with at most this many offsets are cached for products with other weights, as in a transformer's layers."""

SUM_KINDS = frozenset({"tiled", "widened"})
"""The kinds of dense kernels whose plan does not depend on the zero point of the activations."""
_BYTE, _FLOAT = np.dtype(np.uint8), np.dtype(np.float32)


class Conv(Operation):
    """A convolution of 8-bit activations [N, C, spatial...] with constant 8-bit weights [M, C/group, kernel...].

        acc = sum (x - x_zero_point) * (w - w_zero_point) + bias       int32, wrapping; padding counts as real 0
        y   = the requantization `target` of acc, or acc itself as int32

    One or two spatial axes. x_zero_point is an element of x's type; w_zero_point and bias are None, [M], or for the
    zero point one element.

    may_wrap: whether some activations would take a sum out of int32.

    kinds: the kinds of dense kernels that may be used where they are better than plain ones (KINDS).
    stores: whether padding may be stored around the image.

    Raises Declined with the reason if the engine does not support the convolution.
    """

    order: Order = "channels"

    def __init__(
        self,
        engine: Engine,
        x_shape: Sequence[int],
        w: Array,
        *,
        x_zero_point: Array,
        w_zero_point: Array | None = None,
        bias: Array | None = None,
        target: Target | None = None,
        group: int = 1,
        strides: Sequence[int] = (),
        dilations: Sequence[int] = (),
        pads: Sequence[int] = (),
        kinds: frozenset[str] = KINDS,
        stores: bool = True,
        memo: Memo | None = None,
    ) -> None:
        _check(x_shape, w, x_zero_point, bias, target, group)
        x_shape = tuple(int(n) for n in x_shape)
        images, channels, outputs = x_shape[0], x_shape[1], w.shape[0]
        self.engine = engine
        self.window = Window.of(x_shape[2:], w.shape[2:], strides, dilations, pads)
        self.group, self.x_zero = group, int(x_zero_point.reshape(()))
        self.image = (images, *self.window.image, channels)
        lines = group == 1 and channels % 4 != 0 and channels < _FEW_CHANNELS
        self.lines = bool(stores and lines and self.window.kernel[1] > 1 and self.window.dilations[1] == 1)
        border = self.window.pads if self.lines else (0, 0, 0, 0)
        self.operands = (
            Operand(x_shape, x_zero_point.dtype, border, self.x_zero, self.lines),
            Operand((images, outputs, *self.window.out[4 - len(x_shape) :]), DTYPE_OF[target.out if target else "i32"]),
        )
        taps = w.reshape(outputs, w.shape[1], size(self.window.kernel)).transpose(0, 2, 1)
        zero, addend = self._parameters(taps, w_zero_point, bias)
        self.may_wrap = False
        self._memo, self._kinds = memo or Memo(), kinds
        self.pieces: Sequence[RelocatableCall | TiledPart] = ()
        self._sums: tuple[Folded, Target | None] | None = None
        if 0 not in self.result.shape:
            folded = self._fold_zeros(taps, zero, addend)
            self.may_wrap = folded.may_wrap
            self._sums = folded, target
            self.pieces = self._cut(folded, target)

    @property
    def totals(self) -> Ints:
        """int64 [M]: the sum of each channel's weights minus their zero point. The product must not be empty."""
        assert self._sums is not None
        return self._sums[0].total

    def with_operands_of(self, other: Operation) -> Conv | None:
        """See `Operation.with_operands_of`. Returns None also if there is nothing to compute, or padding is stored."""
        if not isinstance(other, Conv) or self.group != other.group or self.lines or other.lines:
            return None
        made = super().with_operands_of(other)
        if made is None or self._sums is None or other._sums is None:
            return None
        made.window, made.image = other.window, other.image
        made.pieces = made._cut(*self._sums)
        return made

    def _fold_zeros(self, taps: Array, zero: Any, addend: Any) -> Folded:
        """The weights with their zero points subtracted, and the start values of sums that follow from that."""
        signed = bool(self.operands[0].dtype == np.int8)
        own = taps if taps.size else taps[:, :1]
        return self._memo.once(("folded", signed), lambda: fold(own, zero, addend, self.x_zero, signed))

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        layout = self._layout(strides)
        return tuple(piece.place(layout) for piece in self.pieces)

    def _parameters(self, taps: Array, w_zero_point: Array | None, bias: Array | None) -> tuple[Array, Array]:
        """The zero points [M] and int64 biases [M] of the output channels. Raises Declined if they do not fit."""
        n = len(taps)
        zero = np.zeros(1, taps.dtype) if w_zero_point is None else w_zero_point.reshape(-1)
        addend = np.zeros(n, np.int64) if bias is None else bias.astype(np.int64)
        if zero.dtype != taps.dtype or zero.size not in (1, n) or addend.shape != (n,):
            raise Declined("zero point or bias do not fit the weights")
        return np.broadcast_to(zero, (n,)), addend

    def _cut(self, folded: Folded, target: Target | None) -> Sequence[RelocatableCall | TiledPart]:
        """A call for each run of channels, of the first kind of kernel that applies."""
        engine, kinds = self.engine, self._kinds
        zero = np.asarray(self.x_zero, self.operands[0].dtype)
        make = partial(Results.of, target, lambda: folded.bounds, engine)
        results = self._memo.once(("results", id(folded)), make)
        sums = folded.lines(self.window.kernel) if self.lines else folded
        product = Product(engine, self._layout((0, 0)), sums, results, zero, self.window, self.lines, self.group)
        if self.group > 1 and folded.shape[::2] == (self.group, 1):
            return depthwise(product)
        parts: Sequence[RelocatableCall | TiledPart] = ()
        if "tiled" in kinds and engine.isa.tiles:
            from qrun.native.kernels.tiled import tiled_calls

            parts = tiled_calls(product)
        if not parts and engine.isa.widens:
            from qrun.native.kernels.copied import copying_calls

            parts = copying_calls(product.merge_groups(), kinds)
        return parts or product.merge_groups().dense()

    @property
    def tiled(self) -> bool:
        """Whether the convolution runs on AMX tiles."""
        return any(piece.section.spec.kind.startswith("amx") for piece in self.pieces)

    def _layout(self, strides: Sequence[int]) -> Layout:
        """Where the rows of the image start, and the offsets of a window's taps, in bytes."""
        stored, channels = self.operands[0].memory_shape("channels"), self.image[3]
        pixel, row = strides[0] or channels, strides[1] or self.result.row_bytes("channels")
        sizes = self.image[0], channels > 0, size(stored[1:-1]) * pixel, row, pixel
        few = size(self.window.out) * size(self.window.kernel) <= _FEW_OFFSETS
        return (_shared_layout if few else _layout)(self.window, self.lines, *sizes)


def _layout(window: Window, lines: bool, images: int, read: bool, x_image: int, row: int, pixel: int) -> Layout:
    """The layout of result rows `row` bytes apart, images of `x_image` bytes. Not `read`: all offsets are padding."""
    offsets = window.line_offsets(pixel) if lines else window.offsets(pixel)
    if not read:
        offsets = np.full((len(offsets), 1), -1, np.int64)
    return Layout(images, offsets, x_image, len(offsets) * row, row, pixel)


_shared_layout = lru_cache(64)(_layout)


class ChannelsLast(Operation):
    """A convolution of arrays whose shapes are channels-last, [N, spatial..., C]."""

    order: Order = "rows"

    def __init__(self, conv: Conv) -> None:
        self.engine, self.conv = conv.engine, conv
        self.operands = tuple(replace(o, shape=(o.shape[0], *o.shape[2:], o.shape[1])) for o in conv.operands)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return self.conv.sections(strides)


class Gemm(ChannelsLast):
    """The product of 8-bit activations [..., K] with constant 8-bit weights [K, N], planned as a convolution along one
    axis. parameters, and the result: as for Conv, with one zero point and scale per column.
    """

    own_words = ("weights*", "padding*", "bias*", "constants*", "zero_point!", "mask")

    def __init__(
        self, engine: Engine, x_shape: Sequence[int], w: Array, *, memo: Memo | None = None, **parameters: Any
    ) -> None:
        self.engine, memo = engine, memo or Memo()
        *rows, k = (int(n) for n in x_shape)
        columns = memo.once("columns", lambda: Reloadable(self._columns(w))).array
        self.conv = Conv(engine, (1, w.shape[0], max(size(rows), 1)), columns, memo=memo, **parameters)
        x, y = self.conv.operands
        self.operands = (Operand((*rows, k), x.dtype), Operand((*rows, w.shape[1]), y.dtype))

    def _columns(self, w: Array) -> Array:
        """Weights [K, N] as [N, K, 1]. Small ones are copied into C order."""
        return (np.ascontiguousarray(w.T) if w.nbytes < LARGE else w.T)[:, :, None]

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return self._conv.sections(strides)

    @property
    def _conv(self) -> Conv:
        """The convolution for this operation's sizes; `conv` has the sizes it was first planned for."""
        other = self._sizes[1] if self._sizes else self
        assert isinstance(other, Gemm)
        made = self.conv if other is self else self.conv.with_operands_of(other.conv)
        assert made is not None
        return made

    def with_sizes_of(self, other: Operation, memo: Memo) -> Gemm | None:
        return self.with_operands_of(other)

    def serve(self, own: Sequence[KernelCall], calls: Sequence[KernelCall]) -> bool:
        """As in Operation. Constants of plain products also fit calls whose blocks have another number of rows."""
        return len(own) == len(calls) and all(map(_serves, own, calls))


def _serves(own: KernelCall, call: KernelCall) -> bool:
    """Whether both calls are plain products with as many taps, the same channels in the same lanes, and one form."""
    specs = [(s.kind, s.vectors, s.unroll, s.form, s.out, s.signed) for s in (own.spec, call.spec)]
    if own.spec.kind != "dense" or specs[0] != specs[1] or own.pick is None or call.pick is None:
        return False
    return own.word("taps") == call.word("taps") and np.array_equal(own.pick, call.pick)


def _check(
    x_shape: Sequence[int], w: Array, x_zero_point: Array, bias: Array | None, target: Target | None, group: int
) -> None:
    """Raise Declined if the parameters do not fit each other."""
    if len(x_shape) < 3 or w.ndim != len(x_shape) or w.dtype not in CODES or x_zero_point.dtype not in CODES:
        raise Declined("not 8-bit activations [N, C, spatial...] with 8-bit weights of the same rank")
    outputs = w.shape[0]
    if x_zero_point.size != 1 or (bias is not None and bias.dtype != np.int32):
        raise Declined("x_zero_point is not one value, or the bias is not int32")
    if x_shape[0] < 0 or group < 1 or x_shape[1] != w.shape[1] * group or outputs % group:
        raise Declined("channels do not fit the groups")
    if target is not None and target.w_scale.shape not in ((1,), (outputs,)):
        raise Declined("w_scale has neither one value nor one per output channel")


def planning_bytes(shape: Sequence[int], group: int, pixels: int, lanes: int) -> int:
    """Bytes that planning a convolution may take: tables of offsets, weights while they are packed, constants.

    shape: shape of the weights [M, C/group, kernel...]. pixels: of an output image. lanes: of a vector.
    """
    outputs, inputs, *kernel = shape
    alone = outputs == group and inputs == 1
    count = 1 if alone or not size(shape) else groups_to_merge(group, outputs // group, inputs, lanes)
    products = 1 if alone else group // count
    return pixels * size(kernel) * (32 + 4 * products) + size(shape) * 16 * count + outputs * 8192


@frozen
class Tail:
    """float32 operations that follow a sum: the steps as in a form (emit/spec.py), the operands of steps m and a, and
    the bits of the limits of step c."""

    steps: str = ""
    operands: tuple[Operand, ...] = ()
    limits: tuple[int, int] = (0, 0)


@frozen
class _Place:
    """The offsets of a kernel call's start values and constants in the prepared buffer."""

    starts: int
    constants: int


class SumsPlan:
    """A Conv or Gemm whose zero point comes with the run. It has no target and is planned for a zero point of 0. The
    plan has its kernel calls, and the places of their run-dependent data in one buffer, which `Prepare` fills.
    """

    def __init__(self, product: Conv | Gemm, zero: Operand, memo: Memo, tail: Tail | None = None) -> None:
        self.product, self.zero, self.tail, self._memo = product, zero, tail or Tail(), memo
        self.form = "i32" if tail is None else TAIL + tail.steps
        self.conv = product.conv if isinstance(product, Gemm) else product
        if self.conv.lines or self.conv.x_zero:
            raise ValueError("a product that is planned for one zero point")
        self.parts = self.conv.pieces
        self.places, at = [], 0
        for part in self.parts:
            lanes = _lanes(part.section).size
            constants = at + align_up(4 * lanes)
            self.places.append(_Place(at, constants))
            at = constants + align_up(constant_bytes(self.form) * lanes)
        fills = (self._array_of_word(part, "padding*").nbytes for part in self.parts)
        self.padding, self.fill = at, align_up(max(fills, default=0))
        self.prepared = Operand((at + self.fill,), _BYTE)

    def with_sizes_of(self, other: SumsPlan, memo: Memo) -> SumsPlan | None:
        """As `Operation.with_sizes_of`, for products without a tail. The result is computed once, for both operations
        of a kernel."""
        return memo.once(id(self), lambda: self._with_sizes_of(other, memo))

    def _with_sizes_of(self, other: SumsPlan, memo: Memo) -> SumsPlan | None:
        """This plan for the shapes of another; None if their kernels differ."""
        if not isinstance(self.product, Gemm) or (self.zero, self.tail, other.tail) != (other.zero, Tail(), Tail()):
            return None
        product = self.product.with_sizes_of(other.product, memo)
        if product is None or not product.serve(self.product.tight, other.product.tight):
            return None
        made = copy(self)
        made.product = product
        return made

    def with_tail(self, tail: Tail) -> SumsPlan:
        """A plan of the same sums, followed by float32 operations."""
        return SumsPlan(self.product, self.zero, self._memo, tail)

    def _array_of_word(self, part: Any, name: str) -> Array:
        """The array to which this word of the call's struct points."""
        start = part.section.word(name)
        return next(array for array in part.section.keep if address(array) == start)

    def prepare(self, number: int) -> KernelCall:
        """The kernel call that fills the buffer for part `number`. It reads the zero point and the sources of the tail,
        and does not depend on the rows of activations."""
        part, placing = self.parts[number], self.places[number]
        key = (
            "prepare",
            number,
            self.form,
            self.tail,
            self.zero,
            placing,
            self.padding,
            self.fill,
            _lanes(part.section).tobytes(),
            part.section.spec.vectors,
            address(self._array_of_word(part, "bias*")),
        )
        return self._memo.once(key, lambda: self._prepare(part, placing, number))

    def _prepare(self, part: Any, placing: _Place, number: int) -> KernelCall:
        """The call that computes the columns' sums before the products of one part."""
        tail = self.tail
        section, kernels, isa = part.section, self.conv.engine.kernels, self.conv.engine.isa
        pick, vectors = _lanes(section), section.spec.vectors
        channels = np.maximum(pick, 0)
        arrays = {"first*": self._array_of_word(part, "bias*")}
        for name, values in (
            ("sums*", np.where(pick < 0, 0, wrap_to_int32(self.conv.totals[channels]))),
            ("places*", channels),
        ):
            arrays[name] = aligned_copy(values, np.int32)
        kinds = "".join("s" if operand.shape == () or set(operand.shape) == {1} else "v" for operand in tail.operands)
        spec = KernelSpec(
            "prepare", isa.name, 1, vectors, 1, self.form, "f32", self.zero.dtype == np.int8, operands=kinds
        )
        words = {
            "starts*": placing.starts,
            "constants*": placing.constants,
            "padding*": self.padding,
            "fill": 0 if number else self.fill,
            "tiles": pick.size // (vectors * isa.lanes),
            "low!": tail.limits[0],
            "high!": tail.limits[1],
        }
        names = ["zero*", *SOURCES[: len(tail.operands)]]
        operands = {name: operand for operand, name in enumerate(names)}
        operands |= dict.fromkeys(("starts*", "constants*", "padding*"), len(names))
        sizes = (int(np.prod(operand.shape, dtype=np.int64)) * 4 for operand in tail.operands)
        return kernels.call(spec, operands, words, (1, *sizes, self.prepared.shape[0]), arrays, sparse=True)

    def calls(self, x: int, y: int) -> tuple[KernelCall, ...]:
        """The product's kernel calls on activations, the prepared buffer, and results. x, y: bytes between rows."""
        return tuple(
            self._call(section, placing)
            for section, placing in zip(self.product.sections((x, y)), self.places, strict=False)
        )

    def _call(self, section: KernelCall, placing: _Place) -> KernelCall:
        """The call of one part's products, with the sums and constants that were prepared."""
        own = {"bias*": placing.starts, "constants*": placing.constants, "padding*": self.padding}
        words, spec = dict(own), section.spec
        pointers = [(word, 2 * operand) for word, operand in section.pointers]
        pointers += [(section.kernel.word(name), 1) for name in own]
        if self.form != "i32":
            spec = replace(spec, form=self.form, out="f32")
            if "constants_group" in section.kernel.names:
                panel = constant_bytes(self.form) * spec.vectors * self.conv.engine.isa.lanes
                words["constants_group"] = section.word("group_panels") * panel
        extents = section.extents[0], self.prepared.shape[0], section.extents[1]
        kernel = self.conv.engine.kernels.get(spec)
        return section.with_changes(words, {}, extents=extents, spec=spec, kernel=kernel, pointers=tuple(pointers))


def _lanes(section: KernelCall) -> Array:
    """The output channel of each lane; negative for none."""
    assert section.pick is not None
    return section.pick


class Prepare(Operation):
    """Fills the buffer that DynamicSums reads, from the zero point and the sources of a tail."""

    def __init__(self, plan: SumsPlan) -> None:
        self.plan = plan
        self.operands = (plan.zero, *plan.tail.operands, plan.prepared)

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        plan = self.plan.with_sizes_of(other.plan, memo) if isinstance(other, Prepare) else None
        return None if plan is None else self

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return tuple(self.plan.prepare(number) for number in range(len(self.plan.parts)))


class DynamicSums(Operation):
    """Computes int32 sums, or the float32 results of a tail, from 8-bit activations and the buffer of Prepare."""

    def __init__(self, plan: SumsPlan, y_shape: Sequence[int] | None = None) -> None:
        self.plan, product = plan, plan.product
        x, y = product.operands
        dtype = y.dtype if plan.form == "i32" else _FLOAT
        self.operands = x, plan.prepared, Operand(y.shape if y_shape is None else tuple(y_shape), dtype)
        self.order: Order = product.order

    def with_sizes_of(self, other: Operation, memo: Memo) -> Operation | None:
        plan = self.plan.with_sizes_of(other.plan, memo) if isinstance(other, DynamicSums) else None
        return None if plan is None else DynamicSums(plan, other.result.shape)

    def _plan_calls(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, _, y = strides
        return self.plan.calls(x, y)


def dynamic_sums(
    product: Conv | Gemm, zero: Operand, y_shape: Sequence[int] | None = None, memo: Memo | None = None
) -> tuple[Prepare, DynamicSums]:
    """The int32 sums of a product whose activations get their zero point in the run, as two operations: Prepare fills a
    buffer with the start values and the padding for that zero point, DynamicSums reads it.

    product: without a target, planned for zero point 0. y_shape: of the result, if not the product's. memo: keeps
    results for the same weights and other shapes. Raises Declined for an empty product."""
    plan = SumsPlan(product, zero, memo or Memo())
    if not plan.parts:
        raise Declined("an empty product")
    return Prepare(plan), DynamicSums(plan, y_shape)


def reach(weights: Array, w_zero: Array | None) -> int:
    """The greatest magnitude of a sum, for any codes and zero point. weights: [N, ...]."""
    return 255 * int(magnitudes(weights, w_zero).max(initial=0))
