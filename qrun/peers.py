"""Other runtimes on the same model and feeds: onnxruntime and onnx.reference. The only importer of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnx

from qrun.errors import QrunError, RunError, UnsupportedError
from qrun.ir import Array, Model
from qrun.ir.load import parse, read_file
from qrun.ir.types import DTYPES, NUMBERS, PACKED_BITS, type_name
from qrun.plan import plan
from qrun.profiling import Profile, Progress, measure
from qrun.session import RunResult

PEERS = ("ort", "onnx-ref")
ORT_TYPES = {
    np.dtype(t)
    for t in (
        np.float32, np.float64, np.float16, np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.uint64,
        np.int64, np.bool_, np.object_,
    )
}  # fmt: skip


class Peer:
    """A model ready to run in another runtime.

    backend: ``ort`` (onnxruntime on the CPU, its default optimizations) or ``onnx-ref`` (onnx.reference).
    outputs: names of any tensors that nodes make, besides the graph's outputs.
    label:   the runtime with its version, for the header of a report.

    Raises UnsupportedError if the runtime is not installed or refuses the model.
    """

    def __init__(
        self,
        model: Model,
        backend: str,
        *,
        data: bytes | None = None,
        outputs: Sequence[str] = (),
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.backend = backend
        self.outputs = tuple(dict.fromkeys(outputs)) or tuple(v.name for v in model.outputs)
        proto = _proto(model, data, self.outputs)
        start = perf_counter_ns()
        build = _ort if backend == "ort" else _reference
        self.label, self._run = build(model, proto, self.outputs, threads)
        self.load_ns = perf_counter_ns() - start

    def execute(
        self, feeds: Mapping[str, Array], outputs: Sequence[str] | None = None, *, observe: bool = True
    ) -> RunResult:
        """Run once, as Session.execute does, but without node events and with nothing to observe.

        outputs: some of those that the peer was made for. Raises RunError with the runtime's own words,
        UnsupportedError for element types that cannot be handed over.
        """
        start = perf_counter_ns()
        try:
            arrays = self._run(feeds)
        except UnsupportedError as error:
            error.where = (self.model.label,)
            raise
        except Exception as error:
            raise RunError(
                "QR011",
                "backend-failed",
                f"{self.label} failed on this model",
                where=[self.model.label],
                facts=[("got", _words(error))],
                fixes=_instead(self.model),
            ) from error
        duration = perf_counter_ns() - start
        named = dict(zip(self.outputs, map(np.asarray, arrays), strict=True))
        return RunResult({name: named[name] for name in outputs or self.outputs}, (), duration, 0, start)

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
        return measure(lambda: self.execute(feeds), self.model, runs, warmup, seconds, progress)


def _proto(model: Model, data: bytes | None, outputs: Sequence[str]) -> onnx.ModelProto:
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


Runner = Callable[[Mapping[str, Array]], Sequence[Any]]


def _ort(model: Model, proto: onnx.ModelProto, outputs: Sequence[str], threads: int | None) -> tuple[str, Runner]:
    try:
        import onnxruntime as ort
    except ImportError:
        raise UnsupportedError(
            "QR012",
            "backend-missing",
            "--backend ort needs onnxruntime, which is not installed",
            fixes=["pip install 'onnx-qrun[ort]'", "--backend onnx-ref needs nothing more"],
        ) from None
    ort.set_default_logger_severity(4)
    label = f"onnxruntime {ort.__version__} (CPU, graph optimizations on)"
    options = ort.SessionOptions()
    options.log_severity_level = 4
    if threads:
        options.intra_op_num_threads = threads
    if model.path is not None and model.external_files:
        folder = str(model.path.parent.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise _refused(label, model, error) from error

    def run(feeds: Mapping[str, Array]) -> Sequence[Any]:
        if all(a.dtype in ORT_TYPES for a in feeds.values()) and _plain(model, outputs):
            return list(session.run(list(outputs), dict(feeds)))
        values = {name: _value(ort, array) for name, array in feeds.items()}
        return [_array(v) for v in session.run_with_ort_values(list(outputs), values)]

    return label, run


def _plain(model: Model, outputs: Sequence[str]) -> bool:
    types = [model.types[name].dtype for name in outputs if name in model.types]
    return all(dtype is None or dtype in ORT_TYPES for dtype in types)


def _value(ort: Any, array: Array) -> Any:
    if array.dtype in ORT_TYPES:
        return ort.OrtValue.ortvalue_from_numpy(array)
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if NUMBERS[array.dtype] not in range(16, 21):
        raise _unfit(f"qrun cannot feed {type_name(array.dtype)} to onnxruntime")
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, NUMBERS[array.dtype])


def _array(value: Any) -> Array:
    """An output with its own element type; OrtValue.numpy gives bytes for some, and refuses others."""
    dtype = DTYPES.get(value.element_type())
    if dtype is None or dtype in ORT_TYPES:
        return np.asarray(value.numpy())
    try:
        array = np.asarray(value.numpy())
    except RuntimeError:
        raise _unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime") from None
    if array.dtype == dtype:
        return array
    if NUMBERS[dtype] in PACKED_BITS or array.itemsize != dtype.itemsize:
        raise _unfit(f"qrun cannot read {type_name(dtype)} from onnxruntime")
    return array.view(dtype)


def _unfit(message: str) -> UnsupportedError:
    return UnsupportedError("QR013", "backend-refused", message, fixes=["--backend reference runs the model with qrun"])


def _reference(model: Model, proto: onnx.ModelProto, outputs: Sequence[str], threads: int | None) -> tuple[str, Runner]:
    label = f"onnx.reference {onnx.__version__}"
    try:
        from onnx.reference import ReferenceEvaluator

        if model.path is not None and model.external_files:
            onnx.load_external_data_for_model(proto, str(model.path.parent))
        session = ReferenceEvaluator(proto)
    except Exception as error:
        raise _refused(label, model, error) from error

    def run(feeds: Mapping[str, Array]) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return [_typed(a) for a in session.run(list(outputs), dict(feeds))]

    return label, run


def _typed(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype not in NUMBERS and array.dtype.kind in "US":
        return array.astype(object)
    return array


def _refused(label: str, model: Model, error: Exception) -> UnsupportedError:
    return UnsupportedError(
        "QR013",
        "backend-refused",
        f"{label} cannot load this model",
        where=[model.label],
        facts=[("got", _words(error))],
        fixes=_instead(model),
    )


def _instead(model: Model) -> list[str]:
    """qrun's own backend, if that can run the model."""
    try:
        plan(model)
    except QrunError:
        return []
    return ["--backend reference runs the model with qrun"]


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:400]


__all__ = ["PEERS", "Peer"]
