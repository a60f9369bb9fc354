"""Functions of float64 vectors in IR, with relative errors below 2**-49: of angles, logarithms, the error function.

What they are given was float32, or follows from such numbers, so that it is not subnormal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from qrun.native.emit import tabled
from qrun.native.emit.numbers import at_most, decay, exp, expm1, series
from qrun.native.emit.values import MAGIC64, ZERO, Value

WIDEST = 2.0**22
"""The size of an angle up to which the parts of a right one tell what is left."""
_RIGHT = (1.5707963267341256, 6.07710049817245e-11, 8.333742918520879e-20)
"""pi / 2 in parts: the first two have 31 bits, of which up to 2**22 times are exact."""
_SINE = tuple((-1) ** n / math.factorial(2 * n + 1) for n in range(1, 8))
"""(sin(r) / r - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_COSINE = tuple((-1) ** n / math.factorial(2 * n) for n in range(1, 9))
"""(cos(r) - 1) / r**2 in powers of r**2, for |r| <= pi / 4."""
_ARC = tuple((-1) ** n / (2 * n + 1) for n in range(19))
"""atan(t) / t in powers of t**2, for |t| <= tan(pi / 8)."""
_EIGHTH = math.tan(math.pi / 8)


def _turned(x: Value) -> tuple[Value, Value, Value]:
    """How many right angles an angle of up to WIDEST has, as an i64, and sine and cosine of what is left of it."""
    raised = x.fma(2 / math.pi, MAGIC64)
    count, rest = raised - MAGIC64, x
    for part in _RIGHT:
        rest = count.fma(-part, rest)
    square = rest * rest
    sine = (rest * square).fma(series(_SINE, square), rest).intrinsic("copysign", rest)
    return raised.bitcast("i64"), sine, square.fma(series(_COSINE, square), 1.0)


def _known(x: Value, made: Value) -> Value:
    """1 for larger angles, of which only the reference knows the function."""
    return too_wide(x).select(1.0, made)


def too_wide(x: Value) -> Value:
    """i1 in each lane: whether it is a finite angle beyond WIDEST."""
    size = abs(x)
    return size.test("ogt", WIDEST) & size.test("olt", math.inf)


def _sine(x: Value, quarters: int) -> Value:
    """The sine of an angle and so many right ones."""
    count, sine, cosine = _turned(x)
    count = count + quarters
    made = (count & 1).test("ne", ZERO).select(cosine, sine)
    return _known(x, (count & 2).test("ne", ZERO).select(-made, made))


def sin(x: Value) -> Value:
    return _sine(x, 0)


def cos(x: Value) -> Value:
    return _sine(x, 1)


def tan(x: Value) -> Value:
    count, sine, cosine = _turned(x)
    odd = (count & 1).test("ne", ZERO)
    return _known(x, odd.select(-cosine, sine) / odd.select(sine, cosine))


def _arc(a: Value, b: Value) -> Value:
    """The angle, from 0 to a right one, whose tangent is a / b; neither is negative, and not both are 0."""
    steep = a.test("ogt", b)
    low, high = steep.select(b, a), steep.select(a, b)
    wide = low.test("ogt", high * _EIGHTH)
    t = wide.select(low - high, low) / wide.select(low + high, high)
    made = t.fma(series(_ARC, t * t), wide.select(t.like(math.pi / 4), t.like(0.0)))
    return steep.select(math.pi / 2 - made, made)


def atan(x: Value) -> Value:
    return _arc(abs(x), x.like(1.0)).intrinsic("copysign", x)


def asin(x: Value) -> Value:
    """The angle whose tangent is |x| / sqrt(1 - x**2), with the sign of x; NaN beyond 1."""
    size = abs(x)
    return _arc(size, ((1.0 - size) * (1.0 + size)).sqrt()).intrinsic("copysign", x)


def acos(x: Value) -> Value:
    """Twice the angle whose tangent is sqrt((1 - x) / (1 + x)); NaN beyond 1."""
    made = _arc((1.0 - x).sqrt(), (1.0 + x).sqrt())
    return made + made


_LOGARITHM = tuple(1 / (2 * n + 1) for n in range(10))
"""atanh(s) / s in powers of s**2, for |s| <= 0.172: the Taylor series."""
_ROOT = 0x3FE6A09E667F3BCD
_ONE = 0x3FF0000000000000
"""The bits of float64: sqrt(1/2), and 1."""
_FRACTION = (1 << 52) - 1
"""Bits of a float64 that are not its exponent or its sign."""
_WHOLE = 0x4330000000000000
_COUNT = 2.0**52 + 1023
"""2**52: its bits with an integer in the low ones are 2**52 more than it.
An exponent is 1023 more than what it stands for."""
_LN2 = math.log(2)


def _positive(x: Value, less: Value) -> Value:
    """The logarithm of a finite x above 0. less: x - 1, which counts where x itself is rounded.

    x = 2**n * m with m from sqrt(1/2) to sqrt(2), and log(m) = 2 atanh((m - 1) / (m + 1)).
    """
    shifted = x.bitcast("i64") + (_ONE - _ROOT)
    n = (shifted.lshr(52) | _WHOLE).bitcast("double") - _COUNT
    m = ((shifted & _FRACTION) + _ROOT).bitcast("double")
    rest = n.test("oeq", 0.0).select(less, m - 1.0)
    s = rest / (rest + 2.0)
    return n.fma(_LN2, (s + s) * series(_LOGARITHM, s * s))


def _log1p(x: Value) -> Value:
    """log(1 + x) for a finite x above -1."""
    return _positive(x + 1.0, x)


def _unless_infinite(x: Value, made: Value) -> Value:
    """What was made of finite numbers; infinities and NaN stay themselves."""
    return abs(x).test("olt", math.inf).select(made, x)


def log(x: Value) -> Value:
    """-infinity of 0, NaN of what is less."""
    made = x.test("oeq", 0.0).select(-math.inf, _unless_infinite(x, _positive(x, x - 1.0)))
    return x.test("olt", 0.0).select(math.nan, made)


def scalar_log(x: Value) -> Value:
    """log(x) of a scalar."""
    return log(x.splat(1)).extract(0)


def softplus(x: Value) -> Value:
    """log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))."""
    e = exp(-0.0 - abs(x))
    made = _log1p(e) + x.where("ugt", 0.0)
    return x.test("uno", x).select(x, made)


def mish(x: Value) -> Value:
    """x * tanh(softplus(x)) without cancellation, as a quotient in e = exp(-|x|)."""
    e = exp(-0.0 - abs(x))
    above = x.test("oge", 0.0)
    part = above.select((e + e) + 1.0, e * (e + 2.0))
    return x * part / (part + above.select((e + e) * e, e.like(2.0)))


def sinh(x: Value) -> Value:
    """(e + e / (e + 1)) / 2, e = exp(|x|) - 1, with the sign of x."""
    e = expm1(abs(x))
    return ((e + e / (e + 1.0)) * 0.5).intrinsic("copysign", x)


def cosh(x: Value) -> Value:
    e = exp(abs(x))
    return (e + 1.0 / e) * 0.5


def asinh(x: Value) -> Value:
    """log(|x| + sqrt(x**2 + 1)), with the sign of x."""
    size, square = abs(x), x * x
    made = _log1p(size + square / ((square + 1.0).sqrt() + 1.0))
    return _unless_infinite(x, made.intrinsic("copysign", x))


def acosh(x: Value) -> Value:
    """log(x + sqrt(x**2 - 1)); NaN below 1."""
    less = x - 1.0
    made = _unless_infinite(x, _log1p(less + (less * (x + 1.0)).sqrt()))
    return x.test("olt", 1.0).select(math.nan, made)


def atanh(x: Value) -> Value:
    """log((1 + |x|) / (1 - |x|)) / 2, with the sign of x; NaN beyond 1."""
    size = abs(x)
    made = _log1p((size + size) / (1.0 - size)) * 0.5
    made = size.test("olt", 1.0).select(made, size.test("oeq", 1.0).select(size.like(math.inf), size.like(math.nan)))
    return made.intrinsic("copysign", x)


def power(x: Value, exponent: Value) -> Value:
    """|x| ** exponent, with the relative error of `exp` and 2**-52 for each unit of exponent * log(|x|)."""
    return exp(exponent * log(abs(x)))


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
_ROUGH_ERF = (
    0.35353099564411494, -0.17657623321208646, 0.1316751167236695, -0.10771044903941857, 0.09020900091599293,
    -0.07472772607887762, 0.059886799549713446, -0.04576648189796627, 0.033061469113173106, -0.022466183623814133,
    0.01434573714855163, -0.008630037279972379, 0.004864627235688204, -0.002530357221703525, 0.0012723246013865716,
    -0.0006730859331946704, 0.0002991806394493325, -7.231714480440118e-05, 3.107456126599572e-05,
    -3.671403857879341e-05, 1.3255486846901476e-05,
)  # fmt: skip
"""The same of degree 20, whose relative error is below 2**-35.9."""
_TAIL = (
    1.7878818679355548, 1.2593917511138821, 0.6579901198570887, 0.24290378876365135, 0.053589115262072023,
    0.0013761448599770567, -0.002864640706782241, -0.0004631728200355249, 0.00016854406423011083,
    4.222788423925295e-05, -1.4089967183972058e-05, -3.1874863453411462e-06, 1.5246725148620494e-06,
    1.5850136355454486e-07, -1.7347770015387239e-07, 8.691037953704803e-09, 1.726140444099867e-08,
    -3.6465480484339603e-09, -1.1979940420920052e-09, 4.026400350570169e-10, 3.293324032354211e-11,
)  # fmt: skip
"""(x + 4) exp(x**2 / 2) erfc(x / sqrt(2)) in powers of 10 / (x + 4) - 1.5, for 0 <= x <= 16: the Chebyshev series of
degree 20."""


def erf(x: Value) -> Value:
    return _series_size(abs(x), _ERF).intrinsic("copysign", x)


def rough_erf_size(x: Value) -> Value:
    """erf(|x|) of float32, as float64 to a relative error below that of ROUGH (functions.py)."""
    if x.w.permutes:
        return tabled.erf_size(at_most(abs(x), tabled.ERF_END))
    return _series_size(abs(x).double(), _ROUGH_ERF)


def _series_size(size: Value, coefficients: Sequence[float]) -> Value:
    near = at_most(size, 4.0)
    return near * series(coefficients, (near * near).fma(1 / 8, -1.0))


def gelu(x: Value) -> Value:
    """x / 2 * erfc(-x / sqrt(2))."""
    size = abs(x)
    near = at_most(size, 16.0)
    inverse = 1.0 / (near + 4.0)
    tail = series(_TAIL, inverse.fma(10.0, -1.5))
    half = near * 0.5
    e = decay(size * size * -0.5)
    low = half * (e * (tail * inverse))
    positive, negative = x - low, -0.0 - low
    made = x.test("olt", 0.0).select(negative, positive)
    return x.test("oeq", -math.inf).select(math.nan, made)


OF_ONE: tuple[Callable[[Value], Value], ...] = (
    erf, gelu, log, softplus, mish, sinh, cosh, asinh, acosh, atanh, sin, cos, tan, asin, acos, atan,
)  # fmt: skip
"""Those of one number that graphs name."""
