"""Adapters, one class for each runtime: ``version()``, ``run(model, inputs, outputs, option)`` and ``UNSUPPORTED``.

``version`` is called first and imports the runtime. ``run`` takes the model's bytes, the inputs by name, type and shape
of each output by name, and the runtime's option. It returns the outputs in order, and raises whatever the runtime
raises. ``UNSUPPORTED`` has parts of messages which say that the runtime has no such operator or type at all, and not
that it refuses a form of it.

The process of a runtime imports this module, perhaps in another Python with other packages, of which only numpy is
certain. It knows nothing about cases.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version as installed
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.running.session import Session

PLAIN: dict[int, Any] = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
    11: np.float64, 12: np.uint32, 13: np.uint64,
}  # fmt: skip
EXTENDED = {
    16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz", 21: "uint4", 22: "int4",
    23: "float4_e2m1fn", 24: "float8_e8m0fnu", 25: "uint2", 26: "int2", 27: "float6_e2m3fn", 28: "float6_e3m2fn",
}  # fmt: skip


class NoSuchType(Exception):
    """The runtime, or its Python, has no arrays of this element type."""


@dataclass(frozen=True)
class Tensor:
    """An array as bytes: the number of its ONNX element type, its shape, and its elements in order, with one byte for
    each element of less than 8 bits."""

    type: int
    shape: tuple[int, ...]
    data: bytes

    def numpy(self) -> Any:
        """Convert to a numpy array. Raises NoSuchType."""
        return np.frombuffer(self.data, dtype_of(self.type)).reshape(self.shape).copy()


if TYPE_CHECKING:  # an older Python may read this
    Inputs = Mapping[str, Tensor]
    Wanted = Mapping[str, Any]
    Made = list[Tensor | None]


def dtype_of(number: int) -> Any:
    """The numpy type of an ONNX element type, from ml_dtypes if numpy has none. Raises NoSuchType."""
    if number in PLAIN:
        return np.dtype(PLAIN[number])
    try:
        import ml_dtypes
    except ImportError:
        raise NoSuchType(f"element type {number} needs ml_dtypes") from None
    if number not in EXTENDED or not hasattr(ml_dtypes, EXTENDED[number]):
        raise NoSuchType(f"element type {number}")
    return np.dtype(getattr(ml_dtypes, EXTENDED[number]))


def tensor(array: Any) -> Tensor:
    """Convert a numpy array to a Tensor. Raises NoSuchType."""
    array = np.asarray(array)
    for number in (*PLAIN, *EXTENDED):
        try:
            if dtype_of(number) == array.dtype:
                return Tensor(number, tuple(array.shape), np.ascontiguousarray(array).tobytes())
        except NoSuchType:
            continue
    raise NoSuchType(str(array.dtype))


class Qrun:
    """qrun on the graph as written: option ``native`` or ``reference``."""

    PACKAGES = ("onnx-qrun",)
    UNSUPPORTED = ("QR201", "QR105", "QR106")

    def version(self) -> str:
        """qrun's version."""
        from qrun import __version__

        return __version__

    def settings(self, option: str) -> dict[str, Any]:
        """The arguments of the session."""
        return {"backend": option, "fuse": False, "threads": 1}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in qrun; `option` is the backend."""

        session = Session(model, **self.settings(option))
        made = session.run({name: value.numpy() for name, value in inputs.items()}, list(outputs))
        return [tensor(made[name]) for name in outputs]


class OnnxReference:
    """onnx.reference, the evaluator in the onnx package."""

    PACKAGES = ("onnx",)
    UNSUPPORTED = (
        "No implementation for operator",
        "RuntimeImplementationError",
        "No registered",
        "Did you recompile the sources",
        "is not supported yet",
        "known functions",
        "NoSuchType",
    )

    def version(self) -> str:
        """Import onnx and return its version."""
        self._onnx, self._reference = import_module("onnx"), import_module("onnx.reference")
        return str(self._onnx.__version__)

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in onnx.reference."""
        evaluator = self._reference.ReferenceEvaluator(self._onnx.load_model_from_string(model))
        with np.errstate(all="ignore"):
            made = evaluator.run(list(outputs), {name: t.numpy() for name, t in inputs.items()})
        return [None if array is None else tensor(array) for array in made]


