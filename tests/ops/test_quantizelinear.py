"""QuantizeLinear against the exact oracle, onnxruntime and onnx.reference; granularity, refusals, observations."""

from __future__ import annotations

from typing import Any

import ml_dtypes as md
import numpy as np
import onnx.reference
import pytest
from helpers.support import MS, assert_equal, node_model, run_ort, run_qrun
from oracle.granularity import granularity
from oracle.quantize import quantize_linear

import qrun
from qrun.ir.types import NUMBERS
from qrun.ops import Context, find

f32, f16, bf16, i32, u8, i8 = np.float32, np.float16, md.bfloat16, np.int32, np.uint8, np.int8
INTEGERS = (u8, i8, np.uint16, np.int16, md.uint4, md.int4, md.uint2, md.int2)
FLOAT8 = (md.float8_e4m3fn, md.float8_e4m3fnuz, md.float8_e5m2, md.float8_e5m2fnuz)
TINY = (md.float4_e2m1fn, md.float6_e2m3fn, md.float6_e3m2fn)
SCALE8 = md.float8_e8m0fnu
SEED = 21
SPECIALS = [np.inf, -np.inf, np.nan, 0.0, -0.0, 3e9, -3e9, 1e30, 1e-45, 65504.0, 2.0**31, -(2.0**31), 3.4e38]


def kernel(version: int) -> Any:
    return find("", "QuantizeLinear", version)


def same_bits(got: np.ndarray, want: np.ndarray, note: str) -> None:
    """As assert_equal, and -0.0 is not 0.0."""
    assert_equal(got, want, note)
    a, b = got.astype(f32), want.astype(f32)
    assert np.array_equal(np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)]), note


def data(rng: np.random.Generator, x_type: Any, scale: np.ndarray, shape: tuple[int, ...], mode: str) -> np.ndarray:
    """Values around the quantized range of the scale, on ties in pow2, anything in extreme."""
    sizes = np.abs(scale.astype(np.float64))
    size = float(np.max(sizes, where=np.isfinite(sizes), initial=0))
    if mode == "pow2":
        values = rng.integers(-600, 600, shape) * (size / 2)
    elif mode == "extreme":
        values = rng.choice(SPECIALS, shape)
    else:
        values = rng.normal(0, 1, shape) * size * rng.choice([2.0, 100, 40000])
    with np.errstate(all="ignore"):
        if x_type is i32:
            return np.clip(np.nan_to_num(values), -(2**31), 2**31 - 1).astype(np.int64).clip(max=2**31 - 1).astype(i32)
        array = np.asarray(values).astype(f32).astype(x_type)
    return np.asfortranarray(array) if rng.random() < 0.3 and array.ndim else array


def scales(rng: np.random.Generator, type: Any, shape: tuple[int, ...], mode: str) -> np.ndarray:
    if type is i32:
        return np.asarray(rng.integers(1, 1000, shape)).astype(i32)
    if mode == "extreme":
        values = rng.choice([1.0, 0.0, -0.5, np.inf, np.nan, 1e-45, 1e-30, 1e30, 2.0**-24], shape)
    elif mode == "pow2":
        values = 2.0 ** rng.integers(-4, 5, shape)
    else:
        values = np.where(rng.random(shape) < 0.5, 1 / rng.choice([90.0, 255.0], shape), rng.random(shape) + 0.01)
    with np.errstate(all="ignore"):
        return (
            np.abs(np.asarray(values)).astype(f32).astype(type) if type is SCALE8 else values.astype(f32).astype(type)
        )


def zero_point(rng: np.random.Generator, type: Any, shape: tuple[int, ...]) -> np.ndarray:
    if type not in INTEGERS:
        return np.zeros(shape, type)
    info = md.iinfo(type)
    values = rng.integers(info.min, info.max + 1, shape)
    return np.asarray(values if rng.random() < 0.6 else np.full(shape, rng.choice([info.min, info.max, 1]))).astype(
        type
    )


def division(version: int, x: Any, scale: Any, precision: Any) -> str:
    if precision:
        return np.dtype(precision).name
    if i32 in (x, scale) or scale is SCALE8:
        return "real"
    return np.dtype(scale if version >= 23 else x).name


X_TYPES = {10: (f32, i32), 13: (f32, i32), 19: (f32, f16, bf16, i32), 21: (f32, f16, bf16, i32)}
NEW = {10: (u8, i8), 13: (u8, i8), 19: (u8, *FLOAT8), 21: INTEGERS[:6], 23: (u8, i8, md.float4_e2m1fn, FLOAT8[0]),
       24: (u8, np.int16, *FLOAT8), 25: (md.uint2, md.int2, u8), 28: (*TINY, u8)}  # fmt: skip


