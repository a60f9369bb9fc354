"""Functions of float64 vectors in IR, with relative errors below 2**-49: exponentials, hyperbolic and error functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native._flow import Flow
from qrun.native._ir import every, real
from qrun.native.isa import Isa

_LOG2E = 1.4426950408889634
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
"""Its first 32 bits, of which up to 2**20 times are exact, and the rest."""
_MAGIC = 1.5 * 2.0**52
_LONG = 16
"""Terms of a polynomial."""
_FARTHEST = 700.0
"""exp(-700) is nothing beside any float32."""
_EXPONENTIAL = (
    1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800, 1 / 479001600,
    1 / 6227020800,
)  # fmt: skip
"""(exp(r) - 1 - r) / r**2 in powers of r, for |r| <= log(2) / 2: the Taylor series."""
_ERF = (
    0.35353099564340495, -0.17657623330137173, 0.13167511689470185, -0.10771044252853698, 0.09020899411202223,
    -0.07472786574638322, 0.059886904985558306, -0.045765110393282064, 0.03306063261260751,
    -0.022473568774278918, 0.01434959947762943, -0.008606218602606526, 0.004853548845813635,
    -0.0025782331270215427, 0.0012926184084697087, -0.0006129202594121136, 0.00027552825256824045,
    -0.00011777389781220357, 4.7869467481945765e-05, -1.841467349958465e-05, 6.829661634522152e-06,
    -2.5504790474201778e-06, 8.633457519391031e-07, -2.0907480664485068e-07, 6.712311653962587e-08,
    -4.461685451537265e-08, 1.2789838221297171e-08,
)  # fmt: skip
"""erf(x) / x in powers of x**2 / 8 - 1, for |x| <= 4: the Chebyshev series of degree 26."""
_TAIL = (
    1.7878818679355548, 1.2593917511138821, 0.6579901198570887, 0.24290378876365135, 0.053589115262072023,
    0.0013761448599770567, -0.002864640706782241, -0.0004631728200355249, 0.00016854406423011083,
    4.222788423925295e-05, -1.4089967183972058e-05, -3.1874863453411462e-06, 1.5246725148620494e-06,
    1.5850136355454486e-07, -1.7347770015387239e-07, 8.691037953704803e-09, 1.726140444099867e-08,
    -3.6465480484339603e-09, -1.1979940420920052e-09, 4.026400350570169e-10, 3.293324032354211e-11,
)  # fmt: skip
"""(x + 4) exp(x**2 / 2) erfc(x / sqrt(2)) in powers of 10 / (x + 4) - 1.5, for 0 <= x <= 16: the Chebyshev series of
degree 20."""


class Numbers:
    """Writes float64 arithmetic on vectors of n lanes."""

    def __init__(self, w: Flow, isa: Isa, n: int) -> None:
        self.w, self.n, self.fused = w, n, isa.fma
        self.kind, self.bits, self.bools = f"<{n} x double>", f"<{n} x i64>", f"<{n} x i1>"

    def wide(self, singles: str) -> str:
        """float32 as float64."""
        return self.w.let(f"fpext <{self.n} x float> {singles} to {self.kind}")

    def single(self, x: str) -> str:
        """float64 rounded to float32."""
        return self.w.let(f"fptrunc {self.kind} {x} to <{self.n} x float>")

    def differ(self, low: str, high: str) -> str:
        """Whether the ends of some interval round to different float32: <n x i1>."""
        bits = [self.w.let(f"bitcast <{self.n} x float> {self.single(x)} to <{self.n} x i32>") for x in (low, high)]
        return self.w.let(f"icmp ne <{self.n} x i32> {bits[0]}, {bits[1]}")

    def any(self, flags: str) -> str:
        return self.w.let(f"icmp ne i{self.n} {self.w.let(f'bitcast {self.bools} {flags} to i{self.n}')}, 0")

    def const(self, value: float) -> str:
        return every("double", real(value), self.n)

    def op(self, name: str, a: str, b: str) -> str:
        """name: fadd, fsub, fmul or fdiv."""
        return self.w.let(f"{name} {self.kind} {a}, {b}")

    def plus(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once where the instruction set has that."""
        if self.fused:
            return self.w.call(self.kind, f"llvm.fma.v{self.n}f64", (self.kind, a), (self.kind, b), (self.kind, c))
        return self.op("fadd", self.op("fmul", a, b), c)

    def choose(self, test: str, a: str, b: str, yes: str, no: str) -> str:
        """yes where a test of a and b holds, as fcmp names it, else no."""
        holds = self.w.let(f"fcmp {test} {self.kind} {a}, {b}")
        return self.w.let(f"select {self.bools} {holds}, {self.kind} {yes}, {self.kind} {no}")

    def size(self, x: str) -> str:
        return self.w.call(self.kind, f"llvm.fabs.v{self.n}f64", (self.kind, x))

    def root(self, x: str) -> str:
        return self.w.call(self.kind, f"llvm.sqrt.v{self.n}f64", (self.kind, x))

    def signed(self, size: str, sign: str) -> str:
        return self.w.call(self.kind, f"llvm.copysign.v{self.n}f64", (self.kind, size), (self.kind, sign))

    def series(self, coefficients: Sequence[float], x: str) -> str:
        """A polynomial, the constant term first. That of a long one's even and odd terms do not wait for each other."""
        if len(coefficients) > _LONG:
            square = self.op("fmul", x, x)
            even, odd = (self.series(coefficients[first::2], square) for first in (0, 1))
            return self.plus(odd, x, even)
        made = self.const(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            made = self.plus(made, x, self.const(coefficient))
        return made

    def _powers(self, x: str) -> tuple[str, str]:
        """2**n and p with exp(x) = 2**n * (1 + p), p small, for x between -700 and 700."""
        w = self.w
        raised = self.plus(x, self.const(_LOG2E), self.const(_MAGIC))
        count = self.op("fsub", raised, self.const(_MAGIC))
        rest = self.op("fsub", x, self.op("fmul", count, self.const(_LN2[0])))
        rest = self.op("fsub", rest, self.op("fmul", count, self.const(_LN2[1])))
        square = self.op("fmul", rest, rest)
        small = self.plus(square, self.series(_EXPONENTIAL, rest), rest)
        shifted = w.let(f"shl {self.bits} {w.let(f'bitcast {self.kind} {raised} to {self.bits}')}, {self._int(52)}")
        one = w.let(f"bitcast {self.kind} {self.const(1.0)} to {self.bits}")
        return w.let(f"bitcast {self.bits} {w.let(f'add {self.bits} {shifted}, {one}')} to {self.kind}"), small

    def _int(self, value: int) -> str:
        return every("i64", value, self.n)

    def _within(self, x: str) -> str:
        limit, least = self.const(_FARTHEST), self.const(-_FARTHEST)
        return self.choose("ogt", self.choose("olt", x, least, least, x), limit, limit, x)

    def exp(self, x: str) -> str:
        """exp(x), 0 for x below -700, and as if x were no more than 700; NaN stays NaN."""
        power, small = self._powers(self._within(x))
        made = self.choose("olt", x, self.const(-_FARTHEST), self.const(0.0), self.plus(power, small, power))
        return self.choose("uno", x, x, x, made)

    def tanh(self, x: str) -> str:
        size = self.size(x)
        twice = self._within(self.op("fadd", size, size))
        power, small = self._powers(twice)
        less = self.plus(power, small, self.op("fsub", power, self.const(1.0)))
        made = self.op("fdiv", less, self.op("fadd", less, self.const(2.0)))
        return self.choose("uno", x, x, x, self.signed(made, x))

    def sigmoid(self, x: str) -> str:
        e = self.exp(self.op("fsub", self.const(-0.0), self.size(x)))
        top = self.choose("oge", x, self.const(0.0), self.const(1.0), e)
        return self.op("fdiv", top, self.op("fadd", self.const(1.0), e))

    def erf(self, x: str) -> str:
        limit, size = self.const(4.0), self.size(x)
        near = self.choose("ogt", size, limit, limit, size)
        place = self.plus(self.op("fmul", near, near), self.const(1 / 8), self.const(-1.0))
        return self.signed(self.op("fmul", near, self.series(_ERF, place)), x)

    def gelu(self, x: str) -> str:
        """x / 2 * erfc(-x / sqrt(2))."""
        size, limit = self.size(x), self.const(16.0)
        near = self.choose("ogt", size, limit, limit, size)
        inverse = self.op("fdiv", self.const(1.0), self.op("fadd", near, self.const(4.0)))
        tail = self.series(_TAIL, self.plus(inverse, self.const(10.0), self.const(-1.5)))
        half = self.op("fmul", near, self.const(0.5))
        e = self.exp(self.op("fmul", self.op("fmul", size, size), self.const(-0.5)))
        low = self.op("fmul", half, self.op("fmul", e, self.op("fmul", tail, inverse)))
        positive, negative = self.op("fsub", x, low), self.op("fsub", self.const(-0.0), low)
        made = self.choose("olt", x, self.const(0.0), negative, positive)
        return self.choose("oeq", x, self.const(-math.inf), self.const(math.nan), made)
