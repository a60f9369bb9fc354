"""Devices whose integer nodes compute in a known arithmetic, and ten networks for them.

The sums are this file's own; the codes are those of qrun.arithmetics. Each node reads what the device made before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

import qrun
from helpers import defects
from helpers.models import make_model, typed
from qrun.arithmetics import Arithmetic, Scales
from qrun.arithmetics.groups import bits, describe_group
from qrun.comparing.sides import QrunSide, Unit, run_alone
from qrun.ir import Array, Model, Node
from qrun.passes import optimize

f32 = np.float32
Feeds = dict[str, Array]
MODELS = Path(__file__).resolve().parents[2] / "models"
PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm")
"""Operators of sums."""


def conv_sums(
    x: Array, w: Array, group: int = 1, pads: Sequence[int] = (0,) * 4, strides: Sequence[int] = (1, 1)
) -> Array:
    """Sums of products of int64 images [n, c, h, w] and kernels [m, c / group, kh, kw]."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], (2, 3))[:, :, :: strides[0], :: strides[1]]
    parts = zip(np.split(seen, group, 1), np.split(w, group, 0), strict=True)
    return np.concatenate([np.einsum("nchwij,mcij->nmhw", s, k) for s, k in parts], 1)


def node_sums(node: Node, args: Sequence[Any]) -> tuple[Array, Scales, Array]:
    """The sums of a QLinearConv, QLinearMatMul or QGemm, its scales to broadcast with them, and its zero point."""
    x, sx, zx, w, sw, zw = args[:6]
    rest = args[6:] if node.op_type != "QGemm" else [*args[7:], args[6]]
    (sy, zy), bias = rest[:2], rest[2] if len(rest) > 2 else None
    a: dict[str, Any] = dict(node.attributes)
    wide, kernel = x.astype(np.int64) - int(zx), w.astype(np.int64)
    if node.op_type == "QLinearConv":
        along: tuple[int, ...] = (1, -1, 1, 1)
        kernel = kernel - zw.astype(np.int64).reshape(-1, 1, 1, 1)
        acc = conv_sums(wide, kernel, a.get("group", 1), a.get("pads") or (0,) * 4, a.get("strides") or (1, 1))
    else:
        along = (-1,)
        acc = wide @ ((kernel.T if a.get("transB") else kernel) - zw.astype(np.int64))
    if bias is not None:
        acc = acc + bias.astype(np.int64).reshape(along if bias.size > 1 else ())
    return acc, Scales(sx.reshape(()), sw.reshape(along if sw.size > 1 else ()), sy.reshape(())), zy.reshape(())


def device_values(model: Model, feeds: Mapping[str, Array], arithmetic: Callable[[Node], Arithmetic]) -> Feeds:
    """All tensors of a run in which sums become codes by an arithmetic; other nodes compute as qrun does."""
    ran = optimize(model, frozenset(), "exact", "fused").model
    values: Feeds = {**ran.constants, **feeds}
    for node in ran.nodes:
        if node.op_type in PRODUCTS:
            acc, scales, zero = node_sums(node, [values[n] if n else None for n in node.inputs])
            ends = np.iinfo(zero.dtype)
            made = arithmetic(node).codes(acc, scales, int(zero), ends.min, ends.max)
            values[node.outputs[0]] = made.astype(zero.dtype)
        else:
            values |= run_alone(ran, (node,), values, "reference", "exact")
    return values


@dataclass(frozen=True)
class Device:
    """A device as a side of a comparison: it shows the quantized tensors that it computes, and the outputs."""

    model: Model
    values: Mapping[str, Array]
    name: str = "device"
    label: str = "device 1.0"

    @property
    def units(self) -> Sequence[Unit]:
        return [Unit(node, (node,)) for node in self.model.nodes]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array | None]:
        outputs = {value.name for value in self.model.outputs}
        made = {name: self.values[name] for name in self.model.producers if name in self.values}
        return {name: array for name, array in made.items() if array.dtype.kind in "iu" or name in outputs}

    def alone(self, unit: Unit, values: Mapping[str, Array]) -> Mapping[str, Array | None]:
        return {}

    def inside(self, node: Node, graph: str, part: Model) -> Any:
        raise NotImplementedError


