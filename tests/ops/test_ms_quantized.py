"""The quantized operators of com.microsoft: exact against the oracle, and with ``ort`` the bits of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers.support import MS, assert_equal, exact_pairs, node_model, run_ort, run_qrun
from oracle import ms
from oracle import ms_linear as linear
from oracle.ms_cases import KINDS, broadcast_pair, codes, dtype_of, scales, zero

import qrun
from qrun.errors import OperatorError
from qrun.ops import REGISTRY, Context, find
from qrun.ops._functions import exp_sum_exceeds
from qrun.ops._rounding import DoubleDouble, fma32, plus
from qrun.ops.qlinearbinary import logistic32

F32 = np.float32
ORT_KINDS = [k for k in KINDS if k not in ("overflow", "bad")]
OUTPUT_SCALES = (1 / 256, 1 / 255, 1 / 128, 0.0037, 0.004, 1.0, 2.0, 0.5, 1 / 3)
Inputs = list[Any]
Case = tuple[Inputs, dict[str, Any]]


def kernel(name: str, inputs: Inputs, arith: Any = "exact", **attributes: Any) -> Any:
    attributes = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
    return find(MS, name, 1)(*inputs, **attributes, ctx=Context(arith=arith))


def binary_inputs(rng, kind, optional=True, scale_factor=1.0):
    dtype = dtype_of(rng)
    sa, sb = broadcast_pair(rng)
    a, b, c = scales(rng, kind)
    z = [zero(rng, dtype, optional) for _ in range(3)]
    return [codes(rng, sa, dtype), a, z[0], codes(rng, sb, dtype), b, z[1], c, z[2]]


def mul_scale(rng, inputs, kind):
    """Output scales in proportion to the product of the input scales."""
    if kind in ("equal", "ninety"):
        with np.errstate(all="ignore"):
            inputs[6] = np.asarray(inputs[1].reshape(()) * inputs[4].reshape(()) * F32(rng.choice([2, 90, 256, 510])))


def where_inputs(rng, kind):
    dtype = dtype_of(rng)
    sa, sb = broadcast_pair(rng)
    x, y, z = scales(rng, kind)
    shape = np.broadcast_shapes(sa, sb)
    condition = rng.random(shape if rng.random() < 0.7 else ()) < 0.5
    return [np.asarray(condition), codes(rng, sa, dtype), x, zero(rng, dtype), codes(rng, sb, dtype), y, zero(rng, dtype), z, zero(rng, dtype)]  # fmt: skip


def concat_inputs(rng, kind, mixed=True):
    dtype = dtype_of(rng)
    rank = int(rng.integers(1, 4))
    axis = int(rng.integers(-rank, rank))
    shape = [int(d) for d in rng.integers(1, 5, rank)]
    parts = int(rng.integers(1, 5))
    found = scales(rng, kind, parts + 1)
    y_zero = zero(rng, dtype)
    inputs: list = [found[-1], y_zero]
    for s in found[:-1]:
        shape[axis] = int(rng.integers(0, 4))
        kind_of = dtype_of(rng) if mixed else dtype
        same = not mixed and rng.random() < 0.3
        inputs += [codes(rng, tuple(shape), kind_of), found[-1] if same else s, y_zero if same else zero(rng, kind_of)]
    return inputs, axis


def pool_scales(rng, kind, n):
    """As scales; often n * y_scale in a simple ratio to x_scale, so that means are ties."""
    sx, sy = scales(rng, kind, 2)
    if kind == "equal" and rng.random() < 0.5:
        sy = np.asarray(sx.reshape(()) / F32(rng.choice([2, 3, n])) * 2)
    return sx, sy


def sizes(rng, least=0):
    return [int(n) for n in rng.integers(least, 7, 3)]


def columns(rng, value, n):
    """One parameter per column, near `value`."""
    with np.errstate(all="ignore"):
        return (np.resize(value, n) * np.resize([1, 2, 0.5, 3], n)).astype(F32)


def operand_shapes(rng, least=0):
    m, k, n = sizes(rng, least)
    lead = tuple(int(d) for d in rng.integers(1, 3, rng.integers(0, 3)))
    a = (*lead, m, k) if rng.random() < 0.8 or least else (k,)
    b = ((*lead, k, n) if rng.random() < 0.3 else (k, n)) if rng.random() < 0.8 or least else (k,)
    return a, b


def pool_case(seed: int, kind: str, ort: bool) -> Case:
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
    if mode.startswith("SAME") and ort:  # with longer strides onnxruntime's padding becomes negative: it crops
        attributes["strides"] = [
            min(a, b) for a, b in zip(attributes.get("strides", kernel_shape), kernel_shape, strict=True)
        ]
    attributes["ceil_mode"] = int(rng.random() < 0.3 and not mode.startswith("SAME"))
    attributes["count_include_pad"] = int(rng.integers(2))
    attributes["channels_last"] = int(rng.integers(2))
    lead, channels = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    shape = (lead, *size, channels) if attributes["channels_last"] else (lead, channels, *size)
    sx, sy = pool_scales(rng, kind, int(np.prod(kernel_shape)))
    return [codes(rng, shape, dtype), sx, zero(rng, dtype, not ort), sy, zero(rng, dtype, not ort)], attributes


def gemm_case(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    m, k, n = sizes(rng, 1 if ort else 0)
    ta, tb = dtype_of(rng), dtype_of(rng)
    ty = dtype_of(rng)
    if ort:
        ty = ta
        tb = np.int8 if ta is np.int8 else tb
    trans_a, trans_b = int(rng.integers(2)), int(rng.integers(2))
    a = codes(rng, (k, m) if trans_a else (m, k), ta)
    b = codes(rng, (n, k) if trans_b else (k, n), tb)
    sa, sb, sy = scales(rng, kind)
    za, zb, zy = zero(rng, ta), zero(rng, tb), zero(rng, ty)
    if ort:
        sa, sb, sy, za, zb, zy = (p.reshape(()) for p in (sa, sb, sy, za, zb, zy))
    if rng.random() < 0.4:
        sb = columns(rng, sb, n)
        if ort or rng.random() < 0.5:
            zb = rng.integers(-128, 128, n).astype(np.int8).view(tb)
    c = None
    if rng.random() < 0.6:
        shapes = [(), (1,), (n,), (1, n), (m, 1), (m, n)]
        reach = int(rng.choice([1000, 2**25, 2**31]))
        c = rng.integers(-reach, reach, shapes[rng.integers(len(shapes))]).astype(np.int32)
    attributes = {"transA": trans_a, "transB": trans_b}
    if rng.random() < 0.5:
        attributes["alpha"] = float(F32(rng.choice([0.5, 2.0, 1 / 3, 0.1, -1.5])))
    if ort and ta is np.uint8:
        b = exact_pairs(b)
    inputs = [a, sa, za, b, sb, zb, c, sy, zy]
    if rng.random() < 0.3:
        inputs[7:] = [None, None]
    return inputs, attributes


def float_case(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    sa_shape, sb_shape = operand_shapes(rng, 1 if ort else 0)
    ta = dtype_of(rng)
    tb = np.int8 if ort and ta is np.int8 else dtype_of(rng)
    a, b = codes(rng, sa_shape, ta), codes(rng, sb_shape, tb)
    scale_a, scale_b = scales(rng, kind, 2)
    za, zb = zero(rng, ta, True), zero(rng, tb, True)
    if len(sb_shape) >= 2 and rng.random() < 0.4:
        n = sb_shape[-1]
        scale_b = columns(rng, scale_b, n)
        zb = rng.integers(-128, 128, n).astype(np.int8).view(tb)
        if len(sb_shape) > 2:
            full = (*sb_shape[:-2], 1, n)
            scale_b, zb = (np.broadcast_to(p, full).copy() for p in (scale_b, zb))
    bias = None
    if rng.random() < 0.6:
        n = sb_shape[-1] if len(sb_shape) > 1 else 1
        bias = (rng.normal(0, 1, n) * 10.0 ** rng.integers(-30, 8)).astype(F32)
    if ort:
        scale_a = scale_a.reshape(())
        za, scale_b, zb = (p if p is None or p.size > 1 else p.reshape(()) for p in (za, scale_b, zb))
    if ort and ta is np.uint8:
        b = exact_pairs(b)
    return [a, b, scale_a, scale_b, za, zb, bias], {}


def dynamic_case(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    inputs, _ = float_case(seed, kind, ort)
    a = rng.normal(rng.uniform(-1, 1), rng.uniform(0.01, 50), inputs[0].shape).astype(F32)
    if seed % 7 == 0:
        a = np.abs(a)
    if seed % 11 == 0:
        a = np.zeros_like(a)
    if seed % 5 == 0:
        a = np.round(a * 4) / F32(4)
    right = exact_pairs(inputs[1]) if ort else inputs[1]
    return [a, right, inputs[3], inputs[5], inputs[6]], {}


def pooled_globally(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    dtype, last = dtype_of(rng), int(rng.integers(2))
    shape = tuple(int(d) for d in rng.integers(1, 9 if ort else 6, rng.integers(3, 6)))
    sx, sy = pool_scales(rng, kind, 2 if ort else int(np.prod(shape[1:-1] if last else shape[2:])))
    return [codes(rng, shape, dtype), sx, zero(rng, dtype), sy, zero(rng, dtype)], {"channels_last": last}


def added(seed: int, kind: str, ort: bool) -> Case:
    return binary_inputs(np.random.default_rng(seed), kind, optional=not ort), {}


def multiplied(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    inputs = binary_inputs(rng, kind, optional=not ort)
    mul_scale(rng, inputs, kind)
    return inputs, {}


def chosen(seed: int, kind: str, ort: bool) -> Case:
    return where_inputs(np.random.default_rng(seed), kind), {}


def joined(seed: int, kind: str, ort: bool) -> Case:
    inputs, axis = concat_inputs(np.random.default_rng(seed), kind, mixed=not ort)
    return inputs, {"axis": axis}


def leaked(seed: int, kind: str, ort: bool) -> Case:
    rng = np.random.default_rng(seed)
    dtype = dtype_of(rng)
    sx, sy = scales(rng, kind, 2)
    x = np.arange(256, dtype=np.uint8).view(dtype) if ort else codes(rng, (3, 50), dtype)
    alpha = float(F32(rng.choice([0.01, 0.25, 0.5, 1 / 90, 2] + ([] if ort else [-0.5, 0]))))
    return [x, sx, zero(rng, dtype, not ort), sy, zero(rng, dtype, not ort)], {"alpha": alpha}


def curved(seed: int, kind: str, ort: bool) -> Case:
    """All 256 inputs."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(rng)
    x = np.arange(256, dtype=np.uint8).view(dtype).reshape(2, 128)
    if ort:
        sx, sy = F32(rng.uniform(0.0005, 0.3)), F32(rng.choice([1 / 256, 1 / 255, 1 / 128, 0.0037, 1e-4]))
    else:
        sx = F32(rng.choice([rng.uniform(0.001, 0.3), 0.125, 1.0, 3e-5, -0.05, 40.0]))
        sy = F32(rng.choice(OUTPUT_SCALES)) * F32(rng.choice([1, 1, 1, -1, 0.01]))
    return [x, sx, zero(rng, dtype, not ort), sy, zero(rng, dtype, not ort)], {}


