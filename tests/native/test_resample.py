"""Native Resize, Upsample and Pad: elements that tables name, and sums of them times weights."""

from __future__ import annotations

import contextlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.models import make_model, typed
from helpers.native import ISAS, OBJECTS, Array, engine
from helpers.placed import natively, run_placed, same_everywhere, same_refusal
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width
from onnx import TensorProto, helper, numpy_helper

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.indexed import Indexed
from qrun.native.kernels.resample import Resample, WeighedTaps
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
TYPES = (np.uint8, np.int16, np.float32, np.int64)


def gap(rng: np.random.Generator, operand: Operand, order: Any) -> int:
    """Bytes from row to row of an operand that lies channels-last, with and without room between them."""
    return 0 if order == "plain" else int(rng.choice([0, operand.row_bytes("channels") + 8]))


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(16), name="seed", other=4)
def test_elements_that_tables_name(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads])
    native = engine(isa, threads)
    for _ in range(6):
        dtype, rank = np.dtype(TYPES[rng.integers(4)]), int(rng.integers(0, 6))
        shape = tuple(
            int(n) for n in rng.choice([1, 2, 3, 7, 16, 33, 70], rank, p=[0.2, 0.2, 0.2, 0.2, 0.1, 0.05, 0.05])
        )
        places: list[Any] = []
        for n in shape:
            out, how = int(rng.choice([0, 1, 2, 3, 17, 40], p=[0.02, 0.18, 0.2, 0.2, 0.2, 0.2])), rng.integers(4)
            made = [
                None,
                np.repeat(np.arange(n), rng.integers(1, 5)),
                np.sort(rng.integers(0, n, out)),
                rng.integers(0, n, out),
            ]
            places.append(made[how])
        order: Any = rng.choice(["plain", "channels"]) if rank > 2 else "plain"
        x = rng.integers(0, 100, shape).astype(dtype)
        want = x
        for axis, place in enumerate(places):
            want = want if place is None else np.take(want, place, axis)
        operation = Indexed(native, Operand(shape, dtype), places, order)
        strides = tuple(gap(rng, operand, order) for operand in operation.operands)
        if rank == 5:
            with contextlib.suppress(Declined):
                operation.sections(strides)
            if not operation._made:
                continue
        assert_equal(
            run_placed(native, operation, [x], strides), want, f"{isa} {dtype} {shape} {places} {order} {strides}"
        )


def summed(x: Array, taps: dict[int, tuple[Array, Array]]) -> Array:
    """float64 sums of elements times weights, axis by axis, from 0 on and in order."""
    made = x.astype(np.float64)
    with np.errstate(all="ignore"):
        for axis, (index, weights) in taps.items():
            lines = np.moveaxis(made, axis, 0)
            rows = []
            for own, weighs in zip(index, weights, strict=True):
                total = np.zeros(lines.shape[1:])
                for place, weight in zip(own, weighs, strict=True):
                    total = total + lines[place] * weight
                rows.append(total)
            made = np.moveaxis(np.stack(rows), 0, axis)
    return made


