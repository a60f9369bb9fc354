"""Normalization of channels: BatchNormalization, InstanceNormalization, GroupNormalization, LRN; and Dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._complete import ALWAYS
from qrun.ops._float import State, narrow, single, slide, widen
from qrun.ops._op import Array, Context, bad_shape, misfit, op, refuse, require
from qrun.ops._reduce import affine, standardize, sum_over
from qrun.ops._shape import scalar
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error, kernel_of, require_type


@op("BatchNormalization", since=7, form="pointwise")
def batch_normalization_7(
    X: Array,
    scale: Array,
    B: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    ctx: Context,
) -> State:
    """BatchNormalization-15, in training mode when more outputs than Y are used: mean and var, the running statistics,
    saved_mean and saved_var, those of this batch. In version 7, with spatial = 0, every element [C,spatial...] has
    parameters and statistics of its own. Source: ONNX operators, BatchNormalization-7 and BatchNormalization-9.
    """
    training, names = any(ctx.wanted[1:]), ("mean", "var")
    made = _normalize(X, (scale, B, mean, var), epsilon, momentum, bool(spatial), training, ctx, names)
    return made if training else made[:1]


@op("BatchNormalization", since=14, form="pointwise")
def batch_normalization(
    X: Array,
    scale: Array,
    B: Array,
    input_mean: Array,
    input_var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    ctx: Context,
) -> State:
    """Y = (X - mean) / sqrt(var + epsilon) * scale + B, per channel.

    X [N,C,spatial...] or [N], which has one channel; scale, B, input_mean, input_var [C], floating point.
    Otherwise mean and var are the inputs; in training mode those of the batch (population variance), and
    running = input * momentum + current * (1 - momentum) for both are further outputs.
    In float64 and rounded once to X's type, statistics to that of input_mean; float64 stays float64.
    Raises OperatorError for parameters that are not [C], and for further outputs outside training mode.
    """
    further = any(ctx.wanted[1:])
    if further and not training_mode:
        what = "running statistics are asked for outside training mode"
        got = f"{training_mode} and {ctx.outputs} outputs"
        why = "BatchNormalization-15: when training_mode is 0, extra outputs are invalid."
        raise refuse(what, "training_mode", "1, or Y as the only output", got, why=why, code="QR204")
    made = _normalize(X, (scale, B, input_mean, input_var), epsilon, momentum, True, bool(training_mode), ctx)
    return made[: 3 if further else 1]


def _normalize(
    x: Array,
    params: Sequence[Array],
    epsilon: float,
    momentum: float,
    spatial: bool,
    training: bool,
    ctx: Context,
    statistics: tuple[str, str] = ("input_mean", "input_var"),
) -> State:
    """Y, running mean, running variance, mean and variance of the batch (all except Y only in training mode)."""
    features = _features(x, params, spatial, statistics)
    ctx.claim(x.shape, 8)
    shape = features if not spatial or x.ndim < 2 else (*features, *(1,) * (x.ndim - 2))
    scale, bias, mean, var = (widen(p).reshape(shape) for p in params)
    with np.errstate(all="ignore"):
        further: State = ()
        if training:
            axes = (0, *(range(2, x.ndim) if spatial else ()))
            count = np.float64(math.prod(x.shape[a] for a in axes))
            keep, kind = single(momentum), params[2].dtype
            current_mean = sum_over(x, axes, True) / count
            current_var = sum_over(np.square(widen(x) - current_mean), axes, True) / count
            pairs = ((mean, current_mean), (var, current_var))
            running = [old * keep + new.reshape(shape) * (1 - keep) for old, new in pairs]
            mean, var = (np.asarray(v).reshape(shape) for v in (current_mean, current_var))
            further = tuple(narrow(v.reshape(features), kind) for v in (*running, mean, var))
        y = np.subtract(x, mean, dtype=np.float64)
        y *= scale / np.sqrt(var + single(epsilon))
        y += bias
    return narrow(y, x.dtype), *further


def _features(x: Array, params: Sequence[Array], spatial: bool, statistics: tuple[str, str]) -> tuple[int, ...]:
    """The shape that the parameters must have."""
    features = x.shape[1:] if not spatial else x.shape[1:2] if x.ndim > 1 else (1,)
    for name, value in zip(("scale", "B", *statistics), params, strict=True):
        if value.shape != features:
            raise bad_shape(name, f"{shape_text(features)} for X {shape_text(x.shape)}", value)
    return features


@batch_normalization_7.native
@batch_normalization.native
def _lower_batch_normalization(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.rowwise import BatchNorm

    x, *params = (value for value in site.inputs if value is not None)
    attributes, statistics = site.attributes, (site.names[3], site.names[4])
    if any(site.ctx.wanted[1:]) or attributes.get("training_mode", 0):
        raise decline_error("statistics of the batch are asked for")
    _features(x, params, bool(attributes.get("spatial", 1)), statistics)
    site.require_constants()
    require_type(x.dtype == np.float32, x.dtype)
    if x.ndim < 2 or not x.size or not attributes.get("spatial", 1):
        raise decline_error("no channels")
    scale, bias, mean, var = (widen(param) for param in params)
    with np.errstate(all="ignore"):
        factor = scale / np.sqrt(var + single(attributes["epsilon"]))
    operation = BatchNorm(site.engine, x.shape, mean, factor, bias)
    return kernel_of(site, operation, (0,), ALWAYS)


@op("Dropout", since=7)
def dropout_7(data: Array, *, ratio: float = 0.5, ctx: Context) -> State:
    """data unchanged, as in inference; mask of ones: of data's type in version 7, bool from version 10 on.

    Source: ONNX operators, Dropout-7 and Dropout-10.
    """
    if not ctx.wants(1):
        return (data,)
    kind = data.dtype if ctx.version < 10 else np.dtype(np.bool_)
    ctx.claim(data.shape, kind.itemsize)
    return data, np.ones(data.shape, kind)


@op("Dropout", since=12)
def dropout(
    data: Array,
    ratio: Array | None = None,
    training_mode: Array | None = None,
    *,
    seed: int | None = None,
    ctx: Context,
) -> State:
    """Return data unchanged and a mask of True, unless training_mode is true and ratio is not 0.

    Then mask = (uniform [0, 1) >= ratio) and output = data * mask / (1 - ratio), in float64 and rounded once. The page
    leaves the generator open; this is numpy's MT19937 from `seed`, or from 0, so a run repeats.
    Raises OperatorError for a ratio outside [0, 1), and for ratio or training_mode that are not scalars.
    """
    rate = 0.5 if ratio is None else float(scalar(ratio, "ratio"))
    training = training_mode is not None and bool(scalar(training_mode, "training_mode"))
    if not training or rate == 0:
        if not ctx.wants(1):
            return (data,)
        ctx.claim(data.shape)
        return data, np.ones(data.shape, np.bool_)
    if not 0 <= rate < 1:
        raise refuse("ratio is out of range", "ratio", "0 <= ratio < 1", str(rate))
    ctx.claim(data.shape, 17)
    mask = np.asarray(np.random.RandomState((seed or 0) % 2**32).uniform(0, 1, data.shape) >= rate)
    with np.errstate(all="ignore"):
        return narrow(widen(data) * mask / (1 - rate), data.dtype), mask


_BLOCK = 1 << 17
"""Elements processed at once, so that they stay in the cache."""
_FEW = 16
"""Up to this many squares are added one after the other."""


@op("LRN", since=1)
def lrn(
    X: Array,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
    ctx: Context,
) -> Array:
    """Y[n,c] = X[n,c] / (bias + alpha / size * sum over i of X[n,i]**2) ** beta

    X [N,C,spatial...], floating point; i runs over the `size` channels from c - floor((size-1)/2) to
    c + ceil((size-1)/2) that exist. In float64 and rounded once to X's type; float64 stays float64.
    Raises OperatorError for a size below 1 and for rank 1 or less.
    """
    if X.ndim < 2:
        raise misfit("X has no channels", "X", "[N,C,spatial...]", X)
    require("size", size >= 1, "1 or more", size)
    if not X.size:
        return X
    channels = X.shape[1]
    before, after = _sides(size, channels)
    count = before + after + 1
    rows = X.reshape(X.shape[0], channels, -1)
    step = max(1, _BLOCK // (len(rows) * channels))
    ctx.claim((len(rows), channels + before + after, step), 16, "squares")
    y = np.empty(rows.shape, X.dtype)
    for start in range(0, rows.shape[2], step):
        part = widen(rows[:, :, start : start + step])
        with np.errstate(all="ignore"):
            squares = np.pad(np.square(part), [(0, 0), (before, after), (0, 0)])
            if count <= _FEW:
                total = squares[:, :channels].copy()
                for tap in range(1, count):
                    total += squares[:, tap : tap + channels]
            else:
                total = slide((squares,), 1, count, 1, 1, channels, lambda a, b: (a[0] + b[0],))[0]
            power = _power(single(bias) + single(alpha) / size * total, single(beta))
            y[:, :, start : start + step] = narrow(part / power, X.dtype)
    return y.reshape(X.shape)


def _sides(size: int, channels: int) -> tuple[int, int]:
    """The numbers of channels before and after each one that are summed, at most as many as exist."""
    return min((size - 1) // 2, channels - 1), min(size // 2, channels - 1)


@lrn.native
def lower_lrn(site: LoweringContext) -> NativeKernel:
    from qrun.native.kernels.rowwise import Lrn

    x, beta, bias, size = site.inputs[0], *(site.attributes[name] for name in ("beta", "bias", "size"))
    if x.dtype != np.float32 or single(beta) != 0.75:
        raise decline_error("not float32 to the power of 0.75")
    if x.ndim < 2 or size < 1 or not x.size:
        raise decline_error("no channels")
    before, after = _sides(size, x.shape[1])
    if before + after >= _FEW:
        raise decline_error(f"sums of more than {_FEW} squares")
    factor = float(single(site.attributes["alpha"]) / size)
    operation = Lrn(site.engine, x.shape, before, after, factor, float(single(bias)))
    return kernel_of(site, operation, (0,), ALWAYS)


def _power(base: Array, exponent: float) -> Array:
    """base ** exponent; 0.75 from square roots, within two units in the last place."""
    if exponent != 0.75:
        return np.asarray(base**exponent)
    root = np.sqrt(base)
    return np.asarray(root * np.sqrt(root))


@op("InstanceNormalization", since=6)
def instance_normalization(input: Array, scale: Array, B: Array, *, epsilon: float = 1e-5, ctx: Context) -> Array:
    """scale * (input - mean) / sqrt(var + epsilon) + B, mean and var over the spatial axes of each channel.

    input [N,C,spatial...], scale and B [C], floating point. In float64 and rounded once; float64 stays float64.
    Raises OperatorError for other shapes.
    """
    ctx.claim(input.shape, 16)
    x = _group_channels(input, max(input.shape[1], 1) if input.ndim > 1 else 1, "input")
    weights = [_per_channel(p, input, name) for name, p in (("scale", scale), ("B", B))]
    return affine(standardize(x, (2,), epsilon)[0].reshape(input.shape), weights, input.dtype)


@op("GroupNormalization", since=21)
def group_normalization(
    X: Array,
    scale: Array,
    bias: Array,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
    ctx: Context,
) -> Array:
    """scale * (X - mean) / sqrt(var + epsilon) + bias, mean and var over each of num_groups groups of channels.

    X [N,C,spatial...], scale and bias [C], floating point; num_groups divides C.
    In float64 and rounded once, which is at least as precise as every stash_type; float64 stays float64.
    Raises OperatorError for other shapes and numbers of groups.
    """
    ctx.claim(X.shape, 16)
    x = _group_channels(X, num_groups, "X")
    weights = [_per_channel(p, X, name) for name, p in (("scale", scale), ("bias", bias))]
    return affine(standardize(x, (2,), epsilon)[0].reshape(X.shape), weights, X.dtype)


@instance_normalization.native
def _lower_instance_normalization(site: LoweringContext) -> NativeKernel:
    x = site.inputs[0]
    return _lower(site, max(x.shape[1], 1) if x.ndim > 1 else 1)


@group_normalization.native
def _lower_group_normalization(site: LoweringContext) -> NativeKernel:
    return _lower(site, site.attributes["num_groups"])


def _lower(site: LoweringContext, groups: int) -> NativeKernel:
    from qrun.native.kernels.rowwise import ChannelNorm

    x, *params = site.inputs
    _group_channels(x, groups, site.names[0])
    scale, bias = (_per_channel(p, x, name) for name, p in zip(site.names[1:], params, strict=True))
    site.require_constants()
    require_type(x.dtype == np.float32, x.dtype)
    if not x.size:
        raise decline_error("no elements")
    epsilon = single(site.attributes["epsilon"])
    made = ChannelNorm(site.engine, x.shape, groups, scale.reshape(-1), bias.reshape(-1), epsilon)
    return kernel_of(site, made, (0,), ALWAYS)


def _group_channels(x: Array, groups: int, name: str) -> Array:
    """x [N,C,spatial...] as [N,groups,C / groups * spatial]."""
    if x.ndim < 2:
        raise misfit(f"{name} does not fit the input", name, "[N,C,spatial...]", x)
    channels = x.shape[1]
    require("num_groups", groups > 0 and not channels % groups, f"a divisor of {channels}, the channels", groups)
    return x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _per_channel(p: Array, x: Array, name: str) -> Array:
    """A parameter with one number per channel, as float64 that broadcasts with x. Raises OperatorError."""
    if p.shape != x.shape[1:2]:
        raise misfit(
            f"{name} does not fit the input", name, f"{shape_text(x.shape[1:2])}, one number for each channel", p
        )
    return widen(p).reshape(-1, *(1,) * (x.ndim - 2))
