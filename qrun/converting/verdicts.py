"""Decides how far the codes of a group with an integer operator may be from those of its QDQ form.

The integer operator rounds the real value once. The QDQ form rounds in float32: each dequantized number, each step of
the operator, and the quotient of QuantizeLinear. Where there are few codes (Add, Mul, Concat), both forms are compared
for all of them. Elsewhere the error of the float32 steps is bounded. Where no reachable sum is that near to a tie, all
codes are equal. An error below one code changes a code by one at most, and only next to a tie (numerics.md, F1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.converting.conversion import DIFFERS, EQUAL, TIES, Agreement
from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ops._quantized import bias, operands, quantizers
from qrun.passes._evaluate import evaluate

_UNIT = 2.0**-24
"""The largest relative error of one rounding to float32."""
_NORMAL, _LARGEST = 2.0**-126, 3.4e38
_LARGE = 2.0**96
"""Scales below this can multiply any sum of products without an overflow."""
_FAR = 2.0**15
"""Codes of the result that a product of two codes may make, at most; the products of more leave int32."""
_BLOCK = 256
"""Products in one chain of a float32 sum (numerics.md, F1)."""
_STEPS = 8
"""Roundings beside those of a sum: of both operands, of the bias, its scale and its addition, of the quotient; and two
of the scales."""
_OVER_ONE_AXIS = 13
"""The opset from which Softmax is over one axis."""
_DEEPEST = 33_025
"""Products of a sum that certainly fits int32."""
_ROOM = 1 << 26
"""Bytes that the evaluation of all pairs of codes may take."""
_PRODUCTS = ("Conv", "MatMul", "Gemm")
_MULTIPLY = ("QLinearConv", "QLinearMatMul", "QGemm", "QLinearMul")


@frozen
class Values:
    """What is known of a model's tensors before a run.

    constant: the value of a constant by name, None for other tensors. shape: the shape by name, None if unknown; None
    for an unknown size.
    """

    constant: Callable[[str], Array | None]
    shape: Callable[[str], Sequence[int | None] | None]


def judge(literal: Sequence[Node], integer: Sequence[Node], values: Values) -> Agreement:
    """The verdict on a group. literal: the nodes of the QDQ form in order; integer: the integer operator, and the Clip
    of its codes if there is one."""
    operator = integer[0]
    if not _are_ordinary(operator, values):
        return Agreement(DIFFERS, None, "products or quotients of its scales are hardly numbers of float32")
    if operator.op_type in _MEANS:
        return _decide(_MEANS[operator.op_type](operator, values))
    if any(node.op_type in _PRODUCTS for node in literal):
        return _decide(product_sums(operator, literal, values))
    return _compare_all(literal, integer, values)


def _are_ordinary(node: Node, values: Values) -> bool:
    """Whether float32 holds the scales of an integer operator, their products and quotients, with all digits and with
    room for sums."""
    *inputs, result = [tensor.scale.astype(np.float64).reshape(-1) for tensor in quantized_tensors(node, values)]
    if node.op_type in _MULTIPLY:
        inputs.append(inputs[0] * inputs[1])
    made = [] if node.op_type == "QLinearSoftmax" else [each / result for each in inputs]
    limits = ((each, _LARGE) for each in (*inputs, result)), ((each, _FAR) for each in made)
    return all(bool(((each >= _NORMAL) & (each < limit)).all()) for some in limits for each, limit in some)


def _compare_all(literal: Sequence[Node], integer: Sequence[Node], values: Values) -> Agreement:
    """Compare both forms for all codes of each input, or for all pairs of codes."""
    joins = integer[0].op_type == "QLinearConcat"
    axis = integer[0].attributes.get("axis", 1)
    rank = max(2, axis + 1, -axis) if joins and isinstance(axis, int) else 2
    codes: dict[str, Array] = {}
    for source in literal:
        if source.op_type == "DequantizeLinear" and source.inputs[0] not in codes:
            shape = (1, 256) if codes and not joins else (256, *[1] * (rank - 1))
            codes[source.inputs[0]] = np.arange(256, dtype=np.uint8).view(_code_type(source, values)).reshape(shape)
    old, new = (_run(nodes, codes, values) for nodes in (literal, integer))
    if old is None or new is None:
        return Agreement(DIFFERS, None, "it does not run with all codes")
    apart = np.abs(old.astype(np.int64) - new.astype(np.int64))
    count = f"{apart.size:,} {'pairs of codes' if len(codes) > 1 and not joins else 'codes'}"
    number, most = int(np.count_nonzero(apart)), int(apart.max(initial=0))
    if not number:
        return Agreement(EQUAL, 0, f"all {count} were compared")
    return Agreement(TIES if most == 1 else DIFFERS, most, f"{number:,} of {count} differ")


def _code_type(source: Node, values: Values) -> np.dtype[Any]:
    """The element type of a DequantizeLinear's input: that of its zero point or its constant, else uint8."""
    known = [values.constant(name) for name in (*source.inputs[2:3], source.inputs[0]) if name]
    return next((array.dtype for array in known if array is not None), np.dtype(np.uint8))


