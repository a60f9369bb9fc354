"""Causes in where elements come from: attributes of convolutions read as others, kernels turned, groups mixed, batches
and tails lost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes._packed import read_as_packed
from qrun.comparing.causes._products import CONVS, MATMULS, Sums, products
from qrun.comparing.differences import difference_mask
from qrun.ir import Array

_SPEC = "ONNX operators: Conv-22, QLinearConv-10, ConvInteger-10, AveragePool-22"
_WINDOWS = (*CONVS, "Conv", "QLinearAveragePool", "AveragePool", "MaxPool")


def _comparable(s: Suspect) -> bool:
    """Does the other side's result have the right shape and type?"""
    return s.theirs is not None and (s.theirs.shape, s.theirs.dtype) == (s.mine.shape, s.mine.dtype)


@cause("wrong-geometry", rank=53, source=_SPEC)
def wrong_geometry(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime computes with other strides, dilations, pads or groups than the node has, flips or transposes the
    kernels, or pads with code 0 instead of the zero point.

    To confirm: Set the attribute shown to the value that the runtime uses. Both sides then agree.

    To do: Avoid this form: pad with a Pad node, or split the node by group. Report the bug to the runtime's
    maintainers.
    """
    if not s.is_op(*_WINDOWS) or s.theirs is None or s.theirs.dtype != s.mine.dtype:
        return
    for text, changed in _attributes(s.node.attributes):
        made = s.evaluate(attributes=changed)
        if made is not None and made.ndim == s.theirs.ndim:
            made = made[tuple(slice(0, count) for count in s.theirs.shape)]
            if made.shape == s.theirs.shape:
                yield Hypothesis(made, text)
    if not _comparable(s):
        return
    if s.is_op(*CONVS, "Conv"):
        yield from _turned_kernels(s)
        yield from _mixed_groups(s)
        yield from _padded_with_zero(s)


def _attributes(given: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield attributes that a runtime may read instead."""
    for name in ("strides", "dilations"):
        steps = tuple(given.get(name) or ())
        if any(step > 1 for step in steps):
            yield f"ignores {name}", {name: (1,) * len(steps)}
        if steps[::-1] != steps:
            yield f"reads {name} in the opposite order of axes", {name: steps[::-1]}
    pads = tuple(given.get("pads") or ())
    half = len(pads) // 2
    others = {
        "swaps the pads at the beginning and at the end": pads[half:] + pads[:half],
        "reads pads as pairs of beginning and end, axis by axis": pads[::2] + pads[1::2],
        "reads pads in the opposite order of axes": pads[:half][::-1] + pads[half:][::-1],
    }
    for text, other in others.items():
        if other != pads:
            yield text, {"pads": other}
    auto_pad = given.get("auto_pad")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        other_side = "SAME_LOWER" if auto_pad == "SAME_UPPER" else "SAME_UPPER"
        yield f"pads {auto_pad} as {other_side}", {"auto_pad": other_side}


def _turned_kernels(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that the kernels are flipped or transposed."""
    w, name = s.arg("w"), "W" if s.is_op("Conv") else "w"
    if w is None or w.ndim < 3:
        return
    space = tuple(range(2, w.ndim))
    ways = [("flips the kernels along the last axis", np.flip(w, -1))]
    if w.ndim > 3:
        ways += [("flips the kernels along all axes", np.flip(w, space)), ("flips the kernels' rows", np.flip(w, -2))]
    if w.ndim == 4 and w.shape[-1] == w.shape[-2]:
        ways.append(("swaps height and width of the kernels", w.swapaxes(-1, -2)))
    for text, turned in ways:
        if not np.array_equal(turned, w):
            yield from _evaluated(s, text, {name: np.ascontiguousarray(turned)})


def _mixed_groups(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that groups read or write other channels."""
    x, w, group = s.args[0], s.arg("w"), s.node.attributes.get("group", 1)
    if x is None or w is None or not isinstance(group, int) or group < 2 or s.node.attributes.get("channels_last"):
        return
    name = s.definition.inputs[0].name if s.definition else "x"
    first = np.concatenate([x[:, : x.shape[1] // group]] * group, 1)
    yield from _evaluated(s, "reads the channels of the first group in every group", {name: first})
    if x.shape[1] > group:
        order = np.argsort(np.arange(x.shape[1]) % group, kind="stable")
        yield from _evaluated(s, "reads channels g, g + group, ... in group g", {name: x[:, order]})
    if w.shape[0] > group and s.definition is not None:
        order = np.argsort(np.arange(w.shape[0]) % group, kind="stable")
        sized = {
            p.name: a[order]
            for p, a in zip(s.definition.inputs[1:], s.args[1:], strict=False)
            if a is not None and a.ndim and a.shape[0] == w.shape[0]
        }
        made = s.evaluate(inputs=sized)
        if made is not None:
            yield Hypothesis(np.take(made, np.argsort(order), 1), "gives filter m to group m % group")


def _padded_with_zero(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that an integer convolution pads with code 0."""
    x, pads, zero = s.args[0], s.node.attributes.get("pads"), s.arg("x_zero_point")
    if x is None or not isinstance(pads, tuple) or not any(pads) or zero is None or not np.any(zero):
        return
    rank, last = len(pads) // 2, bool(s.node.attributes.get("channels_last"))
    around = [(int(a), int(b)) for a, b in zip(pads[:rank], pads[rank:], strict=True)]
    wide = np.pad(x, [(0, 0), *around, (0, 0)] if last else [(0, 0), (0, 0), *around])
    text = "pads with code 0 instead of x_zero_point"
    yield from _evaluated(s, text, {"x": wide}, {"pads": (0,) * len(pads)})


def _evaluated(
    s: Suspect, text: str, inputs: Mapping[str, Array | None], attributes: Mapping[str, Any] | None = None
) -> Iterator[Hypothesis]:
    """Yield what the node gives with other inputs, if its shape is right."""
    made = s.evaluate(inputs=inputs, attributes=attributes)
    if made is not None and made.shape == s.mine.shape:
        yield Hypothesis(made, text)


@cause("wrong-elements", rank=54, source="ONNX operators: each element of the output is defined by itself")
def wrong_elements(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime reads or writes elements at the wrong place: it takes the first image or matrix of a batch for all,
    reads a matrix transposed or weights in the order of another kernel, or loses elements beyond the last whole vector,
    in the sums or in the output.

    To confirm: Run the node with a batch of 1, or with sizes that are multiples of 64. The difference disappears.

    To do: Use such sizes for this node, padded if need be. Report the bug to the runtime's maintainers.
    """
    if not _comparable(s):
        return
    yield from _lost_vectors(s)
    if s.is_op(*CONVS, *MATMULS):
        yield from _other_batches(s)
        yield from _lost_products(s)
        yield from read_as_packed(s)


WIDTHS = (4, 8, 16, 32, 64)
"""Elements of vectors and rows of tiles."""


def _lost_vectors(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that elements beyond whole vectors along an axis are not computed: they repeat others, or are 0."""
    assert s.theirs is not None
    bad = difference_mask(s.mine, s.theirs)
    for axis, size in enumerate(s.mine.shape):
        differs = np.asarray(bad.any(axis=tuple(at for at in range(bad.ndim) if at != axis)))
        widths: dict[int, list[str]] = {}
        for width in WIDTHS:
            widths.setdefault(size // width * width, []).append(str(width))
        for count, told in widths.items():
            if not 0 < count < size or differs[:count].any() or not differs.any():
                continue
            places = np.arange(size)
            again = np.take(s.mine, np.where(places < count, places, places - (size - count)), axis)
            start = f"does not compute what is beyond vectors of {' or '.join(told)} along axis {axis}"
            yield Hypothesis(again, f"{start}; the elements before are repeated there")
            tail = np.moveaxis(np.zeros_like(bad), axis, 0)
            tail[count:] = True
            tail = np.moveaxis(tail, 0, axis)
            yield Hypothesis(np.where(tail, np.zeros((), s.mine.dtype), s.mine), f"{start}; 0 is there")
    if s.mine.size and _differs_only_at_last(bad):
        last = s.mine.copy()
        last.reshape(-1)[-1] = 0
        yield Hypothesis(last, "does not write the last element, which is 0")


def _differs_only_at_last(bad: Array) -> bool:
    """Is the last element the only one that differs?"""
    return bool(bad.reshape(-1)[-1]) and int(np.count_nonzero(bad)) == 1


def _other_batches(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that all batches read the first one, or that a matrix is read transposed."""
    names = ("x",) if s.is_op(*CONVS) else ("a", "b") if s.is_op("QLinearMatMul") else ("A", "B")
    for name in names:
        array = s.arg(name)
        if array is None:
            continue
        if array.ndim > 2 and array.shape[0] > 1:
            first = np.ascontiguousarray(np.broadcast_to(array[:1], array.shape))
            yield from _evaluated(s, f"takes the first batch of {name} for all", {name: first})
        if s.is_op(*MATMULS) and array.ndim > 1 and array.shape[-1] == array.shape[-2] > 1:
            turned = np.ascontiguousarray(array.swapaxes(-1, -2))
            yield from _evaluated(s, f"reads {name} transposed", {name: turned})


def _lost_products(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that products beyond a depth, or beyond the last whole vector of K, are lost."""
    known = products(s)
    if known is None:
        return
    ends = {known.depth // width * width: f"the last whole vector of {width}" for width in reversed(WIDTHS)}
    ends |= {depth: f"K = {depth}" for depth in (128, 256, 512, 1024)}
    for end, text in ends.items():
        if 0 < end < known.depth:
            made = known.output(_up_to(end))
            if made is not None:
                yield Hypothesis(made, f"loses the products beyond {text}")


def _up_to(end: int) -> Sums:
    """Adds the products before `end`."""
    return lambda left, right: left[..., :end] @ right[..., :end, :]
