"""Sums of no terms."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect, same

_TRIES = 3


@cause("empty-sum", rank=5, source="numerics: a product over K = 0 is y_zero_point, or the bias")
def empty_sum(s: Suspect) -> Iterator[Hypothesis]:
    """A sum of no terms is 0, so that the result cannot depend on data; the other side gives something else.

    It is run again after memory of the size of the result was filled and freed: if the result changes, it is what
    was in memory before. Where it does not, the int32 sum may have been handed out as it is, or nothing was written.

    To confirm: Run the other side twice, with other memory in use: the values may change. The shape of an input has
    a 0 along the summed axis.

    To do: Do not feed tensors with an empty summed axis to this runtime, or remove the node from the graph; report
    it to the runtime.
    """
    operands = [a for a in s.args[:6] if a is not None and a.ndim > 1]
    if s.theirs is None or not s.mine.size or not operands or all(a.size for a in operands):
        return
    start = "the sum has no terms (K = 0), so the result cannot depend on the data"
    if _changes(s):
        yield Hypothesis(None, f"{start}; it changes from run to run: uninitialised memory")
        return
    for bias in (s.arg("C"), s.arg("bias"), s.arg("B")):
        if bias is not None and s.mine.dtype == np.float32 and bias.dtype == np.int32:
            raw = np.ascontiguousarray(np.broadcast_to(bias, s.mine.shape)).view(np.float32)
            if s.explained(raw):
                yield Hypothesis(raw, f"{start}; the bits of the int32 bias are given as float32")
                return
    zeros = np.zeros_like(s.mine)
    text = (
        "all elements are 0, as fresh memory is: nothing was computed"
        if s.explained(zeros)
        else "what is given is arbitrary"
    )
    yield Hypothesis(None, f"{start}; {text}")


def _changes(s: Suspect) -> bool:
    """Does the other side give something else when memory of this size held other bytes before?"""
    if s.again is None:
        return False
    for fill in range(1, _TRIES + 1):
        held = [np.full(max(s.mine.nbytes, 1) * size, 85 * fill % 256, np.uint8) for size in (1, 1, 2, 4, 8)]
        del held
        made = s.again()
        if made is not None and s.theirs is not None and not same(made, s.theirs):
            return True
    return False
