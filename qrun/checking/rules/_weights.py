"""Finds stored integer weights of products, with the other operand: in integer operators, behind DequantizeLinear, and
inside larger operators. Also finds stored int32 biases."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qrun.checking.rules._rule import TOLERANCE
from qrun.checking.rules._scope import Scope, nodes, nodes_with_parameters, number
from qrun.declare.frozen import frozen
from qrun.declare.stored import Part, borrow
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ir.schema import MS
from qrun.ops import Quantizer, Slot, bias, channel_axis, find, quantizers

PRODUCTS = (
    "QLinearConv",
    "ConvInteger",
    "QLinearMatMul",
    "MatMulInteger",
    "com.microsoft::QGemm",
    "Conv",
    "MatMul",
    "Gemm",
)
"""The operators whose stored weights the rules examine, as users write them."""
_OF_FLOAT = {"Conv": "W", "MatMul": "B", "Gemm": "B"}
_SHORT = ("int4", "uint4", "int2", "uint2")
_DYNAMIC = "DynamicQuantizeMatMul"


@frozen(eq=False)
class QuantizedOperand:
    """A quantized tensor as one node reads it. dtype, scale, zero: None if not known or not stored."""

    scope: Scope
    tensor: str
    dtype: np.dtype[Any] | None
    scale: Array | None
    zero: Array | None
    node: Node


@frozen(eq=False)
class Weight:
    """Stored weights of a product.

    slot:  the input that reads them, directly or through a DequantizeLinear.
    stored: the weights, of rank 2 at least; `codes` reads them. axis: the axis of the output channels.
    zero:  the weights' zero point, flat, one element or one per channel.
    x:     the other operand. b: the int32 bias, if stored.
    float: does the node compute in float, behind DequantizeLinear?
    """

    scope: Scope
    node: Node
    slot: Slot
    tensor: str
    stored: Part
    axis: int
    scale: Array | None
    zero: Array
    x: QuantizedOperand
    b: Array | None
    float: bool

    @property
    def codes(self) -> Array:
        """The codes as stored; types of 2 and 4 bits are widened to int8."""
        return borrow(self.stored).astype(self.type, copy=False)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.stored.dtype

    @property
    def type(self) -> np.dtype[Any]:
        """The type of `codes`."""
        return np.dtype(np.int8) if self.dtype.name in _SHORT else self.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def size(self) -> int:
        return self.stored.size

    @property
    def terms(self) -> int:
        """The number of weights that contribute to one output."""
        if self.is_conv:
            return self.size // self.shape[0]
        return self.shape[-2] if self.axis == len(self.shape) - 1 else self.shape[-1]

    @property
    def where(self) -> dict[str, Any]:
        """The Finding fields that locate the weights."""
        return self.scope.at(self.node, replace(self.slot, tensor=self.tensor))

    def rows(self) -> Array:
        """The weights with one row per output channel (of each matrix, if there are several)."""
        moved = np.moveaxis(self.codes, self.axis, 0 if self.is_conv else -2)
        return moved.reshape(self.shape[0], -1) if self.is_conv else moved.reshape(-1, moved.shape[-1])

    def zeros(self, rows: Array) -> Array:
        """The zero point of each row, as a column of int64."""
        zero = self.zero.astype(np.int64)
        return (np.tile(zero, len(rows) // zero.size) if zero.size > 1 else zero).reshape(-1, 1)

    @property
    def is_conv(self) -> bool:
        return self.node.op_type in ("Conv", "QLinearConv", "ConvInteger")


def weights(model: Model) -> Iterator[Weight]:
    """Yield every stored weight of the model, with the node that reads it."""
    for scope, node in _weighted_nodes(model):
        found = _weight(scope, node)
        if found is not None:
            yield found


@once_per_model
def _weighted_nodes(model: Model) -> tuple[tuple[Scope, Node], ...]:
    """The nodes that read stored weights."""
    return tuple((s, node) for s, node in nodes_with_parameters(model, *_OF_FLOAT) if _weight(s, node) is not None)


def _weight(scope: Scope, node: Node) -> Weight | None:
    found = _behind_dequantize(scope, node) if not node.domain and node.op_type in _OF_FLOAT else None
    found = found or _of_integer_node(scope, node)
    return found if found is not None and _sane(found) else None


def quantized_source(scope: Scope, name: str, unknown_zero: bool = False) -> QuantizedOperand | None:
    """The quantized tensor from which a DequantizeLinear makes `name`.

    None if there is no DequantizeLinear, or if its zero point is not stored, unless `unknown_zero` allows that.
    """
    made = scope.producer(name)
    if made is None or made[0].op_type != "DequantizeLinear" or len(made[0].inputs) < 2:
        return None
    node, home = made
    zero = home.value(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    if len(node.inputs) > 2 and node.inputs[2] and zero is None and not unknown_zero:
        return None
    return QuantizedOperand(home, node.inputs[0], home.dtype(node.inputs[0]), home.value(node.inputs[1]), zero, node)


def _behind_dequantize(scope: Scope, node: Node) -> Weight | None:
    if len(node.inputs) < 2:
        return None
    w, x = quantized_source(scope, node.inputs[1]), quantized_source(scope, node.inputs[0])
    codes = w.scope.part(w.tensor) if w else None
    if w is None or x is None or codes is None or w.scale is None or w.scale.ndim > 1:
        return None
    b = quantized_source(scope, node.inputs[2]) if len(node.inputs) > 2 else None
    stored = b.scope.value(b.tensor) if b else None
    axis = channel_axis(node) % max(codes.ndim, 1)
    if w.scale.size > 1 and (not codes.ndim or number(w.node, "axis", 1) % codes.ndim != axis):
        return None
    slot = Slot(_OF_FLOAT[node.op_type], 1, node.inputs[1])
    zero = np.zeros(1, np.int8) if w.zero is None else w.zero
    return Weight(scope, node, slot, w.tensor, codes, axis, w.scale, zero.reshape(-1), x, stored, True)


def _of_integer_node(scope: Scope, node: Node) -> Weight | None:
    found = [q for q in quantizers(node) if not q.is_output]
    w = next((q for q in found if q.form in ("channel", "column", "gemm")), None)
    codes = scope.part(w.tensor.tensor) if w else None
    if w is None or codes is None:
        return None
    zero = scope.value(w.zero_point.tensor) if w.zero_point else np.zeros(1, np.int8)
    x = _other(scope, node, found)
    if zero is None or x is None:
        return None
    b = bias(node)
    stored = scope.value(b.bias.tensor) if b and b.integer else None
    axis = 0 if w.form == "channel" or (w.form == "gemm" and number(node, "transB")) else codes.ndim - 1
    scale = scope.value(w.scale.tensor) if w.scale else None
    return Weight(scope, node, w.tensor, w.tensor.tensor, codes, axis, scale, zero.reshape(-1), x, stored, False)


def _other(scope: Scope, node: Node, found: list[Quantizer]) -> QuantizedOperand | None:
    """The quantized operand that the weights are multiplied with."""
    if node.op_type == _DYNAMIC:
        return QuantizedOperand(scope, node.inputs[0], np.dtype(np.uint8), None, None, node) if node.inputs else None
    x = next((q for q in found if q.form in ("tensor", "row")), None)
    if x is None:
        return None
    scale = scope.value(x.scale.tensor) if x.scale else None
    zero = scope.value(x.zero_point.tensor) if x.zero_point else np.zeros(1, np.int8)
    return QuantizedOperand(scope, x.tensor.tensor, scope.dtype(x.tensor.tensor), scale, zero, node)


def _sane(w: Weight) -> bool:
    """Do the parameters fit the weights, so that rules can rely on it? QR301 and QR302 report those that do not."""
    if len(w.shape) < 2 or not w.size or w.type.kind not in "iu" or w.type.itemsize > 2:
        return False
    channels = w.shape[w.axis]
    fits = w.zero.size in (1, channels) and w.zero.size > 0 and (w.scale is None or w.scale.size in (1, channels))
    return fits and (w.zero.dtype.kind in "iu" or w.zero.dtype.name in _SHORT)


def is_quantized(model: Model, node: Node) -> bool:
    """Does the result go to a QuantizeLinear, directly or through Relu and Clip?"""
    return leads_to_quantize(model, node.outputs, ("Relu", "Clip"), 2)


def leads_to_quantize(model: Model, names: Sequence[str], through: tuple[str, ...] | None, hops: int) -> bool:
    """Do the tensors reach a QuantizeLinear within `hops` nodes? through: operators allowed in between; None: all."""
    for _ in range(hops):
        readers = [node for name in names for node in model.consumers.get(name, ())]
        if any(node.op_type == "QuantizeLinear" for node in readers):
            return True
        names = [name for node in readers if through is None or node.op_type in through for name in node.outputs]
    return False


@frozen(eq=False)
class StoredBias:
    """A stored bias. scale: its scale, in float64, flat; None if that is not stored. node: the node that adds it."""

    scope: Scope
    node: Node
    slot: Slot
    value: Array
    scale: Array | None


def biases(model: Model) -> Iterator[StoredBias]:
    """Yield every stored int32 bias, with the node that adds it."""
    for scope, node in nodes_with_parameters(model, "Gemm"):
        found = _of_float(scope, node) if node.op_type in ("Conv", "Gemm") and not node.domain else None
        found = found or _of_integer(scope, node)
        if found is not None:
            yield found


def _of_integer(scope: Scope, node: Node) -> StoredBias | None:
    b = bias(node)
    value = scope.value(b.bias.tensor) if b and b.integer else None
    if b is None or value is None or value.dtype != np.int32:
        return None
    scales = [q.scale and scope.value(q.scale.tensor) for q in quantizers(node) if not q.is_output]
    stored = [s for s in scales if isinstance(s, np.ndarray) and s.size and s.ndim < 2 and s.dtype.kind not in "Oc"]
    unit = None
    if len(scales) == 2 and len(stored) == 2 and 1 in (stored[0].size, stored[1].size):
        with np.errstate(all="ignore"):
            unit = (stored[0].astype(np.float64).reshape(-1) * stored[1].astype(np.float64).reshape(-1)).reshape(-1)
    return StoredBias(scope, node, b.bias, value, unit)


def _of_float(scope: Scope, node: Node) -> StoredBias | None:
    behind = quantized_source(scope, node.inputs[2]) if len(node.inputs) > 2 else None
    value = behind.scope.value(behind.tensor) if behind else None
    if behind is None or value is None or value.dtype != np.int32:
        return None
    scale = behind.scale
    unit = scale.astype(np.float64).reshape(-1) if scale is not None and scale.dtype.kind not in "Oc" else None
    return StoredBias(scope, node, Slot("B" if node.op_type == "Conv" else "C", 2, behind.tensor), value, unit)


def differs(one: Array, other: Array, bias: Array) -> int | None:
    """The first place where two scales of a bias differ and the bias is not 0; None if there is none."""
    flat = bias.reshape(-1)
    if any(s.size not in (1, flat.size) for s in (one, other)) or not np.all(one > 0) or not np.all(np.isfinite(one)):
        return None
    with np.errstate(all="ignore"):
        off = np.abs(one - other) > TOLERANCE * one
    places = np.flatnonzero(np.broadcast_to(off, flat.shape) & (flat != 0))
    return int(places[0]) if places.size else None


_STEPS = {"QAttention": ("weight",), "DynamicQuantizeLSTM": ("W", "R")}
INSIDE = tuple(f"{MS}::{op_type}" for op_type in _STEPS)
"""The larger operators with weights inside, as users write them."""


def weights_inside(model: Model) -> Iterator[Weight]:
    """Yield the weights of the operators in INSIDE; for recurrent operators, one per direction. The operand of R is
    quantized in each step and has no name, so its `x.tensor` is empty."""
    for scope, node in nodes(model, [(MS, op_type) for op_type in _STEPS]):
        for name in _STEPS[node.op_type]:
            yield from _weights_of(scope, node, name)


def _weights_of(scope: Scope, node: Node, name: str) -> Iterator[Weight]:
    definition = find(node.domain, node.op_type, node.version)
    if definition is None:
        return
    names = [p.name for p in definition.inputs]

    def value(of: str) -> Array | None:
        place = names.index(of)
        return scope.value(node.inputs[place]) if place < len(node.inputs) and node.inputs[place] else None

    codes, zero, rank = value(name), value(f"{name}_zero_point"), 2 if len(_STEPS[node.op_type]) == 1 else 3
    if codes is None or codes.ndim != rank or not codes.size:
        return
    slot = Slot(name, names.index(name), node.inputs[names.index(name)])
    matrices = codes if rank == 3 else codes[None]
    zeros = np.zeros(1, np.int8) if zero is None else zero
    parts = zeros if rank == 3 and zeros.ndim and len(zeros) == len(matrices) else [zeros] * len(matrices)
    for matrix, own in zip(matrices, parts, strict=True):
        x = _met(scope, node, name)
        flat = np.asarray(own).reshape(-1)
        yield Weight(scope, node, slot, slot.tensor, matrix, 1, None, flat, x, None, False)


def _met(scope: Scope, node: Node, name: str) -> QuantizedOperand:
    if node.op_type == "QAttention":
        return QuantizedOperand(scope, node.inputs[0], scope.dtype(node.inputs[0]), None, None, node)
    return QuantizedOperand(scope, node.inputs[0] if name == "W" else "", np.dtype(np.uint8), None, None, node)
