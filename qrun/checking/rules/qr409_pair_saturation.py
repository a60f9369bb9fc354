"""QR409 pair-saturation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qrun.checking.rules._pairs import SAFE, by_pairs, saturated
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import listed
from qrun.checking.rules._weights import Weight, weights
from qrun.ir import Array, Model


@rule(
    "QR409",
    "pair-saturation",
    level="warning",
    since="0.1",
    spec="https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html",
    fix="quantize with reduce_range=True (7-bit weights) or with int8 activations; in onnxruntime, "
    "session.x64quantprecision=1",
    applies=("QLinearConv", "QLinearMatMul", "MatMulInteger", "com.microsoft::QGemm",
             "com.microsoft::MatMulIntegerToFloat", "com.microsoft::DynamicQuantizeMatMul", "Conv", "MatMul", "Gemm"),
)  # fmt: skip
def pair_saturation(model: Model, feeds: Mapping[str, Array] | None = None) -> Iterator[Finding]:
    """uint8 inputs with int8 weights whose products saturate on x86 CPUs without VNNI.

    onnxruntime's AVX2 and AVX-512BW kernels for uint8 * int8 add two products at a time in int16, with saturation
    (vpmaddubsw). The rule looks at the pairs as those kernels form them: neighbours along the sum, in which input
    channels vary fastest. No finding means proven safe: no input can saturate. Depthwise convolutions are: they have
    other kernels. The same node in ARM, VNNI and AMX kernels is exact. One finding for a whole model: its worst node.
    With recorded vectors it tells how many sums of pairs saturate with the inputs of the first one, in which nodes.

    Why is this bad?
        The same model gives other outputs on another CPU, by far more than rounding, and nothing says so. A machine with
        VNNI, as most CI has today, cannot show it. In QDQ form it happens where onnxruntime fuses the node.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2] x) => (uint8[1,1] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1] w = {127, 100}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,2] x) => (uint8[1,1] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,1] w = {64, 50}, int8 wz = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }
    """
    unsafe = []
    for w in weights(model):
        if w.x.dtype != np.uint8 or w.dtype != np.int8 or w.node.op_type == "ConvInteger" or _is_depthwise(w):
            continue
        if w.float and not _is_quantized(w):
            continue
        found = _worst(w)
        if found is not None:
            unsafe.append((found, w))
    if unsafe:
        (_, pair, where), w = max(unsafe, key=lambda one: abs(one[0][0]))
        met = _met(model, [one for _, one in unsafe], feeds) if feeds is not None else ""
        yield _finding(w, pair, where, len(unsafe), met)


def _worst(w: Weight) -> tuple[int, str, str] | None:
    """The largest sum of a pair, the pair, and where it is and how many others leave int16; None if none does."""
    if int(w.codes.min()) >= -64 and int(w.codes.max()) <= 64:
        return None
    codes = by_pairs(w)
    first, second = codes[:, 0 : codes.shape[1] // 2 * 2 : 2], codes[:, 1::2]
    sums = np.add(first, second, dtype=np.int16)
    high, low = int(sums.max(initial=0)), int(sums.min(initial=0))
    if high <= SAFE and -low <= SAFE:
        return None
    place = np.unravel_index(int(sums.argmax() if high >= -low else sums.argmin()), sums.shape)
    a, b = int(first[place]), int(second[place])
    bad = int(np.count_nonzero(np.abs(sums) > SAFE))
    channel = int(place[0]) if w.is_conv else int(place[-1])
    return a + b, f"255 * {a} + 255 * {b} = {255 * (a + b)}", f"in output channel {channel}; {bad} of {sums.size} pairs"


def _met(model: Model, unsafe: Sequence[Weight], feeds: Mapping[str, Array]) -> str:
    """How many sums saturate with these inputs, with the nodes that have most of them first."""
    counts = saturated(model, unsafe, feeds)
    if counts is None:
        return ""
    count, total = sum(c for c, _ in counts), sum(t for _, t in counts)
    if not count:
        return f"; with the recorded inputs none of {total} sums leaves int16"
    ordered = sorted(zip(unsafe, counts, strict=True), key=lambda one: -one[1][0])
    names = [f"{w.node.label} {c}" for w, (c, _) in ordered if c]
    return f"; with the recorded inputs {count} of {total} sums leave int16: {listed(names)}"


def _finding(w: Weight, pair: str, where: str, nodes: int, met: str) -> Finding:
    others = f", and {nodes - 1} more node{'s' if nodes > 2 else ''} like it" if nodes > 1 else ""
    return Finding(
        f"pairs of uint8 * int8 products leave int16 on CPUs without VNNI: {pair}{others}",
        **w.where,
        expected="pairs of neighbouring weights that add up to -128 .. 128, so that 255 times that fits int16",
        got=f"{pair} {where}{others}{met}",
        why="onnxruntime's AVX2 and AVX-512BW u8s8 kernels (vpmaddubsw) saturate at 32767; VNNI and ARM are exact.",
    )


def _is_depthwise(w: Weight) -> bool:
    group = w.node.attributes.get("group", 1)
    return w.is_conv and w.codes.shape[1] == 1 and isinstance(group, int) and group == len(w.codes) and group > 1


def _is_quantized(w: Weight) -> bool:
    """Whether a float node is one that onnxruntime runs in integers: for Conv, its result is quantized."""
    if w.node.op_type != "Conv":
        return True
    readers = w.scope.model.consumers
    names = w.node.outputs[:1]
    for _ in range(2):
        found = [node for name in names for node in readers.get(name, ())]
        if any(node.op_type == "QuantizeLinear" for node in found):
            return True
        names = tuple(node.outputs[0] for node in found if node.op_type in ("Relu", "Clip") and node.outputs)
    return False