@pytest.mark.parametrize("threads", [1, 3])
@thin_width(*range(16), name="seed", other=4)
def test_sums_of_elements(isa: str, seed: int, threads: int) -> None:
    rng = np.random.default_rng([seed, threads, 1])
    native = engine(isa, threads)
    for _ in range(4):
        dtype: Any = (np.float32, np.uint8, np.int8, np.float64)[rng.integers(4)]
        rank = int(rng.integers(1, 5))
        shape = tuple(int(n) for n in rng.choice([1, 2, 5, 9, 17, 40], rank))
        first = int(rng.integers(0, rank))
        taps = {}
        for axis in range(first, min(rank, first + int(rng.integers(1, 3)))):
            out, count = int(rng.choice([1, 3, 20])), int(rng.choice([1, 2, 4]))
            taps[axis] = rng.integers(0, shape[axis], (out, count)), rng.normal(0.4, 0.6, (out, count))
        made: Any = np.dtype(dtype) if rng.integers(2) else np.dtype(np.float64)
        order: Any = "channels" if rank > 2 and first >= 2 and max(taps) == rank - 1 and rng.integers(2) else "plain"
        x = (
            rng.normal(0, 9, shape).astype(dtype)
            if np.dtype(dtype).kind == "f"
            else rng.integers(-128, 256, shape).astype(dtype)
        )
        if np.dtype(dtype).kind == "f":
            x.flat[rng.integers(0, x.size)] = rng.choice([np.nan, np.inf, -np.inf, -0.0])
        want = summed(x, taps)
        if made.kind in "iu":
            want = np.clip(np.rint(want), np.iinfo(made).min, np.iinfo(made).max)
        operation = Resample(
            native, Operand(shape, np.dtype(dtype)), {a: WeighedTaps.of(*t) for a, t in taps.items()}, made, order
        )
        strides = tuple(gap(rng, operand, order) for operand in operation.operands)
        case = f"{isa} {np.dtype(dtype)} {shape} {made} {order} {strides} {list(taps)}"
        assert_equal(run_placed(native, operation, [x], strides), want.astype(made), case)


CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1, 3, 7, 9), (1, 3, 14, 18)),
    ((2, 5, 16, 33), (2, 5, 11, 99)),
    ((1, 2, 5, 6, 7), (1, 2, 9, 3, 14)),
    ((1, 40, 13, 13), (1, 40, 26, 26)),
    ((3, 4), (6, 4)),
    ((3, 4, 5), (3, 2, 17)),
    ((4,), (9,)),
    ((2, 3, 4, 5), (3, 5, 8, 2)),
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4, 5), (2, 0, 4, 7)),
    ((0, 3, 4, 5), (0, 3, 8, 7)),
]
BFLOAT16 = ml_dtypes.bfloat16


def image(shape: tuple[int, ...], dtype: Any) -> Array:
    rng = np.random.default_rng(len(shape))
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-128, 256, shape).astype(dtype)
    x = rng.normal(0, 9, shape).astype(dtype)
    if x.size > 30:
        x.flat[[3, 11, 20, 30]] = [np.inf, np.nan, -0.0, -np.inf]
    return x


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int8, np.float16, BFLOAT16])
@pytest.mark.parametrize("threads", [1, 2])
def test_resize(dtype: Any, mode: str, threads: int) -> None:
    transforms = ["half_pixel", "asymmetric", "align_corners"]
    for number, (shape, sizes) in enumerate(CASES):
        options: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": transforms[number % 3]}
        if number % 2:
            options |= {"exclude_outside": 1} if mode == "cubic" else {"nearest_mode": "ceil"}
        inputs = [image(shape, dtype), None, None, np.array(sizes)]
        if number % 4 == 0 and all(shape):
            inputs[2:] = [np.array([(m + 0.5) / n for n, m in zip(shape, sizes, strict=True)], np.float32)]
        model, feeds = node_model("Resize", inputs, options, opset=19, outputs=[dtype], constants=[2, 3])
        for arith in ("exact", "ort"):
            natively(model, feeds, threads=threads, arith=arith)


def test_older_versions() -> None:
    x = image((1, 5, 6, 7), np.float32)
    twice = np.array([1, 1, 2, 3], np.float32)
    for mode in ("nearest", "linear"):
        for op_type, opset, inputs, options in (
            ("Upsample", 7, [x], {"scales": [1.0, 1.0, 2.0, 3.0]}),
            ("Upsample", 9, [x, twice], {}),
            ("Resize", 10, [x, twice / np.float32(1.3)], {}),
        ):
            natively(*node_model(op_type, inputs, {"mode": mode, **options}, opset=opset, constants=[1]))
    x = x[:, :, :, :0]
    for model, feeds in (
        node_model("Upsample", [x, twice / 2], opset=9, constants=[1]),
        node_model("Resize", [x, None, twice[:3]], opset=13, constants=[2]),
        node_model("Resize", [x, None, None, np.array([1, 5, 6, 7])], opset=13, constants=[3]),
        node_model("Pad", [x, np.array([0, 0, 0, 1] * 2)], {"mode": "edge"}, constants=[1]),
        node_model("Pad", [x, np.array([0, 0, -7, 0] * 2)], {"mode": "edge"}, constants=[1]),
    ):
        same_refusal(model, feeds)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, np.float16, bool])