class OpenCv:
    """OpenCV's dnn module on the CPU, one thread."""

    PACKAGES = ("opencv-python", "opencv-python-headless")
    UNSUPPORTED = (
        "Can't create layer",
        "NoSuchType",
        "Unsupported data type",
        "not supported data type",
        "Unsupported type",
        "unsupported data type",
    )

    def version(self) -> str:
        """Import OpenCV and return its version."""
        self._cv = import_module("cv2")
        self._cv.setNumThreads(1)
        return str(self._cv.__version__)

    def settings(self, option: str) -> dict[str, Any]:
        """What `version` sets."""
        return {"threads": self._cv.getNumThreads()}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in OpenCV."""
        net = self._cv.dnn.readNetFromONNX(np.frombuffer(model, np.uint8))
        for name, value in inputs.items():
            net.setInput(value.numpy(), name)
        return [tensor(array) for array in net.forward(list(outputs))]


class OpenVino:
    """OpenVINO on the CPU, float32 precision, one thread."""

    PACKAGES = ("openvino",)
    UNSUPPORTED = (
        "OpConversionFailure",
        "No translator found",
        "not supported: unsupported",
        "doesn't support operation",
        "Unsupported element type",
        "Unsupported data type",
        "NoSuchType",
        "Unsupported onnx type",
        "tensor type is not supported",
        "doesn't recognize operator",
        "Unknown element type",
        "unsupported element type",
    )

    def version(self) -> str:
        """Import OpenVINO and return its version."""
        openvino = import_module("openvino")
        self._core = openvino.Core()
        return str(openvino.__version__).partition("-")[0]

    def settings(self, option: str) -> dict[str, Any]:
        """The properties of a compiled model."""
        return {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in OpenVINO."""
        compiled = self._core.compile_model(self._core.read_model(model, b""), "CPU", self.settings(option))
        made = compiled({name: t.numpy() for name, t in inputs.items()})
        return [tensor(made[compiled.output(index)]) for index in range(len(outputs))]


