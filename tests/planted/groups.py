"""QR6xx: groups of DequantizeLinear, an operator and QuantizeLinear."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from planted.case import planted
from planted.graph import BLOCK
from planted.network import Network

CONV, NEXT = f"{BLOCK}/conv2", f"{BLOCK}/conv3"
REAL = f"{BLOCK}/relu2_out_DequantizeLinear_Output"
SCALE, ZERO = f"{BLOCK}/relu2_out_scale", f"{BLOCK}/relu2_out_zero_point"


@planted("QR601", CONV, f"{BLOCK}/relu2_out", form="qdq")
def weights_in_float(n: Network) -> None:
    make = n.maker(n.node(CONV).input[1])
    codes, scale = (n.value(name) for name in make.input[:2])
    n.graph.node.remove(make)
    n.drop(make.input)
    n.node(CONV).input[1] = n.store("float", (codes * scale[:, None, None, None]).astype(np.float32))


@planted("QR601", f"{BLOCK}/add", f"{BLOCK}/relu3_out", form="qdq")
def a_sum_with_a_float_tensor(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("side", TensorProto.FLOAT, [1, 128, 6, 6]))
    n.node(f"{BLOCK}/add").input[1] = "side"


def quantized_again(n: Network, tensor: str) -> str:
    """QuantizeLinear and DequantizeLinear of `tensor`, in front of the next convolution."""
    n.insert(NEXT, "QuantizeLinear", [tensor, SCALE, ZERO], [f"{tensor}_codes"])
    n.insert(NEXT, "DequantizeLinear", [f"{tensor}_codes", SCALE, ZERO], [f"{tensor}_real"])
    n.node(NEXT).input[0] = f"{tensor}_real"
    return f"{tensor}_real"


@planted("QR602", "shares/LogSoftmax", "shares", form="qdq")
def an_operator_without_an_integer_form(n: Network) -> None:
    n.insert(NEXT, "LogSoftmax", [REAL], ["shares"], axis=1)
    quantized_again(n, "shares")


def opset_21(n: Network) -> None:
    n.opset(21, 10)


@planted("QR603", CONV, form="qdq", base=opset_21)
def sixteen_bit_activations(n: Network) -> None:
    n.store(ZERO, np.uint16(0))


def dedicated(n: Network) -> None:
    """A DequantizeLinear for each reader."""
    for node in [d for d in n.graph.node if d.op_type == "DequantizeLinear"]:
        readers = [r for r in n.graph.node if node.output[0] in r.input]
        for count, reader in enumerate(readers[1:]):
            name = f"{node.output[0]}_{count}"
            n.insert(reader.name, "DequantizeLinear", node.input, [name])
            places = [i for i, tensor in enumerate(reader.input) if tensor == node.output[0]]
            reader.input[places[0]] = name


@planted("QR604", "/layer3/1/relu3_out_DequantizeLinear", "/layer3/1/relu3_out_DequantizeLinear_Output", form="qdq",
         base=dedicated)  # fmt: skip
def a_shared_dequantize(n: Network) -> None:
    add = n.node(f"{BLOCK}/add")
    n.graph.node.remove(n.maker(add.input[1]))
    add.input[1] = "/layer3/1/relu3_out_DequantizeLinear_Output"


@planted("QR606", "/layer1/0/conv1", "/layer1/0/", form="qdq")
def activations_of_int8(n: Network) -> None:
    """As quantize_static writes them unless asked for others."""
    for zero in {node.input[2] for node in n.graph.node if node.op_type == "QuantizeLinear"}:
        n.store(zero, np.int8(int(n.value(zero)) - 128))


@planted("QR607", "turned/Transpose", "turned", form="qdq")
def a_transposition_to_another_zero_point(n: Network) -> None:
    n.insert(NEXT, "Transpose", [REAL], ["turned"], perm=[0, 1, 3, 2])
    parameters = [SCALE, n.store("higher", np.uint8(1))]
    n.insert(NEXT, "QuantizeLinear", ["turned", *parameters], ["turned_codes"])
    n.insert(NEXT, "DequantizeLinear", ["turned_codes", *parameters], ["turned_real"])
    n.node(NEXT).input[0] = "turned_real"


@planted("QR605", "mean/AveragePool", "mean", form="qdq")
def averages_that_are_ties(n: Network) -> None:
    n.insert(NEXT, "AveragePool", [REAL], ["mean"], kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
    quantized_again(n, "mean")
