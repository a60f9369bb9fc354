"""Codes that far values leave to the others: too few to tell them apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qrun.checking.rules._observed import param_input, tensors
from qrun.checking.rules._onescale import distinct, one_scaled
from qrun.checking.rules._rule import Finding, at, rule
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node

MOST = 0.5
"""Share of the elements that must have one code, without being exactly what it stands for."""
AROUND, FEW = 8, 0.05
"""Codes next to that one of which nearly none is used: else values spread out from it, as behind a Relu.
Nearly none: of all."""
FAR = 64
"""Codes from that one to the farthest."""
DISTINCT = 8
"""Different values that must have become one code."""


@rule(
    "QR412",
    "warning",
    spec="QuantizeLinear",
    fix="make the outliers smaller (a mask of -100 works as well as one of -10000), leave the node in float, or calibrate "
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
    """Most values of a quantized tensor share one code, because a few outliers take its range.

    Reported with the inputs of a recorded vector, or of a run with -v or --json, for tensors with one stored scale: at
    least half of the elements have one code though they differ, hardly any has one of the eight codes nearest to it,
    and others are 64 codes away or farther. Zeros that are exactly 0, as behind a Relu, are not counted.

    Why is this bad?
        The differences between these values are lost, while most codes stand for no value. The usual case is the mask
        of an attention: -10000 is added to what is to be hidden, the scale grows to 40,
        and all scores that matter become 0.

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
    for name, node, scale, zero, array, crowd in _crowds(model, feeds):
        low, high, far = ((value - zero) * scale for value in (crowd.low, crowd.high, crowd.far))
        yield Finding(
            f"{crowd.count / array.size:.0%} of {name} share one code, as outliers take the range",
            **at(node),
            tensor=param_input(node, "y" if node.op_type.startswith("Q") else "C")[1],
            expected="a scale that tells most values apart",
            got=f"{crowd.count} of {array.size} elements, from {low:.4g} to {high:.4g}, have code {crowd.code}; others reach "
            f"{far:.4g}; the scale is {scale:.4g}",
            why=f"{node.op}-{node.version}: values that are less than half a scale from a code get this code.",
        )


def _crowds(model: Model, feeds: Mapping[str, Array]) -> Iterator[tuple[str, Node, float, float, Array, _Crowd]]:
    """Each tensor with a crowd, its node, scale, zero point, codes with these inputs, and crowd."""
    from qrun.comparing.ties import before_rounding

    found = one_scaled(model)
    for name, array in (tensors(model, feeds, list(found)) if found else {}).items():
        mode = _mode(array)
        if mode is None:
            continue
        node, scale, zero = found[name].node, found[name].scale, float(found[name].zero)
        read = [n for n in node.inputs if n and n not in model.constants]
        values = {**model.constants, **tensors(model, feeds, read)}
        crowd = _crowd(array, before_rounding(node, [values.get(n) for n in node.inputs]), mode)
        if crowd is not None:
            yield name, node, scale, zero, array, crowd


def _mode(codes: Array) -> int | None:
    """The code that most elements share, with none around it and others far away; None if that is not so."""
    if codes.size < 2 * DISTINCT or codes.dtype.kind not in "iu":
        return None
    used, counts = np.unique(codes, return_counts=True)
    used = used.astype(np.int64)
    mode = int(used[counts.argmax()])
    apart = np.abs(used - mode)
    around = int(counts[(apart > 0) & (apart <= AROUND)].sum())
    crowded = counts.max() >= MOST * codes.size and around <= FEW * codes.size and apart.max() >= FAR
    return mode if crowded else None


@frozen
class _Crowd:
    """Elements that became one code. count: how many; low, high: the smallest and largest, far: the farthest other,
    all before rounding."""

    code: int
    count: int
    low: float
    high: float
    far: float


def _crowd(codes: Array, real: Array | None, mode: int) -> _Crowd | None:
    """real: before rounding, in steps with the zero point added; None if the values of one code are no crowd."""
    if real is None or real.shape != codes.shape or not np.isfinite(real).all():
        return None
    inside = real[codes == mode]
    inside = inside[inside != mode]
    if inside.size < MOST * codes.size or distinct(inside) < DISTINCT:
        return None
    if float(np.abs(inside - mode).max()) > 0.5 + 1e-6:
        return None
    ends = np.array([real.min(), real.max()])
    far = float(ends[np.abs(ends - mode).argmax()])
    return _Crowd(mode, int(inside.size), float(inside.min()), float(inside.max()), far)
