"""Planned ensembles of trees: nodes as the kernel walks them, and what the leaves that a row reaches add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.native.emit.forest import NODE
from qrun.native.errors import Declined
from qrun.native.machine.engine import Array, Engine, KernelCall, KernelSpec, Operand, Operation, row_tiles
from qrun.native.machine.memory import aligned_copy

_FLOAT = np.dtype(np.float32)


@frozen
class TreeNodes:
    """Nodes of trees. leaf: bool, of each node. Of other nodes: feature; threshold, float64; strict: the comparison is
    x < threshold, not x <= threshold; turned: the node holds where the comparison does not; holds, fails: the next
    node where this one holds, or not; missing: whether it holds for NaN. roots: of each tree. first [nodes + 1]: the
    number of each node's first vote; targets and weights, float64: of each vote."""

    leaf: Array
    feature: Array
    threshold: Array
    strict: Array
    turned: Array
    holds: Array
    fails: Array
    missing: Array
    roots: Array
    first: Array
    targets: Array
    weights: Array


@frozen
class PackedForest:
    """TreeNodes as a kernel of so many lanes walks them (emit/forest.py)."""

    nodes: Array
    roots: Array
    depths: Array
    first: Array
    targets: Array
    weights: Array


class TreeWalk(Operation):
    """float32 x [N, features] to the sums of votes, float64 [N, targets]; or, if `numbers` are given, to float32 [N,
    1]: the sum of one target, divided by the first of them, plus the second. Then no leaf has more than one vote.

    features: how many x has, of which nodes know no more.
    """

    def __init__(
        self,
        engine: Engine,
        packed: PackedForest,
        rows: int,
        features: int,
        targets: int,
        numbers: tuple[float, float] | None,
    ) -> None:
        self.engine, self.packed, self.numbers = engine, packed, numbers
        made = Operand((rows, targets), _FLOAT if numbers else np.dtype(np.float64))
        self.operands = (Operand((rows, features), _FLOAT), made)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        (rows, features), (_, targets) = (operand.shape for operand in self.operands)
        packed, lanes = self.packed, self.engine.isa.lanes
        one = self.numbers is not None
        form, out = ("one", "f32") if one else ("votes", "f64")
        spec = KernelSpec("forest", self.engine.isa.name, lanes, 1, 1, form, out, False)
        words = row_tiles(rows, len(packed.depths) * lanes * 64, self.engine.threads)
        words |= {"x_row": 4 * features, "y_row": (4 if one else 8) * targets, "groups": len(packed.depths)}
        held = {"nodes*": packed.nodes, "roots*": packed.roots, "depths*": packed.depths, "first*": packed.first}
        held |= {"targets*": packed.targets, "weights*": packed.weights}
        held["numbers*"] = np.array(self.numbers or (1.0, 0.0))
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole, arrays=held),)


class Winners(Operation):
    """Adds base, float64 [classes], to sums of votes [N, classes], float64 (or float32, for labels). Makes these sums
    as float32; or, if labels, int64 [classes], are given, the label of the greatest sum of each row, int64 [N]. Of
    equal sums the first one counts, and NaN is greater than all numbers."""

    def __init__(self, engine: Engine, sums: Operand, base: Array, labels: Array | None = None) -> None:
        self.engine, self.base, self.labels = engine, base, labels
        made = Operand(sums.shape, _FLOAT) if labels is None else Operand(sums.shape[:1], np.dtype(np.int64))
        self.operands = (sums, made)

    def _plan(self, strides: Sequence[int]) -> tuple[KernelCall, ...]:
        rows, classes = self.operands[0].shape
        form, out = ("scores", "f32") if self.labels is None else ("labels", "i64")
        form = "singles" if self.operands[0].dtype == _FLOAT else form
        spec = KernelSpec("winners", self.engine.isa.name, 1, 1, 1, form, out, False)
        words = row_tiles(rows, 8 * classes, self.engine.threads) | {"classes": classes}
        held = {"base*": self.base, "labels*": np.zeros(1, np.int64) if self.labels is None else self.labels}
        return (self.engine.kernels.call(spec, ("x*", "y*"), words, self.whole, arrays=held),)


