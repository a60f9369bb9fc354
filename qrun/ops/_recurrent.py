"""Code that LSTM, GRU and RNN share: checked inputs, activations by name, and the walk along sequences.

Every step of a cell is an operation of ai.onnx, rounded as that operator rounds: a matrix product plus an addend is
Gemm, and Add, Mul, Sigmoid and Tanh are those operators. float16 and bfloat16 are computed in float32, and results are
rounded at the end; float64 stays float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir.types import shape_text
from qrun.ops._chains import chained_products
from qrun.ops._float import round_to_type, single, unary
from qrun.ops._op import Array, Context, Shape, bad_shape, find, misfit, one_of, refuse, require
from qrun.ops._signature import Attributes

Activation = Callable[[Array], Array]


@frozen
class Gates:
    """The activation functions of each direction. names: their names, in lower case.

    clip: inputs of the functions are clipped to [-clip, clip]; None: they are not clipped.
    """

    names: tuple[tuple[str, ...], ...]
    functions: tuple[tuple[Activation, ...], ...]
    clip: float | None

    def of(self, direction: int) -> tuple[Activation, ...]:
        """The functions of a direction; each of them clips its input first, if `clip` is given."""
        return tuple(self._clip(function) for function in self.functions[direction])

    def _clip(self, function: Activation) -> Activation:
        """The activation with its input clipped, if the node has a clip."""
        bound = self.clip
        return function if bound is None else lambda x: function(np.clip(x, x.dtype.type(-bound), x.dtype.type(bound)))


_ALPHA, _BETA = "alpha", "beta"
_OPERATORS: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "relu": ("Relu", ()),
    "tanh": ("Tanh", ()),
    "sigmoid": ("Sigmoid", ()),
    "softsign": ("Softsign", ()),
    "softplus": ("Softplus", ()),
    "leakyrelu": ("LeakyRelu", (0.01,)),
    "thresholdedrelu": ("ThresholdedRelu", (1.0,)),
    "elu": ("Elu", (1.0,)),
    "hardsigmoid": ("HardSigmoid", (0.2, 0.5)),
    "affine": ("", (None, None)),
    "scaledtanh": ("", (None, None)),
}
"""By name in lower case: the operator that computes it, and the defaults of its alpha and beta; None if there is no
default."""


def activations(
    names: Sequence[str] | None,
    defaults: Sequence[str],
    directions: int,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    clip: float | None,
) -> Gates:
    """The functions that the attributes name; functions with alpha or beta take these values in order."""
    wanted = len(defaults) * directions
    names = list(defaults) * directions if names is None else names
    if len(names) != wanted:
        expected = f"{wanted}: {len(defaults)} for each direction"
        raise refuse(f"{len(names)} activations", "activations", expected, str(len(names)), code="QR204")
    rest = {_ALPHA: list(alphas or ()), _BETA: list(betas or ())}
    made = []
    for name in names:
        if name.lower() not in _OPERATORS:
            raise refuse(f"unknown activation {name!r}", "activations", ", ".join(_OPERATORS), name, code="QR204")
        kinds = zip((_ALPHA, _BETA), _OPERATORS[name.lower()][1], strict=False)
        made.append(_function(name.lower(), {kind: _take(name, kind, rest[kind], default) for kind, default in kinds}))
    require("clip", clip is None or clip > 0, "more than 0", clip)
    own = [slice(first, first + len(defaults)) for first in range(0, wanted, len(defaults))]
    known = tuple(tuple(name.lower() for name in names[part]) for part in own)
    return Gates(known, tuple(tuple(made[part]) for part in own), None if clip is None else single(clip))


def _function(name: str, given: Mapping[str, Any]) -> Activation:
    """The activation function of a name, with its alpha and beta."""
    operator = find("", _OPERATORS[name][0], sys.maxsize)
    if operator is not None:
        return lambda x: np.asarray(operator(x, **given))
    alpha, beta = given[_ALPHA], given[_BETA]
    if name == "affine":
        return lambda x: unary(lambda v: alpha * v + beta, x)
    return lambda x: unary(lambda v: alpha * np.tanh(beta * v), x)


def _take(name: str, kind: str, rest: list[float], default: float | None) -> float:
    """The next number of activation_alpha or activation_beta, or the default. Raises OperatorError."""
    if rest:
        return single(rest.pop(0))
    if default is None:
        expected = f"a number for {name}: it has no default"
        raise refuse(f"{name} has no {kind}", f"activation_{kind}", expected, "nothing", code="QR204")
    return single(default)


Product = Callable[[Array, Array | None], Array]
"""Maps rows [n, K], and an addend, to their product with some weights plus the addend [n, columns]."""
Share = Callable[[Array], Array]
"""Maps inputs [n, input] to their contribution to the gates [n, columns]."""
Step = Callable[[Array, Sequence[Array]], Sequence[Array]]
"""Maps the inputs' contribution to the gates [n, columns], and the states before a step, to the states after it; the
first one is h."""
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}
"""The number of directions for each value of the attribute."""


@frozen
class RecurrentAttributes(Attributes):
    """The attributes that all recurrent operators have."""

    activation_alpha: tuple[float, ...] | None = None
    activation_beta: tuple[float, ...] | None = None
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None

    def gates(self, names: Sequence[str] | None, defaults: Sequence[str]) -> Gates:
        """The functions with these names, or the defaults, for all directions; refuses unknown names and attributes
        that do not fit."""
        given = self.activation_alpha, self.activation_beta, self.clip
        return activations(names, defaults, DIRECTIONS[self.direction], *given)


@frozen
class Sequences:
    """Checked inputs, with the sequence axis first.

    x: [seq, batch, input]. lengths: of each sequence. states: initial ones, each [directions, batch, hidden],
    of `dtype`.
    backward: for each direction, whether it runs from the end. dtype: of the steps; made: of the results.
    """

    x: Array
    lengths: Array
    states: tuple[Array, ...]
    hidden: int
    backward: tuple[bool, ...]
    batch_first: bool
    dtype: np.dtype[Any]
    made: np.dtype[Any]

    @property
    def directions(self) -> int:
        """The number of directions."""
        return len(self.backward)


def check_sequences(
    x: Array,
    weights: Sequence[tuple[str, Array | None, tuple[int, ...] | None]],
    lengths: Array | None,
    states: Sequence[tuple[str, Array | None]],
    gates: int,
    attributes: RecurrentAttributes,
    layout: int,
    ctx: Context,
) -> Sequences:
    """Refuse inputs that do not fit, and claim the results.

    weights: name, tensor, and shape after the directions: -1 is hidden, -2 gates * hidden, -3 input, -4 two times -2,
    -5 3 * hidden; the second is R. states: name and initial value. gates: of a cell. layout: 1 if batches are first.
    """
    direction = attributes.direction
    one_of("direction", direction, DIRECTIONS)
    one_of("layout", layout, (0, 1))
    if x.ndim != 3:
        raise bad_shape("X", "[batch,seq,input]" if layout else "[seq,batch,input]", x)
    hidden = _hidden_size(weights[1], attributes.hidden_size)
    count = DIRECTIONS[direction]
    first = x.swapaxes(0, 1) if layout else x
    sizes = {-1: hidden, -2: gates * hidden, -3: x.shape[2], -4: 2 * gates * hidden, -5: 3 * hidden}
    for name, tensor, shape in weights:
        want = (count, *(sizes[n] for n in shape or ()))
        if tensor is not None and tensor.shape != want:
            raise bad_shape(name, shape_text(want), tensor)
    seq, batch = first.shape[:2]
    found = _lengths(lengths, seq, batch)
    computed = np.dtype(np.float64 if x.dtype == np.float64 else np.float32)
    ctx.claim((seq, count, batch, hidden), 2 * computed.itemsize)
    ctx.claim((seq, batch, gates * hidden), 3 * 8, "gates")
    own = [_state(name, state, (count, batch, hidden), layout, computed) for name, state in states]
    backward = (direction == "reverse",) if count == 1 else (False, True)
    return Sequences(first.astype(computed), found, tuple(own), hidden, backward, bool(layout), computed, x.dtype)


def _hidden_size(weight: tuple[str, Array | None, Any], hidden_size: int | None) -> int:
    """The number of hidden units, from the recurrent weights. Raises OperatorError."""
    name, r, shape = weight
    assert r is not None
    if r.ndim != 3:
        raise bad_shape(name, "[directions,gates * hidden,hidden]", r)
    hidden = int(r.shape[1 + shape.index(-1)])
    if hidden_size is not None and hidden_size != hidden:
        raise bad_shape(name, f"hidden_size {hidden_size} in its shape", r)
    return hidden


def _lengths(lengths: Array | None, seq: int, batch: int) -> Array:
    """The sequences' lengths [batch]; all of them are `seq` long if not given. Raises OperatorError."""
    if lengths is None:
        return np.full(batch, seq)
    if lengths.shape != (batch,):
        raise bad_shape("sequence_lens", f"[{batch}]", lengths)
    if ((lengths < 0) | (lengths > seq)).any():
        got = int(lengths[int(np.argmax((lengths < 0) | (lengths > seq)))])
        raise misfit(f"a sequence has length {got}", "sequence_lens", f"0 to {seq}", str(got))
    return lengths.astype(np.int64)


