"""Scales, zero points and biases that are applied to other elements than their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, recompute
from qrun.comparing.causes._steps import snap
from qrun.comparing.ties import unwrapped_sums
from qrun.ir import Array

_PLACES: dict[str, tuple[int, Callable[[Array], Array]]] = {
    "in reverse order": (1, lambda a: a[::-1]),
    "shifted by one": (1, lambda a: np.roll(a, 1)),
    "shifted by one in the other direction": (1, lambda a: np.roll(a, -1)),
    "of the first channel or row for all": (1, lambda a: np.full_like(a, a[0])),
    "of the first batch for all": (3, lambda a: np.broadcast_to(a[:1], a.shape)),
    "of the first row or column for all": (3, lambda a: np.broadcast_to(a[..., :1, :1], a.shape)),
}
"""Other places of parameters, with the rank that they need: 1, or at least 3."""


def misplaced(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that parameters of many elements are applied at other places, all at once or one of them, and that the
    bias is added in another way."""
    if s.definition is None:
        return
    found = {
        p.name: a
        for p, a in zip(s.definition.inputs, s.args, strict=False)
        if a is not None and a.size > 1 and ("scale" in p.name or "zero_point" in p.name)
    }
    for text, (rank, place) in _PLACES.items():
        fit = {k: a for k, a in found.items() if (a.ndim == 1 if rank == 1 else a.ndim >= rank)}
        groups = [fit] if fit else []
        groups += [{k: a} for k, a in fit.items()] if len(fit) > 1 else []
        for group in groups:
            made = s.evaluate(inputs={k: np.ascontiguousarray(place(a)) for k, a in group.items()})
            yield from recompute(made, f"applies {' and '.join(group)} {text}")
    yield from _other_bias(s)


def _other_bias(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses on the bias of a QLinearConv."""
    bias = s.arg("B") if s.is_op("QLinearConv") else None
    if bias is None or not bias.size:
        return
    few = np.where(np.arange(bias.size) < bias.size - 1, bias, 0).astype(bias.dtype)
    ways = {"ignores the bias of the last channel": few, "applies B shifted by one": np.roll(bias, 1)}
    ways |= {"saturates the bias at int16": np.clip(bias, -(2**15), 2**15 - 1)}
    ways |= {"keeps the low 16 bits of the bias": bias.astype(np.int16).astype(bias.dtype)}
    for text, other in ways.items():
        if not np.array_equal(other, bias):
            yield from recompute(s.evaluate(inputs={"B": other.astype(bias.dtype)}), text)
    known = unwrapped_sums(s.node, s.args)
    if known is not None:
        acc, factor, zero = known
        last = bool(s.node.attributes.get("channels_last"))
        added = bias.astype(np.float64) if last else bias.astype(np.float64).reshape(-1, *(1,) * (acc.ndim - 2))
        whole = np.rint(snap((acc - added) * factor)) + np.rint(snap(added * factor))
        yield from recompute(s.to_codes(whole, zero), "adds the bias after rounding")
        unscaled = np.rint(snap((acc - added) * factor + added / s.args[6].astype(np.float64)))  # type: ignore[union-attr]
        yield from recompute(s.to_codes(unscaled, zero), "adds the codes of the bias without their scale")


def other_blocks(s: Suspect) -> Iterator[Hypothesis]:
    """Hypotheses that QuantizeLinear or DequantizeLinear applies the parameters of other blocks, or along the axis
    before."""
    x, scale = s.args[:2]
    axis, block = s.node.attributes.get("axis", 1), s.node.attributes.get("block_size", 0)
    if x is None or scale is None or not isinstance(axis, int) or not isinstance(block, int) or scale.size < 2:
        return
    assert s.definition is not None
    named = zip(s.definition.inputs[1:], s.args[1:], strict=False)
    found = {p.name: a for p, a in named if a is not None and a.shape == scale.shape}
    if block:
        at, count = np.arange(x.shape[axis]), scale.shape[axis]
        ways = {
            "takes the parameters of the block before for the last one": np.minimum(at // block, max(count - 2, 0)),
            "applies the parameters of blocks in turn, element by element": at % count,
            "takes blocks one element too long": at // (block + 1),
        }
        for text, place in ways.items():
            other = {k: np.take(a, place, axis) for k, a in found.items()}
            yield from recompute(s.evaluate(inputs=other, attributes={"block_size": 1}), text)
        yield from _as_slices(s, axis, count)
    elif scale.ndim == 1 and s.mine.ndim > 1:
        before = (axis - 1) % s.mine.ndim
        other = {k: np.resize(a, s.mine.shape[before]) for k, a in found.items()}
        text = f"applies the parameters along axis {before}, not {axis}, repeated or cut to fit"
        yield from recompute(s.evaluate(inputs=other, attributes={"axis": before}), text)


def _as_slices(s: Suspect, axis: int, count: int) -> Iterator[Hypothesis]:
    """The hypothesis that a QuantizeLinear takes blocks for slices: slice i has the parameters at the start of block i,
    there are as many slices as blocks, and 0 is in the others."""
    x, scale, zero = (*s.args, None)[:3]
    if not s.is_op("QuantizeLinear") or x is None or scale is None or axis % x.ndim == x.ndim - 1:
        return
    axis %= x.ndim
    first = (slice(None),) * (axis + 1) + (slice(0, 1),) * (x.ndim - axis - 1)
    wide = np.asarray(x, np.float64)[(slice(None),) * axis + (slice(count),)]
    quotient, shift = wide / scale[first], 0.0 if zero is None else np.asarray(zero[first], np.float64)
    text = (
        f"computes only {count} slices along axis {axis}, slice i with the first parameter of block i; 0 is in the rest"
    )
    for more, whole in (
        ("", np.rint(quotient) + shift),
        (", and adds the zero point before rounding", np.rint(quotient + shift)),
    ):
        codes = s.to_codes(whole)
        if codes is not None:
            made = np.zeros_like(s.mine)
            made[(slice(None),) * axis + (slice(count),)] = codes
            yield Hypothesis(made, f"{text}{more}")
