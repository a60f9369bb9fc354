"""Float operators as formulas in float32 steps, to bound what rounding can do to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from qrun.comparing.causes._bounds import OFF, ONE, ULPS, Args, ErrorBound, Rule, exp, given, number, root, size
from qrun.comparing.causes._cause import computed
from qrun.comparing.causes._normalizations import (
    batch_norm,
    group_norm,
    instance_norm,
    largest,
    layer_norm,
    lp_norm,
    lrn,
    mean_variance,
    reduced,
    softmax,
    sum_of_products,
    whole,
)
from qrun.comparing.matching.operators import moves
from qrun.ir import Array, Node
from qrun.ops import find
from qrun.ops._functions import erf


def bounded(node: Node, args: Args) -> ErrorBound | None:
    """What a node makes of bounded values; None where no rule is known."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    try:
        with np.errstate(all="ignore"):
            if rule is not None:
                return rule(node, args)
            return _moved(node, args) if moves(node) or _shapes(node) else None
    except (ValueError, IndexError, TypeError, AttributeError):
        return None


def _shapes(node: Node) -> bool:
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form == "shape"


def _moved(node: Node, args: Args) -> ErrorBound | None:
    """Nodes that move elements move their bounds."""
    first = args[0]
    assert first is not None
    rest = [None if a is None else a.value.astype(np.int64) for a in args[1:]]
    made = [computed(node, [part, *rest]) for part in (first.value, first.error)]
    return None if None in made or len(node.outputs) > 1 else ErrorBound(made[0][0], made[1][0])  # type: ignore[index]


def _choose(where: Array, one: ErrorBound, other: ErrorBound) -> ErrorBound:
    return ErrorBound(np.where(where, one.value, other.value), np.where(where, one.error, other.error))


def _sigmoid(x: ErrorBound) -> ErrorBound:
    return x.through(lambda v: 1 / (1 + np.exp(-v)), off=_off(x))


def _tanh(x: ErrorBound) -> ErrorBound:
    return x.through(np.tanh, off=_off(x))


def _erf(x: ErrorBound) -> ErrorBound:
    return x.through(erf, off=_off(x))


def _off(x: ErrorBound) -> float:
    """The largest absolute error of onnxruntime's approximations; 0 for exact x, whose result is recomputed instead."""
    return OFF if x.error.any() else 0.0


def _softplus(x: ErrorBound) -> ErrorBound:
    folded = ErrorBound(-np.abs(x.value), x.error)
    return ErrorBound(np.maximum(x.value, 0), x.error) + (ONE + exp(folded)).through(np.log)


def _elu(x: ErrorBound, alpha: ErrorBound) -> ErrorBound:
    return _choose(x.value > 0, x, alpha * (exp(_choose(x.value > 0, ErrorBound.of(0.0 * x.value), x)) - ONE))


def _celu(x: ErrorBound, alpha: ErrorBound) -> ErrorBound:
    low = _choose(x.value > 0, ErrorBound.of(0.0 * x.value), x)
    return _choose(x.value > 0, x, alpha * (exp(low / alpha) - ONE))


def _hard(x: ErrorBound, alpha: ErrorBound, beta: ErrorBound) -> ErrorBound:
    made = alpha * x + beta
    return ErrorBound(np.clip(made.value, 0, 1), made.error)


def _gelu(node: Node, args: Args) -> ErrorBound:
    x, half = given(args, 0), ErrorBound.of(0.5)
    if node.attributes.get("approximate", "none") == "tanh":
        inner = ErrorBound.of(math.sqrt(2 / math.pi)) * (x + ErrorBound.of(0.044715) * x * x * x)
        return half * x * (ONE + _tanh(inner))
    return half * x * (ONE + _erf(x * ErrorBound.of(math.sqrt(0.5))))


def _power(node: Node, args: Args) -> ErrorBound:
    base, exponent = given(args, 0), given(args, 1)
    if exponent.error.any():
        raise ValueError
    if base.error.any() and not (exponent.value == 2).all():
        return base.through(lambda v: np.power(v, exponent.value))
    return (
        base * base
        if base.error.any()
        else ErrorBound.rounded(np.power(base.value, exponent.value), np.zeros(()), 2 * ULPS)
    )


def _one(function: Callable[[ErrorBound], ErrorBound]) -> Rule:
    return lambda node, args: function(given(args, 0))


def _function(function: Callable[[Any], Any]) -> Rule:
    """The rule of an operator that is one numpy function; where that is not monotonic, for exact values only."""
    return _one(lambda x: x.through(function))


def _wave(function: Callable[[Any], Any]) -> Rule:
    """A function whose slope is at most 1."""
    return _one(lambda x: ErrorBound.rounded(function(x.value), x.error, 2 * ULPS))


