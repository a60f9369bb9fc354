"""DequantizeLinear against the exact oracle, onnxruntime and onnx.reference; granularity and refusals."""

from __future__ import annotations

from typing import Any

import ml_dtypes as md
import numpy as np
import onnx.reference
import onnx.version_converter
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.granularity import granularity
from oracle.quantize import dequantize_linear

import qrun
from qrun.ir.types import NUMBERS
from qrun.ops import Context, find

f32, f16, bf16, i32, u8, i8 = np.float32, np.float16, md.bfloat16, np.int32, np.uint8, np.int8
INTEGERS = (u8, i8, i32, np.uint16, np.int16, md.uint4, md.int4, md.uint2, md.int2)
FLOAT8 = (md.float8_e4m3fn, md.float8_e4m3fnuz, md.float8_e5m2, md.float8_e5m2fnuz)
TINY = (md.float4_e2m1fn, md.float6_e2m3fn, md.float6_e3m2fn)
SCALE8 = md.float8_e8m0fnu
SEED = 31
NEW = {10: (u8, i8, i32), 13: (u8, i8, i32), 19: (u8, i32, *FLOAT8), 21: INTEGERS[:7], 23: (u8, i32, TINY[0]),
       24: (u8, i32, *FLOAT8), 25: (md.uint2, md.int2, np.int16), 28: (*TINY, i32)}  # fmt: skip


def kernel(version: int) -> Any:
    return find("", "DequantizeLinear", version)


def codes(rng: np.random.Generator, type: Any, shape: tuple[int, ...]) -> np.ndarray:
    if type in INTEGERS:
        info = md.iinfo(type)
        array = rng.integers(info.min, int(info.max) + 1, shape)
        if type is i32 and rng.random() < 0.5:
            array = np.asarray(rng.choice([2**24 + 1, 2**31 - 1, -(2**31), 2**25 + 3, 7], shape))
        return np.asarray(array).astype(i8 if np.dtype(type).kind == "V" and info.min < 0 else np.int64).astype(type)
    return np.asarray(rng.integers(0, 256, shape)).astype(u8).view(type)


def scales(rng: np.random.Generator, type: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = np.where(rng.random(shape) < 0.6, np.exp(rng.normal(-3, 4, shape)), rng.choice([1, 1 / 255, 0.5], shape))
    if rng.random() < 0.1:
        values = rng.choice([0.0, np.inf, np.nan, 1e-45, 3e38, 1.0], shape)
    elif type is not SCALE8 and rng.random() < 0.1:
        values = -values
    with np.errstate(all="ignore"):
        return np.asarray(values).astype(f32).astype(type)


@pytest.mark.parametrize("version", NEW)
def test_against_the_oracle(version: int) -> None:
    rng = np.random.default_rng([SEED, version])
    for number in range(200):
        type = NEW[version][rng.integers(len(NEW[version]))]
        kinds = [f32] if version < 19 else [f32, f16, bf16] + [SCALE8] * (version >= 24)
        scale_type = kinds[rng.integers(len(kinds))]
        shape, grain, attributes = granularity(rng, version)
        x, scale = codes(rng, type, shape), scales(rng, scale_type, grain)
        zero = codes(rng, type, grain) if type in INTEGERS else np.zeros(grain, type)
        if rng.random() < 0.3:
            zero = None
        target = scale_type
        if version >= 23 and (scale_type is SCALE8 or rng.random() < 0.3):
            target = kinds[rng.integers(3)]
            attributes["output_dtype"] = NUMBERS[np.dtype(target)]
        if rng.random() < 0.3 and x.ndim > 1:
            x = np.asfortranarray(x)
        got = kernel(version)(x, scale, zero, **attributes, ctx=Context(version=version))
        axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
        want = dequantize_linear(x, scale, zero, np.dtype(target), axis=axis, block=block)
        note = (
            f"seed {SEED}, case {number}: {attributes} x {x.tolist()} {x.dtype} scale {scale} {scale.dtype} zero {zero}"
        )
        assert_equal(got, want, note, signed_zeros=False)


@pytest.mark.parametrize("type", [t for t in (*INTEGERS, *FLOAT8, *TINY) if np.dtype(t).itemsize == 1])
def test_every_code(type: Any) -> None:
    every = np.arange(256, dtype=u8)
    if np.dtype(type).kind == "V" or type in (*FLOAT8, *TINY):
        bits = {md.uint4: 4, md.int4: 4, md.uint2: 2, md.int2: 2, TINY[0]: 4, TINY[1]: 6, TINY[2]: 6}.get(type, 8)
        every = every[: 2**bits]
    x = every.view(type)
    scale = np.array(1 / 3, f32)
    assert_equal(kernel(28)(x, scale), dequantize_linear(x, scale, None, np.dtype(f32)), str(type))


@pytest.mark.parametrize("version", [13, 19, 21, 23])
def test_against_onnxruntime_and_onnx_reference(version: int) -> None:
    """8- and 16-bit integers, which neither gets wrong; onnx.reference has no version 13 and onnxruntime no
    1-vector with block_size."""
    rng = np.random.default_rng([SEED, 1, version])
    for number in range(60):
        type = [u8, i8, np.uint16, np.int16][rng.integers(2 if version < 21 else 4)]
        scale_type = f32 if version < 19 else [f32, f16][rng.integers(2)]
        shape, grain, attributes = granularity(rng, version)
        scale = np.asarray(rng.random(grain) + 1e-3).astype(scale_type)
        x, zero = codes(rng, type, shape), codes(rng, type, grain)
        model, feeds = node_model("DequantizeLinear", [x, scale, zero], attributes, opset=version, outputs=[scale_type])
        got = run_qrun(model, feeds)[0]
        note = f"case {number}: {attributes} x {x.dtype} {x.tolist()} scale {scale} {scale.dtype} zero {zero}"
        blocked = "block_size" in attributes
        if not (blocked and len(shape) == 1):
            assert_equal(got, run_ort(model, feeds)[0], "onnxruntime, " + note)
        if version >= 19 and not (blocked and 0 in shape):
            with np.errstate(over="ignore"):
                want = np.asarray(onnx.reference.ReferenceEvaluator(model).run(None, feeds)[0])
            assert_equal(got, want, "onnx.reference, " + note)


def test_contrib_operator() -> None:
    rng = np.random.default_rng([SEED, 2])
    for number in range(60):
        type = [u8, i8, np.uint16, np.int16][rng.integers(4)]
        shape, grain, attributes = granularity(rng, 13)
        x, zero = codes(rng, type, shape), codes(rng, type, grain)
        scale = np.asarray(rng.random(grain) + 1e-3).astype(f32)
        model, feeds = node_model("DequantizeLinear", [x, scale, zero], attributes, domain=MS, outputs=[f32])
        assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0], f"case {number}: {attributes} {x.tolist()}")


