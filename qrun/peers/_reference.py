"""onnx.reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pickle import PickleBuffer
from typing import Any

from qrun.child import Crash, Failed, RemoteObject
from qrun.ir import Array, Model
from qrun.ir.compound import unwrapped
from qrun.peers._common import bytes_of, runtime_label
from qrun.peers._loaded import Limits, Loaded, load_failed, loading


def load_reference(model: Model, data: bytes | None, outputs: Sequence[str], limits: Limits) -> Loaded:
    label, (limit, _) = runtime_label("onnx-ref"), limits
    folder = str(model.path.parent.resolve()) if model.path is not None and model.external_files else ""

    def arguments() -> tuple[object, ...]:
        return "onnx-ref", loading(limit, model), PickleBuffer(bytes_of(model, data, outputs)), {"folder": folder}

    try:
        remote = RemoteObject("load", arguments)
    except (Failed, Crash) as error:
        load_failed(label, model, error, limit)
    return Loaded(model, label, limits, remote, (list(outputs),), _encoded, list)


def _encoded(feeds: Mapping[str, Array]) -> dict[str, Any]:
    return {name: unwrapped(array) for name, array in feeds.items()}
