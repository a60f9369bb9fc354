"""Cast and CastLike between all types."""

from __future__ import annotations

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from helpers.support import assert_equal, node_model, run_ort, run_qrun
from oracle.cast import FORMATS, SMALL, cast, power

import qrun
from qrun.ir.schema import schema
from qrun.ir.types import DTYPES, NUMBERS
from qrun.ops import Context, find

CAST = find("", "Cast", 28)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
LOW = tuple(np.dtype(t) for t in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2, ml_dtypes.uint2))


def to(x: np.ndarray, dtype: np.dtype | type | str, **attributes: object) -> np.ndarray:
    wanted = np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)
    return CAST(x, to=NUMBERS[wanted], **attributes)


def hard_values(name: str, rng: np.random.Generator) -> np.ndarray:
    """float64 values around every representable value and midpoint of a format, its ends, and specials."""
    f = FORMATS[name]
    codes = 300
    exponents = rng.integers(-160, 160, codes) if f.mantissa >= 7 else rng.integers(f.least - 6, 20, codes)
    steps = rng.integers(1 << (f.mantissa + 1), 1 << (f.mantissa + 2), codes)
    grid = np.ldexp(steps.astype(np.float64), exponents - f.mantissa)
    top = float(f.largest) * np.array([1, 1 + 2.0 ** (-f.mantissa - 2), 1 + 2.0 ** (-f.mantissa - 1), 2])
    grid = np.concatenate([grid, top, [0.0, 2.0**-149, 2.0**-1074, 1e300]])
    grid = np.concatenate([grid, np.nextafter(grid, np.inf), np.nextafter(grid, -np.inf)])
    return np.concatenate([grid, -grid, [np.inf, -np.inf, np.nan]])


@pytest.mark.parametrize(("name", "saturate"), list(product(SMALL, (1, 0))))
def test_small_floats_are_rounded_once(name: str, saturate: int) -> None:
    values = hard_values(name, np.random.default_rng(7))
    with np.errstate(all="ignore"):
        sources = [values, values.astype(np.float32), values.astype(np.float16)]
    for x in sources:
        got = to(x, name, saturate=saturate).astype(np.float64)
        for v, g in zip(x.astype(np.float64).tolist(), got.tolist(), strict=True):
            want = cast(v, name, bool(saturate))
            assert repr(g) == repr(want), f"{x.dtype} {v!r} to {name}, saturate {saturate}: {g!r}, want {want!r}"


@pytest.mark.parametrize("name", [*SMALL, "float32"])
def test_large_integers_are_rounded_once(name: str) -> None:
    rng = np.random.default_rng(8)
    base = [(1 << e) + (k << max(e - 8, 0)) + d for e in range(63) for k in (0, 1, 3) for d in (-1, 0, 1)]
    for dtype in ("int64", "uint64", "int32", "uint32"):
        info = np.iinfo(dtype)
        wanted = [
            *base,
            *(-v for v in base),
            info.min,
            info.max,
            *rng.integers(info.min, info.max, 200, dtype).tolist(),
        ]
        x = np.array([v for v in wanted if info.min <= v <= info.max], dtype)
        got = to(x, name).astype(np.float64)
        for v, g in zip(x.tolist(), got.tolist(), strict=True):
            want = cast(v, name, True) if name != "float32" else float(np.float32(np.longdouble(v)))
            assert g == want, f"{dtype} {v} to {name}: {g}, want {want}"


@pytest.mark.parametrize(("mode", "saturate"), list(product(("up", "down", "nearest"), (1, 0))))
def test_float8e8m0(mode: str, saturate: int) -> None:
    powers = np.ldexp(1.0, np.arange(-160, 140))
    values = np.concatenate([powers * m for m in (1, 1.25, 1.5, 1.75)])
    values = np.concatenate(
        [values, np.nextafter(values, np.inf), np.nextafter(values, 0), [0, np.inf, np.nan, -1, -np.inf]]
    )
    with np.errstate(all="ignore"):
        sources = [values, values.astype(np.float32), np.array([1, 3, 2**53 + 1, 2**63 - 1, 0], np.int64)]
    for x in sources:
        got = to(x, E8M0, round_mode=mode, saturate=saturate).astype(np.float64)
        want = [power(v, mode, bool(saturate)) for v in x.tolist()]
        assert [repr(g) for g in got.tolist()] == [repr(w) for w in want], (x.dtype, mode, saturate)