def _state(name: str, state: Array | None, shape: tuple[int, ...], layout: int, dtype: np.dtype[Any]) -> Array:
    """An initial state [directions,batch,hidden]; zeros if not given. Raises OperatorError."""
    if state is None:
        return np.zeros(shape, dtype)
    want = (shape[1], shape[0], shape[2]) if layout else shape
    if state.shape != want:
        raise bad_shape(name, shape_text(want), state)
    return (state.swapaxes(0, 1) if layout else state).astype(dtype)


def walk(sequences: Sequences, step_of: Callable[[int], tuple[Share, Step]]) -> tuple[Array, ...]:
    """Runs all steps: returns Y, and the last states, in the operator's layout and type.

    step_of: for a direction, the function from all inputs [longest * batch, input] to their gates' share, and its step.
    """
    seq, batch = sequences.x.shape[:2]
    longest = int(sequences.lengths.max(initial=0))
    y = np.zeros((seq, sequences.directions, batch, sequences.hidden), sequences.dtype)
    last = [state.copy() for state in sequences.states]
    for number, backward in enumerate(sequences.backward):
        order = _order(sequences.lengths, seq, backward)
        given, step = step_of(number)
        taken = np.take_along_axis(sequences.x, order[:longest, :, None], 0)
        shared = given(taken.reshape(longest * batch, sequences.x.shape[2]))
        inputs = shared.reshape(longest, batch, shared.shape[1])
        for t in range(longest):
            running = np.flatnonzero(sequences.lengths > t)
            states = step(inputs[t, running], [state[number, running] for state in last])
            for state, made in zip(last, states, strict=True):
                state[number, running] = plain(made)
            y[order[t, running], number, running] = plain(states[0])
    if sequences.batch_first:
        y, last = y.transpose(2, 0, 1, 3), [state.swapaxes(0, 1) for state in last]
    return tuple(np.ascontiguousarray(round_to_type(array, sequences.made)) for array in (y, *last))


