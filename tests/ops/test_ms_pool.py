"""QLinearAveragePool and QLinearGlobalAveragePool of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle import ms_linear as ms
from oracle.ms_cases import KINDS, codes, dtype_of, scales, zero

from qrun.errors import OperatorError
from qrun.ops import Context, find

F32 = np.float32
ORT_KINDS = [k for k in KINDS if k not in ("overflow", "bad")]


def kernel(name: str, inputs, arith="exact", **attributes):
    return find(MS, name, 1)(*inputs, **attributes, ctx=Context(arith=arith))


def pool_scales(rng, kind, n):
    """As scales; often n * y_scale in a simple ratio to x_scale, so that means are ties."""
    sx, sy = scales(rng, kind, 2)
    if kind == "equal" and rng.random() < 0.5:
        sy = np.asarray(sx.reshape(()) / F32(rng.choice([2, 3, n])) * 2)
    return sx, sy


def pool_case(seed: int, kind: str, optional: bool):
    rng = np.random.default_rng(seed)
    dtype = dtype_of(rng)
    rank = int(rng.integers(1, 4))
    size = rng.integers(3, 7, rank)
    kernel_shape = [int(k) for k in rng.integers(1, 4, rank)]
    attributes: dict = {"kernel_shape": kernel_shape}
    if rng.random() < 0.7:
        attributes["strides"] = [int(s) for s in rng.integers(1, 4, rank)]
    mode = rng.choice(["NOTSET", "pads", "VALID", "SAME_UPPER", "SAME_LOWER"], p=[0.3, 0.3, 0.1, 0.15, 0.15])
    if mode == "pads":
        attributes["pads"] = [int(rng.integers(0, k)) for k in kernel_shape * 2]
    elif mode != "NOTSET":
        attributes["auto_pad"] = str(mode)
    if mode.startswith("SAME") and not optional:  # with longer strides onnxruntime's padding becomes negative: it crops
        attributes["strides"] = [
            min(a, b) for a, b in zip(attributes.get("strides", kernel_shape), kernel_shape, strict=True)
        ]
    attributes["ceil_mode"] = int(rng.random() < 0.3 and not mode.startswith("SAME"))
    attributes["count_include_pad"] = int(rng.integers(2))
    attributes["channels_last"] = int(rng.integers(2))
    lead, channels = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    shape = (lead, *size, channels) if attributes["channels_last"] else (lead, channels, *size)
    sx, sy = pool_scales(rng, kind, int(np.prod(kernel_shape)))
    return [codes(rng, shape, dtype), sx, zero(rng, dtype, optional), sy, zero(rng, dtype, optional)], attributes


def tuples(attributes):
    return {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_average_pool_is_exact(kind: str) -> None:
    for seed in range(25):
        inputs, attributes = pool_case(seed, kind, optional=True)
        want = ms.qlinear_average_pool(*inputs, **attributes)
        assert_equal(kernel("QLinearAveragePool", inputs, **tuples(attributes)), want, f"{kind} {seed} {attributes}")


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_average_pool_ort(kind: str) -> None:
    """``ort``: bit for bit, float32 sums in the window's order and the zero point before rounding."""
    ran = 0
    for seed in range(30):
        inputs, attributes = pool_case(seed, kind, optional=False)
        inputs = [i if n == 0 else np.asarray(i).reshape(()) for n, i in enumerate(inputs)]
        model, feeds = node_model(
            "QLinearAveragePool", inputs, attributes, domain=MS, opset=17, outputs=[inputs[0].dtype]
        )
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed} {attributes}")
        ran += 1
    assert ran == 30


def test_ceil_mode_counts_no_position_past_the_padding() -> None:
    """As AveragePool does; onnxruntime's kernel divides by the whole window, which ``ort`` copies."""
    x = np.full((1, 1, 4), 120, np.uint8)
    inputs = [x, F32(1), np.uint8(0), F32(1), np.uint8(0)]
    attributes = {"kernel_shape": (3,), "strides": (2,), "pads": (1, 1), "ceil_mode": 1, "count_include_pad": 1}
    assert kernel("QLinearAveragePool", inputs, **attributes).tolist() == [[[80, 120, 60]]]
    assert kernel("QLinearAveragePool", inputs, "ort", **attributes).tolist() == [[[80, 120, 40]]]


def test_windows_larger_than_blocks_and_long_sums() -> None:
    """A window of 90,000 codes of 255: the sum is exact; a batch larger than one block is the same as its parts."""
    x = np.full((1, 1, 300, 300), 255, np.uint8)
    x[0, 0, 0, 0] = 254
    inputs = [x, F32(1), np.uint8(0), F32(0.5), np.uint8(0)]
    assert kernel("QLinearAveragePool", inputs, kernel_shape=(300, 300)).tolist() == [[[[255]]]]
    inputs[3] = F32(1)
    assert kernel("QLinearAveragePool", inputs, kernel_shape=(300, 300)).tolist() == [[[[255]]]]
    huge = [np.full((1, 1, 3000, 3000), 255, np.uint8), F32(1), np.uint8(5), F32(2), np.uint8(0)]
    assert kernel("QLinearAveragePool", huge, kernel_shape=(3000, 3000)).tolist() == [[[[125]]]]
    assert kernel("QLinearGlobalAveragePool", huge).tolist() == [[[[125]]]]
    rng = np.random.default_rng(3)
    big = rng.integers(0, 256, (2, 40, 160, 160)).astype(np.uint8)
    params = [F32(0.5), np.uint8(3), F32(0.25), np.uint8(7)]
    for layout in (0, 1):
        geometry = {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "channels_last": layout}
        data = np.moveaxis(big, 1, -1) if layout else big
        whole = kernel("QLinearAveragePool", [data, *params], **geometry)
        for n in range(2):
            part = kernel("QLinearAveragePool", [data[n : n + 1], *params], **geometry)
            assert_equal(whole[n : n + 1], part)
        corner = data[:1, :9, :9] if layout else data[:1, :, :9, :9]
        small = kernel("QLinearAveragePool", [corner, *params], **geometry)
        assert_equal(
            whole[:1, :4, :4] if layout else whole[:1, :, :4, :4], small[:, :4, :4] if layout else small[..., :4, :4]
        )


