"""The quantized result of a float node, and the integer operator that takes the node's place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from fractions import Fraction

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Attribute, Node
from qrun.ir.schema import MS, OWN
from qrun.ir.types import NUMBERS, type_name
from qrun.passes._draft import Draft, Refused
from qrun.passes._evaluate import evaluate
from qrun.passes._sides import QuantizedTensor, is_quantize, quantized

_CLAMPS = ("Relu", "Clip")


@frozen
class Output:
    """Where a float result is quantized, at once or behind Relu and Clip nodes.

    limits: the smallest and the largest code that these let through; None if that is the whole type.
    """

    side: QuantizedTensor
    clamps: tuple[Node, ...]
    limits: tuple[int, int] | None


@frozen
class IntegerOperator:
    """The integer operator that a float node becomes.

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
    """Where the node's result is quantized; Refused if it is not, or if somebody else reads it in float."""
    if any(node.outputs[1:]):
        raise Refused("it has more than one output")
    name, what = _first(node), "its result"
    clamps: list[Node] = []
    while True:
        readers = draft.consumers(name)
        if name in draft.preserved:
            raise Refused(f"{what} is asked for")
        if len(readers) != 1:
            raise Refused(f"{what} has {len(readers)} readers" if readers else f"nobody reads {what}")
        reader = readers[0]
        if is_quantize(reader) and reader.inputs[0] == name:
            break
        fixed = all(draft.value(n) is not None for n in reader.inputs[1:] if n)
        if reader.op_type not in _CLAMPS or reader.domain or not fixed:
            raise Refused(f"{what} goes to {reader.op}, not to QuantizeLinear")
        clamps.append(reader)
        name, what = _first(reader), f"the result of {reader.op_type}"
    side = quantized(draft, reader, "its result")
    return Output(side, tuple(clamps), _limits(draft, side, clamps) if clamps else None)


def _first(node: Node) -> str:
    return node.outputs[0] if node.outputs else ""


def _limits(draft: Draft, side: QuantizedTensor, clamps: Sequence[Node]) -> tuple[int, int] | None:
    """The codes of what the clamps make of -infinity and infinity;
    all others lie between, as every step is monotonic."""
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
    info = np.iinfo(side.dtype)
    low, high = (int(v) for v in values)
    return None if (low, high) == (info.min, info.max) else (low, high)


def _nearest(value: float, side: QuantizedTensor) -> int:
    """The code of a number: the real quotient, rounded once. NaN has the smallest code."""
    info = np.iinfo(side.dtype)
    if not math.isfinite(value):
        return int(info.max if value > 0 else info.min)
    quotient = Fraction(value) / Fraction(float(side.scale_value.reshape(())))
    return min(max(round(quotient) + int(side.zero_value.reshape(())), int(info.min)), int(info.max))


def put(draft: Draft, node: Node, form: IntegerOperator) -> None:
    """The integer operator in the node's slot, and behind it a table that limits the codes, where one is needed."""
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


def one_type(**tensors: QuantizedTensor) -> None:
    """Raises Refused unless all sides have one element type."""
    (first, side), *others = tensors.items()
    for name, other in others:
        if other.dtype != side.dtype:
            raise Refused(f"{first} is {type_name(side.dtype)}, but {name} is {type_name(other.dtype)}")
