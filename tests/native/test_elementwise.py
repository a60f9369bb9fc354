"""Native float32 functions equal the reference kernels bit for bit, on every instruction set, within their memory."""

from __future__ import annotations

import gc
import math
import weakref
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float32 import UNARY, P, Q, function, numbers
from helpers.native import ISAS, OBJECTS, Array, engine
from helpers.placed import natively, run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.formulas import single, wide
from qrun.native.emit import expression
from qrun.native.emit.functions import EXACT, LOGICAL, SINGLE
from qrun.native.errors import Declined, Undecided
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand
from qrun.ops.elementwise import pow_

F = np.float32
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def planned(name: str, shape: tuple[int, ...], isa: str, threads: int = 1) -> Elementwise:
    return Elementwise(engine(isa, threads), name, [Operand(shape, np.dtype(F))], (P, Q))


def test_functions_of_many_steps_have_an_exact_form() -> None:
    """What qrun/formulas computes is in LONG, whose functions `exact` knows; a cube is two products."""
    assert ({*vars(single), *vars(wide)} & {*SINGLE, *EXACT}) - {*expression.LONG} == {"cube"}


def test_every_function_is_here() -> None:
    others = {
        *BINARY,
        "max",
        "min",
        "sum",
        "mean",
        "p_relu",
        "clip",
        "square",
        "cube",
        "cast",
        "where",
        "to_f16",
        "to_bf16",
        "dequantize",
        *expression.POWERS,
        *expression.QUANTIZED,
        *expression.FAKE_QUANTIZATIONS,
        "bipolar",
        *expression.CONVERSIONS,
        *expression.DIVISIONS,
    }
    assert {*SINGLE, *EXACT} == {*UNARY, *others}
    assert {*LOGICAL} == expression.LOGICAL
    assert {*SINGLE, *LOGICAL} >= expression.UNROUNDED  # what float64 makes is rounded to narrower types
    assert {*expression.TYPES, *expression.CONSTANTS} <= {*SINGLE, *EXACT, *LOGICAL}


