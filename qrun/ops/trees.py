"""Ensembles of trees of ai.onnx.ml: TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._float import narrow
from qrun.ops._ml import (
    ML,
    NUMBERS,
    TRANSFORMS,
    Floats,
    labels_of,
    logistic,
    one_of_two,
    rows_of,
    single_results,
    singles,
    transformed,
)
from qrun.ops._op import op
from qrun.ops._trees import AGGREGATES, LEAF, Forest, keyed, leaves, modes_of, votes

Ints = tuple[int, ...]


@op("TreeEnsembleRegressor", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def tree_ensemble_regressor(
    X: Array,
    *,
    aggregate_function: str = "SUM",
    base_values: Floats | None = None,
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Ints | None = None,
    nodes_featureids: Ints | None = None,
    nodes_hitrates: Floats | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: tuple[str, ...] | None = None,
    nodes_nodeids: Ints | None = None,
    nodes_treeids: Ints | None = None,
    nodes_truenodeids: Ints | None = None,
    nodes_values: Floats | None = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: Ints | None = None,
    target_nodeids: Ints | None = None,
    target_treeids: Ints | None = None,
    target_weights: Floats | None = None,
    target_weights_as_tensor: Array | None = None,
    ctx: Context,
) -> Array:
    """What the leaves that a row reaches say for each target, aggregated, plus base_values: float32 [N,n_targets].

    X [N,F]. A node compares the row's feature with its value (BRANCH_LEQ, _LT, _GTE, _GT, _EQ, _NEQ) and goes to the true or
    the false node; NaN goes to the false one, or the true one where nodes_missing_value_tracks_true is 1. aggregate_function
    SUM, AVERAGE (over trees), MIN, MAX; base_values: one for each target, or one for all. In float64, tree by tree, and
    rounded once, after post_transform. Raises OperatorError for lists that do not fit and trees with circles.
    Source: ONNX-ML operators, TreeEnsembleRegressor-3.
    """
    if aggregate_function not in AGGREGATES:
        raise refuse(f"aggregate_function is {aggregate_function}", "aggregate_function", ", ".join(AGGREGATES),
                     aggregate_function, code="QR204")  # fmt: skip
    nodes = (nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids, nodes_truenodeids, nodes_falsenodeids)
    thresholds = _numbers(nodes_values, nodes_values_as_tensor)
    weights = _numbers(target_weights, target_weights_as_tensor)
    forest = _forest(
        nodes, thresholds, nodes_missing_value_tracks_true, (target_treeids, target_nodeids, target_ids), weights
    )
    base = _numbers(base_values, base_values_as_tensor)
    scores = votes(forest, leaves(forest, rows_of(X), ctx), n_targets, aggregate_function, base, ctx)
    return single_results(transformed(scores, post_transform), ctx)


@op("TreeEnsembleClassifier", since=1, domain=ML, types={"T1": (NUMBERS, "X")})
def tree_ensemble_classifier(
    X: Array,
    *,
    base_values: Floats | None = None,
    base_values_as_tensor: Array | None = None,
    class_ids: Ints | None = None,
    class_nodeids: Ints | None = None,
    class_treeids: Ints | None = None,
    class_weights: Floats | None = None,
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    nodes_falsenodeids: Ints | None = None,
    nodes_featureids: Ints | None = None,
    nodes_hitrates: Floats | None = None,
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: tuple[str, ...] | None = None,
    nodes_nodeids: Ints | None = None,
    nodes_treeids: Ints | None = None,
    nodes_truenodeids: Ints | None = None,
    nodes_values: Floats | None = None,
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    ctx: Context,
) -> tuple[Array, Array]:
    """The class with the greatest sum of the leaves that a row reaches, its label [N], and all scores, float32 [N,classes].

    Trees as in TreeEnsembleRegressor, whose sums are the scores; of equal ones the first class. Of two classes where the
    leaves vote for one only, s is their sum: if no weight is negative the scores are 1 - s and s, with LOGISTIC those of
    logistic(s), and the second class wins above 0.5; else -s and s, with LOGISTIC of each, and it wins above 0.
    In float64 and rounded once. Raises OperatorError for lists that do not fit and trees with circles.
    Source: ONNX-ML operators, TreeEnsembleClassifier-3.
    """
    labels = labels_of(classlabels_strings, classlabels_int64s, "classlabels")
    nodes = (nodes_treeids, nodes_nodeids, nodes_modes, nodes_featureids, nodes_truenodeids, nodes_falsenodeids)
    thresholds = _numbers(nodes_values, nodes_values_as_tensor)
    weights = _numbers(class_weights, class_weights_as_tensor)
    forest = _forest(
        nodes, thresholds, nodes_missing_value_tracks_true, (class_treeids, class_nodeids, class_ids), weights
    )
    base, at = _numbers(base_values, base_values_as_tensor), leaves(forest, rows_of(X), ctx)
    voted = np.unique(forest.targets)
    if len(labels) == 2 and len(voted) == 1:
        sums = votes(forest, at, 2, "SUM", np.zeros(0), ctx)[:, voted[0]] + (base[-1] if base.size else 0.0)
        places, scores = _one_of_two(sums, bool((weights >= 0).all()), post_transform)
    else:
        scores = votes(forest, at, len(labels), "SUM", base, ctx)
        places = np.argmax(scores, axis=1) if len(scores) else np.zeros(0, np.int64)
        scores = transformed(scores, post_transform)
    ctx.claim((len(at),), 8)
    return labels[places], single_results(scores, ctx)


def _one_of_two(sums: Array, positive: bool, post_transform: str) -> tuple[Array, Array]:
    made = one_of_two(sums, post_transform)
    if positive:
        return (sums > 0.5).astype(np.int64), made
    both = np.stack([-sums, sums], axis=1)
    return (sums > 0).astype(np.int64), logistic(both) if post_transform == "LOGISTIC" else both


@op("TreeEnsemble", since=5, domain=ML, types={"T": ("float double float16", "X")})
def tree_ensemble(
    X: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Ints,
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    post_transform: int = 0,
    tree_roots: Ints,
    ctx: Context,
) -> Array:
    """As TreeEnsembleRegressor, of X's type, with leaves that are told apart from nodes: [N,n_targets].

    Modes by number, 6 being BRANCH_MEMBER: whether the feature is one of the node's membership_values, which NaN separates.
    aggregate_function 0 AVERAGE, 1 SUM, 2 MIN, 3 MAX; post_transform 0 NONE, 1 SOFTMAX, 2 LOGISTIC, 3 SOFTMAX_ZERO,
    4 PROBIT. In float64 and rounded once. Source: ONNX-ML operators, TreeEnsemble-5.
    """
    for name, value, most in (("aggregate_function", aggregate_function, 3), ("post_transform", post_transform, 4)):
        if not 0 <= value <= most:
            raise refuse(f"{name} is {value}", name, f"0 to {most}", str(value), code="QR204")
    modes, count, ends = nodes_modes.reshape(-1).astype(np.int64), len(nodes_featureids), len(leaf_targetids)
    lists = (modes, nodes_splits.reshape(-1), nodes_trueleafs, nodes_truenodeids, nodes_falseleafs, nodes_falsenodeids)
    if any(len(v) != count for v in lists) or leaf_weights.size != ends or (modes.size and modes.max() >= LEAF):
        raise refuse("the nodes differ in number", "nodes_modes", f"{count} of each, modes 0 to 6", str([len(v) for v in lists]),
                     code="QR204")  # fmt: skip
    none, target = np.zeros(ends, np.int64), np.asarray(leaf_targetids, np.int64)
    missing = np.asarray(nodes_missing_value_tracks_true or (0,) * count, np.int64)
    forest = Forest(
        _within(np.asarray(tree_roots, np.int64), count, "tree_roots"),
        np.concatenate([modes, none + LEAF]),
        np.concatenate([np.asarray(nodes_featureids, np.int64), none]),
        np.concatenate([np.asarray(nodes_splits.reshape(-1), np.float64), none]),
        np.concatenate([_next(nodes_trueleafs, nodes_truenodeids, count, ends), none]),
        np.concatenate([_next(nodes_falseleafs, nodes_falsenodeids, count, ends), none]),
        np.concatenate([missing, none]),
        count + np.arange(ends),
        target,
        np.asarray(leaf_weights.reshape(-1), np.float64),
        _members(modes, membership_values),
    )
    at = leaves(forest, rows_of(X), ctx)
    scores = votes(forest, at, n_targets, AGGREGATES[aggregate_function], np.zeros(0), ctx)
    return narrow(transformed(scores, TRANSFORMS[post_transform]), X.dtype)


def _next(leafs: Ints, ids: Ints, count: int, ends: int) -> Array:
    """The place of the next node, or leaf, after all nodes."""
    leaf, place = np.asarray(leafs, np.int64) != 0, np.asarray(ids, np.int64)
    _within(place[leaf], ends, "nodes_truenodeids")
    _within(place[~leaf], count, "nodes_truenodeids")
    return np.where(leaf, place + count, place)


def _within(places: Array, count: int, name: str) -> Array:
    if places.size and (places.min() < 0 or places.max() >= count):
        bad = int(places.max() if places.max() >= count else places.min())
        raise refuse(f"there is no node {bad}", name, f"0 to {count - 1}", str(bad), code="QR204")
    return places


def _members(modes: Array, values: Array | None) -> dict[int, Array]:
    nodes = np.flatnonzero(modes == LEAF - 1).tolist()
    given = np.zeros(0) if values is None else np.asarray(values.reshape(-1), np.float64)
    ends = np.flatnonzero(np.isnan(given))
    sets = [part[~np.isnan(part)] for part in np.split(given, ends)]
    if ends.size and len(sets) > len(nodes) and not sets[-1].size:
        sets = sets[:-1]
    if nodes and len(sets) != len(nodes):
        got = f"{len(sets)} sets"
        raise refuse("the sets do not fit the nodes", "membership_values", f"{len(nodes)} sets", got, code="QR204")
    return dict(zip(nodes, sets, strict=True)) if nodes else {}


def _numbers(values: Sequence[float] | None, tensor: Array | None) -> Array:
    return singles(values) if tensor is None else np.asarray(tensor.reshape(-1), np.float64)


def _forest(
    nodes: tuple[Any, ...], thresholds: Array, missing: Ints | None, leaf: tuple[Any, ...], weights: Array
) -> Forest:
    """nodes: tree, number, mode, feature, true and false number of each. leaf: tree, node and target of each weight."""
    trees, numbers = keyed(nodes[0], nodes[1], "nodes_treeids")
    count = len(trees)
    modes = modes_of(nodes[2] or ())
    features, holds, fails = (np.asarray(v or (0,) * count, np.int64) for v in nodes[3:])
    tracks = np.asarray(missing or (0,) * count, np.int64)
    if any(len(v) != count for v in (modes, features, holds, fails, tracks, thresholds)):
        raise refuse("the nodes differ in number", "nodes_modes", f"{count} of each", str(len(modes)), code="QR204")
    order = np.lexsort((numbers, trees))
    ranked = np.stack([trees[order], numbers[order]], axis=1)
    if count > 1 and (ranked[1:] == ranked[:-1]).all(axis=1).any():
        raise refuse("a tree has two nodes of one number", "nodes_nodeids", "each number once", "twice", code="QR204")
    inner = modes != LEAF
    ahead = [np.where(inner, _places(ranked, order, trees, v, inner), 0) for v in (holds, fails)]
    tree, node = keyed(leaf[0], leaf[1], "target_treeids")
    targets = np.asarray(leaf[2] or (), np.int64)
    if len(targets) != len(tree) or len(weights) != len(tree):
        raise refuse("the weights differ in number", "target_weights", str(len(tree)), str(len(weights)), code="QR204")
    voters = _places(ranked, order, tree, node, np.ones(len(tree), bool))
    by_voter = np.argsort(voters, kind="stable")
    first = np.unique(trees, return_index=True)[1]
    roots = np.sort(first)
    return Forest(
        roots, modes, features, thresholds, ahead[0], ahead[1], tracks, voters[by_voter], targets[by_voter],
        weights[by_voter], {},
    )  # fmt: skip


def _places(ranked: Array, order: Array, trees: Array, numbers: Array, asked: Array) -> Array:
    """Where the nodes of these trees and numbers are."""
    kinds = [("tree", np.int64), ("node", np.int64)]
    table = np.array([tuple(pair) for pair in ranked.tolist()], kinds)
    wanted = np.array(list(zip(trees.tolist(), numbers.tolist(), strict=True)), kinds)
    at = np.minimum(np.searchsorted(table, wanted), max(len(table) - 1, 0))
    if len(wanted) and (not len(table) or (asked & (table[at] != wanted)).any()):
        lost = wanted[asked & (table[at] != wanted)][0] if len(table) else wanted[0]
        text = f"node {lost['node']} of tree {lost['tree']}"
        raise refuse(f"there is no {text}", "nodes_nodeids", "nodes that are there", text, code="QR204")
    return np.asarray(order[at] if len(wanted) else np.zeros(0, np.int64))
