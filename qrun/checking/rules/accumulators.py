"""How far sums of products can go: int32 accumulators, and pairs of products in int16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qrun.checking.rules._inside import INSIDE
from qrun.checking.rules._observed import seen
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._sums import LIMIT, saturating, unsafe_pairs, worst_sums
from qrun.checking.rules._weights import PRODUCTS
from qrun.checking.rules._words import several
from qrun.ir import Array, Model

if TYPE_CHECKING:
    from qrun.running.session import RunResult


@rule(
    "QR406",
    "warning",
    spec="MatMulInteger",
    fix="split the sum, use fewer bits for the weights, or enlarge the scale of the weights so that the bias shrinks",
    applies=PRODUCTS,
)
def accumulator_bound(model: Model) -> Iterator[Finding]:
    """With these weights and this bias, some input makes the int32 accumulator overflow.

    The bound is exact: the input that takes, for every weight, the code that moves the sum furthest reaches it. QR403
    reports overflows that a run has seen.

    Why is this bad?
        The sum wraps round and the output has nothing to do with the real value. onnxruntime checks nothing. Usually it
        is the bias: a channel with a tiny weight scale has a bias near the end of int32.

    Bad
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {2147480000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }

    Good
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {1000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }
    """
    for w, worst, bias in worst_sums(model, LIMIT - 1):
        if worst.wraps:
            behind = ", if it is run in integers" if w.float else ""
            yield Finding(
                f"the int32 accumulator of channel {worst.row} can reach {worst.sum}{behind}",
                **w.where,
                expected="sums from -2147483648 to 2147483647",
                got=f"{worst.sum} in channel {worst.row}: {worst.terms} products{bias}; headroom "
                f"{worst.headroom:.2f} bits",
                why=f"{w.node.op}-{w.node.version} in integers accumulates in 32 bits.",
            )


@rule(
    "QR407",
    "note",
    spec="MatMulInteger",
    fix="nothing, unless the weights or the input type will change; then split the sum or shrink the bias",
    applies=PRODUCTS,
)
def accumulator_headroom(model: Model) -> Iterator[Finding]:
    """The int32 accumulator surely does not overflow, but has less than two bits to spare.

    Why is this bad?
        The model is right as it is. Hardware with accumulators of fewer than 32 bits, or with a requantization that
        shifts the sum left first, overflows here.

    Bad
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {1500000000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }

    Good
        main (uint8[1,1,1,1] x) => (uint8[1,1,1,1] y)
        <float s = {0.5}, uint8 z = {0}, int8[1,1,1,1] w = {64}, int8 wz = {0}, int32[1] b = {1000}>
        {
            y = QLinearConv(x, s, z, w, s, wz, s, z, b)
        }
    """
    for w, worst, bias in worst_sums(model, LIMIT // 4):
        if not worst.wraps and worst.headroom < 2:
            yield Finding(
                f"the int32 accumulator has {worst.headroom:.2f} bits of headroom",
                **w.where,
                expected="2 bits or more",
                got=f"{worst.headroom:.2f} bits: at most {worst.sum} in channel {worst.row}, {worst.terms} "
                f"products{bias}",
                why=f"{w.node.op}-{w.node.version} in integers accumulates in 32 bits.",
            )


@rule(
    "QR409",
    "warning",
    spec="ort-quantization",
    fix="quantize with reduce_range=True (7-bit weights) or weight_type=QuantType.QUInt8; in onnxruntime, "
    "session.x64quantprecision=1",
    applies=(
        "QLinearConv",
        "QLinearMatMul",
        "MatMulInteger",
        "com.microsoft::QGemm",
        "com.microsoft::MatMulIntegerToFloat",
        "com.microsoft::DynamicQuantizeMatMul",
        *INSIDE,
        "Conv",
        "MatMul",
        "Gemm",
    ),
)
def pair_saturation(model: Model, feeds: Mapping[str, Array] | None = None) -> Iterator[Finding]:
    """uint8 inputs with int8 weights whose products saturate on x86 CPUs without VNNI.

    onnxruntime's AVX2 and AVX-512BW kernels for uint8 * int8 add two products at a time in int16, with saturation
    (vpmaddubsw). The rule looks at the pairs as those kernels form them: neighbours along the sum, in which input
    channels vary fastest, those inside QAttention and DynamicQuantizeLSTM too. No finding means proven safe: no
    input can saturate. int8 activations of a QDQ model are judged as uint8 where onnxruntime makes them uint8 (QR606).
    Depthwise convolutions are safe: they have other kernels. ARM, VNNI and AMX kernels compute the same node exactly.
    One finding for a whole model: its worst node. With recorded vectors it counts the sums of pairs that saturate with
    the inputs of the first one, for each node.

    Why is this bad?
        The same model gives other outputs on another CPU, by far more than rounding, and nothing says so. A machine
        with VNNI, as most CI has today, cannot show it. In QDQ form it happens where onnxruntime fuses the node.

    Bad
        main (uint8[1,2] x) => (uint8[1,1] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1] w = {127, 100}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,2] x) => (uint8[1,1] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1] w = {64, 50}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }
    """
    unsafe = list(unsafe_pairs(model))
    if unsafe:
        (_, pair, where), w = max(unsafe, key=lambda one: abs(one[0][0]))
        met = saturating(model, [one for _, one in unsafe], feeds) if feeds is not None else ""
        more = len({id(one.node) for _, one in unsafe}) - 1
        others = f", and {several(more, 'more node')} like it" if more else ""
        yield Finding(
            f"pairs of uint8 * int8 products leave int16 on CPUs without VNNI: {pair}{others}",
            **w.where,
            expected="pairs of neighbouring weights that add up to -128 .. 128, so that 255 times that fits int16",
            got=f"{pair} {where}{others}{met}",
            why="onnxruntime's AVX2 and AVX-512BW u8s8 kernels (vpmaddubsw) saturate at 32767; VNNI and ARM are exact.",
        )


@rule(
    "QR403",
    "warning",
    spec="MatMulInteger",
    fix="split the sum, or shrink the bias; 8-bit products need more than 33 000 terms to get here",
    replaces=("QR406",),
)
def accumulator_wrap(model: Model, result: RunResult) -> Iterator[Finding]:
    """An integer sum left the range of int32 and wrapped round.

    QR406 tells, without a run, that it can; at a node where it did, this is reported instead.

    Why is this bad?
        The specification lets the 32-bit accumulator overflow, so the result is defined but has nothing to do with
        the real value. Runtimes that accumulate in 64 bits or in float differ.

    Bad
        main () => (uint8[1,1,1,1] y)
        <uint8[1,1,1,1] x = {255}, float s = {0.00000001}, uint8 z = {0}, uint8[1,1,1,1] stored = {255},
         int32[1] top = {2147480000}, uint8 one = {128}, float ys = {1.0}>
        {
            w = Identity(stored)
            y = QLinearConv(x, s, z, w, s, z, ys, one, top)
        }

    Good
        main () => (uint8[1,1,1,1] y)
        <uint8[1,1,1,1] x = {255}, float s = {0.00000001}, uint8 z = {0}, uint8[1,1,1,1] w = {255},
         int32[1] b = {1000}, uint8 one = {128}, float ys = {1.0}>
        {
            y = QLinearConv(x, s, z, w, s, z, ys, one, b)
        }
    """
    for s in seen(model, result, "accumulator-wrap"):
        yield Finding(
            f"the int32 accumulator of {s.node.op_type} wraps in {s.share}",
            **s.where,
            expected="sums from -2147483648 to 2147483647",
            got=f"overflow in {s.share}",
            why=f"{s.node.op}-{s.node.version} accumulates in 32 bits and may overflow.",
        )
