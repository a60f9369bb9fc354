"""A run as a Chrome trace in the layout of onnxruntime's profiles, which its scripts, Perfetto and speedscope read."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from qrun.ir import Model
from qrun.ir.types import ONNX_NAMES
from qrun.report.nodes import node_of
from qrun.session import NodeEvent, RunResult, TensorInfo


def trace(model: Model, result: RunResult, *, load_ns: int = 0, plan_ns: int = 0, backend: str = "") -> str:
    """The JSON text: a bare list of events, each with ``cat``, times in whole microseconds."""
    from qrun import __version__

    pid = os.getpid()
    begin = result.start_ns
    offset = load_ns + plan_ns

    def event(category: str, name: str, start_ns: int, duration_ns: int, args: dict[str, Any]) -> dict[str, Any]:
        return {
            "cat": category, "pid": pid, "tid": pid, "ts": start_ns // 1000, "dur": max(duration_ns, 0) // 1000,
            "ph": "X", "name": name, "args": args,
        }  # fmt: skip

    events = [
        event("Session", "model_loading_uri", 0, load_ns, {}),
        event("Session", "session_initialization", load_ns, plan_ns, {}),
        event("Session", "model_run", offset, result.duration_ns, {}),
    ]
    for node in result.events:
        made_by = f"qrun {__version__} {node.backend if backend == 'native' else backend}".strip()
        args = {**_node_args(model, node), "backend": made_by, "dur_ns": node.duration_ns}
        name = f"{node_of(model, node).label}_kernel_time"
        events.append(event("Node", name, offset + node.start_ns - begin, node.duration_ns, args))
    return "[" + ",\n ".join(json.dumps(e, allow_nan=False) for e in events) + "]\n"


def _node_args(model: Model, node: NodeEvent) -> dict[str, Any]:
    stored = sum(t.nbytes for t in node.inputs if t.name in model.constants)
    fed = sum(t.nbytes for t in node.inputs if t.name not in model.constants)
    return {
        "op_name": node_of(model, node).op_type,
        "provider": "CPUExecutionProvider",
        "node_index": str(node.index),
        "graph_index": str(node.index),
        "parameter_size": str(stored),
        "activation_size": str(fed),
        "output_size": str(sum(t.nbytes for t in node.outputs)),
        "input_type_shape": _types(node.inputs),
        "output_type_shape": _types(node.outputs),
    }


def _types(tensors: Sequence[TensorInfo]) -> list[dict[str, list[int]]]:
    return [{ONNX_NAMES.get(t.dtype, str(t.dtype)): [int(n) for n in t.shape]} for t in tensors]
