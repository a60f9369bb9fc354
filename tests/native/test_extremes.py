"""Native ArgMax, ArgMin, TopK and OneHot are their definitions', on every instruction set, within their memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, Array, engine
from helpers.placed import natively, run_placed
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width
from onnx import TensorProto, helper

from qrun.native.kernels.reduce import ARG_KINDS, ONE_HOT_KINDS, Along, Arg, OneHot, TopPlaces
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def elements(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Few different ones, or any; of floats also both zeros, infinities and NaN."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low, high = (int(info.min), int(info.max)) if rng.integers(2) else (0, 2)
        x = rng.integers(low, high, shape, dtype, endpoint=True)
        x[rng.random(shape) < 0.1] = rng.choice([info.min, info.max])
        return np.asarray(x)
    x = rng.choice([-1.5, -0.0, 0.0, 2.0], shape) if rng.integers(2) else rng.normal(0, 1, shape)
    special = rng.random(shape) < rng.choice([0, 0, 0.02, 0.5])
    return np.where(special, rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], shape), x).astype(dtype)


def found(x: Array, axis: int, what: str) -> Array:
    """By the definition: element after element, NaN before all others, the first or the last of equals."""
    lines = np.moveaxis(x, axis, -1)
    made = np.zeros(lines.shape[:-1], np.int64)
    for place in np.ndindex(*made.shape):
        best = 0
        for number, value in enumerate(lines[place].tolist()):
            most = lines[place].tolist()[best]
            if value != value or most != most:
                better, equal = most == most, value != value and most != most
            else:
                better, equal = value > most if what.startswith("max") else value < most, value == most
            if better or (equal and what.endswith("_last")):
                best = number
        made[place] = best
    return np.expand_dims(made, axis)


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(16), name="seed", other=4)
def test_arg_places(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(6):
        dtype, rank = np.dtype(rng.choice(list(ARG_KINDS))), int(rng.integers(1, 5))
        shape = tuple(
            int(n) for n in rng.choice([1, 2, 3, 7, 16, 33, 70], rank, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05])
        )
        axis, what = int(rng.integers(rank)), str(rng.choice(["max", "min", "max_last", "min_last"]))
        order: Any = rng.choice(["plain", "channels"]) if rank > 2 else "plain"
        x = elements(rng, shape, dtype)
        operation = Arg(native, Operand(shape, dtype), axis, what, order)
        strides = [0, 0]
        for place, operand in enumerate(operation.operands):
            if order == "channels" and rng.integers(2):
                strides[place] = operand.row_bytes("channels") + 8
        case = f"{isa} {dtype} {shape} {axis} {what} {order} {strides}"
        assert_equal(run_placed(native, operation, [x], strides), found(x, axis, what), case)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64, np.int32, np.uint8, np.int8])
@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
def test_arg_nodes(op_type: str, dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape, axis in (
        ((5,), 0),
        ((2, 1000), -1),
        ((3, 21, 9, 10), 1),
        ((2, 3, 4, 5, 6), 3),
        ((0, 4), 1),
        ((4, 1, 3), 1),
    ):
        for keepdims in (0, 1):
            for last in (0, 1):
                options = {"axis": axis, "keepdims": keepdims, "select_last_index": last}
                x = elements(rng, shape, dtype)
                model, feeds = node_model(op_type, [x], options, opset=13, outputs=[np.int64])
                for threads in (1, 2):
                    natively(model, feeds, threads=threads)


def test_of_what_lies_channels_last() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        *(helper.make_node("ArgMax", ["a"], [f"y{n}"], axis=n % 4, keepdims=n // 4) for n in range(8)),
    ]
    model = make_model(nodes, {"x": [2, 21, 6, 9]}, {f"y{n}": typed(TensorProto.INT64) for n in range(8)}, opset=13)
    data = np.random.default_rng(1).normal(0, 1, (2, 21, 6, 9)).astype(np.float32)
    natively(model, {"x": data})


def elements_top(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Few different ones, or any; of floats also both zeros, infinities and NaN."""
    dtype = np.dtype(dtype)
    few, special = rng.integers(2), rng.random(shape) < rng.choice([0, 0.02, 0.5])
    if dtype.kind == "i":
        info = np.iinfo(dtype)
        x = rng.integers(0, 3, shape) if few else rng.integers(int(info.min), int(info.max), shape, endpoint=True)
        return np.where(special, rng.choice([info.min, info.max], shape), x).astype(dtype)
    x = rng.choice([-1.5, -0.0, 0.0, 2.0], shape) if few else rng.normal(0, 1, shape)
    return np.where(special, rng.choice([np.nan, -np.nan, np.inf, -np.inf, -0.0], shape), x).astype(dtype)


