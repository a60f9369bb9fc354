"""MaxPool, AveragePool, GlobalAveragePool, NhwcMaxPool."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import MS, assert_equal, node_model, run_qrun
from oracle.float_windows import average_pool, geometry, max_pool

from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context
from qrun.ops.pool import max_pool as kernel

F = np.float32


def cases(seed: int, count: int, dilated: bool = True):
    """Random windows of rank 1 to 3 that fit their input, with attributes as ONNX and as the oracle take them."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        rank = int(rng.choice([1, 2, 2, 3]))
        size = tuple(int(n) for n in rng.integers(1, 9 if rank < 3 else 6, rank))
        kernel = tuple(int(n) for n in rng.integers(1, 5, rank))
        strides = tuple(int(n) for n in rng.integers(1, 4, rank))
        dilations = tuple(int(n) for n in rng.integers(1, 3, rank)) if dilated else (1,) * rank
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
        pads = tuple(int(rng.integers(0, k)) for k in kernel * 2) if auto_pad == "NOTSET" else (0,) * (2 * rank)
        ceil_mode = bool(rng.integers(0, 2))
        g = {"strides": strides, "dilations": dilations, "pads": pads, "auto_pad": auto_pad}
        room = [
            n + b + e - (k - 1) * d
            for n, b, e, k, d in zip(size, pads[:rank], pads[rank:], kernel, dilations, strict=True)
        ]
        if auto_pad in ("NOTSET", "VALID") and min(room) < 1:
            continue
        if min(geometry(size, kernel, ceil_mode=ceil_mode, **g)[2]) < 1:
            continue
        made += 1
        onnx = {"kernel_shape": kernel, "strides": strides, "auto_pad": auto_pad, "ceil_mode": int(ceil_mode)}
        if dilated:
            onnx["dilations"] = dilations
        if auto_pad == "NOTSET":
            onnx["pads"] = pads
        yield rng, size, onnx, dict(kernel=kernel, ceil_mode=ceil_mode, **g)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int8, np.uint8])
def test_max_pool_and_indices_equal_the_specification(dtype: type) -> None:
    for number, (rng, size, onnx, plain) in enumerate(cases(11, 40)):
        low, high = (0, 5) if dtype is np.uint8 else (-128, -124) if number % 3 == 0 else (-3, 3)
        x = rng.integers(low, high, (2, 2, *size)).astype(dtype)
        order = number % 2
        y, where = qrun_node("MaxPool", [x], {**onnx, "storage_order": order}, opset=22, outputs=[dtype, np.int64])
        lowest = np.iinfo(dtype).min if np.dtype(dtype).kind in "iu" else -np.inf
        want, places = max_pool(x, lowest, bool(order), **plain)
        assert_equal(y, want, f"seed 11 case {number} {onnx} size {size}")
        assert_equal(where, places, f"indices, seed 11 case {number} {onnx} size {size}")
        alone = qrun_node("MaxPool", [x], onnx, opset=22)
        assert_equal(alone, want, f"Y alone, seed 11 case {number}")


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_zeros_of_both_signs(dtype: type, backend: str | None) -> None:
    """The first one, at which Indices point, whether they are asked for or not."""
    x = np.random.default_rng(3).choice([0.0, -0.0, -1.0], (1, 3, 30)).astype(dtype)
    for taps in (1, 2, 3, 7, 12):
        want = [[max(row[n : n + taps]) for n in range(31 - taps)] for row in x[0].astype(float).tolist()]
        attributes, kinds = {"kernel_shape": [taps]}, [dtype, np.int64]
        y, places = run_qrun(*node_model("MaxPool", [x], attributes, opset=22, outputs=kinds), backend=backend)
        (alone,) = run_qrun(*node_model("MaxPool", [x], attributes, opset=22, outputs=[dtype]), backend=backend)
        assert_equal(y, np.array([want]).astype(dtype), f"{taps} taps")
        assert_equal(alone, y, f"{taps} taps, Y alone")
        assert_equal(x.reshape(-1)[places], y, f"{taps} taps, Indices")


