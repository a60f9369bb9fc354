"""Reads what the probe asks apart from the five choices: each has a branch, whose codes tell a few answers apart."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic
from qrun.ir import Array
from qrun.probe.design import HIGH, LOW, OFFSET, WIDTHS, Branch

UNCLEAR = "unclear"


def width(branch: Branch, got: Array) -> tuple[int, str]:
    """Bits of an accumulator, and what happens at its ends: ``exact``, ``saturates``, ``wraps`` or ``unclear``.

    No bias carries a sum of 32 bits far enough beyond its end to tell exact from saturated: ``exact or saturates``.
    The multipliers are powers of two, which every arithmetic holds; some hold no sum beyond int32, so that the exact
    one tells.
    """
    bits = next(bits for bits in WIDTHS if branch.name == f"width_{bits}")
    end = 1 << (bits - 1)
    sums = {
        "exact": branch.sums,
        "saturates": np.clip(branch.sums, -end, end - 1),
        "wraps": (branch.sums + end) % (2 * end) - end,
    }
    found = _answers(got, _codes(FAMILIES["exact"], branch, sums))
    return bits, " or ".join(found) or UNCLEAR


def pairs(arithmetic: Arithmetic, branch: Branch, got: Array) -> str:
    """What two adjacent products do: ``exact``, ``saturates`` in int16, or ``unclear``.

    Products of uint8 leave int16. Engines turn int8 inputs into uint8 too; the zero point is subtracted from the sum
    that saturated.
    """
    offset = 128 * branch.weights.sum(axis=1, dtype=np.int64)
    saturated = np.clip(branch.sums + offset, -(1 << 15), (1 << 15) - 1) - offset
    return _answer(got, _codes(arithmetic, branch, {"exact": branch.sums, "saturates": saturated}))


def padding(arithmetic: Arithmetic, branch: Branch, got: Array, unsigned: bool) -> str:
    """The code that pads an input: ``zero point``, ``code 0``, ``code -128`` (128 and 0 of uint8), or ``unclear``."""
    assert branch.around is not None
    taps = 8 * branch.around.sum(axis=1, dtype=np.int64)
    lowest = "code 0" if unsigned else "code -128"
    sums = {
        "zero point": branch.sums,
        "code 128" if unsigned else "code 0": branch.sums - OFFSET * taps,
        lowest: branch.sums + (LOW - OFFSET) * taps,
    }
    return _answer(got, _codes(arithmetic, branch, sums))


def relu(arithmetic: Arithmetic, branch: Branch, got: Array) -> str:
    """Where a Relu clips: at the ``zero point``, at ``code 0`` of int8, ``nowhere``, or ``unclear``."""
    made = arithmetic.codes(branch.sums, branch.scales, branch.zero, LOW, HIGH)
    return _answer(got, {"zero point": np.maximum(made, branch.zero), "code 0": np.maximum(made, 0), "nowhere": made})


def _codes(arithmetic: Arithmetic, branch: Branch, sums: Mapping[str, Array]) -> dict[str, Array]:
    return {name: arithmetic.codes(s, branch.scales, branch.zero, LOW, HIGH) for name, s in sums.items()}


def _answer(got: Array, answers: Mapping[str, Array]) -> str:
    """The first answer whose codes these are; ``unclear`` if there is none."""
    return next(iter(_answers(got, answers)), UNCLEAR)


def _answers(got: Array, answers: Mapping[str, Array]) -> list[str]:
    """The answers whose codes these are, but for a step of rounding."""
    return [name for name, made in answers.items() if np.all(np.abs(made - got) <= 1)]
