"""QR119 newer-than-runtime."""

from __future__ import annotations

from collections.abc import Iterator

from qrun.checking.rules._ort import NEWEST_IR, NEWEST_OPSET, runtime
from qrun.checking.rules._rule import Finding, rule
from qrun.ir import Model

PUBLISHED_IR = 14


@rule(
    "QR119",
    "newer-than-runtime",
    level="warning",
    since="0.1",
    spec="https://onnxruntime.ai/docs/reference/compatibility.html",
    fix="onnx.version_converter.convert_version to an older opset, or write the model for it",
)
def newer_than_runtime(model: Model) -> Iterator[Finding]:
    """The opset or the IR version is newer than onnxruntime 1.31.1 reads: ai.onnx 26, IR version 13.

    Why is this bad?
        The model is valid, but onnxruntime refuses to load it ("official support for domain ai.onnx is till opset 26",
        "Unsupported model IR version").

    Bad
        <ir_version: 13, opset_import: ["" : 27]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }

    Good
        <ir_version: 13, opset_import: ["" : 26]>
        main (float[2] x) => (float[2] y)
        {
            y = Relu(x)
        }
    """
    opset = model.opsets.get("", 0)
    found = [f"opset {opset}"] if opset > NEWEST_OPSET else []
    if NEWEST_IR < model.ir_version <= PUBLISHED_IR:
        found.append(f"IR version {model.ir_version}")
    if found:
        yield Finding(
            f"{runtime()} does not read {' and '.join(found)}",
            expected=f"opset {NEWEST_OPSET} and IR version {NEWEST_IR} at most",
            got=f"opset {opset}, IR version {model.ir_version}",
            why=f"{runtime()} reads ai.onnx up to {NEWEST_OPSET} and IR versions up to {NEWEST_IR}.",
        )
