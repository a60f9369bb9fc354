"""Stored values of scales and zero points."""

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
from qrun.ir.types import type_name


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
            bad = _bad_scales(scope, node, q, real)
            if bad.any() and key not in seen:
                seen.add(key)
                yield _bad_scale(scope, node, q.scale, real, bad)


def _bad_scales(scope: Scope, node: Node, q: Quantizer, real: Array) -> Array:
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


def _bad_scale(scope: Scope, node: Node, scale: Slot, real: Array, bad: Array) -> Finding:
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


_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest normal number of each type."""


@rule(
    "QR309",
    "subnormal-scale",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html",
    fix="calibrate again, or store the scale as float32; a tensor that is always 0 can have the scale 1",
    applies=operators(),
)
def subnormal_scale(model: Model) -> Iterator[Finding]:
    """A stored scale is positive, but below the smallest normal number of its type.

    Why is this bad?
        Subnormal numbers have few significant bits left, and processors that flush them to zero divide by 0. In float32
        it means that the tensor was as good as 0 in calibration; in float16 the scale lost digits when it was stored.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.000000000000000000000000000000000000001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            home = scope.home(q.scale.tensor) if q.scale else None
            value = home.value(q.scale.tensor) if home and q.scale else None
            least = _SMALLEST.get(value.dtype.name) if value is not None else None
            if value is None or least is None or not q.scale or (id(home), q.scale.tensor) in seen:
                continue
            seen.add((id(home), q.scale.tensor))
            real = value.astype(np.float64)
            small = (real > 0) & (real < least)
            if not small.any():
                continue
            first = tuple(int(i) for i in np.argwhere(small)[0])
            place = f"[{','.join(map(str, first))}]" if first else ""
            count = f"; {int(small.sum())} of {small.size} scales" if small.size > 1 else ""
            name = type_name(value.dtype)
            yield Finding(
                f"{q.scale.name}{place} is {real[first]:.6g}, subnormal in {name}{count}",
                **scope.at(node),
                tensor=f"{q.scale.tensor}{place} (input {q.scale.place}, {q.scale.name})",
                expected=f"at least {least:.6g}, the smallest normal {name}",
                got=f"{real[first]:.6g}{count}",
                why=f"{node.op}-{node.version} divides or multiplies by it; the result depends on flushing to zero.",
            )


@rule(
    "QR311",
    "float-zero-point",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/operators/onnx__DequantizeLinear.html",
    fix="set the zero point to 0; it is there to give the type",
    applies=("QuantizeLinear", "DequantizeLinear", "QLinearMatMul"),
)
def float_zero_point(model: Model) -> Iterator[Finding]:
    """The zero point of a float8, float6 or float4 tensor is not 0.

    Why is this bad?
        The page says that it is "usually not used", and nothing about rounding it. onnxruntime and onnx.reference refuse
        to dequantize with it and ignore or add it when they quantize; qrun refuses both.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (float8e4m3fn[2] x) => (float[2] y)
        <float scale = {0.5}, float8e4m3fn zero = {1}>
        {
            y = DequantizeLinear(x, scale, zero)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (float8e4m3fn[2] x) => (float[2] y)
        <float scale = {0.5}, float8e4m3fn zero = {0}>
        {
            y = DequantizeLinear(x, scale, zero)
        }
    """
    for scope, node in nodes(model, TABLE):
        for q in sound(scope, node):
            value = scope.value(q.zero_point.tensor) if q.zero_point else None
            if value is None or not q.zero_point or not value.dtype.name.startswith(("float4", "float6", "float8")):
                continue
            bad = ~(value.astype(np.float32) == 0)
            if bad.any():
                first = tuple(int(i) for i in np.argwhere(bad)[0])
                yield Finding(
                    f"{q.zero_point.name} of {type_name(value.dtype)} is {value[first]}, expected 0",
                    **scope.at(node),
                    tensor=f"{q.zero_point.tensor} (input {q.zero_point.place}, {q.zero_point.name})",
                    expected="0",
                    got=str(value[first]),
                    why=f"{node.op}-{node.version}: zero points are not used for float types.",
                )
