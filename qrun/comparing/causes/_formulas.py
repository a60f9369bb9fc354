"""Float operators as formulas in float32 steps, to bound what rounding can do to each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qrun.comparing.causes._bounds import OFF, ULPS, Bound
from qrun.comparing.causes._suspect import computed
from qrun.comparing.matching_writer import moves
from qrun.ir import Array, Node
from qrun.ops import find
from qrun.ops._erf import erf

Args = Sequence[Bound | None]
Rule = Callable[[Node, Args], Bound]


def bounded(node: Node, args: Args) -> Bound | None:
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


def _moved(node: Node, args: Args) -> Bound | None:
    """Nodes that move elements move their bounds."""
    first = args[0]
    assert first is not None
    rest = [None if a is None else a.value.astype(np.int64) for a in args[1:]]
    made = [computed(node, [part, *rest]) for part in (first.value, first.error)]
    return None if None in made or len(node.outputs) > 1 else Bound(made[0][0], made[1][0])  # type: ignore[index]


def _number(node: Node, name: str, default: float) -> Bound:
    value = node.attributes.get(name, default)
    assert isinstance(value, int | float)
    return Bound.of(np.float32(value))


ONE = Bound.of(1.0)


def _choose(where: Array, one: Bound, other: Bound) -> Bound:
    return Bound(np.where(where, one.value, other.value), np.where(where, one.error, other.error))


def _given(args: Args, place: int) -> Bound:
    found = args[place]
    assert found is not None
    return found


def _exp(x: Bound) -> Bound:
    return x.through(np.exp)


def _sigmoid(x: Bound) -> Bound:
    return x.through(lambda v: 1 / (1 + np.exp(-v)), off=_off(x))


def _tanh(x: Bound) -> Bound:
    return x.through(np.tanh, off=_off(x))


def _erf(x: Bound) -> Bound:
    return x.through(erf, off=_off(x))


def _off(x: Bound) -> float:
    """By how much onnxruntime's approximations are off, absolute; what they give for exact values is recomputed."""
    return OFF if x.error.any() else 0.0


def _softplus(x: Bound) -> Bound:
    folded = Bound(-np.abs(x.value), x.error)
    return Bound(np.maximum(x.value, 0), x.error) + (ONE + _exp(folded)).through(np.log)


def _elu(node: Node, x: Bound, alpha: Bound) -> Bound:
    return _choose(x.value > 0, x, alpha * (_exp(_choose(x.value > 0, Bound.of(0.0 * x.value), x)) - ONE))


def _celu(node: Node, x: Bound, alpha: Bound) -> Bound:
    low = _choose(x.value > 0, Bound.of(0.0 * x.value), x)
    return _choose(x.value > 0, x, alpha * (_exp(low / alpha) - ONE))


def _hard(x: Bound, alpha: Bound, beta: Bound) -> Bound:
    made = alpha * x + beta
    return Bound(np.clip(made.value, 0, 1), made.error)


def _gelu(node: Node, x: Bound) -> Bound:
    half = Bound.of(0.5)
    if node.attributes.get("approximate", "none") == "tanh":
        inner = Bound.of(math.sqrt(2 / math.pi)) * (x + Bound.of(0.044715) * x * x * x)
        return half * x * (ONE + _tanh(inner))
    return half * x * (ONE + _erf(x * Bound.of(math.sqrt(0.5))))


def _softmax(node: Node, x: Bound, log: bool) -> Bound:
    axis = node.attributes.get("axis", 1 if node.version < 13 else -1)
    assert isinstance(axis, int)
    axis %= x.value.ndim
    axes = tuple(range(axis, x.value.ndim)) if node.version < 13 else (axis,)
    less = x - Bound(x.value.max(axis=axes, keepdims=True), x.error.max(axis=axes, keepdims=True))
    powers = _exp(less)
    total = powers.total(axes)
    return less - total.through(np.log) if log else powers * (ONE / total)


def _standard(x: Bound, axes: tuple[int, ...], epsilon: Bound) -> Bound:
    """(x - mean) / sqrt(mean of (x - mean)^2 + epsilon)."""
    centred = x - x.mean(axes)
    return centred / _root((centred * centred).mean(axes) + epsilon)


def _channels(parameter: Bound, x: Bound) -> Bound:
    return parameter.shaped((-1, *(1,) * (x.value.ndim - 2)))


