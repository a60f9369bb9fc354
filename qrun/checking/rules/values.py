"""Rules on values in a run: NaN, infinity, saturation, invalid scales, and casts of values outside the new type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.checking.rules._observed import observations, observations_at_good_scales, param_input
from qrun.checking.rules._rule import Finding, at, rule
from qrun.checking.rules._scope import Scope
from qrun.errors import percent
from qrun.ir import Array, Model, Node
from qrun.ir.types import ONNX_NAMES, describe, type_name
from qrun.ops import quantizers

if TYPE_CHECKING:
    from qrun.running.session import RunResult


@rule(
    "QR401",
    "warning",
    spec="QuantizeLinear",
    fix="remove NaN from the input file; --fail-on warning turns this into exit 1",
)
def nan_quantized(model: Model, result: RunResult) -> Iterator[Finding]:
    """NaN was quantized: an integer has no code for it.

    Why is this bad?
        No specification says which code NaN becomes. qrun and onnxruntime on x86 write the smallest code, other
        runtimes may write 0 or anything else, and later nodes cannot distinguish that code from a real value.

    Bad
        main () => (uint8[2] y)
        <float[2] x = {1.0, nan}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[2] y)
        <float[2] x = {1.0, 2.0}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    for s in observations_at_good_scales(model, result, "nan-quantized"):
        yield Finding(
            f"NaN reaches {s.node.op_type}: {s.share}",
            **s.where,
            expected="numbers",
            got=f"NaN in {s.share}; they became the smallest code",
            why=f"the {s.node.op_type} spec does not say what NaN becomes.",
        )


SHARE = 0.05


@rule(
    "QR402",
    "warning",
    spec="QuantizeLinear",
    fix="calibrate with data like this input, or check its preprocessing (range, mean, layout)",
)
def saturated(model: Model, result: RunResult) -> Iterator[Finding]:
    """More than 5 % of a quantized tensor, and more than one element, lies outside the range of its codes.

    Infinity is not counted: QR411 reports it. A single element proves nothing: calibration puts its largest value at
    the edge of the range.

    The rule skips what may be a Relu or Relu6 folded into quantization: values below a zero point that is the smallest
    code, and a range that ends at 6.

    Why is this bad?
        Everything outside the range becomes the smallest or largest code, so its value is lost. Usual causes are
        calibration on other data, an input in 0..255 where 0..1 was meant, and a scale that is too small.

    Bad
        main () => (uint8[4] y)
        <float[4] x = {1.0, 2.0, 3000.0, 4000.0}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[4] y)
        <float[4] x = {1.0, 2.0, 3000.0, 4000.0}, float scale = {20.0}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    infinite = {s.node.index: s.count for s in observations(model, result, "infinite-quantized")}
    for s in observations(model, result, "saturated"):
        s = replace(s, count=s.count - infinite.get(s.node.index, 0))
        if s.count < 2 or s.count <= SHARE * s.total or _may_fold(model, s.node):
            continue
        told = percent(s.count / s.total)
        yield Finding(
            f"{told} of {param_input(s.node, s.param)[0]} saturates ({s.share})",
            **s.where,
            expected=f"at most {percent(SHARE, 0)} outside the range{_range(model, s.node)}",
            got=f"{told}, {s.share}",
            why=f"{s.node.op}-{s.node.version} saturates: values outside become the smallest or largest code.",
        )


def _ends(model: Model, node: Node) -> tuple[float, float] | None:
    """The real values of the output's smallest and largest code; None unless its parameters are stored scalars."""
    scope = Scope(model)
    for q in quantizers(node):
        scale = scope.value(q.scale.tensor) if q.is_output and q.scale else None
        zero = scope.value(q.zero_point.tensor) if q.zero_point else None
        dtype: np.dtype[Any] = zero.dtype if zero is not None else np.dtype(np.uint8)
        if scale is None or scale.size != 1 or dtype.kind not in "iu" or (zero is not None and zero.size != 1):
            continue
        offset = int(zero.reshape(())) if zero is not None else 0
        step, limits = float(scale.reshape(())), np.iinfo(dtype)
        return (limits.min - offset) * step, (limits.max - offset) * step
    return None


def _may_fold(model: Model, node: Node) -> bool:
    """May a Relu or Relu6 be folded into this node's range?

    QuantizeLinear counts both ends together, so a node whose zero point is the smallest code and whose x another node
    makes is not judged at all; other operators do not count values below such a zero point.
    """
    ends = _ends(model, node)
    if ends is None or ends[0] != 0:
        return False
    made = node.op_type == "QuantizeLinear" and node.inputs[0] in model.producers
    return made or abs(ends[1] - 6) < 0.03


def _range(model: Model, node: Node) -> str:
    ends = _ends(model, node)
    if ends is None or not np.all(np.isfinite(ends)) or ends[0] == ends[1]:
        return ""
    return f" {min(ends):.4g} to {max(ends):.4g}"


