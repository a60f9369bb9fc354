"""Quantization that keeps floats, of QONNX: the table of its page, and every step in fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import onnx
import pytest
from helpers.native import nearest32
from helpers.support import assert_equal, node_model, run_qrun
from onnx import helper

import qrun
from qrun.ir.infer import infer
from qrun.ir.schema import QONNX
from qrun.ops import expansion

F = np.float32
NUMBERS = (5.5, 2.5, 1.6, 1.1, 1.0, -1.0, -1.1, -1.6, -2.5, -5.5)
PAGE = {
    "ROUND": (6, 2, 2, 1, 1, -1, -1, -2, -2, -6),
    "HALF_EVEN": (6, 2, 2, 1, 1, -1, -1, -2, -2, -6),
    "CEIL": (6, 3, 2, 2, 1, -1, -1, -1, -2, -5),
    "FLOOR": (5, 2, 1, 1, 1, -1, -2, -2, -3, -6),
    "UP": (6, 3, 2, 2, 1, -1, -2, -2, -3, -6),
    "DOWN": (5, 2, 1, 1, 1, -1, -1, -1, -2, -5),
    "HALF_UP": (6, 3, 2, 1, 1, -1, -1, -2, -3, -6),
    "HALF_DOWN": (5, 2, 2, 1, 1, -1, -1, -2, -2, -5),
}
"""How IntQuant-1 rounds these numbers."""
HOSTILE = (0.0, 0.5, 1.5, 2.5, 0.49999997, 8388607.5, 8388609.0, 1e-45, 3e38, 127.5, 128.5, math.inf, math.nan)


def qonnx(op_type: str, inputs: list[Any], attributes: dict[str, Any], version: int = 1, **options: Any) -> np.ndarray:
    """What both backends make."""
    places = range(1, len(inputs))
    model, feeds = node_model(op_type, inputs, attributes, domain=QONNX, outputs=[F], constants=places, **options)
    model.opset_import[1].version = version
    made, native = (run_qrun(model, feeds, backend=backend)[0] for backend in ("reference", "native"))
    assert_equal(native, made, f"{op_type} {attributes}")
    return made


def step(value: Fraction | float) -> float:
    """One float32 operation whose real value this is; numbers that are none, and zeros, are floats."""
    return float(nearest32(value)) if isinstance(value, Fraction) and value else float(value)


def exactly(a: float, how: str, b: float) -> float:
    """a / b, a + b, a - b or a * b in float32; IEEE 754 where a number is not finite, or the result is 0."""
    with np.errstate(all="ignore"):
        plain = {"/": np.divide, "+": np.add, "-": np.subtract, "*": np.multiply}[how](np.float64(a), np.float64(b))
    if not math.isfinite(a) or not math.isfinite(b) or (how == "/" and not b) or (not plain and not (a and b)):
        return float(plain)
    x, y = Fraction(a), Fraction(b)
    real = {"/": lambda: x / y, "+": lambda: x + y, "-": lambda: x - y, "*": lambda: x * y}[how]()
    return step(real) if real else float(plain)


def rounded(value: float, mode: str) -> float:
    """To an integer, from the words of the page; zeros keep the sign."""
    if not math.isfinite(value):
        return value
    x = Fraction(value)
    below = x.numerator // x.denominator
    rest, away = x - below, below + (value > 0)
    half = Fraction(1, 2)
    towards = below + (value < 0 and rest > 0)
    found = {
        "ROUND": round(x),
        "HALF_EVEN": round(x),
        "CEIL": below + (rest > 0),
        "FLOOR": below,
        "UP": away if rest else below,
        "DOWN": towards,
        "HALF_UP": below + (rest > half or (rest == half and value > 0)),
        "HALF_DOWN": below + (rest > half or (rest == half and value < 0)),
    }[mode]
    return math.copysign(float(found), value)


def limits(bits: int, signed: int, narrow: int) -> tuple[float, float]:
    low, high = (narrow - 2 ** (bits - 1), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1 - narrow)
    return step(Fraction(low)), step(Fraction(high))


def quantized(x: float, s: float, z: float, bits: int, signed: int, narrow: int, mode: str) -> float:
    v = exactly(exactly(x, "/", s), "+", z)
    low, high = limits(bits, signed, narrow)
    if bits == 1 and signed:
        code = 1.0 if v >= 0 else -1.0
    else:
        code = rounded(high if v > high else low if v < low else v, mode)
    return exactly(exactly(code, "-", z), "*", s)


def truncated(x: float, s: float, z: float, bits: int, mode: str, out_s: float, signed: int, narrow: int) -> float:
    """Trunc-2, for scales whose quotient is a power of 2."""
    power = out_s / s
    v = exactly(rounded(exactly(exactly(x, "/", s), "+", z), "ROUND"), "/", power)
    low, high = limits(bits, signed, narrow)
    code = rounded(high if v > high else low if v < low else v, mode)
    return exactly(exactly(code, "-", exactly(z, "/", power)), "*", out_s)


def values(rng: np.random.Generator, scale: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of all sizes, many of them halves of steps."""
    x = rng.normal(size=shape) * 10.0 ** rng.integers(-3, 4, shape)
    x = np.where(rng.random(shape) < 0.5, np.rint(x * 2) / 2 * scale, x).astype(F)
    flat = x.reshape(-1)
    flat[: len(HOSTILE)] = (np.array(HOSTILE, F) * rng.choice([-1, 1], len(HOSTILE)))[: flat.size]
    return x


