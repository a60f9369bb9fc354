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
    "bias scale": (bias_scale, "of the bias does not fit"),
    "weight scale": (weight_scale, "is 1.5 times too large"),
    "channels with scales": (partial(channels, scales=True), "output channels 1 and 4 of the weights are exchanged"),
    "channels": (partial(channels, scales=False), "output channels 1 and 4 of the weights are exchanged"),
    "input channels": (input_channels, "input channels 1 and 4 of the weights are exchanged"),
    "scales of channels": (channel_scales, "are exchanged"),
    "weight scales of layers": (weight_scales, "does not fit"),
    "activation scales": (activation_scales, "fit"),
    "axis": (scale_axis, "lies along axis"),
    "moved": (moved, " here, "),
    "zero int8": (zero_int8, "_zero int8 0 does not fit: -128 does, or uint8 0"),
    "zero uint8": (zero_uint8, "x_zero uint8 0 does not fit: "),
    "zero value": (zero_value, "_zero int8 -40 does not fit: -128 does"),
    "unsigned weights": (weights_unsigned, "the codes of the weights are int8, stored as uint8"),
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
    if good.real - found.real < 1:
        assert found.corrections == (), "it costs next to nothing"
        return
    one = found.corrections[0]
    assert one.node.index == first.node.index
    assert one.before == pytest.approx(found.real)
    assert one.after is not None
    assert one.after > found.real + 3
    if name != "activation scales":
        assert one.after > good.real - 1.5


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_correction_of_weights_is_measured(kind: str) -> None:
    """The scales of two layers exchanged: with both corrected, the model is as good as before."""
    found, good = compared(kind, partial(weight_scales, kind)), compared(kind)
    one, two = found.corrections
    assert (one.before, one.after) == (pytest.approx(found.real), two.before)
    assert two.after == pytest.approx(good.real, abs=0.5)
    names = [f"{name}_w_scale" for name in PAIRS[kind]]
    assert all(name in text for name in names for text in (one.text, two.text))
