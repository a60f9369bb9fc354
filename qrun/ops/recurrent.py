"""The operators LSTM, GRU and RNN, and DynamicQuantizeLSTM of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import bad_parameter, note_scale, same_type
from qrun.ops._matmul import integer_matmul
from qrun.ops._op import Array, Context, contrib_op, op
from qrun.ops._quantize import quantize_dynamically
from qrun.ops._recurrent import (
    Gates,
    Product,
    RecurrentAttributes,
    Sequences,
    Share,
    Step,
    biases,
    check_sequences,
    mix_states,
    products,
    recurrent_macs,
    share,
    walk,
    walk_lstm,
)
from qrun.ops._rounding import scale_sums
from qrun.ops._signature import InputRecord, Whole
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, decline_error
from qrun.ops.lowering.recurrent import LENGTHS, plain_lstm, quantized_lstm_kernel, recurrent_kernel

_LSTM = ("Sigmoid", "Tanh", "Tanh")
_GRU = ("Sigmoid", "Tanh")
_RNN = ("Tanh",)
_WHOLE = {"sequence_lens": Whole((("X", "layout"),))}
"""The default activations; and _WHOLE: sequences are complete at the length of X's axis `layout`."""


@frozen
class RecurrentInputs(InputRecord):
    X: Array
    W: Array
    R: Array
    B: Array | None = None
    sequence_lens: Array | None = None
    initial_h: Array | None = None


@frozen
class LstmInputs(RecurrentInputs):
    initial_c: Array | None = None
    P: Array | None = None


def _sequences(
    given: RecurrentInputs, gates: int, attributes: RecurrentAttributes, layout: int, ctx: Context
) -> Sequences:
    """Refuse what does not fit, and claim the results. gates: the number of gates of a cell."""
    weights = [("W", given.W, (-2, -3)), ("R", given.R, (-2, -1)), ("B", given.B, (-4,))]
    states = [("initial_h", given.initial_h)]
    if isinstance(given, LstmInputs):
        weights.append(("P", given.P, (-5,)))
        states.append(("initial_c", given.initial_c))
    return check_sequences(given.X, weights, given.sequence_lens, states, gates, attributes, layout, ctx)


@op("LSTM", since=7, cost=recurrent_macs, wholes=_WHOLE)
def lstm(
    given: LstmInputs,
    *,
    activations_: tuple[str, ...] | None = None,
    attributes: RecurrentAttributes,
    input_forget: int = 0,
    layout: int = 0,
    ctx: Context,
) -> tuple[Array, ...]:
    """Long short-term memory. H and C are the states before a step; the gates are in the order i, o, f, c:

        x = X @ W^T + (Wb + Rb)                    for all steps; parentheses first
        g = H @ R^T + x
        i, f = f(g + P * C)                        f = 1 - i with input_forget
        C' = f * C + i * g(g)
        o = f(g + P * C')
        H' = o * h(C')

    X [seq,batch,input], W [dirs,4*hidden,input], R [dirs,4*hidden,hidden], B [dirs,8*hidden], sequence_lens int32
    [batch], initial_h and initial_c [dirs,batch,hidden], P [dirs,3*hidden] for i, o, f; Y [seq,dirs,batch,hidden], Y_h
    and Y_c [dirs,batch,hidden]. With layout 1, batch comes first. All have one floating-point type.

    Each line rounds as the operators of ai.onnx do: products and the terms added to them are Gemm, whose sums have the
    order of numerics.md, F1; each *, +, 1 - i and activation is rounded. float16 and bfloat16 are computed in float32,
    and the results are rounded.
    clip bounds the input of every activation, except the input of h in ``ort``. Past the end of a sequence, Y is 0.
    Y_h and Y_c are the states at its end; for length 0 they are the initial states. alpha and beta apply in order to
    the activations that need them; Affine and ScaledTanh have no defaults.
    Raises OperatorError for shapes, lengths and attributes that do not fit.
    """
    sequences = _sequences(given, 4, attributes, layout, ctx)
    gates = attributes.gates(activations_, _LSTM)

    def products_of(number: int) -> tuple[Product, Product]:
        return products(given.W[number], sequences.dtype), products(given.R[number], sequences.dtype)

    return walk_lstm(sequences, gates, products_of, (given.B, given.P), bool(input_forget), ctx)


