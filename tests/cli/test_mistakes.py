"""The mistakes that people make, and files that qrun cannot read or run: each gets words of its own, and what to do."""

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
from helpers.cli import Ended, call, conv_model, npy, quantize_model, save, says, sum_model, value
from helpers.models import make_model
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from qrun.ir.load import load
from qrun.ir.schema import VENDORS


def failed(code: int, rule: str, *words: str, model: str = "m.onnx", inputs: tuple[str, ...] = ()) -> Ended:
    ended = call(model, *(w for spec in inputs for w in ("-i", spec)), "--json")
    assert ended.code == code, ended.err
    assert ended.json["error"]["code"] == rule, ended.err
    for word in words:
        assert word in ended.err, (word, ended.err)
    assert len(ended.err.splitlines()) <= 12
    assert ended.err.startswith(("error ", "note: "))
    return ended


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(conv_model(), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros((1, 3, 8, 8), np.uint8))


def test_missing_input(folder: Path) -> None:
    save(
        sum_model(["input_ids", "attention_mask", "token_type_ids"], TensorProto.INT64, ("N", "seq")), folder / "m.onnx"
    )
    npy(folder / "ids.npy", np.zeros((1, 4), np.int64))
    ended = failed(2, "QR001", inputs=("input_ids=ids.npy",))
    assert ended.err.splitlines() == [
        "error QR001 missing-input: input 'attention_mask' and 1 more were not given",
        "  --> m.onnx  input attention_mask, int64 [N,seq]",
        "   |  given   input_ids (ids.npy)",
        "   |  missing attention_mask, token_type_ids",
        "   =  fix: add -i attention_mask=FILE -i token_type_ids=FILE",
        "   =  fix: or --random to fill the missing ones with random data",
    ]


def test_misspelled_input() -> None:
    failed(2, "QR002", "the model has no input 'imgae'", "did you mean -i image=x.npy?", inputs=("imgae=x.npy",))


def test_float64_for_float32(folder: Path) -> None:
    save(quantize_model(), folder / "m.onnx")
    npy(folder / "x.npy", np.zeros(3))
    failed(2, "QR003", "x.npy does not fit input 'x'", "expected float32 [N]", "got      float64 [3]", "x.astype(np.float32)",
           inputs=("x.npy",))  # fmt: skip


def test_nhwc_for_nchw(folder: Path) -> None:
    npy(folder / "x.npy", np.zeros((1, 8, 8, 3), np.uint8))
    failed(2, "QR003", "the axes look NHWC: np.transpose(x, (0, 3, 1, 2)) fits", inputs=("x.npy",))


def test_unknown_operator(folder: Path) -> None:
    model = sum_model()
    model.graph.node[0].op_type = "MaxPoolX"
    save(model, folder / "m.onnx")
    failed(4, "QR201", "qrun cannot run 1 operator of this model", "MaxPoolX 1 node, first add0",
           "did you mean MaxPool instead of MaxPoolX?")  # fmt: skip
    assert "--backend ort" not in call("m.onnx").err
    model.graph.node[0].op_type = "AttnLSTM"
    model.graph.node[0].domain = "com.microsoft"
    save(model, folder / "m.onnx")
    failed(4, "QR201", "--backend ort")


def test_an_operator_that_the_opset_does_not_have_yet(folder: Path) -> None:
    model = sum_model()
    model.graph.node[0].op_type = "Gelu"
    model.opset_import[0].version = 18
    save(model, folder / "m.onnx")
    failed(4, "QR201", "import opset 20 or later, which has Gelu")
    assert "did you mean" not in call("m.onnx").err


def test_custom_domain(folder: Path) -> None:
    model = sum_model()
    model.graph.node[0].domain = "com.acme"
    save(model, folder / "m.onnx")
    failed(3, "QR105", "node uses domain 'com.acme', which is not imported", "clear node.domain")
    model.opset_import.add(domain="com.acme", version=1)
    save(model, folder / "m.onnx")
    failed(4, "QR201", "com.acme::Add", "is not one that qrun knows")


