"""The exact quotient of one element of a quantized operator, as a Fraction, written from the operators' definitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np

from qrun.ir import Node

Array = np.ndarray[Any, np.dtype[Any]]
Index = tuple[int, ...]
PARAMETERS = {
    "QLinearConv": (6, 7),
    "QLinearMatMul": (6, 7),
    "QGemm": (7, 8),
    "QLinearAdd": (6, 7),
    "QLinearMul": (6, 7),
    "QLinearAveragePool": (3, 4),
    "QLinearGlobalAveragePool": (3, 4),
    "QLinearConcat": (0, 1),
    "QLinearSoftmax": (3, 4),
    "QuantizeLinear": (1, 2),
}


def quotient(node: Node, inputs: Sequence[Array | None], at: Index) -> tuple[Fraction, int]:
    """The real value of output element `at` divided by y_scale, and the zero point of the output.

    QuantizeLinear's quotient is the one its text prescribes, rounded to float32. KeyError for other operators.
    """
    scale_place, zero_place = PARAMETERS[node.op_type]
    scale, zero = inputs[scale_place], inputs[zero_place] if zero_place < len(inputs) else None
    assert scale is not None
    if node.op_type == "QuantizeLinear":
        return quantize_linear(node, inputs, at)
    real = REAL[node.op_type](node.attributes, inputs, at)
    return real / fraction(scale), 0 if zero is None else int(zero.reshape(-1)[0])


def nearest(value: Fraction, zero: int, dtype: np.dtype[Any]) -> int:
    """saturate(RNE(value) + zero)."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return min(max(round(value) + zero, low), high)


def tie_distance(value: Fraction) -> Fraction:
    """Distance of a quotient to the nearest k + 1/2."""
    return abs(value - (value.__floor__() + Fraction(1, 2)))


def fraction(array: Array | None, place: int = 0) -> Fraction:
    assert array is not None
    flat = array.reshape(-1)
    return Fraction(float(flat[place if flat.size > 1 else 0]))


def centred(array: Array, zero: Array | None) -> Array:
    return array.astype(np.int64) - (0 if zero is None else zero.astype(np.int64))


def wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def conv(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    x, xs, xz, w, ws, wz, *_ = inputs
    assert x is not None
    assert w is not None
    n, m, place = at[0], at[1], at[2:]
    rank = len(place)
    group = attributes.get("group", 1)
    strides, dilations = attributes.get("strides") or (1,) * rank, attributes.get("dilations") or (1,) * rank
    pads = attributes.get("pads") or (0,) * (2 * rank)
    if attributes.get("auto_pad", "NOTSET") != "NOTSET":
        raise KeyError("auto_pad")
    taken = w.shape[1]
    first = m // (w.shape[0] // group) * taken
    image = centred(x[n, first : first + taken], xz)
    kernel = centred(w[m], None if wz is None else wz.reshape(-1)[m if wz.size > 1 else 0])
    for axis in range(rank):
        start = place[axis] * strides[axis] - pads[axis]
        rows = [start + k * dilations[axis] for k in range(w.shape[2 + axis])]
        inside = [k for k, row in enumerate(rows) if 0 <= row < x.shape[2 + axis]]
        image = image.take([rows[k] for k in inside], axis=1 + axis)
        kernel = kernel.take(inside, axis=1 + axis)
    bias = inputs[8] if len(inputs) > 8 else None
    acc = wrap(int((image * kernel).sum()) + (0 if bias is None else int(bias[m])))
    return acc * fraction(xs) * fraction(ws, m)


def matmul(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    a, a_scale, az, b, bs, bz, *_ = inputs
    assert a is not None
    assert b is not None
    if a.ndim != 2 or b.ndim != 2 or any(z is not None and z.size > 1 for z in (az, a_scale)):
        raise KeyError("only matrices with per-tensor a")
    zero = 0 if bz is None else int(bz.reshape(-1)[at[1] if bz.size > 1 else 0])
    acc = int(centred(a[at[0]], None if az is None else az.reshape(())) @ (b[:, at[1]].astype(np.int64) - zero))
    return wrap(acc) * fraction(a_scale) * fraction(bs, at[1])


def gemm(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    a, a_scale, az, b, bs, bz, c, *_ = inputs
    assert a is not None
    assert b is not None
    left = a.T if attributes.get("transA", 0) else a
    right = b.T if attributes.get("transB", 0) else b
    shape = (left.shape[0], right.shape[1])
    zero = 0 if bz is None else int(bz.reshape(-1)[at[1] if bz.size > 1 else 0])
    acc = int(centred(left[at[0]], az) @ (right[:, at[1]].astype(np.int64) - zero))
    acc += 0 if c is None else int(np.broadcast_to(c, shape)[at])
    alpha = Fraction(float(np.float32(attributes.get("alpha", 1.0))))
    return alpha * wrap(acc) * fraction(a_scale) * fraction(bs, at[1])


def pair(inputs: Sequence[Array | None], at: Index) -> tuple[Fraction, Fraction]:
    a, a_scale, az, b, bs, bz, *_ = inputs
    assert a is not None
    assert b is not None
    shape = np.broadcast_shapes(a.shape, b.shape)
    left, right = (int(np.broadcast_to(centred(v, z), shape)[at]) for v, z in ((a, az), (b, bz)))
    return left * fraction(a_scale), right * fraction(bs)


def add(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    return sum(pair(inputs, at), Fraction())


def mul(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    left, right = pair(inputs, at)
    return left * right


def average_pool(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    x, xs, xz, *_ = inputs
    assert x is not None
    if attributes.get("auto_pad", "NOTSET") != "NOTSET" or attributes.get("channels_last", 0):
        raise KeyError("auto_pad and channels_last")
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, pads = attributes.get("strides") or (1,) * rank, attributes.get("pads") or (0,) * (2 * rank)
    part, count = centred(x[at[0], at[1]], xz), 1
    for axis in range(rank):
        start = at[2 + axis] * strides[axis] - pads[axis]
        end = start + kernel[axis]
        size = x.shape[2 + axis]
        low, high = max(start, 0), min(end, size)
        count *= min(end, size + pads[rank + axis]) - start if attributes.get("count_include_pad", 0) else high - low
        part = part.take(range(low, high), axis=axis)
    return int(part.sum()) * fraction(xs) / count


def global_average_pool(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    x, xs, xz, *_ = inputs
    assert x is not None
    if attributes.get("channels_last", 0):
        raise KeyError("channels_last")
    part = centred(x[at[0], at[1]], xz)
    return int(part.sum()) * fraction(xs) / part.size


def concat(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    axis, place = attributes["axis"], list(at)
    for part in range(2, len(inputs), 3):
        x, scale, zero = inputs[part : part + 3]
        assert x is not None
        if place[axis] < x.shape[axis]:
            return (int(x[tuple(place)]) - (0 if zero is None else int(zero.reshape(-1)[0]))) * fraction(scale)
        place[axis] -= x.shape[axis]
    raise IndexError(at)


def softmax(attributes: Mapping[str, Any], inputs: Sequence[Array | None], at: Index) -> Fraction:
    """To 60 digits: a real softmax is irrational."""
    x, scale, *_ = inputs
    assert x is not None
    axis = attributes.get("axis", -1)
    if attributes.get("opset", 13) < 13:
        row, place = x.reshape(int(np.prod(x.shape[:axis])), -1), int(np.ravel_multi_index(at, x.shape))
        codes, mine = row[place // row.shape[1]], place % row.shape[1]
    else:
        codes, mine = np.moveaxis(x, axis, -1)[tuple(i for d, i in enumerate(at) if d != axis % x.ndim)], at[axis]
    step = fraction(scale)
    with localcontext() as context:
        context.prec = 60
        unit = Decimal(step.numerator) / Decimal(step.denominator)
        terms = [((int(c) - int(codes.max())) * unit).exp() for c in codes]
        return Fraction(terms[mine] / sum(terms))


def quantize_linear(node: Node, inputs: Sequence[Array | None], at: Index) -> tuple[Fraction, int]:
    x, scale = inputs[0], inputs[1]
    zero = inputs[2] if len(inputs) > 2 else None
    assert x is not None
    assert scale is not None
    if scale.dtype != np.float32 or x.dtype != np.float32:
        raise KeyError("only float32")
    channel = at[node.attributes.get("axis", 1)] if scale.size > 1 else 0  # type: ignore[index]
    value = x[at] / scale.reshape(-1)[channel]
    return Fraction(float(value)), 0 if zero is None else int(zero.reshape(-1)[channel])


REAL: Mapping[str, Callable[[Mapping[str, Any], Sequence[Array | None], Index], Fraction]] = {
    "QLinearConv": conv,
    "QLinearMatMul": matmul,
    "QGemm": gemm,
    "QLinearAdd": add,
    "QLinearMul": mul,
    "QLinearAveragePool": average_pool,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearConcat": concat,
    "QLinearSoftmax": softmax,
}
