"""Native casts between integers, bool and floats have the bits of the reference kernel, on every instruction set."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers.native import Array, assert_left, engine
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import thin_width
from native.test_elementwise import whole

from qrun.ir.types import NUMBERS
from qrun.native.emit.expression import CONVERSIONS
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand
from qrun.ops import find

CAST = find("", "Cast", 28)
FLOATS = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64))
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for bits in (8, 16, 32, 64) for sign in ("", "u"))
SOURCES = (*FLOATS, *INTEGERS, np.dtype(bool))
TARGETS = (np.dtype(np.float32), *(np.dtype(name.removeprefix("to_")) for name in CONVERSIONS))


def hard(dtype: np.dtype[Any], count: int = 300) -> Array:
    """Numbers around the ends of all integer types, with fractions, of both signs; zeros, infinities and NaN."""
    rng = np.random.default_rng(90)
    if dtype.kind in "iub":
        return whole(rng, dtype, (count,))
    ends = np.array([2.0**bits for bits in (7, 8, 15, 16, 31, 32, 63, 64)])
    near = [
        ends,
        ends - 0.5,
        ends - 1,
        ends + 0.5,
        ends + 1,
        np.nextafter(ends, 0),
        np.nextafter(ends, np.inf),
        ends * 3,
    ]
    sizes = np.concatenate([*near, [0.0, 0.5, 0.999, 1.5, np.inf, 1e-45, 1e300]])
    with np.errstate(all="ignore"):
        around = np.concatenate([np.nextafter(np.float32(ends), np.float32(0)), rng.lognormal(8, 9, count)])
        return np.concatenate([sizes, -sizes, around, -around, [np.nan]]).astype(dtype)


@thin_width(*SOURCES, other=2, name="source")
def test_every_pair_of_types(isa: str, source: np.dtype[Any]) -> None:
    values = hard(source)
    for to in TARGETS:
        name = "cast" if to == np.float32 else f"to_{to.name}"
        for x in (values, values[:5], values[7:8]):
            operation = Elementwise(engine(isa), name, [Operand(x.shape, x.dtype)])
            want = CAST(x, to=NUMBERS[to])
            assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), want, f"{source} to {to}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_nodes(source: np.dtype[Any], threads: int) -> None:
    """What a rule wants to know of a cast is told, too: numbers that do not fit an integer type."""
    values, exact = hard(source), np.arange(100).astype(source)
    for to in TARGETS:
        for x in (values, exact, values[:0].reshape(0, 3), values[:1].reshape(())):
            model, feeds = node_model("Cast", [x], {"to": NUMBERS[to]}, outputs=[to], opset=21)
            (event,) = same_everywhere(model, feeds, threads=threads).events
            assert event.backend == "native", (source, to)


def test_what_the_reference_converts() -> None:
    float8, texts = np.dtype(ml_dtypes.float8_e4m3fn), np.array(["1", "2"], object)
    for x, to, why in (
        (np.ones(3, np.float32), float8, "no native conversion of float32 to float8e4m3fn"),
        (np.ones(3, float8), np.dtype(np.int32), "no native conversion of float8e4m3fn to int32"),
        (texts, np.dtype(np.int64), "no native conversion of string to int64"),
        (np.ones(3), np.dtype(np.float16), "float64 to float16"),
    ):
        model, feeds = node_model("Cast", [x], {"to": NUMBERS[to]}, outputs=[to], opset=21)
        assert_left(model, feeds, why)
