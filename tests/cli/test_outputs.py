"""--output, --tensor and --trace: what is written, that it reads back, and what is refused."""

from __future__ import annotations

import io
import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model, deep_model, npy, npy_bytes, process, save, says, sum_model, value
from helpers.models import make_model, typed
from onnx import TensorProto, helper

X = np.random.default_rng(0).integers(0, 256, (1, 3, 8, 8)).astype(np.uint8)


@pytest.fixture(autouse=True)
def files(folder: Path) -> None:
    save(deep_model(3), folder / "deep.onnx")
    save(sum_model(), folder / "sum.onnx")
    npy(folder / "x.npy", X)


def test_npz_npy_and_folder_hold_the_same(folder: Path) -> None:
    for target in ("out.npz", "out.npy", "out/"):
        assert call("deep.onnx", "-i", "x.npy", "-o", target).code == 0
    wanted = np.load(folder / "out.npy")
    with np.load(folder / "out.npz") as arrays:
        assert list(arrays) == ["logits"]
        assert np.array_equal(arrays["logits"], wanted)
    tensor = onnx.load_tensor(folder / "out" / "output_0.pb")
    assert tensor.name == "logits"
    assert np.array_equal(onnx.numpy_helper.to_array(tensor), wanted)
    assert np.array_equal(onnx.numpy_helper.to_array(onnx.load_tensor(folder / "out" / "input_0.pb")), X)
    again = call("deep.onnx", "-i", "out", "--json")
    assert again.json["outputs"] == call("deep.onnx", "-i", "x.npy", "--json").json["outputs"]


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (("deep.onnx", "-i", "x.npy", "-o", "out.npz", "--trace", "t.json"), ["out.npz", "t.json"]),
        (("check", "deep.onnx", "-o", "a.xml", "-o", "b.sarif"), ["a.xml", "b.sarif"]),
        (("profile", "deep.onnx", "-i", "x.npy", "-n", "1", "--trace", "t.json"), ["t.json"]),
        (("conform", "--select", "known/qgemm", "--jobs", "1", "-o", "c.md"), ["c.md"]),
    ],
)
def test_the_last_lines_name_the_files_that_were_written(words: tuple[str, ...], written: list[str]) -> None:
    lines = call(*words).err.splitlines()
    assert lines[-len(written) :] == [f"wrote {file}" for file in written]
    assert "wrote" not in call(*words, "-q").err


def test_nothing_is_said_of_stdout() -> None:
    assert "wrote" not in process("deep.onnx", "-i", "x.npy", "-o", "-").err


@pytest.mark.parametrize("backend", ["ort", "onnx-ref"])
@pytest.mark.parametrize("element", ["FLOAT", "DOUBLE", "FLOAT16", "INT64"])
def test_outputs_of_other_runtimes_keep_their_type(folder: Path, backend: str, element: str) -> None:
    pytest.importorskip("onnxruntime")
    number = getattr(TensorProto, element)
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=number)]
    save(make_model(nodes, {"x": typed(TensorProto.UINT8, [4])}, {"y": typed(number, [4])}), folder / "cast.onnx")
    codes = np.arange(4, dtype=np.uint8)
    npy(folder / "codes.npy", codes)
    ended = call("cast.onnx", "-i", "codes.npy", "--backend", backend, "-o", "y.npz", "-t", "y")
    assert ended.code == 0, ended.err
    with np.load(folder / "y.npz") as arrays:
        assert arrays["y"].dtype == helper.tensor_dtype_to_np_dtype(number)
        assert np.array_equal(arrays["y"], codes)
    assert "as uint" not in ended.err
    assert call("compare", "y.npz", "y.npz").code == 0


def test_same_bytes_each_time(folder: Path) -> None:
    for name in ("a.npz", "b.npz"):
        call("deep.onnx", "-i", "x.npy", "-o", name)
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()


