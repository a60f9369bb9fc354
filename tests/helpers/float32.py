"""What the tests of native float32 functions share: the functions, their reference, and numbers of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from helpers.native import Array
from qrun.ops import find

F = np.float32
P, Q = 1.702, 0.4
UNARY: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}), "leaky_relu": ("LeakyRelu", {"alpha": P}), "abs": ("Abs", {}), "neg": ("Neg", {}),
    "sqrt": ("Sqrt", {}), "reciprocal": ("Reciprocal", {}), "exp": ("Exp", {}), "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}), "erf": ("Erf", {}), "gelu": ("Gelu", {}), "swish": ("Swish", {"alpha": P}),
    "hard_sigmoid": ("HardSigmoid", {"alpha": P, "beta": Q}), "hard_swish": ("HardSwish", {}),
    "thresholded_relu": ("ThresholdedRelu", {"alpha": P}), "softsign": ("Softsign", {}), "sign": ("Sign", {}),
    "floor": ("Floor", {}), "ceil": ("Ceil", {}), "round": ("Round", {}), "gelu_by_tanh": ("Gelu", {"approximate": "tanh"}),
    "elu": ("Elu", {"alpha": P}), "selu": ("Selu", {"alpha": P, "gamma": Q}), "celu": ("Celu", {"alpha": P}),
    "shrink": ("Shrink", {"bias": P, "lambd": Q}), "softplus": ("Softplus", {}), "mish": ("Mish", {}), "log": ("Log", {}),
    "sin": ("Sin", {}), "cos": ("Cos", {}), "tan": ("Tan", {}), "asin": ("Asin", {}), "acos": ("Acos", {}),
    "atan": ("Atan", {}), "sinh": ("Sinh", {}), "cosh": ("Cosh", {}), "asinh": ("Asinh", {}), "acosh": ("Acosh", {}),
    "atanh": ("Atanh", {}),
}  # fmt: skip
"""The operator and its attributes by the name of the function;
``com.microsoft::NAME`` of one that is not of ai.onnx."""


def function(name: str) -> Callable[[Array], Array]:
    (domain, _, op_type), attributes = UNARY[name][0].rpartition("::"), UNARY[name][1]
    definition = find(domain, op_type, 1 if domain else 28)
    assert definition is not None
    return lambda x: np.asarray(definition(x, **attributes))


def numbers(rng: np.random.Generator, count: int) -> Array:
    """Of all sizes, with those that are special, and some that are whole or halves."""
    bits = rng.integers(0, 2**32, count, np.uint64).astype(np.uint32).view(F)
    near = (rng.normal(0, 3, count)).astype(F)
    even = (rng.integers(-40, 40, count) / 2).astype(F)
    special = rng.choice(
        np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-38, 3.4e38, 88.7, -104, 2.0**-23], F), count
    )
    return np.choose(rng.choice(4, count, p=[0.2, 0.6, 0.1, 0.1]), [bits, near, even, special]).astype(F)
