"""Normalization of rows by their own statistics: Layer-, RMS-, MeanVariance-, LpNormalization; and
SkipLayerNormalization, SkipSimplifiedLayerNormalization, EmbedLayerNormalization, QEmbedLayerNormalization of
com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._body import InnerNode, dequantize, node, nodes_kernel, run_nodes
from qrun.ops._context import note_scale, same_type, scalar
from qrun.ops._float import State, axes_in, axis_in, narrow, single, widen
from qrun.ops._op import (
    Array,
    Context,
    bad_attribute,
    bad_shape,
    both_or_none,
    check_range,
    contrib_op,
    misfit,
    one_of,
    op,
    refuse,
    require,
    with_shape,
)
from qrun.ops._reduce import affine, inverse_rms, mean_over, standardize, sum_over
from qrun.ops._signature import FLOATS, MASK, InputRecord
from qrun.ops.lowering.float32 import rms_kernel, standardize_kernel
from qrun.ops.lowering.kernel import FLOAT, LoweringContext, NativeKernel, decline_error
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
    weights = [_check_fit(p, X, name) for name, p in (("Scale", Scale), ("B", B)) if p is not None]
    ctx.claim(X.shape, 16)
    x = np.asarray(X, order="C")
    y, mean, inverse = standardize(x, axes, epsilon)
    return affine(y, weights, Scale.dtype), narrow(mean, kind), narrow(inverse, kind)


@layer_normalization.native
def _lower_layer_normalization(site: LoweringContext) -> NativeKernel:
    x, scale, bias = site.inputs
    options = {name: site.attributes[name] for name in ("axis", "epsilon", "stash_type")}
    _stash(options["stash_type"])
    axis = axis_in(options["axis"], x.ndim)
    weights = {name: p for name, p in (("Scale", scale), ("B", bias)) if p is not None}
    for name, p in weights.items():
        _check_fit(p, x, name)
    site.require_constants()
    if site.ctx.wants(1) or site.ctx.wants(2):
        raise decline_error("its mean or deviation is asked for")
    if any(p.dtype != FLOAT for p in weights.values()):
        raise decline_error("weights that are not float32")
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
    weight = _check_fit(scale, X, "scale")
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
    _check_fit(scale, x, "scale")
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
    dim = axis_in(axis, input.ndim)
    ctx.claim(input.shape, 16)
    with np.errstate(all="ignore"):
        wide = widen(input)
        norm = sum_over(np.abs(wide), (dim,), True) if p == 1 else np.sqrt(sum_over(np.square(wide), (dim,), True))
        return narrow(np.where(norm == 0, 0.0, wide / norm), input.dtype)


def _check_fit(p: Array, x: Array, name: str) -> Array:
    """The parameter as float64. Raises OperatorError unless it broadcasts to x."""
    if not broadcasts_to(p.shape, x.shape):
        raise misfit(f"{name} does not fit the input", name, f"a shape that broadcasts to {shape_text(x.shape)}", p)
    return widen(p)


def _stash(stash_type: int) -> Any:
    """The type of stash_type. Raises OperatorError for other numbers."""
    require("stash_type", stash_type in _STASH, "1 float32, 16 bfloat16", stash_type)
    return np.dtype(_STASH[stash_type])


_EPSILON = 9.999999960041972e-13
Made = tuple[Array, Array, Array, Array]


@contrib_op("SkipLayerNormalization", types={"T": (FLOATS, "input skip gamma beta bias")})
def skip_layer_normalization(
    input: Array,
    skip: Array,
    gamma: Array,
    beta: Array | None = None,
    bias: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    ctx: Context,
) -> Made:
    """LayerNormalization of input + skip + bias over the last axis: output, mean, inv_std_var, input_skip_bias_sum.

    input [...,n]; skip broadcasts to it; gamma, beta and bias [n]; of one type. Mean and 1 / sqrt(var + epsilon) are
    float32, with 1 in place of the last axis. As the nodes of ai.onnx: two Add from left to right, each rounded, whose
    result is input_skip_bias_sum, then LayerNormalization with scale gamma and bias beta.
    Raises OperatorError for shapes that do not fit.
    """
    _check_skip(input, skip, gamma=gamma, beta=beta, bias=bias)
    made = run_nodes(_skip_nodes(bias, "LayerNormalization", (2, 3), 4, epsilon), (input, skip, gamma, beta, bias), ctx)
    y, mean, inverse = made[""]
    return y, mean, inverse, made["sum"]


@skip_layer_normalization.native
def _lower_skip(site: LoweringContext) -> NativeKernel:
    x, skip, gamma, beta, bias = site.inputs
    _check_skip(x, skip, gamma=gamma, beta=beta, bias=bias)
    return _skip_kernel(site, _skip_nodes(bias, "LayerNormalization", (2, 3), 4, site.attributes["epsilon"]))


def _skip_kernel(site: LoweringContext, nodes: Sequence[InnerNode]) -> NativeKernel:
    """The kernel of a checked operator that runs these nodes; the result named ``sum`` is its last output."""
    if site.ctx.wants(1) or site.ctx.wants(2):
        raise decline_error("its mean or deviation is asked for")
    return nodes_kernel(site, nodes, {"sum": 3} if site.ctx.wants(3) else None)


@contrib_op("SkipSimplifiedLayerNormalization", types={"T": (FLOATS, "input skip gamma bias")})
def skip_simplified_layer_normalization(
    input: Array,
    skip: Array,
    gamma: Array,
    bias: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    ctx: Context,
) -> Made:
    """RMSNormalization of input + skip + bias over the last axis: output, mean, inv_std_var, input_skip_bias_sum.

    As SkipLayerNormalization, but RMSNormalization with scale gamma follows the additions: inv_std_var is
    1 / sqrt(mean of the squares + epsilon), float32, and no mean. Raises OperatorError for shapes that do not
    fit, and if the mean is requested.
    """
    _check_skip(input, skip, gamma=gamma, bias=bias)
    if ctx.wants(1):
        raise refuse("no mean", "mean", "output 1 left out: squares are not centred", "output 1")
    made = run_nodes(_skip_nodes(bias, "RMSNormalization", (2,), 3, epsilon), (input, skip, gamma, bias), ctx)
    none = np.empty(0, np.float32)
    inverse = inverse_rms(made["sum"], (input.ndim - 1,), epsilon).astype(np.float32) if ctx.wants(2) else none
    return made[""], none, inverse, made["sum"]


@skip_simplified_layer_normalization.native
def _lower_skip_simplified(site: LoweringContext) -> NativeKernel:
    x, skip, gamma, bias = site.inputs
    _check_skip(x, skip, gamma=gamma, bias=bias)
    return _skip_kernel(site, _skip_nodes(bias, "RMSNormalization", (2,), 3, site.attributes["epsilon"]))


def _skip_nodes(
    bias: Array | None, normalization: str, weights: Sequence[int], bias_index: int, epsilon: float
) -> list[InnerNode]:
    """The nodes that the operator runs. weights: numbers of the normalization's inputs other than the sum;
    bias_index: of the bias."""
    first = InnerNode("Add", (0, 1), {}, "sum" if bias is None else "skipped")
    then = [] if bias is None else [InnerNode("Add", ("skipped", bias_index), {}, "sum")]
    return [first, *then, InnerNode(normalization, ("sum", *weights), {"epsilon": epsilon})]


def _check_skip(x: Array, skip: Array, **weights: Array | None) -> None:
    """Refuse a scalar x, a skip that does not broadcast to x, and weights without one number for each element of a
    row."""
    if not x.ndim:
        raise misfit("the input is a scalar", "input", "rank 1 or more", x)
    if not broadcasts_to(skip.shape, x.shape):
        expected = f"a shape that broadcasts to {shape_text(x.shape)}"
        raise misfit("skip does not fit the input", "skip", expected, skip)
    for name, weight in weights.items():
        if weight is not None and weight.shape != x.shape[-1:]:
            raise misfit(f"{name} does not fit the input", name, shape_text(x.shape[-1:]), weight)


@contrib_op(
    "EmbedLayerNormalization",
    types={
        "T1": ("int32", "input_ids segment_ids mask position_ids"),
        "T": ("float float16", "word_embedding position_embedding segment_embedding gamma beta"),
    },
    wholes={"mask": MASK},
)
def embed_layer_normalization(
    input_ids: Array,
    segment_ids: Array | None,
    word_embedding: Array,
    position_embedding: Array,
    segment_embedding: Array | None,
    gamma: Array,
    beta: Array,
    mask: Array | None = None,
    position_ids: Array | None = None,
    *,
    epsilon: float = _EPSILON,
    mask_index_type: int | None = None,
    ctx: Context,
) -> tuple[Array, Array, Array]:
    """LayerNormalization of the sum of word, position and segment embeddings:
    output, mask_index, embedding_sum.

    input_ids, segment_ids and mask int32 [B,S]; position_ids [B,S] or [1,S], 0 to S-1 if omitted;
    embeddings [rows,n], gamma and beta [n]. mask_index int32 [B]: how many elements of each line of the mask are 1, 0
    without a mask. As the nodes of ai.onnx: Gather, Add of the position's, Add of the segment's, each rounded, which is
    embedding_sum, then LayerNormalization. Raises OperatorError for shapes, numbers and attributes that do not fit.
    """
    tables = (word_embedding, position_embedding, segment_embedding)
    check_tables(tables, gamma, beta)
    total = sum_embeddings(input_ids, segment_ids, position_ids, tables, ctx)
    y = node("LayerNormalization", [total, gamma, beta], ctx, epsilon=epsilon)[0]
    return y, count_ones(mask, input_ids, mask_index_type), total


_Q_EMBED = "QEmbedLayerNormalization"
_TABLES = ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")
_TABLE_CODES = ("word_embedding_quant", "position_embedding_quant", "segment_embedding", "gamma_quant", "beta_quant")


@frozen
class QEmbedInputs(InputRecord):
    input_ids: Array
    segment_ids: Array | None
    word_embedding_quant: Array
    position_embedding_quant: Array
    segment_embedding: Array | None
    gamma_quant: Array
    beta_quant: Array
    mask: Array | None
    word_embedding_scale: Array
    position_embedding_scale: Array
    segment_embedding_scale: Array | None
    gamma_scale: Array
    beta_scale: Array
    word_embedding_zero_point: Array
    position_embedding_zero_point: Array
    segment_embedding_zero_point: Array | None
    gamma_zero_point: Array
    beta_zero_point: Array


@contrib_op(
    _Q_EMBED,
    types={
        "T1": ("int32", "input_ids segment_ids mask"),
        "T2": ("int8 uint8", " ".join((*_TABLE_CODES, *(f"{name}_zero_point" for name in _TABLES)))),
        "T": ("float", " ".join(f"{name}_scale" for name in _TABLES)),
    },
    wholes={"mask": MASK},
)
def q_embed_layer_normalization(given: QEmbedInputs, *, epsilon: float = _EPSILON, ctx: Context) -> tuple[Array, Array]:
    """EmbedLayerNormalization whose embeddings, gamma and beta are codes:
    layernorm_out [B,S,n], mask_index_out int32 [B].

        number = (code - zero_point) * scale            float32, as DequantizeLinear

    Scales and zero points are scalars. Everything else is as in EmbedLayerNormalization. Raises OperatorError for
    shapes and numbers that do not fit, and where only some of a segment's inputs are given.
    """
    segment = ("segment_ids", "segment_embedding", "segment_embedding_scale", "segment_embedding_zero_point")
    both_or_none(**{name: getattr(given, name) for name in segment})
    words, places = (_table_numbers(given, name, ctx) for name in _TABLES[:2])
    kinds = None if given.segment_embedding is None else _table_numbers(given, "segment_embedding", ctx)
    gamma, beta = (_table_numbers(given, name, ctx) for name in _TABLES[3:])
    check_tables((words, places, kinds), gamma, beta)
    total = sum_embeddings(given.input_ids, given.segment_ids, None, (words, places, kinds), ctx)
    y = node("LayerNormalization", [total, gamma, beta], ctx, epsilon=epsilon)[0]
    return y, count_ones(given.mask, given.input_ids, None)


def _table_numbers(given: QEmbedInputs, name: str, ctx: Context) -> Array:
    """The real values of a table's codes."""
    codes = _TABLE_CODES[_TABLES.index(name)]
    code, scale, zero = (getattr(given, part) for part in (codes, f"{name}_scale", f"{name}_zero_point"))
    same_type(zero, code.dtype, f"{name}_zero_point", codes)
    step, shift = scalar(scale, f"{name}_scale", _Q_EMBED), scalar(zero, f"{name}_zero_point", _Q_EMBED)
    note_scale(ctx, step, f"{name}_scale")
    ctx.claim(code.shape, 8)
    return dequantize(code, step, shift, ctx)


