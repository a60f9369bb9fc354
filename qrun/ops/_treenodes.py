"""Trees as the attributes of ai.onnx.ml have them, to a Forest."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._context import check_range, refuse
from qrun.ops._ml import Floats, singles
from qrun.ops._signature import Attributes
from qrun.ops._trees import LEAF, Forest, keyed, modes_of

Ints = tuple[int, ...]
Votes = tuple[Ints | None, Ints | None, Ints | None, Array]
"""Of each vote of a leaf: tree, node, target, weight."""


@frozen
class Trees(Attributes):
    """The attributes of both operators whose nodes are numbered within their trees."""

    base_values: Floats | None = None
    base_values_as_tensor: Array | None = None
    nodes_falsenodeids: Ints | None = None
    nodes_featureids: Ints | None = None
    nodes_hitrates: Floats | None = None
    nodes_hitrates_as_tensor: Array | None = None
    nodes_missing_value_tracks_true: Ints | None = None
    nodes_modes: tuple[str, ...] | None = None
    nodes_nodeids: Ints | None = None
    nodes_treeids: Ints | None = None
    nodes_truenodeids: Ints | None = None
    nodes_values: Floats | None = None
    nodes_values_as_tensor: Array | None = None
    post_transform: str = "NONE"

    @property
    def base(self) -> Array:
        """What scores begin with, float64."""
        return _numbers(self.base_values, self.base_values_as_tensor)

    def forest(self, votes: Votes) -> Forest:
        trees, numbers = keyed(self.nodes_treeids, self.nodes_nodeids, "nodes_treeids")
        count, modes = len(trees), modes_of(self.nodes_modes or ())
        thresholds = _numbers(self.nodes_values, self.nodes_values_as_tensor)
        given = self.nodes_featureids, self.nodes_truenodeids, self.nodes_falsenodeids
        lists = (*given, self.nodes_missing_value_tracks_true)
        features, holds, fails, tracks = (np.asarray(v or (0,) * count, np.int64) for v in lists)
        if any(len(v) != count for v in (modes, features, holds, fails, tracks, thresholds)):
            raise refuse("the nodes differ in number", "nodes_modes", f"{count} of each", str(len(modes)), code="QR204")
        order = np.lexsort((numbers, trees))
        ranked = np.stack([trees[order], numbers[order]], axis=1)
        if count > 1 and (ranked[1:] == ranked[:-1]).all(axis=1).any():
            raise refuse(
                "a tree has two nodes of one number", "nodes_nodeids", "each number once", "twice", code="QR204"
            )
        inner = modes != LEAF
        ahead = [np.where(inner, _places(ranked, order, trees, v, inner), 0) for v in (holds, fails)]
        tree, node = keyed(votes[0], votes[1], "target_treeids")
        targets, weights = np.asarray(votes[2] or (), np.int64), votes[3]
        if len(targets) != len(tree) or len(weights) != len(tree):
            got = str(len(weights))
            raise refuse("the weights differ in number", "target_weights", str(len(tree)), got, code="QR204")
        voters = _places(ranked, order, tree, node, np.ones(len(tree), bool))
        by_voter = np.argsort(voters, kind="stable")
        roots = np.sort(np.unique(trees, return_index=True)[1])
        cast = voters[by_voter], targets[by_voter], weights[by_voter]
        return Forest(roots, modes, features, thresholds, ahead[0], ahead[1], tracks, *cast, {})


@frozen
class Targets(Attributes):
    """What leaves say for the targets of a regression."""

    target_ids: Ints | None = None
    target_nodeids: Ints | None = None
    target_treeids: Ints | None = None
    target_weights: Floats | None = None
    target_weights_as_tensor: Array | None = None

    @property
    def votes(self) -> Votes:
        weights = _numbers(self.target_weights, self.target_weights_as_tensor)
        return self.target_treeids, self.target_nodeids, self.target_ids, weights


@frozen
class Classes(Attributes):
    """What leaves say for classes."""

    class_ids: Ints | None = None
    class_nodeids: Ints | None = None
    class_treeids: Ints | None = None
    class_weights: Floats | None = None
    class_weights_as_tensor: Array | None = None

    @property
    def votes(self) -> Votes:
        weights = _numbers(self.class_weights, self.class_weights_as_tensor)
        return self.class_treeids, self.class_nodeids, self.class_ids, weights


@frozen
class Ensemble(Attributes):
    """The attributes of TreeEnsemble, whose leaves are told apart from nodes."""

    leaf_targetids: Ints
    leaf_weights: Array
    nodes_falseleafs: Ints
    nodes_falsenodeids: Ints
    nodes_featureids: Ints
    nodes_modes: Array
    nodes_splits: Array
    nodes_trueleafs: Ints
    nodes_truenodeids: Ints
    tree_roots: Ints
    membership_values: Array | None = None
    nodes_hitrates: Array | None = None
    nodes_missing_value_tracks_true: Ints | None = None

    @property
    def forest(self) -> Forest:
        modes = self.nodes_modes.reshape(-1).astype(np.int64)
        count, ends = len(self.nodes_featureids), len(self.leaf_targetids)
        splits, weights = self.nodes_splits.reshape(-1), self.leaf_weights.reshape(-1)
        ahead = (self.nodes_trueleafs, self.nodes_truenodeids, self.nodes_falseleafs, self.nodes_falsenodeids)
        missing = self.nodes_missing_value_tracks_true or (0,) * count
        lists = (modes, splits, *ahead, missing)
        if any(len(v) != count for v in lists) or weights.size != ends or (modes.size and modes.max() >= LEAF):
            got = str([len(v) for v in lists])
            expected = f"{count} of each, modes 0 to 6"
            raise refuse("the nodes differ in number", "nodes_modes", expected, got, code="QR204")
        roots = np.asarray(self.tree_roots, np.int64)
        check_range(roots, count, "tree_roots", "node", "QR204")
        none = np.zeros(ends, np.int64)
        return Forest(
            roots,
            np.concatenate([modes, none + LEAF]),
            np.concatenate([np.asarray(self.nodes_featureids, np.int64), none]),
            np.concatenate([np.asarray(splits, np.float64), none]),
            np.concatenate([_next(ahead[0], ahead[1], count, ends), none]),
            np.concatenate([_next(ahead[2], ahead[3], count, ends), none]),
            np.concatenate([np.asarray(missing, np.int64), none]),
            count + np.arange(ends),
            np.asarray(self.leaf_targetids, np.int64),
            np.asarray(weights, np.float64),
            _members(modes, self.membership_values),
        )


def _next(leafs: Ints, ids: Ints, count: int, ends: int) -> Array:
    """The place of the next node, or leaf, after all nodes."""
    leaf, place = np.asarray(leafs, np.int64) != 0, np.asarray(ids, np.int64)
    check_range(place[leaf], ends, "nodes_truenodeids", "node", "QR204")
    check_range(place[~leaf], count, "nodes_truenodeids", "node", "QR204")
    return np.where(leaf, place + count, place)


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