def test_floats_to_integers_out_of_range_as_x86_converts() -> None:
    x = [0.5, 1.5, 2.5, -0.5, -1.7, 3e9, -3e9, 1e19, 2e19, -1e19, np.nan, np.inf, -np.inf, 300.7, -129.5, 70000]
    low, least = -(2**31), -(2**63)
    want = {
        "int32": [0, 1, 2, 0, -1, *[low] * 8, 300, -129, 70000],
        "int64": [0, 1, 2, 0, -1, 3000000000, -3000000000, *[least] * 6, 300, -129, 70000],
        "int8": [0, 1, 2, 0, -1, *[0] * 8, 44, 127, 112],
        "uint8": [0, 1, 2, 0, 255, *[0] * 8, 44, 127, 112],
        "uint16": [0, 1, 2, 0, 65535, *[0] * 8, 300, 65407, 4464],
        "uint32": [0, 1, 2, 0, 2**32 - 1, 3000000000, 2**31, 0, 0, 2**31, 2**31, 0, 2**31, 300, 2**32 - 129, 70000],
    }
    for name, values in want.items():
        for source in (np.float32, np.float64):
            assert to(np.array(x, source), name).tolist() == values, (name, source)
    u64 = to(np.array(x), "uint64").tolist()
    assert u64[5:13] == [3000000000, 2**64 - 3000000000, 10**19, 0, 2**63, 2**63, 0, 2**63]
    ctx = Context()
    CAST(np.array([1.0, np.nan, 300.0], np.float32), to=2, ctx=ctx)
    assert [(o.kind, o.count, o.total, o.first) for o in ctx.observations] == [("undefined-cast", 2, 3, (1,))]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("name", ["float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_infinities_in_the_types_without_a_negative_zero(name: str, backend: str) -> None:
    """NaN until Cast-23, the largest number since Cast-24; also from a tensor of text, and in CastLike."""
    kind, inf, most = np.dtype(getattr(ml_dtypes, name)), np.inf, float(FORMATS[name].largest)
    for opset, source in product(
        (19, 21, 23, 24, 25), (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, object)
    ):
        x = np.array([inf, -inf, 3.0, 6e4], np.float32).astype(source)
        if source is object:
            x = np.array(["INF", "-inf", "3", "1e300"], object)
        due = [np.nan, np.nan, 3.0, most] if opset < 24 else [most, -most, 3.0, most]
        for op, inputs, more in (("Cast", [x], {"to": NUMBERS[kind]}), ("CastLike", [x, np.zeros(1, kind)], {})):
            model, feeds = node_model(op, inputs, more, outputs=[kind], opset=opset)
            (got,) = qrun.Session(model, backend=backend).run(feeds).values()
            assert_equal(got.astype(np.float32), np.array(due, np.float32), f"{op} {opset} {source}")


def test_floats_to_integers_agree_with_onnxruntime() -> None:
    rng = np.random.default_rng(9)
    for name, source in product(INTEGERS, (np.float32, np.float64)):
        info = np.iinfo(name)
        x = rng.uniform(max(info.min, -1e15), min(info.max, 1e15), 64).astype(source)
        model, feeds = node_model("Cast", [x], {"to": NUMBERS[np.dtype(name)]}, outputs=[np.dtype(name)])
        assert_equal(run_qrun(model, feeds)[0], run_ort(model, feeds)[0], f"seed 9: {source} to {name}")


def test_integers_keep_their_low_bits() -> None:
    x = np.array([-(2**63), -300, -129, -8, -1, 0, 1, 7, 8, 15, 200, 2**31, 2**63 - 1], np.int64)
    for dtype in (*map(np.dtype, INTEGERS), *LOW):
        bits = {np.dtype(ml_dtypes.int4): 4, np.dtype(ml_dtypes.uint4): 4}.get(
            dtype, 2 if dtype in LOW else dtype.itemsize * 8
        )
        signed = np.dtype(dtype).name.startswith("i")
        want = [
            (v + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1) if signed else v % (1 << bits) for v in x.tolist()
        ]
        got = to(x, dtype)
        assert got.dtype == dtype
        assert got.astype(np.int8 if dtype in LOW else dtype).tolist() == want, dtype
    assert to(np.array([-3.7, 9.2, np.nan], np.float32), LOW[0]).astype(np.int8).tolist() == [-3, -7, 0]


def test_every_pair_of_types_runs() -> None:
    known = schema("", "Cast", 28)
    assert known is not None
    types = known.outputs[0].types
    assert types is not None
    assert len(types) == 26
    for source, target in product(types, types):
        x = np.array(["0", "1", "2"], object) if source == np.dtype(object) else np.array([0, 1, 2], np.int8)
        x = (x if source == np.dtype(object) else to(x, source)).reshape(3, 1)[::2]
        got = to(x, target)
        assert (got.dtype, got.shape) == (target, (2, 1))
        assert to(x[:0], target).shape == (0, 1)
        assert to(x[0, 0:1].reshape(()), target).shape == ()
        if source == target:
            assert got is x


def test_bool() -> None:
    x = np.array([0.0, -0.0, 0.4, np.nan, np.inf], np.float32)
    assert to(x, bool).tolist() == [False, False, True, True, True]
    assert to(np.array([True, False]), LOW[3]).astype(np.int8).tolist() == [1, 0]
    assert to(np.array([True, False]), object).tolist() == ["1", "0"]


def test_text_from_numbers() -> None:
    x = np.array([314.15926, 1, 0.1, -0.0, 1e8, np.nan, np.inf, -np.inf], np.float32)
    assert to(x, object).tolist() == ["314.15927", "1", "0.1", "-0", "100000000", "NaN", "INF", "-INF"]
    assert to(np.array([2**63], np.uint64), object).tolist() == [str(2**63)]
    back = np.random.default_rng(10).standard_normal(50).astype(np.float32)
    assert_equal(to(to(back, object), np.float32), back)


def test_numbers_from_text() -> None:
    x = np.array(["100.5", " -3e2 ", "+inf", "NaN", "1E-5", "-INF"], object)
    assert_equal(to(x, np.float32), np.array([100.5, -300, np.inf, np.nan, 1e-5, -np.inf], np.float32))
    # halfway between two float32, and a digit more: float64 in between would round twice
    x = np.array(["1.000000059604644775390625", "1.00000005960464477539062500000000001"], object)
    assert to(x, np.float32).tolist() == [1.0, float(np.float32(1 + 2**-23))]
    assert to(np.array(["2.9", "-2.9", "300"], object), np.uint8).tolist() == [2, 254, 44]
    assert to(np.array([str(2**64 - 1)], object), np.uint64).tolist() == [2**64 - 1]


@pytest.mark.parametrize(
    "text", ["abc", "", "1_0", "0x10", "nan", "1e400", str(2**64), "9" * 10000, "1e999999999999999999999"]
)
def test_text_that_is_no_integer_is_refused(text: str) -> None:
    with pytest.raises(qrun.OperatorError, match="string"):
        to(np.array([text], object), np.int64)


def test_types_follow_the_version() -> None:
    for version, number in (
        (6, 8),
        (9, 16),
        (13, 17),
        (19, 22),
        (21, 23),
        (23, 24),
        (24, 25),
        (25, 27),
        (28, 14),
        (28, 0),
        (28, 99),
    ):
        with pytest.raises(qrun.OperatorError, match="does not cast to type"):
            CAST(np.zeros(1, np.float32), to=number, ctx=Context(version=version))
    assert CAST(np.zeros(1, np.float32), to=16, ctx=Context(version=13)).dtype == DTYPES[16]
    with pytest.raises(qrun.OperatorError, match="round_mode"):
        CAST(np.zeros(1, np.float32), to=24, round_mode="away")


def test_cast_like() -> None:
    x, target = np.array([1.5, 500], np.float32), np.zeros(0, ml_dtypes.float8_e4m3fn)
    model, feeds = node_model("CastLike", [x, target], {"saturate": 1}, outputs=[target.dtype], opset=21)
    assert run_qrun(model, feeds)[0].astype(np.float32).tolist() == [1.5, 448]
