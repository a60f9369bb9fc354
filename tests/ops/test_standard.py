"""Operators of ONNX that qrun has no kernel for, which onnx.reference runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.support import node_model, run_qrun

import qrun
from qrun.ops import RUNNER

F, I64 = np.float32, np.int64
TRAINING = "ai.onnx.preview.training"


def momentum(backend: Any = "native", **attributes: Any) -> list[np.ndarray]:
    given = {"alpha": 0.5, "beta": 1.0, "mode": "standard", "norm_coefficient": 0.0, **attributes}
    inputs = [F(0.25), np.int64(1), F([1, 2]), F([4, 8]), F([2, 4])]
    model, feeds = node_model("Momentum", inputs, given, domain=TRAINING, outputs=[F, F])
    return run_qrun(model, feeds, backend=backend)


def test_an_operator_that_trains() -> None:
    """V' = alpha * V + beta * G; X' = X - R * V'."""
    for backend in ("native", "reference"):
        x, v = momentum(backend)
        assert v.tolist() == [5, 10]
        assert x.tolist() == [-0.25, -0.5]


def test_attributes_are_those_that_onnx_states() -> None:
    for wrong, text in (({"gamma": 1.0}, "no attribute 'gamma'"), ({"alpha": 1}, "wrong type")):
        with pytest.raises(qrun.OperatorError, match=text):
            momentum(**wrong)


DECODER = '<ir_version: 8, opset_import: ["" : 20]> main (uint8[n] x) => (uint8[h,w,3] y) { y = ImageDecoder(x) }'


def test_what_it_refuses_is_told_at_the_node(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(DECODER), path)
    np.save(tmp_path / "x.npy", np.zeros(3, np.uint8))
    ended = call("run", str(path), "-i", f"x={tmp_path / 'x.npy'}")
    assert ended.code == 5
    assert "QR210 node-failed: onnx.reference cannot compute this node" in ended.err
    assert "node 0 ImageDecoder_0 (ImageDecoder-20)" in ended.err
    assert "Traceback" not in ended.err
    assert "Pillow must be installed" in ended.err or "UnidentifiedImageError" in ended.err


def test_who_ran_a_node_is_told(tmp_path: Path) -> None:
    text = """<ir_version: 10, opset_import: ["" : 28]> main (float[1,2,3] x) => (float[1,2,3] y) {
        r = Relu(x)
        w = Constant<value = float[2,1,1] {2, 3}>()
        y = CausalConvWithState(r, w) }"""
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    session = qrun.Session(path)
    for _ in range(3):
        result = session.execute({"x": F([[[1, 2, 3], [-1, 4, 5]]])})
        assert result.outputs["y"].tolist() == [[[2, 4, 6], [0, 12, 15]]]
        assert [event.backend for event in result.events] == ["native", RUNNER]
    printed = call("profile", str(path), "--random").out
    row = next(line for line in printed.splitlines() if "CausalConvWithState" in line)
    assert RUNNER in row


def test_a_graph_is_not_handed_over() -> None:
    text = """<ir_version: 10, opset_import: ["" : 28, "ai.onnx.preview" : 1]>
        main (float[1,1,2,2] q) => (float[1,1,2,2] y) {
        y = ai.onnx.preview.FlexAttention<score_mod = g (float[1,1,2,2] s) => (float[1,1,2,2] t) { t = Relu(s) }>(q, q, q) }
        """
    with pytest.raises(qrun.OperatorError, match="score_mod is a graph"):
        qrun.Session(onnx.parser.parse_model(text)).run({"q": np.ones((1, 1, 2, 2), F)})
    bare = text.replace(text[text.index("<score_mod") : text.index(">(q")] + ">", "")
    made = qrun.Session(onnx.parser.parse_model(bare)).run({"q": np.ones((1, 1, 2, 2), F)})["y"]
    assert made.tolist() == [[[[1, 1], [1, 1]]]]
