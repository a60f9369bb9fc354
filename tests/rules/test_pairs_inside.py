"""Products of uint8 and int8 inside larger operators, whose pairs saturate on processors without VNNI:
what QR409 tells of them, and what `qrun compare --emulate avx2` makes of them, against loops and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.comparing import Changed
from helpers.support import MS, node_model, pairs_saturate, run_ort

import qrun
from qrun.comparing.differences import Tolerance
from qrun.comparing.emulated import run_emulated
from qrun.comparing.runtimes import compare_runtimes
from qrun.comparing.sides import QrunSide

Array = np.ndarray[Any, Any]
F = np.float32
SEED = 20261128
STEP = F(2.0**-17)
UNITS = 6


def drawn(rng: np.random.Generator, most: int) -> tuple[Array, Array]:
    """Codes of a row with both ends of uint8, and weights of up to this size for four gates."""
    codes = rng.integers(128, 256, 8).astype(np.uint8)
    codes[:2] = 0, 255
    return codes, rng.integers(-(most // 8), most + 1, (len(codes), 4 * UNITS)).astype(np.int8)


def sums(codes: Array, weights: Array, saturate: bool) -> Array:
    pairs = (codes.astype(np.int64)[:, None] * weights).reshape(len(codes) // 2, 2, -1).sum(1)
    return (np.clip(pairs, -(2**15), 2**15 - 1) if saturate else pairs).sum(0)


def attention(codes: Array, weights: Array, _: Array) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Of one place, which sees itself alone: the output is the values, the last third."""
    zero = np.zeros(3 * UNITS, F)
    inputs = [codes[None, None], weights[:, : 3 * UNITS], zero, F(1), STEP]
    return node_model("QAttention", inputs, {"num_heads": 2}, domain=MS, constants=range(1, 5), outputs=[F])


def lstm(codes: Array, weights: Array, again: Array) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The inputs' codes are these: their range has step 1. Gates are as in Relu, and the input's codes are H's."""
    zero, one = np.zeros(1, np.int8), np.full(1, STEP)
    inputs = [codes[None, None].astype(F), weights[None], again[None], *[None] * 5, one, zero, one, zero]
    attributes = {"hidden_size": UNITS, "activations": ["Relu"] * 3}
    return node_model("DynamicQuantizeLSTM", inputs, attributes, domain=MS, constants=[1, 2, 8, 9, 10, 11], outputs=[F])


def expected(op: Any, codes: Array, weights: Array, saturate: bool) -> Array:
    made = sums(codes, weights, saturate).astype(F) * STEP
    if op is attention:
        return made[2 * UNITS : 3 * UNITS]
    i, o, _, c = np.maximum(made, 0).reshape(4, UNITS)
    return o * (i * c)


def emulated(model: onnx.ModelProto, feeds: dict[str, Array], saturate: bool) -> Array:
    return run_emulated(qrun.load(model.SerializeToString()), feeds, ["y0"], saturating=saturate)["y0"].reshape(-1)


@pytest.mark.parametrize("op", [attention, lstm])
def test_emulated_sums_are_those_of_loops(op: Any) -> None:
    for case in range(10):
        codes, weights = drawn(np.random.default_rng([SEED, case]), 127)
        model, feeds = op(codes, weights, np.zeros((UNITS, 4 * UNITS), np.int8))
        made, exact = (emulated(model, feeds, saturate) for saturate in (True, False))
        assert not np.array_equal(made, exact), (SEED, case)
        for got, saturate in ((made, True), (exact, False)):
            np.testing.assert_allclose(got, expected(op, codes, weights, saturate), 1e-6, err_msg=f"{SEED} {case}")


@pytest.mark.parametrize("op", [attention, lstm])
@pytest.mark.parametrize(("off", "cause"), [(3e-7, "pair-saturation"), (0.1, "unknown")])
def test_the_cause_is_named_within_the_tolerance(op: Any, off: float, cause: str) -> None:
    """Functions of the sums have other bits in each runtime."""
    codes, weights = drawn(np.random.default_rng(SEED), 127)
    proto, feeds = op(codes, weights, np.zeros((UNITS, 4 * UNITS), np.int8))
    model = qrun.load(proto.SerializeToString())
    exact = QrunSide(model).run(feeds)["y0"]
    theirs = (emulated(proto, feeds, True) * F(1 + off)).reshape(exact.shape)
    (found,) = compare_runtimes(QrunSide(model), Changed(model, {"y0": theirs}), feeds, Tolerance()).tensors
    assert found.guilt is not None
    assert found.guilt.reason.cause == cause
    assert cause == "unknown" or "sums inside" in found.guilt.reason.text