def test_half_a_model(folder: Path) -> None:
    whole = (folder / "m.onnx").read_bytes()
    (folder / "m.onnx").write_bytes(whole[: len(whole) // 2])
    failed(3, "QR101", "m.onnx ends in the middle of a field")


def test_short_external_data(folder: Path) -> None:
    model = conv_model()
    external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "m.onnx")
    data = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").write_bytes(data[: len(data) // 2])
    failed(3, "QR104", "weights.bin is shorter than the model says", "copy weights.bin again")
    (folder / "weights.bin").unlink()
    failed(3, "QR104", "weights.bin")


@pytest.mark.parametrize("way", [["m.onnx"], ["-"], ["m.onnx", "--nodes"]])
def test_inspect_does_without_external_data(folder: Path, way: list[str]) -> None:
    model = conv_model()
    whole = call("inspect", "-", *way[1:], stdin=model.SerializeToString()).out
    external_data_helper.convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, folder / "m.onnx")
    (folder / "weights.bin").unlink()
    ended = says(
        call("inspect", *way, stdin=(folder / "m.onnx").read_bytes()), 0, "QR104: external data missing: weights.bin"
    )
    if "--nodes" in way:
        assert ended.out == whole
    else:
        assert "no: external data missing: weights.bin" in ended.out
        assert ended.out.partition("Inputs and outputs")[2].partition("graph view")[0].strip() == (
            whole.partition("Inputs and outputs")[2].partition("graph view")[0].strip()
        )
    answer = call("inspect", way[0], "--json", stdin=(folder / "m.onnx").read_bytes()).json
    assert answer["model"]["external_files"] == ["weights.bin"]
    asked = call("inspect", way[0], "-t", "w", stdin=(folder / "m.onnx").read_bytes())
    assert asked.code == 3, "values were shown that nothing tells"
    assert "QR104" in asked.err


@pytest.mark.parametrize(
    ("change", "rule", "words"),
    [
        ({"w_scale": np.ones(3, np.float32)}, "QR301", ["w_scale", "[16]", "[3]"]),
        ({"x_zp": np.int8(0)}, "QR303", ["int8", "uint8"]),
        ({"b": np.zeros(3, np.int32)}, "QR305", ["[16]", "[3]"]),
    ],
)
def test_parameters_that_contradict(folder: Path, change: dict[str, object], rule: str, words: list[str]) -> None:
    save(conv_model(**change), folder / "m.onnx")
    ended = call("m.onnx", "-i", "x.npy", "--json")
    assert ended.code == 5, ended.err
    for word in words:
        assert word in ended.err
    assert ended.json["error"]["code"][:3] in ("QR2", "QR3")
    from qrun import check

    assert rule in [f.rule for f in check(folder / "m.onnx")]


@pytest.mark.parametrize("zero", [np.int8(0), np.zeros(1, np.int8)])
def test_zero_point_of_another_shape_than_its_scale(folder: Path, zero: object) -> None:
    node = helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["y"], axis=0)
    io = [value("x", TensorProto.INT8, (4, 2))], [value("y", TensorProto.FLOAT, None)]
    save(make_model([node], *io, {"scale": np.ones(4, np.float32), "zero": zero}, 13), folder / "m.onnx")
    says(call("m.onnx", "--json"), 5, "scale", "[4]")


@pytest.mark.parametrize("scale", [0.0, np.nan, -0.5])
def test_scales_that_are_legal_but_wrong(folder: Path, scale: float) -> None:
    save(conv_model(y_scale=np.float32(scale)), folder / "m.onnx")
    ended = call("m.onnx", "-i", "x.npy", "--json")
    assert ended.code == 0, ended.err
    assert "QR306" in [f["rule"] for f in ended.json["findings"]]
    assert "QR306" in call("m.onnx", "-i", "x.npy").out


@pytest.mark.parametrize(("zero", "became"), [(np.uint8(0), None), (np.int8(0), None)])
def test_nan_input_is_a_warning(folder: Path, zero: object, became: int | None) -> None:
    save(quantize_model(zero=zero), folder / "m.onnx")
    npy(folder / "x.npy", np.array([np.nan, 1, 2], np.float32))
    ended = call("m.onnx", "-i", "x.npy", "--json")
    assert ended.code == 0, ended.err
    (finding,) = [f for f in ended.json["findings"] if f["rule"] == "QR401"]
    assert finding["level"] == "warning"
    assert "1 of 3" in finding["got"] + finding["message"]
    assert ended.json["outputs"][0]["values"][1:] == [2, 4]


