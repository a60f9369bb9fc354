"""QLinearMatMul and MatMulInteger against the exact oracle, onnxruntime and onnx.reference; float8; refusals."""

from __future__ import annotations

from fractions import Fraction
from itertools import product
from typing import Any

import ml_dtypes as md
import numpy as np
import onnx.reference
import pytest
from helpers.support import assert_equal, exact_pairs, node_model, run_ort, run_qrun
from oracle.cast import cast
from oracle.linear import matmul, requantize_all, rows
from oracle.linear_cases import EIGHT, MODES, MatMulCase, matmul_case
from oracle.quantize import RANGES, real, requantize, saturate

import qrun
from qrun.ops import Context, find

f32, u8, i8 = np.float32, np.uint8, np.int8
KERNEL = find("", "QLinearMatMul", 10)
SEED = 13


def expected(case: MatMulCase) -> np.ndarray:
    acc = matmul(case.a, case.b, case.a_zero, case.b_zero)
    wide = acc
    if case.b.ndim == 1:
        wide = wide[..., None]
    if case.a.ndim == 1:
        wide = wide[..., None, :]
    left = rows(case.a_scale, case.a, columns=False)[..., :1] if case.a.shape[-1] else case.a_scale
    right = rows(case.b_scale, case.b, columns=True)
    if case.b.ndim == 1:
        right = right[:1].reshape(-1, 1) if right.size else case.b_scale.reshape(())
    else:
        right = right[..., :1, :] if right.shape[-2] else case.b_scale
    if case.a.shape[-1] == 0:
        left = left.reshape(-1, 1) if left.ndim == 1 and left.size > 1 else left
    return requantize_all(wide, [left, right], case.y_scale, case.y_zero).reshape(acc.shape)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("types", list(product(EIGHT, repeat=3)), ids=lambda t: "-".join(v.__name__ for v in t))
def test_against_the_oracle(types: Any, mode: str) -> None:
    rng = np.random.default_rng([SEED, MODES.index(mode), *map(EIGHT.index, types)])
    for number in range(3 if mode == "bigacc" else 25):
        case = matmul_case(rng, mode, types)
        assert_equal(KERNEL(*case.inputs, ctx=Context()), expected(case), f"case {number}: {case}")


@pytest.mark.parametrize("mode", MODES[:3])
def test_ort_arithmetic_is_onnxruntimes(mode: str) -> None:
    """Cases onnxruntime runs: K > 0, per-tensor parameters, three type triples."""
    rng = np.random.default_rng([SEED, 1, MODES.index(mode)])
    for number in range(20 if mode == "bigacc" else 80):
        types = [(u8, u8, u8), (u8, i8, u8), (i8, i8, i8)][number % 3]
        case = matmul_case(rng, mode, types, plain=True)
        if types[0] is u8:
            case.b = exact_pairs(case.b)
        if case.a.size and case.b.size:
            model, feeds = node_model("QLinearMatMul", case.inputs, opset=10, outputs=[types[2]])
            assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], f"case {number}: {case}")


@pytest.mark.parametrize("mode", MODES[:2])
@pytest.mark.parametrize("opset", [10, 21])
def test_onnx_ref_arithmetic_is_onnx_references(mode: str, opset: int) -> None:
    """Scalars of rank 0 (it lets 1-vectors change the rank). opset 21: float16 scales, multiplied in float16."""
    rng = np.random.default_rng([SEED, 2, MODES.index(mode), opset])
    for number in range(60):
        case = matmul_case(rng, mode, plain=True)
        inputs = [case.a, case.a_scale, case.a_zero, case.b, case.b_scale, case.b_zero, case.y_scale, case.y_zero]
        inputs = [v if i in (0, 3) else v.reshape(()) for i, v in enumerate(inputs)]
        if opset == 21:
            inputs = [np.clip(v, 1e-3, 10).astype(np.float16) if i in (1, 4, 6) else v for i, v in enumerate(inputs)]
        model, feeds = node_model("QLinearMatMul", inputs, opset=opset, outputs=[case.y_zero.dtype])
        want = np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0])
        assert_equal(run_qrun(model, feeds, arith="onnx-ref")[0], want, f"case {number}: {case}")


