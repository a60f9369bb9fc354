"""Make models/ again, byte for byte: the specification's examples, and a digits network with its quantized forms.

    python scripts/make_models.py [DIR] [--train]

Everything but the trained weights is derived; these are read from models/digits/float/model.onnx unless --train
trains them again (about 10 s, to the same bits). Needs the `dev` extra.
"""

from __future__ import annotations

import argparse
import io
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import _digits
import _quantizer
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import qrun

MODELS = Path(__file__).resolve().parents[1] / "models"
BEGIN, END = "<!-- make_models: {} -->", "<!-- end -->"
CASES = [
    "convinteger_with_padding",
    "convinteger_without_padding",
    "matmulinteger",
    "qlinearconv",
    "qlinearmatmul_2D_uint8_float32",
    "qlinearmatmul_3D_int8_float32",
    "qlinearmatmul_2D_int8_float16",
    "quantizelinear",
    "quantizelinear_axis",
    "quantizelinear_blocked_asymmetric",
    "quantizelinear_blocked_symmetric",
    "quantizelinear_uint16",
    "quantizelinear_int4",
    "quantizelinear_uint2",
    "quantizelinear_e4m3fn",
    "quantizelinear_e5m2",
    "quantizelinear_float4e2m1",
    "dequantizelinear",
    "dequantizelinear_axis",
    "dequantizelinear_blocked",
    "dequantizelinear_int16",
    "dequantizelinear_uint4",
    "dequantizelinear_int2",
    "dequantizelinear_e4m3fn_float16",
    "dequantizelinear_float4e2m1",
    "dynamicquantizelinear",
    "dynamicquantizelinear_max_adjusted",
    "dynamicquantizelinear_min_adjusted_expanded",
]
DIGITS = {
    "float": "float32, as trained",
    "qoperator": "static, QOperator format: uint8 activations, int8 weights per channel",
    "qdq": "static, QDQ format: the same parameters around float operators",
    "dynamic": "dynamic: int8 weights, activations quantized while it runs",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=MODELS)
    parser.add_argument("--train", action="store_true", help="train the digits network again")
    options = parser.parse_args()
    for path, data in make(options.train).items():
        target = options.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != data:
            target.write_bytes(data)
            print("wrote", target)


def make(train: bool = False) -> dict[str, bytes]:
    """Every file of models/ by its path in that folder."""
    parameters = _digits.train() if train else trained()
    files = dict(node_files())
    files.update(digits_files(parameters))
    files["README.md"] = readme(files).encode()
    return files


def trained() -> dict[str, np.ndarray]:
    """The committed weights."""
    return _digits.parameters_of(onnx.load(MODELS / "digits/float/model.onnx"))


