"""The static rules and the kernels judge shapes alike: what one refuses, the other reports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.support import MS, node_model

import qrun
from qrun.errors import QrunError

SEED = 7
U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32
SHAPES = [
    (),
    (1,),
    (2,),
    (3,),
    (4,),
    (5,),
    (1, 1),
    (1, 5),
    (5, 1),
    (2, 1),
    (2, 1, 5),
    (1, 1, 5),
    (2, 4, 1),
    (2, 3),
    (0,),
]
CODES = {"QR301", "QR302", "QR305"}
KERNEL_CODES = CODES | {"QR204"}
"""Kernels name the attribute where an axis or a block size does not fit the shapes."""
WIDER = {"QGemm": {(1, 5)}, "QGemm transB": {(1, 5)}}
"""Shapes that a kernel takes beyond the operator's page."""

# operator, domain, inputs as (type, shape or None for a parameter under test), attributes
S, ZU, ZI = (F32, None), (U8, None), (I8, None)
CASES: dict[str, tuple[str, str, list[tuple[Any, Any]], dict[str, Any]]] = {
    "QLinearConv": (
        "QLinearConv", "", [(U8, (1, 2, 4, 4)), S, ZU, (I8, (5, 2, 1, 1)), S, ZI, S, ZU, (I32, None)], {},
    ),
    "ConvInteger": ("ConvInteger", "", [(U8, (1, 2, 4, 4)), (I8, (5, 2, 1, 1)), ZU, ZI], {}),
    "QLinearMatMul": ("QLinearMatMul", "", [(U8, (2, 3)), S, ZU, (I8, (3, 5)), S, ZI, S, ZU], {}),
    "QLinearMatMul 3-D": ("QLinearMatMul", "", [(U8, (2, 4, 3)), S, ZU, (I8, (2, 3, 5)), S, ZI, S, ZU], {}),
    "QLinearMatMul 1-D": ("QLinearMatMul", "", [(U8, (3,)), S, ZU, (I8, (3,)), S, ZI, S, ZU], {}),
    "MatMulInteger": ("MatMulInteger", "", [(U8, (2, 3)), (I8, (3, 5)), ZU, ZI], {}),
    "QuantizeLinear": ("QuantizeLinear", "", [(F32, (2, 5)), S, ZU], {}),
    "QuantizeLinear axis 0": ("QuantizeLinear", "", [(F32, (5,)), S, ZU], {"axis": 0}),
    "QuantizeLinear 1-D": ("QuantizeLinear", "", [(F32, (5,)), S, ZU], {}),
    "DequantizeLinear": ("DequantizeLinear", "", [(I8, (2, 5)), S, ZI], {"axis": -1}),
    "DequantizeLinear blocks": ("DequantizeLinear", "", [(I8, (2, 5)), S, ZI], {"axis": 1, "block_size": 2}),
    "DequantizeLinear blocks 1-D": ("DequantizeLinear", "", [(I8, (5,)), S, ZI], {"axis": 0, "block_size": 5}),
    "QLinearAdd": ("QLinearAdd", MS, [(U8, (2, 5)), S, ZU, (U8, (2, 5)), S, ZU, S, ZU], {}),
    "QLinearSigmoid": ("QLinearSigmoid", MS, [(U8, (2, 5)), S, ZU, S, ZU], {}),
    "QGemm": ("QGemm", MS, [(U8, (2, 3)), S, ZU, (I8, (3, 5)), S, ZI, (I32, None), S, ZU], {}),
    "QGemm transB": ("QGemm", MS, [(U8, (2, 3)), S, ZU, (I8, (5, 3)), S, ZI, (I32, None), S, ZU], {"transB": 1}),
    "MatMulIntegerToFloat": (
        "MatMulIntegerToFloat", MS, [(U8, (2, 3)), (I8, (3, 5)), S, S, ZU, ZI, (F32, None)], {},
    ),
    "DynamicQuantizeMatMul": ("DynamicQuantizeMatMul", MS, [(F32, (2, 3)), (I8, (3, 5)), S, ZI, (F32, None)], {}),
}  # fmt: skip


def usual(op_type: str, dtype: Any, attributes: dict[str, Any], inputs: list[tuple[Any, Any]]) -> tuple[int, ...]:
    """A legal shape for a parameter: a scalar, or the blocks; [5] for a bias."""
    if "block_size" in attributes:
        return (2, 3) if len(inputs[0][1]) == 2 else (1,)
    return ()


@pytest.mark.parametrize("name", CASES)
def test_rules_and_kernels_agree(name: str) -> None:
    op_type, domain, inputs, attributes = CASES[name]
    rng = np.random.default_rng(SEED)
    biases = {8: "QLinearConv", 6: "QGemm MatMulIntegerToFloat", 4: "DynamicQuantizeMatMul"}
    places = [p for p, (_, shape) in enumerate(inputs) if shape is None]
    trials: list[dict[int, tuple[int, ...]]] = [{p: s} for p in places for s in SHAPES]
    for _ in range(60):
        two = rng.choice(places, min(2, len(places)), replace=False)
        trials.append({int(p): SHAPES[rng.integers(len(SHAPES))] for p in two})
    refused = 0
    for changed in trials:
        values = []
        for p, (dtype, shape) in enumerate(inputs):
            legal = (5,) if op_type in biases.get(p, "").split() else usual(op_type, dtype, attributes, inputs)
            values.append(np.ones(shape if shape is not None else changed.get(p, legal), dtype))
        outputs = [U8 if op_type.startswith("Q") else F32]
        model, feeds = node_model(
            op_type, values, attributes, opset=21, domain=domain, outputs=outputs, constants=range(1, len(inputs))
        )
        model.graph.output[0].type.tensor_type.elem_type = 0
        found = {f.rule for f in qrun.check(model) if f.level == "error"}
        try:
            session = qrun.Session(model)
        except QrunError as error:
            pytest.skip(f"cannot run it yet: {error}")
        try:
            session.run(feeds)
            code = ""
        except QrunError as error:
            code = error.code
        refused += bool(code)
        case = f"seed {SEED}, {name}, shapes {changed}: rules {found}, kernel {code!r}"
        wider = set(changed.values()) & WIDER.get(name, set())
        assert bool(found) == bool(code) or (wider and not code), case
        assert found <= CODES, case
        assert not code or code in KERNEL_CODES, case
    assert 0 < refused < len(trials)
