"""Native lowerings of products and quantizations whose parameters or right operand are known at run time only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._matmul import matmul_shape
from qrun.ops._native import (
    Inputs,
    LoweringContext,
    NativeKernel,
    NativeSection,
    Stage,
    completeness,
    declined,
    staged_kernel,
)
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.native.kernels.conv import Conv, Gemm
    from qrun.native.kernels.dynamic import Matmul
    from qrun.native.machine.operation import Operand
    from qrun.native.proof.epilogue import Target

Value = Callable[[Inputs], Any]
"""A parameter as a function of the node's inputs."""

_WRAPS = 2**31
_REACH = 2.0**-51
"""More than twice the error, by magnitude of the terms, of a sum of a product in float64."""
_SPAN = 255
_EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))


def value(site: LoweringContext, place: int, make: Callable[[Array | None], Any]) -> Value:
    """make(input number `place`), made once if that is constant."""
    if not site.fixed[place]:
        return lambda inputs: make(inputs[place])
    made = make(site.inputs[place])
    return lambda inputs: made


def copied(given: Array | None) -> Array | None:
    """An array of its own for each run: kernels remember what they derived from the same array."""
    return None if given is None else np.array(given)


class DynamicProduct:
    """The product of a checked node's operands, and how a run's inputs become its arguments.

    places: of A, B, A's zero point (None: it comes with the run) and B's zero point among the inputs.
    turned: whether A and B are transposed.
    row, column: the operator's checks of zero points, which return them to broadcast to the operands.
    addends: int32 values that may be added to sums; they count in `bounds`.
    """

    def __init__(
        self,
        site: LoweringContext,
        a: Array,
        b: Array,
        places: tuple[int, int, int | None, int],
        row: Callable[[Array | None], Array | None],
        column: Callable[[Array | None], Array | None],
        turned: tuple[bool, bool] = (False, False),
        addends: Array | None = None,
    ) -> None:
        self.site, self.a, self.b, self.places, self.turned, self.addends = site, a, b, places, turned, addends
        self.left = a[None, :] if a.ndim == 1 else a
        self.right = b[:, None] if b.ndim == 1 else b
        if a.dtype not in _EIGHT or b.dtype not in _EIGHT:
            raise declined(f"no native {type_name(a.dtype if b.dtype in _EIGHT else b.dtype)} products")
        self.lead = broadcast_shapes(self.left.shape[:-2], self.right.shape[:-2])
        self.k, self.n = self.left.shape[-1], self.right.shape[-1]
        self.rows = int(np.prod(self.lead, dtype=np.int64)) * self.left.shape[-2]
        self.a_zero = None if places[2] is None else value(site, places[2], lambda z: self.per_row(row(z)))
        self.b_zero = value(site, places[3], lambda z: self.per_column(column(z), np.int32))

    def per_row(self, zero: Array | None) -> Array:
        """int32 [1], or one for each row of the result."""
        if zero is None:
            return np.zeros(1, np.int32)
        if zero.size == 1:
            return zero.astype(np.int32).reshape(1)
        full = (*self.lead, self.left.shape[-2], 1)
        return np.ascontiguousarray(np.broadcast_to(zero, full), np.int32).reshape(-1)

    def per_column(self, parameter: Array | None, kind: Any) -> Array:
        """[1 or right matrices, 1 or N]."""
        if parameter is None:
            return np.zeros((1, 1), kind)
        if parameter.size == 1:
            return parameter.astype(kind).reshape(1, 1)
        if parameter.ndim > 2 and any(n != 1 for n in parameter.shape[:-2]):
            parameter = np.broadcast_to(parameter, (*self.right.shape[:-2], 1, self.n))
        return parameter.astype(kind).reshape(int(np.prod(parameter.shape[:-2], dtype=np.int64)), self.n)

    @property
    def weighted(self) -> bool:
        """Whether B and its zero point are constant, B is one matrix, neither is transposed, and there is something to do."""
        _, right, _, zero = self.places
        fixed = self.site.fixed[right] and self.site.fixed[zero]
        return fixed and self.right.ndim == 2 and not any(self.turned) and bool(self.k * self.n * self.rows)

    def spans(self) -> tuple[int, int, int, int]:
        """The least and the greatest of a - a_zero, and of b - b_zero."""
        found = []
        for array, place, zero in ((self.a, self.places[2], self.a_zero), (self.b, self.places[3], self.b_zero)):
            info = np.iinfo(array.dtype)
            known = zero(self.site.inputs) if place is not None and self.site.fixed[place] and zero else None
            low, high = (info.min, info.max) if known is None or not known.size else (known.min(), known.max())
            found += [int(info.min) - int(high), int(info.max) - int(low)]
        return found[0], found[1], found[2], found[3]

    def bounds(self) -> tuple[int, int]:
        """Of every sum, before it wraps."""
        a0, a1, b0, b1 = self.spans()
        ends = [x * y * self.k for x in (a0, a1) for y in (b0, b1)]
        low, high = min(0, *ends), max(0, *ends)
        if self.addends is None or not self.addends.size:
            return low, high
        return low + int(self.addends.min()), high + int(self.addends.max())

    @property
    def wraps(self) -> bool:
        """Whether some sum may leave int32."""
        low, high = self.bounds()
        return low < -_WRAPS or high >= _WRAPS

    def matmul(self, **finish: Any) -> Matmul:
        from qrun.native.kernels.dynamic import Matmul
        from qrun.native.machine.operation import Operand

        site = self.site
        constant = site.fixed[self.places[1]] and self.right.ndim == 2
        zero = self.b_zero(site.inputs)[0] if constant and site.fixed[self.places[3]] else None
        rows = int(np.prod(self.lead, dtype=np.int64)) * self.left.shape[-2]
        site.afford(self.k * self.n * 20 + rows * 36 + self.n * 8192)
        made = Matmul(
            site.engine,
            Operand(self.left.shape, self.a.dtype),
            Operand(self.right.shape, self.b.dtype),
            weights=self.right if constant else None,
            zero=zero,
            **finish,
        )
        site.afford(made.scratch_bytes + int(np.prod(made.y_shape, dtype=np.int64)) * made.finish.dtype.itemsize)
        return made

    def operands(self, inputs: Inputs) -> tuple[Array, Array]:
        a, b = inputs[self.places[0]], inputs[self.places[1]]
        a, b = (x.T if turned else x for x, turned in zip((a, b), self.turned, strict=True))
        return (a[None, :] if a.ndim == 1 else a), (b[:, None] if b.ndim == 1 else b)

    def shaped(self, y: Array) -> Array:
        return np.asarray(matmul_shape(y, self.a, self.b))


