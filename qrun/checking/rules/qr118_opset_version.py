"""QR118 opset-version."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import runtime
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model
from qrun.ir.schema import MS


@rule(
    "QR118",
    "opset-version",
    level="error",
    since="0.1",
    spec="https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md",
    fix="import com.microsoft with version 1",
)
def opset_version(model: Model) -> Iterator[Finding]:
    """The model imports a version of an operator set that does not exist.

    com.microsoft has version 1 only; versions of every domain begin at 1. ai.onnx versions that qrun does not read are
    QR106.

    Why is this bad?
        onnxruntime refuses the model, even if no node uses the domain; onnx.checker accepts it.

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
