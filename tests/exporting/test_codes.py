"""qrun export: 4-bit weights, functions of codes as tables, and chosen tensors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.cli import call
from helpers.exports import COMPILERS, DIGITS, export, read, run_c, split
from helpers.models import make_model, typed
from helpers.small_networks import NETWORKS, Net, image
from onnx import TensorProto, helper

import qrun

Array = np.ndarray[Any, Any]
NARROW = {"int4": (TensorProto.INT4, -8), "uint4": (TensorProto.UINT4, 0)}


def narrow_layer(op: str, kind: str) -> tuple[onnx.ModelProto, Array, Array]:
    """A layer with 4-bit weights, one scale for each channel; its input codes and its weights."""
    proto, lowest = NARROW[kind]
    rng = np.random.default_rng(3)
    shape, size, axis = ((1, 3, 6, 6), (5, 3, 3, 3), 0) if op == "Conv" else ((3, 9), (9, 5), 1)
    weights, zero = rng.integers(lowest, lowest + 16, size), np.full(5, lowest + 8)
    stored = [helper.make_tensor(n, proto, v.shape, v.ravel()) for n, v in (("w", weights), ("wz", zero))]
    numbers = {"s": np.float32(0.05), "z": np.uint8(120), "ys": np.float32(0.3)}
    numbers |= {"ws": rng.uniform(0.01, 0.03, 5).astype(np.float32)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=axis),
        helper.make_node(op, ["xf", "wf"], ["yf"], name="layer"),
        helper.make_node("QuantizeLinear", ["yf", "ys", "z"], ["y"]),
    ]
    stored += [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    model = make_model(nodes, {"x": typed(np.uint8, shape)}, {"y": typed(np.uint8)}, stored)
    return model, rng.integers(0, 256, shape).astype(np.uint8), weights


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("op", ["Conv", "Gemm", "MatMul"])
def test_weights_of_4_bits_stay_packed(op: str, kind: str, tmp_path: Path) -> None:
    """Two in a byte, the first in the low half; a digit a line in hex. The C reference unpacks them."""
    model, x, weights = narrow_layer(op, kind)
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    want = weights.transpose(0, 2, 3, 1) if op == "Conv" else weights
    for form in ("raw", "hex"):
        made = export(tmp_path / "m.onnx", tmp_path / form, "--as", form, "--layout", "nhwc", x=tmp_path / "x.npy")
        (layer,) = made["layers"]
        tensor = next(each for each in layer["tensors"] if each["role"] == "weights")
        assert (tensor["dtype"], tensor["shape"], tensor["tensor"]) == (kind, list(want.shape), "w")
        content = (tmp_path / form / tensor["file"]).read_bytes()
        if form == "raw":
            assert len(content) == (weights.size + 1) // 2
            codes = [half for byte in content for half in (byte & 15, byte >> 4)]
            assert codes[weights.size :] == [0] * (weights.size % 2)
        else:
            codes = [int(line, 16) for line in content.split()]
        got = np.array(codes[: weights.size])
        got = np.where(got > 7, got - 16, got) if kind == "int4" else got
        np.testing.assert_array_equal(got.reshape(want.shape), want)
    if COMPILERS:
        folder = tmp_path / "c"
        export(tmp_path / "m.onnx", folder, "--as", "c", x=tmp_path / "x.npy")
        for compiler in COMPILERS:
            assert run_c(folder, compiler) == (0, ["PASS layer"])
        _flip(folder / "l000_layer.h", "weights_0_codes")
        assert run_c(folder)[0] == 1


def _flip(path: Path, array: str) -> None:
    """Change one bit in the middle of an array."""
    head, values, rest = split(path.read_text(encoding="ascii"), array)
    numbers = re.findall(r"-?\d+", values)
    numbers[len(numbers) // 2] = str(int(numbers[len(numbers) // 2]) ^ 1)
    path.write_text(head + ", ".join(numbers) + rest, encoding="ascii")


FUNCTIONS = {
    "Sigmoid": [helper.make_node("Sigmoid", ["xf"], ["yf"], name="f")],
    "Tanh": [helper.make_node("Tanh", ["xf"], ["yf"], name="f")],
    "HardSwish": [helper.make_node("HardSwish", ["xf"], ["yf"], name="f")],
    "LeakyRelu": [helper.make_node("LeakyRelu", ["xf"], ["yf"], name="f", alpha=0.1)],
    "Mul": [helper.make_node("Sigmoid", ["xf"], ["s"]), helper.make_node("Mul", ["xf", "s"], ["yf"], name="f")],
}
"""Operators between DequantizeLinear and QuantizeLinear, by the one that names the layer."""


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_codes_are_tables(op: str, kind: type[np.integer[Any]], tmp_path: Path) -> None:
    """The table holds what the model itself makes of each of the 256 codes, and the program looks them up."""
    numbers = {"xs": np.float32(0.05), "xz": kind(12), "ys": np.float32(0.02), "yz": kind(3)}
    ends = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("QuantizeLinear", ["yf", "ys", "yz"], ["y"]),
    ]
    nodes = [ends[0], *FUNCTIONS[op], ends[1]]
    onnx.save(make_model(nodes, {"x": typed(kind, (1, 256))}, {"y": typed(kind)}, numbers), tmp_path / "m.onnx")
    lowest = int(np.iinfo(kind).min)
    x = np.arange(lowest, lowest + 256).astype(kind)[None]
    np.save(tmp_path / "x.npy", x)
    made = export(tmp_path / "m.onnx", tmp_path / "raw", "--as", "raw", x=tmp_path / "x.npy")
    (layer,) = made["layers"]
    assert (layer["op"], layer["kind"], layer["arithmetic"], layer["deviation"]) == (op, "table", "table", None)
    assert made["remaining"] == []
    (table,) = [each for each in layer["tensors"] if each["role"] == "table"]
    want = qrun.Session(tmp_path / "m.onnx", fuse=False).run({"x": x})["y"]
    np.testing.assert_array_equal(read(tmp_path / "raw", table, "raw"), want[0])
    if COMPILERS:
        export(tmp_path / "m.onnx", tmp_path / "c", "--as", "c", x=tmp_path / "x.npy")
        assert run_c(tmp_path / "c") == (0, ["PASS f"])
        _flip(tmp_path / "c" / "l000_f.h", "table_0_codes")
        assert run_c(tmp_path / "c")[0] == 1


def fire() -> tuple[Net, str]:
    """SqueezeNet in small: squeeze, two expansions that are joined, a pool, another fire module, and a mean."""
    n = image()
    x = n.add("MaxPool", n.add("Relu", n.conv("x", 3, 8)), kernel_shape=[3, 3], strides=[2, 2])
    for _ in range(2):
        squeezed = n.add("Relu", n.conv(x, 8, 4, 1))
        parts = [n.add("Relu", n.conv(squeezed, 4, 4, kernel)) for kernel in (1, 3)]
        x = n.add("Concat", *parts, axis=1)
    return n, n.add("GlobalAveragePool", n.conv(x, 8, 5, 1))


@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
@pytest.mark.parametrize("network", ["fire", "depthwise", "mlp"])
def test_networks_of_onnxruntime_s_quantizer(network: str, form: str, tmp_path: Path) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime, whose quantizer is used")
    if not COMPILERS:
        pytest.skip("no C compiler is installed")
    net, output = {**NETWORKS, "fire": fire}[network]()
    samples = iter([{"x": net.sample(seed)} for seed in (1, 2)])

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, Array] | None:
            return next(samples, None)

    chosen = {"quant_format": quantization.QuantFormat[form], "per_channel": True}
    quantization.quantize_static(net.model(output), tmp_path / "m.onnx", Reader(), **chosen)
    np.save(tmp_path / "x.npy", net.sample(1))
    made = export(tmp_path / "m.onnx", tmp_path / "c", "--as", "c", "--layout", "nhwc", x=tmp_path / "x.npy")
    kinds = [each["kind"] for each in made["layers"]]
    assert (
        set(kinds)
        >= {
            "fire": {"conv", "maximum", "concat", "average"},
            "depthwise": {"conv", "table"},
            "mlp": {"matmul", "table"},
        }[network]
    )
    assert kinds.count("conv") == {"fire": 8, "depthwise": 3, "mlp": 0}[network]
    if network == "mlp":
        reasons = {each["op"]: each["reason"] for each in made["remaining"]}
        assert reasons["com.microsoft::QLinearSoftmax"].startswith("each code depends on a whole row")
    for compiler in COMPILERS:
        assert run_c(tmp_path / "c", compiler) == (0, [f"PASS {each['name']}" for each in made["layers"]])


@pytest.mark.parametrize("form", ["raw", "hex", "c", "json"])
def test_chosen_tensors_are_written(form: str, tmp_path: Path) -> None:
    """Codes as they are, floats by their bits; by the tensor's name, or by that of its node."""
    model, x = DIGITS / "qdq" / "model.onnx", np.load(DIGITS / "x.npy")[:1]
    words = ("--as", form, "--layers", "Conv_c1*", "-t", "images", "-t", "pool_*", "-t", "images_zero_point")
    made = export(model, tmp_path, *words)
    by = {each["tensor"]: each for each in made["tensors"]}
    assert next(iter(by)) == "images"
    assert [by[name]["samples"] for name in ("images", "images_zero_point")] == [True, False]
    assert by["pool_QuantizeLinear_Output"]["dtype"] == "uint8"
    about = by["images"]
    assert (about["dtype"], about["shape"]) == ("float32", [1, *x.shape])
    want = x.view(np.uint32).ravel()
    path = tmp_path / about["file"]
    if form == "raw":
        got = np.fromfile(path, "<u4")
    elif form == "hex":
        got = np.array([int(line, 16) for line in path.read_text(encoding="ascii").split()])
    elif form == "c":
        got = np.array(re.findall(r"\d+", split(path.read_text(encoding="ascii"), "values")[1]), np.int64)
    else:
        got = np.array(about["values"]).ravel()
    np.testing.assert_array_equal(got, want)


