"""Support vector machines of ai.onnx.ml."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from qrun.ops._functions import logistic
from qrun.ops._ml import ML, NUMBERS, Floats, kept_singles, labels_of, rows_of, single_results, transformed
from qrun.ops._op import Array, Context, one_of, op, require, require_count

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_LEAST = 1e-7
_ERROR = 0.005


@op("SVMRegressor", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def svm_regressor(
    X: Array,
    *,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
    ctx: Context,
) -> Array:
    """sum over j of coefficients[j] * k(x, support_vectors[j]) + rho[0]: float32 [N,1];
    with one_class 1 above 0, else -1.

    X [N,F]; support_vectors [n_supports,F], in order; with none it is x @ coefficients + rho[0]. kernel_params gamma,
    coef0 and degree; k: LINEAR x.v, POLY (gamma x.v + coef0)**degree, RBF exp(-gamma |x - v|**2), SIGMOID tanh(gamma
    x.v + coef0). In float64 and rounded once. Raises OperatorError for lists that do not fit.
    """
    table, memo = rows_of(X), ctx.memo
    weights, added = kept_singles("coefficients", coefficients, memo), kept_singles("rho", rho, memo)
    require_count("rho", added.size > 0, "1 number", added.size)
    wanted = n_supports or table.shape[1]
    require_count("coefficients", weights.size == wanted, str(wanted), weights.size)
    values = _kernel(table, n_supports, support_vectors, kernel_type, kernel_params, ctx)
    with np.errstate(all="ignore"):
        scores = (values @ weights + added[0])[:, None]
    if one_class:
        return single_results(np.where(scores > 0, 1.0, -1.0), ctx)
    return single_results(transformed(scores, post_transform), ctx)


@op("SVMClassifier", since=1, domain=ML, types={"T1": (NUMBERS, "X")})
def svm_classifier(
    X: Array,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats | None = None,
    prob_b: Floats | None = None,
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
    vectors_per_class: tuple[int, ...] | None = None,
    ctx: Context,
) -> tuple[Array, Array]:
    """The class that most pairs of classes vote for, its label [N], and scores, float32, after post_transform.

    X [N,F]; S support vectors [S,F], vectors_per_class of them for each of the C classes, in order; coefficients
    [C-1,S]. The score of classes i < j adds rho of the pair, coefficients[j-1] * k(x, v) over the vectors v of i and
    coefficients[i] * k(x, v) over those of j, with the k of SVMRegressor: above 0 it votes for i, else for j; of equal
    votes the first class wins. Scores are those of the pairs 01, 02, ..., 12, ... [N,C(C-1)/2]; of two classes -s and
    s. With prob_a and prob_b, numbers of the pairs, scores are probabilities [N,C]: those of pairs, 1 / (1 + exp(a s +
    b)) but at least 1e-7 from 0 and 1, coupled by the iteration of libsvm until no error is above 0.005 / C.
    Without vectors the scores are x @ coefficients' + rho[0], coefficients [C,F], and the greatest wins.
    In float64 and rounded once. Raises OperatorError for lists that do not fit.
    """
    memo, table = ctx.memo, rows_of(X)
    labels = labels_of(classlabels_strings, classlabels_ints, memo)
    weights, added = kept_singles("coefficients", coefficients, memo), kept_singles("rho", rho, memo)
    shares = [kept_singles(name, given, memo) for name, given in (("prob_a", prob_a), ("prob_b", prob_b))]
    counts = vectors_per_class or ()
    supports, classes = sum(counts), len(labels)
    pairs = classes * (classes - 1) // 2 if counts else 1
    wanted = (classes - 1) * supports if counts else classes * table.shape[1]
    _check_counts(counts, classes, added.size, pairs)
    require_count("coefficients", weights.size == wanted, str(wanted), weights.size)
    _check_shares(shares, pairs if counts else 0)
    values = _kernel(table, supports if counts else 0, support_vectors, kernel_type, kernel_params, ctx)
    ctx.claim((len(table), max(pairs, classes)), 24)
    if not counts:
        places, scores = _line_scores(values, weights.reshape(classes, -1), added[0])
        return labels[places], single_results(transformed(scores, post_transform), ctx)
    scores = _pair_scores(values, weights.reshape(classes - 1, supports), counts, added)
    places = _winners(scores, classes)
    if shares[0].size:
        scores = _probabilities(scores, shares[0], shares[1], classes)
    elif classes == 2:
        scores = np.concatenate([-scores, scores], axis=1)
    return labels[places], single_results(transformed(scores, post_transform), ctx)


def _check_counts(counts: tuple[int, ...], classes: int, added: int, pairs: int) -> None:
    """Refuse vectors_per_class that are not those of the classes, and another number of rho than there are pairs."""
    require_count("vectors_per_class", len(counts) in (0, classes), f"{classes}, one for each class", len(counts))
    require("vectors_per_class", min(counts, default=0) >= 0, "0 or more", min(counts, default=0))
    require_count("rho", added == pairs if counts else added > 0, str(pairs), added)


def _line_scores(values: Array, weights: Array, added: np.float32) -> tuple[Array, Array]:
    """The greatest score of each row, by number, and the scores [N, C], of classes that have no vectors."""
    with np.errstate(all="ignore"):
        scores = values @ weights.T + added
    return np.argmax(scores, axis=1) if len(scores) else np.zeros(0, np.int64), scores


def _check_shares(shares: Sequence[Array], pairs: int) -> None:
    """Refuse prob_a and prob_b that are not as many as the pairs, or none."""
    wanted = pairs if shares[0].size else 0
    for name, given in zip(("prob_a", "prob_b"), shares, strict=True):
        require_count(name, given.size in (wanted, 0) and given.size == shares[0].size, str(wanted), given.size)


def _kernel(
    x: Array, count: int, supports: Floats | None, kind: str, kernel_params: Floats | None, ctx: Context
) -> Array:
    """k of each row of x and each of `count` support vectors, float64 [N,count]; x itself where there are none."""
    parameters = kept_singles("kernel_params", kernel_params or (0.0, 0.0, 0.0), ctx.memo)
    wanted = count * x.shape[1]
    one_of("kernel_type", kind, _KERNELS)
    require_count("kernel_params", parameters.size == 3, "gamma, coef0 and degree", parameters.size)
    require_count("support_vectors", len(supports or ()) == wanted, str(wanted), len(supports or ()))
    ctx.claim((len(x), max(count, 1), x.shape[1] if kind == "RBF" else 2), 8)
    if not count:
        return x
    vectors = kept_singles("support_vectors", supports, ctx.memo).reshape(count, -1)
    gamma, shift, degree = parameters.tolist()
    with np.errstate(all="ignore"):
        if kind == "RBF":
            return np.asarray(np.exp(-gamma * np.square(x[:, None] - vectors).sum(axis=2)))
        products = np.asarray(x @ vectors.T)
        if kind == "LINEAR":
            return products
        made = gamma * products + shift
        return np.asarray(made**degree if kind == "POLY" else np.tanh(made))


def _pair_scores(values: Array, weights: Array, counts: Sequence[int], added: Array) -> Array:
    """The score of every two classes, [N,C(C-1)/2], from the kernels [N,S] and coefficients [C-1,S]."""
    ends = np.cumsum(counts).tolist()
    own = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    scores = np.empty((len(values), added.size))
    with np.errstate(all="ignore"):
        for place, (i, j) in enumerate(itertools.combinations(range(len(counts)), 2)):
            first, second = values[:, own[i]] @ weights[j - 1, own[i]], values[:, own[j]] @ weights[i, own[j]]
            scores[:, place] = added[place] + first + second
    return scores


def _winners(scores: Array, classes: int) -> Array:
    votes = np.zeros((len(scores), classes), np.int64)
    for place, (i, j) in enumerate(itertools.combinations(range(classes), 2)):
        won = scores[:, place] > 0
        votes[:, i] += won
        votes[:, j] += ~won
    return np.argmax(votes, axis=1) if len(votes) else np.zeros(0, np.int64)


def _probabilities(scores: Array, a: Array, b: Array, classes: int) -> Array:
    with np.errstate(all="ignore"):
        shares = np.clip(logistic(-(scores * a + b)), _LEAST, 1 - _LEAST)
    made = np.empty((len(scores), classes))
    for row, known in enumerate(shares):
        against = np.zeros((classes, classes))
        against[np.triu_indices(classes, 1)] = known
        against += np.tril(1 - against.T, -1)
        made[row] = _coupled(against)
    return made


def _coupled(against: Array) -> Array:
    """The probabilities p of classes where `against[i,j]` is that of i if it is i or j, [C,C] with a diagonal of 0.

    They make the sum of (against[j,i] p[i] - against[i,j] p[j])**2 least; the iteration stops as that of libsvm does.
    Source: Wu, Lin and Weng, Probability Estimates for Multi-class Classification by Pairwise Coupling, algorithm 2.
    """
    count = len(against)
    q = -against.T * against
    np.fill_diagonal(q, np.square(against).sum(axis=0))
    p = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        slope = q @ p
        mean = float(p @ slope)
        if np.abs(slope - mean).max() < _ERROR / count:
            break
        for t in range(count):
            step = (mean - slope[t]) / q[t, t]
            p[t] += step
            mean = (mean + step * (step * q[t, t] + 2 * slope[t])) / (1 + step) ** 2
            slope = (slope + step * q[t]) / (1 + step)
            p /= 1 + step
    return p
