"""Causes in parameters and ranges: scales and zero points on the wrong axis, omitted or misused; missing or wrong
saturation; integers that wrap around; NaN and infinities."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, recompute
from qrun.comparing.causes._forms import along_depth, along_kernel
from qrun.comparing.causes._misplaced import misplaced, other_blocks
from qrun.comparing.differences import difference_mask
from qrun.ir import Array
from qrun.ops import Context, find
from qrun.ops._quantize import is_integer, limits

_SPEC = "ONNX operators: QLinearConv-10, QLinearMatMul-21, QuantizeLinear-21, axis"


@cause("wrong-scale-axis", rank=20, source=_SPEC)
def wrong_scale_axis(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime applies per-channel, per-row or per-column scales or zero points along the wrong axis.

    To confirm: Give all channels the same scale. The difference disappears.

    To do: Use one scale per tensor for this node, or a layout that the runtime handles correctly. Report the bug to the
    runtime's maintainers.
    """
    if s.is_op("QuantizeLinear", "DequantizeLinear"):
        yield from _other_axis(s)
        yield from other_blocks(s)
    elif s.is_op("QLinearConv"):
        yield from _flat_channels(s)
    elif s.is_op("MatMulInteger"):
        yield from _turned_rows(s)
    elif s.is_op("ConvInteger"):
        yield from _along_kernel(s)
    for form in (*along_depth(s), *along_kernel(s)):
        yield from recompute(s.to_codes(np.rint(form.exact - s.zero), s.zero), form.text)


def _other_axis(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses: the scales are applied along another axis."""
    scale = s.args[1]
    axis = s.node.attributes.get("axis", 1)
    if scale is None or scale.size < 2 or not isinstance(axis, int):
        return
    for other in range(s.mine.ndim):
        if other != axis % max(s.mine.ndim, 1) and s.mine.shape[other] == scale.size:
            yield from recompute(
                s.evaluate(attributes={"axis": other}), f"applies the scales along axis {other}, not {axis}"
            )


def _flat_channels(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that w_scale is applied as [1,M,1,1] at any rank, which is right only for 2-D convolutions with
    channels first."""
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*s.args, None, None)[:9]
    integer = find("", "ConvInteger", 10)
    attributes = dict(s.node.attributes)
    if attributes.pop("channels_last", 0) or s.mine.ndim == 4 or integer is None or y_zero is None:
        return
    if w_scale is None or w_scale.size < 2:
        return
    acc = integer(x, w, x_zero, w_zero, **attributes, ctx=Context(observing=False)).astype(np.float64)
    if bias is not None:
        acc = acc + bias.reshape(-1, *(1,) * (acc.ndim - 2))
    assert x_scale is not None
    assert y_scale is not None
    try:
        real = acc * (x_scale.item() * w_scale.reshape(1, -1, 1, 1).astype(np.float64) / y_scale.item())
    except ValueError:
        return
    for whole, zero in ((np.rint(real), float(y_zero.item())), (np.rint(real + float(y_zero.item())), 0.0)):
        yield from recompute(
            s.to_codes(whole, zero),
            f"applies w_scale in the shape [1,{w_scale.size},1,1] to a result of rank {s.mine.ndim}",
        )


