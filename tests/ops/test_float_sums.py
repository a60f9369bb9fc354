"""MatMul, Gemm, Conv and ConvTranspose of floats: as near to the real sum as numerics.md says, rounded once to
narrow types, and onnxruntime's own bits where its order is known. tests/native/test_floats.py has the order.

``cd tests; python -m helpers.float_sums 5000 0`` compares as many sums as one likes, natively too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from helpers.float import qrun_node
from helpers.float_sums import Case, assert_within, random_case
from helpers.sums import assert_bits
from helpers.support import run_qrun

from qrun.native.emit.isa import host_architecture, host_features

F = np.float32


@pytest.mark.parametrize("first", range(0, 240, 40))
def test_sums_against_fractions(first: int) -> None:
    found = 0
    for seed in range(first, first + 40):
        case = random_case(seed)
        found += assert_within(case, run_qrun(*case.model())[0])
    assert found > 1000


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_short_floats_are_rounded_once(dtype: Any) -> None:
    """Sums that float32 has exactly."""
    rng = np.random.default_rng(5)
    a = np.array([[2.0**-4, 1.0, 2.0**-8], [1.0, 2.0**-11, 2.0**-8], [1.0, 2.0**-8, 2.0**-7]]).astype(dtype)
    b = np.array([[1.0, 2.0**-8], [1.0, 2.0**-4], [2.0**-7, 1.0]]).astype(dtype)
    a = np.concatenate([a, (rng.integers(-99, 100, (40, 3)) * 2.0**-9).astype(dtype)])
    sums = a.astype("d") @ b.astype("d")
    assert (sums == sums.astype(F)).all()
    with np.errstate(invalid="ignore"):
        grid = np.arange(2**16, dtype=np.uint16).view(dtype).astype("d")
    grid = np.unique(grid[np.isfinite(grid)])
    for value, got in zip(sums.ravel(), np.asarray(qrun_node("MatMul", [a, b])).astype("d").ravel(), strict=True):
        place = np.searchsorted(grid, value)
        near = grid[max(place - 1, 0) : place + 1]
        assert abs(got - value) == np.abs(near - value).min()


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    a = np.array([[inf, 1], [-inf, inf], [0, nan], [3e38, 3e38], [0, 0], [-1e-45, 0]], F)
    b = np.array([[1, 0, -1], [1, 1, inf]], F)
    got = qrun_node("MatMul", [a, b])
    assert_bits(
        got,
        np.array(
            [[inf, nan, nan], [nan, nan, inf], [nan, nan, nan], [inf, 3e38, inf], [0, 0, nan], [-1e-45, 0, nan]], F
        ),
    )
    assert set(got.view(np.uint32)[np.isnan(got)].tolist()) == {0x7FC00000}


def test_signs_of_zeros() -> None:
    """Sums begin with +0, but with C where there is one; what underflows keeps its sign."""
    many, ones = np.full((40, 8), -0.0, F), np.ones((8, 40), F)
    assert not np.signbit(qrun_node("MatMul", [many, ones])).any()
    assert not np.signbit(qrun_node("Gemm", [many, ones, F(0)])).any()
    assert np.signbit(qrun_node("Gemm", [many, ones, F(-0.0)], {"alpha": -1.0})).all()
    assert np.signbit(qrun_node("MatMul", [np.full((1, 1), -1e-30, F), np.full((1, 1), 1e-30, F)])).all()


def same_order() -> str:
    """Why onnxruntime adds in another order here; nothing if it does not."""
    if (architecture := host_architecture()) != "x86_64":
        return f"onnxruntime's kernels for {architecture} have another order"
    return "" if "fma" in host_features(architecture) else "without FMA onnxruntime rounds twice"


def assert_runtime(case: Case) -> None:
    """onnxruntime's default session gives the reference's bits."""
    model, feeds = case.model()
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert_bits(session.run(None, feeds)[0], run_qrun(model, feeds)[0], str(case))


runtime = pytest.mark.skipif(bool(same_order()), reason=same_order() or "the order is the same")


def drawn(seed: int, *shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(F) for shape in shapes]


@runtime
@pytest.mark.parametrize("m", [1, 2, 7, 33])
def test_products_with_constants_have_the_bits_of_onnxruntime(m: int) -> None:
    for seed, (k, n) in enumerate(((1, 5), (64, 64), (255, 3), (256, 17), (257, 100), (768, 33), (1500, 20))):
        a, b, c, row = drawn(seed, (m, k), (k, n), (m, n), (n,))
        assert_runtime(Case("MatMul", [a, b], {}, (1,)))
        for added in (c, row, c[:, :1].copy()):
            assert_runtime(Case("Gemm", [a, b, added], {"alpha": 0.7, "beta": -0.3}, (1, 2)))
            assert_runtime(Case("Gemm", [a, b, added], {}, (1,)))
        turned = [np.ascontiguousarray(x) for x in (a.T, b.T, row)]
        assert_runtime(Case("Gemm", turned, {"transA": 1, "transB": 1}, (1, 2)))


@runtime
def test_convolutions_have_the_bits_of_onnxruntime() -> None:
    """Of single pixels of up to 128 channels, and depthwise."""
    for seed, (channels, results) in enumerate(((16, 16), (32, 8), (64, 48), (128, 64))):
        x, w, bias = drawn(seed, (1, channels, 9, 7), (results, channels, 1, 1), (results,))
        assert_runtime(Case("Conv", [x, w, bias], {}, (1, 2)))
        assert_runtime(Case("Conv", [x, w], {}, (1,)))
    for seed, channels in enumerate((16, 32, 48)):
        for kernel, geometry in ((3, {"pads": [1] * 4}), (5, {"pads": [2] * 4, "strides": [2, 2]})):
            x, w, bias = drawn(seed, (1, channels, 12, 11), (channels, 1, kernel, kernel), (channels,))
            assert_runtime(Case("Conv", [x, w, bias], {"group": channels, **geometry}, (1, 2)))
