"""Arithmetic, functions of one tensor, Softmax, Min, Max, Mean, Pow, Mod, PRelu, Clip, comparisons, logic and bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context as Digits
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.float import Peer, assert_close, qrun_node
from helpers.support import assert_equal, node_model, run_qrun

from qrun import Session
from qrun.errors import MemoryLimitError, OperatorError
from qrun.memory import Budget
from qrun.ops import Context
from qrun.ops._float import narrow
from qrun.ops._functions import erf, erfc
from qrun.ops.elementwise import add, div

F, H, BF, D = np.float32, np.float16, ml_dtypes.bfloat16, np.float64
FLOATS = [H, BF, F, D]
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1e-7, -1e-7, 88.0, -88.0, 30000.0]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


A, G = 1.67326319217681884765625, 1.05070102214813232421875
REAL: dict[str, tuple[dict[str, Any], Callable[[float], float]]] = {
    "Abs": ({}, abs),
    "Neg": ({}, lambda x: -x),
    "Sign": ({}, lambda x: float((x > 0) - (x < 0))),
    "Floor": ({}, math.floor),
    "Ceil": ({}, math.ceil),
    "Round": ({}, round),
    "Reciprocal": ({}, lambda x: 1 / x),
    "Log": ({}, lambda x: math.log(x) if x > 0 else math.nan),
    "Erf": ({}, math.erf),
    "Sin": ({}, math.sin),
    "Cos": ({}, math.cos),
    "Tan": ({}, math.tan),
    "Asin": ({}, lambda x: math.asin(x) if abs(x) <= 1 else math.nan),
    "Acos": ({}, lambda x: math.acos(x) if abs(x) <= 1 else math.nan),
    "Atan": ({}, math.atan),
    "Sinh": ({}, math.sinh),
    "Cosh": ({}, math.cosh),
    "Asinh": ({}, math.asinh),
    "Acosh": ({}, lambda x: math.acosh(x) if x >= 1 else math.nan),
    "Atanh": ({}, lambda x: math.atanh(x) if abs(x) < 1 else math.nan),
    "Gelu": ({}, lambda x: x / 2 * math.erfc(-x / math.sqrt(2))),
    "Elu": ({"alpha": 0.75}, lambda x: x if x >= 0 else 0.75 * math.expm1(x)),
    "Selu": ({}, lambda x: G * x if x > 0 else G * A * math.expm1(x)),
    "Celu": ({"alpha": 2.0}, lambda x: max(0.0, x) + min(0.0, 2 * math.expm1(x / 2))),
    "ThresholdedRelu": ({"alpha": 0.25}, lambda x: x if x > 0.25 else 0.0),
    "Softplus": ({}, softplus),
    "Softsign": ({}, lambda x: x / (1 + abs(x))),
    "Mish": ({}, lambda x: x * math.tanh(softplus(x))),
    "Swish": ({"alpha": 1.5}, lambda x: x * sigmoid(1.5 * x)),
    "Relu": ({}, lambda x: max(x, 0.0)),
    "LeakyRelu": ({"alpha": -0.3}, lambda x: x if x >= 0 else float(F(-0.3)) * x),
    "Sigmoid": ({}, sigmoid),
    "HardSigmoid": ({"alpha": -0.7, "beta": 0.1}, lambda x: max(0.0, min(1.0, float(F(-0.7)) * x + float(F(0.1))))),
    "HardSwish": ({}, lambda x: x * max(0.0, min(1.0, x / 6 + 0.5))),
    "Tanh": ({}, math.tanh),
    "Exp": ({}, math.exp),
    "Sqrt": ({}, lambda x: math.sqrt(x) if x >= 0 else math.nan),
}
OPSETS = {"Relu": (7, 13, 14), "LeakyRelu": (7, 16), "HardSigmoid": (7, 22), "HardSwish": (14, 22)}
OPSETS |= dict.fromkeys(("Sigmoid", "Tanh", "Exp", "Sqrt"), (7, 13))


ROUGH = {"Mish": 4e-13, "Gelu": 4e-14}
"""Where steps of the oracle in float64 cancel, or the rounding of x / sqrt(2) shows."""
SINGLE = {"Erf": 1e-7, "Gelu": 3.5e-7, "Swish": 1e-6}
"""By how much functions may be off that are made in float32."""
ROUNDED_ONCE = {"Sigmoid": 4e-7, "Tanh": 4e-7, "Exp": 4e-7}
"""The same for functions whose narrower types are made in float64."""


@pytest.mark.parametrize("op_type", REAL)
def test_real_functions(op_type: str) -> None:
    """Against Python's math; float16, bfloat16 and float32 results are within half a unit, and a hair, of the truth,
    but for what is made in float32."""
    attributes, real = REAL[op_type]
    for dtype in FLOATS:
        rng = np.random.default_rng(7)
        x = np.concatenate([rng.normal(0, 1, 150), rng.uniform(-9, 9, 150), rng.uniform(-1e-3, 1e-3, 50)]).astype(dtype)
        x = x[x != 0]
        got = qrun_node(op_type, [x], attributes, opset=28)
        want = np.array([real(float(v)) for v in x])
        assert got.dtype == dtype
        wide = got.astype(D)
        assert np.array_equal(np.isnan(wide), np.isnan(want))
        near = np.abs(wide - want) <= ROUGH.get(op_type, 4e-15) * np.abs(want)
        if dtype is not D:
            hair = (ROUNDED_ONCE if dtype is F else {}).get(op_type, SINGLE.get(op_type, 4e-15))
            down, up = (narrow(want + s * hair * np.abs(want), np.dtype(dtype)).astype(D) for s in (-1, 1))
            near |= (down <= wide) & (wide <= up)
        near |= np.isnan(want)
        assert near.all(), f"seed 7: {op_type} {dtype.__name__} {x[~near][:3]} gives {got[~near][:3]}"


@pytest.mark.parametrize("op_type", [*REAL, "IsNaN", "IsInf"])
def test_special_values_of_every_type(op_type: str) -> None:
    attributes = REAL.get(op_type, ({}, None))[0]
    for dtype in FLOATS:
        x = np.array(SPECIAL).astype(dtype)
        kind = np.bool_ if op_type.startswith("Is") else dtype
        got = qrun_node(op_type, [x], attributes, opset=28, outputs=[kind])
        assert got.dtype == kind
        assert qrun_node(op_type, [x[:0].reshape(2, 0)], attributes, opset=28, outputs=[kind]).shape == (2, 0)
        assert qrun_node(op_type, [x[5]], attributes, opset=28, outputs=[kind]).shape == ()
        if op_type not in ("IsNaN", "IsInf", "ThresholdedRelu"):
            assert np.isnan(got[0]), f"{op_type} of NaN is {got[0]}"


def test_unary_functions_like_onnxruntime() -> None:
    peer = Peer()
    for seed, (op_type, (attributes, _)) in enumerate(REAL.items()):
        if op_type == "Swish":
            continue
        x = np.random.default_rng(seed).normal(0, 2, (3, 4, 5)).astype(F)
        peer.check(op_type, [x], attributes, opset=20, message=f"{op_type} seed {seed}")
        for opset in OPSETS.get(op_type, ()):
            ends = [0, -0.0, np.inf, np.nan, 80, -80, 3e38] + ([] if op_type.startswith("Hard") else [-np.inf])
            for given in (attributes, {}):
                peer.check(op_type, [np.array(ends, F)], given, opset=opset, message=f"{op_type}-{opset}")
    peer.check("Gelu", [x], {"approximate": "tanh"}, opset=20, message="Gelu tanh")
    edges = np.array([np.nan, np.inf, -np.inf, 0.0, 3.0], F)
    for op_type in ("Sign", "ThresholdedRelu", "Softplus", "Elu", "Erf", "Gelu", "Log", "Reciprocal"):
        peer.check(op_type, [edges], opset=20, message=f"{op_type} edges")
    peer.finish(0.85)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_unary_functions(dtype: type) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, 0, 1, info.max, 5], dtype)
    assert qrun_node("Sign", [x]).tolist() == [(int(v) > 0) - (int(v) < 0) for v in x]
    bits = 8 * x.itemsize
    want = [(abs(int(v)) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1) if info.min else int(v) for v in x]
    assert qrun_node("Abs", [x]).tolist() == want
    if info.min:
        assert qrun_node("Neg", [x]).tolist() == [info.min, 0, -1, -info.max, -5]


def series_erf(x: float) -> Decimal:
    """erf by its power series, with 120 digits."""
    with localcontext(Digits(prec=120)):
        t = total = Decimal(x)
        n = 0
        while abs(t) > Decimal(10) ** -100:
            n += 1
            t = -t * Decimal(x) ** 2 / n
            total += t / (2 * n + 1)
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534")
        return 2 * total / pi.sqrt()


def test_erf_and_its_complement() -> None:
    points = np.concatenate([np.linspace(-6, 6, 41), np.nextafter([1.0, -1.0], 0), [1e-300, 1.0, -1.0, 7.5, 9.0]])
    for x, f, c in zip(points.tolist(), erf(points).tolist(), erfc(points).tolist(), strict=True):
        with localcontext(Digits(prec=120)):
            real = series_erf(x)
            assert abs(Decimal(f) - real) <= abs(real) * Decimal("1e-15"), f"erf({x})"
            assert abs(Decimal(c) - (1 - real)) <= (1 - real) * Decimal(1e-15 + 3e-16 * x * x), f"erfc({x})"
    x = np.random.default_rng(3).normal(0, 1.5, (3, 15000)).astype(F)
    want = np.array([math.erf(v) for v in x.reshape(-1).tolist()], F).reshape(x.shape)
    np.testing.assert_array_max_ulp(qrun_node("Erf", [x], opset=13), want, 2)
    assert erf(np.array([np.inf, -np.inf, -0.0])).tolist() == [1, -1, 0]
    assert np.signbit(erf(np.array([-0.0])))[0]
    assert erfc(np.array([np.inf, -np.inf, 0.0])).tolist() == [0, 2, 1]
    assert qrun_node("Erf", [np.array([-9, 0, 1, 9], np.int32)], opset=9).tolist() == [0, 0, 0, 0]


def test_tails_of_gelu_do_not_cancel() -> None:
    x = np.array([-6.0, -8.5, -12.0])
    for dtype in (F, D):
        got = qrun_node("Gelu", [x.astype(dtype)], opset=20)
        want = [v / 2 * math.erfc(-v / math.sqrt(2)) for v in x]
        np.testing.assert_allclose(got, want, rtol=4e-7 if dtype is F else 1e-13)
        tanh = qrun_node("Gelu", [x[:1].astype(dtype)], {"approximate": "tanh"}, opset=20)
        z = math.sqrt(2 / math.pi) * (x[0] + 0.044715 * x[0] ** 3)
        np.testing.assert_allclose(tanh, x[0] * math.exp(2 * z) / (1 + math.exp(2 * z)), rtol=5e-6)


def test_rounding_is_to_even() -> None:
    x = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0]
    assert qrun_node("Round", [np.array(x, F)], opset=22).tolist() == [0, 2, 2, -0.0, -2, 0, 8388609]


def test_min_and_max() -> None:
    peer = Peer()
    rng = np.random.default_rng(11)
    for dtype in (F, H, D, np.int32, np.int64, np.uint64, np.int8):
        for op_type in ("Min", "Max"):
            arrays = [(rng.normal(0, 50, s)).astype(np.int64).astype(dtype) for s in ((2, 3), (3,), (2, 1))]
            for n in (1, 2, 3):
                peer.check(op_type, arrays[:n], opset=13, message=f"{op_type} {dtype.__name__}", rtol=0, atol=0)
    peer.finish(0.8)
    for dtype in FLOATS:
        a, b = np.array([np.nan, 1, np.inf]).astype(dtype), np.array([1, np.nan, 2]).astype(dtype)
        assert np.isnan(qrun_node("Max", [a, b], opset=13)[:2]).all()
        assert qrun_node("Min", [a, b], opset=13)[2] == dtype(2)
    for op_type in ("Min", "Max", "Mean"):
        with pytest.raises(OperatorError, match="broadcasts since opset 8"):
            qrun_node(op_type, [np.zeros((2, 3), F), np.zeros(3, F)], opset=7)


def test_mean_is_rounded_once() -> None:
    rng = np.random.default_rng(12)
    for dtype in (H, BF, F):
        arrays = [rng.normal(0, 10, s).astype(dtype) for s in ((4, 5), (5,), (4, 1))]
        got = qrun_node("Mean", arrays, opset=13)
        for i, j in np.ndindex(4, 5):
            parts = [arrays[0][i, j], arrays[1][j], arrays[2][i, 0]]
            real = sum(Fraction(float(v)) for v in parts) / 3
            assert got[i, j] == narrow(float(real), np.dtype(dtype))[()], f"seed 12: {parts}"


def pow_wrapped(x: int, y: int, bits: int) -> int:
    if y < 0:
        real = Fraction(x) ** y if x else Fraction(0)
        return int(real)
    return (pow(x, y, 2**bits) + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integer_powers(dtype: type) -> None:
    rng = np.random.default_rng(13)
    x = np.concatenate([rng.integers(-9, 10, 40), rng.integers(-(2**31), 2**31, 20), [0, 0, 1, -1, -1]]).astype(dtype)
    for power in INTEGERS:
        y = rng.integers(-4 if np.iinfo(power).min else 0, 12, x.size).astype(power)
        y[-5:] = [0, 3, 127, 126, 127]
        got = qrun_node("Pow", [x, y], opset=13)
        want = [pow_wrapped(int(a), int(b), 8 * x.itemsize) for a, b in zip(x, y, strict=True)]
        assert got.tolist() == want, f"seed 13 {power.__name__}"
    units = [np.array([-1, -1, 1, 0, 2, -2], dtype), np.array([-3, -2, -3, -1, -1, -1], dtype)]
    assert qrun_node("Pow", units, opset=13).tolist() == [-1, 1, 1, 0, 0, 0]
    got = qrun_node("Pow", [np.array([2, 3, -7, 9], dtype), np.array([0.5, 2, 3, -1], F)], opset=13)
    assert got.tolist() == [1, 9, -343, 0]
    model, feeds = node_model("Pow", [np.array([0, 2], dtype), np.array([-1], dtype)], opset=13, outputs=[dtype])
    seen = Session(model).execute(feeds).events[0].observations
    assert [(o.kind, o.param, o.count) for o in seen] == [("division-by-zero", "X", 1)]


def test_powers_like_onnxruntime() -> None:
    peer = Peer()
    for seed, exponent in enumerate((2.0, 0.5, 3.0, -1.0, 2.7)):
        x = np.random.default_rng(seed).uniform(0.1, 4, (3, 4)).astype(F)
        peer.check("Pow", [x, np.array(exponent, F)], opset=13, message=f"seed {seed}")
        peer.check("Pow", [x, np.full((2, 1, 1), exponent, D)], opset=13, message=f"seed {seed}")
    peer.check("Pow", [-x, np.array([2, 3, 2, 3], np.int64)], opset=13, message="signs")
    peer.check("Pow", [np.array([0, np.inf, np.nan, 1, -8], F), np.array([0, 0, 0, np.nan, 1 / 3], F)], message="edges")
    ends = np.array([-np.inf, -0.0, -4, 0, np.inf, np.nan, 4, 2], F)
    for exponent in (0.5, -0.5, 0.25, -1, 1):
        peer.check("Pow", [ends, np.array(exponent, F)], message=f"ends by {exponent}")
        by_one, by_each = (qrun_node("Pow", [ends, np.full(shape, exponent, F)]) for shape in ((), ends.shape))
        assert_equal(by_one, by_each, f"ends by {exponent}")
    peer.finish()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("fmod", [0, 1])
def test_integer_remainders(dtype: type, fmod: int) -> None:
    info = np.iinfo(dtype)
    values = [info.min, info.max, 0, 1, 7, 5, *((-1, -7, -5) if info.min else (3,))]
    a, b = np.array(values, dtype).reshape(-1, 1), np.array(values, dtype)
    got = qrun_node("Mod", [a, b], {"fmod": fmod}, opset=13)
    for (i, j), z in np.ndenumerate(got):
        x, y = values[i], values[j]
        want = 0 if not y else x % y if not fmod else abs(x) % abs(y) * (-1 if x < 0 else 1)
        assert int(z) == want, f"{x} mod {y}"


def test_floating_point_remainders() -> None:
    a = np.array([5.3, -5.3, 0.0, -0.0, np.inf, 4.0, -4.0, 4.0, np.nan, 30000.0], F)
    b = np.array([2.0, 2.0, -3.0, 3.0, 2.0, np.inf, np.inf, 0.0, 1.0, 7.0], F)
    for dtype in FLOATS:
        x, y = a.astype(dtype), b.astype(dtype)
        trunc, floor = (qrun_node("Mod", [x, y], {"fmod": f}, opset=28) for f in (1, 0))
        for place in (0, 1, 9):
            real = Fraction(float(x[place])), Fraction(float(y[place]))
            assert float(trunc[place]) == float(real[0] - int(real[0] / real[1]) * real[1])
            assert floor[place] == narrow(float(real[0] % real[1]), np.dtype(dtype))[()]
        assert np.isnan(trunc[[4, 7, 8]].astype(D)).all()
        assert np.isnan(floor[[4, 7, 8]].astype(D)).all()
        assert trunc[5] == floor[5] == dtype(4)
        assert trunc[6] == dtype(-4)
        assert np.isposinf(floor[6].astype(D))
        assert np.signbit(floor[2].astype(D))
        assert not np.signbit(floor[3].astype(D))
    far = qrun_node("Mod", [np.array([1e30], F), np.array([7.0], F)], {"fmod": 1}, opset=13)
    assert far[0] == int(F(1e30)) % 7
    with pytest.raises(OperatorError, match="floating point needs fmod"):
        qrun_node("Mod", [a, b], opset=13)
    with pytest.raises(OperatorError, match="fmod is 2"):
        qrun_node("Mod", [a, b], {"fmod": 2}, opset=13)


def test_p_relu() -> None:
    peer = Peer()
    for seed, shape in enumerate([(3, 1, 1), (1,), (4, 5), (2, 3, 4, 5), ()]):
        rng = np.random.default_rng(seed)
        x, slope = rng.normal(0, 1, (2, 3, 4, 5)).astype(F), rng.normal(0, 1, shape).astype(F)
        peer.check("PRelu", [x, slope], opset=16, message=f"seed {seed}", rtol=0, atol=0)
    peer.finish()
    ints = qrun_node("PRelu", [np.array([-3, 4], np.int32), np.array([-2], np.int32)], opset=16)
    assert ints.tolist() == [6, 4]
    with pytest.raises(OperatorError, match="slope has shape"):
        qrun_node("PRelu", [np.zeros(3, F), np.zeros((2, 3), F)], opset=16)


COMPARE = {
    "Equal": lambda a, b: a == b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
}


@pytest.mark.parametrize("op_type", COMPARE)
def test_comparisons(op_type: str) -> None:
    floats = [np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0]).astype(d) for d in FLOATS]
    ints = [np.array([np.iinfo(d).min, np.iinfo(d).max, 0, 1, 100], d) for d in INTEGERS]
    for values in (*floats, *ints):
        got = qrun_node(op_type, [values.reshape(-1, 1), values], opset=19, outputs=[np.bool_])
        for (i, j), z in np.ndenumerate(got):
            want = COMPARE[op_type](values[i].item(), values[j].item())
            assert bool(z) == bool(want), f"{op_type} {values.dtype} {values[i]} {values[j]}"
    if op_type == "Equal":
        text = np.array(["a", "b", ""], object)
        assert qrun_node("Equal", [text, np.array("b", object)], outputs=[np.bool_]).tolist() == [False, True, False]


def test_infinities_by_sign() -> None:
    for dtype in (F, H, BF, D):
        x = np.array([np.inf, -np.inf, 1, np.nan]).astype(dtype)
        for negative in (0, 1):
            for positive in (0, 1):
                flags = {"detect_negative": negative, "detect_positive": positive}
                got = qrun_node("IsInf", [x], flags, opset=20, outputs=[np.bool_])
                assert got.tolist() == [bool(positive), bool(negative), False, False]
    small = np.array([1, 240, np.nan], ml_dtypes.float8_e4m3fnuz)
    assert qrun_node("IsNaN", [small], opset=20, outputs=[np.bool_]).tolist() == [False, False, True]
    assert not qrun_node("IsInf", [small], {"detect_negative": 0}, opset=20, outputs=[np.bool_]).any()


def test_logic() -> None:
    a, b = np.array([[False], [True]]), np.array([False, True])
    for op_type, table in (("And", [[0, 0], [0, 1]]), ("Or", [[0, 1], [1, 1]]), ("Xor", [[0, 1], [1, 0]])):
        assert qrun_node(op_type, [a, b]).astype(int).tolist() == table
    assert qrun_node("Not", [b]).tolist() == [True, False]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bits(dtype: type) -> None:
    info, bits = np.iinfo(dtype), 8 * np.dtype(dtype).itemsize
    values = [info.min, info.max, 0, 1, 0x5A, bits - 1, bits, *((-1, -100) if info.min else ())]
    a, b = np.array(values, dtype).reshape(-1, 1), np.array(values, dtype)

    def wrap(v: int) -> int:
        return int(np.array(v & (2**bits - 1), np.uint64).astype(dtype))

    right = {
        "BitwiseAnd": int.__and__,
        "BitwiseOr": int.__or__,
        "BitwiseXor": int.__xor__,
    }
    for op_type, plain in right.items():
        got = qrun_node(op_type, [a, b])
        assert got.tolist() == [[wrap(plain(x, y)) for y in values] for x in values]
    assert qrun_node("BitwiseNot", [b]).tolist() == [wrap(~x) for x in values]
    for direction in ("LEFT", "RIGHT"):
        got = qrun_node("BitShift", [a, b], {"direction": direction}, opset=28)
        for (i, j), z in np.ndenumerate(got):
            x, y = values[i], values[j]
            gone = -1 if direction == "RIGHT" and x < 0 else 0
            want = gone if not 0 <= y < bits else wrap(x << y) if direction == "LEFT" else x >> y
            assert int(z) == want, f"{x} {direction} by {y}"
        pairs = [np.ascontiguousarray(np.tile(v, 9)) for v in np.broadcast_arrays(a, b)]
        assert_equal(qrun_node("BitShift", pairs, {"direction": direction}, opset=28), np.tile(got, 9))


def test_outputs_are_claimed_and_shapes_checked() -> None:
    tiny = Context(budget=Budget(1000))
    from qrun.ops import find

    for op_type in ("Max", "Mean", "Pow", "Equal", "PRelu", "Mod"):
        a, b = np.ones((50, 1), F), np.ones((1, 50), F)
        extra = {"fmod": 1} if op_type == "Mod" else {}
        definition = find("", op_type, 28)
        assert definition is not None
        with pytest.raises(MemoryLimitError):
            definition(a, b, ctx=tiny, **extra)
        with pytest.raises(OperatorError, match="broadcast"):
            definition(np.ones(3, F), np.ones(2, F), **extra)
    with pytest.raises(OperatorError, match="approximate is"):
        qrun_node("Gelu", [np.ones(2, F)], {"approximate": "fast"}, opset=20)
    with pytest.raises(OperatorError, match="direction"):
        qrun_node("BitShift", [np.ones(2, np.uint8)] * 2, {"direction": "UP"})


SHAPES = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 2)), ((5,), ()), ((), ()), ((0, 3), (1,))]


def extremes(rng: np.random.Generator, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    values = rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    edge = rng.integers(0, 4, shape)
    return np.asarray(np.choose(edge, [values, info.min, info.max, values // 16 + 1]).astype(dtype))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap(op_type: str, dtype: type) -> None:
    rng = np.random.default_rng(INTEGERS.index(dtype))
    peer = Peer()
    bits = np.dtype(dtype).itemsize * 8
    for shapes in SHAPES:
        a, b = (extremes(rng, dtype, s) for s in shapes)
        message = f"{op_type} {dtype.__name__} {shapes}"
        got = peer.check(op_type, [a, b], opset=14, message=message, rtol=0, atol=0)[0]
        plain = {"Add": int.__add__, "Sub": int.__sub__, "Mul": int.__mul__}[op_type]
        both = np.broadcast_arrays(a, b)
        for x, y, z in zip(*(v.ravel().tolist() for v in (*both, got)), strict=True):
            assert (plain(x, y) - z) % 2**bits == 0, f"{message}: {x}, {y} gives {z}"
    if np.dtype(dtype).itemsize >= 4:
        peer.finish(0.9)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_truncates(dtype: type) -> None:
    rng = np.random.default_rng(40)
    a, b = extremes(rng, dtype, (40, 1)), extremes(rng, dtype, (30,))
    got = qrun_node("Div", [a, b], opset=14)
    for (i, j), z in np.ndenumerate(got):
        x, y = int(a[i, 0]), int(b[j])
        want = 0 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        wrapped = np.array([want & (2 ** (8 * a.itemsize) - 1)], np.uint64).astype(dtype)[0]
        assert z == wrapped, f"seed 40: {x} / {y} gives {z}, want {want}"


def test_integer_division_by_zero_is_observed() -> None:
    model, feeds = node_model("Div", [np.array([5, 6], np.int32), np.array([2, 0], np.int32)], outputs=[np.int32])
    result = Session(model).execute(feeds)
    assert result.outputs["y0"].tolist() == [2, 0]
    seen = result.events[0].observations[0]
    assert (seen.kind, seen.count, seen.first) == ("division-by-zero", 1, (1,))


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
def test_floats_equal_onnxruntime_and_numpy(op_type: str) -> None:
    rng = np.random.default_rng(12)
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, 1e-45], F)
    peer = Peer()
    pairs = [tuple(rng.standard_normal(s).astype(F) for s in shapes) for shapes in SHAPES]
    for opset in (7, 13, 14):
        for a, b in [*pairs, (special[:, None], special)]:
            peer.check(op_type, [a, b], opset=opset, message=f"{op_type} {a.shape} {b.shape}", rtol=0, atol=0)
            peer.check(op_type, [a.astype("d"), b.astype("d")], opset=opset, message="double", rtol=0, atol=0)
    peer.finish(1)


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("dtype", [H, BF])
def test_short_floats_are_correctly_rounded(op_type: str, dtype: type) -> None:
    rng = np.random.default_rng(13)
    a, b = (rng.standard_normal(500).astype(dtype) for _ in range(2))
    got = qrun_node(op_type, [a, b], opset=14)
    wide = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op_type]
    assert_equal(got, narrow(wide(a.astype(np.float64), b.astype(np.float64)), np.dtype(dtype)), op_type)


@pytest.mark.parametrize("dtype", [F, H, BF])
def test_narrowing_rounds_once_ties_to_even(dtype: type) -> None:
    rng = np.random.default_rng(14)
    low = np.abs(rng.standard_normal(300)).astype(dtype)
    high = (low.view(f"u{low.itemsize}") + 1).view(dtype)
    a, b = low.astype(np.float64), high.astype(np.float64)
    middle = (a + b) / 2
    values = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, 9), -middle, a])
    got = narrow(values, np.dtype(dtype)).astype(np.float64)
    even = np.where(low.view(f"u{low.itemsize}") % 2 == 0, a, b)
    assert got.tolist() == np.concatenate([even, a, b, -even, a]).tolist()
    edge = narrow(np.array([np.inf, -np.inf, np.nan, 1e300, -0.0, 1e-300]), np.dtype(dtype)).astype(np.float64)
    assert_equal(edge, np.array([np.inf, -np.inf, np.nan, np.inf, -0.0, 0.0]))
    assert np.signbit(edge[4])


def test_sum_rounds_once() -> None:
    peer = Peer()
    rng = np.random.default_rng(15)
    for opset, shapes in ((8, [(2, 3), (3,), ()]), (13, [(4,)]), (7, [(2, 2)] * 3), (21, [(1, 3), (2, 1)])):
        peer.check("Sum", [rng.standard_normal(s).astype(F) for s in shapes], opset=opset, message=str(shapes))
    peer.finish(1)
    parts = [np.array(v, F) for v in (2.0**24, 1, 1, -(2.0**24))]
    assert qrun_node("Sum", parts) == 2
    xs = rng.standard_normal((5, 200)).astype(BF)
    want = [narrow(float(sum(Fraction(float(v)) for v in column)), np.dtype(BF)) for column in xs.T]
    assert_equal(qrun_node("Sum", list(xs)), np.array(want))
    with pytest.raises(OperatorError, match="has shape"):
        qrun_node("Sum", [np.ones((2, 2), F), np.ones(2, F)], opset=7)


def test_shapes_that_do_not_broadcast() -> None:
    for op_type in ("Add", "Sub", "Mul", "Div", "Sum"):
        with pytest.raises(OperatorError, match="broadcast"):
            qrun_node(op_type, [np.ones((2, 3), F), np.ones(2, F)])
    column = np.broadcast_to(F(1), (2**20, 1))
    with pytest.raises(MemoryLimitError):
        add(column, column.T, ctx=Context(budget=Budget(2**30)))
    view = np.arange(12, dtype=np.int32).reshape(3, 4)[::-1, ::2]
    view.flags.writeable = False
    assert div(view, np.int32(3) * np.ones_like(view)).tolist() == [[2, 3], [1, 2], [0, 0]]


def test_functions_by_hand() -> None:
    d = np.array([-745.0, -800, 800, 0])
    assert_close(qrun_node("Sigmoid", [d]), np.array([5e-324, 0, 1, 0.5]), "Sigmoid", 0, 0)
    edge = np.array([-np.inf, np.inf, np.nan, -4, 4], F)
    assert_equal(qrun_node("HardSigmoid", [edge]), np.array([0, 1, np.nan, 0, 1], F))
    assert_equal(qrun_node("HardSwish", [edge]), np.array([np.nan, np.inf, np.nan, -0.0, 4], F))
    tie = narrow(float(np.float32(0.01)) * 3.0, np.dtype(F))
    assert qrun_node("LeakyRelu", [np.array([-3], F)])[0] == -tie


@pytest.mark.parametrize("dtype", [F, H, BF, np.float64])
def test_relu_and_clip_say_which_zero_they_mean(dtype: type) -> None:
    """Relu makes 0 of -0, in every type; Clip leaves what equals a limit as it is."""
    x = np.array([-0.0, 0.0, -1.0, np.nan]).astype(dtype)
    for backend in ("reference", "native"):
        cases: list[tuple[str, list[float], list[float]]] = [("Relu", [], [0.0, 0.0, 0.0])]
        cases += [("Clip", [zero, 6.0], [-0.0, 0.0, zero]) for zero in (0.0, -0.0)]
        for op_type, limits, want in cases:
            inputs = [x, *(np.array(limit).astype(dtype) for limit in limits)]
            (got,) = run_qrun(*node_model(op_type, inputs, outputs=[dtype]), backend=backend)
            assert_equal(got, np.array([*want, np.nan]).astype(dtype))
            signs = np.signbit(got.astype(np.float64))[:3].tolist()
            assert signs == np.signbit(want).tolist(), (op_type, limits, backend)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_relu_of_integers(dtype: type) -> None:
    x = extremes(np.random.default_rng(18), dtype, (50,))
    assert qrun_node("Relu", [x], opset=14).tolist() == [max(v, 0) for v in x.tolist()]


def test_clip_by_hand() -> None:
    x = np.array([-np.inf, -2, 0, 2, np.inf, np.nan], F)
    top = float(np.finfo(F).max)
    assert_equal(qrun_node("Clip", [x], opset=13), np.array([-top, -2, 0, 2, top, np.nan], F))
    assert_equal(qrun_node("Clip", [x, None, F(1)], opset=13), np.array([-top, -2, 0, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x, F(5), F(1)], opset=11), np.array([1, 1, 1, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x], {"min": 5.0, "max": 1.0}, opset=10), np.array([1, 1, 1, 1, 1, np.nan], F))
    assert_equal(qrun_node("Clip", [x], opset=7), np.array([-top, -2, 0, 2, top, np.nan], F))
    assert_equal(qrun_node("Clip", [x.astype("d")], opset=7)[[0, 4]], np.array([-top, top]))
    assert_equal(qrun_node("Clip", [x.astype(H)], opset=7)[[0, 4]], np.array([-np.inf, np.inf], H))
    most = float(ml_dtypes.finfo(BF).max)
    assert_equal(qrun_node("Clip", [x.astype(BF)])[[0, 4]], np.array([-most, most], BF))
    with pytest.raises(OperatorError, match="min is not a scalar"):
        qrun_node("Clip", [x, np.zeros(2, F)])
    with pytest.raises(OperatorError, match="no attribute"):
        qrun_node("Clip", [x], {"min": 0.0}, opset=11)


@pytest.mark.parametrize("dtype", [*INTEGERS, F, np.float64, H, BF])
def test_clip_of_every_type(dtype: type) -> None:
    rng = np.random.default_rng(19)
    x = rng.integers(0, 100, (3, 20)).astype(dtype)
    for low, high in ((10, 60), (None, 60), (10, None), (None, None), (60, 10)):
        limits = [None if v is None else np.array(v, dtype) for v in (low, high)]
        got = qrun_node("Clip", [x, *limits], opset=13)
        want = [min(100 if high is None else high, max(-1 if low is None else low, int(v))) for v in x.ravel()]
        assert [int(v) for v in got.ravel()] == want, f"{dtype.__name__} {low} {high}"
        assert got.dtype == x.dtype


def test_softmax_equals_onnxruntime() -> None:
    rng = np.random.default_rng(20)
    peer = Peer()
    for shape in ((3, 4), (2, 3, 4, 5), (7, 2), (2, 0), (1, 1)):
        x = (rng.standard_normal(shape) * 9).astype(F)
        for axis in range(-len(shape), len(shape)):
            for opset in (7, 11, 13, 22):
                if axis >= 0 or opset >= 11:
                    peer.check("Softmax", [x], {"axis": axis}, opset=opset, message=f"{shape} {axis} {opset}")
        for opset in (7, 13):
            peer.check("Softmax", [x], opset=opset, message=f"{shape} default axis {opset}")
    peer.finish(0.95)


def test_softmax_before_opset_13_flattens() -> None:
    x = np.log(np.array([[[1, 3], [4, 8]], [[1, 1], [1, 1]]], F))
    sixteenths = [[[1, 3], [4, 8]], [[4, 4], [4, 4]]]
    assert_close(qrun_node("Softmax", [x], opset=11) * 16, np.array(sixteenths, F), "axes 1 and 2 together", 1e-6)
    quarters = [[[1, 3], [4 / 3, 8 / 3]], [[2, 2], [2, 2]]]
    assert_close(qrun_node("Softmax", [x], opset=13) * 4, np.array(quarters, F), "the last axis", 1e-6)


def test_softmax_edges() -> None:
    big = np.array([[1e38, -3e38, 1e38], [-np.inf, 0, -np.inf]], F)
    assert qrun_node("Softmax", [big]).tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    assert np.isnan(qrun_node("Softmax", [np.array([-np.inf, -np.inf], F)])).all()
    assert np.isnan(qrun_node("Softmax", [np.array([np.inf, 1], F)])).all()
    for dtype in (H, BF):
        x = np.random.default_rng(21).standard_normal((3, 50)).astype(dtype)
        assert_equal(qrun_node("Softmax", [x]), narrow(qrun_node("Softmax", [x.astype("d")]), np.dtype(dtype)))
    for axis in (2, -3, 2**40):
        with pytest.raises(OperatorError, match="axis"):
            qrun_node("Softmax", [big], {"axis": axis})
    with pytest.raises(OperatorError, match="axis"):
        qrun_node("Softmax", [F(1)])
