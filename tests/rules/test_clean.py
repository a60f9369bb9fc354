"""No false alarms: models that a quantizer made, and the cases of the ONNX specification itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.models import make_model
from helpers.node_cases import cases
from onnx import helper

import qrun
from qrun.errors import UnsupportedError

SEED = 20261120
rng = np.random.default_rng(SEED)


def float_network() -> onnx.ModelProto:
    """Conv, Relu, depthwise Conv, pool, Add, Gemm, Softmax; the same in every test."""
    rng = np.random.default_rng(SEED)
    stored = {
        "w1": rng.normal(0, 0.3, (8, 3, 3, 3)), "b1": rng.normal(0, 0.1, 8),
        "w2": rng.normal(0, 0.3, (8, 1, 3, 3)), "b2": rng.normal(0, 0.1, 8),
        "w3": rng.normal(0, 0.3, (8, 10)), "b3": rng.normal(0, 0.1, 10),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2", "b2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        node("Add", ["c2", "r1"], ["a"]),
        node("GlobalAveragePool", ["a"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w3", "b3"], ["g"]),
        node("Softmax", ["g"], ["y"]),
    ]
    return make_model(
        nodes, {"x": ["N", 3, 8, 8]}, {"y": ["N", 10]}, {k: v.astype(np.float32) for k, v in stored.items()}, opset=13
    )


DATA = [{"x": rng.uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
FORMS = [("QDQ", False, "QUInt8"), ("QDQ", True, "QInt8"), ("QOperator", False, "QUInt8"), ("QOperator", True, "QInt8")]


def quantize(folder: Path, form: str, per_channel: bool, activations: str) -> Path:
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):
        def __init__(self) -> None:
            self.data: Iterator[dict[str, np.ndarray]] = iter(DATA)

        def get_next(self) -> Any:
            return next(self.data, None)

    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(float_network(), source)
    logging.disable(logging.WARNING)
    try:
        if form == "dynamic":
            q.quantize_dynamic(source, target, per_channel=per_channel)
        else:
            q.quantize_static(
                source, target, Reader(), quant_format=q.QuantFormat[form], per_channel=per_channel,
                activation_type=q.QuantType[activations], weight_type=q.QuantType.QInt8,
            )  # fmt: skip
    finally:
        logging.disable(logging.NOTSET)
    return target


@pytest.mark.parametrize(
    ("form", "per_channel", "activations"), [*FORMS, ("dynamic", False, ""), ("dynamic", True, "")]
)
def test_quantized_by_onnxruntime(tmp_path: Path, form: str, per_channel: bool, activations: str) -> None:
    path = quantize(tmp_path, form, per_channel, activations)
    true = saturating(form, per_channel, activations) | (
        {"QR606"} if (form, activations) == ("QDQ", "QInt8") else set()
    )
    assert {f.rule for f in qrun.check(path) if f.level != "note"} == true
    try:
        session = qrun.Session(path)
    except UnsupportedError as error:
        pytest.skip(f"cannot run it yet: {error.facts}")
    result = session.execute(DATA[0])
    assert {f.rule for f in qrun.check(session.model, result) if f.level != "note"} == true


def saturating(form: str, per_channel: bool, activations: str) -> set[str]:
    """uint8 activations with int8 weights of 8 bits saturate on CPUs without VNNI, and int8 activations that become
    uint8: those of the Gemm in QDQ form, whose weights are large enough with a scale per channel."""
    return {"QR409"} if activations != "QInt8" or (form == "QDQ" and per_channel) else set()


def test_the_float_network() -> None:
    assert qrun.check(float_network()) == []


QUANTIZED = ("quantizelinear", "qlinear", "integer", "dynamicquantize")


def test_node_cases_of_onnx() -> None:
    """No error on any of ONNX's own cases of quantized operators."""
    judged, wrong = 0, {}
    for case in chain.from_iterable(cases().values()):
        if any(word in case.name for word in QUANTIZED):
            errors = [f for f in qrun.check(case.model) if f.level == "error"]
            judged += 1
            if errors:
                wrong[case.name] = errors
    assert not wrong, wrong
    assert judged > 40
