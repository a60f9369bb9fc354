"""Reads arithmetics without integer sums: DequantizeLinear, a float operator and QuantizeLinear that are not fused.

Their sums depend on an order of additions that nobody knows. Two kinds of sums do not: those of one product, and those
of powers of two, which are exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from qrun.arithmetics.family import TIES, ZERO
from qrun.arithmetics.primitives import ROUND
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.probe.combinations import ProbeRows
from qrun.probe.design import HIGH, LOW, Branch, signal

f32 = np.float32
DIVIDE: Mapping[str, str] = {"quotient": "divided by sy", "reciprocal": "times float32(1 / sy)"}


@frozen
class FloatFit:
    """Sums of float32(x * sx) * float32(w * sw): how they become codes, and how many codes differ.

    divide: a key of DIVIDE. ties, zero: keys of TIES and ZERO.
    """

    divide: str
    ties: str
    zero: str
    differing: int
    total: int

    @property
    def share(self) -> float:
        """Differing codes as a share of those compared."""
        return self.differing / self.total

    def describe(self) -> str:
        """In words."""
        return f"float32(x * sx) * float32(w * sw), {DIVIDE[self.divide]}, ties {TIES[self.ties]}, zero point {ZERO[self.zero]}"


def telling(asked: Sequence[Branch]) -> list[Branch]:
    """The branches whose float sums need no order of additions."""
    return [branch for branch in asked if branch.ties or branch.name.startswith("single_")]


def try_floats(asked: Sequence[Branch], codes: Mapping[str, Array]) -> list[FloatFit]:
    """How well floats explain the codes of telling branches, the best first. asked: some of those."""
    rows = ProbeRows.of(asked, codes)
    sums = np.concatenate([_sums(branch) for branch in asked])
    return sorted(_fits(rows, sums), key=lambda fit: fit.share)


def _sums(branch: Branch) -> Array:
    """The sums in float32."""
    x = signal().astype(f32) * branch.scales.x
    products = branch.weights.astype(f32) * branch.scales.w * x
    return np.asarray(products.sum(axis=1, dtype=np.float64), f32)


def _fits(rows: ProbeRows, sums: Array) -> Iterator[FloatFit]:
    zero = rows.zero.astype(f32)
    scaled = {"quotient": sums / rows.scales.y, "reciprocal": sums * (f32(1) / rows.scales.y)}
    for divide, ties, place in product(DIVIDE, TIES, ZERO):
        inside, after = (zero, 0) if place == "before" else (f32(0), rows.zero)
        made = np.clip(ROUND[ties][0]((scaled[divide] + inside).astype(np.float64)) + after, LOW, HIGH)
        yield FloatFit(divide, ties, place, int(np.count_nonzero(made != rows.got)), rows.got.size)
