"""JSON of Polygraphy as inputs, as results, and as a side of a comparison; as polygraphy 0.53 encodes it."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cli import call, npy, save, says
from helpers.models import make_model
from onnx import helper

from qrun.dumps import read_dump

X = np.float32([[1, -2, 3]])


def array(value: np.ndarray[Any, Any]) -> dict[str, str]:
    data = io.BytesIO()
    np.save(data, value, allow_pickle=value.dtype.kind == "O")
    return {"array": base64.b64encode(data.getvalue()).decode(), "polygraphy_class": "ndarray"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [1, 3]}, "y"), tmp_path / "m.onnx")
    npy(tmp_path / "x.npy", X)
    inputs("in.json", X)
    return tmp_path


def inputs(path: str, *values: np.ndarray[Any, Any], name: str = "x") -> None:
    """What polygraphy run --save-inputs writes: a list with a dict of arrays for each iteration."""
    Path(path).write_text(json.dumps([{name: array(value)} for value in values], indent=4))


def outputs(*words: str) -> list[Any]:
    return [o["values"] for o in call("m.onnx", *words, "--json").json["outputs"]]


def test_inputs() -> None:
    assert outputs("-i", "in.json") == outputs("-i", "x=in.json") == outputs("-i", "x.npy") == [[[1.0, 0.0, 3.0]]]


def test_iterations_are_chosen_by_number_and_are_sets_of_two_models() -> None:
    inputs("two.json", X, -X)
    assert outputs("-i", "two.json[1]") == [[[0.0, 2.0, 0.0]]]
    says(call("m.onnx", "-i", "two.json"), 2, "two.json has 2 iterations, not one", "-i two.json[0]")
    says(call("m.onnx", "-i", "two.json[2]"), 2, "two.json has no iteration 2", "0 to 1")
    assert call("compare", "m.onnx", "m.onnx", "-i", "two.json", "--json").json["runs"] == 2


def test_a_file_whose_name_ends_like_a_number_is_itself() -> None:
    inputs("a.json[0]", X, -X)
    assert "iteration" not in call("m.onnx", "-i", "a.json[0]").err


def test_results_have_the_form_of_run_results() -> None:
    assert call("m.onnx", "-i", "in.json", "-o", "out.json").code == 0
    found = json.loads(Path("out.json").read_text())
    assert found["polygraphy_class"] == "RunResults"
    ((runner, (iteration,)),) = found["lst"]
    assert {k: v for k, v in iteration.items() if k != "outputs"} == {
        "runtime": None, "runner_name": runner, "polygraphy_class": "IterationResult"
    }  # fmt: skip
    value = iteration["outputs"]["y"]
    assert (value["polygraphy_class"], value["values"]["polygraphy_class"]) == ("LazyArray", "ndarray")
    np.testing.assert_array_equal(np.load(io.BytesIO(base64.b64decode(value["values"]["array"]))), np.maximum(X, 0))
    assert list(read_dump("out.json").tensors) == ["y"]
    assert list(outputs("-i", "x=out.json")) == [[[1.0, 0.0, 3.0]]]


def test_two_results_are_compared_and_one_with_an_archive() -> None:
    for name, words in {"a.json": ["x.npy"], "b.npz": ["x.npy"], "c.json": ["x=[[1,2,3]]"]}.items():
        assert call("m.onnx", "-i", *words, "-o", name).code == 0
    assert call("compare", "a.json", "b.npz").out.startswith("equal: 1 array")
    found = call("compare", "a.json", "c.json", "--json")
    assert (found.code, found.json["pairs"][0]["differing"], found.json["pairs"][0]["first"]["index"]) == (1, 1, [0, 1])
    assert call("compare", "m.onnx", "a.json", "-i", "in.json", "--map", "auto").out.startswith("equal")


def test_a_model_beside_a_file_says_how_to_compare_them() -> None:
    call("m.onnx", "-i", "x.npy", "-o", "a.json")
    says(call("compare", "m.onnx", "a.json"), 2, "qrun compare m.onnx a.json --map auto")
    (Path("saved.json")).write_text(json.dumps(call("m.onnx", "--json").json))
    says(call("compare", "a.json", "saved.json"), 2, "a.json is not a valid qrun result")


TEXT = array(X)["array"]
DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["a JSON document", "it is empty"]),
        ("{", ["a JSON document"]),
        (DEEP, ["a JSON document"]),
        ("[]", ["another JSON file", "--save-inputs"]),
        ("7", ["another JSON file"]),
        ('{"schema": "qrun/run/1.0"}', ["another JSON file"]),
        ('{"lst": []}', ["the results of one runner"]),
        ('{"lst": [7]}', ["a list of iterations"]),
        ('{"lst": [["a", 7]]}', ["a list of iterations"]),
        ('{"lst": [["a", []], ["b", []]]}', ["the results of one runner", "a, b"]),
        ('{"lst": [["a", []]]}', ["has 0 iterations"]),
        ('{"lst": [["a", [7]]]}', ["no arrays"]),
        ('{"lst": [["a", [{"outputs": {"x": {"values": {"array": "!"}}}}]]]}', ["base64"]),
        ('[{"x": {"array": 7}}]', ["another JSON file"]),
        ('[{"x": {"array": ""}}]', ["a .npy file"]),
        (json.dumps([{"x": {"array": TEXT[:100]}}]), ["in.json[x]"]),
        (json.dumps([{"x": {"array": TEXT[:-8]}}]), ["in.json[x]", "bytes"]),
        (json.dumps([{"x": array(np.array([[{}]], object))}]), ["in.json[x]", "object"]),
        (json.dumps([{"x": {"array": TEXT}}, 7]), ["another JSON file"]),
        (json.dumps([{"x": {"array": TEXT}, "more": {"array": TEXT}}]), ["more"]),
        (json.dumps([{"x": {"a": {"array": TEXT}}, "a": {"array": TEXT}}]), ["'a' twice"]),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_damaged_is_refused(content: str, words: list[str]) -> None:
    Path("in.json").write_text(content)
    ended = call("m.onnx", "-i", "in.json")
    says(ended, 2, "error QR00", *words)
    assert "Traceback" not in ended.err


def test_a_header_that_claims_too_much_is_refused_before_memory_is_taken() -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    head += b" " * (117 - len(head)) + b"\n"
    data = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    Path("in.json").write_text(json.dumps([{"x": {"array": base64.b64encode(data).decode()}}]))
    says(call("m.onnx", "-i", "in.json"), 2, "4000000000000 bytes")


def test_a_large_file_is_refused_by_the_memory_limit() -> None:
    inputs("in.json", np.zeros((1, 3_000_000), np.float32))
    ended = call("m.onnx", "-i", "in.json", "--max-memory", "4MB")
    assert ended.code == 5, ended.err
    assert "QR504" in ended.err or "memory" in ended.err


def test_names_of_tensors_are_escaped() -> None:
    name = 'a"\\\u00e9'
    save(make_model([helper.make_node("Relu", ["x"], [name])], {"x": [1, 3]}, name), Path("odd.onnx"))
    assert call("odd.onnx", "-i", "in.json", "-o", "out.json").code == 0
    assert list(json.loads(Path("out.json").read_text())["lst"][0][1][0]["outputs"]) == [name]
