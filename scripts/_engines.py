"""The engines that scripts/bench.py times: how each opens a model and runs it. Imports an engine only to use it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Feeds = Array | Mapping[str, Array]
"""The one input of a model, or all of them by name."""
Call = Callable[[Feeds], list[Array]]

PACKAGES = {
    "qrun": "qrun",
    "reference": "qrun",
    "ort": "onnxruntime",
    "ort-precise": "onnxruntime",
    "openvino": "openvino",
    "openvino-noamx": "openvino",
}
ENGINES = tuple(PACKAGES)
QDQ_ONLY = ("openvino", "openvino-noamx")
WARM = 3
QUIET = 0.1
LONGEST = 0.3
FULL = 0.02
"""Seconds of a burst of short runs: caches, predictors and clocks are then those of work that goes on."""


def installed(engine: str) -> bool:
    return importlib.util.find_spec(PACKAGES[engine]) is not None


def version(engine: str) -> str:
    package = PACKAGES[engine]
    return str(importlib.metadata.version("onnx-qrun" if package == "qrun" else package))


def load(engine: str) -> Any:
    """Import the engine's package. oneDNN reads its limit once, so it must stand before."""
    if engine == "openvino-noamx":
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_VNNI"
    return importlib.import_module(PACKAGES[engine])


def read(path: Path) -> Feeds:
    """The input of a .npy file, or those of a .npz file."""
    found: Any = np.load(path)
    return found if isinstance(found, np.ndarray) else dict(found)


def named(x: Feeds, first: str) -> dict[str, Array]:
    """Inputs by name; first: that of the one input."""
    return {first: x} if isinstance(x, np.ndarray) else dict(x)


def create(engine: str, path: Path, threads: int, cache: str) -> Call:
    """A session of the engine: a function from the inputs to the outputs. cache: folder of qrun's kernels."""
    module = load(engine)
    if engine in ("ort", "ort-precise"):
        return _onnxruntime(module, path, threads, engine == "ort-precise")
    if engine.startswith("openvino"):
        return _openvino(module, path, threads)
    backend = {"backend": "native", "threads": threads, "cache": cache} if engine == "qrun" else {}
    session = module.Session(path, **backend)
    name = session.inputs[0].name
    return lambda x: list(session.run(named(x, name)).values())


def _onnxruntime(module: Any, path: Path, threads: int, precise: bool) -> Call:
    """precise: with sums that do not saturate on x86 CPUs without VNNI."""
    options = module.SessionOptions()
    if precise:
        options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: list(session.run(None, named(x, name)))


def _openvino(module: Any, path: Path, threads: int) -> Call:
    """With floats computed as float32: on CPUs with instructions for bfloat16, OpenVINO's default is bfloat16."""
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    request = module.Core().compile_model(str(path), "CPU", settings).create_infer_request()
    return lambda x: list(request.infer({0: x} if isinstance(x, np.ndarray) else dict(x)).values())


class Runner:
    """One engine with one model open and warm."""

    def __init__(self, engine: str, path: Path, x: Feeds, threads: int, cache: str) -> None:
        self._call, self._x = create(engine, path, threads, cache), x
        for _ in range(WARM):
            self._made = [np.array(y) for y in self._call(x)]

    def outputs(self) -> list[Array]:
        """Of the last warm-up run."""
        return self._made

    def burst(self, times: int) -> list[float]:
        """Seconds of each run, one straight after the other: of `times`, or of more that take FULL seconds together."""
        taken: list[float] = []
        began = perf_counter()
        while len(taken) < times or perf_counter() - began < FULL:
            start = perf_counter()
            self._call(self._x)
            taken.append(perf_counter() - start)
        settle()
        return taken

    def each(self, images: Array) -> list[Array]:
        """The outputs for `images`, fed one by one, joined along the first axis."""
        made = [[np.array(y) for y in self._call(images[i : i + 1])] for i in range(len(images))]
        return [np.concatenate(parts) for parts in zip(*made, strict=True)]


def settle() -> None:
    """Wait until this process's threads no longer spin:
    they use less than QUIET of a CPU, or LONGEST seconds passed."""
    end = perf_counter() + LONGEST
    while perf_counter() < end:
        start, used = perf_counter(), process_time()
        sleep(0.002)
        if process_time() - used < QUIET * (perf_counter() - start):
            return


class Checker:
    """qrun's reference backend on one input, with the integer operators that the native one runs: the truth for all
    engines, and the model's multiply-adds."""

    def __init__(self, path: Path, x: Feeds, cache: str) -> None:
        import qrun

        self._session, self._path, self._cache = qrun.Session(path, backend="reference", fuse=True), path, cache
        self._feeds = named(x, self._session.inputs[0].name)
        self._result = self._session.execute(self._feeds, observe=False)

    def outputs(self) -> list[Array]:
        return list(self._result.outputs.values())

    def macs(self) -> int:
        return sum(event.macs for event in self._result.events)

    def native(self, threads: int) -> str:
        """What is wrong with the native backend: the first integer tensor of the graph that it computes differently."""
        import qrun

        made = [tensor for event in self._result.events for tensor in event.outputs]
        known = {name for node in self._session.model.nodes for name in node.outputs}
        names = [tensor.name for tensor in made if tensor.dtype.kind in "iu" and tensor.name in known]
        native = qrun.Session(self._path, backend="native", threads=threads, cache=self._cache)
        got, want = native.run(self._feeds, names), self._session.run(self._feeds, names)
        wrong = [name for name in names if not same(got[name], want[name])]
        return f"{wrong[0]} is not what the reference backend computes" if wrong else ""


def one_line(error: BaseException) -> str:
    """The first line of an error that says what is wrong; OpenVINO says first where in its sources."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("Exception from ", "Check '"))]
    return (telling or lines or [type(error).__name__])[0][:200]


def same(a: Array, b: Array) -> bool:
    """Equal types, shapes and bits."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