@pytest.mark.parametrize("name", UNARY)
@every_width
def test_functions(isa: str, name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    for count in (1, 3, 4, 8, 15, 16, 17, 40, 3000):
        x = numbers(rng, count)
        x = x if name not in expression.ANGLES else np.where(abs(x) > 2.0**22, F(1), x)
        for at_end in (True, False):
            got = run_placed(engine(isa), planned(name, x.shape, isa), [x], (0, 0), at_end)
            assert_equal(got, function(name)(x), f"{name} of {count}")


def exact(name: str, x: Any) -> Fraction:
    """The real value, to 60 digits, for an x that is not 0."""
    with localcontext() as context:
        context.prec = 90
        value = Decimal(float(x))
        slope, scale = (Decimal(float(F(number))) for number in (P, Q))
        pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")

        def sigmoid(v: Decimal) -> Decimal:
            return 1 / (1 + (-v).exp())

        def erf(v: Decimal) -> Decimal:
            term = total = v
            n = 0
            while abs(term) > Decimal(10) ** -85:
                n += 1
                term *= -v * v / n
                total += term / (2 * n + 1)
            return 2 * total / pi.sqrt()

        def sine(v: Decimal) -> Decimal:
            term = total = v
            n = 1
            while abs(term) > Decimal(10) ** -85:
                n += 2
                term *= -v * v / (n * (n - 1))
                total += term
            return total

        def cosine(v: Decimal) -> Decimal:
            return 1 - 2 * sine(v / 2) ** 2

        def arc(v: Decimal) -> Decimal:
            """Of a half, of a half, ... of the angle, whose tangent is small."""
            for _ in range(8):
                v = v / (1 + (1 + v * v).sqrt())
            total, term, n = v, v, 1
            while abs(term) > Decimal(10) ** -85:
                n += 2
                term *= -v * v
                total += term / n
            return total * 256

        made = {
            "exp": lambda v: v.exp(),
            "sigmoid": sigmoid,
            "tanh": lambda v: 1 - 2 / ((2 * v).exp() + 1),
            "swish": lambda v: v * sigmoid(slope * v),
            "erf": erf,
            "gelu": lambda v: v / 2 * (1 + erf(v / Decimal(2).sqrt())),
            "gelu_by_tanh": lambda v: v * sigmoid((8 / pi).sqrt() * (v + Decimal("0.044715") * v**3)),
            "elu": lambda v: v if v > 0 else slope * (v.exp() - 1),
            "selu": lambda v: scale * (v if v > 0 else slope * (v.exp() - 1)),
            "celu": lambda v: v if v > 0 else slope * ((v / slope).exp() - 1),
            "softplus": lambda v: (1 + v.exp()).ln(),
            "mish": lambda v: v * (1 - 2 / ((1 + v.exp()) ** 2 + 1)),
            "log": lambda v: v.ln(),
            "sinh": lambda v: (v.exp() - (-v).exp()) / 2,
            "cosh": lambda v: (v.exp() + (-v).exp()) / 2,
            "asinh": lambda v: (v + (v * v + 1).sqrt()).ln(),
            "acosh": lambda v: (v + (v * v - 1).sqrt()).ln(),
            "atanh": lambda v: ((1 + v) / (1 - v)).ln() / 2,
            "sin": sine,
            "cos": cosine,
            "tan": lambda v: sine(v) / cosine(v),
            "atan": arc,
            "asin": lambda v: arc(v / (1 - v * v).sqrt()) if abs(v) < 1 else v * pi / 2,
            "acos": lambda v: pi / 2 - (arc(v / (1 - v * v).sqrt()) if abs(v) < 1 else v * pi / 2),
        }[name](value)
        return Fraction(made)


FUNCTIONS = sorted(expression.LONG - {*expression.POWERS})
DOMAINS = {"log": (0, math.inf), "acosh": (1, math.inf), "atanh": (-1, 1), "asin": (-1, 1), "acos": (-1, 1)}
"""Of functions that have one, and beyond which they are NaN."""


def of_domain(name: str, x: Array) -> Array:
    """The numbers for which the function is finite."""
    low, high = DOMAINS.get(name, (-math.inf, math.inf))
    return x[(x > low) & (x < high)]


MOST = {"exp": 0.98, "sigmoid": 1.73, "tanh": 1.20, "erf": 1.55, "gelu": 6.0, "gelu_by_tanh": 4.0, "swish": 4.0}
"""Units in the last place; where nothing is said half a unit, and the error of float64."""


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("isa", sorted({"generic", ISAS[0]}))
def test_results_are_near_the_real_values(isa: str, name: str) -> None:
    """By an oracle of its own, the series of each function in 90 digits. What a sigmoid is given is rounded, which
    counts as often as it is large."""
    rng = np.random.default_rng(11)
    x = np.concatenate([rng.normal(0, 1.5, 120), rng.uniform(-6, 6, 40), np.exp(rng.uniform(-30, 0, 40))]).astype(F)
    x = of_domain(name, x[np.abs(x) < 7])
    got = Engine.run(engine(isa), planned(name, x.shape, isa), [x])
    for number, made in zip(x.tolist(), got.tolist(), strict=True):
        want = exact(name, number)
        unit = Fraction(math.ldexp(1, max(math.frexp(float(want))[1], -125) - 24))
        given = {"gelu_by_tanh": 2 * abs(number) ** 3, "swish": abs(number)}.get(name, 0.0)
        most = MOST.get(name, 0.5 + 1e-6) + given
        assert abs(Fraction(made) - want) <= Fraction(most) * unit, (name, number)


def test_limits_that_are_zeros_or_no_numbers() -> None:
    """x keeps its sign where it equals a limit; NaN as a limit makes everything NaN, and is left to the reference."""
    zeros = np.array([0.0, -0.0, 1.0, -1.0, np.nan], F)
    for low in (-np.inf, -1, -0.0, 0.0):
        for high in (-0.0, 0.0, 2, np.inf):
            model, feeds = node_model("Clip", [zeros, np.array(low, F), np.array(high, F)], {}, constants=[1, 2])
            got = same_everywhere(model, feeds).outputs["y0"]
            kept = (zeros >= low) & (zeros <= high)
            assert got[kept].tobytes() == zeros[kept].tobytes(), (low, high)
    for limits in ((np.nan, 1), (0, np.nan)):
        model, feeds = node_model("Clip", [zeros, *(np.array(v, F) for v in limits)], {}, constants=[1, 2])
        (event,) = same_everywhere(model, feeds).events
        assert (event.backend, event.why) == ("reference", "a limit is NaN")
        assert np.isnan(qrun.Session(model).run(feeds)["y0"]).all()


@pytest.mark.parametrize("name", BINARY)
@every_width
def test_operands_that_broadcast(isa: str, name: str) -> None:
    rng = np.random.default_rng(13)
    for shapes in edges.BROADCASTS:
        for a, b in ((0, 1), (1, 0)):
            x, y = (numbers(rng, math.prod(shapes[i])).reshape(shapes[i]) for i in (a, b))
            with np.errstate(all="ignore"):
                want = np.asarray(BINARY[name](x, y))
            for threads in (1, 2):
                operation = Elementwise(engine(isa, threads), name, [Operand(v.shape, v.dtype) for v in (x, y)])
                orders: tuple[Any, ...] = ("plain", "channels") if operation.order == "any" else ("plain",)
                for order in orders:
                    lying = operation.with_layout(order)
                    got = run_placed(engine(isa), lying, [x, y], (0, 0, 0), True)
                    assert_equal(np.ascontiguousarray(got).reshape(want.shape), want, f"{shapes} {order}")


def whole(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Elements of all magnitudes, both ends of the type and small ones that are often equal."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return numbers(rng, math.prod(shape)).reshape(shape).astype(dtype)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    ends = np.iinfo(dtype)
    wide = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
    small = rng.integers(0, 3, shape).astype(dtype)
    limits = rng.choice(np.array([ends.min, ends.max], dtype), shape)
    return np.asarray(np.choose(rng.integers(0, 3, shape), [wide, small, limits]), dtype)


INTEGERS = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
WIDE = (np.int64, np.uint64, np.int32, np.uint32, np.int16, np.uint16, np.int8, np.uint8, np.float64)
COMPARED = {
    "equal": np.equal, "greater": np.greater, "greater_or_equal": np.greater_equal, "less": np.less,
    "less_or_equal": np.less_equal,
}  # fmt: skip
JOINED = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
TYPED = [
    *((name, dtype) for name in ("add", "sub", "mul") for dtype in WIDE),
    *((name, dtype) for name in COMPARED for dtype in (F, *WIDE)),
    ("div", np.float64),
    *((name, np.bool_) for name in ("equal", *JOINED)),
]


def test_every_logical_function_is_tested() -> None:
    assert {*LOGICAL} == {"not", "is_nan", "is_inf", *(name for name, _ in TYPED if name not in INTEGERS)}


@pytest.mark.parametrize(("name", "dtype"), TYPED)
@every_width
def test_integers_and_comparisons(isa: str, name: str, dtype: Any) -> None:
    rng = np.random.default_rng(18)
    for shapes in edges.BROADCASTS:
        x, y = (whole(rng, dtype, shape) for shape in shapes)
        with np.errstate(all="ignore"):
            want = np.asarray((INTEGERS | COMPARED | JOINED)[name](x, y))
        for threads in (1, 2):
            operation = Elementwise(engine(isa, threads), name, [Operand(v.shape, v.dtype) for v in (x, y)])
            for order in ("plain", "channels") if operation.order == "any" else ("plain",):
                got = run_placed(engine(isa), operation.with_layout(order), [x, y], (0, 0, 0), True)
                assert_equal(np.ascontiguousarray(got).reshape(want.shape), want, f"{shapes} {order}")


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.uint16, F, np.int32, np.float64, np.int64])
@every_width
def test_choices(isa: str, dtype: Any) -> None:
    """Bit for bit, of whatever the bytes mean; a condition is true unless its byte is 0."""
    rng = np.random.default_rng(19)
    for shapes in edges.BROADCASTS:
        for a, b in ((0, 1), (1, 0)):
            condition = rng.choice(np.array([0, 0, 1, 2, 255], np.uint8), shapes[a]).astype(np.uint8)
            size = np.dtype(dtype).itemsize
            x, y = (
                np.frombuffer(rng.bytes(max(math.prod(s), 1) * size), f"u{size}")[: math.prod(s)].reshape(s)
                for s in (shapes[b], shapes[a])
            )
            want = np.where(condition != 0, x, y)
            operands = [Operand(condition.shape, np.dtype(bool)), *(Operand(v.shape, np.dtype(dtype)) for v in (x, y))]
            operation = Elementwise(engine(isa), "where", operands)
            arrays = [condition.view(bool), x, y]
            got = run_placed(engine(isa), operation, arrays, (0,) * 4) if operation.order != "any" else None
            for order in ("plain", "channels") if operation.order == "any" else ():
                got = run_placed(engine(isa), operation.with_layout(order), arrays, (0,) * 4)
                assert np.ascontiguousarray(got).view(want.dtype).tobytes() == want.tobytes(), (shapes, order)
            assert got is not None
            assert np.ascontiguousarray(got).tobytes() == want.tobytes(), shapes


