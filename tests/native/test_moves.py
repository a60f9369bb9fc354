"""Native kernels of nodes that cut, repeat, choose from and rearrange one tensor:
Split, Expand, Tile, Gather, DepthToSpace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width
from onnx import helper

from qrun.native.kernels.rearrange import repeated, spread

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
TYPES = (np.uint8, np.int16, np.float32, np.int64)


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(12), name="seed", other=4)
def test_repeats_and_blocks(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(4):
        dtype = np.dtype(TYPES[rng.integers(4)])
        rank, lead = int(rng.integers(0, 5)), int(rng.integers(0, 2))
        shape = tuple(int(n) for n in rng.choice([1, 1, 2, 3, 7, 16, 33], rank))
        times = [int(n) for n in rng.choice([0, 1, 1, 2, 3, 5, 17], lead + rank, p=[0.04, *[0.16] * 6])]
        order: Any = rng.choice(["plain", "channels"]) if rank > 2 and not lead else "plain"
        x, case = rng.integers(0, 100, shape).astype(dtype), f"{isa} {dtype} {shape} {times} {order}"
        operation = repeated(native, shape, dtype, times, order)
        assert_equal(run_placed(native, operation, [x], (0, 0)), np.tile(x, times), case)
        b, rest, h, w = (int(n) for n in rng.integers(1, (5, 20, 9, 9)))
        x = rng.integers(0, 100, (2, b * b * rest, h, w)).astype(dtype)
        order = rng.choice(["plain", "channels"])
        wide = np.empty((2, rest, h * b, w * b), dtype)
        steps = [(b * rest, rest, 1), (b, 1, b * b)][rng.integers(2)]
        for row in range(b):
            for column in range(b):
                first = row * steps[0] + column * steps[1]
                wide[:, :, row::b, column::b] = x[:, first :: steps[2]][:, :rest]
        case = f"{isa} {dtype} {x.shape} {b} {steps} {order}"
        there = spread(native, x.shape, dtype, b, steps, order)
        assert_equal(run_placed(native, there, [x], (0, 0)), wide, case)
        back = spread(native, x.shape, dtype, b, steps, order, gathered=True)
        assert_equal(run_placed(native, back, [wide], (0, 0)), x, case)


NODES: list[tuple[str, list[Any], dict[str, Any], int, int]] = [
    ("Split", [(6, 4)], {"axis": 0}, 11, 3),
    ("Split", [(6, 5)], {"axis": -1, "split": [2, 0, 3]}, 11, 3),
    ("Split", [(2, 7, 3, 5), [1, 4, 2]], {"axis": 1}, 17, 3),
    ("Split", [(2, 7, 3, 5), [7]], {"axis": 1}, 17, 1),
    ("Split", [(7, 3)], {"axis": 0, "num_outputs": 3}, 18, 3),
    ("Split", [(0, 3)], {"axis": 0}, 13, 2),
    ("Expand", [(3, 1), [2, 3, 6]], {}, 13, 1),
    ("Expand", [(), [2, 3]], {}, 13, 1),
    ("Expand", [(1, 4), [1, 1, 1]], {}, 13, 1),
    ("Expand", [(2, 1, 5, 1), [2, 3, 5, 7]], {}, 13, 1),
    ("Expand", [(2, 1), [2, 0]], {}, 13, 1),
    ("Expand", [(1, 2, 1, 2, 1, 2), [3, 2, 3, 2, 3, 2]], {}, 13, 1),
    ("Tile", [(2, 3), [3, 2]], {}, 13, 1),
    ("Tile", [(2, 3, 4, 5), [1, 2, 3, 2]], {}, 13, 1),
    ("DepthToSpace", [(2, 12, 3, 5)], {"blocksize": 2}, 13, 1),
    ("DepthToSpace", [(1, 18, 4, 3)], {"blocksize": 3, "mode": "CRD"}, 13, 1),
    ("SpaceToDepth", [(2, 3, 4, 6)], {"blocksize": 2}, 13, 1),
    ("Gather", [(5, 4), -2], {"axis": 0}, 13, 1),
    ("Gather", [(5,), 3], {}, 13, 1),
    ("Gather", [(2, 9, 5), [1, 4, 7]], {"axis": 1}, 13, 1),
    ("Gather", [(2, 9, 5), [3, 3, -1, -1]], {"axis": 1}, 13, 1),
    ("Gather", [(3, 4), [[3, 2], [1, 0]]], {"axis": -1}, 13, 1),
    ("SpaceToDepth", [(70, 3, 6, 6)], {"blocksize": 3}, 13, 1),
]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64, np.float16])
@pytest.mark.parametrize(("op_type", "inputs", "attributes", "opset", "outputs"), NODES)
def test_nodes_that_move_elements(
    op_type: str, inputs: list[Any], attributes: dict[str, Any], opset: int, outputs: int, dtype: Any
) -> None:
    shape, *rest = inputs
    x = np.random.default_rng(5).integers(0, 100, shape).astype(dtype)
    given = [v if v is None or isinstance(v, np.ndarray) else np.asarray(v, np.int64) for v in rest]
    model, feeds = node_model(
        op_type, [x, *given], attributes, opset=opset, outputs=[dtype] * outputs, constants=range(1, len(inputs))
    )
    (event,) = same_everywhere(model, feeds).events
    assert (event.backend, event.why, event.sections) == ("native", "", ())


def test_parts_that_nobody_reads_are_not_made() -> None:
    nodes = [helper.make_node("Split", ["x"], ["", "b", ""], axis=1), helper.make_node("Relu", ["b"], ["y"])]
    x = np.random.default_rng(1).normal(0, 1, (2, 9, 4)).astype(np.float32)
    model = make_model(nodes, {"x": x.shape}, dict.fromkeys("yb"), opset=13)
    events = same_everywhere(model, {"x": x}).events
    assert [event.backend for event in events] == ["native", "native"]


def test_movements_between_kernels() -> None:
    """Operands that lie channels-last, in C order and with gaps, moved in one program."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        helper.make_node("Split", ["a"], ["b", "c"], axis=1),
        helper.make_node("DepthToSpace", ["b"], ["d"], blocksize=2),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("SpaceToDepth", ["c"], ["f"], blocksize=2),
        helper.make_node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2]),
        helper.make_node("Concat", ["b", "c", "b"], ["h"], axis=1),
        helper.make_node("Tile", ["e", "times"], ["i"]),
        helper.make_node("MaxPool", ["i"], ["j"], kernel_shape=[2, 2]),
        helper.make_node("Split", ["x"], ["k", "l"], axis=2),
        helper.make_node("Concat", ["l", "k"], ["m"], axis=2),
        helper.make_node("Identity", ["a"], ["n"]),
        helper.make_node("MaxPool", ["n"], ["o"], kernel_shape=[3, 2]),
        helper.make_node("Gather", ["o", "odd"], ["p"], axis=1),
        helper.make_node("MaxPool", ["p"], ["q"], kernel_shape=[2, 2]),
    ]
    constants = {"times": np.array([1, 2, 1, 3]), "odd": np.array([1, 3, 5])}
    data = np.random.default_rng(6).integers(-128, 128, (2, 16, 10, 12)).astype(np.int8)
    model = make_model(nodes, {"x": data}, dict.fromkeys("ghjmq", typed(np.int8)), constants, opset=17)
    nodes[0].attribute.append(helper.make_attribute("pads", [0, 0, 1, 1]))
    model.graph.node[0].CopyFrom(nodes[0])
    for outputs_ in (None, list("abcdefghijklmnopq")):
        for threads in (1, 2):
            ran = same_everywhere(model, {"x": data}, outputs_, threads=threads)
            assert {event.backend for event in ran.events} == {"native"}


