"""Linear models of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from qrun.ops._ml import ML, NUMBERS, Floats, kept_singles, labels_of, one_of_two, rows_of, single_results, transformed
from qrun.ops._op import Array, Context, op, refuse


@op("LinearRegressor", since=1, domain=ML, types={"T": (NUMBERS, "X")})
def linear_regressor(
    X: Array,
    *,
    coefficients: Floats | None = None,
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
    ctx: Context,
) -> Array:
    """X @ coefficients' + intercepts, then post_transform: float32 [N,targets]; coefficients [targets,F], in order.

    In float64 and rounded once. Raises OperatorError for numbers of coefficients and intercepts that do not fit.
    """
    return single_results(transformed(_scores(X, coefficients, intercepts, targets, ctx), post_transform), ctx)


@op("LinearClassifier", since=1, domain=ML, types={"T1": (NUMBERS, "X")})
def linear_classifier(
    X: Array,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: Floats,
    intercepts: Floats | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
    ctx: Context,
) -> tuple[Array, Array]:
    """The class with the greatest score, its label [N], and all scores, float32 [N,classes].

    Scores as in LinearRegressor, one row of coefficients for each class; of equal ones the first class. Two labels may have
    one row: the second class wins where its score s is above 0, and the scores are 1 - s and s, with LOGISTIC those of
    logistic(s); no other post_transform is done then. multi_class changes nothing. In float64 and rounded once.
    Raises OperatorError for labels and numbers that do not fit.
    """
    labels = labels_of(classlabels_strings, classlabels_ints, ctx.memo)
    width = rows_of(X).shape[1]
    rows = len(coefficients) // width if width else len(labels)
    if rows not in (len(labels), 1) or (rows == 1 and len(labels) not in (1, 2)):
        expected = f"{width * len(labels)}, one for each feature and class"
        raise refuse("coefficients do not fit", "coefficients", expected, str(len(coefficients)), code="QR204")
    scores = _scores(X, coefficients, intercepts, rows, ctx)
    if rows == 1 and len(labels) == 2:
        places = (scores[:, 0] > 0).astype(np.int64)
        made = one_of_two(scores[:, 0], post_transform)
    else:
        places = np.argmax(scores, axis=1) if len(scores) else np.zeros(0, np.int64)
        made = transformed(scores, post_transform)
    ctx.claim((len(scores),), 8)
    return labels[places], single_results(made, ctx)


def _scores(x: Array, coefficients: Floats | None, intercepts: Floats | None, rows: int, ctx: Context) -> Array:
    weights = kept_singles("coefficients", coefficients, ctx.memo)
    table, added = rows_of(x), kept_singles("intercepts", intercepts, ctx.memo)
    if rows < 1 or weights.size != rows * table.shape[1]:
        raise refuse(
            "coefficients do not fit", "coefficients", str(rows * table.shape[1]), str(weights.size), code="QR204"
        )
    if added.size not in (0, rows):
        raise refuse("intercepts do not fit", "intercepts", str(rows), str(added.size), code="QR204")
    ctx.claim((len(table), rows), 16)
    with np.errstate(all="ignore"):
        made = table @ weights.reshape(rows, -1).T
        return np.asarray(made + added if added.size else made)
