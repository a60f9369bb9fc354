"""Native lowerings of LSTM, GRU and RNN: one product of all inputs, then the walk along the sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.memo import Memo
from qrun.ir import Array
from qrun.ops._complete import Settled
from qrun.ops._recurrent import Gates, Sequences, biases
from qrun.ops.lowering.integers import DynamicProduct, Given, quantize_stages, scaled_stages
from qrun.ops.lowering.kernel import LoweringContext, NativeKernel, Stage, decline_error, require_type, staged_kernel

if TYPE_CHECKING:
    from qrun.native.kernels.recurrent import CellForm, Walk, Walked

LENGTHS = 4
"""The number of the input sequence_lens."""


def recurrent_kernel(site: LoweringContext, sequences: Sequences, kind: str, gates: Gates) -> NativeKernel:
    """The kernel of a checked LSTM, GRU or RNN. kind: the kind of its cells (native/emit/recurrent.py)."""
    site.require_constant(1)
    site.require_constant(2)
    site.require_constant(3)
    x, w, b = site.inputs[0], site.inputs[1], site.inputs[3]
    require_type(x.dtype == np.float32, x.dtype, "{} recurrences")
    if not x.size or not sequences.hidden:
        raise decline_error("an empty tensor")
    form = _form(kind, gates)
    directions, columns = w.shape[:2]
    wb, rb = zip(*(biases(b, number, columns, w.dtype) for number in range(directions)), strict=True)
    linear = kind == "linear"
    shared = [own + other for own, other in zip(wb, rb, strict=True)]
    if linear:
        kept = 2 * sequences.hidden
        shared = [np.concatenate([both[:kept], own[kept:]]) for both, own in zip(shared, wb, strict=True)]
    added = np.stack([other[-sequences.hidden :] for other in rb]) if linear else None
    site.afford(4 * w.nbytes + 4 * site.inputs[2].nbytes)
    inputs = _inputs(site, None if b is None else np.concatenate(shared))
    return _walk_kernel(site, sequences, form, inputs, added)


def _form(kind: str, gates: Gates) -> CellForm:
    """The cell's form. Raises Declined for activations that have no native cell."""
    from qrun.native.emit.recurrent import FUNCTIONS
    from qrun.native.kernels.recurrent import CellForm

    unknown = next((name for names in gates.names for name in names if name not in FUNCTIONS), None)
    if unknown is not None:
        raise decline_error(f"no native cells with {unknown}")
    if len(set(gates.names)) > 1:
        raise decline_error("directions with activations of their own")
    return CellForm(kind, gates.names[0], gates.clip)


def _inputs(site: LoweringContext, bias: Array | None) -> Stage:
    """The stage that multiplies all inputs by the weights W of all directions, and adds the bias."""
    from qrun.native.kernels.fma_product import FloatMatmul

    w, memo = site.inputs[1], site.memo.once("inputs", Memo)
    turned = memo.once("right", lambda: np.ascontiguousarray(w.reshape(-1, w.shape[2]).T))
    operation = FloatMatmul(
        site.engine,
        site.inputs[0].shape,
        turned.shape,
        weights=turned,
        addend=None if bias is None else bias.shape,
        constant=bias,
        begins=True,
        memo=memo,
    )
    return Stage(operation, (0,), "inputs")


def _walk_kernel(
    site: LoweringContext, sequences: Sequences, form: CellForm, inputs: Stage, added: Array | None
) -> NativeKernel:
    """The native kernel of a recurrence whose inputs' products are the stage `inputs`."""
    from qrun.native.kernels.recurrent import Recurrent

    given = _optional_inputs(site, form.kind)
    operation = Recurrent(
        site.engine,
        _walk(sequences),
        form,
        site.inputs[2],
        (5 in given, 6 in given, LENGTHS in given),
        added=added,
        memo=site.memo.once("recurrent", Memo),
    )
    return _build_kernel(site, [inputs], operation, given, True)


def _walk(sequences: Sequences) -> Walk:
    """The recurrence's steps, batch, units and directions."""
    from qrun.native.kernels.recurrent import Walk

    steps, batch = sequences.x.shape[:2]
    return Walk(steps, batch, sequences.hidden, sequences.backward, sequences.batch_first)


