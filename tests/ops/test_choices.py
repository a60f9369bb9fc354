"""Hardmax, Shrink, SwiGLU, LpPool, GlobalLpPool, Det and the losses:
against decimals and fractions, beside onnxruntime."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_refused, assert_rounded, qrun_node
from helpers.support import assert_equal

import qrun

F, H, D, BF = np.float32, np.float16, np.float64, ml_dtypes.bfloat16
I64 = np.int64


def test_hardmax() -> None:
    peer = Peer()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 3, (2, 3, 4)).astype((F, D, H, BF)[seed % 4])
        axis, opset = int(rng.integers(-3, 3)), (13, 11)[seed % 4 == 1]
        want = np.zeros_like(x)
        lines = np.moveaxis(x, axis, -1) if opset == 13 else x.reshape(*x.shape[: axis % 3], -1)
        rows = np.moveaxis(want, axis, -1) if opset == 13 else want.reshape(lines.shape)
        for at in np.ndindex(lines.shape[:-1]):
            line = lines[at].astype(D).tolist()
            rows[(*at, line.index(max(line)))] = 1
        assert_equal(qrun_node("Hardmax", [x], {"axis": axis}, opset=opset), want, f"seed {seed}")
        peer.check("Hardmax", [x], {"axis": axis}, message=f"seed {seed}", opset=opset)
    peer.finish(0.4)


@pytest.mark.parametrize("dtype", [F, H, D, np.int8, np.uint8, np.int64])
def test_shrink(dtype: Any) -> None:
    x = np.array([-128, -3, -1, 0, 1, 2, 3, 100, 127]).astype(dtype)
    for bias, lambd in ((0.0, 0.5), (1.5, 1.0), (-60.0, 2.0)):
        want = []
        for v in x.tolist():
            y = v + bias if v < -lambd else v - bias if v > lambd else 0
            low, high = (np.iinfo(dtype).min, np.iinfo(dtype).max) if np.dtype(dtype).kind in "iu" else (-1e9, 1e9)
            want.append(min(max(math.trunc(y) if np.dtype(dtype).kind in "iu" else y, low), high))
        made = qrun_node("Shrink", [x], {"bias": bias, "lambd": lambd})
        assert_equal(made, np.array(want, dtype), f"{bias} {lambd}", signed_zeros=False)


def test_swiglu_is_swish_and_mul() -> None:
    rng = np.random.default_rng(0)
    for dtype in (F, H, D, BF):
        a, b = rng.normal(size=(2, 3, 5)).astype(dtype)
        want = qrun_node("Mul", [qrun_node("Swish", [a], {"alpha": 1.5}, opset=24), b], opset=24)
        assert_equal(qrun_node("SwiGLU", [a, b], {"alpha": 1.5}, opset=28, ir_version=13), want)


def near(got: np.ndarray, want: Any, note: str) -> None:
    """onnx.reference computes in the type of the inputs."""
    tolerance = 1e-5 if got.dtype == F else 1e-12
    np.testing.assert_allclose(got, want, tolerance, tolerance, err_msg=note)


def determinant(rows: list[list[Fraction]]) -> Fraction:
    if not rows:
        return Fraction(1)
    first, *rest = rows
    minors = [[row[:c] + row[c + 1 :] for row in rest] for c in range(len(first))]
    return sum(((-1) ** c * first[c] * determinant(minors[c]) for c in range(len(first))), Fraction(0))


@pytest.mark.parametrize("dtype", [F, D])
def test_det_against_fractions(dtype: Any) -> None:
    for size in range(5):
        x = np.random.default_rng(size).normal(size=(3, size, size)).astype(dtype)
        want = [float(determinant([[Fraction(v) for v in row] for row in m])) for m in x.astype(D).tolist()]
        near(qrun_node("Det", [x], opset=22), want if size else [1.0] * 3, f"size {size}")


@pytest.mark.parametrize("dtype", [F, H, D, BF])
def test_lp_pool_against_decimals(dtype: Any) -> None:
    peer = Peer()
    for seed in range(24):
        rng = np.random.default_rng(seed)
        p = 1 + seed % 3
        x = (rng.normal(size=(2, 2, 6, 5)) * (1e15 if seed % 5 == 4 and dtype == F else 1)).astype(dtype)
        kernel, step, gap, pads = [2, 3], [1 + seed % 2, 1], [1, 1 + seed % 2], [seed % 2, 0, 1, 1]
        attributes = {"p": p, "kernel_shape": kernel, "strides": step, "dilations": gap, "pads": pads}
        made = qrun_node("LpPool", [x], attributes, opset=22)
        want = np.zeros(made.shape)
        with localcontext() as digits:
            digits.prec = 40
            for n, c, *at in np.ndindex(made.shape):
                total = Decimal(0)
                for tap in np.ndindex(*kernel):
                    place = [o * s + t * g - a for o, s, t, g, a in zip(at, step, tap, gap, pads[:2], strict=True)]
                    if 0 <= place[0] < 6 and 0 <= place[1] < 5:
                        total += abs(Decimal(float(x[(n, c, *place)]))) ** p
                want[(n, c, *at)] = float(total ** (1 / Decimal(p))) if total else 0.0
        assert_rounded(made, want, f"seed {seed}")
        whole = qrun_node("GlobalLpPool", [x], {"p": p}, opset=22)
        flat = np.abs(x.astype(D).reshape(2, 2, -1)) ** p
        assert_rounded(whole.reshape(2, 2), flat.sum(axis=2) ** (1 / p), f"seed {seed} global")
        if dtype == F and seed % 5 != 4:
            peer.check("LpPool", [x], attributes, message=f"seed {seed}", rtol=1e-3, opset=18)
            peer.check("GlobalLpPool", [x], {"p": p}, message=f"seed {seed} global", rtol=1e-3)
    if dtype == F:
        peer.finish(0.9)


def loss(logs: np.ndarray, labels: np.ndarray, weight: np.ndarray | None, ignored: int | None, how: str) -> Any:
    made, weights = np.zeros(labels.shape), 0.0
    for at in np.ndindex(labels.shape):
        c = int(labels[at])
        if c != ignored:
            share = 1.0 if weight is None else float(weight[c])
            made[at] = -float(logs[(at[0], c, *at[1:])]) * share
            weights += share
    return made if how == "none" else made.sum() / (1 if how == "sum" else weights)


@pytest.mark.parametrize("dtype", [F, D])
def test_losses(dtype: Any) -> None:
    for seed in range(36):
        rng = np.random.default_rng(seed)
        shape = (3, 4, *(int(n) for n in rng.integers(1, 4, seed % 3)))
        x = rng.normal(size=shape).astype(dtype)
        labels = rng.integers(0, 4, (3, *shape[2:])).astype((I64, np.int32)[seed % 2])
        weight = rng.uniform(0.5, 2, 4).astype(dtype) if seed % 4 else None
        how, ignored = ("none", "sum", "mean")[seed // 3 % 3], (None, 2, -1)[seed // 2 % 3]
        if ignored is not None:
            labels.reshape(-1)[0] = ignored
            labels.reshape(-1)[1] = 3
        attributes = {"reduction": how, **({} if ignored is None else {"ignore_index": ignored})}
        inputs = [x, labels, *([] if weight is None else [weight])]
        if ignored == -1 and how == "mean" and weight is None:
            with pytest.raises(qrun.QrunError, match="counts elements"):
                qrun_node("NegativeLogLikelihoodLoss", inputs, attributes, opset=22)
            continue
        made = qrun_node("NegativeLogLikelihoodLoss", inputs, attributes, opset=22)
        near(made, loss(x.astype(D), labels, weight, ignored, how), f"seed {seed}")
        wide = np.moveaxis(x.astype(D), 1, -1)
        logs = np.zeros(wide.shape)
        for at in np.ndindex(wide.shape[:-1]):
            with localcontext() as digits:
                digits.prec = 40
                parts = [Decimal(v) for v in wide[at].tolist()]
                total = sum(v.exp() for v in parts).ln()
                logs[at] = [float(v - total) for v in parts]
        logs = np.moveaxis(logs, -1, 1)
        got, told = qrun_node("SoftmaxCrossEntropyLoss", inputs, attributes, outputs=[dtype, dtype])
        want = loss(logs, labels, weight, ignored, how)
        near(told, logs, f"seed {seed}")
        near(got, want, f"seed {seed}")


X = np.ones((2, 3, 4), F)


def test_refusals() -> None:
    assert_refused(
        [
            ("axis 3 does not exist", "Hardmax", [X], {"axis": 3}),
            ("B does not fit A", "SwiGLU", [X, X[:1]], {}),
            ("must be square", "Det", [X], {}),
            ("p is 0", "LpPool", [X], {"p": 0, "kernel_shape": [2]}),
            ("X has no spatial axes", "GlobalLpPool", [X[0]], {}),
            ("IndexError", "NegativeLogLikelihoodLoss", [X, np.full((2, 4), 3)], {}),
        ],
        opset=28,
        ir_version=13,
    )
