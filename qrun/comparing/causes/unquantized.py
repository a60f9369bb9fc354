"""A cause: activations that a runtime leaves in float where the operator quantizes them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, part
from qrun.comparing.causes._formulas import UNIT


@cause("unquantized-activations", rank=23, source="com.microsoft operators, DynamicQuantizeMatMul-1")
def unquantized_activations(s: Suspect) -> Iterator[Hypothesis]:
    """The activations are multiplied as floats, where DynamicQuantizeMatMul quantizes them to 8 bits first. The result
    is more precise than the operator's, and every element lies within the bound on float32 sums in any order.

    To confirm: Multiply the float activations with the dequantized weights: the result is the runtime's, but for a few
    units in the last place.

    To do: Nothing is wrong with the model. Where the target quantizes the activations, do not take this runtime's
    results as golden data.
    """
    if not s.is_op("DynamicQuantizeMatMul") or s.theirs is None or s.theirs.shape != s.mine.shape:
        return
    a, b, scale, zero, bias = (*s.args, None, None)[:5]
    if a is None or b is None or scale is None or s.theirs.dtype != np.float32 or not np.isfinite(a).all():
        return
    weights = (b.astype(np.float64) - (0 if zero is None else zero.astype(np.float64))) * scale.astype(np.float64)
    more = 0.0 if bias is None else bias.astype(np.float64)
    real, size = a.astype(np.float64) @ weights + more, np.abs(a).astype(np.float64) @ np.abs(weights) + np.abs(more)
    bound = 2 * (a.shape[-1] + 4) * UNIT * size
    apart = np.abs(s.theirs - real)
    if (apart <= bound).all() and (np.abs(s.mine - real) > bound).any():
        share = float(np.max(np.divide(apart, bound, out=np.zeros_like(apart), where=bound > 0), initial=0.0))
        yield Hypothesis(
            None, f"does not quantize the activations; the rest is {part(share)} of the rounding-error bound"
        )
