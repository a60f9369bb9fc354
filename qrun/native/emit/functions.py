"""Generated elementwise functions of float32, integers and bool; and the kernel that evaluates an expression of them in
one pass over memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from operator import add

from qrun.formulas import single, wide
from qrun.native.emit import conversions, expression
from qrun.native.emit.conversions import ROUNDINGS, Way, convert
from qrun.native.emit.expression import (
    ANGLES,
    CONSTANTS,
    DIVISIONS,
    KINDS,
    QUANTIZED,
    UNSIGNED,
    FunctionStep,
    kind_of_result,
    operand_names,
)
from qrun.native.emit.kernel import Isa, KernelSpec, emitter
from qrun.native.emit.numbers import fma_once
from qrun.native.emit.requantize import clip, rectify
from qrun.native.emit.spec import OUTER
from qrun.native.emit.strided import StridedEmitter
from qrun.native.emit.values import MAGIC32, ZERO, Value, splat_constant

exp, share, sigmoid, tanh, erf, gelu, gelu_by_tanh, swish = (
    partial(function, fma=fma_once)
    for function in (
        single.exp, single.share, single.sigmoid, single.tanh, single.erf, single.gelu, single.gelu_by_tanh,
        single.swish,
    )
)  # fmt: skip
"""The functions of qrun/formulas on float32 vectors, as numerics.md (F41) defines them."""
_OWN = ("n1", "n2", "chunks", "chunk", "units", "share", "tiles", "columns", "last", "strides*", "constants*")
"""The argument words, 8 bytes each. n1 to tiles: as in emit/strided.py.

columns, last  elements of a row, and where its last block starts: it overlaps
strides        int64 [operands][OUTER]: bytes along the outer axes
constants      float32: the constants of all steps, one after the other
"""


class FunctionCall:
    """One use of a function in an expression.

    lanes: lanes of its vectors. kind: kind of its last operand. constants: vectors of float; the first two are p and q.
    """

    def __init__(self, lanes: int, kind: str, constants: list[Value]) -> None:
        self.lanes, self.kind, self.constants = lanes, kind, constants

    @property
    def p(self) -> Value:
        """The function's first constant."""
        return self.constants[0]

    @property
    def q(self) -> Value:
        """The function's second constant."""
        return self.constants[1]

    def to_float(self, value: Value) -> Value:
        """The operand as float32 lanes."""
        return convert(value, self.kind, "f")

    def compare(self, how: str, values: list[Value]) -> Value:
        """Whether the comparison `how` holds for the two operands: an i1 in each lane, false where one is NaN."""
        sign = "o" if self.kind in "fd" else "" if how == "eq" else "u" if self.kind in UNSIGNED else "s"
        return values[0].test(sign + how, values[1])

    def leaky(self, x: Value) -> Value:
        below = self.p * x
        return x.test("olt", ZERO).select(below, x)

    def fake_quantize(self, values: list[Value], way: Way) -> Value:
        """(way(clip(x / scale + zero point, p, q)) - zero point) * scale. NaN stays NaN, except with `way` sign."""
        x, scale, zero = values
        return (way(clip(x / scale + zero, self.p, self.q)) - zero) * scale

    def quantize(self, x: Value) -> Value:
        """x divided by a scale, rounded to an integer, plus a zero point: i16, saturated; NaN becomes the least code.

        constants: scale; the least and the greatest code, each minus the zero point; zero point. All but the scale are
        integers of at most 17 bits, so that adding MAGIC32 keeps them exact.
        """
        scale, low, high, zero = self.constants
        return ((x / scale).within(low, high) + MAGIC32 + zero).bitcast("i32").trunc("i16")

    def sign(self, x: Value) -> Value:
        return x.test("ogt", ZERO).select(1.0, x.test("olt", ZERO).select(x.like(-1.0), x.like(0.0)))

    def extreme(self, values: list[Value], name: str) -> Value:
        """The greatest or least of the operands; name: max or min. Floats give NaN if one is NaN, and -0 < +0."""
        how = f"{name}imum" if self.kind in "fd" else f"u{name}" if self.kind in UNSIGNED else f"s{name}"
        return reduce(lambda a, b: a.intrinsic(how, b), values)

    def total(self, values: list[Value]) -> Value:
        """The sum from left to right, in float64. A sum of zeros is +0."""
        return reduce(add, values[1:], values[0] + 0.0)

    def hard(self, x: Value, fixed: bool = False) -> Value:
        """p * x + q clipped to 0..1; with `fixed`, x + 1/2 clipped to 0..1."""
        scaled = x if fixed else self.p.double() * x
        moved = scaled + (0.5 if fixed else self.q.double())
        return moved.where("ult", 1.0).where("ugt", 0.0)

    def shrink(self, x: Value) -> Value:
        """x moved by p towards 0; 0 where abs(x) <= q."""
        bias, limit = self.p.double(), self.q.double()
        return x.test("olt", -limit).select(x + bias, x.test("ogt", limit).select(x - bias, x.like(0.0)))


