"""MatMulNBits of com.microsoft."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle import chains
from oracle.blocks import BFLOAT16, matmul_n_bits

from qrun.errors import OperatorError
from qrun.ops import Context, find

F32 = np.float32
ZEROS = ("", "packed", "float")


def kernel(inputs: Any, arith: Any = "exact", **attributes: Any) -> Any:
    return find(MS, "MatMulNBits", 1)(*inputs, **attributes, ctx=Context(arith=arith))


def case(
    seed: int, bits: int, zeros: str, *, dtype: Any = F32, groups: bool = False, bias: bool = False, flat: bool = False,
    sizes: tuple[int, int, int] | None = None, block: int = 0,
) -> tuple[list[Any], dict[str, int]]:  # fmt: skip
    """Inputs and attributes; sizes: M, K, N."""
    rng = np.random.default_rng(seed)
    m, k, n = sizes or (int(v) for v in rng.integers(1, (4, 70, 6)))
    block = block or int(rng.choice([16, 32, 64]))
    blocks = -(-k // block)
    lead = ((m,), (), (1, m), (m, 2))[seed % 4] if sizes is None else (m,)
    a = rng.standard_normal((*lead, k)).astype(dtype)
    b = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
    scales = (rng.standard_normal((n, blocks)) * 0.1).astype(dtype)
    points = {
        "": None,
        "packed": rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8),
        "float": rng.uniform(0, 2**bits, (n, blocks)).astype(dtype),
    }[zeros]
    if flat:
        scales, points = scales.reshape(-1), None if points is None else points.reshape(-1)
    index = rng.integers(0, blocks, k if seed % 2 else blocks * block).astype(np.int32) if groups else None
    added = rng.standard_normal(n).astype(dtype) if bias else None
    attributes = {"K": k, "N": n, "bits": bits, "block_size": block}
    return [a, b, scales, points, index, added], attributes


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_against_the_oracle(bits: int, zeros: str) -> None:
    for seed in range(8):
        for dtype in (F32, np.float16, BFLOAT16):
            inputs, attributes = case(
                seed, bits, zeros, dtype=dtype, groups=seed % 3 == 0, bias=seed % 2 == 0, flat=seed % 5 == 0
            )
            want = matmul_n_bits(*inputs, **attributes)
            for level in (0, 4):
                got = kernel(inputs, **attributes, accuracy_level=level)
                assert_equal(got, want, f"{bits} {zeros} {seed} {dtype} {attributes}")


def test_blocks_of_k() -> None:
    """Sums are chains of 256 k, added in order, then the bias; and near the real sums."""
    for seed, k in enumerate((255, 256, 257, 600)):
        inputs, attributes = case(seed, (2, 4, 8)[seed % 3], "packed", bias=True, sizes=(2, k, 3), block=32)
        got = kernel(inputs, **attributes)
        assert_equal(got, matmul_n_bits(*inputs, **attributes), str(k))
        weights = kernel([np.eye(k, dtype=F32), *inputs[1:5]], **attributes)
        for m, n in np.ndindex(got.shape):
            row, column = ([Fraction(float(v)) for v in x] for x in (inputs[0][m], weights[:, n]))
            real = sum((a * b for a, b in zip(row, column, strict=True)), Fraction(float(inputs[5][n])))
            reach = chains.reach([*row, Fraction(1)], [*column, Fraction(float(inputs[5][n]))])
            assert abs(Fraction(float(got[m, n])) - real) <= reach, f"{k} {m} {n}"


@pytest.mark.parametrize("shape", [(0, 2, 8), (3, 0, 8), (3, 2, 0), (0, 0, 0)])
@pytest.mark.parametrize("bias", [None, np.arange(3, dtype=F32)])
def test_an_omitted_product_is_zero_or_the_bias(shape: tuple[int, ...], bias: Any) -> None:
    inputs = [np.full((2, 20), np.nan, F32), np.zeros(shape, np.uint8), np.zeros((0, 2), F32), None, None, bias]
    model, feeds = node_model(
        "MatMulNBits", inputs, {"K": 20, "N": 3, "block_size": 16}, domain=MS, constants=(1, 2, 5)
    )
    want = np.zeros((2, 3), F32) + (0 if bias is None else bias)
    for backend in ("reference", "native"):
        assert_equal(run_qrun(model, feeds, backend=backend)[0], want.astype(F32))
    assert_equal(run_ort(model, feeds)[0], want.astype(F32))


def test_weights_of_another_shape_omit_nothing() -> None:
    for shape in ((0, 3, 8), (0, 2), (2, 0, 8)):
        with pytest.raises(OperatorError, match="B has shape"):
            kernel([np.ones((2, 20), F32), np.zeros(shape, np.uint8), np.ones((3, 2), F32)], K=20, N=3, block_size=16)


@pytest.mark.parametrize("zeros", ZEROS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_beside_onnxruntime(bits: int, zeros: str) -> None:
    """Its sums are float32, in its own order. Of 8 bits it takes no float zero points; g_idx: see numerics.md."""
    if (bits, zeros) == (8, "float"):
        return
    for seed in range(12):
        m, k, n = ((1, 64, 8), (3, 40, 7), (5, 200, 16), (20, 128, 33))[seed % 4]
        groups = bits == 4 and zeros != "packed" and seed % 3 == 0
        for level in (0, 4):
            inputs, attributes = case(
                seed, bits, zeros, groups=groups, bias=seed % 2 == 0, flat=seed % 5 == 0, sizes=(m, k, n),
                block=(16, 32, 64, 128)[seed // 3],
            )  # fmt: skip
            model, feeds = node_model(
                "MatMulNBits", inputs, {**attributes, "accuracy_level": level}, domain=MS, opset=17,
                constants=range(1, 6),
            )  # fmt: skip
            got, want = run_qrun(model, feeds, arith="ort")[0], run_ort(model, feeds)[0]
            sizes = np.abs(inputs[0]).max() * k * 2**bits * np.abs(inputs[2]).max()
            np.testing.assert_allclose(got, want, rtol=2e-5, atol=sizes * 3e-7, err_msg=f"{seed} {level} {attributes}")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_weights_are_not_rounded_to_float16(bits: int) -> None:
    """onnxruntime multiplies float16 rows with float32 weights too; only its sums may round another way."""
    for seed, zeros in enumerate(("", "packed", "float")[: 2 if bits == 8 else 3]):
        inputs, attributes = case(seed, bits, zeros, dtype=np.float16, sizes=(6, 256, 40), block=32)
        model, feeds = node_model(
            "MatMulNBits", inputs, attributes, domain=MS, opset=17, constants=range(1, 6), outputs=[np.float16]
        )
        got, want = run_qrun(model, feeds)[0], run_ort(model, feeds)[0]
        assert np.count_nonzero(got != want) <= got.size // 50, f"{bits} {zeros}"
        assert_equal(run_qrun(model, feeds, arith="ort")[0], got)


def test_onnxruntime_quantizes_a() -> None:
    """With accuracy_level 4 to int8: results are far from exact ones, and those of ``ort``."""
    inputs, attributes = case(3, 4, "packed", sizes=(4, 256, 16), block=32)
    exact, emulated = kernel(inputs, **attributes), kernel(inputs, "ort", **attributes, accuracy_level=4)
    assert np.abs(exact - emulated).max() > 1e-3
    assert_equal(kernel(inputs, "ort", **attributes, accuracy_level=0), exact)
    assert_equal(kernel(inputs, "onnx-ref", **attributes, accuracy_level=4), exact)
    attributes["accuracy_level"] = 4
    model, feeds = node_model("MatMulNBits", inputs, attributes, domain=MS, opset=17, constants=range(1, 6))
    np.testing.assert_allclose(run_ort(model, feeds)[0], emulated, rtol=1e-5, atol=1e-5)


def test_many_columns_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, attributes = case(5, 4, "packed", bias=True, sizes=(3, 64, 11), block=16)
    whole, emulated = kernel(inputs, **attributes), kernel(inputs, "ort", **attributes, accuracy_level=4)
    monkeypatch.setattr("qrun.ops._blockweights._CHUNK", 3 * 64)
    assert_equal(kernel(inputs, **attributes), whole)
    assert_equal(kernel(inputs, "ort", **attributes, accuracy_level=4), emulated)


def test_rows_of_zeros_and_no_rows() -> None:
    inputs, attributes = case(1, 4, "", sizes=(2, 64, 4), block=32)
    inputs[0][:] = 0
    for arith in ("exact", "ort"):
        assert not kernel(inputs, arith, **attributes, accuracy_level=4).any()
    inputs[0] = inputs[0][:0]
    assert kernel(inputs, **attributes).shape == (0, 4)


REFUSED = {
    "bits": ({"bits": 3}, {}, "2, 4, 8"),
    "block_size 24": ({"block_size": 24}, {}, "power of two"),
    "block_size 8": ({"block_size": 8}, {}, "16 or more"),
    "weight_prepacked": ({"weight_prepacked": 1}, {}, "one device"),
    "K": ({"K": 63}, {}, "[...,63], as K says"),
    "K is 0": ({"K": 0}, {}, "positive"),
    "B": ({}, {1: np.zeros((4, 2, 15), np.uint8)}, "[4,2,16] (N, blocks"),
    "scales": ({}, {2: np.zeros((4, 3), F32)}, "[4,2] or [8] (N, blocks)"),
    "zero_points": ({}, {3: np.zeros((4, 2), np.uint8)}, "[4,1] or [4]"),
    "zero_points type": ({}, {3: np.zeros((4, 2), np.float16)}, "uint8 or float32"),
    "g_idx": ({}, {4: np.zeros(63, np.int32)}, "[64] or [64]"),
    "g_idx values": ({}, {4: np.full(64, 2, np.int32)}, "0 to 1, of 2 blocks"),
    "bias": ({}, {5: np.zeros(3, F32)}, "[4] (one for each column)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    changed, replaced, words = REFUSED[name]
    inputs, attributes = case(1, 4, "", sizes=(2, 64, 4), block=32)
    for place, value in replaced.items():
        inputs[place] = value
    with pytest.raises(OperatorError) as caught:
        kernel(inputs, **{**attributes, **changed})
    assert words in str(caught.value.facts), caught.value.facts


def test_scales_that_are_no_numbers_are_observed() -> None:
    inputs, attributes = case(1, 4, "", sizes=(2, 64, 4), block=32)
    inputs[2][1, 1] = np.nan
    ctx = Context()
    made = find(MS, "MatMulNBits", 1)(*inputs, **attributes, ctx=ctx)
    assert np.isnan(made).any(axis=0).tolist() == [False, True, False, False]
    assert [o.kind for o in ctx.observations] == ["bad-scale"]


def test_cost_counts_multiply_adds() -> None:
    assert find(MS, "MatMulNBits", 1).cost([(5, 2, 64)], [(5, 2, 3)], {"K": 64}) == 1920
