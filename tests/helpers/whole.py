"""Graphs of several inputs, with graphs inside, for models as exporters write them; weights come from a seed."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
F32, I64, BOOL, I32 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.INT32
DOMAINS = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 3}


class Graph:
    """A graph that grows: `add` returns the name of what a node makes, or the names.
    `inside` begins a body of a node."""

    def __init__(self, seed: int = 7) -> None:
        self.rng = np.random.default_rng(seed)
        self._numbers = itertools.count()
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def inside(self) -> Graph:
        """A graph whose names differ from this one's, with the same source of numbers."""
        made = Graph()
        made.rng, made._numbers = self.rng, self._numbers
        return made

    def input(self, name: str, kind: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, kind: int, shape: Sequence[int | str | None] | None = None) -> None:
        self.outputs.append(helper.make_tensor_value_info(name, kind, shape))

    def store(self, array: Any) -> str:
        name = f"w{next(self._numbers)}"
        self.stored.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *numbers: int) -> str:
        return self.store(np.array(numbers, np.int64))

    def weight(self, *shape: int) -> str:
        """Normal numbers, of which a product of this many terms has a variance of about 1."""
        terms = np.prod(shape[1:]) if len(shape) == 4 else max(shape[-2:])
        return self.store((self.rng.standard_normal(shape) / np.sqrt(terms)).astype(np.float32))

    def table(self, *shape: int) -> str:
        return self.store(self.rng.standard_normal(shape).astype(np.float32))

    def bias(self, *shape: int) -> str:
        return self.store(self.rng.uniform(-0.5, 0.5, shape).astype(np.float32))

    def add(self, op_type: str, *inputs: str, name: str = "", domain: str = "", **attributes: Any) -> str:
        """A node of one output."""
        return self.several(op_type, inputs, 1, name=name, domain=domain, **attributes)[0]

    def several(
        self, op_type: str, inputs: Sequence[str], count: int, name: str = "", domain: str = "", **attributes: Any
    ) -> list[str]:
        """A node of several outputs."""
        number = next(self._numbers)
        made = [name or f"t{number}"] if count == 1 else [f"{name or 't'}{number}_{place}" for place in range(count)]
        node = helper.make_node(op_type, inputs, made, name=f"{op_type}_{number}", domain=domain, **attributes)
        self.nodes.append(node)
        return made

    def linear(self, x: str, terms: int, out: int) -> str:
        return self.add("Add", self.bias(out), self.add("MatMul", x, self.weight(terms, out)))

    def norm(self, x: str, size: int) -> str:
        scale = self.store(self.rng.uniform(0.5, 1.5, size).astype(np.float32))
        return self.add("LayerNormalization", x, scale, self.bias(size), axis=-1)

    def heads(self, x: str, heads: int, size: int, perm: Sequence[int] = (0, 2, 1, 3)) -> str:
        """[batch, seq, heads * size] as [batch, heads, seq, size]."""
        return self.add("Transpose", self.add("Reshape", x, self.ints(0, 0, heads, size)), perm=list(perm))

    def merged(self, x: str, width: int) -> str:
        """[batch, heads, seq, size] as [batch, seq, heads * size]."""
        return self.add("Reshape", self.add("Transpose", x, perm=[0, 2, 1, 3]), self.ints(0, 0, width))

    def proto(self, name: str) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.stored)

    def model(self, opset: int = 17) -> onnx.ModelProto:
        used = {"", *(node.domain for node in self.nodes)}
        opsets = [helper.make_opsetid(d, opset if not d else v) for d, v in DOMAINS.items() if d in used]
        made = helper.make_model(self.proto("g"), opset_imports=opsets, ir_version=9)
        onnx.checker.check_model(made)
        return made


@dataclass
class Case:
    """A model with inputs for a run and those that follow.

    feeds:  of each run; what `carried` names comes from the run before instead, if there was one.
    carried: inputs, and the outputs that they get.
    within: of onnxruntime's results: relative to the largest number of a tensor; codes of 8 bits may differ by one.
    inner:  whether intermediate tensors are compared with onnxruntime's.
    """

    model: onnx.ModelProto
    feeds: list[dict[str, Array]]
    carried: Mapping[str, str] = field(default_factory=dict)
    within: float = 1e-5
    inner: bool = True

    def next_feeds(self, place: int, made: Mapping[str, Array] | None) -> dict[str, Array]:
        """The inputs of run number `place`, after one with these outputs."""
        known = {} if made is None else {name: made[output] for name, output in self.carried.items()}
        return {**self.feeds[place], **known}


def quantized(case: Case, within: float, inside: bool = False) -> Case:
    """The case with int8 weights, as onnxruntime quantizes dynamically; inside: also in bodies. Weights have 7 bits:
    with 8 onnxruntime's sums saturate on CPUs without VNNI."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    more = {"EnableSubgraph": inside, "DefaultTensorType": F32}
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "m.onnx"), Path(folder, "q.onnx")
        onnx.save(case.model, source)
        quantize_dynamic(source, target, reduce_range=True, weight_type=QuantType.QInt8, extra_options=more)
        return replace(case, model=onnx.load(target), within=within)


def calibrated(case: Case, within: float, **options: Any) -> Case:
    """The case in QDQ form, as onnxruntime quantizes statically, with the case's inputs to calibrate."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Feeds(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(case.feeds)

        def get_next(self) -> dict[str, Array] | None:
            return next(self.left, None)

    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "m.onnx"), Path(folder, "q.onnx")
        onnx.save(case.model, source)
        quantize_static(source, target, Feeds(), **options)
        return replace(case, model=onnx.load(target), within=within)
