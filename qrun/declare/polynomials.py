"""Float32 functions are polynomials (docs/numerics.md, F1): their coefficients, which the reference and the generated
code share. All numbers are float32; a polynomial begins with its constant term.

exp(x) = 2**n * (1 + m): n is x * LOG2E rounded to an integer, r = x - n * log(2), and
m = r + r**2 * EXPM1(r), for |r| <= log(2) / 2.

Every step is rounded once to float32, and a * b + c is one step, a fused multiply-add. Over all float32 numbers exp is
at most 0.98 units in the last place from the real value, sigmoid 1.73 and tanh 1.20.
"""

from __future__ import annotations

LOG2E = 1.4426950216293335
LN2 = 0.6931471824645996, -1.9046542121259336e-09
"""log(2) as a sum."""
EXPM1 = (
    0.5, 0.1666666716337204, 0.041666463017463684, 0.008333204314112663, 0.001393509446643293, 0.0001994768244912848,
)  # fmt: skip
EXPM1_SHORT = (0.5, 0.1666651964187622, 0.041666410863399506, 0.008368823677301407, 0.0013939811615273356)
"""The same with an error of up to 2**-28, which is enough for sigmoid and tanh."""
EXP_RANGE = -105.0, 90.0
"""Beyond the first exp is 0, beyond the second infinite."""
SIGMOID_RANGE, SIGMOID_EXPONENT = (-105.0, 40.0), -64
"""Beyond the first sigmoid is 0, beyond the second 1; and the power of two by which it multiplies its numerator and its
denominator, so that neither overflows."""
SHARE_LEAST = -87.0
"""exp(x) of a row's element less the greatest is 0 below this."""
TANH = (
    -0.3333328366279602, 0.133314847946167, -0.053742993623018265, 0.02064903825521469, -0.005715404637157917,
)  # fmt: skip
"""(tanh(x) / x - 1) / x**2 in powers of x**2, for |x| < TANH_NEAR."""
TANH_NEAR, TANH_FARTHEST = 0.625, 10.0
"""Where tanh stops to be this polynomial, and a size beyond which it is 1."""
