"""What a runtime makes of a model: the verdict on each node, the same words as in the rules of a target.

int: computed on codes. float, weight-only: computed in float; from stored integers. cpu: left to the CPU provider of
onnxruntime. Of a whole model: refused, crash, and wrong, if an output is further from the exact one than `is_wrong`
allows.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import qrun
from qrun.errors import QrunError
from qrun.ir import Model
from qrun.ir.load import load
from qrun.peers.ortnodes import covers, on_codes, with_marks

CHILD = Path(__file__).with_name("_targets_runtime.py")
MARK = re.compile(r"qrun\.(\d+);")
STEPS, RATIO = 4, 0.1
"""An output is wrong if it is more than 4 steps of its quantization, and more than a tenth of the exact output's root
mean square, off."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Seen:
    """What a runtime did. whole: "", or the verdict on the whole model. nodes: the verdict on each node by its index;
    nodes that vanished in others are missing. wrong: the outputs that are. error: the runtime's message."""

    whole: str = ""
    nodes: Mapping[int, str] = field(default_factory=dict)
    wrong: tuple[str, ...] = ()
    error: str = ""


class Oracle:
    """A runtime in a process of its own. python: of its environment. Raises RuntimeError if it does not start."""

    def __init__(self, runtime: str, python: str, options: Mapping[str, Any] | None = None) -> None:
        self.runtime, self._python, self._options = runtime, python, dict(options or {})
        self._folder = tempfile.TemporaryDirectory()
        self._start()

    def _start(self) -> None:
        command = [self._python, str(CHILD), self.runtime, self._folder.name]
        self._child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        first = self._line()
        if "version" not in first:
            self.close()
            raise RuntimeError(f"{self.runtime} does not start in {self._python}")
        self.version = str(first["version"])

    def _line(self) -> dict[str, Any]:
        """The next answer; {} if the process has ended."""
        line = self._child.stdout.readline() if self._child.stdout else ""
        return json.loads(line) if line else {}

    def ask(self, model: Path, feeds: Path | None) -> dict[str, Any]:
        """The runtime's answer; {} if it crashed, and again in a new process."""
        job = {"model": str(model), "feeds": str(feeds or ""), "options": self._options}
        for _ in range(2):
            try:
                if self._child.stdin:
                    self._child.stdin.write(json.dumps(job) + "\n")
                    self._child.stdin.flush()
                if answer := self._line():
                    return answer
            except BrokenPipeError:
                pass
            self._end()
            self._start()
        return {}

    def look(self, proto: onnx.ModelProto, execute: bool = True) -> Seen:
        """Give the runtime a model. execute: whether to run it too, and compare its outputs with qrun's."""
        data = proto.SerializeToString()
        model = load(data)
        exact, folder = Exact.of(data, model) if execute else None, Path(self._folder.name)
        marked, feeds = folder / "model.onnx", folder / "feeds.npz"
        names = {
            v.name: m.name for v, m in zip(proto.graph.output, _mark(model, data, marked).graph.output, strict=True)
        }
        if exact:
            np.savez(feeds, **exact.feeds)  # type: ignore[arg-type]
        answer = self.ask(marked, feeds if exact else None)
        if not answer:
            return Seen("crash")
        if "error" in answer:
            return Seen("crash" if answer.get("loaded") else "refused", error=answer["error"])
        nodes = VERDICTS[self.runtime](model, answer)
        return Seen("", nodes, exact.wrong(answer, names) if exact else ())

    def close(self) -> None:
        """End the process."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        self._child.kill()
        with suppress(BrokenPipeError):
            self._child.communicate()


def _mark(model: Model, data: bytes, path: Path) -> onnx.ModelProto:
    """Write the model with its nodes' indices in their names."""
    marked = with_marks(model, onnx.load_from_string(data))
    onnx.save(marked, path)
    return marked


@dataclass(frozen=True)
class Exact:
    """Inputs of a model, qrun's outputs, and the step of each output's quantization (0: not quantized)."""

    feeds: Mapping[str, Array]
    outputs: Mapping[str, Array]
    steps: Mapping[str, float]

    @classmethod
    def of(cls, data: bytes, model: Model) -> Exact | None:
        """None if qrun does not run the model."""
        rng = np.random.default_rng(1)
        feeds = {value.name: _random(value.dtype, tuple(value.shape or ()), rng) for value in model.inputs}
        try:
            made = qrun.Session(model, backend="reference", threads=1, cache=False).run(feeds)
        except QrunError:
            return None
        return cls(feeds, {name: np.asarray(array) for name, array in made.items()}, _steps(model))

    def wrong(self, answer: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, ...]:
        """The outputs that a runtime's answer has wrong. names: of the outputs in the answer."""
        if "outputs" not in answer:
            return ()
        got = dict(np.load(answer["outputs"]))
        return tuple(
            name for name, want in self.outputs.items()
            if names[name] in got and is_wrong(got[names[name]], want, self.steps.get(name, 0.0))
        )  # fmt: skip


def is_wrong(got: Array, want: Array, step: float) -> bool:
    """Is an output further from the exact one than STEPS steps and RATIO of the exact one's root mean square?"""
    if got.shape != want.shape:
        return True
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(got) & np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return True
    off, size = np.abs(got[finite] - want[finite]), np.sqrt(np.mean(np.square(want[finite]))) if finite.any() else 0.0
    return bool(np.any(off > STEPS * step) and np.sqrt(np.mean(np.square(off))) > RATIO * size)