def one_nan(made: Value) -> Value:
    """The same value, in which every NaN has one bit pattern."""
    return made.test("uno", made).select(math.nan, made)


Write = Callable[[FunctionCall, list[Value]], Value]


def _conversion(kind: str) -> Write:
    """The writer of a conversion of one operand to the call's type."""
    return lambda call, values: convert(values[0], call.kind, kind)


def _of_single(function: Callable[[Value], Value]) -> Write:
    """The writer of a function of one float32 operand; NaN results become one NaN."""
    return lambda k, v: one_nan(function(v[0]))


_IN_SINGLE: dict[str, Callable[[Value], Value]] = {
    "exp": exp,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "gelu": gelu,
    "gelu_by_tanh": gelu_by_tanh,
}
SINGLE: dict[str, Write] = {
    "add": lambda k, v: v[0] + v[1],
    "sub": lambda k, v: v[0] - v[1],
    "mul": lambda k, v: v[0] * v[1],
    "div": lambda k, v: v[0] / v[1],
    "quotient": lambda k, v: conversions.quotient(v[0], v[1], k.kind),
    "remainder": lambda k, v: conversions.remainder(v[0], v[1], k.kind),
    "modulo": lambda k, v: conversions.modulo(v[0], v[1], k.kind),
    "square": lambda k, v: v[0] * v[0],
    "reciprocal": lambda k, v: splat_constant("float", "1.0", k.lanes) / v[0],
    "relu": lambda k, v: rectify(v[0]),
    "leaky_relu": lambda k, v: k.leaky(v[0]),
    "clip": lambda k, v: clip(v[0], k.p, k.q),
    "abs": lambda k, v: abs(v[0]),
    "neg": lambda k, v: -v[0],
    "sqrt": lambda k, v: v[0].sqrt(),
    "round": lambda k, v: conversions.whole(v[0]),
    "floor": lambda k, v: conversions.floor(v[0]),
    "ceil": lambda k, v: conversions.ceil(v[0]),
    **{f"fake_quantize_{name}": partial(FunctionCall.fake_quantize, way=way) for name, way in ROUNDINGS.items()},
    "bipolar": lambda k, v: v[0].test("oge", ZERO).select(v[1], -v[1]),
    "cast": lambda k, v: k.to_float(v[0]),
    "dequantize": lambda k, v: (k.to_float(v[0]) - k.q) * k.p,
    **dict.fromkeys(QUANTIZED, lambda k, v: k.quantize(v[0])),
    **{name: _conversion(kind) for name, kind in expression.CONVERSIONS.items()},
    "where": lambda k, v: v[0].select(v[1], v[2]),
    "max": lambda k, v: k.extreme(v, "max"),
    "min": lambda k, v: k.extreme(v, "min"),
    "p_relu": lambda k, v: v[0].test("olt", ZERO).select(v[1] * v[0], v[0]),
    "thresholded_relu": lambda k, v: v[0].test("ogt", k.p).select(v[0], ZERO),
    "sign": lambda k, v: v[0].test("uno", ZERO).select(v[0], k.sign(v[0])),
    **{name: _of_single(function) for name, function in _IN_SINGLE.items()},
    "swish": lambda k, v: one_nan(swish(v[0], k.p)),
    "to_f16": lambda k, v: conversions.narrow_to_bits(v[0], "f16"),
    "to_bf16": lambda k, v: conversions.narrow_to_bits(v[0], "bf16"),
}
"""Functions that are exact, or are defined in float32 arithmetic.
p and q: the slope, the limits, or scale and zero point."""
LOGICAL: dict[str, Write] = {
    "equal": lambda k, v: k.compare("eq", v),
    "greater": lambda k, v: k.compare("gt", v),
    "greater_or_equal": lambda k, v: k.compare("ge", v),
    "less": lambda k, v: k.compare("lt", v),
    "less_or_equal": lambda k, v: k.compare("le", v),
    "and": lambda k, v: v[0] & v[1],
    "or": lambda k, v: v[0] | v[1],
    "xor": lambda k, v: v[0] ^ v[1],
    "not": lambda k, v: v[0].test("eq", 0),
    "is_nan": lambda k, v: v[0].test("uno", ZERO),
    "is_inf": lambda k, v: v[0].test("oeq", k.p) | v[0].test("oeq", k.q),
}
"""Functions whose result is bool. p and q of ``is_inf``: the infinities that count."""


