"""Strings: StringConcat, StringSplit, RegexFullMatch."""

from __future__ import annotations

import re

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._float import broadcast
from qrun.ops._op import op
from qrun.ops._shape import checked


@op("StringConcat", since=20)
def string_concat(X: Array, Y: Array, *, ctx: Context) -> Array:
    """The string of X, then that of Y, for each element; shapes broadcast as in numpy. Source: ONNX operators, StringConcat-20."""
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
    left. Raises OperatorError for a negative maxsplit. Source: ONNX operators, StringSplit-20.
    """
    if maxsplit is not None and maxsplit < 0:
        raise refuse(f"maxsplit is {maxsplit}", "maxsplit", "0 or more", str(maxsplit), code="QR204")
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
    Raises OperatorError for a pattern that is none. Source: ONNX operators, RegexFullMatch-20.
    """
    if pattern is None:
        raise refuse("there is no pattern", "pattern", "a regular expression", "nothing", code="QR204")
    try:
        known = re.compile(pattern)
    except re.error as error:
        raise refuse("the pattern is none", "pattern", "a regular expression", str(error), code="QR204") from None
    ctx.claim(X.shape, 1)
    return np.array([known.fullmatch(text) is not None for text in X.reshape(-1).tolist()], bool).reshape(X.shape)
