"""A run and the rule QR301 say alike what to do about a scale of a shape that does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from helpers.support import node_model

import qrun


def one(op_type: str, *values: Any, opset: int = 13, domain: str = "", **attributes: Any) -> onnx.ModelProto:
    """All inputs stored but the first."""
    constants = range(1, len(values))
    return node_model(op_type, list(values), attributes, opset=opset, domain=domain, constants=constants)[0]


THREE, HALF, ZERO = np.full(3, 0.5, np.float32), np.float32(0.5), np.uint8(0)
CODES = np.zeros((4, 2), np.uint8)
WRONG_SCALES = {
    "per tensor": one("QLinearMatMul", CODES, HALF, ZERO, CODES.T, HALF, ZERO, THREE, ZERO),
    "row": one("QLinearMatMul", CODES, THREE, ZERO, CODES.T, HALF, ZERO, HALF, ZERO),
    "column": one("QLinearMatMul", CODES, HALF, ZERO, CODES.T, THREE, ZERO, HALF, ZERO),
    "axis": one("DequantizeLinear", CODES, THREE),
    "opset 10": one("DequantizeLinear", CODES, THREE, opset=10),
    "blocks": one("DequantizeLinear", CODES, np.ones((3, 2), np.float32), opset=21, axis=0, block_size=2),
    "channel": one("QLinearConv", np.zeros((1, 1, 2, 2), np.uint8), HALF, ZERO, np.zeros((2, 1, 1, 1), np.uint8), THREE,
                   ZERO, HALF, ZERO),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_SCALES)
def test_a_run_and_the_rule_give_one_fix(name: str) -> None:
    model = WRONG_SCALES[name]
    told = next(f for f in qrun.check(model) if f.rule == "QR301")
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    with pytest.raises(qrun.QrunError) as failed:
        qrun.Session(model, backend="reference").run({model.graph.input[0].name: np.zeros(shape, np.uint8)})
    assert (failed.value.code, failed.value.fixes) == ("QR301", (told.fix,))
