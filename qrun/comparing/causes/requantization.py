"""Causes in requantization: the arithmetics of other engines, and several deviating steps at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic
from qrun.arithmetics.groups import MOST, describe_group, name_users
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes._families import NodeSums, fits, node_sums
from qrun.comparing.causes._steps import combinations, snap
from qrun.comparing.differences import difference_mask
from qrun.comparing.ties import unwrapped_sums
from qrun.declare import grouped
from qrun.ir import Array
from qrun.ops._quantize import is_integer

_SPEC = "ONNX operators, QuantizeLinear: saturation, rounding to nearest ties to even, y_zero_point after rounding"
_LARGEST = 1 << 18
"""The most elements of a tensor whose steps are searched, so that a comparison of a large model stays fast."""


@cause("requantization", rank=56, source="qrun/arithmetics/families.py: the engines and their files")
def requantization(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime requantizes its int32 sums as a different engine does: the multiplier has fewer bits, the product is
    rounded twice, or ties round differently. The text gives what the fitting arithmetics share, who computes this way,
    and their names in qrun explain arithmetics.

    To confirm: Recompute the node from its int32 sums with the named arithmetic: every code matches the runtime's. The
    line `Arithmetic of` at the top of the report says whether all integer nodes agree.

    To do: Find out which arithmetic the target uses; qrun probe shows it exactly. If it is this one, use this runtime's
    codes as golden data. If not, allow --lsb 1.
    """
    sums = node_sums(s)
    if sums is None or sums.acc.shape != s.mine.shape:
        return
    others = [family for family in FAMILIES.values() if family.name != "exact"]
    if s.theirs is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        for family in others:
            yield Hypothesis(sums.codes(family).astype(s.mine.dtype), _text([family]), implies=_implied(family))
    else:
        yield from _fitting_families(s, sums, s.theirs, others)
    if s.alone:
        yield from _rounded_first(s)


def _fitting_families(s: Suspect, sums: NodeSums, theirs: Array, rows: Sequence[Arithmetic]) -> Iterator[Hypothesis]:
    """One hypothesis for all families that give every code and contain the same simpler causes, then one for each
    family that gives the differing codes only."""
    bad = np.flatnonzero(difference_mask(s.mine, theirs))
    near = fits(sums, theirs, bad, rows)
    whole = fits(sums, theirs, np.arange(theirs.size), near)
    for implied, alike in grouped((_implied(row), row) for row in whole).items():
        yield Hypothesis(theirs, _text(alike), implies=implied)
    for row in near:
        if row not in whole:
            yield Hypothesis(sums.codes(row).astype(theirs.dtype), _text([row]), implies=_implied(row))


def _text(rows: Sequence[Arithmetic]) -> str:
    """``computes with two roundings, ties up, 31-bit multiplier (ARM vqrdmulh and vrshl): tfl-halfup2``."""
    names = [row.name for row in rows]
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"computes with {describe_group(rows)} ({name_users(rows)}): {', '.join(names[:MOST])}{more}"


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
    """The runtime deviates in several steps at once, such as when it adds the zero point and how it converts to the
    output type. The text names them all. qrun looks for the fewest deviations that reproduce every element.

    To confirm: Recompute the node with the named steps, in order: every code matches the runtime's.

    To do: Follow the advice for each step named: see qrun explain zero-point-before-rounding, truncation, tie-rounding,
    wrap-around, saturation or wrong-parameter. Report the bug to the runtime's maintainers.
    """
    if is_integer(s.mine.dtype) and s.mine.size <= _LARGEST:
        for found in combinations(s):
            yield Hypothesis(found.codes, found.text)


@cause("wide-sum", rank=13, source="ONNX operators, QLinearConv-10: bias is int32; numerics, D1: int32 sums wrap")
def wide_sum(s: Suspect) -> Iterator[Hypothesis]:
    """A sum, bias included, exceeds int32, and the runtime does not wrap it around: it adds with more bits or in
    floats, or saturates.

    To confirm: With a bias of 0, or weights closer to their zero point, the difference disappears.

    To do: Keep the sums within int32: qrun check reports where they can overflow. If the runtime should wrap, report
    the bug to its maintainers.
    """
    known = unwrapped_sums(s.node, s.args) if s.alone and is_integer(s.mine.dtype) else None
    if known is None or not np.any(np.abs(known[0]) >= 2.0**31):
        return
    acc, factor, zero = known
    ways = {"does not wrap the sum": acc, "saturates the sum to int32": np.clip(acc, -(2.0**31), 2.0**31 - 1)}
    for text, sums in ways.items():
        for more, whole in (
            ("", np.rint(snap(sums * factor)) + zero),
            (", and adds the zero point before rounding", np.rint(snap(sums * factor + zero))),
        ):
            made = s.to_codes(whole)
            if made is not None and made.shape == s.mine.shape:
                yield Hypothesis(made, f"{text}, which exceeds int32{more}")
