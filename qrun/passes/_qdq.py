"""Replaces a float node by an integer operator: finds its quantized result and builds the operator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fractions import Fraction

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Attribute, Node
from qrun.ir.schema import MS, OWN
from qrun.ir.types import NUMBERS, type_name
from qrun.ops.lowering.pointwise import JOINED
from qrun.passes._draft import Draft, Refused
from qrun.passes._evaluate import evaluate
from qrun.passes._shapes import windows_reach_input
from qrun.passes._sides import (
    QuantizedTensor,
    dequantize_side,
    dequantized_input,
    is_dequantize,
    is_quantize,
    param,
    per_tensor,
    quantized_output,
)

_CLAMPS = ("Relu", "Clip")


@frozen
class Output:
    """The place where a float result is quantized, directly or behind Relu and Clip nodes.

    limits: the smallest and the largest code that these nodes let through; None if that is the whole type.
    """

    side: QuantizedTensor
    clamps: tuple[Node, ...]
    limits: tuple[int, int] | None


@frozen
class IntegerOperator:
    """The integer operator that replaces a float node.

    stands_for: indices of the DequantizeLinear nodes at its inputs.
    """

    op_type: str
    inputs: tuple[str, ...]
    output: Output
    stands_for: tuple[int, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = MS
    version: int = 1


def read_output(draft: Draft, node: Node) -> Output:
    """Where the node's result is quantized. Raises Refused if it is not, or if another node reads it in float."""
    if any(node.outputs[1:]):
        raise Refused("it has more than one output")
    name, what = _first(node), "its result"
    clamps: list[Node] = []
    while True:
        readers = draft.consumers(name)
        if name in draft.preserved:
            raise Refused(f"{what} is asked for")
        if len(readers) != 1:
            raise Refused(f"{what} has {len(readers)} readers" if readers else f"no node reads {what}")
        reader = readers[0]
        if is_quantize(reader) and reader.inputs[0] == name:
            break
        fixed = all(draft.value(n) is not None for n in reader.inputs[1:] if n)
        if reader.op_type not in _CLAMPS or reader.domain or not fixed:
            raise Refused(f"{what} goes to {reader.op}, not to QuantizeLinear")
        clamps.append(reader)
        name, what = _first(reader), f"the result of {reader.op_type}"
    side = quantized_output(draft, reader, "its result")
    return Output(side, tuple(clamps), _limits(draft, side, clamps) if clamps else None)


def _first(node: Node) -> str:
    """The name of the first output."""
    return node.outputs[0] if node.outputs else ""


def _limits(draft: Draft, side: QuantizedTensor, clamps: Sequence[Node]) -> tuple[int, int] | None:
    """The codes of -infinity and infinity after the clamps; all others lie between, as every step is monotonic."""
    values: Array = np.array([-np.inf, np.inf], np.float32)
    for node in (*clamps, side.node):
        if node is side.node and draft.arith == "exact":
            values = np.array([_nearest(float(v), side) for v in values])
            break
        args = [values, *(draft.value(n) if n else None for n in node.inputs[1:])]
        made = evaluate(node, args, draft.arith, 1 << 16, saturating=True)
        if made is None:
            raise Refused(f"{node.op_type} refuses its parameters")
        values = made[0]
    low, high = (int(v) for v in values)
    return None if (low, high) == _range(side.dtype) else (low, high)


def _nearest(value: float, side: QuantizedTensor) -> int:
    """The code of a number: the real quotient, rounded once. NaN has the smallest code."""
    if not math.isfinite(value):
        return _range(side.dtype)[value > 0]
    return _code(Fraction(value) / Fraction(float(side.scale_value.item())), side)


def put(draft: Draft, node: Node, form: IntegerOperator) -> None:
    """Put the integer operator in the node's slot, followed by a table that limits the codes, if one is needed."""
    out, side = form.output, form.output.side
    behind = [*(clamp.index for clamp in out.clamps), side.node.index]
    made = side.tensor if out.limits is None else draft.fresh(f"{node.outputs[0]}_codes")
    new = Node(node.index, node.label, form.domain, form.op_type, form.version, form.inputs, (made,), form.attributes)
    for index in behind:
        draft.put(index)
    draft.put(node.index, (new, [*form.stands_for, node.index, *behind]))
    draft.state(side.tensor, side.dtype, node.outputs[0])
    if out.limits is not None:
        draft.state(made, side.dtype, node.outputs[0])
        low, high = (np.array(limit, side.dtype) for limit in out.limits)
        codes = np.arange(256, dtype=np.uint8).view(side.dtype)
        table = draft.constant(np.minimum(high, np.maximum(low, codes)), f"{side.tensor}_table")
        last = out.clamps[-1]
        limit = Node(
            last.index, last.label, OWN, "Table", 1, (made, table), (side.tensor,), {"input_dtype": NUMBERS[side.dtype]}
        )
        draft.put(last.index, (limit, behind))