@rule("QR404", "warning", spec="IR", fix="qrun run MODEL -t '*' lists where NaN or infinity first appears")
def non_finite_output(model: Model, result: RunResult) -> Iterator[Finding]:
    """A float output of the graph contains NaN or infinity.

    Why is this bad?
        Comparisons and argmax on NaN are meaningless. The usual cause is a division by zero, a float16 overflow, or NaN
        in the inputs.

    Bad
        main () => (float[2] y)
        <float[2] x = {1.0, inf}>
        {
            y = Relu(x)
        }

    Good
        main () => (float[2] y)
        <float[2] x = {1.0, 2.0}>
        {
            y = Relu(x)
        }
    """
    for name, array in result.outputs.items():
        real = _floats(array)
        if real is None:
            continue
        nan, bad = np.isnan(real), ~np.isfinite(real)
        if not bad.any():
            continue
        kinds = [f"{int(nan.sum())} NaN"] if nan.any() else []
        kinds += [f"{int(bad.sum() - nan.sum())} infinite"] if bad.sum() > nan.sum() else []
        first = f" first at [{','.join(str(i) for i in np.argwhere(bad)[0])}]" if bad.ndim else ""
        text = f"{' and '.join(kinds)} of {bad.size} elements"
        producer = model.producers.get(name)
        yield Finding(
            f"output {name} has {text}",
            **(at(producer) if producer else {}),
            tensor=f"{name} (graph output, {describe(array)})",
            expected="finite numbers",
            got=f"{text},{first}" if first else text,
        )


def _floats(array: Array) -> Array | None:
    """The array as a float type that numpy computes with; None if its type is no float type."""
    if array.dtype.kind == "f":
        return array
    if array.dtype.kind == "V" and ONNX_NAMES.get(array.dtype, "").startswith(("bfloat", "float")):
        return array.astype(np.float32)
    return None


@rule(
    "QR405",
    "warning",
    spec="QuantizeLinear",
    fix="keep the computed scale away from 0, for example with Max(scale, 1e-8)",
)
def bad_scale(model: Model, result: RunResult) -> Iterator[Finding]:
    """A scale that is computed or fed at run time is zero, negative, infinite or NaN.

    Why is this bad?
        Dividing by it produces infinities and NaN, whose codes no specification defines. QR306 reports stored scales.

    Bad
        main () => (float[2] y)
        <int8[2] x = {1, 2}, float minus = {-0.5}>
        {
            scale = Relu(minus)
            y = DequantizeLinear(x, scale)
        }

    Good
        main () => (float[2] y)
        <int8[2] x = {1, 2}, float half = {0.5}>
        {
            scale = Relu(half)
            y = DequantizeLinear(x, scale)
        }
    """
    scope = Scope(model)
    for s in observations(model, result, "bad-scale"):
        name = param_input(s.node, s.param)[0]
        stored = scope.value(name)
        if stored is not None and not np.all(np.isfinite(real := stored.astype(np.float64)) & (real > 0)):
            continue
        value = s.detail or "not positive and finite"
        place = f"[{','.join(map(str, s.first))}]" if s.first else ""
        yield Finding(
            f"{name if name == s.param else f'{s.param} {name}'}{place} is {value} at run time",
            **s.where,
            expected="a positive, finite number",
            got=f"{value}{'' if s.total == 1 else f'; {s.count} of {s.total} scales'}",
            why=f"{s.node.op}-{s.node.version}: a scale is the distance between two codes.",
        )


@rule(
    "QR411",
    "warning",
    spec="QuantizeLinear",
    fix="remove infinity from the input, or clip it to the intended range; --fail-on warning turns this into exit 1",
    applies=("QuantizeLinear",),
)
def infinite_quantized(model: Model, result: RunResult) -> Iterator[Finding]:
    """Infinity was quantized to an integer.

    Why is this bad?
        qrun and onnxruntime saturate it to the largest or smallest code. onnx.reference casts it to an integer first
        and gets 0 or the opposite end, and other runtimes return whatever the processor's conversion returns. No
        measured value is infinite; the cause is usually a division by 0 or an overflow before the node.

    Bad
        main () => (uint8[2] y)
        <float[2] x = {1.0, inf}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[2] y)
        <float[2] x = {1.0, 2.0}, float scale = {0.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    for s in observations_at_good_scales(model, result, "infinite-quantized"):
        yield Finding(
            f"infinity reaches {s.node.op_type}: {s.share}",
            **s.where,
            expected="finite numbers",
            got=f"infinity in {s.share}",
            why=f"{s.node.op}-{s.node.version} saturates; runtimes that convert to an integer first give other codes.",
        )


@rule(
    "QR415",
    "warning",
    spec="Cast",
    fix="put a Clip to the limits of the type before the cast; QuantizeLinear saturates on its own",
    applies=("Cast", "CastLike"),
)
def undefined_cast(model: Model, result: RunResult) -> Iterator[Finding]:
    """A floating-point number outside the range of an integer type, or NaN, was cast to it.

    Why is this bad?
        The specification calls the result undefined. Runtimes on x86 usually keep the low bits (300 becomes 44 in
        int8), and runtimes on ARM usually saturate (127), so the model returns different results on different
        processors.

    Bad
        main () => (int8[2] y)
        <float[2] x = {1.0, 300.0}>
        {
            y = Cast <to = 3> (x)
        }

    Good
        main () => (int8[2] y)
        <float[2] x = {1.0, 100.0}>
        {
            y = Cast <to = 3> (x)
        }
    """
    kinds = {event.index: event.outputs[0].dtype for event in result.events if event.outputs}
    for s in observations(model, result, "undefined-cast"):
        made = type_name(kinds[s.node.index])
        yield Finding(
            f"{s.detail} does not fit {made}: {s.share}",
            **s.where,
            expected=f"numbers that {made} holds",
            got=f"{s.detail}; {s.share}",
            why=f"{s.node.op}-{s.node.version}: the result is undefined for values out of range.",
        )
