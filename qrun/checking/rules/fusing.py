"""Rules on groups of DequantizeLinear, an operator and QuantizeLinear that do not become one integer operator, in qrun
or in onnxruntime on x86 CPUs, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from qrun.checking.rules._forms import misfit
from qrun.checking.rules._rule import Finding, join_names, rule, several
from qrun.checking.rules._scope import Scope, names_read, scopes
from qrun.checking.rules._weights import is_quantized, leads_to_quantize
from qrun.errors import QrunError
from qrun.ir import Array, Model, Node, once_per_model
from qrun.passes import optimize

if TYPE_CHECKING:
    from qrun.checking.targets import Integers, Judged, TargetRule


FORMS = ("Conv", "MatMul", "Gemm", "Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "MaxPool")
"""Operators with an integer form, in qrun and in onnxruntime."""
_HOPS = 4
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
    "no node reads",
    "refuses its parameters",
    "wholly in the padding",
)
"""Parts of reasons that QR304, QR306, QR317, QR406 or QR603 report, or that concern what qrun does not know."""
_UINT8 = (
    "quantize activations to uint8 for onnxruntime on x86 CPUs; for a compiler that needs single readers, give every "
    "reader a separate DequantizeLinear after the same QuantizeLinear"
)
_UNQUANTIZED = ("its result goes to ", "its result is not quantized")


@rule(
    "QR601",
    "warning",
    spec="ort-quantization",
    fix="put DequantizeLinear before every input, and one QuantizeLinear after it as the only reader of the result",
    applies=FORMS,
)
def group_in_float(model: Model) -> Iterator[Finding]:
    """An operator among quantized tensors stays in float although it has an integer form. The message says why.

    The rule looks at operators of the main graph with a dequantized input whose result is quantized, directly or some
    nodes later. It accepts results that leave the graph in float, and float inputs with float results (weight-only
    quantization).

    Why is this bad?
        The model pays for quantizing and gets no integer operator: it is slower than in float, and other runtimes may
        compute something else. ONNX does not define what a group is; these are qrun's reasons. onnxruntime 1.32.0
        applies the same criteria, except that it quantizes stored float weights itself. It also keeps some whole groups
        in float, such as groups with int8 tensors that several nodes read: QR606 reports these.

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
    for scope, node, reason in unfused_nodes(model):
        if node.op_type in FORMS and not node.domain and _is_group(scope, node, reason):
            yield Finding(
                f"{node.op_type} runs in float: {reason}",
                **scope.at(node, f"{node.outputs[0]} (output 0)"),
                expected=f"DequantizeLinear, {node.op_type}, QuantizeLinear of 8-bit tensors",
                got=reason,
                why=_why_float(scope.model, node, reason),
                cause=f"QR601 {node.op} {reason}",
                fix="quantize the float32 model, so that scales are float32" if reason.endswith("float16") else "",
            )


def _why_float(model: Model, node: Node, reason: str) -> str:
    stored = [name for name in node.inputs[1:] if name in model.constants and model.constants[name].dtype.kind == "f"]
    if stored and node.op_type in ("Conv", "Gemm", "MatMul") and "dequantized" in reason:
        itself = f"onnxruntime 1.32.0 may quantize {stored[0]} itself"
        return f"{itself}, and then computes something that the model does not state."
    return f"{node.op}-{node.version} is float; only a whole group becomes an integer operator."


def _is_group(scope: Scope, node: Node, reason: str) -> bool:
    model = scope.model
    if any(misfit(scope, made) for made in map(model.producers.get, node.inputs) if made is not None):
        return False
    if any(part in reason for part in _TOLD) or "no integer form" in reason or not count_dequantized(model, node):
        return False
    if reason.startswith(_UNQUANTIZED):
        return leads_to_quantize(model, node.outputs, None, _HOPS)
    return is_quantized(model, node)