def _random(dtype: Any, shape: tuple[Any, ...], rng: np.random.Generator) -> Array:
    sizes = [n if isinstance(n, int) else 1 for n in shape]
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=sizes).astype(dtype)
    info = ml_dtypes.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, sizes).astype(dtype)


def _steps(model: Model) -> dict[str, float]:
    """The scale of the DequantizeLinear that makes an output."""
    found = {}
    for value in model.outputs:
        maker = model.producers.get(value.name)
        scale = model.constants.get(maker.inputs[1]) if maker and maker.op_type == "DequantizeLinear" else None
        found[value.name] = float(np.max(scale)) if scale is not None else float(np.issubdtype(value.dtype, np.integer))
    return found


def of_onnxruntime(model: Model, answer: Mapping[str, Any]) -> dict[int, str]:
    """From the optimized model."""
    graph = onnx.load(answer["graph"], load_external_data=False).graph
    optimized = covers(model, list(graph.node))
    found = {index: "int" if codes else "float" for index, codes in on_codes(model, graph, optimized).items()}
    narrow = {index for ran in optimized if ran.proto.op_type == "MatMulNBits" for index in ran.members}
    return found | dict.fromkeys(narrow & found.keys(), "weight-only")


LAYERS = {
    "Conv": ("Convolution",), "ConvTranspose": ("Deconvolution",), "QLinearConv": ("Convolution",),
    "ConvInteger": ("Convolution",), "Gemm": ("FullyConnected", "MatMul"), "MatMul": ("FullyConnected", "MatMul"),
    "QLinearMatMul": ("FullyConnected", "MatMul"), "MatMulInteger": ("FullyConnected", "MatMul"),
    "MaxPool": ("Pooling",), "AveragePool": ("Pooling",), "GlobalAveragePool": ("Reduce", "Pooling"),
    "GlobalMaxPool": ("Reduce", "Pooling"), "Resize": ("Interpolate",), "Concat": ("Concatenation",), "Slice": ("StridedSlice",),
    "Split": ("Split",), "Gather": ("Gather",), "Transpose": ("Transpose",), "Flatten": ("Reshape",), "Reshape": ("Reshape",),
    "Squeeze": ("Reshape",), "Unsqueeze": ("Reshape",), "DepthToSpace": ("DepthToSpace",), "SpaceToDepth": ("SpaceToDepth",),
    "Pad": ("Pad",), "Tile": ("Tile",), "Expand": ("Broadcast",),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum"), ("Reduce",)),
}  # fmt: skip
"""The layers of OpenVINO that may run on codes, by operator. Elementwise layers read codes and compute in float."""
ELEMENTWISE = ("Subgraph", "Eltwise", "FakeQuantize", "Softmax", "MVN", "Math", "Convert")
NARROW = ("u8", "i8", "u4", "i4")


def of_openvino(model: Model, answer: Mapping[str, Any]) -> dict[int, str]:
    """From the precisions of the compiled model's layers."""
    found: dict[int, str] = {}
    for layer, precision, origins, inputs in answer["layers"]:
        for index in {int(mark) for mark in MARK.findall(origins)}:
            node = model.nodes[index]
            if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
                continue
            if layer in LAYERS.get(node.op_type, ()):
                found[index] = _place(layer, precision, inputs)
            elif node.op_type not in LAYERS and layer in ELEMENTWISE:
                found.setdefault(index, "float")
    return found


def _place(layer: str, precision: str, inputs: Sequence[str]) -> str:
    """The verdict on a layer. A product has the precision of its weights even if it computes them in float."""
    if layer == "FullyConnected" and inputs[0] not in NARROW:
        return "weight-only" if inputs[1] in NARROW else "float"
    return "int" if precision in NARROW else "float"


FIXED = {0x408, 0x308, 0x416, 0x316, 0x432, 0x332, 0x404, 0x304}
"""QNN's data types of codes."""
BESIDE = ("Quantize", "Dequantize", "Convert", "Transpose", "Reshape")


def of_qnn(model: Model, answer: Mapping[str, Any]) -> dict[int, str]:
    """From the providers of the nodes, and the types of the operators of the HTP graph."""
    found: dict[int, str] = {}
    types: dict[int, list[tuple[str, int]]] = {}
    for kind, name, inputs, _ in answer["operators"]:
        if (mark := MARK.match(name)) and inputs:
            types.setdefault(int(mark[1]), []).append((kind, inputs[0]))
    for provider, op_type, name in answer["assigned"]:
        mark = MARK.match(name)
        if not mark or model.nodes[int(mark[1])].op_type != op_type:
            continue
        index = int(mark[1])
        if op_type in ("QuantizeLinear", "DequantizeLinear"):
            continue
        if provider != "QNNExecutionProvider":
            found[index] = "cpu"
        elif mine := types.get(index):
            main = [of for kind, of in mine if kind not in BESIDE] or [of for _, of in mine]
            found[index] = "int" if main[0] in FIXED else "float"
    return found


VERDICTS = {"onnxruntime": of_onnxruntime, "openvino": of_openvino, "qnn": of_qnn}


def python_of(environment: Path) -> str:
    """The Python of a virtual environment."""
    return str(environment / "bin" / "python")
