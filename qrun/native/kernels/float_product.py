"""Planned products of float32: what the operations that have some share, and the call of the kernel that serves all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from qrun.native.emit.float_panels import UNROLL
from qrun.native.emit.spec import NARROW
from qrun.native.kernels.float_tiles import Cut, LeftRows, block, direct, scratch_places
from qrun.native.kernels.floats import ElementRecheck, Exact, FloatPanels, FloatStack, FloatTerms, narrower, stack_call
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operation

_AHEAD, _FEW, _FAR = (8, 16), 4, 1 << 20
"""Rows of the right matrix by which it is fetched ahead where it is read as it lies, for up to _FEW left rows and for more, and bytes of it from which on that
pays: it comes from beyond the second-level cache, a short piece of each row at a time."""


class FloatProduct(Operation):
    """Sums of products of floats, each rounded once.

    terms: what becomes of them. exact: makes those that are in doubt. arrays: operands that are constant, by word.
    """

    engine: Engine
    terms: FloatTerms
    exact: Exact
    arrays: Mapping[str, Array] = {}

    def limited(self, low: float, high: float, zero: float) -> Self:
        return self.again(terms=replace(self.terms, limits=(low, high, zero)))

    def narrowed(self, dtype: np.dtype[Any]) -> Self:
        terms = replace(self.terms, out=NARROW[dtype.name])
        return self.again(terms=terms, exact=narrower(self.exact, dtype))

    def call(
        self,
        spec: KernelSpec,
        stack: FloatStack,
        words: Mapping[str, int],
        arrays: Mapping[str, Array],
        operands: Sequence[str] | Mapping[str, int],
        extents: Sequence[int],
        scratch: int,
    ) -> KernelCall:
        """The call of a kernel that makes these products, as stack_call has it; arrays: besides the operation's own."""
        given, recheck = (
            (words, {**self.arrays, **arrays}, operands, extents, scratch),
            ElementRecheck(stack, self.exact),
        )
        return stack_call(self.engine, spec, stack, self.terms, recheck, *given)


def product_call(
    product: FloatProduct,
    stack: FloatStack,
    pointers: Sequence[str] | Mapping[str, int],
    extents: Sequence[int],
    *,
    lengths: Callable[[], Array] | None = None,
    weights: FloatPanels | None = None,
) -> KernelCall:
    """The call for products that are not empty. pointers: the words of operands that are not constant, in order, or which
    operand each is; extents: bytes of each that are touched. lengths: float64 [right matrices, columns], of columns, if constant.
    weights: b, if it is to lie panel after panel; starts then say which matrix it is."""
    engine, left = product.engine, stack.left
    lanes = engine.isa.lanes // 2
    known = weights is not None or (lengths is not None and direct(left.rows, True))
    near = direct(left.rows, known)
    rows, vectors = block(engine.isa, left.rows, stack.columns, known)
    width, image = vectors * lanes, left.image is not None
    panels, (taps, depth) = -(-stack.columns // width), left.steps
    held: dict[str, Array] = {}
    if weights is not None:
        held["b*"], lengths = weights.panels(width), weights.lengths
        stack = stack.in_panels(width)
    cut = Cut.of(len(stack.starts), (left.rows, stack.columns, stack.k), (rows, width), engine.threads, image)
    places, scratch = scratch_places(left, cut, (rows, vectors), lanes, near)
    far = near and not weights and stack.k * stack.b_row > _FAR
    kind = "float_lines" if left.line else "float_image" if image else "float_product"
    fetched = -(-4 * width // 64) if far else 0
    operands = _places(left, weights is not None, near, known)
    form = product.terms.form, product.terms.out, False
    spec = KernelSpec(kind, engine.isa.name, rows, vectors, UNROLL, *form, fetched, operands=operands)
    row_blocks, panel_blocks = -(-left.rows // cut.rows), -(-panels // cut.panels)
    words = {
        "ahead": left.line or _AHEAD[left.rows > _FEW] * stack.b_row,
        "tap_step": taps,
        "depth_step": depth,
        **places,
    }
    words |= {"row_block": cut.rows, "panels": panels, "panel_block": cut.panels}
    words["tiles"] = len(stack.starts) * row_blocks * panel_blocks
    if known and lengths is not None:
        found = known_lengths(stack, lengths(), width)
        starts = found["batches*"]
        if left.image is not None:
            channels, numbers = left.image
            first = stack.starts[:, 0] // 8 % numbers
            starts[:, 5] = 8 * (channels + first // left.depth - first)
        held |= found
        words["known_odd"] = int(not np.isfinite(found["known*"]).all())
    return product.call(spec, stack, words, held, pointers, extents, scratch)


def known_lengths(stack: FloatStack, lengths: Array, width: int) -> dict[str, Array]:
    """Words of kernels that know the lengths of columns, float64 [right matrices, columns], and read panels of this width."""
    panels = -(-stack.columns // width)
    starts = np.pad(stack.starts, [(0, 0), (0, 2)])
    starts[:, 4] = stack.starts[:, 1] // (stack.k * stack.b_row * (panels if stack.panel else 1)) * (8 * width * panels)
    return {"batches*": starts, "known*": np.pad(lengths, [(0, 0), (0, width * panels - stack.columns)])}


def _places(left: LeftRows, ordered: bool, near: bool, known: bool) -> str:
    """Where the operands of a product are, as its kernel is told."""
    rows = "rows" if left.offsets is None else "image" if left.image else "taps"
    if ordered:
        return f"{rows}-{'near' if near else 'panels'}"
    return f"{rows}-{'known' if known else 'direct' if near else 'packed'}"
