"""A cause: conversions to float8 and float8e8m0 by way of another type, or in another direction."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recompute
from qrun.comparing.differences import same
from qrun.ir import Array
from qrun.ir.types import FLOAT8, type_name
from qrun.ops._quantize import largest, narrow

_WIDER = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_SOURCE = "OpenVINO src/core/include/openvino/core/type: float8_e4m3, float8_e5m2, float8_e8m0; FakeConvert"
_BIAS, _NAN = 127, 255
"""The code of 1 in float8e8m0, and that of NaN."""


@cause("float8-rounding", rank=37, source=_SOURCE)
def float8_rounding(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime converts to a float8 type in two steps, by way of float16 or bfloat16, so that numbers near a tie
    become ties; or it clips numbers to the range of the type first, whatever saturate asks, and NaN with them; or it
    rounds to float8e8m0 in another direction than round_mode asks.

    To confirm: Feed only numbers of the narrow type itself. The difference disappears.

    To do: Nothing is wrong with the model. If the target rounds once, as the specification says, compare with a
    tolerance of one unit in the last place. Report the bug to the runtime's maintainers.
    """
    if not s.is_op("Cast", "QuantizeLinear") or not s.args or s.args[0] is None:
        return
    if s.mine.dtype == _E8M0 and s.is_op("Cast"):
        yield from _powers_of_two(s, s.args[0].astype(np.float64))
    elif s.mine.dtype in FLOAT8:
        yield from _in_two_steps(s)


def _in_two_steps(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that numbers are clipped first, are rounded to a wider type first, and overflow in another way."""
    real, end = _real(s), largest(s.mine.dtype)
    if real is None or real.shape != s.mine.shape:
        return
    asked = int(bool(s.node.attributes.get("saturate", 1)))
    clipped = np.where(np.isnan(real), -end, np.clip(real, -end, end))
    firsts = {(): real, ("clips to the largest numbers first, NaN to the lowest",): clipped}
    known: list[tuple[tuple[str, ...], Array]] = []
    for (first, values), dtype, saturate in product(firsts.items(), (None, *_WIDER), (asked, 1 - asked)):
        by_way = values if dtype is None else values.astype(dtype).astype(np.float32)
        texts = (
            *first,
            *[f"rounds to {type_name(dtype)} first"] * (dtype is not None),
            *[f"computes as if saturate were {saturate}"] * (saturate != asked),
        )
        made = narrow(by_way, s.mine.dtype, bool(saturate))
        if not any(set(fewer) <= set(texts) and same(made, other) for fewer, other in known):
            known.append((texts, made))
            if len(texts) > (saturate != asked):
                implied = ("special-value", "float8-overflow", "division-type")
                yield Hypothesis(made, " and ".join(texts), implies=implied)


def _real(s: Suspect) -> Array | None:
    """The float32 numbers that the node converts."""
    x, scale = s.args[0], s.args[1] if s.is_op("QuantizeLinear") else None
    if x is None or x.dtype.kind not in "fV":
        return None
    single = x.astype(np.float32)
    return single if scale is None else np.asarray(single / s.along(scale).astype(np.float32))


def _powers_of_two(s: Suspect, x: Array) -> Iterator[Hypothesis]:
    """Hypotheses on the direction of rounding to a power of two."""
    asked = s.node.attributes.get("round_mode", "up")
    for mode in ("up", "down", "nearest"):
        if mode != asked:
            made = s.evaluate(attributes={"round_mode": mode})
            yield from recompute(made, f"rounds {mode if mode != 'nearest' else 'to nearest'}, not as round_mode asks")
    mantissa, exponent = np.frexp(x)
    code = exponent - 1 + _BIAS
    up = (mantissa > 0.75) | ((mantissa == 0.75) & (code % 2 == 1))
    codes = np.where(x > 0, np.clip(code + up, 0, _NAN - 1), s.mine.view(np.uint8)).astype(np.uint8)
    made = np.where(np.isfinite(x), codes, s.mine.view(np.uint8)).view(_E8M0)
    if not same(made, s.mine):
        yield Hypothesis(made, "rounds to the nearest power of two, ties to the even code, whatever round_mode asks")
