"""The error function and Gelu of float64 vectors in IR, with relative errors below 2**-49, but for what Gelu's exponential adds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qrun.native.emit import tabled
from qrun.native.emit.numbers import at_most, decay, series
from qrun.native.emit.values import Value

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
