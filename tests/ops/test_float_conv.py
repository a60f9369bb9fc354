"""Conv and ConvTranspose."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal, node_model
from oracle.float_windows import conv as plain_conv
from oracle.float_windows import conv_transpose as plain_transpose
from oracle.float_windows import geometry

from qrun import Session
from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context
from qrun.ops import conv as conv_module
from qrun.ops.conv import conv, conv_transpose

F = np.float32


def cases(seed: int, count: int):
    """(rng, x, w, bias, attributes, group) of random convolutions of rank 1 to 3 with small integers:
    all sums exact."""
    rng = np.random.default_rng(seed)
    made = 0
    while made < count:
        rank = int(rng.choice([1, 2, 2, 3]))
        size = tuple(int(n) for n in rng.integers(1, 8 if rank < 3 else 5, rank))
        kernel = tuple(int(n) for n in rng.integers(1, 4, rank))
        strides = tuple(int(n) for n in rng.integers(1, 4, rank))
        dilations = tuple(int(n) for n in rng.integers(1, 3, rank))
        auto_pad = str(rng.choice(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
        pads = tuple(int(n) for n in rng.integers(0, 4, 2 * rank))
        g = {"strides": strides, "dilations": dilations, "pads": pads, "auto_pad": auto_pad}
        begin, end, out = geometry(size, kernel, ceil_mode=False, **g)
        room = [n + b + e - (k - 1) * d for n, b, e, k, d in zip(size, begin, end, kernel, dilations, strict=True)]
        if min(room) < 1 or min(out) < 1:
            continue
        group = int(rng.choice([1, 1, 2, 3]))
        c, m = group * int(rng.integers(1, 3)), group * int(rng.integers(1, 3))
        x = rng.integers(-9, 10, (int(rng.integers(1, 3)), c, *size)).astype(F)
        w = rng.integers(-9, 10, (m, c // group, *kernel)).astype(F)
        bias = rng.integers(-9, 10, m).astype(F) if rng.integers(0, 2) else None
        made += 1
        onnx = {"strides": strides, "dilations": dilations, "auto_pad": auto_pad, "group": group}
        if auto_pad == "NOTSET":
            onnx["pads"] = pads
        if rng.integers(0, 2):
            onnx["kernel_shape"] = kernel
        yield rng, x, w, bias, onnx, g


@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_equals_the_specification_and_onnxruntime(opset: int) -> None:
    peer = Peer()
    for number, (_, x, w, bias, onnx, g) in enumerate(cases(opset, 40)):
        message = f"seed {opset} case {number} x {x.shape} w {w.shape} {onnx}"
        inputs = [x, w] if bias is None else [x, w, bias]
        got = qrun_node("Conv", inputs, onnx, opset=opset)
        assert_equal(got, plain_conv(x, w, bias, onnx["group"], **g), message)
        if not onnx["auto_pad"].startswith("SAME"):
            peer.check("Conv", inputs, onnx, opset=opset, message=message, rtol=0, atol=0)
    peer.finish(0.9)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_conv_rounds_once_to_every_type(dtype: type) -> None:
    for number, (rng, x, w, bias, onnx, g) in enumerate(cases(77, 15)):
        x, w = (np.asarray(rng.standard_normal(v.shape).astype(dtype)) for v in (x, w))
        bias = None if bias is None else bias.astype(dtype)
        got = conv(x, w, bias, **onnx)
        wide = plain_conv(x.astype(np.float64), w.astype(np.float64), bias, onnx["group"], **g)
        exact = wide if dtype is np.float64 else wide.astype(np.float32).astype(dtype)
        assert_close(got, exact, f"seed 77 case {number}", rtol=1e-13 if dtype is np.float64 else 0, atol=1e-13)


def test_random_values_within_float32() -> None:
    peer = Peer()
    rng = np.random.default_rng(6)
    for c, m, group in ((16, 24, 1), (32, 32, 32), (24, 12, 4)):
        x, w = rng.standard_normal((2, c, 15, 13)).astype(F), rng.standard_normal((m, c // group, 3, 3)).astype(F)
        peer.check("Conv", [x, w], {"group": group, "pads": [1] * 4}, opset=13, message=f"group {group}", atol=1e-5)
        t = rng.standard_normal((c, m // group, 3, 3)).astype(F)
        peer.check("ConvTranspose", [x, t], {"group": group, "strides": [2, 2]}, message=f"T {group}", atol=1e-5)
    peer.finish(1)


def test_blocks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    x, w = rng.standard_normal((2, 4, 11, 7)).astype(F), rng.standard_normal((6, 2, 3, 2)).astype(F)
    attributes = {"group": 2, "strides": (2, 1), "pads": (1, 0, 2, 1)}
    whole = conv(x, w, **attributes)
    monkeypatch.setattr(conv_module, "COLUMN_ELEMENTS", 1)
    assert_close(conv(x, w, **attributes), whole, "one row at a time", rtol=1e-7, atol=0)


def test_each_step_of_a_sum_is_rounded_and_no_product_is() -> None:
    x = np.array([[[2.0**24, 1, 1, -(2.0**24)]]], F)
    assert conv(x, np.ones((1, 1, 4), F)).tolist() == [[[0]]]
    x, w = np.array([[[1 + 2.0**-23, 1]]], F), np.array([[[1 + 2.0**-23, -(1 + 2.0**-22)]]], F)
    assert conv(x[:, :, ::-1].copy(), w[:, :, ::-1].copy()).tolist() == [[[2.0**-46]]]
    overflow = conv(np.full((1, 1, 1), 3e38, F), np.full((1, 1, 1), 10, F))
    assert overflow.tolist() == [[[np.inf]]]


def transposed(seed: int, count: int):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rank = int(rng.choice([1, 2, 2, 3]))
        size = tuple(int(n) for n in rng.integers(1, 5, rank))
        kernel = tuple(int(n) for n in rng.integers(1, 5, rank))
        strides = tuple(int(n) for n in rng.integers(1, 4, rank))
        dilations = tuple(int(n) for n in rng.integers(1, 3, rank))
        group = int(rng.choice([1, 1, 2]))
        c, m = group * int(rng.integers(1, 3)), int(rng.integers(1, 3))
        x = rng.integers(-9, 10, (2, c, *size)).astype(F)
        w = rng.integers(-9, 10, (c, m, *kernel)).astype(F)
        bias = rng.integers(-9, 10, m * group).astype(F) if rng.integers(0, 2) else None
        extra = tuple(int(rng.integers(0, max(s, d))) for s, d in zip(strides, dilations, strict=True))
        full = [s * (n - 1) + (k - 1) * d + 1 for s, n, k, d in zip(strides, size, kernel, dilations, strict=True)]
        yield rng, x, w, bias, {"strides": strides, "dilations": dilations, "group": group}, extra, full


@pytest.mark.parametrize("opset", [7, 11, 22])
def test_conv_transpose_equals_the_specification_and_onnxruntime(opset: int) -> None:
    peer = Peer()
    for number, (rng, x, w, bias, onnx, extra, full) in enumerate(transposed(opset, 60)):
        rank = len(full)
        kind = number % 4
        begin = (0,) * rank
        if kind == 0:
            pads = [int(rng.integers(0, 3)) for _ in range(2 * rank)]
            out = [f + e - p - q for f, e, p, q in zip(full, extra, pads[:rank], pads[rank:], strict=True)]
            if min(out) < 1:
                continue
            onnx |= {"pads": pads, "output_padding": extra}
            begin = tuple(pads[:rank])
        elif kind == 1:
            onnx |= {"output_padding": extra, "auto_pad": "VALID"}
            out = [f + e for f, e in zip(full, extra, strict=True)]
        else:
            auto_pad = ["NOTSET", "SAME_UPPER", "SAME_LOWER"][number // 4 % 3]
            onnx["auto_pad"] = auto_pad
            if kind == 2:
                out = [int(rng.integers(max(f - 3, 1), f + 1)) for f in full]
                onnx["output_shape"] = out
            else:
                if auto_pad == "NOTSET":
                    continue
                out = [s * n for s, n in zip(onnx["strides"], x.shape[2:], strict=True)]
            total = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
            begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
        message = f"seed {opset} case {number} x {x.shape} w {w.shape} {onnx}"
        inputs = [x, w] if bias is None else [x, w, bias]
        got = qrun_node("ConvTranspose", inputs, onnx, opset=opset)
        plain = plain_transpose(x, w, bias, onnx["group"], onnx["strides"], onnx["dilations"], begin, tuple(out))
        assert_equal(got, plain, message)
        if all(f >= o for f, o in zip(full, out, strict=True)):
            peer.check("ConvTranspose", inputs, onnx, opset=opset, message=message, rtol=0, atol=0)
    peer.finish(0.9)


def test_conv_transpose_by_hand() -> None:
    x, w = np.ones((1, 1, 3), F), np.array([[[1, 10, 100]]], F)
    two = {"strides": [2]}
    whole = [1, 10, 101, 10, 101, 10, 100]
    assert qrun_node("ConvTranspose", [x, w], two).tolist() == [[whole]]
    assert qrun_node("ConvTranspose", [x, w], {**two, "output_padding": [1]}).tolist() == [[[*whole, 0]]]
    upper = qrun_node("ConvTranspose", [x, w], {**two, "auto_pad": "SAME_UPPER"})
    lower = qrun_node("ConvTranspose", [x, w], {**two, "auto_pad": "SAME_LOWER"})
    assert upper.tolist() == [[whole[:6]]]
    assert lower.tolist() == [[whole[1:]]]
    # a kernel shorter than the stride: SAME still means stride * size
    short = qrun_node("ConvTranspose", [x, w[..., :1]], {"strides": [3], "auto_pad": "SAME_UPPER"})
    assert short.tolist() == [[[1, 0, 0, 1, 0, 0, 1, 0, 0]]]
    # a bias reaches the places that no product does
    biased = qrun_node("ConvTranspose", [x, w, np.array([5], F)], {**two, "output_padding": [1]})
    assert biased[0, 0, -1] == 5


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_conv_transpose_same_where_the_stride_is_longer_than_the_kernel(auto_pad: str) -> None:
    """n * stride elements, of which those that no product reaches stand at the end."""
    x, w = np.array([[[1, 2, 3]]], np.float32), np.array([[[1, 10]]], np.float32)
    for kernel, stride, want in [
        (1, 2, [1, 0, 2, 0, 3, 0]),
        (1, 3, [1, 0, 0, 2, 0, 0, 3, 0, 0]),
        (2, 3, [1, 10, 0, 2, 20, 0, 3, 30, 0]),
    ]:
        made = qrun_node("ConvTranspose", [x, w[..., :kernel]], {"strides": [stride], "auto_pad": auto_pad})
        assert made.tolist() == [[want]], (kernel, stride)


def test_conv_transpose_with_a_kernel_larger_than_the_input() -> None:
    rng = np.random.default_rng(2)
    x, w = rng.integers(-5, 6, (1, 2, 2, 2)).astype(F), rng.integers(-5, 6, (2, 3, 9, 7)).astype(F)
    want = plain_transpose(x, w, None, 1, (2, 3), (1, 2), (0, 0), (11, 16))
    assert_equal(conv_transpose(x, w, strides=(2, 3), dilations=(1, 2)), want)


def test_empty_and_strided_inputs() -> None:
    rng = np.random.default_rng(1)
    x, w = rng.integers(-5, 6, (5, 4, 2, 6)).astype(F), rng.integers(-5, 6, (3, 3, 2, 3)).astype(F)
    view = x.transpose(2, 0, 3, 1)[:, 1:4, ::-1]
    view.flags.writeable = False
    back = w[::-1].transpose(0, 1, 3, 2)
    assert_equal(conv(view, back), conv(view.copy(), back.copy()))
    assert_equal(conv_transpose(view, back), conv_transpose(view.copy(), back.copy()))
    assert conv(x[:0], np.zeros((3, 4, 1, 1), F)).shape == (0, 3, 2, 6)
    none = conv(np.zeros((1, 0, 3), F), np.zeros((2, 0, 2), F), np.array([1, 2], F))
    assert none.tolist() == [[[1, 1], [2, 2]]]
    none = conv_transpose(np.zeros((1, 0, 3), F), np.zeros((0, 2, 2), F), np.array([1, 2], F))
    assert none.tolist() == [[[1] * 4, [2] * 4]]
    assert conv_transpose(np.zeros((1, 1, 0), F), np.zeros((1, 2, 3), F)).shape == (1, 2, 0)
    assert conv(np.zeros((1, 1, 3), F), np.zeros((0, 1, 1), F)).shape == (1, 0, 3)


def test_multiply_adds() -> None:
    x, w = np.zeros((1, 4, 8, 8), F), np.zeros((6, 2, 3, 3), F)
    for op_type, weights, want in (
        ("Conv", w, 6 * 6 * 6 * 2 * 9),
        ("ConvTranspose", np.zeros((4, 3, 3, 3), F), 4 * 64 * 3 * 9),
    ):
        model, feeds = node_model(op_type, [x, weights], {"group": 2})
        assert Session(model).execute(feeds).events[0].macs == want


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes", "text"),
    [
        ("Conv", [(1, 2, 5), (3, 1, 2)], {}, "groups"),
        ("Conv", [(1, 2), (3, 2)], {}, "X and W"),
        ("Conv", [(1, 2, 5), (3, 2, 2)], {"group": 0}, "groups"),
        ("Conv", [(1, 2, 5), (3, 2, 2), (1,)], {}, "bias"),
        ("Conv", [(1, 2, 5), (3, 2, 2)], {"kernel_shape": [3]}, "kernel_shape"),
        ("Conv", [(1, 2, 5), (3, 2, 2)], {"dilations": [7]}, "larger"),
        ("ConvTranspose", [(1, 2, 5), (3, 2, 2)], {}, "groups"),
        ("ConvTranspose", [(1, 2, 5), (2, 2)], {}, "X and W"),
        ("ConvTranspose", [(1, 2, 5), (2, 3, 2), (2,)], {}, "bias"),
        ("ConvTranspose", [(1, 2, 5), (2, 3, 2)], {"output_padding": [1]}, "output_padding"),
        ("ConvTranspose", [(1, 2, 5), (2, 3, 2)], {"output_shape": [1, 3, 6]}, "output_shape"),
        ("ConvTranspose", [(1, 2, 5), (2, 3, 2)], {"output_shape": [-4]}, "output_shape"),
        ("ConvTranspose", [(1, 2, 5), (2, 3, 0)], {}, "kernel_shape"),
    ],
)
def test_refusals(op_type: str, shapes: list, attributes: dict, text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        qrun_node(op_type, [np.zeros(s, F) for s in shapes], attributes)


def test_memory_is_claimed_before_it_is_taken() -> None:
    small = np.zeros((1, 1, 2), F)
    for call in (
        lambda c: conv(small, small, pads=(2**30, 2**30), ctx=c),
        lambda c: conv_transpose(small, small, strides=(2**30,), ctx=c),
        lambda c: conv_transpose(small, small, output_shape=(2**30,), ctx=c),
    ):
        with pytest.raises(MemoryLimitError):
            call(Context(budget=Budget(2**30)))
