"""Generated elementwise functions of one or two float32 operands, or of integers that become float32."""

from __future__ import annotations

from collections.abc import Callable

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter
from qrun.native.emit.numbers import RecheckEmitter, at_most, erf, exp, gelu, rounds_apart, sigmoid, tanh
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.strided import StridedEmitter, outer_names
from qrun.native.emit.values import ZERO, Operand, Value, every

OPERANDS = {1: ("x0", "y"), 2: ("x0", "x1", "y")}
OWN = ("columns", "last", "p!", "q!", "recheck*")
"""One 8-byte word each.

columns, last  elements of a row, and where its last block starts: it overlaps
p, q           float32 constants of the function
recheck         what makes results that float64 does not decide
"""
SOURCES = {"v": ("float", 4), "s": ("float", 4), "i": ("i32", 4), "u": ("i8", 1), "b": ("i8", 1)}
"""Kinds of operands: float32, one float32 for all elements of a row; int32, uint8 and int8."""

Write = Callable[["ElementwiseEmitter", list[Value]], Value]
SINGLE: dict[str, Write] = {
    "add": lambda k, v: v[0] + v[1],
    "sub": lambda k, v: v[0] - v[1],
    "mul": lambda k, v: v[0] * v[1],
    "div": lambda k, v: v[0] / v[1],
    "square": lambda k, v: v[0] * v[0],
    "reciprocal": lambda k, v: every("float", "1.0", k.spec.rows) / v[0],
    "relu": lambda k, v: v[0].where("ugt", ZERO),
    "leaky_relu": lambda k, v: k.leaky(v[0], k.constant("p") * v[0]),
    "clip": lambda k, v: k.clipped(v[0], k.constant("p"), k.constant("q")),
    "abs": lambda k, v: abs(v[0]),
    "neg": lambda k, v: -v[0],
    "sqrt": lambda k, v: v[0].sqrt(),
    "cast": lambda k, v: v[0],
}
"""Functions that float32 arithmetic rounds right; p and q: the slope, or the limits."""
EXACT: dict[str, Write] = {
    "hard_sigmoid": lambda k, v: k.hard(v[0]),
    "hard_swish": lambda k, v: v[0] * k.hard(v[0] / 6.0, True),
}
"""Functions whose float64 steps are those of the definition, rounded once more; p and q: alpha and beta."""
CLOSE: dict[str, Write] = {
    "exp": lambda k, v: exp(v[0]),
    "tanh": lambda k, v: tanh(v[0]),
    "sigmoid": lambda k, v: sigmoid(v[0]),
    "erf": lambda k, v: erf(v[0]),
    "gelu": lambda k, v: gelu(v[0]),
    "cube": lambda k, v: v[0] * v[0] * v[0],
    "swish": lambda k, v: v[0] * sigmoid(k.constant("p").double() * v[0]),
}
"""Functions known to a relative error, far below that of float32, in float64; p: alpha."""
_REACH = 2.0**-47
"""More than twice that error, and that of the reference."""
_GELU_REACH = 2.0**-50
"""The same for each x**2 in the error of gelu."""
_FAR = 256.0
"""The x**2 beyond which gelu is x, or 0."""


@emitter("elementwise")
class ElementwiseEmitter(StridedEmitter):
    """`rows` elements at once, the last ones of a row overlapping. form: the function; operands: their kinds."""

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.function, self.sources = spec.form, spec.operands
        self.operands = OPERANDS[len(self.sources)]
        self.names = (*outer_names(self.operands), *OWN)
        super().__init__(spec, isa)
        self.doubts = RecheckEmitter(self.w, self.a.recheck, spec.rows, spec.rows) if self.function in CLOSE else None

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        sources = list(zip(self.operands, self.sources, strict=False))
        same = {name: self.starts[name].load("float", 4).splat(n) for name, kind in sources if kind == "s"}
        with w.loop(first, end.least(a.columns), n) as turn:
            place = turn.index.least(a.last)
            pointers = {name: self.starts[name] + place * SOURCES[kind][1] for name, kind in sources if kind != "s"}
            values = [same[name] if kind == "s" else self._loaded(pointers[name], kind) for name, kind in sources]
            self._store(values, pointers.get("x0", self.starts["x0"]), self.starts["y"] + place * 4)

    def end(self) -> None:
        if self.doubts is not None:
            self.doubts.end()

    def _loaded(self, pointer: Value, kind: str) -> Value:
        element, size = SOURCES[kind]
        value = pointer.load(f"<{self.spec.rows} x {element}>", size)
        if kind == "v":
            return value
        return value.uitofp("float") if kind == "u" else value.sitofp("float")

    def _store(self, values: list[Value], x: Value, y: Value) -> None:
        if self.function in SINGLE:
            y.store(SINGLE[self.function](self, values), 4)
            return
        wide = [value.double() for value in values]
        made = (EXACT | CLOSE)[self.function](self, wide)
        y.store(made.single(), 4)
        if self.doubts is not None:
            low, high = (made * factor for factor in self._reach(wide[0]))
            with self.w.when(rounds_apart(low, high).any()):
                self.doubts.add(x, y)

    def _reach(self, x: Value) -> tuple[Operand, Operand]:
        """Factors of a result to the ends of what it may be."""
        if self.function != "gelu":
            return 1 - _REACH, 1 + _REACH
        reach = at_most(x * x, _FAR).fma(_GELU_REACH, _REACH)
        return 1.0 - reach, 1.0 + reach

    @staticmethod
    def leaky(x: Value, below: Value) -> Value:
        return x.test("olt", ZERO).select(below, x)

    @staticmethod
    def clipped(x: Value, low: Value, high: Value) -> Value:
        raised = x.test("olt", low).select(low, x)
        return raised.test("ogt", high).select(high, raised)

    def constant(self, name: str) -> Value:
        return self.a[name].bitcast("float").splat(self.spec.rows)

    def hard(self, x: Value, fixed: bool = False) -> Value:
        """p * x + q between 0 and 1; fixed: x + 1/2."""
        scaled = x if fixed else self.constant("p").double() * x
        moved = scaled + (0.5 if fixed else self.constant("q").double())
        return moved.where("ult", 1.0).where("ugt", 0.0)
