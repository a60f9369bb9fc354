"""Operators of com.microsoft that onnx.reference does not have:
``--arith onnx-ref`` computes them exactly, as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import MS, assert_equal

from qrun.ops import REGISTRY, Context, find

F, U = np.float32, np.uint8
ONES = np.array([1, 3, 5], U)
HALVES = [ONES, F(0.5), U(0)]
NOTHING = [np.zeros(3, U), F(1), U(0)]
RESULT = [F(1), U(1)]
COLUMN = [ONES.reshape(3, 1), F(0.5), U(0), np.ones((1, 1), U), F(1), U(0)]
IMAGE = [ONES[1:].reshape(1, 1, 2), F(1 / 8), U(0), F(1), U(1)]
TIES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "QLinearAdd": ([*HALVES, *NOTHING, *RESULT], {}),
    "QLinearMul": ([*HALVES, ONES[:1], F(1), U(0), *RESULT], {}),
    "QLinearAveragePool": (IMAGE, {"kernel_shape": (2,)}),
    "QLinearGlobalAveragePool": (IMAGE, {}),
    "QLinearConcat": ([*RESULT, *HALVES], {"axis": 0}),
    "QLinearWhere": ([np.array([True, False, True]), *HALVES, *HALVES, *RESULT], {}),
    "QLinearLeakyRelu": ([*HALVES, *RESULT], {}),
    "QLinearSigmoid": ([np.zeros(1, U), F(0.1), U(0), F(1 / 5), U(1)], {}),
    "QLinearSoftmax": ([np.zeros((1, 2), U), F(0.1), U(0), F(1 / 5), U(1)], {"opset": 13}),
    "QGemm": ([*COLUMN, None, *RESULT], {}),
    "MatMulIntegerToFloat": ([COLUMN[0], COLUMN[3], F(0.1), F(0.1), U(0), U(0), np.array([1], F)], {}),
    "DynamicQuantizeMatMul": ([np.zeros((2, 1), F), COLUMN[3], F(0.1), U(0), np.array([1], F)], {}),
}
"""Inputs whose results are rounded from ties, or where float32 steps would show; and attributes."""


def test_they_are_those_that_say_so() -> None:
    told = {name for (domain, name), (found, *_) in REGISTRY.items()
            if domain == MS and "``onnx-ref`` is exact" in " ".join((found.__doc__ or "").split())}  # fmt: skip
    assert told == set(TIES)


@pytest.mark.parametrize("name", TIES)
def test_the_arithmetic_of_onnx_reference_is_exact_where_it_has_no_operator(name: str) -> None:
    inputs, attributes = TIES[name]
    kernel = find(MS, name, 1)
    assert kernel is not None
    exact, other = (kernel(*inputs, **attributes, ctx=Context(arith=arith)) for arith in ("exact", "onnx-ref"))
    assert_equal(other, exact, name)
