"""What the runtimes share: the bytes to load, labels, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import onnx

from qrun.child import Crash, Failed, running
from qrun.errors import QrunError, UnsupportedError
from qrun.ir import Model
from qrun.ir.load import parse, read_file
from qrun.running.plan import plan


def proto_of(model: Model, data: bytes | None, outputs: Sequence[str]) -> onnx.ModelProto:
    """The file's ModelProto, with the tensors asked for as graph outputs."""
    proto = parse(_data_of(model, data), model.label)
    present = {v.name for v in proto.graph.output}
    for name in outputs:
        if name not in present:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    return proto


def bytes_of(model: Model, data: bytes | None, outputs: Sequence[str]) -> bytes:
    """The file, or what `proto_of` gives if the file does not have all these outputs."""
    if {value.name for value in model.outputs} >= set(outputs):
        return _data_of(model, data)
    return proto_of(model, data, outputs).SerializeToString()


def _data_of(model: Model, data: bytes | None) -> bytes:
    if data is None:
        assert model.path is not None
        data = read_file(model.path)
    return data


def runtime_label(backend: str, optimize: bool = True) -> str:
    """The runtime with its version, and how it runs a graph. Raises UnsupportedError if it is not installed."""
    if backend == "onnx-ref":
        return f"onnx.reference {onnx.__version__}"
    if find_spec("onnxruntime") is None:
        raise missing("onnxruntime is not installed")
    return f"onnxruntime {_version()} (CPU, graph optimizations {'on' if optimize else 'off'})"


@cache
def _version() -> str:
    """Of onnxruntime, as it says, if importing it does not crash."""
    try:
        return str(running().ask("version", "ort"))
    except Failed as error:
        raise missing("onnxruntime cannot be imported", [("got", cut(error))]) from error
    except Crash:
        return "of unknown version"


def missing(message: str, facts: Sequence[tuple[str, str]] = ()) -> UnsupportedError:
    fixes = ["pip install 'onnx-qrun[ort]'", "onnx-ref in place of ort needs nothing more"]
    return UnsupportedError("QR012", message, facts=facts, fixes=fixes)


def unfit(message: str) -> UnsupportedError:
    return UnsupportedError("QR013", message, fixes=["--backend reference runs the model with qrun"])


def instead(model: Model) -> list[str]:
    """qrun's own backend, if that can run the model."""
    try:
        plan(model)
    except QrunError:
        return []
    return ["--backend reference runs the model with qrun"]


def cut(error: Exception) -> str:
    return str(error)[:400]
