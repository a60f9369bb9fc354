"""Groups of DequantizeLinear, an operator and QuantizeLinear: which of them do not become one integer operator, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from qrun.checking.rules._forms import misfit
from qrun.checking.rules._rule import Finding, rule
from qrun.checking.rules._scope import Scope, ints, known, names_read, nodes, scopes
from qrun.checking.rules._weights import dequantized, is_quantized, leads_to_quantize
from qrun.checking.rules._words import listed
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node, once_per_model
from qrun.passes import optimize

FORMS = ("Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators that have an integer form, in qrun and in onnxruntime."""
_HOPS = 4
_Refused = tuple[tuple[Scope, Node, str], ...]
_TOLD = (
    "the product of the operands' scales",
    "or one scale per row",
    ", not 0",
    ", not 1",
    "may not fit int32",
    "is uint16",
    "is int16",
    "spatial axes",
    "is not known",
    "a positive finite number",
    "nobody reads",
    "refuses its parameters",
    "wholly in the padding",
)
"""Of reasons that QR304, QR306, QR317, QR406 or QR603 report, or that are about what qrun does not know."""
_UNQUANTIZED = ("its result goes to ", "its result is not quantized")


@rule(
    "QR601",
    "warning",
    spec="ort-quantization",
    fix="put DequantizeLinear before every input, and QuantizeLinear, read by nobody else, behind the result",
    applies=FORMS,
)
def group_in_float(model: Model) -> Iterator[Finding]:
    """An operator among quantized tensors stays in float although it has an integer form; the reason is given.

    Looked at are operators of the main graph with a dequantized input whose result is quantized, at once or some nodes
    later. Results that leave the graph in float, and float inputs with float results (weight-only quantization), pass.

    Why is this bad?
        The model pays for quantizing and gets no integer operator: it is slower than in float, and other runtimes, which
        may have another rule, compute something else. ONNX says nowhere what a group is; these are qrun's reasons, and
        onnxruntime 1.31.1 has the same, except that it quantizes stored float weights itself.

    Bad
        main (uint8[1,4] a, float[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            c = Add(af, b)
            y = QuantizeLinear(c, s, z)
        }

    Good
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }
    """
    for scope, node, reason in refused(model):
        if node.op_type in FORMS and not node.domain and _is_group(scope, node, reason):
            yield Finding(
                f"{node.op_type} runs in float: {reason}",
                **scope.at(node, f"{node.outputs[0]} (output 0)"),
                expected=f"DequantizeLinear, {node.op_type}, QuantizeLinear of 8-bit tensors",
                got=reason,
                why=_why_float(scope.model, node, reason),
                cause=f"QR601 {node.op} {reason}",
            )


def _why_float(model: Model, node: Node, reason: str) -> str:
    stored = [name for name in node.inputs[1:] if name in model.constants and model.constants[name].dtype.kind == "f"]
    if stored and node.op_type in ("Conv", "Gemm", "MatMul") and "dequantized" in reason:
        itself = f"onnxruntime 1.31.1 may quantize {stored[0]} itself"
        return f"{itself}, and then computes something else than the model says."
    return f"{node.op}-{node.version} is float; only a whole group becomes an integer operator."


def _is_group(scope: Scope, node: Node, reason: str) -> bool:
    model = scope.model
    if any(misfit(scope, made) for made in map(model.producers.get, node.inputs) if made is not None):
        return False
    if any(part in reason for part in _TOLD) or "no integer form" in reason or not dequantized_inputs(model, node):
        return False
    if reason.startswith(_UNQUANTIZED):
        return leads_to_quantize(model, node.outputs, None, _HOPS)
    return is_quantized(model, node)


@rule(
    "QR602",
    "note",
    spec="ort-quantization",
    fix="leave it out of quantization, unless the target is known to have it in integers",
)
def no_integer_form(model: Model) -> Iterator[Finding]:
    """An operator between DequantizeLinear and QuantizeLinear is always computed in float.

    Why is this bad?
        The result is right. But the two nodes around the operator cost time and a rounding each, and gain nothing.

    Bad
        main (uint8[1,4] a) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            c = LogSoftmax(af)
            y = QuantizeLinear(c, s, z)
        }

    Good
        main (uint8[1,4] a) => (float[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            y = LogSoftmax(af)
        }
    """
    for scope, node, reason in refused(model):
        graph = scope.model
        if node.op_type in FORMS or not dequantized_inputs(graph, node) or not is_quantized(graph, node):
            continue
        if reason.startswith("its result is not quantized"):
            reason = f"{node.op_type} of several tensors has no integer form"
        yield Finding(
            f"{node.op_type} runs in float between its quantized tensors",
            **scope.at(node, f"{node.outputs[0]} (output 0)"),
            expected="an operator with an integer form, or float tensors",
            got=reason,
            why=f"{node.op}-{node.version} between DequantizeLinear and QuantizeLinear has no integer form in qrun.",
            cause=f"QR602 {node.op} {reason}",
        )


