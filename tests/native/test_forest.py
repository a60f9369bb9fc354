"""Native ensembles of trees equal the reference's, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.native import Array, engine
from helpers.placed import elsewhere, run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.forest import TreeWalk, Winners, packed_forest
from qrun.native.machine.operation import Operand
from qrun.ops import Context
from qrun.ops._trees import LEAF, MODES, Forest, based, leaves, votes
from qrun.ops.trees import _nodes

F = np.float32
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e300, -1e300, 0.1, 1e-50], np.float64)


def grown(rng: np.random.Generator, trees: int, features: int, targets: int, most: int) -> Forest:
    """Trees of all shapes, some of one leaf, whose leaves have up to so many votes."""
    modes, children, roots = list[int](), list[tuple[int, int]](), list[int]()

    def node(depth: int) -> int:
        place = len(modes)
        leaf = depth == 0 or rng.random() < 0.2
        modes.append(LEAF if leaf else int(rng.integers(4)))
        children.append((0, 0))
        if not leaf:
            children[place] = (node(depth - 1), node(depth - 1))
        return place

    for _ in range(trees):
        roots.append(node(int(rng.integers(0, 7))))
    count = len(modes)
    thresholds = np.where(rng.random(count) < 0.3, rng.choice(ODD, count), rng.integers(-3, 4, count) / 4)
    ends = np.flatnonzero(np.array(modes) == LEAF)
    voters = np.sort(rng.choice(ends, size=len(ends) * most)) if most > 1 else ends[rng.random(len(ends)) < 0.9]
    holds, fails = np.array(children).T
    return Forest(
        np.array(roots), np.array(modes), rng.integers(0, features, count), thresholds, holds, fails,
        rng.integers(0, 2, count), voters, rng.integers(0, targets, len(voters)), rng.standard_normal(len(voters)), {},
    )  # fmt: skip


def rows(rng: np.random.Generator, count: int, features: int) -> Array:
    with np.errstate(all="ignore"):
        odd = rng.choice(ODD, (count, features)).astype(F)
    return np.where(rng.random(odd.shape) < 0.2, odd, rng.integers(-3, 4, odd.shape).astype(F) / F(4))


@every_width
def test_sums_of_votes(isa: str) -> None:
    native, rng = engine(isa), np.random.default_rng(1)
    for trees, count, features, targets, most in (
        (1, 1, 1, 1, 1),
        (5, 3, 4, 2, 3),
        (16, 2, 7, 3, 2),
        (37, 40, 5, 1, 1),
    ):
        forest, x = grown(rng, trees, features, targets, most), rows(rng, count, features)
        want = votes(forest, leaves(forest, x.astype(np.float64), Context()), targets, "SUM", np.zeros(0), Context())
        for threads in (1, 2):
            packed = packed_forest(_nodes(forest), native.isa.lanes, False)
            made = TreeWalk(engine(isa, threads), packed, count, features, targets, None)
            assert_equal(run_placed(engine(isa, threads), made, [x], (0, 0), threads == 1), want, f"{trees} {targets}")
        if targets == 1:
            packed = packed_forest(_nodes(forest), native.isa.lanes, True)
            for aggregate, numbers, base in (("SUM", (1.0, -0.0), []), ("AVERAGE", (float(trees), 0.25), [0.25])):
                made = TreeWalk(native, packed, count, features, 1, numbers)
                result = based(want, trees, aggregate, np.array(base)).astype(F)
                assert_equal(run_placed(native, made, [x], (0, 0), False), result, f"{trees} {aggregate}")


@every_width
def test_winners_of_sums(isa: str) -> None:
    """Of equals the first wins, NaN against every number, also where base_values make one of two infinities."""
    seed = 4
    rng = np.random.default_rng(seed)
    for count, classes in ((1, 1), (1, 2), (3, 5), (40, 3), (300, 7)):
        sums = rng.choice([*ODD, 1.0, 1.0 + 2**-30, -2.0, 3e38, 4e38], (count, classes))
        base = rng.choice([-0.0, 0.5, np.inf, -1.0], classes)
        labels = rng.integers(-(2**62), 2**62, classes)
        with np.errstate(all="ignore"):
            scores = (sums + base).astype(F)
            want = labels[np.argmax(sums + base, axis=1)]
        for threads in (1, 2):
            native = engine(isa, threads)
            operand = Operand(sums.shape, sums.dtype)
            made = run_placed(native, Winners(native, operand, base), [sums], (0, 0), threads == 1)
            assert_equal(made, scores, f"seed {seed}, scores of {classes}")
            made = run_placed(native, Winners(native, operand, base, labels), [sums], (0, 0), threads == 1)
            assert_equal(made, want, f"seed {seed}, labels of {classes}")


def test_circles_are_declined() -> None:
    nodes = _nodes(grown(np.random.default_rng(0), 4, 2, 1, 1))
    inner = np.flatnonzero(~nodes.leaf)
    nodes.fails[inner[0]] = inner[0]
    with pytest.raises(Declined, match="several nodes"):
        packed_forest(nodes, 4, False)


def attributes(forest: Forest, votes_as: str) -> dict[str, Any]:
    count = len(forest.modes)
    ids = np.arange(count).tolist()
    owner = np.searchsorted(forest.roots, np.arange(count), side="right") - 1
    return {
        "nodes_treeids": owner.tolist(), "nodes_nodeids": ids, "nodes_featureids": forest.features.tolist(),
        "nodes_modes": [MODES[mode] for mode in forest.modes], "nodes_values": forest.thresholds.astype(F).tolist(),
        "nodes_truenodeids": forest.holds.tolist(), "nodes_falsenodeids": forest.fails.tolist(),
        "nodes_missing_value_tracks_true": forest.missing.tolist(),
        f"{votes_as}_treeids": owner[forest.voters].tolist(), f"{votes_as}_nodeids": forest.voters.tolist(),
        f"{votes_as}_ids": forest.targets.tolist(), f"{votes_as}_weights": forest.weights.astype(F).tolist(),
    }  # fmt: skip


def test_nodes_run_natively() -> None:
    rng = np.random.default_rng(3)
    for seed in range(24):
        targets, most = ((1, 1), (3, 2), (2, 1))[seed % 3]
        forest = grown(rng, 9, 4, targets, most)
        with np.errstate(all="ignore"):
            forest.thresholds[:] = forest.thresholds.astype(F)
        x = rows(rng, 6, 4)
        if seed % 2:
            given = attributes(forest, "target") | {"n_targets": targets}
            given |= {"aggregate_function": ("SUM", "AVERAGE")[seed % 4 > 1]}
            given |= {"post_transform": "LOGISTIC"} if seed % 8 > 4 else {}
            given |= {"base_values": [0.5] * targets} if seed % 5 else {}
            model, feeds = node_model("TreeEnsembleRegressor", [x], given, domain="ai.onnx.ml")
        else:
            given = attributes(forest, "class") | {"classlabels_int64s": list(range(5, 5 + max(targets, 2)))}
            given |= {"post_transform": "SOFTMAX"} if seed % 8 > 4 else {}
            given |= {"base_values": [0.5] * max(targets, 2)} if targets > 1 and seed % 5 else {}
            model, feeds = node_model("TreeEnsembleClassifier", [x], given, domain="ai.onnx.ml", outputs=[np.int64, F])
        with np.errstate(all="ignore"):
            assert same_everywhere(model, feeds).events[0].backend == "native"


def test_a_regression_is_part_of_a_program() -> None:
    forest, x = grown(np.random.default_rng(5), 9, 4, 1, 1), np.ones((3, 4), F)
    forest.thresholds[:] = 1
    given = attributes(forest, "target")
    model, feeds = node_model("TreeEnsembleRegressor", [x], given, domain="ai.onnx.ml")
    session = qrun.Session(model, backend="native")
    for _ in range(3):
        session.run(feeds)
    assert not elsewhere(session)


@pytest.mark.parametrize("base", [[], [0.25], [0.5, -0.25, 0.125]], ids=len)
@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)], ids=str)
def test_a_classifier_is_part_of_a_program(wanted: tuple[bool, bool], base: list[float]) -> None:
    seed = 6
    rng = np.random.default_rng(seed)
    forest = grown(rng, 9, 4, 3, 2)
    with np.errstate(all="ignore"):
        forest.thresholds[:] = forest.thresholds.astype(F)
    given = attributes(forest, "class") | {"classlabels_int64s": [7, -3, 2**40]}
    given |= {"base_values": base} if base else {}
    model, feeds = node_model(
        "TreeEnsembleClassifier", [rows(rng, 6, 4)], given, domain="ai.onnx.ml", outputs=[np.int64, F]
    )
    for place in (1, 0):
        if not wanted[place]:
            del model.graph.output[place]
            model.graph.node[0].output[place] = ""
    reference = qrun.Session(model, backend="reference")
    session = qrun.Session(model, backend="native")
    for _ in range(6):
        want, got = reference.run(feeds), session.run(feeds)
        for name, array in want.items():
            assert_equal(got[name], array, f"{name}, seed {seed}")
    assert not elsewhere(session)


@pytest.mark.parametrize("labels", [{"classlabels_strings": ["a", "b", "c"]}, {"classlabels_int64s": [1, 2, 3]}])
@pytest.mark.parametrize("post", ["NONE", "SOFTMAX"])
@pytest.mark.parametrize("flat", [False, True])
def test_other_classifiers_are_as_the_reference(labels: dict[str, Any], post: str, flat: bool) -> None:
    rng = np.random.default_rng(8)
    forest, x = grown(rng, 5, 4, 3, 2), rng.standard_normal((3, 4)).astype(F)
    with np.errstate(all="ignore"):
        forest.thresholds[:] = forest.thresholds.astype(F)
    given = attributes(forest, "class") | labels | {"post_transform": post}
    kind = object if "classlabels_strings" in labels else np.int64
    model, feeds = node_model(
        "TreeEnsembleClassifier", [x[0] if flat else x], given, domain="ai.onnx.ml", outputs=[kind, F]
    )
    want = qrun.Session(model, backend="reference").run(feeds)
    session = qrun.Session(model, backend="native")
    for _ in range(6):
        for name, array in session.run(feeds).items():
            assert_equal(array, want[name], name)


def test_reasons() -> None:
    forest, x = grown(np.random.default_rng(5), 9, 4, 1, 1), np.ones((3, 4), F)
    forest.thresholds[:] = 1
    given = attributes(forest, "target")

    def why(x: Array, **changed: Any) -> str:
        model, feeds = node_model("TreeEnsembleRegressor", [x], given | changed, domain="ai.onnx.ml")
        event = qrun.Session(model, backend="native").execute(feeds).events[0]
        assert event.backend == "reference"
        return event.why

    assert "trees of float64" in why(x.astype(np.float64))
    assert "trees with MAX" in why(x, aggregate_function="MAX")
    modes = ["BRANCH_EQ" if mode == "BRANCH_LT" else mode for mode in given["nodes_modes"]]
    assert "BRANCH_EQ" in why(x, nodes_modes=modes)
    assert "empty" in why(x[:0])


@pytest.mark.parametrize("kind", ["Regressor", "Classifier"])
def test_of_several_mistakes_both_backends_name_the_same(kind: str) -> None:
    forest, x = grown(np.random.default_rng(5), 9, 4, 3, 1), np.ones((3, 4), F)
    forest.thresholds[:] = 1
    given = attributes(forest, "target" if kind == "Regressor" else "class")
    few = {"n_targets": 1} if kind == "Regressor" else {"classlabels_int64s": [4]}
    mistakes = {**few, "base_values": [1.0, 2.0, 3.0, 4.0, 5.0], "post_transform": "NOPE"}
    names = list(mistakes)
    for left_out in range(len(names) + 1):
        changed = {**given, **{name: mistakes[name] for name in names[left_out:]}}
        for features in (x, x[:, :1]):
            kinds = [F] if kind == "Regressor" else [np.int64, F]
            model, feeds = node_model(f"TreeEnsemble{kind}", [features], changed, domain="ai.onnx.ml", outputs=kinds)
            texts = []
            for backend in ("reference", "native"):
                try:
                    qrun.Session(model, backend=backend).run(feeds)
                    texts.append("")
                except qrun.QrunError as error:
                    texts.append(str(error))
            assert texts[0] == texts[1], (names[left_out:], features.shape)
