"""QR404 non-finite-output."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.checking.rules._rule import Finding, at, rule
from qrun.ir import Array, Model
from qrun.ir.types import ONNX_NAMES, describe
from qrun.running.session import RunResult


@rule(
    "QR404",
    "non-finite-output",
    level="warning",
    since="0.1",
    spec="https://onnx.ai/onnx/repo-docs/IR.html",
    fix="qrun run MODEL -t '*' lists where NaN or infinity first appears",
)
def non_finite_output(model: Model, result: RunResult) -> Iterator[Finding]:
    """A float output of the graph holds NaN or infinity.

    Why is this bad?
        Comparisons and argmax on NaN give no usable answer. The cause is mostly a division by zero, an overflow of
        float16, or NaN in the inputs.

    Bad
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (float[2] y)
        <float[2] x = {1.0, inf}>
        {
            y = Relu(x)
        }

    Good
        <ir_version: 8, opset_import: ["" : 13]>
        main () => (float[2] y)
        <float[2] x = {1.0, 2.0}>
        {
            y = Relu(x)
        }
    """
    for name, array in result.outputs.items():
        real = _floats(array)
        if real is None:
            continue
        nan, bad = np.isnan(real), ~np.isfinite(real)
        if not bad.any():
            continue
        kinds = [f"{int(nan.sum())} NaN"] if nan.any() else []
        kinds += [f"{int(bad.sum() - nan.sum())} infinite"] if bad.sum() > nan.sum() else []
        first = f" first at [{','.join(str(i) for i in np.argwhere(bad)[0])}]" if bad.ndim else ""
        text = f"{' and '.join(kinds)} of {bad.size} elements"
        producer = model.producers.get(name)
        yield Finding(
            f"output {name} has {text}",
            **(at(producer) if producer else {}),
            tensor=f"{name} (graph output, {describe(array)})",
            expected="finite numbers",
            got=f"{text},{first}" if first else text,
        )


def _floats(array: Array) -> Array | None:
    """The array as float32 or float64, or None if its type has no NaN or infinity."""
    if array.dtype.kind == "f":
        return array
    if array.dtype.kind == "V" and ONNX_NAMES.get(array.dtype, "").startswith(("bfloat", "float")):
        return array.astype(np.float32)
    return None
