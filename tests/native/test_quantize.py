"""Native QuantizeLinear and DequantizeLinear of 8-bit and 16-bit codes: the bits of float32 division and product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import edges
from helpers.aarch64 import Foreign, every_aarch64, needs_qemu
from helpers.models import make_model, typed
from helpers.native import ISAS, LIMITS, TYPES, Array, codes, engine, every_isa, thin
from helpers.placed import chains, natively, run_placed, same_everywhere, same_runs
from helpers.support import MS, assert_equal, node_model
from onnx import TensorProto, helper

import qrun
from qrun.native.errors import Declined
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.kernels.quantize import Dequantize, Quantize, reciprocal
from qrun.native.machine.operation import Operand
from qrun.native.proof.fits import fused_add

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
SCALES = {
    "plain": 0.0187, "1/255": 1 / 255, "1/90": 1 / 90, "dyadic": 0.5, "small": 3.7e-5, "large": 1e30, "least": 2.0**-126,
    "subnormal": 1e-44, "zero": 0.0, "negative": -0.1, "infinite": np.inf, "nan": np.nan,
}  # fmt: skip
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 0, -0.0, 1e30, -1e30], F)


def quantized(x: Array, scale: Any, zero: Any, dtype: Any) -> Array:
    """saturate(RNE(x / scale) + zero) in float32 and float64, NaN giving the least code."""
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        value = np.rint((x / np.asarray(scale, F)).astype(F)).astype(np.float64) + np.asarray(zero, np.float64)
        return np.clip(np.where(np.isnan(value), info.min, value), info.min, info.max).astype(dtype)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], scale: float, kind: str, zero: int) -> Array:
    """Multiples of half the scale, and their neighbours, over the range of results and a little more;
    and special ones."""
    low, high = LIMITS[kind]
    step = scale if np.isfinite(scale) and scale else 1.0
    with np.errstate(all="ignore"):
        x = ((rng.integers(2 * (low - zero) - 6, 2 * (high - zero) + 7, shape)) * np.float64(F(step)) / 2).astype(F)
    x = (x.view(np.int32) + rng.integers(-2, 3, shape, dtype=np.int32) * (x != 0)).view(F)
    return np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), x)


@pytest.mark.parametrize("threads", [1, 3])
@thin(*SCALES, name="scale", other=4)
def test_quotients_of_every_kind(isa: str, scale: str, threads: int) -> None:
    rng = np.random.default_rng([len(scale), threads])
    native = engine(isa, threads)
    for number, shape in enumerate(edges.QUANTIZED):
        kind = ("u8", "s8")[number % 2]
        zero = int(rng.integers(LIMITS[kind][0], LIMITS[kind][1] + 1))
        x = numbers(rng, shape, SCALES[scale], kind, zero)
        operation = Quantize(native, shape, np.asarray(F(SCALES[scale])), np.asarray(zero, TYPES[kind]))
        usual = native.isa.fma and scale in ("plain", "1/255", "1/90", "dyadic", "small", "large")
        assert (operation.form, bool(operation.why)) == (("mul", False) if usual else ("div", True))
        want = quantized(x, F(SCALES[scale]), zero, TYPES[kind])
        strides = [(0, 0)]
        if len(shape) > 2:
            strides += [(4 * shape[1] + 8, shape[1] + 5), (0, shape[1] + 70), (4 * shape[1] + 4, 0)]
        for pair in strides:
            source = np.moveaxis(x, 1, -1) if any(pair) else x
            placed = channels_last(operation) if any(pair) else operation
            made = run_placed(native, placed, [source], pair, bool(number % 2))
            assert_equal(made, np.moveaxis(want, 1, -1) if any(pair) else want, f"{isa} {scale} {shape} {zero} {pair}")


def channels_last(operation: Any) -> Any:
    """An elementwise operation as its rows lie: gaps are between those of axis 1."""

    class Seen:
        operands = tuple(Operand((o.shape[0], *o.shape[2:], o.shape[1]), o.dtype) for o in operation.operands)
        source_order = result_order = "rows"
        sections = operation.sections
        result = operands[-1]

    return Seen()


@thin(*range(12), name="seed", other=4)
def test_scales_per_axis(isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    native = engine(isa)
    for shape in ((2, 5), (3, 17, 4), (1, 70, 3, 2), (2, 3, 4, 33)):
        for axis in {1, len(shape) - 1}:
            kind, n = ("u8", "s8")[seed % 2], shape[axis]
            scale = rng.choice(np.array(list(SCALES.values()), F), n)
            zero = rng.integers(*(np.array(LIMITS[kind]) + (0, 1)), n).astype(TYPES[kind])
            x, c = numbers(rng, shape, 0.0187, kind, 0), codes(rng, shape, kind)
            lanes = [n if a == axis else 1 for a in range(len(shape))]
            down, up = Quantize(native, shape, scale, zero, axis), Dequantize(native, shape, scale, zero, axis)
            want = quantized(x, scale.reshape(lanes), zero.reshape(lanes), TYPES[kind])
            with np.errstate(all="ignore"):
                back = (c.astype(F) - zero.reshape(lanes).astype(F)) * scale.reshape(lanes)
            for gaps in ((0, 0), (4 * n + 4, n + 3)):
                assert_equal(run_placed(native, down, [x], gaps), want, f"{isa} {shape} {axis} {gaps}")
            for gaps in ((0, 0), (n + 3, 4 * n + 4)):
                assert_equal(run_placed(native, up, [c], gaps), back, f"{isa} {shape} {axis} {gaps}")


def test_the_proof_covers_every_number() -> None:
    """Form mul against division, for all float32 of some binades and for millions near ties of random scales."""
    rng = np.random.default_rng(1)
    proven = 0
    for number in range(60):
        scale = F(np.exp(rng.normal(-3, 3))) if number % 3 else F(rng.integers(1, 200) / rng.integers(1, 200))
        found = reciprocal(scale, -100, 155)
        if found is None:
            continue
        proven += 1
        low, high, r, s = found
        ties = (rng.integers(-100, 155, 20000) + 0.5) * np.float64(scale)
        x = ties.astype(F).view(np.int32) + rng.integers(-40, 41, 20000, dtype=np.int32)
        x = np.concatenate([x.view(F), rng.uniform(-110, 165, 20000).astype(F) * scale])
        clipped = np.clip(x, low, high)
        with np.errstate(all="ignore"):
            got = np.rint(multiplied(clipped, r, clipped * s))
        assert np.array_equal(got, np.clip(np.rint(x / scale), -100, 155)), scale
    assert proven == 60
    low, high, r, s = reciprocal(F(0.0187), -100, 155) or ()
    x = np.arange(F(0.5).view(np.int32), F(1).view(np.int32), dtype=np.int32).view(F)
    assert np.array_equal(np.rint(multiplied(x, r, x * s)), np.rint(x / F(0.0187)))


def multiplied(a: Array, b: Any, c: Array) -> Array:
    """a * b + c, rounded once."""
    return fused_add(a.astype(np.float64) * np.float64(b), c.astype(np.float64))


def test_reciprocals_that_miss_a_tie_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qrun.native.kernels.quantize.fused_add", lambda ab, c: fused_add(ab, c * 0))
    missed = sum(reciprocal(F(s), -100, 155) is None for s in np.random.default_rng(2).uniform(0.01, 1, 50))
    assert missed > 45
    assert reciprocal(F(0.25), -100, 155) is not None


@pytest.mark.parametrize("threads", [1, 3])
@thin(*[(c, w) for c in (1, 2, 3, 4) for w in (16, 17, 31, 32, 33, 64, 65, 224)], name="size", other=6)
def test_images_become_pixels(isa: str, size: tuple[int, int], threads: int) -> None:
    planes, width = size
    rng = np.random.default_rng(width)
    native = engine(isa, threads)
    for number, (spatial, border) in enumerate(
        (((5, width), (3, 2, 1, 4)), ((3, width), (0, 0, 0, 0)), ((width,), (0, 2, 0, 1)), ((1, width), (0, 1, 2, 0)))
    ):
        kind, shape = ("u8", "s8")[number % 2], (2, planes, *spatial)
        zero = int(rng.integers(LIMITS[kind][0], LIMITS[kind][1] + 1))
        scale = F((0.0187, -0.3)[number == 3])
        x = numbers(rng, shape, 0.0187, kind, zero)
        plain = Quantize(native, shape, np.asarray(scale), np.asarray(zero, TYPES[kind]))
        operation = plain.writing_to(Operand(shape, np.dtype(TYPES[kind]), border, zero), "channels")
        assert operation is not None
        assert (operation.source_order, operation.result_order) == ("plain", "channels")
        want = quantized(x, scale, zero, TYPES[kind])
        for at_end in (True, False):
            made = run_placed(native, operation, [x], (0, 0), at_end)
            assert_equal(made, want, f"{isa} {shape} {border} {scale}")


def test_other_images_are_quantized_in_place() -> None:
    u8 = np.dtype(np.uint8)
    for shape in ((1, 5, 20, 20), (1, 0, 20, 20), (1, 3, 20, 15), (1, 3, 4, 20, 20), (3, 20)):
        plain = Quantize(engine(ISAS[0]), shape, np.asarray(F(1)), np.asarray(0, np.uint8))
        assert plain.writing_to(Operand(shape, u8), "channels") is None
    plain = Quantize(engine(ISAS[0]), (1, 3, 20, 20), np.asarray(F(1)), np.asarray(0, np.uint8))
    assert plain.writing_to(Operand((1, 3, 20, 20), u8), "plain") is None
    image = plain.writing_to(Operand((1, 3, 20, 20), u8), "channels")
    assert image is not None
    with pytest.raises(ValueError, match="cannot lie 5 bytes apart"):
        image.sections((0, 5))


@every_isa
@pytest.mark.parametrize("threads", [1, 3])
def test_products(isa: str, threads: int) -> None:
    rng = np.random.default_rng(threads)
    native = engine(isa, threads)
    for number, shape in enumerate([*edges.QUANTIZED, (40000,)]):
        kind = ("u8", "s8", "i32")[number % 3]
        scale = F(list(SCALES.values())[number % len(SCALES)])
        if kind == "i32":
            x, zero = rng.integers(-(2**31), 2**31, shape).astype(np.int32), np.asarray(0, np.int32)
        else:
            x, zero = codes(rng, shape, kind), codes(rng, (), kind)
        operation = Dequantize(native, shape, np.asarray(scale), zero)
        with np.errstate(all="ignore"):
            want = np.asarray((x.astype(np.int64) - int(zero)).astype(F) * scale)
        strides = [(0, 0)]
        if len(shape) > 2:
            row = shape[1] * x.itemsize
            strides += [(row + 8, 4 * shape[1] + 12), (0, 4 * shape[1] + 4)]
        for pair in strides:
            source = np.moveaxis(x, 1, -1) if any(pair) else x
            placed = channels_last(operation) if any(pair) else operation
            made = run_placed(native, placed, [source], pair, bool(number % 2))
            assert_equal(made, np.moveaxis(want, 1, -1) if any(pair) else want, f"{isa} {shape} {kind} {scale} {pair}")


def test_what_the_kernels_do_not_take() -> None:
    native = engine(ISAS[0])
    one, zero = np.asarray(F(1)), np.asarray(0, np.uint8)
    with pytest.raises(Declined, match="axis 2"):
        Quantize(native, (2, 3, 4, 5), np.ones(4, F), np.zeros(4, np.uint8), 2)
    with pytest.raises(Declined, match="not float32 scales"):
        Quantize(native, (2,), one.astype(np.float64), zero)
    with pytest.raises(Declined, match="not float32 scales"):
        Quantize(native, (2,), one, zero.astype(np.int16))
    with pytest.raises(Declined, match="int32 codes with a zero point"):
        Dequantize(native, (2,), one, np.asarray(3, np.int32))
    with pytest.raises(Declined, match="not 8-bit or int32"):
        Dequantize(native, (2,), one, np.asarray(3, np.uint16))
    for made in (Quantize, Dequantize):
        with pytest.raises(ValueError, match="one per column"):
            made(native, (2, 3), np.ones(2, F), np.zeros(2, np.uint8), 1)


NODES: list[tuple[int, str, dict[str, Any]]] = [
    (10, "", {}), (13, "", {"axis": 1}), (13, "", {"axis": -1}), (19, "", {}), (21, "", {"axis": 1}), (23, "", {"axis": 3}),
    (21, MS, {"axis": 1}), (21, MS, {}),
]  # fmt: skip


@pytest.mark.parametrize("arith", ["exact", "ort", "onnx-ref"])
@pytest.mark.parametrize(("opset", "domain", "attributes"), NODES)
def test_nodes(opset: int, domain: str, attributes: dict[str, Any], arith: str) -> None:
    rng = np.random.default_rng(opset)
    shape = (2, 9, 4, 7)
    for kind in ("u8", "s8"):
        for per_axis in (False, True) if attributes or domain else (False,):
            n = shape[attributes.get("axis", 1)]
            scale = rng.uniform(0.01, 0.1, n).astype(F) if per_axis else np.array(F(0.0187))
            zero = codes(rng, scale.shape, kind)
            x, c = numbers(rng, shape, 0.0187, kind, 0), codes(rng, shape, kind)
            for op_type, data, out in (("QuantizeLinear", x, TYPES[kind]), ("DequantizeLinear", c, F)):
                model, feeds = node_model(op_type, [data, scale, zero], attributes, opset=opset, domain=domain,
                                          outputs=[out], constants=[1, 2])  # fmt: skip
                event = same_everywhere(model, feeds, arith=arith).events[0]
                assert (event.backend, event.why) == ("native", "")
                want = qrun.Session(model, arith=arith).execute(feeds).events[0]
                if per_axis or op_type == "DequantizeLinear":
                    assert {o.kind for o in event.observations} == {o.kind for o in want.observations}


def test_parameters_may_be_missing() -> None:
    x = np.linspace(-3, 300, 50, dtype=F)
    model, feeds = node_model("QuantizeLinear", [x, np.array(F(1.1))], outputs=[np.uint8], constants=[1])
    natively(model, feeds)
    model, feeds = node_model(
        "QuantizeLinear", [x, np.array([F(1.1)])], {"output_dtype": 3}, outputs=[np.int8], constants=[1]
    )
    natively(model, feeds)
    for dtype in (np.uint8, np.int32):
        natively(
            *node_model("DequantizeLinear", [np.arange(50, dtype=dtype), np.array(F(1.1))], outputs=[F], constants=[1])
        )


@pytest.mark.parametrize("zero", [0, 128])
@pytest.mark.parametrize("what", ["nothing", "nan", "top", "bottom"])
def test_checks_find_what_the_reference_finds(what: str, zero: int) -> None:
    x = np.linspace(1, 100, 400, dtype=F)
    if what == "nan":
        x[7] = np.nan
    elif what != "nothing":
        x[:100] = 900 if what == "top" else -900
    for scale in (1.0, 0.0, np.nan, -1.0):
        model, feeds = node_model(
            "QuantizeLinear", [x, np.array(F(scale)), np.uint8(zero)], outputs=[np.uint8], constants=[1, 2]
        )
        got = same_everywhere(model, feeds).events[0].observations
        want = qrun.Session(model).execute(feeds).events[0].observations
        assert [(o.kind, o.param, o.count) for o in got] == [(o.kind, o.param, o.count) for o in want]


def first_layer(shape: tuple[int, ...], kernel: int, after: str) -> onnx.ModelProto:
    """QuantizeLinear, a convolution with padding, and what follows it."""
    rng = np.random.default_rng(4)
    values = {
        "s": F(0.0187), "z": np.uint8(114), "w": rng.integers(-99, 99, (8, shape[1], kernel, kernel)).astype(np.int8),
        "ws": F(0.01), "wz": np.int8(0), "ys": F(0.4), "yz": np.uint8(100), "half": F(0.5),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["a"], "quantize"),
        helper.make_node("QLinearConv", ["a", "s", "z", "w", "ws", "wz", "ys", "yz"], ["b"], "conv",
                         pads=[kernel // 2] * 4, strides=[2, 2]),
        helper.make_node("MaxPool", ["b"], ["c"], "pool", kernel_shape=[2, 2]),
        helper.make_node("DequantizeLinear", [after, "ys", "yz"], ["d"], "up"),
        helper.make_node("QuantizeLinear", ["d", "half", "z"], ["y"], "down"),
    ]  # fmt: skip
    return make_model(nodes, {"x": shape}, {n: typed(TensorProto.UINT8) for n in ("c", "y")}, values, opset=17)


@pytest.mark.parametrize("isa", ISAS[:: max(1, len(ISAS) - 1)])
@pytest.mark.parametrize("shape", [(1, 3, 20, 24), (2, 1, 9, 9), (1, 4, 16, 40), (1, 3, 9, 8), (1, 17, 6, 6)])
def test_first_layers(isa: str, shape: tuple[int, ...]) -> None:
    x = numbers(np.random.default_rng(5), shape, 0.0187, "u8", 114)
    for kernel, after in ((3, "b"), (1, "c"), (5, "c")):
        model = first_layer(shape, kernel, after)
        for names in (None, ["a", "b", "c", "d", "y"]):
            natively(model, {"x": x}, names, isa=isa, threads=kernel)


def test_a_program_quantizes_straight_into_the_border() -> None:
    from qrun.native.kernels.conv import Conv
    from qrun.native.plan.items import Task
    from qrun.native.plan.schedule import Schedule

    native, u8 = engine(ISAS[0]), np.dtype(np.uint8)
    shape = (1, 3, 20, 24)
    down = Quantize(native, shape, np.asarray(F(0.0187)), np.asarray(114, np.uint8))
    conv = Conv(
        native,
        shape,
        np.ones((8, 3, 3, 3), np.int8),
        x_zero_point=np.asarray(114, np.uint8),
        pads=(1, 1, 1, 1),
        kinds=frozenset(),
    )
    items = [Task(down, ("x",), "a"), Task(conv, ("a",), "y")]
    for wanted, kinds in (
        (["y"], ["quantize_image", "dense", "blocks"]),
        (["a", "y"], ["quantize", "blocks", "dense", "blocks"]),
    ):
        schedule = Schedule(native, items, {"x": Operand(shape, np.dtype(F))}, {}, wanted)
        assert [call.section.spec.kind for call in schedule.calls] == kinds
    assert conv.operands[0].border == (1, 1, 1, 1)
    assert conv.operands[0].dtype == u8


@needs_qemu
@every_aarch64
def test_kernels_of_aarch64(isa: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    foreign, cases = Foreign(isa), []
    for number, name in enumerate(SCALES):
        kind, scale = ("u8", "s8")[number % 2], np.asarray(F(SCALES[name]))
        for shape in ((9,), (70,), (1, 3, 4, 33)):
            zero = codes(rng, (), kind)
            x, c = numbers(rng, shape, SCALES[name], kind, int(zero)), codes(rng, shape, kind)
            down = Quantize(foreign, shape, scale, zero)
            want = quantized(x, scale, zero, TYPES[kind])
            cases.append((f"{name} {shape}", foreign.run(down, [x]), want))
            image = down.writing_to(Operand(shape, np.dtype(TYPES[kind]), (1, 0, 2, 1), 5), "channels")
            if image is not None:
                cases.append((f"{name} image", foreign.run(image, [x]), want))
            with np.errstate(all="ignore"):
                back = (c.astype(F) - F(zero)) * scale
            cases.append((f"{name} {shape} back", foreign.run(Dequantize(foreign, shape, scale, zero), [c]), back))
    x = numbers(rng, (2, 20, 3), 0.0187, "u8", 0)
    scale, zero = rng.choice(np.array(list(SCALES.values()), F), 20), codes(rng, (20,), "u8")
    want = quantized(x, scale[:, None], zero[:, None], np.uint8)
    cases.append(("per axis", foreign.run(Quantize(foreign, x.shape, scale, zero, 1), [x]), want))
    foreign.finish(tmp_path)
    for label, got, want in cases:
        assert_equal(np.ascontiguousarray(got), np.asarray(want), label)


CODES = {np.dtype(np.uint16): "quantize_u16", np.dtype(np.int16): "quantize_i16"}
SCALES_OF_16 = (0.0187, 1 / 255, 0.5, 3.7e-5, 1e30, 2.0**-126, 1e-44, 0.0, -0.1, np.inf, np.nan)


def numbers_of_16(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Array:
    """Multiples of half the scale and their neighbours, from below the codes to above them; and special ones."""
    step = scale if np.isfinite(scale) and scale else 1.0
    with np.errstate(all="ignore"):
        x = (rng.integers(-(2**18), 2**18, shape) * np.float64(F(step)) / 2).astype(F)
    x = (x.view(np.int32) + rng.integers(-2, 3, shape, dtype=np.int32) * (x != 0)).view(F)
    return np.where(rng.random(shape) < 0.1, rng.choice(SPECIAL, shape), x)


def codes_of_16(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return rng.integers(0, 1 << 16, shape).astype(np.uint16).view(dtype)


def quantized_to_16(x: Array, scale: F, zero: int, dtype: np.dtype[Any]) -> Array:
    """saturate(RNE(x / scale) + zero) in float32 and float64, NaN giving the least code."""
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        value = np.rint(x / scale).astype(np.float64) + zero
    return np.clip(np.where(np.isnan(value), info.min, value), info.min, info.max).astype(dtype)


@pytest.mark.parametrize("dtype", CODES)
@every_isa
def test_quotients_of_16_bits(isa: str, dtype: np.dtype[Any]) -> None:
    rng, info = np.random.default_rng(50), np.iinfo(dtype)
    for number, shape in enumerate(edges.QUANTIZED):
        scale = F(SCALES_OF_16[number % len(SCALES_OF_16)])
        zero = int((info.min, info.max, 0, rng.integers(info.min, info.max))[number % 4])
        x, constants = numbers_of_16(rng, shape, float(scale)), (float(scale), info.min - zero, info.max - zero, zero)
        operation = Elementwise(engine(isa, 1 + number % 2), CODES[dtype], [Operand(shape, np.dtype(F))], constants)
        made = run_placed(engine(isa), operation.with_layout("plain"), [x], (0, 0), True)
        assert_equal(made, quantized_to_16(x, scale, zero, dtype), f"{shape} {scale} {zero}")


@pytest.mark.parametrize("dtype", CODES)
@every_isa
def test_every_code_of_16_bits(isa: str, dtype: np.dtype[Any]) -> None:
    info, x = np.iinfo(dtype), np.arange(1 << 16, dtype=np.uint16).view(dtype)
    for scale in map(F, SCALES_OF_16):
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
def test_nodes_of_16_bits(dtype: np.dtype[Any], opset: int, domain: str, arith: str) -> None:
    rng, shape = np.random.default_rng(opset), (2, 9, 4, 7)
    for zero in (dtype.type(0), codes_of_16(rng, (), dtype)):
        for op_type, data, out, scale_type in (
            ("QuantizeLinear", numbers_of_16(rng, shape, 0.0187), dtype, F),
            ("DequantizeLinear", codes_of_16(rng, shape, dtype), F, F),
            ("DequantizeLinear", codes_of_16(rng, shape, dtype), np.float16, np.float16),
        ):
            inputs = [data, np.array(scale_type(0.0187)), zero]
            natively(
                *node_model(op_type, inputs, opset=opset, domain=domain, outputs=[out], constants=[1, 2]), arith=arith
            )


@pytest.mark.parametrize("dtype", CODES)
def test_nodes_of_16_bits_without_zero_point(dtype: np.dtype[Any]) -> None:
    rng, scale = np.random.default_rng(51), np.array(F(0.3))
    to = {"output_dtype": helper.np_dtype_to_tensor_dtype(dtype)}
    model, feeds = node_model(
        "QuantizeLinear", [numbers_of_16(rng, (70,), 0.3), scale], to, outputs=[dtype], constants=[1], opset=21
    )
    natively(model, feeds)
    natively(
        *node_model("DequantizeLinear", [codes_of_16(rng, (70,), dtype), scale], outputs=[F], constants=[1], opset=21)
    )


@pytest.mark.parametrize("what", ["nothing", "nan", "top", "bottom"])
def test_checks_of_16_bits(what: str) -> None:
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
def test_chains_of_16_bits(isa: str, dtype: np.dtype[Any], threads: int) -> None:
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
