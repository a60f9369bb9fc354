"""Nodes that are several steps of a program: dynamic quantization,
products and convolutions whose zero point it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.models import make_model
from helpers.native import ISAS, OBJECTS, codes, engine, every_isa, thin
from helpers.placed import reference_nodes, run_placed, same_runs
from helpers.support import assert_equal, node_model
from onnx import ModelProto, TensorProto, helper

import qrun
from qrun.native.emit.quantize import LEAST
from qrun.native.errors import Undecided
from qrun.native.kernels.conv import SUM_KINDS, Conv, dynamic_sums
from qrun.native.kernels.quantize import Parameters, Quantized, Range
from qrun.native.machine.operation import Operand
from qrun.ops._quantize import range_parameters

F = np.float32
pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")


def chain(
    w: Any, w_zero: Any = None, flat: bool = False, names: tuple[str, str, str] = ("q", "s", "z"), opset: int = 17
) -> ModelProto:
    """x to its codes, their product with w, and that as float32."""
    inputs = ["q", "w", "z"] + (["wz"] if w_zero is not None else [])
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], list(names), "quantize"),
        helper.make_node("MatMulInteger", inputs, ["sums"], "product"),
        helper.make_node("Cast", ["sums"], ["real"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", names[1]] if names[1] else ["real", "one"], ["y"], "scale"),
    ]
    tensors = {"w": w, "one": F(1), **({} if w_zero is None else {"wz": w_zero})}
    return make_model(nodes, {"x": [w.shape[0]] if flat else ["N", "M", w.shape[0]]}, "y", tensors, opset=opset)


def same(model: ModelProto, shape: tuple[int, ...], names: list[str] | None = None, **options: Any) -> qrun.Session:
    """Five runs with other values each, equal to the reference's."""
    rng = np.random.default_rng(21)
    spreads = (1.0, 3.0, 1e-20, 0.0, 1e4)
    feeds = ({"x": (rng.normal(rng.choice([0, 2, -2]), 1, shape) * spread).astype(F)} for spread in spreads)
    return same_runs(model, feeds, names, times=1, **options)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("arith", ["exact", "ort"])
def test_no_step_needs_python(arith: Any, threads: int) -> None:
    w = np.random.default_rng(20).integers(-128, 128, (40, 33)).astype(np.int8)
    for m in (1, 3, 20, 100):
        session = same(chain(w), (2, m, 40), arith=arith, threads=threads)
        assert reference_nodes(session) == []
        assert (
            reference_nodes(same(chain(w), (2, m, 40), ["q", "z", "sums", "s", "y"], arith=arith, threads=threads))
            == []
        )


@every_isa
def test_columns_of_every_number(isa: str) -> None:
    """Also those whose last panel overlaps the one before."""
    rng = np.random.default_rng(22)
    for n in (1, 7, 8, 9, 16, 17, 24, 25, 41, 72, 100):
        for kind, zero in (
            (np.int8, None),
            (np.int8, np.int8(0)),
            (np.uint8, np.uint8(128)),
            (np.uint8, np.full(n, 128, np.uint8)),
        ):
            w = rng.integers(0, 256, (21, n)).astype(np.uint8).view(kind)
            assert (
                reference_nodes(same(chain(w, zero if zero is None else np.asarray(zero)), (1, 20, 21), isa=isa)) == []
            )


def test_weights_that_leave_int8_less_their_zero_point() -> None:
    w = np.random.default_rng(23).integers(0, 256, (16, 24)).astype(np.uint8)
    zeros = np.random.default_rng(24).integers(0, 256, 24).astype(np.uint8)
    for zero in (np.array(3, np.uint8), zeros):
        assert reference_nodes(same(chain(w, zero), (1, 4, 16))) == []


def test_vectors_scalars_and_outputs_that_nobody_wants() -> None:
    w = np.random.default_rng(24).integers(-128, 128, (16, 24)).astype(np.int8)
    assert reference_nodes(same(chain(w, flat=True), (16,))) == []
    assert reference_nodes(same(chain(w, names=("q", "", "z")), (1, 3, 16))) == []
    model, _ = node_model("DynamicQuantizeLinear", [np.array(3, F)], outputs=[np.uint8, F, np.uint8])
    assert reference_nodes(same_runs(model, ({"i0": np.array(value, F)} for value in (3, -2, 0, 7)), times=1)) == []


