"""Adapters, one class for each runtime: ``version()``, ``run(model, inputs, outputs, option)`` and ``UNSUPPORTED``.

``version`` is called first and imports the runtime. ``run`` takes the model's bytes, the inputs by name, type and shape
of each output by name, and the runtime's option. It returns the outputs in order, and raises whatever the runtime
raises. ``UNSUPPORTED`` has parts of messages which say that the runtime has no such operator or type at all, and not
that it refuses a form of it.

The process of a runtime imports this module, perhaps in another Python with other packages, of which only numpy is
certain. It knows nothing about cases.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.conform.tensors import PLAIN, NoSuchType, Tensor, dtype_of, packed, packed_size, tensor, unpacked

if TYPE_CHECKING:  # an older Python may read this
    Inputs = Mapping[str, Tensor]
    Wanted = Mapping[str, Any]
    Made = list[Tensor | None]


class Qrun:
    """qrun on the graph as written: option ``native`` or ``reference``."""

    PACKAGES = ("onnx-qrun",)
    UNSUPPORTED = ("QR201", "QR105", "QR106")

    def version(self) -> str:
        """Import qrun and return its version."""
        self._session = import_module("qrun.running.session").Session
        return str(import_module("qrun").__version__)

    def settings(self, option: str) -> dict[str, Any]:
        """The arguments of the session."""
        return {"backend": option, "fuse": False, "threads": 1}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in qrun; `option` is the backend."""
        session = self._session(model, **self.settings(option))
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
        "unsupported datatype",
        "blob data type = ",
        "Assertion failed) outtype ==",
        "Assertion failed) inptype ==",
        "Assertion failed) sctype ==",
        ": > 'input == CV_",
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
        made = net.forward(list(outputs))
        return [self._read(array, shape) for array, (_, shape) in zip(made, outputs.values())]  # noqa: B905

    def _read(self, made: Any, shape: tuple[int, ...]) -> Tensor | None:
        """Read an output; None if it is missing. Raises NoSuchType without elements: cv2 gives None then too."""
        if made is None and 0 in shape:
            raise NoSuchType("an array without elements")
        return None if made is None else tensor(made)