def shared(seed: int, kind: str, ort: bool) -> Case:
    """For onnxruntime without scales with which its float32 product overflows."""
    rng = np.random.default_rng(seed)
    dtype = dtype_of(rng)
    shape = (3, int(rng.integers(2, 60))) if ort else tuple(int(d) for d in rng.integers(1, 7, rng.integers(1, 4)))
    x = codes(rng, shape, dtype)
    if seed % 5 == 0 and not ort:
        x = np.full_like(x, x.flat[0])
    sx = F32(rng.choice([rng.uniform(0.01, 0.3), 0.125, 1.0] + ([] if ort else [30.0])))
    sy = F32(rng.choice([1 / 256, 1 / 255, 1 / 128, 0.0037, 0.004] if ort else OUTPUT_SCALES))
    axis = int(rng.choice([-1, 1]) if ort else rng.integers(-len(shape), len(shape)))
    return [x, sx, zero(rng, dtype, not ort), sy, zero(rng, dtype)], {"opset": int(rng.choice([11, 13])), "axis": axis}


MOST = ("generic", "pow2", "equal", "two55", "ratio")
ONE = ("generic",)
Make = Callable[[int, str, bool], Case]
CASES: dict[str, tuple[Make, Callable[..., np.ndarray], tuple[Sequence[str], int], tuple[Sequence[str], int]]] = {
    "QLinearAdd": (added, ms.qlinear_add, (KINDS, 40), (ORT_KINDS, 25)),
    "QLinearMul": (multiplied, ms.qlinear_mul, (KINDS, 40), (ORT_KINDS, 25)),
    "QLinearWhere": (chosen, ms.qlinear_where, (KINDS, 30), (ORT_KINDS, 15)),
    "QLinearConcat": (joined, ms.qlinear_concat, (KINDS, 30), (ORT_KINDS, 15)),
    "QLinearLeakyRelu": (leaked, ms.qlinear_leaky_relu, (KINDS, 12), (ORT_KINDS, 10)),
    "QLinearSigmoid": (curved, ms.qlinear_sigmoid, (ONE, 30), (ONE, 60)),
    "QLinearSoftmax": (shared, ms.qlinear_softmax, (ONE, 80), (ONE, 80)),
    "QLinearAveragePool": (pool_case, linear.qlinear_average_pool, (KINDS, 25), (ORT_KINDS, 30)),
    "QLinearGlobalAveragePool": (pooled_globally, linear.qlinear_global_average_pool, (KINDS, 30), (MOST, 25)),
    "QGemm": (gemm_case, linear.qgemm, (KINDS, 60), (ORT_KINDS, 40)),
    "MatMulIntegerToFloat": (float_case, linear.matmul_integer_to_float, (KINDS, 60), (ORT_KINDS, 40)),
    "DynamicQuantizeMatMul": (dynamic_case, linear.dynamic_quantize_matmul, (ONE, 80), (ONE, 80)),
}
"""How cases are made, the oracle, and kinds of scales and seeds: of exact results, and of onnxruntime's."""


