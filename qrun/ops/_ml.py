"""Shared by the operators of ai.onnx.ml: numbers of attributes, labels, and what becomes of scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.declare.memo import Memo
from qrun.formulas import single
from qrun.ir import Array
from qrun.ir.types import shape_text
from qrun.ops._context import Context, misfit, one_of, refuse
from qrun.ops._functions import logistic
from qrun.ops._polynomials import rounded_single
from qrun.ops._reduce import shares

ML = "ai.onnx.ml"
NUMBERS = "float double int64 int32"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
_NEAR_ZERO = float(np.float32(1e-7))
Floats = tuple[float, ...]


def singles(values: Sequence[float] | None) -> Array:
    """A list of floats, which are float32 numbers, in float64."""
    return np.asarray(values or (), np.float32).astype(np.float64)


def kept_singles(name: str, values: Sequence[float] | None, memo: Memo) -> Array:
    """As `singles`, of the attribute of this name: made once, not to be written to."""

    def made() -> Array:
        found = singles(values)
        found.flags.writeable = False
        return found

    return memo.once(name, made)


def rows_of(x: Array) -> Array:
    """[N,F] in float64; one row [F] is [1,F]. Refuses other ranks."""
    if x.ndim not in (1, 2):
        raise misfit("X is no table", "X", "[N,F] or [F]", x)
    return np.asarray(np.atleast_2d(x), np.float64, order="C")


def per_feature(values: Array, count: int, name: str) -> Array:
    """One number, or one for each feature."""
    if values.size not in (1, count):
        raise refuse(f"{name} has {values.size} numbers", name, f"1 or {count}", shape_text(values.shape), code="QR204")
    return values


def transformed(scores: Array, post_transform: str) -> Array:
    """Rows of scores [N,C] after a post_transform; refuses an unknown one. SOFTMAX and LOGISTIC are Softmax and Sigmoid
    of the scores' type, float32 or float64."""
    one_of("post_transform", post_transform, TRANSFORMS)
    if post_transform == "NONE" or not scores.size:
        return scores
    with np.errstate(all="ignore"):
        if post_transform == "LOGISTIC":
            return _logistic(scores)
        if post_transform == "SOFTMAX":
            return shares(scores)
        if post_transform == "PROBIT":
            return np.array([_probit(v) for v in scores.reshape(-1).tolist()]).reshape(scores.shape)
        top = scores.max(axis=1, keepdims=True)
        parts = np.exp(scores - top)
        zero = np.abs(scores) <= _NEAR_ZERO
        parts = np.where(zero, scores * np.exp(-top), parts)
        total = np.where(zero, 0.0, parts).sum(axis=1, keepdims=True)
        return np.asarray(np.where(total == 0, parts, parts / np.where(total == 0, 1.0, total)))


def one_of_two(scores: Array, post_transform: str) -> Array:
    """The scores of two classes, [N,2], of which only that of the second is known: 1 - s and s."""
    transformed(np.zeros((0, 1)), post_transform)
    shares = np.asarray(_logistic(scores) if post_transform == "LOGISTIC" else scores, np.float64)
    return np.stack([1 - shares, shares], axis=1)


def _logistic(scores: Array) -> Array:
    return rounded_single(single.sigmoid, logistic, scores)


def _probit(share: float) -> float:
    """The number below which so large a share of the normal distribution lies."""
    from statistics import NormalDist

    if 0 < share < 1:
        return NormalDist().inv_cdf(share)
    return float("-inf") if share == 0 else float("inf") if share == 1 else float("nan")


def labels_of(strings: Sequence[str] | None, ints: Sequence[int] | None, memo: Memo) -> Array:
    """The labels of the classes, string or int64, made once; refuses both lists, and none."""
    return memo.once("labels", lambda: _labels(strings, ints))


def _labels(strings: Sequence[str] | None, ints: Sequence[int] | None) -> Array:
    if bool(strings) == bool(ints):
        got = "both" if strings else "neither"
        raise refuse(
            "there is no list of labels",
            "classlabels",
            "classlabels_strings or that of integers, one of them",
            got,
            code="QR204",
        )
    if strings:
        made = np.empty(len(strings), object)
        made[:] = list(strings)
        return made
    return np.asarray(ints, np.int64)


def single_results(y: Any, ctx: Context) -> Array:
    """float64 rounded to float32."""
    ctx.claim(np.shape(y), 4)
    with np.errstate(all="ignore"):
        return np.asarray(y).astype(np.float32)