def check_tables(tables: tuple[Array, Array, Array | None], gamma: Array, beta: Array) -> None:
    """Refuse embeddings that are not matrices, or have different widths."""
    names = _TABLES[:3]
    if tables[0].ndim != 2:
        raise bad_shape(names[0], "[words,n]", tables[0])
    width = tables[0].shape[1]
    for name, table in zip(names, tables, strict=True):
        if table is not None and (table.ndim != 2 or table.shape[1] != width):
            raise bad_shape(name, f"[rows,{width}]", table)
    with_shape(gamma, "gamma", (width,))
    with_shape(beta, "beta", (width,))


def sum_embeddings(
    ids: Array, segments: Array | None, positions: Array | None, tables: tuple[Array, Array, Array | None], ctx: Context
) -> Array:
    """The sum of the embeddings [B,S,n], each addition rounded."""
    if ids.ndim != 2:
        raise bad_shape("input_ids", "[batch,length]", ids)
    words, places, kinds = tables
    both_or_none(segment_ids=segments, segment_embedding=kinds)
    total = _embedding_rows(words, ids, "input_ids", ctx)
    if positions is None:
        given = np.arange(ids.shape[1], dtype=np.int32)[None]
    else:
        given = with_shape(positions, "position_ids", ids.shape, (1, ids.shape[1]))
    total = node("Add", [total, _embedding_rows(places, given, "position_ids", ctx)], ctx)
    if segments is not None and kinds is not None:
        with_shape(segments, "segment_ids", ids.shape)
        total = node("Add", [total, _embedding_rows(kinds, segments, "segment_ids", ctx)], ctx)
    return np.asarray(total)


def _embedding_rows(table: Array, ids: Array, name: str, ctx: Context) -> Array:
    """The rows of a table with these ids. Raises OperatorError for ids outside it."""
    check_range(ids, len(table), name, "row", "QR208")
    return np.asarray(node("Gather", [table, ids], ctx, axis=0))


def count_ones(mask: Array | None, ids: Array, mask_index_type: int | None) -> Array:
    """The number of elements of each line of the mask that are 1: int32 [B]."""
    if mask_index_type not in (None, 0, 1):
        raise bad_attribute("mask_index_type", "0, 1", mask_index_type)
    if mask is None:
        return np.zeros(ids.shape[:1], np.int32)
    return np.asarray(np.sum(with_shape(mask, "mask", ids.shape) == 1, axis=1, dtype=np.int32))
