"""Ensembles of trees of ai.onnx.ml: TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.ops._complete import ALWAYS
from qrun.ops._float import narrow
from qrun.ops._functions import logistic
from qrun.ops._ml import ML, NUMBERS, TRANSFORMS, labels_of, one_of_two, rows_of, single_results, transformed
from qrun.ops._op import Array, Context, one_of, op, require
from qrun.ops._treenodes import Classes, Ensemble, Targets, Trees
from qrun.ops._trees import (
    AGGREGATES,
    LEAF,
    MODES,
    Forest,
    based,
    check_votes,
    leaves,
    require_features,
    votes,
)
from qrun.ops.lowering.kernel import (
    Inputs,
    LoweringContext,
    NativeKernel,
    NativeSection,
    Stage,
    declined,
    kernel_of,
    require_type,
    staged_kernel,
)

if TYPE_CHECKING:
    from qrun.native.kernels.forest import TreeWalk

Ints = tuple[int, ...]


@op("TreeEnsembleRegressor", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def tree_ensemble_regressor(
    X: Array,
    *,
    trees: Trees,
    targets: Targets,
    aggregate_function: str = "SUM",
    n_targets: int = 1,
    ctx: Context,
) -> Array:
    """What the leaves that a row reaches say for each target, aggregated, plus base_values: float32 [N,n_targets].

    X [N,F]. A node compares the row's feature with its value (BRANCH_LEQ, _LT, _GTE, _GT, _EQ, _NEQ) and goes to the
    true or the false node; NaN goes to the false one, or the true one where nodes_missing_value_tracks_true is 1.
    aggregate_function SUM, AVERAGE (over trees), MIN, MAX; base_values: one for each target, or one for all. In
    float64, tree by tree, and rounded once, after post_transform.
    Raises OperatorError for lists that do not fit and trees with circles.
    Source: ONNX-ML operators, TreeEnsembleRegressor-3.
    """
    one_of("aggregate_function", aggregate_function, AGGREGATES)
    forest = ctx.memo.once("forest", lambda: trees.forest(targets.votes))
    scores = votes(forest, leaves(forest, rows_of(X), ctx), n_targets, aggregate_function, trees.base, ctx)
    return single_results(transformed(scores, trees.post_transform), ctx)


@tree_ensemble_regressor.native
def _lower_regressor(site: LoweringContext) -> NativeKernel:
    given = site.attributes
    trees = Trees.of(given)
    forest = site.memo.once("forest", lambda: trees.forest(Targets.of(given).votes))
    return sums_kernel(site, forest, given["n_targets"], given["aggregate_function"], trees.base, trees.post_transform)


@op("TreeEnsembleClassifier", since=1, domain=ML, types={"T1": (NUMBERS, "X")})
def tree_ensemble_classifier(
    X: Array,
    *,
    trees: Trees,
    classes: Classes,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    ctx: Context,
) -> tuple[Array, Array]:
    """The class with the greatest sum of the leaves that a row reaches, its label [N], and all scores,
    float32 [N,classes].

    Trees as in TreeEnsembleRegressor, whose sums are the scores; of equal ones the first class. Of two classes where
    the leaves vote for one only, s is their sum: if no weight is negative the scores are 1 - s and s, with LOGISTIC
    those of logistic(s), and the second class wins above 0.5; else -s and s, with LOGISTIC of each, and it wins above
    0. In float64 and rounded once. Raises OperatorError for lists that do not fit and trees with circles.
    Source: ONNX-ML operators, TreeEnsembleClassifier-3.
    """
    labels = labels_of(classlabels_strings, classlabels_int64s, ctx.memo)
    forest, base = ctx.memo.once("forest", lambda: trees.forest(classes.votes)), trees.base
    at = leaves(forest, rows_of(X), ctx)
    voted = np.unique(forest.targets)
    if len(labels) == 2 and len(voted) == 1:
        sums = votes(forest, at, 2, "SUM", np.zeros(0), ctx)[:, voted[0]] + (base[-1] if base.size else 0.0)
        return _classes(labels, sums, bool((forest.weights >= 0).all()), trees.post_transform, ctx)
    return _classes(labels, votes(forest, at, len(labels), "SUM", base, ctx), False, trees.post_transform, ctx)


@tree_ensemble_classifier.native
def _lower_classifier(site: LoweringContext) -> NativeKernel:
    given = site.attributes
    labels = labels_of(given["classlabels_strings"], given["classlabels_int64s"], site.memo)
    trees = Trees.of(given)
    forest = site.memo.once("forest", lambda: trees.forest(Classes.of(given).votes))
    base, post = trees.base, trees.post_transform
    voted, positive = np.unique(forest.targets), bool((forest.weights >= 0).all())
    single = len(labels) == 2 and len(voted) == 1
    require_features(forest, rows_of(site.inputs[0]))
    check_votes(forest, len(labels), np.zeros(0) if single else base)
    transformed(np.zeros((0, 1)), post)

    def classes(total: Array) -> tuple[Array, Array]:
        if single:
            total = total[:, voted[0]] + (base[-1] if base.size else 0.0)
            return _classes(labels, total, positive, post, Context())
        return _classes(labels, based(total, 1, "SUM", base), False, post, Context())

    site.ctx.claim((len(rows_of(site.inputs[0])), len(labels)), 16)
    if not single and post == "NONE" and labels.dtype == np.int64 and site.inputs[0].ndim == 2:
        return _winners_kernel(site, forest, labels, base)
    return forest_kernel(site, forest, len(labels), classes)


def _winners_kernel(site: LoweringContext, forest: Forest, labels: Array, base: Array) -> NativeKernel:
    """The kernel of a classifier of which the sums of votes and base_values are the scores."""
    from qrun.native.kernels.forest import Winners

    walk = _tree_walk(site, forest, len(labels), None)
    added = np.broadcast_to(base if base.size else np.float64(-0.0), labels.shape).copy()
    stages = [Stage(walk, (0,), "sums")]
    if site.ctx.wants(0):
        stages.append(Stage(Winners(site.engine, walk.result, added, labels), ("sums",), 0))
    if site.ctx.wants(1):
        stages.append(Stage(Winners(site.engine, walk.result, added), ("sums",), 1))
    return staged_kernel(site, stages, [walk], ALWAYS)


def _classes(labels: Array, scores: Array, positive: bool, post_transform: str, ctx: Context) -> tuple[Array, Array]:
    """Labels and scores; scores: [N,classes], or [N] of one of two classes;
    positive: whether no vote of these is negative."""
    if scores.ndim == 1:
        places, scores = _one_of_two(scores, positive, post_transform)
    else:
        places = np.argmax(scores, axis=1) if len(scores) else np.zeros(0, np.int64)
        scores = transformed(scores, post_transform)
    ctx.claim((len(places),), 8)
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
    nodes: Ensemble,
    aggregate_function: int = 1,
    n_targets: int = 1,
    post_transform: int = 0,
    ctx: Context,
) -> Array:
    """As TreeEnsembleRegressor, of X's type, with leaves that are told apart from nodes: [N,n_targets].

    Modes by number, 6 being BRANCH_MEMBER: whether the feature is one of the node's membership_values, which NaN
    separates. aggregate_function 0 AVERAGE, 1 SUM, 2 MIN, 3 MAX; post_transform 0 NONE, 1 SOFTMAX, 2 LOGISTIC, 3
    SOFTMAX_ZERO, 4 PROBIT. In float64 and rounded once.
    """
    aggregate, post = _modes(aggregate_function, post_transform)
    forest = ctx.memo.once("forest", lambda: nodes.forest)
    at = leaves(forest, rows_of(X), ctx)
    scores = votes(forest, at, n_targets, aggregate, np.zeros(0), ctx)
    return narrow(transformed(scores, post), X.dtype)


@tree_ensemble.native
def _lower_ensemble(site: LoweringContext) -> NativeKernel:
    given = site.attributes
    aggregate, post = _modes(given["aggregate_function"], given["post_transform"])
    forest = site.memo.once("forest", lambda: Ensemble.of(given).forest)
    return sums_kernel(site, forest, given["n_targets"], aggregate, np.zeros(0), post)


def _modes(aggregate_function: int, post_transform: int) -> tuple[str, str]:
    """The names of both, which are given by number."""
    require("aggregate_function", 0 <= aggregate_function <= 3, "0 to 3", aggregate_function)
    require("post_transform", 0 <= post_transform <= 4, "0 to 4", post_transform)
    return AGGREGATES[aggregate_function], TRANSFORMS[post_transform]


_TURNED = ("BRANCH_GTE", "BRANCH_GT")
_STRICT = ("BRANCH_LT", "BRANCH_GTE")
_PLAIN = ("BRANCH_LEQ", *_STRICT, "BRANCH_GT", "LEAF")


def sums_kernel(
    site: LoweringContext, forest: Forest, targets: int, aggregate: str, base: Array, post: str
) -> NativeKernel:
    """The kernel of a regression: sums or means of votes, what they begin with, and a post_transform."""
    one_of("aggregate_function", aggregate, AGGREGATES)
    x, trees = site.inputs[0], len(forest.roots)
    require_features(forest, rows_of(x))
    check_votes(forest, targets, base)
    transformed(np.zeros((0, 1)), post)
    if aggregate not in ("SUM", "AVERAGE"):
        raise declined(f"no native trees with {aggregate}")
    site.ctx.claim((len(rows_of(x)), targets), 16)
    most = np.unique(forest.voters, return_counts=True)[1].max(initial=0)
    if targets == 1 and most <= 1 and post == "NONE" and x.ndim == 2:
        own = float(base[0]) if base.size == 1 else -0.0
        return forest_kernel(site, forest, 1, None, (float(max(trees, 1)) if aggregate == "AVERAGE" else 1.0, own))

    def finished(total: Array) -> Array:
        with np.errstate(all="ignore"):
            return transformed(based(total, trees, aggregate, base), post).astype(np.float32)

    return forest_kernel(site, forest, targets, finished)


def forest_kernel(
    site: LoweringContext,
    forest: Forest,
    targets: int,
    finished: Callable[[Array], Any] | None,
    numbers: tuple[float, float] | None = None,
) -> NativeKernel:
    """The kernel of trees. finished: what is made of sums, float64 [N,targets]; or numbers: as TreeWalk has them."""
    operation = _tree_walk(site, forest, targets, numbers)
    if finished is None:
        return kernel_of(site, operation, (0,), ALWAYS)
    sections = tuple(NativeSection(s.spec.key(), s.spec.shown_form, 0, targets) for s in operation.tight)
    shape = operation.operands[0].shape

    def run(inputs: Inputs) -> Any:
        return finished(site.engine.run(operation, [inputs[0].reshape(shape)]))

    return NativeKernel(run, ALWAYS, sections)


def _tree_walk(site: LoweringContext, forest: Forest, targets: int, numbers: tuple[float, float] | None) -> TreeWalk:
    """The trees planned for these rows. Raises what the reference raises, and Declined."""
    from qrun.native.kernels.forest import TreeWalk, packed_forest

    x = site.inputs[0]
    require_features(forest, rows_of(x))
    votes(forest, leaves(forest, rows_of(x)[:0], site.ctx), targets, "SUM", np.zeros(0), site.ctx)
    require_type(x.dtype == np.float32, x.dtype, "trees of {}")
    unknown = next((MODES[mode] for mode in np.unique(forest.modes) if MODES[mode] not in _PLAIN), None)
    if unknown is not None:
        raise declined(f"no native trees with {unknown}")
    rows, features = rows_of(x).shape
    if not rows or not features:
        raise declined("an empty tensor")
    site.afford(64 * len(forest.modes) + 16 * len(forest.weights) + 8 * rows * targets)
    lanes, single = site.engine.isa.lanes, numbers is not None
    packed = site.memo.once(("packed", lanes, single), lambda: packed_forest(_nodes(forest), lanes, single))
    return TreeWalk(site.engine, packed, rows, features, targets, numbers)


def _nodes(forest: Forest) -> Any:
    """The trees as the engine takes them."""
    from qrun.native.kernels.forest import TreeNodes

    modes = forest.modes
    turned, strict = (np.isin(modes, [MODES.index(name) for name in names]) for names in (_TURNED, _STRICT))
    first = np.searchsorted(forest.voters, np.arange(len(modes) + 1))
    return TreeNodes(
        modes == LEAF,
        forest.features,
        forest.thresholds,
        strict,
        turned,
        forest.holds,
        forest.fails,
        forest.missing != 0,
        forest.roots,
        first,
        forest.targets,
        forest.weights,
    )