def _batch_norm(node: Node, args: Args) -> Bound:
    """As written, and as x * factor + rest with what is known beforehand in two numbers."""
    x, *rest = (_given(args, place) for place in range(5))
    scale, bias, mean, var = (_channels(p, x) if x.value.ndim > 1 else p for p in rest)
    if node.attributes.get("training_mode") or any(node.outputs[1:]) or node.attributes.get("spatial", 1) != 1:
        raise ValueError
    factor = scale / _root(var + _number(node, "epsilon", 1e-5))
    folded = x * factor + (bias - mean * factor)
    written = (x - mean) * factor + bias
    return Bound(written.value, np.maximum(folded.error, written.error))


def _layer_norm(node: Node, args: Args, squares: bool = False) -> Bound:
    x, axis = _given(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes, epsilon = tuple(range(axis % x.value.ndim, x.value.ndim)), _number(node, "epsilon", 1e-5)
    made = x / _root((x * x).mean(axes) + epsilon) if squares else _standard(x, axes, epsilon)
    made = made * _given(args, 1)
    return made + _given(args, 2) if len(args) > 2 and args[2] is not None else made


def _instance_norm(node: Node, args: Args) -> Bound:
    x = _given(args, 0)
    made = _standard(x, tuple(range(2, x.value.ndim)), _number(node, "epsilon", 1e-5))
    return made * _channels(_given(args, 1), x) + _channels(_given(args, 2), x)


def _group_norm(node: Node, args: Args) -> Bound:
    x, groups = _given(args, 0), node.attributes["num_groups"]
    assert isinstance(groups, int)
    parts = x.shaped((x.value.shape[0], groups, -1))
    made = _standard(parts, (2,), _number(node, "epsilon", 1e-5)).shaped(x.value.shape)
    return made * _channels(_given(args, 1), x) + _channels(_given(args, 2), x)


def _mean_variance(node: Node, args: Args) -> Bound:
    axes = node.attributes.get("axes", (0, 2, 3))
    assert isinstance(axes, tuple)
    return _standard(_given(args, 0), tuple(int(a) for a in axes), Bound.of(0.0))


def _lp_norm(node: Node, args: Args) -> Bound:
    x, axis = _given(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes = (axis % x.value.ndim,)
    return x / (_size(x).total(axes) if node.attributes.get("p", 2) == 1 else _root((x * x).total(axes)))


def _lrn(node: Node, args: Args) -> Bound:
    """x / (bias + alpha / size * sum of squares of neighbouring channels) ^ beta."""
    x, size = _given(args, 0), node.attributes["size"]
    assert isinstance(size, int)
    sides = ((0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (x.value.ndim - 2))
    padded = Bound(np.pad(x.value, sides), np.pad(x.error, sides))
    windows = (sliding_window_view(part, size, axis=1) for part in (padded.value, padded.error))
    near = Bound(*windows)
    total = (near * near).total((x.value.ndim,)).shaped(x.value.shape)
    factor = _number(node, "alpha", 1e-4) / Bound.of(size)
    beta = float(_number(node, "beta", 0.75).value)
    return x * (_number(node, "bias", 1.0) + factor * total).through(lambda v: np.power(v, -beta))


def _power(node: Node, args: Args) -> Bound:
    base, exponent = _given(args, 0), _given(args, 1)
    if exponent.error.any():
        raise ValueError
    if base.error.any() and not (exponent.value == 2).all():
        return base.through(lambda v: np.power(v, exponent.value))
    return (
        base * base if base.error.any() else Bound.rounded(np.power(base.value, exponent.value), np.zeros(()), 2 * ULPS)
    )


def _reduced(before: Callable[[Bound], Bound], after: Callable[[Bound], Bound], mean: bool = False) -> Rule:
    def rule(node: Node, args: Args) -> Bound:
        x = before(_given(args, 0))
        axes = node.attributes.get("axes") if len(args) < 2 or args[1] is None else tuple(args[1].value.astype(int))
        if not axes and node.attributes.get("noop_with_empty_axes"):
            raise ValueError
        places = (
            tuple(int(a) % x.value.ndim for a in axes)
            if isinstance(axes, tuple) and axes
            else tuple(range(x.value.ndim))
        )
        made = after(x.mean(places) if mean else x.total(places))
        kept = node.attributes.get("keepdims", 1)
        shape = [n for at, n in enumerate(made.value.shape) if kept or at not in places]
        return made.shaped(shape)

    return rule


def _one(function: Callable[[Bound], Bound]) -> Rule:
    return lambda node, args: function(_given(args, 0))


def _function(function: Callable[[Any], Any]) -> Rule:
    """Of a function that is computed by itself; where it is not monotonic, of exact values only."""
    return _one(lambda x: x.through(function))


def _wave(function: Callable[[Any], Any]) -> Rule:
    """A function whose slope is at most 1."""
    return _one(lambda x: Bound.rounded(function(x.value), x.error, 2 * ULPS))


def _two(function: Callable[[Bound, Bound], Bound]) -> Rule:
    return lambda node, args: function(_given(args, 0), _given(args, 1))


def _plain(x: Bound) -> Bound:
    return x


def _size(x: Bound) -> Bound:
    return Bound(np.abs(x.value), x.error)


def _square(x: Bound) -> Bound:
    return x * x


def _root(x: Bound) -> Bound:
    return x.through(lambda v: np.sqrt(np.maximum(v, 0)))


def _tan(x: Bound) -> Bound:
    if x.error.any():
        raise ValueError
    return x.through(np.tan)


def _log(x: Bound) -> Bound:
    return x.through(np.log)


def _summed(node: Node, args: Args) -> Bound:
    made = _given(args, 0)
    for place in range(1, len(args)):
        made = made + _given(args, place)
    return made


_RULES: Mapping[str, Rule] = {
    "Add": _two(Bound.__add__), "Sub": _two(Bound.__sub__), "Mul": _two(Bound.__mul__), "Div": _two(Bound.__truediv__),
    "Sum": _summed, "Mean": lambda node, args: _summed(node, args) * Bound.of(1 / len(args)),
    "Neg": _one(lambda x: Bound(-x.value, x.error)), "Abs": _one(_size),
    "Relu": _one(lambda x: Bound(np.maximum(x.value, 0), x.error)), "Sqrt": _one(_root),
    "Reciprocal": _one(lambda x: ONE / x), "Exp": _one(_exp), "Log": _one(_log), "Sigmoid": _one(_sigmoid),
    "Tanh": _one(_tanh), "Erf": _one(_erf), "Softplus": _one(_softplus),
    "Sin": _wave(np.sin), "Cos": _wave(np.cos), "Atan": _function(np.arctan), "Asin": _function(np.arcsin),
    "Acos": _function(np.arccos), "Sinh": _function(np.sinh), "Asinh": _function(np.arcsinh),
    "Acosh": _function(np.arccosh), "Atanh": _function(np.arctanh), "Cosh": _one(lambda x: _size(x).through(np.cosh)),
    "Tan": _one(_tan), "Softsign": _one(lambda x: x / (ONE + _size(x))),
    "Mish": _one(lambda x: x * _tanh(_softplus(x))),
    "Swish": lambda node, args: _given(args, 0) * _sigmoid(_number(node, "alpha", 1.0) * _given(args, 0)),
    "Gelu": lambda node, args: _gelu(node, _given(args, 0)),
    "Elu": lambda node, args: _elu(node, _given(args, 0), _number(node, "alpha", 1.0)),
    "Celu": lambda node, args: _celu(node, _given(args, 0), _number(node, "alpha", 1.0)),
    "Selu": lambda node, args: _number(node, "gamma", 1.05070102214813232421875)
    * _elu(node, _given(args, 0), _number(node, "alpha", 1.67326319217681884765625)),
    "HardSigmoid": lambda node, args: _hard(_given(args, 0), _number(node, "alpha", 0.2), _number(node, "beta", 0.5)),
    "HardSwish": lambda node, args: _given(args, 0) * _hard(_given(args, 0), Bound.of(np.float32(1 / 6)), Bound.of(0.5)),
    "Softmax": lambda node, args: _softmax(node, _given(args, 0), False),
    "LogSoftmax": lambda node, args: _softmax(node, _given(args, 0), True),
    "BatchNormalization": _batch_norm, "LayerNormalization": _layer_norm, "InstanceNormalization": _instance_norm,
    "RMSNormalization": lambda node, args: _layer_norm(node, args, True), "GroupNormalization": _group_norm,
    "MeanVarianceNormalization": _mean_variance, "LpNormalization": _lp_norm, "LRN": _lrn, "Pow": _power,
    "ReduceSum": _reduced(_plain, _plain), "ReduceMean": _reduced(_plain, _plain, True), "ReduceL1": _reduced(_size, _plain),
    "ReduceL2": _reduced(_square, _root), "ReduceSumSquare": _reduced(_square, _plain),
    "ReduceLogSum": _reduced(_plain, _log), "ReduceLogSumExp": _reduced(_exp, _log),
}  # fmt: skip