def test_stdout_takes_npy_and_nothing_else(folder: Path) -> None:
    ended = call("deep.onnx", "-i", "x.npy", "-o", "-")
    assert ended.code == 0
    stream = io.BytesIO(ended.raw)
    assert np.load(stream).shape == (1, 3, 8, 8)
    assert stream.read() == b""
    many = call("deep.onnx", "-i", "x.npy", "-o", "-", "-t", "*features.0*")
    stream = io.BytesIO(many.raw)
    assert np.load(stream).shape == np.load(stream).shape
    assert stream.read() == b""
    says(call("deep.onnx", "-i", "x.npy", "-o", "-", "--json"), 2, "both JSON and tensors")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_chain_of_processes(folder: Path, unbuffered: str) -> None:
    """Standard output is a pipe, buffered by Python or not."""
    first = process(
        "deep.onnx", "-i", "-", "-o", "-", stdin=npy_bytes(X), cwd=folder, env={"PYTHONUNBUFFERED": unbuffered}
    )
    assert first.code == 0, first.err
    second = process("deep.onnx", "-i", "-", "--json", stdin=first.raw, cwd=folder)
    assert second.code == 0, second.err
    assert second.json["inputs"][0]["source"] == "stdin"


def test_tensors_by_pattern(folder: Path) -> None:
    ended = call("deep.onnx", "-i", "x.npy", "-t", "*features.1*", "-o", "t.npz", "--json")
    names = [o["name"] for o in ended.json["outputs"]]
    assert names == ["logits", "/features/features.1/conv/conv.1/conv.0/Conv_output_0_quantized"]
    with np.load(folder / "t.npz") as arrays:
        assert sorted(arrays) == sorted(names)
    assert call("deep.onnx", "-i", "x.npy", "-t", "*features.1*", "-o", "t/").code == 0
    assert onnx.load_tensor(folder / "t" / "tensor_0.pb").name == names[1]
    stored = call("deep.onnx", "-i", "x.npy", "-t", "w", "--json")
    assert [o["name"] for o in stored.json["outputs"]] == ["logits", "w"]


def test_a_name_with_brackets_is_no_pattern(folder: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["a[0]"]), helper.make_node("Identity", ["a[0]"], ["y"])]
    model = make_model(nodes, {"x": (1,)}, {"y": (1,)})
    save(model, folder / "odd.onnx")
    assert [o["name"] for o in call("odd.onnx", "-t", "a[0]", "--json").json["outputs"]] == ["y", "a[0]"]


def test_no_match_names_near_ones() -> None:
    ended = call("deep.onnx", "-i", "x.npy", "-t", "logit_", "--json")
    assert ended.code == 2
    assert ended.json["error"]["code"] == "QR006"
    assert "did you mean logits" in ended.err


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("missing/out.npz", "QR008", "'missing' does not exist"),
        ("missing/out.npz", "QR008", "mkdir -p missing"),
        ("out", "QR005", "-o out/ writes a folder"),
        ("x.npy/out.npz", "QR008", "is not a folder"),
        ("out.txt", "QR005", "cannot write .txt files"),
        ("out", "QR005", "suffix"),
        ("x.npy/", "QR008", "a file of that name"),
    ],
)
def test_bad_targets_are_refused_before_the_run(target: str, code: str, words: str) -> None:
    ended = call("deep.onnx", "-i", "x.npy", "-o", target, "--json")
    assert ended.code == 2
    assert ended.json["error"]["code"] == code
    assert words in ended.err


