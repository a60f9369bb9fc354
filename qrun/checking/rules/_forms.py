"""Checks the types of a node's inputs, and the shapes of its scales, zero points and biases, against what its operator
allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from qrun.checking.rules._ort import known_schema
from qrun.checking.rules._scope import Scope, Shape, differ, nodes_with_parameters, number, static_shape
from qrun.ir import Array, Model, Node, once_per_model
from qrun.ir.schema import Formal
from qrun.ir.types import shape_text
from qrun.ops import Bias, Quantizer, Slot, bias, find, quantizers
from qrun.ops import Granularity as Form

UNITS = {"channel": "output channel", "row": "row", "column": "column", "gemm": "column"}


def expected_shape(scope: Scope, node: Node, q: Quantizer, slot: Slot) -> str:
    """A description of the shape that `slot` should have; "" if its shape is right or cannot be judged."""
    got = static_shape(scope.shape(slot.tensor))
    if got is None:
        return ""
    if q.form == "axis":
        x = scope.shape(node.inputs[0] if node.inputs else "")
        return _axis(node, got, x, node.inputs[0] if node.inputs else "")
    if got in ((), (1,)):
        return ""
    if q.form == "tensor":
        return f"scalar: one for {q.tensor.tensor or q.tensor.name}"
    if q.form == "gemm" and not _multiply(scope, node, scope.shape(q.tensor.tensor)):
        return ""
    return _lane(node, q.form, got, scope.shape(q.tensor.tensor), q.tensor.tensor)


def _lane(node: Node, form: Form, got: tuple[int, ...], shape: Shape | None, name: str) -> str:
    """The expected shape of a parameter with one value, or one per channel, row or column; "" if it fits."""
    unit = UNITS[form]
    if shape is None or not shape:
        return f"scalar, or one per {unit}" if len(got) > 1 and form in ("channel", "gemm") else ""
    if form in ("row", "column") and len(shape) == 1:
        return f"scalar: {name} {shape_text(shape)} is one {unit}"
    size = shape[_lane_axis(node, form, len(shape))]
    if not isinstance(size, int):
        return ""
    wide = _wide(form, shape)
    if got == (size,) and (form in ("channel", "gemm") or len(shape) <= 2):
        return ""
    if wide is not None and _fits_wide(got, wide):
        return ""
    forms = ["scalar", *([f"[{size}]"] if form in ("channel", "gemm") or len(shape) == 2 else [])]
    if wide is not None:
        forms.append(shape_text(wide))
    return f"{', or '.join(forms)}: one per {unit} of {name} {shape_text(shape)}"


def _lane_axis(node: Node, form: Form, rank: int) -> int:
    if form == "channel" or rank == 1:
        return 0
    if form == "gemm":
        return 0 if number(node, "transB") else 1
    return rank - 2 if form == "row" else rank - 1


def _wide(form: Form, shape: Shape) -> Shape | None:
    """The N-D form of a row or column parameter: the tensor's shape with its other matrix axis of size 1."""
    if form not in ("row", "column") or len(shape) < 2:
        return None
    return (*shape[:-1], 1) if form == "row" else (*shape[:-2], 1, shape[-1])


def _fits_wide(got: tuple[int, ...], wide: Shape) -> bool:
    """Does a shape fit the N-D form? Leading axes may be 1; the last two must be equal, if their sizes are known."""
    if len(got) != len(wide):
        return False
    lead = all(g == 1 or not differ(g, w) for g, w in zip(got[:-2], wide[:-2], strict=True))
    return lead and not any(map(differ, got[-2:], wide[-2:]))


def _axis(node: Node, got: tuple[int, ...], x: Shape | None, name: str) -> str:
    """The expected shape of a per-tensor, per-axis or blocked parameter of QuantizeLinear or DequantizeLinear."""
    block, axis = node.attributes.get("block_size", 0), node.attributes.get("axis", 1)
    if not isinstance(block, int) or not isinstance(axis, int) or block < 0:
        return ""
    if block and got:
        return _block_misfit(got, x, name, axis, block)
    if got in ((), (1,)):
        return ""
    if older(node):
        return f"scalar: {node.op}-{node.version} quantizes per tensor"
    if x is None:
        return "scalar, or one per slice of the axis" if len(got) > 1 else ""
    rank = len(x)
    if not -rank <= axis < rank:
        hint = "; write axis=0" if rank == 1 else ""
        return f"scalar, because axis {axis} is out of range for {name} {shape_text(x)}{hint}"
    size = x[axis]
    if len(got) == 1 and not differ(got[0], size):
        return ""
    one = shape_text((size,))
    return f"scalar, or {one}: one per slice of axis {axis} of {name} {shape_text(x)}"


