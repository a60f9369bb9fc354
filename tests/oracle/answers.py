"""Every quantized operator's exact answer, and the real numbers that it rounds, from the oracles of this package."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from onnx import helper

from oracle import attention, blocks, experts, linear, ms, ms_linear, quantize, recurrent, sums
from oracle.cast import FORMATS, floor_log2
from oracle.quantize import RANGES, Real

Array = np.ndarray[Any, Any]
Inputs = Sequence[Any]


@dataclass(frozen=True)
class Answer:
    """One output. reals: an object array of what was rounded, None where nothing was."""

    array: Array
    reals: Array | None = None


@contextmanager
def recorded() -> Iterator[list[Real]]:
    """The real numbers that the oracles round while this holds, in the order in which they do."""
    seen: list[Real] = []
    kept = [(m, n, getattr(m, n)) for m, n in ((quantize, "saturate"), (linear, "saturate"), (quantize, "narrow"),
                                              (ms, "quantize"), (ms_linear, "quantize"))]  # fmt: skip

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def note(q: Any, *more: Any) -> Any:
            seen.append(float(q) if isinstance(q, str) else q)
            return function(q, *more)

        return note

    try:
        for module, name, function in kept:
            setattr(module, name, watched(function))
        yield seen
    finally:
        for module, name, function in kept:
            setattr(module, name, function)


def shaped(values: Sequence[Real], shape: Sequence[int]) -> Array:
    """The last of these values, as many as the shape has places."""
    count = math.prod(shape)
    made = np.empty(count, object)
    made[:] = values[len(values) - count :]
    return made.reshape(shape)


def _whole(array: Any) -> int:
    return 0 if array is None else int(np.asarray(array).reshape(()))


def _conv_sums(x: Array, w: Array, x_zero: Any, w_zero: Any, bias: Any, attributes: Mapping[str, Any]) -> Array:
    zeros = np.broadcast_to(np.asarray(0 if w_zero is None else w_zero).reshape(-1).astype(int), (w.shape[0],))
    known = {k: v for k, v in attributes.items() if k in ("group", "strides", "dilations", "pads", "auto_pad")}
    terms = None if bias is None else [int(v) for v in bias]
    conv = sums.conv if x.size * w.shape[0] * math.prod(w.shape[2:]) > sums.LARGE else linear.conv
    return conv(x, w, _whole(x_zero), [int(z) for z in zeros], terms, **known)


def _per_channel(array: Array, rank: int) -> Array:
    return array.reshape(()) if array.size == 1 else array.reshape(-1, *(1,) * (rank - 2))


def qlinear_conv(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    x, xs, xz, w, ws, wz, ys, yz, bias = (*inputs, None)[:9]
    last = bool(attributes.get("channels_last"))
    x = np.moveaxis(x, -1, 1) if last else x
    acc = _conv_sums(x, w, xz, wz, bias, attributes)
    with recorded() as seen:
        made = linear.requantize_all(acc, [xs.reshape(()), _per_channel(ws, acc.ndim)], ys.reshape(()), yz)
    reals = shaped(seen, acc.shape)
    return [Answer(np.moveaxis(made, 1, -1), np.moveaxis(reals, 1, -1)) if last else Answer(made, reals)]


def conv_integer(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    x, w, xz, wz = (*inputs, None, None)[:4]
    return [Answer(_conv_sums(x, w, xz, wz, None, attributes))]


def _factor(scale: Array, operand: Array, columns: bool) -> Array:
    if scale.size == 1:
        return scale.reshape(())
    return (scale.reshape(1, -1) if columns else scale.reshape(-1, 1)) if scale.ndim == 1 else scale


def _matmul_sums(a: Array, b: Array, a_zero: Array, b_zero: Array) -> Array:
    large = a.size * b.shape[-1] > sums.LARGE
    return (sums.matmul if large else linear.matmul)(a, b, a_zero, b_zero)


def qlinear_matmul(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    a, sa, za, b, sb, zb, sy, zy = inputs
    acc = _matmul_sums(a, b, za, zb)
    with recorded() as seen:
        made = linear.requantize_all(acc, [_factor(sa, a, False), _factor(sb, b, True)], sy.reshape(()), zy)
    return [Answer(made, shaped(seen, acc.shape))]


def matmul_integer(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    a, b, za, zb = (*inputs, None, None)[:4]
    zeros = [np.zeros((), x.dtype) if z is None else np.asarray(z) for x, z in ((a, za), (b, zb))]
    return [Answer(_matmul_sums(a, b, *zeros))]


def division(x: Array, scale: Array, version: int, precision: str | None) -> str:
    """The type that a quotient is rounded to; ``real`` for none."""
    if "int32" in (x.dtype.name, scale.dtype.name) or scale.dtype.name == "float8_e8m0fnu":
        return precision or "real"
    return precision or (scale.dtype.name if version >= 23 else x.dtype.name)


def quantize_linear(inputs: Inputs, attributes: Mapping[str, Any], version: int) -> list[Answer]:
    x, scale, zero = (*inputs, None)[:3]
    target = np.dtype(np.uint8) if zero is None else zero.dtype
    if attributes.get("output_dtype"):
        target = helper.tensor_dtype_to_np_dtype(attributes["output_dtype"])
    with recorded() as seen:
        made = quantize.quantize_linear(
            x, scale, zero, target, axis=attributes.get("axis", 1), block=attributes.get("block_size", 0),
            saturating=bool(attributes.get("saturate", 1)), division=division(x, scale, version, attributes.get("_precision")),
        )  # fmt: skip
    return [Answer(made, shaped(seen, x.shape))]


def dequantize_linear(inputs: Inputs, attributes: Mapping[str, Any], target: Any) -> list[Answer]:
    x, scale, zero = (*inputs, None)[:3]
    axis, block = attributes.get("axis", 1), attributes.get("block_size", 0)
    if attributes.get("output_dtype"):
        target = helper.tensor_dtype_to_np_dtype(attributes["output_dtype"])
    return [Answer(quantize.dequantize_linear(x, scale, zero, np.dtype(target), axis=axis, block=block))]


def dynamic_quantize_linear(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    with recorded() as seen:
        y, scale, zero = quantize.dynamic_quantize_linear(inputs[0])
    return [Answer(y, shaped(seen, y.shape)), Answer(scale), Answer(zero)]


def _in_order(function: Callable[..., Array]) -> Callable[[Inputs, Mapping[str, Any]], list[Answer]]:
    """An oracle that rounds one number for each element, in order, channels first."""

    def answers(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
        with recorded() as seen:
            y = function(*inputs, **attributes)
        if not seen:
            return [Answer(y)]
        if attributes.get("channels_last"):
            return [Answer(y, np.moveaxis(shaped(seen, np.moveaxis(y, -1, 1).shape), 1, -1))]
        return [Answer(y, shaped(seen, y.shape))]

    return answers


def qlinear_concat(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    with recorded() as seen:
        y = ms.qlinear_concat(*inputs, **attributes)
    parts, place = [], 0
    for part in inputs[2::3]:
        parts.append(shaped(seen[place : place + part.size], part.shape))
        place += part.size
    return [Answer(y, np.concatenate(parts, attributes["axis"]))]


def qlinear_where(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
    with recorded() as seen:
        y = ms.qlinear_where(*inputs)
    condition, first = np.broadcast_to(inputs[0], y.shape), y.size
    return [Answer(y, np.where(condition, shaped(seen[:first], y.shape), shaped(seen[first:], y.shape)))]


def _bounded(function: Callable[..., Sequence[Array]]) -> Callable[[Inputs, Mapping[str, Any]], list[Answer]]:
    """An oracle that decides codes by bounds: it gives the codes and the real numbers, to many digits."""
    return lambda inputs, attributes: [Answer(*function(*inputs, **attributes))]


def _several(function: Callable[..., Sequence[Array]]) -> Callable[[Inputs, Mapping[str, Any]], list[Answer]]:
    """An oracle of several outputs in floats."""
    return lambda inputs, attributes: [Answer(array) for array in function(*inputs, **attributes)]


def _undivided(function: Callable[..., Array]) -> Callable[[Inputs, Mapping[str, Any]], list[Answer]]:
    """An oracle that rounds to no codes."""

    def answers(inputs: Inputs, attributes: Mapping[str, Any]) -> list[Answer]:
        return [Answer(function(*inputs, **attributes))]

    return answers


CONTRIB: dict[str, Callable[[Inputs, Mapping[str, Any]], list[Answer]]] = {
    "QLinearConv": qlinear_conv,
    "QLinearAdd": _in_order(ms.qlinear_add),
    "QLinearMul": _in_order(ms.qlinear_mul),
    "QLinearLeakyRelu": _in_order(ms.qlinear_leaky_relu),
    "QLinearAveragePool": _in_order(ms_linear.qlinear_average_pool),
    "QLinearGlobalAveragePool": _in_order(ms_linear.qlinear_global_average_pool),
    "QGemm": _in_order(ms_linear.qgemm),
    "QLinearConcat": qlinear_concat,
    "QLinearWhere": qlinear_where,
    "QLinearSigmoid": _bounded(ms.sigmoid_codes),
    "QLinearSoftmax": _bounded(ms.softmax_codes),
    "NhwcMaxPool": _undivided(ms_linear.nhwc_max_pool),
    "MatMulInteger16": _undivided(ms_linear.matmul_integer16),
    "MatMulNBits": _undivided(blocks.matmul_n_bits),
    "GatherBlockQuantized": _undivided(blocks.gather_block_quantized),
    "QMoE": _undivided(experts.q_moe),
    "QAttention": _several(attention.q_attention),
    "DynamicQuantizeLSTM": _several(recurrent.dynamic),
    "MatMulIntegerToFloat": _undivided(ms_linear.matmul_integer_to_float),
    "DynamicQuantizeMatMul": _undivided(ms_linear.dynamic_quantize_matmul),
}
CORE: dict[str, Callable[[Inputs, Mapping[str, Any]], list[Answer]]] = {
    "QLinearConv": qlinear_conv,
    "ConvInteger": conv_integer,
    "QLinearMatMul": qlinear_matmul,
    "MatMulInteger": matmul_integer,
    "DynamicQuantizeLinear": dynamic_quantize_linear,
}


def margin(q: Real, zero: int, type_name: str) -> float:
    """How far q is from the nearest tie at which the result of this type changes, in steps of the type there."""
    if isinstance(q, float) and not math.isfinite(q):
        return math.nan if math.isnan(q) else math.inf
    q = Fraction(q)
    if type_name in RANGES:
        low, high = RANGES[type_name]
        step = min(max(q.numerator // q.denominator, low - zero), high - zero - 1)
        return float(abs(q - step - Fraction(1, 2)))
    form = FORMATS[type_name]
    unit = Fraction(2) ** (max(floor_log2(abs(q)) if q else form.least, form.least) - form.mantissa)
    part = abs(q) / unit
    top = form.largest / unit
    return float(abs(part - min(part.numerator // part.denominator, top) - Fraction(1, 2)))
