"""QR608 to QR613: what the default session of onnxruntime rewrites."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from planted.case import planted
from planted.graph import BLOCK
from planted.groups import NEXT, REAL, opset_21, quantized_again
from planted.network import Network

CONV = f"{BLOCK}/conv2"
FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32


@planted("QR608", CONV, "float bias", form="qdq")
def a_bias_in_float(n: Network) -> None:
    make = n.maker(n.node(CONV).input[2])
    codes, scale = (n.value(name) for name in make.input[:2])
    n.graph.node.remove(make)
    n.drop(make.input)
    n.node(CONV).input[2] = n.store("float bias", (codes * scale).astype(np.float32))


@planted("QR609", "means/AveragePool", "means", form="qdq", base=opset_21)
def a_pool_with_dilations(n: Network) -> None:
    n.insert(NEXT, "AveragePool", [REAL], ["means"], kernel_shape=[3, 3], dilations=[2, 2], pads=[2, 2, 2, 2])
    quantized_again(n, "means")


@planted("QR610", "product/MatMul", "side", form="qdq")
def weights_alone_in_codes(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("side", FLOAT, [1, 32]))
    n.graph.output.append(helper.make_tensor_value_info("product", FLOAT, [1, 32]))
    codes = np.random.default_rng(1).integers(-127, 128, (32, 32)).astype(np.int8)
    n.insert(NEXT, "DequantizeLinear", [n.store("codes", codes), n.store("step", np.float32(0.01))], ["weights"])
    n.insert(NEXT, "MatMul", ["side", "weights"], ["product"])


@planted("QR611", "twice_codes/QuantizeLinear", "once", form="qdq")
def two_pairs_with_unlike_scales(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("side", FLOAT, [1, 32]))
    n.graph.output.append(helper.make_tensor_value_info("twice", FLOAT, [1, 32]))
    zero, x = n.store("middle", np.uint8(128)), "side"
    for name, step in (("once", 0.03), ("twice", 0.05)):
        scale = n.store(f"{name}_step", np.float32(step))
        n.insert(NEXT, "QuantizeLinear", [x, scale, zero], [f"{name}_codes"])
        n.insert(NEXT, "DequantizeLinear", [f"{name}_codes", scale, zero], [name])
        x = name


@planted("QR612", "flat/Reshape", "flat", form="qdq")
def int32_codes_before_a_reshape(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("sums", INT32, [2, 3]))
    n.graph.output.append(helper.make_tensor_value_info("flat", FLOAT, [6]))
    n.insert(NEXT, "DequantizeLinear", ["sums", n.store("step", np.float32(0.01))], ["real_sums"])
    n.insert(NEXT, "Reshape", ["real_sums", n.store("flat_shape", np.array([6]))], ["flat"])


@planted("QR613", "shares/Softmax", "shares", form="qdq")
def a_softmax_with_one_scale_per_slice(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("side", FLOAT, [1, 32]))
    n.graph.output.append(helper.make_tensor_value_info("real_shares", FLOAT, [1, 32]))
    one = n.store("side_step", np.float32(0.03)), n.store("middle", np.uint8(128))
    each = n.store("steps", np.linspace(0.003, 0.004, 32, dtype=np.float32)), n.store("bottoms", np.zeros(32, np.uint8))
    n.insert(NEXT, "QuantizeLinear", ["side", *one], ["side_codes"])
    n.insert(NEXT, "DequantizeLinear", ["side_codes", *one], ["real_side"])
    n.insert(NEXT, "Softmax", ["real_side"], ["shares"])
    n.insert(NEXT, "QuantizeLinear", ["shares", *each], ["share_codes"])
    n.insert(NEXT, "DequantizeLinear", ["share_codes", *each], ["real_shares"])
