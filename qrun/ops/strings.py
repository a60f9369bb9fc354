"""Operators on strings: StringConcat, StringSplit, RegexFullMatch, StringNormalizer."""

from __future__ import annotations

import re

import numpy as np

from qrun.ops._float import broadcast
from qrun.ops._op import Array, Context, misfit, one_of, op, refuse, require
from qrun.ops._shape import checked


@op("StringConcat", since=20)
def string_concat(X: Array, Y: Array, *, ctx: Context) -> Array:
    """The string of X, then that of Y, for each element; shapes broadcast as in numpy."""
    shape = broadcast(ctx, [X, Y], ("X", "Y"))
    made = np.empty(shape, object)
    made[...] = X + Y if X.size and Y.size else ""
    return made


@op("StringSplit", since=20)
def string_split(
    X: Array, *, delimiter: str | None = None, maxsplit: int | None = None, ctx: Context
) -> tuple[Array, Array]:
    """The parts of each string along a new last axis, "" after the last of them, and how many there are, int64 of X's shape.

    delimiter: between parts; "" or left out: any run of blanks, none at the ends. maxsplit: at most so many cuts, from the
    left. Raises OperatorError for a negative maxsplit.
    """
    require("maxsplit", maxsplit is None or maxsplit >= 0, "0 or more", maxsplit)
    cuts = -1 if maxsplit is None else maxsplit
    parts = [text.split(delimiter or None, cuts) for text in X.reshape(-1).tolist()]
    counts = np.array([len(p) for p in parts], np.int64)
    most = int(counts.max(initial=0))
    ctx.claim((*X.shape, most + 1), 8)
    shape = checked((*X.shape, most), 8, "X")
    made = np.empty((len(parts), most), object)
    made[...] = ""
    for row, found in enumerate(parts):
        made[row, : len(found)] = found
    return made.reshape(shape), counts.reshape(X.shape)


@op("RegexFullMatch", since=20)
def regex_full_match(X: Array, *, pattern: str | None = None, ctx: Context) -> Array:
    """Whether the whole string matches the pattern, bool of X's shape.

    The pattern is read by Python, which knows what RE2 knows, and lookaround and references besides.
    Raises OperatorError for a pattern that is none.
    """
    if pattern is None:
        raise refuse("there is no pattern", "pattern", "a regular expression", "nothing", code="QR204")
    try:
        known = re.compile(pattern)
    except re.error as error:
        raise refuse("the pattern is none", "pattern", "a regular expression", str(error), code="QR204") from None
    ctx.claim(X.shape, 1)
    return np.array([known.fullmatch(text) is not None for text in X.reshape(-1).tolist()], bool).reshape(X.shape)


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
    """Strings [C] or [1,C] without stopwords, in upper or lower case (UPPER, LOWER, NONE); one "" where none is left.

    Unless is_case_sensitive, stopwords of any case go. Cases are those of Unicode, whatever the locale.
    Raises OperatorError for other shapes and actions.
    """
    one_of("case_change_action", case_change_action, ("NONE", "UPPER", "LOWER"))
    if X.ndim not in (1, 2) or (X.ndim == 2 and X.shape[0] != 1):
        raise misfit("X is no line of strings", "X", "[C] or [1,C]", X)
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
