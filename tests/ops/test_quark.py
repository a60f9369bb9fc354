"""Operators of AMD Quark, by their pages and the steps of its code: every number in fractions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.native import nearest32
from helpers.support import assert_equal, node_model, run_qrun
from onnx import helper

import qrun
from qrun.ir.infer import infer
from qrun.ir.schema import QUARK, VAI
from qrun.ops import expansion

F, BRAIN = np.float32, np.dtype(ml_dtypes.bfloat16)
FORMER = {
    "ExtendedQuantizeLinear": "VitisQuantizeLinear",
    "ExtendedDequantizeLinear": "VitisDequantizeLinear",
    "BFPQuantizeDequantize": "BFPFixNeuron",
    "MXQuantizeDequantize": "MXFixNeuron",
}
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32")
SCALES = (1 / 90, 1 / 255, 0.5, 0.1, 2.0**-7, 3e-3, 1.0, 1e5)


def quark(op_type: str, inputs: list[Any], attributes: dict[str, Any], output: Any = F, **options: Any) -> np.ndarray:
    """What both names of the operator make."""
    made = []
    for domain, name in ((QUARK, op_type), (VAI, FORMER[op_type])):
        model, feeds = node_model(name, inputs, attributes, domain=domain, outputs=[output], **options)
        made.append(run_qrun(model, feeds, backend="reference" if made else "native")[0])
    assert_equal(*made, f"{op_type} {attributes}")
    return made[0]


def single(value: Fraction) -> float:
    return float(nearest32(value)) if value else 0.0


def each(x: np.ndarray, *parameters: np.ndarray) -> Any:
    """The elements of x, each with its parameters."""
    return zip(*(np.broadcast_to(a, x.shape).reshape(-1).tolist() for a in (x, *parameters)), strict=True)


def layout(rng: np.random.Generator, turn: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The shape of parameters, the same as it broadcasts to [4, 3, 50], and the attributes."""
    axis = turn % 3
    if turn % 2:
        return (), (), {}
    own = [1, 1, 1]
    own[axis] = (4, 3, 50)[axis]
    return (own[axis],), tuple(own), {"axis": axis if turn % 4 else axis - 3}


@pytest.mark.parametrize("kind", INTEGERS)
def test_codes(kind: str) -> None:
    rng, info = np.random.default_rng(len(kind)), np.iinfo(kind)
    for turn in range(8):
        shape, wide, attributes = layout(rng, turn)
        scale = rng.choice(SCALES, shape).astype(F)
        zero = rng.choice([0, 1, 3, info.min, info.max, info.max // 2], shape).astype(kind)
        x = rng.integers(-600, 600, (4, 3, 50)) / 2 * scale.reshape(wide)
        x = np.where(rng.random(x.shape) < 0.3, rng.normal(size=x.shape) * info.max * scale.reshape(wide), x).astype(F)
        got = quark("ExtendedQuantizeLinear", [x, scale, zero], attributes, kind)
        want = [
            min(max(round(Fraction(single(Fraction(v) / Fraction(s)))) + z, info.min), info.max)
            for v, s, z in each(x, scale.reshape(wide), zero.reshape(wide))
        ]
        assert_equal(got, np.array(want, kind).reshape(x.shape), f"{turn} {attributes} {scale} {zero}")
        codes = rng.integers(info.min, info.max, x.shape, endpoint=True).astype(kind)
        real = quark("ExtendedDequantizeLinear", [codes, scale, zero], attributes)
        sums = each(codes, scale.reshape(wide), zero.reshape(wide))
        want = [single(Fraction(single(Fraction(v - z))) * Fraction(s)) for v, s, z in sums]
        assert_equal(real, F(want).reshape(x.shape), f"{turn} {attributes}", signed_zeros=False)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BRAIN])
def test_halves(dtype: np.dtype[Any]) -> None:
    """float16 and bfloat16 by their page: no rounding to integers, saturation at the largest number."""
    rng = np.random.default_rng(dtype.itemsize)
    top = Fraction(65504) if dtype == np.float16 else Fraction(2**8 - 1) * 2**120
    for turn in range(6):
        shape, wide, attributes = layout(rng, turn)
        scale = rng.choice([0.5, 0.3, 1.0], shape).astype(F)
        zero = rng.choice([0, 0.25, -3], shape).astype(dtype)
        x = (rng.normal(size=(4, 3, 50)) * 10.0 ** rng.integers(-3, 6, (4, 3, 50))).astype(F)
        x[0, 0, :2] = (3.0e38, -3.0e38)
        got = quark("ExtendedQuantizeLinear", [x, scale, zero], attributes, dtype)
        rows = list(each(x, scale.reshape(wide), zero.astype(F).reshape(wide)))
        sums = [overflow(single_or_inf(overflow(v, s) + Fraction(z))) for v, s, z in rows]
        nearest = [half(min(max(v, -top), top), dtype) for v in sums]
        assert_equal(got, np.array(nearest, F).astype(dtype).reshape(x.shape), f"{turn}", signed_zeros=False)
        back = quark("ExtendedDequantizeLinear", [got, scale, zero], attributes)
        rows = list(each(got.astype(F), scale.reshape(wide), zero.astype(F).reshape(wide)))
        want = [single_or_inf(Fraction(single_or_inf(Fraction(v) - Fraction(z))) * Fraction(s)) for v, s, z in rows]
        assert_equal(back, F(want).reshape(x.shape), f"{turn}", signed_zeros=False)


