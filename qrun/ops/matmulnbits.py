"""Weights of few bits: MatMulNBits, MatMulBnb4, GatherBlockQuantized and MatMulInteger16 of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from qrun.ir.types import FLOAT8, SMALL, shape_text, type_name
from qrun.ops._blockweights import BlockWeights, dequantized_product, unpack
from qrun.ops._chains import chained_products
from qrun.ops._complete import ALWAYS
from qrun.ops._context import note_scale, same_type
from qrun.ops._float import axis_in, narrow
from qrun.ops._matmul import check_matmul, claim_product, matmul, matmul_macs, matmul_shape
from qrun.ops._op import Array, Context, Shape, contrib_op, first_place, misfit, one_of, refuse, require
from qrun.ops._signature import FLOATS
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, kernel_of, require_type
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
    """Multiply A [...,K] by weights of 2, 4 or 8 bits, with one scale per block along K; the result is Y [...,N].

    With blocks = ceil(K / block_size), B is uint8 [N, blocks, block_size * bits / 8], with codes packed from the low
    bits up. scales are [N, blocks] or flat. zero_points are packed like B, as uint8 [N, ceil(blocks * bits / 8)], or
    have A's type and shape [N, blocks]; either may be flat. The default is 2**(bits - 1). g_idx, [K] or as long as all
    blocks, selects the block whose scale and zero point each row of the weights uses. bias is [N]. If any dimension of
    B is 0, there is no product: Y is 0, or the bias.

        w[k,n] = (code - zero_point) * scale              as DequantizeLinear, in float32 steps
        Y = A @ w + bias                                  as MatMul (F1), then the bias

    accuracy_level allows a runtime to round A; exact arithmetic does not round it. With accuracy_level 4, ``ort`` does
    what onnxruntime does for stored weights whose zero points are not floats: it quantizes each block of A to int8 in
    float32 steps, with scale max|a| / 127, and multiplies integers; blocks are added in float64. weight_prepacked must
    be 0: other layouts are specific to one device.
    Raises OperatorError for shapes, types and attributes that do not fit.
    """
    numbers = (K, N, bits, block_size)
    if _omits_product(B, numbers):
        _check_rows(A, bias, numbers, weight_prepacked)
        ctx.claim((*A.shape[:-1], N), 8)
        return np.full((*A.shape[:-1], N), 0 if bias is None else bias, A.dtype)
    weights = check_weights(A, (B, scales, zero_points, g_idx, bias), numbers, weight_prepacked)
    ctx.claim((*A.shape[:-1], N), 8)
    note_scale(ctx, scales, "scales", signed=True)  # quantizers write negative scales, so that -8 is used too
    return dequantized_product(A.reshape(-1, K), weights, bias, accuracy_level, ctx).reshape(*A.shape[:-1], N)


@matmul_n_bits.native
def _lower(site: LoweringContext) -> NativeKernel:
    a, *rest = site.inputs
    given = site.attributes
    assert a is not None
    numbers = tuple(int(given[name]) for name in ("K", "N", "bits", "block_size"))
    if rest[0] is not None and _omits_product(rest[0], numbers):
        raise decline_error("no native kernel for an omitted product")
    weights = check_weights(a, rest, numbers, given["weight_prepacked"])
    depth, columns = numbers[:2]
    site.ctx.claim((*a.shape[:-1], columns), 8)
    site.require_constants()
    note_scale(site.ctx, rest[1], "scales", signed=True)
    require_type(a.dtype == np.float32, a.dtype, "{} products")
    if site.ctx.arith == "ort" and weights.in_int8(given["accuracy_level"]):
        raise decline_error("no native kernels for accuracy_level 4 in ort arithmetic")
    bias = rest[4]
    if weights.groups is not None:
        site.afford(4 * columns * depth)
        values = site.memo.once("values", lambda: weights.values(depth))
        return matmul_kernel(site, a, values.T, bias)
    return coded_kernel(site, weights, a, bias)


def coded_kernel(site: LoweringContext, weights: BlockWeights, a: Array, bias: Array | None) -> NativeKernel:
    """The kernel of a product with these constant weights, which have A's type float32 and each the scale of its own
    block."""
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


def check_weights(
    a: Array, inputs: Sequence[Array | None], numbers: Sequence[int], weight_prepacked: int
) -> BlockWeights:
    """The weights, checked. inputs: all but A. numbers: K, N, bits, block_size."""
    b, scales, zero_points, groups, bias = inputs
    assert b is not None
    assert scales is not None
    depth, columns, bits, block = numbers
    _check_rows(a, bias, numbers, weight_prepacked)
    _, blocks, _ = packed_shape(numbers)
    _shape(b, "B", [packed_shape(numbers)], "N, blocks, bytes of a block")
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
        _shape(zero_points, "zero_points", [(columns, wide), (columns * wide,)], "N, one per block", "QR302")
        zero_points = zero_points.reshape(columns, wide)
    if groups is not None:
        _shape(groups, "g_idx", [(depth,), (blocks * block,)], "one for each k")
        bad = (groups < 0) | (groups >= blocks)
        if bad[:depth].any():
            found = int(groups[int(np.argmax(bad))])
            raise misfit(f"g_idx has block {found}", "g_idx", f"0 to {blocks - 1}, of {blocks} blocks", str(found))
    return BlockWeights(b, scales, zero_points, groups, depth, bits, block)


def packed_shape(numbers: Sequence[int]) -> tuple[int, int, int]:
    """The shape of B: columns, blocks, bytes of a block. numbers: K, N, bits, block_size."""
    depth, columns, bits, block = numbers
    return columns, -(-depth // block), block * bits // 8


def _omits_product(b: Array, numbers: Sequence[int]) -> bool:
    """Whether B has the shape of an omitted product: its own, with 0 for one or more lengths."""
    if b.size or b.ndim != 3 or numbers[3] <= 0:
        return False
    return all(length in (0, whole) for length, whole in zip(b.shape, packed_shape(numbers), strict=True))


def _check_rows(a: Array, bias: Array | None, numbers: Sequence[int], weight_prepacked: int) -> None:
    """Raise OperatorError for attributes outside their range, A without K columns, and a bias of another length."""
    depth, columns, *_ = numbers
    _check_numbers(numbers, weight_prepacked)
    if not a.ndim or a.shape[-1] != depth:
        raise misfit("A does not have K columns", "A", f"[...,{depth}], as K says", a)
    if bias is not None:
        _shape(bias, "bias", [(columns,)], "one for each column", "QR305")


def _check_numbers(numbers: Sequence[int], weight_prepacked: int) -> None:
    """Raise OperatorError for K, N, bits, block_size or weight_prepacked outside their range."""
    depth, columns, bits, block = numbers
    require("K", depth > 0, "a positive number", depth)
    require("N", columns > 0, "a positive number", columns)
    one_of("bits", bits, _BITS)
    require("block_size", block >= 16 and not block & (block - 1), "a power of two, 16 or more", block)
    require("weight_prepacked", not weight_prepacked, "0: other layouts belong to one device", weight_prepacked)


def _shape(array: Array, name: str, allowed: Sequence[Shape], words: str, code: str = "QR208") -> None:
    """Raise OperatorError unless an array has one of the allowed shapes."""
    if array.shape not in allowed:
        text = " or ".join(shape_text(shape) for shape in allowed)
        raise refuse(f"{name} has shape {shape_text(array.shape)}", name, f"{text} ({words})", array, code=code)


_CODES = "int4 uint4 uint8 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz float4e2m1"
_FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_MAPS = {0: np.array([*_FP4, *(-v for v in _FP4)], np.float32), 1: np.array(_NF4, np.float32)}


@contrib_op(
    "GatherBlockQuantized",
    types={"T1": (_CODES, "data zero_points"), "Tind": ("int32 int64", "indices"), "T2": (FLOATS, "scales")},
)
def gather_block_quantized(
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
    ctx: Context,
) -> Array:
    """DequantizeLinear in blocks along quantize_axis, then Gather along gather_axis; out-of-range indices produce 0.

    data int4, uint4, float8 or float4; or uint8 with codes of 2, 4 or 8 `bits` along the last axis, the first in the
    low bits, then gather_axis is 0. scales as data, ceil(n / block_size) along quantize_axis; of float8 and float4
    other axes may have 1, and a block_size of 0 is the whole axis. zero_points are packed as data; if omitted, they
    are 0, or 2**(bits-1) of uint8.

        y = (code - zero_point) * scale

    In float32 steps, then of scales' type. Raises OperatorError for shapes and attributes that do not fit.
    """
    packed = data.dtype == np.uint8
    floating = data.dtype in FLOAT8 or data.dtype in SMALL
    width = bits if packed else 8
    blocks_along = axis_in(quantize_axis, data.ndim, "quantize_axis")
    along = axis_in(gather_axis, data.ndim, "gather_axis")
    _check_blocks(packed, floating, bits, block_size, along, blocks_along)
    size = [*data.shape[:-1], data.shape[-1] * 8 // width]
    block = block_size or max(size[blocks_along], 1)
    parameters = [-(-n // block) if axis == blocks_along else n for axis, n in enumerate(size)]
    _check_scales(scales, parameters, blocks_along, floating)
    zeros = None if zero_points is None else _zeros(zero_points, data, parameters, width)
    known = (indices >= -size[along]) & (indices < size[along])
    places = np.where(known, indices, 0).reshape(-1)
    shape = (*size[:along], *indices.shape, *size[along + 1 :])
    ctx.claim(shape, 12)
    if not size[along]:
        return np.zeros(shape, scales.dtype)
    codes = _unpack(np.take(data, places, axis=along), width).astype(np.float32)
    spread = partial(_spread_parameters, places, along, np.arange(size[blocks_along]) // block, blocks_along)
    with np.errstate(all="ignore"):
        if zeros is not None:
            codes -= spread(zeros)
        elif packed:
            codes -= np.float32(2 ** (bits - 1))
        made = (codes * spread(scales)).astype(scales.dtype).reshape(shape)
    beyond = ~known.reshape((1,) * along + indices.shape + (1,) * (len(size) - along - 1))
    return np.asarray(np.where(beyond, np.zeros((), made.dtype), made)) if not known.all() else made


def _spread_parameters(places: Array, along: int, rows: Array, blocks_along: int, x: Array) -> Array:
    """The parameter of each code at these positions of an axis, from the parameters of blocks; rows: each code's block
    along the other axis."""
    if blocks_along == along:
        return np.take(x, rows[places], axis=along).astype(np.float32)
    x = x if x.shape[along] == 1 else np.take(x, places, axis=along)
    return np.take(x, rows, axis=blocks_along).astype(np.float32)


def _unpack(x: Array, width: int) -> Array:
    """The codes in bytes along the last axis, the first in the low bits; other types unchanged."""
    return unpack(x, width) if x.dtype == np.uint8 else x


def _check_blocks(packed: bool, floating: bool, bits: int, block: int, along: int, blocks_along: int) -> None:
    """Raise OperatorError for attributes of GatherBlockQuantized that do not fit together."""
    require("bits", floating or bits in (2, 4, 8), "2, 4 or 8", bits)
    require("bits", floating or packed or bits == 4, "4, as data has codes of 4 bits", bits)
    fits = (block >= 16 and not block & (block - 1)) or (floating and not block)
    require("block_size", fits, "a power of two, 16 or more" + (", or 0" if floating else ""), block)
    require("gather_axis", not packed or not along, "0, as data is uint8", along)
    apart = not packed or bits == 8 or along != blocks_along
    require("quantize_axis", apart, "an axis other than gather_axis", blocks_along)


def _zeros(zero_points: Array, data: Array, size: Sequence[int], width: int) -> Array:
    """Zero points [size], checked and unpacked; data has codes of `width` bits."""
    same_type(zero_points, data.dtype, "zero_points", "data")
    wanted = (*size[:-1], -(-size[-1] * width // 8))
    floating = data.dtype in FLOAT8 or data.dtype in SMALL
    if floating or zero_points.shape != wanted:
        expected = "none, as data is floating point" if floating else shape_text(wanted)
        raise refuse("zero_points do not fit data", "zero_points", expected, zero_points, code="QR302")
    return _unpack(zero_points, width)[..., : size[-1]]


def _check_scales(scales: Array, size: Sequence[int], blocks_along: int, floating: bool) -> None:
    """Raise OperatorError for scales that do not fit the blocks."""
    wanted = tuple(size)
    ones = {axis for axis in range(len(size)) if floating and axis != blocks_along}
    if scales.ndim != len(wanted) or any(
        n != m and not (n == 1 and axis in ones) for axis, (n, m) in enumerate(zip(scales.shape, wanted, strict=True))
    ):
        raise refuse("scales do not fit data", "scales", shape_text(wanted), scales, code="QR301")


@contrib_op("MatMulBnb4", cost=matmul_macs, types={"T1": (FLOATS, "A absmax"), "T2": ("uint8", "B")})
def matmul_bnb4(
    A: Array,
    B: Array,
    absmax: Array,
    *,
    K: int,
    N: int,
    block_size: int,
    quant_type: int,
    training_mode: int = 0,
    transB: int = 1,
    ctx: Context,
) -> Array:
    """Multiply A by W' [K,N]; B holds W as 4-bit codes (first code in the high bits) that index a table.

        W = table[code] * absmax                    float32, then of A's type

    quant_type 0: FP4, 1: NF4, the 16 numbers of bitsandbytes. A block of block_size codes, counted through all rows,
    has one absmax [ceil(N*K/block_size)]; B uint8 [ceil(N*K/2)]. A [...,K]; or [...,N] with transB = 0, then Y = A @ W.
    The product is computed as in MatMul. training_mode changes nothing. Raises OperatorError for shapes and attributes
    that do not fit.
    """
    require("K", K > 0, "a positive number", K)
    require("N", N > 0, "a positive number", N)
    blocks = block_size >= 16 and not block_size & (block_size - 1)
    require("block_size", blocks, "a power of two, 16 or more", block_size)
    require("quant_type", quant_type in _MAPS, "0 (FP4), 1 (NF4)", quant_type)
    depth = K if transB else N
    if not A.ndim or A.shape[-1] != depth:
        raise misfit("A does not fit B", "A", f"[...,{depth}]", A)
    for name, array, wanted in (("B", B, -(-N * K // 2)), ("absmax", absmax, -(-N * K // block_size))):
        if array.size != wanted or array.ndim not in (1, 2):
            raise misfit(f"{name} has shape {shape_text(array.shape)}", name, f"[{wanted}]", array)
    ctx.claim((N, K), 20, "weights")
    ctx.claim((*A.shape[:-1], N if transB else K), 8)
    codes = np.stack([B.reshape(-1) >> 4, B.reshape(-1) & 15], axis=1).reshape(-1)[: N * K]
    with np.errstate(all="ignore"):
        wide = _MAPS[quant_type][codes] * absmax.reshape(-1)[np.arange(N * K) // block_size].astype(np.float32)
        weights = narrow(wide, A.dtype).reshape(N, K)
    return chained_products(A, weights.T if transB else weights, A.dtype)


@contrib_op("MatMulInteger16", cost=matmul_macs, types={"T1": ("int16 uint16", "A"), "T2": ("int16 uint16", "B")})
def matmul_integer16(A: Array, B: Array, *, ctx: Context) -> Array:
    """Multiply 16-bit integer matrices; the result is int32, or uint32 for two uint16 inputs.

        Y = sum over k of A * B            wrapping

    Exact. Raises OperatorError for shapes that do not fit.
    """
    check_matmul(A, B, ("A", "B"))
    left, right = claim_product(A, B, ctx)
    made = matmul(left.astype(np.int64), right.astype(np.int64))
    kind = np.uint32 if A.dtype == B.dtype == np.uint16 else np.int32
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    outside = (made < low) | (made > high)
    if outside.any():
        ctx.observe("accumulator-wrap", "Y", int(outside.sum()), made.size, first_place(outside))
    return np.asarray(matmul_shape(made, A, B)).astype(kind)
