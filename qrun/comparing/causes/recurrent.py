"""What recurrent operators give for sequences of no elements."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ops import Arith

_ARITHMETICS: tuple[Arith, ...] = ("exact", "ort")


@cause("empty-sequence", rank=7, source="numerics, F18: beyond the end of a sequence Y is 0, and the states stay")
def empty_sequence(s: Suspect) -> Iterator[Hypothesis]:
    """The last state of a sequence of length 0 is 0 on the other side, not its initial state.

    To confirm: sequence_lens has a 0, and only the rows of Y_h and Y_c that belong to it differ; with initial states of
    0 the difference is gone.

    To do: Nothing is wrong with the model; the specification is silent. Do not feed sequences without elements, or take
    their last states from the initial ones after the node.
    """
    lengths = s.arg("sequence_lens")
    if not s.is_op("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM") or lengths is None or lengths.all():
        return
    if s.tensor == s.node.outputs[0] or s.mine.ndim != 3:
        return
    empty = np.flatnonzero(lengths == 0)
    which = f"sequence {empty[0]}, whose length is" if empty.size == 1 else f"{empty.size} sequences, whose lengths are"
    for arith in _ARITHMETICS:
        made = s.in_arith(arith)
        if made is not None:
            ended = made.copy()
            ended[empty if s.node.attributes.get("layout") else (slice(None), empty)] = 0
            yield Hypothesis(ended, f"gives 0 as the last state of {which} 0, not the initial state", tolerant=True)
