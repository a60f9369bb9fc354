"""SVMRegressor of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from qrun.ir import Array
from qrun.ops._context import Context, refuse
from qrun.ops._ml import ML, NUMBERS, Floats, rows_of, single_results, singles, transformed
from qrun.ops._op import op

_KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")


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
    """sum over j of coefficients[j] * k(x, support_vectors[j]) + rho[0]: float32 [N,1]; with one_class 1 above 0, else -1.

    X [N,F]; support_vectors [n_supports,F], in order; with none it is x @ coefficients + rho[0]. kernel_params gamma, coef0
    and degree; k: LINEAR x.v, POLY (gamma x.v + coef0)**degree, RBF exp(-gamma |x - v|**2), SIGMOID tanh(gamma x.v + coef0).
    In float64 and rounded once. Raises OperatorError for lists that do not fit. Source: ONNX-ML operators, SVMRegressor-1.
    """
    table, weights, added = rows_of(X), singles(coefficients), singles(rho)
    parameters = singles(kernel_params or (0.0, 0.0, 0.0))
    wanted = n_supports or table.shape[1]
    for name, got, fits, expected in (
        ("kernel_type", kernel_type, kernel_type in _KERNELS, ", ".join(_KERNELS)),
        ("kernel_params", parameters.size, parameters.size == 3, "gamma, coef0 and degree"),
        ("rho", added.size, added.size > 0, "1 number"),
        ("coefficients", weights.size, weights.size == wanted, str(wanted)),
        ("support_vectors", len(support_vectors or ()), len(support_vectors or ()) == n_supports * table.shape[1],
         str(n_supports * table.shape[1])),
    ):  # fmt: skip
        if not fits:
            raise refuse(f"{name} does not fit", name, expected, str(got), code="QR204")
    ctx.claim((len(table), max(n_supports, 1), table.shape[1] if kernel_type == "RBF" else 2), 8)
    with np.errstate(all="ignore"):
        values = table
        if n_supports:
            values = _kernel(table, singles(support_vectors).reshape(n_supports, -1), kernel_type, parameters)
        scores = (values @ weights + added[0])[:, None]
    if one_class:
        return single_results(np.where(scores > 0, 1.0, -1.0), ctx)
    return single_results(transformed(scores, post_transform), ctx)


def _kernel(x: Array, supports: Array, kind: str, parameters: Array) -> Array:
    gamma, shift, degree = parameters.tolist()
    if kind == "RBF":
        return np.asarray(np.exp(-gamma * np.square(x[:, None] - supports).sum(axis=2)))
    products = x @ supports.T
    if kind == "LINEAR":
        return np.asarray(products)
    made = gamma * products + shift
    return np.asarray(made**degree if kind == "POLY" else np.tanh(made))
