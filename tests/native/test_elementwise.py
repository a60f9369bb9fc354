"""Native float32 functions equal the reference kernels bit for bit, on every instruction set, within their memory."""

from __future__ import annotations

import ctypes
import gc
import math
import threading
import weakref
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from helpers import edges
from helpers.float32 import UNARY, P, Q, function, numbers
from helpers.native import ISAS, OBJECTS, Array, assert_left, engine, nearest32
from helpers.placed import run_placed, same_everywhere
from helpers.support import assert_equal, node_model
from helpers.widths import every_width

import qrun
from qrun.native.emit import expression, tabled
from qrun.native.emit.functions import CLOSE, EXACT, LOGICAL, ROUGH, SINGLE
from qrun.native.emit.tabled import erf_pieces
from qrun.native.emit.transcendental import _ROUGH_ERF
from qrun.native.errors import Declined, Undecided
from qrun.native.kernels.elementwise import Elementwise
from qrun.native.machine.call import mark_of, undecided
from qrun.native.machine.engine import Engine
from qrun.native.machine.operation import Operand

F = np.float32
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def planned(name: str, shape: tuple[int, ...], isa: str, threads: int = 1, reference: Any = None) -> Elementwise:
    made = reference or (function(name) if name in CLOSE else None)
    return Elementwise(engine(isa, threads), name, [Operand(shape, np.dtype(F))], (P, Q), made)


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
    assert {*SINGLE, *EXACT, *CLOSE} == {*UNARY, *others}
    assert ({*LOGICAL}, {*CLOSE}) == (expression.LOGICAL, expression.CLOSE)
    assert {*SINGLE, *LOGICAL} >= expression.UNROUNDED  # what float64 makes is rounded to narrower types
    assert {*expression.TYPES, *expression.CONSTANTS} <= {*SINGLE, *EXACT, *CLOSE, *LOGICAL}


@pytest.mark.parametrize("name", UNARY)
@every_width
def test_functions(isa: str, name: str) -> None:
    rng = np.random.default_rng(sum(map(ord, name)))
    for count in (1, 3, 4, 8, 15, 16, 17, 40, 3000):
        x = numbers(rng, count)
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


def test_the_short_series_of_erf_is_as_near_as_it_says() -> None:
    x = np.linspace(1e-3, 4, 40001)
    made = x * np.polynomial.polynomial.polyval(x * x / 8 - 1, _ROUGH_ERF)
    want = np.array([math.erf(v) for v in x])
    assert np.abs(made / want - 1).max() < 0.6 * ROUGH["erf"][1][False]


def test_the_pieces_of_erf_are_as_near_as_they_say() -> None:
    """At their ends too, where an index that is rounded up must still be one of a piece; the last terms in float32."""
    step, wide = tabled.ERF_STEP, tabled._WIDE
    ends = np.arange(0.5, tabled.SIZE).astype(F) * F(step)
    spread = np.concatenate([np.linspace(1e-6, tabled.ERF_END, 200001), np.geomspace(1e-37, 1e-2, 2001)]).astype(F)
    x = np.concatenate([spread, *(np.nextafter(ends, F(end)) for end in (0, 9)), ends])
    x = x[x <= tabled.ERF_END]
    place = np.rint(x * F(1 / step)).astype(int)
    assert place.max() == tabled.SIZE - 1
    rest = x - place * step
    assert np.array_equal(rest, rest.astype(F))
    pieces = np.array(erf_pieces())[place].T
    made = pieces[-1].astype(F)
    for column in pieces[-2 : wide - 1 : -1]:
        made = (made * rest + column.astype(F)).astype(F)
    for column in pieces[wide - 1 :: -1]:
        made = made * rest + column
    want = np.array([math.erf(v) for v in x])
    assert np.abs(made / want - 1).max() < 0.6 * ROUGH["erf"][1][True]


@every_width
def test_results_that_the_short_series_of_erf_does_not_decide(isa: str) -> None:
    """Of so many some thousand are."""
    x = np.random.default_rng(40).normal(0, 1.5, 1 << 20).astype(F)
    assert_equal(engine(isa).run(planned("erf", x.shape, isa), [x]), function("erf")(x))


FUNCTIONS = sorted({*CLOSE} - {"cube", *expression.POWERS})
DOMAINS = {"log": (0, math.inf), "acosh": (1, math.inf), "atanh": (-1, 1), "asin": (-1, 1), "acos": (-1, 1)}
"""Of functions that have one, and beyond which they are NaN."""


def of_domain(name: str, x: Array) -> Array:
    """The numbers for which the function is finite."""
    low, high = DOMAINS.get(name, (-math.inf, math.inf))
    return x[(x > low) & (x < high)]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("isa", sorted({"generic", ISAS[0]}))
def test_results_are_the_correctly_rounded_real_values(isa: str, name: str) -> None:
    """By an oracle of its own, the series of each function in 90 digits."""
    rng = np.random.default_rng(11)
    x = np.concatenate([rng.normal(0, 1.5, 120), rng.uniform(-6, 6, 40), np.exp(rng.uniform(-30, 0, 40))]).astype(F)
    x = of_domain(name, x[np.abs(x) < 7])
    got = Engine.run(engine(isa), planned(name, x.shape, isa), [x])
    want = np.array([nearest32(exact(name, v)) for v in x], F)
    assert_equal(got, want, name)


