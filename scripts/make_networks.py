"""Build real network graphs with random weights, quantize them, and write them to a folder.

    python scripts/make_networks.py DIR [NAME ...]

The graphs come from the onnx wheel (backend/test/data/light: the shapes of the trained networks, without their
weights), MobileNetV2 from this file, and transformers' encoders from _transformer.py: `transformer` is two layers of
the size of BERT's, `encoder-BxL` six layers of 384 channels, as sentence encoders have, for B texts of L tokens.
`small-nodes` is 500 nodes on small tensors, from _small_nodes.py; taggers and a product with 4-bit weights are those
of _sequence_networks.py, steps of decoders those of _decoder_networks.py. Weights are random with a
fixed seed and scaled so that activations keep their size through all layers. NAME-float.onnx is the network, NAME-x.npy
an input (NAME-x.npz: several); onnxruntime's static quantizer makes NAME-qop.onnx (QLinearConv, ...) and NAME-qdq.onnx,
and its dynamic one NAME-dynamic.onnx (ConvInteger, MatMulInteger); NAME-half.onnx is in float16 between its ends.
Needs the `dev` extra. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from _decoder_networks import NAMES as DECODERS
from _decoder_networks import feeds as decoder_feeds
from _decoder_networks import network as decoder_network
from _halved import halved
from _quantizer import IR_VERSION, dynamic, static
from _sequence_networks import NAMES as SEQUENCES
from _sequence_networks import formats as formats_of_sequences
from _sequence_networks import network as sequence_network
from _sequence_networks import shape as shape_of_sequences
from _small_nodes import small_nodes
from _transformer import Encoder
from onnx import TensorProto, helper, numpy_helper, version_converter

OPSET = 17
LENGTH = 128
"""Tokens that the transformer takes."""
ENCODERS = {"encoder-8x128": (8, 128), "encoder-1x16": (1, 16), "encoder-1x384": (1, 384)}
"""Texts and tokens of each that a sentence encoder takes."""
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
NAMES = (
    "squeezenet", "resnet50", "shufflenet", "mobilenetv2", "inception_v1", "inception_v2", "densenet121", "transformer",
    *ENCODERS, "small-nodes", *SEQUENCES, *DECODERS,
)  # fmt: skip
DYNAMIC = ("resnet50", "mobilenetv2")
"""The convolutional networks that are also quantized dynamically, and measured as floats."""
HALF = ("resnet50", "encoder-8x128")
"""The networks that are also measured in float16."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {', '.join(NAMES)} (all)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.names or NAMES:
        for path in make(name, options.folder):
            print(path)


def make(
    name: str, folder: Path, size: int = 224, formats: Sequence[str] = (), reduce_range: bool = False
) -> list[Path]:
    """Write NAME-float.onnx, its input and a model for each other one of `formats`; returns these paths.

    size: of the image, or of the transformer's rows: a multiple of 64. formats: all that there are for this network.
    """
    size = 768 if name == "transformer" and size == 224 else size
    formats = [kind for kind in formats or formats_of(name) if kind != "float"]
    model = float_network(name, size)
    if name in DECODERS:  # onnx does not know what onnxruntime has in its domain
        np.savez(folder / f"{name}-x.npz", **decoder_feeds(0))  # type: ignore[arg-type]
    else:
        onnx.checker.check_model(model)
        np.save(folder / f"{name}-x.npy", image(name, size, 0))
    onnx.save(model, folder / f"{name}-float.onnx")
    paths = []
    for kind in formats:
        path = folder / f"{name}-{kind}.onnx"
        images = [image(name, size, i) for i in (1, 2)]
        onnx.save(_made(model, kind, images, reduce_range), path)
        paths.append(path)
    return paths


def _made(model: onnx.ModelProto, kind: str, images: Sequence[np.ndarray], reduce_range: bool) -> onnx.ModelProto:
    """The network in this format."""
    if kind == "half":
        return halved(model)
    return dynamic(model) if kind == "dynamic" else static(model, kind, images, reduce_range=reduce_range)


def formats_of(name: str) -> tuple[str, ...]:
    """The formats that are made of a network."""
    if name in (*DECODERS, "small-nodes"):
        return ("float",)
    if name in SEQUENCES:
        return formats_of_sequences(name)
    all_four = name in DYNAMIC or name in ENCODERS or name == "transformer"
    kinds = ("qop", "qdq", "dynamic", "float") if all_four else ("qop", "qdq")
    return (*kinds, "half") if name in HALF else kinds


