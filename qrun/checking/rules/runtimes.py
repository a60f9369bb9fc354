"""Rules on valid models that onnxruntime does not run: without a CPU kernel, or in a form that it refuses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from qrun.checking.rules._forms import expected_shape, mistyped_inputs
from qrun.checking.rules._ort import Types, cpu_kernels, known_schema, runtime
from qrun.checking.rules._rule import Finding, rule, several
from qrun.checking.rules._scope import Scope, ints, nodes, static_shape
from qrun.checking.rules._window import CONVS, auto_pad
from qrun.ir import Model, Node
from qrun.ir.schema import DOMAINS, MS, Schema
from qrun.ir.types import shape_text, type_name
from qrun.ops import quantizers


@rule(
    "QR217",
    "warning",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md",
    fix="use types that it supports, such as uint8 activations",
)
def no_cpu_kernel(model: Model) -> Iterator[Finding]:
    """The types are legal, but the CPU provider of onnxruntime 1.32.0 has no kernel for them.

    One finding for each operator and combination of types. Known cases: QLinearConv and QLinearMatMul run uint8
    activations with any 8-bit weights, or int8 throughout, and nothing else; QuantizeLinear of int32 or bfloat16;
    float8 in QLinearMatMul; 16-bit integers in Relu and Max.

    Why is this bad?
        onnxruntime does not load the model on any machine ("Could not find an implementation"). float16 is not reported
        where a float32 kernel exists, because onnxruntime inserts the casts.

    Bad
        main (uint8[2,2] x) => (int8[2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,2] w = {1, 2, 3, 4}, int8 zero = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, zero, s, zero)
        }

    Good
        main (uint8[2,2] x) => (uint8[2,2] y)
        <float s = {0.5}, uint8 z = {128}, int8[2,2] w = {1, 2, 3, 4}, int8 zero = {0}>
        {
            y = QLinearMatMul(x, s, z, w, s, zero, s, z)
        }
    """
    for (op, version, bound), places in without_kernel(model).items():
        scope, node = places[0]
        count = several(len(places), "node")
        types = ", ".join(f"{name} {type_name(dtype)}" for name, dtype in bound) or "any types"
        yield Finding(
            f"{runtime()} has no CPU kernel for {op} with {types} ({count})",
            **scope.at(node),
            expected=there_are(node),
            got=types,
            why=f"{op}-{version} allows these types; {runtime()} implements other types on the CPU.",
        )


Judge = Callable[[Scope, Node], tuple[int, str, str] | None]
"""Judges a form of a node: returns the place of the offending input, or -1; what it is; what onnxruntime accepts."""


@rule(
    "QR218",
    "warning",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/OperatorKernels.md",
    applies=(
        "QLinearMatMul",
        "MatMulInteger",
        "ConvInteger",
        "QLinearConv",
        "Conv",
        "MaxPool",
        "AveragePool",
        "LpPool",
        "QuantizeLinear",
        "com.microsoft::QLinearAdd",
        "com.microsoft::QLinearMul",
        "com.microsoft::QLinearAveragePool",
        "com.microsoft::QLinearConcat",
        "com.microsoft::QLinearSigmoid",
        "com.microsoft::QLinearLeakyRelu",
    ),
    fix="write a form that onnxruntime accepts",
)
def refused_by_ort(model: Model) -> Iterator[Finding]:
    """The specification allows a node, but the CPU provider of onnxruntime 1.32.0 refuses it or crashes.

    On x86 CPUs, onnxruntime does not load these forms: from opset 21 on, an int8 tensor that one Transpose, Reshape or
    similar node reads without quantizing its result; below opset 12, quantized ReduceMax and ReduceMin; below opset 11,
    quantized DepthToSpace. The other forms are: one zero point per row of a, or per output channel of ConvInteger;
    auto_pad SAME with dilations; a pool whose pads are as large as its kernel; com.microsoft operators without their
    optional zero points; int8 and uint8 together in QLinearConcat; x and scale of different types in QuantizeLinear
    (fixed in 1.32).

    Why is this bad?
        Many of these models load, but fail on the first input. Without Y_zero_point, QLinearSigmoid and
        QLinearLeakyRelu crash the whole process.

    Bad
        main (uint8[1,1,3] x) => (int32[1,2,2] y)
        <uint8[2,1,2] w = {1, 2, 3, 4}, uint8 xz = {128}, uint8[2] wz = {0, 1}>
        {
            y = ConvInteger(x, w, xz, wz)
        }

    Good
        main (uint8[1,1,3] x) => (int32[1,2,2] y)
        <uint8[2,1,2] w = {1, 2, 3, 4}, uint8 xz = {128}, uint8 wz = {1}>
        {
            y = ConvInteger(x, w, xz, wz)
        }
    """
    for scope, node in nodes(model, _JUDGES):
        if mistyped_inputs(scope, node):
            continue  # the specification forbids it, which QR203 reports
        judges = _JUDGES.get((node.domain, node.op_type), ())
        judged = ((judge, judge(scope, node)) for judge in judges)
        judge, found = next(((judge, f) for judge, f in judged if f is not None), (None, None))
        if judge is not None and found is not None:
            place, got, expected = found
            fixed = _FIXED.get(judge)
            who = f"onnxruntime before {fixed}" if fixed else runtime()
            given = 0 <= place < len(node.inputs) and node.inputs[place]
            yield Finding(
                f"{who} refuses {node.op} with {got}",
                **scope.at(node, f"{node.inputs[place]} (input {place})" if given else ""),
                expected=expected,
                got=got,
                why=f"{node.op}-{node.version} allows it; {who} does not on the CPU.",
            )
    yield from _not_loaded(model)


def _not_loaded(model: Model) -> Iterator[Finding]:
    """Yield each cause for which onnxruntime does not load the model on x86 CPUs, at its first node."""
    from qrun.checking.targets import integers

    found = integers(model)
    if found is None:
        return
    for cause in found.causes:
        if cause.rule.otherwise == "refused":
            first, count = cause.judged[0], several(len(cause.judged), "such node")
            yield Finding(
                f"{found.runtime} does not load the model on {found.on}: {first.node.op_type} at opset "
                f"{model.opsets.get('')}: {cause.rule.cause}",
                **first.scope.at(first.node, f"{first.node.inputs[0]} (input 0)"),
                expected="a model that it loads",
                got=f"{cause.rule.cause}; {count}",
                why=f"{cause.rule.why}: {cause.rule.says}.",
                fix=cause.rule.fix,
            )


def _one_value(place: int, name: str) -> Judge:
    def judge(scope: Scope, node: Node) -> tuple[int, str, str] | None:
        shape = static_shape(scope.shape(node.inputs[place])) if place < len(node.inputs) else None
        if shape is None or shape in ((), (1,)):
            return None
        slots = ((q, slot) for q in quantizers(node) for slot in (q.scale, q.zero_point) if slot)
        if any(slot.place == place and expected_shape(scope, node, q, slot) for q, slot in slots):
            return None  # the specification forbids it, which QR301 and QR302 report
        return place, f"{name} of shape {shape_text(shape)}", f"{name} a scalar or [1]"

    return judge


def _requires_input(place: int, name: str) -> Judge:
    def judge(scope: Scope, node: Node) -> tuple[int, str, str] | None:
        if place < len(node.inputs) and node.inputs[place]:
            return None
        return place, f"{name} left out", f"{name}, as a stored 0"

    return judge


def _same_and_dilations(scope: Scope, node: Node) -> tuple[int, str, str] | None:
    dilations, auto = ints(node, "dilations"), auto_pad(node)
    if auto not in ("SAME_UPPER", "SAME_LOWER") or all(d == 1 for d in dilations):
        return None
    return -1, f"auto_pad {auto} and dilations {list(dilations)}", "pads instead of auto_pad, or dilations of 1"


def _large_pads(scope: Scope, node: Node) -> tuple[int, str, str] | None:
    kernel, pads = ints(node, "kernel_shape"), ints(node, "pads")
    if len(pads) != 2 * len(kernel) or all(p < k for p, k in zip(pads, kernel * 2, strict=True)):
        return None
    return -1, f"pads {list(pads)} and kernel_shape {list(kernel)}", "pads smaller than the kernel; use Pad for more"


def _mixed_types(scope: Scope, node: Node) -> tuple[int, str, str] | None:
    types = [scope.dtype(name) for name in node.inputs[:2]]
    if len(types) < 2 or None in types or types[0] == types[1]:
        return None
    return 1, f"x {types[0]} and y_scale {types[1]}", "x and y_scale of one type"


def _other_zero_point(scope: Scope, node: Node) -> tuple[int, str, str] | None:
    wanted = scope.dtype(node.inputs[1]) if len(node.inputs) > 1 else None
    for place in range(4, len(node.inputs), 3):
        found = scope.dtype(node.inputs[place])
        if wanted is not None and found is not None and found != wanted:
            names = [type_name(dtype) for dtype in (found, wanted)]
            return place, f"a zero point of {names[0]} and Y_zero_point {names[1]}", "zero points of one type"
    return None


_FIXED: Mapping[Judge, str] = {_mixed_types: "1.32"}
"""The first version of onnxruntime that accepts the form."""
_JUDGES: Mapping[tuple[str, str], tuple[Judge, ...]] = {
    ("", "ConvInteger"): (_one_value(3, "w_zero_point"), _same_and_dilations),
    ("", "MatMulInteger"): (_one_value(2, "a_zero_point"),),
    ("", "QLinearMatMul"): (_one_value(1, "a_scale"), _one_value(2, "a_zero_point")),
    ("", "QuantizeLinear"): (_mixed_types,),
    ("", "MaxPool"): (_large_pads,),
    ("", "AveragePool"): (_large_pads,),
    ("", "LpPool"): (_large_pads,),
    (MS, "QLinearAveragePool"): (_large_pads, _requires_input(2, "x_zero_point")),
    (MS, "QLinearAdd"): (_requires_input(2, "A_zero_point"), _requires_input(5, "B_zero_point")),
    (MS, "QLinearMul"): (_requires_input(2, "A_zero_point"), _requires_input(5, "B_zero_point")),
    (MS, "QLinearConcat"): (_other_zero_point,),
    (MS, "QLinearSigmoid"): (_requires_input(4, "Y_zero_point"),),
    (MS, "QLinearLeakyRelu"): (_requires_input(4, "Y_zero_point"),),
    **{conv: (_same_and_dilations,) for conv in CONVS if conv not in (("", "ConvInteger"), ("", "ConvTranspose"))},
}


_Types = tuple[np.dtype[Any] | None, ...]
_Bound = tuple[tuple[str, np.dtype[Any]], ...]
"""The element types of a node, by type variable."""
_HALF, _SINGLE = np.dtype(np.float16), np.dtype(np.float32)


def without_kernel(model: Model) -> dict[tuple[str, int, _Bound], list[tuple[Scope, Node]]]:
    """The nodes whose types no kernel supports, by operator, version and types."""
    missing: dict[tuple[str, int, _Bound], list[tuple[Scope, Node]]] = {}
    opset = model.opsets.get("", 0)
    if model.opsets.get(MS, 1) != 1:
        return missing
    served: set[Hashable] = set()
    for scope, node in nodes(model):
        given = tuple(map(scope.dtype, node.inputs)), tuple(map(scope.type_from_producer, node.outputs))
        typed = node.domain, node.op_type, node.version, given
        if typed in served:
            continue
        known = known_schema(node) if node.domain in DOMAINS else None
        bound = _variables(scope, node, known, *given) if known is not None else None
        if bound is None:
            continue
        if _has_kernel(node.domain, node.op_type, node.version, opset, bound):
            served.add(typed)
        else:
            missing.setdefault((node.op, node.version, bound), []).append((scope, node))
    return missing


def _variables(scope: Scope, node: Node, known: Schema, inputs: _Types, outputs: _Types) -> _Bound | None:
    """The known types of a node's type variables. inputs, outputs: the types of its tensors.

    None if they contradict the schema, the types that the file states, or the zero point of a reader: other rules
    report that.
    """
    found: dict[str, np.dtype[Any]] = {}
    if not scope.disputed.isdisjoint(node.outputs):
        return None
    places = [(known.inputs, *place) for place in zip(count(), node.inputs, inputs, strict=False)]
    places += [(known.outputs, *place) for place in zip(count(), node.outputs, outputs, strict=False)]
    for formals, place, name, dtype in places:
        if not formals or dtype is None:
            continue
        if not scope.read_as.get(name, frozenset()) <= {dtype}:
            return None
        formal = formals[min(place, len(formals) - 1)]
        if formal.types is None or not formal.homogeneous or formal.variable.startswith("tensor("):
            continue
        if dtype not in formal.types or found.setdefault(formal.variable, dtype) != dtype:
            return None
    return tuple(found.items())


@cache
def _has_kernel(domain: str, op_type: str, version: int, opset: int, bound: _Bound) -> bool:
    kernels = cpu_kernels(domain, op_type)
    if kernels is None:
        return domain != MS
    if kernels.functions.get(version, opset + 1) <= opset:
        return True
    single = {name: _SINGLE if dtype == _HALF else dtype for name, dtype in bound}
    return any(_fits(row, dict(bound)) or _fits(row, single) for row in kernels.of(version))


def _fits(row: Mapping[str, Types], bound: Mapping[str, np.dtype[Any]]) -> bool:
    return all(dtype in row[name] for name, dtype in bound.items() if name in row)


def there_are(node: Node) -> str:
    """Text: the combinations of types that have kernels."""
    kernels = cpu_kernels(node.domain, node.op_type)
    rows = list(kernels.of(node.version)) if kernels else []
    if not rows:
        return "another operator; it has no CPU kernel for this one"
    texts = [
        ", ".join(f"{name} {'/'.join(sorted(map(type_name, types)))}" for name, types in row.items()) for row in rows
    ]
    return "; or ".join(texts[:4]) + ("; ..." if len(texts) > 4 else "")