@pytest.mark.parametrize("mode", PAGE)
def test_the_table_of_the_page(mode: str) -> None:
    given = [F(NUMBERS), F(1), F(0), F(8)]
    for name in (mode, mode.lower()):
        assert qonnx("IntQuant", given, {"rounding_mode": name}).tolist() == [*PAGE[mode]]
        assert qonnx("Quant", given, {"rounding_mode": name}).tolist() == [*PAGE[mode]]
    assert [rounded(float(F(number)), mode) for number in NUMBERS] == [*PAGE[mode]]


@pytest.mark.parametrize("mode", PAGE)
def test_every_step(mode: str) -> None:
    seed = sum(map(ord, mode))
    print("seed", seed)
    rng = np.random.default_rng(seed)
    for turn in range(24):
        scales = (1, 3, 1, 1) if turn % 2 else ()
        s = np.asarray(2.0 ** rng.integers(-6, 3, scales) if turn % 3 else rng.uniform(0.01, 1, scales), F)
        z = np.asarray(rng.integers(-4, 5, scales) * (turn % 4 > 1) / rng.choice([1, 2]), F)
        signed, narrow, bits = turn % 2, turn // 2 % 2, int(rng.choice([1, 2, 3, 4, 8, 16, 25, 32]))
        x = values(rng, s, (2, 3, 2, 5))
        attributes = {"signed": signed, "narrow": narrow, "rounding_mode": mode}
        width = np.asarray(bits, [np.int64, F, np.int32][turn % 3])
        got = qonnx("IntQuant", [x, s, z, width], attributes)
        each = zip(*(np.broadcast_to(a, x.shape).reshape(-1).tolist() for a in (x, s, z)), strict=True)
        want = [quantized(*one, bits, signed, narrow, mode) for one in each]
        assert_equal(got, F(want).reshape(x.shape), f"seed {seed}, {bits} bits, {attributes}, scale {s}, zero {z}")


def test_shapes_are_inferred_through_it() -> None:
    for op_type, count in (("Quant", 4), ("BipolarQuant", 2), ("Trunc", 5)):
        inputs = [np.ones((2, 3), F), *[np.full((3,), 2, F)] * (count - 1)]
        attributes = {"signed": 1, "rounding_mode": "FLOOR"} if op_type == "Quant" else {}
        model, _ = node_model(op_type, inputs, attributes, domain="onnx.brevitas", outputs=[F])
        model.graph.node.append(onnx.helper.make_node("Transpose", ["y0"], ["y1"]))
        model.graph.output[0].name = "y1"
        found = infer(model.SerializeToString(), expansion)
        assert (found["y0"].shape, found["y1"].shape) == ((2, 3), (3, 2))
    assert expansion(QONNX, "MultiThreshold", 2) == ("Identity", [(0, None)], None)
    assert expansion(QONNX, "Im2Col", 1) is None


