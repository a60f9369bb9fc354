"""Normalization of channels by their own statistics: InstanceNormalization, GroupNormalization."""

from __future__ import annotations

import math

import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._complete import ALWAYS
from qrun.ops._float import single, widen
from qrun.ops._op import Array, Context, misfit, op, require
from qrun.ops._reduce import affine, standardized
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined, kernel_of, require_type


@op("InstanceNormalization", since=6)
def instance_normalization(input: Array, scale: Array, B: Array, *, epsilon: float = 1e-5, ctx: Context) -> Array:
    """scale * (input - mean) / sqrt(var + epsilon) + B, mean and var over the spatial axes of each channel.

    input [N,C,spatial...], scale and B [C], floating point. In float64 and rounded once; float64 stays float64.
    Raises OperatorError for other shapes.
    """
    ctx.claim(input.shape, 16)
    x = _grouped(input, max(input.shape[1], 1) if input.ndim > 1 else 1, "input")
    weights = [_per_channel(p, input, name) for name, p in (("scale", scale), ("B", B))]
    return affine(standardized(x, (2,), epsilon)[0].reshape(input.shape), weights, input.dtype)


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
    x = _grouped(X, num_groups, "X")
    weights = [_per_channel(p, X, name) for name, p in (("scale", scale), ("bias", bias))]
    return affine(standardized(x, (2,), epsilon)[0].reshape(X.shape), weights, X.dtype)


@instance_normalization.native
def _lower_instance_normalization(site: LoweringContext) -> NativeKernel:
    x = site.inputs[0]
    return _lowered(site, max(x.shape[1], 1) if x.ndim > 1 else 1)


@group_normalization.native
def _lower_group_normalization(site: LoweringContext) -> NativeKernel:
    return _lowered(site, site.attributes["num_groups"])


def _lowered(site: LoweringContext, groups: int) -> NativeKernel:
    from qrun.native.kernels.rowwise import ChannelNorm

    x, *params = site.inputs
    _grouped(x, groups, site.names[0])
    scale, bias = (_per_channel(p, x, name) for name, p in zip(site.names[1:], params, strict=True))
    site.require_constants()
    require_type(x.dtype == np.float32, x.dtype)
    if not x.size:
        raise declined("no elements")
    epsilon = single(site.attributes["epsilon"])
    made = ChannelNorm(site.engine, x.shape, groups, scale.reshape(-1), bias.reshape(-1), epsilon)
    return kernel_of(site, made, (0,), ALWAYS)


def _grouped(x: Array, groups: int, name: str) -> Array:
    """x [N,C,spatial...] as [N,groups,C / groups * spatial]."""
    if x.ndim < 2:
        raise misfit(f"{name} does not fit the input", name, "[N,C,spatial...]", x)
    channels = x.shape[1]
    require("num_groups", groups > 0 and not channels % groups, f"a divisor of {channels}, the channels", groups)
    return x.reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)


def _per_channel(p: Array, x: Array, name: str) -> Array:
    if p.shape != x.shape[1:2]:
        raise misfit(
            f"{name} does not fit the input", name, f"{shape_text(x.shape[1:2])}, one number for each channel", p
        )
    return widen(p).reshape(-1, *(1,) * (x.ndim - 2))
