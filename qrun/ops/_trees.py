"""Ensembles of trees as arrays, the leaves that rows reach, and what leaves add up to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops._context import Context, misfit, refuse, require

MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER", "LEAF")
LEAF = len(MODES) - 1
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


@frozen
class Forest:
    """Trees. roots: node of each. Of nodes: mode (a place in MODES), feature, threshold, the next nodes where the
    comparison holds and where not, and whether NaN goes to the former. Of votes: the leaf that casts it, in ascending
    order, its target and its weight, float64. members: of nodes that ask for membership."""

    roots: Array
    modes: Array
    features: Array
    thresholds: Array
    holds: Array
    fails: Array
    missing: Array
    voters: Array
    targets: Array
    weights: Array
    members: dict[int, Array]


def require_features(forest: Forest, x: Array) -> None:
    """Raise OperatorError where a node asks for a feature that rows x [N,F] do not have."""
    features = forest.features[forest.modes != LEAF]
    if features.size and (features.min() < 0 or features.max() >= x.shape[1]):
        bad = int(features.max() if features.max() >= x.shape[1] else features.min())
        raise misfit(f"there is no feature {bad}", "X", f"{bad + 1} features or more", x)


def leaves(forest: Forest, x: Array, ctx: Context) -> Array:
    """The leaf of each row [N,F] in each tree, int64 [N,trees]."""
    ctx.claim((len(x), len(forest.roots)), 48, "leaves")
    require_features(forest, x)
    inner = forest.modes != LEAF
    at = np.broadcast_to(forest.roots, (len(x), len(forest.roots))).copy()
    rows = np.arange(len(x))[:, None]
    for _ in range(len(forest.modes) + 1):
        going = inner[at]
        if not going.any():
            return at
        value, limit = (
            x[rows, np.where(going, forest.features[at], 0)] if x.shape[1] else x[:, :0],
            forest.thresholds[at],
        )
        holds = _compared(forest.modes[at], value, limit)
        for node, members in forest.members.items():
            here = at == node
            holds[here] = np.isin(value[here], members)
        holds |= np.isnan(value) & (forest.missing[at] != 0)
        at = np.where(going, np.where(holds, forest.holds[at], forest.fails[at]), at)
    raise refuse("a tree leads back to itself", "nodes_truenodeids", "trees", "a circle", code="QR204")


def _compared(modes: Array, value: Array, limit: Array) -> Array:
    with np.errstate(all="ignore"):
        found = (value <= limit, value < limit, value >= limit, value > limit, value == limit, value != limit)
    return np.select([modes == number for number in range(len(found))], found, False)


def votes(forest: Forest, at: Array, targets: int, aggregate: str, base: Array, ctx: Context) -> Array:
    """What the leaves [N,trees] add up to for each target, plus base: float64 [N,targets];
    without votes that is base."""
    check_votes(forest, targets, base)
    ctx.claim((len(at), targets), 16)
    total, told = np.zeros((len(at), targets)), np.zeros((len(at), targets), bool)
    first = np.searchsorted(forest.voters, np.arange(len(forest.modes)))
    count = np.searchsorted(forest.voters, np.arange(len(forest.modes)), side="right") - first
    most = int(count.max(initial=0))
    with np.errstate(all="ignore"):
        for tree in range(at.shape[1]):
            leaf = at[:, tree]
            for number in range(most):
                rows = np.flatnonzero(count[leaf] > number)
                vote = first[leaf[rows]] + number
                _add(total, told, rows, forest.targets[vote], forest.weights[vote], aggregate)
        return based(total, at.shape[1], aggregate, base)


def based(total: Array, trees: int, aggregate: str, base: Array) -> Array:
    """Sums of votes [N,targets], averaged if that is asked for, and base_values."""
    with np.errstate(all="ignore"):
        total = total / max(trees, 1) if aggregate == "AVERAGE" else total
        return np.asarray(total + base if base.size else total)


def check_votes(forest: Forest, targets: int, base: Array) -> None:
    """Raises OperatorError for fewer than one target, for votes for others, and for base_values that are not one for
    each of them, one for all, or none."""
    require("n_targets", targets >= 1, "1 or more", targets)
    if forest.targets.size and (forest.targets.min() < 0 or forest.targets.max() >= targets):
        bad = int(forest.targets.max() if forest.targets.max() >= targets else forest.targets.min())
        raise refuse(f"a leaf votes for target {bad}", "n_targets", f"0 to {targets - 1}", str(bad), code="QR204")
    if base.size not in (0, 1, targets):
        expected = f"{targets}, 1 or none"
        raise refuse(f"base_values has {base.size} numbers", "base_values", expected, base.size, code="QR204")


def _add(total: Array, told: Array, rows: Array, targets: Array, weights: Array, aggregate: str) -> None:
    held = total[rows, targets]
    if aggregate in ("MIN", "MAX"):
        chosen = (np.minimum if aggregate == "MIN" else np.maximum)(held, weights)
        total[rows, targets] = np.where(told[rows, targets], chosen, weights)
    else:
        total[rows, targets] = held + weights
    told[rows, targets] = True


def keyed(trees: Sequence[int] | None, nodes: Sequence[int] | None, name: str) -> tuple[Array, Array]:
    """Tree and node numbers, int64, checked to be as many."""
    made = [np.asarray(v or (), np.int64) for v in (trees, nodes)]
    if len(made[0]) != len(made[1]):
        raise refuse(f"{name} differ in number", name, str(len(made[0])), str(len(made[1])), code="QR204")
    return made[0], made[1]


def modes_of(names: Sequence[str]) -> Array:
    unknown = next((name for name in names if name not in MODES or name == "BRANCH_MEMBER"), None)
    if unknown is not None:
        known = ", ".join(m for m in MODES if m != "BRANCH_MEMBER")
        raise refuse(f"a node has mode {unknown}", "nodes_modes", known, unknown, code="QR204")
    table = {name: number for number, name in enumerate(MODES)}
    return np.array([table[name] for name in names], np.int64)
