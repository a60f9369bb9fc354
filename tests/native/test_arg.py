"""Native ArgMax and ArgMin equal numpy's, on every instruction set, within their memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width
from onnx import TensorProto, helper

from qrun.native.kernels.reduce import ARG_KINDS, Arg
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
def test_places(isa: str, seed: int, threads: int) -> None:
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
def test_nodes(op_type: str, dtype: Any) -> None:
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
                    (event,) = same_everywhere(model, feeds, threads=threads).events
                    assert (event.backend, event.why) == ("native", ""), (shape, options)


def test_of_what_lies_channels_last() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[2, 2]),
        *(helper.make_node("ArgMax", ["a"], [f"y{n}"], axis=n % 4, keepdims=n // 4) for n in range(8)),
    ]
    model = make_model(nodes, {"x": [2, 21, 6, 9]}, {f"y{n}": typed(TensorProto.INT64) for n in range(8)}, opset=13)
    data = np.random.default_rng(1).normal(0, 1, (2, 21, 6, 9)).astype(np.float32)
    events = same_everywhere(model, {"x": data}).events
    assert {event.backend for event in events} == {"native"}


def test_what_is_declined_and_refused() -> None:
    for dtype in (np.float64, np.int16):
        model, feeds = node_model("ArgMax", [np.ones(3, dtype)], opset=13, outputs=[np.int64])
        assert_left(model, feeds, f"no native kernel for {np.dtype(dtype)}")
    for shape, axis in (((2, 3), 2), ((2, 0), 1)):
        same_refusal(*node_model("ArgMin", [np.ones(shape, np.float32)], {"axis": axis}, opset=13, outputs=[np.int64]))
