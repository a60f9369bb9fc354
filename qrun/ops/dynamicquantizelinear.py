"""DynamicQuantizeLinear."""

from __future__ import annotations

from qrun.ops._complete import KnownScale
from qrun.ops._context import note_scale
from qrun.ops._dynamic import quantized
from qrun.ops._op import Array, Context, op
from qrun.ops.lowering.floats import quantizing
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, staged_kernel


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(x: Array, *, ctx: Context) -> tuple[Array, Array, Array]:
    """Quantize float32 x to uint8 with parameters from its own range: y, y_scale (rank 0), y_zero_point (rank 0).

        y_scale = (max(0, max x) - min(0, min x)) / 255       y_zero_point = RNE(clip(0 - min(0, min x) / y_scale))
        y = saturate(RNE(x / y_scale) + y_zero_point)

    Exact: each step is one float32 operation, as the page's function body says. Where y_scale comes out as 0, which
    the body divides by, scale 1 and zero point 0: x is empty, all zeros, or so small that its range / 255 underflows.
    NaN and -inf are refused; inf gives an infinite scale.
    ``ort``: the same steps; -inf gives an infinite scale and zero point 255. NaN is refused there too: what onnxruntime
    makes of it depends on its place and on the CPU, as it hides the elements before it in its vector lane.
    ``onnx-ref``: the same, but scale 1/255 for zeros only.
    """
    ctx.claim(x.shape)
    made = quantized(x, ctx.arith)
    note_scale(ctx, made[1], "y_scale")
    return made


@dynamic_quantize_linear.native
def _lower(site: LoweringContext) -> NativeKernel:
    if site.ctx.arith == "onnx-ref":
        raise declined("no native kernels for onnx-ref arithmetic")
    stages = quantizing(site.engine, site.inputs[0], (0, 1, 2))
    return staged_kernel(site, stages, [stages[place].operation for place in (0, -1)], KnownScale())