@pytest.mark.parametrize("name", CASES)
def test_exact(name: str) -> None:
    make, oracle, (kinds, count), _ = CASES[name]
    for kind, seed in product(kinds, range(count)):
        inputs, attributes = make(seed, kind, False)
        want = oracle(*inputs, **attributes)
        message = f"{name} {kind} seed {seed} {attributes}"
        assert_equal(kernel(name, inputs, **attributes), want, message, signed_zeros=name == "DynamicQuantizeMatMul")


@pytest.mark.parametrize("name", CASES)
def test_ort(name: str) -> None:
    """``ort``: bit for bit onnxruntime's answer, of the kernel, and of a session for some seeds."""
    make, _, _, (kinds, count) = CASES[name]
    for kind, seed in product(kinds, range(count)):
        inputs, attributes = make(seed, kind, True)
        if name.startswith("QLinear"):  # their parameters are scalars there
            tensors = {"Where": (0, 1, 4), "Concat": range(2, len(inputs), 3), "Add": (0, 3), "Mul": (0, 3)}
            kept = tensors.get(name.removeprefix("QLinear"), (0,))
            inputs = [x if place in kept else np.asarray(x).reshape(()) for place, x in enumerate(inputs)]
        got = kernel(name, inputs, "ort", **attributes)
        model, feeds = node_model(name, inputs, attributes, domain=MS, opset=17, outputs=[got.dtype])
        message = f"{name} {kind} seed {seed} {attributes}"
        assert_equal(got, run_ort(model, feeds)[0], message)
        if seed < 4:
            assert_equal(run_qrun(model, feeds, arith="ort")[0], got, message)


def test_large_tensors_go_through_a_table() -> None:
    """More elements than code pairs: the same answers, broadcast and strided, and the same observations."""
    rng = np.random.default_rng(1)
    a, b = codes(rng, (2, 70, 600), np.int8), codes(rng, (70, 1), np.int8)
    for name in ("QLinearAdd", "QLinearMul"):
        for arith in ("exact", "ort"):
            params = [F32(0.25), np.int8(3), F32(0.5), np.int8(-7), F32(0.125), np.int8(5)]
            small, large = Context(arith=arith), Context(arith=arith)
            op = find(MS, name, 1)
            rows = [op(a[:, :, i : i + 1], *params[:2], b, *params[2:], ctx=small) for i in range(600)]
            y = op(a, *params[:2], b, *params[2:], ctx=large)
            assert_equal(y, np.concatenate(rows, axis=-1), f"{name} {arith}")
            total = sum(o.count for o in small.observations if o.kind == "saturated")
            assert [(o.kind, o.count) for o in large.observations] == [("saturated", total)]
            assert total > 1000


