"""StringConcat, StringSplit, RegexFullMatch and StringNormalizer: string by string."""

from __future__ import annotations

from typing import Any

import numpy as np
from helpers.float import assert_refused, qrun_node

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
            ("X is no line", "StringNormalizer", [texts([["a"], ["b"]])], {}),
            ("case_change_action is TITLE", "StringNormalizer", [texts(["a"])], {"case_change_action": "TITLE"}),
        ],
    )
