"""Nodes that are several steps of a program: dynamic quantization, products and convolutions whose zero point it makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.native import ISAS, OBJECTS, codes, engine, every_isa, thin
from helpers.placed import elsewhere, run_placed
from helpers.support import assert_equal, node_model
from onnx import ModelProto, TensorProto, helper, numpy_helper

import qrun
from qrun.native.errors import Undecided
from qrun.native.kernels.conv import Conv
from qrun.native.kernels.finish import Factors, Finish, Scaled
from qrun.native.kernels.ranges import Parameters, Quantized, Range
from qrun.native.kernels.sums import KINDS, dynamic_sums
from qrun.native.machine.operation import Operand
from qrun.ops._dynamic import range_parameters

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
    tensors = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.array(1, F), "one")]
    tensors += [numpy_helper.from_array(w_zero, "wz")] if w_zero is not None else []
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [w.shape[0]] if flat else ["N", "M", w.shape[0]])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", [x], outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def same(model: ModelProto, shape: tuple[int, ...], names: list[str] | None = None, **options: Any) -> qrun.Session:
    """Five runs with other values each, equal to the reference's."""
    rng = np.random.default_rng(21)
    arith = options.get("arith", "exact")
    session, reference = (
        qrun.Session(model, cache=OBJECTS, **options),
        qrun.Session(model, backend="reference", arith=arith),
    )
    for spread in (1.0, 3.0, 1e-20, 0.0, 1e4):
        x = (rng.normal(rng.choice([0, 2, -2]), 1, shape) * spread).astype(F)
        want = reference.run({"x": x}, names)
        for name, array in session.run({"x": x}, names).items():
            assert_equal(array, want[name], f"{name}, {spread}")
    return session


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("arith", ["exact", "ort"])
def test_no_step_needs_python(arith: Any, threads: int) -> None:
    w = np.random.default_rng(20).integers(-128, 128, (40, 33)).astype(np.int8)
    for m in (1, 3, 20, 100):
        session = same(chain(w), (2, m, 40), arith=arith, threads=threads)
        assert elsewhere(session) == []
        assert elsewhere(same(chain(w), (2, m, 40), ["q", "z", "sums", "s", "y"], arith=arith, threads=threads)) == []


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
            assert elsewhere(same(chain(w, zero if zero is None else np.asarray(zero)), (1, 20, 21), isa=isa)) == []


def test_weights_that_leave_int8_less_their_zero_point() -> None:
    w = np.random.default_rng(23).integers(0, 256, (16, 24)).astype(np.uint8)
    zeros = np.random.default_rng(24).integers(0, 256, 24).astype(np.uint8)
    for zero in (np.array(3, np.uint8), zeros):
        assert elsewhere(same(chain(w, zero), (1, 4, 16))) == []


def test_vectors_scalars_and_outputs_that_nobody_wants() -> None:
    w = np.random.default_rng(24).integers(-128, 128, (16, 24)).astype(np.int8)
    assert elsewhere(same(chain(w, flat=True), (16,))) == []
    assert elsewhere(same(chain(w, names=("q", "", "z")), (1, 3, 16))) == []
    model, _ = node_model("DynamicQuantizeLinear", [np.array(3, F)], outputs=[np.uint8, F, np.uint8])
    session = qrun.Session(model, cache=OBJECTS)
    for value in (3, -2, 0, 7):
        want = qrun.Session(model, backend="reference").run({"i0": np.array(value, F)})
        for name, array in session.run({"i0": np.array(value, F)}).items():
            assert_equal(array, want[name], f"{name} of {value}")
    assert elsewhere(session) == []


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
        conv = Conv(native, shape, w, x_zero_point=zero, w_zero_point=w_zero, kinds=KINDS, stores=False, **options)
        prepare, sums = dynamic_sums(conv, w, w_zero, Operand((), x.dtype))
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
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, k])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, t) for t, a in tensors.items()])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        for rows in (1, 7):
            assert elsewhere(same(model, (rows, k), isa=isa, arith=arith, threads=1 + number % 2)) == []


@pytest.mark.parametrize("at_end", [True, False])
@every_isa
def test_memory_of_scaled_sums(isa: str, at_end: bool) -> None:
    rng, native = np.random.default_rng(31), engine(isa)
    for n in (1, native.isa.lanes - 1, native.isa.lanes, 2 * native.isa.lanes + 3):
        for form in ("ort", "real"):
            finish = Finish(native, n, form)
            factor, bias = np.full((1, n), 0.25), rng.integers(-9, 9, (1, n)).astype(np.float64)
            fields = [factor, *[np.zeros((1, n))] * (2 if form == "real" else 0), bias]
            factors = Factors(native, Operand((), np.dtype(F)), finish.constants(fields), form, 2.0)
            held = run_placed(native, factors, [np.array(0.5, F)], (0, 0), at_end)
            sums = rng.integers(-999, 999, (5, n)).astype(np.int32)
            scaled = Scaled(finish, Operand(sums.shape, sums.dtype), factors.result, sums.shape)
            assert_equal(run_placed(native, scaled, [sums, held], (0, 0, 0), at_end), (sums * 0.25 + bias).astype(F))
