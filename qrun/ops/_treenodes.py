"""Trees as the attributes of ai.onnx.ml have them, to a Forest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._context import refuse
from qrun.ops._ml import singles
from qrun.ops._trees import LEAF, Forest, keyed, modes_of

Ints = tuple[int, ...]
_NODES = (
    "nodes_treeids", "nodes_nodeids", "nodes_modes", "nodes_featureids", "nodes_truenodeids", "nodes_falsenodeids",
)  # fmt: skip


def forest_of(given: Mapping[str, Any], votes: str) -> Forest:
    """The trees of TreeEnsembleRegressor and TreeEnsembleClassifier; votes: what the attributes of leaves begin with."""
    thresholds = numbers_of(given["nodes_values"], given["nodes_values_as_tensor"])
    weights = numbers_of(given[f"{votes}_weights"], given[f"{votes}_weights_as_tensor"])
    leaf = (given[f"{votes}_treeids"], given[f"{votes}_nodeids"], given[f"{votes}_ids"])
    nodes = tuple(given[name] for name in _NODES)
    return keyed_forest(nodes, thresholds, given["nodes_missing_value_tracks_true"], leaf, weights)


def ensemble_of(given: Mapping[str, Any]) -> Forest:
    """The trees of TreeEnsemble, whose leaves are told apart from nodes."""
    modes = given["nodes_modes"].reshape(-1).astype(np.int64)
    count, ends = len(given["nodes_featureids"]), len(given["leaf_targetids"])
    splits, weights = given["nodes_splits"].reshape(-1), given["leaf_weights"].reshape(-1)
    ahead = [given[f"nodes_{name}"] for name in ("trueleafs", "truenodeids", "falseleafs", "falsenodeids")]
    lists = (modes, splits, *ahead)
    if any(len(v) != count for v in lists) or weights.size != ends or (modes.size and modes.max() >= LEAF):
        raise refuse("the nodes differ in number", "nodes_modes", f"{count} of each, modes 0 to 6", str([len(v) for v in lists]),
                     code="QR204")  # fmt: skip
    none, missing = np.zeros(ends, np.int64), given["nodes_missing_value_tracks_true"] or (0,) * count
    return Forest(
        _within(np.asarray(given["tree_roots"], np.int64), count, "tree_roots"),
        np.concatenate([modes, none + LEAF]),
        np.concatenate([np.asarray(given["nodes_featureids"], np.int64), none]),
        np.concatenate([np.asarray(splits, np.float64), none]),
        np.concatenate([_next(ahead[0], ahead[1], count, ends), none]),
        np.concatenate([_next(ahead[2], ahead[3], count, ends), none]),
        np.concatenate([np.asarray(missing, np.int64), none]),
        count + np.arange(ends),
        np.asarray(given["leaf_targetids"], np.int64),
        np.asarray(weights, np.float64),
        _members(modes, given["membership_values"]),
    )


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


def numbers_of(values: Sequence[float] | None, tensor: Array | None) -> Array:
    return singles(values) if tensor is None else np.asarray(tensor.reshape(-1), np.float64)


def keyed_forest(
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
