"""What onnxruntime's default session makes of a model with DequantizeLinear and QuantizeLinear."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ir import Array


@cause("session-rewrite", rank=40, source="onnxruntime, graph optimizations; measured with 1.20.1 to 1.32.0")
def session_rewrite(s: Suspect) -> Iterator[Hypothesis]:
    """The default session of onnxruntime rewrites the nodes to others that compute something else: a stored float bias
    becomes int32, scales of weights are read along another axis, activations are rounded to 8 bits before weights of
    few bits, or two pairs of QuantizeLinear and DequantizeLinear become one.

    To confirm: qrun compare MODEL -i X --against ort, which leaves the graph as written, does not show the difference.

    To do: Change the nodes as qrun check says, or give onnxruntime the model with graph_optimization_level
    ORT_DISABLE_ALL.
    """
    for form in s.forms:
        made = form.run() if form.cause == "session-rewrite" else None
        if made is None:
            continue
        yield Hypothesis(made, form.text, tolerant=True)
        bound = form.bound() if form.bound else None
        left = None if bound is None else _left(s, made, bound)
        if left is not None:
            yield Hypothesis(None, f"{form.text}; what that leaves, at most {left:.2g}, is the order of float32 sums")


_EXPLAINED = 100
"""How many times smaller a difference must be for sums in another order to be all that is left of it."""


def _left(s: Suspect, made: Array, bound: Array) -> float | None:
    """The largest difference from the other side, if it is within the bound and far smaller than qrun's own."""
    if s.theirs is None or s.theirs.shape != made.shape or s.theirs.dtype != made.dtype:
        return None
    apart, own = (np.abs(s.theirs.astype(np.float64) - each) for each in (made, s.mine))
    left = float(apart.max(initial=0.0))
    return left if (apart <= bound).all() and left * _EXPLAINED <= own.max(initial=0.0) else None