@pytest.mark.parametrize("mode", ["generic", "pow2", "extreme"])
@pytest.mark.parametrize("version", NEW)
def test_against_the_oracle(version: int, mode: str) -> None:
    rng = np.random.default_rng([SEED, version, len(mode)])
    for number in range(130):
        x_type = rng.choice(X_TYPES.get(version, X_TYPES[21]))
        if version < 19:
            scale_type: Any = f32
        elif version < 23:
            scale_type = x_type
        else:
            scale_type = rng.choice([f32, f16, bf16, i32] + [SCALE8] * (version >= 24))
        target = NEW[version][rng.integers(len(NEW[version]))]
        shape, grain, attributes = granularity(rng, version)
        scale = scales(rng, scale_type, grain, mode)
        x = data(rng, x_type, scale, shape, mode)
        zero: np.ndarray | None = zero_point(rng, target, grain)
        if version >= 19:
            attributes["saturate"] = int(rng.integers(2))
        if version >= 21 and rng.random() < 0.2:
            zero, attributes["output_dtype"] = None, NUMBERS[np.dtype(target)]
        precision = None
        if version >= 23 and rng.random() < 0.2:
            precision = rng.choice([f32, f16, bf16])
            attributes["precision"] = NUMBERS[np.dtype(precision)]
        got = kernel(version)(x, scale, zero, **attributes, ctx=Context(version=version))
        want = quantize_linear(
            x, scale, zero, np.dtype(target), axis=attributes.get("axis", 1), block=attributes.get("block_size", 0),
            saturating=bool(attributes.get("saturate", 1)), division=division(version, x_type, scale_type, precision),
        )  # fmt: skip
        note = (
            f"seed {SEED}, case {number}: {attributes} x {x.tolist()} {x.dtype} scale {scale} {scale.dtype} zero {zero}"
        )
        same_bits(got, want, note)


@pytest.mark.parametrize("type", [*FLOAT8, *TINY])
@pytest.mark.parametrize("saturating", [0, 1])
def test_every_tie_of_the_narrow_types(type: Any, saturating: int) -> None:
    """Each value, each midpoint and the float32 next to it on both sides, beyond the largest one too."""
    codes = np.unique(np.arange(256, dtype=u8).view(type).astype(f32))
    codes = codes[np.isfinite(codes)]
    top = codes[-1]
    codes = np.concatenate([codes, [top * f32(1 + s) for s in (1 / 28, 1 / 14, 1 / 7, 1 / 6, 0.5)]]).astype(f32)
    middle = (codes[1:] + codes[:-1]) / 2
    x = np.concatenate([codes, middle, np.nextafter(middle, f32(np.inf)), np.nextafter(middle, f32(-np.inf))])
    x = np.concatenate([x, -x, np.array(SPECIALS, f32)])
    zero = np.zeros((), type)
    got = kernel(28)(x, np.array(1, f32), zero, saturate=saturating)
    want = quantize_linear(x, np.array(1, f32), zero, zero.dtype, saturating=bool(saturating))
    same_bits(got, want, f"{type.__name__} saturate={saturating}")
    whole = np.rint(np.clip(np.nan_to_num(x), -6e4, 6e4) * 3072).astype(np.int64).astype(i32)
    for near in (whole - 1, whole, whole + 1):
        got = kernel(28)(near, np.array(3072, i32), zero, saturate=saturating)
        want = quantize_linear(
            near, np.array(3072, i32), zero, zero.dtype, saturating=bool(saturating), division="real"
        )
        same_bits(got, want, f"{type.__name__} int32")


def test_large_tensors_are_quantized_block_by_block() -> None:
    rng = np.random.default_rng(SEED)
    x = rng.standard_normal((3, 1000, 77)).astype(f32)
    for scale, axis in ((rng.random(3) + 0.1, 0), (rng.random(1000) + 0.1, 1), (rng.random(77) + 0.1, 2), (0.3, 1)):
        s = np.asarray(scale).astype(f32)
        wide = s.reshape([-1 if d == axis else 1 for d in range(3)]) if s.ndim else s
        want = np.clip(np.rint(x / wide) + 5, 0, 255).astype(u8)
        assert_equal(kernel(13)(x, s, np.full(s.shape, 5, u8), axis=axis), want, f"axis {axis}")
    s = (rng.random((3, 1000, 8)) + 0.1).astype(f32)
    want = np.clip(np.rint(x / np.repeat(s, 10, 2)[..., :77]), -8, 7).astype(i8).astype(md.int4)
    assert_equal(kernel(21)(x, s, np.zeros(s.shape, md.int4), axis=-1, block_size=10), want, "blocked")