def takes_batches(name: str, kind: str) -> bool:
    """Whether N inputs in one run must give what N runs give: dynamic scales are of the whole batch, and some networks
    have one size only."""
    return kind != "dynamic" and name not in (*ENCODERS, *SEQUENCES, *DECODERS, "small-nodes")


def image(name: str, size: int, index: int) -> np.ndarray:
    """A random image with structure at several scales, [1,3,size,size], about zero mean and unit variance; random rows
    for other networks: [1,LENGTH,size] for the transformer."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), index])
    if name in SEQUENCES:
        return rng.standard_normal(shape_of_sequences(name)).astype(np.float32)
    rows = {"transformer": (1, LENGTH, size), "small-nodes": (1, 16, 32)} | {n: (*s, 384) for n, s in ENCODERS.items()}
    if name in rows:
        return rng.standard_normal(rows[name]).astype(np.float32)
    total = np.zeros((1, 3, size, size))
    for cells in (4, 16, size):
        places = np.arange(size) * cells // size
        total += rng.standard_normal((1, 3, cells, cells))[:, :, places][:, :, :, places]
    return np.asarray(total / np.sqrt(3), np.float32)


def float_network(name: str, size: int = 224) -> onnx.ModelProto:
    """The network with random weights, BatchNormalization folded into convolutions, at opset 17."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name in ("transformer", "small-nodes", *ENCODERS, *SEQUENCES, *DECODERS):
        made = rows_network(name, size, rng)
        made.ir_version = IR_VERSION
        return made
    model = mobilenet_v2() if name == "mobilenetv2" else onnx.load(LIGHT / f"light_{name}.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes = simplify(model.graph.node, constants)
    randomize(nodes, constants, rng)
    nodes = fold(nodes, constants)
    used = {i for n in nodes for i in n.input}
    data = next(v for v in model.graph.input if v.name in used and v.name not in constants)
    for axis in (2, 3):
        data.type.tensor_type.shape.dim[axis].dim_value = size
    outputs = [helper.make_tensor_value_info(v.name, TensorProto.FLOAT, None) for v in model.graph.output]
    tensors = [numpy_helper.from_array(a, n) for n, a in constants.items() if n in used]
    graph = helper.make_graph(nodes, name, [data], outputs, tensors)
    opset = model.opset_import[0].version
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name="qrun")
    built.ir_version = IR_VERSION
    if opset != OPSET:
        built = version_converter.convert_version(built, OPSET)
    return onnx.shape_inference.infer_shapes(built)