def put_requantize(draft: Draft, node: Node) -> None:
    """Put an integer operator in place of a QuantizeLinear of a dequantized tensor. Raises Refused if there is none."""
    x, y = per_tensor(draft, node, 0), quantized_output(draft, node, "its result")
    if not draft.shapes.get(x.tensor):
        raise Refused("its input is not known to have an axis")
    inputs = (y.scale, y.zero, x.tensor, x.scale, x.zero)
    new = Node(node.index, node.label, MS, "QLinearConcat", 1, inputs, (y.tensor,), {"axis": 0})
    draft.put(node.index, (new, [x.node.index, node.index]))
    draft.state(y.tensor, y.dtype, node.inputs[0])


def one_type(**tensors: QuantizedTensor) -> None:
    """Raise Refused unless all sides have one element type."""
    (first, side), *others = tensors.items()
    for name, other in others:
        if other.dtype != side.dtype:
            raise Refused(f"{first} is {type_name(side.dtype)}, but {name} is {type_name(other.dtype)}")


_OVER_ONE_AXIS = 13
"""The version from which Softmax is over one axis, the last if none is named."""


def binary(draft: Draft, node: Node) -> IntegerOperator:
    """Add and Mul of tensors of one type."""
    a, b = per_tensor(draft, node, 0), per_tensor(draft, node, 1)
    out = read_output(draft, node)
    one_type(A=a, B=b, **{"the result": out.side})
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, out.side.scale, out.side.zero)
    return IntegerOperator(f"QLinear{node.op_type}", inputs, out, (a.node.index, b.node.index))


def concat(draft: Draft, node: Node) -> IntegerOperator:
    """Concat of tensors of any 8-bit types."""
    if len(node.inputs) > JOINED:
        raise Refused(f"joins of more than {JOINED} quantized tensors have no native kernel")
    parts = [per_tensor(draft, node, index) for index in range(max(1, len(node.inputs)))]
    out = read_output(draft, node)
    inputs = (out.side.scale, out.side.zero, *(name for p in parts for name in (p.tensor, p.scale, p.zero)))
    return IntegerOperator("QLinearConcat", inputs, out, tuple(p.node.index for p in parts), node.attributes)


def _only_input(draft: Draft, node: Node, name: str) -> tuple[QuantizedTensor, Output, tuple[str, ...]]:
    """The node's only tensor, of the result's type; the result; and the inputs of an operator of com.microsoft."""
    x, out = per_tensor(draft, node, 0), read_output(draft, node)
    one_type(**{name: x, "the result": out.side})
    return x, out, (x.tensor, x.scale, x.zero, out.side.scale, out.side.zero)


def average_pool(draft: Draft, node: Node) -> IntegerOperator:
    """AveragePool without dilations."""
    x, out, inputs = _only_input(draft, node, "X")
    dilations = node.attributes.get("dilations", ())
    if isinstance(dilations, tuple) and any(d != 1 for d in dilations):
        raise Refused("it has dilations")
    if not windows_reach_input(node):
        raise Refused("a window may lie wholly in the padding")
    kept = {name: value for name, value in node.attributes.items() if name != "dilations"}
    return IntegerOperator("QLinearAveragePool", inputs, out, (x.node.index,), kept)


def global_average_pool(draft: Draft, node: Node) -> IntegerOperator:
    """GlobalAveragePool of a tensor that certainly has spatial axes."""
    x, out, inputs = _only_input(draft, node, "X")
    shape = draft.shapes.get(node.inputs[0]) or draft.shapes.get(x.tensor)
    if shape is None or len(shape) < 3:
        raise Refused("X is not known to have spatial axes")
    return IntegerOperator("QLinearGlobalAveragePool", inputs, out, (x.node.index,))


def softmax(draft: Draft, node: Node) -> IntegerOperator:
    """Softmax of a tensor whose codes have the result's type."""
    x, out, inputs = _only_input(draft, node, "input")
    axis = node.attributes.get("axis", -1 if node.version >= _OVER_ONE_AXIS else 1)
    return IntegerOperator("QLinearSoftmax", inputs, out, (x.node.index,), {"axis": axis, "opset": node.version})


_INT32 = np.dtype(np.int32)
_MOST = 2**31 - 1
_CENTRED = 255
"""The largest difference between a code and a zero point."""


@frozen
class _Bias:
    """An int32 bias, whose scale is the product of the operands' scales; `name` is "" if there is none, then it is
    0."""

    name: str = ""
    value: Array = field(default_factory=lambda: np.zeros(1, np.int32))
    stands_for: tuple[int, ...] = ()