def test_inputs_may_be_read_only_and_views() -> None:
    x = np.arange(24, dtype=f32).reshape(2, 3, 4)[:, ::2, ::-1]
    x.flags.writeable = False
    assert_equal(kernel(13)(x, np.array(1, f32)), x.astype(u8), "view")
    assert x[0, 0, 0] == 3


@pytest.mark.parametrize("arith", ["ort", "onnx-ref"])
def test_other_arithmetics_are_those_of_their_runtimes(arith: Any) -> None:
    """Bit for bit where the runtime has no documented bug: quotients below 2**31 and, for onnxruntime, one type of
    x and scale; float16 without overflow; onnxruntime takes no 1-vector with block_size and may die of SIGFPE
    on an empty blocked tensor; its Python API takes no 4-bit arrays."""
    rng = np.random.default_rng([SEED, len(arith)])
    ran = 0
    for number in range(250):
        version = int(rng.choice([13, 19, 21, 23]))
        x_type = rng.choice([f32, f16]) if version >= 19 else f32
        scale_type = x_type if arith == "ort" or version < 23 else rng.choice([f32, f16])
        target = INTEGERS[rng.integers(2 if version < 21 else 4 if arith == "ort" else 6)]
        shape, grain, attributes = granularity(rng, version)
        scale = scales(rng, scale_type, grain, "generic")
        x = data(rng, x_type, scale, shape, "generic")
        if x_type is f16 or scale_type is f16:
            x = np.clip(x, -100, 100)
        if "block_size" in attributes and (0 in shape or (arith == "ort" and len(shape) == 1)):
            continue
        model, feeds = node_model(
            "QuantizeLinear", [x, scale, zero_point(rng, target, grain)], attributes, opset=version, outputs=[target]
        )
        want = run_ort(model, feeds) if arith == "ort" else onnx.reference.ReferenceEvaluator(model).run(None, feeds)
        note = f"{arith}, case {number}: version {version} {attributes} x {x.dtype} {x.tolist()} scale {scale} {scale.dtype}"
        assert_equal(run_qrun(model, feeds, arith=arith)[0], np.asarray(want[0]), note)
        ran += 1
    assert ran > 200


def test_contrib_operator() -> None:
    rng = np.random.default_rng([SEED, 7])
    for number in range(60):
        shape, grain, attributes = granularity(rng, 13)
        target = INTEGERS[rng.integers(4)]
        scale = scales(rng, f32, grain, "generic")
        x = data(rng, f32, scale, shape, "generic")
        model, feeds = node_model(
            "QuantizeLinear", [x, scale, zero_point(rng, target, grain)], attributes, domain=MS, outputs=[target]
        )
        note = f"case {number}: {attributes} x {x.tolist()} scale {scale}"
        assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0], note)


def test_contrib_operator_without_axis_takes_axis_1() -> None:
    ctx = Context(version=1)
    x, scale = np.full((2, 3), 6, f32), np.array([1, 2, 3], f32)
    y = find(MS, "QuantizeLinear", 1)(x, scale, np.zeros(3, u8), ctx=ctx)
    assert y.tolist() == [[6, 3, 2]] * 2
    assert [o.kind for o in ctx.observations] == ["axis-assumed"]


