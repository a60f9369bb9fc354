"""Native lowerings of integer products that give float32, and of quantizations whose parameters come with each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from qrun.ir import Array
from qrun.ops._complete import NEVER, Finite, KnownScale, Settled
from qrun.ops._context import Context
from qrun.ops._native import Inputs, LoweringContext, NativeKernel, Stage, declined, staged_kernel
from qrun.ops._native_dynamic import DynamicProduct, Given
from qrun.ops._quantize import note_scale

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operation

_MOST = 2**31


def float_kernel(
    product: DynamicProduct,
    scales: tuple[int, int],
    bias: int | None,
    plain: Callable[[Inputs], bool],
    slope: Array | None = None,
) -> NativeKernel:
    """The kernel of product * a_scale * b_scale * slope + bias as float32.

    scales, bias: their places among the inputs. plain: whether a run's parameters leave the reference kernel nothing to
    observe.
    """
    stages, shown = scaled_stages(product, _parameter(product, scales[0]), scales[1], bias, slope)
    return staged_kernel(product.site, stages, shown, Settled(not product.wraps), plain)


def dynamic_kernel(
    site: LoweringContext, a: Array, b: Array, places: tuple[int, int, int, int], plain: Callable[[Inputs], bool]
) -> NativeKernel:
    """The kernel of the product of input 0, which is quantized in each run, with b as float32.

    places: of B, its scale, its zero point and the bias among the inputs.
    """
    from qrun.native.kernels.dynamic import RESULTS

    right, scale, zero, bias = places
    codes = np.broadcast_to(np.uint8(0), a.shape)
    product = DynamicProduct(site, codes, b, ("codes", right, Given("zero", RESULTS["zero"]), zero))
    stages, shown = scaled_stages(product, Given("scale", RESULTS["scale"]), scale, bias)
    quantized = quantizing(site.engine, a, ("codes", "scale", "zero"))
    return staged_kernel(site, [*quantized, *stages], shown, NEVER if product.wraps else Finite(), plain)


def scaled_stages(
    product: DynamicProduct, left: Array | Given, scale: int, bias: int | None, slope: Array | None = None
) -> tuple[list[Stage], tuple[Operation, Operation]]:
    """The stages that make output 0, float32; and the operations among them that multiply matrices, and their sums by scales."""
    from qrun.native.kernels.dynamic import Factors, Scaled, Scaling

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
        min(max(map(abs, product.bounds())), _MOST),
        None if slope is None else float(slope),
    )
    factors = Factors(site.engine, scaling)
    stages, shown = product.stages(output="sums")
    scaled = Scaled(factors, stages[-1].operation.result.shape, product.shape)
    given = tuple(source.value for source in sources if isinstance(source, Given))
    return [*stages, Stage(factors, given, "factors"), Stage(scaled, ("sums", "factors"))], (shown, scaled)


def _parameter(product: DynamicProduct, place: int) -> Array | Given:
    """A float32 parameter of one element, or of one for each column."""
    site = product.site
    array = site.inputs[place]
    if array.size not in (1, product.n):
        raise declined(f"{site.names[place]} differs from matrix to matrix")
    return array if site.fixed[place] else Given.input(site, place)


def quantizer_kernel(site: LoweringContext, x: Array) -> NativeKernel:
    """The kernel that quantizes x to codes, with their scale and zero point."""
    if site.ctx.arith == "onnx-ref":
        raise declined("no native kernels for onnx-ref arithmetic")
    stages = quantizing(site.engine, x, (0, 1, 2))
    shown = tuple(stages[place].operation for place in (0, -1))
    return staged_kernel(site, stages, shown, KnownScale())


def quantizing(engine: Engine, x: Array, outputs: tuple[int | str, int | str, int | str]) -> list[Stage]:
    """The stages that make codes, scale and zero point of input 0, which is x, float32."""
    from qrun.native.kernels.dynamic import Parameters, Quantized, Range

    if not x.size:
        raise declined("an empty tensor")
    codes, scale, zero = outputs
    ranges = Range(engine, x.shape)
    told = {"scale": scale, "zero": zero, "parameters": "parameters"}
    return [
        Stage(ranges, (0,), "ranges"),
        *(Stage(Parameters(engine, ranges.result, form), ("ranges",), output) for form, output in told.items()),
        Stage(Quantized(engine, x.shape), (0, "parameters"), codes),
    ]


def plain_scales(site: LoweringContext, *places: int) -> Callable[[Inputs], bool]:
    """Whether the reference kernel has nothing to observe in the scales of these numbers."""

    def plain(inputs: Inputs) -> bool:
        probe = Context()
        for place in places:
            scale = inputs[place] if place < len(inputs) else None
            if scale is not None:
                note_scale(probe, scale, site.names[place])
        return not probe.observations

    return plain
