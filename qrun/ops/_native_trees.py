"""Native lowerings of ensembles of trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qrun.ir import Array
from qrun.ops._complete import ALWAYS
from qrun.ops._context import one_of
from qrun.ops._ml import rows_of, transformed
from qrun.ops._native import Inputs, LoweringContext, NativeKernel, NativeSection, declined, kernel_of, require_type
from qrun.ops._trees import AGGREGATES, LEAF, MODES, Forest, based, check_base, check_targets, leaves, votes

_TURNED = ("BRANCH_GTE", "BRANCH_GT")
_STRICT = ("BRANCH_LT", "BRANCH_GTE")
_PLAIN = ("BRANCH_LEQ", *_STRICT, "BRANCH_GT", "LEAF")


def sums_kernel(
    site: LoweringContext, forest: Forest, targets: int, aggregate: str, base: Array, post: str
) -> NativeKernel:
    """The kernel of a regression: sums or means of votes, what they begin with, and a post_transform."""
    one_of("aggregate_function", aggregate, AGGREGATES)
    transformed(np.zeros((0, 1)), post)
    check_targets(targets)
    check_base(base, targets)
    x, trees = site.inputs[0], len(forest.roots)
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
    from qrun.native.kernels.forest import TreeWalk, packed_forest

    x = site.inputs[0]
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
    operation = TreeWalk(site.engine, packed, rows, features, targets, numbers)
    if finished is None:
        return kernel_of(site, operation, (0,), ALWAYS)
    sections = tuple(NativeSection(s.spec.key(), s.spec.shown_form, 0, targets) for s in operation.tight)

    def run(inputs: Inputs) -> Any:
        return finished(site.engine.run(operation, [inputs[0].reshape(rows, features)]))

    return NativeKernel(run, ALWAYS, sections)


def _nodes(forest: Forest) -> Any:
    """The trees as the engine takes them."""
    from qrun.native.kernels.forest import TreeNodes

    modes = forest.modes
    turned, strict = (np.isin(modes, [MODES.index(name) for name in names]) for names in (_TURNED, _STRICT))
    first = np.searchsorted(forest.voters, np.arange(len(modes) + 1))
    return TreeNodes(
        modes == LEAF, forest.features, forest.thresholds, strict, turned, forest.holds, forest.fails,
        forest.missing != 0, forest.roots, first, forest.targets, forest.weights,
    )  # fmt: skip