def test_what_is_declined_and_why() -> None:
    x = np.zeros((2, 3), np.uint8)
    cases = [
        (node_model("Expand", [x, np.array([4, 2, 3])], outputs=[np.uint8]), "shape is not constant"),
        (node_model("Tile", [x, np.array([4, 2])], outputs=[np.uint8]), "repeats is not constant"),
        (node_model("Gather", [x, np.zeros(0, np.int64)], outputs=[np.uint8], constants=[1]), "no elements"),
        (node_model("Split", [x, np.array([1, 1])], {"axis": 0}, opset=13, outputs=[np.uint8] * 2),
         "split is not constant"),
        (node_model("Split", [x.astype(str).astype(object)], {"axis": 0}, opset=13, outputs=[np.dtype(object)] * 2),
         "no native copies of string"),
        (node_model("Split", [np.zeros(1025, np.uint8)], {"axis": 0}, opset=13, outputs=[np.uint8] * 1025),
         "more than 1024 parts"),
    ]  # fmt: skip
    for (model, feeds), why in cases:
        assert_left(model, feeds, why)


def test_refusals_are_those_of_the_reference() -> None:
    x = np.zeros((2, 3), np.uint8)
    for op_type, inputs, attributes, outputs in (
        ("Split", [x], {"axis": 5}, 2), ("Split", [x], {"axis": 1}, 2), ("Expand", [x, np.array([3])[[0, 0]]], {}, 1),
        ("Tile", [x, np.array([-1, 2])], {}, 1), ("DepthToSpace", [x[None, None]], {"blocksize": 2}, 1),
    ):  # fmt: skip
        model, feeds = node_model(
            op_type, inputs, attributes, opset=13, outputs=[np.uint8] * outputs, constants=range(1, len(inputs))
        )
        same_refusal(model, feeds)
