"""The runtimes that can be judged, by name."""

from __future__ import annotations

from qrun.conform.answers import CaseRunner
from qrun.conform.external import CommandRunner
from qrun.conform.process import ProcessRunner
from qrun.declare.frozen import frozen
from qrun.errors import CallError, meant

ADAPTERS = "qrun.conform.adapters"
COMMAND = "cmd:"
PLACES = ("{model}", "{inputs}", "{outputs}")
"""Words of every command, which no label needs."""


@frozen
class Runtime:
    """One way to run models. label: for people, to which the version is added.
    adapter: a module; option: what it is given."""

    name: str
    label: str
    adapter: str
    option: str = ""


RUNTIMES = {
    known.name: known
    for known in (
        Runtime("native", "qrun, native backend", f"{ADAPTERS}.qrun_itself", "native"),
        Runtime("reference", "qrun, reference backend", f"{ADAPTERS}.qrun_itself", "reference"),
        Runtime("ort", "onnxruntime, graph optimizations off", f"{ADAPTERS}.ort"),
        Runtime("ort-optimized", "onnxruntime, graph optimizations on", f"{ADAPTERS}.ort", "optimized"),
        Runtime(
            "ort-x64quantprecision", "onnxruntime, session.x64quantprecision", f"{ADAPTERS}.ort", "x64quantprecision"
        ),
        Runtime("onnx-ref", "onnx.reference", f"{ADAPTERS}.onnx_reference"),
        Runtime("openvino", "OpenVINO, float32 precision", f"{ADAPTERS}.openvino"),
        Runtime("opencv", "OpenCV dnn", f"{ADAPTERS}.opencv"),
        Runtime("tinygrad", "tinygrad, DEV=PYTHON", f"{ADAPTERS}.tinygrad"),
        Runtime("iree", "IREE, llvm-cpu", f"{ADAPTERS}.iree"),
    )
}
OWN = ("native", "reference")


def runtime(name: str) -> Runtime:
    """Raises CallError for a name that is none."""
    if name.startswith(COMMAND):
        words = name.removeprefix(COMMAND).split()
        return Runtime(name, " ".join(word for word in words if word not in PLACES) or name, "")
    if name in RUNTIMES:
        return RUNTIMES[name]
    near = meant(name, RUNTIMES)
    raise CallError(
        "QR005",
        f"--runtime {name}: there is no such runtime",
        facts=[("expected", f"{', '.join(RUNTIMES)}, or 'cmd:PROGRAM {{model}} {{inputs}} {{outputs}}'")],
        fixes=[f"did you mean --runtime {near}?" if near else "qrun explain conform"],
    )


def runner(chosen: Runtime, python: str = "") -> CaseRunner:
    """Start it. Raises UnsupportedError if it is not installed."""
    if chosen.name.startswith(COMMAND):
        return CommandRunner(chosen.name.removeprefix(COMMAND))
    return ProcessRunner(chosen.name, chosen.adapter, chosen.option, python)