@lstm.native
def _lower_lstm(site: LoweringContext) -> NativeKernel:
    given, attributes = site.input_record(LstmInputs), RecurrentAttributes.of(site.attributes)
    sequences = _sequences(given, 4, attributes, site.attributes["layout"], site.ctx)
    gates = attributes.gates(site.attributes["activations_"], _LSTM)
    plain_lstm(given.P, site.attributes["input_forget"])
    if site.ctx.arith == "ort" and attributes.clip is not None:
        raise decline_error("no native cells with clip in ort arithmetic")
    return recurrent_kernel(site, sequences, "lstm", gates)


@op("GRU", since=7, cost=recurrent_macs, wholes=_WHOLE)
def gru(
    given: RecurrentInputs,
    *,
    activations_: tuple[str, ...] | None = None,
    attributes: RecurrentAttributes,
    layout: int = 0,
    linear_before_reset: int = 0,
    ctx: Context,
) -> tuple[Array, ...]:
    """Gated recurrent unit. H is the state before a step; the gates are in the order z, r, h:

        z, r = f(H @ R^T + x)                      x = X @ W^T + (Wb + Rb)
        h = g((r * H) @ R^T + x)
        h = g(r * (H @ R^T + Rb) + x)              with linear_before_reset; x = X @ W^T + Wb
        H' = (1 - z) * h + z * H

    X [seq,batch,input], W [dirs,3*hidden,input], R [dirs,3*hidden,hidden], B [dirs,6*hidden], sequence_lens int32
    [batch], initial_h [dirs,batch,hidden]; Y [seq,dirs,batch,hidden], Y_h [dirs,batch,hidden]. Everything else is as
    in LSTM. Raises OperatorError for shapes, lengths and attributes that do not fit.
    """
    sequences = _sequences(given, 3, attributes, layout, ctx)
    gates = attributes.gates(activations_, _GRU)

    def step_of(number: int) -> tuple[Share, Step]:
        return _gru(sequences, gates, (given.W[number], given.R[number], given.B), number, bool(linear_before_reset))

    with np.errstate(all="ignore"):
        return walk(sequences, step_of)


@gru.native
def _lower_gru(site: LoweringContext) -> NativeKernel:
    attributes = RecurrentAttributes.of(site.attributes)
    sequences = _sequences(site.input_record(RecurrentInputs), 3, attributes, site.attributes["layout"], site.ctx)
    gates = attributes.gates(site.attributes["activations_"], _GRU)
    kind = "linear" if site.attributes["linear_before_reset"] else "gru"
    return recurrent_kernel(site, sequences, kind, gates)


def _gru(
    sequences: Sequences, gates: Gates, weights: tuple[Array, Array, Array | None], number: int, linear: bool
) -> tuple[Share, Step]:
    """A GRU direction: the function for the inputs' share, and the step; `linear`: linear_before_reset."""
    w, r, b = weights
    dtype, n = sequences.dtype, sequences.hidden
    gate, new = gates.of(number)
    wb, rb = biases(b, number, 3 * n, dtype)
    added = wb + rb
    if linear:
        added[2 * n :] = wb[2 * n :]
    inputs, both, last = products(w, dtype), products(r[: 2 * n], dtype), products(r[2 * n :], dtype)

    def step(x: Array, states: Sequence[Array]) -> Sequence[Array]:
        (h,) = states
        z, reset = np.split(gate(both(h, x[:, : 2 * n])), 2, axis=1)
        own = x[:, 2 * n :]
        made = new(reset * last(h, rb[2 * n :]) + own if linear else last(reset * h, own))
        return (mix_states(z, made, h),)

    return lambda rows: inputs(rows, None if b is None else added), step


