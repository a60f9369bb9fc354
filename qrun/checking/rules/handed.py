"""A rule on quantized tensors: the node that makes one and the nodes that read it must have the same parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._forms import all_quantizers, expected_shape, sound
from qrun.checking.rules._rule import Finding, digits, operators, rule, tolerance
from qrun.checking.rules._scope import Scope
from qrun.declare import grouped
from qrun.declare.frozen import frozen
from qrun.ir import Array, Model, Node
from qrun.ops import Quantizer, Slot, find
from qrun.shapes import broadcast_shapes


@rule(
    "QR318",
    "warning",
    spec="DequantizeLinear",
    fix="store the scale and the zero point once, and let both nodes read them",
    applies=operators(),
)
def other_scale(model: Model) -> Iterator[Finding]:
    """One node writes a quantized tensor, and another reads it with a different scale or zero point.

    The rule compares stored values, even after operators that only move, select or clip codes, such as Reshape, MaxPool
    and Relu. Differences below 1e-5, or below one rounding of a float16 scale, pass.

    Why is this bad?
        The codes mean real values only together with their scale and zero point. A different scale at the reader
        multiplies all values, a different zero point adds a constant, and no runtime can notice. It is legal: some
        models multiply by a constant this way. Far more often, two inputs were swapped, or only one of the two nodes
        was recalibrated.

    Bad
        main (float[2] x) => (float[2] y)
        <float s = {0.5}, float t = {0.25}, uint8 z = {128}>
        {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, t, z)
        }

    Good
        main (float[2] x) => (float[2] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            q = QuantizeLinear(x, s, z)
            y = DequantizeLinear(q, s, z)
        }
    """
    pairs = ((one, off) for one in handovers(model) if (off := difference(one)) is not None)
    found = grouped(((id(one.made.scope.model), one.made.tensor, off), one) for one, off in pairs)
    begins = {(id(readers[0].read.node), key[2]) for key, readers in found.items()}
    ends = {(id(readers[0].made.node), key[2]) for key, readers in found.items()}
    for (_, _, off), readers in found.items():
        if (id(readers[0].made.node), off) not in begins:
            exchanged = (id(readers[0].read.node), off) in ends
            yield _finding(readers[0], off, len(readers) - 1, exchanged)


def _finding(one: Handed, off: ParameterMismatch, more: int, exchanged: bool) -> Finding:
    """The finding for one mismatch. exchanged: is the reader's own result read with the same mismatch, so that its
    input's and output's parameters are exchanged?"""
    made, read = one.made, one.read
    slot = read.q.tensor
    codes = "" if made.tensor == slot.tensor else f", codes of {made.tensor}"
    also = f", and by {more} more" if more else ""
    return Finding(
        f"read with {off.read}, but {made.label} wrote it with {off.made}",
        **read.scope.at(read.node, f"{slot.tensor} (input {slot.place}, {slot.name}){codes}"),
        expected=f"{off.made}, as in {made.label}{made.names(off)}",
        got=f"{off.read} in {read.label}{also}{read.names(off)}",
        why=f"legal ONNX, but {read.label} reads different values than {made.label} wrote: {off.effect}.",
        fix="swap the scales and the zero points of this node's input and output"
        if exchanged
        else f"give {made.label} and {read.label} the same scale and zero point; one of the two is wrong",
    )


_KEEPS = (("", "MaxPool"), ("", "Relu"), ("", "Clip"), ("", "Pad"), ("", "Resize"), ("com.microsoft", "NhwcMaxPool"))
"""Operators, other than those that only move elements, whose codes have the scale and zero point of their input."""


@frozen(eq=False)
class End:
    """A node with its parameters for a tensor. scale, zero: None if they are not stored, or not to
    be judged."""

    scope: Scope
    node: Node
    q: Quantizer
    scale: Array | None
    zero: Array | None

    @property
    def tensor(self) -> str:
        return self.q.tensor.tensor

    @property
    def label(self) -> str:
        return str(self.scope.at(self.node)["node"])

    def names(self, off: ParameterMismatch) -> str:
        """The names of the differing parameters' tensors: `` (x_scale s, x_zero_point z)``."""
        slots = [slot for slot, wanted in ((self.q.scale, off.in_scale), (self.q.zero_point, off.in_zero)) if wanted]
        return f" ({', '.join(f'{slot.name} {slot.tensor}' for slot in slots if slot)})" if any(slots) else ""


@frozen(eq=False)
class Handed:
    """Codes that `made` writes and `read` reads. direct: are they one tensor? If not, operators moved the codes."""

    made: End
    read: End
    direct: bool


@frozen
class ParameterMismatch:
    """A mismatch of two ends. made, read: their parameters, ``scale 0.5``; effect: what it does to the values."""

    made: str
    read: str
    effect: str
    in_scale: bool
    in_zero: bool


def handovers(model: Model) -> Iterator[Handed]:
    """Yield every pair of a node that makes a quantized tensor with a scale or zero point, and a node that reads it."""
    for scope, node, q in all_quantizers(model):
        origin = None if q.is_output else _origin(scope, q.tensor.tensor)
        made, read = (_end(*origin), _end(scope, node, q)) if origin else (None, None)
        if made and read:
            yield Handed(made, read, made.tensor == q.tensor.tensor)


