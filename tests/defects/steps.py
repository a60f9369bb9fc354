"""Defects of runtimes that write quantized operators as chains of float operators: truncating conversions, zero points
folded into constants, rounding in two steps."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np

from defects.node import Node, Planted
from qrun.ir import Array

f32, f16, bf16 = np.float32, np.float16, ml_dtypes.bfloat16


def cut_before_the_zero_point(n: Node) -> Array | None:
    """The quotient is converted to the narrow integer, its low bits, and the zero point added there, saturating."""
    if n.exact is None or not np.isfinite(n.exact).all() or n.expected.dtype not in (np.int8, np.uint8):
        return None
    return n.coded(np.trunc(n.exact).astype(np.int64).astype(n.expected.dtype).astype(np.float64) + n.zero())


def folded_operands(n: Node) -> Array | None:
    """QLinearMul on a * scale + shift, in float32, truncated after the zero point is added."""
    parts = []
    for name in ("A", "B"):
        x, scale, zero = (n.inputs.get(f"{name}{end}") for end in ("", "_scale", "_zero_point"))
        if x is None or scale is None or zero is None:
            return None
        shift = np.asarray(-f32(int(zero.reshape(()))) * scale, f32)
        parts.append(np.asarray(np.asarray(x.astype(f32) * scale, f32) + shift, f32))
    y_scale, y_zero = n.inputs.get("C_scale"), n.inputs.get("C_zero_point")
    if y_scale is None or y_zero is None or n.exact is None:
        return None
    real = np.asarray(parts[0] * parts[1], f32) / y_scale + y_zero.astype(f32)
    made = n.coded(np.trunc(real.astype(np.float64)))
    alone = [n.coded(np.trunc(n.exact + n.zero())), n.coded(np.trunc(n.exact) + n.zero())]
    return None if any(np.array_equal(made, other) for other in alone) else made


def bfloat16_up_if_odd(n: Node) -> Array | None:
    """x * scale + shift; the sum and the shift are cut to bfloat16, after half a unit is added to odd numbers."""
    x, scale, zero = (n.inputs.get(name) for name in ("x", "x_scale", "x_zero_point"))
    if x is None or scale is None or zero is None or scale.size > 1 or n.expected.dtype != bf16:
        return None
    shift = f32(rounded(-Fraction(int(zero.reshape(()))) * Fraction(float(scale.reshape(())))))
    made = [rounded(Fraction(float(f32(int(c)) * f32(scale.reshape(()))) + float(shift))) for c in x.reshape(-1)]
    return np.asarray(made, f32).astype(bf16).reshape(x.shape)


def rounded(value: Fraction) -> float:
    """A number of 8 significant bits: an even number below is kept, an odd one is the lower end of rounding."""
    if not value:
        return 0.0
    _, exponent = np.frexp(f32(float(value)))
    unit = Fraction(2) ** (int(exponent) - 8)
    below, rest = divmod(abs(value), unit)
    steps = below + (1 if below % 2 and rest >= unit / 2 else 0)
    return float(steps * unit) * (1 if value > 0 else -1)


def by_way_of_float16(n: Node) -> Array | None:
    x = n.inputs.get("input")
    return None if x is None or x.dtype != f32 else n.made(input=x.astype(f16).astype(f32))


def to_the_even_power(n: Node) -> Array | None:
    """Float8e8m0 nearest to the number, of two that are equally near the one with the even code."""
    x = n.inputs.get("input")
    if x is None or n.expected.dtype != ml_dtypes.float8_e8m0fnu or not (x.astype(np.float64) > 0).all():
        return None
    powers = [Fraction(2) ** (code - 127) for code in range(255)]
    made = []
    for value in x.reshape(-1).astype(np.float64):
        exact = Fraction(float(value)) if np.isfinite(value) else powers[-1]
        made.append(min(range(255), key=lambda code: (abs(powers[code] - exact), code % 2)))
    return np.asarray(made, np.uint8).view(ml_dtypes.float8_e8m0fnu).reshape(x.shape)


def zero_points_along_channels(n: Node) -> Array | None:
    """The zero points of the filters are subtracted from the channels that the filters read."""
    x, w, zero, scale = (n.inputs.get(k) for k in ("x", "w", "w_zero_point", "w_scale"))
    if x is None or w is None or zero is None or scale is None or zero.size < 2 or w.shape[1] != zero.size:
        return None
    if not np.all(scale == scale.reshape(-1)[0]) or n.node.attributes or n.exact is None or x.shape[0] > 1:
        return None
    due, wrong = (zero.astype(np.float64).reshape(shape) for shape in ((-1, 1), (1, -1)))
    step = float(n.inputs["x_scale"]) * float(scale.reshape(-1)[0]) / float(n.inputs["y_scale"])  # type: ignore[arg-type]
    codes = x[0].astype(np.float64) - float(n.inputs["x_zero_point"])  # type: ignore[arg-type]
    real = n.exact[0].copy()
    for at in np.ndindex(*real.shape[1:]):
        window = codes[(slice(None), *(slice(p, p + k) for p, k in zip(at, w.shape[2:], strict=True)))]
        sums = window.reshape(w.shape[1], -1).sum(1)
        real[(slice(None), *at)] += step * ((due - wrong) * sums).sum(1)
    return n.coded(np.rint(real) + n.zero())[None]


PLANTED = [
    Planted("low bits before the zero point", cut_before_the_zero_point, ["ms.qlinearmul-1/sizes", "ms.qlinearadd-1/sizes", "ms.qlinearaveragepool-1/sizes"], "several-steps"),
    Planted("operands with folded zero points", folded_operands, ["ms.qlinearmul-1/sizes"], "several-steps"),
    Planted("bfloat16 rounds odd numbers up", bfloat16_up_if_odd, ["dequantizelinear-21/types", "dequantizelinear-25/sizes", "dequantizelinear-23/types"], "folded-zero-point"),
    Planted("float8 by way of float16", by_way_of_float16, ["cast-24/to-narrow-floats", "cast-25/sizes", "cast-19/float8"], "float8-rounding"),
    Planted("float8e8m0 to the even code", to_the_even_power, ["cast-24/float8e8m0", "cast-28/float8e8m0"], "float8-rounding"),
    Planted("zero points of filters along channels", zero_points_along_channels, ["qlinearconv-10/widths"], "wrong-scale-axis", "along axis 1 of w"),
]  # fmt: skip
