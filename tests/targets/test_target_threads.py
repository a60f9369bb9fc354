"""Models like those of public reports, each with the node where the trouble was and what the target did with it.

The names say where the report is. Reports that no file can decide, such as missing kernels of a GPU, are in NOT_JUDGED.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
import pytest
from helpers.target_models import (
    BIAS,
    CHANNELS,
    MAPS,
    MATRIX,
    WEIGHTS,
    Build,
    F,
    Q,
    binary,
    channels,
    conv,
    conv_integer,
    lone,
    matmul,
    node,
    on_codes,
    qlinear_conv,
    unary,
)

from qrun.checking import targets
from qrun.ir.load import load

U8 = Q("uint8", zero=128)
FLOAT_WEIGHTS = F(const=True, shape=(8, 8, 3, 3))
FLOAT_BIAS = F(const=True, shape=(8,))


def embedding() -> onnx.ModelProto:
    """A table of codes with a zero point, dequantized after rows are gathered."""
    g = Build()
    rows = g.add("Gather", [g.store(np.ones((10, 4)), "int8"), g.feed((2,), "int64")], (2, 4), "int8")
    q = Q(zero=5)
    g.result(g.dequantize(rows, q, g.parameters(q), (2, 4)), (2, 4))
    return g.model()


def transformer() -> onnx.ModelProto:
    """Two activations multiplied, quantized with scales that are powers of two."""
    return node("MatMul", [Q(shape=(1, 4, 8)), Q(shape=(1, 8, 4))], shape=(1, 4, 8), made=(1, 4, 4))


def mean() -> onnx.ModelProto:
    axes = F("int64", value=np.array([2, 3]))
    return node("ReduceMean", [Q(), axes], shape=(1, 1, 256, 400), made=(1, 1, 1, 1))


THREADS: dict[str, tuple[Callable[[], onnx.ModelProto], str, str, str]] = {
    "NVIDIA/TensorRT#2774": (lambda: conv(Q("uint8", zero=57), b=None), "tensorrt", "QuantizeLinear", "refused"),
    "NVIDIA/TensorRT#4698": (embedding, "tensorrt", "DequantizeLinear", "refused"),
    "OpenPPL/ppq#346": (lambda: conv(Q(zero=-3), b=None), "tensorrt", "QuantizeLinear", "refused"),
    "NVIDIA-AI-IOT/Lidar_AI_Solution#182": (
        lambda: conv(w=replace(channels(), scale=[*CHANNELS[:7], 0.0]), b=None),
        "tensorrt",
        "DequantizeLinear",
        "refused",
    ),
    "microsoft/onnxruntime#14229": (conv, "tensorrt", "DequantizeLinear", "refused"),
    "microsoft/onnxruntime#17738": (
        lambda: conv(w=channels(), b=replace(BIAS, scale=[2.0**-9] * 8, axis=0)),
        "tensorrt",
        "DequantizeLinear",
        "refused",
    ),
    "NVIDIA/TensorRT#3360": (lambda: conv(w=channels()), "tensorrt", "DequantizeLinear", "refused"),
    "leimao/PyTorch-Eager-Mode-Quantization-TensorRT-Acceleration#1": (
        lambda: lone(Q("uint8")),
        "tensorrt",
        "QuantizeLinear",
        "wrong",
    ),
    "microsoft/onnxruntime#21169": (conv_integer, "tensorrt", "DynamicQuantizeLinear", "refused"),
    "NVIDIA/TensorRT#1009": (conv_integer, "tensorrt", "ConvInteger", "refused"),
    "NVIDIA/TensorRT#1699": (
        lambda: conv(w=channels(axis=1), b=None, op="ConvTranspose"),
        "tensorrt",
        "ConvTranspose",
        "wrong",
    ),
    "NVIDIA/TensorRT#2380": (
        lambda: conv(w=channels(axis=1), b=FLOAT_BIAS, op="ConvTranspose"),
        "tensorrt",
        "ConvTranspose",
        "wrong",
    ),
    "NVIDIA/TensorRT#1907": (lambda: lone(Q("int16")), "tensorrt", "QuantizeLinear", "refused"),
    "NVIDIA/TensorRT#3197": (lambda: conv(w=FLOAT_WEIGHTS, b=FLOAT_BIAS), "tensorrt", "Conv", "float"),
    "NVIDIA/TensorRT#2163": (lambda: lone(Q(through="Identity")), "tensorrt", "QuantizeLinear", "refused"),
    "NVIDIA/Model-Optimizer#156": (
        lambda: lone(Q("int4", [[0.1] * 8] * 2, 0, 0, const=True, shape=(32, 8), block=16), opset=19),
        "tensorrt",
        "DequantizeLinear",
        "refused",
    ),
    "microsoft/onnxruntime#8890": (
        lambda: qlinear_conv(zeros=list(range(8))),
        "onnxruntime-cpu@1.24.4",
        "QLinearConv",
        "crash",
    ),
    "microsoft/onnxruntime#12558": (conv_integer, "onnxruntime-cpu@1.22.1", "ConvInteger", "refused"),
    "microsoft/onnxruntime#12487": (
        lambda: binary("Add", U8, U8, Q("uint16", zero=32768)),
        "onnxruntime-cpu",
        "Add",
        "float",
    ),
    "microsoft/onnxruntime#20052": (lambda: conv(x=F()), "onnxruntime-cpu", "Conv", "float"),
    "microsoft/onnxruntime#18351": (lambda: conv(F(), FLOAT_WEIGHTS, FLOAT_BIAS, None), "qnn-htp", "Conv", "float"),
    "microsoft/onnxruntime#24729": (
        lambda: conv(Q("uint16"), Q("uint16", zero=300, const=True), None, Q("uint16", 0.125)),
        "qnn-htp",
        "Conv",
        "refused",
    ),
    "openvinotoolkit/openvino#17461": (lambda: on_codes("QLinearAdd"), "openvino-cpu@2023.0", "QLinearAdd", "refused"),
    "open-edge-platform/anomalib#1085": (
        lambda: on_codes("QLinearConcat"),
        "openvino-cpu@2023.0",
        "QLinearConcat",
        "refused",
    ),
    "amd/RyzenAI-SW#208": (transformer, "vitisai-xint8", "MatMul", "cpu"),
    "amd/RyzenAI-SW#126": (lambda: matmul(w=MATRIX), "vitisai-xint8", "MatMul", "cpu"),
    "amd/RyzenAI-SW#172": (lambda: unary("HardSigmoid", F(), None, alpha=0.2), "vitisai-xint8", "HardSigmoid", "cpu"),
    "amd/RyzenAI-SW#127": (lambda: unary("Erf"), "vitisai-xint8", "Erf", "cpu"),
    "pytorch/executorch#16779": (mean, "ethos-u55", "ReduceMean", "cpu"),
    "tensorflow/tflite-micro#1556": (lambda: conv(F(), WEIGHTS, FLOAT_BIAS, None), "ethos-u55", "Conv", "cpu"),
    # found while reading, not in a list of reports
    "microsoft/onnxruntime#17330": (lambda: qlinear_conv(y="int8"), "onnxruntime-cpu", "QLinearConv", "refused"),
    "microsoft/onnxruntime#18811": (
        lambda: lone(Q("int16"), opset=13),
        "onnxruntime-cpu",
        "QuantizeLinear",
        "refused",
    ),
    "microsoft/onnxruntime#24711": (
        lambda: conv(b=replace(BIAS, scale=2.0**-8)),
        "onnxruntime-cpu@1.24.4",
        "Conv",
        "wrong",
    ),
    "microsoft/onnxruntime#21848": (
        lambda: conv(Q("uint16"), replace(WEIGHTS, kind="int16"), None, Q("uint16", 0.125)),
        "qnn-htp",
        "Conv",
        "refused",
    ),
    "onnxsim/onnxsim#1404": (lambda: conv(without="strides"), "vitisai-xint8", "Conv", "crash"),
    "onnxsim/onnxsim#1404 (LSTM)": (lambda: unary("LSTM", F(), None), "vitisai-xint8", "LSTM", "crash"),
    "amd/RyzenAI-SW#191": (lambda: conv(shape=("N", *MAPS[1:])), "vitisai-xint8", "Conv", "cpu"),
}
NOT_JUDGED = {
    "NVIDIA/TensorRT#2280": "no kernel for a grouped deconvolution",
    "NVIDIA/TensorRT#3385": "no kernel for a fused chain",
    "NVIDIA/TensorRT#4060": "no kernel on that GPU",
    "NVIDIA/Model-Optimizer#10": "no kernel in that release",
    "NVIDIA/TensorRT#4021": "an option of the builder",
    "NVIDIA/TensorRT#993": "speed",
    "microsoft/onnxruntime#2964": "a release older than those that were measured",
    "microsoft/onnxruntime#25444": "fixed",
    "renesas/ruhmi-framework-mcu#2": "a transpose of an older release",
}


@pytest.mark.parametrize("thread", THREADS)
def test_thread(thread: str) -> None:
    """The first node of the operator that breaks a rule has the consequence of the report."""
    made, name, op, consequence = THREADS[thread]
    verdict = targets.find(name).verdict(load(made().SerializeToString()))
    found = [each for each in verdict.judged if each.node.op_type == op]
    assert consequence in {rule.otherwise for each in found for rule in each.rules}
    reason = next(r for r in verdict.reasons if r.consequence == consequence and op in str(r.operators))
    assert reason.rule.fix
    assert reason.rule.source


def test_reports_that_files_cannot_decide() -> None:
    """They are not also foretold."""
    assert THREADS.keys().isdisjoint(NOT_JUDGED)
