"""QR2xx: operators, attributes, types and shapes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from planted.case import planted
from planted.graph import ADD, BLOCK, CONV, X
from planted.network import Network, image


@planted("QR201", "gated/Gate")
def an_operator_of_a_custom_domain(n: Network) -> None:
    n.insert(CONV, "Gate", [X], ["gated"], domain="com.acme")
    n.node(CONV).input[0] = "gated"
    n.model.opset_import.append(helper.make_opsetid("com.acme", 1))


@planted("QR203", "leaky/LeakyRelu", X)
def a_float_operator_on_codes(n: Network) -> None:
    n.insert(CONV, "LeakyRelu", [X], ["leaky"])
    n.node(CONV).input[0] = "leaky"


@planted("QR204", CONV)
def a_misspelled_attribute(n: Network) -> None:
    n.set(n.node(CONV), strides=None, stride=[1, 1])


@planted("QR205", CONV)
def a_zero_point_left_out(n: Network) -> None:
    node = n.node(CONV)
    n.drop([node.input[5]])
    node.input[5] = ""


@planted("QR206", CONV, base=Network.state_shapes)
def a_window_larger_than_its_input(n: Network) -> None:
    n.set(n.node(CONV), dilations=[9, 9])


@planted("QR207", CONV, f"{BLOCK}/conv2.w_quantized")
def a_group_that_does_not_fit(n: Network) -> None:
    n.set(n.node(CONV), group=2)


@planted("QR208", ADD, f"{ADD}.planted3", base=Network.state_shapes)
def operands_that_do_not_broadcast(n: Network) -> None:
    n.give(n.node(ADD), 3, np.zeros((1, 7, 1, 1), np.uint8))


@planted("QR208", "/fc_quant", "/fc.w_quantized", base=Network.state_shapes)
def a_lost_transposition(n: Network) -> None:
    n.set(n.node("/fc_quant"), transB=0)


@planted("QR211", CONV)
def a_misspelled_operator(n: Network) -> None:
    n.node(CONV).op_type = "QLinearConf"


@planted("QR211", ADD)
def an_operator_of_another_domain(n: Network) -> None:
    n.node(ADD).domain = ""


@planted("QR212", ADD)
def an_output_too_many(n: Network) -> None:
    n.node(ADD).output.append("extra")


def a_copy(n: Network) -> None:
    """An Identity between two convolutions, its output's type in the file."""
    n.insert(CONV, "Identity", [X], ["copy"])
    n.node(CONV).input[0] = "copy"
    n.graph.value_info.append(helper.make_tensor_value_info("copy", TensorProto.UINT8, None))


@planted("QR213", "copy/Identity", "copy", base=a_copy)
def a_stated_type_that_is_wrong(n: Network) -> None:
    n.graph.value_info[-1].type.tensor_type.elem_type = TensorProto.INT8


@planted("QR214", CONV, f"{BLOCK}/conv2.w_quantized")
def a_kernel_shape_of_another_weight(n: Network) -> None:
    n.set(n.node(CONV), kernel_shape=[5, 5])


@planted("QR215", CONV)
def pads_beside_auto_pad(n: Network) -> None:
    n.set(n.node(CONV), auto_pad="SAME_UPPER")


@planted("QR216", CONV)
def negative_pads(n: Network) -> None:
    n.set(n.node(CONV), pads=[1, 1, -1, 1])


@planted("QR217", "relu/Relu")
def sixteen_bit_integers(n: Network) -> None:
    """Relu takes int16 since opset 14, and onnxruntime has no kernel for it."""
    n.insert(CONV, "Cast", [X], ["wide"], to=TensorProto.INT16)
    n.insert(CONV, "Relu", ["wide"], ["relu"])
    n.insert(CONV, "Cast", ["relu"], ["narrow"], to=TensorProto.UINT8)
    n.node(CONV).input[0] = "narrow"


@planted("QR218", CONV)
def auto_pad_with_dilations(n: Network) -> None:
    n.set(n.node(CONV), pads=None, auto_pad="SAME_UPPER", dilations=[2, 2])


@planted("QR219", "noise/RandomUniformLike")
def numbers_that_are_drawn(n: Network) -> None:
    n.insert(CONV, "Cast", [X], ["wide"], to=TensorProto.FLOAT)
    n.insert(CONV, "RandomUniformLike", ["wide"], ["noise"])
    n.insert(CONV, "Add", ["wide", "noise"], ["added"])
    n.insert(CONV, "Cast", ["added"], ["narrow"], to=TensorProto.UINT8)
    n.node(CONV).input[0] = "narrow"


# What only a run can show: a vector beside the model


def some_channels(n: Network) -> None:
    """The channels of a tensor in another order."""
    n.feeds = {"image": image(3)}
    n.insert(CONV, "Gather", [X, n.store("order", np.arange(32)[::-1].copy())], ["ordered"], axis=1)
    n.node(CONV).input[0] = "ordered"


@planted("QR209", "ordered/Gather", "order", base=some_channels)
def an_index_outside_its_axis(n: Network) -> None:
    n.store("order", np.arange(32) + 1)
