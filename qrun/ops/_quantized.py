"""Facts from a quantized operator's declaration: its quantized tensors, its bias, and the real operator it computes.

Names say which scale and zero point belong together: ``<tensor>_scale`` and ``<tensor>_zero_point`` are those of the
input ``<tensor>``, in any case; without such an input they are the output's. Inputs that repeat are tensor, scale, zero
point.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.ir import Array, Node
from qrun.ir.schema import MS, QONNX, QUARK, VAI, VENDORS, home
from qrun.ops._op import REGISTRY, OpDef, find
from qrun.ops._signature import Granularity, Real

_UNRUN = {(MS, "QLinearReduceMean"): "data data_scale data_zero_point reduced_scale reduced_zero_point"}
"""Inputs of operators without a kernel, whose scales and zero points can still be checked."""
PER_AXIS_SINCE = (
    "convert the model to opset 13: onnx.version_converter.convert_version(model, 13); or quantize with a single scale"
)
"""The fix for a scale per axis in an earlier opset."""
_GROUP = ("tensor", "scale", "zero_point")
_SUFFIXES = ("_scale", "_zero_point")
_OWN_ATTRIBUTES = {"channels_last", "opset"}
"""Attributes of quantized operators that the real ones do not have."""
_REMEMBERED = 1 << 14
"""The number of nodes whose quantizers are cached, because every rule asks for them."""
_INT32: frozenset[np.dtype[Any]] = frozenset([np.dtype(np.int32)])


@frozen
class Slot:
    """An input or output of a node: the specification's name, its place, and the tensor there."""

    name: str
    place: int
    tensor: str


@frozen
class Quantizer:
    """Scale and zero point of one tensor of a node; None if not given. is_output: whether the tensor is an output."""

    tensor: Slot
    scale: Slot | None
    zero_point: Slot | None
    form: Granularity
    is_output: bool = False


@frozen
class Bias:
    """The bias of a node and the weight it belongs to; its length is the weight's size along `form`."""

    bias: Slot
    weight: Slot
    form: Granularity
    integer: bool


@frozen
class Facts:
    """Facts about one operator. Numbers are places of its inputs; -1: there is none, or the tensor is the output.

    names:     of the inputs that do not repeat. repeats: groups of tensor, scale and zero point follow them.
    quantized: tensor, scale, zero point and granularity; the output, if it is quantized, is the last.
    operands:  the inputs of the real operator, without its bias.
    bias:      its place, the place of its weight, and the granularity that both have.
    """

    names: tuple[str, ...]
    repeats: bool
    quantized: tuple[tuple[int, int, int, Granularity], ...]
    operands: tuple[int, ...]
    bias: tuple[int, int, Granularity] | None
    integer_bias: bool
    real: Real | None

    @property
    def rounds(self) -> bool:
        """Whether the output is quantized."""
        return any(row[0] < 0 for row in self.quantized)


@cache
def facts(domain: str, op_type: str) -> Facts | None:
    """The facts about an operator's newest version; None if it has neither scales, zero points nor a bias."""
    definition = find(domain, op_type, sys.maxsize)
    if definition is None:
        names = _UNRUN.get((domain, op_type), "").split()
        return Facts(tuple(names), False, _rows(names, {}), (0,), None, False, None) if names else None
    real = definition.computes
    if real is None:
        return None
    names = [p.name for p in definition.inputs if not p.variadic]
    bias_parts, integer = None, False
    if real.bias:
        weight, form = list(real.per.items())[-1]
        bias_parts = (names.index(real.bias), names.index(weight), form)
        integer = definition.formals(definition.since)[bias_parts[0]].types == _INT32
    operands = tuple(at for at, name in enumerate(names) if not name.endswith(_SUFFIXES) and name != real.bias)
    return Facts(
        tuple(names), definition.inputs[-1].variadic, _rows(names, real.per), operands, bias_parts, integer, real
    )


def _rows(names: Sequence[str], per: Mapping[str, Granularity]) -> tuple[tuple[int, int, int, Granularity], ...]:
    """Tensor, scale, zero point and granularity; the output last."""
    places = {name.lower(): at for at, name in enumerate(names)}
    forms = {name.lower(): form for name, form in per.items()}
    owners = dict.fromkeys(name.removesuffix(s) for name in places for s in _SUFFIXES if name.endswith(s))

    def at(name: str) -> int:
        return places.get(name, -1)

    rows = [(at(o), at(f"{o}_scale"), at(f"{o}_zero_point"), forms.get(o, "tensor")) for o in owners]
    return tuple(sorted(rows, key=lambda row: row[0] % len(names)))


def quantized_operators(*forms: Granularity) -> tuple[tuple[str, str], ...]:
    """Domain and type of the operators with scales or zero points (of these granularities), by name; imports none of
    them."""
    return tuple(key for key, own in _listed_operators().items() if not forms or own.intersection(forms))


@cache
def _listed_operators() -> Mapping[tuple[str, str], frozenset[str]]:
    """quantized.txt: the granularities of each operator; `python scripts/make_quantized.py` writes it."""
    found = {}
    for line in Path(__file__).with_name("quantized.txt").read_text("ascii").splitlines():
        name, *own = line.split()
        domain, _, op_type = name.rpartition("::")
        found[domain, op_type] = frozenset(own)
    return found