@op("RNN", since=7, cost=recurrent_macs, wholes=_WHOLE)
def rnn(
    given: RecurrentInputs,
    *,
    activations_: tuple[str, ...] = ("Tanh", "Tanh"),
    attributes: RecurrentAttributes,
    layout: int = 0,
    ctx: Context,
) -> tuple[Array, ...]:
    """H' = f(H @ R^T + (X @ W^T + (Wb + Rb))), where H is the state before a step; inner parentheses come first.

    X [seq,batch,input], W [dirs,hidden,input], R [dirs,hidden,hidden], B [dirs,2*hidden], sequence_lens int32 [batch],
    initial_h [dirs,batch,hidden]; Y [seq,dirs,batch,hidden], Y_h [dirs,batch,hidden]. Everything else is as in LSTM,
    but an activation for a missing second direction is ignored.
    Raises OperatorError for shapes, lengths and attributes that do not fit.
    """
    sequences = _sequences(given, 1, attributes, layout, ctx)
    gates = attributes.gates(activations_[: sequences.directions], _RNN)

    def step_of(number: int) -> tuple[Share, Step]:
        inputs = products(given.W[number], sequences.dtype)
        recurrent = products(given.R[number], sequences.dtype)
        function = gates.of(number)[0]
        shared = share(inputs, given.B, number, sequences.hidden, sequences.dtype)
        return shared, lambda x, states: (function(recurrent(states[0], x)),)

    with np.errstate(all="ignore"):
        return walk(sequences, step_of)


@rnn.native
def _lower_rnn(site: LoweringContext) -> NativeKernel:
    attributes = RecurrentAttributes.of(site.attributes)
    sequences = _sequences(site.input_record(RecurrentInputs), 1, attributes, site.attributes["layout"], site.ctx)
    gates = attributes.gates(site.attributes["activations_"][: sequences.directions], _RNN)
    return recurrent_kernel(site, sequences, "rnn", gates)


_DEFAULTS = ("Sigmoid", "Tanh", "Tanh")


@frozen
class QuantizedLstmInputs(InputRecord):
    X: Array
    W: Array
    R: Array
    B: Array | None
    sequence_lens: Array | None
    initial_h: Array | None
    initial_c: Array | None
    P: Array | None
    W_scale: Array
    W_zero_point: Array
    R_scale: Array
    R_zero_point: Array


@contrib_op(
    "DynamicQuantizeLSTM",
    cost=recurrent_macs,
    types={"T": ("float", "X B initial_h initial_c P"), "T1": ("int32", "sequence_lens"), "T2": ("uint8 int8", "W R")},
    wholes={"sequence_lens": Whole((("X", 0),))},
)
def dynamic_quantize_lstm(
    given: QuantizedLstmInputs,
    *,
    activations_: tuple[str, ...] | None = None,
    attributes: RecurrentAttributes,
    input_forget: int = 0,
    ctx: Context,
) -> tuple[Array, ...]:
    """LSTM with integer products: X is quantized once and H before each step; W and R are stored quantized.

        x = (DynamicQuantizeLinear(X) - zero) * scale @ (W - W_zero_point) * W_scale + (Wb + Rb)
        g = (DynamicQuantizeLinear(H) - zero) * scale @ (R - R_zero_point) * R_scale + x

    Everything else is as in LSTM. W [dirs,input,4*hidden] and R [dirs,hidden,4*hidden], int8 or uint8, gates in the
    order i, o, f, c; scales and zero points [dirs], or [dirs,4*hidden]. Other inputs and the results float32, shapes as
    in LSTM.

    Exact: codes as DynamicQuantizeLinear-11 says, in float32 steps; the sums of each line are int32, and its real value
    is rounded once. X counts up to the end of the longest sequence, H for the sequences that still run. ``ort``:
    float32(sum) * float32(scale * W_scale) + x, each step rounded to float32. onnxruntime quantizes H of the sequences
    that one thread takes. Raises OperatorError for shapes, lengths and attributes that do not fit.
    Source: ONNX operators, DynamicQuantizeLinear-11.
    """
    sequences = _check(given, attributes, ctx)
    gates = attributes.gates(activations_, _DEFAULTS)

    def products_of(number: int) -> tuple[Product, Product]:
        inputs = _product("X", given.W[number], given.W_scale[number], given.W_zero_point[number], ctx)
        return inputs, _product("H", given.R[number], given.R_scale[number], given.R_zero_point[number], ctx)

    return walk_lstm(sequences, gates, products_of, (given.B, given.P), bool(input_forget), ctx)


