"""Rules on stored values of scales and zero points: invalid ones, ones that no calibration chose, and tensors that are
quantized twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from math import frexp

import numpy as np

from qrun.checking.rules._forms import all_quantizers, broadcast_parameter
from qrun.checking.rules._onescale import OneScaled, one_scaled, source
from qrun.checking.rules._rule import TOLERANCE, Finding, at, digits, first_of, join_names, operators, rule
from qrun.checking.rules._scope import Scope
from qrun.comparing.rewrites import requantizations
from qrun.ir import Array, Model, Node
from qrun.ir.types import type_name
from qrun.ops import Quantizer, Slot, op_names


@rule(
    "QR306",
    "error",
    spec="QuantizeLinear",
    fix="quantize again; a tensor that is always 0 can have any positive scale, such as 1",
    applies=operators(),
)
def scale_value(model: Model) -> Iterator[Finding]:
    """A stored scale is zero, negative, infinite or NaN.

    A scale is the real distance between two neighbouring codes, so it is positive and finite. DequantizeLinear of
    stored codes only multiplies. There a scale may be negative, as some quantizers of 4-bit weights write it, or 0 if
    all codes are the zero point.

    Why is this bad?
        Quantizing divides by the scale: 0 produces infinities and NaN, whose codes no specification defines. With a
        scale of 0, all stored codes dequantize to 0. A negative scale reverses the order of the codes. onnx.checker,
        onnx.reference and onnxruntime all accept such models and return a result. Usual causes are calibration data
        that are all zero, and float16 underflow.

    Bad
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.0}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node, q, scale, home, value in _stored_scales(model):
        if value.dtype.kind in "Oc":
            continue
        real = value.astype(np.float64)
        bad = _bad_scales(scope, node, q, real)
        key = (id(home.model), scale.tensor)
        if bad.any() and key not in seen:
            seen.add(key)
            (first, place), count = first_of(bad), _of_several(bad)
            readers = len(home.model.consumers.get(scale.tensor, ()))
            shared = f", read by {readers} nodes" if readers > 1 else ""
            yield Finding(
                f"{scale.name}{place} is {real[first]:.6g}{count}",
                **scope.at(node, Slot(f"{scale.name}{shared}", scale.place, f"{scale.tensor}{place}")),
                expected="a positive, finite number",
                got=f"{real[first]:.6g}{count}",
                why=f"{node.op}-{node.version}: a scale is the distance between two codes.",
            )


def _stored_scales(model: Model) -> Iterator[tuple[Scope, Node, Quantizer, Slot, Scope, Array]]:
    """Yield each stored scale, at each node that reads it, with the graph that holds it and its value."""
    for scope, node, q in all_quantizers(model):
        home = scope.home(q.scale.tensor) if q.scale else None
        value = home.value(q.scale.tensor) if home and q.scale else None
        if q.scale and home and value is not None:
            yield scope, node, q, q.scale, home, value


def _of_several(bad: Array) -> str:
    return f"; {int(bad.sum())} of {bad.size} scales" if bad.size > 1 else ""


def _bad_scales(scope: Scope, node: Node, q: Quantizer, real: Array) -> Array:
    """A mask of the invalid scales: not positive and finite. For stored codes, 0 is invalid only if it changes one."""
    strict = ~(np.isfinite(real) & (real > 0))
    codes = scope.value(q.tensor.tensor) if node.op_type == "DequantizeLinear" and strict.any() else None
    if codes is None:
        return strict
    bad, zero = ~np.isfinite(real), real == 0
    if zero.any():
        bad |= zero & _carries(scope, node, q, codes, real.shape)
    return bad


def _carries(scope: Scope, node: Node, q: Quantizer, codes: Array, shape: tuple[int, ...]) -> Array:
    """A mask of the scales of codes that differ from their zero point; all true if that is not known."""
    owner = broadcast_parameter(np.arange(math.prod(shape)).reshape(shape), node, codes.shape)
    stored = scope.value(q.zero_point.tensor) if q.zero_point else np.zeros(shape)
    zero = broadcast_parameter(stored, node, codes.shape) if stored is not None else None
    if owner is None or zero is None:
        return np.ones(shape, bool)
    found = np.zeros(math.prod(shape), bool)
    found[owner[codes.astype(np.float64) != zero.astype(np.float64)]] = True
    return found.reshape(shape)


