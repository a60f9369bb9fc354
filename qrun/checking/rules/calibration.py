"""Stored scales that no calibration can have chosen, and tensors that are quantized twice."""

from __future__ import annotations

from collections.abc import Iterator
from math import frexp

from qrun.checking.rules._onescale import OneScaled, one_scaled, source
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope
from qrun.checking.rules._words import TOLERANCE, digits, listed
from qrun.comparing.rewrites import requantized
from qrun.ir import Model
from qrun.ops import written

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
"""Operators whose results may be whole numbers, for which 1 is the right scale."""


@rule(
    "QR319",
    "warning",
    spec="ort-quantization",
    fix="calibrate with samples in which this tensor is not 0, or leave its node in float (nodes_to_exclude)",
    applies=written([("", "QuantizeLinear"), ("", "QLinearConv"), ("", "QLinearMatMul"), ("com.microsoft", "QGemm")]),
)
def uncalibrated_scale(model: Model) -> Iterator[Finding]:
    """An activation has exactly the scale 1 and the zero point 0, which quantizers write where they saw no values.

    Reported for tensors that nodes compute, with one stored scale. Not for inputs, which may be pixels of 0 to 255, nor
    for tensors that may hold whole numbers, as behind Cast or Round. Not where every scale is a power of two and one of
    them is not 1, as quantizers for some hardware choose them.

    Why is this bad?
        onnxruntime's quantizer writes this pair where the calibration saw only zeros, or one value, without a warning.
        Values below a half become 0, and all others whole numbers.

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
    found = [one for one in known if one.scale == 1 and one.zero == 0 and _computed(model, one)]
    for one in found[:1]:
        more = f", and {len(found) - 1} more: {listed([o.name for o in found[1:]])}" if found[1:] else ""
        yield Finding(
            f"{one.name} has the scale 1 and the zero point 0, as if calibration saw only zeros{more}",
            **at(one.node),
            tensor=f"{one.name} (output)",
            expected="a scale from the range of the values",
            got=f"scale 1, zero point 0{more}",
            why="onnxruntime's quantizer writes this pair where the calibration saw no range.",
        )


def _computed(model: Model, one: OneScaled) -> bool:
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
    """A tensor is quantized, dequantized, and at once quantized again with another scale or zero point.

    Judged where both scales are stored single values and both types are equal; a change of type, as from 8 to 16 bits,
    is meant. Not judged where other nodes read the tensor between the pairs; QR611 replaces it where onnxruntime merges
    the pairs.

    Why is this bad?
        The values are rounded twice, and have the range of the smaller of two scales with the steps of the larger one.
        The usual cause is a model that was quantized again, or parts that were quantized separately and then joined.
        Some runtimes merge the two pairs, and give other results.

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
    for inner, outer in requantized(model):
        first, one = known.get(inner.inputs[0]), known.get(outer.outputs[0])
        if first is None or one is None or (first.low, first.high) != (one.low, one.high):
            continue
        same = abs(first.scale / one.scale - 1) <= TOLERANCE and first.zero == one.zero
        if not same:
            scales = digits(first.scale, one.scale), digits(one.scale, first.scale)
            yield Finding(
                f"{first.name} is dequantized and at once quantized again, with another scale",
                **Scope(model).at(one.node, f"{one.node.inputs[0]} (input 0, x)"),
                expected="one scale and zero point",
                got=f"scale {scales[0]}, zero point {first.zero} in {first.node.label}; "
                f"scale {scales[1]}, zero point {one.zero} here",
                why="each pair rounds; the second one rounds what the first one left.",
            )