@pytest.mark.parametrize("name", FUNCTIONS)
@every_width
def test_the_reference_makes_what_is_in_doubt_and_nothing_else(isa: str, name: str) -> None:
    rng, asked = np.random.default_rng(12), list[Array]()

    def reference(x: Array) -> Array:
        asked.append(x.copy())
        return function(name)(x)

    x = of_domain(name, rng.normal(0, 2, 1 << 15).astype(F))
    native = engine(isa)
    assert_equal(native.run(planned(name, x.shape, isa, reference=reference), [x]), function(name)(x))
    assert len(asked) <= 3, "float64 decides nearly all"
    doubtful = {
        "exp": 2.0**-24,
        "sigmoid": 2.0**-23,
        "tanh": 2.0**-149,
        "erf": 0,
        **dict.fromkeys(("gelu", "gelu_by_tanh"), 3 * 2.0**-149),
        "swish": 2.0**-149,
        **dict.fromkeys(("sin", "cos", "tan"), 2.0**23),
    }
    if name not in doubtful or not doubtful[name]:
        return
    asked.clear()
    native.run(planned(name, (1,), isa, reference=reference), [np.full(1, doubtful[name], F)])
    assert len(asked) == (name != "tanh")


@every_width
def test_a_reference_that_fails_leaves_the_run_undecided(isa: str) -> None:
    for error, raised in ((ValueError, Undecided), (MemoryError, Undecided), (KeyboardInterrupt, KeyboardInterrupt)):

        def reference(x: Array, error: Any = error) -> Array:
            raise error

        with pytest.raises(raised):
            engine(isa).run(planned("sigmoid", (1,), isa, reference=reference), [np.full(1, 2.0**-23, F)])


def test_each_run_raises_what_went_wrong_in_it() -> None:
    """Runs of several threads call the same reference: one is interrupted, and another fails before that one ends."""
    interrupted, ended, count = threading.Event(), threading.Event(), 5000
    raised = dict[str, BaseException]()

    def reference(x: Array) -> Array:
        if x.size == 1:
            raise ValueError
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt
        assert ended.wait(10)
        return x

    operation = planned("sigmoid", (count,), "generic", reference=reference)

    def run(name: str, doubtful: int) -> None:
        x = np.ones(count, F)
        x[:doubtful] = 2.0**-23
        try:
            engine("generic").run(operation, [x])
        except BaseException as error:
            raised[name] = error

    other = threading.Thread(target=run, args=("interrupted", count))
    other.start()
    assert interrupted.wait(10)
    run("failed", 1)
    ended.set()
    other.join()
    assert {name: type(error) for name, error in raised.items()} == {
        "failed": Undecided,
        "interrupted": KeyboardInterrupt,
    }


def test_of_several_failures_the_first_is_raised_but_for_interrupts() -> None:
    errors = [ValueError(), TypeError(), KeyboardInterrupt(), OSError()]
    marks = [mark_of(error) for error in errors]
    assert [errors[n] for n in np.argsort(marks)[::-1]] == [errors[n] for n in (2, 0, 1, 3)]
    assert [undecided(mark) for mark in marks] == errors
    assert [type(undecided(mark)) for mark in marks] == [Undecided, Undecided, KeyboardInterrupt, Undecided]


@pytest.mark.parametrize("threads", [1, 2])
def test_many_doubts_are_settled_some_hundred_at_a_time(threads: int) -> None:
    """x / 2 of the least numbers is a tie if x is odd."""
    asked: list[int] = []

    def reference(x: Array) -> Array:
        asked.append(x.size)
        return function("gelu")(x)

    x = (np.random.default_rng(17).integers(1, 2**20, 50000) * 2 + 1).astype(np.uint32).view(F)
    got = engine("generic", threads).run(planned("gelu", x.shape, "generic", threads, reference), [x])
    assert_equal(got, function("gelu")(x))
    assert sum(asked) >= x.size
    assert len(asked) <= 150


def test_an_interrupt_that_leaves_no_trace_is_raised() -> None:
    """The reference never begins, as if the signal came first."""
    operation = planned("sigmoid", (1,), "generic", reference=lambda x: x)
    (recheck,) = operation.rechecks
    nothing = type(recheck._call)(lambda *arguments: 0)
    recheck.address = int(ctypes.cast(nothing, ctypes.c_void_p).value or 0)
    x = np.full(1, 2.0**-23, F)
    with pytest.raises(KeyboardInterrupt):
        engine("generic").run(operation, [x])


