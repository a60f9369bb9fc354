"""QGemm, MatMulIntegerToFloat and DynamicQuantizeMatMul of com.microsoft."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.support import MS, assert_equal, exact_pairs, node_model, run_ort, run_qrun
from oracle import ms_linear as ms
from oracle.ms_cases import KINDS, codes, dtype_of, scales, zero

from qrun.errors import OperatorError
from qrun.ops import Context, find

F32 = np.float32
ORT_KINDS = [k for k in KINDS if k not in ("overflow", "bad")]


def kernel(name: str, inputs, arith="exact", **attributes):
    return find(MS, name, 1)(*inputs, **attributes, ctx=Context(arith=arith))


def sizes(rng, least=0):
    return [int(n) for n in rng.integers(least, 7, 3)]


def columns(rng, value, n):
    """One parameter per column, near `value`."""
    with np.errstate(all="ignore"):
        return (np.resize(value, n) * np.resize([1, 2, 0.5, 3], n)).astype(F32)


def gemm_case(seed: int, kind: str, ort: bool):
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
    inputs = [a, sa, za, b, sb, zb, c, sy, zy]
    if rng.random() < 0.3:
        inputs[7:] = [None, None]
    return inputs, attributes


@pytest.mark.parametrize("kind", KINDS)
def test_gemm_is_exact(kind: str) -> None:
    for seed in range(60):
        inputs, attributes = gemm_case(seed, kind, ort=False)
        want = ms.qgemm(*inputs, **attributes)
        note = f"{kind} seed {seed} {attributes}"
        assert_equal(kernel("QGemm", inputs, **attributes), want, note, signed_zeros=False)


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_gemm_ort(kind: str) -> None:
    for seed in range(40):
        inputs, attributes = gemm_case(seed, kind, ort=True)
        if inputs[0].dtype == np.uint8:
            inputs[3] = exact_pairs(inputs[3])
        out = F32 if inputs[8] is None else inputs[8].dtype
        model, feeds = node_model("QGemm", inputs, attributes, domain=MS, opset=17, outputs=[out])
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed} {attributes}")


def test_gemm_alpha_is_a_third_factor_of_ties() -> None:
    """3 * (1/3 in float32) is just above 1: accumulators of 1 with y_scale 2 / alpha lie next to 1/2."""
    a, b = np.arange(1, 120, 2, dtype=np.uint8)[:, None], np.ones((1, 1), np.uint8)
    for alpha in (1 / 3, 0.1, 0.7, 1 / 255):
        for sa in (3.0, 10.0, 1 / 7, 255.0):
            for scale in (1.0, 1.0000001, 0.99999994):
                sy = F32(2) * F32(alpha) * F32(sa) * F32(scale)
                inputs = [a, F32(sa), np.uint8(0), b, F32(1), np.uint8(0), None, sy, np.uint8(1)]
                want = ms.qgemm(*inputs, alpha=float(F32(alpha)))
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


def test_cost_counts_multiply_adds() -> None:
    assert find(MS, "QGemm", 1).cost([(4, 2)], [(2, 3)], {"transA": 1}) == 24
    assert find(MS, "MatMulIntegerToFloat", 1).cost([(5, 2, 4), (4, 3)], [(5, 2, 3)], {}) == 120
    assert find(MS, "DynamicQuantizeMatMul", 1).cost([(2, 4), (4, 3)], [(2, 3)], {}) == 24


def operand_shapes(rng, least=0):
    m, k, n = sizes(rng, least)
    lead = tuple(int(d) for d in rng.integers(1, 3, rng.integers(0, 3)))
    a = (*lead, m, k) if rng.random() < 0.8 or least else (k,)
    b = ((*lead, k, n) if rng.random() < 0.3 else (k, n)) if rng.random() < 0.8 or least else (k,)
    return a, b


def float_case(seed: int, kind: str, ort: bool):
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
    return [a, b, scale_a, scale_b, za, zb, bias]


@pytest.mark.parametrize("kind", KINDS)
def test_matmul_to_float_is_exact(kind: str) -> None:
    for seed in range(60):
        inputs = float_case(seed, kind, ort=False)
        got, want = kernel("MatMulIntegerToFloat", inputs), ms.matmul_integer_to_float(*inputs)
        assert_equal(got, want, f"{kind} seed {seed}", signed_zeros=False)


def test_matmul_to_float16_is_exact() -> None:
    for seed in range(40):
        inputs = float_case(seed, "generic", ort=False)
        inputs[2], inputs[3] = (np.asarray(s).astype(np.float16) for s in inputs[2:4])
        if inputs[6] is not None:
            inputs[6] = np.clip(inputs[6], -100, 100).astype(np.float16)
        with np.errstate(over="ignore"):
            want = ms.matmul_integer_to_float(*inputs)
        assert_equal(kernel("MatMulIntegerToFloat", inputs), want, f"seed {seed}")


def test_bias_just_beside_a_rounding_boundary() -> None:
    """The sum of product and bias is rounded once: a bias of 2**-70 decides between two float32 neighbours."""
    a = np.array([[1]], np.uint8)
    for tiny in (2.0**-70, -(2.0**-70), 0.0, 2.0**-140):
        for sign in (1, -1):
            inputs = [a, a, F32(sign * (1 + 2**-12)), F32(1 + 2**-12), None, None, np.array([tiny], F32)]
            assert_equal(kernel("MatMulIntegerToFloat", inputs), ms.matmul_integer_to_float(*inputs), f"{tiny} {sign}")


def test_bias_that_cancels_the_product() -> None:
    """What remains is the rounding error of the product, all of it significant."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(1, 256, (6, 3)).astype(np.uint8), rng.integers(1, 256, (3, 40)).astype(np.uint8)
    acc = a.astype(int) @ b.astype(int)
    for _ in range(6):
        sa, sb = F32(rng.uniform(0.01, 1)), F32(rng.uniform(0.01, 1))
        bias = (acc[0] * (-float(sa) * float(sb))).astype(F32)
        inputs = [a, b, sa, sb, None, None, bias]
        assert_equal(kernel("MatMulIntegerToFloat", inputs), ms.matmul_integer_to_float(*inputs), f"{sa} {sb}")