def test_borders_of_elements(dtype: Any, mode: str) -> None:
    for shape, pads in (
        ((2, 3, 4, 5), [0, 0, 1, 2, 0, 0, 3, 4]),
        ((2, 3, 4, 5), [1, 0, -1, 12, 0, 2, 3, -4]),
        ((7,), [-2, 5]),
        ((1, 1, 40), [0, 0, 30, 0, 0, 30]),
        ((2, 3, 4, 5, 2), [0, 0, 1, 1, 1] * 2),
        ((0, 3), [0, 1, 0, 2]),
        ((2, 2), [0, 0, 0, 0]),
    ):
        x = image(shape, np.int64).astype(dtype)
        model, feeds = node_model("Pad", [x, np.array(pads)], {"mode": mode}, opset=21, outputs=[dtype], constants=[1])
        for threads in (1, 2):
            ran = natively(model, feeds, threads=threads)
        rest = x[
            tuple(slice(max(0, -b), n - max(0, -e)) for n, b, e in zip(shape, pads, pads[len(shape) :], strict=False))
        ]
        wide = [(max(0, b), max(0, e)) for b, e in zip(pads, pads[len(shape) :], strict=False)]
        assert_equal(ran.outputs["y0"], np.pad(rest, wide, mode), f"{mode} {shape} {pads}")  # type: ignore[call-overload]


def test_between_kernels_and_for_other_shapes() -> None:
    """Operands that lie channels-last and in C order, one program after the other."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Resize", ["a", "", "twice"], ["b"], mode="nearest", nearest_mode="floor"),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2]),
        helper.make_node("Resize", ["c", "", "twice"], ["d"], mode="linear"),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[2, 2]),
        helper.make_node("Resize", ["x", "", "twice"], ["f"], mode="cubic"),
        helper.make_node("Concat", ["d", "b2"], ["g"], axis=1),
        helper.make_node("Pad", ["c", "pads"], ["h"], mode="reflect"),
        helper.make_node("MaxPool", ["h"], ["i"], kernel_shape=[2, 2]),
    ]
    nodes.insert(6, helper.make_node("Resize", ["b", "", "", "like"], ["b2"], mode="linear"))
    nodes.insert(6, helper.make_node("Shape", ["d"], ["like"]))
    stored = [
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "twice"),
        numpy_helper.from_array(np.array([0, 0, 1, 2, 0, 0, 2, 1]), "pads"),
    ]
    for kind, dtype in ((TensorProto.FLOAT, np.float32), (TensorProto.UINT8, np.uint8)):
        model = make_model(
            nodes, {"x": typed(kind, ["n", 20, "h", "w"])}, {n: typed(kind) for n in "efgi"}, stored, opset=18
        )
        sizes = [(2, 20, 6, 9), (1, 20, 11, 4), (2, 20, 6, 9), (3, 20, 5, 5)]
        sessions = [qrun.Session(model, backend="native", cache=OBJECTS, threads=threads) for threads in (1, 2)]
        reference = qrun.Session(model, backend="reference")
        for shape in sizes:
            feeds = {"x": image(shape, dtype)}
            want = reference.run(feeds)
            for session in sessions:
                for _ in range(3):
                    for name, array in session.run(feeds).items():
                        assert_equal(array, want[name], f"{dtype} {shape} {name}")
        events = same_everywhere(model, {"x": image(sizes[0], dtype)}, list("abcdefghi")).events
        assert {event.backend for event in events if event.index != 6} == {"native"}
