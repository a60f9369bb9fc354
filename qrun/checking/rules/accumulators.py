"""Rules on the overflow of sums with stored weights: int32 accumulators, and pairs of products in int16."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.checking.rules._observed import observations, tensors
from qrun.checking.rules._rule import Finding, join_names, rule
from qrun.checking.rules._scope import number
from qrun.checking.rules._weights import INSIDE, PRODUCTS, Weight, is_quantized, weights, weights_inside
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, once_per_model
from qrun.ops import Context, find, to_unsigned
from qrun.ops._window import ConvGeometry, conv_window, pad_window, patches
from qrun.shapes import broadcast_shapes

if TYPE_CHECKING:
    from qrun.running.session import RunResult


LIMIT = 2**31


@frozen
class AccumulatorBound:
    """The sum furthest from 0 that some input reaches. row: its output channel; terms: the number of products in it."""

    row: int
    sum: int
    bias: int
    terms: int

    @property
    def wraps(self) -> bool:
        return not -LIMIT <= self.sum < LIMIT

    @property
    def headroom(self) -> float:
        """The number of bits between this sum and the end of int32; negative if it does not fit."""
        return 31 - log2(max(1, self.sum if self.sum >= 0 else -self.sum - 1))


def worst_sums(model: Model, enough: int) -> Iterator[tuple[Weight, AccumulatorBound, str]]:
    """Yield each weight whose sums may exceed `enough`, its worst sum, and text for the bias in it."""
    for w in weights(model):
        worst = None if w.float and w.dtype.itemsize > 1 else _bound(w, enough)
        if worst is not None:
            yield w, worst, f" with bias {worst.bias}" if worst.bias else ""


def _bound(w: Weight, enough: int) -> AccumulatorBound | None:
    """The worst sum; None if a simple bound shows that it is at most `enough`, or if the other operand is not known."""
    x = w.x.dtype
    if x is None or x.kind not in "iu" or x.itemsize > 2:
        return None
    limits, wide, terms = np.iinfo(x), np.iinfo(w.type), w.terms
    bias = _bias(w, w.size // terms)
    span_x, span_w = int(limits.max) - int(limits.min), int(wide.max) - int(wide.min)
    if terms * span_x * span_w + int(np.abs(bias).max(initial=0)) <= enough:
        return None
    zero = w.x.zero.astype(np.int64) if w.x.zero is not None else np.array([limits.min, limits.max], np.int64)
    if not zero.size:
        return None
    high, low = int(limits.max) - int(zero.min()), int(limits.min) - int(zero.max())
    rows = w.rows()
    up, down = _parts(rows, w.zeros(rows))
    top, bottom = up * high - down * low + bias, up * low - down * high + bias
    best, worst = int(np.argmax(top)), int(np.argmin(bottom))
    if int(top[best]) >= -int(bottom[worst]) - 1:
        return AccumulatorBound(best, int(top[best]), int(bias[best]), terms)
    return AccumulatorBound(worst, int(bottom[worst]), int(bias[worst]), terms)


def _parts(rows: Array, zero: Array) -> tuple[Array, Array]:
    """For each row, the sum of its positive weights, and of the magnitudes of its negative weights."""
    if not zero.any():
        total = rows.sum(1, dtype=np.int64)
        up = np.maximum(rows, rows.dtype.type(0)).sum(1, dtype=np.int64)
    else:
        real = rows - zero
        total, up = real.sum(1), np.maximum(real, 0).sum(1)
    return up, up - total


def _bias(w: Weight, rows: int) -> Array:
    """The bias of each row; 0 if it does not fit, which QR305 reports, or was clipped, which QR312 reports."""
    if w.b is None or w.b.dtype != np.int32 or w.b.size not in (1, rows):
        return np.zeros(rows, np.int64)
    bias = w.b.reshape(-1).astype(np.int64)
    clipped = (bias == LIMIT - 1) | (bias == -LIMIT)
    return np.broadcast_to(np.where(clipped, 0, bias), (rows,))


def unsafe_pairs(model: Model) -> Iterator[tuple[tuple[int, str, str], Weight]]:
    """Yield each weight with a pair of products that can leave int16, after the result of `_worst` for it."""
    for w in (*weights(model), *weights_inside(model)):
        if w.float and w.x.dtype == np.int8:
            w = _as_run(model, w)
        if w.x.dtype != np.uint8 or w.dtype != np.int8 or w.node.op_type == "ConvInteger" or _is_depthwise(w):
            continue
        if w.float and w.node.op_type == "Conv" and not is_quantized(w.scope.model, w.node):
            continue
        found = _worst(w)
        if found is not None:
            yield found, w


def _as_run(model: Model, w: Weight) -> Weight:
    """The weight with its operand as in onnxruntime on x86 CPUs, which turns some int8 activations into uint8."""
    if (w.scope.path, w.node.index) not in _unsigned_operands(model):
        return w
    zero = None if w.x.zero is None else to_unsigned(w.x.zero)
    return replace(w, x=replace(w.x, dtype=np.dtype(np.uint8), zero=zero))


@once_per_model
def _unsigned_operands(model: Model) -> frozenset[tuple[str, int]]:
    """The nodes that onnxruntime runs in integers with a uint8 first operand, by path of the graph and node index."""
    from qrun.checking.targets import integers

    found = integers(model)
    judged = found.judged if found is not None else ()
    return frozenset((j.scope.path, j.node.index) for j in judged if j.integer and j.x == "uint8")


def _worst(w: Weight) -> tuple[int, str, str] | None:
    """The largest sum of a pair, a text for the pair, and a text for its place and the count; None if all fit int16."""
    codes = _by_pairs(w)
    first, second = codes[:, 0 : codes.shape[1] // 2 * 2 : 2], codes[:, 1::2]
    step, bad, found = max(1, _NEAR * first.shape[1] // max(first.size, 1)), 0, []
    for start in range(0, first.shape[1], step):
        sums = np.add(first[:, start : start + step], second[:, start : start + step], dtype=np.int16)
        ends = int(sums.max(initial=0)), int(sums.min(initial=0))
        if max(ends[0], -ends[1]) <= _SAFE:
            continue
        bad += int(np.count_nonzero(np.abs(sums) > _SAFE))
        for end, at in zip(ends, (sums.argmax(), sums.argmin()), strict=True):
            row, pair, *rest = (int(n) for n in np.unravel_index(int(at), sums.shape))
            found.append((-abs(end), -end, (row, start + pair, *rest)))
    if not found:
        return None
    place = min(found)[2]
    a, b = int(first[place]), int(second[place])
    channel = place[0] if w.is_conv else place[-1]
    return (
        a + b,
        f"255 * {a} + 255 * {b} = {255 * (a + b)}",
        f"in output channel {channel}; {bad} of {first.size} pairs",
    )


def describe_saturation(model: Model, unsafe: Sequence[Weight], feeds: Mapping[str, Array]) -> str:
    """Text: how many sums saturate with these inputs, by node, the most affected first; "" if that is not known."""
    unsafe = [w for w in unsafe if w.x.tensor]
    counts = _count_saturated(model, unsafe, feeds)
    if not counts:
        return ""
    count, total = sum(c for c, _ in counts), sum(t for _, t in counts)
    if not count:
        return f"; with these inputs, none of {total} sums exceeds int16"
    met: Counter[str] = Counter()
    for w, (own, _) in zip(unsafe, counts, strict=True):
        met[w.node.label] += own
    names = [f"{label} {own}" for label, own in met.most_common() if own]
    return f"; with these inputs, {count} of {total} sums exceed int16: {join_names(names)}"


def _is_depthwise(w: Weight) -> bool:
    return w.is_conv and w.shape[1] == 1 and number(w.node, "group", 1) == w.shape[0] > 1


_NEAR = 1 << 17
"""The number of pairs added at a time: their sums stay in the second-level cache."""
_SAFE = 128
"""The largest safe sum of two weights: 255 * 128 = 32640 fits int16; 255 * 129 = 32895 and -32895 do not."""


_INT16 = np.iinfo(np.int16)


def _by_pairs(w: Weight) -> Array:
    """The weights with the summed axis second, in the order in which kernels add."""
    codes = w.codes
    if not w.is_conv:
        summed = codes.ndim - 2 if w.axis == codes.ndim - 1 else codes.ndim - 1
        moved = np.moveaxis(codes, (summed, w.axis), (-2, -1))
        return moved.reshape(-1, *moved.shape[-2:])
    if codes.shape[1] % 2 == 0:
        return codes
    return np.moveaxis(codes, 1, -1).reshape(len(codes), -1)


def _count_saturated(
    model: Model, weights: Sequence[Weight], feeds: Mapping[str, Array]
) -> list[tuple[int, int]] | None:
    """For each weight, the number of sums of two products that leave int16 with these inputs, and of all such sums.

    Runs the model once. None if it cannot run, or if a weight is in a subgraph.
    """
    if any(w.scope.outer is not None for w in weights):
        return None
    values = tensors(model, feeds, [w.x.tensor for w in weights])
    return [_count(w, values[w.x.tensor]) for w in weights] if values else None


def _count(w: Weight, x: Array) -> tuple[int, int]:
    count = total = 0
    x = to_unsigned(x) if x.dtype == np.int8 else x
    for columns, codes in _matrix_products(w, x):
        first, second = (codes[start : len(codes) // 2 * 2 : 2].astype(np.int32) for start in (0, 1))
        unsafe = np.abs(first + second) > _SAFE
        total += unsafe.size * columns.shape[1]
        for pair in np.flatnonzero(unsafe.any(1)):
            a, b = (part[pair, unsafe[pair], None] for part in (first, second))
            sums = a * columns[2 * pair].astype(np.int32) + b * columns[2 * pair + 1].astype(np.int32)
            count += int(np.count_nonzero((sums > _INT16.max) | (sums < _INT16.min)))
    return count, total


def _matrix_products(w: Weight, x: Array) -> Iterator[tuple[Array, Array]]:
    """Yield the node's matrix products, one per image and group, or per matrix of a batch: x [terms, positions] and
    weights [terms, channels]. Terms are in the order in which the machine's kernels add them, so that neighbours form a
    pair. A float32 x is quantized first, as by DynamicQuantizeLinear."""
    if w.is_conv:
        yield from _convolutions(w, x)
        return
    if x.dtype == np.float32:
        dynamic: Any = find("", "DynamicQuantizeLinear", 11)
        x = dynamic(x, ctx=Context())[0]
    x = x.T if number(w.node, "transA") else np.atleast_2d(x)
    matrices = _by_pairs(w)
    if len(matrices) == 1:
        yield x.reshape(-1, x.shape[-1]).T, matrices[0]
        return
    lead = broadcast_shapes(x.shape[:-2], w.shape[:-2])
    rows = np.broadcast_to(x, (*lead, *x.shape[-2:])).reshape(math.prod(lead), *x.shape[-2:])
    placed = np.broadcast_to(matrices.reshape(*w.shape[:-2], *matrices.shape[1:]), (*lead, *matrices.shape[1:]))
    for one, matrix in zip(rows, placed.reshape(-1, *matrices.shape[1:]), strict=True):
        yield one.T, matrix


def _convolutions(w: Weight, x: Array) -> Iterator[tuple[Array, Array]]:
    geometry = ConvGeometry.of(w.node.attributes)
    stored = w.codes
    window = conv_window(x, stored, geometry)
    fill = 0 if w.x.zero is None else int(w.x.zero.reshape(-1)[0])
    rank, depth = len(window.kernel), w.shape[1]
    for image in x:
        seen = patches(pad_window(image, window, fill, Context()), window)
        for g, codes in enumerate(np.split(stored, geometry.group)):
            part = np.moveaxis(seen[g * depth : (g + 1) * depth], 0, rank)
            yield part.reshape(depth * np.prod(window.kernel, dtype=int), -1), _terms(codes)


def _terms(codes: Array) -> Array:
    """Reorder [channels, depth, kernel...] to [kernel... * depth, channels]."""
    return np.moveaxis(codes, 1, -1).reshape(len(codes), -1).T


@rule(
    "QR406",
    "warning",
    spec="MatMulInteger",
    fix="split the sum, use fewer bits for the weights, or enlarge the scale of the weights so that the bias shrinks",
    applies=PRODUCTS,
)
def accumulator_bound(model: Model) -> Iterator[Finding]:
    """With these weights and this bias, some input makes the int32 accumulator overflow.

    The bound is exact: the input with the extreme code for every weight reaches it. QR403 reports overflows in a run.

    Why is this bad?
        The sum wraps around, and the output has nothing to do with the real value. onnxruntime does not check. Usually
        it is the bias: a channel with a tiny weight scale has a bias near the end of int32.

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
                f"channel {worst.row} can overflow int32: its sum can reach {worst.sum}{behind}",
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
    fix="none needed, unless the weights or the input type change; then split the sum or reduce the bias",
    applies=PRODUCTS,
)
def accumulator_headroom(model: Model) -> Iterator[Finding]:
    """The int32 accumulator cannot overflow, but has less than two bits of headroom.

    Why is this bad?
        The model is correct. Hardware with accumulators of fewer than 32 bits, or with a requantization that shifts the
        sum left first, overflows here.

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


def _quantizes_to_int8(model: Model) -> bool:
    """Whether a QuantizeLinear of the model makes int8 codes."""
    zeros = (
        model.constants.get(n.inputs[2]) for n in model.nodes if n.op_type == "QuantizeLinear" and len(n.inputs) > 2
    )
    return any(zero is not None and zero.dtype == np.int8 for zero in zeros)


_IN_7_BITS = "quantize with reduce_range=True (7-bit weights); in onnxruntime, session.x64quantprecision=1"


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
    """uint8 inputs times int8 weights saturate in onnxruntime on x86 CPUs without VNNI.

    onnxruntime's AVX2 and AVX-512BW kernels for uint8 * int8 add two products at a time in int16, with saturation
    (vpmaddubsw). The rule checks the pairs that those kernels form: neighbours along the sum, in which input channels
    vary fastest. It includes products inside QAttention and DynamicQuantizeLSTM. No finding means that no input can
    saturate. int8 activations of a QDQ model count as uint8 if onnxruntime makes them uint8 (QR606). Depthwise
    convolutions are safe, because they use other kernels. ARM, VNNI and AMX kernels compute the same node exactly. To
    see the effect on any CPU, run qrun compare MODEL -i x.npy --emulate avx2. One finding per model, at its worst node.
    With recorded vectors, the finding counts for each node the sums that saturate with the inputs of the first one.

    Why is this bad?
        The same model returns different outputs on a different CPU, far beyond rounding, without a warning. It never
        happens on machines with VNNI, which most CI runners have today. In QDQ form, it happens only where onnxruntime
        fuses the node.

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
        (worst, pair, where), w = max(unsafe, key=lambda one: abs(one[0][0]))
        met = describe_saturation(model, [one for _, one in unsafe], feeds) if feeds is not None else ""
        others = {id(one.node): one.where["node"] for _, one in unsafe if one.node is not w.node}
        nodes = f" ({len(others) + 1} nodes)" if others else ""
        # onnxruntime.quantization writes per-channel weights of QLinearConv as int8, whatever type is requested, and
        # takes no uint8 weights beside int8 activations.
        scales = model.constants.get(w.node.inputs[4]) if w.node.op_type == "QLinearConv" else None
        yield Finding(
            f"saturates in onnxruntime on x86 CPUs without VNNI: adjacent products reach {255 * worst}, int16 holds "
            f"{_INT16.max if worst > 0 else _INT16.min}{nodes}",
            **w.where,
            expected=f"adjacent weights to sum to -{_SAFE}..{_SAFE}",
            got=f"{pair} {where}{met}",
            why="its AVX2 and AVX-512BW kernels (vpmaddubsw) add two products in int16; VNNI and ARM are exact. See it: "
            "qrun compare MODEL -i x.npy --emulate avx2",
            fix=_IN_7_BITS if (scales is not None and scales.size > 1) or _quantizes_to_int8(model) else "",
            others=tuple(others.values()),
        )


@rule(
    "QR403",
    "warning",
    spec="MatMulInteger",
    fix="split the sum, or shrink the bias; 8-bit products alone need more than 33 000 terms to overflow",
    replaces=("QR406",),
)
def accumulator_wrap(model: Model, result: RunResult) -> Iterator[Finding]:
    """An integer sum left the range of int32 and wrapped around.

    QR406 finds possible overflows without a run; this replaces it at nodes where one happened.

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
    for s in observations(model, result, "accumulator-wrap"):
        yield Finding(
            f"the int32 accumulator of {s.node.op_type} wraps in {s.share}",
            **s.where,
            expected="sums from -2147483648 to 2147483647",
            got=f"overflow in {s.share}",
            why=f"{s.node.op}-{s.node.version} accumulates in 32 bits and may overflow.",
        )
