"""Writes a case as a short script that shows a runtime's answer without qrun, as an upstream report needs it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from textwrap import fill, indent
from typing import Any

import numpy as np

from qrun.conform.runtimes import Runtime
from qrun.conform.suite import DECISION, EITHER, Case, Law
from qrun.errors import CallError
from qrun.ir import Array
from qrun.ir.types import NUMBERS

WIDTH = 120
LITERAL = 512
"""The most elements that a script writes as numbers; more are base64."""
SAME = 8
"""An array of more elements that are all the same is written as `np.full`."""
IMPORTS = {
    "base64": "import base64", "ctypes": "import ctypes", "subprocess": "import subprocess",
    "cv2": "import cv2", "iree": "import iree.runtime", "ml_dtypes": "import ml_dtypes", "np": "import numpy as np",
    "onnx": "import onnx", "ort": "import onnxruntime as ort", "ov": "import openvino as ov", "qrun": "import qrun",
    "tract": "import tract", "tinygrad": 'import os\nos.environ.setdefault("DEV", "CPU")  # PYTHON without clang\nimport tinygrad', "ModelProto": "ModelProto",
    "TensorProto": "TensorProto", "helper": "helper", "numpy_helper": "numpy_helper", "ReferenceEvaluator": "from onnx.reference import ReferenceEvaluator",
    "OnnxRunner": "from tinygrad.nn.onnx import OnnxRunner",
}  # fmt: skip
"""The import of each name that a script may use, in order; names of the onnx package are gathered in one."""

_ORT = """\
options = ort.SessionOptions()
options.intra_op_num_threads = 1
{setting}
session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
{run}
print("onnxruntime", ort.__version__)"""
_ORT_RUN = "got = session.run(None, inputs)"
_ORT_BITS = """\
def value(a):  # for a type that numpy lacks, its bits, packed as ONNX packs them, in an array of the same shape
    if a.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(a)
    data, made = np.frombuffer(numpy_helper.from_array(a).raw_data, np.uint8), np.zeros(a.shape, f"u{{a.itemsize}}")
    made.reshape(-1).view(np.uint8)[: data.size] = data
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(made, helper.np_dtype_to_tensor_dtype(a.dtype))
def read(value, like):  # and read the bits of a result
    data = ctypes.string_at(value.data_ptr(), len(numpy_helper.from_array(like).raw_data))
    return numpy_helper.to_array(helper.make_tensor("", value.element_type(), value.shape(), data, raw=True))