def op_names(operators: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Operators as users write them: ``Relu``, ``com.microsoft::QGemm``."""
    return tuple(f"{domain}::{op_type}" if domain else op_type for domain, op_type in operators)


def quantized_index() -> str:
    """The text of quantized.txt: a line for each operator with scales or zero points, and their granularities."""
    lines = []
    for domain, op_type in sorted({*REGISTRY, *_UNRUN}, key=lambda key: (key[1], key[0])):
        known = facts(domain, op_type)
        if known and known.quantized:
            own = sorted({row[3] for row in known.quantized})
            lines.append(" ".join([*op_names([(domain, op_type)]), *own]) + "\n")
    return "".join(lines)


def expansion(domain: str, op_type: str, inputs: int) -> tuple[str, list[tuple[int, int | None]], int | None] | None:
    """The real operator that an operator of com.microsoft or of a quantizer computes; the place of each operand and of
    its scale (None: not quantized); and the place of the output's scale (None: not quantized).

    Operators of quantizers that keep floats are described by one of their shape: Sum of all inputs for those of QONNX
    whose inputs broadcast, else Identity. None for an operator that is not quantized, or that ONNX defines. inputs: the
    number of inputs of the node.
    """
    known = facts(domain, op_type) if domain in (MS, QUARK, VAI) else None
    if known is None or known.real is None:
        if home(domain, op_type) not in VENDORS or find(domain, op_type, 1) is None:
            return None
        broadcasts = home(domain, op_type) == QONNX and op_type != "MultiThreshold"
        return ("Sum", [(n, None) for n in range(inputs)], None) if broadcasts else ("Identity", [(0, None)], None)
    scales = {row[0]: row[1] for row in known.quantized}
    repeated = range(len(known.names), inputs - 1, len(_GROUP)) if known.repeats else ()
    operands = [(index, scales.get(index)) for index in known.operands] + [(index, index + 1) for index in repeated]
    return known.real.op_type, operands, scales.get(-1)


def quantizers(node: Node) -> tuple[Quantizer, ...]:
    """The scales and zero points of a node, each with its tensor."""
    return _quantizers(node.domain, node.op_type, node.inputs, node.outputs[:1])


@lru_cache(maxsize=_REMEMBERED)
def _quantizers(domain: str, op_type: str, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> tuple[Quantizer, ...]:
    """The quantized tensors of a node with their scales and zero points."""
    known = facts(domain, op_type) if (domain, op_type) in _listed_operators() else None  # others need not be imported
    if known is None:
        return ()
    found, made = [], Slot("output", 0, outputs[0]) if outputs else None
    for tensor, scale, zero_point, form in known.quantized:
        owner = made if tensor < 0 else _slot(inputs, known, tensor)
        if owner:
            found.append(
                Quantizer(owner, _slot(inputs, known, scale), _slot(inputs, known, zero_point), form, tensor < 0)
            )
    if known.repeats:
        for start in range(len(known.names), len(inputs) - len(_GROUP) + 1, len(_GROUP)):
            number = (start - len(known.names)) // len(_GROUP)
            slots = [Slot(f"{name}[{number}]", p, inputs[p]) for p, name in enumerate(_GROUP, start)]
            found.append(Quantizer(slots[0], slots[1], slots[2] if slots[2].tensor else None, "tensor"))
    return tuple(found)


def channel_axis(node: Node) -> int:
    """The weights' axis of output channels in Conv, ConvTranspose, Gemm and MatMul; -1 is the last axis, for MatMul."""
    return {"Conv": 0, "MatMul": -1}.get(node.op_type, 0 if node.attributes.get("transB") else 1)


def to_unsigned(codes: Array) -> Array:
    """int8 codes, or their zero point, shifted by 128 to uint8."""
    return (codes.astype(np.int16) + 128).astype(np.uint8)


def operands(node: Node) -> list[tuple[str, Quantizer | None]]:
    """The inputs of the real operator, without its bias: tensors, with their scales and zero points if they are
    quantized."""
    known = facts(node.domain, node.op_type)
    found = {q.tensor.place: q for q in quantizers(node) if not q.is_output}
    places = known.operands if known else ()
    repeated = sorted(index for index in found if known and index >= len(known.names))
    return [(node.inputs[at] if at < len(node.inputs) else "", found.get(at)) for at in (*places, *repeated)]


def real_operator(node: Node) -> OpDef | None:
    """The operator that a quantized node computes with real numbers: its newest version that has the node's
    attributes."""
    known = facts(node.domain, node.op_type)
    if known is None or known.real is None or not known.quantized:
        return None
    definition = find("", known.real.op_type, sys.maxsize)
    while definition is not None and not definition.attributes.keys() >= node.attributes.keys() - _OWN_ATTRIBUTES:
        definition = find("", known.real.op_type, definition.since - 1)
    return definition


def parameter_axis(node: Node, form: Granularity) -> int:
    """The axis of a tensor along which its scales lie, if it has more than one."""
    if form == "axis":
        axis = node.attributes.get("axis", 1)
        return axis if isinstance(axis, int) else 1
    if form == "gemm":
        return 0 if node.attributes.get("transB", 0) else 1
    return {"row": -2, "column": -1}.get(form, 0)


def bias(node: Node) -> Bias | None:
    """The bias of a node, if its operator has one and it is given."""
    known = facts(node.domain, node.op_type)
    if known is None or known.bias is None:
        return None
    bias_index, weight, form = known.bias
    slot, owner = _slot(node.inputs, known, bias_index), _slot(node.inputs, known, weight)
    return Bias(slot, owner, form, known.integer_bias) if slot and owner else None


def _slot(inputs: Sequence[str], known: Facts, index: int) -> Slot | None:
    """The input at a position; None if it is missing."""
    return Slot(known.names[index], index, inputs[index]) if 0 <= index < len(inputs) and inputs[index] else None
