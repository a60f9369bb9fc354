"""Rules on dynamic quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from qrun.checking.rules._observed import tensors
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, Shape, nodes, scopes
from qrun.ir import Array, Model, Node
from qrun.ir.schema import MS
from qrun.ir.types import shape_text

_DYNAMIC = (("", "DynamicQuantizeLinear"), (MS, "DynamicQuantizeMatMul"), (MS, "DynamicQuantizeLSTM"))
_APPLIES = ("DynamicQuantizeLinear", "com.microsoft::DynamicQuantizeMatMul", "com.microsoft::DynamicQuantizeLSTM")


@rule(
    "QR408",
    "warning",
    spec="DynamicQuantizeLinear",
    fix="store the quantized tensor with its scale and zero point",
    applies=_APPLIES,
)
def dynamic_constant(model: Model, feeds: Mapping[str, Array] | None = None) -> Iterator[Finding]:
    """A constant tensor is quantized dynamically: a stored one, or one whose elements are all equal.

    qrun check finds equal elements only with recorded vectors: it runs the inputs of the first one.

    Why is this bad?
        The scale of a stored tensor is the same each time, so the work is wasted, and the float tensor is kept in the
        file. Equal elements say nothing about the range of other inputs. If all are 0 (or there are none, or their
        range / 255 underflows in float32), the scale is 0: the specification divides by it, its reference
        implementation and onnxruntime each use a different scale instead.

    Bad
        main () => (uint8[3] y, float s, uint8 z)
        <float[3] w = {0.5, -1.0, 2.0}>
        {
            y, s, z = DynamicQuantizeLinear(w)
        }

    Good
        main (float[3] x) => (uint8[3] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }
    """
    changing = []
    for scope, node in nodes(model, _DYNAMIC):
        if not node.inputs:
            continue
        name = node.inputs[0]
        value, home = scope.value(name), scope.home(name)
        if value is not None and home is not None and name not in home.model.fed:
            yield _stored_finding(scope, node, value)
        elif scope.outer is None:
            changing.append((scope, node))
    seen = tensors(model, feeds, [node.inputs[0] for _, node in changing]) if feeds is not None and changing else {}
    for scope, node in changing:
        met = seen.get(node.inputs[0])
        if met is not None and met.size > 1 and met.min() == met.max():
            yield _flat(scope, node, met)


def _stored_finding(scope: Scope, node: Node, value: Array) -> Finding:
    vanishes = value.dtype.kind == "f" and _vanishes(value)
    size = ", whose range / 255 underflows" if value.any() else ", all 0"
    empty = f"{size}: its scale is 0" if vanishes else ""
    return Finding(
        f"{node.op_type} of the stored tensor {node.inputs[0]}{empty}",
        **scope.at(node, f"{node.inputs[0]} (input 0)"),
        expected="a tensor that depends on the inputs",
        got=f"a stored tensor {shape_text(value.shape)}{empty}",
        why=f"{node.op}-{node.version} takes scale and zero point from the values, which never change here.",
    )


def _vanishes(value: Array) -> bool:
    """Is the range of the values and 0, divided by 255 in float32, equal to 0?"""
    with np.errstate(all="ignore"):
        ends = np.float32(max(0, value.max(initial=0))), np.float32(min(0, value.min(initial=0)))
        return not (ends[0] - ends[1]) / np.float32(255)


def _flat(scope: Scope, node: Node, value: Array) -> Finding:
    zero = ": its scale is 0" if _vanishes(value) else ""
    return Finding(
        f"{node.op_type} of {node.inputs[0]}, whose elements are all equal{zero}",
        **scope.at(node, f"{node.inputs[0]} (input 0)"),
        expected="elements that differ",
        got=f"{value.size} times {value.reshape(-1)[0]:.6g} with these inputs{zero}",
        why=f"{node.op}-{node.version} takes scale and zero point from the range of the values and 0.",
        fix="use inputs that vary, or find the node that makes the tensor constant",
    )


@rule(
    "QR410",
    "note",
    spec="DynamicQuantizeLinear",
    fix="quantize statically, or run one row at a time",
    applies=_APPLIES,
)
def batch_dependent(model: Model) -> Iterator[Finding]:
    """A row's result depends on its batch and padding: the tensor is quantized dynamically, and its sizes vary.

    One finding per graph, at the first node. Models whose inputs all have fixed sizes and a batch of 1 pass.

    Why is this bad?
        DynamicQuantizeLinear takes one scale from the largest and smallest value of the whole tensor. The same sentence
        gets a different scale, and so a different result, if it runs alone, in a batch, or padded to another length.
        Scores that change with the batch size are not a bug in the server.

    Bad
        main (float[N,4] x) => (uint8[N,4] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }

    Good
        main (float[1,4] x) => (uint8[1,4] y, float s, uint8 z)
        {
            y, s, z = DynamicQuantizeLinear(x)
        }
    """
    fixed = all(_is_fixed(value.shape) for value in model.inputs)
    for scope in scopes(model):
        found = [node for node in scope.model.nodes if _depends(scope, node, fixed)]
        if found:
            node, name = found[0], found[0].inputs[0]
            count = f"; {len(found)} such nodes in this graph" if len(found) > 1 else ""
            yield Finding(
                f"results depend on the batch: {name} gets one scale for all rows, taken from its values{count}",
                **scope.at(node, f"{name} (input 0)"),
                expected="one row, of fixed size",
                got=f"sizes that vary{count}",
                why=f"{node.op}-{node.version}: scale and zero point come from the minimum and maximum of the tensor.",
            )


def _depends(scope: Scope, node: Node, fixed: bool) -> bool:
    if (node.domain, node.op_type) not in _DYNAMIC or not node.inputs or scope.value(node.inputs[0]) is not None:
        return False
    shape = scope.shape(node.inputs[0])
    if shape is not None and node.op_type == "DynamicQuantizeLSTM" and len(shape) > 1:
        shape = (shape[1], shape[0], *shape[2:])  # the second axis is the batch
    return not fixed if shape is None else not _is_fixed(shape)


def _is_fixed(shape: Shape | None) -> bool:
    """Has a shape fixed sizes, and fewer than two axes or at most one row?"""
    return shape is not None and all(isinstance(d, int) for d in shape) and (len(shape) < 2 or shape[0] in (0, 1))