names = [output.name for output in session.get_outputs()]
made = session.run_with_ort_values(names, {{name: value(a) for name, a in inputs.items()}})
got = [read(value, like) for value, like in zip(made, expected.values())]"""
_OPENVINO = """\
core, settings = ov.Core(), {{"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}}
compiled = core.compile_model(core.read_model(model.SerializeToString(), b""), "CPU", settings)
{run}
print("OpenVINO", ov.__version__)"""
_OPENVINO_RUN = "made = compiled(inputs)\ngot = [made[output] for output in compiled.outputs]"
_OPENVINO_BITS = """\
types = {{{types}}}
def value(a):  # numpy lacks the type: pass its bits, packed as ONNX packs them
    made = ov.Tensor(types[a.dtype.name], a.shape)
    made.data.reshape(-1).view(np.uint8)[:] = np.frombuffer(numpy_helper.from_array(a).raw_data, np.uint8)
    return made
def read(tensor, like):  # and read the bits of a result
    data, number = np.ascontiguousarray(tensor.data).tobytes(), helper.np_dtype_to_tensor_dtype(like.dtype)
    return numpy_helper.to_array(helper.make_tensor("", number, [*tensor.shape], data, raw=True))
request = compiled.create_infer_request()
request.infer({{name: value(a) if a.dtype.name in types else a for name, a in inputs.items()}})
got = [read(request.get_output_tensor(place), like) for place, like in enumerate(expected.values())]"""
_OPENVINO_TYPES = {
    "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2", "float8_e8m0fnu": "f8e8m0", "uint4": "u4", "int4": "i4",
    "float4_e2m1fn": "f4e2m1", "uint2": "u2", "int2": "i2",
}  # fmt: skip
_IREE = """\
onnx.save(model, "model.onnx")
for command in (
    "iree-import-onnx model.onnx -o model.mlir",
    "iree-compile model.mlir {options} -o model.vmfb",
):
    subprocess.run(command.split(), check=True)
with open("model.vmfb", "rb") as file:
    module = iree.runtime.load_vm_flatbuffer(file.read(), driver="local-sync")
made = module["g"](*inputs.values())
made = made if isinstance(made, (tuple, list)) else [made]
got = [np.asarray(a.to_host()).view(b.dtype) for a, b in zip(made, expected.values())]  # its integers have no sign"""
_SETTINGS = {
    "": "options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
    "optimized": "",
    "x64quantprecision": 'options.add_session_config_entry("session.x64quantprecision", "1")',
}
_OTHERS = {
    "onnx-ref": 'got = ReferenceEvaluator(model).run(None, inputs)\nprint("onnx", onnx.__version__)',
    "opencv": "net = cv2.dnn.readNetFromONNX(np.frombuffer(model.SerializeToString(), np.uint8))\n"
    "for name, a in inputs.items():\n    net.setInput(a, name)\ngot = net.forward([*expected])\n"
    'print("OpenCV", cv2.__version__)',
    "tinygrad": 'onnx.save(model, "model.onnx")\n'
    'made = OnnxRunner("model.onnx")({name: tinygrad.Tensor(a) for name, a in inputs.items()})\n'
    "got = [made[name].numpy() for name in expected]",
    "tract": 'onnx.save(model, "model.onnx")\nloaded = tract.onnx().load("model.onnx")\n'
    "names = [loaded.input_name(place) for place in range(loaded.input_count())]\n"
    "made = loaded.into_model().into_runnable().run([tract.Tensor.from_numpy(inputs[name]) for name in names])\n"
    "got = [each.to_numpy() for each in made]",
    "iree": _IREE.format(
        options="--iree-hal-target-backends=llvm-cpu --iree-llvmcpu-target-cpu=host --iree-input-type=onnx"
    ),
    "native": "got = list(qrun.Session(model, fuse=False).run(inputs).values())",
    "reference": 'got = list(qrun.Session(model, backend="reference").run(inputs).values())',
}
_PRINT = """\
for name, a, b in zip(expected, got, expected.values()):
    pairs = enumerate(zip(a.ravel().tolist(), b.ravel().tolist()))
    differ = [f"  flat index {at}: got {x}, expected {y}" for at, (x, y) in pairs if repr(x) != repr(y)]
    print(f"{name}: got {a.dtype} {a.shape}, expected {b.dtype} {b.shape}")
    if a.shape == b.shape:
        print(f"{len(differ)} of {b.size} elements differ", *differ[:8], sep="\\n")"""
_REFUSAL = """\
try:
{run}
    print("got an answer to an invalid model, expected an error")
except Exception as error:
    print(f"refused, as expected: {{error}}")"""


def script(case: Case, rule: Law, chosen: Runtime, suite: str) -> str:
    """A Python script that runs a case in a runtime and prints both answers. suite: its version.

    Raises CallError for a program (``cmd:``).
    """
    made = [_named("inputs", case.inputs), _named("expected", case.expected), _model(case)]
    lines = [_wrap(line) for line in "\n".join(made).split("\n")]
    run = _run(case, chosen)
    run = f"{run}\n{_PRINT}" if case.expected else _REFUSAL.format(run=indent(run, "    "))
    body = "\n".join([*lines, run])
    return f"{_comment(case, rule, chosen, suite)}\n{_imports(body)}\n\n{body}\n"


def _comment(case: Case, rule: Law, chosen: Runtime, suite: str) -> str:
    """The first lines: what the script shows, and the sentences that decide."""
    info = case.info
    op = f"{info.domain}.{info.op}" if info.domain else info.op
    comments = [f"{op}-{info.version} in {chosen.label}", f"Case {info.id} of the qrun conformance suite {suite}"]
    title = f"{rule.title.rstrip('.')}."
    comments += [title if rule.basis != DECISION else f"Open in the specification; expected here: {title}"]
    comments += [f'{quote.source}: "{quote.text}"' for quote in rule.quotes]
    comments += [rule.note] if rule.note else []
    comments += ["The text excludes this form, so an error is also correct."] if info.expects == EITHER else []
    return "\n".join(
        fill(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False) for text in comments
    )


def _wrap(line: str) -> str:
    """A line in several, which break between the elements of a list or call; a text with spaces stays as it is."""
    if len(line) <= WIDTH or re.search(r"""["'][^"', ]* [^"',]*["']""", line):
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _imports(body: str) -> str:
    """The imports of the names that the code uses."""
    used = {name: line for name, line in IMPORTS.items() if re.search(rf"\b{name}[.(]", body)}
    lines = [line for line in used.values() if line.startswith("import ")]
    ours = [name for name, line in used.items() if name == line]
    lines += [f"from onnx import {', '.join(ours)}"] if ours else []
    return "\n".join(lines + [line for line in used.values() if line.startswith("from ")])


def _run(case: Case, chosen: Runtime) -> str:
    """The lines that run `model` on `inputs`, as the runtime's adapter does, and make `got`."""
    lacking = [a.dtype.name for a in (*case.inputs.values(), *case.expected.values()) if NUMBERS[a.dtype] > 15]
    if chosen.name.startswith("ort"):
        run, setting = _ORT_BITS.format() if lacking else _ORT_RUN, _SETTINGS[chosen.option]
        return _ORT.format(setting=setting, run=run).replace("\n\n", "\n")
    if chosen.name == "openvino":
        known = dict.fromkeys(name for name in lacking if name in _OPENVINO_TYPES)
        types = ", ".join(f'"{name}": ov.Type.{_OPENVINO_TYPES[name]}' for name in known)
        return _OPENVINO.format(run=_OPENVINO_BITS.format(types=types) if lacking else _OPENVINO_RUN)
    if chosen.name in _OTHERS:
        return _OTHERS[chosen.name]
    raise CallError(
        "QR005",
        f"--reproduce cannot write a script for {chosen.label}, which takes files",
        fixes=[f"qrun conform export DIR --select {case.info.id}"],
    )


def _model(case: Case) -> str:
    """The lines that make `model`: calls of onnx.helper if these can say all of it, else its bytes."""
    import onnx

    proto = onnx.load_model_from_string(case.model)
    if not _is_plain(proto):
        return f"model = ModelProto.FromString(base64.b64decode({_base64(case.model)}))"
    graph = proto.graph
    inputs = [(v.name, v.type.tensor_type.elem_type, _shape(v)) for v in graph.input]
    if inputs == [(name, NUMBERS[a.dtype], list(a.shape)) for name, a in case.inputs.items()]:
        infos = "[helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()]"
    else:
        infos = _infos(graph.input)
    lines = [_rows("nodes", "[]", map(_node, graph.node))]
    lines += [f"given = {infos}", f"made = {_infos(graph.output)}"]
    arguments = ["nodes", f'"{graph.name}"', "given", "made"]
    if graph.initializer:
        arrays = [(t.name, onnx.numpy_helper.to_array(t)) for t in graph.initializer]
        made = (f'numpy_helper.from_array({_array(a)}, "{name}")' for name, a in arrays)
        lines.append(_rows("constants", "[]", made))
        arguments.append("constants")
    opsets = ", ".join(f'helper.make_opsetid("{o.domain}", {o.version})' for o in proto.opset_import)
    lines.append(f"graph = helper.make_graph({', '.join(arguments)})")
    lines.append(f"model = helper.make_model(graph, opset_imports=[{opsets}], ir_version={proto.ir_version})")
    return "\n".join(lines)


def _is_plain(proto: Any) -> bool:
    """Whether a model has only what `_model` writes: tensors, and attributes that `helper.make_node` can infer."""
    nodes = proto.graph.node
    attributes = [attribute for node in nodes for attribute in node.attribute]
    return (
        _fields([proto]) <= {"ir_version", "graph", "opset_import"}
        and _fields([proto.graph]) <= {"node", "name", "initializer", "input", "output"}
        and _fields(nodes) <= {"input", "output", "name", "op_type", "domain", "attribute"}
        and _fields(attributes) <= {"name", "type", "f", "i", "s", "floats", "ints"}
        and all(a.type in (1, 2, 3) or a.floats or a.ints for a in attributes)
        and all(v.type.HasField("tensor_type") for v in (*proto.graph.input, *proto.graph.output))
        and not any(_has_names(v) for v in (*proto.graph.input, *proto.graph.output))
    )


def _fields(messages: Iterable[Any]) -> set[str]:
    return {field.name for message in messages for field, _ in message.ListFields()}


def _has_names(value: Any) -> bool:
    """Whether a size of the value is a name or left open."""
    return any(not dim.HasField("dim_value") for dim in value.type.tensor_type.shape.dim)


def _shape(value: Any) -> list[int] | None:
    kind = value.type.tensor_type
    return [dim.dim_value for dim in kind.shape.dim] if kind.HasField("shape") else None


def _infos(values: Iterable[Any]) -> str:
    """A list of calls of make_tensor_value_info."""
    import onnx

    rows = [
        f'helper.make_tensor_value_info("{v.name}", TensorProto.{onnx.TensorProto.DataType.Name(v.type.tensor_type.elem_type)}, {_shape(v)})'
        for v in values
    ]
    return f"[{', '.join(rows)}]"


def _node(node: Any) -> str:
    """A call of make_node."""
    words = [f'"{node.op_type}"', _names(node.input), _names(node.output)]
    words += [f'"{node.name}"'] if node.name else []
    words += [f'domain="{node.domain}"'] if node.domain else []
    return f"helper.make_node({', '.join(words + [f'{a.name}={_attribute(a)}' for a in node.attribute])})"


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)}]"