@pytest.mark.parametrize("scales", [(1, 1, 90), (3, 1, 82), (7, 1, 92), (0.5, 1, 1), (1, 1 / 255, 1), (0.3, 0.1, 0.7)])
def test_every_product_in_every_arithmetic(scales: tuple[float, ...]) -> None:
    """All products of two bytes, through blocks with a scale for each row; many are ties."""
    a_scale, b_scale, y_scale = (np.array(s, f32) for s in scales)
    a, b = np.arange(256, dtype=u8)[:, None], np.tile(np.arange(256, dtype=u8), 2)[None, :]
    inputs = [a, a_scale, u8(100), b, b_scale, u8(3), y_scale, u8(101)]
    model, feeds = node_model("QLinearMatMul", inputs, opset=10, outputs=[u8])
    acc = (a.astype(np.int64) - 100) * (b.astype(np.int64) - 3)
    distinct, place = np.unique(acc, return_inverse=True)
    want = requantize_all(distinct, [a_scale, b_scale], y_scale, np.array(101, u8))[place].reshape(acc.shape)
    assert_equal(run_qrun(model, feeds)[0], want, "exact")
    assert_equal(run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0], "ort")
    reference = onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0]
    assert_equal(run_qrun(model, feeds, arith="onnx-ref")[0], reference, "onnx-ref")
    per_row = np.where(np.arange(256) % 2, a_scale, a_scale * f32(2)).astype(f32)
    twice = KERNEL(a, a_scale * f32(2), np.array(100, u8), *inputs[3:])
    mixed = KERNEL(a, per_row, np.array(100, u8), *inputs[3:])
    assert_equal(mixed, np.where(np.arange(256)[:, None] % 2, want, twice), "per row")


@pytest.mark.parametrize("type", [np.float16, md.bfloat16])
def test_half_precision_scales(type: Any) -> None:
    rng = np.random.default_rng([SEED, 3])
    for number in range(30):
        case = matmul_case(rng, "generic")
        case.a_scale, case.b_scale, case.y_scale = (s.astype(type) for s in (case.a_scale, case.b_scale, case.y_scale))
        if not case.y_scale.astype(f32).all():
            continue
        model, feeds = node_model("QLinearMatMul", case.inputs, opset=21, outputs=[case.y_zero.dtype])
        assert_equal(run_qrun(model, feeds)[0], expected(case), f"case {number}: {case}")


FLOAT8 = (md.float8_e4m3fn, md.float8_e4m3fnuz, md.float8_e5m2, md.float8_e5m2fnuz)


def values(rng: np.random.Generator, type: Any, shape: tuple[int, ...]) -> np.ndarray:
    if type in EIGHT:
        return rng.integers(-100, 100, shape).astype(type)
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 6, shape)).astype(f32).astype(type)


@pytest.mark.parametrize("a_type", [*FLOAT8, u8])
@pytest.mark.parametrize("y_type", [*FLOAT8, i8])
def test_float8_operands_are_real_numbers(a_type: Any, y_type: Any) -> None:
    rng = np.random.default_rng([SEED, 4])
    for number in range(12):
        b_type = FLOAT8[number % 4]
        a, b = values(rng, a_type, (3, 4)), values(rng, b_type, (4, 2))
        scales = [f32(s) for s in rng.choice([1, 0.5, 1 / 90, 3e-2, 1e-6], 3)]
        a_zero, y_zero = (np.array(7 if t in EIGHT else 0, t) for t in (a_type, y_type))
        got = KERNEL(a, scales[0], a_zero, b, scales[1], np.array(0, b_type), scales[2], y_zero)
        want = np.zeros((3, 2), y_type)
        for i, j in np.ndindex(3, 2):
            acc = sum(
                (Fraction(real(p)) - int(a_zero.astype(f32))) * Fraction(real(q) or 0)
                for p, q in zip(a[i], b[:, j], strict=True)
            )
            q = requantize(acc, [real(scales[0]), real(scales[1])], real(scales[2]))
            want[i, j] = saturate(q, 7, RANGES["int8"]) if y_type is i8 else cast(q, y_zero.dtype.name, True)
        assert_equal(
            got, want, f"case {number}: {a_type.__name__} {b_type.__name__} {scales} {a.tolist()} {b.tolist()}"
        )


@pytest.mark.parametrize("y_type", [md.float8_e4m3fn, md.float8_e5m2, i8])
def test_float8_ties_are_rounded_once(y_type: Any) -> None:
    """Sums at a tie of the output, and scales that leave it there or move it by 2**-23."""
    zero = np.array(0, y_type)
    for acc in (1.0625, 1.1875, 2.125, 2.375, 17.0, 0.5, 1.5, 2.5):
        for up, down in ((f32(1) + f32(2**-23), f32(1)), (f32(1), f32(1) + f32(2**-23)), (f32(1 / 3), f32(1 / 3))):
            most = float(f32(acc).astype(md.float8_e4m3fn))
            parts = np.array([[most, acc - most]], f32).astype(md.float8_e4m3fn)
            b = np.ones((2, 1), md.float8_e4m3fn)
            e4 = np.array(0, md.float8_e4m3fn)
            got = KERNEL(parts, up, e4, b, f32(1), e4, down, zero)
            q = requantize(Fraction(acc), [real(up)], real(down))
            want = saturate(q, 0, RANGES["int8"]) if y_type is i8 else cast(q, zero.dtype.name, True)
            assert float(got[0, 0]) == want, (acc, up, down)