def test_values_that_are_no_numbers() -> None:
    """Refused in a later run as in a first one; then the program goes on."""
    w = np.ones((4, 4), np.int8)
    session = qrun.Session(chain(w), cache=OBJECTS)
    good = np.linspace(-1, 1, 8, dtype=F).reshape(1, 2, 4)
    first = session.run({"x": good})["y"]
    assert_equal(session.run({"x": good})["y"], first)
    for value in (np.nan, -np.inf):
        bad = good.copy()
        bad[0, 1, 2] = value
        for _ in range(2):
            with pytest.raises(qrun.QrunError, match="x holds"):
                session.run({"x": bad})
        assert_equal(session.run({"x": good})["y"], first)
    infinite = good.copy()
    infinite[0, 0, 0] = np.inf
    want = qrun.Session(chain(w), backend="reference").run({"x": infinite}, ["s", "z", "q"])
    for name, array in session.run({"x": infinite}, ["s", "z", "q"]).items():
        assert_equal(array, want[name], name)


@every_isa
def test_parameters_are_the_reference_s(isa: str) -> None:
    rng, native = np.random.default_rng(25), engine(isa)
    ends = [
        (0, 0),
        (-1e-45, 0),
        (0, 1e-45),
        (-1e-43, 3e-44),
        (-3e38, 3e38),
        (-1, 254),
        (-0.5, 254.5),
        (-1.5, 253.5),
        (0, 255),
    ]
    ends += [(-abs(a), abs(b)) for a, b in rng.normal(0, 1, (200, 2)) * np.exp(rng.uniform(-80, 80, (200, 1)))]
    for bottom, top in ends:
        ranges = np.zeros((3, 4), F)
        ranges[1, :2] = bottom, top
        want = range_parameters(ranges[1, 0], ranges[1, 1], "exact")
        for form, expected in zip(("scale", "zero"), want, strict=True):
            operation = Parameters(native, Operand(ranges.shape, ranges.dtype), form)
            assert_equal(run_placed(native, operation, [ranges], (0, 0)), expected, f"{form} of {bottom} {top}")


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_memory(isa: str, at_end: bool) -> None:
    rng, native = np.random.default_rng(26), engine(isa)
    for count in (1, 3, 15, 16, 17, 63, 64, 65, 300):
        x = rng.normal(0, 1, count).astype(F)
        found = run_placed(native, Range(native, x.shape), [x], (0, 0), at_end)
        operation = Parameters(native, Range(native, x.shape).result, "parameters")
        parameters = run_placed(native, operation, [found], (0, 0), at_end)
        got = run_placed(native, Quantized(native, x.shape), [x, parameters], (0, 0, 0), at_end)
        scale, zero = range_parameters(x.min(), x.max(), "exact")
        assert_equal(parameters[:1].view(F)[0], scale[()])
        assert parameters[2] == zero
        want = np.clip(np.rint(x / scale) + F(zero), 0, 255).astype(np.uint8)
        assert_equal(got, want, f"{count}")


def quantized(native: Any, x: Any, scale: Any, zero: int, at_end: bool = True) -> Any:
    """The codes of x for a scale and a zero point, in memory that ends or begins at a guard page."""
    parameters = np.array([scale, F(1) / scale if LEAST <= scale <= 1 / LEAST else np.nan, 0], F).view(np.int32)
    parameters[2] = zero
    return run_placed(native, Quantized(native, x.shape), [x, parameters], (0, 0, 0), at_end)


def divided(x: Any, scale: Any, zero: int) -> Any:
    """The same by the definition: NaN is the least code."""
    with np.errstate(all="ignore"):
        rounded = np.rint(np.divide(x, scale, dtype=F))
    rounded[np.isnan(rounded)] = -np.inf
    return (np.clip(rounded, -zero, 255 - zero) + zero).astype(np.uint8)


