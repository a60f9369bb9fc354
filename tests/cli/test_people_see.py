"""The table "What people see today" of the design study: each mistake that onnxruntime, onnx.checker or onnx.reference
accept or blur gets exactly one finding of ``qrun check``, or one error of ``qrun run``,
that says all that is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import pytest
from helpers.cli import call, conv_model, quantize_model, save, sum_model, value
from helpers.models import make_model, typed
from onnx import TensorProto, external_data_helper, helper

F32, U8, I8 = np.float32, np.uint8, np.int8
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 24536891\n"
PAGE = b"<!DOCTYPE html><html><body>Sign in</body></html>"
SCHEMA = json.loads(resources("qrun").joinpath("schemas/check-1.0.json").read_text())
SEVEN_BITS = np.random.default_rng(1).integers(-64, 65, (16, 3, 3, 3)).astype(I8)
STEM = "/stem/conv"


@dataclass(frozen=True)
class Row:
    """A mistake. write: makes the model m.onnx. node, tensor, expected, got: words that the finding must have there.

    feeds: of a mistake in the inputs: what ``qrun run`` is given. error: it stops the run.
    """

    mistake: str
    rule: str
    write: Callable[[Path], Any]
    node: str = ""
    tensor: str = ""
    expected: str = ""
    got: str = ""
    feeds: tuple[str, ...] | None = None
    error: bool = True


def conv(**changes: Any) -> onnx.ModelProto:
    """A QLinearConv without findings, but for the changes."""
    return conv_model(w=SEVEN_BITS, **changes)


def model(made: onnx.ModelProto) -> Callable[[Path], Any]:
    return lambda path: save(made, path)


def data(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def image(dtype: Any, *shape: int) -> Callable[[Path], Any]:
    """A float model of one image, and x.npy."""

    def write(path: Path) -> None:
        node = helper.make_node("Relu", ["image"], ["y"], name="act")
        float32 = TensorProto.FLOAT
        save(make_model([node], {"image": typed(float32, ["N", 3, 8, 8])}, {"y": typed(float32)}), path)
        np.save(path.with_name("x.npy"), np.zeros(shape, dtype))

    return write


def two_inputs(path: Path) -> None:
    save(sum_model(("image", "mask")), path)


def short(path: Path) -> None:
    made = conv()
    external_data_helper.convert_model_to_external_data(made, location="weights.bin", size_threshold=100)
    onnx.save(made, path)
    file = path.with_name("weights.bin")
    file.write_bytes(file.read_bytes()[:-200])


def renamed(op_type: str, domain: str = "") -> onnx.ModelProto:
    made = conv()
    made.graph.node[0].op_type, made.graph.node[0].domain = op_type, domain
    return made


def dequantize(zero: Any) -> onnx.ModelProto:
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], name="dq", axis=0)
    io = [value("x", TensorProto.INT8, [4, 2])], [value("y", TensorProto.FLOAT, None)]
    return make_model([node], *io, {"s": np.full(4, 0.5, F32), "z": zero}, 13)


def cut() -> bytes:
    whole = conv().SerializeToString()
    return whole[: len(whole) // 2]


ROWS = [
    Row("missing input", "QR001", two_inputs, tensor="mask", expected="mask", got="image", feeds=("image=[1]",)),
    Row("misspelled input", "QR002", image(F32, 1), expected="image", feeds=("imgae=x.npy",)),
    Row("float64 for float32", "QR003", image(np.float64, 1, 3, 8, 8), "", "image", "float32", "float64", ("x.npy",)),
    Row("NHWC for NCHW", "QR003", image(F32, 1, 8, 8, 3), "", "image", "[N,3,8,8]", "[1,8,8,3]", ("x.npy",)),
    Row("unknown operator", "QR211", model(renamed("MaxPoolX")), STEM, "", "operator", "MaxPoolX"),
    Row("custom domain", "QR105", model(renamed("MaxPool", "com.acme")), STEM, "", "com.acme", "com.microsoft"),
    Row("LFS pointer", "QR101", data(LFS), expected="ONNX", got="pointer to 24.5 MB"),
    Row("HTML page", "QR101", data(PAGE), expected="ONNX", got="an HTML page"),
    Row("half a file", "QR101", data(cut()), expected="bytes by the last length field", got="cut at byte"),
    Row("empty file", "QR101", data(b""), expected="ONNX", got="0 bytes"),
    Row("short external data", "QR104", short, "", "w", "bytes", "bytes"),
    Row("w_scale [3] for 16 channels", "QR301", model(conv(w_scale=np.ones(3, F32))), STEM, "w_scale", "[16]", "[3]"),
    Row("scalar zero point, scale [4]", "QR302", model(dequantize(I8(0))), "dq", "z", "[4]", "scalar"),
    Row("zero point [1], scale [4]", "QR302", model(dequantize(np.zeros(1, I8))), "dq", "z", "[4]", "[1]"),
    Row("int8 zero point, uint8 data", "QR303", model(conv(x_zp=I8(0))), STEM, "x_zp", "uint8", "int8"),
    *(
        Row(f"scale {scale}", "QR306", model(conv(x_scale=F32(scale))), STEM, "x_scale", "positive", f"{scale:g}")
        for scale in (0, np.nan, -0.5)
    ),
    Row("bias [3] for 16 channels", "QR305", model(conv(b=np.zeros(3, np.int32))), STEM, "b", "[16]", "[3]"),
    Row("NaN input", "QR401", model(quantize_model()), "quant", "x", "numbers", "NaN in 1 of 3", ("x=[1,NaN,2]",), False),
    Row("+Inf input, uint8", "QR411", model(quantize_model()), "quant", "x", "finite", "infinity in 1 of 3",
        ("x=[1,Infinity,2]",), False),
]  # fmt: skip


@pytest.mark.parametrize("row", [pytest.param(row, id=row.mistake) for row in ROWS])
def test_one_clear_finding(row: Row, folder: Path) -> None:
    row.write(folder / "m.onnx")
    found = in_the_inputs(row) if row.feeds else in_the_model()
    assert found["rule"] == row.rule, found
    assert found["name"]
    assert found["message"]
    assert found["fix"], found
    for key in ("node", "tensor", "expected", "got"):
        words = getattr(row, key)
        assert words in found[key], f"{key} should name {words!r}: {found}"


def in_the_model() -> dict[str, Any]:
    """The one finding of ``qrun check``."""
    ended = call("check", "m.onnx", "--format", "json")
    assert (ended.code, ended.err) == (1, "")
    jsonschema.validate(ended.json, SCHEMA)
    (finding,) = ended.json["models"][0]["findings"]
    assert finding["level"] == "error"
    assert finding["expected"], finding
    assert finding["got"], finding
    return finding


def in_the_inputs(row: Row) -> dict[str, Any]:
    """The one error of ``qrun run``, or its one finding, as a finding."""
    arguments = [word for spec in row.feeds or () for word in ("-i", spec)]
    ended = call("run", "m.onnx", *arguments, "--format", "json")
    if not row.error:
        assert ended.code == 0, ended.err
        (finding,) = ended.json["findings"]
        assert finding["level"] == "warning"
        return finding
    assert ended.code == 2
    assert ended.err.count("error QR") == 1
    error = ended.json["error"]
    facts = {fact["label"]: fact["value"] for fact in error["facts"]}
    expected = facts.get("expected") or facts.get("inputs") or facts["missing"]
    got = facts.get("got") or facts.get("given", "")
    found = {"rule": error["code"], "node": "", "tensor": " ".join(error["where"]), "expected": expected, "got": got}
    return {**error, **found, "fix": error["fixes"]}