def single_or_inf(value: Fraction) -> float:
    limit = Fraction(2**24 - 1) * 2**104 + Fraction(2) ** 103
    return math.copysign(math.inf, value) if abs(value) >= limit else single(value)


def overflow(value: float, scale: float = 1.0) -> Fraction:
    """The float32 quotient; a number beyond all others in place of infinity."""
    made = single_or_inf(Fraction(value) / Fraction(scale)) if math.isfinite(value) else value
    return Fraction(made) if math.isfinite(made) else Fraction(2**200) * (1 if made > 0 else -1)


def half(value: Fraction, dtype: np.dtype[Any]) -> float:
    """The nearest number of a 16-bit type, ties to even."""
    bits, least = (11, -24) if dtype == np.float16 else (8, -133)
    if not value:
        return 0.0
    exponent = math.frexp(float(abs(value)))[1]
    step = Fraction(2) ** max(exponent - bits, least)
    return float(round(value / step) * step)


def test_special_numbers() -> None:
    x = F([math.nan, math.inf, -math.inf, -0.0])
    for kind in INTEGERS:
        info = np.iinfo(kind)
        got = quark("ExtendedQuantizeLinear", [x, F(0.5), np.zeros((), kind)], {}, kind)
        assert got.tolist() == [info.min, info.max, info.min, 0]
    for dtype in (np.float16, BRAIN):
        got = quark("ExtendedQuantizeLinear", [x, F(0.5), np.zeros((), dtype)], {}, dtype).astype(F)
        top = float(ml_dtypes.finfo(dtype).max)
        assert_equal(got, F([math.nan, top, -top, 0]), "NaN stays")


def test_parameters_may_be_left_out_or_empty() -> None:
    x = F([[-1, 0.5, 1.5, 300]])
    assert quark("ExtendedQuantizeLinear", [x, F(1)], {}, np.uint8).tolist() == [[0, 0, 2, 255]]
    assert quark("ExtendedDequantizeLinear", [np.int16([[-3, 4]]), F(0.5)], {}).tolist() == [[-1.5, 2]]
    assert quark("ExtendedQuantizeLinear", [x[:0], F(1)], {}, np.uint8).shape == (0, 4)
    assert quark("BFPQuantizeDequantize", [x[:0]], {}).shape == (0, 4)
    assert quark("MXQuantizeDequantize", [x[:, :0]], {}).shape == (1, 0)


ROUNDINGS: tuple[Callable[[Fraction], int], ...] = (
    lambda v: int(abs(v) + Fraction(1, 2)) * (1 if v > 0 else -1),
    lambda v: math.floor(v + Fraction(1, 2)),
    round,
)


def exponent_of(values: Sequence[float]) -> int:
    """The largest exponent of normal numbers."""
    found = [math.frexp(v)[1] - 1 for v in values if math.isfinite(v) and abs(v) >= 2.0**-126]
    return max(found, default=-127)


def bfp(block: list[float], bits: int, mode: int) -> list[float]:
    e = exponent_of(block)
    s = Fraction(2) ** (e + 1 - bits)
    top = Fraction(2) ** (e + 1) - s
    codes = [min(max(ROUNDINGS[mode](Fraction(v) / s) * s, -top), top) if math.isfinite(v) else v for v in block]
    return [float(code) for code in codes]


def bfp_prime(block: list[float], bits: int, mode: int, size: int, shift: int) -> list[float]:
    if not all(map(math.isfinite, block)):
        return [math.nan] * len(block)
    e, made = exponent_of(block), []
    for start in range(0, len(block), size):
        part = block[start : start + size]
        s = Fraction(2) ** (max(exponent_of(part), e - 2**shift + 1) + 1 - bits)
        top = 2**bits - 1
        for v in part:
            real = Fraction(v) if abs(v) >= 2.0**-126 else Fraction(0)
            made.append(float(min(max(ROUNDINGS[mode](real / s), -top), top) * s))
    return made


NUMBERS = {"fp8_e5m2": (3, -16, 57344, 15), "fp8_e4m3": (4, -9, 448, 8), "fp6_e3m2": (3, -4, 28, 4)}
NUMBERS |= {"fp6_e2m3": (4, -3, Fraction(15, 2), 2), "fp4_e2m1": (2, -1, 6, 2)}
"""Significant bits, exponent of the smallest number, the largest number, and its exponent."""