@dynamic_quantize_lstm.native
def _lower(site: LoweringContext) -> NativeKernel:
    given, attributes = site.input_record(QuantizedLstmInputs), RecurrentAttributes.of(site.attributes)
    sequences = _check(given, attributes, site.ctx)
    gates = attributes.gates(site.attributes["activations_"], _DEFAULTS)
    plain_lstm(given.P, site.attributes["input_forget"])
    if given.sequence_lens is not None:
        if not site.fixed[LENGTHS]:
            raise decline_error("sequence_lens is not constant: only batches known to have full lengths are native")
        if (sequences.lengths != len(sequences.x)).any():
            raise decline_error("sequence_lens has lengths below the batch's: only batches of full lengths are native")
    if site.ctx.arith != "exact":
        raise decline_error(f"no native kernels for {site.ctx.arith} arithmetic")
    return quantized_lstm_kernel(site, sequences, gates)


def _check(given: QuantizedLstmInputs, attributes: RecurrentAttributes, ctx: Context) -> Sequences:
    """Refuse what does not fit, claim the results, and observe scales."""
    w, r = given.W, given.R
    weights = [("W", w, (-3, -2)), ("R", r, (-1, -2)), ("B", given.B, (-4,)), ("P", given.P, (-5,))]
    states = [("initial_h", given.initial_h), ("initial_c", given.initial_c)]
    for of, tensor in (("W", w), ("R", r)):
        for name in (
            (f"{of}_scale", f"{of}_zero_point") if tensor.ndim == 3 else ()
        ):  # `check_sequences` refuses any other rank
            _check_parameter(name, getattr(given, name), tensor, of, ctx)
    return check_sequences(given.X, weights, given.sequence_lens, states, 4, attributes, 0, ctx)


def _check_parameter(name: str, array: Array, tensor: Array, of: str, ctx: Context) -> None:
    """Raise OperatorError for a scale or zero point of weights that does not fit."""
    allowed = (tensor.shape[:1], (tensor.shape[0], tensor.shape[2]))
    scale = name.endswith("scale")
    if array.shape not in allowed:
        raise bad_parameter(name, " or ".join(map(shape_text, allowed)), array)
    if scale:
        note_scale(ctx, array, name)
    else:
        same_type(array, tensor.dtype, name, of)


def _product(name: str, weight: Array, scale: Array, zero: Array, ctx: Context) -> Product:
    """A function (rows, added): quantizes rows together, multiplies them by codes [K, columns], adds `added`; rounded
    once. name: of the rows."""

    def product(rows: Array, added: Array | None) -> Array:
        codes, row_scale, row_zero = quantize_dynamically(rows, "ort" if ctx.arith == "ort" else "exact", name)
        sums = integer_matmul(codes, weight, row_zero, zero, ctx)
        if ctx.arith != "ort":
            return scale_sums(sums, (row_scale, scale), added, rows.dtype)
        y = sums.astype(np.float32) * (row_scale * scale)
        return np.asarray(y if added is None else y + added)

    return product
