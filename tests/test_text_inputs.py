"""Texts as inputs: every form that Python has of them is taken, and what is none is told as it is."""

from __future__ import annotations

import numpy as np
import pytest
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
        (np.array(["a", 1], object), "objects [2] with 1", "an array of objects is not converted silently: x.astype(str)"),
        (np.array([1, 2]), "int64 [2]", "int64 is not converted silently: x.astype(str)"),
        (np.array([b"a"]), "|S1 [1]", "text is not converted silently: x.astype(str)"),
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
