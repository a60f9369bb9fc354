"""One runtime in a process of its own: python _targets_runtime.py RUNTIME FOLDER.

Reads a line of JSON for each model: its path (`model`), the path of its inputs (`feeds`, npz by name, may be ""), and
options. Writes a line of JSON of what the runtime made of it, or its `error`; the first line has the version. Imports
only numpy, the standard library, and the runtime, which may have an environment without qrun.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Answer = dict[str, Any]


def onnxruntime(folder: Path) -> tuple[str, Callable[[Mapping[str, Any]], Answer]]:
    """The CPU provider: the optimized model (`graph`) and the outputs."""
    import onnxruntime as ort

    def prepare(job: Mapping[str, Any]) -> Answer:
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        for key, value in job.get("options", {}).items():
            options.add_session_config_entry(key, str(value))
        session = ort.InferenceSession(job["model"], options, providers=["CPUExecutionProvider"])
        answer: Answer = {"graph": options.optimized_model_filepath}
        if job["feeds"]:
            names = [value.name for value in session.get_outputs()]
            made = _run(lambda: session.run(None, _feeds(job)))
            np.savez(folder / "outputs.npz", **dict(zip(names, made, strict=True)))
            answer["outputs"] = str(folder / "outputs.npz")
        return answer

    return ort.__version__, prepare


def openvino(folder: Path) -> tuple[str, Callable[[Mapping[str, Any]], Answer]]:
    """The CPU plugin: each operator of the compiled model with its precision and the layers that it came from."""
    import openvino as ov

    core = ov.Core()
    core.set_property({"LOG_LEVEL": "LOG_NONE"})

    def prepare(job: Mapping[str, Any]) -> Answer:
        settings = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32", **job.get("options", {})}
        read = core.read_model(job["model"])
        compiled = core.compile_model(read, "CPU", settings)
        answer: Answer = {"layers": [_layer(op) for op in compiled.get_runtime_model().get_ordered_ops()]}
        if job["feeds"]:
            made = _run(lambda: compiled(_feeds(job)))
            names = [sorted(port.get_names()) for port in compiled.outputs]
            kept = {name: made[index] for index, several in enumerate(names) for name in several}
            np.savez(folder / "outputs.npz", **kept)
            answer["outputs"] = str(folder / "outputs.npz")
        return answer

    return ov.__version__.split("-")[0], prepare


def _layer(op: Any) -> list[Any]:
    """Type, precision and origins of an operator, and the precisions of its inputs."""
    inputs = [port.get_source_output() for port in op.inputs()]
    read = [_info(port.get_node(), "outputPrecisions").split(",") for port in inputs]
    kinds = [several[min(port.get_index(), len(several) - 1)] for port, several in zip(inputs, read, strict=True)]
    return [_info(op, "layerType"), _info(op, "runtimePrecision"), _info(op, "originalLayersNames"), kinds]


def _info(op: Any, key: str) -> str:
    value = op.get_rt_info()[key]
    return value.astype(str) if hasattr(value, "astype") else str(value)


def qnn(folder: Path) -> tuple[str, Callable[[Mapping[str, Any]], Answer]]:
    """Qualcomm HTP: the provider of each node, and the operators of the HTP graphs with their tensors' types."""
    import onnxruntime as ort
    import onnxruntime_qnn

    ort.register_execution_provider_library("QNNExecutionProvider", onnxruntime_qnn.get_library_path())
    devices = [device for device in ort.get_ep_devices() if device.ep_name == "QNNExecutionProvider"]

    def prepare(job: Mapping[str, Any]) -> Answer:
        graphs = folder / "graphs"
        graphs.mkdir(exist_ok=True)
        for old in graphs.iterdir():
            old.unlink()
        options = ort.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        settings = {"backend_path": onnxruntime_qnn.get_qnn_htp_path(), "offload_graph_io_quantization": "0"}
        settings |= {"dump_json_qnn_graph": "1", "json_qnn_graph_dir": str(graphs)}
        settings |= {key: str(value) for key, value in job.get("options", {}).items()}
        options.add_provider_for_devices(devices, settings)
        session = ort.InferenceSession(job["model"], sess_options=options)
        assigned = [
            [part.ep_name, node.op_type, node.name]
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        return {
            "assigned": assigned,
            "operators": [op for path in sorted(graphs.glob("*.json")) for op in _operators(path)],
        }

    return f"{onnxruntime_qnn.__version__}", prepare


def _operators(path: Path) -> list[list[Any]]:
    """Type, name and the types of the inputs and outputs of the operators of an HTP graph."""
    graph = json.loads(path.read_text()).get("graph", {})
    types = {name: tensor["data_type"] for name, tensor in graph.get("tensors", {}).items()}
    return [
        [op["type"], name, [types.get(t) for t in op["input_names"]], [types.get(t) for t in op["output_names"]]]
        for name, op in graph.get("nodes", {}).items()
    ]


class RunFailure(Exception):
    """A model that was loaded does not run."""


def _run(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        raise RunFailure(_one_line(error)) from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__


def _feeds(job: Mapping[str, Any]) -> dict[str, Any]:
    return dict(np.load(job["feeds"]))


def main(runtime: str, folder: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    version, prepare = {"onnxruntime": onnxruntime, "openvino": openvino, "qnn": qnn}[runtime](Path(folder))
    print(json.dumps({"version": version}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer = prepare(job)
        except RunFailure as error:
            answer = {"error": str(error), "loaded": True}
        except Exception as error:
            answer = {"error": _one_line(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