def plain(states: Array) -> Array:
    """States in which every NaN has the same bits: IEEE 754 leaves open which NaN an operation returns."""
    return np.where(np.isnan(states), states.dtype.type(np.nan), states)


def _order(lengths: Array, seq: int, backward: bool) -> Array:
    """The index of the element that each step takes from each sequence, [seq, batch]."""
    steps = np.broadcast_to(np.arange(seq)[:, None], (seq, len(lengths)))
    return np.where(steps < lengths, lengths - 1 - steps, steps) if backward else np.asarray(steps)


def products(weight: Array, dtype: np.dtype[Any]) -> Product:
    """A function (rows, added) to added + rows @ weight' in the order of Gemm; weight [columns, K]."""
    turned = weight.astype(dtype).T
    return lambda rows, added: chained_products(rows, turned, dtype, first=added)


def biases(b: Array | None, direction: int, columns: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Wb and Rb of a direction."""
    if b is None:
        return np.zeros(columns, dtype), np.zeros(columns, dtype)
    own = b[direction].astype(dtype)
    return own[:columns], own[columns:]


def recurrent_macs(inputs: Sequence[Shape], outputs: Sequence[Shape], attributes: Mapping[str, Any]) -> int:
    """Multiply-adds of both products of every step; inputs begin with X, W and R."""
    x, w, r = inputs[:3]
    return int(x[0] * x[1] * (np.prod(w, dtype=np.int64) + np.prod(r, dtype=np.int64)))


def share(product: Product, b: Array | None, number: int, columns: int, dtype: np.dtype[Any]) -> Share:
    """The contribution of inputs to the gates of a direction: their product with W, plus both biases."""
    wb, rb = biases(b, number, columns, dtype)
    bias = None if b is None else wb + rb
    return lambda rows: product(rows, bias)


def walk_lstm(
    sequences: Sequences,
    gates: Gates,
    products_of: Callable[[int], tuple[Product, Product]],
    tensors: tuple[Array | None, Array | None],
    coupled: bool,
    ctx: Context,
) -> tuple[Array, ...]:
    """Y, Y_h and Y_c of an LSTM. products_of: for a direction, the products with W and with R. tensors: B and P.
    coupled: f is 1 - i."""
    b, peepholes = tensors

    def step_of(number: int) -> tuple[Share, Step]:
        inputs, recurrent = products_of(number)
        gate, cell, out = gates.of(number)
        functions = gate, cell, gates.functions[number][2] if ctx.arith == "ort" else out
        step = lstm_step(sequences, functions, recurrent, peepholes, number, coupled)
        return share(inputs, b, number, 4 * sequences.hidden, sequences.dtype), step

    with np.errstate(all="ignore"):
        return walk(sequences, step_of)


def lstm_step(
    sequences: Sequences,
    functions: tuple[Activation, Activation, Activation],
    recurrent: Product,
    peepholes: Array | None,
    number: int,
    coupled: bool,
) -> Step:
    """A step of an LSTM; functions: f, g and h; recurrent: the product of h with R. coupled: f is 1 - i."""
    gate, cell, out = functions
    n, one = sequences.hidden, sequences.dtype.type(1)
    p = None if peepholes is None else peepholes[number].astype(sequences.dtype)

    def seen(values: Array, index: int, c: Array) -> Array:
        return values if p is None else values + p[index * n : (index + 1) * n] * c

    def step(x: Array, states: Sequence[Array]) -> Sequence[Array]:
        h, c = states
        i, o, f, g = np.split(recurrent(h, x), 4, axis=1)
        i = gate(seen(i, 0, c))
        f = one - i if coupled else gate(seen(f, 2, c))
        c = f * c + i * cell(g)
        return gate(seen(o, 1, c)) * out(c), c

    return step


def mix_states(z: Array, new: Array, old: Array) -> Array:
    """The next state of a GRU: (1 - z) * new + z * old."""
    return np.asarray((z.dtype.type(1) - z) * new + z * old)