def test_float8_special_values() -> None:
    e5 = np.array(0, md.float8_e5m2)
    a = np.array([[np.inf], [-np.inf], [np.nan], [57344]], md.float8_e5m2)
    y = KERNEL(a, f32(1), e5, np.ones((1, 1), md.float8_e5m2), f32(2), e5, f32(1), e5)
    assert str(y.astype(f32).tolist()) == "[[57344.0], [-57344.0], [nan], [57344.0]]"
    y = KERNEL(a, f32(1), e5, np.ones((1, 1), md.float8_e5m2), f32(2), e5, f32(1), i8(3))
    assert y.tolist() == [[127], [-128], [-128], [127]]


E4 = np.ones((1, 1), md.float8_e4m3fn)
TWO = np.ones((2, 3), u8)
GOOD = [TWO, f32(1), u8(0), np.ones((3, 4), u8), f32(1), u8(0), f32(1), u8(0)]
BAD = [
    ({0: np.ones((2, 2), u8)}, "QR208", "b", "", 10),
    ({0: np.array(1, u8)}, "QR208", "b", "", 10),
    ({0: np.ones((2, 2, 3), u8), 3: np.ones((3, 3, 4), u8)}, "QR208", "b", "", 10),
    ({1: np.ones(3, f32)}, "QR301", "a_scale", "one value per row", 10),
    ({4: np.ones(3, f32)}, "QR301", "b_scale", "slip for N", 10),
    ({5: np.zeros((3, 1), u8)}, "QR302", "b_zero_point", "", 10),
    ({1: np.ones((1, 1), f32)}, "QR301", "a_scale", "", 10),
    ({6: np.ones(2, f32)}, "QR301", "y_scale", "", 10),
    ({7: np.zeros(4, u8)}, "QR302", "y_zero_point", "", 10),
    ({2: i8(0)}, "QR303", "a_zero_point", "", 10),
    ({1: np.float16(1)}, "QR203", "a_scale", "", 10),
    ({1: np.float16(1)}, "QR203", "b_scale", "", 21),
    ({0: E4, 2: E4[0], 3: E4, 5: E4[0] * 0}, "QR202", "a_zero_point", "not used", 21),
]


@pytest.mark.parametrize(("changes", "code", "param", "why", "opset"), BAD, ids=str)
def test_refusals(changes: dict[int, Any], code: str, param: str, why: str, opset: int) -> None:
    inputs = [changes.get(i, value) for i, value in enumerate(GOOD)]
    model, feeds = node_model("QLinearMatMul", inputs, opset=opset, outputs=[u8])
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)
    assert why in caught.value.why


def test_leading_ones_and_mixed_shapes_are_accepted() -> None:
    a, b = np.ones((2, 1, 3), u8), np.ones((2, 3, 2), u8)
    column = np.array([[[1, 2]]], f32)
    ctx = Context()
    y = KERNEL(a, f32(1), u8(0), b, column, u8(0), f32(1), u8(0), ctx=ctx)
    assert y.tolist() == [[[3, 6]], [[3, 6]]]
    assert [(o.kind, o.param) for o in ctx.observations] == [("mixed-granularity", "b_zero_point")]


def test_a_broadcast_too_large_is_refused_before_it_is_made() -> None:
    a, b = np.ones((1, 40000, 1), u8), np.ones((1, 1, 40000), u8)
    inputs = [a, f32(1), u8(0), b, f32(1), u8(0), f32(1), u8(0)]
    model, feeds = node_model("QLinearMatMul", inputs, opset=10, outputs=[u8])
    with pytest.raises(qrun.MemoryLimitError):
        run_qrun(model, feeds, max_memory=10**8)


INTEGER = find("", "MatMulInteger", 10)
INTEGER_SEED = 14


