"""Integer products as kernels walk them: rows times columns of codes, and how the operator goes on from the sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Suspect
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops import Arith, Context, find
from qrun.ops._conv import ConvGeometry, conv_window
from qrun.ops._quantize import requantize
from qrun.ops._window import padded, patches
from qrun.shapes import broadcast_shapes

Where = tuple[Any, ...]


@frozen
class MatrixProduct:
    """One matrix product inside a node: codes left [P,K] times right [K,N]; the result goes to ``sums[where]`` as [N,P]
    if `turned`, else as [P,N]."""

    left: Array
    right: Array
    where: Where
    turned: bool


def parts(s: Suspect) -> Iterator[MatrixProduct]:
    """The products of a convolution or matrix product; K of a convolution runs over channels fastest, as in MLAS.

    Source: onnxruntime core/providers/cpu/quantization/qlinearconv.cc: images are turned to channels last, then im2col.
    """
    if s.is_op("QLinearConv"):
        yield from _of_conv(s, s.args[0], s.args[3], last=True)
    elif s.is_op("ConvInteger"):
        for part in _of_conv(s, s.args[0], s.args[1], last=False):
            yield MatrixProduct(part.right.T, part.left.T, part.where, False)
    else:
        yield from _of_matmul(*_operands(s))


def _operands(s: Suspect) -> tuple[Array | None, Array | None]:
    if s.is_op("DynamicQuantizeMatMul"):
        return _dynamic(s)[0], s.args[1]
    a, b = s.args[0], s.args[1 if s.is_op("MatMulInteger", "MatMulIntegerToFloat") else 3]
    if s.is_op("QGemm") and a is not None and b is not None:
        a = a.T if s.node.attributes.get("transA") else a
        b = b.T if s.node.attributes.get("transB") else b
    return a, b


def _of_matmul(a: Array | None, b: Array | None) -> Iterator[MatrixProduct]:
    if a is None or b is None or min(a.ndim, b.ndim) < 2:
        return
    lead = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    left, right = np.broadcast_to(a, (*lead, *a.shape[-2:])), np.broadcast_to(b, (*lead, *b.shape[-2:]))
    for where in np.ndindex(*lead):
        yield MatrixProduct(left[where], right[where], where, False)


def _of_conv(s: Suspect, x: Array | None, w: Array | None, *, last: bool) -> Iterator[MatrixProduct]:
    if x is None or w is None:
        return
    a: dict[str, Any] = dict(s.node.attributes)
    if a.get("channels_last") and x.ndim > 2:
        x = np.moveaxis(x, -1, 1)
    group, win = a.get("group", 1), conv_window(x, w, ConvGeometry.of(a))
    zero = s.arg("x_zero_point")
    view = patches(padded(x, win, 0 if zero is None else zero.reshape(()), Context(observing=False)), win)
    rank, deep, many = len(win.kernel), w.shape[1], w.shape[0] // group
    for image in range(x.shape[0]):
        for g in range(group):
            columns, weights = view[image, g * deep : (g + 1) * deep], w[g * many : (g + 1) * many]
            if last:
                columns = np.moveaxis(columns, 0, rank)
                weights = np.moveaxis(weights, 1, -1)
            depth = math.prod(w.shape[1:])
            left = columns.reshape(depth, math.prod(win.out)).T
            yield MatrixProduct(left, weights.reshape(many, depth).T, (image, slice(g * many, (g + 1) * many)), True)


def resumed(s: Suspect, change: Array, arith: Arith) -> Array | None:
    """The node's output if its int32 sums differ by `change`, which has the shape of channels-first sums."""
    ctx = Context(arith, observing=False)
    if s.is_op("MatMulInteger", "ConvInteger"):
        return _int32(s.mine + change)
    if s.is_op("QLinearConv"):
        return _conv(s, change, ctx)
    if s.is_op("QLinearMatMul"):
        return _matmul(s, change, ctx)
    if s.is_op("QGemm"):
        bias = s.arg("C")
        return s.evaluate(arith, inputs={"C": _int32(change + (0 if bias is None else bias))})
    return _to_float(s, change)


def _int32(values: Array) -> Array:
    return np.asarray(values.astype(np.int64).astype(np.int32))


def _sums(op_type: str, change: Array, *inputs: Array | None, **attributes: Any) -> Array:
    """The exact sums plus `change`, wrapped to int32, as float64."""
    integer = find("", op_type, 10)
    assert integer is not None
    acc = integer(*inputs, **attributes, ctx=Context(observing=False))
    return np.asarray(_int32(acc + change).astype(np.float64))


def _conv(s: Suspect, change: Array, ctx: Context) -> Array:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = (*s.args, None, None)[:9]
    assert x is not None
    assert x_scale is not None
    assert w_scale is not None
    assert y_scale is not None
    assert y_zero is not None
    attributes: dict[str, Any] = dict(s.node.attributes)
    turned = bool(attributes.pop("channels_last", 0)) and x.ndim > 2
    lanes = (1, -1, *(1,) * (x.ndim - 2))
    if bias is not None:
        change = change + bias.astype(np.int64).reshape(lanes)
    acc = _sums("ConvInteger", change, np.moveaxis(x, -1, 1) if turned else x, w, x_zero, w_zero, **attributes)
    factor = w_scale.reshape(lanes) if w_scale.size > 1 else w_scale.reshape(())
    y = requantize(acc, (x_scale.reshape(()), factor), y_scale.reshape(()), y_zero.reshape(()), ctx)
    return np.moveaxis(y, 1, -1) if turned else y


def _matmul(s: Suspect, change: Array, ctx: Context) -> Array:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = s.args
    acc = _sums("MatMulInteger", change, a, b, a_zero, b_zero)
    assert a_scale is not None
    assert b_scale is not None
    assert y_scale is not None
    assert y_zero is not None
    left = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.size > 1 else a_scale
    factors = tuple(f.reshape(()) if f.size == 1 else f for f in (left, b_scale))
    return requantize(acc, factors, y_scale.reshape(()), y_zero.reshape(()), ctx)


def _dynamic(s: Suspect) -> tuple[Array, Array, Array]:
    quantize = find("", "DynamicQuantizeLinear", 11)
    assert quantize is not None
    y, scale, zero = quantize(s.args[0])
    return y, scale, zero


def _to_float(s: Suspect, change: Array) -> Array:
    """MatMulIntegerToFloat and DynamicQuantizeMatMul in onnxruntime's float32 steps."""
    if s.is_op("DynamicQuantizeMatMul"):
        a, a_scale, a_zero = _dynamic(s)
    else:
        a, a_scale, a_zero = s.args[0], s.arg("a_scale"), s.arg("a_zero_point")  # type: ignore[assignment]
    acc = _sums("MatMulInteger", change, a, s.args[1], a_zero, s.arg("b_zero_point"))
    scale, bias = s.arg("b_scale"), s.arg("bias")
    assert scale is not None
    made = acc.astype(np.float32) * (np.float32(a_scale) * scale.astype(np.float32))
    return np.asarray(made if bias is None else made + bias)
