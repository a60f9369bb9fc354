"""What is said to do with an array that does not fit: done to it, it fits, and means the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import pytest

from qrun.io.fitting import axes_fix, type_fixes
from qrun.io.sizes import fits
from qrun.ir import Array
from qrun.ir.types import texts


def done(x: Array, fix: str) -> Array:
    """x after the expression of numpy in a fix."""
    found = re.search(r"(\(?x[\[.]|np\.|\().*?(?= (fits|for|moves|cuts|rounds)\b|$)", fix)
    assert found is not None, fix
    made: Array = eval(found[0], {"np": np, "ml_dtypes": ml_dtypes, "x": x, "scale": 0.5, "zero_point": 3})
    return made


@pytest.mark.parametrize(
    ("shape", "want", "words"),
    [
        ((8, 8), (None, 1, 8, 8), "2 axes are missing: x[None, None] fits"),
        ((1, 8, 8), (None, 1, 8, 8), "one axis is missing: x[None] fits"),
        ((5, 8, 8), (None, 1, 8, 8), "one axis is missing: x[:, None] fits"),
        ((8, 8), (None, 8, 8, 1), "2 axes are missing: x[None, ..., None] fits"),
        ((1, 8, 8, 3), (None, 3, 8, 8), "the axes look NHWC: np.transpose(x, (0, 3, 1, 2)) fits"),
        ((1, 3, 8, 8), (None, 8, 8, 3), "the axes look NCHW: np.transpose(x, (0, 2, 3, 1)) fits"),
        ((16, 16, 3), (None, 3, None, None), "the axes look HWC: np.transpose(x, (2, 0, 1))[None] fits"),
        ((3, 16, 17), (None, 16, 17, 3), "the axes look CHW: np.transpose(x, (1, 2, 0))[None] fits"),
        ((1, 1, 8, 9), (8, 9), "2 axes are too many: x[0, 0] fits"),
        ((1, 8, 1, 9), (8, 9), "2 axes are too many: np.squeeze(x) fits"),
        ((5, 64), (None, 1, 8, 8), "x is flattened: x.reshape(-1, 1, 8, 8) fits"),
        ((64,), (1, 1, 8, 8), "x is flattened: x.reshape(1, 1, 8, 8) fits"),
        ((), (None,), "one axis is missing: x[None] fits"),
    ],
)
def test_axes_that_can_be_arranged(shape: tuple[int, ...], want: Sequence[int | None], words: str) -> None:
    fix = axes_fix(shape, want)
    assert fix == words
    assert fits(done(np.zeros(shape), fix.partition(": ")[2]).shape, want)


@pytest.mark.parametrize(
    ("shape", "want", "words"),
    [
        ((1, 3, 8, 8), (None, 1, 8, 8), "axis 1 of x must have size 1, not 3"),
        ((1, 1, 28, 28), (None, 1, 8, 8), "axes 2 and 3 of x must have size 8 and 8, not 28 and 28"),
        ((5, 63), (None, 1, 8, 8), "x must have 4 axes, not 2"),
        ((5, 64), (None, None, 8, 8), "x must have 4 axes, not 2"),
        ((2, 3, 4), (3, 4), "x must have 2 axes, not 3"),
    ],
)
def test_axes_that_cannot(shape: tuple[int, ...], want: Sequence[int | None], words: str) -> None:
    assert axes_fix(shape, want) == words


def test_axes_that_fit_need_nothing() -> None:
    assert axes_fix((4, 1, 8, 8), (None, 1, 8, 8)) == ""
    assert axes_fix((), ()) == ""


@pytest.mark.parametrize(
    ("x", "dtype", "meaning"),
    [
        (np.array([0, 0.5, 1], np.float32), np.uint8, [0, 128, 255]),
        (np.array([0, 99.6, 255], np.float32), np.uint8, [0, 100, 255]),
        (np.array([0, 1, 255], np.float64), np.uint8, [0, 1, 255]),
        (np.array([-1.5, 0, 300], np.float32), np.uint8, [0, 3, 255]),
        (np.array([0.0, 0.5, 1.0], np.float32), np.int8, [3, 4, 5]),
        (np.array([-128, 0, 127], np.int8), np.uint8, [0, 128, 255]),
        (np.array([0, 128, 255], np.uint8), np.int8, [-128, 0, 127]),
        (np.array([0, 1, 127], np.int8), np.uint8, [0, 1, 127]),
        (np.array([-5, 7, 300]), np.uint8, [0, 7, 255]),
        (np.array([0, 1, 255]), np.uint8, [0, 1, 255]),
        (np.array([1.4, 2.6]), np.int64, [1, 3]),
        (np.array([-20, 7], np.int8), ml_dtypes.int4, [-8, 7]),
        (np.array([1.5, 2.5]), np.float32, [1.5, 2.5]),
        (np.array([1.5, 2.5]), ml_dtypes.bfloat16, [1.5, 2.5]),
        (np.array([True, False]), np.uint8, [1, 0]),
        (np.array([-5, 7], np.int64), np.uint64, [0, 7]),
        (np.array([0.5, 3e9, -1.6]), np.int32, [0, 2**31 - 1, -2]),
        (np.zeros(0), np.uint8, []),
    ],
)
def test_element_types(x: Array, dtype: type, meaning: list[float]) -> None:
    fix = type_fixes(x, np.dtype(dtype))[0]
    made = done(x, fix.partition(": ")[2].removeprefix("quantize, ").rpartition("; ")[2])
    assert made.dtype == dtype
    assert made.astype(np.float64).tolist() == meaning, fix


@pytest.mark.parametrize("dtype", [str, object])
def test_text_is_no_number(dtype: type) -> None:
    assert type_fixes(np.array(["a"], dtype), np.dtype(np.float32)) == ["the input takes numbers"]


@pytest.mark.parametrize(
    ("x", "dtype", "meaning"),
    [
        (np.array([1]), object, ["1"]),
        (np.array([b"a"]), object, ["a"]),
        (np.array(["a", 2], object), object, ["a", "2"]),
        (np.array(["a", None], object), object, ["a", ""]),
        (np.array(["1.5", "2"]), np.float32, [1.5, 2.0]),
        (np.array([1.5, 2], object), np.float32, [1.5, 2.0]),
    ],
)
def test_text_and_objects(x: Array, dtype: type, meaning: list[object]) -> None:
    (fix,) = type_fixes(x, np.dtype(dtype))
    made = done(x, fix.partition(": ")[2])
    assert texts(made, np.dtype(dtype)).tolist() == meaning, fix


def test_none_is_no_array() -> None:
    (fix,) = type_fixes(np.asarray(None), np.dtype(np.float32))
    assert fix == "only optional inputs take None: give an array"


def test_pixels_may_also_be_quantized() -> None:
    fixes = type_fixes(np.array([0.25], np.float32), np.dtype(np.uint8))
    assert fixes == [
        "convert it: np.rint(x * 255).astype(np.uint8) for pixels of 0 to 1",
        "or quantize: np.clip(np.rint(x / scale) + zero_point, 0, 255).astype(np.uint8)",
    ]


def test_shifts_name_both_ranges() -> None:
    (fix,) = type_fixes(np.array([-1], np.int8), np.dtype(np.uint8))
    assert fix == ("convert it: (x.astype(np.int16) + 128).astype(np.uint8) moves -128 .. 127 to 0 .. 255")