@pytest.mark.parametrize(
    ("dtype", "opset"), [(F, 8), (F, 10), (F, 12), (F, 21), (np.int8, 12), (np.uint8, 12), (np.int8, 21)]
)
def test_max_pool_equals_onnxruntime(dtype: type, opset: int) -> None:
    peer = Peer()
    for number, (rng, size, onnx, plain) in enumerate(cases(opset, 40, opset >= 10)):
        if opset < 10:
            del onnx["ceil_mode"]
        if onnx["auto_pad"].startswith("SAME") and max(plain["dilations"]) > 1:
            continue  # onnxruntime's output is smaller than ceil(size / stride) here
        x = rng.integers(0 if dtype is np.uint8 else -100, 100, (2, 3, *size)).astype(dtype)
        message = f"seed {opset} case {number} {onnx} size {size}"
        if np.isinf(qrun_node("MaxPool", [x.astype(F)], onnx, opset=opset)).any():
            continue  # a window of padding alone: onnxruntime gives the smallest finite number and a negative index
        peer.check("MaxPool", [x], onnx, opset=opset, message=message, rtol=0, atol=0)
        onnx["storage_order"] = number % 2
        outputs = [dtype, np.int64]
        peer.check("MaxPool", [x], onnx, opset=opset, outputs=outputs, message=message, rtol=0, atol=0)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_nhwc_max_pool_is_max_pool_with_channels_last(dtype: type) -> None:
    peer = Peer()
    info = np.iinfo(dtype)
    for number, (rng, size, onnx, plain) in enumerate(cases(5, 40)):
        x = rng.integers(info.min, info.max + 1, (2, *size, 3)).astype(dtype)
        message = f"seed 5 case {number} {onnx} size {size}"
        want = max_pool(np.moveaxis(x, -1, 1), info.min, False, **plain)[0]
        if onnx["auto_pad"].startswith("SAME") and max(plain["dilations"]) > 1:
            got = qrun_node("NhwcMaxPool", [x], onnx, domain=MS)
        else:
            got = peer.check("NhwcMaxPool", [x], onnx, domain=MS, message=message, rtol=0, atol=0)[0]
        assert_equal(got, np.ascontiguousarray(np.moveaxis(want, 1, -1)), message)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("include_pad", [0, 1])
def test_average_pool_equals_the_specification(dtype: type, include_pad: int) -> None:
    for number, (rng, size, onnx, plain) in enumerate(cases(21, 40)):
        x = rng.integers(-9, 10, (1, 2, *size)).astype(dtype)
        got = qrun_node("AveragePool", [x], {**onnx, "count_include_pad": include_pad}, opset=22)
        want = average_pool(x, bool(include_pad), **plain)
        assert_equal(got, want, f"seed 21 case {number} {onnx} size {size} include_pad {include_pad}")


@pytest.mark.parametrize("opset", [7, 10, 11, 19, 22])
def test_average_pool_equals_onnxruntime(opset: int) -> None:
    peer = Peer()
    for number, (rng, size, onnx, plain) in enumerate(cases(100 + opset, 40, opset >= 19)):
        if opset < 10:
            del onnx["ceil_mode"]
        if onnx["auto_pad"].startswith("SAME") and max(plain["dilations"]) > 1:
            continue  # onnxruntime's output is smaller than ceil(size / stride) here
        x = rng.standard_normal((2, 3, *size)).astype(F)
        message = f"seed {100 + opset} case {number} {onnx} size {size}"
        attributes = {**onnx, "count_include_pad": number % 2}
        peer.check("AveragePool", [x], attributes, opset=opset, message=message)
    peer.finish(0.9)


def test_ceil_mode_by_hand() -> None:
    x = np.arange(1, 8, dtype=F).reshape(1, 1, 7)
    window = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    assert qrun_node("MaxPool", [x], window, opset=12).tolist() == [[[2, 4, 6, 7]]]
    assert qrun_node("AveragePool", [x], window, opset=11).tolist() == [[[1.5, 3.5, 5.5, 7]]]
    padded = {"kernel_shape": [3], "strides": [3], "pads": [0, 1], "ceil_mode": 1, "count_include_pad": 1}
    # the last window is 7, one pad (counted as 0), one place beyond the pads (not counted)
    assert qrun_node("AveragePool", [x], padded, opset=11).tolist() == [[[2, 5, 3.5]]]
    # the window that would start in the end pads is dropped
    ignored = {"kernel_shape": [1], "strides": [2], "pads": [0, 0], "ceil_mode": 1}
    assert qrun_node("MaxPool", [x[..., :6]], ignored, opset=12).tolist() == [[[1, 3, 5]]]


def test_same_lower_puts_the_odd_pad_first() -> None:
    x = np.arange(1, 5, dtype=F).reshape(1, 1, 4)
    assert qrun_node("AveragePool", [x], {"kernel_shape": [2], "auto_pad": "SAME_UPPER"}).tolist() == [
        [[1.5, 2.5, 3.5, 4]]
    ]
    assert qrun_node("AveragePool", [x], {"kernel_shape": [2], "auto_pad": "SAME_LOWER"}).tolist() == [
        [[1, 1.5, 2.5, 3.5]]
    ]
    dilated = {"kernel_shape": [2], "dilations": [2], "auto_pad": "SAME_UPPER"}
    assert qrun_node("MaxPool", [x], dilated).tolist() == [[[2, 3, 4, 3]]]


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_where_the_stride_is_longer_than_the_kernel(auto_pad: str) -> None:
    """Window i begins at element i * stride: nothing is cut off to make SAME come true."""
    x = np.arange(1, 8, dtype=F).reshape(1, 1, 7)
    cases: list[tuple[str, int, int, list[float]]] = [
        ("MaxPool", 1, 2, [1, 3, 5, 7]),
        ("MaxPool", 1, 4, [1, 5]),
        ("MaxPool", 2, 4, [2, 6]),
        ("AveragePool", 1, 3, [1, 4, 7]),
        ("AveragePool", 2, 4, [1.5, 5.5]),
    ]
    for op_type, size, stride, want in cases:
        made = qrun_node(op_type, [x], {"kernel_shape": [size], "strides": [stride], "auto_pad": auto_pad})
        assert made.tolist() == [[want]], (op_type, size, stride)