def test_infinity_saturates(folder: Path) -> None:
    save(quantize_model(), folder / "m.onnx")
    ended = call("m.onnx", "-i", "x=[Infinity, -Infinity]", "--json")
    assert ended.json["outputs"][0]["values"] == [255, 0]


def test_memory_limit(folder: Path) -> None:
    says(call("m.onnx", "--shape", "N=64", "--max-memory", "10kB", "--json"), 5, "QR010 memory-limit", "allowed")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (["-i", "image", "=", "x.npy"], "QR000", "did you mean -i image=x.npy?"),
        (["-i", "image=", "x.npy"], "QR000", "did you mean -i image=x.npy?"),
        (["-i", "image", "=x.npy"], "QR000", "did you mean -i image=x.npy?"),
        (["x.npy", "y.npy"], "QR000", "did you mean -i x.npy -i y.npy?"),
        (["-i", "=x.npy"], "QR005", "did you mean -i image=x.npy?"),
        (["-i", "image=[a,b]"], "QR005", "quote strings in the list"),
        (["-i", "image=m.onnx"], "QR007", "qrun compare A B"),
        (["-i", "image=t.csv"], "QR007", "np.loadtxt"),
        (["-i", "image=t.json"], "QR007", "takes the values themselves"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_ways_to_name_a_file(folder: Path, words: list[str], code: str, expected: str) -> None:
    for name in ("t.csv", "t.json"):
        (folder / name).write_text("[1,2]\n")
    ended = call("m.onnx", *words, "--json")
    assert (ended.code, ended.json["error"]["code"]) == (2, code), ended.err
    assert expected in " ".join(ended.err.split())


def test_two_inputs_in_one_option(folder: Path) -> None:
    save(sum_model(["a", "b"], TensorProto.INT64, ("N",)), folder / "m.onnx")
    failed(2, "QR005", "-i takes one input", "did you mean -i a=x.npy -i b=y.npy?", inputs=("a=x.npy,b=y.npy",))


def test_many_inputs_are_counted(folder: Path) -> None:
    save(sum_model([f"in{n}" for n in range(40)], TensorProto.INT64, ("N",)), folder / "m.onnx")
    failed(2, "QR001", "in12 and 27 more", inputs=("x.npy",))
    failed(2, "QR002", "in11 and 28 more", inputs=("y=x.npy",))


def test_a_model_without_inputs(folder: Path) -> None:
    model = sum_model(["a"])
    del model.graph.input[:]
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "a"))
    save(model, folder / "m.onnx")
    failed(2, "QR002", "no input is left for x.npy", "qrun m.onnx runs it without", inputs=("x.npy",))
    ended = call("eval", "m.onnx", "-i", "x.npy", "--labels", "x.npy", "--json")
    assert "the model has no inputs" in ended.err


def test_text_has_no_random_data(folder: Path) -> None:
    save(sum_model(["a"], TensorProto.STRING, (2,)), folder / "m.onnx")
    ended = failed(2, "QR001", "has text", "-i a=FILE")
    assert "--shape" not in ended.err


def test_an_output_of_another_type_names_its_node(folder: Path) -> None:
    model = sum_model()
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    save(model, folder / "m.onnx")
    failed(5, "QR203", "node 0 add0 (Add-", "output ")


