"""Operators of ai.onnx.ml: number by number, beside onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from helpers.float import assert_close
from helpers.support import assert_equal, node_model, run_ort, run_qrun

import qrun

F, D, I64, I32 = np.float32, np.float64, np.int64, np.int32
TEXT = np.dtype(object)
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def texts(*words: str) -> np.ndarray:
    made = np.empty(len(words), object)
    made[:] = words
    return made


def ml_node(
    op_type: str, inputs: Sequence[Any], attributes: dict[str, Any], outputs: Sequence[Any] = (F,), version: int = 1,
    tolerance: float | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """What qrun makes, which onnxruntime makes as well, unless there is no tolerance."""
    model, feeds = node_model(op_type, inputs, attributes, domain=ML, outputs=outputs)
    for opset in model.opset_import:
        opset.version = version if opset.domain == ML else opset.version
    made = run_qrun(model, feeds)
    native = run_qrun(model, feeds, backend="native")
    for got, again in zip(made, native, strict=True):
        assert got.tobytes() == again.tobytes() or got.dtype == object
    if tolerance is not None:
        for got, want in zip(made, run_ort(model, feeds), strict=True):
            if got.dtype == object:
                assert got.tolist() == want.tolist()
            else:
                assert_close(got, want, f"{op_type} {attributes}", tolerance, tolerance)
    return made


def near(got: np.ndarray, want: Any, note: str = "", *_: float) -> None:
    """onnx.reference computes in the type of the inputs."""
    assert got.dtype == F, note
    np.testing.assert_allclose(got, want, 1e-4, 1e-5, err_msg=note)


def post(row: list[float], how: str) -> list[float]:
    if how == "LOGISTIC":
        return [1 / (1 + math.exp(-v)) for v in row]
    if how == "PROBIT":
        return [
            NormalDist().inv_cdf(v) if 0 < v < 1 else math.copysign(math.inf, v - 0.5) if v in (0, 1) else math.nan
            for v in row
        ]
    if how in ("SOFTMAX", "SOFTMAX_ZERO"):
        top = max(row)
        zero = [how == "SOFTMAX_ZERO" and abs(v) <= 1e-7 for v in row]
        parts = [v * math.exp(-top) if z else math.exp(v - top) for v, z in zip(row, zero, strict=True)]
        total = math.fsum(p for p, z in zip(parts, zero, strict=True) if not z) or 1.0
        return [p / total for p in parts]
    return row


@pytest.mark.parametrize("dtype", [F, D, I64, I32])
def test_features(dtype: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(5, 3)) * 9).astype(dtype)
    wide = x.astype(D)
    offset, scale = rng.normal(size=(2, 3)).astype(F)
    for o, s in ((offset, scale), (offset[:1], scale[:1])):
        made = ml_node("Scaler", [x], {"offset": o.tolist(), "scale": s.tolist()}, tolerance=1e-5)[0]
        near(made, (wide - o.astype(D)) * s.astype(D))
    for norm, size in (
        ("MAX", wide.max(axis=1)), ("L1", np.abs(wide).sum(axis=1)), ("L2", np.sqrt((wide**2).sum(axis=1))),
    ):  # fmt: skip
        made = ml_node("Normalizer", [x], {"norm": norm}, tolerance=1e-5)[0]
        near(made, np.array([r / s if s else r for r, s in zip(wide, size, strict=True)]))
    near(ml_node("Normalizer", [x[:1] * 0], {"norm": "L2"})[0], wide[:1] * 0)
    assert ml_node("Normalizer", [x[:, :0]], {"norm": "L2"})[0].shape == (5, 0)
    made = ml_node("Binarizer", [x], {"threshold": 1.5}, [dtype], tolerance=0 if dtype == F else None)[0]
    assert_equal(made, np.array([[1 if v > 1.5 else 0 for v in row] for row in wide.tolist()]).astype(dtype))
    made = ml_node("FeatureVectorizer", [x, x[:, :2]], {"inputdimensions": [3, 2]}, tolerance=1e-6)[0]
    assert_equal(made, np.concatenate([x, x[:, :2]], axis=1).astype(F))
    places = np.array([2, 0, 2])
    made = ml_node("ArrayFeatureExtractor", [x, places], {}, [dtype], tolerance=0)[0]
    assert_equal(made, np.array([[row[p] for p in places] for row in x.tolist()]).astype(dtype))
    assert_equal(ml_node("ArrayFeatureExtractor", [x[0], places], {}, [dtype])[0], made[:1])


def test_imputer() -> None:
    x = np.array([[1, np.nan, 0], [np.nan, 2, 1]], F)
    for dtype in (F, D):
        made = ml_node("Imputer", [x.astype(dtype)], {"imputed_value_floats": [7.0, 8.0, 9.0], "replaced_value_float": math.nan},
                       [dtype], tolerance=0 if dtype == F else None)[0]  # fmt: skip
        assert made.tolist() == [[1, 8, 0], [7, 2, 1]]
    whole = np.array([[1, 2], [3, 1]], I64)
    made = ml_node("Imputer", [whole], {"imputed_value_int64s": [5], "replaced_value_int64": 1}, [I64], tolerance=0)[0]
    assert made.tolist() == [[5, 2], [3, 5]]


def test_label_encoder() -> None:
    words, numbers = texts("a", "b", "z"), np.array([1, 5, 2], I64)
    keys: dict[Any, tuple[str, list[Any], np.ndarray]] = {
        TEXT: ("keys_strings", ["a", "b", "a"], words),
        np.dtype(I64): ("keys_int64s", [1, 2, 1], numbers),
    }
    keys[np.dtype(F)] = ("keys_floats", [1.5, math.nan, 1.5], np.array([1.5, 3, np.nan], F))
    values: dict[Any, tuple[str, list[Any], Any]] = {
        TEXT: ("values_strings", ["x", "y", "w"], "_Unused"),
        np.dtype(I64): ("values_int64s", [7, 8, 9], -1),
    }
    values[np.dtype(F)] = ("values_floats", [0.5, 0.25, 0.75], -0.0)
    for name, given, x in keys.values():
        for kind, (other, results, default) in values.items():
            made = ml_node("LabelEncoder", [x], {name: given, other: results}, [kind], 2)[0]
            want = []
            for v in x.tolist():
                found = [r for k, r in zip(given, results, strict=True) if k == v or (k != k and v != v)]
                want.append(found[-1] if found else default)
            assert made.tolist() == want, (name, other)
    tensor: dict[str, np.ndarray] = {"keys_tensor": np.array([1, 2], I32), "values_tensor": np.array([3, 4], np.int16)}
    import onnx

    made = ml_node("LabelEncoder", [np.array([2, 9], I32)],
                   {**{k: onnx.numpy_helper.from_array(v) for k, v in tensor.items()},
                    "default_tensor": onnx.numpy_helper.from_array(np.array([-5], np.int16))}, [np.int16], 4)[0]  # fmt: skip
    assert made.tolist() == [4, -5]
    old = {"classes_strings": ["a", "b"]}
    assert ml_node("LabelEncoder", [words], old, [I64])[0].tolist() == [0, 1, -1]
    assert ml_node("LabelEncoder", [numbers], old, [TEXT])[0].tolist() == ["b", "_Unused", "_Unused"]


def test_one_hot_encoder() -> None:
    cases: list[tuple[np.ndarray, str, list[Any]]] = [
        (texts("b", "z"), "cats_strings", ["a", "b"]), (np.array([[2, 9]], I64), "cats_int64s", [1, 2, 3]),
        (np.array([2.0, 1.0], F), "cats_int64s", [1, 2]),
    ]  # fmt: skip
    for x, name, names in cases:
        made = ml_node("OneHotEncoder", [x], {name: names})[0]
        assert made.shape == (*x.shape, len(names))
        for at in np.ndindex(x.shape):
            key = x[at] if x.dtype == object else int(x[at])
            assert made[at].tolist() == [float(key == n) for n in names]


def linear(row: np.ndarray, weights: np.ndarray, added: np.float32) -> float:
    return math.fsum([*(float(a) * float(b) for a, b in zip(row, weights, strict=True)), float(added)])


@pytest.mark.parametrize("how", TRANSFORMS[:-1])
def test_linear_models(how: str) -> None:
    rng = np.random.default_rng(0)
    for seed in range(12):
        dtype = (F, D, I64)[seed % 3]
        x = rng.normal(size=(4, 3)) if dtype != I64 else rng.integers(-3, 4, (4, 3))
        rows, table = 1 + seed % 3, x.astype(dtype)
        weights, added = (rng.normal(size=(rows, 3)) / 5).astype(F), rng.uniform(0.2, 0.7, rows).astype(F)
        scores = [[linear(r, w, c) for w, c in zip(weights, added, strict=True)] for r in table]
        attributes = {"coefficients": weights.reshape(-1).tolist(), "intercepts": added.tolist(), "post_transform": how}
        if how == "NONE":  # onnx.reference does no other post_transform of a LinearRegressor
            (made,) = ml_node(
                "LinearRegressor", [table], {**attributes, "targets": rows}, tolerance=1e-4 if dtype == F else None
            )
            near(made, scores, f"seed {seed}")
        names = list(range(4, 4 + max(rows, 2)))
        if rows == 1 and how != "LOGISTIC":
            continue  # no page says what the scores of two classes are then
        label, made = ml_node(
            "LinearClassifier", [table], {**attributes, "classlabels_ints": names}, [I64, F],
            tolerance=1e-4 if dtype == F else None,
        )  # fmt: skip
        if rows == 1:
            shares = [post(row, how)[0] for row in scores]
            assert label.tolist() == [names[int(row[0] > 0)] for row in scores]
            near(made, [[1 - s, s] for s in shares], f"seed {seed}")
        else:
            assert label.tolist() == [names[row.index(max(row))] for row in scores]
            near(made, [post(row, how) for row in scores], f"seed {seed}")


TREE: dict[str, list[Any]] = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1],
    "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_values": [0.5, 0.0, 0.0, 2.0, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
    "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0],
}
"""x[0] <= 0.5, or missing; x[1] > 2."""
ROWS = [[0, 1], [1, 1], [0, 3], [1, 3]]


def leaves(votes: str, ids: list[int], weights: list[float]) -> dict[str, list[Any]]:
    """For each leaf a vote: the first tree's for true and false, then the second's."""
    nodes = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "ids": ids, "weights": weights}
    return TREE | {f"{votes}_{name}": values for name, values in nodes.items()}


@pytest.mark.parametrize("dtype", [F, D, I64, I32])
def test_tree_ensemble_regressor(dtype: Any) -> None:
    x, given = np.array(ROWS, dtype), leaves("target", [0, 0, 0, 0], [0.25, 0.5, 1, -2])
    wants = {"SUM": [-1.75, -1.5, 1.25, 1.5], "AVERAGE": [-0.875, -0.75, 0.625, 0.75], "MIN": [-2, -2, 0.25, 0.5]}
    for how, want in wants.items():
        attributes = {**given, "n_targets": 1, "aggregate_function": how, "base_values": [0.5]}
        near(ml_node("TreeEnsembleRegressor", [x], attributes, version=3)[0], np.array(want)[:, None] + 0.5, how)
    if dtype == F:
        x = np.concatenate([x, [[np.nan, np.nan]]]).astype(F)
        near(
            ml_node("TreeEnsembleRegressor", [x], {**given, "n_targets": 1}, version=3, tolerance=1e-5)[0][4:],
            [[-1.75]],
        )


def test_tree_ensemble_classifier() -> None:
    x = np.array(ROWS, F)
    given = leaves("class", [0, 1, 2, 0], [0.25, 0.5, 0.75, 0.125])
    for key, names in (("classlabels_int64s", [5, 6, 7]), ("classlabels_strings", ["a", "b", "c"])):
        label, made = ml_node(
            "TreeEnsembleClassifier", [x], {**given, key: names}, [I64 if names[0] == 5 else TEXT, F], 3, 1e-5
        )
        assert label.tolist() == [names[n] for n in (0, 1, 2, 2)]
        near(made, [[0.375, 0, 0], [0.125, 0.5, 0], [0.25, 0, 0.75], [0, 0.5, 0.75]])
    for weights, after in (([0.25, 0.5, 0.5, 0], "NONE"), ([-1, 2, 0.5, -3], "LOGISTIC")):
        attributes = {**leaves("class", [0] * 4, weights), "classlabels_int64s": [3, 4], "post_transform": after}
        ml_node("TreeEnsembleClassifier", [x], attributes, [I64, F], 3, 1e-5)
    attributes = {**leaves("class", [1] * 4, [1.0, 2.0, 3.0, 4.0]), "classlabels_int64s": [3, 4]}
    with pytest.raises(qrun.QrunError, match="drops the votes"):
        ml_node("TreeEnsembleClassifier", [x], attributes, [I64, F], 3)


def test_tree_ensemble() -> None:
    """The operator of version 5 has the numbers of the regressor, and membership of sets."""
    import onnx

    for dtype in (F, D, np.float16):
        tensor: dict[str, np.ndarray] = {
            "nodes_splits": np.array([1.5, 0, 2], dtype), "leaf_weights": np.array([1, 2, 4, 8, 16], dtype),
            "nodes_modes": np.array([0, 6, 3], np.uint8), "membership_values": np.array([1, 3, np.nan], dtype),
        }  # fmt: skip
        lists = {
            "tree_roots": [0, 2], "nodes_featureids": [0, 1, 0], "nodes_trueleafs": [0, 1, 1], "nodes_truenodeids": [1, 0, 3],
            "nodes_falseleafs": [1, 1, 1], "nodes_falsenodeids": [2, 1, 4], "leaf_targetids": [0, 1, 0, 1, 0], "n_targets": 2,
        }  # fmt: skip
        x = np.array([[1, 3], [1, 2], [2, 3], [3, 0], [np.nan, 1]], dtype)
        attributes = {**lists, **{k: onnx.numpy_helper.from_array(v) for k, v in tensor.items()}}
        made = ml_node("TreeEnsemble", [x], attributes, [dtype], 5)[0]
        assert made.tolist() == [[17, 0], [16, 2], [20, 0], [4, 8], [20, 0]]


@pytest.mark.parametrize("kind", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kind: str) -> None:
    """As onnxruntime computes them."""
    rng = np.random.default_rng(1)
    x, supports = rng.normal(size=(4, 3)).astype(F), rng.normal(size=(6, 3)).astype(F)
    given = {"kernel_type": kind, "kernel_params": [0.5, 0.25, 2.0], "support_vectors": supports.reshape(-1).tolist()}
    attributes = {**given, "coefficients": rng.normal(size=6).astype(F).tolist(), "n_supports": 6, "rho": [0.25]}
    ml_node("SVMRegressor", [x], attributes, tolerance=1e-4)
    ml_node("SVMRegressor", [x], {**attributes, "one_class": 1}, tolerance=0)
    for count, labels in (([2, 4], [7, 8]), ([1, 2, 3], [7, 8, 9])):
        pairs = len(labels) * (len(labels) - 1) // 2
        more = {"coefficients": rng.normal(size=6 * (len(labels) - 1)).astype(F).tolist(), "vectors_per_class": count,
                "rho": rng.normal(size=pairs).astype(F).tolist(), "classlabels_ints": labels}  # fmt: skip
        for how in ("NONE", "LOGISTIC"):
            ml_node("SVMClassifier", [x], {**given, **more, "post_transform": how}, [I64, F], tolerance=1e-4)
    with pytest.raises(qrun.QrunError, match="no support vectors"):
        ml_node("SVMClassifier", [x], {"classlabels_ints": [3, 4], "coefficients": [1.0] * 6, "rho": [0.5]}, [I64, F])