@thin(1, 3, 15, 16, 17, 63, 64, 65, 200, 5000, best=1, other=2, name="count")
def test_ranges_and_codes(isa: str, count: int) -> None:
    rng = np.random.default_rng(count)
    scales = (F(0.1), F(0.25), F(1 / 255), F(1e-40), F(2**-126), F(3e38), F(np.inf), F(1e-45), np.nextafter(F(1), F(0)))
    for number, scale in enumerate(scales):
        native, zero = engine(isa, 3 if number % 4 == 3 else 1), (0, 255, 117)[number % 3]
        some = np.where(rng.random(count) < 0.5, rng.integers(-600, 600, count) / 2, rng.normal(0, 99, count))
        with np.errstate(all="ignore"):
            x = some.astype(F) * scale
        x = np.nextafter(x, rng.normal(0, 1, count).astype(F)) if number % 2 else x
        if number == 0:
            x[rng.integers(0, count)] = np.nan
        if number == 2:
            x[rng.integers(0, count)] = -np.inf
        found = run_placed(native, Range(native, x.shape), [x], (0, 0))
        if np.isfinite(x).all():
            ends = found[:, 0].min(), found[:, 1].max(), found[:, 2].sum()
            assert ends == (x.min(initial=0), x.max(initial=0), 0)
        else:
            assert np.isnan(found[:, 2].sum())
        assert_equal(quantized(native, x, scale, zero), divided(x, scale, zero), f"{scale} {zero}")


@every_isa
def test_codes_next_to_every_tie(isa: str) -> None:
    rng = np.random.default_rng(8)
    for scale in (*np.exp(rng.uniform(-20, 20, 12)).astype(F), F(0.1), F(1 / 255)):
        middle = ((np.arange(-300, 300) + 0.5) * np.float64(scale)).astype(F)
        x = np.concatenate([middle, *(np.nextafter(middle, F(end)) for end in (-np.inf, np.inf))])
        assert_equal(quantized(engine(isa), x, scale, 128), divided(x, scale, 128), f"{scale}")