_SMALLEST = {"float32": 2.0**-126, "bfloat16": 2.0**-126, "float16": 2.0**-14}
"""The smallest normal number of each type."""


@rule(
    "QR309",
    "warning",
    spec="QuantizeLinear",
    fix="calibrate again, or store the scale as float32; a tensor that is always 0 can have the scale 1",
    applies=operators(),
)
def subnormal_scale(model: Model) -> Iterator[Finding]:
    """A stored scale is positive, but below the smallest normal number of its type.

    Why is this bad?
        Subnormal numbers have few significant bits left, and processors that flush them to zero divide by 0. In
        float32, the tensor was practically 0 in calibration; in float16, the scale lost digits when it was stored.

    Bad
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.000000000000000000000000000000000000001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.001}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    seen: set[tuple[int, str]] = set()
    for scope, node, _, scale, home, value in _stored_scales(model):
        least, key = _SMALLEST.get(value.dtype.name, 0), (id(home), scale.tensor)
        real = value.astype(np.float64) if least and key not in seen else np.zeros(())
        seen.add(key)
        small = (real > 0) & (real < least)
        if small.any():
            (first, place), count = first_of(small), _of_several(small)
            name = type_name(value.dtype)
            yield Finding(
                f"{scale.name}{place} is {real[first]:.6g}, subnormal in {name}{count}",
                **scope.at(node, replace(scale, tensor=f"{scale.tensor}{place}")),
                expected=f"at least {least:.6g}, the smallest normal {name}",
                got=f"{real[first]:.6g}{count}",
                why=f"{node.op}-{node.version} divides or multiplies by it; the result depends on flushing to zero.",
            )


@rule(
    "QR311",
    "warning",
    spec="DequantizeLinear",
    fix="set the zero point to 0; it only determines the type",
    applies=("QuantizeLinear", "DequantizeLinear", "QLinearMatMul"),
)
def float_zero_point(model: Model) -> Iterator[Finding]:
    """The zero point of a float8, float6 or float4 tensor is not 0.

    Why is this bad?
        The specification says "usually not used", and does not define its rounding. onnxruntime and onnx.reference
        refuse to dequantize with it and ignore or add it when they quantize; qrun refuses both.

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
    for scope, node, q in all_quantizers(model):
        value = scope.value(q.zero_point.tensor) if q.zero_point else None
        if value is None or not q.zero_point or not value.dtype.name.startswith(("float4", "float6", "float8")):
            continue
        bad = ~(value.astype(np.float32) == 0)
        if bad.any():
            got = value[first_of(bad)[0]]
            yield Finding(
                f"{q.zero_point.name} of {type_name(value.dtype)} is {got}, expected 0",
                **scope.at(node, q.zero_point),
                expected="0",
                got=str(got),
                why=f"{node.op}-{node.version}: zero points are not used for float types.",
            )


_WHOLE = (
    "Cast",
    "Round",
    "Floor",
    "Ceil",
    "Sign",
    "ArgMax",
    "ArgMin",
    "OneHot",
    "Shape",
    "ConstantOfShape",
    "Size",
    "Range",
    "Gather",
    "Clip",
)
"""Operators whose results may be whole numbers, for which the scale 1 is right."""


