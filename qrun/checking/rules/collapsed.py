"""Rules on scales that are too large for all or most values, so that these share few codes, or one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.checking.rules._observed import param_input, tensors
from qrun.checking.rules._onescale import OneScaled, bounds, distinct, joining_concat, one_scaled
from qrun.checking.rules._rule import RULES, Finding, at, rule
from qrun.declare.frozen import frozen
from qrun.errors import percent
from qrun.ir import Array, Model, Node
from qrun.ops import op_names

if TYPE_CHECKING:
    from qrun.running.session import RunResult


TOO_LARGE = 4
"""A scale is too large if a scale this many times smaller fits the values."""
LEAST, DISTINCT = 16, 8
"""The fewest values of a tensor, and distinct ones among them, that must share one or two codes."""
MANY = 64
"""The fewest values of a tensor that must lie within a quarter of the codes."""
_QUANTIZE = op_names([("", "QuantizeLinear"), ("", "QLinearConv"), ("", "QLinearMatMul"), ("com.microsoft", "QGemm")])
_FIX = "calibrate again, with inputs like these"


@frozen
class Used:
    """The codes of a tensor over some inputs. low, high: the smallest and the largest code; count: the number of
    distinct codes; size: the number of values."""

    low: int
    high: int
    count: int
    size: int

    @property
    def collapsed(self) -> bool:
        return self.high - self.low <= 1 and self.size >= LEAST


@rule("QR413", "warning", spec="QuantizeLinear", fix=_FIX, applies=_QUANTIZE, every=True, follows=True)
def collapsed_codes(model: Model, result: RunResult, feeds: Mapping[str, Array]) -> Iterator[Finding]:
    """All values of a quantized tensor become one code, or two neighbouring ones.

    The rule needs a recorded vector, or a run or qrun eval --health with inputs that the user provides. The tensor has
    one stored scale, 16 values or more, and at least 8 different values before rounding; a scale of a quarter or less
    would fit it. Constant inputs prove nothing. If there are several vectors, the codes must collapse in all of them.

    Why is this bad?
        The nodes after the tensor read one value, so a part of the model computes a constant. No runtime warns. The
        usual cause is one scale for tensors of different ranges, such as the scores of a detector that are joined with
        its boxes of 0 to 640.

    Bad
        main () => (uint8[16] y)
        <float[16] x = {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.15, 0.25, 0.35, 0.45, 0.55},
         float scale = {2.5}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[16] y)
        <float[16] x = {0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 0.15, 0.25, 0.35, 0.45, 0.55},
         float scale = {0.004}, uint8 zero = {0}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    known = one_scaled(model)
    for event in result.events:
        for seen in event.observations if event.outputs and event.outputs[0].name in known else ():
            if seen.kind == "few-codes":
                low, high = map(int, seen.detail.split())
                used = Used(low, high, 0, seen.count)
                if used.collapsed:
                    yield from _find_collapsed(model, known[event.outputs[0].name], used, [feeds])


@rule("QR414", "note", spec="QuantizeLinear", fix=_FIX, applies=_QUANTIZE, every=True, follows=True)
def few_codes(model: Model, feeds: Mapping[str, Array]) -> Iterator[Finding]:
    """The values of a quantized tensor lie within a quarter of its codes.

    The rule needs a recorded vector, or a run with -v or --json or qrun eval --health with inputs that the user
    provides. The tensor has one stored scale and 64 values or more, and a scale of a quarter or less would fit it. One
    input is weak evidence, as others may reach further; all samples of an evaluation are strong evidence.

    Why is this bad?
        Each unused bit doubles the rounding error, and a quarter of the codes is 6 bits of 8. The scale may have been
        calibrated on other data, with an outlier, or for another tensor.

    Bad
        main () => (uint8[8,8] y)
        <int64[2] shape = {8, 8}, float first = {0.0}, float last = {8.0}, float step = {0.125},
         float scale = {1.0}, uint8 zero = {0}>
        {
            all = Range(first, last, step)
            x = Reshape(all, shape)
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[8,8] y)
        <int64[2] shape = {8, 8}, float first = {0.0}, float last = {8.0}, float step = {0.125},
         float scale = {0.04}, uint8 zero = {0}>
        {
            all = Range(first, last, step)
            x = Reshape(all, shape)
            y = QuantizeLinear(x, scale, zero)
        }
    """
    known = one_scaled(model)
    for name, codes in tensors(model, feeds, list(known)).items() if known else ():
        if codes.dtype.kind in "iu" and codes.size:
            used = Used(int(codes.min()), int(codes.max()), distinct(codes), codes.size)
            yield from _few(model, known[name], used, [feeds])


