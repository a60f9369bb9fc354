"""QR306 scale-value."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._forms import spread
from qrun.checking.rules._parameters import TABLE, Quantizer, Slot, operators
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, nodes
from qrun.checking.rules._typed import sound
from qrun.ir import Array, Model, Node


@rule(
    "QR306",
    "scale-value",
    level="error",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="quantize again; a tensor that is always 0 can have any positive scale, such as 1",
    applies=operators(),
)
def scale_value(model: Model) -> Iterator[Finding]:
    """A stored scale is zero, negative, infinite or NaN.

    A scale is the real distance between two neighbouring codes, so it is positive and finite. DequantizeLinear of stored
    codes only multiplies: there a scale may be negative, which quantizers of 4-bit weights use, and 0 for codes that are
    all the zero point.

    Why is this bad?
        Quantizing divides by the scale: 0 gives infinities and NaN, whose codes no specification defines. Stored codes
        with the scale 0 lose their values. A negative scale turns the order of the codes round. onnx.checker,
        onnx.reference and onnxruntime all accept such models and compute something. Usual causes are calibration data
        that are all zero, and float16 underflow.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.0}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            home = scope.home(q.scale.tensor) if q.scale else None
            value = home.value(q.scale.tensor) if home and q.scale else None
            if value is None or value.dtype.kind in "Oc" or not q.scale or not home:
                continue
            key = (id(home.model), q.scale.tensor)
            real = np.asarray(value).astype(np.float64)
            bad = _bad(scope, node, q, real)
            if bad.any() and key not in seen:
                seen.add(key)
                yield _finding(scope, node, q.scale, real, bad)


def _bad(scope: Scope, node: Node, q: Quantizer, real: Array) -> Array:
    """Which scales give no value, or another one than is meant."""
    strict = ~(np.isfinite(real) & (real > 0))
    codes = scope.value(q.tensor.tensor) if node.op_type == "DequantizeLinear" and strict.any() else None
    if codes is None:
        return strict
    bad, zero = ~np.isfinite(real), real == 0
    if zero.any():
        bad |= zero & _carries(scope, node, q, codes, real.shape)
    return bad


def _carries(scope: Scope, node: Node, q: Quantizer, codes: Array, shape: tuple[int, ...]) -> Array:
    """Which scales belong to a code that is not the zero point; all where that is not known."""
    owner = spread(np.arange(math.prod(shape)).reshape(shape), node, codes.shape)
    stored = scope.value(q.zero_point.tensor) if q.zero_point else np.zeros(shape)
    zero = spread(stored, node, codes.shape) if stored is not None else None
    if owner is None or zero is None:
        return np.ones(shape, bool)
    found = np.zeros(math.prod(shape), bool)
    found[owner[codes.astype(np.float64) != zero.astype(np.float64)]] = True
    return found.reshape(shape)


def _finding(scope: Scope, node: Node, scale: Slot, real: Array, bad: Array) -> Finding:
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    place = f"[{','.join(map(str, first))}]" if first else ""
    of_all = f"; {int(bad.sum())} of {bad.size} scales" if bad.size > 1 else ""
    home = scope.home(scale.tensor)
    readers = len(home.model.consumers.get(scale.tensor, ())) if home else 0
    shared = f", read by {readers} nodes" if readers > 1 else ""
    return Finding(
        f"{scale.name}{place} is {real[first]:.6g}{of_all}",
        **scope.at(node),
        tensor=f"{scale.tensor}{place} (input {scale.place}, {scale.name}{shared})",
        expected="a positive, finite number",
        got=f"{real[first]:.6g}{of_all}",
        why=f"{node.op}-{node.version}: a scale is the distance between two codes.",
    )