@rule(
    "QR602",
    "note",
    spec="ort-quantization",
    fix="do not quantize this operator, unless the target has an integer form of it",
)
def no_integer_form(model: Model) -> Iterator[Finding]:
    """An operator between DequantizeLinear and QuantizeLinear is always computed in float.

    Why is this bad?
        The result is right. But the two nodes around the operator cost time and add a rounding each, without any gain.

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
    for scope, node, reason in unfused_nodes(model):
        graph = scope.model
        if node.op_type in FORMS or not count_dequantized(graph, node) or not is_quantized(graph, node):
            continue
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
    """A group of operators works on 16-bit tensors, so CPU runtimes run it in float. One finding for each such tensor.

    Why is this bad?
        onnxruntime 1.32.0 does not turn such a group into an integer operator on its CPU provider, and neither does
        qrun: the model is computed in float with roundings in between. The result is correct,
        but the model runs no faster than in float.

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
    for scope, node, reason in unfused_nodes(model):
        wide = reason.endswith((" is uint16", " is int16"))
        if wide and node.op_type in FORMS and not node.domain and count_dequantized(scope.model, node):
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
    fix="for such a compiler, give every reader a separate DequantizeLinear after the same QuantizeLinear",
    applies=("DequantizeLinear",),
)
def shared_dequantize(model: Model) -> Iterator[Finding]:
    """Several nodes read one DequantizeLinear. One finding per graph.

    Why is this bad?
        Some compilers fuse a group only if each of its inner tensors has a single reader. They find no group here, and
        run the readers in float. qrun and onnxruntime 1.32.0 give each reader a separate DequantizeLinear, so uint8
        tensors lose nothing. int8 tensors do on x86 CPUs: if several nodes read one, onnxruntime keeps the nodes around
        it in float (QR606), with one DequantizeLinear or several. DedicatedQDQPair=True of onnxruntime's quantizer does
        not help, because onnxruntime merges the equal QuantizeLinear nodes that it writes.

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
            signed = any(scope.dtype(node.inputs[0]) == np.int8 for node in found if node.inputs)
            yield Finding(
                f"{len(found)} DequantizeLinear with several readers: {join_names(labels)}",
                **scope.at(first, f"{first.outputs[0]}, read by {join_names(names)}"),
                expected="one reader of each DequantizeLinear",
                got=f"{len(names)} readers of {first.outputs[0]}{also if len(found) > 1 else ''}",
                why="legal ONNX, but some compilers only fuse a group whose inner tensors have one reader.",
                fix=_UINT8 if signed else "",
            )


_Refused = tuple[tuple[Scope, Node, str], ...]


@once_per_model
def unfused_nodes(model: Model) -> _Refused:
    """The nodes that read or make quantized tensors but stay in float, each with its graph and the reason.

    The scope of a subgraph has a graph that includes the constants of outer graphs that it reads.
    """
    return tuple(entry for scope in scopes(model) for entry in _unfused_in(scope))


def _unfused_in(scope: Scope) -> Iterator[tuple[Scope, Node, str]]:
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
    """The constants among `names` that a graph inside this one sees, by name."""
    found = _around(scope.outer, names) if scope.outer else {}
    return found | {name: scope.model.constants[name] for name in names if name in scope.model.constants}


def count_dequantized(model: Model, node: Node) -> int:
    """The number of inputs that come from a DequantizeLinear of a tensor that is not stored."""
    made = [model.producers[name] for name in node.inputs if name in model.producers]
    return sum(m.op_type == "DequantizeLinear" and bool(m.inputs) and m.inputs[0] not in model.constants for m in made)


_PRODUCTS = ("Conv", "MatMul", "Gemm")
_SHARE = 0.1
"""The share of a model's products that must be in float for a warning."""


