"""Gelu, its approximations and Swish, in float64 and rounded once."""

from __future__ import annotations

import math

import numpy as np

from qrun.ir import Array
from qrun.ops._erf import erfc
from qrun.ops._float import single, unary


def gelu(x: Array) -> Array:
    """x / 2 * (1 + erf(x / sqrt(2))), without cancellation; NaN at -inf."""
    return unary(lambda v: 0.5 * v * erfc(v * -math.sqrt(0.5)), x)


def gelu_by_tanh(x: Array) -> Array:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))), without cancellation; NaN at -inf."""
    return unary(lambda v: v / (1.0 + np.exp(-math.sqrt(8 / math.pi) * (v + 0.044715 * v * v * v))), x)


def swish(x: Array, alpha: float) -> Array:
    """x / (1 + exp(-alpha * x)), alpha as float32 holds it."""
    slope = single(alpha)
    return unary(lambda v: v / (1.0 + np.exp(-slope * v)), x)
