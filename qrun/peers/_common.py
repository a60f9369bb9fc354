"""What the runtimes share: the file's ModelProto, names, and errors in the runtime's own words."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from qrun.errors import QrunError, UnsupportedError
from qrun.ir import Array, Model
from qrun.ir.load import parse, read_file
from qrun.plan import plan

Runner = Callable[[Mapping[str, Array]], Sequence[Any]]


def proto_of(model: Model, data: bytes | None, outputs: Sequence[str]) -> onnx.ModelProto:
    """The file's ModelProto, with the tensors asked for as graph outputs."""
    if data is None:
        assert model.path is not None
        data = read_file(model.path)
    proto = parse(data, model.label)
    present = {v.name for v in proto.graph.output}
    for name in outputs:
        if name not in present:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return proto


def runtime_label(backend: str, optimize: bool = True) -> str:
    """The runtime with its version, and how it runs a graph."""
    if backend == "onnx-ref":
        return f"onnx.reference {onnx.__version__}"
    import onnxruntime as ort

    return f"onnxruntime {ort.__version__} (CPU, graph optimizations {'on' if optimize else 'off'})"


def unfit(message: str) -> UnsupportedError:
    return UnsupportedError("QR013", "backend-refused", message, fixes=["--backend reference runs the model with qrun"])


def refused(label: str, model: Model, error: Exception) -> UnsupportedError:
    return UnsupportedError(
        "QR013",
        "backend-refused",
        f"{label} cannot load this model",
        where=[model.label],
        facts=[("got", words(error))],
        fixes=instead(model),
    )


def instead(model: Model) -> list[str]:
    """qrun's own backend, if that can run the model."""
    try:
        plan(model)
    except QrunError:
        return []
    return ["--backend reference runs the model with qrun"]


def words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]
