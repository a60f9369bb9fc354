"""Measures one sample: numbers by column, which are later summed over all samples.

Columns: with a label, ``top1`` and ``top5``; if it is a number, also ``label#0``, and ``predicted#0``, the class with
the largest score. With a reference, for each output k: ``mean_abs#k``, ``max_abs#k``,
``cosine#k``, ``signal#k`` and ``noise#k`` (energies); for class scores also ``same#k``, the rows with the same argmax,
of ``rows#k``; for strings instead ``equal#k``, the equal ones, of ``elements#k``. Also one column per custom metric.
Sequences and maps count as the numbers that they hold.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from math import isfinite, sqrt

import numpy as np

from qrun.comparing.differences import class_axis
from qrun.errors import CallError
from qrun.evaluating.samples import Label
from qrun.ir import Array
from qrun.ir.compound import compared_tensors, form_difference, is_compound, numbers, to_runtime
from qrun.ir.types import describe, is_extension

Outputs = Mapping[str, Array]
Own = Callable[[Outputs, "Label | None"], float]
"""A custom metric: a function of the outputs of one sample by name, with a batch axis of one, and its label or None."""
_TOP = 5
_CLASSES = (np.dtype(object), np.dtype(np.int32), np.dtype(np.int64))


def own_metric(spec: str) -> Own:
    """Import the function that ``module:function`` names, also from the current folder. Raises CallError."""
    module, _, name = spec.partition(":")
    try:
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise _bad_metric(spec, f"{type(error).__name__}: {error}") from None
    if not callable(found):
        raise _bad_metric(spec, f"{name} is a {type(found).__name__}")
    made: Own = found
    return made


def _bad_metric(spec: str, got: str) -> CallError:
    return CallError(
        "QR005",
        f"--metric {spec} cannot be used",
        facts=[("expected", "module:function, called with outputs by name and the label"), ("got", got)],
        fixes=["a file accuracy.py in this folder with def score(outputs, label): goes as accuracy:score"],
    )


def compute_metrics(
    outputs: Outputs, reference: Outputs | None, label: Label | None, own: Mapping[str, Own]
) -> dict[str, float]:
    """Compute the columns of one sample. Raises CallError if a metric does not fit the outputs."""
    found: dict[str, float] = {}
    if label is not None:
        found |= _judge_label(outputs, label)
    for place, (name, got) in enumerate(outputs.items() if reference is not None else ()):
        want = list((reference or {}).values())[place]
        found |= {f"{column}#{place}": value for column, value in _compare(name, got, want)}
    as_returned = {name: to_runtime(value) for name, value in outputs.items()} if own else {}
    for spec, function in own.items():
        try:
            found[spec] = float(function(as_returned, label))
        except Exception as error:
            raise _bad_metric(spec, f"{type(error).__name__}: {error}") from None
    return found


def _judge_label(outputs: Outputs, label: Label) -> dict[str, float]:
    """Compare the first output with the label. If it is a class (one string, int32 or int64), is it the label? If it
    holds scores, is the label's score the largest, or one of the five largest? Of equal scores the first counts."""
    name, scores = next(iter(outputs.items()))
    if not is_compound(scores) and scores.size == 1 and scores.dtype in _CLASSES:
        own = scores.item()
        if isinstance(own, str) or isinstance(label, str):
            return {"top1": float(own == (str(label) if isinstance(own, str) else label))}
        return {"top1": float(own == label), "label#0": float(label), "predicted#0": float(own)}
    row = numbers(scores).reshape(-1)
    plain = not is_compound(scores) and is_number(scores)
    if not plain or isinstance(label, str) or not scores.ndim or sum(size > 1 for size in scores.shape) > 1:
        raise CallError(
            "QR003",
            f"output {name!r} does not hold {'a class name' if isinstance(label, str) else 'one score for each class'}",
            facts=[
                ("expected", "one text" if isinstance(label, str) else "one score per class"),
                ("got", describe(scores)),
            ],
            fixes=["omit --labels, or judge with --metric module:function"],
        )
    if not 0 <= label < row.size:
        raise CallError(
            "QR003",
            f"label {label} is not one of the {row.size} classes of output {name!r}",
            facts=[("expected", f"0 to {row.size - 1}"), ("got", str(label))],
        )
    own = row[label]
    place = {"label#0": float(label), "predicted#0": float(_largest(row))}
    if np.isnan(float(own)):
        return {"top1": 0.0, "top5": 0.0, **place}
    rank = int((row > own).sum()) + int((row[:label] == own).sum())
    return {"top1": float(rank < 1), "top5": float(rank < _TOP), **place}


def _largest(row: Array) -> float:
    """The place of the first largest score that is not NaN; NaN if all are."""
    scores = row.astype(np.float64)
    return float("nan") if np.isnan(scores).all() else float(np.nanargmax(scores))


def is_number(array: Array) -> bool:
    """Has the array a type that converts to float64: not strings or complex numbers?"""
    return array.dtype.kind in "fiub" or is_extension(array.dtype)


def _compare(name: str, got: Array, want: Array) -> Iterator[tuple[str, float]]:
    forms = form_difference(want, got)
    if forms or (got.shape != want.shape):
        first, second = forms or (describe(want), describe(got))
        raise CallError(
            "QR003",
            f"output {name!r} has two {'forms' if forms else 'shapes'}",
            name="output-mismatch",
            facts=[("first", first), ("second", second)],
            fixes=["qrun compare A B -i SAMPLE shows the first tensor that differs"],
        )
    a, b = numbers(want), numbers(got)
    if is_compound(want) and not a.size:
        return
    if not (is_number(a) and is_number(b)):
        yield "equal", float((a == b).sum())
        yield "elements", float(a.size)
        return
    pairs = zip(compared_tensors(want), compared_tensors(got), strict=True)
    agreed = np.concatenate([_agreements(one, other) for one, other in pairs])
    if agreed.size:
        yield "same", float(agreed.sum())
        yield "rows", float(agreed.size)
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        apart = np.where(a == b, 0.0, b - a)
        sizes = np.abs(apart)
        signal, noise, other = (float(np.vdot(x, x)) for x in (a, apart, b))
        yield "mean_abs", float(sizes.mean()) if a.size else 0.0
        yield "max_abs", float(sizes.max()) if a.size else 0.0
        both = sqrt(signal) * sqrt(other) if isfinite(signal) and isfinite(other) else float("nan")
        yield "cosine", (float(np.vdot(a, b)) / both if both else 1.0 if signal == other else 0.0)
        yield "signal", signal
        yield "noise", noise


def _agreements(a: Array, b: Array) -> Array:
    """For each row of class scores: do both arrays have the largest at the same place? Empty without class scores."""
    axis = class_axis(a.shape) if is_number(a) and is_number(b) and a.size else None
    if axis is None:
        return np.zeros(0, bool)
    first, second = (x.astype(np.float64).argmax(axis).reshape(-1) for x in (a, b))
    same: Array = first == second
    return same