def _two(function: Callable[[ErrorBound, ErrorBound], ErrorBound]) -> Rule:
    return lambda node, args: function(given(args, 0), given(args, 1))


def _plain(x: ErrorBound) -> ErrorBound:
    return x


def _square(x: ErrorBound) -> ErrorBound:
    return x * x


def _tan(x: ErrorBound) -> ErrorBound:
    if x.error.any():
        raise ValueError
    return x.through(np.tan)


def _log(x: ErrorBound) -> ErrorBound:
    return x.through(np.log)


def _clip(node: Node, args: Args) -> ErrorBound:
    value = whole(node, [None if a is None else a.value for a in args])
    return ErrorBound(value, given(args, 0).error)


def _concat(node: Node, args: Args) -> ErrorBound:
    values, errors = zip(*((a.value, a.error) for a in args if a is not None), strict=True)
    return ErrorBound(whole(node, values), whole(node, errors))


def _summed(node: Node, args: Args) -> ErrorBound:
    made = given(args, 0)
    for place in range(1, len(args)):
        made = made + given(args, place)
    return made


_RULES: Mapping[str, Rule] = {
    "Add": _two(ErrorBound.__add__),
    "Sub": _two(ErrorBound.__sub__),
    "Mul": _two(ErrorBound.__mul__),
    "Div": _two(ErrorBound.__truediv__),
    "Sum": _summed,
    "Mean": lambda node, args: _summed(node, args) * ErrorBound.of(1 / len(args)),
    "Neg": _one(lambda x: ErrorBound(-x.value, x.error)),
    "Abs": _one(size),
    "Relu": _one(lambda x: ErrorBound(np.maximum(x.value, 0), x.error)),
    "Sqrt": _one(root),
    "Reciprocal": _one(lambda x: ONE / x),
    "Exp": _one(exp),
    "Log": _one(_log),
    "Sigmoid": _one(_sigmoid),
    "Tanh": _one(_tanh),
    "Erf": _one(_erf),
    "Softplus": _one(_softplus),
    "Sin": _wave(np.sin),
    "Cos": _wave(np.cos),
    "Atan": _function(np.arctan),
    "Asin": _function(np.arcsin),
    "Acos": _function(np.arccos),
    "Sinh": _function(np.sinh),
    "Asinh": _function(np.arcsinh),
    "Acosh": _function(np.arccosh),
    "Atanh": _function(np.arctanh),
    "Cosh": _one(lambda x: size(x).through(np.cosh)),
    "Tan": _one(_tan),
    "Softsign": _one(lambda x: x / (ONE + size(x))),
    "Mish": _one(lambda x: x * _tanh(_softplus(x))),
    "Swish": lambda node, args: given(args, 0) * _sigmoid(number(node, "alpha", 1.0) * given(args, 0)),
    "Gelu": _gelu,
    "Elu": lambda node, args: _elu(given(args, 0), number(node, "alpha", 1.0)),
    "Celu": lambda node, args: _celu(given(args, 0), number(node, "alpha", 1.0)),
    "Selu": lambda node, args: (
        number(node, "gamma", 1.05070102214813232421875)
        * _elu(given(args, 0), number(node, "alpha", 1.67326319217681884765625))
    ),
    "HardSigmoid": lambda node, args: _hard(given(args, 0), number(node, "alpha", 0.2), number(node, "beta", 0.5)),
    "HardSwish": lambda node, args: (
        given(args, 0) * _hard(given(args, 0), ErrorBound.of(np.float32(1 / 6)), ErrorBound.of(0.5))
    ),
    "Softmax": lambda node, args: softmax(node, given(args, 0), False),
    "LogSoftmax": lambda node, args: softmax(node, given(args, 0), True),
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "InstanceNormalization": instance_norm,
    "RMSNormalization": lambda node, args: layer_norm(node, args, True),
    "GroupNormalization": group_norm,
    "MeanVarianceNormalization": mean_variance,
    "LpNormalization": lp_norm,
    "LRN": lrn,
    "Pow": _power,
    "ReduceSum": reduced(_plain, _plain),
    "ReduceMean": reduced(_plain, _plain, True),
    "ReduceL1": reduced(size, _plain),
    "ReduceL2": reduced(_square, root),
    "ReduceSumSquare": reduced(_square, _plain),
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm", "AveragePool", "GlobalAveragePool"), sum_of_products),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool"), largest),
    "Clip": _clip,
    "Concat": _concat,
    "LeakyRelu": lambda node, args: _choose(
        given(args, 0).value >= 0, given(args, 0), number(node, "alpha", 0.01) * given(args, 0)
    ),
    "ReduceLogSum": reduced(_plain, _log),
    "ReduceLogSumExp": reduced(exp, _log),
}
