"""ResNet-50 as onnxruntime's quantizer writes it, and ways to plant a defect in it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from helpers.models import make_model
from onnx import TensorProto, helper, numpy_helper

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

SIZE, WIDTH, CLASSES = 96, 8, 40
"""Pixels; channels of the first layer (an eighth of the real 64), classes. 96 leaves a last map of 3 by 3."""
BLOCKS = (3, 4, 6, 3)
MS = "com.microsoft"
Array = np.ndarray[Any, Any]


def resnet50(width: int = WIDTH, size: int = SIZE, classes: int = CLASSES) -> onnx.ModelProto:
    """He et al. 2015, table 1: 53 convolutions and the classifier, batch normalization folded, seeded weights.

    width: channels of the first layer; 64 in the paper. size: pixels.
    """
    rng = np.random.default_rng(50)
    nodes: list[onnx.NodeProto] = []
    stored: dict[str, Array] = {}

    def add(op_type: str, name: str, inputs: Sequence[str], **attributes: Any) -> str:
        nodes.append(helper.make_node(op_type, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def conv(name: str, x: str, cin: int, cout: int, kernel: int, stride: int = 1, gain: float = 2.0) -> str:
        shape = (cout, cin, kernel, kernel)
        stored[f"{name}.w"] = rng.standard_normal(shape) * np.sqrt(gain / (cin * kernel * kernel))
        stored[f"{name}.b"] = rng.normal(0, 0.05, cout)
        return add("Conv", name, [x, f"{name}.w", f"{name}.b"], kernel_shape=[kernel] * 2, strides=[stride] * 2,
                   pads=[kernel // 2] * 4)  # fmt: skip

    x = add("Relu", "/relu", [conv("/conv1", "image", 3, width, 7, 2)])
    x = add("MaxPool", "/maxpool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, count in enumerate(BLOCKS):
        middle = width << stage
        for index in range(count):
            name, stride = f"/layer{stage + 1}/{index}", 2 if stage and not index else 1
            y = add("Relu", f"{name}/relu1", [conv(f"{name}/conv1", x, channels, middle, 1)])
            y = add("Relu", f"{name}/relu2", [conv(f"{name}/conv2", y, middle, middle, 3, stride)])
            y = conv(f"{name}/conv3", y, middle, 4 * middle, 1, gain=0.5)
            x = x if index else conv(f"{name}/downsample", x, channels, 4 * middle, 1, stride, gain=0.5)
            x = add("Relu", f"{name}/relu3", [add("Add", f"{name}/add", [y, x])])
            channels = 4 * middle
    x = add("Flatten", "/flatten", [add("GlobalAveragePool", "/avgpool", [x])])
    stored["/fc.w"] = rng.standard_normal((classes, channels)) / np.sqrt(channels)
    stored["/fc.b"] = rng.normal(0, 0.05, classes)
    nodes.append(helper.make_node("Gemm", [x, "/fc.w", "/fc.b"], ["logits"], "/fc", transB=1))
    model = make_model(
        nodes,
        {"image": [1, 3, size, size]},
        {"logits": [1, classes]},
        {name: value.astype(np.float32) for name, value in stored.items()},
        opset=17,
    )
    return onnx.shape_inference.infer_shapes(model)


def image(seed: int, size: int = SIZE) -> Array:
    return np.random.default_rng([seed, 7]).standard_normal((1, 3, size, size)).astype(np.float32)


@cache
def quantized(form: str) -> bytes:
    """The network in ``qop`` or ``qdq`` form with 7-bit weights, made once for all processes of a test run."""
    from _quantizer import static

    path = Path(os.environ["QRUN_TEST_OBJECTS"]) / f"resnet50-{form}.onnx"
    if not path.exists():
        made = static(resnet50(), form, [image(1), image(2)], reduce_range=True)
        part = path.with_suffix(f".{os.getpid()}")
        onnx.save(made, part)
        part.replace(path)
    return path.read_bytes()


class Network:
    """A model to change.

    feeds: the inputs of a vector beside it, if any. spoil: changes the files, in the folder that they are written to.
    """

    def __init__(self, form: str) -> None:
        self.model = onnx.load_from_string(quantized(form))
        self.feeds: dict[str, Array] = {}
        self.spoil: Callable[[Path], Any] = lambda folder: None

    @property
    def graph(self) -> onnx.GraphProto:
        return self.model.graph

    def node(self, name: str) -> onnx.NodeProto:
        return next(n for n in self.graph.node if n.name == name)

    def maker(self, tensor: str) -> onnx.NodeProto:
        return next(n for n in self.graph.node if tensor in n.output)

    def reader(self, tensor: str) -> onnx.NodeProto:
        (found,) = [n for n in self.graph.node if tensor in n.input]
        return found

    def value(self, name: str) -> Array:
        return numpy_helper.to_array(next(t for t in self.graph.initializer if t.name == name)).copy()

    def store(self, name: str, value: Any) -> str:
        """An initializer of this name, new or in place of the old one."""
        self.drop([name])
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def give(self, node: onnx.NodeProto, place: int, value: Any) -> str:
        """This node alone reads a stored `value` at `place`; what nobody reads any more goes."""
        old, name = node.input[place], f"{node.name}.planted{place}"
        node.input[place] = self.store(name, value)
        if not any(old in n.input for n in self.graph.node):
            self.drop([old])
        return name

    def drop(self, names: Sequence[str]) -> None:
        for tensor in [t for t in self.graph.initializer if t.name in names]:
            self.graph.initializer.remove(tensor)

    def insert(
        self, before: str, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **more: Any
    ) -> onnx.NodeProto:
        """A node named after its first output, in front of the node `before`."""
        place = next(i for i, n in enumerate(self.graph.node) if n.name == before)
        self.graph.node.insert(
            place, helper.make_node(op_type, inputs, outputs, name=f"{outputs[0]}/{op_type}", **more)
        )
        return self.graph.node[place]

    def set(self, node: onnx.NodeProto, **attributes: Any) -> None:
        """Attributes of a node; None removes one."""
        for attribute in [a for a in node.attribute if a.name in attributes]:
            node.attribute.remove(attribute)
        node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items() if v is not None)

    def forget_shapes(self) -> None:
        """The file states no types inside the graph, as most files do."""
        del self.graph.value_info[:]

    def state_shapes(self) -> None:
        """The file states types and shapes of the quantized tensors too, as after shape inference."""
        made = {tensor for node in self.graph.node for tensor in node.output}
        for value in list(self.graph.value_info):
            name = f"{value.name}_quantized"
            if name in made:
                shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
                self.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.UINT8, shape))

    def opset(self, version: int, ir_version: int) -> None:
        self.model.opset_import[0].version = version
        self.model.ir_version = ir_version