@rule("QR416", "warning", spec="QuantizeLinear", fix="calibrate again", applies=_QUANTIZE, replaces=("QR413", "QR414"))
def scale_beyond_function(model: Model) -> Iterator[Finding]:
    """The whole range of a function, such as 0 to 1 of Sigmoid, takes less than a quarter of the codes.

    The rule needs a stored scale, but no inputs. It covers Sigmoid, HardSigmoid, Softmax, Tanh, Erf, Softsign, Sin and
    Cos, even if operators that only move values follow.

    Why is this bad?
        The other codes can never occur. With a scale of 2.5, every result of a Sigmoid becomes 0. The usual cause is
        one scale for tensors of different ranges, such as the scores of a detector that are joined with its boxes of 0
        to 640.

    Bad
        main (float[4] x) => (uint8[4] y)
        <float scale = {2.5}, uint8 zero = {0}>
        {
            p = Sigmoid(x)
            y = QuantizeLinear(p, scale, zero)
        }

    Good
        main (float[4] x) => (uint8[4] y)
        <float scale = {0.00390625}, uint8 zero = {0}>
        {
            p = Sigmoid(x)
            y = QuantizeLinear(p, scale, zero)
        }
    """
    for one in one_scaled(model).values():
        function = bounds(model, one)
        if function is None:
            continue
        name, low, high = function
        fit = one.fit_range(low, high)
        if fit[0] * TOO_LARGE < one.scale:
            count = one.code(high) - one.code(low) + 1
            yield _finding(
                model,
                one,
                fit,
                f"{name} can use only {count} of {one.high - one.low + 1} codes of {one.name}",
                f"{name} gives {low:g} to {high:g}, which are the codes {one.code(low)} to {one.code(high)}",
            )


def over_all(model: Model, used: Mapping[str, Used], samples: Sequence[Mapping[str, Array]]) -> Iterator[Finding]:
    """Yield the findings of QR413 and QR414 on codes counted over many inputs. samples: some of these inputs."""
    for name, one in one_scaled(model).items():
        if name in used:
            yield from RULES["QR413"].fill_in(model, _find_collapsed(model, one, used[name], samples))
            yield from RULES["QR414"].fill_in(model, _few(model, one, used[name], samples))


def _find_collapsed(
    model: Model, one: OneScaled, used: Used, samples: Sequence[Mapping[str, Array]]
) -> Iterator[Finding]:
    real = _before_rounding(model, one, samples) if used.collapsed else None
    if real is None:
        return
    low, high = (float(v) * one.scale for v in (real.min() - one.zero, real.max() - one.zero))
    fit = _fit(model, one, low, high)
    if fit is not None:
        codes = f"code {used.low}" if used.low == used.high else f"code {used.low} or {used.high}"
        text = f"all {used.size} values of {one.name} have {codes}"
        some = f", in {len(samples)} samples" if used.size > real.size else ""
        yield _finding(model, one, fit, text, f"values from {low:.4g} to {high:.4g}{some}")


def _few(model: Model, one: OneScaled, used: Used, samples: Sequence[Mapping[str, Array]]) -> Iterator[Finding]:
    if used.collapsed or used.size < MANY:
        return
    low, high = one.reals(used.low, used.high)
    fit = _fit(model, one, low, high)
    if fit is None or (used.count < DISTINCT and _before_rounding(model, one, samples) is None):
        return
    yield _finding(
        model,
        one,
        fit,
        f"the {used.size} values of {one.name} use {used.high - used.low + 1} of {one.high - one.low + 1} codes",
        f"codes {used.low} to {used.high}, which are {low:.4g} to {high:.4g}",
    )


def _fit(model: Model, one: OneScaled, low: float, high: float) -> tuple[float, int] | None:
    """The scale and zero point that fit values from `low` to `high`; None if the stored scale is not too large.

    For a function with known bounds, such as 0 to 1, these count, however few of its values occurred.
    """
    function = bounds(model, one)
    fit = one.fit_range(*((low, high) if function is None else function[1:]))
    return fit if 0 < fit[0] * TOO_LARGE < one.scale else None


def _finding(model: Model, one: OneScaled, fit: tuple[float, int], message: str, got: str) -> Finding:
    scale, zero = f"{fit[0]:.4g}", fit[1]
    others = [o.name for o in one_scaled(model).values() if o.scale == one.scale and o.name != one.name]
    shared = f", as {others[0]} has" + (f" and {len(others) - 1} more" if others[1:] else "") if others else ""
    apart = ""
    if node := joining_concat(model, one):
        apart = f", and leave {node.op_type} node {node.index} {node.label}, which joins it with others, in float"
    return Finding(
        message,
        **at(one.node),
        tensor=param_input(one.node, "")[1],
        expected=f"a scale near {scale} with zero point {zero}, which fits these values",
        got=f"{got}; scale {one.scale:.6g}{shared}, zero point {one.zero}",
        why="values less than half a scale from a code become this code.",
        fix=f"give {one.name} the scale {scale} and the zero point {zero}, wherever it is read{apart}; or calibrate again",
    )


