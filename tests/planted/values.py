"""QR4xx at run time, and QR5xx: vectors beside the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from planted.case import planted
from planted.graph import ADD, BLOCK, CONV, X
from planted.network import Array, Network, image

LAST = "logits_DequantizeLinear"


def with_a_vector(n: Network) -> None:
    n.feeds = {"image": image(3)}


def with_a_second_input(n: Network) -> None:
    """A float tensor that is quantized and added in the middle."""
    with_a_vector(n)
    n.graph.input.append(helper.make_tensor_value_info("side", TensorProto.FLOAT, [1, 128, 6, 6]))
    n.feeds["side"] = np.random.default_rng(4).uniform(-1, 1, (1, 128, 6, 6)).astype(np.float32)
    scale, zero = n.store("side_scale", np.float32(2 / 255)), n.store("side_zero", np.uint8(128))
    n.insert(ADD, "QuantizeLinear", ["side", scale, zero], ["codes"])
    n.node(ADD).input[3:6] = ["codes", scale, zero]


@planted("QR401", "codes/QuantizeLinear", "side", base=with_a_second_input)
def not_a_number(n: Network) -> None:
    n.feeds["side"][0, 70, 2, 2] = np.nan


@planted("QR411", "codes/QuantizeLinear", "side", base=with_a_second_input)
def infinity(n: Network) -> None:
    n.feeds["side"][0, 70:90] = np.inf


@planted("QR402", "codes/QuantizeLinear", "codes", base=with_a_second_input)
def an_input_in_another_unit(n: Network) -> None:
    n.feeds["side"] *= 127


@planted("QR412", "codes/QuantizeLinear", "codes", base=with_a_second_input)
def a_value_far_from_all_others(n: Network) -> None:
    n.store("side_scale", np.float32(40))
    n.store("side_zero", np.uint8(251))
    n.feeds["side"][0, 70, 2, 2] = -10000


@planted("QR402", CONV, f"{BLOCK}/conv2_out_quantized", base=with_a_vector)
def a_scale_that_is_too_small(n: Network) -> None:
    name = f"{BLOCK}/conv2_out_scale"
    n.store(name, n.value(name) / np.float32(8))


@planted("QR413", "codes/QuantizeLinear", "codes", base=with_a_second_input)
def a_scale_for_another_tensor(n: Network) -> None:
    n.store("side_scale", np.float32(3))


@planted("QR414", "codes/QuantizeLinear", "codes", base=with_a_second_input)
def a_scale_of_other_data(n: Network) -> None:
    n.store("side_scale", np.float32(10 / 255))


def with_a_softplus(n: Network) -> None:
    with_a_second_input(n)
    n.feeds = {}
    n.insert("codes/QuantizeLinear", "Softplus", ["side"], ["soft"])
    n.node("codes/QuantizeLinear").input[0] = "soft"
    n.store("side_scale", np.float32(1.4 / 255))
    n.store("side_zero", np.uint8(0))


@planted("QR319", "codes/QuantizeLinear", "codes", base=with_a_softplus)
def a_tensor_that_the_calibration_missed(n: Network) -> None:
    n.store("side_scale", np.float32(1))


@planted("QR320", "twice/QuantizeLinear", "again", base=with_a_second_input)
def two_pairs_behind_each_other(n: Network) -> None:
    scale, zero = n.node(ADD).input[4:6]
    other = n.store("other_scale", np.float32(2.5 / 255))
    n.insert(ADD, "DequantizeLinear", ["codes", scale, zero], ["again"])
    n.insert(ADD, "QuantizeLinear", ["again", other, zero], ["twice"])
    n.node(ADD).input[3:6] = ["twice", other, zero]


def with_a_sigmoid(n: Network) -> None:
    with_a_second_input(n)
    n.insert("codes/QuantizeLinear", "Sigmoid", ["side"], ["gate"])
    n.node("codes/QuantizeLinear").input[0] = "gate"
    n.store("side_scale", np.float32(1 / 255))
    n.store("side_zero", np.uint8(0))


@planted("QR416", "codes/QuantizeLinear", "codes", base=with_a_sigmoid)
def a_scale_that_a_sigmoid_never_fills(n: Network) -> None:
    n.store("side_scale", np.float32(2.5))


def with_a_cast(n: Network) -> None:
    """The second input as whole numbers."""
    with_a_second_input(n)
    n.feeds["side"] *= 100
    n.store("side_scale", np.float32(200 / 255))
    n.insert("codes/QuantizeLinear", "Cast", ["side"], ["whole"], to=TensorProto.INT8)
    n.insert("codes/QuantizeLinear", "Cast", ["whole"], ["real"], to=TensorProto.FLOAT)
    n.node("codes/QuantizeLinear").input[0] = "real"


@planted("QR415", "whole/Cast", "side", base=with_a_cast)
def a_number_that_int8_does_not_hold(n: Network) -> None:
    n.feeds["side"][0, 70, 2, 2] = 300


def with_computed_weights(n: Network) -> None:
    with_a_vector(n)
    n.insert(CONV, "Identity", [n.node(CONV).input[3]], ["computed"])
    n.node(CONV).input[3] = "computed"


@planted("QR403", CONV, base=with_computed_weights)
def a_sum_that_wraps(n: Network) -> None:
    bias = n.value(n.node(CONV).input[8])
    bias[5] = 2**31 - 2
    n.store(n.node(CONV).input[8], bias)


@planted("QR403", CONV, base=with_a_vector)
def a_sum_of_stored_weights_that_wraps(n: Network) -> None:
    """QR406 tells that it can, and is silent where it did."""
    a_sum_that_wraps(n)


@planted("QR404", "logits/Mul", "logits", base=with_a_vector)
def an_output_that_overflows(n: Network) -> None:
    n.node(LAST).output[0] = "small"
    large = n.store("large", np.float32(3e38))
    n.graph.node.append(helper.make_node("Mul", ["small", large], ["logits"], name="logits/Mul"))


def with_a_computed_scale(n: Network) -> None:
    with_a_vector(n)
    old = n.node(ADD).input[4]
    n.insert(ADD, "Relu", [n.store("before", n.value(old))], ["scale"])
    n.node(ADD).input[4] = "scale"


@planted("QR405", ADD, "scale", base=with_a_computed_scale)
def a_scale_that_becomes_zero(n: Network) -> None:
    n.store("before", np.float32(-0.5))


@planted("QR408", "codes/DynamicQuantizeLinear", "offset")
def a_stored_tensor_quantized_at_every_run(n: Network) -> None:
    offset = np.random.default_rng(6).normal(0, 1, (1, 128, 1, 1)).astype(np.float32)
    n.insert(ADD, "DynamicQuantizeLinear", [n.store("offset", offset)], ["codes", "codes_scale", "codes_zero"])
    n.node(ADD).input[3:6] = ["codes", "codes_scale", "codes_zero"]


def with_a_dynamic_input(n: Network) -> None:
    """A second input, quantized dynamically and added in the middle."""
    n.feeds = {"image": image(3), "side": image(4)[:, :1, :6, :6]}
    n.graph.input.append(helper.make_tensor_value_info("side", TensorProto.FLOAT, [1, 1, 6, 6]))
    n.insert(ADD, "DynamicQuantizeLinear", ["side"], ["codes", "codes_scale", "codes_zero"])
    n.node(ADD).input[3:6] = ["codes", "codes_scale", "codes_zero"]


@planted("QR408", "codes/DynamicQuantizeLinear", "side", base=with_a_dynamic_input)
def equal_elements_quantized_dynamically(n: Network) -> None:
    n.feeds["side"][:] = 0.25


@planted("QR202", "codes/DynamicQuantizeLinear", "side", base=with_a_dynamic_input)
def not_a_number_where_a_range_is_taken(n: Network) -> None:
    n.feeds["side"][0, 0, 2, 3] = np.nan


def of_any_batch(n: Network) -> None:
    """The batch is not fixed."""
    n.forget_shapes()
    for value in (*n.graph.input, *n.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"


@planted("QR410", "codes/DynamicQuantizeLinear", "real", base=of_any_batch)
def dynamic_quantization_of_a_batch(n: Network) -> None:
    scale, zero = n.node(CONV).input[1:3]
    n.insert(CONV, "DequantizeLinear", [X, scale, zero], ["real"])
    n.insert(CONV, "DynamicQuantizeLinear", ["real"], ["codes", "codes_scale", "codes_zero"])
    n.node(CONV).input[:3] = ["codes", "codes_scale", "codes_zero"]


# Vectors


def output(n: Network, change: Callable[[Array], Array]) -> None:
    """The recorded output after `change`."""

    def rewrite(folder: Path) -> None:
        file = folder / "test_data_set_0" / "output_0.pb"
        array = numpy_helper.to_array(TensorProto.FromString(file.read_bytes()))
        file.write_bytes(numpy_helper.from_array(change(array)).SerializeToString())

    n.spoil = rewrite


@planted("QR501", LAST, "logits", base=with_a_vector)
def another_recorded_value(n: Network) -> None:
    output(n, lambda y: y + np.float32(0.1) * (np.arange(y.size) == 7))


@planted("QR502", LAST, "logits", base=with_a_vector)
def a_record_of_another_type(n: Network) -> None:
    output(n, lambda y: y.astype(np.float64))


@planted("QR502", tensor="image", base=with_a_vector)
def a_recorded_input_of_another_shape(n: Network) -> None:
    def rewrite(folder: Path) -> None:
        array = numpy_helper.from_array(image(3)[:, :, :64])
        (folder / "test_data_set_0" / "input_0.pb").write_bytes(array.SerializeToString())

    n.spoil = rewrite


@planted("QR503", tensor="logits", base=with_a_vector)
def a_missing_record(n: Network) -> None:
    n.spoil = lambda folder: (folder / "test_data_set_0" / "output_0.pb").unlink()


@planted("QR504", tensor="test_data_set_0/output_1.pb", base=with_a_vector)
def a_record_too_many(n: Network) -> None:
    def copy(folder: Path) -> None:
        file = folder / "test_data_set_0" / "output_0.pb"
        file.with_name("output_1.pb").write_bytes(file.read_bytes())

    n.spoil = copy


def with_a_sparse_tensor(n: Network) -> None:
    n.graph.input.append(helper.make_sparse_tensor_value_info("sparse", TensorProto.FLOAT, [2]))


@planted("QR505", base=with_a_sparse_tensor)
def a_vector_that_cannot_be_fed(n: Network) -> None:
    with_a_vector(n)
