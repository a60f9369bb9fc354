"""Whatever onnxruntime's quantizers write is legal: no rule calls any of it an error."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.small_networks import NETWORKS, Array, Net
from helpers.support import run_ort

import qrun

quantization = pytest.importorskip(
    "onnxruntime.quantization", reason="onnxruntime, whose quantizers write the networks, is not installed"
)
TYPES = quantization.QuantType
QDQ, QOPERATOR = quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator
EIGHT = {"u8": TYPES.QUInt8, "s8": TYPES.QInt8}
SIXTEEN = {"u16": TYPES.QUInt16, "s16": TYPES.QInt16}
FOUR = {"u4": TYPES.QUInt4, "s4": TYPES.QInt4}

Made = Callable[[onnx.ModelProto, Net, Path], onnx.ModelProto]


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, net: Net) -> None:
        self.feeds: Iterator[dict[str, Array]] = iter([{"x": net.sample(seed)} for seed in (1, 2)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self.feeds, None)


def static(**options: Any) -> Made:
    def make(model: onnx.ModelProto, net: Net, folder: Path) -> onnx.ModelProto:
        quantization.quantize_static(model, folder / "q.onnx", Reader(net), **options)
        return onnx.load(folder / "q.onnx")

    return make


def dynamic(**options: Any) -> Made:
    def make(model: onnx.ModelProto, _: Net, folder: Path) -> onnx.ModelProto:
        quantization.quantize_dynamic(model, folder / "q.onnx", **options)
        return onnx.load(folder / "q.onnx")

    return make


def four_bits(**options: Any) -> Made:
    def make(model: onnx.ModelProto, *_: Any) -> onnx.ModelProto:
        reason = "onnxruntime's quantizer of weights needs onnx_ir, which is not installed"
        pytest.importorskip("onnx_ir", reason=reason)
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        made = MatMulNBitsQuantizer(model, **options)
        made.process()
        return made.model.model  # type: ignore[no-any-return]

    return make


def ways() -> Mapping[str, Made]:
    """Names and quantizers: each choice by itself, and 8-bit types with scales per tensor and per channel in both
    forms."""
    found: dict[str, Made] = {}
    forms = {"qdq": QDQ, "qop": QOPERATOR}
    for (form, f), (a, x), (b, w), channels in itertools.product(
        forms.items(), EIGHT.items(), EIGHT.items(), (False, True)
    ):
        name = f"{form}-{a}{b}{'-channel' if channels else ''}"
        found[name] = static(quant_format=f, activation_type=x, weight_type=w, per_channel=channels)
    plain = {"activation_type": TYPES.QUInt8, "weight_type": TYPES.QInt8}
    for form, f in forms.items():
        for key, options in {
            "reduced": {"reduce_range": True, "per_channel": True},
            "symmetric": {"extra_options": {"ActivationSymmetric": True, "WeightSymmetric": True}},
            "asymmetric": {"extra_options": {"WeightSymmetric": False}, "per_channel": True},
        }.items():
            found[f"{form}-{key}"] = static(quant_format=f, **plain, **options)
        signed = {"activation_type": TYPES.QInt8, "weight_type": TYPES.QInt8}
        found[f"{form}-signed-symmetric"] = static(
            quant_format=f,
            **signed,
            per_channel=True,
            extra_options={"ActivationSymmetric": True, "WeightSymmetric": True},
        )
    for (a, x), (b, w) in [
        *itertools.product(SIXTEEN.items(), [*EIGHT.items(), *SIXTEEN.items()]),
        *itertools.product(EIGHT.items(), FOUR.items()),
    ]:
        for contrib in (False, True):
            found[f"qdq-{a}{b}{'-contrib' if contrib else ''}"] = static(
                quant_format=QDQ, activation_type=x, weight_type=w, extra_options={"UseQDQContribOps": contrib}
            )
    for key, options in {
        "pairs": {"AddQDQPairToWeight": True},
        "dedicated": {"DedicatedQDQPair": True},
        "float-bias": {"QuantizeBias": False},
        "kept": {"QDQKeepRemovableActivations": True},
        "real-range": {"MinimumRealRange": 0.01},
    }.items():
        found[f"qdq-{key}"] = static(quant_format=QDQ, per_channel=True, **plain, extra_options=options)
    found = {name: made for name, made in found.items() if "s8u8" not in name}
    for (b, w), channels, reduced in itertools.product(EIGHT.items(), (False, True), (False, True)):
        name = f"dynamic-{b}{'-channel' if channels else ''}{'-reduced' if reduced else ''}"
        found[name] = dynamic(weight_type=w, per_channel=channels, reduce_range=reduced)
    found["qdq-blocks"] = static(
        quant_format=QDQ,
        activation_type=TYPES.QInt8,
        weight_type=TYPES.QInt4,
        op_types_to_quantize=["MatMul"],
        extra_options={"BlockSize": 16},
    )
    return found


def weights_only() -> Mapping[str, Made]:
    """The quantizer of weights in blocks."""
    found: dict[str, Made] = {}
    for (form, f), symmetric, bits in itertools.product({"qdq": QDQ, "qop": QOPERATOR}.items(), (False, True), (4, 8)):
        if (form, bits) != ("qdq", 8):
            name = f"blocks-{form}-{bits}{'-symmetric' if symmetric else ''}"
            found[name] = four_bits(bits=bits, block_size=16, is_symmetric=symmetric, quant_format=f)
    for key, options in {
        "rows": {"bits": 4, "channel_wised_quantize": True, "quant_format": QDQ},
        "gathered": {"bits": 4, "block_size": 16, "op_types_to_quantize": ("MatMul", "Gather"), "quant_format": QDQ},
    }.items():
        found[f"blocks-{key}"] = four_bits(**options)
    return found


def errors(network: str, made_by: Mapping[str, Made], folder: Path) -> list[str]:
    found = []
    for name, make in made_by.items():
        net, y = NETWORKS[network]()
        judged = qrun.check(make(net.model(y), net, folder))
        found += [f"{name}: {f.rule} {f.node}: {f.message}" for f in judged if f.level == "error"]
    return found


@pytest.mark.parametrize("network", NETWORKS)
def test_no_error(network: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    assert errors(network, ways(), tmp_path) == []


@pytest.mark.parametrize("network", ["mlp", "transformer"])
def test_no_error_in_weights_of_blocks(network: str, tmp_path: Path) -> None:
    assert errors(network, weights_only(), tmp_path) == []


@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
def test_blocks_of_zeros_and_of_either_sign(symmetric: bool, tmp_path: Path) -> None:
    """onnxruntime's own result, where a block has a negative scale, or the scale 0."""
    net = Net((2, 32))
    weight = net.rng.standard_normal((32, 16)).astype(np.float32)
    weight[:16, 3] = 0
    y = net.add("MatMul", "x", net.store(weight))
    make = four_bits(bits=4, block_size=16, is_symmetric=symmetric, quant_format=QDQ)
    made = make(net.model(y), net, tmp_path)
    scale = next(onnx.numpy_helper.to_array(t) for t in made.graph.initializer if "scale" in t.name)
    assert scale[0, 3] == 0
    assert (scale.min() < 0) == symmetric
    assert [f.rule for f in qrun.check(made)] == ["QR610"]  # MatMulNBits of it rounds x
    x = net.sample(5)
    (got,) = qrun.Session(made).run({"x": x}).values()
    np.testing.assert_allclose(got, run_ort(made, {"x": x})[0], rtol=0, atol=6e-6)
