"""QR415: numbers that an integer type does not hold."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.support import node_model
from onnx import TensorProto

import qrun
from qrun.checking.rules import Finding

NAN, INF = np.nan, np.inf


def found(values: list[float], to: int, backend: str = "native", dtype: type = np.float32) -> list[Finding]:
    model, feeds = node_model("Cast", [np.array(values, dtype)], {"to": to}, outputs=[to])
    result = qrun.Session(model, backend=backend).execute(feeds)
    return [f for f in qrun.check(model, result) if f.rule == "QR415"]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_what_does_not_fit_is_reported_with_the_first_value(backend: str) -> None:
    (f,) = found([50, 300, NAN, INF, -INF, -50], TensorProto.INT8, backend)
    assert f.message == "300.0 does not fit int8: 4 of 6 elements, first at [1]"
    assert (f.level, f.node, f.tensor) == ("warning", "n", "i0 (input 0, input)")


@pytest.mark.parametrize(
    ("least", "most", "to"),
    [
        (-128.9, 127.9, TensorProto.INT8),
        (-0.9, 255.9, TensorProto.UINT8),
        (-(2.0**31), 2.0**31 - 128, TensorProto.INT32),
        (-(2.0**63), 2.0**63 - 2.0**40, TensorProto.INT64),
    ],
)
def test_limits_of_a_type_are_cut_toward_zero_and_fit(least: float, most: float, to: int) -> None:
    assert not found([least, most], to)
    assert found([least, 2 * most + 1], to)


def test_every_number_fits_bool_and_floats() -> None:
    assert not found([1e30, NAN], TensorProto.BOOL)
    assert not found([1e30, NAN], TensorProto.FLOAT16)
