"""Rules on a file's IR version, its operator sets, and initializers that are or are not graph inputs."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import PUBLISHED_IR, runtime
from qrun.checking.rules._rule import Finding, join_names, rule, several
from qrun.checking.rules._scope import nodes
from qrun.ir import Model
from qrun.ir.schema import ASSUMED, MS, NAMELESS, QONNX

OPSETS_SINCE = 3
"""The IR version that introduced opset_import."""


@rule(
    "QR110",
    "error",
    spec="IR",
    fix="set model.ir_version to the version of the opset: onnx.helper.find_min_ir_version_for(model.opset_import)",
)
def ir_version(model: Model) -> Iterator[Finding]:
    """The file has no IR version, a version older than operator sets, or one that was never published.

    Why is this bad?
        The IR version says how to read the file. onnx.checker refuses such a model; onnxruntime refuses a version that
        is too new, and reads a file without one.

    Bad
        <ir_version: 99, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    got = model.ir_version
    if OPSETS_SINCE <= got <= PUBLISHED_IR:
        return
    yield Finding(
        f"ir_version is {got}" if got else "the file states no ir_version",
        expected=f"{OPSETS_SINCE} to {PUBLISHED_IR}",
        got=str(got) if got else "nothing, or 0",
        why="ONNX IR: ir_version must be present; opset_import came with version 3."
        if got < OPSETS_SINCE
        else f"onnx.proto knows versions up to {PUBLISHED_IR}.",
    )


RELAXED_IR = 4
"""The IR version that first allows initializers that are not graph inputs."""


@rule("QR112", "error", spec="IR", fix="set model.ir_version to 4 or more")
def initializer_not_input(model: Model) -> Iterator[Finding]:
    """The IR version is below 4, but an initializer is not listed among the graph inputs.

    Why is this bad?
        Up to IR version 3, an initializer is the default value of a graph input. onnx.checker refuses the model;
        onnxruntime reads it.

    Bad
        <ir_version: 3, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }

    Good
        <ir_version: 4, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y)
        <float[2] w = {1.0, 2.0}>
        {
            y = Add(x, w)
        }
    """
    if not 0 < model.ir_version < RELAXED_IR:
        return
    inputs = {v.name for v in model.defaults}
    missing = [name for name in model.constants if name not in inputs]
    if missing:
        yield Finding(
            f"{len(missing)} initializer{'s are not graph inputs' if len(missing) > 1 else ' is not a graph input'}: {join_names(missing)}",
            tensor=join_names(missing),
            expected=f"every initializer among the graph inputs, or IR version {RELAXED_IR} or later",
            got=f"IR version {model.ir_version}",
            why="IR version 4 relaxed the rule that initializers are a subset of the graph inputs.",
        )


@rule(
    "QR115",
    "warning",
    spec="IR",
    fix="remove the initializers from graph.input: onnxruntime has tools/python/remove_initializer_from_input.py",
)
def overridable_initializer(model: Model) -> Iterator[Finding]:
    """A scale, zero point or weight that nodes read is also a graph input, so a caller may replace it.

    Up to IR version 3 initializers had to be graph inputs; such files are not reported.

    Why is this bad?
        A tensor that callers may replace is not constant: onnxruntime neither folds nor packs it ("appears in graph
        inputs and will not be treated as constant value/weight") and does not fuse quantized groups whose scales it
        does not know. qrun treats it as constant until a run feeds another value.

    Bad
        main (float[2] x, float scale = {0.5}) => (uint8[2] y)
        <uint8 zero = {128}>
        {
            y = QuantizeLinear(x, scale, zero)
        }

    Good
        main (float[2] x) => (uint8[2] y)
        <float scale = {0.5}, uint8 zero = {128}>
        {
            y = QuantizeLinear(x, scale, zero)
        }
    """
    if model.ir_version < RELAXED_IR:
        return
    names = [v.name for v in model.defaults if v.name in model.consumers]
    if names:
        yield Finding(
            f"{len(names)} initializer{'s are graph inputs' if len(names) > 1 else ' is a graph input'} too: {join_names(names)}",
            tensor=join_names(names),
            expected="initializers that are not graph inputs",
            got=f"{len(names)} of {len(model.constants)} can be replaced by the caller",
            why="ONNX IR: an initializer with the name of a graph input is its default value, not a constant.",
        )


@rule("QR118", "error", spec="com.microsoft", fix="import com.microsoft with version 1")
def opset_version(model: Model) -> Iterator[Finding]:
    """The model imports a version of an operator set that does not exist,
    has nodes of com.microsoft or QONNX without importing the domain, or has QONNX nodes without a domain.

    com.microsoft has version 1 only, and the versions of every domain start at 1. QR106 reports ai.onnx versions that
    qrun does not read, QR105 other domains that are not imported.

    Why is this bad?
        onnxruntime refuses the model, even if no node uses the domain; onnx.checker accepts it. Without an import of
        com.microsoft it is the other way round: onnxruntime takes version 1, as qrun does, and onnx.checker refuses the
        model. onnxruntime's quantizer writes such files where all nodes of com.microsoft are inside If, Loop or Scan.
        The tools of QONNX (qonnx.custom_op.general, formerly onnx.brevitas and finn.custom_op.general) take version 1
        as well. Files that Brevitas wrote in 2021 have QONNX's Quant without a domain: no other runtime runs these.

    Bad
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 13]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13, "com.microsoft" : 1]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    nameless = [(scope, node) for scope, node in nodes(model, [("", name) for name in NAMELESS])]
    for scope, node in nameless[:1]:
        yield Finding(
            f"{node.op_type} has no domain; qrun treats it as QONNX's ({several(len(nameless), 'node')})",
            **scope.at(node),
            expected=f"domain {QONNX}",
            got="no domain, which means ai.onnx",
            why=f"ai.onnx has no operator {node.op_type}; Brevitas wrote such files in 2021.",
            fix=f"set the nodes' domain to {QONNX}, and import it with version 1",
        )
    missing = ASSUMED.keys() - model.opsets
    for scope, node in {n.domain: (s, n) for s, n in reversed([*nodes(model)]) if n.domain in missing}.values():
        yield Finding(
            f"{node.domain} is not imported",
            **scope.at(node),
            expected=f"an opset_import entry of {node.domain}, version {ASSUMED[node.domain]}",
            got=join_names([f"{domain or 'ai.onnx'} {version}" for domain, version in model.opsets.items()]),
            why="ONNX IR: every node's domain needs an opset_import entry.",
            fix=f"import {node.domain} with version {ASSUMED[node.domain]}",
        )
    for domain, version in model.opsets.items():
        if domain and (version < 1 or (domain == MS and version != 1)):
            yield Finding(
                f"{domain} is imported with version {version}",
                expected="1" if domain == MS else "1 or more",
                got=str(version),
                why=f"{runtime()} defines {MS} 1."
                if domain == MS
                else "ONNX IR: versions of operator sets begin at 1.",
                fix="" if domain == MS else f"import {domain} with the version that its nodes were written for",
            )
