"""A cause: CPUs without VNNI add pairs of uint8 * int8 products in int16 with saturation. Splits integer convolutions
into matrix products of codes, as kernels do, and recomputes the outputs from changed sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause, compute_node
from qrun.comparing.differences import same
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.ops import Arith, Context, find
from qrun.ops._quantize import requantize
from qrun.ops._window import ConvGeometry, conv_window, pad_window, patches
from qrun.shapes import broadcast_shapes

Where = tuple[Any, ...]


@frozen
class MatrixProduct:
    """One matrix product inside a convolution: codes left [P,K] times right [K,N].
    The result belongs to ``sums[where]``, as [N,P] if `turned`, else as [P,N]."""

    left: Array
    right: Array
    where: Where
    turned: bool


def parts(s: Suspect, last: bool = True) -> Iterator[MatrixProduct]:
    """Yield the matrix products of a convolution. In QLinearConv, K runs over channels fastest, as in MLAS, if `last`.

    Source: onnxruntime core/providers/cpu/quantization/qlinearconv.cc: images become channels last, then im2col.
    """
    if s.is_op("QLinearConv"):
        yield from _of_conv(s, s.args[0], s.args[3], last=last)
        return
    for part in _of_conv(s, s.args[0], s.args[1], last=False):
        yield MatrixProduct(part.right.T, part.left.T, part.where, False)


def _of_conv(s: Suspect, x: Array | None, w: Array | None, *, last: bool) -> Iterator[MatrixProduct]:
    """A convolution as matrix products, one for each image and group."""
    if x is None or w is None:
        return
    a: dict[str, Any] = dict(s.node.attributes)
    if a.get("channels_last") and x.ndim > 2:
        x = np.moveaxis(x, -1, 1)
    group, win = a.get("group", 1), conv_window(x, w, ConvGeometry.of(a))
    zero = s.arg("x_zero_point")
    view = patches(pad_window(x, win, 0 if zero is None else zero.reshape(()), Context(observing=False)), win)
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


def add_to_sums(s: Suspect, change: Array, arith: Arith) -> Array | None:
    """A convolution's output after adding `change`, in the shape of channels-first sums, to its int32 sums."""
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
    """Wrap int64 sums to int32."""
    return np.asarray(values.astype(np.int64).astype(np.int32))


_LOW, _HIGH = -(2**15), 2**15 - 1
_CONVS = ("QLinearConv", "ConvInteger")
_INSIDE = ("DynamicQuantizeLSTM", "QAttention")
_OPS = (
    "QLinearMatMul",
    "QGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    *_INSIDE,
)
_STEPS: dict[Arith, str] = {"exact": "", "ort": "; the multiplier is rounded to float32"}
"""The arithmetics of the steps after the sums, with the text that describes each."""


@cause(
    "pair-saturation", rank=46, source="Intel SDM, VPMADDUBSW; onnxruntime core/mlas/lib/x86_64/QgemmU8S8KernelAvx2.S"
)
def pair_saturation(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime adds adjacent uint8 * int8 products in int16 with saturation. onnxruntime does so on x86 CPUs without
    VNNI.

    To confirm: Run the model on a CPU with VNNI (avx512_vnni or avx_vnni in /proc/cpuinfo), or with 7-bit weights. The
    difference disappears. qrun compare MODEL -i INPUTS --emulate avx2 shows the saturated outputs on any CPU.

    To do: Quantize the weights to 7 bits (reduce_range=True in onnxruntime.quantization), or run on a CPU with VNNI.
    uint8 weights also work, but onnxruntime.quantization does not write them for QLinearConv with per_channel.
    """
    if any(s.is_explained_by(form) for form, _ in s.form_results("fused-requantization")):
        return
    for form, text in s.form_results("pair-saturation"):
        yield Hypothesis(form, text)
    known: list[Array] = []
    for arith, more in _STEPS.items():
        losses = PairLosses()
        made = with_saturating_pairs(s, arith, losses)
        if made is None:
            break
        array = made[s.node.outputs.index(s.tensor)]
        if any(same(array, other) for other in known):
            continue
        known.append(array)
        text = losses.describe(s.mine, ", as on x86 CPUs without VNNI,")
        hidden = _count_hidden(s, losses)
        text += f"; {hidden} still {'has' if hidden == 1 else 'have'} the same code" if hidden else ""
        # Functions of the sums, such as the gates' functions, have other bits in each runtime.
        yield Hypothesis(array, text + more, tolerant=s.is_op(*_INSIDE))
    yield from _along_kernels(s)


def _along_kernels(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that a QLinearConv pairs products along its kernels, channel by channel."""
    losses = PairLosses()
    change = _lost_by_convolution(s, losses, last=False) if s.is_op("QLinearConv") else None
    made = add_to_sums(s, change, "exact") if change is not None and losses.pairs else None
    if made is not None:
        yield Hypothesis(made, losses.describe(s.mine, ", paired along the kernels,"))


def _count_hidden(s: Suspect, losses: PairLosses) -> int:
    """Count the elements whose sum changes by saturation but whose result is the same on both sides."""
    if s.theirs is None or s.theirs.shape != s.mine.shape or len(losses.changes) != 1:
        return 0
    alike, change = s.mine == s.theirs, losses.changes[0]
    alike = np.moveaxis(alike, -1, 1) if _channels_last(s) else alike
    return int(np.count_nonzero(alike & (change.reshape(alike.shape) != 0))) if alike.size == change.size else 0


class PairLosses:
    """Collects the changes of a node's sums by int16 saturation of pairs, product by product.

    changes: for each product that saturates, the int64 change of its sums. pairs: the number of saturated pairs.
    """

    def __init__(self) -> None:
        self.changes: list[Array] = []
        self.pairs = 0

    def describe(self, y: Array, how: str) -> str:
        """Describe what saturates, and which sums change. y: the node's output. how: inserted between the two."""
        count = sum(int(np.count_nonzero(change)) for change in self.changes)
        where = f"{count} sum{'s' * (count != 1)} inside"
        if [change.size for change in self.changes] == [y.size]:
            where = f"the sum{'s' * (count != 1)} of {count} element{'s' * (count != 1)}"
        told = "1 pair of products saturates" if self.pairs == 1 else f"{self.pairs} pairs of products saturate"
        return f"{told} in int16{how} in {where}"

    def __call__(self, left: Array, right: Array) -> Array:
        """The change of the sums of left [..., M, K] times right [..., K, N] by saturation, int64 [..., M, N]."""
        lead = broadcast_shapes(left.shape[:-2], right.shape[:-2])
        change = np.zeros((*lead, left.shape[-2], right.shape[-1]), np.int64)
        if left.dtype != np.uint8 or right.dtype != np.int8:
            return change
        rows, columns = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (left, right))
        found = 0
        for where in np.ndindex(*lead):
            change[where], count = saturated_pairs(rows[where], columns[where])
            found += count
        self.add(change, found)
        return change

    def add(self, change: Array, pairs: int) -> None:
        """Add the change of results that `pairs` saturated pairs make."""
        if pairs:
            self.changes.append(change)
            self.pairs += pairs