def test_ort_adds_the_zero_point_before_rounding() -> None:
    """O18: 0.5 and 1.5 with zero point 1 give 1 and 3; after the zero point 1.5 and 2.5 both round to 2."""
    inputs = [np.array([1, 3], np.uint8), F32(0.5), np.uint8(0), np.uint8(1), F32(1), np.uint8(0), F32(1), np.uint8(1)]
    assert kernel("QLinearMul", inputs).tolist() == [1, 3]
    assert kernel("QLinearMul", inputs, "ort").tolist() == [2, 2]
    assert kernel("QLinearMul", inputs, "onnx-ref").tolist() == [1, 3]


def test_overflow_saturates_in_every_arithmetic() -> None:
    """O16: a quotient beyond int32 is the largest value, not the smallest."""
    for arith in ("exact", "ort", "onnx-ref"):
        u8 = [np.array([255], np.uint8), F32(1e9), np.uint8(0), np.array([1], np.uint8), F32(1e9), np.uint8(0), F32(0.1), np.uint8(0)]  # fmt: skip
        assert kernel("QLinearAdd", u8, arith).tolist() == [255]
        assert kernel("QLinearMul", u8, arith).tolist() == [255]


@pytest.mark.parametrize("name", ["QLinearConcat", "QLinearWhere", "QLinearLeakyRelu"])
def test_float32_quotients_of_simple_ratios(name: str) -> None:
    """Scales 90 apart, rounded to float32, lie beside ties:
    ``exact`` and ``ort`` must differ, each as its source says."""
    differ = 0
    x = np.arange(256, dtype=np.uint8)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        s = F32(rng.uniform(0.001, 0.1))
        sy, zx, zy = s * F32(rng.choice([90, 45, 10])), np.uint8(rng.integers(256)), np.uint8(rng.integers(256))
        attributes: dict = {}
        if name == "QLinearConcat":
            inputs, attributes = [sy, zy, x, s, zx], {"axis": 0}
            want = ms.qlinear_concat(*inputs, axis=0)
        elif name == "QLinearWhere":
            inputs = [np.array(True), x, s, zx, x, F32(1), np.uint8(0), sy, zy]
            want = ms.qlinear_where(*inputs)
        else:
            inputs, attributes = [x, s, zx, sy, zy], {"alpha": 0.5}
            want = ms.qlinear_leaky_relu(*inputs, alpha=0.5)
        model, feeds = node_model(name, inputs, attributes, domain=MS, opset=17, outputs=[np.uint8])
        assert_equal(run_qrun(model, feeds)[0], want, f"seed {seed}")
        assert_equal(run_qrun(model, feeds, arith="onnx-ref")[0], want, f"seed {seed}")
        ort = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], ort, f"seed {seed}")
        differ += int((ort != want).sum())
    assert differ > 0


@pytest.mark.parametrize("scale", [0, np.inf])
def test_ort_copies_where_parameters_are_equal(scale: float) -> None:
    x = np.arange(256, dtype=np.uint8)
    inputs = [F32(scale), np.uint8(7), x, F32(scale), np.uint8(7)]
    model, feeds = node_model("QLinearConcat", inputs, {"axis": 0}, domain=MS, opset=17, outputs=[np.uint8])
    assert_equal(run_ort(model, feeds)[0], x)
    assert_equal(run_qrun(model, feeds, arith="ort")[0], x)
    assert_equal(run_qrun(model, feeds)[0], np.zeros(256, np.uint8))


def test_fused_multiply_add_and_sums_round_once() -> None:
    """(1 + 2**-12)**2 is a tie of float32; a neighbour of 2**-60 decides it, though float64 cannot hold the sum."""
    a = F32(1 + 2**-12)
    low, high = F32(1 + 2**-11), F32(1 + 2**-11 + 2**-23)
    assert [float(fma32(a, a, F32(c))) for c in (0, 2**-60, -(2**-60))] == [low, high, low]
    assert [float(fma32(-a, a, F32(c))) for c in (0, 2**-60, -(2**-60))] == [-low, -low, -high]
    total = plus(DoubleDouble(np.array([1.0]), np.array([-(2.0**-53) + 2.0**-106])), np.array([1.5 * 2**-52]))
    assert (total.hi[0], total.lo[0] > 0) == (1 + 2**-52, True)


def test_omitted_zero_points_run_in_a_model() -> None:
    """O15: the schema makes them optional."""
    x = np.array([1, 2], np.uint8)
    model, feeds = node_model(
        "QLinearAdd", [x, F32(1), None, x, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8]
    )
    assert run_qrun(model, feeds)[0].tolist() == [2, 4]
    model, feeds = node_model("QLinearLeakyRelu", [x, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8])
    assert run_qrun(model, feeds)[0].tolist() == [1, 2]


def test_nan_is_observed_once_per_element() -> None:
    x = np.zeros((2, 3), np.uint8)
    x[0, 2] = 9
    ctx = Context()
    y = find(MS, "QLinearLeakyRelu", 1)(x, F32(np.inf), np.uint8(9), F32(1), np.uint8(4), ctx=ctx)
    assert y.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert [(o.kind, o.param, o.count, o.first) for o in ctx.observations if o.kind == "nan-quantized"] == [
        ("nan-quantized", "Y", 1, (0, 2))
    ]


