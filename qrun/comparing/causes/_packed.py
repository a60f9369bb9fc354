"""Weights that were reordered for one kernel and are read by another in the order before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from qrun.comparing.causes._cause import Hypothesis, Suspect
from qrun.comparing.causes._steps import snap
from qrun.comparing.ties import unwrapped_sums
from qrun.ir import Array

_BLOCK, _DEEP = 8, 4
"""Channels, filters or positions that a vector kernel takes at once; channels that one VPDPBUSD adds."""


def read_as_packed(s: Suspect) -> Iterator[Hypothesis]:
    """The hypothesis that a 1x1 QLinearConv packs its weights for VNNI, with four channels of a filter as neighbours,
    and reads them in the order before at positions beyond the last whole vector.

    Source: OpenCV 5 modules/dnn/src/int8layers/conv2_int8_vnni_kernels.simd.hpp, convInt8BlockVNNI_1x1.
    """
    a: dict[str, Any] = dict(s.node.attributes)
    x, w, w_zero = (s.arg(name) for name in ("x", "w", "w_zero_point"))
    known = unwrapped_sums(s.node, s.args) if s.is_op("QLinearConv") else None
    if known is None or x is None or w is None or w.dtype != np.int8 or (w_zero is not None and np.any(w_zero)):
        return
    apart = a.get("channels_last") or a.get("group", 1) != 1 or x.shape[2:] != s.mine.shape[2:]
    if apart or math.prod(w.shape[2:]) != 1 or x.ndim < 3 or any(a.get("pads") or ()):
        return
    codes, weights = _wide(x.reshape(*x.shape[:2], -1), 1), _wide(_wide(w.reshape(w.shape[:2]).T, 0), 1)
    unsigned = codes + 128.0 * (x.dtype == np.int8)
    lost = np.einsum("ncp,ck->nkp", unsigned, _packed(weights) - weights)[:, : w.shape[0]]
    count = codes.shape[2]
    change = np.where(np.arange(count) < count // _BLOCK * _BLOCK, 0.0, lost).reshape(s.mine.shape)
    acc, factor, zero = known
    text = f"reads weights in the order before they were packed for VNNI, at positions beyond vectors of {_BLOCK}"
    real = (acc + change) * factor
    for more, whole in (
        ("", np.rint(snap(real)) + zero),
        (", and adds the zero point before rounding", np.rint(snap(real + zero))),
    ):
        made = s.to_codes(whole)
        if made is not None and change.any():
            yield Hypothesis(made, f"{text}{more}")


def _wide(array: Array, axis: int) -> Array:
    """An array as float64, with zeros up to whole blocks along an axis."""
    more = [(0, -array.shape[at] % _BLOCK if at == axis else 0) for at in range(array.ndim)]
    return np.pad(array.astype(np.float64), more)


def _packed(weights: Array) -> Array:
    """Weights [C,K] as a reader of blocks of [8,8] sees them that are stored as two of [8,4], filters first."""
    blocks = weights.reshape(-1, 2, _DEEP, weights.shape[1] // _BLOCK, _BLOCK)
    stored = blocks.transpose(0, 3, 1, 4, 2)
    return stored.reshape(-1, weights.shape[1] // _BLOCK, _BLOCK, _BLOCK).swapaxes(1, 2).reshape(weights.shape)