def test_tensors_that_cannot_be_chosen(tmp_path: Path) -> None:
    words = ("export", DIGITS / "qdq" / "model.onnx", "-i", DIGITS / "x.npy", "-o", tmp_path / "out", "--as", "raw")
    ended = call(*words, "-t", "Conv_dw.raw")
    assert ended.code == 2
    assert "is inside a group that runs as one integer operator" in ended.err
    ended = call(*words, "-t", "Conv_q*")
    assert ended.code == 2
    assert "no tensor or node matches 'Conv_q*'" in ended.err
    assert not (tmp_path / "out").exists()


def test_a_model_without_integer_layers_says_why(tmp_path: Path) -> None:
    """Blocks of weights have no integer sums, and a row of Softmax is no function of one code."""
    model, x, _ = narrow_layer("MatMul", "int4")
    blocked = next(node for node in model.graph.node if node.input[0] == "w")
    blocked.attribute.append(helper.make_attribute("block_size", 9))
    blocked.attribute[0].i = 0
    for stored in model.graph.initializer:
        if stored.name in ("ws", "wz"):
            stored.dims[:] = [1, 5]
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    ended = call("export", tmp_path / "m.onnx", "-i", tmp_path / "x.npy", "-o", tmp_path / "out", "--as", "c")
    assert ended.code == 1
    assert "nothing written: no quantized layer" in ended.out
    assert "Not exported" in ended.out
    assert "B is not quantized per tensor or per axis" in ended.out
    assert not (tmp_path / "out").exists()
