"""qrun export: the C program agrees with the vectors and sees every change; files read back as the model's tensors."""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.exports import COMPILERS, DIGITS, SCHEMA, export, read, run_c, split, tensors
from helpers.quantized_graphs import random_quantized
from onnx import TensorProto, helper, numpy_helper

from qrun.exporting.ratios import simplest

Array = np.ndarray[Any, Any]


@pytest.fixture(params=COMPILERS or [None])
def compiler(request: pytest.FixtureRequest) -> str:
    """Each C compiler of this machine."""
    if request.param is None:
        pytest.skip("no C compiler is installed")
    return str(request.param)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "dynamic"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_the_program_passes(form: str, layout: str, compiler: str, tmp_path: Path) -> None:
    made = export(DIGITS / form / "model.onnx", tmp_path, "--as", "c", "--layout", layout, "--vectors", "2")
    code, lines = run_c(tmp_path, compiler)
    assert code == 0
    assert lines == [f"PASS {layer['name']}" for layer in made["layers"]]
    assert len(lines) == (5 if form == "dynamic" else 8)


@pytest.mark.parametrize("family", ["tfl-halfup2", "tfl-single", "rndnu", "tract", "q8-up", "pot-even", "pot-cut"])
def test_the_program_passes_in_each_family(family: str, tmp_path: Path) -> None:
    if not COMPILERS:
        pytest.skip("no C compiler is installed")
    export(DIGITS / "qoperator" / "model.onnx", tmp_path, "--as", "c", "--requantize", family)
    code, lines = run_c(tmp_path)
    assert (code, len(lines)) == (0, 8), lines