def difference(one: Handed) -> ParameterMismatch | None:
    """The mismatch of both ends' stored parameters; None if they are equal, or if that cannot be known."""
    scale, zero = _scales(one), _zero_points(one)
    parts = [part for part in (scale, zero) if part is not None]
    if not parts:
        return None
    made, read, effect = (" and ".join(texts) for texts in zip(*parts, strict=True))
    return ParameterMismatch(made, read, effect, scale is not None, zero is not None)


def _scales(one: Handed) -> tuple[str, str, str] | None:
    """Texts for both scales where they are furthest apart, and for the effect; None if they are equal."""
    pair = _pair(one.made.scale, one.read.scale, one.direct)
    if pair is None:
        return None
    made, read = (scale.astype(np.float64) for scale in pair)
    ratio = read / made
    worst = int(np.argmax(np.maximum(ratio, 1 / ratio)))
    if abs(ratio.reshape(-1)[worst] - 1) <= tolerance(*pair):
        return None
    name, x, y = _element_name("scale", made, worst), float(made.reshape(-1)[worst]), float(read.reshape(-1)[worst])
    effect = f"the values are multiplied by {digits(y / x, 1) if 0.999 < y / x < 1.001 else f'{y / x:.3g}'}"
    return f"{name} {digits(x, y)}", f"{name} {digits(y, x)}", effect


def _zero_points(one: Handed) -> tuple[str, str, str] | None:
    """The same for both zero points; None also if their types differ, which QR303 reports."""
    pair = _pair(one.made.zero, one.read.zero, one.direct)
    if pair is None or pair[0].dtype != pair[1].dtype:
        return None
    made, read = (zero.astype(np.int64) for zero in pair)
    shift = made - read
    worst = int(np.argmax(np.abs(shift)))
    if not shift.reshape(-1)[worst]:
        return None
    name, steps = _element_name("zero point", made, worst), int(shift.reshape(-1)[worst])
    effect = f"the values move by {steps:+d} step{'s' if abs(steps) > 1 else ''}"
    return f"{name} {made.reshape(-1)[worst]}", f"{name} {read.reshape(-1)[worst]}", effect


def _origin(scope: Scope, name: str) -> tuple[Scope, Node, Quantizer] | None:
    """The node that quantizes a tensor, looking through operators that keep the scale; None if there is none."""
    seen: set[tuple[int, str]] = set()
    while True:
        made = scope.producer(name)
        if made is None or (id(made[1].model), name) in seen:
            return None
        node, scope = made
        seen.add((id(scope.model), name))
        if not _keeps(node, name):
            return next(((scope, node, q) for q in sound(scope, node) if q.is_output and q.tensor.tensor == name), None)
        name = node.inputs[0]


def _keeps(node: Node, name: str) -> bool:
    if not node.inputs or not node.inputs[0]:
        return False
    definition = find(node.domain, node.op_type, node.version)
    moved = definition is not None and definition.form == "moves"
    return moved or ((node.domain, node.op_type) in _KEEPS and name == node.outputs[0])


def _end(scope: Scope, node: Node, q: Quantizer) -> End | None:
    """A node's end of a tensor; None without parameters, for wrong shapes (QR301, QR302 report them) or bad scales."""
    slots = [slot for slot in (q.scale, q.zero_point) if slot]
    if not slots or any(expected_shape(scope, node, q, slot) for slot in slots):
        return None
    scale = _slot_value(scope, q.scale)
    if scale is not None:
        real = scale.astype(np.float64) if scale.dtype.kind not in "Oc" else np.zeros(1)
        if not np.all(np.isfinite(real) & (real > 0)):
            return None
    return End(scope, node, q, scale, _zero(scope, q))


def _zero(scope: Scope, q: Quantizer) -> Array | None:
    """The integer zero point, or 0 in the type of the tensor if there is none; None for other types."""
    if q.zero_point:
        zero = _slot_value(scope, q.zero_point)
    else:
        dtype = scope.dtype(q.tensor.tensor)
        zero = np.zeros((), dtype) if dtype is not None else None
    return zero if zero is not None and zero.dtype.name.startswith(("int", "uint")) else None


def _slot_value(scope: Scope, slot: Slot | None) -> Array | None:
    value = scope.value(slot.tensor) if slot else None
    return value if value is not None and value.size else None


def _pair(a: Array | None, b: Array | None, direct: bool) -> tuple[Array, Array] | None:
    """Broadcast both arrays to one shape of rank 1 at least; None if they are the same array or cannot be paired.

    If codes were moved, values per channel cannot be paired.
    """
    if a is None or b is None or a is b:
        return None
    a, b = (_one(value) for value in (a, b))
    if a.size == b.size == 1 or (direct and (a.shape == b.shape or 1 in (a.size, b.size))):
        shape = broadcast_shapes(a.shape, b.shape)
        return np.broadcast_to(a, shape), np.broadcast_to(b, shape)
    return None


def _one(value: Array) -> Array:
    """The values without axes of size 1, or one element if all are equal."""
    flat = value.reshape(-1)
    return flat[:1] if bool(np.all(flat == flat[0])) else np.squeeze(value)


def _element_name(name: str, values: Array, place: int) -> str:
    """The name of an element: ``scale``, or ``scale[5]`` if there are several."""
    index = np.unravel_index(place, values.shape)
    return f"{name}[{','.join(str(int(i)) for i in index)}]" if values.size > 1 else name