@pytest.mark.parametrize("larger", range(4))
def test_every_input_counts_for_the_shape(larger: int) -> None:
    inputs = [np.full((2, 3) if place == larger else (), 2, F) for place in range(4)]
    attributes = {"signed": 1, "narrow": 0, "rounding_mode": "ROUND"}
    model, feeds = node_model("IntQuant", inputs, attributes, domain=QONNX, outputs=[F])
    assert qrun.Session(model).run(feeds)["y0"].shape == (2, 3)
    assert infer(model.SerializeToString(), expansion)["y0"].shape == (2, 3)


def test_widths_that_differ() -> None:
    x, bits = F([[-3.0, 0.4, 0.6, 3.0]] * 3), F([[1], [2], [4]])
    assert qonnx("IntQuant", [x, F(1), F(0), bits], {}).tolist() == [[-1, 1, 1, 1], [-2, 0, 1, 1], [-3, 0, 1, 3]]


@pytest.mark.parametrize("mode", PAGE)
def test_trunc(mode: str) -> None:
    rng = np.random.default_rng(7)
    for turn in range(12):
        s, z = np.asarray(rng.choice([0.25, 0.3, 1.7]), F), F(rng.integers(-3, 9))
        lost, bits, signed, narrow = int(rng.integers(0, 5)), int(rng.integers(2, 9)), turn % 2, turn // 2 % 2
        x, out_s = values(rng, s, (7, 9)), F(s * 2.0**lost)
        given = [x, s, z, F(bits + lost), out_s, F(bits)]
        attributes = {"rounding_mode": mode, "signed": signed, "narrow": narrow}
        got = qonnx("Trunc", given, attributes, 2)
        want = [truncated(v, float(s), float(z), bits, mode, float(out_s), signed, narrow) for v in x.ravel().tolist()]
        assert_equal(got, F(want).reshape(x.shape), f"{attributes} {lost}")
        earlier = qonnx("Trunc", [*given[:4], given[5]], {"rounding_mode": mode})
        floats = (x.ravel().tolist(), float(s), float(z))
        codes = [
            rounded(rounded(exactly(exactly(v, "/", floats[1]), "+", floats[2]), "ROUND") / 2.0**lost, mode)
            for v in floats[0]
        ]
        want = [exactly(exactly(code, "-", floats[2]), "*", floats[1]) for code in codes]
        assert_equal(earlier, F(want).reshape(x.shape), f"{attributes} {lost}")


def test_scales_of_trunc_whose_quotient_is_no_power_of_2() -> None:
    x = F([-9.0, -1.0, 3.0, 7.0, 8.0])
    for ratio, power in ((1.4, 1), (1.4142135, 1), (1.4142137, 2), (2.8284270, 2), (2.8284273, 4), (0.7, 0.5)):
        got = qonnx("Trunc", [x, F(1), F(0), F(8), F(ratio), F(8)], {}, 2)
        assert_equal(got, (np.floor(x / F(power)) * F(ratio)).astype(F), f"{ratio}")


def test_bipolar() -> None:
    x = F([[-1.0, -0.0, 0.0, 1e-45, -1e-45], [math.nan, math.inf, -math.inf, 3, -3]])
    for s in (F(0.3), F([[2], [-0.5]])):
        got = qonnx("BipolarQuant", [x, s], {})
        assert_equal(got, np.where(x >= 0, F(1), F(-1)) * s)


@pytest.mark.parametrize("domain", ["onnx.brevitas", "finn.custom_op.general"])
@pytest.mark.parametrize("imported", [True, False])
def test_former_names_of_the_domain_and_files_that_import_none(domain: str, imported: bool) -> None:
    model, feeds = node_model("Quant", [F([0.3, 9.0]), F(0.25), F(0), F(3)], {}, domain=domain, outputs=[F])
    if not imported:
        del model.opset_import[1]
    assert run_qrun(model, feeds, backend="native")[0].tolist() == [0.25, 0.75]
    found = {finding.rule for finding in qrun.check(model)}
    assert ("QR118" in found, "QR201" in found, "QR211" in found) == (not imported, False, False)


