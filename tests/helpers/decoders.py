"""The small language model of scripts/_decoder.py in files, and its scores in plain numpy."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import qrun
from helpers.cli import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import _decoder

Array = np.ndarray[Any, Any]
FORMS = [(bits, cache) for bits in (32, 8, 4) for cache in ("", "concat", "group")]


def model(bits: int, cache: str) -> bytes:
    """The bytes of the model in one form."""
    made: bytes = _decoder.build(_decoder.train(), bits, cache).SerializeToString()
    return made


def run_by_hand(data: bytes, tokens: Array, step: int, backend: str | None = None) -> Array:
    """The logits [length, words] of one sequence, with caches passed on by hand where the model has them."""
    session = qrun.Session(data, backend=backend)
    names = [value.name for value in session.inputs]
    caches = [name for name in names if name.startswith("past")]
    past = {name: np.zeros((1, _decoder.HEADS, 0, _decoder.SIZE), np.float32) for name in caches}
    found = []
    for start in range(0, len(tokens), step if caches else len(tokens)):
        part = tokens[start : start + step] if caches else tokens
        feeds = {"input_ids": part[None], "attention_mask": np.ones((1, start + len(part)), np.int64), **past}
        if "position_ids" in names:
            feeds["position_ids"] = np.arange(start, start + len(part))[None]
        made = session.run(feeds)
        past = {name: made[name.replace("past_key_values", "present")] for name in caches}
        found.append(made["logits"][0])
    return np.concatenate(found)


def log_softmax(logits: Array) -> Array:
    x = logits.astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    found: Array = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return found


def expected(model_logits: list[Array], reference: list[Array] | None, sequences: list[Array]) -> dict[str, Any]:
    """Perplexity, divergence and agreement of all tokens of the sequences, and by position, as a textbook has them."""
    own = [log_softmax(each[:-1]) for each in model_logits]
    nll = [-logs[np.arange(len(logs)), tokens[1:]] for logs, tokens in zip(own, sequences, strict=True)]
    found: dict[str, Any] = {"perplexity": np.exp(np.concatenate(nll).mean()), "nll": by_position(nll)}
    if reference is not None:
        other = [log_softmax(each[:-1]) for each in reference]
        kl = [(np.exp(p) * (p - q)).sum(axis=1) for p, q in zip(other, own, strict=True)]
        same = [(p.argmax(axis=1) == q.argmax(axis=1)) * 1.0 for p, q in zip(other, own, strict=True)]
        whole = np.concatenate(kl)
        found |= {"kl_mean": whole.mean(), "kl_p99": np.percentile(whole, 99), "kl": by_position(kl)}
        found |= {"next_token": np.concatenate(same).mean(), "agreement": by_position(same)}
    return found


def by_position(values: list[Array]) -> list[float]:
    """The mean at each position over the sequences that have it."""
    longest = max(map(len, values))
    return [
        float(sum(each[at] for each in values if at < len(each)) / sum(at < len(e) for e in values))
        for at in range(longest)
    ]
