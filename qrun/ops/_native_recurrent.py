"""Native lowerings of LSTM, GRU and RNN: the product of all inputs, then the walk along the sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from qrun.declare.memo import Memo
from qrun.ir import Array
from qrun.ir.types import type_name
from qrun.ops._activations import Activation
from qrun.ops._complete import ALWAYS
from qrun.ops._float import single
from qrun.ops._native import LoweringContext, NativeKernel, Stage, declined, staged_kernel
from qrun.ops._native_products import exact_sums
from qrun.ops._recurrent import Sequences, biases, mixed

if TYPE_CHECKING:
    from qrun.native.kernels.recurrent import Recurrent
    from qrun.native.kernels.walks import CellForm

Cell = Callable[[bool, Sequence[Array], Sequence[Array]], Sequence[Array]]


def recurrent_kernel(
    site: LoweringContext, sequences: Sequences, kind: str, functions: Sequence[str], cell: Cell
) -> NativeKernel:
    """The kernel of a checked LSTM, GRU or RNN whose cells are of this kind (native/emit/cells.py).

    functions: the defaults of `activations`. cell: what the gates' sums and the states before a step make, by the reference.
    """
    site.require_constant(1)
    site.require_constant(2)
    site.require_constant(3)
    x, w, b = site.inputs[0], site.inputs[1], site.inputs[3]
    if x.dtype != np.float32:
        raise declined(f"no native {type_name(x.dtype)} recurrences")
    if not x.size or not sequences.hidden:
        raise declined("an empty tensor")
    form = _form(site, kind, functions, sequences.directions)
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
    return _walked(site, sequences, form, inputs, added, cell)


def _form(site: LoweringContext, kind: str, functions: Sequence[str], directions: int) -> CellForm:
    from qrun.native.emit.cells import FUNCTIONS
    from qrun.native.kernels.walks import CellForm

    given = site.attributes
    names = [name.lower() for name in given["activations_"] or list(functions) * directions][
        : len(functions) * directions
    ]
    unknown = next((name for name in names if name not in FUNCTIONS), None)
    if unknown is not None:
        raise declined(f"no native cells with {unknown}")
    if any(
        names[: len(functions)] != names[first : first + len(functions)]
        for first in range(0, len(names), len(functions))
    ):
        raise declined("directions with activations of their own")
    clip = given["clip"]
    return CellForm(kind, tuple(names[: len(functions)]), None if clip is None else single(clip))


def _inputs(site: LoweringContext, bias: Array | None) -> Stage:
    """What all inputs give to the gates of all directions."""
    from qrun.native.kernels.float_matmul import FloatMatmul

    w, memo = site.inputs[1], site.memo.once("inputs", Memo)
    turned = memo.once("right", lambda: np.ascontiguousarray(w.reshape(-1, w.shape[2]).T))
    operation = FloatMatmul(
        site.engine,
        site.inputs[0].shape,
        turned.shape,
        exact_sums(),
        weights=turned,
        addend=None if bias is None else bias.shape,
        constant=bias,
        memo=memo,
    )
    return Stage(operation, (0,), "inputs")


def _walked(
    site: LoweringContext, sequences: Sequences, form: CellForm, inputs: Stage, added: Array | None, cell: Cell
) -> NativeKernel:
    from qrun.native.kernels.recurrent import Recurrent
    from qrun.native.kernels.walks import Walk

    steps, batch = sequences.x.shape[:2]
    walk = Walk(steps, batch, sequences.hidden, sequences.backward, sequences.batch_first)
    places = [5, 6 if form.kind == "lstm" else None, 4]
    given = [place for place in places if place is not None and site.inputs[place] is not None]
    operation = Recurrent(
        site.engine,
        walk,
        form,
        site.inputs[2],
        (5 in given, 6 in given and form.kind == "lstm", 4 in given),
        exact_sums(),
        cell,
        added=added,
        memo=site.memo.once("recurrent", Memo),
    )
    stages = [inputs, Stage(operation, ("inputs", *given), "walked")]
    wanted = max(1, site.ctx.outputs)
    stages += [Stage(copy, ("walked",), n) for n, copy in enumerate(operation.outputs()[:wanted])]
    shown: tuple[Recurrent, ...] = (operation,)
    return staged_kernel(site, stages, (inputs.operation, *shown), ALWAYS)


def lstm_cell(step: Callable[[Array, Sequence[Array]], Sequence[Array]]) -> Cell:
    """That of the reference's step, which is given sums in place of what inputs give."""
    return lambda _, sums, states: _quiet(lambda: step(np.concatenate(sums, axis=1), states))


def gru_cell(functions: tuple[Activation, ...]) -> Cell:
    gate, new = functions

    def cell(resets: bool, sums: Sequence[Array], states: Sequence[Array]) -> Sequence[Array]:
        (h,) = states
        if resets:
            return (gate(sums[1]) * h,)
        made = new(sums[2]) if len(sums) == 3 else new(gate(sums[1]) * sums[2] + sums[3])
        return (mixed(gate(sums[0]), made, h),)

    return lambda resets, sums, states: _quiet(lambda: cell(resets, sums, states))


def rnn_cell(functions: tuple[Activation, ...]) -> Cell:
    return lambda _, sums, states: _quiet(lambda: (functions[0](sums[0]),))


def _quiet(make: Callable[[], Sequence[Array]]) -> Sequence[Array]:
    with np.errstate(all="ignore"):
        return make()
