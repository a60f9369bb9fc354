"""MatMulInteger against the exact oracle and onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.linear import matmul
from oracle.linear_cases import EIGHT, matmul_case

import qrun
from qrun.ops import Context, find

u8, i8 = np.uint8, np.int8
KERNEL = find("", "MatMulInteger", 10)
SEED = 14


@pytest.mark.parametrize("a_type", EIGHT)
@pytest.mark.parametrize("b_type", EIGHT)
def test_against_the_oracle(a_type: Any, b_type: Any) -> None:
    rng = np.random.default_rng([SEED, EIGHT.index(a_type), EIGHT.index(b_type)])
    for number in range(80):
        case = matmul_case(rng, "bigacc" if number % 20 == 7 else "generic", (a_type, b_type, u8))
        zeros = [case.a_zero if rng.random() < 0.7 else None, case.b_zero if rng.random() < 0.7 else None]
        filled = [np.zeros((), t) if z is None else z for z, t in zip(zeros, (a_type, b_type), strict=True)]
        want = matmul(case.a, case.b, *filled)
        assert_equal(KERNEL(case.a, case.b, *zeros), want, f"case {number}: {case}")


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


def test_against_onnxruntime() -> None:
    """Cases onnxruntime runs: K > 0, per-tensor zero points, operands of one sign (older CPUs saturate u8 by s8)."""
    rng = np.random.default_rng([SEED, 1])
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
    y = KERNEL(a, np.full((k, 1), 255, u8), ctx=ctx)
    want = [k * 255**2, k * 255**2 - (255 if k > 1 else 0)]
    assert y.reshape(-1).tolist() == [(v + 2**31) % 2**32 - 2**31 for v in want]
    signed = KERNEL((a ^ 128).view(i8), np.full((k, 1), 127, i8), np.array(-128, i8), np.array([-128], i8))
    assert signed.tolist() == y.tolist()
    outside = sum(v >= 2**31 for v in want)
    assert [o.count for o in ctx.observations] == ([outside] if outside else [])


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ([np.ones((2, 3), u8), np.ones((2, 3), u8)], "QR208"),
        ([np.array(1, u8), np.ones((1, 1), u8)], "QR208"),
        ([np.ones((2, 3), u8), np.ones((3, 2), u8), np.zeros(3, u8)], "QR302"),
        ([np.ones((2, 3), u8), np.ones((3, 4), u8), None, np.zeros(3, u8)], "QR302"),
        ([np.ones((2, 3), u8), np.ones((3, 2), u8), i8(0)], "QR303"),
        ([np.ones((2, 3), np.int32), np.ones((3, 2), u8)], "QR203"),
    ],
    ids=str,
)
def test_refusals(inputs: list[Any], code: str) -> None:
    model, feeds = node_model("MatMulInteger", inputs, opset=10, outputs=[np.int32])
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert caught.value.code == code, str(caught.value)