def older(node: Node) -> bool:
    """Is the node a QuantizeLinear or DequantizeLinear of a version before per-axis scales?"""
    return not node.domain and node.version < 13


def broadcast_parameter(values: Array, node: Node, shape: tuple[int, ...]) -> Array | None:
    """Broadcast a per-tensor, per-axis or blocked parameter of a QuantizeLinear or DequantizeLinear to its tensor's
    shape; None if it does not fit."""
    axis, block = node.attributes.get("axis", 1), node.attributes.get("block_size", 0)
    if not isinstance(axis, int) or not isinstance(block, int) or block < 0:
        return None
    if values.size == 1 and not (block and values.ndim):
        return np.broadcast_to(values.reshape(()), shape)
    if _axis(node, values.shape, shape, ""):
        return None
    if block:
        values = np.repeat(values, block, axis).take(range(shape[axis]), axis)
    else:
        values = values.reshape([-1 if place == axis % len(shape) else 1 for place in range(len(shape))])
    return np.broadcast_to(values, shape)


def _block_misfit(got: tuple[int, ...], x: Shape | None, name: str, axis: int, block: int) -> str:
    if x is None or not -len(x) <= axis < len(x):
        return ""
    want = list(x)
    size = want[axis]
    want[axis] = -(-size // block) if isinstance(size, int) else None
    if len(got) == len(want) and not any(map(differ, got, want)):
        return ""
    return f"{shape_text(tuple(want))}: one per block of {block} along axis {axis} of {name} {shape_text(x)}"


def reason(node: Node, form: Form, name: str, k_long: bool = False) -> str:
    """The operator's rule for the shape of a parameter, in one sentence."""
    op = f"{node.op}-{node.version}"
    if k_long:
        return f"{op}'s text says K elements for b; that is a slip for N, one per column."
    if form == "tensor":
        return f"{op}: {name} is per tensor, one value."
    if form == "axis":
        blocks = ", or of x's rank with block_size" if not node.domain and node.version >= 21 else ""
        return f"{op}: {name} is a scalar, 1-D with one value per slice of axis{blocks}."
    if form == "channel":
        return f"{op}: a 1-D {name} has as many elements as output channels."
    return f"{op}: {name} is a scalar or has one value per {UNITS[form]}."


def describe_shape(name: str, shape: Shape | None) -> str:
    """Describe a shape: ``w_scale has shape [3]``, ``w_scale is a scalar``."""
    return f"{name} is a scalar" if shape == () else f"{name} has shape {shape_text(shape)}"


def same_form(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    """Are the shapes equal? A scalar and [1] count as equal."""
    return first == second or (first in ((), (1,)) and second in ((), (1,)))


def expected_bias(scope: Scope, node: Node, bias: Bias) -> str:
    """A description of the shape that a bias should have; "" if its shape is right or cannot be judged."""
    got, weight = static_shape(scope.shape(bias.bias.tensor)), scope.shape(bias.weight.tensor)
    if got is None or not weight:
        return ""
    size = weight[_lane_axis(node, bias.form, len(weight))]
    if not isinstance(size, int):
        return ""
    if bias.form == "gemm" and not _multiply(scope, node, weight):
        return ""
    if bias.form == "gemm":
        fits = len(got) <= 2 and (not got or got[-1] in (1, size)) and _fits_rows(scope, node, got)
    else:
        fits = got == (size,)
    unit = UNITS[bias.form]
    return "" if fits else f"[{size}]: one per {unit} of {bias.weight.tensor} {shape_text(weight)}"


def misfit(scope: Scope, node: Node) -> bool:
    """Has a scale or zero point of the node a wrong shape, which QR301 and QR302 report?"""
    for q in quantizers(node):
        if any(slot and expected_shape(scope, node, q, slot) for slot in (q.scale, q.zero_point)):
            return True
        scale, zero = (static_shape(scope.shape(slot.tensor)) if slot else None for slot in (q.scale, q.zero_point))
        if q.form == "axis" and scale is not None and zero is not None and not same_form(scale, zero):
            return True
    return False


def _multiply(scope: Scope, node: Node, b: Shape | None) -> bool:
    """Can the matrices of a Gemm be multiplied, as far as their shapes are known? If not, QR208 reports it."""
    a = scope.shape(node.inputs[0])
    if a is None or b is None or len(a) != 2 or len(b) != 2:
        return True
    columns, rows = a[0 if number(node, "transA") else 1], b[1 - _lane_axis(node, "gemm", 2)]
    return not differ(columns, rows)


def _fits_rows(scope: Scope, node: Node, got: tuple[int, ...]) -> bool:
    """Has a 2-D bias of a Gemm one row, or as many as the product?"""
    a = scope.shape(node.inputs[0])
    if len(got) < 2 or a is None or len(a) != 2:
        return True
    rows = a[1 if number(node, "transA") else 0]
    return got[0] == 1 or not differ(got[0], rows)


def formals(node: Node) -> tuple[Sequence[Formal], Sequence[str]]:
    """The formal inputs of a node's operator, and the parameter name of each given input; both empty if unknown."""
    definition = find(node.domain, node.op_type, node.version)
    if definition is not None:
        return definition.formals(node.version), [definition.param(i) for i in range(len(node.inputs))]
    known = known_schema(node)
    if known is None or not known.inputs:
        return (), ()
    last = len(known.inputs) - 1
    return known.inputs, [known.inputs[min(i, last)].name for i in range(len(node.inputs))]


def input_types(scope: Scope, node: Node) -> Mapping[int, tuple[np.dtype[Any], Formal]]:
    """Maps the place of each input of known type to its element type and its formal input."""
    known, _ = formals(node)
    found = {}
    for place, tensor in enumerate(node.inputs if known else ()):
        dtype, formal = scope.dtype(tensor), known[min(place, len(known) - 1)]
        if dtype is not None and formal.types is not None:
            found[place] = dtype, formal
    return found


def mistyped_inputs(scope: Scope, node: Node) -> Sequence[int]:
    """The places of inputs whose element type the operator does not accept at this version.

    Empty if other rules judge all of these inputs.
    """
    types = tuple(scope.dtype(name) if name else "" for name in node.inputs)
    key = (node.domain, node.op_type, node.version, types)
    found = scope.mistyped.get(key)
    if found is None:
        given = input_types(scope, node).items()
        wrong = [p for p, (dtype, formal) in given if formal.types is not None and dtype not in formal.types]
        found = scope.mistyped[key] = wrong if not places_of_other_rules(scope, node).issuperset(wrong) else []
    return found


def sound(scope: Scope, node: Node) -> Iterator[Quantizer]:
    """Yield the quantizers of a node whose tensor, scale and zero point all have types that the operator accepts."""
    found = list(quantizers(node))
    wrong = mistyped_inputs(scope, node) if found else ()
    for q in found:
        slots = (None if q.is_output else q.tensor, q.scale, q.zero_point)
        if not any(slot and slot.place in wrong for slot in slots):
            yield q


@once_per_model
def all_quantizers(model: Model) -> Sequence[tuple[Scope, Node, Quantizer]]:
    """Every scale with its zero point in the model, at each node that has it, except those with wrong types."""
    return [(scope, node, q) for scope, node in nodes_with_parameters(model) for q in sound(scope, node)]


def places_of_other_rules(scope: Scope, node: Node) -> set[int]:
    """Places whose types QR303 and QR305 judge: zero points of tensors of known type, and int32 biases."""
    found = {
        q.zero_point.place
        for q in quantizers(node)
        if q.zero_point and not q.is_output and scope.dtype(q.tensor.tensor) is not None
    }
    b = bias(node)
    return found | ({b.bias.place} if b and b.integer else set())
