"""Native CumSum and CumProd are sums and products of Python's numbers, each rounded once, on every instruction set."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.native import ISAS, Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere, same_refusal
from helpers.support import node_model
from helpers.widths import every_width

from qrun.native.errors import Declined
from qrun.native.kernels.reduce import Accumulated
from qrun.native.machine.operation import Operand

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")
WHOLE = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (32, 64)]
TYPES = [*WHOLE, np.dtype(np.float32), np.dtype(np.float64)]
NARROW = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
SHAPES = [((1,), 0), ((9,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 7, 3), 1), ((4, 6, 70), 1), ((5, 33), 0), ((2, 1, 9), 1)]


def numbers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Any bits of integers; floats whose sums and products float64 holds exactly, so that each is rounded once,
    and both zeros."""
    if dtype.kind in "iu":
        return np.frombuffer(rng.bytes(math.prod(shape) * dtype.itemsize), dtype).reshape(shape)
    made = rng.integers(-(2**11), 2**11, shape) * rng.choice([2.0**-11, 2.0**-7, 2.0**-4], shape)
    return np.asarray(np.where(rng.random(shape) < 0.3, rng.choice([0.0, -0.0], shape), made), dtype)


def wanted(x: Array, axis: int, what: str, exclusive: bool, reverse: bool) -> Array:
    """One line after the other."""
    made = np.empty(x.shape, x.dtype)
    lines, results = np.moveaxis(x, axis, -1), np.moveaxis(made, axis, -1)
    for place in np.ndindex(lines.shape[:-1]):
        line = lines[place].tolist()[:: -1 if reverse else 1]
        found: list[Any] = []
        for number in range(len(line)):
            part = line[: number + (not exclusive)]
            if x.dtype.kind in "iu":
                total = sum(part) if what == "sum" else math.prod(part)
                found.append(int(total) % 2 ** (8 * x.itemsize))
            elif not part:
                found.append(float(what == "product"))
            else:
                total = part[0]
                for more in part[1:]:
                    total = total + more if what == "sum" else total * more
                found.append(total)
        if x.dtype.kind in "iu":
            row = np.array(found, f"u{x.itemsize}").view(x.dtype)
        else:
            row = np.array(found, np.float64).astype(x.dtype)
        results[place] = row[:: -1 if reverse else 1]
    return made


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@every_width
def test_running_sums_and_products(isa: str, dtype: Any) -> None:
    rng = np.random.default_rng([61, dtype.itemsize])
    for shape, axis in SHAPES:
        x = numbers(rng, dtype, shape)
        for what in ("sum", "product"):
            for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
                for threads in (1, 3):
                    native = engine(isa, threads)
                    made = Accumulated(native, Operand(shape, dtype), axis, what, exclusive, reverse)
                    want = wanted(x, axis, what, exclusive, reverse)
                    for at_end in (True, False):
                        got = run_placed(native, made, [x], (0, 0), at_end)
                        assert got.tobytes() == want.tobytes(), (shape, axis, what, exclusive, reverse)


@every_width
def test_a_sum_of_float32_is_rounded_once(isa: str) -> None:
    """The oracle adds fractions; float64 holds these sums."""
    rng = np.random.default_rng(62)
    x = (rng.integers(-(2**23), 2**23, (60, 5)) * 2.0 ** rng.integers(-20, 4, (60, 5))).astype(np.float32)
    got = engine(isa).run(Accumulated(engine(isa), Operand(x.shape, x.dtype), 0, "sum", False, False), [x])
    for column in range(5):
        total = Fraction(0)
        for row, value in enumerate(x[:, column]):
            total += Fraction(float(value))
            assert Fraction(float(total)) == total
            assert got[row, column] == np.float32(float(total))


@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
def test_nodes(op_type: str) -> None:
    rng = np.random.default_rng(63)
    for dtype in (*TYPES, *NARROW):
        for shape, axis in (*SHAPES, ((0, 3), 0), ((3, 0), 0), ((2, 0, 3), 1), ((2, 3), -2), ((2, 3), -1)):
            x = numbers(rng, np.dtype(np.float32) if dtype in NARROW else dtype, shape).astype(dtype)
            for exclusive, reverse in ((0, 0), (1, 0), (0, 1), (1, 1)):
                attributes = {"exclusive": exclusive, "reverse": reverse}
                model, feeds = node_model(
                    op_type, [x, np.array(axis)], attributes, outputs=[dtype], opset=26, constants=[1]
                )
                (event,) = same_everywhere(model, feeds, threads=1 + exclusive).events
                assert (event.backend, event.why) == ("native", ""), (dtype, shape)


def test_numbers_that_are_none() -> None:
    x = np.array([[1, np.inf, -np.inf, 2, np.nan, 3], [3e38, 3e38, -3e38, -3e38, 1e-45, 0]], np.float32)
    for dtype in (np.float32, np.float64, np.float16):
        for op_type in ("CumSum", "CumProd"):
            for axis in (0, 1):
                with np.errstate(all="ignore"):
                    model, feeds = node_model(
                        op_type, [x.astype(dtype), np.array(axis)], outputs=[dtype], opset=26, constants=[1]
                    )
                    same_everywhere(model, feeds)


def test_what_is_left_and_refused() -> None:
    x = np.ones((2, 3), np.float32)
    model, feeds = node_model("CumSum", [x, np.array(0)])
    assert_left(model, feeds, "axis is not constant")
    for axis in (np.array(2), np.array([0, 1])):
        same_refusal(*node_model("CumSum", [x, axis], constants=[1]))
        same_refusal(*node_model("CumSum", [x, axis]))
    with pytest.raises(Declined, match="no native running sum of complex64"):
        Accumulated(engine("generic"), Operand((2,), np.dtype(np.complex64)), 0, "sum", False, False)