@pytest.mark.parametrize("seed", range(8))
def test_the_program_passes_for_random_graphs(seed: int, tmp_path: Path) -> None:
    if not COMPILERS:
        pytest.skip("no C compiler is installed")
    onnx.save(random_quantized(seed), tmp_path / "m.onnx")
    family = ("tfl-double", "rndnu", "pot-up", "tract")[seed % 4]
    layout = ("nchw", "nhwc")[seed // 4]
    words = ("--as", "c", "--requantize", family, "--layout", layout)
    ended = call("export", tmp_path / "m.onnx", "-o", tmp_path / "out", *words)
    if ended.code == 1:
        assert "nothing written" in ended.out
        return
    assert ended.code == 0, ended.err
    code, lines = run_c(tmp_path / "out")
    assert code == 0, lines


@pytest.mark.parametrize(
    ("layer", "array"),
    [
        ("Conv_dw.raw", "weights_0_codes"),
        ("Conv_dw.raw", "input_0_codes"),
        ("Conv_pw.raw", "multiplier"),
        ("Conv_c2.raw", "accumulators"),
        ("Gemm_logits", "output_0_codes"),
        ("Add_sum", "output_0_codes"),
        ("MaxPool_pool", "output_0_codes"),
        ("AveragePool_mean", "output_0_codes"),
    ],
)
def test_a_changed_number_fails(layer: str, array: str, tmp_path: Path) -> None:
    if not COMPILERS:
        pytest.skip("no C compiler is installed")
    made = export(DIGITS / "qdq" / "model.onnx", tmp_path, "--as", "c")
    name = next(each["identifier"] for each in made["layers"] if each["name"] == layer)
    path = tmp_path / f"{name}.h"
    text = path.read_text(encoding="ascii")
    head, values, rest = split(text, array)
    numbers = re.findall(r"-?\d+(?:LL)?", values)
    # the middle of the array: weights at a border may meet only padding, and a multiplier changes by a half
    at = len(numbers) // 2
    value, ending = int(numbers[at].removesuffix("LL")), "LL" * numbers[at].endswith("LL")
    numbers[at] = f"{value // 2 if array == 'multiplier' else value ^ 1}{ending}"
    path.write_text(head + ", ".join(numbers) + rest, encoding="ascii")
    code, lines = run_c(tmp_path)
    assert code == 1
    failed = [line for line in lines if line.startswith("FAIL ")]
    assert len(failed) == 1
    assert failed[0].startswith(f"FAIL {layer}: sample 0, ")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("form", ["raw", "hex", "json"])
def test_files_hold_the_model_s_weights_and_a_run_s_codes(form: str, layout: str, tmp_path: Path) -> None:
    """Weights and bias are the initializers; accumulators state their layout."""
    path = DIGITS / "qoperator" / "model.onnx"
    made = export(path, tmp_path, "--as", form, "--layout", layout)
    stored = {each.name: numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}
    seen = set()
    for layer, tensor in tensors(made):
        value = np.array(tensor["values"], tensor["dtype"]) if form == "json" else read(tmp_path, tensor, form)
        assert hashlib.sha256(value.tobytes()).hexdigest() == tensor["sha256"]
        assert list(value.shape) == tensor["shape"]
        if tensor["role"] in ("weights", "bias"):
            seen.add(layer["name"])
            turned = tensor["layout"] == "OHWI"
            assert turned == (layout == "nhwc" and tensor["role"] == "weights" and value.ndim == 4)
            np.testing.assert_array_equal(value.transpose(0, 3, 1, 2) if turned else value, stored[tensor["tensor"]])
        if tensor["role"] == "accumulators" and layer["kind"] == "conv":
            assert tensor["layout"] == ("NHWC" if layout == "nhwc" else "NCHW")
    assert len(seen) == 5


def test_sums_and_codes_are_those_of_plain_loops(tmp_path: Path) -> None:
    """The pointwise convolution: sums by a matrix product of int64, codes by TFLite's two roundings in Python's
    integers."""
    made = export(DIGITS / "qdq" / "model.onnx", tmp_path, "--as", "raw", "--layout", "nhwc", "--vectors", "3")
    layer = next(each for each in made["layers"] if each["name"] == "Conv_pw.raw")
    by = {each["role"]: read(tmp_path, each, "raw") for each in layer["tensors"]}
    about = {each["role"]: each["quantization"] for each in layer["tensors"]}
    x = by["input_0"].astype(np.int64) - about["input_0"]["zero_point"][0]
    sums = x @ by["weights"].reshape(32, 16).astype(np.int64).T + by["bias"]
    np.testing.assert_array_equal(by["accumulators"], sums)
    zero, low, high = about["output"]["zero_point"][0], 0, 255
    assert by["multiplier"].size == 32
    for code, total, channel in zip(
        by["output"].ravel(), sums.ravel(), np.tile(np.arange(32), sums.size), strict=False
    ):
        raised = int(total) << int(by["shift_left"][channel])
        first = (raised * int(by["multiplier"][channel]) + (1 << 30)) >> 31
        right = int(by["shift_right"][channel])
        size = (abs(first) + (1 << right >> 1)) >> right
        assert code == min(max((size if first >= 0 else -size) + zero, low), high)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    for form in ("c", "raw", "hex", "json"):
        for name in ("a", "b"):
            export(DIGITS / "qdq" / "model.onnx", tmp_path / form / name, "--as", form)
        first, second = (
            {path.name: path.read_bytes() for path in (tmp_path / form / name).iterdir()} for name in ("a", "b")
        )
        assert first == second


def hostile(names: list[str]) -> onnx.ModelProto:
    """A chain of QLinearConv with these node names."""
    kinds = {"s": np.float32(0.5), "z": np.uint8(3), "w": np.ones((1, 1, 1, 1), np.uint8)}
    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in kinds.items()]
    ends = [helper.make_tensor_value_info(name, TensorProto.UINT8, [1, 1, 2, 2]) for name in ("x", f"t{len(names)}")]
    nodes = []
    for at, name in enumerate(names):
        source = f"t{at}" if at else "x"
        nodes.append(helper.make_node("QLinearConv", [source, "s", "z", "w", "s", "z", "s", "z"], [f"t{at + 1}"], name))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_names_that_are_no_identifiers(tmp_path: Path) -> None:
    names = ["../../etc/x", "a/b", "a:b", "\U0001f600 é", 'x"; */ %s ??/', "int", "n" * 5000, "9"]
    onnx.save(hostile(names), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.uint8).reshape(1, 1, 2, 2))
    made = export(tmp_path / "m.onnx", tmp_path / "out", "--as", "c", x=tmp_path / "x.npy")
    assert [layer["name"] for layer in made["layers"]] == names
    used = [layer["identifier"] for layer in made["layers"]]
    assert len(set(map(str.lower, used))) == len(names)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,60}", each) for each in used)
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {*(f"{each}.h" for each in used), "main.c", "manifest.json", "qrun_reference.c", "qrun_reference.h"}
    if COMPILERS:
        code, lines = run_c(tmp_path / "out")
        assert (code, len(lines)) == (0, len(names))


def test_what_is_not_exported_is_named(tmp_path: Path) -> None:
    made = export(DIGITS / "qdq" / "model.onnx", tmp_path, "--as", "raw", "--layers", "Conv_*", "--layers", "QGemm")
    assert [layer["op"] for layer in made["layers"]] == ["QLinearConv"] * 4 + ["com.microsoft::QGemm"]
    reasons = {each["name"]: each["reason"] for each in made["remaining"]}
    assert reasons["Add_sum"] == "--layers leaves it out"
    assert reasons["Flatten_features"] == "moves codes and computes nothing"
    assert reasons["images_QuantizeLinear"] == "converts between floats and codes"


