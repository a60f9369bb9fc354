"""Shared by the tests of profiles: models in QDQ form with named, unnamed and equally named nodes,
and made-up events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from helpers.models import make_model
from helpers.passes import Graph
from qrun.ir import Model
from qrun.ir.load import load
from qrun.running.events import NodeEvent, TensorInfo


def residual(labels: str = "named", blocks: int = 2) -> Graph:
    """Two convolutions and an addition per block, then the mean, a matrix product and Softmax; QDQ, 8 channels of 8x8.

    labels: how the nodes are named.
    """
    rng, graph = np.random.default_rng(5), Graph()
    count = 0

    def label(op: str) -> str:
        nonlocal count
        count += 1
        return {"named": f"/net/{op}_{count}", "unnamed": "", "equal": "same"}[labels]

    def q(real: str, scale: float) -> str:
        quantized = graph.node("QuantizeLinear", real, *graph.params(scale, np.uint8(128)), label=label("q"))
        made: str = graph.node("DequantizeLinear", quantized, *graph.params(scale, np.uint8(128)), label=label("dq"))
        return made

    def weight(*shape: int) -> str:
        codes = graph.const(rng.integers(-60, 60, shape).astype(np.int8))
        made: str = graph.node("DequantizeLinear", codes, *graph.params(0.01, np.int8(0)), label=label("dq"))
        return made

    x = q(graph.feed(rng.standard_normal((1, 8, 8, 8)).astype(np.float32), known=True), 0.03)
    for _ in range(blocks):
        made = q(graph.node("Conv", x, weight(8, 8, 3, 3), pads=[1, 1, 1, 1], label=label("conv")), 0.05)
        made = graph.node("Relu", made, label=label("relu"))
        made = q(made, 0.05)
        made = q(graph.node("Conv", made, weight(8, 8, 1, 1), label=label("conv")), 0.06)
        x = q(graph.node("Add", made, x, label=label("add")), 0.07)
    mean = q(graph.node("GlobalAveragePool", x, label=label("mean")), 0.02)
    flat = graph.node("Flatten", mean, label=label("flat"))
    out = q(graph.node("Gemm", flat, weight(8, 10), label=label("gemm")), 0.04)
    graph.output(graph.node("Softmax", out, label=label("softmax")))
    return graph


def model_of(graph: Graph) -> tuple[Model, bytes, onnx.ModelProto]:
    proto = graph.proto()
    data = proto.SerializeToString()
    return load(data), data, proto


def chain(ops: Sequence[str]) -> Model:
    """Nodes one after the other that are called like these operators; nobody runs them."""
    nodes = [helper.make_node("Identity", [f"t{i}"], [f"t{i + 1}"], name=f"{op}{i}") for i, op in enumerate(ops)]
    loaded = load(make_model(nodes, {"t0": [2]}, {f"t{len(ops)}": [2]}))
    renamed = tuple(replace(node, op_type=op) for node, op in zip(loaded.nodes, ops, strict=True))
    return replace(loaded, nodes=renamed)


def event(
    index: int,
    group: Sequence[int] | None = None,
    *,
    ns: int = 1000,
    macs: int = 0,
    shape: Sequence[int] = (4,),
    backend: str = "native",
    **more: Any,
) -> NodeEvent:
    made = (TensorInfo(f"t{index}", np.dtype(np.uint8), tuple(shape)),)
    read = (TensorInfo(f"r{index}", np.dtype(np.uint8), tuple(shape)),)
    return NodeEvent(index, 0, ns, read, made, macs, backend, group=tuple([index] if group is None else group), **more)
