"""Operators of strings, string by string, and TfIdfVectorizer, occurrence by occurrence, beside onnxruntime."""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
from helpers.float import Peer, assert_refused, assert_rounded, qrun_node

TEXT = np.dtype(object)


def texts(words: Any) -> np.ndarray:
    shape = np.array(words, dtype=str).shape
    made = np.empty(shape, object)
    made[...] = words
    return made


def test_string_concat() -> None:
    x, y = texts([["a", "b"], ["", "é"]]), texts(["x", "yz"])
    made = qrun_node("StringConcat", [x, y])
    assert made.tolist() == [["ax", "byz"], ["x", "éyz"]]
    assert qrun_node("StringConcat", [x[:0], y]).shape == (0, 2)


def test_string_split() -> None:
    x = texts(["a,b,,c", "", ",d"])
    for attributes, want in (
        ({"delimiter": ","}, [["a", "b", "", "c"], ["", "", "", ""], ["", "d", "", ""]]),
        ({"delimiter": ",", "maxsplit": 1}, [["a", "b,,c"], ["", ""], ["", "d"]]),
    ):
        made, count = qrun_node("StringSplit", [x], attributes, outputs=[TEXT, np.int64])
        assert made.tolist() == want
        assert count.tolist() == [len(t.split(",", attributes.get("maxsplit", -1))) for t in x.tolist()]
    made, count = qrun_node("StringSplit", [texts([[" a  b ", "  "]])], outputs=[TEXT, np.int64])
    assert (made.tolist(), count.tolist()) == ([[["a", "b"], ["", ""]]], [[2, 0]])


def test_regex_full_match() -> None:
    x = texts(["www.a.com", "a.com", "www.b.comx"])
    made = qrun_node("RegexFullMatch", [x], {"pattern": r"www\.[a-z]+\.com"}, outputs=[bool])
    assert made.tolist() == [True, False, False]


def test_string_normalizer() -> None:
    x = texts(["Monday", "tuesday", "Sun"])
    for attributes, want in (
        ({}, ["Monday", "tuesday", "Sun"]),
        (
            {"case_change_action": "UPPER", "stopwords": ["monday"], "is_case_sensitive": 1},
            ["MONDAY", "TUESDAY", "SUN"],
        ),
        ({"case_change_action": "LOWER", "stopwords": ["MONDAY"]}, ["tuesday", "sun"]),
        ({"stopwords": ["monday", "tuesday", "sun"]}, [""]),
    ):
        assert qrun_node("StringNormalizer", [x], attributes).tolist() == want
        assert qrun_node("StringNormalizer", [x[None]], attributes).tolist() == [want]
    accents = texts(["é a", "", "A"])
    assert qrun_node("StringNormalizer", [accents], {"stopwords": ["a"]}).tolist() == ["é a", ""]


def test_refusals() -> None:
    assert_refused(
        [
            ("could not be broadcast", "StringConcat", [texts(["a", "b"]), texts(["a", "b", "c"])], {}),
            ("Invalid regex pattern", "RegexFullMatch", [texts(["a"])], {"pattern": "("}),
            ("X is not a line", "StringNormalizer", [texts([["a"], ["b"]])], {}),
            ("case_change_action is TITLE", "StringNormalizer", [texts(["a"])], {"case_change_action": "TITLE"}),
        ],
    )


F, I64, I32 = np.float32, np.int64, np.int32
WORDS = ("a", "b", "c")
BASE: dict[str, Any] = {
    "mode": "TF", "min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 0, "ngram_counts": [0, 2],
    "ngram_indexes": [0, 1, 2], "pool_int64s": [1, 2, 1, 2],
}  # fmt: skip


def counted(row: list[Any], gram: tuple[Any, ...], skips: int) -> int:
    """In how many sets of places, equally far apart, the tokens of a gram stand."""
    return sum(
        len(gram) == 1 or (len({b - a for a, b in itertools.pairwise(at)}) == 1 and at[1] - at[0] <= skips + 1)
        for at in itertools.combinations(range(len(row)), len(gram))
        if all(row[place] == token for place, token in zip(at, gram, strict=True))
    )


