"""Shared by the tests of the passes: graphs built node by node, run as written and rewritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import qrun
from helpers.models import make_model
from qrun.ir.types import NUMBERS
from qrun.passes import Optimized, has_tables, makes_tables, optimize

MS = "com.microsoft"
ML = "ai.onnx.ml"
ARITHS = ("exact", "ort", "onnx-ref")


class Graph:
    """Inputs with the values to feed, constants, nodes; names are made up."""

    def __init__(self, opset: int = 17) -> None:
        self.opset = opset
        self.feeds: dict[str, np.ndarray] = {}
        self.infos: list[onnx.ValueInfoProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def name(self, base: str) -> str:
        self.count += 1
        return f"{base}{self.count}"

    def feed(self, array: Any, dims: Sequence[int | str | None] | None = None, known: bool = True) -> str:
        """A graph input; dims: the shape it declares, if not the array's; known: whether it declares one."""
        array = np.asarray(array)
        name = self.name("x")
        self.feeds[name] = array
        shape = list(array.shape if dims is None else dims) if known else None
        self.infos.append(helper.make_tensor_value_info(name, NUMBERS[array.dtype], shape))
        return name

    def const(self, array: Any) -> str:
        name = self.name("c")
        self.initializers.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(
        self, op_type: str, *inputs: str, outputs: int = 1, domain: str = "", label: str = "", **attributes: Any
    ) -> Any:
        made = [self.name("t") for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, inputs, made, name=label, domain=domain, **attributes))
        return made[0] if outputs == 1 else made

    def params(self, scale: Any, zero: Any) -> tuple[str, str]:
        return self.const(np.asarray(scale, np.float32)), self.const(zero)

    def dq(self, x: str, scale: Any, zero: Any, **attributes: Any) -> str:
        return self.node("DequantizeLinear", x, *self.params(scale, zero), **attributes)

    def q(self, x: str, scale: Any, zero: Any, **attributes: Any) -> str:
        return self.node("QuantizeLinear", x, *self.params(scale, zero), **attributes)

    def output(self, *names: str) -> Graph:
        for name in names:
            self.outputs.append(onnx.ValueInfoProto(name=name))
        return self

    def proto(self) -> onnx.ModelProto:
        return make_model(self.nodes, self.infos, self.outputs, self.initializers, opset=self.opset)

    def model(self) -> qrun.Model:
        return qrun.load(self.proto())


def rewritten(graph: Graph, arith: Any = "exact", keep: Sequence[str] = ()) -> Optimized:
    return optimize(graph.model(), frozenset(keep), arith)


def ops(done: Optimized) -> list[str]:
    """The operators left, without their domains."""
    return [node.op_type for node in done.model.nodes]


def reasons(done: Optimized) -> dict[str, str]:
    """By node name."""
    return {refusal.name: refusal.reason for refusal in done.refused}


def run(model: qrun.Model, graph: Graph, arith: Any = "exact", outputs: Sequence[str] = ()) -> list[np.ndarray]:
    return list(
        qrun.Session(model, backend="reference", fuse=False, arith=arith).run(graph.feeds, list(outputs)).values()
    )


def assert_same(graph: Graph, arith: Any = "exact", keep: Sequence[str] = (), message: str = "") -> Optimized:
    """The rewritten graph has the bits of the literal one, in its outputs and in the tensors of `keep`; and whether it
    has tables is known before they are made."""
    done = rewritten(graph, arith, keep)
    if set(keep).issubset(v.name for v in graph.outputs):
        assert makes_tables(graph.model(), arith) == has_tables(done.model)
    names = list(dict.fromkeys([*keep, *(v.name for v in graph.outputs)]))
    for name, got, want in zip(
        names, run(done.model, graph, arith, names), run(graph.model(), graph, arith, names), strict=True
    ):
        assert got.dtype == want.dtype, f"{message} {arith} {name}: {got.dtype}, want {want.dtype}"
        assert got.shape == want.shape, f"{message} {arith} {name}: {got.shape}, want {want.shape}"
        differ = got.tobytes() != want.tobytes()
        assert not differ, f"{message} {arith} {name}: {int((got != want).sum())} of {got.size} differ"
    return done


def codes(rng: np.random.Generator, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, tuple(shape)).astype(dtype)


def zero(rng: np.random.Generator, dtype: Any) -> np.ndarray:
    """Often an end of the type, or odd."""
    info = np.iinfo(dtype)
    return np.array(rng.choice([info.min, info.max, 0, rng.integers(info.min, info.max + 1)]), dtype)
