"""Sums of floats, whose order no specification fixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect, computed, part
from qrun.ir import Array

_UNIT = 2.0**-24
SUMS = {
    "Conv": (0, 1, 2),
    "ConvTranspose": (0, 1, 2),
    "MatMul": (0, 1),
    "Gemm": (0, 1, 2),
    **dict.fromkeys(("AveragePool", "GlobalAveragePool", "ReduceMean", "ReduceSum", "CumSum"), (0,)),
    "Einsum": (),
}
"""Operators that add, and their inputs whose magnitudes bound the terms; none: all."""


@cause(
    "float-order",
    rank=47,
    source="Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1: gamma_n bounds every order",
)
def float_order(s: Suspect) -> Iterator[Hypothesis]:
    """A float32 sum in another order. No order is due, so none is recomputed: every element must be within what rounding
    can do to a sum of these terms, in whatever order.

    To confirm: The largest difference is a few units in the last place of the largest term; it changes with the
    number of threads, the CPU or the library.

    To do: Nothing is wrong with the model: compare floats with a tolerance (--rtol, --atol), integers after it with
    --lsb 1.
    """
    if not s.is_op(*SUMS) or s.theirs is None or s.theirs.dtype != np.float32 or s.theirs.shape != s.mine.shape:
        return
    terms, size = _terms(s), _sizes(s)
    if size is None or not np.isfinite(size).all() or not np.isfinite(s.theirs).all():
        return
    bound = 2 * (terms + 2) * _UNIT / (1 - (terms + 2) * _UNIT) * size.astype(np.float64)
    apart = np.abs(s.mine.astype(np.float64) - s.theirs.astype(np.float64))
    if np.all(apart <= bound):
        share = float(np.max(np.divide(apart, bound, out=np.zeros_like(apart), where=bound > 0), initial=0.0))
        yield Hypothesis(
            None, f"sums of {terms} float32 terms in another order; {part(share)} of what any order can do"
        )


def _terms(s: Suspect) -> int:
    a, b = s.args[0], s.args[1] if len(s.args) > 1 else None
    assert a is not None
    if s.is_op("GlobalAveragePool", "ReduceMean", "ReduceSum"):
        return a.size // max(s.mine.size, 1)
    if s.is_op("CumSum"):
        return max(a.shape, default=0)
    if s.is_op("Einsum"):
        counts = _made(s, [None if x is None else np.ones_like(x) for x in s.args])
        return len(s.args) + (int(counts.max(initial=0)) if counts is not None else 0)
    if s.is_op("AveragePool"):
        kernel = s.node.attributes.get("kernel_shape")
        return int(np.prod(kernel, dtype=np.int64)) if isinstance(kernel, tuple) else 0
    if s.is_op("Conv"):
        assert b is not None
        return int(np.prod(b.shape[1:], dtype=np.int64))
    if s.is_op("ConvTranspose"):
        assert b is not None
        return int(np.prod((a.shape[1], *b.shape[2:]), dtype=np.int64))
    return int(a.shape[0 if s.node.attributes.get("transA") else -1])


def _sizes(s: Suspect) -> Array | None:
    """The same sums of the terms' magnitudes."""
    places = SUMS[s.node.op_type] or range(len(s.args))
    return _made(s, [np.abs(a) if a is not None and place in places else a for place, a in enumerate(s.args)])


def _made(s: Suspect, args: Sequence[Array | None]) -> Array | None:
    outputs = computed(s.node, args)
    return None if outputs is None else outputs[s.node.outputs.index(s.tensor)]
