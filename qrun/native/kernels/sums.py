"""Planned sums of a product with constant weights, for a zero point of the activations that comes with each run, and
the float32 operations that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.declare.memo import Memo
from qrun.native.emit.spec import SOURCES, TAIL, KernelSpec, constant_bytes
from qrun.native.errors import Declined
from qrun.native.kernels.conv import Conv, Gemm
from qrun.native.machine.call import KernelCall
from qrun.native.machine.memory import Array, address, aligned_copy, aligned_up
from qrun.native.machine.operation import Operand, Operation, Order
from qrun.native.proof.fold import magnitudes, wrapped

KINDS = frozenset({"tiled", "widened"})
"""The kernels of products that do not depend on the zero point of the activations."""
_BYTE, _FLOAT = np.dtype(np.uint8), np.dtype(np.float32)


@frozen
class Tail:
    """float32 operations on a sum as float32: steps as a form has them (emit/spec.py), the operands of m and a, and the
    bits of the limits of c."""

    steps: str = ""
    operands: tuple[Operand, ...] = ()
    limits: tuple[int, int] = (0, 0)


@frozen
class _Place:
    """Where the start values of a kernel call, and its constants, lie in what is prepared."""

    starts: int
    constants: int


class SumsPlan:
    """A Conv or Gemm without a target, planned for a zero point of 0, its kernel calls, and where each of them finds
    what depends on the run.
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
            constants = at + aligned_up(4 * lanes)
            self.places.append(_Place(at, constants))
            at = constants + aligned_up(constant_bytes(self.form) * lanes)
        fills = (self._held(part, "padding*").nbytes for part in self.parts)
        self.padding, self.fill = at, aligned_up(max(fills, default=0))
        self.prepared = Operand((at + self.fill,), _BYTE)

    def sized_as(self, other: SumsPlan, memo: Memo) -> SumsPlan | None:
        """As `Operation.sized_as` has it of the product, without a tail;
        made once for the two operations of a kernel."""
        return memo.once(id(self), lambda: self._sized_as(other, memo))

    def _sized_as(self, other: SumsPlan, memo: Memo) -> SumsPlan | None:
        if not isinstance(self.product, Gemm) or (self.zero, self.tail, other.tail) != (other.zero, Tail(), Tail()):
            return None
        product = self.product.sized_as(other.product, memo)
        if product is None or not product.serve(self.product.tight, other.product.tight):
            return None
        made = copy(self)
        made.product = product
        return made

    def with_tail(self, tail: Tail) -> SumsPlan:
        """The same sums with float32 operations behind them."""
        return SumsPlan(self.product, self.zero, self._memo, tail)

    def _held(self, part: Any, name: str) -> Array:
        """The array that a word of the call's struct points to."""
        start = part.section.word(name)
        return next(array for array in part.section.keep if address(array) == start)

    def prepare(self, number: int) -> KernelCall:
        """The kernel call that prepares those of this part: zero point and sources in, what is prepared out. It does
        not depend on the rows of activations."""
        part, place = self.parts[number], self.places[number]
        key = (
            "prepare",
            number,
            self.form,
            self.tail,
            self.zero,
            place,
            self.padding,
            self.fill,
            _lanes(part.section).tobytes(),
            part.section.spec.vectors,
            address(self._held(part, "bias*")),
        )
        return self._memo.once(key, lambda: self._prepare(part, place, number))

    def _prepare(self, part: Any, place: _Place, number: int) -> KernelCall:
        tail = self.tail
        section, kernels, isa = part.section, self.conv.engine.kernels, self.conv.engine.isa
        pick, vectors = _lanes(section), section.spec.vectors
        channels = np.maximum(pick, 0)
        arrays = {"first*": self._held(part, "bias*")}
        for name, values in (
            ("sums*", np.where(pick < 0, 0, wrapped(self.conv.totals[channels]))),
            ("places*", channels),
        ):
            arrays[name] = aligned_copy(values, np.int32)
        kinds = "".join("s" if operand.shape == () or set(operand.shape) == {1} else "v" for operand in tail.operands)
        spec = KernelSpec(
            "prepare", isa.name, 1, vectors, 1, self.form, "f32", self.zero.dtype == np.int8, operands=kinds
        )
        words = {
            "starts*": place.starts,
            "constants*": place.constants,
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
        """The product's kernel calls on activations, what is prepared, and results, rows so many bytes apart."""
        return tuple(
            self._call(section, place)
            for section, place in zip(self.product.sections((x, y)), self.places, strict=False)
        )

    def _call(self, section: KernelCall, place: _Place) -> KernelCall:
        own = {"bias*": place.starts, "constants*": place.constants, "padding*": self.padding}
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
        return section.changed(words, {}, extents=extents, spec=spec, kernel=kernel, pointers=tuple(pointers))


def _lanes(section: KernelCall) -> Array:
    assert section.pick is not None
    return section.pick


class Prepare(Operation):
    """The zero point and the sources of a tail to what DynamicSums reads."""

    def __init__(self, plan: SumsPlan) -> None:
        self.plan = plan
        self.operands = (plan.zero, *plan.tail.operands, plan.prepared)

    def sized_as(self, other: Operation, memo: Memo) -> Operation | None:
        plan = self.plan.sized_as(other.plan, memo) if isinstance(other, Prepare) else None
        return None if plan is None else self

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        return tuple(self.plan.prepare(number) for number in range(len(self.plan.parts)))


class DynamicSums(Operation):
    """8-bit activations and what Prepare made to int32 sums, or to the float32 numbers of a tail."""

    def __init__(self, plan: SumsPlan, y_shape: Sequence[int] | None = None) -> None:
        self.plan, product = plan, plan.product
        x, y = product.operands
        dtype = y.dtype if plan.form == "i32" else _FLOAT
        self.operands = x, plan.prepared, Operand(y.shape if y_shape is None else tuple(y_shape), dtype)
        self.order: Order = product.order

    def sized_as(self, other: Operation, memo: Memo) -> Operation | None:
        plan = self.plan.sized_as(other.plan, memo) if isinstance(other, DynamicSums) else None
        return None if plan is None else DynamicSums(plan, other.result.shape)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        x, _, y = strides
        return self.plan.calls(x, y)


def dynamic_sums(
    product: Conv | Gemm, zero: Operand, y_shape: Sequence[int] | None = None, memo: Memo | None = None
) -> tuple[Prepare, DynamicSums]:
    """The two steps of a product planned for a zero point of 0.

    memo: what was made of the same weights for other shapes. Raises Declined if it has no kernels: an empty product.
    """
    plan = SumsPlan(product, zero, memo or Memo())
    if not plan.parts:
        raise Declined("an empty product")
    return Prepare(plan), DynamicSums(plan, y_shape)


def reach(weights: Array, w_zero: Array | None) -> int:
    """The most that a sum can be, whatever codes and zero point are; weights [N, ...]."""
    return 255 * int(magnitudes(weights, w_zero).max(initial=0))
