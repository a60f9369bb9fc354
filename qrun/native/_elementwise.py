"""Generated elementwise functions of one or two float32 operands, or of integers that become float32."""

from __future__ import annotations

from collections.abc import Callable

from qrun.native._doubts import Doubts
from qrun.native._ir import every
from qrun.native._numbers import Numbers
from qrun.native._strided import Strided, outer_names
from qrun.native.isa import Isa
from qrun.native.spec import KernelSpec

OPERANDS = {1: ("x0", "y"), 2: ("x0", "x1", "y")}
OWN = ("columns", "last", "p!", "q!", "settle*")
"""One 8-byte word each.

columns, last  elements of a row, and where its last block starts: it overlaps
p, q           float32 constants of the function
settle         what makes results that float64 does not decide
"""
SOURCES = {"v": ("float", 4), "s": ("float", 4), "i": ("i32", 4), "u": ("i8", 1), "b": ("i8", 1)}
"""Kinds of operands: float32, one float32 for all elements of a row; int32, uint8 and int8."""

Write = Callable[["Elementwise", list[str]], str]
SINGLE: dict[str, Write] = {
    "add": lambda k, v: k.op("fadd", *v),
    "sub": lambda k, v: k.op("fsub", *v),
    "mul": lambda k, v: k.op("fmul", *v),
    "div": lambda k, v: k.op("fdiv", *v),
    "square": lambda k, v: k.op("fmul", v[0], v[0]),
    "reciprocal": lambda k, v: k.op("fdiv", every("float", "1.0", k.spec.rows), v[0]),
    "relu": lambda k, v: k.choose("ugt", v[0], "zeroinitializer", v[0], "zeroinitializer"),
    "leaky_relu": lambda k, v: k.choose("olt", v[0], "zeroinitializer", k.op("fmul", k.constant("p"), v[0]), v[0]),
    "clip": lambda k, v: k.clipped(v[0], k.constant("p"), k.constant("q")),
    "abs": lambda k, v: k.intrinsic("fabs", v[0]),
    "neg": lambda k, v: k.w.let(f"fneg {k.kind} {v[0]}"),
    "sqrt": lambda k, v: k.intrinsic("sqrt", v[0]),
    "cast": lambda k, v: v[0],
}
"""Functions that float32 arithmetic rounds right; p and q: the slope, or the limits."""
EXACT: dict[str, Write] = {
    "hard_sigmoid": lambda k, v: k.hard(v[0]),
    "hard_swish": lambda k, v: k.wide.op("fmul", v[0], k.hard(k.wide.op("fdiv", v[0], k.wide.const(6.0)), True)),
}
"""Functions whose float64 steps are those of the definition, rounded once more; p and q: alpha and beta."""
CLOSE: dict[str, Write] = {
    "exp": lambda k, v: k.wide.exp(v[0]),
    "tanh": lambda k, v: k.wide.tanh(v[0]),
    "sigmoid": lambda k, v: k.wide.sigmoid(v[0]),
    "erf": lambda k, v: k.wide.erf(v[0]),
    "gelu": lambda k, v: k.wide.gelu(v[0]),
    "cube": lambda k, v: k.wide.op("fmul", k.wide.op("fmul", v[0], v[0]), v[0]),
    "swish": lambda k, v: k.wide.op("fmul", v[0], k.wide.sigmoid(k.wide.op("fmul", k.wide_constant("p"), v[0]))),
}
"""Functions known to a relative error, far below that of float32, in float64; p: alpha."""
_REACH = 2.0**-47
"""More than twice that error, and that of the reference."""
_GELU_REACH = 2.0**-50
"""The same for each x**2 in the error of gelu."""
_FAR = 256.0
"""The x**2 beyond which gelu is x, or 0."""


