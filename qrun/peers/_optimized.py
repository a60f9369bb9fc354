"""The graph that onnxruntime makes of a model before it runs it, and the tensors of the model that are still in it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from pickle import PickleBuffer
from typing import Unpack

import onnx

from qrun.child import Crash, Failed, RemoteObject
from qrun.errors import LimitError, QrunError
from qrun.ir import Model
from qrun.memory import ResourceLimits
from qrun.peers._common import proto_of
from qrun.peers._loaded import loading
from qrun.peers._ort import external_settings
from qrun.peers._peer import Peer


def optimized_peer(
    model: Model, data: bytes | None, outputs: Sequence[str], **limits: Unpack[ResourceLimits]
) -> Peer | None:
    """A peer that runs the optimized graph as it is, with all tensors of the model that onnxruntime has left in it.

    outputs: the graph's. None if it leaves none, or the graph cannot be had (it is larger than a file may be, or is
    refused as written). Raises MemoryLimitError.
    """
    try:
        found = _optimized(model, data, limits.get("max_memory"))
        made = {name for node in found.graph.node for name in node.output if name}
        kept = [name for name in model.producers if name in made and name not in outputs]
        if not kept:
            return None
        written = found.SerializeToString()
        return Peer(model, "ort", data=written, outputs=[*outputs, *kept], optimize=False, **limits)
    except LimitError:
        raise
    except (QrunError, Failed, Crash, OSError, ValueError):
        return None


def _optimized(model: Model, data: bytes | None, max_memory: int | None) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="qrun-") as folder:
        path = Path(folder) / "model.onnx"
        options = {"settings": external_settings(model), "optimized": str(path)}
        sent = proto_of(model, data, ()).SerializeToString()
        RemoteObject("load", lambda: ("ort", loading(max_memory, model, None), PickleBuffer(sent), options))
        return onnx.load_model(path)