@every_width
def test_negations(isa: str) -> None:
    for count in (1, 5, 16, 70):
        x = np.arange(count, dtype=np.uint8) % 3
        operation = Elementwise(engine(isa), "not", [Operand(x.shape, np.dtype(bool))])
        assert_equal(run_placed(engine(isa), operation, [x.view(bool)], (0, 0)), x == 0)


@pytest.mark.parametrize("threads", [1, 2])
def test_logical_nodes(threads: int) -> None:
    rng = np.random.default_rng(20)
    cases: list[tuple[str, list[Array]]] = [
        *((op_type, [whole(rng, np.int64, (2, 3, 701)), whole(rng, np.int64, (3, 1))]) for op_type in
          ("Add", "Sub", "Mul", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
        *((op_type, [whole(rng, bool, (2, 3, 701)), whole(rng, bool, (3, 1))]) for op_type in ("And", "Or", "Xor")),
        ("Not", [whole(rng, bool, (5,))]),
        ("Where", [whole(rng, bool, (2, 3, 701)), whole(rng, F, (701,)), whole(rng, F, ())]),
    ]  # fmt: skip
    for op_type, inputs in cases:
        output = bool if op_type not in ("Add", "Sub", "Mul", "Where") else inputs[-1].dtype
        natively(*node_model(op_type, inputs, outputs=[np.dtype(output)], opset=16), threads=threads)


@every_width
def test_rows_with_gaps(isa: str) -> None:
    rng = np.random.default_rng(14)
    x, y = (numbers(rng, 2 * 9 * 6).reshape(2, 9, 6) for _ in range(2))
    operation = Elementwise(engine(isa), "add", [Operand(x.shape, x.dtype)] * 2).with_layout("channels")
    for strides in ((48, 0, 0), (0, 40, 0), (36, 60, 44)):
        for at_end in (True, False):
            with np.errstate(all="ignore"):
                assert_equal(run_placed(engine(isa), operation, [x, y], strides, at_end), x + y, f"{strides}")


def test_operands_that_broadcast_along_too_many_axes() -> None:
    shapes = [(2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2)]
    with pytest.raises(Declined, match="along too many axes"):
        Elementwise(engine("generic"), "add", [Operand(shape, np.dtype(F)) for shape in shapes])


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.int8, np.bool_, F])
@every_width
def test_casts(isa: str, dtype: Any) -> None:
    rng = np.random.default_rng(15)
    for count in (1, 5, 16, 50):
        x = whole(rng, dtype, (count,))
        operation = Elementwise(engine(isa), "cast", [Operand(x.shape, x.dtype)])
        assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), x.astype(F))


