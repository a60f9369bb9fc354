"""Texts as inputs: every form that Python has of them is taken, and what is none is told as it is."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, fixes
from helpers.models import make_model
from onnx import TensorProto, helper

import qrun


def text_model(kind: str = "tensor"):
    """A model that passes texts on: a tensor, an optional one, or a sequence."""
    tensor = helper.make_tensor_type_proto(TensorProto.STRING, [None])
    made = {"tensor": tensor, "optional": helper.make_optional_type_proto(tensor)}
    held = {**made, "sequence": helper.make_sequence_type_proto(tensor)}[kind]
    ends = [helper.make_value_info(name, held) for name in ("x", "y")]
    return helper.make_model(
        helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:]),
        opset_imports=[helper.make_opsetid("", 17)],
    )


@pytest.mark.parametrize("kind", ["tensor", "optional", "sequence"])
@pytest.mark.parametrize("dtype", ["<U5", object, np.dtypes.StringDType()])
def test_every_array_of_texts_is_a_string_tensor(kind: str, dtype: object) -> None:
    texts = np.array(["red", "green"]).astype(dtype)
    session = qrun.Session(text_model(kind))
    for _ in range(3):  # later runs take shorter ways
        made = session.run({"x": [texts] if kind == "sequence" else texts})["y"]
        (made,) = made if kind == "sequence" else [made]
        assert (made.dtype, made.tolist()) == (np.dtype(object), ["red", "green"])
    assert session.run({"x": [["red"]] if kind == "sequence" else ["red"]})["y"] == ["red"]


@pytest.mark.parametrize(
    ("given", "got", "fix"),
    [
        (None, "got      None", "only optional inputs take None: give an array"),
        (np.array(["a", None], object), "objects [2] with None", "np.where(x == None, '', x).astype(str)"),
        (np.array(["a", 1], object), "objects [2] with 1", "convert it: x.astype(str)"),
        (np.array([1, 2]), "int64 [2]", "convert it: x.astype(str)"),
        (np.array([b"a"]), "|S1 [1]", "convert it: x.astype(str)"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_told_as_it_is(given: object, got: str, fix: str) -> None:
    with pytest.raises(qrun.CallError) as caught:
        qrun.Session(text_model()).run({"x": given})
    assert got in str(caught.value)
    assert fix in str(caught.value)


def test_none_for_numbers_is_told_as_none() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})
    with pytest.raises(qrun.CallError) as caught:
        qrun.Session(model).run({"x": None})
    assert "None" in dict(caught.value.facts)["got"]
    assert "x[None]" not in str(caught.value)


def test_what_is_no_sequence_is_told_as_it_is() -> None:
    with pytest.raises(qrun.CallError) as caught:
        qrun.Session(text_model("sequence")).run({"x": {"a": 1}})
    assert dict(caught.value.facts)["got"] == "{'a': 1}"


@pytest.fixture
def texts_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ends = [helper.make_tensor_value_info(name, TensorProto.STRING, ["N", 1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "texts.onnx")


@pytest.mark.parametrize("text", ["red", "it's", "a b", 'say "a"', "grün", "$HOME"])
@pytest.mark.usefixtures("texts_onnx")
def test_a_text_in_place_of_a_file_is_told_how_it_is_written(text: str) -> None:
    fix, *_ = fixes(call("texts.onnx", "-i", f"x={text}"), 2, "QR004")
    shown = re.search(r"did you mean (-i .*)\?", fix)
    assert shown is not None, fix
    assert call("texts.onnx", *shlex.split(shown[1]), "--json").json["outputs"][0]["values"] == [[text]]


@pytest.mark.usefixtures("texts_onnx")
def test_a_file_that_is_not_there_is_no_text() -> None:
    np.save("reds.npy", np.array([["red"]]))
    (fix,) = fixes(call("texts.onnx", "-i", "x=red.npy"), 2, "QR004")
    assert fix == "did you mean reds.npy?"


@pytest.mark.parametrize("args", [("-i", "x.npz"), ("-i", "x=x.npz")])
@pytest.mark.usefixtures("texts_onnx")
def test_pickled_texts_are_told_how_to_be_saved(args: tuple[str, ...]) -> None:
    texts = np.array([["red"]], object)
    np.savez("x.npz", x=texts)
    (fix,) = fixes(call("texts.onnx", *args), 2, "QR007")
    assert "save x.astype(str) if they are texts" in fix
    np.savez("x.npz", x=texts.astype(str))
    assert call("texts.onnx", *args).code == 0