def test_a_node_without_an_operator(folder: Path) -> None:
    model = sum_model()
    model.graph.node[0].op_type = ""
    save(model, folder / "m.onnx")
    failed(4, "QR201", "no op_type 1 node, first add0")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["check", "m.onnx", "-i", "x.npy"], "-i is an option of qrun run, qrun profile"),
        (["m.onnx", "--against", "ort"], "--against is an option of qrun profile, qrun compare"),
        (["m.onnx", "--thread", "2"], "did you mean"),
        (["m.onnx", "--nonsense"], "qrun run -h"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_options_of_other_commands(words: list[str], expected: str) -> None:
    says(call(*words), 2, f"=  fix: {expected}")


def test_a_folder_or_a_file_in_place_of_a_command(folder: Path) -> None:
    (folder / "zoo").mkdir()
    save(conv_model(), folder / "zoo" / "m.onnx")
    save(conv_model(), folder / "net")
    assert "fix: did you mean qrun check ./zoo, all models in that folder?" in call("zoo").err
    assert "fix: did you mean qrun ./net, the file of that name?" in call("net").err
    assert call("check", "./zoo").code in (0, 1)


def test_random_data_that_takes_too_much_names_the_model() -> None:
    says(call("m.onnx", "--max-memory", "1"), 5, "--> m.onnx  input image")


def test_a_runtime_that_there_is_not() -> None:
    assert "did you mean --runtime onnx-ref?" in call("conform", "--runtime", "onnx-reff").err


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "m.onnx", "-i", "x.npy", "--against"),
        ("eval", "m.onnx", "-i", "x.npy", "--against"),
        ("profile", "m.onnx", "--against"),
        ("run", "m.onnx", "--backend"),
        ("conform", "--runtime"),
    ],
    ids=str,
)
def test_the_full_name_of_a_runtime_is_understood(words: tuple[str, ...]) -> None:
    ended = call(*words, "onnxruntime")
    assert ended.code == 2
    assert re.search(r"did you mean ('ort'|--(runtime|against) ort)\?", ended.err), ended.err


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
    "settings.zip": (zipped("config.json"), "a zip archive", "unzip settings.zip"),
    "x y.npz": (npz(), "an .npz archive of arrays", "qrun MODEL -i 'x y.npz'"),
    "graph.pb": (GRAPH_DEF, "a frozen TensorFlow graph", "--graphdef graph.pb"),
    "saved_model.pb": (b"\x08\x01\x12" + field(1, b"\x12\x00")[1:2] + b"\n\x02\x12\x00", "a TensorFlow SavedModel",
                       "--saved-model FOLDER"),
    "w.safetensors": (struct.pack("<Q", len(HEADER)) + HEADER + bytes(4), "a safetensors file of weights without a network", "torch.onnx"),
    "llm.gguf": (b"GGUF\x03\0\0\0" + bytes(40), "a GGUF file", "export the network"),
    "net.engine": (b"ftrt" + bytes(40), "a TensorRT engine", "built from"),
    "empty.onnx": (b"", "empty", ""),
    "x.npy": (b"\x93NUMPY\x01\x00", "a .npy array, not a model", "qrun MODEL -i x.npy"),
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
    for command in ("run", "check", "inspect", "profile"):
        ended = call(command, name)
        assert ended.code == (1 if command == "check" else 3), ended.err
        shown = " ".join((ended.out + ended.err).split())
        assert f"{name} is {kind}" in shown, shown
        assert "QR101" in shown
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
    "com.amd.quark": ("ExtendedLSTM", "AMD Quark", "quant_format=QuantFormat.QDQ"),
    "com.vai.quantize": ("VitisLSTM", "Vitis AI", "quant_format=QuantFormat.QDQ"),
    "mct_quantizers": ("Quantizer", "Model Compression Toolkit", "QuantizationFormat.FAKELY_QUANT"),
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
    runs = domain in VENDORS
    onnx.save(foreign(domain, imported), "m.onnx")
    for words in (["run", "m.onnx"], ["check", "m.onnx", "-v"]):
        ended = call(*words)
        shown = " ".join((ended.out + ended.err).split())
        assert re.search(f"domain '{domain}' belongs to [^;]*{writer}", shown), shown
        assert (instead if imported or not runs else f"import {domain} with version 1") in shown, shown
        assert (f"qrun runs the operators that `qrun ops {domain}` lists" in shown) == runs, shown
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


@pytest.mark.parametrize("domain", ["com.amd.quark", "com.vai.quantize", "mct_quantizers"])
def test_the_operators_that_run_are_listed(domain: str) -> None:
    ended = call("ops", domain)
    assert (ended.code, ended.out.count(f"{domain}::") > 3) == (0, True), ended.out


NOWHERE = foreign("com.amd.quark", False)
CIRCLE = onnx.ModelProto()
CIRCLE.CopyFrom(MODEL)
CIRCLE.graph.node[0].name, CIRCLE.graph.node[0].input[0] = "act", "nowhere"


@pytest.mark.parametrize(("model", "place"), [(NOWHERE, "ExtendedLSTM_0"), (CIRCLE, "act")])
def test_check_names_the_node_that_the_loader_refuses(model: onnx.ModelProto, place: str) -> None:
    """As qrun run does: QR102 and QR105."""
    onnx.save(model, "m.onnx")
    op = model.graph.node[0].op_type
    assert f"--> m.onnx  node {place} ({op})" in call("run", "m.onnx").err
    assert f"--> m.onnx  node {place} ({op})" in call("check", "m.onnx", "-v").out