def with_saturating_pairs(s: Suspect, arith: Arith, losses: PairLosses) -> tuple[Array, ...] | None:
    """The outputs of a node whose uint8 * int8 products are added in saturating pairs; None if none saturates. Adds the
    changes of its sums to `losses`."""
    made: tuple[Array, ...] | None = None
    if s.is_op(*_OPS):
        made = compute_node(s.node, s.args, arith, lost=losses)
    elif s.is_op(*_CONVS):
        change = _lost_by_convolution(s, losses)
        y = add_to_sums(s, change, arith) if losses.pairs else None
        made = None if y is None else (y,)
    return made if losses.pairs else None


def _lost_by_convolution(s: Suspect, losses: PairLosses, last: bool = True) -> Array:
    """The change of each sum by saturation, channels first. last: does K run over channels fastest in QLinearConv?"""
    shape: tuple[int, ...] = s.mine.shape
    change = np.zeros((shape[0], shape[-1], *shape[1:-1]) if _channels_last(s) else shape, np.int64)
    pairs = 0
    for part in parts(s, last):
        if part.left.dtype == np.uint8 and part.right.dtype == np.int8:
            lost, count = saturated_pairs(part.left, part.right)
            pairs += count
            change[part.where] = (lost.T if part.turned else lost).reshape(change[part.where].shape)
    losses.add(change, pairs)
    return change


def _channels_last(s: Suspect) -> bool:
    """Whether a QLinearConv has its channels last."""
    return s.is_op("QLinearConv") and bool(s.node.attributes.get("channels_last")) and s.mine.ndim > 2


def saturated_pairs(left: Array, right: Array) -> tuple[Array, int]:
    """The change of each sum of left [P,K] times right [K,N] by int16 saturation of pairs, int64 [P,N], and the number
    of saturated pairs. Pairs are neighbours along K; if K is odd, the last product has no partner.

    Multiplies only pairs of weights that can leave int16 with the largest codes present.
    """
    change: Array = np.zeros((left.shape[0], right.shape[1]), np.int64)
    if not left.size or not right.size:
        return change, 0
    even = left.shape[1] // 2 * 2
    top = left[:, :even].max(axis=0).astype(np.int32)
    first, second = right[0:even:2].astype(np.int32), right[1:even:2].astype(np.int32)
    a, b = top[0::2, None], top[1::2, None]
    high = a * np.maximum(first, 0) + b * np.maximum(second, 0) > _HIGH
    low = a * np.minimum(first, 0) + b * np.minimum(second, 0) < _LOW
    risky = high | low
    count = 0
    for pair in np.flatnonzero(risky.any(axis=1)):
        where: Any = np.flatnonzero(risky[pair])
        sums = np.outer(left[:, 2 * pair].astype(np.int32), first[pair, where])
        sums += np.outer(left[:, 2 * pair + 1].astype(np.int32), second[pair, where])
        lost = np.clip(sums, _LOW, _HIGH) - sums
        hit = int(np.count_nonzero(lost))
        if hit:
            count += hit
            change[:, where] += lost
    return change, count