@pytest.mark.parametrize("a_type", EIGHT)
@pytest.mark.parametrize("b_type", EIGHT)
def test_matmul_integer_against_the_oracle(a_type: Any, b_type: Any) -> None:
    rng = np.random.default_rng([INTEGER_SEED, EIGHT.index(a_type), EIGHT.index(b_type)])
    for number in range(80):
        case = matmul_case(rng, "bigacc" if number % 20 == 7 else "generic", (a_type, b_type, u8))
        zeros = [case.a_zero if rng.random() < 0.7 else None, case.b_zero if rng.random() < 0.7 else None]
        filled = [np.zeros((), t) if z is None else z for z, t in zip(zeros, (a_type, b_type), strict=True)]
        want = matmul(case.a, case.b, *filled)
        assert_equal(INTEGER(case.a, case.b, *zeros), want, f"case {number}: {case}")


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(
    ("op_type", "element", "parameters"),
    [
        ("MatMulInteger", u8, []),
        ("MatMul", np.float32, []),
        ("MatMul", np.int64, []),
        ("QLinearMatMul", u8, [np.float32(0.5), u8(3)]),
    ],
)
@pytest.mark.parametrize(
    ("a", "b"), [((2**31, 2, 3, 0), (1, 2, 0, 0)), ((1, 2, 0, 0), (2**31, 2, 0, 3)), ((2**31, 0, 5), (5, 3))]
)
def test_a_stack_without_elements_costs_nothing(
    a: tuple[int, ...], b: tuple[int, ...], op_type: str, element: Any, parameters: list[Any], backend: str
) -> None:
    """What numpy keeps for each row, column or matrix of a stack may be gigabytes where the product itself is empty."""
    x, y = np.zeros(a, element), np.zeros(b, element)
    inputs = [x, *parameters, y, *parameters, *parameters]
    model, feeds = node_model(op_type, inputs, outputs=[np.int32 if op_type == "MatMulInteger" else element])
    (got,) = run_qrun(model, feeds, backend=backend, max_memory=1 << 20)
    assert got.shape == (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def test_matmul_integer_against_onnxruntime() -> None:
    """Cases onnxruntime runs: K > 0, per-tensor zero points, operands of one sign (older CPUs saturate u8 by s8)."""
    rng = np.random.default_rng([INTEGER_SEED, 1])
    for number in range(80):
        type = EIGHT[number % 2]
        case = matmul_case(rng, "bigacc" if number % 20 == 7 else "generic", (type, type, u8), plain=True)
        if case.a.size and case.b.size:
            inputs = [case.a, case.b, case.a_zero, case.b_zero]
            model, feeds = node_model("MatMulInteger", inputs, opset=10, outputs=[np.int32])
            assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0], f"case {number}: {case}")


@pytest.mark.parametrize("k", [0, 1, 257, 258, 259, 1032, 1033, 33025, 33026, 33027, 66053])
def test_sums_around_every_limit(k: int) -> None:
    """24 bits (258), four chunks of them (1032), 31 bits (33025) and 32 bits (66052); wraps are observed."""
    ctx = Context()
    a = np.full((2, k), 255, u8)
    a[1, 1:2] = 254
    y = INTEGER(a, np.full((k, 1), 255, u8), ctx=ctx)
    want = [k * 255**2, k * 255**2 - (255 if k > 1 else 0)]
    assert y.reshape(-1).tolist() == [(v + 2**31) % 2**32 - 2**31 for v in want]
    signed = INTEGER((a ^ 128).view(i8), np.full((k, 1), 127, i8), np.array(-128, i8), np.array([-128], i8))
    assert signed.tolist() == y.tolist()
    outside = sum(v >= 2**31 for v in want)
    assert [o.count for o in ctx.observations] == ([outside] if outside else [])


def test_refusals_of_matmul_integer() -> None:
    cases: list[tuple[list[Any], str]] = [
        ([np.ones((2, 3), u8), np.ones((2, 3), u8)], "QR208"),
        ([np.array(1, u8), np.ones((1, 1), u8)], "QR208"),
        ([np.ones((2, 3), u8), np.ones((3, 2), u8), np.zeros(3, u8)], "QR302"),
        ([np.ones((2, 3), u8), np.ones((3, 4), u8), None, np.zeros(3, u8)], "QR302"),
        ([np.ones((2, 3), u8), np.ones((3, 2), u8), i8(0)], "QR303"),
        ([np.ones((2, 3), np.int32), np.ones((3, 2), u8)], "QR203"),
    ]
    for inputs, code in cases:
        model, feeds = node_model("MatMulInteger", inputs, opset=10, outputs=[np.int32])
        with pytest.raises(qrun.QrunError) as caught:
            run_qrun(model, feeds)
        assert caught.value.code == code, f"{[np.shape(x) for x in inputs]}: {caught.value}"
