"""Inputs that say how much of the others counts, where they are not given: lengths are full, and masks hide nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.cli import call, save
from helpers.models import make_model
from onnx import TensorProto, helper

from qrun.ops import REGISTRY

MS = "com.microsoft"
Shape = list[int | str]


def _given(**inputs: tuple[int, Shape]) -> list[onnx.ValueInfoProto]:
    return [helper.make_tensor_value_info(name, number, shape) for name, (number, shape) in inputs.items()]


def _ones(*shape: int) -> np.ndarray:
    return np.full(shape, 0.1, np.float32)


def _tagger(layout: int = 0, lengths: int = TensorProto.INT32) -> onnx.ModelProto:
    """Words through an LSTM whose X is made by nodes, of which the file states no shape."""
    words, nodes = "e", [helper.make_node("Gather", ["table", "words"], ["e"])]
    if not layout:
        nodes.append(helper.make_node("Transpose", ["e"], ["turned"], perm=[1, 0, 2]))
        words = "turned"
    nodes.append(helper.make_node("Cast", ["lens"], ["lens32"], to=TensorProto.INT32))
    nodes.append(
        helper.make_node("LSTM", [words, "W", "R", "", "lens32"], ["", "y"], "rnn", hidden_size=3, layout=layout)
    )
    nodes.append(helper.make_node("Identity", ["lens"], ["told"]))
    inputs = _given(words=(TensorProto.INT64, ["batch", "seq"]), lens=(lengths, ["batch"]))
    constants = {"table": _ones(2, 4), "W": _ones(1, 12, 4), "R": _ones(1, 12, 3)}
    outputs = _given(y=(TensorProto.FLOAT, [None] * 3), told=(lengths, [None]))
    return make_model(nodes, inputs, outputs, constants, 17)


@pytest.mark.parametrize(
    ("layout", "lengths"), [(0, TensorProto.INT32), (1, TensorProto.INT32), (0, TensorProto.INT64)]
)
def test_lengths_of_sequences_are_full(folder: Path, layout: int, lengths: int) -> None:
    save(_tagger(layout, lengths), folder / "m.onnx")
    ended = call("m.onnx", "--shape", "batch=2", "--shape", "seq=5", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["outputs"][1]["values"] == [5, 5]
    assert [i["source"] for i in ended.json["inputs"]] == ["random, seed 0", "full"]
    assert "full lengths and masks for lens int32 [2]".replace(
        "32", "64" if lengths == TensorProto.INT64 else "32"
    ) in (ended.err)


def test_lengths_that_are_given_stay(folder: Path) -> None:
    save(_tagger(), folder / "m.onnx")
    ended = call("m.onnx", "--random", "-i", "lens=[1,3]", "--shape", "seq=5", "--json")
    assert ended.json["outputs"][1]["values"] == [1, 3]


def test_reversed_parts_of_sequences_are_whole(folder: Path) -> None:
    node = helper.make_node("ReverseSequence", ["x", "lens"], ["y"], batch_axis=0, time_axis=1)
    told = helper.make_node("Identity", ["lens"], ["told"])
    inputs = _given(x=(TensorProto.FLOAT, [2, 7]), lens=(TensorProto.INT64, [2]))
    outputs = _given(y=(TensorProto.FLOAT, [2, 7]), told=(TensorProto.INT64, [2]))
    save(make_model([node, told], inputs, outputs, opset=17), folder / "m.onnx")
    assert call("m.onnx", "--json").json["outputs"][1]["values"] == [7, 7]


def _decoder(mask: bool, total: str = "total") -> onnx.ModelProto:
    """GroupQueryAttention whose places an attention mask tells, or inputs of their own."""
    heads, size = 2, 16
    nodes = []
    inputs = _given(
        x=(TensorProto.FLOAT, ["batch", "seq", heads * size]),
        past_k=(TensorProto.FLOAT, ["batch", heads, "past", size]),
        past_v=(TensorProto.FLOAT, ["batch", heads, "past", size]),
    )
    if mask:
        inputs += _given(attention_mask=(TensorProto.INT64, ["batch", total]))
        nodes = [
            helper.make_node("ReduceSum", ["attention_mask", "one"], ["count"], keepdims=0),
            helper.make_node("Sub", ["count", "one"], ["last"]),
            helper.make_node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32),
            helper.make_node("Shape", ["attention_mask"], ["shape"], start=1),
            helper.make_node("Cast", ["shape"], ["all"], to=TensorProto.INT32),
            helper.make_node("Identity", ["attention_mask"], ["told"]),
        ]
    else:
        inputs += _given(seqlens_k=(TensorProto.INT32, ["batch"]), all=(TensorProto.INT32, [1]))
        nodes = [helper.make_node("Identity", ["seqlens_k"], ["told"])]
    taken = ["x", "x", "x", "past_k", "past_v", "seqlens_k", "all"]
    attributes = {"num_heads": heads, "kv_num_heads": heads}
    nodes.append(helper.make_node("GroupQueryAttention", taken, ["y", "k", "v"], "gqa", None, MS, **attributes))
    outputs = _given(y=(TensorProto.FLOAT, [None] * 3), told=(TensorProto.INT64 if mask else TensorProto.INT32, None))
    return make_model(nodes, inputs, outputs, {"one": np.array([1], np.int64)}, 17)


@pytest.mark.parametrize("shapes", [[], ["seq=4"], ["seq=4", "past=0"], ["batch=2", "past=5"]])
@pytest.mark.parametrize("axis", ["total", "past + seq"])
def test_the_mask_of_a_decoder_spans_the_past_and_what_is_new(folder: Path, shapes: list[str], axis: str) -> None:
    save(_decoder(True, axis), folder / "m.onnx")
    ended = call("m.onnx", "--json", *(word for shape in shapes for word in ("--shape", shape)))
    assert ended.code == 0, ended.err
    sizes = {"batch": 1, "seq": 16, "past": 16} | {
        name: int(size) for name, _, size in (s.partition("=") for s in shapes)
    }
    told = ended.json["outputs"][1]
    assert told["shape"] == [sizes["batch"], sizes["seq"] + sizes["past"]]
    assert np.all(told["values"]), "a place is hidden"


def test_places_of_a_cache_fit_the_past_and_what_is_new(folder: Path) -> None:
    save(_decoder(False), folder / "m.onnx")
    ended = call("m.onnx", "--json", "--shape", "batch=2", "--shape", "seq=3", "--shape", "past=6")
    assert ended.code == 0, ended.err
    assert ended.json["outputs"][1]["values"] == [8, 8]


@pytest.mark.parametrize(
    ("shape", "want"), [(["b", "s"], [1] * 10), (["b"], [5, 5]), ([4], [5, 5, 0, 0]), (["b", "s", "s"], [1] * 50)]
)
def test_masks_of_attention_hide_nothing(folder: Path, shape: Shape, want: list[int]) -> None:
    inputs = _given(x=(TensorProto.FLOAT, ["b", "s", 8]), limits=(TensorProto.INT32, shape))
    nodes = [
        helper.make_node("Attention", ["x", "w", "bias", "limits"], ["y"], "a", None, MS, num_heads=2),
        helper.make_node("Identity", ["limits"], ["told"]),
    ]
    outputs = _given(y=(TensorProto.FLOAT, [None] * 3), told=(TensorProto.INT32, None))
    save(make_model(nodes, inputs, outputs, {"w": _ones(8, 24), "bias": _ones(24)}, 17), folder / "m.onnx")
    ended = call("m.onnx", "--json", "--shape", "b=2", "--shape", "s=5")
    assert ended.code == 0, ended.err
    assert np.ravel(ended.json["outputs"][1]["values"]).tolist() == want


@pytest.mark.parametrize("number", [TensorProto.INT64, TensorProto.BOOL])
def test_an_input_called_attention_mask_hides_nothing(folder: Path, number: int) -> None:
    """Of a model without an operator of attention."""
    nodes = [helper.make_node("Cast", ["attention_mask"], ["y"], to=TensorProto.INT32)]
    inputs = _given(attention_mask=(number, ["b", "s"]))
    save(make_model(nodes, inputs, _given(y=(TensorProto.INT32, [None, None])), opset=17), folder / "m.onnx")
    ended = call("m.onnx", "--json", "--shape", "s=20")
    assert ended.json["outputs"][0]["values"] == [[1] * 20]


def test_lengths_behind_a_long_chain(folder: Path) -> None:
    model = _tagger()
    chain = [helper.make_node("Identity", [f"i{n}" if n else "lens"], [f"i{n + 1}"]) for n in range(1500)]
    next(node for node in model.graph.node if node.op_type == "Cast").input[0] = "i1500"
    model.graph.node.extend(chain)
    save(model, folder / "m.onnx")
    ended = call("m.onnx", "--shape", "seq=5", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["outputs"][1]["values"] == [5]


def test_what_operators_declare_are_their_inputs() -> None:
    for versions in map(REGISTRY.get, list(REGISTRY)):
        for definition in versions or ():
            names = {p.name for p in definition.inputs}
            for name, whole in definition.wholes.items():
                assert {name, *(of for of, _ in whole.of)} <= names, definition
                axes = {axis for _, axis in whole.of if isinstance(axis, str)}
                assert axes <= {*definition.attributes}, definition
