"""A model in another runtime, and the optimized graph that onnxruntime ran."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from pickle import PickleBuffer
from time import perf_counter_ns
from typing import Any, Unpack

import onnx

from qrun.child import Crash, Failed, RemoteObject
from qrun.errors import LimitError, QrunError
from qrun.ir import Array, Model
from qrun.ir.compound import received, unwrapped
from qrun.memory import ResourceLimits
from qrun.peers._common import bytes_of, proto_of, runtime_label
from qrun.peers._loaded import Limits, Loaded, load_failed, loading
from qrun.peers._ort import external_settings, load_ort
from qrun.running.profiling import Profile, Progress, TimedRunner, measure_in_turns
from qrun.running.session import RunResult

PEERS = ("ort", "onnx-ref")


class Peer:
    """A model ready to run in another runtime, in the child process of this one: the runtime may crash.

    backend:  ``ort`` (onnxruntime on the CPU) or ``onnx-ref`` (onnx.reference).
    data:     the bytes of the file, for a model that was not read from a path.
    outputs:  names of any tensors that nodes make, besides the graph's outputs.
    optimize: let onnxruntime rewrite the graph as it does by default, or run it node by node as written.
    max_memory: bytes that loading, and each run, may take on top of what the runtime has (on Linux); None: no limit.
    max_time: seconds that a run may take; None: any time.
    label:    the runtime with its version, for the header of a report. load_ns: how long it took to load the model.

    Raises UnsupportedError if the runtime is not installed or refuses the model, RunError (QR015) if it crashes,
    MemoryLimitError. A run also raises TimeLimitError.
    """

    def __init__(
        self,
        model: Model,
        backend: str,
        *,
        data: bytes | None = None,
        outputs: Sequence[str] = (),
        threads: int | None = None,
        optimize: bool = True,
        max_memory: int | None = None,
        max_time: float | None = None,
    ) -> None:
        self.model = model
        self.backend = backend
        self.outputs = tuple(dict.fromkeys(outputs)) or tuple(v.name for v in model.outputs)
        self.max_memory = max_memory
        self.limits = max_memory, None if max_time == math.inf else max_time
        self._loaded = (
            load_ort(model, data, self.outputs, threads, optimize, self.limits)
            if backend == "ort"
            else load_reference(model, data, self.outputs, self.limits)
        )
        self.label = self._loaded.label
        self.load_ns = int(self._loaded.remote.answer["ns"])

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once, as Session.execute does, but without node events and with nothing to observe.

        outputs: some of those that the peer was made for. The duration is that in the runtime. Raises RunError with the
        runtime's own words, or if it crashes, UnsupportedError for element types that cannot be handed over.
        """
        start = perf_counter_ns()
        arrays, duration = self._loaded.run(feeds)
        stated = {value.name: value for value in self.model.outputs}
        named = {name: received(made, stated.get(name)) for name, made in zip(self.outputs, arrays, strict=True)}
        return RunResult({name: named[name] for name in outputs or self.outputs}, (), duration, 0, start)

    def runner(self, feeds: Mapping[str, Array], settle: float = 0.0) -> TimedRunner:
        """Many runs on feeds that stay where the runtime is, as its outputs do."""
        return self._loaded.runner(feeds, settle)

    def runners(self, feeds: Mapping[str, Array]) -> tuple[TimedRunner, ...]:
        """As `Session.runners`; nothing times the nodes."""
        return (self.runner(feeds),)

    def profile(
        self,
        feeds: Mapping[str, Array],
        *,
        runs: int | None = None,
        warmup: int = 1,
        seconds: float = 3.0,
        progress: Progress | None = None,
    ) -> Profile:
        """Run repeatedly; the profile has no samples of nodes."""
        return measure_in_turns(self.runners(feeds), runs, warmup, seconds, progress)[0]


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
