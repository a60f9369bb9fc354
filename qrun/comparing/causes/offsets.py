"""Causes in the steps of a QuantizeLinear: rounding by an added half in float32, and a zero point added in float16."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.ir import Array
from qrun.ops._quantize import is_integer

f32, f16 = np.float32, np.float16
_HALVES = {
    "0.5": f32(0.5),
    "0.4999999": f32(0.4999999),
    "the largest float32 below 0.5": np.nextafter(f32(0.5), f32(0)),
}
_LARGEST = 1 << 16
"""The most elements of a tensor that are rounded in all of these ways."""


@cause("added-half", rank=57, source="tinygrad nn/onnx.py, QuantizeLinear")
def added_half(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime rounds by adding one half, or a number a little below it, in float32, and then drops the fraction.
    The additions are rounded, so that ties go up or down with the size of the code.

    To confirm: Quantize ties with the zero points 0 and 128: they round in different directions.

    To do: Allow --lsb 1. Ties are rare if the ratio of the scales is not a power of two.
    """
    x, scale = (*s.args, None, None)[:2]
    if not s.is_op("QuantizeLinear") or x is None or scale is None or x.size > _LARGEST or not is_integer(s.mine.dtype):
        return
    single, along, zero = x.astype(f32), s.along(scale).astype(f32), s.zero.astype(f32)
    ways = {"divides": single / along, "multiplies by float32(1 / y_scale)": single * (f32(1) / along)}
    for (start, real), (half, offset), (last, cut) in product(ways.items(), _HALVES.items(), _CUTS.items()):
        for order, codes in _orders(real, offset, zero):
            made = s.to_codes(cut(codes.astype(np.float64))) if codes.shape == s.mine.shape else None
            if made is not None:
                yield Hypothesis(made, f"{start}, adds {half}{order} in float32, and {last}", implies=_CONTAINED)
        if np.any(zero) and real.shape == s.mine.shape:
            made = s.to_codes(cut((real + offset).astype(np.float64)), s.zero)
            if made is not None:
                text = f"{start}, adds {half} in float32, {last}, and adds the zero point"
                yield Hypothesis(made, text, implies=_CONTAINED)


_CUTS = {"drops the fraction": np.trunc, "rounds down": np.floor}
_CONTAINED = ("tie-rounding", "truncation", "zero-point-before-rounding", "division-type", "near-tie")
"""The simpler causes that this one contains."""


def _orders(real: Array, offset: np.float32, zero: Array) -> Iterator[tuple[str, Array]]:
    """Quotients plus an offset and the zero point, added in either order, with descriptions."""
    if np.any(zero):
        yield " and the zero point", (real + offset) + zero
        yield " to the zero point and the quotient", (real + zero) + offset
    else:
        yield "", real + offset


@cause(
    "float16-zero-point", rank=39, source="ONNX operators, QuantizeLinear: y = saturate((x / y_scale) + y_zero_point)"
)
def float16_zero_point(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime adds the zero point in float16, which rounds the sum to 11 bits and overflows from 65520 on.

    To confirm: The results are multiples of a power of two. With a zero point of 0 the difference disappears, unless
    codes exceed 2048.

    To do: Use scales and inputs of float32 for codes of 16 bits. Report the bug to the runtime's maintainers.
    """
    x, scale = (*s.args, None, None)[:2]
    if not s.is_op("QuantizeLinear") or x is None or scale is None or not is_integer(s.mine.dtype):
        return
    if f16 not in (x.dtype, scale.dtype):
        return
    along, zero = s.along(scale).astype(f16), s.zero.astype(f16)
    for start, real in (
        ("divides", x.astype(f16) / along),
        ("multiplies by float16(1 / y_scale)", x.astype(f16) * (f16(1) / along)),
    ):
        total = (np.rint(real.astype(f16)) + zero).astype(np.float64)
        text = f"{start} and adds the zero point in float16"
        ways = {text: total, f"{text}, and turns infinities into 0": np.where(np.isinf(total), 0, total)}
        for told, whole in ways.items():
            made = s.to_codes(whole)
            if made is not None and made.shape == s.mine.shape:
                yield Hypothesis(made, told, implies=("division-type",))