def conv(draft: Draft, node: Node) -> IntegerOperator:
    """Conv: W with one scale, or one per output channel."""
    x, w = per_tensor(draft, node, 0), dequantized_input(draft, node, 1)
    out = read_output(draft, node)
    weights = _weights(draft, w, "W", 0)
    if weights.ndim < 3:
        raise Refused("W has no spatial axes")
    if weights.ndim > 4:
        raise Refused(f"integer convolutions over {weights.ndim - 2} axes have no native kernel")
    bias = _bias(draft, node, x, w, (len(weights),))
    rows = weights.reshape(len(weights), math.prod(weights.shape[1:]))
    added = _fitting_bias(draft, x, w, rows, bias, out)
    y = out.side
    inputs = (x.tensor, x.scale, x.zero, w.tensor, w.scale, w.zero, y.scale, y.zero, added)
    return IntegerOperator(
        "QLinearConv",
        inputs if added else inputs[:-1],
        out,
        (x.node.index, w.node.index, *bias.stands_for),
        node.attributes,
        "",
        10,
    )


def gemm(draft: Draft, node: Node) -> IntegerOperator:
    """Gemm with alpha and beta 1: B with one scale, or one per column of the product; C one row."""
    a, b = per_tensor(draft, node, 0), dequantized_input(draft, node, 1)
    out = read_output(draft, node)
    if node.attributes.get("alpha", 1.0) != 1 or node.attributes.get("beta", 1.0) != 1:
        raise Refused("alpha or beta is not 1")
    transposed = bool(node.attributes.get("transB", 0))
    weights = _weights(draft, b, "B", 0 if transposed else 1)
    if weights.ndim != 2:
        raise Refused("B is not a matrix")
    columns = weights if transposed else weights.T
    bias = _bias(draft, node, a, b, (len(columns),))
    added = _fitting_bias(draft, a, b, columns, bias, out)
    y = out.side
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, added, y.scale, y.zero)
    kept = {name: value for name, value in node.attributes.items() if name in ("transA", "transB")}
    return IntegerOperator("QGemm", inputs, out, (a.node.index, b.node.index, *bias.stands_for), kept)


def matmul(draft: Draft, node: Node) -> IntegerOperator:
    """MatMul: B with one scale, or a constant matrix with one scale per column."""
    a, b = per_tensor(draft, node, 0), dequantized_input(draft, node, 1)
    out = read_output(draft, node)
    weights = draft.value(b.tensor)
    if b.axis is not None:
        weights = _weights(draft, b, "B", 1)
        if weights.ndim != 2:
            raise Refused("B has one scale per column, but is not a matrix")
    if weights is not None and weights.ndim == 2:
        _fitting_bias(draft, a, b, weights.T, _Bias(), out)
        known = True
    else:
        known = _check_depth(draft, node, a, b)
    y = out.side
    inputs = (a.tensor, a.scale, a.zero, b.tensor, b.scale, b.zero, y.scale, y.zero)
    domain, version = ("", 10) if known else (OWN, 1)
    return IntegerOperator("QLinearMatMul", inputs, out, (a.node.index, b.node.index), {}, domain, version)


def _weights(draft: Draft, side: QuantizedTensor, what: str, channel_axis: int) -> Array:
    """The constant integers. Raises Refused unless they have one scale, or one for each place along channel_axis."""
    weights = draft.value(side.tensor)
    if weights is None:
        raise Refused(f"{what} is not constant")
    if side.axis is not None:
        axis = side.axis % weights.ndim if -weights.ndim <= side.axis < weights.ndim else -1
        if axis != channel_axis or side.scale_value.shape != weights.shape[axis : axis + 1]:
            raise Refused(f"{what} has one scale per place along axis {side.axis}, not {channel_axis}")
    return weights


def _bias(draft: Draft, node: Node, x: QuantizedTensor, w: QuantizedTensor, shape: tuple[int]) -> _Bias:
    """The third input in units of the product of the scales. Raises Refused if it is no integer multiple of it."""
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    if not name:
        return _Bias()
    what, source = param(node, 2), draft.producer(name)
    stands_for: tuple[int, ...] = ()
    with np.errstate(all="ignore"):
        unit = np.asarray(x.scale_value.reshape(()) * w.scale_value).reshape(-1)
    if source is not None and is_dequantize(source):
        side = dequantize_side(draft, source, what, (_INT32,))
        value = draft.value(side.tensor)
        name, stands_for = side.tensor, (source.index,)
        if value is not None and (side.zero_value.any() or side.axis not in (None, -1, value.ndim - 1)):
            raise Refused(f"{what} has a zero point, or one scale per row")
        if not _all_equal(unit, side.scale_value.reshape(-1)):
            raise Refused(f"the scale of {what} is not the product of the operands' scales")
    else:
        value = _in_units(draft.value(name), unit, what)
        name = draft.constant(value, f"{name}_quantized")
    if value is None:
        raise Refused(f"{what} is not constant")
    if value.shape != shape and not (node.op_type == "Gemm" and value.shape == (1, *shape)):
        raise Refused(f"{what} is not one row")
    return _Bias(name, value, stands_for)