@pytest.mark.parametrize("op", [attention, lstm])
def test_on_this_processor(op: Any) -> None:
    """Several places or steps: what onnxruntime gives, and the cause that is named for its difference."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    if not pairs_saturate():
        pytest.skip("onnxruntime adds products exactly on this processor")
    rng = np.random.default_rng(SEED)
    codes, weights = drawn(rng, 127)
    model, feeds = op(codes, weights, rng.integers(-127, 128, (UNITS, 4 * UNITS)).astype(np.int8))
    theirs = run_ort(model, feeds)[0].reshape(-1)
    np.testing.assert_allclose(theirs, emulated(model, feeds, True), 1e-5)
    assert not np.allclose(theirs, emulated(model, feeds, False), 1e-3)


@pytest.mark.parametrize("op", [attention, lstm])
@pytest.mark.parametrize("most", [64, 127])
def test_what_the_rule_tells(op: Any, most: int) -> None:
    codes, weights = drawn(np.random.default_rng(SEED), most)
    weights[:2, 0] = most
    model, feeds = op(codes, weights, np.full((UNITS, 4 * UNITS), 1, np.int8))
    found = [f for f in qrun.check(model, None, feeds) if f.rule == "QR409"]
    assert len(found) == (most > 64)
    assert not found or ("int16 holds" in found[0].message and " nodes)" not in found[0].message)
    pairs = (codes.astype(np.int64)[:, None] * weights).reshape(len(codes) // 2, 2, -1).sum(1)
    used = pairs[:, : 3 * UNITS] if op is attention else pairs
    count = np.count_nonzero((used > 2**15 - 1) | (used < -(2**15)))
    assert not found or f"{count} of " in found[0].got


def test_weights_of_states_are_looked_at_too() -> None:
    codes, weights = drawn(np.random.default_rng(SEED), 64)
    again = np.zeros((UNITS, 4 * UNITS), np.int8)
    assert not [f for f in qrun.check(lstm(codes, weights, again)[0]) if f.rule == "QR409"]
    again[2:4, 5] = 127, 2
    (found,) = (f for f in qrun.check(lstm(codes, weights, again)[0]) if f.rule == "QR409")
    assert found.got.startswith("255 * 127 + 255 * 2 = 32895 in output channel 5; 1 of ")


def test_both_directions_of_a_recurrent_operator() -> None:
    weights = np.zeros((2, 4, 8), np.int8)
    weights[1, :2, 3] = 100
    zero, one = np.zeros(2, np.int8), np.ones(2, F)
    inputs = [np.ones((3, 1, 4), F), weights, np.zeros((2, 2, 8), np.int8), *[None] * 5, one, zero, one, zero]
    attributes = {"hidden_size": 2, "direction": "bidirectional"}
    model, _ = node_model("DynamicQuantizeLSTM", inputs, attributes, domain=MS, constants=[1, 2, 8, 9, 10, 11])
    (found,) = (f for f in qrun.check(model) if f.rule == "QR409")
    assert "in output channel 3; 1 of " in found.got


@pytest.mark.parametrize(("sizes", "told"), [((5, 1, 4), 0), ((5, 2, 4), 1), (("N", 1, 4), 1)])
def test_a_sequence_depends_on_those_beside_it(sizes: tuple[Any, ...], told: int) -> None:
    inputs = [
        np.ones([5 if d == "N" else d for d in sizes], F),
        np.ones((1, 4, 8), np.int8),
        np.ones((1, 2, 8), np.int8),
    ]
    inputs += [*[None] * 5, np.ones(1, F), np.zeros(1, np.int8), np.ones(1, F), np.zeros(1, np.int8)]
    model, _ = node_model("DynamicQuantizeLSTM", inputs, {"hidden_size": 2}, domain=MS, constants=[1, 2, 8, 9, 10, 11])
    for place, d in enumerate(sizes):
        model.graph.input[0].type.tensor_type.shape.dim[place].Clear()
        name = "dim_param" if d == "N" else "dim_value"
        setattr(model.graph.input[0].type.tensor_type.shape.dim[place], name, d)
    assert len([f for f in qrun.check(model) if f.rule == "QR410"]) == told
