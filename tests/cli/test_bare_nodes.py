"""Nodes without outputs, without inputs, or with omitted ones only: every command says something, and none crashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from onnx import helper

from qrun.cli import main

COMMANDS = (
    ["run", "M", "--random"],
    ["run", "M", "--random", "--backend", "reference"],
    ["check", "M"],
    ["inspect", "M", "--nodes"],
    ["inspect", "M", "--json"],
    ["profile", "M", "--random", "-n", "3"],
    ["profile", "M", "--random", "-n", "1", "--by", "op", "--json"],
    ["compare", "M", "--random", "--against", "reference"],
    ["compare", "M", "--random", "--against", "fused"],
    ["compare", "M", "M", "--random"],
    ["report", "M", "--random", "-n", "3", "-o", "page.html"],
)
NODES = [
    ("Shape", ["x"], []), ("Shape", ["x"], [""]), ("Relu", ["x"], []), ("Relu", ["x"], [""]), ("Relu", [], ["z"]),
    ("Relu", [""], ["z"]), ("Relu", [], []), ("Constant", [], []), ("Constant", [], ["z"]), ("Identity", ["x"], []),
    ("Split", ["x"], ["", ""]), ("Split", ["x"], []), ("Dropout", ["x"], [""]), ("Dropout", ["x"], []),
    ("DynamicQuantizeLinear", ["x"], ["", "", ""]), ("DynamicQuantizeLinear", ["x"], []),
    ("DynamicQuantizeLinear", ["x"], ["", "s", ""]), ("QuantizeLinear", ["x", "s0"], []),
    ("QuantizeLinear", ["x", "s0"], [""]), ("QuantizeLinear", [], ["z"]), ("DequantizeLinear", ["q", "s0"], []),
    ("DequantizeLinear", ["q", "s0"], [""]), ("DequantizeLinear", ["", ""], ["z"]), ("DequantizeLinear", [], []),
    ("Conv", ["x", "w"], []), ("Conv", ["x", "w"], [""]), ("Conv", [], ["z"]), ("QLinearConv", [], []),
    ("QLinearConv", ["q", "s0", "z0", "q", "s0", "z0", "s0", "z0"], []), ("MatMul", ["x", "x"], [""]),
    ("MatMulInteger", ["q", "q"], []), ("MaxPool", ["x"], []), ("Concat", [], ["z"]), ("Concat", ["", ""], ["z"]),
    ("Concat", ["x"], []), ("Softmax", ["x"], [""]), ("Sum", [], ["z"]), ("Cast", ["x"], []), ("NoSuch", [], []),
    ("If", [], []), ("Loop", ["", ""], []), ("Reshape", ["x"], []), ("Size", ["x"], [""]), ("Range", [], []),
]  # fmt: skip


def model(op_type: str, inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
    """y = Relu(x + x) and, before that, a node."""
    spare = helper.make_node(op_type, inputs, outputs, "spare")
    nodes = [spare, helper.make_node("Add", ["x", "x"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    codes = np.arange(18, dtype=np.uint8).reshape(1, 2, 3, 3)
    constants = {"w": np.ones((2, 2, 1, 1), np.float32), "s0": np.float32(1), "z0": np.uint8(1), "q": codes}
    return make_model(nodes, {"x": codes.shape}, {"y": codes.shape}, constants, opset=17)


@pytest.mark.parametrize(("op_type", "inputs", "outputs"), NODES, ids=str)
def test_every_command(
    op_type: str, inputs: list[str], outputs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    onnx.save(model(op_type, inputs, outputs), "m.onnx")
    codes = {}
    for words in COMMANDS:
        code = main(["m.onnx" if word == "M" else word for word in words])
        error = capfd.readouterr().err
        assert code in (0, 1, 2, 3, 4, 5), f"{' '.join(words)}: exit {code}\n{error}"
        codes[words[0]] = code
    assert (codes["run"] == 0) == (codes["profile"] == 0) == (codes["report"] == 0), codes