X = np.ones((2, 5), f32)
BAD = [
    ([X, np.ones(2, f32)], {}, 10, "QR301", "y_scale"),
    ([X, np.ones(2, f32)], {}, 13, "QR301", "y_scale"),
    ([X, np.ones((2, 5), f32)], {}, 21, "QR301", "y_scale"),
    ([X, np.ones(5, f32), u8(0)], {}, 13, "QR302", "y_zero_point"),
    ([X, f32(1), np.zeros(5, u8)], {}, 13, "QR302", "y_zero_point"),
    ([X, f32(1), np.zeros((1, 1), u8)], {}, 13, "QR302", "y_zero_point"),
    ([X, np.ones((1, 1), f32)], {}, 13, "QR301", "y_scale"),
    ([X, np.ones(5, f32)], {"axis": 2}, 13, "QR204", "axis"),
    ([X, np.ones(5, f32)], {"axis": -3}, 13, "QR204", "axis"),
    ([X[0], np.ones(5, f32)], {}, 13, "QR204", "axis"),
    ([X[0, 0], np.ones(5, f32)], {}, 13, "QR204", "axis"),
    ([X, np.ones(1, f32)], {"block_size": 2}, 21, "QR301", "y_scale"),
    ([X, np.ones((2, 3), f32)], {"block_size": -2}, 21, "QR204", "block_size"),
    ([X, np.ones((2, 3), f32)], {"block_size": 1}, 21, "QR204", "block_size"),
    ([X, np.ones((2, 3), f32)], {"block_size": 3}, 21, "QR204", "block_size"),
    ([X, np.ones((2, 1), f32)], {"block_size": 4}, 21, "QR204", "block_size"),
    ([X, np.ones((1, 3), f32)], {"block_size": 2}, 21, "QR301", "y_scale"),
    ([X, np.ones((2, 4), f32)], {"block_size": 2}, 21, "QR301", "y_scale"),
    ([X, f32(1), u8(0)], {"output_dtype": 3}, 21, "QR303", "y_zero_point"),
    ([X, f32(1)], {"output_dtype": 1}, 21, "QR204", "output_dtype"),
    ([X, f32(1)], {"output_dtype": 99}, 21, "QR204", "output_dtype"),
    ([X, f32(1)], {"output_dtype": -1}, 21, "QR204", "output_dtype"),
    ([X, f32(1)], {"output_dtype": 26}, 24, "QR204", "output_dtype"),
    ([X, f32(1)], {"precision": 3}, 23, "QR204", "precision"),
    ([X, f32(1)], {"precision": 77}, 23, "QR204", "precision"),
    ([X, f32(1), np.ones((), md.float8_e5m2)], {}, 19, "QR202", "y_zero_point"),
    ([X, f32(1), np.ones((), md.float4_e2m1fn)], {}, 23, "QR202", "y_zero_point"),
    ([X, f16(1)], {}, 19, "QR203", "y_scale"),
    ([X, f32(1), np.int16(0)], {}, 19, "QR203", "y_zero_point"),
    ([X.astype(np.float64), f32(1)], {}, 21, "QR203", "x"),
    ([X, f32(1)], {"block_size": 2}, 19, "QR204", ""),
]


@pytest.mark.parametrize(("inputs", "attributes", "opset", "code", "param"), BAD, ids=str)
def test_refusals(inputs: list[Any], attributes: dict[str, int], opset: int, code: str, param: str) -> None:
    model, feeds = node_model("QuantizeLinear", inputs, attributes, opset=opset, outputs=[u8])
    with pytest.raises(qrun.OperatorError) as caught:
        run_qrun(model, feeds)
    assert (caught.value.code, caught.value.param) == (code, param), str(caught.value)


@pytest.mark.parametrize("block", [3, 4])
def test_a_block_size_that_fits_the_scale(block: int) -> None:
    """5 elements in 2 blocks: 3 or 4."""
    x = np.arange(10, dtype=f32).reshape(2, 5)
    y = kernel(21)(x, np.array([[1, 2], [1, 2]], f32), None, block_size=block)
    want = np.rint(x / np.array([1] * block + [2] * (5 - block), f32)).astype(u8)
    assert y.tolist() == want.tolist()


def test_a_rank_1_tensor_in_one_block() -> None:
    """onnxruntime refuses it."""
    model, feeds = node_model(
        "QuantizeLinear", [np.array([4, 6], f32), np.array([2], f32)], {"axis": 0, "block_size": 2}, outputs=[u8]
    )
    assert run_qrun(model, feeds)[0].tolist() == [2, 3]


def test_a_scalar_scale_is_per_tensor_whatever_the_block_size() -> None:
    """QuantizeLinear-21: the granularity is determined by the shape of y_scale."""
    model, feeds = node_model("QuantizeLinear", [X * 6, f32(2), u8(1)], {"block_size": 2}, outputs=[u8])
    assert run_qrun(model, feeds)[0].tolist() == [[4] * 5] * 2
    assert "QR301" not in [found.code for found in qrun.check(model)]


def test_observations() -> None:
    x = np.array([[1, 2, 300], [np.nan, -1, 4]], f32)
    ctx = Context()
    kernel(13)(x, np.array(1, f32), np.array(10, u8), ctx=ctx)
    seen = {o.kind: (o.param, o.count, o.total, o.first) for o in ctx.observations}
    assert seen == {"nan-quantized": ("x", 1, 6, (1, 0)), "saturated": ("y", 1, 6, ())}
    ctx = Context()
    kernel(13)(x, np.array([1, 0, -np.inf], f32), np.array([10, 10, 10], u8), ctx=ctx)
    first = ctx.observations[0]
    assert (first.kind, first.param, first.count, first.first) == ("bad-scale", "y_scale", 2, (1,))
    ctx = Context(observing=False)
    kernel(13)(x, np.array(0, f32), ctx=ctx)
    assert ctx.observations == []
