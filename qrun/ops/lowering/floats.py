"""Native lowerings of integer products that give float32, and of quantizations whose parameters come with each run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from qrun.ir import Array
from qrun.ops._complete import Settled
from qrun.ops._context import Context, note_scale
from qrun.ops.lowering.dynamic import LIMIT, DynamicProduct, Given
from qrun.ops.lowering.kernel import Inputs, LoweringContext, NativeKernel, Stage, declined, staged_kernel

if TYPE_CHECKING:
    from qrun.native.machine.engine import Engine
    from qrun.native.machine.operation import Operation


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


def scaled_stages(
    product: DynamicProduct, left: Array | Given, scale: int, bias: int | None, slope: Array | None = None
) -> tuple[list[Stage], tuple[Operation, Operation]]:
    """The stages that make output 0, float32; and the operations among them that multiply matrices,
    and their sums by scales."""
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


def _parameter(product: DynamicProduct, place: int) -> Array | Given:
    """A float32 parameter of one element, or of one for each column."""
    site = product.site
    array = site.inputs[place]
    if array.size not in (1, product.n):
        raise declined(f"{site.names[place]} differs from matrix to matrix")
    return array if site.fixed[place] else Given.input(site, place)


def quantizing(engine: Engine, x: Array, outputs: tuple[int | str, int | str, int | str]) -> list[Stage]:
    """The stages that make codes, scale and zero point of input 0, which is x, float32."""
    from qrun.native.kernels.quantize import Parameters, Quantized, Range

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
    """A check of a run's inputs: whether the reference kernel observes nothing in the scales at these places."""

    def plain(inputs: Inputs) -> bool:
        probe = Context()
        for place in places:
            scale = inputs[place] if place < len(inputs) else None
            if scale is not None:
                note_scale(probe, scale, site.names[place])
        return not probe.observations

    return plain
