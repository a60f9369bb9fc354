"""Native QuantizeLinear and DequantizeLinear of 16-bit codes, alone and in chains with their neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.models import make_model, typed
from helpers.native import ISAS, Array, engine, every_isa
from helpers.placed import chains, run_placed, same_everywhere, same_runs
from helpers.support import MS, assert_equal, node_model
from onnx import helper

import qrun
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand

F = np.float32
CODES = {np.dtype(np.uint16): "quantize_u16", np.dtype(np.int16): "quantize_i16"}
SCALES = (0.0187, 1 / 255, 0.5, 3.7e-5, 1e30, 2.0**-126, 1e-44, 0.0, -0.1, np.inf, np.nan)
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 0, -0.0, 1e30, -1e30], F)
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    """Multiples of half the scale and their neighbours, from below the codes to above them; and special ones."""
    step = scale if np.isfinite(scale) and scale else 1.0
    with np.errstate(all="ignore"):
        x = (rng.integers(-(2**18), 2**18, shape) * np.float64(F(step)) / 2).astype(F)
    x = (x.view(np.int32) + rng.integers(-2, 3, shape, dtype=np.int32) * (x != 0)).view(F)
    return np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), x)


def codes(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return rng.integers(0, 1 << 16, shape).astype(np.uint16).view(dtype)


def quantized(x: Array, scale: F, zero: int, dtype: np.dtype[Any]) -> Array:
    """saturate(RNE(x / scale) + zero) in float32 and float64, NaN giving the least code."""
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        value = np.rint(x / scale).astype(np.float64) + zero
    return np.clip(np.where(np.isnan(value), info.min, value), info.min, info.max).astype(dtype)


@pytest.mark.parametrize("dtype", CODES)
@every_isa
def test_quotients_of_every_kind(isa: str, dtype: np.dtype[Any]) -> None:
    rng, info = np.random.default_rng(50), np.iinfo(dtype)
    for number, shape in enumerate(edges.QUANTIZED):
        scale = F(SCALES[number % len(SCALES)])
        zero = int((info.min, info.max, 0, rng.integers(info.min, info.max))[number % 4])
        x, constants = numbers(rng, shape, float(scale)), (float(scale), info.min - zero, info.max - zero, zero)
        operation = Elementwise(engine(isa, 1 + number % 2), CODES[dtype], [Operand(shape, np.dtype(F))], constants)
        made = run_placed(engine(isa), operation.lying("plain"), [x], (0, 0), True)
        assert_equal(made, quantized(x, scale, zero, dtype), f"{shape} {scale} {zero}")


@pytest.mark.parametrize("dtype", CODES)
@every_isa
def test_every_code(isa: str, dtype: np.dtype[Any]) -> None:
    info, x = np.iinfo(dtype), np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for scale in map(F, SCALES):
        for zero in (0, info.min, info.max, 1234):
            operation = Elementwise(engine(isa), "dequantize", [Operand(x.shape, dtype)], (float(scale), zero))
            with np.errstate(all="ignore"):
                want = (x.astype(np.int64) - zero).astype(F) * scale
            assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), want, f"{scale} {zero}")
        operation = Elementwise(engine(isa), "cast", [Operand(x.shape, dtype)])
        assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), x.astype(F))


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize(("opset", "domain"), [(21, ""), (23, ""), (21, MS)])
@pytest.mark.parametrize("dtype", CODES)
def test_nodes(dtype: np.dtype[Any], opset: int, domain: str, arith: str) -> None:
    rng, shape = np.random.default_rng(opset), (2, 9, 4, 7)
    for zero in (dtype.type(0), codes(rng, (), dtype)):
        for op_type, data, out, scale_type in (
            ("QuantizeLinear", numbers(rng, shape, 0.0187), dtype, F),
            ("DequantizeLinear", codes(rng, shape, dtype), F, F),
            ("DequantizeLinear", codes(rng, shape, dtype), np.float16, np.float16),
        ):
            inputs = [data, np.array(scale_type(0.0187)), zero]
            model, feeds = node_model(op_type, inputs, opset=opset, domain=domain, outputs=[out], constants=[1, 2])
            event = same_everywhere(model, feeds, arith=arith).events[0]
            assert (event.backend, event.why) == ("native", ""), (op_type, scale_type)


@pytest.mark.parametrize("dtype", CODES)
def test_nodes_without_zero_point(dtype: np.dtype[Any]) -> None:
    rng, scale = np.random.default_rng(51), np.array(F(0.3))
    to = {"output_dtype": helper.np_dtype_to_tensor_dtype(dtype)}
    model, feeds = node_model(
        "QuantizeLinear", [numbers(rng, (70,), 0.3), scale], to, outputs=[dtype], constants=[1], opset=21
    )
    assert same_everywhere(model, feeds).events[0].backend == "native"
    model, feeds = node_model(
        "DequantizeLinear", [codes(rng, (70,), dtype), scale], outputs=[F], constants=[1], opset=21
    )
    assert same_everywhere(model, feeds).events[0].backend == "native"


@pytest.mark.parametrize("what", ["nothing", "nan", "top", "bottom"])
def test_checks_find_what_the_reference_finds(what: str) -> None:
    x = np.linspace(1, 100, 400, dtype=F)
    if what == "nan":
        x[7] = np.nan
    elif what != "nothing":
        x[:100] = 90000 if what == "top" else -90000
    for scale in (1.0, 0.0, np.nan, -1.0):
        for zero in (np.uint16(0), np.uint16(1 << 15), np.int16(0)):
            inputs = [x, np.array(F(scale)), zero]
            model, feeds = node_model("QuantizeLinear", inputs, outputs=[zero.dtype], constants=[1, 2], opset=21)
            got = same_everywhere(model, feeds).events[0].observations
            want = qrun.Session(model, backend="reference").execute(feeds).events[0].observations
            assert [(o.kind, o.param, o.count) for o in got] == [(o.kind, o.param, o.count) for o in want]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", CODES)
@every_isa
def test_chains(isa: str, dtype: np.dtype[Any], threads: int) -> None:
    """x quantized and dequantized, made a product, and that quantized: codes between are never stored."""
    constants = {"s": F(0.01), "z": dtype.type(300), "t": F(0.02), "half": F(0.5)}
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], "a"),
        ("DequantizeLinear", ["a", "s", "z"], "b"),
        ("Sigmoid", ["b"], "c"),
        ("QuantizeLinear", ["c", "t", "z"], "d"),
        ("DequantizeLinear", ["d", "t", "z"], "e"),
        ("Mul", ["b", "e"], "f"),
        ("QuantizeLinear", ["f", "s", "z"], "y"),
    ]
    model = make_model(
        [helper.make_node(op_type, inputs, [output]) for op_type, inputs, output in nodes],
        {"x": ("N", 3, 7)},
        {"y": typed(helper.np_dtype_to_tensor_dtype(dtype))},
        constants,
    )
    x = np.random.default_rng(52).normal(0, 90, (101, 3, 7)).astype(F)
    x[0, 0] = SPECIAL[:7]
    assert chains(same_runs(model, {"x": x}, isa=isa, threads=threads)) == [7]
