"""Random inputs of models whose sizes are free: the sizes that are tried, taken and told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call, save
from helpers.models import make_model, typed
from onnx import TensorProto, helper

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
    ended = call("m.onnx")
    assert ended.code == 0, ended.err
    assert f"; {told} (--shape changes that)" in ended.err
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
    ended = call("m.onnx")
    assert ended.code == 5
    assert "fix: the sizes that the model needs: --shape d=SIZE" in ended.err
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
