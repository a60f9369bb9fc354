"""Operators on text: StringNormalizer, and TfIdfVectorizer, which counts known n-grams. onnx.reference differs: it
strips accents in the first, and weights other n-grams in the second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ops._float import narrow
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse, require, require_count


@op("StringNormalizer", since=10)
def string_normalizer(
    X: Array,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] | None = None,
    ctx: Context,
) -> Array:
    """Remove stopwords from strings [C] or [1,C] and change their case (UPPER, LOWER, NONE); one "" if none is left.

    Unless is_case_sensitive, stopwords are removed in any case. Case follows Unicode, whatever the locale.
    Raises OperatorError for other shapes and actions.
    """
    one_of("case_change_action", case_change_action, ("NONE", "UPPER", "LOWER"))
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[0] != 1):
        raise misfit("X is not a line of strings", "X", "[C] or [1,C]", X)
    ctx.claim(X.shape, 8)
    words = set(stopwords or ())
    if not is_case_sensitive:
        words = {word.lower() for word in words}
    kept = [t for t in X.reshape(-1).tolist() if (t if is_case_sensitive else t.lower()) not in words] or [""]
    made = np.empty(len(kept), object)
    if case_change_action == "UPPER":
        kept = [text.upper() for text in kept]
    elif case_change_action == "LOWER":
        kept = [text.lower() for text in kept]
    made[:] = kept
    return made if X.ndim == 1 else made.reshape(1, -1)


_MODES = ("TF", "IDF", "TFIDF")
Grams = dict[tuple[Any, ...], list[int]]


@op("TfIdfVectorizer", since=9)
def tf_idf_vectorizer(
    X: Array,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: tuple[int, ...],
    ngram_indexes: tuple[int, ...],
    pool_int64s: tuple[int, ...] | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
    ctx: Context,
) -> Array:
    """Count each n-gram in each row of tokens: float32 [N,M], or [M] for one row, where M = max(ngram_indexes) + 1.

    X [N,C] or [C], strings or integers. The pool holds the n-grams of length 1, those of length 2, ..., which begin at
    ngram_counts. N-gram i is counted at ngram_indexes[i], where those of several are added, if its length is
    min_gram_length to max_gram_length. The tokens of an occurrence are equally far apart,
    1 to max_skip_count + 1 places.
    mode: TF counts; IDF weights[i] where the count is not 0; TFIDF counts times weights[i]. Weights left out are 1.
    In float64 and rounded once. Raises OperatorError for lists that do not fit.
    """
    if X.ndim not in (1, 2):
        raise misfit("X has no rows of tokens", "X", "[C] or [N,C]", X)
    pool: Sequence[Any] = (pool_strings if X.dtype == object else pool_int64s) or ()
    if bool(pool_strings) == bool(pool_int64s) or not pool:
        wanted = "pool_strings" if X.dtype == object else "pool_int64s"
        expected = f"n-grams for X of type {X.dtype}, and no other pool"
        got = "both" if pool_strings and pool_int64s else "the other, or none"
        raise refuse("the pool does not fit X", wanted, expected, got, code="QR204")
    one_of("mode", mode, _MODES)
    shares = np.asarray(weights or [1.0] * len(ngram_indexes), np.float32).astype(np.float64)
    lengths = range(min_gram_length, max_gram_length + 1)
    grams = _grams(pool, ngram_counts, ngram_indexes, lengths)
    require_count(
        "weights", shares.size == len(ngram_indexes), f"{len(ngram_indexes)}, one for each n-gram", shares.size
    )
    require("max_skip_count", max_skip_count >= 0, "0 or more", max_skip_count)
    rows = X[None] if X.ndim == 1 else X
    made = _count_grams(rows, grams, max_skip_count, mode, shares, ngram_indexes, ctx)
    return narrow(made.reshape(*X.shape[:-1], made.shape[1]), np.dtype(np.float32))


def _grams(pool: Sequence[Any], starts: Sequence[int], places: Sequence[int], lengths: range) -> dict[int, Grams]:
    """For each length that counts, the n-grams with their numbers; one that is twice in the pool has two."""
    require("min_gram_length", 1 <= lengths.start < lengths.stop, f"1 to {lengths.stop - 1}", lengths.start)
    require(
        "max_gram_length",
        lengths.stop - 1 <= len(starts),
        f"at most {len(starts)}, as ngram_counts has",
        lengths.stop - 1,
    )
    require(
        "ngram_indexes", min(places, default=-1) >= 0, "one number or more, each 0 or more", min(places, default=-1)
    )
    found: dict[int, Grams] = {}
    number = 0
    for length, (start, end) in enumerate(zip(starts, (*starts[1:], len(pool)), strict=True), 1):
        whole = 0 <= start <= end <= len(pool) and (end - start) % length == 0 and (length > 1 or start == 0)
        require("ngram_counts", whole, "0, then where each length begins in the pool", starts)
        grams = found.setdefault(length, {})
        for first in range(start, end, length):
            grams.setdefault(tuple(pool[first : first + length]), []).append(number)
            number += 1
    require_count("ngram_indexes", len(places) == number, f"{number} numbers, one for each n-gram", len(places))
    return {length: found[length] for length in lengths}


def _count_grams(
    rows: Array, grams: dict[int, Grams], skips: int, mode: str, shares: Array, places: Sequence[int], ctx: Context
) -> Array:
    """For each row, the counts or weights of the known n-grams [rows,ngrams]."""
    ctx.claim((len(rows), max(places) + 1), 12)
    made = np.zeros((len(rows), max(places) + 1))
    for number, tokens in enumerate(rows.tolist()):
        for gram, count in _occurrences(tokens, grams, skips).items():
            times = 1 if mode == "IDF" else count
            made[number, places[gram]] += times if mode == "TF" else times * shares[gram]
    return made


def _occurrences(tokens: Sequence[Any], grams: dict[int, Grams], skips: int) -> Counter[int]:
    """How often each known n-gram occurs among tokens, with up to `skips` tokens between."""
    found: Counter[int] = Counter()
    for length, known in grams.items():
        furthest = 1 if length == 1 else min(skips + 1, (len(tokens) - 1) // (length - 1))
        for apart in range(1, furthest + 1) if known else ():
            reach = apart * (length - 1) + 1
            for first in range(len(tokens) - reach + 1):
                found.update(known.get(tuple(tokens[first : first + reach : apart]), ()))
    return found
