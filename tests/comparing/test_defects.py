"""A float network against its quantized form with one defect: compare names that first, and how to correct it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.defects import (
    NETWORKS,
    batch,
    drop,
    exchange,
    network,
    node_of,
    quantized,
    replace_node,
    set_attributes,
    store,
    swap_rows,
    value,
)
from helpers.models import make_model
from onnx import helper

import qrun
from qrun.comparing.accuracy import Accuracy, accuracy

Plant = Callable[[onnx.ModelProto], Any]
f32 = np.float32

LAYER = {"cnn": "c2", "depthwise": "c2", "encoder": "v"}
"""A product whose weights are square."""
ACTED = {"cnn": "c2", "depthwise": "c1", "encoder": "c1"}
"""A product with Relu behind it."""
PAIRS = {"cnn": ("c2", "c3"), "depthwise": ("c1", "c2"), "encoder": ("q", "v")}
"""Two with as many output channels."""


def compared(kind: str, plant: Plant | None = None) -> Accuracy:
    model = quantized(kind)
    if plant is not None:
        plant(model)
    return accuracy(qrun.load(network(kind)), qrun.load(model), [batch(kind)])


def symmetric(model: onnx.ModelProto, tensor: str) -> None:
    """A range of both signs, as for values of both."""
    store(model, f"{tensor}_scale", value(model, f"{tensor}_scale") * f32(2))
    store(model, f"{tensor}_zero", np.int8(0))


def lost_relu(kind: str, model: onnx.ModelProto) -> None:
    symmetric(model, ACTED[kind])
    drop(model, ACTED[kind])


def leaky(kind: str, model: onnx.ModelProto) -> None:
    symmetric(model, ACTED[kind])
    replace_node(model, ACTED[kind], "LeakyRelu", alpha=0.3)


def lost_bias(kind: str, model: onnx.ModelProto) -> None:
    name = LAYER[kind]
    if kind == "encoder":
        drop(model, name)
    else:
        del node_of(model, f"{name}_raw").input[2]


def bias_times(kind: str, model: onnx.ModelProto, times: float = 10) -> None:
    name = f"{LAYER[kind]}_b" + ("" if kind == "encoder" else "_q")
    store(model, name, (value(model, name) * times).astype(value(model, name).dtype))


def bias_scale(kind: str, model: onnx.ModelProto) -> None:
    name = f"{LAYER[kind]}_b_scale"
    store(model, name, value(model, name) * f32(3))


def weight_scale(kind: str, model: onnx.ModelProto) -> None:
    name = f"{LAYER[kind]}_w_scale"
    store(model, name, value(model, name) * f32(1.5))


def channels(kind: str, model: onnx.ModelProto, scales: bool) -> None:
    name = f"{LAYER[kind]}_w"
    swap_rows(model, f"{name}_q", 1 if kind == "encoder" else 0)
    if scales:
        swap_rows(model, f"{name}_scale", 0)


def channel_scales(kind: str, model: onnx.ModelProto) -> None:
    scale = value(model, f"{LAYER[kind]}_w_scale").copy()
    order = np.argsort(scale)
    scale[order[[0, -1]]] = scale[order[[-1, 0]]]
    store(model, f"{LAYER[kind]}_w_scale", scale)


def input_channels(kind: str, model: onnx.ModelProto) -> None:
    swap_rows(model, f"{LAYER[kind]}_w_q", 0 if kind == "encoder" else 1)


def weight_scales(kind: str, model: onnx.ModelProto) -> None:
    exchange(model, *(f"{name}_w_scale" for name in PAIRS[kind]))


def activation_scales(kind: str, model: onnx.ModelProto) -> None:
    for part in ("scale", "zero"):
        exchange(model, *(f"{name}_{part}" for name in ("x", LAYER[kind])))


def scale_axis(kind: str, model: onnx.ModelProto) -> None:
    set_attributes(model, f"{LAYER[kind]}_w_d", axis=0 if kind == "encoder" else 1)


def moved(kind: str, model: onnx.ModelProto) -> None:
    if kind == "encoder":
        set_attributes(model, "back", perm=[0, 1, 2, 3])
    else:
        set_attributes(model, f"{ACTED[kind]}_raw", pads=[2, 2, 0, 0])


def zero_int8(kind: str, model: onnx.ModelProto) -> None:
    store(model, f"{ACTED[kind]}_zero", np.int8(0))


def zero_uint8(kind: str, model: onnx.ModelProto) -> None:
    symmetric(model, "x")
    store(model, "x_scale", value(model, "x_scale") / f32(1.7))
    store(model, "x_zero", np.uint8(0))


def zero_value(kind: str, model: onnx.ModelProto) -> None:
    store(model, f"{ACTED[kind]}_zero", np.int8(-40))


def weights_unsigned(kind: str, model: onnx.ModelProto) -> None:
    name = f"{LAYER[kind]}_w"
    for part in ("q", "zero"):
        store(model, f"{name}_{part}", value(model, f"{name}_{part}").view(np.uint8))


def no_calibration(kind: str, model: onnx.ModelProto) -> None:
    store(model, "x_scale", f32(1))
    store(model, "x_zero", np.int8(0))


def halved(kind: str, model: onnx.ModelProto, tensor: str = "") -> None:
    name = f"{tensor or ACTED[kind]}_scale"
    store(model, name, value(model, name) / f32(2))


def transposed(kind: str, model: onnx.ModelProto) -> None:
    name = f"{LAYER[kind]}_w_q"
    store(model, name, np.ascontiguousarray(np.swapaxes(value(model, name), 0, 1)))


def residual(kind: str, model: onnx.ModelProto, read: int) -> None:
    drop(model, "sum", read)


DEFECTS: dict[str, tuple[Callable[[str, onnx.ModelProto], None], str]] = {
    "lost Relu": (lost_relu, "a Relu of g is missing here"),
    "Relu became LeakyRelu": (leaky, "a Relu of g is a LeakyRelu here"),
    "lost bias": (lost_bias, "the bias of g is missing here"),
    "tenfold bias": (bias_times, " is 10 times as large as in g"),
    "bias scale": (bias_scale, "does not fit the bias"),
    "weight scale": (weight_scale, "is 1.5 times too large"),
    "channels with scales": (partial(channels, scales=True), "output channels 1 and 4 of the weights are swapped"),
    "channels": (partial(channels, scales=False), "output channels 1 and 4 of the weights are swapped"),
    "input channels": (input_channels, "input channels 1 and 4 of the weights are swapped"),
    "scales of channels": (channel_scales, "are swapped"),
    "weight scales of layers": (weight_scales, "does not fit"),
    "activation scales": (activation_scales, "fit"),
    "axis": (scale_axis, "runs along axis"),
    "moved": (moved, " here, "),
    "zero int8": (zero_int8, "_zero int8 0 does not fit: -128 does, or uint8 0"),
    "zero uint8": (zero_uint8, "x_zero uint8 0 does not fit: "),
    "zero value": (zero_value, "_zero int8 -40 does not fit: -128 does"),
    "unsigned weights": (weights_unsigned, "the codes of the weights are int8, but stored as uint8"),
    "no calibration": (no_calibration, "x_scale 1 is too large: 0.02"),
    "halved": (halved, " is too small: "),
    "halved input": (partial(halved, tensor="x"), "x_scale "),
    "transposed": (transposed, "transposed"),
    "residual 0": (partial(residual, read=0), "an Add of g is missing here"),
    "residual 1": (partial(residual, read=1), "an Add of g is missing here"),
}

RANGES = ("activation scales", "zero int8", "zero uint8", "zero value", "no calibration", "halved", "halved input")
PROVED = [name for name in DEFECTS if name not in RANGES]


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_good_quantizer_is_blamed_for_nothing(kind: str) -> None:
    found = compared(kind)
    assert found.costs
    for cost in found.costs:
        assert cost.faults == (), (cost.node.label, cost.why)
        assert cost.fit is None, (cost.node.label, cost.why)
        assert "weights rounded" not in cost.why, "their own SNR is above 40 dB"


@pytest.mark.parametrize("name", PROVED)
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_defect_is_the_first_thing_said(kind: str, name: str) -> None:
    plant, said = DEFECTS[name]
    if (kind, name) == ("encoder", "bias scale"):
        pytest.skip("its biases are floats")
    found = compared(kind, partial(plant, kind))
    assert found.departure is None
    first = found.costs[0]
    assert first.faults
    assert said in first.why
    assert all(not cost.faults for cost in found.costs[2:]), [(c.node.label, c.why) for c in found.costs]


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_range_that_does_not_fit_comes_first_with_what_correcting_it_brings(kind: str, name: str) -> None:
    plant, said = DEFECTS[name]
    found, good = compared(kind, partial(plant, kind)), compared(kind)
    first = found.costs[0]
    assert first.fit is not None
    assert said in first.why
    if good.sqnr - found.sqnr < 1:
        assert found.corrections == (), "it costs next to nothing"
        return
    one = found.corrections[0]
    assert one.node.index == first.node.index
    assert one.before == pytest.approx(found.sqnr)
    assert one.after is not None
    assert one.after > found.sqnr + 3
    if name != "activation scales":
        assert one.after > good.sqnr - 1.5


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_correction_of_weights_is_measured(kind: str) -> None:
    """The scales of two layers exchanged: with both corrected, the model is as good as before."""
    found, good = compared(kind, partial(weight_scales, kind)), compared(kind)
    one, two = found.corrections
    assert (one.before, one.after) == (pytest.approx(found.sqnr), two.before)
    assert two.after == pytest.approx(good.sqnr, abs=0.5)
    names = [f"{name}_w_scale" for name in PAIRS[kind]]
    assert all(name in text for name in names for text in (one.text, two.text))


# What is no defect


def folded(times: float = 1, bias: float = 1) -> Accuracy:
    """Conv, BatchNormalization and Relu beside a Conv with the normalization in its weights, quantized; these and the
    bias so many times as large."""
    rng = np.random.default_rng(3)
    w = rng.normal(0, 0.3, (8, 3, 3, 3)).astype(f32)
    gain, shift, mean = (rng.normal(middle, 0.5, 8).astype(f32) for middle in (2, 0, 0))
    var = (1 + rng.random(8)).astype(f32)
    x = rng.normal(0, 1, (2, 3, 8, 8)).astype(f32)
    first = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1] * 4),
        helper.make_node("BatchNormalization", ["c", "gain", "shift", "mean", "var"], ["n"], "norm"),
        helper.make_node("Relu", ["n"], ["y"], "relu"),
    ]
    shapes: tuple[Any, Any] = ({"x": [2, 3, 8, 8]}, {"y": [2, 8, 8, 8]})
    source = make_model(first, *shapes, {"w": w, "gain": gain, "shift": shift, "mean": mean, "var": var}, opset=17)
    factor = gain / np.sqrt(var + f32(1e-5))
    real = w * factor[:, None, None, None]
    scale = (np.abs(real).max((1, 2, 3)) / 127).astype(f32)
    constants = {
        "q": np.rint(real / scale[:, None, None, None]).astype(np.int8), "s": scale * f32(times),
        "z": np.zeros(8, np.int8), "b": (shift - mean * factor) * f32(bias),
    }  # fmt: skip
    second = [
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=0),
        helper.make_node("Conv", ["x", "d", "b"], ["n"], "conv", pads=[1] * 4),
        helper.make_node("Relu", ["n"], ["y"], "relu"),
    ]
    return accuracy(qrun.load(source), qrun.load(make_model(second, *shapes, constants, opset=17)), [{"x": x}])


def test_a_normalization_in_the_weights_is_no_fault() -> None:
    (cost,) = folded().costs
    assert cost.faults == ()
    assert (cost.reason, cost.local.structure, cost.local.bias) == ("precision", pytest.approx(0, abs=1e-9), 0)
    (cost,) = folded(times=1.5).costs
    assert cost.why.startswith("s "), cost.why
    assert "is 1.5 times too large" in cost.why
    (cost,) = folded(bias=0).costs
    assert cost.why.startswith("the bias of g is missing here"), cost.why


@pytest.mark.parametrize("op", ["Sub", "Div"])
def test_exchanged_inputs_are_named(op: str) -> None:
    rng = np.random.default_rng(4)
    shapes: tuple[Any, Any] = ({"a": [4, 16], "b": [4, 16]}, {"y": [4, 16]})
    feeds = {name: (2 + rng.random((4, 16))).astype(f32) for name in "ab"}
    source = make_model([helper.make_node(op, ["a", "b"], ["y"], "it")], *shapes)
    nodes = [
        helper.make_node(op, ["b", "a"], ["r"], "it"),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    model = make_model(nodes, *shapes, {"s": f32(2 / 127), "z": np.int8(0)})
    first = accuracy(qrun.load(source), qrun.load(model), [feeds]).costs[0]
    assert first.why.startswith(f"the inputs of its {op} are swapped here")


def test_exchanged_constants_of_a_normalization_are_named() -> None:
    model = quantized("encoder")
    node = node_of(model, "norm")
    node.input[1], node.input[2] = node.input[2], node.input[1]
    found = accuracy(qrun.load(network("encoder")), qrun.load(model), [batch("encoder")])
    assert found.costs[0].node.label == "norm"
    assert "beta and gamma are swapped here" in found.costs[0].why
    assert "gamma from g" in found.corrections[0].text


def test_another_alpha_is_named() -> None:
    model = quantized("cnn")
    set_attributes(model, "y", alpha=1.5)
    found = accuracy(qrun.load(network("cnn")), qrun.load(model), [batch("cnn")])
    assert found.costs[0].node.label == "y"
    assert "alpha" in found.costs[0].why


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("zero", [0, 60])
def test_a_zero_point_that_a_relu_was_folded_into(kind: str, zero: int) -> None:
    """A quantizer drops the Relu where the range begins at 0; a wrong zero point brings back what it removed."""

    def plant(model: onnx.ModelProto) -> None:
        drop(model, ACTED[kind])
        store(model, f"{ACTED[kind]}_zero", np.int8(zero))

    found = compared(kind, plant)
    assert f"{ACTED[kind]}_zero int8 {zero} does not fit: -128 does" in found.costs[0].why
    assert not found.costs[0].faults
    assert any(f"{ACTED[kind]}_zero" in correction.text for correction in found.corrections)


@pytest.mark.parametrize("sign", ["-", "+"])
def test_values_far_to_one_side_of_0(sign: str) -> None:
    """A mask that calibration never saw: of the fitting range nothing is left on the other side of 0."""
    shapes: tuple[Any, Any] = ({"x": [2, 8], "m": [2, 8]}, {"y": [2, 8]})
    source = make_model([helper.make_node("Add", ["x", "m"], ["y"], "add")], *shapes)
    nodes = [
        helper.make_node("Add", ["x", "m"], ["r"], "add"),
        helper.make_node("QuantizeLinear", ["r", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    model = make_model(nodes, *shapes, {"s": f32(3 / 127), "z": np.uint8(128)})
    x = np.linspace(-3, 3, 16, dtype=f32).reshape(2, 8)
    mask = np.where(np.arange(8) > 5, f32(f"{sign}1e4"), f32(0)) * np.ones((2, 1), f32)
    (cost,) = accuracy(qrun.load(source), qrun.load(model), [{"x": x, "m": mask}]).costs
    assert cost.reason == "clipped"
    assert "s 0.02362 is too small: 39.2" in cost.why


def test_weights_of_the_opposite_sign() -> None:
    def plant(model: onnx.ModelProto) -> None:
        store(model, f"{LAYER['cnn']}_w_q", -value(model, f"{LAYER['cnn']}_w_q"))

    assert compared("cnn", plant).costs[0].why.startswith("the weights have the opposite sign of ")