def best(row: Array, count: int, what: str) -> list[int]:
    """By the definition: NaN above all numbers, of equals the first one first."""
    values = [(value != value, 0.0 if value != value else value) for value in row.astype(np.float64).tolist()]
    return (
        sorted(range(len(values)), key=values.__getitem__)[:count]
        if what == "min"
        else sorted(range(len(values)), key=lambda n: (not values[n][0], -values[n][1]))[:count]
    )


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(16), name="seed", other=4)
def test_places_and_elements(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(6):
        dtype = np.dtype(rng.choice(["float32", "int32"]))
        lead = tuple(int(n) for n in rng.choice([1, 2, 5, 0], int(rng.integers(0, 3)), p=[0.3, 0.3, 0.35, 0.05]))
        length = int(rng.choice([1, 2, 3, 16, 17, 50, 300]))
        count, what = int(rng.integers(0, length + 1)), str(rng.choice(["max", "min"]))
        x = elements_top(rng, (*lead, length), dtype)
        rows = x.reshape(-1, length)
        want = np.array([best(row, count, what) for row in rows], np.int64).reshape(*lead, count)
        operand, case = Operand(x.shape, dtype), f"{isa} {dtype} {x.shape} {count} {what}"
        top = TopPlaces(native, operand, count, what)
        places = run_placed(native, top, [x], (0, 0))
        assert_equal(places, want, case)
        along = Along(native, operand, top.result)
        assert_equal(run_placed(native, along, [x, places], (0, 0, 0)), np.take_along_axis(x, want, -1), case)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int32])
def test_top_nodes(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape, axis, k in (((9,), 0, 4), ((2, 1000), -1, 100), ((3, 21, 4), 1, 5), ((2, 3, 4, 5), 0, 2),
                           ((0, 4), 1, 2), ((4, 6), 1, 0), ((4, 6), 0, 4)):  # fmt: skip
        for largest in (0, 1):
            x = elements_top(rng, shape, dtype)
            options = {"axis": axis, "largest": largest}
            opset = 24 if dtype is ml_dtypes.bfloat16 else 11
            model, feeds = node_model(
                "TopK",
                [x, np.array([k])],
                options,
                opset=opset,
                outputs=[dtype, np.int64],
                constants=[1],
                ir_version=10,
            )
            for threads in (1, 2):
                for wanted in (None, ["y0"], ["y1"]):
                    natively(model, feeds, wanted, threads=threads)


def test_top_of_an_older_version() -> None:
    x = elements_top(np.random.default_rng(1), (3, 40), np.float32)
    natively(*node_model("TopK", [x], {"k": 7}, opset=9, outputs=[np.float32, np.int64]))


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(12), name="seed", other=4)
def test_one_hot_values(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    for _ in range(6):
        kind, made = (
            np.dtype(rng.choice(list(ONE_HOT_KINDS))),
            np.dtype(rng.choice(["uint8", "float16", "float32", "int64"])),
        )
        shape = tuple(
            int(n) for n in rng.choice([1, 2, 5, 40, 0], int(rng.integers(0, 4)), p=[0.3, 0.3, 0.25, 0.1, 0.05])
        )
        depth, axis = int(rng.choice([0, 1, 3, 16, 77])), int(rng.integers(0, len(shape) + 1))
        low = 0 if kind.kind == "u" else -depth - 3
        x = np.asarray(rng.integers(low, depth + 3, shape), kind)
        off, on = rng.normal(0, 50, 2)
        values, least = np.array([off, abs(on)]).astype(made), int(rng.choice([0, -depth]))
        want = np.full((*shape[:axis], depth, *shape[axis:]), values[0])
        for place in np.ndindex(*shape):
            index = int(x[place])
            if least <= index < depth:
                want[(*place[:axis], index % depth, *place[axis:])] = values[1]
        operation = OneHot(engine(isa, threads), Operand(shape, kind), axis, depth, values, least)
        assert_equal(
            run_placed(engine(isa, threads), operation, [x], (0, 0)),
            want,
            f"{isa} {kind} {made} {shape} {axis} {depth}",
        )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.uint8, bool])
@pytest.mark.parametrize("opset", [9, 13])
def test_one_hot_nodes(dtype: Any, opset: int) -> None:
    x = np.array([[0, 3, -1], [-5, 4, 7]])
    for kind in (np.int64, np.int32):
        for axis in (-1, 0, 1):
            for indices in (x.astype(kind), x[:, :0].astype(kind)):
                values = np.array([0, 1]).astype(dtype)
                model, feeds = node_model(
                    "OneHot",
                    [indices, np.array([5]), values],
                    {"axis": axis},
                    opset=opset,
                    outputs=[dtype],
                    constants=[1, 2],
                )
                for threads in (1, 2):
                    natively(model, feeds, threads=threads)
