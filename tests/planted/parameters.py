"""QR3xx: scales, zero points, bias."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
from onnx import helper

from planted.case import planted
from planted.graph import BLOCK, CONV
from planted.network import MS, Array, Network

MADE = f"{BLOCK}/conv2.w_DequantizeLinear"
BIAS = f"{BLOCK}/conv2.b_DequantizeLinear"
INPUT = f"{BLOCK}/relu1_out_DequantizeLinear"
CHANNELS = 32


@planted("QR301", CONV, f"{CONV}.planted4")
def a_scale_for_three_channels(n: Network) -> None:
    n.give(n.node(CONV), 4, np.full(3, 0.01, np.float32))


@planted("QR302", MADE, f"{MADE}.planted2", form="qdq")
def one_zero_point_for_many_scales(n: Network) -> None:
    n.give(n.node(MADE), 2, np.int8(0))


@planted("QR303", CONV, f"{CONV}.planted5")
def a_zero_point_of_another_type(n: Network) -> None:
    n.give(n.node(CONV), 5, np.zeros(CHANNELS, np.uint8))


@planted("QR303", CONV, f"{CONV}.planted7", base=Network.state_shapes)
def a_zero_point_that_contradicts_the_stated_output(n: Network) -> None:
    n.give(n.node(CONV), 7, np.int8(0))


@planted("QR303", f"{BLOCK}/conv3_quant", f"{BLOCK}/conv2_out_zero_point")
def a_zero_point_that_contradicts_the_next_node(n: Network) -> None:
    """Nothing states the type of the tensor between them: the first gives it, the second contradicts."""
    n.give(n.node(CONV), 7, np.int8(0))


@planted("QR304", BIAS, f"{BLOCK}/conv2.b_quantized_scale", form="qdq")
def a_bias_of_another_scale(n: Network) -> None:
    name = f"{BLOCK}/conv2.b_quantized_scale"
    n.store(name, n.value(name) * np.float32(1.5))


@planted("QR304", BIAS, form="qdq")
def a_bias_with_a_zero_point(n: Network) -> None:
    n.give(n.node(BIAS), 2, np.full(CHANNELS, 3, np.int32))


@planted("QR305", CONV, f"{CONV}.planted8")
def a_bias_for_three_channels(n: Network) -> None:
    n.give(n.node(CONV), 8, np.zeros(3, np.int32))


@planted("QR306", CONV, f"{CONV}.planted4[5]")
def a_scale_of_zero(n: Network) -> None:
    scale = n.value(n.node(CONV).input[4])
    scale[5] = 0
    n.give(n.node(CONV), 4, scale)


@planted("QR306", CONV, f"{CONV}.planted4[5]")
def a_negative_scale(n: Network) -> None:
    scale = n.value(n.node(CONV).input[4])
    scale[5] *= -1
    n.give(n.node(CONV), 4, scale)


@planted("QR306", MADE, f"{MADE}.planted1[5]", form="qdq")
def a_scale_of_zero_for_weights_that_are_not(n: Network) -> None:
    scale = n.value(n.node(MADE).input[1])
    scale[5] = 0
    n.give(n.node(MADE), 1, scale)


@planted("QR307", CONV, f"{CONV}.planted5")
def one_zero_point_beside_scales_per_channel(n: Network) -> None:
    n.give(n.node(CONV), 5, np.int8(0))


def a_scale_per_channel_of_an_activation(n: Network) -> None:
    """DequantizeLinear of com.microsoft with an axis."""
    node = n.node(INPUT)
    node.domain = MS
    n.model.opset_import.append(helper.make_opsetid(MS, 1))
    scale, zero = (n.value(name) for name in node.input[1:3])
    n.give(node, 1, np.full(CHANNELS, scale))
    n.give(node, 2, np.full(CHANNELS, zero))
    n.set(node, axis=1)


@planted("QR308", INPUT, f"{INPUT}.planted1", form="qdq", base=a_scale_per_channel_of_an_activation)
def a_forgotten_axis(n: Network) -> None:
    n.set(n.node(INPUT), axis=None)


@planted("QR309", CONV, f"{CONV}.planted4[5]")
def a_subnormal_scale(n: Network) -> None:
    scale = n.value(n.node(CONV).input[4])
    scale[5] = 1e-40
    n.give(n.node(CONV), 4, scale)


def blocks(n: Network) -> None:
    """Weights in blocks of 16 input channels."""
    n.opset(21, 10)
    node = n.node(MADE)
    scale = n.value(node.input[1])
    shape = (CHANNELS, 2, 3, 3)
    n.give(node, 1, np.broadcast_to(scale[:, None, None, None], shape).copy())
    n.give(node, 2, np.zeros(shape, np.int8))
    n.set(node, axis=1, block_size=16)


@planted("QR310", MADE, form="qdq", base=blocks)
def a_negative_block_size(n: Network) -> None:
    n.set(n.node(MADE), block_size=-16)


@planted("QR310", MADE, f"{BLOCK}/conv2.w_quantized", form="qdq", base=blocks)
def blocks_along_no_axis(n: Network) -> None:
    n.set(n.node(MADE), axis=4)


@planted("QR301", MADE, f"{MADE}.planted1", form="qdq", base=blocks)
def blocks_of_another_size(n: Network) -> None:
    n.set(n.node(MADE), block_size=8)


def eight_bit_floats(n: Network) -> None:
    """Weights in float8e4m3fn."""
    n.opset(21, 10)
    node = n.node(MADE)
    n.give(node, 0, n.value(node.input[0]).astype(np.float32).astype(ml_dtypes.float8_e4m3fn))
    n.give(node, 2, np.zeros(CHANNELS, ml_dtypes.float8_e4m3fn))


@planted("QR311", MADE, f"{MADE}.planted2", form="qdq", base=eight_bit_floats)
def a_zero_point_of_floats(n: Network) -> None:
    n.store(f"{MADE}.planted2", np.ones(CHANNELS, ml_dtypes.float8_e4m3fn))


@planted("QR312", CONV, f"{BLOCK}/conv2.b_quantized")
def a_clipped_bias(n: Network) -> None:
    name = f"{BLOCK}/conv2.b_quantized"
    bias = n.value(name)
    bias[5] = 2**31 - 1
    n.store(name, bias)


@planted("QR313", "/layer3/3/conv2_quant", f"{BLOCK}/conv2.b_quantized")
def a_bias_of_two_nodes(n: Network) -> None:
    other = n.node("/layer3/3/conv2_quant")
    n.drop([other.input[8]])
    other.input[8] = f"{BLOCK}/conv2.b_quantized"


def weights(n: Network, change: Callable[[Array], Array]) -> None:
    name = f"{BLOCK}/conv2.w_quantized"
    n.store(name, change(n.value(name)).astype(np.int8))


@planted("QR314", CONV, f"{BLOCK}/conv2.w_quantized")
def weights_of_few_codes(n: Network) -> None:
    weights(n, lambda w: w // 8)


@planted("QR315", CONV, f"{BLOCK}/conv2.w_quantized")
def a_channel_without_weights(n: Network) -> None:
    weights(n, lambda w: np.where(np.arange(CHANNELS)[:, None, None, None] == 5, 0, w))


@planted("QR316", CONV, f"{BLOCK}/conv2.w_quantized")
def weights_with_a_zero_point(n: Network) -> None:
    n.give(n.node(CONV), 5, np.full(CHANNELS, 3, np.int8))


@planted("QR317", MADE, f"{BLOCK}/conv2.w_quantized", form="qdq")
def scales_along_the_input_channels(n: Network) -> None:
    n.set(n.node(MADE), axis=1)


@planted("QR318", CONV, f"{BLOCK}/conv1_out_quantized")
def an_input_read_with_another_scale(n: Network) -> None:
    n.give(n.node(CONV), 1, n.value(n.node(CONV).input[1]) * np.float32(1.25))


@planted("QR318", INPUT, f"{BLOCK}/relu1_out_QuantizeLinear_Output", form="qdq")
def an_input_read_with_another_zero_point(n: Network) -> None:
    n.give(n.node(INPUT), 2, n.value(n.node(INPUT).input[2]) + np.uint8(3))


@planted("QR318", CONV, f"{BLOCK}/conv1_out_quantized")
def scales_of_input_and_output_exchanged(n: Network) -> None:
    inputs = n.node(CONV).input
    inputs[1], inputs[6] = inputs[6], inputs[1]


@planted("QR406", CONV, f"{BLOCK}/conv2.w_quantized")
def a_bias_that_overflows(n: Network) -> None:
    name = f"{BLOCK}/conv2.b_quantized"
    bias = n.value(name)
    bias[5] = 2**31 - 9000
    n.store(name, bias)


@planted("QR407", CONV, f"{BLOCK}/conv2.w_quantized")
def a_bias_that_leaves_little_room(n: Network) -> None:
    name = f"{BLOCK}/conv2.b_quantized"
    bias = n.value(name)
    bias[5] = 1_500_000_000
    n.store(name, bias)


@planted("QR409", CONV, f"{BLOCK}/conv2.w_quantized")
def weights_of_eight_bits(n: Network) -> None:
    weights(n, lambda w: np.clip(w.astype(int) * 2, -127, 127))