def test_samples_are_sets_or_rows(tmp_path: Path) -> None:
    images = np.load(DIGITS / "x.npy")
    (tmp_path / "in").mkdir()
    for at in range(3):
        np.save(tmp_path / "in" / f"{at}.npy", images[at : at + 1])
    model = DIGITS / "qdq" / "model.onnx"
    sets = export(model, tmp_path / "a", "--as", "raw", "--vectors", "2", x=tmp_path / "in")
    rows = export(model, tmp_path / "b", "--as", "raw", "--vectors", "2")
    for (_, one), (_, two) in zip(tensors(sets), tensors(rows), strict=True):
        first, second = read(tmp_path / "a", one, "raw"), read(tmp_path / "b", two, "raw")
        if one["samples"]:
            assert first.shape[0] == 2
            assert second.shape[0] == 1
        np.testing.assert_array_equal(first.ravel(), second.ravel())


def test_bad_input(tmp_path: Path) -> None:
    model, out = DIGITS / "qdq" / "model.onnx", tmp_path / "out"
    ended = call("export", DIGITS / "float" / "model.onnx", "-i", DIGITS / "x.npy", "-o", out, "--as", "c")
    assert ended.code == 1
    assert "no quantized layer" in ended.out
    assert not out.exists()
    for words, text in [
        (["--as", "c", "--layers", "Conv_q*"], "--layers Conv_q*: no layer matches"),
        (["--as", "c", "--requantize", "fp32"], "it needs floats"),
        (["--as", "verilog"], "verilog"),
        (["--as", "c", "--vectors", "0"], "--vectors"),
        ([], "--as"),
    ]:
        ended = call("export", model, "-i", DIGITS / "x.npy", "-o", out, *words)
        assert ended.code == 2, words
        assert text in ended.err
        assert not out.exists()
    (tmp_path / "file").write_text("x", encoding="ascii")
    ended = call("export", model, "-i", DIGITS / "x.npy", "-o", tmp_path / "file", "--as", "c")
    assert ended.code == 2
    assert "a file of that name exists" in ended.err


def test_more_than_a_gigabyte_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrun.exporting.export.LARGE", 1000)
    words = ("export", DIGITS / "qdq" / "model.onnx", "-i", DIGITS / "x.npy", "-o", tmp_path / "out", "--as", "c")
    ended = call(*words)
    assert ended.code == 2
    assert "add --large" in ended.err
    assert not (tmp_path / "out").exists()
    assert call(*words, "--large").code == 0


def test_json_is_as_the_schema_says(tmp_path: Path) -> None:
    ended = call(
        "export", DIGITS / "qdq" / "model.onnx", "-i", DIGITS / "x.npy", "-o", tmp_path, "--as", "hex", "--json"
    )
    jsonschema.validate(ended.json, SCHEMA)
    assert set(ended.json["files"]) == {path.name for path in tmp_path.iterdir()}
    assert ended.json["bytes"] == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_small_fractions_round_as_the_ratio_does() -> None:
    rng = np.random.default_rng(7)
    for _ in range(60):
        ratio = Fraction(float(np.float32(np.exp(rng.uniform(-9, 3))))) / Fraction(
            float(np.float32(rng.uniform(0.1, 3)))
        )
        found = simplest(ratio, 255)
        assert found.denominator <= 4 * 255 + 1
        assert all(round(value * found) == round(value * ratio) for value in range(-255, 256))
    assert simplest(Fraction(3, 2), 255) == Fraction(3, 2)


def test_a_layer_of_codes_alone_can_be_chosen(tmp_path: Path) -> None:
    made = export(DIGITS / "qdq" / "model.onnx", tmp_path, "--as", "raw", "--layers", "MaxPool")
    assert [layer["op"] for layer in made["layers"]] == ["MaxPool"]


def test_samples_of_a_model_that_reads_codes(tmp_path: Path) -> None:
    onnx.save(hostile(["a", "b"]), tmp_path / "m.onnx")
    (tmp_path / "in").mkdir()
    for at in range(3):
        np.save(tmp_path / "in" / f"{at}.npy", np.full((1, 1, 2, 2), at, np.uint8))
    made = export(tmp_path / "m.onnx", tmp_path / "out", "--as", "raw", "--vectors", "3", x=tmp_path / "in")
    first = next(each for each in made["layers"][0]["tensors"] if each["role"] == "input_0")
    assert first["shape"] == [3, 1, 1, 2, 2]
    assert read(tmp_path / "out", first, "raw")[:, 0, 0, 0, 0].tolist() == [0, 1, 2]
