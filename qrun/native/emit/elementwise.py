"""Generated elementwise functions of one to three operands: float32, integers and bool."""

from __future__ import annotations

from collections.abc import Callable

from qrun.native.emit.isa import Isa
from qrun.native.emit.kernel import emitter
from qrun.native.emit.numbers import RecheckEmitter, at_most, erf, exp, gelu, rounds_apart, sigmoid, tanh
from qrun.native.emit.requantize import clipped, rectified
from qrun.native.emit.spec import KernelSpec
from qrun.native.emit.strided import StridedEmitter, outer_names
from qrun.native.emit.values import ZERO, Operand, Value, every

OPERANDS = {1: ("x0", "y"), 2: ("x0", "x1", "y"), 3: ("x0", "x1", "x2", "y")}
OWN = ("columns", "last", "p!", "q!", "recheck*")
"""One 8-byte word each.

columns, last  elements of a row, and where its last block starts: it overlaps
p, q           float32 constants of the function
recheck         what makes results that float64 does not decide
"""
KINDS = {
    "f": ("float", 4),
    "b": ("i8", 1),
    "h": ("i16", 2),
    "i": ("i32", 4),
    "l": ("i64", 8),
    "u": ("i8", 1),
    "t": ("i8", 1),
}
"""Kinds of operands: LLVM type and bytes. float32; signed integers of 8 to 64 bits, or whatever has as many; uint8; bool,
which is true where it is not 0. A capital stands for one element for all of a row."""

Write = Callable[["ElementwiseEmitter", list[Value]], Value]
SINGLE: dict[str, Write] = {
    "add": lambda k, v: v[0] + v[1],
    "sub": lambda k, v: v[0] - v[1],
    "mul": lambda k, v: v[0] * v[1],
    "div": lambda k, v: v[0] / v[1],
    "square": lambda k, v: v[0] * v[0],
    "reciprocal": lambda k, v: every("float", "1.0", k.spec.rows) / v[0],
    "relu": lambda k, v: rectified(v[0]),
    "leaky_relu": lambda k, v: k.leaky(v[0], k.constant("p") * v[0]),
    "clip": lambda k, v: clipped(v[0], k.constant("p"), k.constant("q")),
    "abs": lambda k, v: abs(v[0]),
    "neg": lambda k, v: -v[0],
    "sqrt": lambda k, v: v[0].sqrt(),
    "cast": lambda k, v: k.floating(v[0], k.sources[0].lower()),
    "where": lambda k, v: v[0].select(v[1], v[2]),
}
"""Functions that are exact, or that float32 arithmetic rounds right; p and q: the slope, or the limits."""
LOGICAL: dict[str, Write] = {
    "equal": lambda k, v: k.compared("eq", v),
    "greater": lambda k, v: k.compared("gt", v),
    "greater_or_equal": lambda k, v: k.compared("ge", v),
    "less": lambda k, v: k.compared("lt", v),
    "less_or_equal": lambda k, v: k.compared("le", v),
    "and": lambda k, v: v[0] & v[1],
    "or": lambda k, v: v[0] | v[1],
    "xor": lambda k, v: v[0] ^ v[1],
    "not": lambda k, v: v[0].test("eq", 0),
}
"""Functions whose result is bool."""
TYPES = {
    **dict.fromkeys(("add", "sub", "mul"), "fil"),
    **dict.fromkeys(("greater", "greater_or_equal", "less", "less_or_equal"), "filub"),
    **dict.fromkeys(("and", "or", "xor", "not"), "t"),
    "equal": "filubt",
    "cast": "filubt",
}
"""The kinds that functions take besides float32; `where` takes bool and two of the same kind."""
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

    function: str
    sources: str

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.function, self.sources = spec.form, spec.operands
        self.operands = OPERANDS[len(self.sources)]
        self.names = (*outer_names(self.operands), *OWN)
        super().__init__(spec, isa)
        self.doubts = RecheckEmitter(self.w, self.a.recheck, spec.rows, spec.rows) if self.function in CLOSE else None

    def _chunk(self, first: Value, end: Value) -> None:
        w, a, n = self.w, self.a, self.spec.rows
        sources = list(zip(self.operands, self.sources, strict=False))
        same = {
            name: self._told(self.starts[name].load(*KINDS[kind.lower()]).splat(n), kind)
            for name, kind in sources
            if kind.isupper()
        }
        with w.loop(first, end.least(a.columns), n) as turn:
            place = turn.index.least(a.last)
            pointers = {name: self.starts[name] + place * KINDS[kind][1] for name, kind in sources if kind.islower()}
            values = [
                same[name] if name in same else self._told(self._loaded(pointers[name], kind), kind)
                for name, kind in sources
            ]
            self._store(values, pointers.get("x0", self.starts["x0"]), place)

    def end(self) -> None:
        if self.doubts is not None:
            self.doubts.end()

    def _loaded(self, pointer: Value, kind: str) -> Value:
        element, size = KINDS[kind]
        return pointer.load(f"<{self.spec.rows} x {element}>", size)

    @staticmethod
    def _told(value: Value, kind: str) -> Value:
        """The operand as functions see it: bool as i1."""
        return value.test("ne", 0) if kind in "tT" else value

    def _store(self, values: list[Value], x: Value, place: Value) -> None:
        y = self.starts["y"]
        plain = SINGLE | LOGICAL
        if self.function in plain:
            made = plain[self.function](self, values)
            made = made.zext("i8") if made.element == "i1" else made
            size = 4 if made.real else int(made.element[1:]) // 8
            (y + place * size).store(made, size)
            return
        y = y + place * 4
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
    def floating(value: Value, kind: str) -> Value:
        """An operand of this kind as float32."""
        return value if kind == "f" else value.uitofp("float") if kind in "ut" else value.sitofp("float")

    def compared(self, how: str, values: list[Value]) -> Value:
        """Whether the two operands compare so, as i1; NaN compares as false."""
        kind = self.sources[0].lower()
        sign = "o" if kind == "f" else "" if how == "eq" else "u" if kind == "u" else "s"
        return values[0].test(sign + how, values[1])

    @staticmethod
    def leaky(x: Value, below: Value) -> Value:
        return x.test("olt", ZERO).select(below, x)

    def constant(self, name: str) -> Value:
        return self.a[name].bitcast("float").splat(self.spec.rows)

    def hard(self, x: Value, fixed: bool = False) -> Value:
        """p * x + q between 0 and 1; fixed: x + 1/2."""
        scaled = x if fixed else self.constant("p").double() * x
        moved = scaled + (0.5 if fixed else self.constant("q").double())
        return moved.where("ult", 1.0).where("ugt", 0.0)