def rows_network(name: str, size: int, rng: np.random.Generator) -> onnx.ModelProto:
    """A network of rows: an encoder, a decoder, or the one of small nodes."""
    if name == "small-nodes":
        return small_nodes(OPSET, rng)
    if name in SEQUENCES or name in DECODERS:
        return (sequence_network if name in SEQUENCES else decoder_network)(name, OPSET, rng)
    if name == "transformer":
        return Encoder(2, size, size // 64, LENGTH, rng).model(OPSET)
    batch, length = ENCODERS[name]
    return Encoder(6, 384, 12, length, rng, batch).model(OPSET)


def simplify(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """Constants evaluated, no Dropout, and Add for a Sum of two,
    which is what exporters write and the quantizer knows."""
    renamed: dict[str, str] = {}
    kept: list[onnx.NodeProto] = []
    for node in nodes:
        for place, name in enumerate(node.input):
            node.input[place] = renamed.get(name, name)
        if node.op_type == "ConstantOfShape":
            constants[node.output[0]] = np.zeros(constants[node.input[0]], np.float32)
        elif node.op_type == "Reshape" and node.input[0] in constants:
            constants[node.output[0]] = constants[node.input[0]].reshape(constants[node.input[1]])
        elif node.op_type == "Dropout":
            renamed[node.output[0]] = node.input[0]
        else:
            node.op_type = "Add" if node.op_type == "Sum" and len(node.input) == 2 else node.op_type
            node.name = f"{node.op_type}_{len(kept)}"
            kept.append(node)
    return kept


def randomize(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Fill the weights so that a layer's output is about as large as its input, a residual branch half as large."""
    readers = {i: n for n in nodes for i in n.input}
    summed = {i for n in nodes if n.op_type in ("Sum", "Add") for i in n.input}
    rectified = {n.input[0] for n in nodes if n.op_type in ("Relu", "Clip")}
    for node in nodes:
        if node.op_type in ("Conv", "Gemm"):
            shape = constants[node.input[1]].shape
            after = readers.get(node.output[0])
            name = after.output[0] if after is not None and after.op_type == "BatchNormalization" else node.output[0]
            gain = np.sqrt((2 if name in rectified else 1) / int(np.prod(shape[1:]))) * (0.5 if name in summed else 1)
            constants[node.input[1]] = (rng.standard_normal(shape) * gain).astype(np.float32)
            if len(node.input) > 2:
                constants[node.input[2]] = rng.normal(0, 0.05, constants[node.input[2]].shape).astype(np.float32)
        elif node.op_type == "BatchNormalization":
            size = constants[node.input[1]].shape
            drawn = (
                rng.uniform(0.7, 1.3, size),
                rng.normal(0, 0.1, size),
                rng.normal(0, 0.1, size),
                rng.uniform(0.7, 1.4, size),
            )
            constants.update({n: v.astype(np.float32) for n, v in zip(node.input[1:5], drawn, strict=True)})
        elif node.op_type == "Unsqueeze":
            middle = 1.0 if readers[node.output[0]].op_type == "Mul" else 0.0
            drawn_one = rng.normal(middle, 0.1, constants[node.input[0]].shape)
            constants[node.input[0]] = drawn_one.astype(np.float32)


def fold(nodes: Sequence[onnx.NodeProto], constants: dict[str, np.ndarray]) -> list[onnx.NodeProto]:
    """Fold each BatchNormalization that alone follows a Conv into its weights and bias."""
    made = {n.output[0]: n for n in nodes}
    readers: dict[str, int] = {}
    for node in nodes:
        for name in node.input:
            readers[name] = readers.get(name, 0) + 1
    kept = list(nodes)
    for node in nodes:
        conv = made.get(node.input[0])
        if node.op_type != "BatchNormalization" or conv is None or conv.op_type != "Conv":
            continue
        if readers[conv.output[0]] != 1:
            continue
        epsilon = next((a.f for a in node.attribute if a.name == "epsilon"), 1e-5)
        gamma, beta, mean, variance = (constants[i].astype(np.float64) for i in node.input[1:5])
        factor = gamma / np.sqrt(variance + epsilon)
        bias = constants[conv.input[2]] if len(conv.input) > 2 else np.zeros(len(gamma))
        weight = constants[conv.input[1]]
        lanes = (-1, *(1,) * (weight.ndim - 1))
        names = [conv.input[0], f"{conv.output[0]}_w_folded", f"{conv.output[0]}_b_folded"]
        constants[names[1]] = (weight * factor.reshape(lanes)).astype(np.float32)
        constants[names[2]] = ((bias - mean) * factor + beta).astype(np.float32)
        del conv.input[:]
        conv.input.extend(names)
        conv.output[0] = node.output[0]
        kept.remove(node)
    return kept


def mobilenet_v2(width: float = 1.0, classes: int = 1000) -> onnx.ModelProto:
    """MobileNetV2 (Sandler et al. 2018) with placeholder weights."""
    nodes: list[onnx.NodeProto] = []
    tensors: list[onnx.TensorProto] = [
        numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("zero", 0), ("six", 6))
    ]

    def add(op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def weight(*shape: int) -> str:
        tensors.append(numpy_helper.from_array(np.zeros(shape, np.float32), f"w{len(tensors)}"))
        return tensors[-1].name

    def conv(x: str, cin: int, cout: int, kernel: int, stride: int = 1, group: int = 1, clip: bool = True) -> str:
        half = kernel // 2
        inputs = [x, weight(cout, cin // group, kernel, kernel), weight(cout)]
        y = add("Conv", inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[half] * 4, group=group)
        return add("Clip", [y, "zero", "six"]) if clip else y

    channels = int(32 * width)
    x = conv("x", 3, channels, 3, 2)
    for expand, out, repeat, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for index in range(repeat):
            step, cout, hidden = stride if index == 0 else 1, int(out * width), channels * expand
            y = conv(x, channels, hidden, 1) if expand > 1 else x
            y = conv(conv(y, hidden, hidden, 3, step, hidden), hidden, cout, 1, clip=False)
            x = add("Add", [x, y]) if step == 1 and cout == channels else y
            channels = cout
    x = add("Flatten", [add("GlobalAveragePool", [conv(x, channels, 1280, 1)])])
    nodes.append(helper.make_node("Gemm", [x, weight(classes, 1280), weight(classes)], ["logits"], transB=1))
    source = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 224, 224])
    sink = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, classes])
    graph = helper.make_graph(nodes, "mobilenetv2", [source], [sink], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])


if __name__ == "__main__":
    main()
