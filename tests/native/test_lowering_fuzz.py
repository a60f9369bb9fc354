"""Random nodes with constant parameters: the native backend against the reference, bit for bit,
and what they observe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import ISAS, OBJECTS
from helpers.support import MS, assert_equal, node_model

import qrun
from qrun.checking.rules import check

F = np.float32
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")]
Rng = np.random.Generator


def codes(rng: Rng, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    return rng.integers(0, 256, shape).astype(np.uint8).view(dtype)


def types(rng: Rng, count: int) -> list[Any]:
    return [(np.uint8, np.int8)[int(i)] for i in rng.integers(0, 2, count)]


def scales(rng: Rng, shape: tuple[int, ...]) -> np.ndarray:
    """Often powers of two, which make ties; rarely zero, negative or not finite."""
    if rng.random() < 0.4:
        values = np.exp2(rng.integers(-9, -5, shape))
    else:
        values = rng.uniform(0.002, 0.02, shape)
    if rng.random() < 0.1 and values.size:
        np.asarray(values).reshape(-1)[0] = rng.choice([0, -0.01, np.inf, np.nan, 1e-40])
    return np.asarray(values, F)


def vector(rng: Rng, n: int) -> tuple[int, ...]:
    return [(), (1,), (n,)][int(rng.integers(0, 3))]


def conv(rng: Rng, integer: bool) -> tuple[str, list[Any], dict[str, Any], str]:
    axes = int(rng.choice([1, 2, 2, 3]))
    group = int(rng.choice([1, 1, 2, 5]))
    c, m = group * int(rng.choice([1, 3, 4, 16])), group * int(rng.choice([1, 2, 17]))
    kernel = tuple(int(k) for k in rng.integers(1, 4, axes))
    size = tuple(int(k + rng.integers(0, 6)) for k in kernel)
    x_type, w_type, y_type = types(rng, 3)
    n = int(rng.choice([0, 1, 2, 3]))
    attributes: dict[str, Any] = {"group": group, "strides": [int(s) for s in rng.integers(1, 3, axes)]}
    if rng.random() < 0.3:
        attributes["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    else:
        attributes["pads"] = [int(p) for p in rng.integers(0, 3, 2 * axes)]
    domain = MS if not integer and rng.random() < 0.5 else ""
    x = codes(rng, (n, c, *size), x_type)
    if domain and rng.random() < 0.6:
        attributes["channels_last"] = 1
        x = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    w = codes(rng, (m, c // group, *kernel), w_type)
    xz, wz = codes(rng, (), x_type), codes(rng, vector(rng, m), w_type)
    if integer:
        return "ConvInteger", [x, w, xz, wz][: int(rng.integers(2, 5))], attributes, ""
    inputs = [x, scales(rng, ()), xz, w, scales(rng, vector(rng, m)), wz, np.array(F(0.7)), codes(rng, (1,), y_type),
              rng.integers(-4000, 4000, m).astype(np.int32)]  # fmt: skip
    return "QLinearConv", inputs[: int(rng.integers(8, 10))], attributes, domain


def matmul(rng: Rng, integer: bool) -> tuple[str, list[Any], dict[str, Any], str]:
    k, n = int(rng.choice([0, 1, 3, 64, 70])), int(rng.choice([0, 1, 5, 16, 33]))
    lead = [(), (1,), (4,), (0,), (2, 3), (2, 1, 5)][int(rng.integers(0, 6))]
    a_type, b_type, y_type = types(rng, 3)
    a, b = codes(rng, (*lead, k), a_type), codes(rng, (k, n), b_type)
    az, bz = codes(rng, (), a_type), codes(rng, vector(rng, n), b_type)
    if integer:
        return "MatMulInteger", [a, b, az, bz][: int(rng.integers(2, 5))], {}, ""
    inputs = [a, scales(rng, (1,)), az, b, scales(rng, vector(rng, n)), bz, np.array(F(0.3)), codes(rng, (), y_type)]
    return "QLinearMatMul", inputs, {}, ""


def gemm(rng: Rng, integer: bool) -> tuple[str, list[Any], dict[str, Any], str]:
    m, k, n = (int(rng.choice(v)) for v in ([0, 1, 4, 9], [1, 8, 65], [1, 7, 40]))
    a_type, b_type, y_type = types(rng, 3)
    flips = [int(f) for f in rng.integers(0, 2, 2)]
    a, b = codes(rng, (k, m) if flips[0] else (m, k), a_type), codes(rng, (n, k) if flips[1] else (k, n), b_type)
    bias = rng.integers(-4000, 4000, [(), (n,), (1, n), (1, 1)][int(rng.integers(0, 4))]).astype(np.int32)
    inputs = [a, scales(rng, ()), codes(rng, (), a_type), b, scales(rng, vector(rng, n)),
              codes(rng, vector(rng, n), b_type), bias if rng.random() < 0.7 else None,
              np.array(F(0.3)), codes(rng, (), y_type)]  # fmt: skip
    return "QGemm", inputs, {"transA": flips[0], "transB": flips[1]}, MS


def outcome(model: Any, feeds: Any, **options: Any) -> tuple[str, Any]:
    """The result with its findings, or the text of a refusal."""
    session = qrun.Session(model, **options)
    try:
        result = session.execute(feeds)
    except qrun.RunError as error:
        return str(error), None
    return "", (result, check(session.model, result))


@pytest.mark.parametrize("arith", ["exact", "ort"])
@pytest.mark.parametrize(
    ("make", "integer"), [(conv, False), (conv, True), (matmul, False), (matmul, True), (gemm, False)]
)
def test_random_nodes(make: Any, integer: bool, arith: str) -> None:
    seed = 20
    rng = np.random.default_rng(seed)
    native = reference = 0
    for number in range(30):
        op_type, inputs, attributes, domain = make(rng, integer)
        dtype = np.int32 if integer else inputs[-1].dtype if op_type != "QLinearConv" else inputs[7].dtype
        model, feeds = node_model(
            op_type, inputs, attributes, domain=domain, outputs=[dtype], constants=range(1, len(inputs))
        )
        case = f"seed {seed} case {number} {op_type} {[getattr(i, 'shape', None) for i in inputs]} {attributes}"
        error, want = outcome(model, feeds, arith=arith)
        refused, got = outcome(model, feeds, arith=arith, backend="native", cache=OBJECTS)
        assert refused == error, case
        if want is None:
            continue
        assert_equal(got[0].outputs["y0"], want[0].outputs["y0"], case)
        assert got[1] == want[1], case
        (event,) = got[0].events
        native += event.backend == "native"
        reference += event.backend == "reference"
        assert event.backend == "native" or event.why == "3 spatial axes (native kernels take 1 or 2)", (
            case,
            event.why,
        )
    assert native >= 12, (native, reference)