@rule(
    "QR319",
    "warning",
    spec="ort-quantization",
    fix="calibrate with samples in which this tensor is not 0, or keep its node in float (nodes_to_exclude)",
    applies=op_names([("", "QuantizeLinear"), ("", "QLinearConv"), ("", "QLinearMatMul"), ("com.microsoft", "QGemm")]),
)
def uncalibrated_scale(model: Model) -> Iterator[Finding]:
    """An activation has exactly the scale 1 and the zero point 0, which quantizers write if they saw no values.

    The rule covers tensors that nodes compute, with one stored scale. It skips inputs, which may be pixels from 0 to
    255, and tensors that may hold whole numbers, as after Cast or Round. It also skips models in which every scale is a
    power of two and not all are 1, as quantizers for some hardware write them.

    Why is this bad?
        onnxruntime's quantizer writes this pair, without a warning, if calibration saw only zeros or a single value.
        Values below 0.5 become 0, and all others become whole numbers.

    Bad
        main (float[4] x) => (float[4] y)
        <float s = {0.02}, uint8 sz = {128}, float one = {1.0}, uint8 zero = {0}>
        {
            a = QuantizeLinear(x, s, sz)
            b = DequantizeLinear(a, s, sz)
            c = Add(b, b)
            d = QuantizeLinear(c, one, zero)
            y = DequantizeLinear(d, one, zero)
        }

    Good
        main (float[4] x) => (float[4] y)
        <float s = {0.02}, uint8 sz = {128}, float t = {0.04}, uint8 tz = {120}>
        {
            a = QuantizeLinear(x, s, sz)
            b = DequantizeLinear(a, s, sz)
            c = Add(b, b)
            d = QuantizeLinear(c, t, tz)
            y = DequantizeLinear(d, t, tz)
        }
    """
    known = one_scaled(model).values()
    scales = {one.scale for one in known}
    if len(known) < 2 or (scales != {1.0} and all(frexp(scale)[0] == 0.5 for scale in scales)):
        return
    found = [one for one in known if one.scale == 1 and one.zero == 0 and _is_computed(model, one)]
    for one in found[:1]:
        more = f", and {len(found) - 1} more: {join_names([o.name for o in found[1:]])}" if found[1:] else ""
        yield Finding(
            f"{one.name} has the scale 1 and the zero point 0, as if calibration saw only zeros{more}",
            **at(one.node),
            tensor=f"{one.name} (output)",
            expected="a scale from the range of the values",
            got=f"scale 1, zero point 0{more}",
            why="onnxruntime's quantizer writes this pair if calibration saw no range.",
        )


def _is_computed(model: Model, one: OneScaled) -> bool:
    node = source(model, one)
    return node is not None and node.op_type not in _WHOLE and node.op_type != "DequantizeLinear"


@rule(
    "QR320",
    "warning",
    spec="QuantizeLinear",
    fix="remove one of the two pairs, and let the nodes around them share one scale",
    applies=("QuantizeLinear",),
)
def quantized_twice(model: Model) -> Iterator[Finding]:
    """A tensor is quantized, dequantized, and immediately quantized again with a different scale or zero point.

    The rule needs single stored scales and equal types: a change of type, as from 8 to 16 bits, is intended. It skips
    tensors that other nodes read between the pairs. If onnxruntime merges the pairs, QR611 replaces this rule.

    Why is this bad?
        The values are rounded twice. They keep the range of the smaller scale and the steps of the larger one. The
        usual cause is a model that was quantized again, or parts that were quantized separately and then joined. Some
        runtimes merge the two pairs, and give different results.

    Bad
        main (float[2] x) => (uint8[2] y)
        <float s = {0.5}, float t = {0.3}, uint8 z = {128}>
        {
            a = QuantizeLinear(x, s, z)
            b = DequantizeLinear(a, s, z)
            y = QuantizeLinear(b, t, z)
        }

    Good
        main (float[2] x) => (uint8[2] y)
        <float t = {0.3}, uint8 z = {128}>
        {
            y = QuantizeLinear(x, t, z)
        }
    """
    known = one_scaled(model)
    for inner, outer in requantizations(model):
        first, one = known.get(inner.inputs[0]), known.get(outer.outputs[0])
        if first is None or one is None or (first.low, first.high) != (one.low, one.high):
            continue
        same = abs(first.scale / one.scale - 1) <= TOLERANCE and first.zero == one.zero
        if not same:
            scales = digits(first.scale, one.scale), digits(one.scale, first.scale)
            yield Finding(
                f"{first.name} is dequantized and immediately quantized again, with a different scale",
                **Scope(model).at(one.node, f"{one.node.inputs[0]} (input 0, x)"),
                expected="one scale and zero point",
                got=f"scale {scales[0]}, zero point {first.zero} in {first.node.label}; "
                f"scale {scales[1]}, zero point {one.zero} here",
                why="each pair rounds, so the values are rounded twice.",
            )
