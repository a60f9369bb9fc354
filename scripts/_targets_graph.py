"""Builds a random quantized graph: tensors with their parameters, weights and biases of every kind, whole and broken
groups. scripts/_targets_models.py has the operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
TYPES: dict[str, Any] = {
    "uint8": np.uint8, "int8": np.int8, "uint16": np.uint16, "int16": np.int16, "int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4,
}  # fmt: skip
LIMITS = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "int4": (-8, 7),
    "uint4": (0, 15),
}
OPSETS = (13, 13, 17, 17, 19, 21, 21, 22)
OPSET_OF_NARROW = 21
"""The first opset whose QuantizeLinear takes 16 and 4 bits; below, only that of com.microsoft does."""
LEAST, SPAN = 60, 8
"""Stored 8-bit weights stay within 60 of their middle: adjacent products then fit into the int16 of x86 CPUs without
VNNI. The middle of a zero point that is not one is within SPAN of it."""


@dataclass
class Value:
    """A tensor of the graph. real: its name in float, or "". codes: its name quantized, or "", with its parameters."""

    shape: Shape
    real: str = ""
    codes: str = ""
    kind: str = ""
    scale: str = ""
    zero: str = ""
    axis: int | None = None
    reads: int = 0


class Graph:
    """A graph that grows by random operators. odd: how often a fact is not as a quantizer writes it, from 0 to 1."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng([seed, 71])
        self.nodes: list[onnx.NodeProto] = []
        self.stored: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.arrays: dict[str, Array] = {}
        self.ends: dict[str, onnx.ValueInfoProto] = {}
        self.values: list[Value] = []
        self.opset = int(self.pick(OPSETS))
        self.odd = float(self.pick([0.0, 0.0, 0.08, 0.25]))
        self.half = self.opset >= 19 and self.chance(0.04)
        self.kind = str(self.pick(["uint8"] * 9 + ["int8"] * 8 + ["uint16", "uint16", "int16"]))
        self.weights = str(self.pick(["int8"] * 10 + ["uint8"] * 4 + ["int16", "uint16", "int4", "uint4"]))
        self.channels = self.chance(0.5)
        self.rows = True
        """May a tensor made in the run have one scale for each channel?"""
        self.pairs = self.chance(0.25)
        """Has each reader of a tensor a QuantizeLinear and a DequantizeLinear of its own?"""

    def pick(self, among: Any) -> Any:
        """One of several, each as likely."""
        return among[int(self.rng.integers(len(among)))]

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def oddly(self, factor: float = 1.0) -> bool:
        """Is this fact an odd one?"""
        return self.chance(self.odd * factor)

    def store(self, array: Any, kind: str = "") -> str:
        """The name of a constant; real numbers are of the graph's type, unless `kind` is "as is"."""
        array = np.asarray(array)
        if array.dtype in (np.float64, np.float32) and kind != "as is":
            array = array.astype(np.float16 if self.half else np.float32)
        name = f"c{len(self.stored)}"
        self.arrays[name] = array
        self.stored.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op_type: str, *inputs: str, outputs: int = 0, domain: str = "", **attributes: Any) -> str:
        """Add a node. Returns the name of its result, or the start of the names of several `outputs`."""
        name = f"t{len(self.nodes)}"
        names = [f"{name}_{k}" for k in range(outputs)] or [name]
        label = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, names, label, domain=domain, **attributes))
        return name

    def feed(self, shape: Shape, kind: str = "") -> str:
        """Add an input of the graph: real numbers, or codes of a type."""
        name = f"x{len(self.inputs)}"
        real = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        element = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[kind])) if kind else real
        self.inputs.append(helper.make_tensor_value_info(name, element, shape))
        return name

    def parameters(self, kind: str, low: bool = False, count: int = 0) -> tuple[str, str]:
        """Names of a scale and of a zero point. low: is it the least code? count: of several channels, 0 for one."""
        least, most = LIMITS[kind]
        middle = (least + most + 1) // 2
        quarter = (most - least) // 4
        zero = least if low else middle if self.chance(0.5) else middle + int(self.rng.integers(-quarter, quarter + 1))
        exponent = float(self.rng.uniform(-5.0, -2.5)) - (8 if most - least > 255 else 0)
        real = 2.0 ** (round(exponent) if self.chance(0.2) else exponent)
        shape: Shape = (count,) if count else (1,) if self.chance(0.1) else ()
        scales = np.full(shape, real) * (self.rng.uniform(0.5, 1.5, shape) if count else 1.0)
        return self.store(scales), self.store(np.full(shape, zero, TYPES[kind]))

    def domain(self, kind: str) -> str:
        """The domain of a QuantizeLinear or DequantizeLinear of this type."""
        plain = kind in ("uint8", "int8", "int32") or self.opset >= OPSET_OF_NARROW
        return "" if plain else "com.microsoft"

    def quantize(self, value: Value, like: Value | None = None, low: bool = False, kind: str = "") -> Value:
        """Add QuantizeLinear behind a real tensor. like: with the parameters of this tensor."""
        value.kind = kind or (str(self.pick(["uint8", "int8"])) if self.oddly(0.4) else self.kind)
        if like is not None and like.axis is None:
            value.kind, value.scale, value.zero = like.kind, like.scale, like.zero
        elif self.rows and len(value.shape) > 1 and self.oddly(0.15):
            value.axis = 1
            value.scale, value.zero = self.parameters(value.kind, low, value.shape[1])
        else:
            value.scale, value.zero = self.parameters(value.kind, low)
        value.codes = self._quantizer("QuantizeLinear", value, value.real)
        if not self.pairs and not self.oddly(0.5):
            value.real = ""
        return value

    def _quantizer(self, op_type: str, value: Value, name: str) -> str:
        zeros = [value.zero] if value.zero else []
        along = {"axis": value.axis} if value.axis is not None else {}
        return self.add(op_type, name, value.scale, *zeros, domain=self.domain(value.kind), **along)

    def given(self, shape: Shape) -> Value:
        """Add an input: real numbers behind QuantizeLinear, rarely codes or real numbers without."""
        if self.chance(0.08):
            scale, zero = self.parameters(self.kind)
            return Value(shape, codes=self.feed(shape, self.kind), kind=self.kind, scale=scale, zero=zero)
        value = Value(shape, real=self.feed(shape))
        return value if self.oddly(0.4) else self.quantize(value)

    def choose(self, rank: int = 0) -> Value:
        """One of the last tensors, of a rank if given; an input that is added if none fits."""
        fitting = [v for v in self.values if not rank or len(v.shape) == rank][-3:]
        if not fitting or self.chance(0.06):
            self.values.append(self.given(self.shape(rank)))
            return self.values[-1]
        return self.pick(fitting)  # type: ignore[no-any-return]

    def shape(self, rank: int = 0) -> Shape:
        """A random shape."""
        rank = rank or int(self.pick([2, 3, 4, 4, 4]))
        many = int(self.pick([4, 8, 8, 16]))
        return {1: (many,), 2: (int(self.pick([1, 2, 4])), many), 3: (1, many, 8)}.get(
            rank, (1, many, *[4] * (rank - 2))
        )

    def alike(self, value: Value) -> Value:
        """A tensor of the same shape, sometimes the same."""
        fitting = [v for v in self.values if v.shape == value.shape]
        if len(fitting) < 2 and not self.chance(0.15):
            self.values.append(self.given(value.shape))
            return self.values[-1]
        return self.pick(fitting or [value])  # type: ignore[no-any-return]

    def read(self, value: Value) -> str:
        """The real tensor of a value: dequantized, for this reader or for several."""
        value.reads += 1
        if not value.codes or (value.real and not self.pairs and self.chance(0.4)):
            return value.real
        codes = value.codes
        if self.pairs and value.real and value.reads > 1:
            codes = self._quantizer("QuantizeLinear", value, value.real)
        made = self._quantizer("DequantizeLinear", value, codes)
        if not self.pairs and not value.real and self.chance(0.4):
            value.real = made  # later readers share the DequantizeLinear
        return made

    def result(self, name: str, shape: Shape, like: Value | None = None, cut: bool = True) -> None:
        """Quantize what an operator made; mostly, and sometimes behind Relu or Clip (`cut`)."""
        value, low = Value(shape, real=name), False
        if cut and like is None and self.chance(0.3):
            low = self.chance(0.7)
            bounds = [self.store(np.float32(b)) for b in (0.0, 6.0)]
            value.real = self.add("Relu", name) if self.chance(0.7) else self.add("Clip", name, *bounds)
            if self.oddly(0.2):
                self.end(name, shape)
        if self.oddly(0.3):
            self.end(value.real, shape)
        self.values.append(value if self.chance(0.05) or self.oddly(0.5) else self.quantize(value, like, low))

    def weight(self, shape: Shape, axis: int, x: Value, count: int = 0, scale_axis: int | None = None) -> list[str]:
        """Weights with the output channels on an axis, and a bias of `count` numbers: the names of real tensors."""
        if self.oddly(0.35):
            return [
                self.store(self.rng.normal(size=shape)),
                *([self.store(self.rng.normal(size=count))] if count else []),
            ]
        kind = str(self.pick(["int8", "uint8"])) if self.oddly(0.4) else self.weights
        along = scale_axis if scale_axis is not None else axis
        if self.oddly(0.5):
            along = int(self.rng.integers(len(shape)))
        many = self.channels if not self.oddly(0.3) else not self.channels
        block = (
            4
            if self.opset >= OPSET_OF_NARROW and shape[0] % 4 == 0 and self.chance(0.25 if "4" in kind else 0.02)
            else 0
        )
        scales, middle = self.weight_scales(shape, along, many, block, kind)
        made = [self._weight_codes(shape, scales, middle, kind, along if many or block else None, block)]
        return made + ([self._bias(count, x, scales if not block else scales.reshape(-1)[:1])] if count else [])

    def weight_scales(self, shape: Shape, along: int, many: bool, block: int, kind: str) -> tuple[Array, int]:
        """Scales of weights, one for each channel on the axis `along` if `many`, and their zero point."""
        size: Shape = (shape[along],) if many else ()
        if block:
            size = (shape[0] // block, *shape[1:])
        least, most = LIMITS[kind]
        middle = 0 if least < 0 else (most + 1) // 2
        if self.oddly(0.5) or (kind == "uint8" and self.chance(0.2)):
            middle = int(np.clip(middle + self.rng.integers(-SPAN, SPAN + 1), least, most)) if self.chance(0.7) else 0
        return self.rng.uniform(0.004, 0.02, size).astype(np.float32), middle

    def _weight_codes(self, shape: Shape, scales: Array, middle: int, kind: str, axis: int | None, block: int) -> str:
        least, most = LIMITS[kind]
        reach = min(LEAST, most - least)
        low, high = max(least, middle - reach), min(most, middle + reach)
        codes = self.rng.integers(low, high + 1, shape).astype(TYPES[kind])
        more: dict[str, int] = {"axis": 0, "block_size": block} if block else {} if axis is None else {"axis": axis}
        zeros = np.full(scales.shape, middle)
        if scales.ndim == 1 and scales.size > 1 and self.oddly(0.25):
            zeros = zeros + np.arange(scales.size) % 2 * (1 if middle < most else -1)
        as_input = kind not in ("int4", "uint4") and self.oddly(0.25)
        name, scale = "" if as_input else self.store(codes), self.store(scales)
        name = name or self.feed(shape, kind)
        needed = middle or zeros.any() or self.domain(kind) or not self.oddly(0.3)
        given = [self.store(zeros.astype(TYPES[kind]))] if needed else []
        return self.add("DequantizeLinear", name, scale, *given, domain=self.domain(kind), **more)

    def _bias(self, count: int, x: Value, scales: Array) -> str:
        if self.chance(0.15):
            return self.store(self.rng.normal(size=count))
        known = self.arrays.get(x.scale, np.float32(0.1)).astype(np.float32).reshape(-1)[0]
        flat = np.asarray(scales, np.float32).reshape(-1)
        real = known * (flat if flat.size in (1, count) else flat[:1].repeat(count))
        if self.oddly(0.3):
            real = real * np.float32(self.pick([0.5, 2.0, 1.001]))
        if real.size == 1 and not self.chance(0.3):
            real = real.reshape(())
        more = {"axis": 0} if real.ndim and real.size > 1 else {}
        zeros = [self.store(np.zeros(real.shape, np.int32))] if not self.chance(0.2) else []
        codes = self.store(self.rng.integers(-500, 500, count).astype(np.int32))
        return self.add("DequantizeLinear", codes, self.store(real), *zeros, **more)

    def end(self, name: str, shape: Shape, kind: str = "") -> None:
        """Make a tensor an output of the graph: of real numbers, or of codes of a type."""
        real = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        element = helper.np_dtype_to_tensor_dtype(np.dtype(TYPES[kind])) if kind else real
        self.ends[name] = helper.make_tensor_value_info(name, element, shape)

    def model(self, name: str) -> onnx.ModelProto:
        """The model: what nobody reads is an output."""
        read = {name for node in self.nodes for name in node.input}
        for value in self.values:
            if value.codes and value.codes not in read and value.real not in read:
                codes = self.oddly(0.3) and "4" not in value.kind
                self.end(value.codes if codes else self.read(value), value.shape, value.kind if codes else "")
            elif not value.codes and value.real not in read:
                self.end(value.real, value.shape)
        read = {name for node in self.nodes for name in node.input}
        made = {name for node in self.nodes for name in node.output}
        inputs, stored = ([t for t in among if t.name in read] for among in (self.inputs, self.stored))
        outputs = [value for end, value in self.ends.items() if end in made]
        graph = helper.make_graph(self.nodes, name, inputs, outputs, stored)
        domains = sorted({node.domain for node in self.nodes} - {""})
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        version = 8 if self.opset < 19 else 9 if self.opset < OPSET_OF_NARROW else 10
        return helper.make_model(graph, opset_imports=opsets, ir_version=version)
