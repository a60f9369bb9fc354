"""A run as a Chrome trace, which Perfetto and speedscope read, with the arguments of onnxruntime's profiles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from qrun.ir import Model
from qrun.ir.types import ONNX_NAMES
from qrun.report.json import text
from qrun.report.nodes import node_of
from qrun.report.text import safe
from qrun.running.profiling import Profile
from qrun.running.session import NodeEvent, RunResult, TensorInfo

Event = dict[str, Any]


def trace(model: Model, result: RunResult, *, load_ns: int = 0, plan_ns: int = 0, backend: str = "") -> str:
    """The JSON text: a bare list of events, each with ``cat``, times in microseconds with fractions. Of a profile, the
    last run.

    The nodes are on the track of the thread that led the run. Each helper thread has a track of its own with the times
    it worked on them, of category ``Thread``; scripts that add up nodes leave these out.
    """
    from qrun import __version__

    pid = os.getpid()
    offset = load_ns + plan_ns - result.start_ns

    def event(
        category: str, name: str, start_ns: int, duration_ns: int, args: dict[str, Any], helper: int = 0
    ) -> Event:
        made: Event = {"cat": category, "pid": pid, "tid": pid + helper, "ts": start_ns / 1000}
        return {**made, "dur": max(duration_ns, 0) / 1000, "ph": "X", "name": name, "args": args}

    helpers = sorted({helper for node in result.events for helper, _, _ in node.helpers})
    runtime = "onnxruntime" if backend == "ort" else f"qrun {__version__}"
    events = [
        _label(pid, 0, "process_name", f"{runtime}: {model.label}"),
        *(_label(pid, helper, "thread_name", f"helper {helper}" if helper else "leader") for helper in [0, *helpers]),
        event("Session", "model_loading_uri", 0, load_ns, {}),
        event("Session", "session_initialization", load_ns, plan_ns, {}),
        event("Session", "model_run", offset + result.start_ns, result.duration_ns, {}),
    ]
    for node in result.events:
        made_by = f"qrun {__version__} {node.backend if backend == 'native' else backend}".strip()
        ran = node.node.op if node.node is not None else ""
        args = {**_node_args(model, node), "backend": backend if backend == "ort" else made_by}
        args |= {"runs_as": ran, "group": list(node.group)} if len(node.group) > 1 or backend == "ort" else {}
        label = node_of(model, node).label
        events.append(event("Node", label, offset + node.start_ns, node.duration_ns, args))
        for helper, start, span in node.helpers:
            events.append(event("Thread", label, offset + start, span, {"node_index": str(node.index)}, helper))
    return "[" + ",\n ".join(map(text, events)) + "]\n"


def folded(model: Model, profile: Profile) -> str:
    """A profile as collapsed stacks, the input of flamegraph.pl and speedscope: ``FILE;OPERATOR;NODE TIME`` on
    each line, times in whole nanoseconds: the median of each node, then the overhead of a call.

    Without times of nodes, there is one line with the median of whole runs. Semicolons in names, which separate frames,
    become colons.
    """
    file = _frame(model.label.rpartition("/")[2])
    if not profile.node_ns.size:
        return f"{file} {round(profile.median_ns)}\n"
    rows = [
        (f"{_frame(node_of(model, event).op)};{_frame(node_of(model, event).label)}", ns)
        for event, ns in zip(profile.last.events, profile.medians, strict=True)
    ]
    rows += [("call overhead", profile.overhead_ns)] if profile.overhead_ns else []
    return "".join(f"{file};{frames} {round(ns)}\n" for frames, ns in rows)


def _frame(name: str) -> str:
    return safe(name.replace(";", ":"))


def _label(pid: int, helper: int, what: str, name: str) -> Event:
    """The event that names the process or a track in the viewer."""
    track: Event = {"cat": "__metadata", "pid": pid, "tid": pid + helper, "ts": 0, "ph": "M", "name": what}
    return {**track, "args": {"name": name}}


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