@rule(
    "QR603",
    "warning",
    spec="ort-quantization",
    fix="use 8-bit activations for CPUs; 16 bits are for accelerators that have them",
    applies=FORMS,
)
def sixteen_bit(model: Model) -> Iterator[Finding]:
    """A group of operators on 16-bit tensors, which CPU runtimes run in float. One finding for each such tensor.

    Why is this bad?
        onnxruntime 1.31.1 makes no integer operator of such a group on its CPU provider, and neither does qrun: the model is
        computed in float with roundings in between. The result is right, the speed is that of float or less.

    Bad
        <ir_version: 10, opset_import: ["" : 21]>
        main (uint16[1,4] a, uint16[1,4] b) => (uint16[1,4] y)
        <float s = {0.5}, uint16 z = {32768}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }

    Good
        <ir_version: 10, opset_import: ["" : 21]>
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
        }
    """
    told: set[str] = set()
    for scope, node, reason in refused(model):
        wide = reason.endswith((" is uint16", " is int16"))
        if wide and node.op_type in FORMS and not node.domain and dequantized_inputs(scope.model, node):
            met = _sixteen_bit(scope, node)
            if met and met <= told:
                continue
            told |= met
            yield Finding(
                f"{node.op_type} runs in float: {reason}",
                **scope.at(node, f"{node.outputs[0]} (output 0)"),
                expected="int8 or uint8 tensors, for integer operators on a CPU",
                got=reason,
                why=f"{node.op}-{node.version} has integer forms for 8 bits only.",
                cause=f"QR603 {reason.rpartition(' ')[2]}",
            )


def _sixteen_bit(scope: Scope, node: Node) -> set[str]:
    """The 16-bit tensors that the node reads behind DequantizeLinear, or makes before QuantizeLinear."""
    model, types = scope.model, scope.dtypes
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    readers = [reader for name in node.outputs for reader in model.consumers.get(name, ())]
    names = {m.inputs[0] for m in made if m.op_type == "DequantizeLinear" and m.inputs}
    names |= {r.outputs[0] for r in readers if r.op_type == "QuantizeLinear" and r.outputs}
    return {name for name in names if name in types and types[name].itemsize == 2}


@rule(
    "QR604",
    "note",
    spec="ort-quantization",
    fix="give every reader a DequantizeLinear of its own (DedicatedQDQPair=True in onnxruntime's quantizer)",
    applies=("DequantizeLinear",),
)
def shared_dequantize(model: Model) -> Iterator[Finding]:
    """One DequantizeLinear is read by several nodes. One finding per graph.

    Why is this bad?
        qrun and onnxruntime 1.31.1 give each reader its own, so nothing is lost with them. Compilers that look for a group of
        nodes whose inner tensors have one reader find none here and run the readers in float.

    Bad
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y, uint8[1,4] v)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
            d = Mul(af, af)
            v = QuantizeLinear(d, s, z)
        }

    Good
        main (uint8[1,4] a, uint8[1,4] b) => (uint8[1,4] y, uint8[1,4] v)
        <float s = {0.5}, uint8 z = {128}>
        {
            af = DequantizeLinear(a, s, z)
            bf = DequantizeLinear(b, s, z)
            c = Add(af, bf)
            y = QuantizeLinear(c, s, z)
            ag = DequantizeLinear(a, s, z)
            d = Mul(ag, ag)
            v = QuantizeLinear(d, s, z)
        }
    """
    for scope in scopes(model):
        readers = scope.model.consumers
        made = [node for node in scope.model.nodes if node.op_type == "DequantizeLinear" and node.outputs]
        found = [node for node in made if len(readers.get(node.outputs[0], ())) > 1]
        if found:
            first, labels, also = found[0], [node.label for node in found], f"; {len(found)} such nodes"
            names = [node.label for node in readers[first.outputs[0]]]
            yield Finding(
                f"{len(found)} DequantizeLinear with several readers: {listed(labels)}",
                **scope.at(first, f"{first.outputs[0]}, read by {listed(names)}"),
                expected="one reader of each DequantizeLinear",
                got=f"{len(names)} readers of {first.outputs[0]}{also if len(found) > 1 else ''}",
                why="legal ONNX, but some compilers only fuse a group whose inner tensors have one reader.",
            )


_POOLS = ("AveragePool", "GlobalAveragePool")


