"""Inputs of ever new sizes in scripts/bench.py: texts of other lengths,
and a decoder whose cache grows with each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
COUNT, STEPS, WARM = 20, 40, 2
"""Lengths of texts; steps of a decoder; sizes before them, of which nothing is told."""
LAYERS, WIDTH, HEADS = 4, 64, 4


def free_length(path: Path) -> onnx.ModelProto:
    """An encoder of [batch, length, width], whatever its length was."""
    model = onnx.load(str(path))
    graph = model.graph
    targets = {node.input[1] for node in graph.node if node.op_type == "Reshape"}
    for tensor in graph.initializer:
        if tensor.name in targets:
            sizes = numpy_helper.to_array(tensor)
            kept = np.array([0, 0, *sizes[2:]] if sizes.size > 3 else [0, 0, sizes[-1]], np.int64)
            tensor.CopyFrom(numpy_helper.from_array(kept, tensor.name))
    for value in (*graph.input, *graph.output):
        for dim, symbol in zip(value.type.tensor_type.shape.dim, ("batch", "length"), strict=False):
            dim.dim_param = symbol
    del graph.value_info[:]
    return model


def decoder() -> onnx.ModelProto:
    """Layers of attention over what earlier steps left in a cache, and of this step's word."""
    rng = np.random.default_rng(0)
    nodes, weights, outputs = [], [], []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, WIDTH])]

    def add(op: str, *names: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, names, [f"{op}_{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def constant(array: Array) -> str:
        weights.append(numpy_helper.from_array(array, f"c{len(weights)}"))
        return str(weights[-1].name)

    def linear(x: str) -> str:
        return add("MatMul", x, constant((rng.normal(0, 1, (WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)))

    split, joined = constant(np.array([0, 0, HEADS, -1])), constant(np.array([0, 0, WIDTH]))
    y = "x"
    for layer in range(LAYERS):
        q, k, v = (add("Transpose", add("Reshape", linear(y), split), perm=[0, 2, 1, 3]) for _ in range(3))
        for name in ("k", "v"):
            shape = [1, HEADS, "past", WIDTH // HEADS]
            inputs.append(helper.make_tensor_value_info(f"{name}{layer}", TensorProto.FLOAT, shape))
        k, v = (add("Concat", f"{name}{layer}", new, axis=2) for name, new in (("k", k), ("v", v)))
        outputs += [k, v]
        shares = add("Softmax", add("MatMul", q, add("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
        mixed = add("Reshape", add("Transpose", add("MatMul", shares, v), perm=[0, 2, 1, 3]), joined)
        y = add("Add", y, linear(mixed))
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in [y, *outputs]]
    graph = helper.make_graph(nodes, "decoder", inputs, infos, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def texts(model: onnx.ModelProto, batch: int) -> Iterator[Feeds]:
    """So many texts at a time, of different lengths, each once."""
    rng, (x,) = np.random.default_rng(1), model.graph.input
    width = x.type.tensor_type.shape.dim[2].dim_value
    for length in (16, 24, *rng.permutation(np.arange(17, 17 + 8 * COUNT, 8)).tolist()):
        yield {x.name: rng.normal(0, 1, (batch, length, width)).astype(np.float32)}


def steps(model: onnx.ModelProto) -> Iterator[Feeds]:
    """A word each, after as many as there were before."""
    rng = np.random.default_rng(2)
    for past in range(WARM + STEPS):
        sizes = {v.name: [d.dim_value or past for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        yield {name: rng.normal(0, 1, shape).astype(np.float32) for name, shape in sizes.items()}


def new_sizes(name: str, model: onnx.ModelProto, feeds: Iterator[Feeds], threads: int, cache: str) -> dict[str, Any]:
    """Median ms of the first run with new sizes, of the second, and of later ones, for qrun and onnxruntime in turn."""
    calls = dict(_calls(model, threads, cache))
    taken: dict[str, list[tuple[float, float, float]]] = {engine: [] for engine in calls}
    for number, given in enumerate(feeds):
        for engine, call in calls.items():
            times = []
            for _ in range(6 if number >= WARM else 3):
                start = perf_counter()
                call(given)
                times.append(1e3 * (perf_counter() - start))
            if number >= WARM:
                taken[engine].append((times[0], times[1], min(times[2:])))
    spans = {engine: [median(span) for span in zip(*rows, strict=True)] for engine, rows in taken.items()}
    return {"model": name, "threads": threads, "engines": spans}


def _calls(model: onnx.ModelProto, threads: int, cache: str) -> Iterator[tuple[str, Any]]:
    import onnxruntime as ort

    import qrun

    session = qrun.Session(model, threads=threads, cache=cache)
    yield "qrun", session.run
    options: Any = ort.SessionOptions()
    options.intra_op_num_threads = threads
    peer = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    yield "ort", lambda given: peer.run(None, given)


def sizes_table(rows: list[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """One line for each engine of a row, as the tables of _bench_report.py are."""
    head = ["model", "threads", "engine", "first run ms", "second ms", "later ms", "first / later"]
    lines = []
    for row in rows:
        for engine, (first, second, later) in row["engines"].items():
            facts = [row["model"], str(row["threads"]), engine]
            lines.append([*facts, f"{first:.2f}", f"{second:.2f}", f"{later:.2f}", f"{first / later:.1f}"])
    return head, lines
