"""ZipMap, DictVectorizer, CastMap and CategoryMapper of ai.onnx.ml: against Python's dicts, beside onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.models import make_model
from helpers.support import assert_equal, run_ort
from onnx import TensorProto, helper

import qrun
from qrun.errors import QrunError
from qrun.ir.schema import ML
from qrun.ir.types import NUMBERS

F, I64 = np.float32, np.int64
NAMES: dict[type, int] = {str: TensorProto.STRING, int: TensorProto.INT64, float: TensorProto.FLOAT}


def node(
    op_type: str, x: Any, given: onnx.TypeProto, made: onnx.TypeProto, beside: bool = True, **attributes: Any
) -> Any:
    """The node's result on both backends, which is that of onnxruntime, where that can be fed."""
    model = make_model(
        [helper.make_node(op_type, ["x"], ["y"], domain=ML, **attributes)], {"x": given}, {"y": made}, opset=17
    )
    (got,) = qrun.Session(model, backend="reference").run({"x": x}).values()
    (again,) = qrun.Session(model).run({"x": x}).values()
    (want,) = run_ort(model, {"x": x}) if beside else (got,)
    if isinstance(want, np.ndarray) and want.dtype != object:
        assert_equal(got, want)
        assert_equal(again, want)
    else:
        texts = [v.tolist() if isinstance(v, np.ndarray) else v for v in (got, again, want)]
        assert texts[0] == texts[1] == texts[2]
    return got


def tensor(kind: int) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(kind, None)