def test_windows_of_padding_alone() -> None:
    x = np.ones((1, 1, 1), F)
    hole = {"kernel_shape": [2], "dilations": [2], "pads": [1, 1]}
    y, where = qrun_node("MaxPool", [x], hole, opset=22, outputs=[F, np.int64])
    assert y.tolist() == [[[-np.inf]]]
    assert where.tolist() == [[[-1]]]
    assert qrun_node("MaxPool", [x.astype(np.int8)], hole, opset=22).tolist() == [[[-128]]]
    assert qrun_node("AveragePool", [x], hole, opset=22).tolist() == [[[0]]]


def test_nan_and_infinity() -> None:
    x = np.array([[[1, np.nan, 3, 4, -np.inf, -np.inf, np.inf]]], F)
    y, where = qrun_node("MaxPool", [x], {"kernel_shape": [2]}, outputs=[F, np.int64])
    assert_equal(y, np.array([[[np.nan, np.nan, 4, 4, -np.inf, np.inf]]], F))
    assert where.tolist() == [[[1, 1, 3, 3, 4, 6]]]
    mean = qrun_node("AveragePool", [x], {"kernel_shape": [2]})
    assert_equal(mean, np.array([[[np.nan, np.nan, 3.5, -np.inf, -np.inf, np.nan]]], F))


def test_long_windows_take_few_steps() -> None:
    x = np.random.default_rng(3).standard_normal((1, 1, 40_000)).astype(F)
    got = qrun_node("MaxPool", [x], {"kernel_shape": [20_000]})
    views = np.lib.stride_tricks.sliding_window_view(x[0, 0], 20_000)[::997].max(-1)
    assert_equal(got[0, 0, ::997], views)
    mean = qrun_node("AveragePool", [x], {"kernel_shape": [20_000], "strides": [20_000]})
    assert_close(mean[0, 0], x.reshape(2, -1).astype(np.float64).mean(-1).astype(F), "means", 1e-6)


def test_views_and_empty_tensors() -> None:
    x = np.random.default_rng(4).integers(-50, 50, (4, 5, 2, 6)).astype(F)
    view = x.transpose(2, 0, 1, 3)[:, ::2, ::-1]
    view.flags.writeable = False
    window = {"kernel_shape": (2, 2)}
    assert_equal(kernel(view, **window)[0], kernel(np.ascontiguousarray(view), **window)[0])
    assert kernel(np.zeros((0, 3, 4, 4), F), **window)[0].shape == (0, 3, 3, 3)
    assert qrun_node("AveragePool", [np.zeros((2, 0, 4), F)], {"kernel_shape": [2]}).shape == (2, 0, 3)


def test_global_average_pool() -> None:
    rng = np.random.default_rng(8)
    peer = Peer()
    for shape in ((2, 3, 5), (2, 3, 4, 5), (1, 2, 3, 4, 5), (3, 4, 1, 1)):
        x = rng.standard_normal(shape).astype(F)
        peer.check("GlobalAveragePool", [x], opset=12, message=str(shape))
    peer.finish(1)
    assert np.isnan(qrun_node("GlobalAveragePool", [np.zeros((1, 2, 0), F)])).all()
    x = (rng.integers(0, 9, (1, 1, 3)) + 2.0**24).astype(F)
    want = np.asarray(x.astype(np.float64).mean(-1, keepdims=True), F)
    assert_equal(qrun_node("GlobalAveragePool", [x]), want, "one rounding")


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"kernel_shape": [3, 3]}, "kernel_shape"),
        ({"kernel_shape": [0]}, "kernel_shape"),
        ({"kernel_shape": [9]}, "kernel is larger"),
        ({"kernel_shape": [2], "strides": [0]}, "strides"),
        ({"kernel_shape": [2], "pads": [-1, 0]}, "pads"),
        ({"kernel_shape": [2], "dilations": [2**40]}, "dilations"),
        ({"kernel_shape": [2], "auto_pad": "SAME"}, "auto_pad"),
    ],
)
def test_geometry_that_the_page_forbids(attributes: dict, text: str) -> None:
    for op_type in ("MaxPool", "AveragePool"):
        with pytest.raises(OperatorError, match=text):
            qrun_node(op_type, [np.zeros((1, 1, 5), F)], attributes, opset=22)


def test_rank_and_memory() -> None:
    with pytest.raises(OperatorError, match="spatial"):
        qrun_node("MaxPool", [np.zeros((1, 5), F)], {"kernel_shape": [1]})
    with pytest.raises(MemoryLimitError):
        kernel(np.zeros((1, 1, 4), F), kernel_shape=(2,), pads=(2**30, 2**30), ctx=Context(budget=Budget(2**30)))
