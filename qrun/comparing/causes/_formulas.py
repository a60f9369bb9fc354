"""Bounds the rounding errors of operators that are computed as formulas in float32 steps: elementwise functions, sums,
normalizations, softmax, reductions, products, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qrun.comparing.causes._cause import compute_node
from qrun.comparing.matching.operators import moves
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ops import find
from qrun.ops._float import narrow
from qrun.ops._functions import erf

ULPS = 8
"""The error allowed for functions, in units in the last place; the largest error observed is Asin's, 4.1."""
OFF = 2.0**-21
"""The absolute error allowed for Sigmoid, Tanh and Erf inside a formula; onnxruntime's Tanh was observed at 2^-21.4."""
UNIT = 2.0**-24
_TINY = 2.0**-126
"""Smaller numbers may become 0."""


@frozen
class ErrorBound:
    """A real value and the bound on its computed value's absolute error, both float64. Each operation adds the error
    of one rounding to float32."""

    value: Array
    error: Array

    @classmethod
    def of(cls, array: Any) -> ErrorBound:
        """A value without error."""
        value = np.asarray(array, np.float64)
        return cls(value, np.zeros(value.shape))

    @classmethod
    def nearly(cls, array: Any) -> ErrorBound:
        """A value without error, floats with the smallest error, so that functions of it are bounded like others'."""
        value = np.asarray(array, np.float64)
        return cls(value, np.full(value.shape, _TINY if np.asarray(array).dtype.kind not in "iu" else 0.0))

    @classmethod
    def with_rounding(cls, value: Array, error: Array, units: float = 1) -> ErrorBound:
        """A value whose computation adds `units` roundings to its error."""
        return cls(np.asarray(value), np.asarray(error + units * UNIT * (np.abs(value) + error) + _TINY))

    def __add__(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.with_rounding(self.value + other.value, self.error + other.error)

    def __sub__(self, other: ErrorBound) -> ErrorBound:
        return ErrorBound.with_rounding(self.value - other.value, self.error + other.error)

    def __mul__(self, other: ErrorBound) -> ErrorBound:
        error = np.abs(self.value) * other.error + (np.abs(other.value) + other.error) * self.error
        return ErrorBound.with_rounding(self.value * other.value, error)

    def __truediv__(self, other: ErrorBound) -> ErrorBound:
        value, least = self.value / other.value, np.abs(other.value) - other.error
        error = (self.error + np.abs(value) * other.error) / np.where(least > 0, least, np.nan)
        return ErrorBound.with_rounding(value, error)

    def through(self, function: Callable[[Any], Any], units: float = 2 * ULPS, off: float = 0.0) -> ErrorBound:
        """Apply a monotonic function. units: its relative error, in units of rounding; off: its absolute error."""
        value = np.asarray(function(self.value))
        ends = [np.abs(function(self.value + sign * self.error) - value) for sign in (-1, 1)]
        return ErrorBound.with_rounding(value, np.maximum(*ends) + off, units)

    def total(self, axes: tuple[int, ...]) -> ErrorBound:
        """The sum along axes, in any order; the axes are kept with size 1."""
        count = math.prod(self.value.shape[axis] for axis in axes)
        size = np.sum(np.abs(self.value) + self.error, axis=axes, keepdims=True)
        error = np.sum(self.error, axis=axes, keepdims=True) + 2 * count * UNIT * size
        return ErrorBound.with_rounding(np.sum(self.value, axis=axes, keepdims=True), error)

    def mean(self, axes: tuple[int, ...]) -> ErrorBound:
        """The mean over axes."""
        return self.total(axes) * ErrorBound.of(1 / max(math.prod(self.value.shape[axis] for axis in axes), 1))

    def reshape(self, shape: Sequence[int]) -> ErrorBound:
        """The value and error in another shape."""
        return ErrorBound(self.value.reshape(shape), self.error.reshape(shape))

    def rounds_to(self, theirs: Array) -> bool:
        """Is each of these numbers the rounding of a value within the bound to their narrower type?"""
        with np.errstate(all="ignore"):
            low, high = (narrow(self.value + sign * self.error, theirs.dtype) for sign in (-1, 1))
            nan = np.isnan(theirs) & np.isnan(self.value.astype(theirs.dtype))
        return theirs.shape == low.shape and bool((((low <= theirs) & (theirs <= high)) | nan).all())

    def share(self, mine: Array, theirs: Array) -> float | None:
        """The largest ratio of the distance of two results to the sum of their error bounds; None if a distance exceeds
        that, or if they are not finite in the same places.
        """
        finite = np.isfinite(mine) & np.isfinite(theirs)
        with np.errstate(all="ignore"):
            apart = np.abs(mine.astype(np.float64) - theirs)[finite]
            limit = np.broadcast_to(2 * self.error, mine.shape)[finite]
            same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
            if not same[~finite].all() or not (apart <= limit).all():
                return None
            return float(np.max(np.divide(apart, limit, out=np.zeros_like(apart), where=limit > 0), initial=0.0))


ONE = ErrorBound.of(1.0)
Args = Sequence[ErrorBound | None]
Rule = Callable[[Node, Args], ErrorBound]


def number(node: Node, name: str, default: float) -> ErrorBound:
    """A float attribute."""
    value = node.attributes.get(name, default)
    assert isinstance(value, int | float)
    return ErrorBound.of(np.float32(value))


def operand(args: Args, index: int) -> ErrorBound:
    """The operand at a position."""
    found = args[index]
    assert found is not None
    return found


def size(x: ErrorBound) -> ErrorBound:
    """The absolute value."""
    return ErrorBound(np.abs(x.value), x.error)


def root(x: ErrorBound) -> ErrorBound:
    """The square root."""
    return x.through(lambda v: np.sqrt(np.maximum(v, 0)))


def exp(x: ErrorBound) -> ErrorBound:
    """The exponential function."""
    return x.through(np.exp)


def softmax(node: Node, x: ErrorBound, log: bool) -> ErrorBound:
    """Softmax, or its logarithm."""
    axis = node.attributes.get("axis", 1 if node.version < 13 else -1)
    assert isinstance(axis, int)
    axis %= x.value.ndim
    axes = tuple(range(axis, x.value.ndim)) if node.version < 13 else (axis,)
    less = x - ErrorBound(x.value.max(axis=axes, keepdims=True), x.error.max(axis=axes, keepdims=True))
    powers = exp(less)
    total = powers.total(axes)
    return less - total.through(np.log) if log else powers * (ONE / total)


def standard(x: ErrorBound, axes: tuple[int, ...], epsilon: ErrorBound) -> ErrorBound:
    """(x - mean) / sqrt(mean of (x - mean)^2 + epsilon)."""
    centred = x - x.mean(axes)
    return centred / root((centred * centred).mean(axes) + epsilon)


def channels(parameter: ErrorBound, x: ErrorBound) -> ErrorBound:
    """A parameter with one number per channel, in a shape that broadcasts with x."""
    return parameter.reshape((-1, *(1,) * (x.value.ndim - 2)))


def batch_norm(node: Node, args: Args) -> ErrorBound:
    """BatchNormalization, with the larger error of two ways: as the specification writes it, and as x * factor + rest
    with two numbers per channel. Raises ValueError for training."""
    x, *rest = (operand(args, index) for index in range(5))
    scale, bias, mean, var = (channels(p, x) if x.value.ndim > 1 else p for p in rest)
    if node.attributes.get("training_mode") or any(node.outputs[1:]) or node.attributes.get("spatial", 1) != 1:
        raise ValueError
    factor = scale / root(var + number(node, "epsilon", 1e-5))
    folded = x * factor + (bias - mean * factor)
    written = (x - mean) * factor + bias
    return ErrorBound(written.value, np.maximum(folded.error, written.error))


def layer_norm(node: Node, args: Args, squares: bool = False) -> ErrorBound:
    """LayerNormalization; `squares`: RMSNormalization."""
    x, axis = operand(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes, epsilon = tuple(range(axis % x.value.ndim, x.value.ndim)), number(node, "epsilon", 1e-5)
    made = x / root((x * x).mean(axes) + epsilon) if squares else standard(x, axes, epsilon)
    made = made * operand(args, 1)
    return made + operand(args, 2) if len(args) > 2 and args[2] is not None else made


def instance_norm(node: Node, args: Args) -> ErrorBound:
    """InstanceNormalization."""
    x = operand(args, 0)
    made = standard(x, tuple(range(2, x.value.ndim)), number(node, "epsilon", 1e-5))
    return made * channels(operand(args, 1), x) + channels(operand(args, 2), x)


def group_norm(node: Node, args: Args) -> ErrorBound:
    """GroupNormalization."""
    x, groups = operand(args, 0), node.attributes["num_groups"]
    assert isinstance(groups, int)
    parts = x.reshape((x.value.shape[0], groups, -1))
    made = standard(parts, (2,), number(node, "epsilon", 1e-5)).reshape(x.value.shape)
    return made * channels(operand(args, 1), x) + channels(operand(args, 2), x)


def mean_variance(node: Node, args: Args) -> ErrorBound:
    """MeanVarianceNormalization."""
    axes = node.attributes.get("axes", (0, 2, 3))
    assert isinstance(axes, tuple)
    return standard(operand(args, 0), tuple(int(a) for a in axes), ErrorBound.of(0.0))


def lp_norm(node: Node, args: Args) -> ErrorBound:
    """LpNormalization."""
    x, axis = operand(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes = (axis % x.value.ndim,)
    return x / (size(x).total(axes) if node.attributes.get("p", 2) == 1 else root((x * x).total(axes)))


def lrn(node: Node, args: Args) -> ErrorBound:
    """x / (bias + alpha / size * sum of squares of neighbouring channels) ^ beta."""
    x, size = operand(args, 0), node.attributes["size"]
    assert isinstance(size, int)
    sides = ((0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (x.value.ndim - 2))
    padded = ErrorBound(np.pad(x.value, sides), np.pad(x.error, sides))
    windows = (sliding_window_view(part, size, axis=1) for part in (padded.value, padded.error))
    near = ErrorBound(*windows)
    total = (near * near).total((x.value.ndim,)).reshape(x.value.shape)
    factor = number(node, "alpha", 1e-4) / ErrorBound.of(size)
    beta = float(number(node, "beta", 0.75).value)
    return x * (number(node, "bias", 1.0) + factor * total).through(lambda v: np.power(v, -beta))


def reduction(
    before: Callable[[ErrorBound], ErrorBound], after: Callable[[ErrorBound], ErrorBound], mean: bool = False
) -> Rule:
    """The rule of a reduction: a function before the sum, and one after it."""

    def rule(node: Node, args: Args) -> ErrorBound:
        x = before(operand(args, 0))
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
        return made.reshape(shape)

    return rule


def sum_of_products(node: Node, args: Args) -> ErrorBound:
    """The bound of an operator that sums products in any order. It is linear in each input, so the same sums of larger
    magnitudes show the effect of the inputs' errors."""
    forms = [None if a is None else (a.value, np.abs(a.value), np.abs(a.value) + a.error) for a in args]
    value, magnitude, most = (single_output(node, [f[index] if f else None for f in forms]) for index in range(3))
    ones = single_output(node, [None if a is None else np.ones_like(a.value) for a in args])
    terms = 2 + max(float(ones.max(initial=0)), _window_size(node, operand(args, 0)))
    return ErrorBound.with_rounding(value, most - magnitude + 2 * terms * UNIT * most)


def _window_size(node: Node, x: ErrorBound) -> int:
    """The number of elements in the window of an average pool; 1 for other operators."""
    kernel = node.attributes.get("kernel_shape", ())
    shape = (
        kernel if node.op_type == "AveragePool" else x.value.shape[2:] if node.op_type == "GlobalAveragePool" else ()
    )
    assert isinstance(shape, tuple)
    return math.prod(int(n) for n in shape)


def single_output(node: Node, args: Sequence[Array | None]) -> Array:
    """The node's one output, computed by qrun. Raises ValueError."""
    made = compute_node(node, args)
    if made is None or len(made) > 1:
        raise ValueError
    return made[0]


def largest(node: Node, args: Args) -> ErrorBound:
    """Max pooling: the error of a result is the largest error in its window."""
    x = operand(args, 0)
    return ErrorBound(single_output(node, [x.value]), single_output(node, [x.error]))


def bound_of(node: Node, args: Args) -> ErrorBound | None:
    """The bound of a node's result from the bounds of its inputs; None if no rule is known."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    try:
        with np.errstate(all="ignore"):
            if rule is not None:
                return rule(node, args)
            return _move_bounds(node, args) if moves(node) or _shapes(node) else None
    except (ValueError, IndexError, TypeError, AttributeError):
        return None


def _shapes(node: Node) -> bool:
    """Whether the output depends only on the inputs' shapes."""
    definition = find(node.domain, node.op_type, node.version)
    return definition is not None and definition.form == "shape"


def _move_bounds(node: Node, args: Args) -> ErrorBound | None:
    """The bound of a node that moves elements: it moves values and errors alike."""
    first = args[0]
    assert first is not None
    rest = [None if a is None else a.value.astype(np.int64) for a in args[1:]]
    made = [compute_node(node, [part, *rest]) for part in (first.value, first.error)]
    return None if None in made or len(node.outputs) > 1 else ErrorBound(made[0][0], made[1][0])  # type: ignore[index]


def _choose(where: Array, one: ErrorBound, other: ErrorBound) -> ErrorBound:
    """One value where a condition holds, else the other."""
    return ErrorBound(np.where(where, one.value, other.value), np.where(where, one.error, other.error))


def _sigmoid(x: ErrorBound) -> ErrorBound:
    """The logistic function."""
    return x.through(lambda v: 1 / (1 + np.exp(-v)), off=_off(x))


def _tanh(x: ErrorBound) -> ErrorBound:
    """The hyperbolic tangent."""
    return x.through(np.tanh, off=_off(x))


def _erf(x: ErrorBound) -> ErrorBound:
    """The error function."""
    return x.through(erf, off=_off(x))


def _off(x: ErrorBound) -> float:
    """The absolute error of onnxruntime's approximations; 0 for exact x, whose result is recomputed instead."""
    return OFF if x.error.any() else 0.0


def _softplus(x: ErrorBound) -> ErrorBound:
    """log(1 + exp(x))."""
    folded = ErrorBound(-np.abs(x.value), x.error)
    return ErrorBound(np.maximum(x.value, 0), x.error) + (ONE + exp(folded)).through(np.log)


def _elu(x: ErrorBound, alpha: ErrorBound) -> ErrorBound:
    """Elu."""
    return _choose(x.value > 0, x, alpha * (exp(_choose(x.value > 0, ErrorBound.of(0.0 * x.value), x)) - ONE))


def _celu(x: ErrorBound, alpha: ErrorBound) -> ErrorBound:
    """Celu."""
    low = _choose(x.value > 0, ErrorBound.of(0.0 * x.value), x)
    return _choose(x.value > 0, x, alpha * (exp(low / alpha) - ONE))


def _hard(x: ErrorBound, alpha: ErrorBound, beta: ErrorBound) -> ErrorBound:
    """HardSigmoid."""
    made = alpha * x + beta
    return ErrorBound(np.clip(made.value, 0, 1), made.error)


def _gelu(node: Node, args: Args) -> ErrorBound:
    """Gelu."""
    x, half = operand(args, 0), ErrorBound.of(0.5)
    if node.attributes.get("approximate", "none") == "tanh":
        inner = ErrorBound.of(math.sqrt(2 / math.pi)) * (x + ErrorBound.of(0.044715) * x * x * x)
        return half * x * (ONE + _tanh(inner))
    return half * x * (ONE + _erf(x * ErrorBound.of(math.sqrt(0.5))))


def _power(node: Node, args: Args) -> ErrorBound:
    """Pow."""
    base, exponent = operand(args, 0), operand(args, 1)
    if exponent.error.any():
        raise ValueError
    if base.error.any() and not (exponent.value == 2).all():
        return base.through(lambda v: np.power(v, exponent.value))
    return (
        base * base
        if base.error.any()
        else ErrorBound.with_rounding(np.power(base.value, exponent.value), np.zeros(()), 2 * ULPS)
    )


def _one(function: Callable[[ErrorBound], ErrorBound]) -> Rule:
    """The rule of a function of one operand."""
    return lambda node, args: function(operand(args, 0))


def _function(function: Callable[[Any], Any]) -> Rule:
    """The rule of an operator that is one numpy function, which must be monotonic unless its input is exact."""
    return _one(lambda x: x.through(function))


def _wave(function: Callable[[Any], Any]) -> Rule:
    """The rule of a function whose slope is at most 1."""
    return _one(lambda x: ErrorBound.with_rounding(function(x.value), x.error, 2 * ULPS))


def _two(function: Callable[[ErrorBound, ErrorBound], ErrorBound]) -> Rule:
    """The rule of a function of two operands."""
    return lambda node, args: function(operand(args, 0), operand(args, 1))


def _plain(x: ErrorBound) -> ErrorBound:
    """x."""
    return x


def _square(x: ErrorBound) -> ErrorBound:
    """x * x."""
    return x * x


def _tan(x: ErrorBound) -> ErrorBound:
    """The tangent. Raises ValueError if x has an error."""
    if x.error.any():
        raise ValueError
    return x.through(np.tan)


def _log(x: ErrorBound) -> ErrorBound:
    """The logarithm."""
    return x.through(np.log)


def _clip(node: Node, args: Args) -> ErrorBound:
    """Clip."""
    value = single_output(node, [None if a is None else a.value for a in args])
    return ErrorBound(value, operand(args, 0).error)


def _concat(node: Node, args: Args) -> ErrorBound:
    """Concat."""
    values, errors = zip(*((a.value, a.error) for a in args if a is not None), strict=True)
    return ErrorBound(single_output(node, values), single_output(node, errors))


def _sum(node: Node, args: Args) -> ErrorBound:
    """Sum."""
    made = operand(args, 0)
    for index in range(1, len(args)):
        made = made + operand(args, index)
    return made


_RULES: Mapping[str, Rule] = {
    "Add": _two(ErrorBound.__add__),
    "Sub": _two(ErrorBound.__sub__),
    "Mul": _two(ErrorBound.__mul__),
    "Div": _two(ErrorBound.__truediv__),
    "Sum": _sum,
    "Mean": lambda node, args: _sum(node, args) * ErrorBound.of(1 / len(args)),
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
    "Swish": lambda node, args: operand(args, 0) * _sigmoid(number(node, "alpha", 1.0) * operand(args, 0)),
    "Gelu": _gelu,
    "Elu": lambda node, args: _elu(operand(args, 0), number(node, "alpha", 1.0)),
    "Celu": lambda node, args: _celu(operand(args, 0), number(node, "alpha", 1.0)),
    "Selu": lambda node, args: (
        number(node, "gamma", 1.05070102214813232421875)
        * _elu(operand(args, 0), number(node, "alpha", 1.67326319217681884765625))
    ),
    "HardSigmoid": lambda node, args: _hard(operand(args, 0), number(node, "alpha", 0.2), number(node, "beta", 0.5)),
    "HardSwish": lambda node, args: (
        operand(args, 0) * _hard(operand(args, 0), ErrorBound.of(np.float32(1 / 6)), ErrorBound.of(0.5))
    ),
    "Softmax": lambda node, args: softmax(node, operand(args, 0), False),
    "LogSoftmax": lambda node, args: softmax(node, operand(args, 0), True),
    "BatchNormalization": batch_norm,
    "LayerNormalization": layer_norm,
    "InstanceNormalization": instance_norm,
    "RMSNormalization": lambda node, args: layer_norm(node, args, True),
    "GroupNormalization": group_norm,
    "MeanVarianceNormalization": mean_variance,
    "LpNormalization": lp_norm,
    "LRN": lrn,
    "Pow": _power,
    "ReduceSum": reduction(_plain, _plain),
    "ReduceMean": reduction(_plain, _plain, True),
    "ReduceL1": reduction(size, _plain),
    "ReduceL2": reduction(_square, root),
    "ReduceSumSquare": reduction(_square, _plain),
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm", "AveragePool", "GlobalAveragePool"), sum_of_products),
    **dict.fromkeys(("MaxPool", "GlobalMaxPool"), largest),
    "Clip": _clip,
    "Concat": _concat,
    "LeakyRelu": lambda node, args: _choose(
        operand(args, 0).value >= 0, operand(args, 0), number(node, "alpha", 0.01) * operand(args, 0)
    ),
    "ReduceLogSum": reduction(_plain, _log),
    "ReduceLogSumExp": reduction(exp, _log),
}
