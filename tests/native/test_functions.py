"""Native functions of one or several tensors, casts among them, equal the reference kernels bit for bit."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import edges
from helpers.float32 import UNARY, numbers
from helpers.native import ISAS, OBJECTS, Array, engine, every_isa
from helpers.placed import natively, run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width, thin_width
from native.test_elementwise import whole

import qrun
from qrun.ir.types import NUMBERS
from qrun.native.emit import conversions, expression
from qrun.native.emit.expression import CONVERSIONS
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.operation import Operand
from qrun.ops import find
from qrun.ops.qonnx import bipolar_quant, int_quant

pytestmark = pytest.mark.skipif(not ISAS, reason="no native kernels for this machine")

F = np.float32
FUNCTIONS = {"max": "Max", "min": "Min", "sum": "Sum", "mean": "Mean", "p_relu": "PRelu"}


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    with np.errstate(all="ignore"):
        return numbers(rng, math.prod(shape)).reshape(shape).astype(dtype)


def same_bits(got: Array, want: Array, message: str) -> None:
    """As assert_equal, and zeros have the same signs."""
    assert_equal(got, want, message)
    if want.dtype.kind not in "iu":
        assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all(), message


@pytest.mark.parametrize("name", FUNCTIONS)
@every_width
def test_operands_that_broadcast(isa: str, name: str) -> None:
    rng = np.random.default_rng(13)
    definition = find("", FUNCTIONS[name], 21)
    assert definition is not None
    for shapes in edges.BROADCASTS:
        x, y = (drawn(rng, shape, F) for shape in shapes)
        if name == "p_relu" and np.broadcast_shapes(*shapes) != shapes[0]:
            continue
        arrays = [x, y] if name == "p_relu" else [x, y, -x, drawn(rng, (1,), F)]
        want = np.asarray(definition(*arrays))
        operation = Elementwise(engine(isa), name, [Operand(v.shape, v.dtype) for v in arrays])
        for order in ("plain", "channels") if operation.order == "any" else ("plain",):
            got = run_placed(engine(isa), operation.with_layout(order), arrays, (0,) * (len(arrays) + 1), True)
            same_bits(np.ascontiguousarray(got).reshape(want.shape), want, f"{shapes} {order}")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("op_type", ["Max", "Min", "Sum", "Mean"])
def test_nodes(op_type: str, count: int) -> None:
    rng = np.random.default_rng(count)
    others = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float64)
    for dtype in (F, np.float16, ml_dtypes.bfloat16, *(others if op_type in ("Max", "Min") else ())):
        inputs = [drawn(rng, ((2, 3, 71), (3, 1), (1,))[place % 3], dtype) for place in range(count)]
        model, feeds = node_model(op_type, inputs, opset=13, outputs=[dtype])
        natively(model, feeds, threads=2)
        got = qrun.Session(model, cache=OBJECTS).run(feeds)["y0"]
        same_bits(got, qrun.Session(model, backend="reference").run(feeds)["y0"], f"{dtype}")


@pytest.mark.parametrize("dtype", [F, np.float16, ml_dtypes.bfloat16])
def test_p_relu(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    for shape in ((), (5, 1, 1), (2, 5, 3, 7), (1,)):
        inputs = [drawn(rng, (2, 5, 3, 7), dtype), drawn(rng, shape, dtype)]
        natively(*node_model("PRelu", inputs, opset=16, outputs=[dtype]))


def test_zeros_of_both_signs() -> None:
    """+0 is the greater one, whichever comes first; a sum of zeros is +0."""
    x, y = np.array([0.0, -0.0, -0.0, 0.0], F), np.array([-0.0, 0.0, -0.0, 0.0], F)
    for op_type, want in (("Max", [0, 0, 1, 0]), ("Min", [1, 1, 1, 0]), ("Sum", [0] * 4), ("Mean", [0] * 4)):
        model, feeds = node_model(op_type, [x, y], opset=13)
        for backend in ("native", "reference"):
            got = qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)["y0"]
            assert np.signbit(got).tolist() == [bool(n) for n in want], (op_type, backend)


SPECIAL = (0.0, -0.0, 1.0, -1.5, 1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan)
WITH_PARAMETERS = [name for name, (_, given) in UNARY.items() if any(isinstance(v, float) for v in given.values())]


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("name", WITH_PARAMETERS)
def test_functions_of_numbers_of_all_kinds(name: str, dtype: Any) -> None:
    op_type, given = UNARY[name]
    if op_type == "Shrink" and dtype == ml_dtypes.bfloat16:
        pytest.skip("Shrink takes no bfloat16")
    with np.errstate(all="ignore"):
        x = numbers(np.random.default_rng(12), 700).astype(dtype)
    for values in zip(SPECIAL, SPECIAL[::-1], strict=True):
        attributes = dict(zip(given, values, strict=False))
        same_everywhere(*node_model(op_type, [x], attributes, opset=28, outputs=[x.dtype]))


def test_every_rounding_has_its_function() -> None:
    assert [f"fake_quantize_{way}" for way in conversions.ROUNDINGS] == [*expression.FAKE_QUANTIZATIONS]


@every_isa
def test_fake_quantization(isa: str) -> None:
    rng = np.random.default_rng(3)
    for place, way in enumerate(conversions.ROUNDINGS):
        s, z = rng.uniform(0.01, 1, (5, 1)).astype(F), rng.integers(-2, 3, (5, 1)).astype(F)
        codes = rng.normal(size=(5, 37 + place)) * 9
        x = (np.where(rng.random(codes.shape) < 0.5, np.rint(codes * 2) / 2, codes) * s).astype(F)
        x[0, :8] = 0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 8388607.5 * s[0, 0], 3e38
        operands = [Operand(a.shape, a.dtype) for a in (x, s, z)]
        sign, run = way == "sign", engine(isa).run
        ends = (-math.inf, math.inf) if sign else (-16.0, 15.0)
        got = run(Elementwise(engine(isa), f"fake_quantize_{way}", operands, ends), [x, s, z])
        bits, mode = F(1 if sign else 5), "ROUND" if sign else way
        assert_equal(got, int_quant(x, s, z, bits, rounding_mode=mode), f"{isa} {way}")
        got = run(Elementwise(engine(isa), "bipolar", operands[:2]), [x, s])
        assert_equal(got, bipolar_quant(x, s), f"{isa} bipolar")


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
def test_casting_nodes(source: np.dtype[Any], threads: int) -> None:
    """What a rule wants to know of a cast is told, too: numbers that do not fit an integer type."""
    values, exact = hard(source), np.arange(100).astype(source)
    for to in TARGETS:
        for x in (values, exact, values[:0].reshape(0, 3), values[:1].reshape(())):
            natively(*node_model("Cast", [x], {"to": NUMBERS[to]}, outputs=[to], opset=21), threads=threads)
