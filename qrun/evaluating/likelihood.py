"""Scores the tokens of one sequence: numbers by column, one for each position that a token follows.

Columns: ``nll``, the negative log-likelihood of the next token in nats. With a reference also ``kl``, the divergence of
its distribution from the model's, KL(reference || model) in nats, and ``same_token``: 1 where both have the largest
logit at the same token. Probabilities are those of a softmax in float64, the largest logit subtracted first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qrun.errors import CallError
from qrun.ir import Array

ROWS = 1 << 22
"""The number of logits that are scored at a time, which bounds the memory."""


def score_tokens(logits: Array, reference: Array | None, targets: Array) -> dict[str, Array]:
    """Compute the columns of one sequence, float64 [positions].

    logits, reference: [positions, words]. targets: integers [positions], the next token at each position. Raises
    CallError if the two have different vocabularies, or if a token is in none of them.
    """
    words = logits.shape[1]
    if reference is not None and reference.shape != logits.shape:
        raise CallError(
            "QR003",
            "the models have different vocabularies",
            name="output-mismatch",
            facts=[("expected", f"logits of {reference.shape[1]} tokens"), ("got", f"logits of {words} tokens")],
        )
    if targets.size and int(targets.max()) >= words:
        raise CallError(
            "QR003",
            f"token {int(targets.max())} is outside the vocabulary",
            facts=[("expected", f"0 to {words - 1}"), ("got", str(int(targets.max())))],
        )
    size = max(ROWS // max(words, 1), 1)
    parts = [
        _score(
            logits[at : at + size], None if reference is None else reference[at : at + size], targets[at : at + size]
        )
        for at in range(0, len(targets), size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _score(logits: Array, reference: Array | None, targets: Array) -> dict[str, Array]:
    own = log_softmax(logits)
    found = {"nll": -np.take_along_axis(own, targets[:, None], axis=1)[:, 0]}
    if reference is not None:
        other = log_softmax(reference)
        shares = np.exp(other)
        with np.errstate(invalid="ignore"):
            found["kl"] = np.where(shares == 0, 0.0, shares * (other - own)).sum(axis=1)
        found["same_token"] = (reference.argmax(axis=1) == logits.argmax(axis=1)).astype(np.float64)
    return found


def log_softmax(logits: Array) -> Array:
    """The logarithms of the probabilities, float64 [positions, words]."""
    values = np.ascontiguousarray(logits, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        below = values - values.max(axis=1, keepdims=True)
        found: Array = below - np.log(np.exp(below).sum(axis=1, keepdims=True))
    return found


def table(columns: Sequence[Mapping[str, Array] | None]) -> dict[str, Array]:
    """The columns of several sequences, float64 [sequences, positions], NaN behind the end of a sequence, and for one
    that failed (None); and as ``held`` the number of positions of each, float64 [sequences]."""
    names = dict.fromkeys(name for each in columns if each is not None for name in each)
    held = [0 if each is None else len(each["nll"]) for each in columns]
    made = {name: np.full((len(columns), max(held, default=0)), np.nan) for name in names}
    for at, each in enumerate(columns):
        for name, values in (each or {}).items():
            made[name][at, : len(values)] = values
    return {"held": np.array(held, np.float64), **made}
