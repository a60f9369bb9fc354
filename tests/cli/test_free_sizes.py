"""Random inputs of models of free sizes, and inputs that say how much of others counts: what is taken and told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, save, says
from helpers.models import make_model, typed
from onnx import TensorProto, helper

from qrun.ops import REGISTRY

Node = onnx.NodeProto
Shape = list[int | str | None]


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.2, shape).astype(np.float32)


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Node:
    names = ["" if name == "_" else name for name in inputs.split()]
    return helper.make_node(op, names, outputs.split(), outputs.split()[0], **attributes)


def model(
    nodes: list[Node], inputs: Mapping[str, tuple[int, Shape]], output: str, constants: Mapping[str, Any]
) -> onnx.ModelProto:
    given = {name: typed(kind, shape) for name, (kind, shape) in inputs.items()}
    return make_model(nodes, given, {output: typed(TensorProto.FLOAT)}, constants, opset=17)


def convolutions(x: str, strides: list[list[int]], channels: int) -> tuple[list[Node], dict[str, Any]]:
    """Convolutions one after the other, f0, f1, ..., each with twice the channels."""
    nodes, constants = [], {}
    for place, step in enumerate(strides):
        depth = 4 << place
        constants[f"w{place}"] = weights(depth, channels, 3, 3)
        nodes.append(node("Conv", f"{x} w{place}", f"f{place}", strides=step, pads=[1, 1, 1, 1]))
        x, channels = f"f{place}", depth
    return nodes, constants


def pyramid(shape: Shape) -> onnx.ModelProto:
    """Two maps, each enlarged and joined with the one before: as in YOLO, sizes must be multiples of 32."""
    nodes, constants = convolutions("images", [[2, 2]] * 5, 3)
    nodes += [
        node("Resize", "f4 _ twice", "u4", mode="nearest"),
        node("Concat", "u4 f3", "p3", axis=1),
        node("Resize", "p3 _ twice", "u3", mode="nearest"),
        node("Concat", "u3 f2", "y", axis=1),
    ]
    constants["twice"] = np.array([1, 1, 2, 2], np.float32)
    return model(nodes, {"images": (TensorProto.FLOAT, shape)}, "y", constants)


def anchored(side: int) -> onnx.ModelProto:
    """Boxes of a detector whose anchors are those of one size of image, and the best of them."""
    nodes, constants = convolutions("image", [[2, 2]] * 3, 3)
    nodes += [
        node("Conv", "f2 heads", "h"),
        node("Transpose", "h", "last", perm=[0, 2, 3, 1]),
        node("Reshape", "last rows", "offsets"),
        node("Add", "offsets anchors", "boxes"),
        node("Slice", "boxes zero one two", "column"),
        node("Transpose", "column", "scores", perm=[0, 2, 1]),
        node("NonMaxSuppression", "boxes scores most", "chosen"),
        node("Cast", "chosen", "y", to=TensorProto.FLOAT),
    ]
    constants |= {
        "heads": weights(4, 16, 1, 1),
        "rows": np.array([1, -1, 4]),
        "anchors": weights(1, (side // 8) ** 2, 4),
        **{name: np.array([n]) for name, n in (("zero", 0), ("one", 1), ("two", 2), ("most", 10))},
    }
    return model(nodes, {"image": (TensorProto.FLOAT, [1, 3, None, None])}, "y", constants)


def reader(columns: int) -> onnx.ModelProto:
    """Text in images of 48 rows: convolutions, then a recurrent network along the width of at least these columns."""
    nodes, constants = convolutions("x", [[2, 2], [2, 2], [2, 1], [2, 1]], 1)
    nodes += [
        node("AveragePool", "f3", "row", kernel_shape=[3, columns]),
        node("Squeeze", "row two", "columns"),
        node("Transpose", "columns", "steps", perm=[2, 0, 1]),
        node("LSTM", "steps W R", "y", hidden_size=6, direction="bidirectional"),
    ]
    constants |= {"W": weights(2, 24, 32), "R": weights(2, 24, 6), "two": np.array([2])}
    return model(nodes, {"x": (TensorProto.FLOAT, ["N", 1, 48, "W"])}, "y", constants)


def voice(layers: int, inside: bool) -> onnx.ModelProto:
    """Voice activity: windows of 256 samples, and the state of a recurrent network; inside: in an If."""
    nodes = [
        node("Unsqueeze", "input one", "channel"),
        node("Conv", "channel window", "spectrum", strides=[64]),
        node("Transpose", "spectrum", "steps", perm=[2, 0, 1]),
        node("Split", "state halves", "h c", axis=0 if layers > 1 else 2),
        node("LSTM", "steps W R _ _ h c", "y", hidden_size=8),
    ]
    constants = {
        "window": weights(20, 1, 256),
        "one": np.array([1]),
        "halves": np.array([1, 1] if layers > 1 else [8, 8]),
        "W": weights(1, 32, 20),
        "R": weights(1, 32, 8),
    }
    inputs = {
        "input": (TensorProto.FLOAT, [None, None]),
        "state": (TensorProto.FLOAT, [layers, None, 16 // layers]),
    }
    if not inside:
        return model(nodes, inputs, "y", constants)
    branches = []
    for tail in ("a", "b"):
        own = [Node.FromString(each.SerializeToString()) for each in nodes]
        for each in own:
            each.output[:] = [name + tail for name in each.output]
            each.input[:] = [f"{name}{tail}" if name in ("channel", "spectrum", "steps", "h", "c") else name
                             for name in each.input]  # fmt: skip
        branches.append(helper.make_graph(own, tail, [], [helper.make_tensor_value_info("y" + tail, 1, None)]))
    chosen = [
        node("Equal", "sr rate", "fast"),
        node("If", "fast", "y", then_branch=branches[0], else_branch=branches[1]),
    ]
    inputs["sr"] = (TensorProto.INT64, [])
    return model(chosen, inputs, "y", {**constants, "rate": np.array(16000)})


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (pyramid(["batch", 3, "height", "width"]), "batch=1, height=32, width=32"),
        (pyramid(["b", "c", "h", "w"]), "b=1, c=3, h=32, w=32"),
        (anchored(320), "image[2]=320, image[3]=320"),
        (anchored(640), "image[2]=640, image[3]=640"),
        (reader(1), "N=1, W=32"),
        (reader(30), "N=1, W=224"),
        (voice(2, False), "input[0]=1, input[1]=512, state[1]=1"),
        (voice(1, False), "input[0]=1, input[1]=512, state[1]=1"),
        (voice(2, True), "input[0]=1, input[1]=512, state[1]=1"),
    ],
    ids=["yolo", "channels", "anchors320", "anchors640", "ocr", "wide-ocr", "voice", "voice-one-layer", "voice-if"],
)
def test_a_model_of_free_sizes_runs(folder: Path, made: onnx.ModelProto, told: str) -> None:
    save(made, folder / "m.onnx")
    says(call("m.onnx"), 0, f"; {told} (--shape changes that)")
    sizes = [f"--shape={part}" for part in told.split(", ")]
    assert call("m.onnx", *sizes).code == 0


def test_every_command_takes_the_same_sizes(folder: Path) -> None:
    save(anchored(320), folder / "m.onnx")
    save(anchored(320), folder / "n.onnx")
    for words in (
        ("profile", "m.onnx", "-n", "1"),
        ("report", "m.onnx", "-n", "1"),
        ("compare", "m.onnx", "--against", "literal"),
        ("compare", "m.onnx", "n.onnx"),
        ("run", "m.onnx", "--backend", "reference"),
        ("run", "m.onnx", "--backend", "ort"),
    ):
        ended = call(*words)
        assert ended.code == 0, ended.err
        assert "image[2]=320, image[3]=320 (--shape changes that)" in ended.err, words


def test_sizes_that_are_given_stay(folder: Path) -> None:
    save(pyramid(["batch", 3, "height", "width"]), folder / "m.onnx")
    ended = call("m.onnx", "--shape", "height=64", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["symbols"] == {"height": 64, "batch": 1, "width": 32}


def test_where_no_size_fits_none_is_proposed(folder: Path) -> None:
    product = [node("MatMul", "x w", "y")]
    save(model(product, {"x": (TensorProto.FLOAT, ["b", "d"])}, "y", {"w": weights(100, 5)}), folder / "m.onnx")
    says(call("m.onnx"), 5, "fix: the sizes that the model needs: --shape d=SIZE")
    assert call("m.onnx", "--shape", "d=100").code == 0


def test_sizes_that_no_trial_changes_are_named_too(folder: Path) -> None:
    """hidden is taken for the batch of w, and stays 1; 16 columns of w are no three widths of one size."""
    attention = [node("Attention", "x w b", "y", domain="com.microsoft", num_heads=12)]
    inputs = {"x": ["batch", "length", "hidden"], "w": ["hidden", "columns"], "b": ["columns"]}
    save(
        model(attention, {name: (TensorProto.FLOAT, axes) for name, axes in inputs.items()}, "y", {}), folder / "m.onnx"
    )
    ended = call("m.onnx")
    assert ended.code == 5
    assert "weights has shape [1,16]" in ended.err
    assert "num_heads = 12 divides the width" in ended.err
    sizes = "--shape length=SIZE --shape hidden=SIZE --shape columns=SIZE"
    assert f"fix: the sizes that the model needs: {sizes}\n" in ended.err
    assert call("m.onnx", "--shape", "hidden=24", "--shape", "columns=72").code == 0


def test_trials_end(folder: Path) -> None:
    """A loop of very many turns that reads what is free; the run itself has the limit that is asked for."""
    body = helper.make_graph(
        [node("Identity", "on", "go"), node("Concat", "state x", "more", axis=1), node("Slice", "more a b c", "next")],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", 7, []), ("on", 9, []), ("state", 1, [1, None]))],
        [helper.make_tensor_value_info("go", 9, []), helper.make_tensor_value_info("next", 1, [1, None])],
    )
    loop = [node("Identity", "x", "begin"), node("Loop", "turns _ begin", "y", body=body)]
    constants = {"turns": np.array(10**12), "a": np.array([0]), "b": np.array([8]), "c": np.array([1])}
    save(model(loop, {"x": (TensorProto.FLOAT, [1, "T"])}, "y", constants), folder / "m.onnx")
    ended = call("m.onnx", "--max-time", "1s")
    assert ended.code != 0
    assert "QR016" in ended.err
    assert "T=16 (--shape changes that)" in ended.err


MS = "com.microsoft"
Sizes = list[int | str]


def _given(**inputs: tuple[int, Sizes]) -> list[onnx.ValueInfoProto]:
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
def test_masks_of_attention_hide_nothing(folder: Path, shape: Sizes, want: list[int]) -> None:
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