def _in_units(bias: Array | None, unit: Array, what: str) -> Array:
    """The integers whose float32 products with `unit` are this constant. Raises Refused if there are none."""
    if bias is None or bias.dtype != np.float32 or bias.ndim not in (1, 2) or unit.size not in (1, bias.size):
        raise Refused(f"{what} is neither constant nor dequantized")
    with np.errstate(all="ignore"):
        count = np.rint(bias.astype(np.float64) / unit)
        same = np.array_equal(count.astype(np.float32) * unit, bias) and bool(np.all(np.abs(count) <= _MOST))
    if not same:
        raise Refused(f"{what} is not an integer number of the product of the operands' scales")
    return count.astype(np.int32)


def _all_equal(a: Array, b: Array) -> bool:
    """Whether all elements are equal; one element stands for any number."""
    return (a.size == b.size or 1 in (a.size, b.size)) and bool(np.all(a == b))


def _fitting_bias(draft: Draft, x: QuantizedTensor, w: QuantizedTensor, rows: Array, bias: _Bias, out: Output) -> str:
    """The name of a bias with which all sums fit int32; rows: of weights, one for each output channel.

    That is the bias itself, or one that differs in channels whose sums might not fit, but all give the same code with
    either bias. Quantizers write biases near 2**31 to channels whose weights, and so scales, are almost 0. Raises
    Refused if there is none.
    """
    value = bias.value.astype(np.int64).reshape(-1)
    if rows.shape[1] * _CENTRED**2 + int(np.abs(value).max(initial=0)) <= _MOST:
        return bias.name
    centred = rows.astype(np.int32) - w.zero_value.astype(np.int32).reshape(-1, 1)
    above, below = (np.maximum(sign * centred, 0).sum(1, dtype=np.int64) for sign in (1, -1))
    least, most = (limit - int(x.zero_value.reshape(())) for limit in _range(x.dtype))
    low, high = above * least - below * most, above * most - below * least
    moved = np.maximum(np.minimum(value, _MOST - high), -_MOST - 1 - low)
    if np.array_equal(moved, np.broadcast_to(value, moved.shape)):
        return bias.name
    if not bias.name or draft.arith != "exact" or (moved + high > _MOST).any():
        raise Refused("its sums may not fit int32")
    scales = np.broadcast_to(w.scale_value.reshape(-1), moved.shape)
    for channel in np.flatnonzero(moved != value).tolist():
        unit = _unit(x.scale_value, scales[channel], out.side.scale_value)
        ends = (int(at[channel]) + int(end[channel]) for at in (value, moved) for end in (low, high))
        if len({_code(acc * unit, out.side) for acc in ends}) > 1:
            raise Refused("its sums may not fit int32")
    return draft.constant(moved.astype(np.int32).reshape(bias.value.shape), f"{bias.name}_fitting_bias")


def _unit(x: Array, w: Array, y: Array) -> Fraction:
    """x * w / y as a real number."""
    return Fraction(float(x.item())) * Fraction(float(w.item())) / Fraction(float(y.item()))


def _code(quotient: Fraction, side: QuantizedTensor) -> int:
    """The code that QuantizeLinear gives to a real quotient."""
    least, most = _range(side.dtype)
    return min(max(round(quotient) + int(side.zero_value.item()), least), most)


def _check_depth(draft: Draft, node: Node, a: QuantizedTensor, b: QuantizedTensor) -> bool:
    """Whether K is known. Raises Refused if it is so large that a sum might not fit int32."""
    left, right = (draft.shapes.get(n) or draft.shapes.get(s.tensor) for n, s in zip(node.inputs, (a, b), strict=True))
    depths = [left[-1] if left else None, right[max(-2, -len(right))] if right else None]
    known = [n for n in depths if n is not None]
    if known and min(known) * _CENTRED**2 > _MOST:
        raise Refused("its sums may not fit int32")
    return bool(known)


def _range(dtype: np.dtype) -> tuple[int, int]:
    """The least and greatest number of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


FORMS: Mapping[str, Callable[[Draft, Node], IntegerOperator]] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": gemm,
    "Add": binary,
    "Mul": binary,
    "Concat": concat,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "Softmax": softmax,
}
"""For each float operator the function that builds its integer operator."""