def mx(block: list[float], kind: str, mode: int) -> list[float]:
    e, made = exponent_of(block), []
    for v in block:
        if not math.isfinite(v):
            made.append(v)
        elif kind == "int8":
            s = Fraction(2) ** (e - 6)
            made.append(single_or_inf(min(max(ROUNDINGS[mode](Fraction(v) / s), -128), 127) * s))
        else:
            bits, least, top, emax = NUMBERS[kind]
            s = Fraction(2) ** (e - emax)
            real = Fraction(v) / s
            step = Fraction(2) ** max((math.frexp(float(abs(real)))[1] if real else 0) - bits, least)
            made.append(single_or_inf(min(max(round(real / step) * step, -Fraction(top)), Fraction(top)) * s))
    return made


def by_blocks(x: np.ndarray, axis: int, size: int, one: Callable[[list[float]], list[float]]) -> np.ndarray:
    """`one` of each block, filled with zeros."""
    rows = np.moveaxis(x, axis, -1)
    made = np.empty(rows.shape, F)
    for place in np.ndindex(*rows.shape[:-1]):
        for start in range(0, rows.shape[-1], size):
            block = rows[place][start : start + size].tolist()
            made[place][start : start + size] = one(block + [0.0] * (size - len(block)))[: len(block)]
    return np.moveaxis(made, -1, axis)


