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


BRANCHES = {
    "BRANCH_LEQ": lambda a, b: a <= b, "BRANCH_LT": lambda a, b: a < b, "BRANCH_GTE": lambda a, b: a >= b,
    "BRANCH_GT": lambda a, b: a > b, "BRANCH_EQ": lambda a, b: a == b,
}  # fmt: skip


class Trees:
    """Random trees, as nested tuples: (mode, feature, value, missing, true, false),
    or a list of votes (target, weight)."""

    def __init__(self, seed: int, targets: Sequence[int], positive: bool = False) -> None:
        self.rng = np.random.default_rng(seed)
        self.targets, self.positive = targets, positive
        self.roots = [self.grown(int(depth)) for depth in self.rng.integers(0, 4, 3)]

    def grown(self, depth: int) -> Any:
        rng = self.rng
        if not depth or rng.random() < 0.1:
            weights = (
                np.abs(rng.normal(size=len(self.targets))) if self.positive else rng.normal(size=len(self.targets))
            )
            return [(t, float(F(w))) for t, w in zip(self.targets, weights, strict=True)]
        mode = list(BRANCHES)[int(rng.integers(0, 5))]
        value = float(rng.integers(-2, 3))
        return (
            mode,
            int(rng.integers(0, 3)),
            value,
            int(rng.integers(0, 2)),
            self.grown(depth - 1),
            self.grown(depth - 1),
        )

    def reached(self, row: list[float]) -> list[list[tuple[int, float]]]:
        found = []
        for node in self.roots:
            while isinstance(node, tuple):
                mode, feature, value, missing, yes, no = node
                held = BRANCHES[mode](row[feature], value) or (missing and row[feature] != row[feature])
                node = yes if held else no
            found.append(node)
        return found

    def attributes(self, votes: str) -> dict[str, Any]:
        made: dict[str, list[Any]] = {f"nodes_{n}": [] for n in (
            "treeids", "nodeids", "modes", "featureids", "values", "truenodeids", "falsenodeids", "missing_value_tracks_true")}  # fmt: skip
        made |= {f"{votes}_{n}": [] for n in ("treeids", "nodeids", "ids", "weights")}
        for tree, root in enumerate(self.roots):
            queue, count = [(0, root)], 1
            while queue:
                number, node = queue.pop(0)
                leaf = isinstance(node, list)
                mode, feature, value, missing, yes, no = ("LEAF", 0, 0.0, 0, None, None) if leaf else node
                ahead = (0, 0) if leaf else (count, count + 1)
                for name, item in zip(
                    list(made)[:8], (tree, number, mode, feature, value, *ahead, missing), strict=True
                ):
                    made[name].append(item)
                for target, weight in node if leaf else ():
                    for name, item in zip(list(made)[8:], (tree, number, target, weight), strict=True):
                        made[name].append(item)
                if not leaf:
                    queue += [(count, yes), (count + 1, no)]
                    count += 2
        return made

    def sums(self, row: list[float], count: int, how: str = "SUM") -> list[float]:
        lists: list[list[float]] = [[] for _ in range(count)]
        for votes in self.reached(row):
            for target, weight in votes:
                lists[target].append(weight)
        combine: dict[str, Any] = {
            "SUM": math.fsum,
            "AVERAGE": lambda v: math.fsum(v) / len(self.roots),
            "MIN": min,
            "MAX": max,
        }[how]
        return [combine(v) if v else 0.0 for v in lists]


def rows(seed: int, dtype: Any) -> np.ndarray:
    x = np.random.default_rng([seed, 1]).integers(-3, 4, (6, 3)).astype(dtype)
    if x.dtype.kind == "f":
        x[seed % 6, seed % 3] = np.nan
    return x


