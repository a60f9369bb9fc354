"""DynamicQuantizeLSTM of com.microsoft."""

from __future__ import annotations

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._context import note_scale, same_type
from qrun.ops._dynamic import quantized
from qrun.ops._matmul import integer_matmul
from qrun.ops._op import Array, Context, contrib_op, refuse
from qrun.ops._promises import Whole
from qrun.ops._recurrent import Product, RecurrentAttributes, Sequences, checked, recurrent_macs, walk_lstm
from qrun.ops._rounding import scaled
from qrun.ops._signature import InputRecord
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, declined
from qrun.ops.lowering.recurrent import LENGTHS, plain_lstm, quantized_lstm_kernel

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
    types={
        "T": ("float", "X B initial_h initial_c P"),
        "T1": ("int32", "sequence_lens"),
        "T2": ("uint8 int8", "W R"),
    },
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
    """LSTM whose products are of codes: of X, quantized once, and of H, quantized before each step, with W and R.

        x = (DynamicQuantizeLinear(X) - zero) * scale @ (W - W_zero_point) * W_scale + (Wb + Rb)
        g = (DynamicQuantizeLinear(H) - zero) * scale @ (R - R_zero_point) * R_scale + x

    All else is as in LSTM. W [dirs,input,4*hidden] and R [dirs,hidden,4*hidden], int8 or uint8, gates in the order i,
    o, f, c; scales and zero points [dirs], or [dirs,4*hidden]. Other inputs and the results float32, shapes as in LSTM.

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
    given, attributes = site.given(QuantizedLstmInputs), RecurrentAttributes.of(site.attributes)
    sequences = _check(given, attributes, site.ctx)
    gates = attributes.gates(site.attributes["activations_"], _DEFAULTS)
    plain_lstm(given.P, site.attributes["input_forget"])
    if given.sequence_lens is not None:
        if not site.fixed[LENGTHS]:
            raise declined("sequence_lens is not constant: only batches known to have full lengths are native")
        if (sequences.lengths != len(sequences.x)).any():
            raise declined("sequence_lens has lengths below the batch's: only batches of full lengths are native")
    if site.ctx.arith != "exact":
        raise declined(f"no native kernels for {site.ctx.arith} arithmetic")
    return quantized_lstm_kernel(site, sequences, gates)


def _check(given: QuantizedLstmInputs, attributes: RecurrentAttributes, ctx: Context) -> Sequences:
    """Refuse what does not fit, claim the results, and observe scales."""
    w, r = given.W, given.R
    weights = [("W", w, (-3, -2)), ("R", r, (-1, -2)), ("B", given.B, (-4,)), ("P", given.P, (-5,))]
    states = [("initial_h", given.initial_h), ("initial_c", given.initial_c)]
    for of, tensor in (("W", w), ("R", r)):
        for name in (f"{of}_scale", f"{of}_zero_point") if tensor.ndim == 3 else ():  # `checked` refuses other ranks
            _check_parameter(name, getattr(given, name), tensor, of, ctx)
    return checked(given.X, weights, given.sequence_lens, states, 4, attributes, 0, ctx)


def _check_parameter(name: str, array: Array, tensor: Array, of: str, ctx: Context) -> None:
    allowed = (tensor.shape[:1], (tensor.shape[0], tensor.shape[2]))
    scale = name.endswith("scale")
    if array.shape not in allowed:
        expected = " or ".join(shape_text(shape) for shape in allowed)
        code = "QR301" if scale else "QR302"
        raise refuse(f"{name} has shape {shape_text(array.shape)}", name, expected, array, code=code)
    if scale:
        note_scale(ctx, array, name)
    else:
        same_type(array, tensor.dtype, name, of)


def _product(name: str, weight: Array, scale: Array, zero: Array, ctx: Context) -> Product:
    """A function (rows, added): rows, quantized together, times codes [K, columns], + added; rounded once.
    name: of the rows."""

    def product(rows: Array, added: Array | None) -> Array:
        codes, row_scale, row_zero = quantized(rows, "ort" if ctx.arith == "ort" else "exact", name)
        sums = integer_matmul(codes, weight, row_zero, zero, ctx)
        if ctx.arith != "ort":
            return scaled(sums, (row_scale, scale), added, rows.dtype)
        y = sums.astype(np.float32) * (row_scale * scale)
        return np.asarray(y if added is None else y + added)

    return product