def packed_forest(trees: TreeNodes, lanes: int, single: bool) -> PackedForest:
    """The trees for a kernel of so many lanes; single: each node has a weight, 0 without a vote.

    Raises Declined for trees that share nodes, or lead back to themselves.
    """
    old, following, depths = _walked(trees)
    count, inner = len(old), ~trees.leaf[old]
    nodes = np.zeros((count + 1, NODE), np.int32)  # the last one stands for trees that there are not
    nodes[:, 0], nodes[:, 1] = np.array(np.inf, np.float32).view(np.int32), 1
    nodes[:, 2] = np.append(following, count)
    own = old[inner]
    nodes[:count][inner, 0] = _limits(trees.threshold[own], trees.strict[own], trees.turned[own]).view(np.int32)
    nodes[:count][inner, 1] = 2 * trees.feature[own] + (trees.missing[own] ^ trees.turned[own])
    groups = -(-len(trees.roots) // lanes)
    roots = np.full(groups * lanes, count, np.int32)
    roots[: len(depths)] = np.arange(len(depths))
    steps = np.zeros(groups * lanes, np.int64)
    steps[: len(depths)] = depths
    begin, end = trees.first[old], trees.first[old + 1]
    first = np.concatenate([[0], np.cumsum(end - begin), [np.sum(end - begin)]])
    votes = np.repeat(begin - first[:count], end - begin) + np.arange(first[count])
    weights = trees.weights[votes]
    if single:
        weights = np.zeros(count)
        weights[end > begin] = trees.weights[begin[end > begin]]
    return PackedForest(
        aligned_copy(nodes),
        roots,
        steps.reshape(groups, lanes).max(axis=1, initial=0),
        first.astype(np.int32),
        np.append(trees.targets[votes], 0).astype(np.int32),
        np.append(weights, 0.0),
    )


def _walked(trees: TreeNodes) -> tuple[Array, Array, Array]:
    """Nodes level by level, those that a node leads to side by side; where these are, a leaf's being its own place; and
    the steps to the last leaf of each tree."""
    levels, following, count = [trees.roots], list[Array](), 0
    tree, depths = np.arange(len(trees.roots)), np.zeros(len(trees.roots), np.int64)
    while len(levels[-1]):
        level = levels[-1]
        inner = ~trees.leaf[level]
        own, ahead = level[inner], count + len(level)
        made = count + np.arange(len(level))
        made[inner] = ahead + 2 * np.arange(len(own))
        following.append(made)
        count = ahead
        depths[tree[inner]] += 1
        pair = np.stack([trees.holds[own], trees.fails[own]], axis=1)
        levels.append(np.where(trees.turned[own][:, None], pair[:, ::-1], pair).reshape(-1))
        tree = np.repeat(tree[inner], 2)
        if count + len(levels[-1]) > len(trees.leaf):
            raise Declined("nodes that several nodes lead to")
    return np.concatenate(levels), np.concatenate([*following, np.zeros(0, np.int64)]), depths


def _limits(threshold: Array, strict: Array, turned: Array) -> Array:
    """The greatest float32 at most as large, or less where that is asked for; NaN where there is none.

    No comparison with NaN holds: nodes that are turned around then hold where every number does not.
    """
    with np.errstate(all="ignore"):
        near = threshold.astype(np.float32)
        beyond = np.where(strict, near >= threshold, near > threshold)
        lower = np.nextafter(near, np.float32(-np.inf))
        found = np.where(beyond, np.where(near == -np.inf, np.float32(np.nan), lower), near)
        return np.where(turned & np.isnan(threshold), np.inf, found).astype(np.float32)
