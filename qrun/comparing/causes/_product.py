"""Integer convolutions as kernels walk them: rows times columns of codes, and how they go on from the sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Suspect
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops import Arith, Context, find
from qrun.ops._quantize import requantize
from qrun.ops._window import ConvGeometry, conv_window, padded, patches

Where = tuple[Any, ...]


@frozen
class MatrixProduct:
    """One matrix product inside a convolution: codes left [P,K] times right [K,N];
    the result goes to ``sums[where]`` as [N,P] if `turned`, else as [P,N]."""

    left: Array
    right: Array
    where: Where
    turned: bool


def parts(s: Suspect) -> Iterator[MatrixProduct]:
    """The products of a convolution; K of QLinearConv runs over channels fastest, as in MLAS.

    Source: onnxruntime core/providers/cpu/quantization/qlinearconv.cc: images are turned to channels last, then im2col.
    """
    if s.is_op("QLinearConv"):
        yield from _of_conv(s, s.args[0], s.args[3], last=True)
        return
    for part in _of_conv(s, s.args[0], s.args[1], last=False):
        yield MatrixProduct(part.right.T, part.left.T, part.where, False)


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
    """A convolution's output if its int32 sums differ by `change`, which has the shape of channels-first sums."""
    if s.is_op("ConvInteger"):
        return _int32(s.mine + change)
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
    integer = find("", "ConvInteger", 10)
    assert integer is not None
    codes = np.moveaxis(x, -1, 1) if turned else x
    acc = _int32(integer(codes, w, x_zero, w_zero, **attributes, ctx=Context(observing=False)) + change)
    factor = w_scale.reshape(lanes) if w_scale.size > 1 else w_scale.reshape(())
    scales = (x_scale.reshape(()), factor), y_scale.reshape(()), y_zero.reshape(())
    y = requantize(acc.astype(np.float64), *scales, Context(arith, observing=False))
    return np.moveaxis(y, 1, -1) if turned else y


def _int32(values: Array) -> Array:
    return np.asarray(values.astype(np.int64).astype(np.int32))