@pytest.mark.parametrize(("op_type", "rest"), [("Quant", [F(0), F(3)]), ("BipolarQuant", [])])
def test_operators_without_a_domain(op_type: str, rest: list[Any]) -> None:
    """As Brevitas wrote them in 2021; ai.onnx has no such operators. One finding says so."""
    model, feeds = node_model(op_type, [F([0.3, 9.0]), F(0.25), *rest], {}, opset=11, outputs=[F])
    model.graph.node.append(helper.make_node(op_type, ["y0", *model.graph.node[0].input[1:]], ["again"]))
    for backend in ("reference", "native"):
        assert run_qrun(model, feeds, backend=backend)[0].tolist() == ([0.25, 0.75] if rest else [0.25, 0.25])
    (found,) = (finding for finding in qrun.check(model) if finding.level != "note")
    assert (found.rule, found.message) == ("QR118", f"{op_type} has no domain; qrun treats it as QONNX's (2 nodes)")
    del model.graph.node[1]
    model.graph.node[0].domain = QONNX
    model.opset_import.append(helper.make_opsetid(QONNX, 1))
    assert [finding.rule for finding in qrun.check(model)] == []


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.int8, np.uint8])
def test_zero_points_of_integers(kind: Any) -> None:
    x, rng = F(np.linspace(-3, 3, 41)), np.random.default_rng(0)
    for zeros in (np.asarray(3, kind), rng.integers(0, 9, 41).astype(kind)):
        want = qonnx("IntQuant", [x, F(0.3), F(zeros), F(4)], {})
        model, feeds = node_model(
            "IntQuant", [x, F(0.3), zeros, F(4)], {}, domain=QONNX, outputs=[F], constants=[1, 2, 3]
        )
        session = qrun.Session(model, backend="native")
        for _ in range(3):
            assert_equal(session.run(feeds)["y0"], want)
        assert session.execute(feeds).events[0].backend == "native"
        assert_equal(run_qrun(model, feeds)[0], want)
    wide = [x, F(0.3), np.asarray(3, kind), F(8), F(0.6), F(4)]
    exact = [*wide[:2], F(3), *wide[3:]]
    for version, places in ((1, (0, 1, 2, 3, 5)), (2, range(6))):
        made = [_trunc([inputs[place] for place in places], version) for inputs in (wide, exact)]
        assert_equal(*made)


def _trunc(inputs: list[Any], version: int) -> Any:
    model, feeds = node_model("Trunc", inputs, {}, domain=QONNX, outputs=[F])
    model.opset_import[1].version = version
    return run_qrun(model, feeds)[0]


@pytest.mark.parametrize(
    ("inputs", "attributes", "code", "told"),
    [
        ([F([1, 2]), F(1), F(0), F(0)], {}, "QR202", "bitwidth is not a positive integer"),
        ([F([1, 2]), F(1), F(0), F(2.5)], {}, "QR202", "bitwidth is not a positive integer"),
        ([F([1, 2]), F(1), F(0), F(math.nan)], {}, "QR202", "bitwidth is not a positive integer"),
        ([F([1, 2]), F(1), F(0), F(8)], {"rounding_mode": "NEAREST"}, "QR204", "rounding_mode is NEAREST"),
        ([F([1, 2]), F([1, 2, 3]), F(0), F(8)], {}, "QR208", "do not broadcast"),
        ([F([1, 2]), F([1, 2, 3]), F(0), F(-1)], {}, "QR208", "do not broadcast"),
        ([F([1, 2]), F(1), np.float64(0), F(8)], {}, "QR203", "zeropt is float64"),
    ],
)
def test_refused(inputs: list[Any], attributes: dict[str, Any], code: str, told: str) -> None:
    for backend, constants in (("reference", ()), ("native", ()), ("native", (3,))):
        model, feeds = node_model("IntQuant", inputs, attributes, domain=QONNX, outputs=[F], constants=constants)
        with pytest.raises(qrun.QrunError) as caught:
            run_qrun(model, feeds, backend=backend)
        assert (caught.value.code, told in str(caught.value)) == (code, True), caught.value