@pytest.mark.parametrize("later", [False, True])
def test_a_session_asks_the_reference_kernel_where_settling_fails(later: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is no memory for it, in a first run and in a program."""
    x = np.array([2.0**-23, 1], F)
    model, feeds = node_model("Sigmoid", [x])
    session = qrun.Session(model, cache=OBJECTS)
    want = qrun.Session(model, backend="reference").run(feeds)["y0"]
    for _ in range(2 * later):
        assert_equal(session.run({"i0": np.array([3, 1], F)})["y0"], function("sigmoid")(np.array([3, 1], F)))

    def fail(*arguments: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("qrun.native.machine.call._Rows", fail)
        assert_equal(session.run(feeds)["y0"], want)
    assert_equal(session.run(feeds)["y0"], want)


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
                    lying = operation.lying(order)
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
                got = run_placed(engine(isa), operation.lying(order), [x, y], (0, 0, 0), True)
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
                got = run_placed(engine(isa), operation.lying(order), arrays, (0,) * 4)
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
        model, feeds = node_model(op_type, inputs, outputs=[np.dtype(output)], opset=16)
        result = same_everywhere(model, feeds, threads=threads)
        assert [event.backend for event in result.events] == ["native"], op_type


@every_width
def test_rows_with_gaps(isa: str) -> None:
    rng = np.random.default_rng(14)
    x, y = (numbers(rng, 2 * 9 * 6).reshape(2, 9, 6) for _ in range(2))
    operation = Elementwise(engine(isa), "add", [Operand(x.shape, x.dtype)] * 2).lying("channels")
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

    def reference(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.power(x.astype(np.float64), np.full(x.shape, float(F(exponent)))).astype(F)

    name = "real_power" if exponent % 1 else "odd_power" if exponent % 2 else "even_power"
    for x in (numbers(rng, 3000), rng.lognormal(0, 2, 3001).astype(F), (1 + rng.normal(0, 1e-3, 3000)).astype(F)):
        operation = Elementwise(engine(isa), name, [Operand(x.shape, x.dtype)], (exponent,), reference)
        assert_equal(run_placed(engine(isa), operation, [x], (0, 0)), reference(x), f"{exponent}")


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@every_width
def test_angles_of_many_turns(isa: str, name: str) -> None:
    """Next to multiples of a right angle, up to the one beyond which the reference knows the function."""
    asked: list[int] = []

    def reference(x: Array) -> Array:
        asked.append(x.size)
        return function(name)(x)

    x = (np.arange(1 << 15, dtype=np.float64) * 81 * (np.pi / 2)).astype(F)
    got = engine(isa).run(planned(name, x.shape, isa, reference=reference), [x])
    assert_equal(got, function(name)(x))
    assert len(asked) <= 3
    wide = np.array([2.0**22, -(2.0**22 + 0.5), 1e30, 3], F)
    assert_equal(engine(isa).run(planned(name, wide.shape, isa, reference=reference), [wide]), function(name)(wide))


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
    places, (domain, _, name) = list(range(1, len(others) + 1)), op_type.rpartition("::")
    output = np.dtype(np.bool_ if name.startswith("Is") else F)
    model, feeds = node_model(
        name, [x, *others], attributes, outputs=[output], opset=opset, domain=domain, constants=places
    )
    result = same_everywhere(model, feeds, threads=threads)
    assert [event.backend for event in result.events] == ["native"]
    assert all(section.form.replace("_", "").isalnum() for event in result.events for section in event.sections)


NO_POWERS = (0.0, np.inf, np.nan, 1e39, 0.1)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "why"),
    [
        ("Exp", [np.ones(3)], {}, "no native kernel for float64"),
        ("Where", [np.ones(3, bool), *[np.ones(3, np.complex128)] * 2], {}, "no native choice of complex128"),
        ("Pow", [np.ones(3, F), np.array(3, F)], {}, "Y is not constant"),
        *(
            ("Pow", [np.ones(3, F), np.array(y)], {}, "an exponent that is 0, or no finite float32 number")
            for y in NO_POWERS
        ),
        ("Pow", [np.ones(3, F), np.full(3, 4, F)], {}, "Y is not one exponent for all of X"),
        ("IsInf", [np.ones(3)], {}, "no native kernel for float64"),
    ],
)
def test_what_the_reference_runs(op_type: str, inputs: list[Any], attributes: dict[str, Any], why: str) -> None:
    output = np.bool_ if op_type == "IsInf" else inputs[-(op_type == "Where")].dtype
    constants = [1] if op_type == "Pow" and "constant" not in why else []
    model, feeds = node_model(op_type, inputs, attributes, outputs=[output], constants=constants)
    assert_left(model, feeds, why)


def test_checks_are_those_of_the_reference() -> None:
    x = np.ones((2, 3), F)
    for op_type, others, attributes, message in (
        ("Clip", [np.ones(2, F)], {}, "min is not a scalar"),
        ("Gelu", [], {"approximate": "cosh"}, "approximate is cosh"),
        ("Add", [np.ones(2, F)], {}, "the inputs' shapes do not broadcast"),
    ):
        model, feeds = node_model(op_type, [x, *others], attributes, constants=[1])
        for backend in ("reference", "native"):
            with pytest.raises(qrun.QrunError, match=message):
                qrun.Session(model, backend=backend, cache=OBJECTS).run(feeds)


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