@pytest.mark.parametrize("kind", KINDS)
def test_global_average_pool_is_exact(kind: str) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        last = int(rng.integers(2))
        shape = tuple(int(d) for d in rng.integers(1, 6, rng.integers(3, 6)))
        n = int(np.prod(shape[1:-1] if last else shape[2:]))
        sx, sy = pool_scales(rng, kind, n)
        inputs = [codes(rng, shape, dtype), sx, zero(rng, dtype), sy, zero(rng, dtype)]
        want = ms.qlinear_global_average_pool(*inputs, channels_last=last)
        assert_equal(
            kernel("QLinearGlobalAveragePool", inputs, channels_last=last), want, f"{kind} seed {seed} {shape}"
        )


@pytest.mark.parametrize("kind", ["generic", "pow2", "equal", "two55", "ratio"])
def test_global_average_pool_ort(kind: str) -> None:
    for seed in range(25):
        rng = np.random.default_rng(seed)
        dtype = dtype_of(rng)
        last = int(rng.integers(2))
        shape = tuple(int(d) for d in rng.integers(1, 9, rng.integers(3, 6)))
        sx, sy = (s.reshape(()) for s in pool_scales(rng, kind, 2))
        inputs = [codes(rng, shape, dtype), sx, zero(rng, dtype).reshape(()), sy, zero(rng, dtype).reshape(())]
        model, feeds = node_model(
            "QLinearGlobalAveragePool", inputs, {"channels_last": last}, domain=MS, opset=17, outputs=[dtype]
        )
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed} {shape}")


def test_empty_tensors() -> None:
    params = [F32(1), np.uint8(9), F32(1), np.uint8(4)]
    ctx = Context()
    y = find(MS, "QLinearGlobalAveragePool", 1)(np.zeros((2, 3, 0, 5), np.uint8), *params, ctx=ctx)
    assert y.tolist() == np.zeros((2, 3, 1, 1)).tolist()
    assert [o.count for o in ctx.observations if o.kind == "nan-quantized"] == [6]
    assert kernel("QLinearGlobalAveragePool", [np.zeros((0, 3, 2, 2), np.uint8), *params]).shape == (0, 3, 1, 1)
    for shape in ((0, 3, 4), (2, 0, 4)):
        y = kernel("QLinearAveragePool", [np.zeros(shape, np.uint8), *params], kernel_shape=(2,))
        assert y.shape == (*shape[:2], 3)
        assert (
            kernel("QLinearAveragePool", [np.zeros(shape, np.uint8), *params], "ort", kernel_shape=(2,)).shape
            == y.shape
        )
    y = kernel(
        "QLinearAveragePool",
        [np.zeros((1, 1, 0), np.uint8), *params],
        kernel_shape=(2,),
        pads=(1, 1),
        count_include_pad=1,
    )
    assert y.tolist() == [[[4]]]


def test_overflow_saturates() -> None:
    """O17."""
    inputs = [np.full((1, 1, 4), 255, np.uint8), F32(1e10), np.uint8(0), F32(1), np.uint8(0)]
    for arith in ("exact", "ort", "onnx-ref"):
        assert kernel("QLinearAveragePool", inputs, arith, kernel_shape=(2,), strides=(2,)).tolist() == [[[255, 255]]]


@pytest.mark.parametrize(
    ("shape", "attributes", "param"),
    [
        ((2, 3), {"kernel_shape": ()}, "X"),
        ((1, 1, 4, 4), {"kernel_shape": (3,)}, "kernel_shape"),
        ((1, 4, 4, 1), {"kernel_shape": (5, 5), "strides": (2, 2), "channels_last": 1}, "kernel_shape"),
        ((1, 1, 4), {"kernel_shape": (2,), "pads": (1, 1), "auto_pad": "SAME_UPPER"}, "pads"),
        ((1, 1, 4), {"kernel_shape": (0,)}, "kernel_shape"),
        ((1, 1, 4), {"kernel_shape": (2,), "strides": (0,)}, "strides"),
        ((1, 1, 4), {"kernel_shape": (2,), "auto_pad": "SAME"}, "auto_pad"),
    ],
)
def test_refusals(shape, attributes, param: str) -> None:
    with pytest.raises(OperatorError) as caught:
        kernel("QLinearAveragePool", [np.zeros(shape, np.uint8), F32(1), None, F32(1), None], **attributes)
    assert caught.value.param == param


def test_global_pool_refuses_a_matrix() -> None:
    with pytest.raises(OperatorError, match="rank 3 or more"):
        kernel("QLinearGlobalAveragePool", [np.zeros((2, 3), np.uint8), F32(1), np.uint8(0), F32(1), np.uint8(0)])