def test_missing_required_input_in_the_middle_is_named() -> None:
    x = np.array([1], np.uint8)
    model, feeds = node_model(
        "QLinearAdd", [x, F32(1), None, None, F32(1), None, F32(1)], domain=MS, opset=17, outputs=[np.uint8]
    )
    with pytest.raises(qrun.errors.QrunError, match="'B' is missing"):
        run_qrun(model, feeds)


def test_gemm_alpha_is_a_third_factor_of_ties() -> None:
    """3 * (1/3 in float32) is just above 1: accumulators of 1 with y_scale 2 / alpha lie next to 1/2."""
    a, b = np.arange(1, 120, 2, dtype=np.uint8)[:, None], np.ones((1, 1), np.uint8)
    for alpha in (1 / 3, 0.1, 0.7, 1 / 255):
        for sa in (3.0, 10.0, 1 / 7, 255.0):
            for scale in (1.0, 1.0000001, 0.99999994):
                sy = F32(2) * F32(alpha) * F32(sa) * F32(scale)
                inputs = [a, F32(sa), np.uint8(0), b, F32(1), np.uint8(0), None, sy, np.uint8(1)]
                want = linear.qgemm(*inputs, alpha=float(F32(alpha)))
                assert_equal(kernel("QGemm", inputs, alpha=float(F32(alpha))), want, f"{alpha} {sa} {sy}")


def test_gemm_without_inner_dimension_and_without_zero_point() -> None:
    """O3, O25: C survives K = 0; y_scale without y_zero_point leaves the result full precision."""
    empty = [np.zeros((1, 0), np.uint8), F32(1), np.uint8(0), np.zeros((0, 2), np.uint8), F32(1), np.uint8(0)]
    c = np.array([10, 20], np.int32)
    one = [np.array([[1]], np.uint8), F32(1), np.uint8(0), np.array([[1]], np.uint8), F32(1), np.uint8(0), None]
    for arith in ("exact", "ort", "onnx-ref"):
        assert_equal(kernel("QGemm", [*empty, c], arith), np.array([[10, 20]], F32))
        assert_equal(kernel("QGemm", [*empty, c, F32(1), np.uint8(7)], arith), np.array([[17, 27]], np.uint8))
        assert_equal(kernel("QGemm", [*one, F32(0.1), None], arith), np.array([[1]], F32))


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_bias_that_does_not_fit_is_told_before_values_that_do_not(backend: str) -> None:
    inputs = [np.full((2, 3), np.nan, F32), np.ones((3, 4), np.uint8), F32(1), np.uint8(0), np.zeros(5, F32)]
    model, feeds = node_model("DynamicQuantizeMatMul", inputs, domain=MS)
    with pytest.raises(OperatorError, match="QR305"):
        run_qrun(model, feeds, backend=backend)


def test_accumulators_wrap_and_are_observed() -> None:
    a, b = np.full((1, 2), 255, np.uint8), np.full((2, 1), 255, np.uint8)
    inputs = [a, F32(1), np.uint8(0), b, F32(1), np.uint8(0), np.array(2**31 - 1, np.int32)]
    ctx = Context()
    y = find(MS, "QGemm", 1)(*inputs, ctx=ctx)
    assert y.tolist() == [[float(F32(2**31 - 1 + 2 * 255 * 255 - 2**32))]]
    assert [o.kind for o in ctx.observations] == ["accumulator-wrap"]


def test_bias_just_beside_a_rounding_boundary() -> None:
    """The sum of product and bias is rounded once: a bias of 2**-70 decides between two float32 neighbours."""
    a = np.array([[1]], np.uint8)
    for tiny in (2.0**-70, -(2.0**-70), 0.0, 2.0**-140):
        for sign in (1, -1):
            inputs = [a, a, F32(sign * (1 + 2**-12)), F32(1 + 2**-12), None, None, np.array([tiny], F32)]
            assert_equal(
                kernel("MatMulIntegerToFloat", inputs), linear.matmul_integer_to_float(*inputs), f"{tiny} {sign}"
            )


def test_bias_that_cancels_the_product() -> None:
    """What remains is the rounding error of the product, all of it significant."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(1, 256, (6, 3)).astype(np.uint8), rng.integers(1, 256, (3, 40)).astype(np.uint8)
    acc = a.astype(int) @ b.astype(int)
    for _ in range(6):
        sa, sb = F32(rng.uniform(0.01, 1)), F32(rng.uniform(0.01, 1))
        bias = (acc[0] * (-float(sa) * float(sb))).astype(F32)
        inputs = [a, b, sa, sb, None, None, bias]
        assert_equal(kernel("MatMulIntegerToFloat", inputs), linear.matmul_integer_to_float(*inputs), f"{sa} {sb}")


def test_no_inner_dimension_keeps_the_bias() -> None:
    """O4."""
    bias = np.array([1, 2], F32)
    b = np.zeros((0, 2), np.uint8)
    for arith in ("exact", "ort"):
        y = kernel("MatMulIntegerToFloat", [np.zeros((1, 0), np.uint8), b, F32(1), F32(1), None, None, bias], arith)
        assert_equal(y, np.array([[1, 2]], F32))
        assert_equal(kernel("DynamicQuantizeMatMul", [np.zeros((1, 0), F32), b, F32(1), None, bias], arith), y)


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


def test_global_pool_refuses_a_matrix() -> None:
    with pytest.raises(OperatorError, match="rank 3 or more"):
        kernel("QLinearGlobalAveragePool", [np.zeros((2, 3), np.uint8), F32(1), np.uint8(0), F32(1), np.uint8(0)])


def test_sigmoid_of_zero_is_a_tie_and_its_neighbours_are_not() -> None:
    """1/2 exactly at the zero point; a step of 1e-20 away float64 still says 1/2, the real value does not."""
    x = np.array([99, 100, 101], np.uint8)
    for sy in (F32(1), F32(1 / 3), F32(0.2)):
        inputs = [x, F32(1e-20), np.uint8(100), sy, np.uint8(7)]
        assert_equal(kernel("QLinearSigmoid", inputs), ms.qlinear_sigmoid(*inputs), f"y_scale {sy}")
    assert kernel("QLinearSigmoid", [x, F32(1e-20), np.uint8(100), F32(1), np.uint8(7)]).tolist() == [7, 7, 8]


@pytest.mark.parametrize(("scale", "want"), [(np.inf, [0, 0, 1]), (np.nan, [0, 0, 0]), (0.0, [0, 0, 0])])
def test_sigmoid_of_odd_scales(scale: float, want: list[int]) -> None:
    assert (
        kernel("QLinearSigmoid", [np.array([0, 1, 2], np.uint8), F32(scale), np.uint8(1), F32(1), None]).tolist()
        == want
    )


def test_logistic_is_that_of_the_float_operator() -> None:
    """Eight bits hide most of the approximation; onnxruntime's float Sigmoid shows all of it."""
    rng = np.random.default_rng(5)
    x = np.concatenate([rng.normal(0, 5, 4000), rng.normal(0, 0.01, 500), rng.uniform(-40, 40, 501)]).astype(F32)
    model, feeds = node_model("Sigmoid", [x], opset=13)
    assert_equal(logistic32(x), run_ort(model, feeds)[0])