def node_files() -> Iterator[tuple[str, bytes]]:
    """The examples of the operators' specification pages, each as the oldest opset that allows it."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = {case.name.removeprefix("test_"): case for case in load_model_tests(kind="node")}
    for name in CASES:
        model, sets = cases[name].model, cases[name].data_sets
        assert model is not None
        assert sets is not None
        yield f"{name}/model.onnx", serialize(oldest(model, name))
        graph = model.graph
        for number, (inputs, outputs) in enumerate(sets):
            yield from data_set(
                name, number, zip(graph.input, inputs, strict=True), zip(graph.output, outputs, strict=True)
            )


def oldest(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The same graph with the smallest opset in which it is valid."""
    model.graph.name = name
    per_axis = name.endswith("_axis")
    for opset in range(13 if per_axis else 10, model.opset_import[0].version + 1):
        opsets = [helper.make_opsetid("", opset)]
        candidate = helper.make_model(model.graph, opset_imports=opsets, producer_name="qrun")
        candidate.ir_version = helper.find_min_ir_version_for(opsets)
        try:
            onnx.checker.check_model(candidate, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
            continue
        return candidate
    raise ValueError(f"{name}: no opset fits")


def digits_files(parameters: Mapping[str, np.ndarray]) -> Iterator[tuple[str, bytes]]:
    """The digits network in four forms, each with two batches of held-back images and what qrun computes."""
    images, _, held, _ = _digits.digits()
    source = _digits.float_model(parameters)
    ranges = _digits.ranges(parameters, images[:256])
    built = {
        "float": source,
        "qoperator": _quantizer.static(source, "qop", ranges=ranges),
        "qdq": _quantizer.static(source, "qdq", ranges=ranges),
        "dynamic": _quantizer.dynamic(source),
    }
    for name, model in built.items():
        onnx.checker.check_model(model)
        yield f"digits/{name}/model.onnx", serialize(model)
        session = qrun.Session(model, backend="reference")
        for number, batch in enumerate((held[:4], held[4:10])):
            outputs = session.run({"images": batch}).values()
            graph = model.graph
            yield from data_set(
                f"digits/{name}",
                number,
                zip(graph.input, [batch], strict=True),
                zip(graph.output, outputs, strict=True),
            )
    stream = io.BytesIO()
    np.save(stream, held[:8])
    yield "digits/x.npy", stream.getvalue()


def data_set(
    name: str,
    number: int,
    inputs: Iterator[tuple[onnx.ValueInfoProto, object]],
    outputs: Iterator[tuple[onnx.ValueInfoProto, object]],
) -> Iterator[tuple[str, bytes]]:
    """test_data_set_N/input_K.pb and output_K.pb, as onnx's own backend tests store them."""
    for role, pairs in (("input", inputs), ("output", outputs)):
        for place, (info, value) in enumerate(pairs):
            tensor = value if isinstance(value, onnx.TensorProto) else numpy_helper.from_array(np.asarray(value))
            tensor.name = info.name
            yield f"{name}/test_data_set_{number}/{role}_{place}.pb", serialize(tensor)


def serialize(message: onnx.ModelProto | onnx.TensorProto) -> bytes:
    return message.SerializeToString(deterministic=True)


def readme(files: Mapping[str, bytes]) -> str:
    """models/README.md with its tables filled in."""
    text = (MODELS / "README.md").read_text(encoding="utf-8")
    for marker, lines in (("examples", example_table(files)), ("digits", digits_table(files))):
        begin = BEGIN.format(marker)
        before, _, rest = text.partition(begin)
        after = rest.partition(END)[2]
        text = f"{before}{begin}\n" + "\n".join(lines) + f"\n{END}{after}"
    return text


def operators(model: onnx.ModelProto) -> str:
    counts = Counter(node.op_type for node in model.graph.node)
    return ", ".join(f"{op} {count}" if count > 1 else op for op, count in counts.items())


def example_table(files: Mapping[str, bytes]) -> list[str]:
    rows = ["| model | operators | opset | inputs and outputs |", "|---|---|---|---|"]
    for name in CASES:
        model = onnx.load_from_string(files[f"{name}/model.onnx"])
        opset = model.opset_import[0].version
        ends = " → ".join(" ".join(typed(v) for v in side) for side in (model.graph.input, model.graph.output))
        rows.append(f"| `{name}` | {operators(model)} | {opset} | {ends} |")
    return rows


def typed(info: onnx.ValueInfoProto) -> str:
    tensor = info.type.tensor_type
    shape = ",".join(str(d.dim_value) for d in tensor.shape.dim)
    return f"{onnx.TensorProto.DataType.Name(tensor.elem_type).lower()}[{shape}]"


def digits_table(files: Mapping[str, bytes]) -> list[str]:
    """Accuracy on all held-back images as qrun and onnxruntime compute it."""
    _, _, held, labels = _digits.digits()
    rows = ["| model | what | operators | kB | accuracy, qrun | accuracy, onnxruntime |", "|---|---|---|---|---|---|"]
    for name, what in DIGITS.items():
        data = files[f"digits/{name}/model.onnx"]
        (ours,) = qrun.Session(onnx.load_from_string(data), backend="reference").run({"images": held}).values()
        theirs = onnxruntime.InferenceSession(data, unoptimized()).run(None, {"images": held})[0]
        shown = [
            f"{(logits.argmax(1) == labels).sum()} / {len(labels)} = {_digits.accuracy(logits, labels):.2%}"
            for logits in (ours, theirs)
        ]
        made = operators(onnx.load_from_string(data))
        rows.append(f"| `digits/{name}` | {what} | {made} | {len(data) / 1000:.1f} | {shown[0]} | {shown[1]} |")
    return rows


def unoptimized() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return options


if __name__ == "__main__":
    main()
