"""Linear models of ai.onnx.ml."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qrun.declare.memo import Memo
from qrun.ops._chains import chained_products
from qrun.ops._complete import ALWAYS
from qrun.ops._float import widen
from qrun.ops._ml import ML, NUMBERS, Floats, kept_singles, labels_of, one_of_two, rows_of, single_results, transformed
from qrun.ops._op import Array, Context, op, refuse
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, Stage, declined, staged_kernel
from qrun.ops.lowering.products import matmul_kernel

SCORES = "scores"


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

    The sums of a float32 X are those of Gemm, others are added in float64 and rounded.
    SOFTMAX and LOGISTIC of a float32 X are Softmax and Sigmoid, other results are made in float64 and rounded once.
    Raises OperatorError for numbers of coefficients and intercepts that do not fit.
    """
    return single_results(transformed(_scores(X, coefficients, intercepts, targets, ctx), post_transform), ctx)


@linear_regressor.native
def _lower_regressor(site: LoweringContext) -> NativeKernel:
    stages = _score_stages(site, site.attributes["targets"], 0)
    return staged_kernel(site, stages, [stages[0].operation], ALWAYS)


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

    Scores as in LinearRegressor, one row of coefficients for each class; of equal ones the first class. Two labels may
    have one row: the second class wins where its score s is above 0, and the scores are 1 - s and s, with LOGISTIC
    those of logistic(s); no other post_transform is done then. multi_class changes nothing.
    Raises OperatorError for labels and numbers that do not fit.
    """
    labels = labels_of(classlabels_strings, classlabels_ints, ctx.memo)
    rows = _rows(X, coefficients, len(labels))
    scores = _scores(X, coefficients, intercepts, rows, ctx)
    if rows == 1 and len(labels) == 2:
        places = (scores[:, 0] > 0).astype(np.int64)
        made = one_of_two(scores[:, 0], post_transform)
    else:
        places = np.argmax(scores, axis=1) if len(scores) else np.zeros(0, np.int64)
        made = transformed(scores, post_transform)
    ctx.claim((len(scores),), 8)
    return labels[places], single_results(made, ctx)


@linear_classifier.native
def _lower_classifier(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.forest import Winners

    given, x = site.attributes, site.inputs[0]
    labels = labels_of(given["classlabels_strings"], given["classlabels_ints"], site.memo)
    rows = _rows(x, given["coefficients"], len(labels))
    if labels.dtype != np.int64 or rows != len(labels):
        raise declined("labels that are texts, or one row of coefficients for two classes")
    stages = _score_stages(site, rows, 1)
    if site.ctx.wants(0):
        winners = Winners(site.engine, stages[0].operation.result, np.full(rows, -0.0), labels)
        stages.insert(1, Stage(winners, (SCORES,), 0))
    return staged_kernel(site, stages, [stages[0].operation], ALWAYS)


def _rows(x: Array, coefficients: Floats, classes: int) -> int:
    """How many rows of coefficients a classifier has; refuses what does not fit."""
    width = rows_of(x).shape[1]
    rows = len(coefficients) // width if width else classes
    if rows not in (classes, 1) or (rows == 1 and classes not in (1, 2)):
        expected = f"{width * classes}, one for each feature and class"
        raise refuse("coefficients do not fit", "coefficients", expected, str(len(coefficients)), code="QR204")
    return rows


def _parameters(
    width: int, coefficients: Floats | None, intercepts: Floats | None, rows: int, memo: Memo
) -> tuple[Array, Array]:
    """Coefficients [rows,width] and intercepts, float64; refuses other numbers of them."""
    weights, added = kept_singles("coefficients", coefficients, memo), kept_singles("intercepts", intercepts, memo)
    if rows < 1 or weights.size != rows * width:
        raise refuse("coefficients do not fit", "coefficients", str(rows * width), str(weights.size), code="QR204")
    if added.size not in (0, rows):
        raise refuse("intercepts do not fit", "intercepts", str(rows), str(added.size), code="QR204")
    return weights.reshape(rows, width), added


def _scores(x: Array, coefficients: Floats | None, intercepts: Floats | None, rows: int, ctx: Context) -> Array:
    table = rows_of(x)
    weights, added = _parameters(table.shape[1], coefficients, intercepts, rows, ctx.memo)
    ctx.claim((len(table), rows), 16)
    with np.errstate(all="ignore"):
        if x.dtype == FLOAT:
            narrow = weights.astype(FLOAT).T
            return chained_products(np.atleast_2d(x), narrow, FLOAT, first=added if added.size else None)
        made = table @ weights.T
        return widen((made + added if added.size else made).astype(FLOAT))


def _score_stages(site: LoweringContext, rows: int, place: int) -> list[Stage]:
    """What makes the scores of checked labels, SCORES, and of these output number `place`."""
    from qrun.native.kernels.copy import view
    from qrun.native.kernels.elementwise import Elementwise
    from qrun.native.kernels.softmax import SoftmaxF32
    from qrun.native.machine.operation import Operation

    x, given, engine = site.inputs[0], site.attributes, site.engine
    post = given["post_transform"]
    width = rows_of(x).shape[1]
    weights, added = _parameters(width, given["coefficients"], given["intercepts"], rows, site.memo)
    transformed(np.zeros((0, 1)), post)
    if x.dtype != FLOAT or x.ndim != 2 or not x.size:
        raise declined("X is no table of float32 with elements")
    operands = x, weights.astype(FLOAT).T, added.astype(FLOAT) if added.size else None
    whole = replace(site, inputs=operands, fixed=(site.fixed[0], True, True))
    product = matmul_kernel(whole, *operands).stages[0].operation
    made = product.result

    end: Operation
    if post == "NONE":
        end = view(engine, made.shape, made.shape, made.dtype)
    elif post == "LOGISTIC":
        end = Elementwise(engine, "sigmoid", [made])
    elif post == "SOFTMAX":
        end = SoftmaxF32(engine, made.shape, rows)
    else:
        raise declined(f"no native {post}")
    return [Stage(product, (0,), SCORES), *([Stage(end, (SCORES,), place)] if site.ctx.wants(place) else [])]