def _before_rounding(model: Model, one: OneScaled, samples: Sequence[Mapping[str, Array]]) -> Array | None:
    """The tensor's values with these inputs, in steps of its scale, zero point added; None if too few are distinct.

    Samples whose inputs are all constant, such as a black image, do not count.
    """
    made = []
    for feeds in samples:
        if not feeds or any(array.size and bool((array != array.flat[0]).any()) for array in feeds.values()):
            real = _real(model, one.node, feeds)
            if real is not None and np.isfinite(real).all():
                made.append(real.reshape(-1))
    found = np.concatenate(made) if made else np.zeros(0)
    return found if found.size >= LEAST and distinct(found) >= DISTINCT else None


def _real(model: Model, node: Node, feeds: Mapping[str, Array]) -> Array | None:
    """The values that the node rounds, in steps, zero point added; None if they are not known."""
    from qrun.comparing.ties import before_rounding

    read = [n for n in node.inputs if n and n not in model.constants]
    values = {**model.constants, **tensors(model, feeds, read)}
    return before_rounding(node, [values.get(n) for n in node.inputs])


MOST = 0.5
"""The share of the elements that must have the crowded code without having exactly its value."""
AROUND, FEW = 8, 0.05
"""At most the share FEW of the elements may have a code within AROUND of the crowded one: if more do, values spread
out from it, as behind a Relu."""
FAR = 64
"""The smallest distance from the crowded code to the farthest used code."""


@rule(
    "QR412",
    "warning",
    spec="QuantizeLinear",
    fix="make the outliers smaller (a mask of -100 works as well as one of -10000), keep the node in float, or calibrate "
    "without outliers",
    applies=(
        "QuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "com.microsoft::QLinearAdd",
        "com.microsoft::QLinearMul",
    ),
)
def crowded_codes(model: Model, feeds: Mapping[str, Array]) -> Iterator[Finding]:
    """Most values of a quantized tensor share one code, because a few outliers set its range.

    The rule needs the inputs of a recorded vector, or of a run with -v or --json, and a tensor with one stored scale.
    At least half of the elements share one code although they differ, almost none has one of the eight nearest codes,
    and others are 64 or more codes away. Exact zeros, as after a Relu, do not count.

    Why is this bad?
        The differences between these values are lost, while most codes are never used. The usual case is an attention
        mask: -10000 is added to hidden positions, the scale grows to 40, and all scores that matter become 0.

    Bad
        main () => (uint8[2,8] y)
        <float[2,8] x = {1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0, 1.5, 2.5, 3.5, 4.5, 0.5, -1.5, -2.5, -10000.0},
         float scale = {40.0}, uint8 zero = {251}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main () => (uint8[2,8] y)
        <float[2,8] x = {1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0, 1.5, 2.5, 3.5, 4.5, 0.5, -1.5, -2.5, -100.0},
         float scale = {0.5}, uint8 zero = {200}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    known = one_scaled(model)
    for name, codes in tensors(model, feeds, list(known)).items() if known else ():
        node, scale, zero, mode = known[name].node, known[name].scale, known[name].zero, _mode(codes)
        crowd = _crowd(codes, _real(model, node, feeds), mode) if mode is not None else None
        if crowd is None:
            continue
        inside, farthest = crowd
        low, high, far = ((value - zero) * scale for value in (inside.min(), inside.max(), farthest))
        yield Finding(
            f"{percent(inside.size / codes.size, 0)} of {name} share one code: a few outliers set the range",
            **at(node),
            tensor=param_input(node, "y" if node.op_type.startswith("Q") else "C")[1],
            expected="a scale that keeps most values distinct",
            got=f"{inside.size} of {codes.size} elements, from {low:.4g} to {high:.4g}, have code {mode}; others reach "
            f"{far:.4g}; the scale is {scale:.4g}",
            why=f"{node.op}-{node.version}: values less than half a scale from a code become this code.",
        )


def _mode(codes: Array) -> int | None:
    """The code that most elements share, if few elements have codes near it and some have codes far away; else None."""
    if codes.size < 2 * DISTINCT or codes.dtype.kind not in "iu":
        return None
    used, counts = np.unique(codes, return_counts=True)
    used = used.astype(np.int64)
    mode = int(used[counts.argmax()])
    apart = np.abs(used - mode)
    around = int(counts[(apart > 0) & (apart <= AROUND)].sum())
    crowded = counts.max() >= MOST * codes.size and around <= FEW * codes.size and apart.max() >= FAR
    return mode if crowded else None


def _crowd(codes: Array, real: Array | None, mode: int) -> tuple[Array, float] | None:
    """The values that were rounded to the code `mode`, and the farthest other value; None if they are not a crowd of
    distinct values. real: the values before rounding, in steps."""
    if real is None or real.shape != codes.shape or not np.isfinite(real).all():
        return None
    inside = real[codes == mode]
    inside = inside[inside != mode]
    if inside.size < MOST * codes.size or distinct(inside) < DISTINCT:
        return None
    if float(np.abs(inside - mode).max()) > 0.5 + 1e-6:
        return None
    ends = np.array([real.min(), real.max()])
    return inside, float(ends[np.abs(ends - mode).argmax()])