class Elementwise(Strided):
    """`rows` elements at once, the last ones of a row overlapping. form: the function; operands: their kinds."""

    kind: str
    wide: Numbers

    def __init__(self, spec: KernelSpec, isa: Isa) -> None:
        self.function, self.sources = spec.form, spec.operands
        self.operands = OPERANDS[len(self.sources)]
        self.names = (*outer_names(self.operands), *OWN)
        super().__init__(spec, isa)
        self.kind = f"<{spec.rows} x float>"
        self.wide = Numbers(self.w, isa, spec.rows)
        self.doubts = Doubts(self.w, self.a["settle"], spec.rows, spec.rows) if self.function in CLOSE else None

    def _chunk(self, first: str, end: str) -> None:
        w, a, *sources = self.w, self.a, *self.operands[:-1]
        same = {
            name: w.splat(self.spec.rows, "float", w.load("float", self.starts[name], 4))
            for name, kind in zip(sources, self.sources, strict=True)
            if kind == "s"
        }
        with w.loop(first, w.least(end, a["columns"]), self.spec.rows) as turn:
            place = w.least(turn.index, a["last"])
            pointers = [
                w.at(self.starts[name], w.mul(place, SOURCES[kind][1])) if kind != "s" else ""
                for name, kind in zip(sources, self.sources, strict=True)
            ]
            values = [
                same.get(name) or self._loaded(pointer, kind)
                for name, pointer, kind in zip(sources, pointers, self.sources, strict=True)
            ]
            self._store(values, pointers[0], w.at(self.starts["y"], w.mul(place, 4)))

    def end(self) -> None:
        if self.doubts is not None:
            self.doubts.end()

    def _loaded(self, pointer: str, kind: str) -> str:
        element, size = SOURCES[kind]
        value = self.w.load(f"<{self.spec.rows} x {element}>", pointer, size)
        if kind == "v":
            return value
        convert = "uitofp" if kind == "u" else "sitofp"
        return self.w.let(f"{convert} <{self.spec.rows} x {element}> {value} to {self.kind}")

    def _store(self, values: list[str], x: str, y: str) -> None:
        if self.function in SINGLE:
            self.w.store(self.kind, SINGLE[self.function](self, values), y, 4)
            return
        wide = [self.wide.wide(value) for value in values]
        if self.function in EXACT:
            self.w.store(self.kind, self.wide.single(EXACT[self.function](self, wide)), y, 4)
            return
        made = CLOSE[self.function](self, wide)
        self.w.store(self.kind, self.wide.single(made), y, 4)
        low, high = (self.wide.op("fmul", made, factor) for factor in self._reach(wide[0]))
        assert self.doubts is not None
        with self.w.when(self.wide.any(self.wide.differ(low, high))):
            self.doubts.add(x, y)

    def _reach(self, x: str) -> tuple[str, str]:
        """Factors of a result to the ends of what it may be."""
        wide = self.wide
        if self.function != "gelu":
            return wide.const(1 - _REACH), wide.const(1 + _REACH)
        square, most = wide.op("fmul", x, x), wide.const(_FAR)
        square = wide.choose("ogt", square, most, most, square)
        reach = wide.plus(square, wide.const(_GELU_REACH), wide.const(_REACH))
        return wide.op("fsub", wide.const(1.0), reach), wide.op("fadd", wide.const(1.0), reach)

    def op(self, name: str, a: str, b: str) -> str:
        return self.w.let(f"{name} {self.kind} {a}, {b}")

    def choose(self, test: str, a: str, b: str, yes: str, no: str) -> str:
        holds = self.w.let(f"fcmp {test} {self.kind} {a}, {b}")
        return self.w.let(f"select <{self.spec.rows} x i1> {holds}, {self.kind} {yes}, {self.kind} {no}")

    def clipped(self, x: str, low: str, high: str) -> str:
        raised = self.choose("olt", x, low, low, x)
        return self.choose("ogt", raised, high, high, raised)

    def intrinsic(self, name: str, x: str) -> str:
        return self.w.call(self.kind, f"llvm.{name}.v{self.spec.rows}f32", (self.kind, x))

    def constant(self, name: str) -> str:
        return self.w.splat(self.spec.rows, "float", self.w.let(f"bitcast i32 {self.a[name]} to float"))

    def wide_constant(self, name: str) -> str:
        return self.wide.wide(self.constant(name))

    def hard(self, x: str, fixed: bool = False) -> str:
        """p * x + q between 0 and 1; fixed: x + 1/2."""
        wide = self.wide
        scaled = x if fixed else wide.op("fmul", self.wide_constant("p"), x)
        moved = wide.op("fadd", scaled, wide.const(0.5) if fixed else self.wide_constant("q"))
        low = wide.choose("ult", moved, wide.const(1.0), moved, wide.const(1.0))
        return wide.choose("ugt", low, wide.const(0.0), low, wide.const(0.0))
