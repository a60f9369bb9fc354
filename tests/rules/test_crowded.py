"""QR412: values that became one code because others are far away, in every form of a quantized model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers.accuracy import by_hand, ranges_of, sentences, transformer
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.checking.rules import Finding

Array = np.ndarray
RNG = np.random.default_rng(12)
NEAR = RNG.normal(0, 2, (4, 100)).astype(np.float32)


def quantizer(scale: float, zero: int = 250) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "rounding"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    return make_model(nodes, {"x": [4, 100]}, {"y": [4, 100]}, {"s": np.float32(scale), "z": np.uint8(zero)})


def found(model: onnx.ModelProto, feeds: dict[str, Array] | None) -> list[Finding]:
    return [f for f in qrun.check(model, None, feeds) if f.rule == "QR412"]


def masked(value: float, values: Array = NEAR) -> Array:
    return np.where(np.arange(100) < 75, values, value).astype(np.float32)


def test_scores_beside_a_mask_share_a_code() -> None:
    (told,) = found(quantizer(40), {"x": masked(-10000)})
    assert (told.node, told.level) == ("rounding", "warning")
    assert "75% of q share one code" in told.message
    assert "300 of 400 elements, from " in told.got
    assert "have code 250; others reach -1e+04; the scale is 40" in told.got


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        (masked(-100), 0.5),  # scores keep codes of their own
        (masked(-10000, np.zeros_like(NEAR)), 40),  # the mask itself: nothing is lost of 0
        (np.maximum(NEAR * 20, 0), 1),  # behind a Relu
        (NEAR, 40),  # too large a scale for this input, nothing far away
        (np.where(np.arange(100) < 75, NEAR, np.linspace(-1e4, 0, 100)), 40),  # spread out over all codes
    ],
)
def test_values_that_lose_nothing_to_far_ones(values: Array, scale: float) -> None:
    assert found(quantizer(scale), {"x": values.astype(np.float32)}) == []


def test_without_inputs_nothing_is_known() -> None:
    assert found(quantizer(40), None) == []


def test_the_mask_of_an_attention() -> None:
    """As a quantizer writes it, per tensor: the sum of scores and mask, and nothing else."""
    model, feeds = transformer(0), list(sentences(20, 2))
    (told,) = found(by_hand(model, ranges_of(model, feeds)), dict(feeds[0]))
    assert told.tensor.startswith("hiding")


def test_an_integer_operator() -> None:
    """What QLinearAdd rounds is known from what it reads."""
    inputs = ["a", "one", "zero", "b", "far", "zero", "far", "end"]
    node = helper.make_node("QLinearAdd", inputs, ["c"], "adding", domain="com.microsoft")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "one", "zero"], ["a"]),
        helper.make_node("QuantizeLinear", ["m", "far", "zero"], ["b"]),
        node,
        helper.make_node("DequantizeLinear", ["c", "far", "end"], ["y"]),
    ]
    stored = {"one": np.float32(0.1), "far": np.float32(80), "zero": np.uint8(128), "end": np.uint8(250)}
    model = make_model(nodes, {"x": [4, 100], "m": [4, 100]}, {"y": [4, 100]}, stored)
    mask = np.where(np.arange(100) < 75, 0, -10000) * np.ones((4, 1))
    told = found(model, {"x": NEAR, "m": mask.astype(np.float32)})
    assert [f.node for f in told] == ["adding"]