def test_softmax_of_equal_values() -> None:
    """1/n / y_scale: exact ties with y_scale 1/256 and n = 512, near ones with 1/3,
    1/9 and 1/255 rounded to float32."""
    for n, sy in ((512, 1 / 256), (2, 1.0), (2, 1 / 3), (6, 1 / 9), (2, 1 / 255), (1, 2.0), (1, 1 / 256)):
        inputs = [np.full((2, n), 200, np.uint8), F32(0.1), None, F32(sy), np.uint8(1)]
        assert_equal(kernel("QLinearSoftmax", inputs, opset=13), ms.qlinear_softmax(*inputs, opset=13), f"n {n} {sy}")


@pytest.mark.parametrize("xs", [1e-20, -1e-20, 1e-40])
def test_softmax_a_hair_from_a_tie(xs: float) -> None:
    """Two codes one apart differ from 1/2 by xs / 4, which float64 does not see; the greater real value rounds up."""
    x = np.array([[6, 7], [7, 6], [7, 7], [0, 255]], np.uint8)
    inputs = [x, F32(xs), None, F32(1), np.uint8(3)]
    got = kernel("QLinearSoftmax", inputs, opset=13)
    assert_equal(got, ms.qlinear_softmax(*inputs, opset=13))
    assert got.tolist() == ([[3, 4], [4, 3], [3, 3], [3, 4]] if xs > 0 else [[4, 3], [3, 4], [3, 3], [4, 3]])


@pytest.mark.parametrize("xs", [4.0, 1e4, 1e30])
def test_softmax_with_negligible_terms(xs: float) -> None:
    """512 equal maxima and one value of weight exp(-255 * xs) lie just below 1/2 LSB of scale 1/256."""
    x = np.full((1, 513), 255, np.uint8)
    x[0, 9] = 0
    for sy, want in ((1 / 256, 0), (1 / 256.5, 1), (1 / 255.5, 0)):
        got = kernel("QLinearSoftmax", [x, F32(xs), None, F32(sy), np.uint8(0)], opset=13)
        assert set(got[x == 255].tolist()) == {want}
        assert got[0, 9] == 0