@rule(
    "QR605",
    "note",
    spec="QuantizeLinear",
    fix="nothing; when outputs are compared between runtimes, allow a difference of 1 here",
    applies=_POOLS,
)
def fused_differs(model: Model) -> Iterator[Finding]:
    """An average pool whose exact results often lie halfway between two codes.

    x_scale / (elements * y_scale) times a whole number is then a whole number and a half for many sums, as with equal
    scales and windows of 4 elements.

    Why is this bad?
        The model is not wrong. But run as written, the average and the quotient are rounded to float32 before the tie is
        rounded; fused to one integer operator they are not, and onnxruntime's integer operator adds the zero point
        before it rounds. So runtimes, and optimization levels of one runtime, differ by 1 in many elements.

    Bad
        main (uint8[1,1,4,4] x) => (uint8[1,1,2,2] y)
        <float s = {0.3}, uint8 z = {127}>
        {
            xf = DequantizeLinear(x, s, z)
            p = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(xf)
            y = QuantizeLinear(p, s, z)
        }

    Good
        main (uint8[1,1,3,3] x) => (uint8[1,1,1,1] y)
        <float s = {0.3}, uint8 z = {127}>
        {
            xf = DequantizeLinear(x, s, z)
            p = AveragePool<kernel_shape = [3, 3]>(xf)
            y = QuantizeLinear(p, s, z)
        }
    """
    for scope, node in nodes(model, (("", name) for name in _POOLS)):
        if node.inputs and is_quantized(scope.model, node):
            yield from _ties(scope, node)


def _ties(scope: Scope, node: Node) -> Iterator[Finding]:
    x, count, y_scale = dequantized(scope, node.inputs[0]), _elements(scope, node), _result_scale(scope, node)
    if x is None or x.scale is None or x.scale.size != 1 or not count or y_scale is None:
        return
    x_scale = float(x.scale.reshape(-1)[0])
    if not (0 < x_scale < float("inf") and 0 < y_scale < float("inf")):
        return
    from fractions import Fraction

    step = Fraction(x_scale) / (count * Fraction(y_scale))
    if step.denominator % 2 == 0 and step.denominator <= 4 * count:
        yield Finding(
            f"averages of {count} elements are ties in about 1 of {step.denominator} cases",
            **scope.at(node, f"{node.outputs[0]} (output 0)"),
            expected="scales for which averages are no ties",
            got=f"steps of {step} of a code: x_scale {x_scale:.6g}, y_scale {y_scale:.6g}, {count} elements",
            why=f"{node.op}-{node.version} in float rounds the average before QuantizeLinear rounds the tie.",
        )


def _elements(scope: Scope, node: Node) -> int:
    """How many elements are averaged, or 0 if that is not known."""
    if node.op_type == "GlobalAveragePool":
        shape = known(scope.shape(node.inputs[0]))
        return prod(shape[2:]) if shape and len(shape) > 2 else 0
    kernel = ints(node, "kernel_shape")
    return prod(kernel) if kernel and min(kernel) > 0 else 0


def _result_scale(scope: Scope, node: Node) -> float | None:
    readers = scope.model.consumers.get(node.outputs[0], ()) if node.outputs else ()
    found = next((r for r in readers if r.op_type == "QuantizeLinear" and len(r.inputs) > 1), None)
    scale = scope.value(found.inputs[1]) if found else None
    return float(scale.reshape(-1)[0]) if scale is not None and scale.size == 1 and scale.dtype.kind in "fV" else None


@once_per_model
def refused(model: Model) -> _Refused:
    """Nodes that read or make quantized tensors, but stay in float, each with its graph and the reason.

    The graph of a subgraph holds those constants of the graphs around it that it reads as its own.
    """
    return tuple(entry for scope in scopes(model) for entry in _refused(scope))


def _refused(scope: Scope) -> Iterator[tuple[Scope, Node, str]]:
    graph = scope.model
    if not {"DequantizeLinear", "QuantizeLinear"} <= {node.op_type for node in graph.nodes}:
        return
    if scope.outer is not None:
        graph = replace(graph, constants={**_around(scope.outer, names_read(graph)), **graph.constants})
    try:
        done = optimize(graph, frozenset(), "exact").refused
    except (QrunError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):
        return  # a model that contradicts itself; other rules say where
    inside = scope if graph is scope.model else replace(scope, model=graph)
    for refusal in done:
        if refusal.index < len(graph.nodes):
            yield inside, graph.nodes[refusal.index], refusal.reason


def _around(scope: Scope, names: set[str]) -> dict[str, Array]:
    """Those of the names that are constants for a graph inside this one."""
    found = _around(scope.outer, names) if scope.outer else {}
    return found | {name: scope.model.constants[name] for name in names if name in scope.model.constants}


def dequantized_inputs(model: Model, node: Node) -> int:
    """How many inputs come from DequantizeLinear of a tensor that is not stored."""
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    return sum(m.op_type == "DequantizeLinear" and bool(m.inputs) and m.inputs[0] not in model.constants for m in made)