def test_what_is_read_is_not_written_over(folder: Path) -> None:
    (folder / "link.npy").symlink_to("x.npy")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for words, what in (
        (["--trace", "deep.onnx"], "the model of this command"),
        (["--trace", str(folder / "deep.onnx")], "the model of this command"),
        (["--trace", "x.npy"], "an input of this command"),
        (["-o", "x.npy"], "an input of this command"),
        (["-o", "link.npy"], "an input of this command"),
        (["-o", "both.npz", "--trace", "both.npz"], "the file of --output"),
    ):
        for spec in ("x.npy", "image=x.npy"):
            ended = call("deep.onnx", "-i", spec, *words, "--json")
            assert ended.code == 2, words
            assert ended.json["error"]["code"] == "QR008"
            assert what in ended.err
    assert call("profile", "deep.onnx", "--trace", "deep.onnx").code == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_external_data_is_not_written_over(folder: Path) -> None:
    model = sum_model(["x"])
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(2, np.float32), "c"))
    onnx.external_data_helper.convert_model_to_external_data(model, location="data.npz", size_threshold=0)
    onnx.save(model, folder / "external.onnx")
    says(call("external.onnx", "-o", "data.npz"), 2, "a file of the model's data")


def test_a_trace_without_nodes_is_announced(folder: Path) -> None:
    for words in (["deep.onnx"], ["profile", "deep.onnx", "-n", "1"]):
        ended = call(*words, "-i", "x.npy", "-b", "onnx-ref", "--trace", "t.json")
        says(ended, 0, "note: t.json has no node times: --backend onnx-ref does not measure them")
    assert "no times" not in call("deep.onnx", "-i", "x.npy", "--trace", "t.json").err


def test_one_array_only_for_npy() -> None:
    says(call("deep.onnx", "-i", "x.npy", "-o", "out.npy", "-t", "*features.1*"), 2, "-o out.npz")


def test_failed_run_leaves_the_old_file(folder: Path) -> None:
    save(conv_model(w_scale=np.ones(3, np.float32)), folder / "bad.onnx")
    (folder / "out.npz").write_text("precious")
    assert call("bad.onnx", "-o", "out.npz").code == 5
    assert (folder / "out.npz").read_text() == "precious"
    assert not list(folder.glob(".out*"))


def test_stale_vectors_are_not_mixed_in(folder: Path) -> None:
    (folder / "out").mkdir()
    for place in range(2):
        (folder / "out" / f"output_{place}.pb").write_bytes(b"")
    says(call("deep.onnx", "-i", "x.npy", "-o", "out"), 2, "more outputs than this run has")


def test_modes_and_links(folder: Path) -> None:
    old = os.umask(0o027)
    try:
        call("deep.onnx", "-i", "x.npy", "-o", "new.npz")
    finally:
        os.umask(old)
    assert stat.S_IMODE((folder / "new.npz").stat().st_mode) == 0o640
    (folder / "real.npz").write_text("")
    (folder / "link.npz").symlink_to("real.npz")
    call("deep.onnx", "-i", "x.npy", "-o", "link.npz")
    assert (folder / "link.npz").is_symlink()
    assert (folder / "real.npz").stat().st_size > 100
    assert call("deep.onnx", "-i", "x.npy", "--trace", os.devnull).code == 0
    assert call("deep.onnx", "-i", "x.npy", "--trace", "no/t.json").code == 2


def test_trace_has_names_and_fractions_of_microseconds(folder: Path) -> None:
    for words in (("deep.onnx",), ("profile", "deep.onnx", "-n", "2"), ("deep.onnx", "--backend", "reference")):
        assert call(*words, "-i", "x.npy", "--trace", "t.json").code == 0
        check_trace(json.loads((folder / "t.json").read_text()), 3)