def _along_kernel(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that zero points per output channel are subtracted along the last axis of the kernel."""
    w, zero = s.args[1], s.arg("w_zero_point")
    if w is None or zero is None or zero.ndim != 1 or zero.size < 2 or zero.size != w.shape[-1]:
        return
    plain = w.astype(np.int32) - zero.astype(np.int32)
    made = s.evaluate(inputs={"w": plain, "w_zero_point": None})
    yield from recompute(made, "subtracts the channel zero points along the last axis of the kernel")


def _turned_rows(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that zero points per row of A are subtracted along K."""
    a, b, a_zero, b_zero = (*s.args, None, None)[:4]
    if a is None or b is None or a_zero is None or a_zero.ndim != 1 or a_zero.size != a.shape[-1] or a.ndim != 2:
        return
    right = b.astype(np.int64) - (0 if b_zero is None else b_zero.astype(np.int64))
    made = (a.astype(np.int64) - a_zero.astype(np.int64)) @ right
    yield Hypothesis(made.astype(np.int32), "subtracts the row zero points of A along its columns")


@cause("wrong-parameter", rank=48, source=_SPEC)
def wrong_parameter(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime ignores a scale, zero point or bias, or applies it incorrectly.

    To confirm: Set the parameter shown to 0 (a scale to 1) in the model. The other side's result does not change.

    To do: Fold the parameter into another one, such as the bias, or remove it. Report the bug to the runtime's
    maintainers.
    """
    for index, param in enumerate(s.definition.inputs if s.definition else ()):
        array = s.args[index] if index < len(s.args) else None
        plain = None if array is None else _without(param.name, array)
        if plain is not None and array is not None and np.any(plain != array):
            yield from recompute(s.evaluate(inputs={param.name: plain}), f"ignores {param.name}")
    zeros = _input_zeros(s)
    if len(zeros) > 1:
        yield from recompute(s.evaluate(inputs=zeros), f"ignores {' and '.join(zeros)}")
    yield from misplaced(s)
    scale, zero = s.arg("y_scale"), s.arg("y_zero_point")
    if s.is_op("QGemm") and scale is not None and zero is None:
        yield Hypothesis(
            np.asarray(s.mine / scale), "divides the float result by y_scale although y_zero_point is absent"
        )


def _input_zeros(s: Suspect) -> dict[str, Array | None]:
    """Zeros for the zero points of the inputs that are not 0, by name."""
    pairs = zip(s.definition.inputs if s.definition else (), s.args, strict=False)
    known = {param.name: array for param, array in pairs if param.name.lower().endswith("_zero_point")}
    own = ("y_zero_point", "c_zero_point", "z_zero_point")
    return {
        name: np.zeros_like(a) for name, a in known.items() if a is not None and np.any(a) and name.lower() not in own
    }


def _without(name: str, array: Array) -> Array | None:
    """A value of the parameter without effect: 0, or 1 for scales; None for other inputs."""
    if "zero_point" in name.lower() or name in ("B", "C", "bias"):
        return np.zeros_like(array)
    return np.ones_like(array) if "scale" in name.lower() else None


_INT_MIN = -(2**31)


@cause("saturation", rank=10, source="Intel SDM, CVTTSS2SI: the integer indefinite value is 80000000H")
def saturation(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime converts values beyond int32 to the smallest int32, so that they saturate at the wrong end, or it
    saturates too early, at int16.

    To confirm: The inputs divided by the scale exceed 2147483647. If you clip them, the difference disappears.

    To do: Clip the node's input to the range of its codes, or use a larger scale.
    """
    if s.exact is None or not s.alone:
        return
    for text, whole in _convert(s.exact, s.zero):
        yield from recompute(s.to_codes(whole), text)


def _convert(exact: Array, zero: Array) -> Iterator[tuple[str, Array]]:
    """Yield the rounded values after a conversion to int32 without saturation, zero point added, with descriptions."""
    start = "converts to int32 without saturating, so that overflow becomes -2147483648"
    whole = np.rint(exact - zero)
    if np.any(np.abs(whole) >= 2**15):
        yield "saturates the integer at int16 before it adds the zero point", np.clip(whole, -(2**15), 2**15 - 1) + zero
    fits = np.abs(whole) < 2**31
    if fits.all():
        return
    indefinite = np.where(fits, whole, _INT_MIN)
    yield start, indefinite + zero
    wrapped = (indefinite + zero).astype(np.int64).astype(np.int32).astype(np.float64)
    yield f"{start}, and adding the zero point wraps around", wrapped
    if np.isfinite(whole).all():
        low_bits = (whole + 2.0**31) % 2.0**32 - 2.0**31
        yield "converts to int32 by keeping the low 32 bits of values that do not fit", low_bits + zero
    both = np.rint(exact)
    yield start, np.where(np.abs(both) < 2**31, both, _INT_MIN)


@cause(
    "wrap-around",
    rank=11,
    source="ONNX operators, QuantizeLinear: saturate; DequantizeLinear: (x - zero point) * scale",
)
def wrap_around(s: Suspect) -> Iterator[Hypothesis]:
    """An integer outside its type wraps around where it should saturate, or an intermediate integer wraps too early.

    To confirm: The values before rounding are outside the range of the type. If you clip them, the difference
    disappears.

    To do: Clip the node's input to the range of its codes, or use a larger scale. Report the bug to the runtime's
    maintainers.
    """
    if s.is_op("DequantizeLinear"):
        yield from _difference(s)
    if s.exact is None or not s.alone:
        return
    try:
        low, high = limits(s.mine.dtype)
    except KeyError:
        return
    whole = np.rint(s.exact - s.zero) + s.zero
    beyond = (whole < low) | (whole > high)
    if not beyond.any() or np.any(np.abs(whole) >= 2.0**62) or not np.isfinite(whole).all():
        return
    codes = (whole.astype(np.int64) - low) % (high - low + 1) + low
    yield from recompute(
        s.to_codes(codes.astype(np.float64)), f"wraps the result modulo {high - low + 1} instead of saturating"
    )


def _difference(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses: x - x_zero_point wraps in int32, or in the 8 bits of x."""
    x, scale, zero = (*s.args, None)[:3]
    if x is None or scale is None or zero is None:
        return
    if x.dtype in (np.uint8, np.int8):
        wrapped = x - s.along(zero).astype(x.dtype)
        made = s.evaluate(inputs={"x": wrapped, "x_zero_point": np.zeros_like(zero)})
        yield from recompute(made, "x - x_zero_point wraps modulo 256")
    if x.dtype != np.int32:
        return
    factor, shift = s.along(scale), s.along(zero)
    narrow = (x.astype(np.int64) - shift.astype(np.int64)).astype(np.int32)
    made = (narrow.astype(np.float32) * factor.astype(np.float32)).astype(s.mine.dtype)
    yield Hypothesis(np.asarray(made), "wraps x - x_zero_point modulo 2^32")


@cause("special-value", rank=12, source="numerics, D5 and D10; onnx/onnx#8437")
def special_value(s: Suspect) -> Iterator[Hypothesis]:
    """An input is NaN or infinity, or a tensor has no range. The specification does not define the result, or defines
    a different one.

    To confirm: Replace NaN and infinities, or the tensor of zeros, in the input. The difference disappears.

    To do: Keep such values out of the quantizing node (Clip, Where): runtimes handle them differently.
    """
    yield from _zero_range(s)
    x = s.args[0] if s.alone and s.args else None
    if s.theirs is None or x is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    if x.shape == s.mine.shape and x.dtype.kind in "fV":
        yield from _of_input(s, x)
    if s.is_op("Cast") and np.isnan(s.mine.astype(np.float32)).any():
        real, mine = x.astype(np.float32), s.mine.astype(np.float32)
        made = np.where(np.isinf(real), np.copysign(_largest(s.mine.dtype), real), mine).astype(s.mine.dtype)
        yield Hypothesis(made, "saturates infinity, as Cast does since opset 24")


def _zero_range(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses of what DynamicQuantizeLinear makes of an input of zeros."""
    if not s.is_op("DynamicQuantizeLinear") or s.args[0] is None or np.any(s.args[0]):
        return
    values = {np.dtype(np.float32): (1 / 255, 0.0, np.nan), np.dtype(np.uint8): (0, 128, 255)}
    for value in values.get(s.mine.dtype, ()):
        text = f"returns {value:.6g} as {s.tensor} for an input of zeros, where the formula divides 0 by 0"
        yield Hypothesis(np.full_like(s.mine, value), text)


def _of_input(s: Suspect, x: Array) -> Iterator[Hypothesis]:
    """If all differing elements have NaN or infinite inputs, the hypotheses that these become one fixed value."""
    assert s.theirs is not None
    bad = difference_mask(s.mine, s.theirs)
    odd = x[bad].astype(np.float64)
    for name, hit in (("NaN", np.isnan(odd)), ("infinity", np.isinf(odd)), ("NaN or infinity", ~np.isfinite(odd))):
        if hit.size and hit.all():
            for value in _ends(s):
                fixed = np.asarray(value).astype(s.mine.dtype)  # a type without infinity has NaN instead
                text = f"turns {name} into {float(fixed):g}".replace("into nan", "into NaN")
                yield Hypothesis(np.where(bad, fixed, s.mine), text, implies=("saturation", "wrap-around"))


def _ends(s: Suspect) -> list[float]:
    """Values that runtimes give for undefined results: 0, the zero point, the ends of the type, NaN, infinities."""
    whole = is_integer(s.mine.dtype)
    ends = list(map(float, limits(s.mine.dtype))) if whole else [_largest(s.mine.dtype), -_largest(s.mine.dtype)]
    zero = [float(s.zero)] if s.zero.ndim == 0 else []
    return [0.0, *zero, *ends] + ([] if whole else [np.nan, np.inf, -np.inf])


def _largest(dtype: np.dtype[Any]) -> float:
    """The largest number of a float type."""
    info: Any = ml_dtypes.finfo
    return float(info(dtype).max)