def _attribute(attribute: Any) -> str:
    """An attribute's value: a float, an integer, a text, or a list of these."""
    if attribute.type in (1, 6):
        texts = [_number(np.float32(v)) for v in ([attribute.f] if attribute.type == 1 else attribute.floats)]
        return texts[0] if attribute.type == 1 else f"[{', '.join(texts)}]"
    if attribute.type == 3:
        return repr(attribute.s.decode())
    return str(attribute.i if attribute.type == 2 else list(attribute.ints))


def _named(name: str, arrays: Mapping[str, Array]) -> str:
    """A dict of arrays."""
    return _rows(name, "{}", (f'"{key}": {_array(array)}' for key, array in arrays.items()))


def _rows(name: str, brackets: str, rows: Iterable[str]) -> str:
    """A list or dict with one element a line, or in one line if there is but one."""
    items = list(rows)
    text = ", ".join(items) if len(items) < 2 else "\n    ".join(["", *(f"{row}," for row in items)]) + "\n"
    return f"{name} = {brackets[0]}{text}{brackets[1]}"


def _array(array: Array) -> str:
    """An expression for an array, of the same bits: numbers if they are few, else base64."""
    dtype = f"{'np' if NUMBERS[array.dtype] <= 15 else 'ml_dtypes'}.{array.dtype.name.replace('bool', 'bool_')}"
    if not array.size:
        return f"np.zeros({array.shape}, {dtype})"
    flat = array.reshape(-1)
    if array.size > SAME and flat.tobytes() == flat[:1].tobytes() * flat.size and _is_exact(flat[:1]):
        return f"np.full({array.shape}, {_number(flat[0])}, {dtype})"
    if array.size > LITERAL:
        return f"np.frombuffer(base64.b64decode({_base64(array.tobytes())}), {dtype}).reshape({array.shape})"
    if not _is_exact(flat):
        bits = array.view(f"u{array.itemsize}")
        return f"np.array({_nested(bits)}, np.{bits.dtype.name}).view({dtype})"
    return f"np.array({_nested(array)}, {dtype})"