def compared_sides(model: Model, values: Mapping[str, Array]) -> tuple[QrunSide, Device]:
    """qrun with fused groups, and the device."""
    return QrunSide(model, fuse=True), Device(model, values)


INTEGER = {"Conv": "QLinearConv", "MatMul": "QLinearMatMul", "Gemm": "QGemm"}
SIX = 120
"""Codes above the zero point at which a Clip ends."""


@dataclass
class Writer:
    """A chain of integer layers that grows. Scales are such that most codes are within the range.

    kind: of activations. qdq: write groups of DequantizeLinear, operator, QuantizeLinear. channels: does each output
    channel have its own weight scale? power: are all scales powers of two?
    """

    shape: tuple[int, ...]
    kind: type = np.int8
    qdq: bool = False
    channels: bool = False
    power: bool = False
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: Feeds = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng, ends = np.random.default_rng(self.seed), np.iinfo(self.kind)
        self.name, self.scale, self.zero = "x", self._scale(0.02), self.kind(ends.min + 120)
        self.codes = self.rng.integers(ends.min, ends.max + 1, self.shape).astype(self.kind)
        self.given = self.codes
        self._store("x", scale=self.scale, zero=self.zero)

    def conv(self, out: int, size: int = 3, group: int = 1, act: str = "", stride: int = 1) -> Writer:
        """A convolution of as many pads as it needs. act: "", Relu, or Clip in QDQ form."""
        w, w_scale = self._weights((out, self.codes.shape[1] // group, size, size))
        pads, strides = [size // 2] * 4, [stride] * 2
        acc = conv_sums(self.codes.astype(np.int64) - int(self.zero), w.astype(np.int64), group, pads, strides)
        return self._layer("Conv", w, w_scale, acc, act, group=group, pads=pads, strides=strides)

    def product(self, out: int, op: str = "MatMul", act: str = "") -> Writer:
        """A MatMul without a bias, or a Gemm with one."""
        w, w_scale = self._weights((self.codes.shape[1], out), 1)
        acc = (self.codes.astype(np.int64) - int(self.zero)) @ w.astype(np.int64)
        return self._layer(op, w, w_scale, acc, act)

    def flat(self) -> Writer:
        """Flatten the codes."""
        y = f"{self.name}_flat"
        self._node("Flatten", [self.name], y)
        self._store(y, scale=self.scale, zero=self.zero)
        self.name, self.codes = y, self.codes.reshape(len(self.codes), -1)
        return self

    def done(self) -> tuple[Model, Feeds]:
        """The model, which takes and gives codes, and an input."""
        data, feeds = self.file()
        return qrun.load(data), feeds

    def file(self) -> tuple[bytes, Feeds]:
        """The model as a file, and an input."""
        kind = TensorProto.INT8 if self.kind is np.int8 else TensorProto.UINT8
        used = {name for node in self.nodes for name in node.input}
        ends = {"x": typed(kind, list(self.shape))}, {self.name: typed(kind, list(self.codes.shape))}
        model = make_model(self.nodes, *ends, {n: a for n, a in self.stored.items() if n in used}, opset=17)
        return model.SerializeToString(), {"x": self.given}

    def _store(self, name: str, **parts: Any) -> None:
        self.stored |= {f"{name}_{part}": np.asarray(value) for part, value in parts.items()}

    def _node(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        domain = "com.microsoft" if op == "QGemm" else ""
        self.nodes.append(helper.make_node(op, inputs, [output], f"{op}_{output}", domain=domain, **attributes))
        return output

    def _scale(self, value: Any) -> Any:
        return (np.exp2(np.rint(np.log2(value))) if self.power else np.asarray(value)).astype(f32)

    def _weights(self, shape: tuple[int, ...], axis: int = 0) -> tuple[Array, Array]:
        """Weights whose pairs of products fit int16, and their scales."""
        w = np.clip(np.rint(self.rng.normal(0, 30, shape)), -64, 64).astype(np.int8)
        scale = self._scale(self.rng.uniform(0.005, 0.015, shape[axis] if self.channels else 1))
        return w, scale if self.channels else scale.reshape(())

    def _layer(self, op: str, w: Array, w_scale: Array, acc: Array, act: str, **attributes: Any) -> Writer:
        x, y, ends = self.name, f"t{len(self.nodes)}", np.iinfo(self.kind)
        along = (1, -1) + (1,) * (acc.ndim - 2)
        bias = np.rint(self.rng.normal(0, 0.3 * acc.std(), acc.shape[1])).astype(np.int32) * (op != "MatMul")
        unit = w_scale.astype(np.float64).reshape(along if self.channels else ()) * float(self.scale)
        real = (acc + bias.reshape(along)) * unit
        low, high = np.quantile(np.maximum(real, 0) if act else real, (0.001, 0.999))
        scale = self._scale(max(high - low, 1e-6) / 255)
        zero = self.kind(
            ends.min + 21 if act == "Clip" else np.clip(np.rint(ends.min - low / scale), ends.min, ends.max)
        )
        self._store(y, scale=scale, zero=zero, w=w, w_scale=w_scale, w_zero=np.zeros(w_scale.shape, np.int8), bias=bias)
        self._store(y, bias_scale=(w_scale * self.scale).astype(f32), least=f32(0), most=f32(SIX * float(scale)))
        (self._write_group if self.qdq else self._write_integer)(op, x, y, act, attributes)
        limits = int(zero) if act else ends.min, min(ends.max, int(zero) + SIX) if act == "Clip" else ends.max
        codes = np.clip(np.rint(real / float(scale)) + int(zero), *limits).astype(self.kind)
        self.name, self.codes, self.scale, self.zero = y, codes, scale, zero
        return self

    def _write_integer(self, op: str, x: str, y: str, act: str, attributes: dict[str, Any]) -> None:
        """One integer operator: Relu is in its zero point."""
        bias, end = [f"{y}_bias"] * (op != "MatMul"), [f"{y}_scale", f"{y}_zero"]
        inputs = [x, f"{x}_scale", f"{x}_zero", f"{y}_w", f"{y}_w_scale", f"{y}_w_zero"]
        self._node(INTEGER[op], [*inputs, *(bias + end if op == "Gemm" else end + bias)], y, **attributes)

    def _write_group(self, op: str, x: str, y: str, act: str, attributes: dict[str, Any]) -> None:
        """DequantizeLinear, the operator, its activation, QuantizeLinear."""

        def real(name: str, *more: str, axis: int = 0) -> str:
            inputs = [name, f"{name}_scale", *(f"{name}_{part}" for part in more)]
            return self._node("DequantizeLinear", inputs, f"{y}_{name}_real", axis=axis)

        inputs = [real(x, "zero"), real(f"{y}_w", "zero", axis=0 if op == "Conv" else 1)]
        made = self._node(op, inputs + [real(f"{y}_bias")] * (op != "MatMul"), f"{y}_raw", **attributes)
        if act:
            made = self._node(act, [made, *([f"{y}_least", f"{y}_most"] if act == "Clip" else [])], f"{y}_act")
        self._node("QuantizeLinear", [made, f"{y}_scale", f"{y}_zero"], y)


def _digits(kind: str) -> tuple[bytes, Feeds]:
    images = np.load(MODELS / "digits/x.npy")
    return (MODELS / f"digits/{kind}/model.onnx").read_bytes(), {"images": np.concatenate([images] * 4)[:32]}


def _defects(kind: str) -> tuple[bytes, Feeds]:
    return defects.quantized(kind).SerializeToString(), defects.batch(kind)


def _squeezenet(**more: Any) -> tuple[bytes, Feeds]:
    net = Writer((2, 8, 32, 32), **more)
    return (
        net.conv(16, stride=2, act="Relu").conv(8, 1).conv(32, 3).conv(8, 1).conv(48, 3, act="Relu").conv(10, 1).file()
    )


def _mobile(**more: Any) -> tuple[bytes, Feeds]:
    net = Writer((2, 8, 24, 24), **more)
    for _ in range(3):
        net = net.conv(24, 1, act="Clip" if net.qdq else "").conv(24, 3, 24, act="Clip" if net.qdq else "").conv(16, 1)
    return net.file()


def _mlp(op: str, **more: Any) -> tuple[bytes, Feeds]:
    net = Writer((96, 64), **more)
    return net.product(96, op).product(128, op).product(64, op).product(10, op).file()


NETWORKS: Mapping[str, Callable[[], tuple[bytes, Feeds]]] = {
    "digits, QOperator": lambda: _digits("qoperator"),
    "digits, QDQ": lambda: _digits("qdq"),
    "CNN, QDQ int8 per channel": lambda: _defects("cnn"),
    "depthwise, QDQ int8 per channel": lambda: _defects("depthwise"),
    "SqueezeNet-like, int8": lambda: _squeezenet(seed=1),
    "SqueezeNet-like, powers of two": lambda: _squeezenet(power=True, seed=2),
    "mobile, QDQ uint8 per channel": lambda: _mobile(kind=np.uint8, qdq=True, channels=True, seed=3),
    "mobile, uint8": lambda: _mobile(kind=np.uint8, seed=4),
    "MLP, QGemm": lambda: _mlp("Gemm", seed=5),
    "MLP, QDQ MatMul": lambda: _mlp("MatMul", qdq=True, seed=6),
}
"""Small networks, committed or made here, by what they are."""
DEVICES = ("tfl-double", "tfl-halfup2", "tfl-single", "fp32", "q15-away", "pot-up")
"""Families of different groups."""
LARGE = 4096
"""Elements of a node that must be enough."""


@cache
def model_file(name: str) -> tuple[bytes, Feeds]:
    """A network as a file, and its inputs."""
    return NETWORKS[name]()


@cache
def network(name: str) -> tuple[Model, Feeds]:
    data, feeds = model_file(name)
    return qrun.load(data), feeds


def first_different(name: str, values: dict[str, Array]) -> str | None:
    """The first tensor whose codes are not the exact ones, given the device's inputs."""
    ran = optimize(network(name)[0], frozenset(), "exact", "fused").model
    for node in ran.nodes:
        if node.op_type in PRODUCTS:
            acc, scales, zero = node_sums(node, [values[n] if n else None for n in node.inputs])
            real = acc * (scales.x.astype(np.float64) * scales.w / scales.y)
            ends = np.iinfo(zero.dtype)
            if not np.array_equal(np.clip(np.rint(real) + int(zero), ends.min, ends.max), values[node.outputs[0]]):
                (made,) = node.outputs  # codes before a limit are no tensor of the model: those after it are
                return made if made in network(name)[0].producers else ran.consumers[made][0].outputs[0]
    return None


def assert_true_of(truth: Arithmetic, text: str) -> None:
    """Every part of the text that a claim gives is a part of what the arithmetic's own text says, or a bound."""
    own = describe_group([truth]).split(", ")
    for part in text.split(", "):
        if part.startswith("multiplier of "):
            least, most = (int(word) if word.isdecimal() else 99 for word in part.split()[2:5:2])
            assert least <= bits(truth) <= most, (truth, text)
        else:
            assert part in own, (truth, text)