def _optional_inputs(site: LoweringContext, kind: str) -> list[int]:
    """The input numbers of the initial states and the lengths that the node has."""
    places = (5, 6, LENGTHS) if kind == "lstm" else (5, LENGTHS)
    return [index for index in places if site.inputs[index] is not None]


def _build_kernel(
    site: LoweringContext, before: Sequence[Stage], operation: Walked, given: Sequence[int], complete: bool
) -> NativeKernel:
    """The kernel of the stages `before`, which make "inputs", the walk, and copies of the outputs from its result."""
    stages = [*before, Stage(operation, ("inputs", *given), "walked")]
    wanted = max(1, site.ctx.outputs)
    stages += [Stage(copy, ("walked",), n) for n, copy in enumerate(operation.outputs()[:wanted])]
    shown = (before[-1].operation, operation)
    return staged_kernel(site, stages, shown, Settled(complete))


def quantized_lstm_kernel(site: LoweringContext, sequences: Sequences, gates: Gates) -> NativeKernel:
    """The kernel of a checked DynamicQuantizeLSTM of full lengths, without peepholes and input_forget."""
    from qrun.native.kernels.quantize import RESULTS
    from qrun.native.kernels.recurrent import CodedState, QuantizedRecurrent

    for index in (1, 2, 3, 8, 9, 10, 11):
        site.require_constant(index)
    x, w, r, b = site.inputs[:4]
    if not x.size or not sequences.hidden:
        raise decline_error("an empty tensor")
    form = _form("lstm", gates)
    own = _product_site(site, w, b)
    codes = np.broadcast_to(np.uint8(0), x.shape)
    product = DynamicProduct(own, codes, own.inputs[1], ("codes", 1, Given("zero", RESULTS["zero"]), 3))
    stages, _ = scaled_stages(product, Given("scale", RESULTS["scale"]), 2, 4)
    stages[-1] = replace(stages[-1], output="inputs")
    given = [index for index in _optional_inputs(site, "lstm") if index != LENGTHS]
    scales, zeros = (_by_column(site.inputs[index], w.shape) for index in (10, 11))
    operation = QuantizedRecurrent(
        site.engine,
        _walk(sequences),
        form,
        CodedState(r, scales, zeros),
        (5 in given, 6 in given),
        memo=site.memo.once("recurrent", Memo),
    )
    before = [*quantize_stages(site.engine, x, ("codes", "scale", "zero")), *stages]
    return _build_kernel(site, before, operation, given, not product.wraps)


def _product_site(site: LoweringContext, w: Array, b: Array | None) -> LoweringContext:
    """A node for the product of the inputs and the weights of all directions side by side. Its inputs are X, W, scale,
    zero point, bias."""

    def joined() -> tuple[Array, ...]:
        right = np.ascontiguousarray(w.transpose(1, 0, 2).reshape(w.shape[1], -1))
        scale, zero = (_by_column(site.inputs[index], w.shape).reshape(-1) for index in (8, 9))
        return right, np.ascontiguousarray(scale), np.ascontiguousarray(zero)

    columns = w.shape[2]
    bias = None if b is None else (b[:, :columns] + b[:, columns:]).reshape(-1)
    inputs = (site.inputs[0], *site.memo.once("joined", joined), bias)
    names = ("X", "W", "W_scale", "W_zero_point", "B")
    memo = site.memo.once("inputs", Memo)
    return replace(site, inputs=inputs, fixed=(False, True, True, True, True), names=names, memo=memo)


def _by_column(parameter: Array, shape: Sequence[int]) -> Array:
    """A parameter [directions] or [directions, columns], broadcast to [directions, columns]."""
    whole = parameter[:, None] if parameter.ndim == 1 else parameter
    return np.broadcast_to(whole, (shape[0], shape[2]))


def plain_lstm(peepholes: Array | None, input_forget: int) -> None:
    """Raise Declined for peepholes and input_forget."""
    for given, what in ((peepholes is not None, "peepholes"), (input_forget, "input_forget")):
        if given:
            raise decline_error(f"no native cells with {what}")
