"""Sums and what is made of them as formulas in float32 steps:
normalizations, softmax, reductions, products, pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from qrun.comparing.causes._bounds import ONE, UNIT, Args, ErrorBound, Rule, exp, given, number, root, size
from qrun.comparing.causes._cause import computed
from qrun.ir import Array, Node


def softmax(node: Node, x: ErrorBound, log: bool) -> ErrorBound:
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
    return parameter.shaped((-1, *(1,) * (x.value.ndim - 2)))


def batch_norm(node: Node, args: Args) -> ErrorBound:
    """The larger error of two ways: as the specification writes it,
    and as x * factor + rest with two numbers per channel."""
    x, *rest = (given(args, place) for place in range(5))
    scale, bias, mean, var = (channels(p, x) if x.value.ndim > 1 else p for p in rest)
    if node.attributes.get("training_mode") or any(node.outputs[1:]) or node.attributes.get("spatial", 1) != 1:
        raise ValueError
    factor = scale / root(var + number(node, "epsilon", 1e-5))
    folded = x * factor + (bias - mean * factor)
    written = (x - mean) * factor + bias
    return ErrorBound(written.value, np.maximum(folded.error, written.error))


def layer_norm(node: Node, args: Args, squares: bool = False) -> ErrorBound:
    x, axis = given(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes, epsilon = tuple(range(axis % x.value.ndim, x.value.ndim)), number(node, "epsilon", 1e-5)
    made = x / root((x * x).mean(axes) + epsilon) if squares else standard(x, axes, epsilon)
    made = made * given(args, 1)
    return made + given(args, 2) if len(args) > 2 and args[2] is not None else made


def instance_norm(node: Node, args: Args) -> ErrorBound:
    x = given(args, 0)
    made = standard(x, tuple(range(2, x.value.ndim)), number(node, "epsilon", 1e-5))
    return made * channels(given(args, 1), x) + channels(given(args, 2), x)


def group_norm(node: Node, args: Args) -> ErrorBound:
    x, groups = given(args, 0), node.attributes["num_groups"]
    assert isinstance(groups, int)
    parts = x.shaped((x.value.shape[0], groups, -1))
    made = standard(parts, (2,), number(node, "epsilon", 1e-5)).shaped(x.value.shape)
    return made * channels(given(args, 1), x) + channels(given(args, 2), x)


def mean_variance(node: Node, args: Args) -> ErrorBound:
    axes = node.attributes.get("axes", (0, 2, 3))
    assert isinstance(axes, tuple)
    return standard(given(args, 0), tuple(int(a) for a in axes), ErrorBound.of(0.0))


def lp_norm(node: Node, args: Args) -> ErrorBound:
    x, axis = given(args, 0), node.attributes.get("axis", -1)
    assert isinstance(axis, int)
    axes = (axis % x.value.ndim,)
    return x / (size(x).total(axes) if node.attributes.get("p", 2) == 1 else root((x * x).total(axes)))


def lrn(node: Node, args: Args) -> ErrorBound:
    """x / (bias + alpha / size * sum of squares of neighbouring channels) ^ beta."""
    x, size = given(args, 0), node.attributes["size"]
    assert isinstance(size, int)
    sides = ((0, 0), ((size - 1) // 2, size // 2), *((0, 0),) * (x.value.ndim - 2))
    padded = ErrorBound(np.pad(x.value, sides), np.pad(x.error, sides))
    windows = (sliding_window_view(part, size, axis=1) for part in (padded.value, padded.error))
    near = ErrorBound(*windows)
    total = (near * near).total((x.value.ndim,)).shaped(x.value.shape)
    factor = number(node, "alpha", 1e-4) / ErrorBound.of(size)
    beta = float(number(node, "beta", 0.75).value)
    return x * (number(node, "bias", 1.0) + factor * total).through(lambda v: np.power(v, -beta))


def reduced(
    before: Callable[[ErrorBound], ErrorBound], after: Callable[[ErrorBound], ErrorBound], mean: bool = False
) -> Rule:
    def rule(node: Node, args: Args) -> ErrorBound:
        x = before(given(args, 0))
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


def sum_of_products(node: Node, args: Args) -> ErrorBound:
    """A sum in any order, linear in each input: larger magnitudes give what errors of the inputs can do."""
    forms = [None if a is None else (a.value, np.abs(a.value), np.abs(a.value) + a.error) for a in args]
    value, magnitude, most = (whole(node, [f[place] if f else None for f in forms]) for place in range(3))
    ones = whole(node, [None if a is None else np.ones_like(a.value) for a in args])
    terms = 2 + max(float(ones.max(initial=0)), _pooled(node, given(args, 0)))
    return ErrorBound.rounded(value, most - magnitude + 2 * terms * UNIT * most)


def _pooled(node: Node, x: ErrorBound) -> int:
    """How many elements a mean is taken of."""
    kernel = node.attributes.get("kernel_shape", ())
    shape = (
        kernel if node.op_type == "AveragePool" else x.value.shape[2:] if node.op_type == "GlobalAveragePool" else ()
    )
    assert isinstance(shape, tuple)
    return math.prod(int(n) for n in shape)


def whole(node: Node, args: Sequence[Array | None]) -> Array:
    made = computed(node, args)
    if made is None or len(made) > 1:
        raise ValueError
    return made[0]


def largest(node: Node, args: Args) -> ErrorBound:
    """The largest of neighbouring elements: its error is the largest of theirs."""
    x = given(args, 0)
    return ErrorBound(whole(node, [x.value]), whole(node, [x.error]))
