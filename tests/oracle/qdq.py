"""A graph of DequantizeLinear, float operators and QuantizeLinear in real numbers: Fractions, and one rounding.

Written from the operators' pages. Nothing is rounded but by QuantizeLinear, so every code is the nearest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import onnx

from oracle.float_windows import geometry, inside, places

Values = dict[str, Any]


def evaluate(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], units: Mapping[str, Any] | None = None) -> Values:
    """Every tensor of the graph: integer arrays, or object arrays of Fractions.

    units: scales, by name, that stand for other real numbers than their float32 ones.
    """
    values: Values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer} | dict(feeds)
    for name, unit in (units or {}).items():
        values[name] = unit
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        inputs = [values[name] if name else None for name in node.input]
        values[node.output[0]] = _OPERATORS[node.op_type](*inputs, **attributes)
    return values


def fractions(array: Any) -> np.ndarray:
    array = np.asarray(array)
    made = np.empty(array.shape, object)
    for at in np.ndindex(*array.shape):
        value = array[at]
        made[at] = value if isinstance(value, Fraction) else Fraction(value.item())
    return made


def _along(parameter: np.ndarray, x: np.ndarray, axis: int) -> np.ndarray:
    if parameter.size == 1:
        return parameter.reshape(())
    return parameter.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _dequantize(x: Any, scale: Any, zero: Any = None, axis: int = 1) -> np.ndarray:
    real = fractions(x)
    if zero is not None:
        real = real - _along(fractions(zero), x, axis)
    return np.asarray(real * _along(fractions(scale), x, axis))


def _quantize(x: Any, scale: Any, zero: np.ndarray, axis: int = 1) -> np.ndarray:
    quotient = np.asarray(x / _along(fractions(scale), x, axis))
    info, offset = np.iinfo(zero.dtype), np.broadcast_to(_along(zero, x, axis), x.shape)
    made = np.empty(x.shape, zero.dtype)
    for at in np.ndindex(*x.shape):
        made[at] = min(max(round(quotient[at]) + int(offset[at]), info.min), info.max)
    return made


def _conv(x: Any, w: Any, b: Any = None, *, group: int = 1, kernel_shape: Any = (), strides: Any = (), dilations: Any = (),
          pads: Any = (), auto_pad: bytes = b"NOTSET") -> np.ndarray:  # fmt: skip
    size, kernel = x.shape[2:], w.shape[2:]
    ones = (1,) * len(size)
    steps, holes, around = tuple(strides) or ones, tuple(dilations) or ones, tuple(pads) or (0, 0) * len(size)
    begin, _, out = geometry(size, kernel, steps, holes, around, auto_pad.decode(), False)
    y = np.empty((x.shape[0], w.shape[0], *out), object)
    share = w.shape[0] // group
    for n, m in product(range(x.shape[0]), range(w.shape[0])):
        first = m // share * w.shape[1]
        for at in product(*map(range, out)):
            total = Fraction(0) if b is None else b[m]
            for tap, place in places(at, kernel, steps, holes, begin):
                if inside(place, size):
                    total += sum(x[(n, first + c, *place)] * w[(m, c, *tap)] for c in range(w.shape[1]))
            y[(n, m, *at)] = total
    return y


def _gemm(a: Any, b: Any, c: Any = None, *, transA: int = 0, transB: int = 0) -> np.ndarray:
    y = np.matmul(a.T if transA else a, b.T if transB else b)
    return np.asarray(y if c is None else y + c)


def _average_pool(x: Any, *, kernel_shape: Any, strides: Any = (), pads: Any = (), auto_pad: bytes = b"NOTSET",
                  ceil_mode: int = 0, count_include_pad: int = 0) -> np.ndarray:  # fmt: skip
    size = x.shape[2:]
    ones = (1,) * len(size)
    steps, around, kernel = tuple(strides) or ones, tuple(pads) or (0, 0) * len(size), tuple(kernel_shape)
    begin, end, out = geometry(size, kernel, steps, ones, around, auto_pad.decode(), bool(ceil_mode))
    y = np.empty((*x.shape[:2], *out), object)
    for n, c, *at in product(*map(range, y.shape)):
        total, count = Fraction(0), 0
        for _, place in places(tuple(at), kernel, steps, ones, begin):
            here = inside(place, size)
            total += x[(n, c, *place)] if here else 0
            within = all(-b <= p < s + e for p, s, b, e in zip(place, size, begin, end, strict=True))
            count += here or bool(count_include_pad and within)
        y[(n, c, *at)] = total / count
    return y


def _global_average_pool(x: Any) -> np.ndarray:
    axes = tuple(range(2, x.ndim))
    return np.asarray(x.sum(axis=axes, keepdims=True) / Fraction(int(np.prod(x.shape[2:]))))


def _clip(x: Any, low: Any = None, high: Any = None) -> np.ndarray:
    y = x if low is None else np.maximum(x, fractions(low))
    return np.asarray(y if high is None else np.minimum(y, fractions(high)))


_OPERATORS: dict[str, Any] = {
    "DequantizeLinear": _dequantize,
    "QuantizeLinear": _quantize,
    "Conv": _conv,
    "MatMul": np.matmul,
    "Gemm": _gemm,
    "Add": np.add,
    "Mul": np.multiply,
    "Concat": lambda *parts, axis: np.concatenate(parts, axis),
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "Relu": lambda x: np.maximum(x, Fraction(0)),
    "Clip": _clip,
}