def test_tree_ensemble_regressor() -> None:
    for seed in range(48):
        how, dtype = ("SUM", "AVERAGE", "MIN", "MAX")[seed % 4], (F, D, I64, I32)[seed // 4 % 4]
        count = 1 + seed % 3
        trees, x = Trees(seed, range(count)), rows(seed, dtype)
        base = [float(F(v)) for v in np.random.default_rng(seed).normal(size=count)] if seed % 5 else []
        attributes = {
            **trees.attributes("target"),
            "n_targets": count,
            "aggregate_function": how,
        }
        if base:
            attributes["base_values"] = base
        tolerance = 1e-4 if dtype == F else None
        made = ml_node("TreeEnsembleRegressor", [x], attributes, version=3, tolerance=tolerance)[0]
        want = []
        for row in x.tolist():
            scores = [a + b for a, b in zip(trees.sums(row, count, how), base or [0.0] * count, strict=True)]
            want.append(scores)
        near(made, want, f"seed {seed}")


def test_tree_ensemble_classifier() -> None:
    for seed in range(48):
        count, after = 2 + seed % 3, ("NONE", "SOFTMAX", "LOGISTIC")[seed // 3 % 3]
        positive = bool(seed // 2 % 2)
        one = count == 2 and (after, positive) in (("NONE", True), ("LOGISTIC", False))
        trees, x = Trees(seed, [0] if one else range(count), positive), rows(seed, (F, D)[seed // 5 % 2])
        names = texts(*(f"c{n}" for n in range(count))) if seed % 2 else np.arange(5, 5 + count)
        key = "classlabels_strings" if seed % 2 else "classlabels_int64s"
        attributes = {**trees.attributes("class"), key: names.tolist(), "post_transform": after}
        label, made = ml_node("TreeEnsembleClassifier", [x], attributes, [TEXT if seed % 2 else I64, F], 3,
                              1e-4 if x.dtype == F and (one or count > 2) else None)  # fmt: skip
        for row, got, scores in zip(x.tolist(), label.tolist(), made, strict=True):
            sums = trees.sums(row, count)
            best, want = sums.index(max(sums)), post(sums, after)
            if one:
                s = sums[0]
                best, want = (int(s > 0.5), [1 - s, s]) if positive else (int(s > 0), post([-s, s], after))
            assert got == names[best], f"seed {seed}"
            near(scores, want, f"seed {seed}")


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


KERNELS = {
    "LINEAR": lambda p, d: p,
    "POLY": lambda p, d: (0.5 * p + 0.25) ** 2,
    "RBF": lambda p, d: math.exp(-0.5 * d),
    "SIGMOID": lambda p, d: math.tanh(0.5 * p + 0.25),
}


def likeness(kind: str, row: list[float], support: list[float]) -> float:
    product = math.fsum(a * b for a, b in zip(row, support, strict=True))
    return KERNELS[kind](product, math.fsum((a - b) ** 2 for a, b in zip(row, support, strict=True)))


@pytest.mark.parametrize("kind", list(KERNELS))
def test_svm_regressor(kind: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x, supports = rng.normal(size=(4, 3)).astype(F), rng.normal(size=(5, 3)).astype(F)
        weights, rho = rng.normal(size=5).astype(F), float(F(rng.normal()))
        attributes = {
            "kernel_type": kind, "kernel_params": [0.5, 0.25, 2.0], "n_supports": 5, "rho": [rho],
            "coefficients": weights.tolist(), "support_vectors": supports.reshape(-1).tolist(),
        }  # fmt: skip
        want = []
        for row in x.astype(D).tolist():
            parts = []
            for support, weight in zip(supports.astype(D).tolist(), weights.tolist(), strict=True):
                parts.append(weight * likeness(kind, row, support))
            want.append([math.fsum([*parts, rho])])
        near(ml_node("SVMRegressor", [x], attributes, tolerance=1e-4)[0], want, f"seed {seed}")
        made = ml_node("SVMRegressor", [x], {**attributes, "one_class": 1}, tolerance=0)[0]
        assert made.tolist() == [[1.0 if s[0] > 0 else -1.0] for s in want]


class Machines:
    """A random classifier of ai.onnx.ml: for each class, vectors with a weight against each other class."""

    def __init__(self, seed: int, kind: str) -> None:
        rng = np.random.default_rng(seed)
        self.kind, self.classes = kind, 2 + seed % 3
        self.x = rng.normal(size=(4, 3)).astype(F)
        self.vectors = [rng.normal(size=(int(n), 3)).astype(F) for n in rng.integers(1, 4, self.classes)]
        self.against = [
            {o: rng.normal(size=len(v)).astype(F) for o in range(self.classes) if o != own}
            for own, v in enumerate(self.vectors)
        ]
        self.pairs = [(i, j) for i in range(self.classes) for j in range(i + 1, self.classes)]
        self.rho, self.a, self.b = rng.normal(size=(3, len(self.pairs))).astype(F)

    def attributes(self) -> dict[str, Any]:
        lines: list[list[float]] = [[] for _ in range(self.classes - 1)]
        for others in self.against:
            for line, (_, weights) in zip(lines, sorted(others.items()), strict=True):
                line += weights.tolist()
        return {
            "kernel_type": self.kind, "kernel_params": [0.5, 0.25, 2.0], "rho": self.rho.tolist(),
            "vectors_per_class": [len(v) for v in self.vectors], "coefficients": [w for line in lines for w in line],
            "support_vectors": np.concatenate(self.vectors).reshape(-1).tolist(),
            "classlabels_ints": list(range(5, 5 + self.classes)),
        }  # fmt: skip

    def scores(self, row: list[float]) -> list[float]:
        made = []
        for (i, j), rho in zip(self.pairs, self.rho.tolist(), strict=True):
            parts = [rho]
            for own, other in ((i, j), (j, i)):
                for vector, weight in zip(self.vectors[own].tolist(), self.against[own][other].tolist(), strict=True):
                    parts.append(weight * likeness(self.kind, row, vector))
            made.append(math.fsum(parts))
        return made

    def winner(self, scores: list[float]) -> int:
        won = [i if s > 0 else j for (i, j), s in zip(self.pairs, scores, strict=True)]
        return max(range(self.classes), key=lambda c: (won.count(c), -c))

    def shares(self, scores: list[float]) -> list[float]:
        """libsvm's sigmoid_predict and multiclass_probability, number by number."""
        k, p = self.classes, [1 / self.classes] * self.classes
        r = [[0.0] * k for _ in range(k)]
        for (i, j), s, a, b in zip(self.pairs, scores, self.a.tolist(), self.b.tolist(), strict=True):
            r[i][j] = min(max(1 / (1 + math.exp(a * s + b)), 1e-7), 1 - 1e-7)
            r[j][i] = 1 - r[i][j]
        q = [
            [sum(r[j][t] ** 2 for j in range(k) if j != t) if t == u else -r[u][t] * r[t][u] for u in range(k)]
            for t in range(k)
        ]
        for _ in range(max(100, k)):
            qp = [math.fsum(a * b for a, b in zip(line, p, strict=True)) for line in q]
            pqp = math.fsum(a * b for a, b in zip(p, qp, strict=True))
            if max(abs(v - pqp) for v in qp) < 0.005 / k:
                break
            for t in range(k):
                d = (pqp - qp[t]) / q[t][t]
                p[t] += d
                pqp = (pqp + d * (d * q[t][t] + 2 * qp[t])) / (1 + d) ** 2
                qp = [(v + d * w) / (1 + d) for v, w in zip(qp, q[t], strict=True)]
                p = [v / (1 + d) for v in p]
        return p


@pytest.mark.parametrize("kind", list(KERNELS))
def test_svm_classifier(kind: str) -> None:
    for seed in range(12):
        made, how = Machines(seed, kind), TRANSFORMS[seed // 3]
        x = made.x.astype((F, D, I64)[seed % 2 if seed < 9 else 2])
        scores = [made.scores(row) for row in x.tolist()]
        names = [5 + made.winner(row) for row in scores]
        attributes = {**made.attributes(), "post_transform": how}
        close = 1e-4 if x.dtype == F and how != "PROBIT" else None
        pair = made.classes == 2
        if min(attributes["coefficients"]) >= 0:
            continue  # which no training gives; onnx.reference then takes the second of two classes
        label, got = ml_node("SVMClassifier", [x], attributes, [I64, F],
                             tolerance=close if not pair or how in ("NONE", "LOGISTIC") else None)  # fmt: skip
        assert label.tolist() == names, f"seed {seed}"
        want = [post([-row[0], row[0]] if pair else row, how) for row in scores]
        near(got, want, f"seed {seed}", 1e-9)
        if not pair:
            continue  # onnx.reference couples probabilities of pairs otherwise than libsvm
        shares = {"prob_a": made.a.tolist(), "prob_b": made.b.tolist()}
        label, got = ml_node("SVMClassifier", [x], {**attributes, **shares}, [I64, F], tolerance=close)
        assert label.tolist() == names, f"seed {seed}"
        near(got, [post(made.shares(row), how) for row in scores], f"seed {seed}", 1e-9)
        assert how != "NONE" or np.allclose(got.sum(axis=1), 1, atol=1e-6)


def test_svm_classifier_without_vectors() -> None:
    attributes = {"classlabels_ints": [3, 4, 5], "coefficients": [1.0, 0, 0, 0, 1, 0, -1, 0, 0.5], "rho": [0.5]}
    with pytest.raises(qrun.QrunError, match="no support vectors"):
        ml_node("SVMClassifier", [np.ones((2, 3), F)], attributes, [I64, F])
