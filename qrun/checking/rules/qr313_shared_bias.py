"""QR313 shared-bias."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._biases import StoredBias, biases
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Array, Model

TOLERANCE = 1e-5


@rule(
    "QR313",
    "shared-bias",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QLinearConv.html",
    fix="store one bias per node, each divided by its own x_scale * w_scale",
    applies=("QLinearConv", "com.microsoft::QGemm", "Conv", "Gemm"),
)
def shared_bias(model: Model) -> Iterator[Finding]:
    """One stored int32 bias is read by several nodes that give it different scales.

    Why is this bad?
        The integers of a bias count steps of x_scale * w_scale. Where two nodes have different products, the same
        integers are different real values, so at most one of them has the bias that was meant. Quantizers that find a
        float bias shared by two layers, and quantize it once, write such models.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y, uint8[1,2,2,2] v)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, float vs = {0.25}, int8 wz = {0},
         int32[2] b = {10, 20}>
        {
            y = QLinearConv(x, xs, xz, w, ws, wz, xs, xz, b)
            v = QLinearConv(x, xs, xz, w, vs, wz, xs, xz, b)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (uint8[1,1,2,2] x) => (uint8[1,2,2,2] y, uint8[1,2,2,2] v)
        <float xs = {0.5}, uint8 xz = {128}, int8[2,1,1,1] w = {1, 2}, float ws = {0.5}, float vs = {0.25}, int8 wz = {0},
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
        place = _differs(other.scale, b.scale, b.value)
        if place is None:
            continue
        told.add(id(b.value))
        here, there = (float(s[place if s.size > 1 else 0]) for s in (b.scale, other.scale))
        yield Finding(
            f"bias {b.tensor} has the scale {here:.6g} here and {there:.6g} in {other.node.label}",
            **b.where,
            expected=f"one scale for all nodes that read it: {there:.6g} as in {other.node.label}",
            got=f"{here:.6g} for {b.tensor}[{place}]",
            why=f"{b.node.op}-{b.node.version}: the integers of a bias count steps of x_scale * w_scale.",
        )


def _differs(one: Array, other: Array, bias: Array) -> int | None:
    """Where two scales of a bias differ, at a value that is not 0."""
    flat = bias.reshape(-1)
    if any(s.size not in (1, flat.size) for s in (one, other)) or not np.all(one > 0) or not np.all(np.isfinite(one)):
        return None
    with np.errstate(all="ignore"):
        off = np.abs(one - other) > TOLERANCE * one
    places = np.flatnonzero(np.broadcast_to(off, flat.shape) & (flat != 0))
    return int(places[0]) if places.size else None
