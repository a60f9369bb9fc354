"""Pairs of products that saturate in int16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, cause
from qrun.comparing.causes._product import parts, resumed
from qrun.comparing.causes._suspect import Suspect
from qrun.ir import Array

_LOW, _HIGH = -(2**15), 2**15 - 1
_OPS = (
    "QLinearConv",
    "QLinearMatMul",
    "QGemm",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "ConvInteger",
)


@cause(
    "pair-saturation", rank=46, source="Intel SDM, VPMADDUBSW; onnxruntime core/mlas/lib/x86_64/QgemmU8S8KernelAvx2.S"
)
def pair_saturation(s: Suspect) -> Iterator[Hypothesis]:
    """Two neighbouring products of uint8 and int8 are added in int16 with saturation, as CPUs without VNNI do.

    To confirm: Run the same model on a CPU with VNNI (avx512_vnni or avx_vnni in /proc/cpuinfo), or with weights of
    7 bits: the difference is gone.

    To do: Quantize the weights to 7 bits (reduce_range=True in onnxruntime.quantization) or to uint8; or run on a CPU
    with VNNI.
    """
    for made, text in s.formed("pair-saturation"):
        yield Hypothesis(made, text)
    found = lost_in_pairs(s)
    if found is None:
        return
    change, pairs = found
    sums = int(np.count_nonzero(change))
    text = f"{pairs} pairs of products saturate (in int16, as on CPUs without VNNI), in the sums of {sums} elements"
    hidden = _hidden(s, change)
    text += f", of which {hidden} still round or clip to the same code" if hidden else ""
    for arith, more in (("exact", ""), ("ort", "; and the multiplier is rounded to float32")):
        resumed_sums = resumed(s, change, arith)  # type: ignore[arg-type]
        if resumed_sums is not None:
            yield Hypothesis(resumed_sums, text + more)


def _hidden(s: Suspect, change: Array) -> int:
    """Counts the elements whose sum saturation changes, and whose result is the same on both sides."""
    if s.theirs is None or s.theirs.shape != s.mine.shape:
        return 0
    alike = s.mine == s.theirs
    return int(np.count_nonzero((np.moveaxis(alike, -1, 1) if _channels_last(s) else alike) & (change != 0)))


def lost_in_pairs(s: Suspect) -> tuple[Array, int] | None:
    """What saturation changes each sum of a node by, channels first, and how many pairs saturate; None if none does."""
    if not s.is_op(*_OPS):
        return None
    change = np.zeros(_sums_shape(s), np.int64)
    pairs = 0
    for part in parts(s):
        if part.left.dtype != np.uint8 or part.right.dtype != np.int8:
            return None
        lost, count = saturated_pairs(part.left, part.right)
        pairs += count
        change[part.where] = (lost.T if part.turned else lost).reshape(change[part.where].shape)
    return (change, pairs) if pairs else None


def _sums_shape(s: Suspect) -> tuple[int, ...]:
    shape: tuple[int, ...] = s.mine.shape
    return (shape[0], shape[-1], *shape[1:-1]) if _channels_last(s) else shape


def _channels_last(s: Suspect) -> bool:
    return s.is_op("QLinearConv") and bool(s.node.attributes.get("channels_last")) and s.mine.ndim > 2


def saturated_pairs(left: Array, right: Array) -> tuple[Array, int]:
    """How much int16 saturation of pairs changes each sum of left [P,K] times right [K,N], int64 [P,N]; and how many
    pairs saturate. Pairs are neighbours along K, the last one alone if K is odd.

    Only pairs of weights that can leave int16 with the largest codes present are multiplied.
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