@pytest.mark.parametrize("exponent", [0.5, -0.5, 0.3, -2.5, 1, -1, 7, 4, -2, 1e4, -1e-3, 3e38])
@every_width
def test_powers(isa: str, exponent: float) -> None:
    rng = np.random.default_rng(41)
    name = "real_power" if exponent % 1 else "odd_power" if exponent % 2 else "even_power"
    for x in (numbers(rng, 3000), rng.lognormal(0, 2, 3001).astype(F), (1 + rng.normal(0, 1e-3, 3000)).astype(F)):
        operation = Elementwise(engine(isa), name, [Operand(x.shape, x.dtype)], (exponent,))
        got = run_placed(engine(isa), operation, [x], (0, 0))
        assert_equal(got, pow_(x, np.array(exponent, F)), f"{exponent}")
        with np.errstate(all="ignore"):
            real = np.power(x.astype(np.float64), np.full(x.shape, float(F(exponent)))).astype(F)
        np.testing.assert_array_max_ulp(got[~np.isnan(got)], real[~np.isnan(got)], 1)
        assert_equal(np.isnan(got), np.isnan(real))


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@every_width
def test_angles_of_many_turns(isa: str, name: str) -> None:
    """Next to multiples of a right angle, up to the one beyond which the reference knows the function."""
    x = (np.arange(1 << 15, dtype=np.float64) * 81 * (np.pi / 2)).astype(F)
    got = engine(isa).run(planned(name, x.shape, isa), [x])
    assert_equal(got, function(name)(x))
    np.testing.assert_array_max_ulp(got, getattr(np, name)(x.astype(np.float64)).astype(F), 1)
    wide = np.array([2.0**22, -(2.0**22 + 0.5), 1e30, 3], F)
    with pytest.raises(Undecided):
        engine(isa).run(planned(name, wide.shape, isa), [wide])
    model, feeds = node_model(name.capitalize(), [wide])
    assert_equal(same_everywhere(model, feeds).outputs["y0"], function(name)(wide))


