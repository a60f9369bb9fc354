"""Native lowerings of integer products whose zero points or right operand are known at run time only."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._matmul import matmul_shape
from qrun.ops.lowering.integers import completeness
from qrun.ops.lowering.kernel import EIGHT, LoweringContext, NativeKernel, Stage, declined, staged_kernel
from qrun.ops.lowering.turned import turning
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.native.machine.operation import Operand, Operation
    from qrun.native.proof.epilogue import Target

LIMIT = 2**31
"""The first sum that int32 does not hold."""


@frozen
class Given:
    """A value that comes with the run: the node's input of this number, or what a stage makes under this name."""

    value: int | str
    operand: Operand

    @classmethod
    def input(cls, site: LoweringContext, place: int) -> Given:
        from qrun.native.machine.operation import Operand

        array = site.inputs[place]
        return cls(place, Operand(array.shape, array.dtype))


class DynamicProduct:
    """The product of a checked node's operands, as stages of a program.

    a, b:    the operands, transposed where they are `turned` first.
    places:  of A, B, A's zero point and B's zero point among the inputs; A and its zero point may come from stages.
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
            raise declined(f"no native {type_name(a.dtype if b.dtype in EIGHT else b.dtype)} products")
        self.site, self.a, self.b, self.places, self.turned, self.addend = site, a, b, places, turned, addend
        left, self.right = a[None, :] if a.ndim == 1 else a, b[:, None] if b.ndim == 1 else b
        lead = broadcast_shapes(left.shape[:-2], self.right.shape[:-2])
        self.k, self.n = left.shape[-1], self.right.shape[-1]
        self.rows = int(np.prod((*lead, left.shape[-2]), dtype=np.int64))
        nothing = np.broadcast_to(np.int32(0), (*lead, left.shape[-2], self.n))
        self.shape = matmul_shape(nothing, a, b).shape
        if not self.k * self.n * self.rows:
            raise declined("an empty product")

    @property
    def weighted(self) -> bool:
        """Whether B and its zero point are constant, and B is one matrix."""
        _, right, _, zero = self.places
        return self.site.fixed[right] and self.site.fixed[zero] and self.right.ndim == 2

    def _weights_zero(self) -> Array | None:
        zero = self.site.inputs[self.places[3]]
        return None if zero is None else zero.reshape(-1)

    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value that a sum can have before it wraps."""
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

    def _span(self, codes: Array, place: int | Given) -> tuple[int, int]:
        """The least and the greatest difference of a code and its zero point."""
        info = np.iinfo(codes.dtype)
        low = high = np.array(0)
        if isinstance(place, Given) or not self.site.fixed[place]:
            low, high = np.array(info.min), np.array(info.max)
        elif (zero := self.site.inputs[place]) is not None:
            low, high = zero.min(), zero.max()
        return int(info.min) - int(high), int(info.max) - int(low)

    @property
    def wraps(self) -> bool:
        """Whether some sum may leave int32; few products of 8 bits cannot."""
        most = 255 * 255 * self.k
        if self.addend is not None:
            most += max(-int(self.addend.min()), int(self.addend.max()))
        return most >= LIMIT and _may_wrap(*self.bounds())

    def stages(
        self, target: Target | None = None, matrices: int = 1, output: int | str = 0
    ) -> tuple[list[Stage], Operation]:
        """The stages that make the sums, requantized if there is a `target`; and the operation that multiplies.

        matrices: how many matrices of B have scales of their own.
        """
        left, right = self.places[:2]
        before = []
        if self.turned[0]:
            assert isinstance(left, int)
            before.append(turning(self.site, left))
            left = before[-1].output
        if self.weighted and target is None:
            made, shown = self._weighted(left, output)
            return [*before, *made], shown
        if self.turned[1]:
            before.append(turning(self.site, right))
        made, shown = self._stacked(left, before[-1].output if self.turned[1] else right, target, matrices, output)
        return [*before, *made], shown

    def _zero(self, place: int | Given) -> int | Given:
        """A zero point of one value: a number, or what comes with the run."""
        if isinstance(place, Given):
            return place
        zero = self.site.inputs[place]
        if zero is None:
            return 0
        if self.site.fixed[place] and (zero == zero.reshape(-1)[0]).all():
            return int(zero.reshape(-1)[0])
        if zero.size != 1:
            raise declined(f"{self.site.names[place]} has several values")
        return Given.input(self.site, place)

    def _weighted(self, left: int | str, output: int | str) -> tuple[list[Stage], Operation]:
        """With constant weights, which are packed once."""
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

    def _stacked(
        self, left: int | str, right: int | str, target: Target | None, matrices: int, output: int | str
    ) -> tuple[list[Stage], Operation]:
        """With matrices that are packed in each run; both zero points have one value."""
        from qrun.native.kernels.results import Results, requantization
        from qrun.native.kernels.stacked import Pack, RowTerms, Stack, StackProduct
        from qrun.native.machine.operation import Operand

        site, zeros = self.site, [self._zero(place) for place in self.places[2:]]
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
    return low < -LIMIT or high >= LIMIT


def quantized_kernel(product: DynamicProduct, target: Target, matrices: int) -> NativeKernel:
    """The kernel of a requantized product; target.w_scale has 1, N or matrices * N values."""
    stages, shown = product.stages(target, matrices)
    return staged_kernel(product.site, stages, (shown,), completeness(product.wraps, target))
