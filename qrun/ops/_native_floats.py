"""Native lowerings of products that give float32, and of quantizations whose parameters come with each run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Arith, Context
from qrun.ops._dynamic import dynamic_parameters, range_parameters
from qrun.ops._native import Inputs, LoweringContext, NativeKernel, NativeSection, Stage, staged_kernel
from qrun.ops._native_dynamic import DynamicProduct, Value, sections_of, weighted_stages
from qrun.ops._quantize import note_scale
from qrun.ops._rounding import two_product

if TYPE_CHECKING:
    from qrun.native.kernels.ranges import DynamicQuantizer
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operand

_MOST = 2**31
_REACH = 2.0**-51
"""More than twice the error, by magnitude of the terms, of a sum of a product in float64."""


class FloatProduct:
    """A product as float32: acc * slope * a_scale * b_scale + bias, rounded once, or in onnxruntime's float32 steps.

    b_scale: [1 or right matrices, 1 or N]; bias float32 [N] or None; addend int32 [N] or None.
    """

    def __init__(
        self,
        product: DynamicProduct,
        b_scale: Value,
        bias: Value = lambda inputs: None,
        addend: Value = lambda inputs: None,
        slope: Array | None = None,
    ) -> None:
        self.product, self.b_scale, self.bias, self.addend, self.slope = product, b_scale, bias, addend, slope
        self.form = "ort" if product.site.ctx.arith == "ort" else "real"
        self.matmul = product.matmul(form=self.form)
        self.wraps = product.wraps
        self.most = min(max(map(abs, product.bounds())), _MOST)
        self.sections = sections_of(self.matmul)
        self._last: tuple[Array | None, Array | None, Array | None] = (None, None, None)

    def run(self, inputs: Inputs, a: Array, b: Array, a_scale: Array, a_zero: Array, beyond: int = 0) -> Array:
        """a_scale: float32 of rank 0; the rest as Matmul.run takes it."""
        held = self._held(a_scale, self.b_scale(inputs), self.bias(inputs))
        b_zero, addend = self.product.b_zero(inputs), self.addend(inputs)
        return self.product.shaped(self.matmul.run(a, b, a_zero, b_zero, held, addend, beyond))

    def _held(self, a_scale: Array, b_scale: Array, bias: Array | None) -> Array:
        """The constants of the Finish; what does not depend on a_scale is kept while the arrays are the same ones."""
        scale, addend, base = self._last
        if base is None or b_scale is not scale or bias is not addend:
            base = self._base(b_scale, bias)
            self._last = (b_scale, bias, base)
        held = base.copy()
        with np.errstate(all="ignore"):
            if self.form == "ort":
                left = a_scale if self.slope is None else self.slope * a_scale
                np.multiply(base[:, :, 0], left, out=held[:, :, 0])
                return held
            left = a_scale.astype(np.float64) if self.slope is None else a_scale.astype(np.float64) * self.slope
            np.multiply(base[:, :, :2], left, out=held[:, :, :2])
            held[:, :, 1] += _REACH * np.abs(base[:, :, 3])
            if self.slope is not None:
                held[:, :, 2] = two_product(base[:, :, 0], left).lo
        return held

    def _base(self, b_scale: Array, bias: Array | None) -> Array:
        """The constants for an a_scale of 1."""
        n = self.product.n
        fields = [b_scale, np.full((1, 1), -0.0, np.float32) if bias is None else bias[None]]
        if self.form == "real":
            exact = b_scale.astype(np.float64)
            with np.errstate(invalid="ignore"):
                fields[:1] = [exact, exact * (2 * self.most * _REACH), np.zeros((1, 1))]
        return self.matmul.finish.constants([np.broadcast_to(field, (len(field), n)) for field in fields])

    def stages(
        self, codes: int | str, zero: int | str, zero_point: Operand, scale: int | str, a_scale: Operand
    ) -> tuple[Stage, ...]:
        """What makes output 0 of these codes, whose zero point and scale come with the run, where all else is constant."""
        from qrun.native.kernels.finish import Factors, Finish, Scaled

        product, inputs = self.product, self.product.site.inputs
        engine, base = product.site.engine, self._base(self.b_scale(inputs), self.bias(inputs))
        sums = weighted_stages(product, codes, zero, zero_point, "sums", self.addend(inputs))
        factors = Factors(engine, a_scale, base, self.form, None if self.slope is None else float(self.slope))
        acc = sums[-1].operation.result
        scaled = Scaled(Finish(engine, product.n, self.form), acc, factors.result, acc.shape)
        return (*sums, Stage(factors, (scale,), "factors"), Stage(scaled, ("sums", "factors")))


def float_kernel(
    floats: FloatProduct, a_scale: Value, plain: Callable[[Inputs], bool], place: int, constants: Sequence[int]
) -> NativeKernel:
    """The kernel of a float32 product whose operands and zero points are inputs.

    plain: whether a run's parameters leave the reference kernel nothing to observe. place: of A's scale; constants: of the
    parameters of B, and of what is added.
    """
    from qrun.native.machine.operation import Operand

    product = floats.product
    site, (left, _, zero, _) = product.site, product.places
    assert zero is not None
    scale, point = site.inputs[place], site.inputs[zero]
    known = product.weighted and all(site.fixed[at] for at in constants)
    if known and scale is not None and point is not None and point.size == scale.size == 1 and not site.fixed[zero]:
        given = Operand(point.shape, point.dtype), Operand(scale.shape, scale.dtype)
        stages = floats.stages(left, zero, given[0], place, given[1])
        return staged_kernel(site, stages, (stages[1].operation,), lambda y: not floats.wraps, plain)

    def run(inputs: Inputs) -> Array:
        assert product.a_zero is not None
        return floats.run(inputs, *product.operands(inputs), a_scale(inputs), product.a_zero(inputs))

    return NativeKernel(run, lambda y: not floats.wraps, floats.sections, plain=plain)


def dynamic_kernel(floats: FloatProduct, plain: Callable[[Inputs], bool], constants: Sequence[int]) -> NativeKernel:
    """The kernel of a float32 product whose left operand is quantized in each run; constants: as for float_kernel."""
    from qrun.native.kernels.ranges import DynamicQuantizer
    from qrun.native.machine.batch import Buffer, BufferPool

    product = floats.product
    site, size, count = product.site, product.left.size, floats.matmul.a_bytes
    quantizer = DynamicQuantizer(site.engine, size) if size else None
    arith: Arith = "ort" if site.ctx.arith == "ort" else "exact"
    site.afford(size + count)
    rooms = BufferPool(lambda: Buffer.empty((size + count,), np.uint8))

    def run(inputs: Inputs) -> Array:
        x, b = product.operands(inputs)
        x = np.ascontiguousarray(x)
        scale, zero = parameters(quantizer, x, arith)
        held = rooms.take()
        if quantizer is not None:
            quantizer.codes(x, scale, zero, held)
        codes = held.array[:size].reshape(x.shape)
        y = floats.run(inputs, codes, b, scale, zero.astype(np.int32).reshape(1), count)
        rooms.give(held)
        return y

    def complete(y: Array) -> bool:
        return not floats.wraps and bool(y.size) and bool(np.isfinite(y).all())

    if product.weighted and all(site.fixed[at] for at in constants):
        stages = _dynamic_stages(floats, product.a.shape)
        return staged_kernel(site, stages, (stages[6].operation,), complete, plain)
    names = () if quantizer is None else tuple(NativeSection(s.key(), s.form, 0, 0) for s in quantizer.specs)
    return NativeKernel(run, complete, (*names, *floats.sections), plain=plain)


def _dynamic_stages(floats: FloatProduct, shape: Sequence[int]) -> tuple[Stage, ...]:
    """Codes of input 0, of this shape, their product, and that as float32."""
    from qrun.native.kernels.ranges import RESULTS, Parameters, Quantized, Range

    engine = floats.product.site.engine
    ranges = Range(engine, shape)
    told = (
        Stage(Parameters(engine, ranges.result, form), ("ranges",), form) for form in ("scale", "zero", "parameters")
    )
    quantized = Stage(Quantized(engine, shape), (0, "parameters"), "codes")
    return (Stage(ranges, (0,), "ranges"), *told, quantized,
            *floats.stages("codes", "zero", RESULTS["zero"], "scale", RESULTS["scale"]))  # fmt: skip


def quantizer_kernel(site: LoweringContext, x: Array) -> NativeKernel:
    """The kernel that quantizes x to codes, with their scale and zero point."""
    from qrun.native.kernels.ranges import DynamicQuantizer
    from qrun.native.machine.batch import Buffer

    site.afford(x.size)
    quantizer = DynamicQuantizer(site.engine, x.size) if x.size else None

    def run(inputs: Inputs) -> tuple[Array, Array, Array]:
        (source,) = inputs
        source = np.ascontiguousarray(source).reshape(source.shape)
        scale, zero = parameters(quantizer, source, site.ctx.arith)
        y = Buffer.empty(source.shape, np.uint8)
        if quantizer is not None:
            quantizer.codes(source, scale, zero, y)
        return y.array, scale, zero

    def complete(made: tuple[Array, Array, Array]) -> bool:
        return bool(0 < made[1] < np.inf)

    names = () if quantizer is None else tuple(NativeSection(s.key(), s.form, 0, 0) for s in quantizer.specs)
    staged = quantizer is not None and site.ctx.arith != "onnx-ref"
    return NativeKernel(run, complete, names, quantizer_stages(site.engine, x.shape) if staged else ())


def quantizer_stages(engine: Engine, shape: Sequence[int]) -> tuple[Stage, ...]:
    """Codes, scale and zero point of float32 of this shape, which is not empty."""
    from qrun.native.kernels.ranges import Parameters, Quantized, Range

    ranges = Range(engine, shape)
    scale, zero, parameters = (Parameters(engine, ranges.result, form) for form in ("scale", "zero", "parameters"))
    return (
        Stage(ranges, (0,), "ranges"),
        Stage(scale, ("ranges",), 1),
        Stage(zero, ("ranges",), 2),
        Stage(parameters, ("ranges",), "parameters"),
        Stage(Quantized(engine, shape), (0, "parameters"), 0),
    )


def parameters(quantizer: DynamicQuantizer | None, x: Array, arith: Arith) -> tuple[Array, Array]:
    """Scale and zero point of x as the reference derives them: from its range, if that is finite."""
    if quantizer is None:
        return dynamic_parameters(x, arith)
    found = quantizer.range(x)
    return dynamic_parameters(x, arith) if found is None else range_parameters(*found, arith)


def plain_scales(*scales: tuple[str, Value]) -> Callable[[Inputs], bool]:
    """Whether the reference kernel has nothing to observe in these scales."""

    def plain(inputs: Inputs) -> bool:
        probe = Context()
        for name, scale in scales:
            note_scale(probe, scale(inputs), name)
        return not probe.observations

    return plain