def convolved(x: Any, w: Any, options: dict[str, Any]) -> Any:
    """Sums of int64 numbers, padding 0, from the definition."""
    axes, group = x.ndim - 2, options.get("group", 1)
    pads, strides = options.get("pads", (0,) * 2 * axes), options.get("strides", (1,) * axes)
    dilations = options.get("dilations", (1,) * axes)
    x = np.pad(x, [(0, 0), (0, 0), *((pads[i], pads[axes + i]) for i in range(axes))])
    out = [(x.shape[2 + i] - (w.shape[2 + i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(axes)]
    y = np.zeros((x.shape[0], w.shape[0], *out), np.int64)
    each, inputs = w.shape[0] // group, w.shape[1]
    for tap in np.ndindex(*w.shape[2:]):
        first = [t * d for t, d in zip(tap, dilations, strict=True)]
        window = tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(first, out, strides, strict=True))
        for g in range(group):
            part = x[(slice(None), slice(g * inputs, (g + 1) * inputs), *window)]
            weights = w[(slice(g * each, (g + 1) * each), slice(None), *tap)]
            y[:, g * each : (g + 1) * each] += np.moveaxis(np.tensordot(weights, part, ((1,), (1,))), 0, 1)
    return y


@pytest.mark.parametrize("at_end", [True, False])
@thin(*range(len(edges.SUMS)), best=1, other=2, name="which", products=True)
def test_convolutions_whose_zero_point_comes_with_the_run(isa: str, which: int, at_end: bool) -> None:
    rng = np.random.default_rng(which)
    native = engine(isa, 1 + which % 2)
    for number in range(4):
        shape, kernel, options = edges.SUMS[which]
        x, w = codes(rng, shape, ("u8", "s8")[number % 2]), codes(rng, kernel, ("u8", "s8")[number // 2])
        w_zero = codes(rng, (kernel[0],) if number == 3 else (1,), ("u8", "s8")[number // 2])
        zero = np.zeros((), x.dtype)
        conv = Conv(native, shape, w, x_zero_point=zero, w_zero_point=w_zero, kinds=SUM_KINDS, stores=False, **options)
        prepare, sums = dynamic_sums(conv, Operand((), x.dtype))
        centred = w.astype(np.int64) - w_zero.reshape(-1, *(1,) * (w.ndim - 1))
        for code in codes(rng, (2,), ("u8", "s8")[number % 2]):
            prepared = run_placed(native, prepare, [np.array(code)], (0, 0), at_end)
            want = convolved(x.astype(np.int64) - int(code), centred, options).astype(np.int32)
            assert_equal(run_placed(native, sums, [x, prepared], (0, 0, 0), at_end), want)
            gap = 4 * kernel[0] + 64
            assert_equal(run_placed(native, sums, [x, prepared], (0, 0, gap), at_end), want)


def test_a_range_that_is_not_finite_is_not_decided() -> None:
    native = engine(ISAS[0])
    for value in (np.nan, np.inf, -np.inf):
        x = np.array([1, value, 2], F)
        found = run_placed(native, Range(native, x.shape), [x], (0, 0))
        with pytest.raises(Undecided):
            native.run(Parameters(native, Range(native, x.shape).result, "scale"), [found])


FLOATS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "DynamicQuantizeMatMul": (["x", "w", "ws", "wz", "bias"], {}),
    "MatMulIntegerToFloat": (["q", "w", "s", "ws", "z", "wz", "bias"], {}),
    "QGemm": (["q", "s", "z", "w", "ws", "wz", "added"], {}),
    "QGemm with alpha": (["q", "s", "z", "w", "ws", "wz", "added"], {"alpha": 0.3}),
}


@every_isa
@pytest.mark.parametrize("arith", ["exact", "ort"])
@pytest.mark.parametrize("name", FLOATS)
def test_products_that_give_floats(isa: str, arith: Any, name: str) -> None:
    """In the program, with weights of each type, and scales for each column or one."""
    rng = np.random.default_rng(30)
    inputs, attributes = FLOATS[name]
    for number, (k, n) in enumerate(((5, 1), (16, 24), (40, 33))):
        w = rng.integers(0, 256, (k, n)).astype(np.uint8).view((np.uint8, np.int8)[number % 2])
        columns = (n,) if number else ()
        tensors = {
            "w": w, "ws": rng.uniform(0.001, 0.1, columns).astype(F), "bias": rng.normal(0, 3, n).astype(F),
            "wz": rng.integers(0, 256, columns).astype(np.uint8).view(w.dtype), "added": rng.integers(-999, 999, n).astype(np.int32),
        }  # fmt: skip
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
            helper.make_node(name.split()[0], inputs, ["y"], domain="com.microsoft", **attributes),
        ]
        model = make_model(nodes, {"x": [None, k]}, "y", tensors, opset=17)
        for rows in (1, 7):
            assert reference_nodes(same(model, (rows, k), isa=isa, arith=arith, threads=1 + number % 2)) == []


@pytest.mark.parametrize("late", ["w", "ws", "wz", "bias", "w ws wz bias", ""])
@pytest.mark.parametrize("name", ["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "QGemm transA transB"])
def test_parameters_that_come_with_the_run(name: str, late: str) -> None:
    """Weights, their scale and zero point, and the bias, or nothing: all is in the program."""
    rng = np.random.default_rng(33)
    op, *turned = name.split()
    k, n = 40, 33
    values = {
        "w": codes(rng, (n, k) if turned else (k, n), "s8"), "ws": np.array(0.02, F), "wz": np.array(3, np.int8),
        "bias": rng.normal(0, 3, n).astype(F), "az": np.array(7, np.uint8), "added": np.arange(n, dtype=np.int32),
        "as": np.array(0.1, F),
    }  # fmt: skip
    names = {
        "DynamicQuantizeMatMul": ["x", "w", "ws", "wz", "bias"],
        "MatMulIntegerToFloat": ["q", "w", "as", "ws", "az", "wz", "bias"],
        "QGemm": ["q", "as", "az", "w", "ws", "wz", "added"],
    }[op]
    nodes = [helper.make_node(op, names, ["y"], domain="com.microsoft", **dict.fromkeys(turned, 1))]
    if "q" in names:
        nodes.insert(0, helper.make_node("QuantizeLinear", ["x", "as", "az"], ["q"]))
    fed = {t: values[t] for t in late.split() if t in names}
    kinds = {t: helper.np_dtype_to_tensor_dtype(a.dtype) for t, a in values.items()}
    infos = [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)]
    infos += [helper.make_tensor_value_info(t, kinds[t], None) for t in fed]
    model = make_model(nodes, infos, "y", {t: a for t, a in values.items() if t not in fed}, opset=17)
    shapes = [(k, m) if "transA" in turned else (m, k) for m in (1, 1, 1, 6, 6, 6)]
    feeds = ({"x": rng.normal(0, 2, shape).astype(F), **fed} for shape in shapes)
    assert reference_nodes(same_runs(model, feeds, times=1)) == []