NODES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    *((op_type, [], attributes, 24) for op_type, attributes in UNARY.values()),
    ("com.microsoft::QuickGelu", [], {"alpha": P}, 24),
    ("com.microsoft::FastGelu", [], {}, 24),
    ("com.microsoft::FastGelu", [np.linspace(-2, 2, 701, dtype=F)], {}, 24),
    ("Clip", [np.array(-1, F), np.array([2], F)], {}, 13),
    ("Clip", [None, np.array(0.5, F)], {}, 13),
    ("Clip", [np.array(3, F), np.array(-3, F)], {}, 13),
    ("Clip", [], {"min": -0.3, "max": 0.7}, 10),
    ("Pow", [np.array([2], np.int64)], {}, 15),
    ("Pow", [np.array(2, F)], {}, 15),
    ("Pow", [np.array([3], F)], {}, 7),
    *(("Pow", [np.array(y, F)], {}, 15) for y in (0.5, 0.3, -2.5, 1, -1, 7, 4, -2, 1e4, -1e-3)),
    ("IsNaN", [], {}, 13),
    *(("IsInf", [], {"detect_negative": n, "detect_positive": p}, 10) for n in (0, 1) for p in (0, 1)),
    ("Cast", [], {"to": 1}, 13),
    *((op_type, [np.array([[0.3], [-2], [0]], F)], {}, 14) for op_type in ("Add", "Sub", "Mul", "Div")),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("op_type", "others", "attributes", "opset"), NODES)
def test_nodes(op_type: str, others: list[Any], attributes: dict[str, Any], opset: int, threads: int) -> None:
    x = numbers(np.random.default_rng(16), 2 * 3 * 701).reshape(2, 3, 701)
    x = x if op_type.lower() not in expression.ANGLES else np.where(abs(x) > 2.0**22, F(1), x)
    places, (domain, _, name) = list(range(1, len(others) + 1)), op_type.rpartition("::")
    output = np.dtype(np.bool_ if name.startswith("Is") else F)
    result = natively(
        *node_model(name, [x, *others], attributes, outputs=[output], opset=opset, domain=domain, constants=places),
        threads=threads,
    )
    assert all(section.form.replace("_", "").isalnum() for event in result.events for section in event.sections)


def test_kernels_do_not_keep_what_they_were_made_for() -> None:
    x = np.linspace(-1, 1, 1000, dtype=F)
    for op_type in ("Erf", "Relu", "Exp"):
        model, _ = node_model(op_type, [x])
        session = qrun.Session(model, cache=OBJECTS)
        fed = np.array(x)
        seen = weakref.ref(fed)
        session.run({"i0": fed})
        del fed
        gc.collect()
        assert seen() is None, op_type
