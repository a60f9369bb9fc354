"""Causes in requantization: the arithmetics of other engines, and several deviating steps at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes._steps import combinations, snap, sums_and_scales
from qrun.comparing.ties import unwrapped_sums
from qrun.ops._quantize import is_integer, limits

_SPEC = "ONNX operators, QuantizeLinear: saturation, rounding to nearest ties to even, y_zero_point after rounding"
_LARGEST = 1 << 16
"""The most elements of a tensor whose steps are searched, so that a comparison of a large model stays fast."""


@cause("requantization", rank=56, source="qrun/arithmetics/families.py: the engines and their files")
def requantization(s: Suspect) -> Iterator[Hypothesis]:
    """The node requantizes its int32 sums in the arithmetic of another engine: the multiplier has fewer bits, or the
    product is rounded twice, or ties go elsewhere. The text names engines that compute so.

    To confirm: Compute the node from its int32 sums with the arithmetic that is named: every code is the runtime's.

    To do: Decide which arithmetic the target has. Where it is this runtime's, use its codes as golden data; else allow
    --lsb 1.
    """
    if not is_integer(s.mine.dtype) or s.mine.size > _LARGEST:
        return
    known = sums_and_scales(s)
    if known is None:
        return
    acc, scales = known
    low, high = limits(s.mine.dtype)
    for family in FAMILIES.values():
        if family.name != "exact":
            codes = family.codes(acc, scales, s.zero, low, high).astype(s.mine.dtype)
            text = f"requantizes as {family.users} ({family.name}): {family.describe()}"
            yield Hypothesis(codes, text, implies=_implied(family))
    yield from _rounded_first(s)


def _rounded_first(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that the product is rounded to some bits after the point, ties to even, and then to an integer."""
    if s.exact is None:
        return
    real = snap(s.exact - s.zero)
    for bits in range(1, 9):
        codes = s.to_codes(np.rint(np.rint(real * 2**bits) / 2**bits), s.zero)
        if codes is not None:
            text = f"rounds the product to {bits} bit{'s' * (bits > 1)} after the point, then to an integer"
            yield Hypothesis(codes, text)


def _implied(family: Arithmetic) -> tuple[str, ...]:
    """The simpler causes that an arithmetic contains."""
    contained = {
        "tie-rounding": family.ties in ("away", "up", "zero", "down"),
        "truncation": family.ties in ("floor", "cut"),
        "zero-point-before-rounding": family.zero == "before",
        "float32-multiplier": family.hold in ("float32", "24 bits") and family.steps == "one",
    }
    return tuple(name for name, holds in contained.items() if holds)


@cause("several-steps", rank=60, source=_SPEC)
def several_steps(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime deviates in several steps at once, such as the place of the zero point and the conversion to the
    output's type. The text names them all; qrun takes the fewest that reproduce every element.

    To confirm: Compute the node with the steps that are named, one after the other: every code is the runtime's.

    To do: What is named for one of the steps: qrun explain zero-point-before-rounding, truncation, tie-rounding,
    wrap-around, saturation, wrong-parameter. Report it to the runtime.
    """
    if is_integer(s.mine.dtype) and s.mine.size <= _LARGEST:
        for found in combinations(s):
            yield Hypothesis(found.codes, found.text)


@cause("wide-sum", rank=13, source="ONNX operators, QLinearConv-10: bias is int32; numerics, D1: int32 sums wrap")
def wide_sum(s: Suspect) -> Iterator[Hypothesis]:
    """An int32 sum, its bias included, leaves int32, and the runtime does not wrap it: it adds in more bits or in
    floats, or saturates.

    To confirm: With a bias of 0, or weights nearer to their zero point, the difference is gone.

    To do: Keep the sums within int32: qrun check says where they can leave it. Report it to the runtime if it should
    wrap.
    """
    known = unwrapped_sums(s.node, s.args) if s.alone and is_integer(s.mine.dtype) else None
    if known is None or not np.any(np.abs(known[0]) >= 2.0**31):
        return
    acc, factor, zero = known
    ways = {"does not wrap the sum": acc, "saturates the sum at int32": np.clip(acc, -(2.0**31), 2.0**31 - 1)}
    for text, sums in ways.items():
        for more, whole in (
            ("", np.rint(snap(sums * factor)) + zero),
            (", and adds the zero point before rounding", np.rint(snap(sums * factor + zero))),
        ):
            made = s.to_codes(whole)
            if made is not None and made.shape == s.mine.shape:
                yield Hypothesis(made, f"{text}, which leaves int32{more}")