def mapping(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


@pytest.mark.parametrize("words", [False, True])
def test_zip_map(words: bool) -> None:
    labels: list[Any] = ["a", "", "ü"] if words else [7, -1, 2**40]
    names = {"classlabels_strings" if words else "classlabels_int64s": labels}
    kind = helper.make_sequence_type_proto(mapping(NAMES[str if words else int], TensorProto.FLOAT))
    x = np.arange(12, dtype=F).reshape(4, 3) / F(7)
    for given in (x, x[:0], x[1]):
        got = node("ZipMap", given, tensor(TensorProto.FLOAT), kind, **names)
        rows = given.reshape(-1, 3).tolist()
        assert got == [dict(zip(labels, row, strict=True)) for row in rows]


@pytest.mark.parametrize(("key", "value"), [(str, float), (str, int), (int, float), (int, str)])
def test_dict_vectorizer(key: type, value: type) -> None:
    words: list[Any] = ["b", "c", "a"] if key is str else [5, 9, -2]
    values: dict[type, list[Any]] = {float: [0.5, 2.0], int: [3, 4], str: ["x", "y"]}
    x = dict(zip(words[1:], values[value], strict=True))
    names = {"string_vocabulary" if key is str else "int64_vocabulary": [*words, words[0] * 2]}
    beside = value is float  # its Python takes other maps for these
    got = node("DictVectorizer", x, mapping(NAMES[key], NAMES[value]), tensor(NAMES[value]), beside, **names)
    none: Any = "" if value is str else 0
    assert got.tolist() == [[none, *values[value], none]]


CASTS: list[tuple[str, dict[int, Any], list[Any], list[Any]]] = [
    ("TO_FLOAT", {4: 1.5, 0: -2.25, 2: 3.0}, [-2.25, 3, 1.5], [-2.25, 0, 3, 0, 1.5, 0]),
    ("TO_INT64", {4: 1.5, 0: -2.75, 2: 3.0}, [-2, 3, 1], [-2, 0, 3, 0, 1, 0]),
    ("TO_STRING", {4: 1.5, 0: -2.25}, ["-2.250000", "1.500000"], ["-2.250000", "", "", "", "1.500000", ""]),
    ("TO_FLOAT", {3: "1.5", 1: "-7"}, [-7, 1.5], [0, -7, 0, 1.5, 0, 0]),
    ("TO_INT64", {3: "15", 1: "-7"}, [-7, 15], [0, -7, 0, 15, 0, 0]),
    ("TO_STRING", {3: "u", 1: "v"}, ["v", "u"], ["", "v", "", "u", "", ""]),
]


@pytest.mark.parametrize(("cast", "x", "dense", "sparse"), CASTS)
def test_cast_map(cast: str, x: dict[int, Any], dense: list[Any], sparse: list[Any]) -> None:
    value = type(next(iter(x.values())))
    kinds = {"TO_FLOAT": TensorProto.FLOAT, "TO_INT64": TensorProto.INT64, "TO_STRING": TensorProto.STRING}
    made, given = tensor(kinds[cast]), mapping(TensorProto.INT64, NAMES[value])
    assert node("CastMap", x, given, made, value is float, cast_to=cast).tolist() == [dense]
    options = {"map_form": "SPARSE", "max_map": 6, "cast_to": cast}
    beside = value is float and cast != "TO_STRING"  # it writes 0.f between the texts
    assert node("CastMap", x, given, made, beside, **options).tolist() == [sparse]


def test_category_mapper() -> None:
    table: dict[str, Any] = {"cats_int64s": [4, 7, 9], "cats_strings": ["a", "b", "c"]}
    words = np.array([["c", "?"], ["a", "b"]], object)
    got = node(
        "CategoryMapper", words, tensor(TensorProto.STRING), tensor(TensorProto.INT64), default_int64=-5, **table
    )
    assert got.tolist() == [[9, -5], [4, 7]]
    numbers = np.array([7, 1, 4])
    got = node(
        "CategoryMapper", numbers, tensor(TensorProto.INT64), tensor(TensorProto.STRING), default_string="!", **table
    )
    assert got.tolist() == ["b", "!", "a"]


@pytest.mark.parametrize(
    ("text", "op_type", "x", "attributes"),
    [
        ("neither given", "ZipMap", np.ones((1, 2), F), {}),
        ("both given", "ZipMap", np.ones((1, 2), F), {"classlabels_int64s": [1, 2], "classlabels_strings": ["a", "b"]}),
        ("3 labels for rows of 2", "ZipMap", np.ones((1, 2), F), {"classlabels_int64s": [1, 2, 3]}),
        ("comes twice", "ZipMap", np.ones((1, 2), F), {"classlabels_int64s": [1, 1]}),
        ("another rank", "ZipMap", np.ones((1, 1, 2), F), {"classlabels_int64s": [1, 2]}),
        ("is int64, which", "ZipMap", np.ones((1, 2), I64), {"classlabels_int64s": [1, 2]}),
        ("the keys are int64", "DictVectorizer", {1: 2.0}, {"string_vocabulary": ["a"]}),
        ("neither given", "DictVectorizer", {1: 2.0}, {}),
        ("is not a map", "DictVectorizer", np.ones(2, F), {"string_vocabulary": ["a"]}),
        ("cast_to is NO", "CastMap", {1: 2.0}, {"cast_to": "NO"}),
        ("map_form is NO", "CastMap", {1: 2.0}, {"map_form": "NO"}),
        ("outside the map", "CastMap", {1: 2.0}, {"map_form": "SPARSE"}),
        ("outside the map", "CastMap", {-1: 2.0}, {"map_form": "SPARSE", "max_map": 2}),
        ("no such number", "CastMap", {1: "x"}, {}),
        ("no such number", "CastMap", {1: np.inf}, {"cast_to": "TO_INT64"}),
        ("differ in length", "CategoryMapper", np.array([1]), {"cats_int64s": [1]}),
    ],
)
def test_refusals(text: str, op_type: str, x: Any, attributes: dict[str, Any]) -> None:
    value = next(iter(x.values())) if isinstance(x, dict) else x
    kind = NAMES[type(value)] if isinstance(x, dict) else NUMBERS[x.dtype]
    given = mapping(TensorProto.INT64, kind) if isinstance(x, dict) else tensor(kind)
    made = tensor(0) if op_type != "ZipMap" else onnx.TypeProto()
    model = make_model(
        [helper.make_node(op_type, ["x"], ["y"], domain=ML, **attributes)], {"x": given}, {"y": made}, opset=17
    )
    with pytest.raises(QrunError, match=text):
        qrun.Session(model).run({"x": x})


@pytest.mark.parametrize(
    ("text", "code"),
    [('{"3": 2.5, "-1": 4}', 0), ('{"3": 2.5, "03": 4}', 2), ('{"a": 1}', 2), ('{"1": "2"}', 2), ("{}", 0)],
)
def test_maps_on_the_command_line(text: str, code: int, tmp_path: Path) -> None:
    kind = mapping(TensorProto.INT64, TensorProto.FLOAT)
    path = tmp_path / "m.onnx"
    onnx.save(make_model([helper.make_node("CastMap", ["x"], ["y"], domain=ML)], {"x": kind}, "y", opset=17), path)
    ended = call("run", str(path), "-i", f"x={text}", "--json")
    assert ended.code == code, ended.out + ended.err
    if not code:
        want = [value for _, value in sorted((int(key), value) for key, value in json.loads(text).items())]
        assert json.loads(ended.out)["outputs"][0]["values"] == [want]
    else:
        assert "QR003" in ended.out + ended.err


def test_what_a_map_returns_is_the_callers() -> None:
    kind = helper.make_sequence_type_proto(mapping(TensorProto.INT64, TensorProto.FLOAT))
    zips = helper.make_node("ZipMap", ["x"], ["y"], domain=ML, classlabels_int64s=[3, 5])
    session = qrun.Session(make_model([zips], {"x": tensor(TensorProto.FLOAT)}, {"y": kind}, opset=17))
    for _ in range(4):
        (made,) = session.values({"x": np.ones((1, 2), F)}).values()
        assert made.elements[0].tolist() == [3, 5]
        made.elements[0][...] = 0
