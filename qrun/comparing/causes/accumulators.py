"""A cause: products are added in an accumulator with too few bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect, cause
from qrun.comparing.causes._products import Products, Sums, products
from qrun.comparing.ties import unwrapped_sums
from qrun.ir import Array

_DEEPEST = 4096
"""The most products of a sum that are added one by one here."""


@cause("narrow-accumulator", rank=52, source="ONNX operators, MatMulInteger-10, ConvInteger-10: the sum is int32")
def narrow_accumulator(s: Suspect) -> Iterator[Hypothesis]:
    """The runtime adds products in an accumulator that cannot hold the sum: int16, 24 bits or float32, or it adds pairs
    of them in int16 first.

    To confirm: Run the node with smaller codes, or over fewer elements. As soon as the sums fit the accumulator, the
    difference disappears.

    To do: Use 7-bit weights or fewer channels for this node. Report the bug to the runtime's maintainers.
    """
    if s.theirs is None or s.theirs.shape != s.mine.shape or s.theirs.dtype != s.mine.dtype:
        return
    known = products(s)
    if known is not None:
        for text, sums in _ways(known):
            made = known.output(sums)
            if made is not None:
                yield Hypothesis(made, text)
    yield from _bias_in_float32(s)


def _ways(known: Products) -> Iterator[tuple[str, Sums]]:
    """Yield the accumulators that the sums can leave."""
    if known.reach >= 2**23:
        yield "adds in 24 bits, which wrap", lambda a, b: _wrap(a @ b, 24)
        yield "adds in 24 bits, which saturate", lambda a, b: np.clip(a @ b, -(2**23), 2**23 - 1)
    slow = known.depth > _DEEPEST
    if known.reach >= 2**24 and not slow:
        yield "adds in float32", lambda a, b: _add(a, b, 1, "float32")
    if known.reach >= 2**15:
        yield "adds in int16, which wraps", lambda a, b: _wrap(a @ b, 16)
        yield "adds in int16, which saturates at the end", lambda a, b: np.clip(a @ b, -(2**15), 2**15 - 1)
    if known.reach >= 2**15 and not slow:
        yield "adds in int16, which saturates after each product", lambda a, b: _add(a, b, 1, "int16")
        if not _multiplies_codes(known.s):  # else this is pair-saturation
            yield "adds pairs of products of differences in int16, which saturates", lambda a, b: _add(a, b, 2, "pairs")


def _multiplies_codes(s: Suspect) -> bool:
    """Are the operands uint8 and int8 codes without zero points, in the order that pair-saturation needs?"""
    names = {"QLinearConv": ("x", "w"), "ConvInteger": ("w", "x")}.get(s.node.op_type, ("A", "B"))
    types = [None if (codes := s.arg(name)) is None else codes.dtype for name in names]
    zeros = [s.arg(f"{name}_zero_point") for name in names]
    return types == [np.uint8, np.int8] and not any(zero is not None and zero.any() for zero in zeros)


def _wrap(sums: Array, bits: int) -> Array:
    """The low bits of whole numbers."""
    half = 2.0 ** (bits - 1)
    return np.asarray((sums + half) % (2 * half) - half)


def _add(left: Array, right: Array, step: int, kind: str) -> Array:
    """The sums of products that are added `step` at a time in order of K."""
    total = np.zeros_like(left[..., :0] @ right[..., :0, :])
    for k in range(0, left.shape[-1], step):
        more = left[..., k : k + step] @ right[..., k : k + step, :]
        if kind == "float32":
            total = (total.astype(np.float32) + more.astype(np.float32)).astype(np.float64)
        elif kind == "int16":
            total = np.clip(total + more, -(2**15), 2**15 - 1)
        else:
            total = total + np.clip(more, -(2**15), 2**15 - 1)
    return total


def _bias_in_float32(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that a QLinearConv adds its bias to the sum in float32."""
    bias = s.arg("B")
    known = unwrapped_sums(s.node, s.args) if s.is_op("QLinearConv") and bias is not None else None
    if known is None or bias is None or not known[0].size or np.abs(known[0]).max() < 2**24:
        return
    acc, factor, zero = known
    last = bool(s.node.attributes.get("channels_last"))
    added = bias.astype(np.float64) if last else bias.astype(np.float64).reshape(-1, *(1,) * (acc.ndim - 2))
    single = (acc - added).astype(np.float32) + added.astype(np.float32)
    made = s.to_codes(np.rint(single.astype(np.float64) * factor), zero)
    if made is not None:
        yield Hypothesis(made, "adds the bias in float32")
