"""Coefficients of the polynomials for float32 functions (numerics.md, F41), shared by the reference and the
generated code. All numbers are float32; a polynomial begins with its constant term.

exp(x) = 2**n * (1 + m): n is x * LOG2E rounded to an integer, r = x - n * log(2), and m = r + r**2 * EXPM1(r), for |r|
<= log(2) / 2.

Every step is rounded once to float32, and a * b + c is one step, a fused multiply-add.
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
"""Below the first exp is 0, above the second infinite."""
SIGMOID_RANGE, SIGMOID_EXPONENT = (-105.0, 40.0), -64
"""Below the first sigmoid is 0, above the second 1; and the exponent of the power of two by which it multiplies its
numerator and denominator, so that neither overflows."""
SHARE_LEAST = -87.0
"""Below this, exp(x) of a row's element minus the greatest is 0."""
TANH = (
    -0.3333328366279602, 0.133314847946167, -0.053742993623018265, 0.02064903825521469, -0.005715404637157917,
)  # fmt: skip
"""(tanh(x) / x - 1) / x**2 in powers of x**2, for |x| < TANH_NEAR."""
TANH_NEAR, TANH_FARTHEST = 0.625, 10.0
"""Where tanh stops being this polynomial, and a size beyond which it is 1."""
ERF_NEAR, ERF_MIDDLE, ERF_FARTHEST = 1.125, 2.5, 3.9375
"""Where the second polynomial of erf takes over, the number subtracted from x in it, and where erf is 1."""
ERF = (
    0.12837916612625122, -0.37612637877464294, 0.11283759772777557, -0.026864249259233475, 0.0052179256454110146,
    -0.0008440889068879187, 0.00010963474051095545, -8.828609679767396e-06,
)  # fmt: skip
"""erf(x) / x - 1 in powers of x**2."""
ERF_FAR = (
    0.9995930790901184, 0.0021782410331070423, -0.005446251016110182, 0.008350847288966179, -0.008617944084107876,
    0.006113307550549507, -0.0028120006900280714, 0.0005523162544704974, 0.0002800236688926816,
    -0.00026322578196413815, 6.499659502878785e-05, 1.4532132809108589e-05, -9.679884897195734e-06,
    1.036530420606141e-06,
)  # fmt: skip
TAIL = (
    (0.5, 0.43545451760292053, 0.18113605678081512, 0.039926882833242416, 0.00401174696162343),
    (1.0, 1.6687939167022705, 1.1937730312347412, 0.46392983198165894, 0.10008932650089264, 0.010055812075734138),
)
"""exp(x**2 / 2) times the tail of the normal distribution beyond x: numerator and denominator."""
TAIL_FARTHEST = 13.1484375
"""Beyond it the tail counts as 0: gelu has no normal numbers there."""
GELU_BY_TANH = 1.5957691669464111, 0.07135481387376785
"""sqrt(8 / pi), and 0.044715 of it."""