def _run(nodes: Sequence[Node], codes: Mapping[str, Array], values: Values) -> Array | None:
    """The last output of these nodes; None if one refuses its inputs."""
    known: dict[str, Array | None] = dict(codes)
    made: tuple[Array, ...] | None = None
    for node in nodes:
        args = [(known[name] if name in known else values.constant(name)) if name else None for name in node.inputs]
        made = evaluate(node, args, "exact", _ROOM, saturating=True)
        if made is None:
            return None
        known.update(zip(node.outputs, made, strict=False))
    return made[0] if made else None


@frozen
class Sums:
    """Bounds of the numbers in a group, by output channel.

    unit:      the real value of a sum of 1. step: the same in codes of the result.
    low, high: the least and the greatest sum. size: the largest sum of magnitudes.
    roundings: how often a term is rounded to float32, at most.
    ties:      the first and the last tie between two codes, before the zero point is added.
    whole:     sums are integers. powers: all scales are powers of two.
    """

    unit: Array
    step: Array
    low: Array
    high: Array
    size: Array
    roundings: int
    ties: tuple[float, float]
    whole: bool = False
    powers: bool = False


def _decide(sums: Sums) -> Agreement:
    """The verdict from bounds of the error."""
    largest = float((sums.size * sums.unit).max(initial=0))
    error = 1.01 * sums.roundings * _UNIT * sums.size * sums.step
    most = float(error.max(initial=0))
    if not (sums.unit.min(initial=1) >= _NORMAL and largest < _LARGEST and most < 255):
        return Agreement(DIFFERS, None, "a step of the float32 form may overflow, or lose all digits")
    if sums.powers and float(sums.size.max(initial=0)) < 2**24:
        return Agreement(EQUAL, 0, "all scales are powers of two, so that float32 holds every sum")
    if sums.whole and _is_far(sums, error):
        return Agreement(EQUAL, 0, f"no sum is within {most:.2g} of a tie")
    if most < 1:
        return Agreement(TIES, 1, f"float32 errs by up to {most:.2g} codes")
    return Agreement(DIFFERS, math.floor(most) + 1, f"float32 errs by up to {most:.3g} codes")


def _is_far(sums: Sums, error: Array) -> bool:
    """Whether every quotient of a possible sum is farther from each tie than the error.

    A sum is an integer, so that only the two sums beside a tie matter. float64 finds their distances to 2**-40.
    """
    ties = np.arange(sums.ties[0], sums.ties[1] + 1)
    if bool((2 * error > sums.step).all()):
        return False  # a sum is that near to each tie within their range
    for step, low, high, reach in zip(sums.step, sums.low, sums.high, error + 2.0**-40, strict=True):
        above = np.ceil(ties / step)
        for sum_ in (above - 1, above, above + 1):
            near = np.abs(sum_ * step - ties) <= reach
            if bool((near & (sum_ >= low) & (sum_ <= high)).any()):
                return False
    return True