def test_softmax_arithmetics_differ_where_they_should() -> None:
    """O13: onnxruntime multiplies by floor(1 / y_scale) = 254;
    and its overflow on an axis of length 1 is not copied."""
    inputs = [np.array([[255, 250, 0]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 255), np.uint8(0)]
    assert kernel("QLinearSoftmax", inputs, opset=13).tolist() == [[159, 96, 0]]
    assert kernel("QLinearSoftmax", inputs, "ort", opset=13).tolist() == [[158, 96, 0]]
    one = [np.array([[9]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 256), np.uint8(0)]
    assert kernel("QLinearSoftmax", one, "ort", opset=13).tolist() == [[255]]
    two = [np.array([[9, 9]], np.uint8), F32(0.1), np.uint8(0), F32(1 / 300), np.uint8(0)]
    assert kernel("QLinearSoftmax", two, "ort", opset=13).tolist() == [[150, 150]]


def test_softmax_of_nothing_and_of_odd_scales() -> None:
    """O24: an empty tensor stays one."""
    empty = kernel("QLinearSoftmax", [np.zeros((0, 3), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13)
    assert empty.shape == (0, 3)
    assert kernel(
        "QLinearSoftmax", [np.zeros((3, 0), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13
    ).shape == (3, 0)
    x = np.array([[1, 2, 3]], np.uint8)
    for arith in ("exact", "ort"):
        assert kernel("QLinearSoftmax", [x, F32(np.inf), None, F32(1), np.uint8(5)], arith, opset=13).tolist() == [
            [0, 0, 0]
        ]
        assert kernel("QLinearSoftmax", [x, F32(0), None, F32(1 / 300), np.uint8(5)], arith, opset=13).tolist() == [
            [105] * 3
        ]
        assert kernel("QLinearSoftmax", [x, F32(-50), None, F32(1 / 100), np.uint8(5)], arith, opset=13).tolist() == [
            [105, 5, 5]
        ]


@pytest.mark.parametrize("axis", [-3, 2])
def test_softmax_refuses_an_axis_out_of_range(axis: int) -> None:
    with pytest.raises(OperatorError, match="does not exist"):
        kernel("QLinearSoftmax", [np.zeros((2, 3), np.uint8), F32(1), None, F32(1), np.uint8(0)], opset=13, axis=axis)


@pytest.mark.parametrize(
    ("counts", "step", "bound", "sign"),
    [
        ({0: 3}, 0.5, Fraction(3), 0),
        ({0: 1, 5: 2}, 0.0, Fraction(3), 0),
        ({1: 1}, 1.0, Fraction("2.718281828459045235360287471352662497757247093699959574966967627724076630353"), 1),
        ({1: 1}, 1.0, Fraction("2.718281828459045235360287471352662497757247093699959574966967627724076630354"), -1),
        ({0: 1, -1: 1}, 1e9, Fraction(1) + Fraction(1, 10**60), -1),
        ({0: 1, -1: 1}, 1e30, Fraction(1), 1),
        ({-1: 1}, 1e-40, 1 - Fraction(1, 10**41), -1),
        ({2: 1}, 1e30, Fraction(10**9), 1),
    ],
)
def test_exp_sums_are_compared_with_certainty(counts, step: float, bound: Fraction, sign: int) -> None:
    assert exp_sum_exceeds(counts, step, bound) == sign


@pytest.mark.parametrize("sy", [1e-45, 2.9e-39])
def test_softmax_ort_of_a_scale_without_a_float32_reciprocal(sy: float) -> None:
    """Terms that are zero stay zero."""
    inputs = [np.array([[0, 255, 255, 3]], np.uint8), F32(4), np.uint8(0), F32(sy), np.uint8(243)]
    model, feeds = node_model("QLinearSoftmax", inputs, {"opset": 13}, domain=MS, opset=17, outputs=[np.uint8])
    assert run_qrun(model, feeds, arith="ort")[0].tolist() == [[243, 255, 255, 243]]


ONES = np.array([1, 3, 5], np.uint8)
HALVES = [ONES, F32(0.5), np.uint8(0)]
NOTHING = [np.zeros(3, np.uint8), F32(1), np.uint8(0)]
RESULT = [F32(1), np.uint8(1)]
COLUMN = [ONES.reshape(3, 1), F32(0.5), np.uint8(0), np.ones((1, 1), np.uint8), F32(1), np.uint8(0)]
IMAGE = [ONES[1:].reshape(1, 1, 2), F32(1 / 8), np.uint8(0), F32(1), np.uint8(1)]
TIES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "QLinearAdd": ([*HALVES, *NOTHING, *RESULT], {}),
    "QLinearMul": ([*HALVES, ONES[:1], F32(1), np.uint8(0), *RESULT], {}),
    "QLinearAveragePool": (IMAGE, {"kernel_shape": (2,)}),
    "QLinearGlobalAveragePool": (IMAGE, {}),
    "QLinearConcat": ([*RESULT, *HALVES], {"axis": 0}),
    "QLinearWhere": ([np.array([True, False, True]), *HALVES, *HALVES, *RESULT], {}),
    "QLinearLeakyRelu": ([*HALVES, *RESULT], {}),
    "QLinearSigmoid": ([np.zeros(1, np.uint8), F32(0.1), np.uint8(0), F32(1 / 5), np.uint8(1)], {}),
    "QLinearSoftmax": ([np.zeros((1, 2), np.uint8), F32(0.1), np.uint8(0), F32(1 / 5), np.uint8(1)], {"opset": 13}),
    "QGemm": ([*COLUMN, None, *RESULT], {}),
    "MatMulIntegerToFloat": (
        [COLUMN[0], COLUMN[3], F32(0.1), F32(0.1), np.uint8(0), np.uint8(0), np.array([1], F32)],
        {},
    ),
    "DynamicQuantizeMatMul": ([np.zeros((2, 1), F32), COLUMN[3], F32(0.1), np.uint8(0), np.array([1], F32)], {}),
}
"""Inputs whose results are rounded from ties, or where float32 steps would show; and attributes."""


def test_they_are_those_that_say_so() -> None:
    told = {name for (domain, name), (found, *_) in REGISTRY.items()
            if domain == MS and "``onnx-ref`` is exact" in " ".join((found.__doc__ or "").split())}  # fmt: skip
    assert told == set(TIES)


@pytest.mark.parametrize("name", TIES)
def test_the_arithmetic_of_onnx_reference_is_exact_where_it_has_no_operator(name: str) -> None:
    inputs, attributes = TIES[name]
    assert_equal(kernel(name, inputs, "onnx-ref", **attributes), kernel(name, inputs, **attributes), name)


def test_matmul_to_float16_is_exact() -> None:
    for seed in range(40):
        inputs, _ = float_case(seed, "generic", False)
        inputs[2], inputs[3] = (np.asarray(s).astype(np.float16) for s in inputs[2:4])
        if inputs[6] is not None:
            inputs[6] = np.clip(inputs[6], -100, 100).astype(np.float16)
        with np.errstate(over="ignore"):
            want = linear.matmul_integer_to_float(*inputs)
        assert_equal(kernel("MatMulIntegerToFloat", inputs), want, f"seed {seed}")


def pooled(
    shape: tuple[int, ...], attributes: dict[str, Any], param: str
) -> tuple[str, Inputs, dict[str, Any], str, str]:
    return "QLinearAveragePool", [np.zeros(shape, np.uint8), F32(1), None, F32(1), None], attributes, "", param


U8, ONE8, Z = np.zeros((2, 2), np.uint8), F32(1), np.uint8(0)
REFUSED: list[tuple[str, Inputs, dict[str, Any], str, str]] = [
    ("QLinearAdd", [np.zeros((2, 3), np.uint8), F32(1), None, np.zeros((2, 2), np.uint8), F32(1), None, F32(1)], {}, "QR208", "B"),
    ("QLinearMul", [np.zeros(2, np.uint8), np.ones(2, F32), None, np.zeros(2, np.uint8), F32(1), None, F32(1)], {}, "QR301", "A_scale"),
    ("QLinearMul", [np.zeros(2, np.uint8), F32(1), None, np.zeros(2, np.uint8), F32(1), np.zeros((1, 1), np.uint8), F32(1)], {}, "QR302", "B_zero_point"),
    ("QLinearAdd", [np.zeros(2, np.uint8), F32(1), np.int8(0), np.zeros(2, np.uint8), F32(1), None, F32(1)], {}, "QR303", "A_zero_point"),
    ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, np.uint8), F32(1)], {"axis": 0}, "QR205", "inputs"),
    ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, np.uint8), F32(1), None], {"axis": 1}, "QR204", "axis"),
    ("QLinearConcat", [F32(1), np.uint8(0), np.array(2, np.uint8), F32(1), None], {"axis": 0}, "QR204", "axis"),
    ("QLinearConcat", [F32(1), np.uint8(0), np.zeros(2, F32), F32(1), None], {"axis": 0}, "QR203", "inputs"),
    ("QLinearConcat", [F32(1), np.uint8(0), None, F32(1), None], {"axis": 0}, "QR203", "inputs"),
    ("QLinearConcat", [F32(1), np.uint8(0), np.zeros((2, 2), np.uint8), F32(1), None, np.zeros((2, 3), np.uint8), F32(1), None], {"axis": 0}, "QR208", "inputs[3]"),
    ("QGemm", [U8[0], ONE8, Z, U8, ONE8, Z], {}, "", "B"),
    ("QGemm", [np.zeros((2, 3), np.uint8), ONE8, Z, U8, ONE8, Z], {}, "", "B"),
    ("QGemm", [U8, ONE8, Z, U8, ONE8, Z, np.zeros(3, np.int32)], {}, "", "C"),
    ("QGemm", [U8, ONE8, Z, U8, ONE8, Z, np.zeros((1, 1, 2), np.int32)], {}, "", "C"),
    ("QGemm", [U8, np.ones(2, F32), Z, U8, ONE8, Z], {}, "", "a_scale"),
    ("QGemm", [U8, ONE8, Z, U8, np.ones(3, F32), Z], {}, "", "b_scale"),
    ("QGemm", [U8, ONE8, np.int8(0), U8, ONE8, Z], {}, "", "a_zero_point"),
    ("QGemm", [U8, ONE8, Z, U8, ONE8, Z, None, None, Z], {}, "", "y_scale"),
    ("MatMulIntegerToFloat", [U8, np.zeros((3, 2), np.uint8), ONE8, ONE8], {}, "", "B"),
    ("MatMulIntegerToFloat", [U8, U8, np.ones(2, F32), ONE8], {}, "", "a_scale"),
    ("MatMulIntegerToFloat", [U8, U8, ONE8, ONE8, None, None, np.ones(3, F32)], {}, "", "bias"),
    ("MatMulIntegerToFloat", [U8, U8, ONE8, ONE8, None, np.zeros((2, 1), np.uint8)], {}, "", "b_zero_point"),
    ("DynamicQuantizeMatMul", [np.zeros((2, 3), F32), U8, ONE8], {}, "", "B"),
    ("DynamicQuantizeMatMul", [np.zeros((), F32), U8, ONE8], {}, "", "B"),
    ("DynamicQuantizeMatMul", [np.zeros((2, 2), F32), U8, ONE8, None, np.ones((1, 2), F32)], {}, "", "bias"),
        *(pooled(*row) for row in (
    ((2, 3), {"kernel_shape": ()}, "X"),
    ((1, 1, 4, 4), {"kernel_shape": (3,)}, "kernel_shape"),
    ((1, 4, 4, 1), {"kernel_shape": (5, 5), "strides": (2, 2), "channels_last": 1}, "kernel_shape"),
    ((1, 1, 4), {"kernel_shape": (2,), "pads": (1, 1), "auto_pad": "SAME_UPPER"}, "pads"),
    ((1, 1, 4), {"kernel_shape": (0,)}, "kernel_shape"),
    ((1, 1, 4), {"kernel_shape": (2,), "strides": (0,)}, "strides"),
    ((1, 1, 4), {"kernel_shape": (2,), "auto_pad": "SAME"}, "auto_pad"),
        )),
]  # fmt: skip


def test_refusals() -> None:
    for name, inputs, attributes, code, param in REFUSED:
        with pytest.raises(OperatorError) as caught:
            kernel(name, inputs, **attributes)
        assert caught.value.code.startswith(code), (name, inputs, attributes)
        assert caught.value.param == param, (name, inputs, attributes)


def test_costs_count_multiply_adds() -> None:
    for name, inputs, outputs, attributes, want in (
        ("QGemm", [(4, 2)], [(2, 3)], {"transA": 1}, 24),
        ("MatMulIntegerToFloat", [(5, 2, 4), (4, 3)], [(5, 2, 3)], {}, 120),
        ("DynamicQuantizeMatMul", [(2, 4), (4, 3)], [(2, 3)], {}, 24),
    ):
        assert find(MS, name, 1).cost(inputs, outputs, attributes) == want
