"""Normalization by the statistics of the input itself: Layer-, RMS-, MeanVariance-, LpNormalization."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from qrun.ir.types import shape_text
from qrun.ops._float import State, axes_in, axis_in, narrow, single, widen
from qrun.ops._op import Array, Context, misfit, one_of, op, require
from qrun.ops._reduce import affine, inverse_rms, mean_over, standardized, sum_over
from qrun.ops.lowering.float32 import rms_kernel, standardize_kernel
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, declined
from qrun.shapes import broadcasts_to

_TYPES = "float16 float double bfloat16"
_STASH: dict[int, Any] = {1: np.float32, 10: np.float16, 11: np.float64, 16: ml_dtypes.bfloat16}


@op("LayerNormalization", since=17)
def layer_normalization(
    X: Array,
    Scale: Array,
    B: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    ctx: Context,
) -> State:
    """Y = (X - Mean) * InvStdDev * Scale + B, Mean and InvStdDev = 1 / sqrt(var + epsilon) over all axes from `axis`
    on.

    X of rank 1 or more; Scale and B broadcast to X. Mean and InvStdDev have 1 in place of those axes, and stash_type.
    In float64 and rounded once, which is at least as precise as every stash_type; float64 stays float64.
    Raises OperatorError for an axis outside [-r, r-1], for shapes that do not broadcast to X, and for a stash_type
    that is not floating point.
    """
    kind = _stash(stash_type)
    axes = tuple(range(axis_in(axis, X.ndim), X.ndim))
    weights = [_fitting(p, X, name) for name, p in (("Scale", Scale), ("B", B)) if p is not None]
    ctx.claim(X.shape, 16)
    x = np.asarray(X, order="C")
    y, mean, inverse = standardized(x, axes, epsilon)
    return affine(y, weights, Scale.dtype), narrow(mean, kind), narrow(inverse, kind)


@layer_normalization.native
def _lower_layer_normalization(site: LoweringContext) -> NativeKernel:
    x, scale, bias = site.inputs
    options = {name: site.attributes[name] for name in ("axis", "epsilon", "stash_type")}
    _stash(options["stash_type"])
    axis = axis_in(options["axis"], x.ndim)
    weights = {name: p for name, p in (("Scale", scale), ("B", bias)) if p is not None}
    for name, p in weights.items():
        _fitting(p, x, name)
    site.require_constants()
    if site.ctx.wants(1) or site.ctx.wants(2):
        raise declined("its mean or deviation is asked for")
    if any(p.dtype != FLOAT for p in weights.values()):
        raise declined("weights that are not float32")
    return standardize_kernel(site, axis, list(weights.values()), single(options["epsilon"]))


@op(
    "LayerNormalization",
    since=1,
    types={"T": (_TYPES, "X"), "V": (_TYPES, "Scale B")},
    like=layer_normalization,
    native=_lower_layer_normalization,
)
def layer_normalization_1(*inputs: Array | None, ctx: Context, **attributes: Any) -> State:
    """LayerNormalization-17 as onnxruntime writes it into models of earlier opsets; Y has the type of Scale and B.

    Source: onnxruntime, contrib_defs, LayerNormalization-1 of the domain ai.onnx.
    """
    made: State = layer_normalization(*inputs, ctx=ctx, **attributes)
    return made


@op("RMSNormalization", since=23)
def rms_normalization(
    X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, ctx: Context
) -> Array:
    """X / sqrt(mean(X**2) + epsilon) * scale in scale's type, the mean over all axes from `axis` on.

    X of rank 1 or more; scale broadcasts to X. In float64 and rounded once, which is at least as precise as every
    stash_type; float64 stays float64.
    Raises OperatorError for an axis outside [-r, r-1] and a scale that does not broadcast to X.
    """
    axes = tuple(range(axis_in(axis, X.ndim), X.ndim))
    weight = _fitting(scale, X, "scale")
    ctx.claim(X.shape, 16)
    with np.errstate(all="ignore"):
        y = widen(X) * inverse_rms(X, axes, epsilon)
    return affine(y, [weight], scale.dtype)


@rms_normalization.native
def _lower_rms_normalization(site: LoweringContext) -> NativeKernel:
    return rms_kernel(site, _first_axis(site), None)


def _first_axis(site: LoweringContext) -> int:
    """The first axis of a row of a checked node."""
    x, scale = site.inputs
    _fitting(scale, x, "scale")
    return axis_in(site.attributes["axis"], x.ndim)


def _lower_simplified(site: LoweringContext) -> NativeKernel:
    return rms_kernel(site, _first_axis(site), _stash(site.attributes["stash_type"]))


@op(
    "SimplifiedLayerNormalization",
    since=1,
    types={"T": (_TYPES, "X"), "V": (_TYPES, "scale")},
    native=_lower_simplified,
)
def simplified_layer_normalization(
    X: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, ctx: Context
) -> tuple[Array, Array]:
    """RMSNormalization as onnxruntime writes it: Y and inv_std_var = 1 / sqrt(mean(X**2) + epsilon).

    inv_std_var has 1 in place of the axes from `axis` on, and stash_type, to which it is rounded from float64.
    Raises OperatorError as RMSNormalization does, and for a stash_type that is not floating point.
    Source: onnxruntime, contrib_defs, SimplifiedLayerNormalization-1 of the domain ai.onnx.
    """
    kind = _stash(stash_type)
    y: Array = rms_normalization(X, scale, axis=axis, epsilon=epsilon, ctx=ctx)
    axes = tuple(range(axis_in(axis, X.ndim), X.ndim))
    return y, narrow(inverse_rms(X, axes, epsilon), kind)


@op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(X: Array, *, axes: tuple[int, ...] = (0, 2, 3), ctx: Context) -> Array:
    """(X - mean) / (sqrt(var) + 1e-9), mean and var over `axes`, as the operator's function body has it.

    In float64 and rounded once; float64 stays float64. Raises OperatorError for axes that do not exist.
    """
    places = axes_in(axes, X.ndim)
    ctx.claim(X.shape, 16)
    with np.errstate(all="ignore"):
        centred = widen(X) - mean_over(X, places)
        return narrow(centred / (np.sqrt(mean_over(np.square(centred), places)) + single(1e-9)), X.dtype)


@op("LpNormalization", since=1)
def lp_normalization(input: Array, *, axis: int = -1, p: int = 2, ctx: Context) -> Array:
    """input / norm along one axis, the norm being sum(|x|) for p = 1 and sqrt(sum(x**2)) for p = 2; 0 where that is 0.

    In float64 and rounded once; float64 stays float64. Raises OperatorError for another p and an axis that does not
    exist.
    """
    one_of("p", p, (1, 2))
    place = axis_in(axis, input.ndim)
    ctx.claim(input.shape, 16)
    with np.errstate(all="ignore"):
        wide = widen(input)
        norm = sum_over(np.abs(wide), (place,), True) if p == 1 else np.sqrt(sum_over(np.square(wide), (place,), True))
        return narrow(np.where(norm == 0, 0.0, wide / norm), input.dtype)


def _fitting(p: Array, x: Array, name: str) -> Array:
    if not broadcasts_to(p.shape, x.shape):
        raise misfit(f"{name} does not fit the input", name, f"a shape that broadcasts to {shape_text(x.shape)}", p)
    return widen(p)


def _stash(stash_type: int) -> Any:
    require("stash_type", stash_type in _STASH, "1 float32, 16 bfloat16", stash_type)
    return np.dtype(_STASH[stash_type])