def _in_double(function: Callable[..., Value], constants: int) -> Write:
    """Write a function of float64. constants: how many of them it takes."""
    return lambda k, v: function(v[0], *(number.double() for number in k.constants[:constants]))


EXACT: dict[str, Write] = {
    "hard_sigmoid": lambda k, v: k.hard(v[0]),
    "hard_swish": lambda k, v: v[0] * k.hard(v[0] / 6.0, True),
    "softsign": lambda k, v: v[0] / (abs(v[0]) + 1.0),
    "sum": lambda k, v: k.total(v),
    "mean": lambda k, v: k.total(v) / float(len(v)),
    "shrink": lambda k, v: k.shrink(v[0]),
    **{function.__name__: _in_double(function, CONSTANTS.get(function.__name__, 0)) for function in wide.FUNCTIONS},
}
"""Functions that are defined in float64 steps and rounded once at the end. p and q: alpha and beta."""
_WIDER: dict[str, Write] = {"leaky_relu": lambda k, v: v[0].test("olt", ZERO).select(k.p.double() * v[0], v[0])}
"""Functions that are computed in float64 for types narrower than float32, since float32 would round twice."""


UNDECIDED: dict[str, Callable[[list[Value]], Value]] = {
    **dict.fromkeys(DIVISIONS, lambda values: values[1].test("eq", 0)),
    **dict.fromkeys(ANGLES, lambda values: wide.too_wide(values[0].double())),
}
"""For each function that may be undecided: an i1 in each lane, true where the reference must compute the results."""