def _is_exact(flat: Array) -> bool:
    """Whether an array made of the numbers that `_number` writes has the same bits; NaNs may not."""
    if flat.dtype.kind in "biu":
        return True
    with np.errstate(all="ignore"):
        read = np.array([float(_number(v).replace("np.", "")) for v in flat]).astype(flat.dtype)
    return read.tobytes() == flat.tobytes()


def _nested(array: Array) -> str:
    return _number(array[()]) if not array.ndim else f"[{', '.join(map(_nested, array))}]"


def _number(value: Any) -> str:
    """A number with the fewest digits that mean it in its type."""
    if value.dtype.kind in "biu" or value.dtype.name.startswith(("int", "uint")):
        return str(bool(value) if value.dtype.kind == "b" else int(value))
    text = str(value) if value.dtype.isbuiltin == 1 else repr(float(value))
    return f"{'-' * text.startswith('-')}np.{text.lstrip('-')}" if text.lstrip("-") in ("inf", "nan") else text


def _base64(data: bytes) -> str:
    """A text of lines that Python joins."""
    text = base64.b64encode(data).decode()
    lines: Sequence[str] = [text[at : at + WIDTH - 8] for at in range(0, len(text), WIDTH - 8)]
    return f'"{text}"' if len(lines) < 2 else "\n    " + "\n    ".join(f'"{line}"' for line in lines) + "\n"
