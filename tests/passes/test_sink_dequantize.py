"""Nodes that only move numbers move integers: the bits of the literal graph, in every arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.passes import ARITHS, Graph, assert_same, codes, ops, reasons, rewritten, zero

from qrun.ops import REGISTRY

F, U8, S8, I64 = np.float32, np.uint8, np.int8, np.int64
SHAPE = (2, 4, 4, 6)


def ints(g: Graph, *values: int) -> str:
    return g.const(np.array(values, I64))


MOVES: dict[str, Callable[[Graph, str], Any]] = {
    "Reshape": lambda g, t: g.node("Reshape", t, ints(g, 2, -1)),
    "Flatten": lambda g, t: g.node("Flatten", t, axis=2),
    "Transpose": lambda g, t: g.node("Transpose", t, perm=[0, 2, 3, 1]),
    "Unsqueeze": lambda g, t: g.node("Unsqueeze", t, ints(g, 0)),
    "Squeeze": lambda g, t: g.node("Squeeze", g.node("Slice", t, ints(g, 1), ints(g, 2), ints(g, 0)), ints(g, 0)),
    "Slice": lambda g, t: g.node("Slice", t, ints(g, 3, 0), ints(g, 0, 9), ints(g, 1, 3), ints(g, -1, 2)),
    "Gather": lambda g, t: g.node("Gather", t, g.const(np.array([[0, -1], [2, 2]])), axis=1),
    "GatherElements": lambda g, t: g.node("GatherElements", t, g.const(np.zeros((2, 4, 4, 6), I64)), axis=3),
    "GatherND": lambda g, t: g.node("GatherND", t, g.const(np.array([[0, 3], [1, -1]]))),
    "Expand": lambda g, t: g.node("Expand", t, ints(g, 3, 1, 1, 1, 1)),
    "Tile": lambda g, t: g.node("Tile", t, ints(g, 1, 2, 1, 1)),
    "Split": lambda g, t: g.node("Split", t, ints(g, 1, 3), axis=1, outputs=2)[1],
    "DepthToSpace": lambda g, t: g.node("DepthToSpace", t, blocksize=2),
    "SpaceToDepth": lambda g, t: g.node("SpaceToDepth", t, blocksize=2),
    "Compress": lambda g, t: g.node("Compress", t, g.const(np.array([True, False, True])), axis=2),
    "Pad": lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0)),
    "Pad of a value": lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0), g.const(F(0.75))),
    "Pad edge": lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0), mode="edge"),
    "Resize": lambda g, t: g.node("Resize", t, "", g.const(np.array([1, 1, 2, 0.5], F)), mode="nearest"),
    "ReverseSequence": lambda g, t: g.node("ReverseSequence", t, ints(g, 2, 1), time_axis=1, batch_axis=0),
    "MaxPool": lambda g, t: g.node("MaxPool", t, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1),
    "MaxPool SAME": lambda g, t: g.node("MaxPool", t, kernel_shape=[2, 3], strides=[2, 1], auto_pad="SAME_LOWER"),
    "MaxPool dilated": lambda g, t: g.node("MaxPool", t, kernel_shape=[2, 2], dilations=[2, 3]),
}


@pytest.mark.parametrize("name", MOVES)
@pytest.mark.parametrize("dtype", [U8, S8])
@pytest.mark.parametrize("arith", ARITHS)
def test_moves(name: str, dtype: Any, arith: Any) -> None:
    rng = np.random.default_rng(len(name))
    for same in (True, False):
        g = Graph()
        x = g.feed(codes(rng, dtype, SHAPE))
        z = dtype(3)
        y = MOVES[name](g, g.dq(x, 0.25, z))
        g.output(g.q(y, 0.25 if same else 0.1, z if same else zero(rng, rng.choice([U8, S8]))))
        done = assert_same(g, arith, message=name)
        op_type = name.split()[0]
        want = (["Slice"] if op_type == "Squeeze" else []) + [op_type] + ([] if same else ["Table"])
        assert ops(done) == want, reasons(done)
        assert [n.version for n in done.model.nodes if n.op_type == "MaxPool"] == [12] * (op_type == "MaxPool")


def test_every_operator_that_moves_is_tested() -> None:
    declared = {op_type for (_, op_type), versions in REGISTRY.items() for d in versions if d.form == "moves"}
    assert declared - {name.split()[0] for name in MOVES} == {"Identity"}


@pytest.mark.parametrize("opset", [10, 11, 13, 17, 21, 23])
def test_through_a_chain_to_where_it_is_read_in_float(opset: int) -> None:
    g = Graph(opset)
    x = g.feed(codes(np.random.default_rng(1), U8, (2, 3, 4)))
    t = g.node("Flatten", g.node("Transpose", g.dq(x, 0.1, U8(9)), perm=[0, 2, 1]))
    y = g.node("Exp", t)
    g.output(y, t)
    done = assert_same(g)
    assert ops(done) == ["Transpose", "Flatten", "DequantizeLinear", "Exp"]


def test_a_dequantization_that_others_read_stays_for_them() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 3))), 0.1, U8(9))
    g.output(g.node("Exp", t), g.q(g.node("Transpose", t), 0.1, U8(9)))
    assert ops(assert_same(g)) == ["DequantizeLinear", "Exp", "Transpose"]


def test_a_tensor_that_is_asked_for_is_still_there() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 3))), 0.1, U8(9))
    moved = g.node("Transpose", t)
    same = g.node("Identity", moved)
    g.output(g.q(same, 0.1, U8(9)))
    done = assert_same(g, keep=(t, moved, same))
    assert ops(done) == ["DequantizeLinear", "Transpose", "DequantizeLinear", "Identity"]


def test_all_parts_of_a_split() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 6))), 0.1, U8(9))
    a, _, c = g.node("Split", t, ints(g, 1, 2, 3), axis=1, outputs=3)
    g.output(g.q(a, 0.1, U8(9)), g.node("Exp", c))
    assert ops(assert_same(g)) == ["Split", "DequantizeLinear", "Exp"]


def test_weights_that_are_transposed_in_float() -> None:
    rng = np.random.default_rng(1)
    g = Graph()
    x = g.dq(g.feed(codes(rng, U8, (2, 3))), 0.1, U8(9))
    w = g.dq(g.const(codes(rng, S8, (4, 3))), rng.uniform(0.1, 1, 4), np.zeros(4, S8), axis=0)
    g.output(g.q(g.node("MatMul", x, g.node("Transpose", w)), 2, U8(99)))
    done = rewritten(g)
    assert ops(done) == ["QLinearMatMul"]
    assert [a.shape for a in done.model.constants.values() if a.ndim == 2] == [(3, 4)]


def test_shape_reads_the_integers() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 3))), 0.1, U8(9))
    g.output(g.node("Shape", t), g.node("Size", t))
    assert ops(assert_same(g)) == ["Shape", "Size"]


@pytest.mark.parametrize("opset", [7, 10, 12, 21])
def test_dropout_and_identity_vanish(opset: int) -> None:
    g = Graph(max(opset, 10))
    t = g.node("Identity", g.dq(g.feed(codes(np.random.default_rng(1), U8, (2, 3))), 0.1, U8(9)))
    y, _ = g.node("Dropout", t, outputs=2)
    g.output(g.q(y, 0.1, U8(9)), g.node("Identity", g.node("Identity", g.feed(F(3)))))
    assert ops(assert_same(g)) == ["Identity", "Identity"], "one for each graph output"


REFUSED: dict[str, tuple[Callable[[Graph, str], Any], str]] = {
    "mask": (lambda g, t: g.output(m := g.node("Dropout", t, outputs=2, label="n")[0]) and m, "Dropout has no integer form"),
    "training": (
        lambda g, t: g.node("Dropout", t, g.const(F(0.5)), g.const(np.array(True)), label="n"),
        "Dropout has no integer form",
    ),
    "linear": (
        lambda g, t: g.node("Resize", t, "", g.const(np.array([1, 1, 2, 2], F)), mode="linear", label="n"),
        "Resize computes new values",
    ),
    "crop": (
        lambda g, t: g.node("Resize", t, g.const(np.array([0, 0, 0, 0, 1, 1, 2, 2], F)), "", ints(g, *SHAPE), mode="nearest",
                            coordinate_transformation_mode="tf_crop_and_resize", label="n"),
        "Resize computes new values",
    ),
    "fill": (
        lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0), g.const(F(0.3)), label="n"),
        "constant_value 0.30000001192092896 is not the value of a code",
    ),
    "minus zero": (
        lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0), g.const(F(-0.0)), label="n"),
        "constant_value -0.0 is not the value of a code",
    ),
    "fed fill": (
        lambda g, t: g.node("Pad", t, ints(g, 0, 0, 1, 2, 0, 1, 0, 0), g.feed(F(0.5)), label="n"),
        "constant_value is not constant",
    ),
    "indices": (
        lambda g, t: g.node("MaxPool", t, kernel_shape=[2, 2], outputs=2, label="n")[0],
        "Indices are asked for",
    ),
    "padding": (
        lambda g, t: g.node("MaxPool", t, kernel_shape=[2, 2], pads=[1, 0, 1, 0], label="n"),
        "a window may lie wholly in the padding",
    ),
    "dilated padding": (
        lambda g, t: g.node("MaxPool", t, kernel_shape=[3, 3], dilations=[2, 1], pads=[1, 0, 1, 0], label="n"),
        "a window may lie wholly in the padding",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    move, reason = REFUSED[name]
    g = Graph()
    y = move(g, g.dq(g.feed(codes(np.random.default_rng(1), U8, SHAPE)), 0.25, U8(9)))
    if name == "mask":
        g.output(g.nodes[-1].output[1])
    done = assert_same(g.output(g.q(y, 0.25, U8(9))), message=name)
    assert reasons(done)["n"] == reason


def test_one_scale_per_channel_is_not_moved() -> None:
    g = Graph()
    x = g.feed(codes(np.random.default_rng(1), U8, (2, 3, 4)))
    t = g.dq(x, [0.1, 0.2, 0.3], np.array([0, 9, 255], U8))
    a = g.q(g.node("Transpose", t, perm=[2, 0, 1]), [0.1, 0.2, 0.3], np.array([0, 9, 255], U8), axis=2)
    b = g.node("Reshape", t, ints(g, 6, 4), label="n")
    done = assert_same(g.output(a, g.q(b, 0.1, U8(9))))
    assert ops(done) == ["DequantizeLinear", "Transpose", "Reshape", "QuantizeLinear"]
    assert reasons(done)["n"] == "its input has one scale per place along axis 1"


@pytest.mark.parametrize("scale", [-0.5, 0.0, np.inf, np.nan])
def test_scales_that_turn_the_order_stay_in_float(scale: float) -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 1, 4, 4))), scale, U8(9))
    y = g.node("MaxPool", t, kernel_shape=[2, 2])
    assert "MaxPool" in ops(assert_same(g.output(g.q(y, 0.5, U8(9)))))
    assert [n.version for n in rewritten(g).model.nodes if n.op_type == "MaxPool"] == [12]


def test_a_scale_that_overflows_keeps_the_order() -> None:
    g = Graph()
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 1, 8, 8))), 3e38, U8(99))
    y = g.node("MaxPool", t, kernel_shape=[2, 2])
    assert ops(assert_same(g.output(y))) == ["MaxPool", "DequantizeLinear"]


def test_sixteen_bits_move_too() -> None:
    g = Graph(21)
    t = g.dq(g.feed(np.arange(6).astype(np.uint16).reshape(2, 3)), 0.1, np.uint16(9))
    assert ops(assert_same(g.output(g.node("Exp", g.node("Transpose", t))))) == ["Transpose", "DequantizeLinear", "Exp"]


def test_old_operators_take_no_integers() -> None:
    g = Graph(10)
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 1, 4, 4))), 0.1, U8(9))
    y = g.node("Pad", t, pads=[0, 0, 1, 1, 0, 0, 0, 0], label="n")
    done = assert_same(g.output(g.q(y, 0.1, U8(9))))
    assert reasons(done)["n"] == "Pad-2 does not take uint8"


def test_max_pool_of_an_old_opset_becomes_the_one_that_takes_integers() -> None:
    g = Graph(10)
    t = g.dq(g.feed(codes(np.random.default_rng(1), U8, (1, 1, 4, 4))), 0.1, U8(9))
    done = assert_same(g.output(g.q(g.node("MaxPool", t, kernel_shape=[2, 2]), 0.1, U8(9))))
    assert [(n.op_type, n.version) for n in done.model.nodes] == [("MaxPool", 12)]
