"""NaN, infinities and the range of a tensor that is all zeros."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._suspect import Suspect
from qrun.comparing.differences import differing
from qrun.ir import Array
from qrun.ops._quantize import is_integer, limits


@cause("special-value", rank=12, source="numerics, D5 and D10; onnx/onnx#8437")
def special_value(s: Suspect) -> Iterator[Hypothesis]:
    """NaN or infinity, or a tensor without a range, for which the specification gives no answer or another one.

    To confirm: Replace NaN, infinities or the tensor of zeros in the input: the difference is gone.

    To do: Keep such values out of the input of the quantizing node (Clip, Where), as the specification leaves open
    what becomes of them.
    """
    yield from _zero_range(s)
    x = s.args[0] if s.alone and s.args else None
    if s.theirs is None or x is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    if x.shape == s.mine.shape and x.dtype.kind in "fV":
        yield from _of_input(s, x)
    if s.is_op("QuantizeLinear") and s.mine.dtype.kind != "i" and s.mine.dtype.kind != "u":
        yield from _overflow(s)


def _zero_range(s: Suspect) -> Iterator[Hypothesis]:
    if not s.is_op("DynamicQuantizeLinear") or s.args[0] is None or np.any(s.args[0]):
        return
    values = {np.dtype(np.float32): (1 / 255, 0.0, np.nan), np.dtype(np.uint8): (0, 128, 255)}
    for value in values.get(s.mine.dtype, ()):
        text = f"of an input that is all 0, {s.tensor} is {value:.6g}: the formula divides 0 by 0"
        yield Hypothesis(np.full_like(s.mine, value), text)


def _of_input(s: Suspect, x: Array) -> Iterator[Hypothesis]:
    """The inputs that differ are all NaN, or all infinite: the other side has one value for them."""
    assert s.theirs is not None
    bad = differing(s.mine, s.theirs)
    with np.errstate(all="ignore"):
        odd = x[bad].astype(np.float64)
    for name, hit in (("NaN", np.isnan(odd)), ("infinity", np.isinf(odd)), ("NaN or infinity", ~np.isfinite(odd))):
        if hit.size and hit.all():
            for value in _ends(s):
                made = np.where(bad, np.asarray(value).astype(s.mine.dtype), s.mine)
                yield Hypothesis(made, f"{name} becomes {value:g}")


def _ends(s: Suspect) -> list[float]:
    """Values that implementations give for what has none: 0, the zero point, the ends of the type, NaN, infinities."""
    whole = is_integer(s.mine.dtype)
    ends = list(map(float, limits(s.mine.dtype))) if whole else [_largest(s.mine.dtype), -_largest(s.mine.dtype)]
    zero = [float(s.zero)] if s.zero.ndim == 0 else []
    return [0.0, *zero, *ends] + ([] if whole else [np.nan, np.inf, -np.inf])


def _largest(dtype: np.dtype[Any]) -> float:
    info: Any = ml_dtypes.finfo
    return float(info(dtype).max)


def _overflow(s: Suspect) -> Iterator[Hypothesis]:
    """Codes of float8 that only the range decides."""
    with np.errstate(all="ignore"):
        wide = s.mine.astype(np.float32)
    if np.isinf(wide).any():
        made = np.where(np.isinf(wide), np.float32(np.nan), wide).astype(s.mine.dtype)
        yield Hypothesis(made, "overflow becomes NaN where infinity is due")
    largest = _largest(s.mine.dtype)
    x, scale = s.args[0], s.args[1]
    if np.isnan(wide).any() and x is not None and scale is not None:
        with np.errstate(all="ignore"):
            full = np.where(np.isnan(wide) & ~np.isnan(x.astype(np.float32)), np.copysign(largest, x), wide)
        yield Hypothesis(full.astype(s.mine.dtype), "overflow saturates where saturate = 0 asks for NaN")