@rule(
    "QR606",
    "warning",
    spec="ort-quantization",
    fix="quantize activations to uint8: quantize_static(.., activation_type=QuantType.QUInt8)",
    applies=("Conv", "MatMul", "Gemm"),
)
def float_in_onnxruntime(model: Model) -> Iterator[Finding]:
    """onnxruntime 1.32.0 computes a tenth or more of a model's Conv, MatMul and Gemm in float on x86 CPUs, although
    each is part of a complete group. One finding for each cause.

    The usual cause is int8 activations. On x86 onnxruntime multiplies uint8 activations only. It converts an int8
    tensor to uint8 only if a single node reads it. A tensor that several nodes read (SiLU, residual connections) stays
    int8; then its producer and its readers stay in float. quantize_static writes int8 activations by default.
    session.qdqisint8allowed=1 makes onnxruntime multiply int8.

    Why is this bad?
        The results are right, but no warning says that the model runs in float, with the rounding of a quantized one.
        Measure before and after: a model that runs entirely in integers is not always faster.

    Bad
        main (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float s = {0.1}, int8 z = {0}, float gs = {0.0039}, int8 gz = {-128}, int8[1,1,1,1] w = {1}, int8 wz = {0}>
        {
            xq = QuantizeLinear(x, s, z)
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, wz)
            c = Conv(xd, wd)
            cq = QuantizeLinear(c, s, z)
            cd = DequantizeLinear(cq, s, z)
            g = Sigmoid(cd)
            gq = QuantizeLinear(g, gs, gz)
            gd = DequantizeLinear(gq, gs, gz)
            ce = DequantizeLinear(cq, s, z)
            m = Mul(ce, gd)
            mq = QuantizeLinear(m, s, z)
            y = DequantizeLinear(mq, s, z)
        }

    Good
        main (float[1,1,4,4] x) => (float[1,1,4,4] y)
        <float s = {0.1}, uint8 z = {128}, float gs = {0.0039}, uint8 gz = {0}, int8[1,1,1,1] w = {1}, int8 wz = {0}>
        {
            xq = QuantizeLinear(x, s, z)
            xd = DequantizeLinear(xq, s, z)
            wd = DequantizeLinear(w, s, wz)
            c = Conv(xd, wd)
            cq = QuantizeLinear(c, s, z)
            cd = DequantizeLinear(cq, s, z)
            g = Sigmoid(cd)
            gq = QuantizeLinear(g, gs, gz)
            gd = DequantizeLinear(gq, gs, gz)
            ce = DequantizeLinear(cq, s, z)
            m = Mul(ce, gd)
            mq = QuantizeLinear(m, s, z)
            y = DequantizeLinear(mq, s, z)
        }
    """
    yield from (finding for share, finding in _findings_by_share(model) if share >= _SHARE)


@rule("QR607", "note", spec="ort-quantization", fix="rewrite the group so that onnxruntime can run it on integers")
def partly_float_in_onnxruntime(model: Model) -> Iterator[Finding]:
    """onnxruntime 1.32.0 computes some complete groups in float on x86 CPUs: less than a tenth of the Conv, MatMul and
    Gemm nodes. One finding for each cause; QR606 explains more.

    Why is this bad?
        The results are right. Values are dequantized before each of these nodes and quantized again after it.

    Bad
        main (uint8[2,3] x) => (uint8[3,2] y)
        <float s = {0.1}, uint8 z = {128}, uint8 higher = {129}>
        {
            xd = DequantizeLinear(x, s, z)
            r = Transpose(xd)
            y = QuantizeLinear(r, s, higher)
        }

    Good
        main (uint8[2,3] x) => (uint8[3,2] y)
        <float s = {0.1}, uint8 z = {128}>
        {
            xd = DequantizeLinear(x, s, z)
            r = Transpose(xd)
            y = QuantizeLinear(r, s, z)
        }
    """
    yield from (finding for share, finding in _findings_by_share(model) if share < _SHARE)


@once_per_model
def _findings_by_share(model: Model) -> Sequence[tuple[float, Finding]]:
    """For each cause, the share of the model's products that it keeps in float, and its finding."""
    from qrun.checking.targets import integers

    found = integers(model)
    if found is None:
        return ()
    own = {(scope.path, node.index) for scope, node, _ in unfused_nodes(model)}
    products = sum(judged.node.op_type in _PRODUCTS for judged in found.judged) or 1
    made = []
    for cause in found.causes:
        nodes = [j for j in cause.judged if (j.scope.path, j.node.index) not in own]
        if nodes and not cause.rule.chosen and cause.rule.otherwise == "float":
            kinds = Counter(j.node.op_type for j in nodes)
            made.append((sum(kinds[op] for op in _PRODUCTS) / products, _finding(found, cause.rule, nodes, kinds)))
    return made


def _finding(found: Integers, cause: TargetRule, nodes: Sequence[Judged], kinds: Counter[str]) -> Finding:
    first = next((j for j in nodes if j.node.op_type in _PRODUCTS), nodes[0])
    op_type = first.node.op_type
    others = len(nodes) - kinds[op_type]
    also = f" and {several(others, 'other node')}" if others else ""
    return Finding(
        f"{found.runtime} computes {kinds[op_type]} of {found.count(op_type)} {op_type}{also} in float on {found.on}: "
        f"{cause.cause}",
        **first.scope.at(first.node, f"{first.node.outputs[0]} (output 0)"),
        expected="complete groups of DequantizeLinear, operator and QuantizeLinear in integers",
        got=f"in integers: {found}",
        why=f"{cause.why or 'it turns only some groups into integer operators'}.",
        fix=f"{cause.fix}; measure both: integers are not always faster",
    )