class TinyGrad:
    """tinygrad, computed by its device PYTHON."""

    PACKAGES = ("tinygrad",)
    UNSUPPORTED = (
        "NotImplementedError",
        "NoSuchType",
        "unsupported",
        "not supported",
        "KeyError: DataType",
        "is not a valid OnnxDataType",
    )

    def version(self) -> str:
        """Import tinygrad and return its version."""
        os.environ.setdefault("DEV", "PYTHON")
        self._grad = import_module("tinygrad")
        self._model = tempfile.NamedTemporaryFile(prefix="qrun-", suffix=".onnx")  # noqa: SIM115
        return installed("tinygrad")

    def settings(self, option: str) -> dict[str, Any]:
        """The environment variable that chooses the device."""
        return {"DEV": os.environ["DEV"]}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in tinygrad."""
        self._model.seek(0)
        self._model.truncate()
        self._model.write(model)
        self._model.flush()
        runner = import_module("tinygrad.nn.onnx").OnnxRunner(self._model.name)
        made = runner({name: self._grad.Tensor(t.numpy()) for name, t in inputs.items()})
        return [tensor(made[name].numpy()) for name in outputs]


class Iree:
    """IREE: imports the model to MLIR, compiles it for the CPU through LLVM, and runs it in its local-sync driver."""

    UNSUPPORTED = (
        "failed to legalize operation 'torch.operator'",
        "unsupported ONNX",
        "NoSuchType",
        "element type has not been implemented",
        "unhandled attribute",
        "ONNX tensor type",
        "unknown encoding",
    )
    PACKAGES = ("iree-base-compiler", "iree-base-runtime")
    COMPILE = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--iree-input-type=onnx")

    def version(self) -> str:
        """Import IREE and return its version."""
        import_module("iree.compiler")
        self._runtime = import_module("iree.runtime")
        self._folder = tempfile.TemporaryDirectory(prefix="qrun-")
        return installed("iree-base-compiler")

    def settings(self, option: str) -> dict[str, Any]:
        """The compiler's options and the driver."""
        return {"iree-compile": " ".join(self.COMPILE), "driver": "local-sync"}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Compile and run a case in IREE."""
        source, mlir, code = (Path(self._folder.name) / f"m.{suffix}" for suffix in ("onnx", "mlir", "vmfb"))
        source.write_bytes(model)
        for path in (mlir, code):
            path.unlink(missing_ok=True)
        _run_tool([sys.executable, "-m", "iree.compiler.tools.import_onnx", str(source), "-o", str(mlir)], mlir)
        compiler = str(Path(sys.executable).parent / "iree-compile")
        _run_tool([compiler, str(mlir), *self.COMPILE, "-o", str(code)], code)
        module = self._runtime.load_vm_flatbuffer(code.read_bytes(), driver="local-sync")
        name = next(n for n in module.vm_module.function_names if not n.startswith("__") and "$" not in n)
        made = module[name](*(t.numpy() for t in inputs.values()))
        rows = made if isinstance(made, (tuple, list)) else [made]
        arrays = (np.asarray(row.to_host() if hasattr(row, "to_host") else row) for row in rows)
        return [_with_sign(array, want) for array, want in zip(arrays, outputs.values(), strict=False)]


def _run_tool(command: list[str], target: Path) -> None:
    """Run a tool that writes `target`. Raises RuntimeError with its first line of stderr that has an error."""
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    if done.returncode or not target.exists():
        lines = done.stderr.splitlines()
        line = next((line for line in lines if "error:" in line or "Error" in line), lines[-1] if lines else "")
        raise RuntimeError(f"exit code {done.returncode}: {line.partition('error: ')[2] or line}")


def _with_sign(array: Any, want: tuple[int, Any]) -> Tensor:
    """Convert an output of IREE, whose integers have no sign: reads their bits as the declared type."""
    due = dtype_of(want[0])
    return tensor(array.view(due) if array.dtype.kind in "iu" and array.dtype.itemsize == due.itemsize else array)


class Ort:
    """onnxruntime on the CPU: options ``""`` (no graph optimizations), ``optimized`` (as by default),
    ``x64quantprecision``."""

    PACKAGES = ("onnxruntime",)
    UNSUPPORTED = (
        "NotImplemented",
        "is not a registered function/op",
        "Could not find an implementation",
        "NoSuchType",
        "Unsupported model IR version",
        "No Op registered for",
        "is under development",
    )
    PACKED = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
    """Element types of less than a byte, with their number of bits."""
    WIDE = "_as_float32"

    def version(self) -> str:
        """Import onnxruntime and return its version."""
        self._ort = import_module("onnxruntime")
        self._ort.set_default_logger_severity(4)
        return str(self._ort.__version__)

    def settings(self, option: str) -> dict[str, Any]:
        """The attributes of SessionOptions, and its entries, which have a dot in their names."""
        made = {
            "intra_op_num_threads": 1,
            "graph_optimization_level": "ORT_ENABLE_ALL" if option else "ORT_DISABLE_ALL",
        }
        return made | ({"session.x64quantprecision": "1"} if option == "x64quantprecision" else {})

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in onnxruntime; `option` is "" for no graph optimizations, or a setting."""
        ort = self._ort
        options, settings = ort.SessionOptions(), self.settings(option)
        options.log_severity_level, options.intra_op_num_threads = 4, settings["intra_op_num_threads"]
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, settings["graph_optimization_level"])
        for name in filter(lambda name: "." in name, settings):
            options.add_session_config_entry(name, settings[name])
        unreadable = [name for name, (number, _) in outputs.items() if number in self.PACKED]
        if unreadable:
            model = self._widen(model, unreadable)
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        if all(t.type in PLAIN for t in inputs.values()) and all(number in PLAIN for number, _ in outputs.values()):
            made = session.run(list(outputs), {name: t.numpy() for name, t in inputs.items()})
            return [None if array is None else tensor(array) for array in made]
        values = {name: self._value(t) for name, t in inputs.items()}
        names = [name + self.WIDE if name in unreadable else name for name in outputs]
        made = session.run_with_ort_values(names, values)
        return [_tensor(value, outputs[name][0] if name in unreadable else 0) for name, value in zip(outputs, made)]  # noqa: B905

    def _widen(self, model: bytes, names: list[str]) -> bytes:
        """The model with a float32 copy of these outputs, because Python cannot read types of less than a byte."""
        onnx = import_module("onnx")
        proto = onnx.load_model_from_string(model)
        for name in names:
            proto.graph.node.append(onnx.helper.make_node("Cast", [name], [name + self.WIDE], to=1))
            proto.graph.output.append(onnx.helper.make_tensor_value_info(name + self.WIDE, 1, None))
        return bytes(proto.SerializeToString())

    def _value(self, given: Tensor) -> Any:
        """A tensor as OrtValue."""
        if given.type in PLAIN:
            return self._ort.OrtValue.ortvalue_from_numpy(given.numpy())
        bits = np.frombuffer(given.data, np.uint8 if dtype_of(given.type).itemsize == 1 else np.uint16).reshape(
            given.shape
        )
        if given.type in self.PACKED:
            bits = _pack(bits, self.PACKED[given.type])
        return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits.copy(), given.type)


def _pack(codes: Any, bits: int) -> Any:
    """Pack codes as onnxruntime does, the first in the lowest bits; the array keeps its shape, padded with zeros."""
    share, flat = 8 // bits, codes.reshape(-1) & ((1 << bits) - 1)
    flat = np.append(flat, np.zeros(-flat.size % share, np.uint8)).reshape(-1, share)
    packed = np.bitwise_or.reduce(flat << (np.arange(share, dtype=np.uint8) * bits), axis=1).astype(np.uint8)
    made = np.zeros(codes.size, np.uint8)
    made[: packed.size] = packed
    return made.reshape(codes.shape)


def _tensor(value: Any, wide: int) -> Tensor | None:
    """Convert an OrtValue. wide: the type of an output requested as float32, or 0. Types that numpy lacks are bits."""
    number = value.element_type()
    if wide:
        return tensor(value.numpy().astype(dtype_of(wide)))
    if number in PLAIN:
        return tensor(value.numpy())
    array = np.asarray(value.numpy())
    return Tensor(number, tuple(array.shape), np.ascontiguousarray(array).tobytes())
