"""Causes in known behaviour of runtimes: sessions that rewrite nodes, products that round activations to 8 bits, and
last states of empty sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes._formulas import UNIT
from qrun.comparing.causes.sums import block_sizes
from qrun.ir import Array
from qrun.ops import Arith


@cause("session-rewrite", rank=40, source="onnxruntime, graph optimizations; measured with 1.20.1 to 1.32.0")
def session_rewrite(s: Suspect) -> Iterator[Hypothesis]:
    """onnxruntime's default session replaces the nodes with others that compute something else. It stores a float bias
    as int32, reads the scales of weights along another axis, rounds activations to 8 bits before weights of few bits,
    or merges two QuantizeLinear-DequantizeLinear pairs into one.

    To confirm: Run qrun compare MODEL -i X --against ort, which runs the graph as written. It does not show the
    difference.

    To do: Change the nodes as qrun check suggests, or load the model with graph_optimization_level ORT_DISABLE_ALL.
    """
    for form in s.forms:
        made = form.run() if form.cause == "session-rewrite" else None
        if made is None:
            continue
        yield Hypothesis(made, form.text, tolerant=True)
        bound = form.bound() if form.bound else None
        left = None if bound is None else _order_difference(s, made, bound, 100)
        if left is not None:
            yield Hypothesis(None, f"{form.text}; the order of float32 sums explains the rest, at most {left:.2g}")


@cause("int8-activations", rank=25, source="onnxruntime, MatMulNBits: accuracy_level 4; mlas sqnbitgemm, CompInt8")
def int8_activations(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds blocks of the activations to int8 before it multiplies them by the weights. accuracy_level 4
    allows it to.

    To confirm: With accuracy_level 0 or 1 the difference disappears. qrun compare MODEL -i X --arith ort reproduces it
    without the other runtime.

    To do: Set accuracy_level to 0 if accuracy matters more than speed. If the target keeps level 4, run qrun with
    --arith ort too.
    """
    given: dict[str, Any] = dict(s.node.attributes)
    block = given.get("block_size") if s.is_op("MatMulNBits", "QMoE") else None
    made = s.in_arith("ort") if block else None
    if made is None or s.theirs is None or s.theirs.shape != made.shape or not np.any(made != s.mine):
        return
    allowed = f", as accuracy_level {given['accuracy_level']} allows" if given.get("accuracy_level") else ""
    text = f"rounds the activations to int8, each block of {block} with its own scale{allowed}"
    yield Hypothesis(made, text)
    sums = s.is_op("MatMulNBits") and s.theirs.dtype == np.float32
    left = _order_difference(s, made, _int8_bound(s), 64) if sums else None
    if left is not None:
        most = float(np.max(np.abs(s.theirs.astype(np.float64) - s.mine)))
        yield Hypothesis(
            None,
            f"{text}; this reduces the largest difference from {most:.2g} to {left:.2g}; the order of float32 sums explains the rest",
        )
    elif s.theirs.dtype != np.float32:
        yield Hypothesis(made, text, tolerant=True)


def _int8_bound(s: Suspect) -> Array:
    """A bound on the difference between two float32 sums of the node's products, in any order."""
    depth = s.node.attributes["K"]
    assert isinstance(depth, int)
    return 4 * (depth + 8) * UNIT * block_sizes(s)


def _order_difference(s: Suspect, made: Array, bound: Array, explained: int) -> float | None:
    """The largest difference of `made` from the other side, if it is within the bound on sums in any order and qrun's
    result differs `explained` times as much, so that only the order of sums remains; else None."""
    if s.theirs is None or s.theirs.shape != made.shape or s.theirs.dtype != made.dtype:
        return None
    apart, own = (np.abs(s.theirs.astype(np.float64) - each) for each in (made, s.mine))
    left = float(apart.max(initial=0.0))
    return left if (apart <= bound).all() and left * explained <= own.max(initial=0.0) else None


_ARITHMETICS: tuple[Arith, ...] = ("exact", "ort")


@cause("empty-sequence", rank=7, source="numerics, F18: beyond the end of a sequence Y is 0, and the states stay")
def empty_sequence(s: Suspect) -> Iterator[Hypothesis]:
    """For a sequence of length 0, the other side returns 0 as the last state. qrun returns the initial state.

    To confirm: sequence_lens contains a 0, and only its rows of Y_h and Y_c differ. With initial states of 0 the
    difference disappears.

    To do: Nothing is wrong with the model; the specification does not define this case. Do not feed empty sequences, or
    replace their last states with the initial states after the node.
    """
    lengths = s.arg("sequence_lens")
    if not s.is_op("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM") or lengths is None or lengths.all():
        return
    if s.tensor == s.node.outputs[0] or s.mine.ndim != 3:
        return
    empty = np.flatnonzero(lengths == 0)
    which = f"sequence {empty[0]}, whose length is" if empty.size == 1 else f"{empty.size} sequences, whose lengths are"
    for arith in _ARITHMETICS:
        made = s.in_arith(arith)
        if made is not None:
            ended = made.copy()
            ended[empty if s.node.attributes.get("layout") else (slice(None), empty)] = 0
            yield Hypothesis(ended, f"returns 0, not the initial state, as the last state of {which} 0", tolerant=True)