def test_another_operator_of_the_domain() -> None:
    model, feeds = node_model("Im2Col", [F([1, 2])], {}, domain=QONNX, outputs=[F])
    with pytest.raises(qrun.QrunError) as caught:
        run_qrun(model, feeds)
    assert caught.value.code == "QR201"
    assert "is not one that qrun knows" not in str(caught.value)


@pytest.mark.parametrize(
    ("layout", "shape", "axis"),
    [
        ("", (5, 3), 1),
        ("NC", (5, 3), 1),
        ("", (2, 7, 3), 2),
        ("NCW", (2, 3, 7), 1),
        ("", (2, 3, 4, 5), 1),
        ("NHWC", (2, 4, 5, 3), 3),
        ("", (2, 3, 2, 2, 3), 1),
        ("NCHW", (2, 3, 0, 5), 1),
    ],
)
@pytest.mark.parametrize("rows", [1, 3])
def test_thresholds(layout: str, shape: tuple[int, ...], axis: int, rows: int) -> None:
    """Counted one by one; the scale and the bias are one float32 operation each."""
    rng = np.random.default_rng(len(shape))
    for steps in (0, 1, 7, 255):
        thresholds = rng.choice([-2, -0.0, 0.0, 1 / 90, 1 / 255, 1, 3], (rows, steps)).astype(F)
        x = rng.choice([-2, -0.0, 0, F(1 / 90), F(1 / 255), 0.004, 1, math.inf, -math.inf, math.nan], shape).astype(F)
        for scale, bias in ((1.0, 0.0), (2.0, -1.0), (0.1, 0.7), (1 / 255, -0.3)):
            attributes = {"out_dtype": "UINT8", "out_scale": scale, "out_bias": bias}
            got = qonnx("MultiThreshold", [x, thresholds], attributes | ({"data_layout": layout} if layout else {}))
            want = np.empty(shape, F)
            for place in np.ndindex(*shape):
                own = thresholds[place[axis] % rows].tolist()
                reached = exactly(float(sum(x[place] >= t for t in own)), "*", float(F(scale)))
                want[place] = exactly(reached, "+", float(F(bias)))
            assert_equal(got, want, f"{steps} {scale} {bias}", signed_zeros=False)


@pytest.mark.parametrize("domain", ["onnx.brevitas", "finn.custom_op.general"])
def test_thresholds_in_former_domains(domain: str) -> None:
    inputs = [F([[0.5, 3.0]]), F([[0, 1, 2]])]
    model, feeds = node_model("MultiThreshold", inputs, {"out_dtype": "UINT2"}, domain=domain, outputs=[F])
    del model.opset_import[1]
    assert run_qrun(model, feeds)[0].tolist() == [[1, 3]]


@pytest.mark.parametrize(
    ("inputs", "attributes", "told"),
    [
        ([F([1, 2]), F([[1]])], {}, "X has shape"),
        ([F([[1, 2]]), F([[1], [2], [3]])], {}, "thresholds has shape"),
        ([F([[1, 2]]), F([1, 2])], {}, "thresholds has shape"),
        ([F([[1, 2]]), F([[1]])], {"data_layout": "NHWC"}, "X has shape"),
    ],
)
def test_refused_thresholds(inputs: list[Any], attributes: dict[str, Any], told: str) -> None:
    for constants in ((), (1,)):
        model, feeds = node_model("MultiThreshold", inputs, attributes, domain=QONNX, outputs=[F], constants=constants)
        with pytest.raises(qrun.QrunError) as caught:
            run_qrun(model, feeds)
        assert (caught.value.code, told in str(caught.value)) == ("QR208", True), caught.value