@pytest.mark.parametrize("kind", ORT_KINDS)
def test_matmul_to_float_ort(kind: str) -> None:
    for seed in range(40):
        inputs = float_case(seed, kind, ort=True)
        if inputs[0].dtype == np.uint8:
            inputs[1] = exact_pairs(inputs[1])
        model, feeds = node_model("MatMulIntegerToFloat", inputs, domain=MS, opset=17)
        want = run_ort(model, feeds)[0]
        assert_equal(run_qrun(model, feeds, arith="ort")[0], want, f"{kind} seed {seed}")


def dynamic_case(seed: int, ort: bool):
    rng = np.random.default_rng(seed)
    inputs = float_case(seed, "generic", ort)
    a = rng.normal(rng.uniform(-1, 1), rng.uniform(0.01, 50), inputs[0].shape).astype(F32)
    if seed % 7 == 0:
        a = np.abs(a)
    if seed % 11 == 0:
        a = np.zeros_like(a)
    if seed % 5 == 0:
        a = np.round(a * 4) / F32(4)
    return [a, inputs[1], inputs[3], inputs[5], inputs[6]]


def test_dynamic_matmul_is_exact() -> None:
    for seed in range(80):
        inputs = dynamic_case(seed, ort=False)
        assert_equal(kernel("DynamicQuantizeMatMul", inputs), ms.dynamic_quantize_matmul(*inputs), f"seed {seed}")


def test_dynamic_matmul_ort() -> None:
    for seed in range(80):
        inputs = dynamic_case(seed, ort=True)
        inputs[1] = exact_pairs(inputs[1])
        model, feeds = node_model("DynamicQuantizeMatMul", inputs, domain=MS, opset=17)
        assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], f"seed {seed}")


def test_no_inner_dimension_keeps_the_bias() -> None:
    """O4."""
    bias = np.array([1, 2], F32)
    b = np.zeros((0, 2), np.uint8)
    for arith in ("exact", "ort"):
        y = kernel("MatMulIntegerToFloat", [np.zeros((1, 0), np.uint8), b, F32(1), F32(1), None, None, bias], arith)
        assert_equal(y, np.array([[1, 2]], F32))
        assert_equal(kernel("DynamicQuantizeMatMul", [np.zeros((1, 0), F32), b, F32(1), None, bias], arith), y)


U8 = np.zeros((2, 2), np.uint8)
ONE, Z = F32(1), np.uint8(0)


@pytest.mark.parametrize(
    ("name", "inputs", "attributes", "param"),
    [
        ("QGemm", [U8[0], ONE, Z, U8, ONE, Z], {}, "B"),
        ("QGemm", [np.zeros((2, 3), np.uint8), ONE, Z, U8, ONE, Z], {}, "B"),
        ("QGemm", [U8, ONE, Z, U8, ONE, Z, np.zeros(3, np.int32)], {}, "C"),
        ("QGemm", [U8, ONE, Z, U8, ONE, Z, np.zeros((1, 1, 2), np.int32)], {}, "C"),
        ("QGemm", [U8, np.ones(2, F32), Z, U8, ONE, Z], {}, "a_scale"),
        ("QGemm", [U8, ONE, Z, U8, np.ones(3, F32), Z], {}, "b_scale"),
        ("QGemm", [U8, ONE, np.int8(0), U8, ONE, Z], {}, "a_zero_point"),
        ("QGemm", [U8, ONE, Z, U8, ONE, Z, None, None, Z], {}, "y_scale"),
        ("MatMulIntegerToFloat", [U8, np.zeros((3, 2), np.uint8), ONE, ONE], {}, "B"),
        ("MatMulIntegerToFloat", [U8, U8, np.ones(2, F32), ONE], {}, "a_scale"),
        ("MatMulIntegerToFloat", [U8, U8, ONE, ONE, None, None, np.ones(3, F32)], {}, "bias"),
        ("MatMulIntegerToFloat", [U8, U8, ONE, ONE, None, np.zeros((2, 1), np.uint8)], {}, "b_zero_point"),
        ("DynamicQuantizeMatMul", [np.zeros((2, 3), F32), U8, ONE], {}, "B"),
        ("DynamicQuantizeMatMul", [np.zeros((), F32), U8, ONE], {}, "B"),
        ("DynamicQuantizeMatMul", [np.zeros((2, 2), F32), U8, ONE, None, np.ones((1, 2), F32)], {}, "bias"),
    ],
)
def test_refusals(name: str, inputs, attributes, param: str) -> None:
    with pytest.raises(OperatorError) as caught:
        kernel(name, inputs, **attributes)
    assert caught.value.param == param
