"""Native linear models, Scaler and Normalizer of ai.onnx.ml: the reference kernels' bits, and sums in their order."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers.native import engine, every_isa
from helpers.support import assert_equal, node_model, run_qrun
from oracle.chains import chained

import qrun
from qrun.ir.schema import ML
from qrun.native.kernels.forest import Winners
from qrun.native.kernels.normalize import LpNorm
from qrun.native.machine.operation import Operand
from qrun.ops.mlscaling import normalizer

F, I64 = np.float32, np.int64
SIZES = ((1, 1, 2), (1, 20, 3), (3, 7, 2), (40, 33, 5), (9, 129, 17))
"""Rows, features and classes."""
SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-45, 3e38, -3e38)


def table(rng: np.random.Generator, *shape: int) -> np.ndarray:
    x = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, (shape[0], 1))).astype(F)
    if x.size > 40:
        x[-len(SPECIAL) :, 0] = SPECIAL[: len(x)]
        x[0] *= 0
    return x


def same(
    op_type: str, x: np.ndarray, attributes: dict[str, Any], outputs: list[Any], why: str = ""
) -> list[np.ndarray]:
    """What both backends make; why: the native one declines."""
    model, feeds = node_model(op_type, [x], attributes, domain=ML, outputs=outputs)
    session = qrun.Session(model, backend="native")
    made = run_qrun(model, feeds)
    for _ in range(2):
        for got, want in zip(session.run(feeds).values(), made, strict=True):
            if want.dtype == object:
                assert got.tolist() == want.tolist()
            else:
                assert_equal(got, want, f"{op_type} {x.shape} {attributes.get('post_transform')}")
    (event,) = session.execute(feeds).events
    assert event.backend == ("reference" if why else "native")
    assert why in event.why
    return made


@pytest.mark.parametrize("post", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT"])
@pytest.mark.parametrize("sizes", SIZES)
def test_linear_models(sizes: tuple[int, int, int], post: str) -> None:
    rng = np.random.default_rng(sum(sizes))
    rows, features, classes = sizes
    x = table(rng, rows, features)
    for added in (rng.normal(size=classes).astype(F).tolist(), None):
        given = {"coefficients": rng.normal(size=features * classes).astype(F).tolist(), "post_transform": post}
        given |= {"intercepts": added} if added else {}
        why = "" if post in ("NONE", "LOGISTIC", "SOFTMAX") else "no native"
        same("LinearRegressor", x, {**given, "targets": classes}, [F], why)
        same("LinearClassifier", x, {**given, "classlabels_ints": [5 * n - 3 for n in range(classes)]}, [I64, F], why)
    words = {"classlabels_strings": [f"c{n}" for n in range(classes)]}
    same("LinearClassifier", x, {**given, **words}, [object, F], "labels")


def test_sums_are_those_of_gemm() -> None:
    """They begin with the intercept, and blocks of 256 features are added to it."""
    rng = np.random.default_rng(1)
    x, w = (
        np.round(rng.normal(size=shape) * 2.0 ** rng.integers(-30, 30, shape), 30).astype(F)
        for shape in [(9, 300), (4, 300)]
    )
    c = rng.normal(size=4).astype(F)
    given = {"coefficients": w.reshape(-1).tolist(), "intercepts": c.tolist(), "targets": 4}
    (made,) = same("LinearRegressor", x, given, [F])
    rows, columns, added = ([[Fraction(v) for v in row] for row in array.tolist()] for array in (x, w, c[None]))
    want = [[chained(row, own, F, first=first) for own, first in zip(columns, *added, strict=True)] for row in rows]
    assert_equal(made, F(want))
    labels, scores = same("LinearClassifier", x, {**given, "targets": None, "classlabels_ints": [7, 5, 3, 1]}, [I64, F])
    assert_equal(scores, made)
    assert labels.tolist() == [[7, 5, 3, 1][row.index(max(row))] for row in made.tolist()]


def test_scaler_and_normalizer() -> None:
    rng = np.random.default_rng(2)
    for rows, features, _ in SIZES:
        x = table(rng, rows, features)
        offset, scale = (rng.normal(size=features).astype(F).tolist() for _ in range(2))
        same("Scaler", x, {"offset": offset, "scale": scale}, [F])
        same("Scaler", x, {"scale": scale[:1]}, [F])
        for norm in ("L1", "L2"):
            same("Normalizer", x, {"norm": norm}, [F])
        same("Normalizer", x[0], {"norm": "L1"}, [F])
        same("Normalizer", x, {"norm": "MAX"}, [F], "no sums")


@every_isa
def test_every_instruction_set(isa: str) -> None:
    rng = np.random.default_rng(3)
    for rows, features, classes in SIZES:
        x = table(rng, rows, features)
        for p in (1, 2):
            operation = LpNorm(engine(isa), x.shape, p)
            assert_equal(engine(isa).run(operation, [x]), normalizer(x, norm=f"L{p}"), f"{isa} L{p} {x.shape}")
        scores = table(rng, rows, classes)
        scores[rows // 2] = scores[0, 0]
        labels = rng.integers(-9, 9, classes)
        winners = Winners(engine(isa), Operand(scores.shape, np.dtype(F)), np.full(classes, -0.0), labels)
        assert_equal(engine(isa).run(winners, [scores]), labels[np.argmax(scores, axis=1)], f"{isa} {scores.shape}")
