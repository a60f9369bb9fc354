"""Files that qrun cannot read or run: what they are, and what to do instead."""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call
from onnx import TensorProto, helper

from qrun.ir.load import load


def zipped(*names: str) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name in names:
            archive.writestr(name, b"data")
    return held.getvalue()


def npz() -> bytes:
    held = io.BytesIO()
    np.savez(held, x=np.zeros(2))
    return held.getvalue()


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
GRAPH_DEF = field(1, field(1, b"x") + field(2, b"Placeholder")) + field(1, field(1, b"y") + field(2, b"Relu"))
MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    ),
    opset_imports=[helper.make_opsetid("", 17)],
    ir_version=8,
)
OTHERS = {
    "net.xml": (b"<?xml version='1.0'?>\n<net name='a' version='11'>", "an OpenVINO model", "the ONNX file that it was"),
    "note.xml": (b"<?xml version='1.0'?><note/>", "an XML file", "name the .onnx file"),
    "page.onnx": (b"\n<!DOCTYPE html><html>", "an HTML page", "the raw link"),
    "net.tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "tf2onnx.convert --tflite net.tflite"),
    "old.tflite": (b"\x18\0\0\0TFL3" + bytes(40), "a TensorFlow Lite model", "--tflite old.tflite"),
    "net.ort": (b"\x1c\0\0\0ORTM" + bytes(40), "an ORT-format model", "the .onnx file that it was made from"),
    "net.pt": (zipped("net/data.pkl", "net/version"), "a PyTorch file", "torch.onnx.export"),
    "net.pt2": (zipped("net/.format_version", "net/data/a", "net/data.pkl"), "a PyTorch file", "torch.onnx.export"),
    "old.pth": (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.", "a PyTorch file", "torch.onnx.export"),
    "net.keras": (zipped("metadata.json", "config.json"), "a Keras model", "from_keras"),
    "net.h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "an HDF5 file", "from_keras"),
    "net.zip": (zipped("net.onnx"), "a zip archive", "unzip net.zip"),
    "x y.npz": (npz(), "an .npz archive of arrays", "qrun MODEL -i 'x y.npz'"),
    "graph.pb": (GRAPH_DEF, "a frozen TensorFlow graph", "--graphdef graph.pb"),
    "saved_model.pb": (b"\x08\x01\x12" + field(1, b"\x12\x00")[1:2] + b"\n\x02\x12\x00", "a TensorFlow SavedModel",
                       "--saved-model FOLDER"),
    "w.safetensors": (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4), "a safetensors file of weights without a network", "torch.onnx"),
    "llm.gguf": (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file", "export the network"),
    "net.engine": (b"ftrt" + bytes(40), "a TensorRT engine", "built from"),
    "net.tar": (b"net.onnx".ljust(257, b"\0") + b"ustar\x0000", "a tar archive", "tar xf net.tar"),
    "net.7z": (b"7z\xbc\xaf\x27\x1c" + bytes(40), "a 7z archive", "7z x net.7z"),
    "net.onnx.gz": (b"\x1f\x8b\x08" + bytes(40), "gzip data", "gunzip"),
    "net.onnx.zst": (b"\x28\xb5\x2f\xfd" + bytes(40), "zstd data", "unzstd"),
    "net.json": (b'{"a": "8"}', "a JSON file", "name the .onnx file"),
    "pointer.onnx": (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 24536789\n",
                     "a Git LFS pointer", "git lfs pull --include pointer.onnx"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_of_another_format(name: str, folder: Path) -> None:
    data, kind, fix = OTHERS[name]
    (folder / name).write_bytes(data)
    for command in ("run", "check", "inspect"):
        ended = call(command, name)
        assert ended.code == (1 if command == "check" else 3), ended.err
        shown = " ".join((ended.out + ended.err).split())
        assert f"{name} is {kind}" in shown, shown
        assert command == "check" or fix in shown, shown


@pytest.mark.filterwarnings("ignore:The onnxtxt format is experimental")
@pytest.mark.parametrize("format", ["textproto", "onnxtxt", "json"])
def test_a_model_as_text(format: str, folder: Path) -> None:
    """The printed line of Python makes a model of the file."""
    onnx.save(MODEL, "m.txt", format=format)
    ended = call("run", "m.txt")
    assert (ended.code, "m.txt is an ONNX model as text" in ended.err) == (3, True), ended.err
    fix = next(line for line in ended.err.splitlines() if "fix:" in line).partition("fix: ")[2]
    exec(fix.partition(" in Python")[0], {"onnx": onnx})
    assert load(folder / "model.onnx").outputs[0].name == "y"


FOREIGN = {
    "com.amd.quark": ("ExtendedQuantizeLinear", "AMD Quark", "quant_format=QuantFormat.QDQ"),
    "com.vai.quantize": ("VitisQuantizeLinear", "Vitis AI", "quant_format=QuantFormat.QDQ"),
    "aimet.customop.cpu": ("QcQuantizeOp", "AIMET", "to_onnx_qdq()"),
    "trt": ("TRT_INT4QuantizeLinear", "TensorRT", "opset 21 for int4"),
    "org.openvinotoolkit": ("FakeQuantize", "OpenVINO", "nncf.quantize"),
    "com.microsoft.nchwc": ("Conv", "onnxruntime's optimizer", "ORT_ENABLE_EXTENDED"),
    "ai.onnx.contrib": ("BertTokenizer", "onnxruntime-extensions", "export the network without"),
}


def foreign(domain: str, imported: bool) -> onnx.ModelProto:
    model = onnx.ModelProto()
    model.CopyFrom(MODEL)
    model.graph.node[0].domain, model.graph.node[0].op_type = domain, FOREIGN[domain][0]
    if imported:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


@pytest.mark.parametrize("imported", [True, False])
@pytest.mark.parametrize("domain", FOREIGN)
def test_a_domain_of_another_tool(domain: str, imported: bool) -> None:
    _, writer, instead = FOREIGN[domain]
    onnx.save(foreign(domain, imported), "m.onnx")
    for words in (["run", "m.onnx"], ["check", "m.onnx", "-v"]):
        ended = call(*words)
        shown = " ".join((ended.out + ended.err).split())
        assert re.search(f"domain '{domain}' belongs to [^;]*{writer}", shown), shown
        assert instead in shown, shown
        assert "did you mean" not in shown
    assert ("--backend ort" in call("run", "m.onnx").err) == (imported and domain == "com.microsoft.nchwc")


def test_the_model_that_onnxruntime_saves_at_the_named_level_runs(folder: Path) -> None:
    """ORT_ENABLE_EXTENDED, which the fix names, writes no operators of com.microsoft.nchwc, as ORT_ENABLE_ALL does."""
    import onnxruntime

    weights = helper.make_tensor("w", TensorProto.FLOAT, [16, 16, 3, 3], np.ones(16 * 16 * 9))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, n, n]) for name, n in (("x", 8), ("y", 6))]
    graph = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", values[:1], values[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    for level, code in (("ORT_ENABLE_ALL", 4), ("ORT_ENABLE_EXTENDED", 0)):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(folder / "saved.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        assert call("run", "saved.onnx").code == code
        if code:
            assert call("run", "saved.onnx", "--backend", "ort").code == 0


NOWHERE = foreign("com.amd.quark", False)
CIRCLE = onnx.ModelProto()
CIRCLE.CopyFrom(MODEL)
CIRCLE.graph.node[0].name, CIRCLE.graph.node[0].input[0] = "act", "nowhere"


@pytest.mark.parametrize(("model", "place"), [(NOWHERE, "ExtendedQuantizeLinear_0"), (CIRCLE, "act")])
def test_check_names_the_node_that_the_loader_refuses(model: onnx.ModelProto, place: str) -> None:
    """As qrun run does: QR102 and QR105."""
    onnx.save(model, "m.onnx")
    op = model.graph.node[0].op_type
    assert f"--> m.onnx  node {place} ({op})" in call("run", "m.onnx").err
    assert f"--> m.onnx  node {place} ({op})" in call("check", "m.onnx", "-v").out
