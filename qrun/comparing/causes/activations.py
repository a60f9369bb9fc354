"""Activations that a runtime rounds to 8 bits inside a product with weights of few bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._bounds import UNIT
from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes.sums import block_sizes
from qrun.ir import Array

_EXPLAINED = 64
"""How many times the differences must be larger than what is left of them."""


@cause("int8-activations", rank=25, source="onnxruntime, MatMulNBits: accuracy_level 4; mlas sqnbitgemm, CompInt8")
def int8_activations(s: Suspect) -> Iterator[Hypothesis]:
    """The activations are rounded to int8 in blocks before they are multiplied with the weights, as accuracy_level 4
    allows.

    To confirm: With accuracy_level 0 or 1 the difference is gone. qrun compare MODEL -i X --arith ort computes it
    without the other runtime.

    To do: Set accuracy_level to 0 where results matter more than speed. Where the target keeps level 4, run with
    --arith ort too.
    """
    given: dict[str, Any] = dict(s.node.attributes)
    block = given.get("block_size") if s.is_op("MatMulNBits", "QMoE") else None
    made = s.in_arith("ort") if block else None
    if made is None or s.theirs is None or s.theirs.shape != made.shape or not np.any(made != s.mine):
        return
    allowed = f", as accuracy_level {given['accuracy_level']} allows" if given.get("accuracy_level") else ""
    text = f"rounds the activations to int8, each block of {block} with a scale of its own{allowed}"
    yield Hypothesis(made, text)
    left = _left(s, made)
    if left is not None:
        most = float(np.max(np.abs(s.theirs.astype(np.float64) - s.mine)))
        yield Hypothesis(None, f"{text}; that leaves {left:.2g} of differences of up to {most:.2g}: float32 sums")
    elif s.theirs.dtype != np.float32:
        yield Hypothesis(made, text, tolerant=True)


def _left(s: Suspect, made: Array) -> float | None:
    """The largest difference from these float32 results, if it is within the bound on sums in any order and far smaller
    than qrun's own; else None."""
    if s.theirs is None or s.theirs.dtype != np.float32 or not s.is_op("MatMulNBits"):
        return None
    depth = s.node.attributes["K"]
    assert isinstance(depth, int)
    apart, own = (np.abs(s.theirs.astype(np.float64) - each) for each in (made, s.mine))
    bound = 4 * (depth + 8) * UNIT * block_sizes(s)
    left = float(apart.max(initial=0.0))
    return left if (apart <= bound).all() and left * _EXPLAINED <= own.max(initial=0.0) else None