class StepsEmitter:
    """Writes the steps of an expression on vectors. Values have numbers: first the operands, then the steps' results.

    kinds: the kinds of all values. read: how many operands there are. last: the number of the result.
    constants: the address of the constants of all steps. lanes: lanes of the vectors.
    """

    def __init__(self, form: str, kinds: str, lanes: int, constants: Value) -> None:
        self.w, self.lanes, self.kinds, self.read = constants.w, lanes, list(kinds.lower()), len(kinds)
        self._steps = [FunctionStep.read(text) for text in form.split(" ")]
        self.last = self.read + len(self._steps) - 1
        self.calls: list[FunctionCall] = []
        for step in self._steps:
            kind, count = self.kinds[step.values[-1]], CONSTANTS.get(step.function, 0)
            vectors = [(constants + 4 * n).load("float", 4).splat(lanes) for n in range(count)]
            constants = constants + 4 * count
            self.calls.append(FunctionCall(lanes, kind, vectors))
            self.kinds.append(kind_of_result(step.function, kind))

    def step(self, number: int) -> FunctionStep:
        """The step with this number; numbers count the operands first."""
        return self._steps[number - self.read]

    def call(self, number: int) -> FunctionCall:
        """The function call of the step with this number; numbers count the operands first."""
        return self.calls[number - self.read]

    def load_operand(self, number: int, start: Value, index: Value) -> Value:
        """Load a vector of an operand's elements, from element `index` on."""
        element, size = KINDS[self.kinds[number]]
        return self._to_function_form((start + index * size).load(f"<{self.lanes} x {element}>", size), number)

    def same(self, number: int, start: Value) -> Value:
        """Load an operand's single element into all lanes."""
        return self._to_function_form(start.load(*KINDS[self.kinds[number]]).splat(self.lanes), number)

    def _to_function_form(self, value: Value, number: int) -> Value:
        """Convert loaded elements to the form that functions take: bool becomes i1."""
        return value.test("ne", 0) if self.kinds[number] == "t" else value

    def emit_step(self, number: int, values: list[Value]) -> Value:
        """Write a step. values: its operands. Returns its result."""
        step, call = self.step(number), self.call(number)
        in_double = EXACT | _WIDER if step.narrow else EXACT
        with self.rounding(number):
            if step.function in in_double:
                return in_double[step.function](call, [value.double() for value in values]).single()
        made = (SINGLE | LOGICAL)[step.function](call, values)
        return conversions.round_to_format(made, conversions.FORMATS[step.narrow]) if step.narrow else made

    @contextmanager
    def rounding(self, number: int) -> Iterator[None]:
        """Write the body so that conversions of float64 round to this step's narrower type, if it has one."""
        narrow, before = self.step(number).narrow, self.w.narrowing
        self.w.narrowing = partial(conversions.round_to_format, form=conversions.FORMATS[narrow]) if narrow else None
        yield
        self.w.narrowing = before


@emitter("elementwise")
class ElementwiseEmitter(StridedEmitter):
    """Evaluates an expression for `rows` elements at once; the last block of a row overlaps the one before.
    form: the steps. operands: the kinds of the operands."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.operands = operand_names(len(spec.operands))
        self.names = (*(f"{name}*" for name in self.operands), *_OWN)
        super().__init__(spec, isa)
        self.steps = StepsEmitter(spec.form, spec.operands, spec.rows, self.a.constants)

    def stride(self, name: str, axis: int) -> Value:
        """The bytes between two elements of an operand along an outer axis."""
        word = self.operands.index(name) * OUTER + axis
        return (self.a.strides + 8 * word).load("i64", 8)

    def _chunk(self, first: Value, end: Value) -> None:
        """Write the function of the columns `first` to `end` of a row."""
        w, a, steps = self.w, self.a, self.steps
        kinds = list(enumerate(self.spec.operands))
        same = {number: steps.same(number, self.starts[f"x{number}"]) for number, kind in kinds if kind.isupper()}
        with w.loop(first, end.least(a.columns), self.spec.rows) as turn:
            index = turn.index.least(a.last)
            values = [
                same[number] if kind.isupper() else steps.load_operand(number, self.starts[f"x{number}"], index)
                for number, kind in kinds
            ]
            for number in range(steps.read, steps.last + 1):
                given = [values[value] for value in steps.step(number).values]
                if unclear := UNDECIDED.get(steps.step(number).function):
                    with w.when(unclear(given).any()):
                        w.mark_undecided()
                values.append(steps.emit_step(number, given))
            made = values[-1].zext("i8") if values[-1].element == "i1" else values[-1]
            size = {"float": 4, "double": 8}.get(made.element) or int(made.element[1:]) // 8
            (self.starts["y"] + index * size).store(made, size)