def sections_of(matmul: Matmul) -> tuple[NativeSection, ...]:
    form = matmul.finish.form
    return tuple(NativeSection(s.spec.key(), form, s.first, s.channels) for s in matmul.sections)


def stacked_kernel(
    product: DynamicProduct, target: Target | None, complete: Callable[[Array], bool], matrices: int = 1
) -> NativeKernel | None:
    """The kernel of a product whose right operand comes with the run, both zero points of one element; None for others.

    matrices: of which each has its own scales. Its results are those of `target`, or the sums.
    """
    from qrun.native.kernels.finish import requantization
    from qrun.native.kernels.results import Results
    from qrun.native.kernels.stacked import Pack, RowTerms, Stack, StackProduct
    from qrun.native.machine.operation import Operand

    site, (left, right, *places) = product.site, product.places
    if (
        site.fixed[right]
        or any(product.turned)
        or product.addends is not None
        or not product.k * product.n * product.rows
    ):
        return None
    zeros = [_zero_point(site, place) for place in places]
    if zeros[0] is None or zeros[1] is None:
        return None
    results = Results(None, None)
    if target is not None:
        results = requantization(site.engine, target, product.n * matrices, *product.bounds())
    a, b = Operand(product.a.shape, product.a.dtype), Operand(product.b.shape, product.b.dtype)
    site.afford(product.rows * 8 + product.n * matrices * 8192)
    stack = Stack(site.engine, a, b, results, matrices)
    inputs = [[place] if place is not None and isinstance(zero, Operand) else []
              for place, zero in zip(places, zeros, strict=True)]  # fmt: skip
    stages = [Stage(Pack(stack, zeros[0]), (right, *inputs[0]), "packed")]
    terms = zeros[1] != stack.shift
    if terms:
        stages.append(Stage(RowTerms(stack, *zeros), (left, *inputs[0], *inputs[1]), "rows"))
    y_shape = product.shaped(np.broadcast_to(np.int32(0), stack.y_shape)).shape
    made = StackProduct(stack, terms, y_shape)
    stages.append(Stage(made, (left, "packed", *["rows"] * terms)))
    return staged_kernel(site, stages, (made,), complete)


def _zero_point(site: LoweringContext, place: int | None) -> Any:
    """A zero point as the engine takes it: a number, or an operand of one element; None if it has more."""
    from qrun.native.machine.operation import Operand

    given = None if place is None else site.inputs[place]
    if given is None:
        return 0
    if given.size != 1:
        return None
    assert place is not None
    return int(given.reshape(())) if site.fixed[place] else Operand(given.shape, given.dtype)


