"""Stored weights: codes that are not used, channels that are 0, zero points."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np

from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._weights import PRODUCTS, Weight, weights
from qrun.checking.rules._words import listed
from qrun.ir import Model
from qrun.ir.types import type_name

_ENOUGH = 32
"""Weights, and more than a few distinct ones, before anything is said: fewer may be what they are."""
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

    With one scale the whole tensor is judged; with one per channel, a tensor of which most channels are so. Weights of
    7 bits (reduce_range) and weights of at most three values pass.

    Why is this bad?
        Two bits or more are lost: the error of the weights is at least four times that which the type allows. Usual
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
        if w.codes.size >= _ENOUGH and w.codes.dtype.itemsize == 1 and w.dtype.itemsize == 1:
            yield from _judge_codes(w)


def _judge_codes(w: Weight) -> Iterator[Finding]:
    others = tuple(i for i in range(w.codes.ndim) if i != w.axis)
    limits = ml_dtypes.iinfo(w.dtype)  # type: ignore[no-untyped-call]
    high, low = w.codes.max(others).astype(np.int64), w.codes.min(others).astype(np.int64)
    zero = w.zero.astype(np.int64)
    if w.scale is None or w.scale.size == 1:
        high, low, zero = high.max(keepdims=True), low.min(keepdims=True), zero[:1]
    used = np.maximum(high - zero, zero - low)
    reach = np.minimum(127, np.maximum(limits.max - zero, zero - limits.min))
    small = (used > 0) & (used * _ROOM <= reach)
    if 2 * int(small.sum()) <= small.size or len(np.unique(w.codes)) <= _FEW:
        return
    worst = int(np.argmin(np.where(small, used / reach, 1.0)))
    most, all_of = int(used[worst]), int(np.broadcast_to(reach, used.shape)[worst])
    channels = f" in channel {worst}; so in {int(small.sum())} of {small.size} channels" if small.size > 1 else ""
    yield Finding(
        f"the weights reach {most} of {all_of} codes from the zero point{channels}",
        **w.where,
        expected=f"{type_name(w.dtype)} codes up to {all_of} away from the zero point",
        got=f"{most}{channels}",
        why=f"a scale that is the largest weight / {all_of} uses all codes; with this one, precision is lost.",
    )


@rule(
    "QR315",
    "note",
    spec="QLinearConv",
    fix="if the float weights are not 0, quantize them with one scale per channel; if they are, remove the channel",
    applies=PRODUCTS,
)
def zero_channel(model: Model) -> Iterator[Finding]:
    """All weights of an output channel are 0 (their zero point), while other channels have some.

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
        others = tuple(i for i in range(w.codes.ndim) if i != w.axis)
        if w.codes.size == w.codes.shape[w.axis]:
            continue
        zero = w.zero.astype(np.int64)
        dead = (w.codes.max(others) == zero) & (w.codes.min(others) == zero)
        if dead.any() and not dead.all():
            names = [str(i) for i in np.flatnonzero(dead)]
            yield Finding(
                f"{len(names)} of {dead.size} output channels have no weight but 0: {listed(names)}",
                **w.where,
                expected="a weight other than 0 in each channel",
                got=f"channels {listed(names, 8)}",
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
        It is legal ONNX, but TensorRT takes zero points of 0 only, accelerators with signed weights often have no place
        for another, and kernels that have one must add up the input for every output to correct for it.

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