def hostile(rng: np.random.Generator, turn: int) -> np.ndarray:
    """Numbers of all sizes, with ties; some infinite, NaN or subnormal."""
    shape = [(3, 19), (2, 5, 7), (33,), (2, 2, 3, 4)][turn % 4]
    x = rng.normal(size=shape) * 2.0 ** rng.integers(-8, 8, shape) * 2.0 ** (0, 0, -132, 110)[turn // 2 % 4]
    x = np.where(rng.random(shape) < 0.3, np.rint(x * 4) / 4, x)
    if turn % 3 == 0:
        x = np.where(rng.random(shape) < 0.05, rng.choice([math.inf, -math.inf, math.nan], shape), x)
    return x.astype(F)


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("bit_width", [10, 11, 13, 16, 24, 32])
def test_block_floating_point(bit_width: int, mode: int) -> None:
    rng, bits = np.random.default_rng(bit_width + mode), bit_width - 9
    for turn in range(8):
        x = hostile(rng, turn)
        axis = int(rng.integers(-x.ndim, x.ndim)) if x.ndim > 1 else 1
        size, sub, shift = int(rng.choice([1, 4, 8, 16])), int(rng.choice([1, 2])), turn % 4
        plain = {"axis": axis, "bit_width": bit_width, "rounding_mode": mode, "block_size": size}
        got = quark("BFPQuantizeDequantize", [x], plain)
        want = by_blocks(x, axis if x.ndim > 1 else 0, size, lambda block: bfp(block, bits, mode))
        assert_equal(got, want, f"{plain}", signed_zeros=False)
        more = {**plain, "block_size": size * sub, "sub_block_size": sub, "sub_block_shift_bits": shift}
        got = quark("BFPQuantizeDequantize", [x], {**more, "bfp_method": "to_bfp_prime"})
        one = lambda block: bfp_prime(block, bits, mode, sub, shift)  # noqa: B023, E731
        assert_equal(got, by_blocks(x, axis if x.ndim > 1 else 0, size * sub, one), f"{more}", signed_zeros=False)


@pytest.mark.parametrize("kind", ["int8", *NUMBERS])
def test_microscaling(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for turn in range(12):
        x, mode = hostile(rng, turn), turn % 3 if kind == "int8" else 2
        axis = int(rng.integers(-x.ndim, x.ndim)) if x.ndim > 1 else 1
        size = int(rng.choice([1, 4, 32]))
        attributes = {"axis": axis, "element_dtype": kind, "rounding_mode": mode, "block_size": size}
        got = quark("MXQuantizeDequantize", [x], attributes)
        want = by_blocks(x, axis if x.ndim > 1 else 0, size, lambda block: mx(block, kind, mode))  # noqa: B023
        assert_equal(got, want, f"{attributes}", signed_zeros=False)


def test_defaults_and_signs_of_zeros() -> None:
    """Blocks of 8, of 16 bits, along axis 1, half away from zero; a number alone is unchanged."""
    x = F([[1, 2.5 / 64, -2.5 / 64, -1e-9, -0.0, 1 / 128, 0, 0.3]])
    got = quark("BFPQuantizeDequantize", [x], {})
    assert_equal(got, F([[1, 3 / 64, -3 / 64, -0.0, -0.0, 1 / 64, 0, 19 / 64]]))
    even = quark("BFPQuantizeDequantize", [x], {"rounding_mode": 2})
    assert_equal(even, F([[1, 2 / 64, -2 / 64, 0.0, -0.0, 0, 0, 19 / 64]]))
    assert_equal(quark("MXQuantizeDequantize", [x], {}), got)
    for op_type in ("BFPQuantizeDequantize", "MXQuantizeDequantize"):
        for alone in (F(0.3), F([[0.3]])):
            assert_equal(quark(op_type, [alone], {}), alone)
    first = quark("BFPQuantizeDequantize", [F([[0.3, 1]])], {"convert_to_bfloat_before_bfp": 1, "bit_width": 32})
    assert_equal(first, F([[0.30078125, 1]]))


REFUSED = [
    ("ExtendedQuantizeLinear", [F([[1, 2]]), F([1, 2]), np.uint8([0, 0])], {}, "QR204", "axis is missing"),
    ("ExtendedDequantizeLinear", [np.int8([[1, 2]]), F([1, 2])], {}, "QR204", "axis is missing"),
    ("ExtendedQuantizeLinear", [F([[1, 2]]), F([1, 2, 3])], {"axis": 1}, "QR301", "y_scale has shape"),
    ("ExtendedDequantizeLinear", [np.int8([1]), F(1), np.uint8(0)], {}, "QR303", "x_zero_point is uint8"),
    ("ExtendedQuantizeLinear", [np.float16([1]), F(1), np.uint8(0)], {}, "QR203", "x is float16"),
    ("BFPQuantizeDequantize", [F([1, 2])], {"bfp_method": "bfp"}, "QR204", "bfp_method is bfp"),
    ("BFPQuantizeDequantize", [F([1, 2])], {"bit_width": 9}, "QR204", "bit_width is 9"),
    ("BFPQuantizeDequantize", [F([1, 2])], {"rounding_mode": 3}, "QR204", "rounding_mode is 3"),
    ("BFPQuantizeDequantize", [F([[1, 2]])], {"axis": 2}, "QR204", "axis is 2"),
    ("BFPQuantizeDequantize", [F([1, 2])], {"block_size": 0}, "QR204", "block_size is 0"),
    ("BFPQuantizeDequantize", [F([1])], {"use_compiler_version_cpu_kernel": 1}, "QR204", "use_compiler_version"),
    (
        "BFPQuantizeDequantize",
        [F([1, 2])],
        {"bfp_method": "to_bfp_prime", "sub_block_size": 3},
        "QR204",
        "sub_block_size is 3",
    ),
    ("MXQuantizeDequantize", [F([1, 2])], {"element_dtype": "int4"}, "QR204", "element_dtype is int4"),
    ("MXQuantizeDequantize", [F([1, 2])], {"element_dtype": "fp4_e2m1"}, "QR204", "rounding_mode is 0"),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes", "code", "told"), REFUSED)
def test_refused(op_type: str, inputs: list[Any], attributes: dict[str, Any], code: str, told: str) -> None:
    for domain, name in ((QUARK, op_type), (VAI, FORMER[op_type])):
        output = np.uint8 if op_type == "ExtendedQuantizeLinear" else F
        model, feeds = node_model(name, inputs, attributes, domain=domain, outputs=[output])
        with pytest.raises(qrun.QrunError) as caught:
            run_qrun(model, feeds)
        assert (caught.value.code, told in str(caught.value)) == (code, True), caught.value


def test_shapes_are_inferred_through_them() -> None:
    x = F(np.ones((2, 3)))
    for domain, names in ((QUARK, FORMER.keys()), (VAI, FORMER.values())):
        for name in names:
            codes = "Dequantize" in name and "Linear" in name
            inputs = [x.astype(np.int16) if codes else x, *([F(1), np.int16(0)] if "Linear" in name else [])]
            model, _ = node_model(
                name, inputs, {}, domain=domain, outputs=[np.int16 if "QuantizeLinear" in name else F]
            )
            model.graph.node.append(helper.make_node("Transpose", ["y0"], ["y1"]))
            model.graph.output[0].name = "y1"
            found = infer(model.SerializeToString(), expansion)
            assert (found["y0"].shape, found["y1"].shape) == ((2, 3), (3, 2)), name
    assert expansion(QUARK, "ExtendedLSTM", 4) is None


def test_check_judges_their_scales() -> None:
    """The rules about scales find a scale that is 0, as for QuantizeLinear."""
    for domain, name in ((QUARK, "ExtendedQuantizeLinear"), (VAI, "VitisQuantizeLinear")):
        model, _ = node_model(name, [F([1]), F(0), np.uint16(0)], {}, domain=domain, outputs=[np.uint16], constants=[1])
        assert "QR306" in {finding.rule for finding in qrun.check(model)}