def sums_kernel(product: DynamicProduct) -> NativeKernel:
    """The kernel of int32 sums."""
    made = stacked_kernel(product, None, lambda y: not product.wraps) or weighted_kernel(product)
    if made is not None:
        return made
    matmul = product.matmul()
    wraps = product.wraps
    assert product.a_zero is not None
    a_zero, b_zero = product.a_zero, product.b_zero

    def run(inputs: Inputs) -> Array:
        return product.shaped(matmul.run(*product.operands(inputs), a_zero(inputs), b_zero(inputs)))

    return NativeKernel(run, lambda y: not wraps, sections_of(matmul))


def weighted_kernel(product: DynamicProduct) -> NativeKernel | None:
    """The kernel of the sums of a product with constant weights, A's zero point one element; None for others."""
    from qrun.native.kernels.sums import reach
    from qrun.native.machine.operation import Operand

    site, (left, _, place, zero_place) = product.site, product.places
    given = site.inputs[place] if place is not None else None
    if given is None or given.size != 1 or not product.weighted:
        return None
    assert place is not None
    stages = weighted_stages(product, left, place, Operand(given.shape, given.dtype))
    zero = site.inputs[zero_place]
    wraps = reach(product.right.T, None if zero is None else zero.reshape(-1)) >= _WRAPS
    return staged_kernel(site, stages, (stages[-1].operation,), lambda y: not wraps)


def weighted_stages(
    product: DynamicProduct,
    left: int | str,
    place: int | str,
    zero: Operand,
    output: int | str = 0,
    addend: Array | None = None,
) -> tuple[Stage, Stage]:
    """The sums of a product that is `weighted`, of codes `left` whose zero point is the input or value `place`."""
    from qrun.native.kernels.conv import Gemm
    from qrun.native.kernels.sums import KINDS, dynamic_sums

    site, a = product.site, product.a
    given = site.inputs[product.places[3]]
    w_zero = None if given is None else given.reshape(-1)
    site.afford(product.rows * 36 + product.right.size * 16 + product.n * 8192)
    gemm = Gemm(site.engine, a.shape, product.right, x_zero_point=np.zeros((), a.dtype), w_zero_point=w_zero, bias=addend,
                kinds=KINDS)  # fmt: skip
    y_shape = product.shaped(np.broadcast_to(np.int32(0), (*product.lead, product.left.shape[-2], product.n))).shape
    prepare, sums = dynamic_sums(gemm, product.right.T, w_zero, zero, y_shape)
    return Stage(prepare, (place,), "prepared"), Stage(sums, (left, "prepared"), output)


def dynamic_sums_kernel(
    site: LoweringContext,
    planned: Conv | Gemm,
    weights: Array,
    w_zero: Array | None,
    place: int,
    y_shape: Sequence[int] | None = None,
) -> NativeKernel:
    """The kernel of a product that is planned for a zero point of 0; the zero point is input number `place`.

    weights: [N, ...], their zero point of one element or [N].
    """
    from qrun.native.kernels.sums import dynamic_sums, reach
    from qrun.native.machine.operation import Operand

    given = site.inputs[place]
    prepare, sums = dynamic_sums(planned, weights, w_zero, Operand(given.shape, given.dtype), y_shape)
    wraps = reach(weights, w_zero) >= _WRAPS
    stages = Stage(prepare, (place,), "prepared"), Stage(sums, (0, "prepared"))
    return staged_kernel(site, stages, (sums,), lambda y: not wraps)


def quantized_kernel(product: DynamicProduct, target: Target, addend: Array | None, matrices: int) -> NativeKernel:
    """The kernel of a requantized product; target.w_scale has 1, N or matrices * N values, the addend is int32 [N]."""
    from qrun.native.kernels.finish import requantization

    found = stacked_kernel(product, target, completeness(product.wraps, target), matrices)
    if found is not None:
        return found
    results = requantization(product.site.engine, target, product.n * matrices, *product.bounds())
    matmul = product.matmul(results=results, groups=matrices)
    assert product.a_zero is not None
    a_zero, b_zero = product.a_zero, product.b_zero

    def run(inputs: Inputs) -> Array:
        made = matmul.run(*product.operands(inputs), a_zero(inputs), b_zero(inputs), addend=addend)
        return product.shaped(made)

    return NativeKernel(run, completeness(product.wraps, target), sections_of(matmul))