class OpenVino:
    """OpenVINO on the CPU, float32 precision, one thread."""

    PACKAGES = ("openvino",)
    UNSUPPORTED = (
        "No conversion rule found for operations",
        "No translator found",
        "Unsupported data type",
        "Check 'is_supported_type' failed",
        "NoSuchType",
        "Unsupported onnx type",
        "Unknown element type",
    )
    TYPES = {
        "boolean": 9, "i2": 26, "u2": 25, "i4": 22, "u4": 21, "i8": 3, "u8": 2, "i16": 5, "u16": 4, "i32": 6, "u32": 12,
        "i64": 7, "u64": 13, "f4e2m1": 23, "f8e4m3": 17, "f8e5m2": 19, "f8e8m0": 24, "f16": 10, "bf16": 16, "f32": 1, "f64": 11,
    }  # fmt: skip
    """The ONNX element types of OpenVINO's."""

    def version(self) -> str:
        """Import OpenVINO and return its version."""
        self._openvino = import_module("openvino")
        self._core = self._openvino.Core()
        return str(self._openvino.__version__).partition("-")[0]

    def settings(self, option: str) -> dict[str, Any]:
        """The properties of a compiled model."""
        return {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in OpenVINO."""
        compiled = self._core.compile_model(self._core.read_model(model, b""), "CPU", self.settings(option))
        request = compiled.create_infer_request()
        request.infer({name: self._value(t) for name, t in inputs.items()})
        return [self._read(request.get_output_tensor(index)) for index in range(len(outputs))]

    def _value(self, given: Tensor) -> Any:
        """A tensor as OpenVINO's. Raises NoSuchType."""
        name = next((name for name, number in self.TYPES.items() if number == given.type), "")
        if not hasattr(self._openvino.Type, name or "?"):
            raise NoSuchType(f"element type {given.type}")
        made = self._openvino.Tensor(getattr(self._openvino.Type, name), given.shape)
        if given.data:
            made.data.reshape(-1).view(np.uint8)[:] = np.frombuffer(packed(given), np.uint8)
        return made

    def _read(self, made: Any) -> Tensor:
        """Read a tensor of OpenVINO, whose `data` has other types where numpy lacks one. Raises NoSuchType."""
        name, shape = made.element_type.get_type_name(), tuple(made.shape)
        if name not in self.TYPES:
            raise NoSuchType(name)
        data = np.ascontiguousarray(made.data).tobytes()
        return unpacked(self.TYPES[name], shape, data[: packed_size(self.TYPES[name], shape)])


class TinyGrad:
    """tinygrad on its device CPU, which needs clang; without clang, or for another value of the variable DEV, on that
    device: PYTHON is an emulator. Kernels are not unrolled or vectorized, which takes most of the time, unless the
    variable NOOPT is 0."""

    PACKAGES = ("tinygrad",)
    UNSUPPORTED = (
        "NotImplementedError",
        "NoSuchType",
        "unsupported",
        "not supported",
        "KeyError: DataType",
        "no fmt dtype for",
        "is not a valid OnnxDataType",
    )

    def version(self) -> str:
        """Import tinygrad and return its version and device."""
        os.environ.setdefault("NOOPT", "1")
        device = os.environ.setdefault("DEV", "CPU" if shutil.which("clang") else "PYTHON")
        self._grad = import_module("tinygrad")
        self._model = TemporaryModel()
        return f"{installed('tinygrad')} (DEV={device})"

    def settings(self, option: str) -> dict[str, Any]:
        """The environment variables that choose the device and how it makes kernels."""
        return {name: os.environ[name] for name in ("DEV", "NOOPT")}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in tinygrad."""
        runner = import_module("tinygrad.nn.onnx").OnnxRunner(self._model.write(model))
        made = runner({name: self._value(t) for name, t in inputs.items()})
        return [self._read(made[name]) for name in outputs]

    def _value(self, given: Tensor) -> Any:
        """A tensor as tinygrad's, which exchanges no bfloat16 with numpy, but its bits."""
        if given.type != 16:
            return self._grad.Tensor(given.numpy())
        bits = np.frombuffer(given.data, np.uint16).reshape(given.shape)
        return self._grad.Tensor(bits).bitcast(self._grad.dtypes.bfloat16)

    def _read(self, made: Any) -> Tensor:
        """Read a tensor of tinygrad."""
        if made.dtype != self._grad.dtypes.bfloat16:
            return tensor(made.numpy())
        return Tensor(16, tuple(made.shape), made.bitcast(self._grad.dtypes.uint16).numpy().tobytes())


class Tract:
    """tract on the CPU, with its optimizations."""

    PACKAGES = ("tract",)
    UNSUPPORTED = (
        "NoSuchType",
        "Unimplemented",
        "Unknown DatumType",
        "unknown ONNX TensorProto.DataType",
        ".datum_type ==",
        "Tensor datum type error",
    )

    def version(self) -> str:
        """Import tract, whose messages would have stack traces, and return its version."""
        os.environ["RUST_BACKTRACE"] = "0"
        self._onnx = import_module("tract").onnx()
        self._tensor = import_module("tract").Tensor
        self._model = TemporaryModel()
        return installed("tract")

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Run a case in tract, whose functions take and give arrays in the model's order. Raises NoSuchType."""
        if not all(t.type in PLAIN for t in inputs.values()):
            raise NoSuchType("an input of a type that numpy lacks")
        loaded = self._onnx.load(self._model.write(model))
        names = [loaded.input_name(index) for index in range(loaded.input_count())]
        given = [self._tensor.from_numpy(inputs[name].numpy()) for name in names]
        made = loaded.into_model().into_runnable().run(given)
        return [tensor(each.to_numpy()) for each in made]


class TemporaryModel:
    """A temporary file for runtimes that read models only from files. It is closed when they read it: Windows opens no
    file twice that its first opener may remove."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="qrun-", ignore_cleanup_errors=True)

    def write(self, model: bytes) -> str:
        """Put a model into the file and return its path."""
        path = os.path.join(self._folder.name, "model.onnx")
        with open(path, "wb") as file:
            file.write(model)
        return path


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
    FLAGS = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host", "--iree-input-type=onnx")

    def version(self) -> str:
        """Import IREE, start its compiler in this process, and return its version."""
        self._onnx, self._importer = import_module("onnx"), import_module("iree.compiler.extras.onnx_importer")
        self._compiler, self._mlir = import_module("iree.compiler.api"), import_module("iree.compiler.ir")
        self._runtime = import_module("iree.runtime")
        os.environ["LLVM_DISABLE_SYMBOLIZATION"] = "1"  # looking names up in its library takes seconds
        self._session = self._compiler.Session()
        self._session.set_flags(*self.FLAGS)
        return installed("iree-base-compiler")

    def settings(self, option: str) -> dict[str, Any]:
        """The compiler's options and the driver."""
        return {"iree-compile": " ".join(self.FLAGS), "driver": "local-sync"}

    def run(self, model: bytes, inputs: Inputs, outputs: Wanted, option: str) -> Made:
        """Compile and run a case in IREE."""
        module = self._runtime.load_vm_flatbuffer(self._compile(self._import(model)), driver="local-sync")
        name = next(n for n in module.vm_module.function_names if not n.startswith("__") and "$" not in n)
        made = module[name](*(t.numpy() for t in inputs.values()))
        rows = made if isinstance(made, (tuple, list)) else [made]
        arrays = (np.asarray(row.to_host() if hasattr(row, "to_host") else row) for row in rows)
        return [_with_sign(array, want) for array, want in zip(arrays, outputs.values(), strict=False)]

    def _import(self, model: bytes) -> bytes:
        """Convert a model to MLIR, as `iree-import-onnx` does."""
        proto = self._onnx.load_model_from_string(model)
        self._onnx.checker.check_model(proto)
        info = self._importer.ModelInfo(self._onnx.shape_inference.infer_shapes(proto, data_prop=True))
        module = info.create_module(context=self._mlir.Context()).operation
        self._importer.NodeImporter.define_function(info.main_graph, module).import_all()
        module.verify()
        return bytes(module.get_asm(assume_verified=True).encode() + b"\0")

    def _compile(self, source: bytes) -> bytes:
        """Compile MLIR. Raises RuntimeError with the compiler's first error."""
        run, made = self._session.invocation(), self._compiler.Output.open_membuffer()
        code = self._compiler.Source.wrap_buffer(self._session, source)
        run.enable_console_diagnostics()
        try:
            with _stderr() as lines:
                done = run.parse_source(code) and run.execute()
            if not done:
                line = next((line for line in lines if "error: " in line), lines[-1] if lines else "no message")
                raise RuntimeError(line.partition("error: ")[2] or line)
            run.output_vm_bytecode(made)
            return bytes(made.map_memory())
        finally:
            for each in (made, run, code):
                each.close()


@contextmanager
def _stderr() -> Iterator[list[str]]:
    """Catch the lines that libraries write to stderr; the list has them at the end."""
    lines: list[str] = []
    before = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(before, 2)
            os.close(before)
            file.seek(0)
            text = file.read(1 << 16).decode(errors="replace")
            lines += [line for line in text.splitlines() if line.strip()]


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
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        if all(t.type in PLAIN for t in inputs.values()) and all(number in PLAIN for number, _ in outputs.values()):
            made = session.run(list(outputs), {name: t.numpy() for name, t in inputs.items()})
            return [None if array is None else tensor(array) for array in made]
        values = {name: self._value(t) for name, t in inputs.items()}
        return [_read(value) for value in session.run_with_ort_values(list(outputs), values)]

    def _value(self, given: Tensor) -> Any:
        """A tensor as OrtValue. Its constructor takes the shape from an array, which may be longer than the bits."""
        if given.type in PLAIN:
            return self._ort.OrtValue.ortvalue_from_numpy(given.numpy())
        array = np.zeros(given.shape, np.uint16 if given.type == 16 else np.uint8)
        data = np.frombuffer(packed(given), np.uint8)
        array.reshape(-1).view(np.uint8)[: data.size] = data
        return self._ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, given.type)


def _read(value: Any) -> Tensor | None:
    """Read an OrtValue's memory, because numpy has no float8 nor types of less than a byte, and a Cast to float32 loses
    which NaN it was. Raises NoSuchType."""
    if not value.has_value():
        return None
    number, shape = value.element_type(), tuple(value.shape())
    size = packed_size(number, shape)
    return unpacked(number, shape, ctypes.string_at(value.data_ptr(), size) if size else b"")