def product_sums(node: Node, literal: Sequence[Node], values: Values) -> Sums:
    """The sums of a QLinearConv, QLinearMatMul or QGemm. literal: the nodes of its QDQ form, if it has one."""
    x, w, y = quantized_tensors(node, values)
    weights = values.constant(w.name)
    alpha = float(np.float32(node.attributes.get("alpha", 1.0)))  # type: ignore[arg-type]
    unit = alpha * float(x.scale.reshape(-1)[0]) * w.scale.astype(np.float64).reshape(-1)
    rows = _rows(node, weights)
    if rows is None:
        shape = values.shape(x.name)
        depth = (shape[-1] if shape else None) or _DEEPEST
        size = np.array([float(depth) * x.reach * w.reach])
        low, high = -size, size
    else:
        depth = rows.shape[1]
        centred = rows.astype(np.int32) - w.zero.astype(np.int32).reshape(-1, 1)
        above, below = np.maximum(centred, 0).sum(1, np.float64), -np.minimum(centred, 0).sum(1, np.float64)
        added = _literal_bias(literal, unit, values) if literal else bias_of(node, values)
        low, high = above * x.least - below * x.most + added, above * x.most - below * x.least + added
        size = (above + below) * x.reach + np.abs(added)
    unit = np.broadcast_to(unit, size.shape)
    powers = all(bool((np.frexp(scale)[0] == 0.5).all()) for scale in (x.scale, w.scale, y.scale, np.float64(alpha)))
    roundings = min(depth, _BLOCK) + -(-depth // _BLOCK) + _STEPS
    step = np.abs(unit) / float(y.scale.reshape(-1)[0])
    return Sums(np.abs(unit), step, low, high, size, roundings, y.ties, True, powers)


def bias_of(node: Node, values: Values) -> Array:
    """The bias of an integer operator; [0.] if it has none."""
    added = bias(node)
    stored = values.constant(added.bias.tensor) if added else None
    return np.zeros(1) if stored is None else stored.astype(np.float64).reshape(-1)


def _literal_bias(literal: Sequence[Node], unit: Array, values: Values) -> Array:
    """The bias of the QDQ form, in units of a sum; the integer operator may have another one that gives the same
    codes."""
    product = next(node for node in literal if node.op_type in _PRODUCTS)
    name = product.inputs[2] if len(product.inputs) > 2 else ""
    source = next((node for node in literal if name and name in node.outputs), None)
    stored = values.constant(source.inputs[0] if source else name) if name else None
    if stored is None:
        return np.zeros(1)
    found = stored.astype(np.float64).reshape(-1)
    return found if source else np.rint(found / unit)


def _rows(node: Node, weights: Array | None) -> Array | None:
    """Constant weights as a matrix with a row for each output channel; None for others."""
    if weights is None or (node.op_type != "QLinearConv" and weights.ndim != 2):
        return None
    if node.op_type == "QLinearConv":
        return weights.reshape(len(weights), math.prod(weights.shape[1:]))
    return weights if node.attributes.get("transB", 0) else weights.T


@frozen
class OperandRange:
    """A quantized tensor of an integer operator: its name, and the constants scale and zero point."""

    name: str
    scale: Array
    zero: Array

    @property
    def least(self) -> float:
        """The least code less zero point."""
        return float(np.iinfo(self.zero.dtype).min) - float(self.zero.max())

    @property
    def most(self) -> float:
        """The greatest code less zero point."""
        return float(np.iinfo(self.zero.dtype).max) - float(self.zero.min())

    @property
    def reach(self) -> float:
        """The largest magnitude of a code less zero point."""
        return max(-self.least, self.most)

    @property
    def ties(self) -> tuple[float, float]:
        """The first and the last tie between two codes, before the zero point is added."""
        return self.least + 0.5, self.most - 0.5


def quantized_tensors(node: Node, values: Values) -> list[OperandRange]:
    """The operands that are quantized, and the result."""
    found = []
    for quantizer in (*(each for _, each in operands(node) if each), *(q for q in quantizers(node) if q.is_output)):
        scale = values.constant(quantizer.scale.tensor) if quantizer.scale else None
        zero = values.constant(quantizer.zero_point.tensor) if quantizer.zero_point else np.zeros((), np.uint8)
        assert scale is not None
        assert zero is not None
        found.append(OperandRange(quantizer.tensor.tensor, scale, zero))
    return found


def _mean(node: Node, values: Values) -> Sums:
    """QLinearAveragePool and QLinearGlobalAveragePool: means of codes."""
    x, y = quantized_tensors(node, values)
    shape, kernel = values.shape(x.name), node.attributes.get("kernel_shape")
    sizes = kernel if isinstance(kernel, tuple) else shape[2:] if shape else (None,)
    count = min(_DEEPEST, math.prod(_DEEPEST if size is None else size for size in sizes))
    size, unit = np.array([x.reach]), x.scale.astype(np.float64).reshape(1)
    return Sums(unit, unit / y.scale, -size, size, size, count + _STEPS, y.ties)


def _softmax(node: Node, values: Values) -> Sums:
    """QLinearSoftmax: exponentials within some units of their last place, their sum, and the quotient."""
    x, y = quantized_tensors(node, values)
    length = _softmax_length(node, values.shape(x.name)) or _DEEPEST
    # The differences of two numbers err with their magnitudes; exponentials of large ones are 0.
    inside = math.ceil(6 * x.reach * min(float(x.scale.item()), 1 + math.log(length)))
    one = np.ones(1)
    step = one / y.scale.astype(np.float64).reshape(1)
    return Sums(one, step, 0 * one, one, one, length + inside + 4 * _STEPS, y.ties)


def _softmax_length(node: Node, shape: Sequence[int | None] | None) -> int | None:
    """How many numbers a softmax has; None if that is unknown. Before opset 13 it is over all axes from `axis` on."""
    axis, opset = node.attributes.get("axis", -1), node.attributes.get("opset", _OVER_ONE_AXIS)
    if not shape or not isinstance(axis, int) or not -len(shape) <= axis < len(shape):
        return None
    first = axis % len(shape)
    known = shape[first:] if isinstance(opset, int) and opset < _OVER_ONE_AXIS else shape[first : first + 1]
    sizes = [size for size in known if size is not None]
    return math.prod(sizes) if len(sizes) == len(known) else None


_MEANS: Mapping[str, Callable[[Node, Values], Sums]] = {
    "QLinearAveragePool": _mean,
    "QLinearGlobalAveragePool": _mean,
    "QLinearSoftmax": _softmax,
}
