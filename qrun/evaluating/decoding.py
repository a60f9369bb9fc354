"""Runs a decoder over sequences of tokens: with caches of keys and values in steps, without them all at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qrun.errors import CallError
from qrun.io.decoder import Decoder
from qrun.ir import Array
from qrun.ir.types import describe

STEP = 64
"""Tokens per run of a model with caches, if the call says nothing."""
Run = Callable[[Mapping[str, Array], Sequence[str]], Mapping[str, Array]]
"""Runs the model on feeds. Returns the outputs with these names."""


def logits_of(run: Run, decoder: Decoder, tokens: Array, step: int | None) -> Array:
    """The logits [length, words] after each token of a sequence [1, length].

    step: the most tokens of a run, if the model has caches: these are empty in the first run, and then what the run
    before returned. Raises QrunError if a run fails.
    """
    length = tokens.shape[1]
    size = (decoder.length or step or STEP) if decoder.pasts else length
    carried, parts = decoder.empty(), []
    for start in range(0, length, size):
        part = tokens[:, start : start + size]
        outputs = run({**decoder.feeds(part, start), **carried}, decoder.outputs)
        logits = outputs[decoder.logits]
        if logits.ndim != 3 or logits.shape[:2] != part.shape:
            raise CallError(
                "QR003",
                f"output {decoder.logits!r} does not hold the logits of every token",
                facts=[("expected", f"[1,{part.shape[1]},vocabulary]"), ("got", describe(logits))],
                fixes=["export the model with the logits of all tokens, not only of the last one"],
            )
        parts.append(logits[0])
        carried = decoder.carried(outputs)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
