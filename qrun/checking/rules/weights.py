"""Rules on stored weights (unused codes, channels of 0, zero points) and on biases (shape, type, scale), in integer
operators and behind DequantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from qrun.checking.rules._forms import describe_shape, expected_bias, mistyped_inputs
from qrun.checking.rules._rule import Finding, digits, join_names, rule, tolerance
from qrun.checking.rules._scope import Scope, nodes, nodes_with_parameters
from qrun.checking.rules._weights import (
    PRODUCTS,
    QuantizedOperand,
    StoredBias,
    Weight,
    biases,
    differs,
    quantized_source,
    weights,
)
from qrun.ir import Model, Node
from qrun.ir.types import shape_text, type_name
from qrun.ops import Bias, bias

_ENOUGH = 32
"""The fewest weights that are judged, if more than _FEW are distinct: a smaller tensor may be as it should."""
_FEW = 3
_ROOM = 4


@rule(
    "QR314",
    "warning",
    spec="QuantizeLinear",
    fix="quantize the weights again with scale = max(abs(w)) / 127, one per output channel",
    applies=PRODUCTS,
)
def codes_unused(model: Model) -> Iterator[Finding]:
    """Stored weights use less than a quarter of the codes of their type: the scale is much too large.

    With one scale, the rule judges the whole tensor; with one per channel, it reports tensors where most channels are
    like this. The rule accepts 7-bit weights (reduce_range) and weights with at most three different values.

    Why is this bad?
        At least two bits are lost: the weights' error is at least four times larger than the type requires. Usual
        causes are a range taken from another tensor, an outlier that was clipped later, or a scale copied from x.

    Bad
        main (uint8[1,4] x) => (uint8[1,8] y)
        <float s = {0.5}, uint8 z = {128}, int8 wz = {0}, int8[4,8] w = {
            1, -2, 3, -4, 5, -6, 7, -8, 8, -7, 6, -5, 4, -3, 2, -1,
            2, -3, 4, -5, 6, -7, 8, -1, 1, -8, 7, -6, 5, -4, 3, -2}>
        {
            y = QLinearMatMul(x, s, z, w, s, wz, s, z)
        }

    Good
        main (uint8[1,4] x) => (uint8[1,8] y)
        <float s = {0.5}, uint8 z = {128}, int8 wz = {0}, float ws = {0.05}, int8[4,8] w = {
            10, -20, 30, -40, 50, -60, 70, -80, 80, -70, 60, -50, 40, -30, 20, -10,
            20, -30, 40, -50, 60, -70, 80, -10, 10, -80, 70, -60, 50, -40, 30, -20}>
        {
            y = QLinearMatMul(x, s, z, w, ws, wz, s, z)
        }
    """
    for w in weights(model):
        if w.size >= _ENOUGH and w.type.itemsize == 1 and w.dtype.itemsize == 1:
            yield from _judge_codes(w)


def _judge_codes(w: Weight) -> Iterator[Finding]:
    codes, others = w.codes, tuple(i for i in range(len(w.shape)) if i != w.axis)
    limits = ml_dtypes.iinfo(w.dtype)  # type: ignore[no-untyped-call]
    high, low = codes.max(others).astype(np.int64), codes.min(others).astype(np.int64)
    zero = w.zero.astype(np.int64)
    if w.scale is None or w.scale.size == 1:
        high, low, zero = high.max(keepdims=True), low.min(keepdims=True), zero[:1]
    used = np.maximum(high - zero, zero - low)
    reach = np.minimum(127, np.maximum(limits.max - zero, zero - limits.min))
    small = (used > 0) & (used * _ROOM <= reach)
    if 2 * int(small.sum()) <= small.size or len(np.unique(codes)) <= _FEW:
        return
    worst = int(np.argmin(np.where(small, used / reach, 1.0)))
    most, all_of = int(used[worst]), int(np.broadcast_to(reach, used.shape)[worst])
    channels = f" ({int(small.sum())} of {small.size} channels, worst channel {worst})" if small.size > 1 else ""
    yield Finding(
        f"weights use only {most} of {all_of} levels: the scale is about {all_of / most:.0f}x too large{channels}",
        **w.where,
        expected=f"{type_name(w.dtype)} levels up to {all_of} from the zero point",
        got=f"{most}{channels}",
        why=f"with scale = largest weight / {all_of}, the weights use all levels; this scale loses precision.",
    )


@rule(
    "QR315",
    "note",
    spec="QLinearConv",
    fix="if the float weights are not 0, quantize them with one scale per channel; if they are, remove the channel",
    applies=PRODUCTS,
)
def zero_channel(model: Model) -> Iterator[Finding]:
    """All weights of an output channel are 0 (the zero point); other channels have nonzero ones.

    Why is this bad?
        The channel's output is its bias, whatever the input. Either training left the channel dead, and its work is
        wasted, or its weights were too small for a scale that it shares with other channels.

    Bad
        main (uint8[1,2,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 0, 0}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }

    Good
        main (uint8[1,2,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,2,1,1] w = {1, 2, 0, 3}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }
    """
    for w in weights(model):
        others = tuple(i for i in range(len(w.shape)) if i != w.axis)
        if w.size == w.shape[w.axis]:
            continue
        codes, zero = w.codes, w.zero.astype(np.int64)
        dead = (codes.max(others) == zero) & (codes.min(others) == zero)
        if dead.any() and not dead.all():
            names = [str(i) for i in np.flatnonzero(dead)]
            yield Finding(
                f"{len(names)} of {dead.size} output channels have only zero weights: {join_names(names)}",
                **w.where,
                expected="a nonzero weight in each channel",
                got=f"channels {join_names(names, 8)}",
                why="a channel without weights gives its bias, whatever the input.",
            )


@rule(
    "QR316",
    "warning",
    spec="https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/work-quantized-types.html",
    fix="quantize the weights symmetrically: scale = max(abs(w)) / 127, zero point 0",
    applies=PRODUCTS,
)
def asymmetric_weights(model: Model) -> Iterator[Finding]:
    """Signed weights have a zero point other than 0.

    Weights of unsigned types are not judged: their zero point cannot be 0.

    Why is this bad?
        It is legal ONNX. But TensorRT accepts only 0, many accelerators with signed weights cannot store a zero point,
        and kernels that can must sum the input for every output to correct for it.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {-7}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {8, 9}, float ws = {0.5}, int8 wz = {0}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz)
        }
    """
    for w in weights(model):
        zero = w.zero.astype(np.int64)
        off = np.flatnonzero(zero)
        if off.size and type_name(w.dtype).startswith("int"):
            first = int(off[0])
            place = f" in channel {first}; not 0 in {off.size} of {zero.size} channels" if zero.size > 1 else ""
            yield Finding(
                f"the zero point of {type_name(w.dtype)} weights is {zero[first]}{place}",
                **w.where,
                expected="0",
                got=f"{zero[first]}{place}",
                why="legal ONNX, but runtimes with symmetric weights refuse it or run it in float.",
                cause=f"QR316 {type_name(w.dtype)}",
            )


FUSED = {"Conv": "QLinearConv", "Gemm": "QGemm"}
ORT_CONV_ABSOLUTE, ORT_CONV_RELATIVE = 1e-6, 1e-2
"""The tolerance around x_scale * w_scale within which onnxruntime 1.32.0 still fuses a Conv; measured."""


@rule(
    "QR304",
    "warning",
    spec="QLinearConv",
    fix="requantize the bias: int32, scale x_scale * w_scale, zero point 0",
    applies=("Conv", "Gemm"),
)
def bias_scale(model: Model) -> Iterator[Finding]:
    """In QDQ form, the scale of a bias is not x_scale * w_scale, or its zero point is not 0.

    The rule looks at Conv and Gemm whose input, weight and bias all come from DequantizeLinear with stored scales.

    Why is this bad?
        It is legal ONNX, but QLinearConv and QGemm have no scale for the bias: they take x_scale * w_scale. Where the
        two differ, onnxruntime either leaves the Conv unfused and runs it in float, or, if they are close or the node
        is a Gemm, fuses it and adds a bias that the model does not state.

    Bad
        main (uint8[1,1,2,2] x) => (float[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0},
         int32[1] b = {10}, float bs = {0.5}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            bf = DequantizeLinear(b, bs)
            y = Conv(xf, wf, bf)
        }

    Good
        main (uint8[1,1,2,2] x) => (float[1,1,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[1,1,1,1] w = {3}, float ws = {0.5}, int8 wz = {0},
         int32[1] b = {10}, float bs = {0.25}>
        {
            xf = DequantizeLinear(x, xs, xz)
            wf = DequantizeLinear(w, ws, wz)
            bf = DequantizeLinear(b, bs)
            y = Conv(xf, wf, bf)
        }
    """
    for scope, node in nodes(model, (("", name) for name in FUSED)):
        found = [quantized_source(scope, name, unknown_zero=True) for name in node.inputs[:3]]
        x, w, b = (*found, None, None, None)[:3]
        if x and w and b:
            yield from _judge_scale(node, x, w, b)


def _judge_scale(node: Node, x: QuantizedOperand, w: QuantizedOperand, b: QuantizedOperand) -> Iterator[Finding]:
    stored = [p.scale for p in (x, w, b) if p.scale is not None and p.scale.ndim < 2 and p.scale.dtype.kind not in "Oc"]
    if len(stored) < 3 or not all(s.size for s in stored) or stored[0].size != 1:
        return
    x_scale, w_scale, b_scale = (s.astype(np.float64).reshape(-1) for s in stored)
    name, codes = b.node.inputs[1], np.zeros(1) if b.zero is None else b.zero.reshape(-1)
    where = b.scope.at(b.node, f"{name}, feeds {node.op_type} {node.label}")
    if codes.dtype.kind in "iu" and codes.any():
        effect = "onnxruntime does not fuse such a Conv to QLinearConv: it runs in float."
        if node.op_type == "Gemm":
            effect = "onnxruntime fuses this Gemm to QGemm, which has no zero point for the bias."
        got = f"{codes[int(np.argmax(codes != 0))]}"
        yield Finding("bias zero point is not 0", **where, expected="0", got=got, why=f"legal ONNX, but {effect}")
        return
    if w_scale.size != b_scale.size and 1 not in (w_scale.size, b_scale.size):
        return
    with np.errstate(all="ignore"):
        want, unit = np.broadcast_arrays(x_scale * w_scale, b_scale)
        off = np.abs(unit - want) / want
    sane = np.all(np.isfinite(want)) and np.all(want > 0) and np.all(np.isfinite(off))
    bad = off > tolerance(*stored)
    if not sane or not bad.any():
        return
    worst = int(np.argmax(off))
    place = f"[{worst}]" if b_scale.size > 1 else ""
    w_place = f"[{worst}]" if w_scale.size > 1 else ""
    unfused = node.op_type == "Conv" and np.any(np.abs(unit - want) > ORT_CONV_ABSOLUTE + ORT_CONV_RELATIVE * want)
    effect = "onnxruntime does not fuse such a Conv to QLinearConv: it runs in float."
    if not unfused:
        effect = (
            f"onnxruntime fuses this {node.op_type} to {FUSED[node.op_type]} and scales the bias by x_scale * w_scale."
        )
    given, product = digits(unit[worst], want[worst]), digits(want[worst], unit[worst])
    count = f"{int(bad.sum())} of {bad.size} channels, " if bad.size > 1 else ""
    yield Finding(
        f"bias scale {given}, expected {product} ({name}{place})",
        **where,
        expected=f"{product} = x_scale {x_scale[0]:.6g} * w_scale{w_place} {w_scale[worst if w_place else 0]:.6g}",
        got=f"{given} at {name}{place}; {count}{100 * off[worst]:.3g} % off",
        why=f"legal ONNX, but {effect}",
    )


@rule(
    "QR305",
    "error",
    spec="QLinearConv",
    fix="export one bias value per output channel",
    applies=(
        "QLinearConv",
        "com.microsoft::QLinearConv",
        "com.microsoft::QGemm",
        "com.microsoft::MatMulIntegerToFloat",
        "com.microsoft::DynamicQuantizeMatMul",
        "Conv",
    ),
    stops=True,
)
def bias_shape(model: Model) -> Iterator[Finding]:
    """A bias does not have one value per output channel, or a quantized bias is not int32.

    The bias of a convolution is 1-D with one value for each output channel. In QLinearConv and QGemm it is int32, with
    the implied scale x_scale * w_scale and zero point 0.

    Why is this bad?
        Some output channels have no bias. onnx.checker accepts the model; onnxruntime fails while running, and
        onnx.reference broadcasts a bias of one element over all channels.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}, int32[3] b = {10, 20, 30}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, int8 wz = {0},
         float ys = {0.5}, uint8 yz = {128}, int32[2] b = {10, 20}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, yz, b)
        }
    """
    for scope, node in nodes_with_parameters(model):
        b = bias(node)
        if b is None or {b.bias.place, b.weight.place}.intersection(mistyped_inputs(scope, node)):
            continue
        yield from _wrong_shape(scope, node, b)
        yield from _wrong_type(scope, node, b)


def _wrong_shape(scope: Scope, node: Node, b: Bias) -> Iterator[Finding]:
    expected, shape = expected_bias(scope, node, b), scope.shape(b.bias.tensor)
    if expected:
        yield Finding(
            f"bias {describe_shape(b.bias.name, shape)}, expected {expected.split(': ')[0]}",
            **scope.at(node, b.bias),
            expected=expected,
            got=shape_text(shape),
            why=f"{node.op}-{node.version}: {b.bias.name} has one value per output channel.",
        )


def _wrong_type(scope: Scope, node: Node, b: Bias) -> Iterator[Finding]:
    dtype = scope.dtype(b.bias.tensor)
    if b.integer and dtype is not None and dtype != np.int32:
        yield Finding(
            f"bias {b.bias.name} is {type_name(dtype)}, expected int32",
            **scope.at(node, b.bias),
            expected="int32, with scale x_scale * w_scale and zero point 0",
            got=type_name(dtype),
            why=f"{node.op}-{node.version}: the bias is added to the int32 accumulator.",
            fix="np.rint(bias / (x_scale * w_scale)).astype(np.int32)",
        )


_LIMITS = np.iinfo(np.int32)


@rule(
    "QR312",
    "warning",
    spec="QLinearConv",
    fix="enlarge the scale of these weights until bias / (x_scale * w_scale) fits int32, and quantize them again",
    applies=("QLinearConv", "com.microsoft::QGemm", "Conv", "Gemm"),
)
def bias_clipped(model: Model) -> Iterator[Finding]:
    """An int32 bias contains the largest or smallest int32: it was clipped when it was quantized.

    Why is this bad?
        The float bias divided by x_scale * w_scale did not fit. This happens to channels with weights near 0, whose
        scale is tiny. The channel's output can be wrong by any amount, and no runtime reports it.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.000001},
         int8[2] wz = {0, 0}, float ys = {0.5}, int32[2] b = {10, 2147483647}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, xz, b)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float[2] ws = {0.5, 0.01}, int8[2] wz = {0, 0},
         float ys = {0.5}, int32[2] b = {10, 214748}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, ys, xz, b)
        }
    """
    seen: set[int] = set()
    for b in biases(model):
        if b.value.dtype != np.int32 or id(b.value) in seen:
            continue
        seen.add(id(b.value))
        flat = b.value.reshape(-1)
        clipped = np.flatnonzero((flat == _LIMITS.max) | (flat == _LIMITS.min))
        if clipped.size:
            first = int(clipped[0])
            yield Finding(
                f"bias was clipped: {b.slot.tensor}[{first}] is {flat[first]}, the limit of int32; {clipped.size} of {flat.size} values",
                **b.scope.at(b.node, b.slot),
                expected="values between the limits -2147483648 and 2147483647",
                got=f"{flat[first]} at [{first}]; {clipped.size} of {flat.size} values",
                why=f"{b.node.op}-{b.node.version}: the bias has the scale x_scale * w_scale, and this one did not fit.",
            )


@rule(
    "QR313",
    "warning",
    spec="QLinearConv",
    fix="store one bias per node, each divided by its own x_scale * w_scale",
    applies=("QLinearConv", "com.microsoft::QGemm", "Conv", "Gemm"),
)
def shared_bias(model: Model) -> Iterator[Finding]:
    """Several nodes read one stored int32 bias, but with different scales.

    Why is this bad?
        The integers of a bias count steps of x_scale * w_scale. Where two nodes have different products, the same
        integers are different real values, so at most one of them has the intended bias. Quantizers write such models
        when two layers share a float bias and they quantize it only once.

    Bad
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y, uint8[1,2,2,2] v)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, float vs = {0.25},
        int8 wz = {0},
         int32[2] b = {10, 20}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz, b)
            v = QLinearConv(x, xs, xz, w, vs, wz, xs, xz, b)
        }

    Good
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y, uint8[1,2,2,2] v)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, float vs = {0.25},
        int8 wz = {0},
         int32[2] b = {10, 20}, int32[2] bv = {20, 40}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz, b)
            v = QLinearConv(x, xs, xz, w, vs, wz, xs, xz, bv)
        }
    """
    first: dict[int, StoredBias] = {}
    told: set[int] = set()
    for b in biases(model):
        if b.scale is None or b.value.size < 2 or not b.value.any():
            continue
        other = first.setdefault(id(b.value), b)
        if other is b or other.scale is None or id(b.value) in told:
            continue
        place = differs(other.scale, b.scale, b.value)
        if place is None:
            continue
        told.add(id(b.value))
        here, there = (float(s[place if s.size > 1 else 0]) for s in (b.scale, other.scale))
        yield Finding(
            f"bias {b.slot.tensor} has the scale {here:.6g} here and {there:.6g} in {other.node.label}",
            **b.scope.at(b.node, b.slot),
            expected=f"one scale for all nodes that read it: {there:.6g} as in {other.node.label}",
            got=f"{here:.6g} for {b.slot.tensor}[{place}]",
            why=f"{b.node.op}-{b.node.version}: the integers of a bias count steps of x_scale * w_scale.",
        )