def test_n_grams_against_occurrences() -> None:
    peer = Peer()
    for seed in range(90):
        rng = np.random.default_rng(seed)
        most, dtype = 1 + seed % 3, (I64, I32, object)[seed // 3 % 3]
        least, skips, mode = int(rng.integers(1, most + 1)), int(rng.integers(0, 4)), ("TF", "IDF", "TFIDF")[seed % 3]
        tokens = WORDS if dtype is object else (4, 5, 6)
        x = np.array(rng.choice(tokens, (2, 6)[seed % 2 :]).tolist(), dtype)
        by_length = [[g for g in itertools.product(tokens, repeat=n + 1) if rng.random() < 0.6] for n in range(3)]
        by_length[0] = by_length[0] or [(tokens[0],)]
        grams = [gram for some in by_length for gram in some]
        places = rng.permutation(len(grams))
        places[: seed % 4] = places[0]
        weights = rng.normal(size=len(grams)).astype(F)
        starts = np.cumsum([0, len(by_length[0]), 2 * len(by_length[1])])
        attributes = {
            "mode": mode, "min_gram_length": least, "max_gram_length": most, "max_skip_count": skips,
            "ngram_counts": starts.tolist(), "ngram_indexes": places.tolist(),
            "pool_strings" if dtype is object else "pool_int64s": [token for gram in grams for token in gram],
            **({"weights": weights.tolist()} if seed % 5 else {}),
        }  # fmt: skip
        want = []
        for row in np.atleast_2d(x).tolist():
            sums = [Fraction(0)] * (max(places.tolist()) + 1)
            for gram, place, weight in zip(grams, places.tolist(), weights.tolist(), strict=True):
                count = counted(row, gram, skips) if least <= len(gram) <= most else 0
                share = Fraction(weight) if seed % 5 and mode != "TF" else 1
                sums[place] += (min(count, 1) if mode == "IDF" else count) * share
            want.append([float(total) for total in sums])
        message = f"seed {seed} {attributes}"
        made = qrun_node("TfIdfVectorizer", [x], attributes, outputs=(F,))
        assert_rounded(made, np.array(want).reshape(*x.shape[:-1], -1), message)
        if seed % 4 < 2:  # of several n-grams at one place it takes the weight of one
            peer.check("TfIdfVectorizer", [x], attributes, message=message, outputs=(F,))
    peer.finish(1.0)


def test_rows_without_tokens_and_grams_that_stand_twice() -> None:
    for shape in ((0,), (2, 0), (0, 3)):
        made = qrun_node("TfIdfVectorizer", [np.ones(shape, I64)], BASE, outputs=(F,))
        assert made.shape == (*shape[:-1], 3)
        assert not made.any()
    twice = {**BASE, "pool_int64s": [1, 1, 1, 2]}
    assert qrun_node("TfIdfVectorizer", [np.array([1, 2, 1])], twice, outputs=(F,)).tolist() == [2, 2, 1]
    far = {**BASE, "max_skip_count": 2**40}
    assert qrun_node("TfIdfVectorizer", [np.array([1, 3, 2, 2])], far, outputs=(F,)).tolist() == [1, 2, 2]


def test_refusals_of_n_grams() -> None:
    changed: list[tuple[str, dict[str, Any]]] = [
        ("mode is BM25", {"mode": "BM25"}),
        ("the pool does not fit X", {"pool_int64s": None, "pool_strings": ["a", "b", "a", "b"]}),
        ("the pool does not fit X", {"pool_strings": ["a"]}),
        ("the pool does not fit X", {"pool_int64s": None}),
        ("weights has 1 elements", {"weights": [1.0]}),
        ("max_skip_count is -1", {"max_skip_count": -1}),
        ("min_gram_length is", {"min_gram_length": 0}),
        ("min_gram_length is", {"min_gram_length": 3}),
        ("max_gram_length is 3", {"max_gram_length": 3}),
        ("ngram_indexes is -1", {"ngram_indexes": [0, -1, 2]}),
        ("ngram_indexes has 2 elements", {"ngram_indexes": [0, 1]}),
        ("ngram_counts is", {"ngram_counts": [0, 1]}),
        ("ngram_counts is", {"ngram_counts": [0, 5]}),
        ("ngram_counts is", {"ngram_counts": [1, 2]}),
    ]
    tokens = [np.array([1, 2])]
    for text, changes in changed:
        attributes = {k: v for k, v in {**BASE, **changes}.items() if v is not None}
        assert_refused([(text, "TfIdfVectorizer", tokens, attributes)], outputs=(F,))
    assert_refused([("no rows of tokens", "TfIdfVectorizer", [np.ones((1, 1, 1), I64)], BASE)], outputs=(F,))
