"""QR1xx: the file and the graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from planted.case import planted
from planted.network import MS, Network

BLOCK = "/layer3/2"
CONV, ADD = f"{BLOCK}/conv2_quant", f"{BLOCK}/add_quant"
X, W = f"{BLOCK}/conv1_out_quantized", f"{BLOCK}/conv2.w_quantized"


def write(network: Network, data: bytes) -> None:
    network.spoil = lambda folder: (folder / "m.onnx").write_bytes(data)


@planted("QR101")
def an_empty_file(n: Network) -> None:
    write(n, b"")


@planted("QR101")
def a_file_cut_off_in_the_middle(n: Network) -> None:
    whole = n.model.SerializeToString()
    write(n, whole[: len(whole) // 2])


@planted("QR101")
def a_web_page(n: Network) -> None:
    write(n, b"<!DOCTYPE html>\n<html><body>Not found</body></html>\n")


@planted("QR101")
def a_pointer_of_git_lfs(n: Network) -> None:
    write(n, b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 23437214\n")


@planted("QR102", CONV, "nowhere")
def an_undefined_tensor(n: Network) -> None:
    n.node(CONV).input[0] = "nowhere"


@planted("QR102", f"{BLOCK}/conv3_quant", f"{BLOCK}/conv2_out_quantized")
def a_tensor_made_twice(n: Network) -> None:
    n.node(f"{BLOCK}/conv3_quant").output[0] = f"{BLOCK}/conv2_out_quantized"
    n.node(ADD).input[0] = f"{BLOCK}/conv2_out_quantized"


@planted("QR103", tensor=W)
def short_data_of_a_tensor(n: Network) -> None:
    stored = next(t for t in n.graph.initializer if t.name == W)
    stored.raw_data = stored.raw_data[:-9]


def outside(n: Network) -> None:
    """Weights in a file beside the model."""

    def move(folder: Path) -> None:
        model = onnx.load(folder / "m.onnx")
        onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=1024)

    n.spoil = move


@planted("QR104", tensor="/fc.w_quantized", base=outside)
def short_external_data(n: Network) -> None:
    move = n.spoil

    def cut(folder: Path) -> None:
        move(folder)
        file = folder / "weights.bin"
        file.write_bytes(file.read_bytes()[:-4000])

    n.spoil = cut


@planted("QR104", base=outside)
def missing_external_data(n: Network) -> None:
    move = n.spoil

    def remove(folder: Path) -> None:
        move(folder)
        (folder / "weights.bin").unlink()

    n.spoil = remove


@planted("QR105", CONV)
def a_domain_that_is_not_imported(n: Network) -> None:
    n.node(CONV).domain = "com.acme"


@planted("QR106")
def an_opset_of_the_future(n: Network) -> None:
    n.model.opset_import[0].version = 99


@planted("QR107")
def a_function_that_calls_itself(n: Network) -> None:
    call = n.insert(CONV, "Round", [X], ["round"], domain="here")
    n.node(CONV).input[0] = "round"
    inside = helper.make_node("Round", ["a"], ["b"], domain="here")
    n.model.functions.append(
        helper.make_function("here", "Round", ["a"], ["b"], [inside], [helper.make_opsetid("here", 1)])
    )
    n.model.opset_import.append(helper.make_opsetid(call.domain, 1))


@planted("QR108")
def two_nodes_in_the_wrong_order(n: Network) -> None:
    place = list(n.graph.node).index(n.node(CONV))
    moved = n.graph.node.pop(place)
    n.graph.node.insert(place + 2, moved)


@planted("QR109", tensor="left.over")
def float_weights_left_over(n: Network) -> None:
    n.store("left.over", np.ones((32, 32, 3, 3), np.float32))


@planted("QR110")
def an_ir_version_that_never_was(n: Network) -> None:
    n.model.ir_version = 99


@planted("QR111", CONV)
def two_nodes_of_one_name(n: Network) -> None:
    n.node(f"{BLOCK}/conv1_quant").name = CONV


@planted("QR112")
def initializers_that_are_no_inputs(n: Network) -> None:
    n.model.ir_version = 3


def four_bits(n: Network) -> None:
    """Weights of 4 bits, in the IR version that has them."""
    n.opset(21, 10)
    make = n.node(f"{BLOCK}/conv2.w_DequantizeLinear")
    codes = np.clip(n.value(make.input[0]) // 8, -8, 7)
    for place, array in ((0, codes), (2, np.zeros(len(codes)))):
        name = make.input[place]
        n.drop([name])
        n.graph.initializer.append(helper.make_tensor(name, TensorProto.INT4, array.shape, array.astype(int).ravel()))


@planted("QR113", tensor=W, form="qdq", base=four_bits)
def four_bits_before_their_ir_version(n: Network) -> None:
    n.model.ir_version = 9


def a_choice(n: Network) -> None:
    """An If between two convolutions."""
    kind = helper.make_tensor_value_info
    branches = {
        key: helper.make_graph(
            [helper.make_node("Identity", [X], [name], name=name)], key, [], [kind(name, TensorProto.UINT8, None)]
        )
        for key, name in (("then_branch", "one"), ("else_branch", "other"))
    }
    n.insert(CONV, "If", [n.store("choose", np.array(True))], ["chosen"], **branches)
    n.node(CONV).input[0] = "chosen"


@planted("QR114", "chosen/If/then_branch/one", X, base=a_choice)
def a_name_made_twice_inside(n: Network) -> None:
    branch = next(a.g for a in n.node("chosen/If").attribute if a.name == "then_branch")
    branch.node[0].output[0] = branch.output[0].name = X
    branch.node[0].input[0] = f"{BLOCK}/conv1_out_zero_point"


@planted("QR115", tensor=f"{BLOCK}/conv2.w_scale")
def a_scale_that_callers_may_replace(n: Network) -> None:
    name = f"{BLOCK}/conv2.w_scale"
    n.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, n.value(name).shape))


@planted("QR116", tensor="mask")
def an_input_that_nobody_reads(n: Network) -> None:
    n.graph.input.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, [1, 3]))


@planted("QR117", "dead/MaxPool", "dead")
def a_node_that_nobody_reads(n: Network) -> None:
    n.insert(CONV, "MaxPool", [X], ["dead"], kernel_shape=[2, 2])


@planted("QR118")
def an_opset_of_com_microsoft_that_does_not_exist(n: Network) -> None:
    next(o for o in n.model.opset_import if o.domain == MS).version = 13


@planted("QR120", "logits_DequantizeLinear", "logits")
def an_output_that_is_stated_too_large(n: Network) -> None:
    n.graph.output[0].type.tensor_type.shape.dim[1].dim_value += 1


def a_choice_of_weights(n: Network) -> None:
    """An If whose branches read a tensor of the main graph."""
    a_choice(n)
    n.store("floor", np.zeros((128, 6, 1), np.uint8))
    for attribute in n.node("chosen/If").attribute:
        node = attribute.g.node[0]
        node.op_type = "Max"
        node.input.append("floor")


@planted("QR121", "chosen/If/then_branch", "chosen/If/then_branch/floor", base=a_choice_of_weights)
def weights_in_both_branches(n: Network) -> None:
    stored = next(t for t in n.graph.initializer if t.name == "floor")
    for number, attribute in enumerate(n.node("chosen/If").attribute):
        own = attribute.g.initializer.add()
        own.CopyFrom(stored)
        own.name = attribute.g.node[0].input[1] = f"floor_{number}"
    n.graph.initializer.remove(stored)