def check_trace(events: list[dict[str, Any]], nodes: int) -> None:
    tracks = [e for e in events if e["ph"] == "M"]
    assert [e["name"] for e in tracks[:2]] == ["process_name", "thread_name"]
    assert tracks[0]["args"]["name"].endswith("deep.onnx")
    assert tracks[1]["args"]["name"] == "leader"
    whole = [e for e in events if e["ph"] == "X" and e["cat"] != "Thread"]
    assert [e["name"] for e in whole[:3]] == ["model_loading_uri", "session_initialization", "model_run"]
    assert len(whole) == 3 + nodes
    run = whole[2]
    assert any(e["dur"] % 1 for e in whole[3:]), "whole microseconds would make 0 of most times"
    for event in whole[3:]:
        args = event["args"]
        assert event["name"].endswith("Conv_quant")
        assert args["provider"] == "CPUExecutionProvider"
        assert args["op_name"] == "QLinearConv"
        assert args["output_type_shape"] == [{"uint8": [1, 3, 8, 8]}]
        assert args["input_type_shape"][1] == {"float": []}
        assert (args["parameter_size"], args["activation_size"], args["output_size"]) == ("24", "192", "192")
        assert run["ts"] <= event["ts"] <= event["ts"] + event["dur"] <= run["ts"] + run["dur"] + 2


def test_unwritable_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    says(call("deep.onnx", "-i", "x.npy", "-o", "out.npz"), 2, "not writable")


def test_model_hash(folder: Path) -> None:
    import hashlib

    data = (folder / "deep.onnx").read_bytes()
    for words, stdin in (("deep.onnx", b""), ("-", data)):
        assert call(words, "--json", stdin=stdin).json["model"]["sha256"] == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("shape", [(2**40, 0), (2**20, 2**20, 0), (0, 2**40), (2**30, 0, 2**30)])
def test_axes_beside_an_empty_one_may_be_of_any_size(folder: Path, shape: tuple[int, ...]) -> None:
    """No elements, however long the other axes: no command makes a list for each of their places."""
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["e"]), helper.make_node("Abs", ["e"], ["y"])]
    inputs = [value("s", TensorProto.INT64, (len(shape),))]
    save(make_model(nodes, inputs, [value("y", TensorProto.FLOAT, None)], {}, 17), folder / "m.onnx")
    npy(folder / "s.npy", np.array(shape, np.int64))
    ended = call("m.onnx", "-i", "s.npy", "--json")
    assert ended.json["outputs"][0]["shape"] == list(shape)
    assert ended.json["outputs"][0]["values"] in (None, [])
    for words in ("profile -n 1 --json", "report -n 1 --output page.html", "compare --against reference --json"):
        command, *options = words.split()
        assert call(command, "m.onnx", "-i", "s.npy", *options).code == 0, words


def test_texts_along_many_axes_are_saved(folder: Path) -> None:
    shape = (1,) * 40 + (2,)
    words = np.array(["a", "longer"], object).reshape(shape)
    node = helper.make_node("Identity", ["x"], ["y"])
    save(make_model([node], [value("x", TensorProto.STRING, shape)], [value("y", TensorProto.STRING, None)], {}, 17),
         folder / "m.onnx")  # fmt: skip
    npy(folder / "words.npy", words.reshape(-1).astype(str).reshape(shape))
    assert call("m.onnx", "-i", "words.npy", "-o", "out.npz").code == 0
    np.testing.assert_array_equal(np.load(folder / "out.npz")["y"].reshape(-1), ["a", "longer"])


def test_a_long_sequence_is_told_by_its_first_elements(folder: Path) -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"]), helper.make_node("SequenceLength", ["s"], ["n"])]
    s = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    x, n = (
        helper.make_tensor_value_info(*told) for told in (("x", TensorProto.FLOAT, [999]), ("n", TensorProto.INT64, []))
    )
    save(
        helper.make_model(helper.make_graph(nodes, "g", [x], [s, n]), opset_imports=[helper.make_opsetid("", 17)]),
        folder / "s.onnx",
    )
    npy(folder / "long.npy", np.arange(999, dtype=np.float32))
    for quiet in ([], ["-q"]):
        told = call("s.onnx", "-i", "long.npy", *quiet).out
        assert "s[63]" in told
        assert "s[64]" not in told
        assert "935 more elements of s; --json has all" in told
    assert len(call("s.onnx", "-i", "long.npy", "--json").json["outputs"]) == 1000