def test_contrib_operator_without_axis_takes_axis_1() -> None:
    ctx = Context(version=1)
    x = np.full((2, 3), 6, md.int4)
    y = find(MS, "DequantizeLinear", 1)(x, np.array([1, 2, 3], f32), ctx=ctx)
    assert y.tolist() == [[6, 12, 18]] * 2
    assert [o.kind for o in ctx.observations] == ["axis-assumed"]


def test_large_tensors_go_block_by_block() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.integers(0, 256, (3, 1000, 77)).astype(u8)
    for axis, length in ((0, 3), (1, 1000), (2, 77)):
        s, zero = rng.random(length).astype(f32), rng.integers(0, 256, length).astype(u8)
        lanes = [-1 if d == axis else 1 for d in range(3)]
        want = (x.astype(f32) - zero.reshape(lanes)) * s.reshape(lanes)
        assert_equal(kernel(13)(x, s, zero, axis=axis), want, f"axis {axis}")
    s = rng.random((3, 63, 77)).astype(f16)
    want = (x.astype(f32) * np.repeat(s, 16, 1)[:, :1000].astype(f32)).astype(f16)
    assert_equal(kernel(21)(x, s, None, block_size=16), want, "blocked")


X = np.ones((2, 5), u8)
E4 = np.ones(2, md.float8_e4m3fn)
BAD = [
    ([X, np.ones(5, f32)], {}, 10, "QR301", "x_scale"),
    ([X, np.ones(2, f32)], {}, 13, "QR301", "x_scale"),
    ([X, np.ones(5, f32), u8(0)], {}, 13, "QR302", "x_zero_point"),
    ([X, np.ones(5, f32)], {"axis": 2}, 13, "QR204", "axis"),
    ([X, f32(1), i8(0)], {}, 13, "QR303", "x_zero_point"),
    ([X, f32(1), np.zeros(2, u8)], {}, 13, "QR302", "x_zero_point"),
    ([X, np.ones((2, 3), f32)], {"block_size": 1}, 21, "QR204", "block_size"),
    ([X, np.ones((2, 3), f32)], {"block_size": 2**62}, 21, "QR204", "block_size"),
    ([X, np.ones((2, 3), f32), np.zeros((2, 2), u8)], {"block_size": 2}, 21, "QR302", "x_zero_point"),
    ([E4, f32(1), np.ones((), md.float8_e4m3fn)], {}, 19, "QR202", "x_zero_point"),
    ([E4.astype(TINY[0]), f32(1), np.ones((), TINY[0])], {}, 23, "QR202", "x_zero_point"),
    ([X, np.ones((), SCALE8)], {}, 24, "QR204", "x_scale"),
    ([X, f32(1)], {"output_dtype": 2}, 23, "QR204", "output_dtype"),
    ([X, f32(1)], {"output_dtype": 1000}, 23, "QR204", "output_dtype"),
    ([X, f32(1)], {"output_dtype": 1}, 21, "QR204", ""),
    ([X.astype(np.int64), f32(1)], {}, 21, "QR203", "x"),
]


@pytest.mark.parametrize(("inputs", "attributes", "opset", "code", "param"), BAD, ids=str)
def test_refusals(inputs: list[Any], attributes: dict[str, int], opset: int, code: str, param: str) -> None:
    model, feeds = node_model("DequantizeLinear", inputs, attributes, opset=opset, outputs=[f32])
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)


def test_a_bad_scale_is_observed() -> None:
    ctx = Context()
    y = kernel(21)(X, np.array(-np.inf, f32), ctx=ctx)
    assert (y == -np.inf).all()
    assert [(o.kind, o.param) for o in ctx.observations] == [("bad-scale", "x_scale")]


def test_axis_before_opset_13_proposes_what_helps() -> None:
    """The fix is that of scales per axis, and it works: the converted model runs."""
    inputs = [np.ones((2, 3), np.int8), np.array([1, 2], np.float32), np.zeros(2, np.int8)]
    model, feeds = node_model("DequantizeLinear", inputs, {"axis": 0}, opset=11, constants=[1, 2])
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert caught.value.fixes[0] == "convert the model to opset 13: onnx.version_converter.convert_version(model, 13)"
    converted = onnx.version_converter.convert_version(model, 13)
    assert run_qrun(converted, feeds)[0].tolist() == [[1, 1, 1], [2, 2, 2]]
