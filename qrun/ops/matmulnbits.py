"""MatMulNBits of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.ir.types import shape_text, type_name
from qrun.ops._blockweights import BlockWeights, dequantized_product
from qrun.ops._complete import ALWAYS
from qrun.ops._context import note_scale
from qrun.ops._matmul import matmul_macs
from qrun.ops._op import Array, Context, Shape, contrib_op, misfit, one_of, refuse, require
from qrun.ops._signature import FLOATS
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, kernel_of, require_type
from qrun.ops.lowering.products import matmul_kernel

_BITS = (2, 4, 8)


@contrib_op(
    "MatMulNBits",
    cost=matmul_macs,
    types={
        "T1": (FLOATS, "A scales bias"),
        "T2": ("uint8", "B"),
        "T3": ("uint8 float float16 bfloat16", "zero_points"),
        "T4": ("int32", "g_idx"),
    },
)
def matmul_n_bits(
    A: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
    ctx: Context,
) -> Array:
    """Product of A [...,K] with weights of 2, 4 or 8 bits, which have a scale for each block along K; Y [...,N].

    With blocks = ceil(K / block_size), B is uint8 [N, blocks, block_size * bits / 8], its codes packed from the low
    bits up. scales: [N, blocks] or flat. zero_points: packed as B, uint8 [N, ceil(blocks * bits / 8)], or of A's type
    [N, blocks], or either flat; without them 2**(bits - 1). g_idx [K] or as long as all blocks: the block whose scale
    and zero point each row of the weights has, instead of its own. bias [N].

        w[k,n] = (code - zero_point) * scale              as DequantizeLinear, in float32 steps
        Y = A @ w + bias                                  as MatMul (F1), then the bias

    accuracy_level allows a runtime to round A; exact arithmetic does not. ``ort`` with accuracy_level 4 does what
    onnxruntime does with stored weights whose zero points are not floats: it quantizes each block of A to int8 in
    float32 steps, with scale max|a| / 127, and multiplies integers; blocks are added in float64. weight_prepacked must
    be 0: other layouts are those of one device. Raises OperatorError for shapes, types and attributes that do not fit.
    """
    weights = checked_weights(A, (B, scales, zero_points, g_idx, bias), (K, N, bits, block_size), weight_prepacked)
    ctx.claim((*A.shape[:-1], N), 8)
    note_scale(ctx, scales, "scales", signed=True)  # negative ones are what quantizers write, so that -8 is used too
    return dequantized_product(A.reshape(-1, K), weights, bias, accuracy_level, ctx).reshape(*A.shape[:-1], N)


@matmul_n_bits.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, *rest = site.inputs
    given = site.attributes
    assert a is not None
    numbers = tuple(int(given[name]) for name in ("K", "N", "bits", "block_size"))
    weights = checked_weights(a, rest, numbers, given["weight_prepacked"])
    depth, columns = numbers[:2]
    site.ctx.claim((*a.shape[:-1], columns), 8)
    site.require_constants()
    note_scale(site.ctx, rest[1], "scales", signed=True)
    require_type(a.dtype == np.float32, a.dtype, "{} products")
    if site.ctx.arith == "ort" and weights.in_int8(given["accuracy_level"]):
        raise declined("no native kernels for accuracy_level 4 in ort arithmetic")
    bias = rest[4]
    if weights.groups is not None:
        site.afford(4 * columns * depth)
        values = site.memo.once("values", lambda: weights.values(depth))
        return matmul_kernel(site, a, values.T, bias)
    return coded_kernel(site, weights, a, bias)


def coded_kernel(site: LoweringContext, weights: BlockWeights, a: Array, bias: Array | None) -> NativeKernel:
    """The kernel of a product with these constant weights, of A's type float32,
    each with the scale of its own block."""
    from qrun.native.kernels.coded import CodedMatmul, CodedWeights

    site.afford(weights.codes.nbytes + 5 * weights.scales.size)
    zeros = None if weights.zero_points is None else weights.zeros()
    coded = CodedWeights(
        weights.codes.reshape(len(weights.codes), -1),
        weights.scales,
        zeros,
        weights.bits,
        weights.block,
        weights.depth,
    )
    operation = CodedMatmul(site.engine, a.shape, coded, bias=bias, memo=site.memo)
    return kernel_of(site, operation, (0,), ALWAYS)


def checked_weights(
    a: Array, inputs: Sequence[Array | None], numbers: Sequence[int], weight_prepacked: int
) -> BlockWeights:
    """The weights, checked. inputs: all but A. numbers: K, N, bits, block_size."""
    b, scales, zero_points, groups, bias = inputs
    assert b is not None
    assert scales is not None
    depth, columns, bits, block = numbers
    _check_numbers(numbers, weight_prepacked)
    if not a.ndim or a.shape[-1] != depth:
        raise misfit("A does not have K columns", "A", f"[...,{depth}], as K says", a)
    blocks, width = -(-depth // block), block * bits // 8
    _shape(b, "B", [(columns, blocks, width)], "N, blocks, bytes of a block")
    flat = (columns * blocks,)
    _shape(scales, "scales", [(columns, blocks), flat], "N, blocks", "QR301")
    scales = scales.reshape(columns, blocks)
    if zero_points is not None:
        if zero_points.dtype not in (np.uint8, a.dtype):
            expected = f"uint8 or {type_name(a.dtype)}, A's type"
            got = type_name(zero_points.dtype)
            raise refuse(
                f"zero_points is {got}, but A is {type_name(a.dtype)}", "zero_points", expected, got, code="QR303"
            )
        wide = -(-blocks * bits // 8) if zero_points.dtype == np.uint8 else blocks
        _shape(zero_points, "zero_points", [(columns, wide), (columns * wide,)], "N, those of all blocks", "QR302")
        zero_points = zero_points.reshape(columns, wide)
    if groups is not None:
        _shape(groups, "g_idx", [(depth,), (blocks * block,)], "one for each k")
        bad = (groups < 0) | (groups >= blocks)
        if bad[:depth].any():
            found = int(groups[int(np.argmax(bad))])
            raise misfit(f"g_idx has block {found}", "g_idx", f"0 to {blocks - 1}, of {blocks} blocks", str(found))
    if bias is not None:
        _shape(bias, "bias", [(columns,)], "one for each column", "QR305")
    return BlockWeights(b, scales, zero_points, groups, depth, bits, block)


def _check_numbers(numbers: Sequence[int], weight_prepacked: int) -> None:
    depth, columns, bits, block = numbers
    require("K", depth > 0, "a positive number", depth)
    require("N", columns > 0, "a positive number", columns)
    one_of("bits", bits, _BITS)
    require("block_size", block >= 16 and not block & (block - 1), "a power of two, 16 or more", block)
    require("weight_prepacked", not weight_prepacked, "0: other layouts are those of one device", weight_prepacked)


def _shape(array: Array, name: str, allowed: Sequence[Shape], words: str, code: str = "QR208") -> None:
    if array.shape not in allowed:
        text = " or ".join(shape_text(shape) for shape in allowed)
        raise refuse(f"{name} has shape {shape_text(array.shape)}", name, f"{text} ({words})", array, code=code)
