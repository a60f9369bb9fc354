"""Tries every combination of the five choices on the probe's codes, not only those of known engines, so that an
arithmetic that nobody has described is read too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic, Scales
from qrun.arithmetics.family import CHOICES, DERIVE, FIRST, TIES, ZERO
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.probe.design import HIGH, LOW, Branch

MOST = 0.04
"""The largest share of codes that may differ from an arithmetic that is named."""
UNLIKE = 0.3
"""Beyond this share the codes are of other scales: a toolchain for shifts has rounded the scales to powers of two. Sums
of floats, which no combination explains, differ in less."""
HOPELESS = 0.12
"""The share of a sample that may differ before a combination without a name is given up, HOPELESS_GROUP also those
that only make the multiplier in another way."""
HOPELESS_GROUP = 0.4
SAMPLE = 256
FLOAT_BIAS = 0.1
"""Beyond this share of the codes of sums with a bias, an arithmetic that fits the others adds no bias to sums."""


@frozen
class FamilyFit:
    """How well an arithmetic explains the codes: the number that differ, of those compared."""

    arithmetic: Arithmetic
    differing: int
    total: int

    @property
    def share(self) -> float:
        """Differing codes as a share of those compared."""
        return self.differing / self.total


@frozen
class ProbeRows:
    """The sums of several branches in a row: with zero points and scales of each, and the codes that a device gave."""

    sums: Array
    scales: Scales
    zero: Array
    got: Array

    @classmethod
    def of(cls, asked: Sequence[Branch], codes: Mapping[str, Array]) -> ProbeRows:
        """The rows of branches. codes: by the name of each."""
        scales = Scales(*(_spread(asked, "scales", part) for part in ("x", "w", "y")))
        got = np.concatenate([codes[branch.name] for branch in asked]).astype(np.int64)
        return cls(np.concatenate([b.sums for b in asked]), scales, _spread(asked, "zero"), got)

    def part(self, chosen: Any) -> ProbeRows:
        """Some of the rows."""
        scales = Scales(self.scales.x[chosen], self.scales.w[chosen], self.scales.y[chosen])
        return ProbeRows(self.sums[chosen], scales, self.zero[chosen], self.got[chosen])

    def unlike(self, arithmetic: Arithmetic) -> Array:
        """bool: where an arithmetic gives another code."""
        return np.asarray(arithmetic.codes(self.sums, self.scales, self.zero, LOW, HIGH) != self.got)


def _spread(asked: Sequence[Branch], name: str, part: str = "") -> Array:
    """A value of each branch, repeated for each of its sums."""
    values = [getattr(getattr(b, name), part) if part else getattr(b, name) for b in asked]
    return np.repeat(np.asarray(values), [branch.sums.size for branch in asked])


@cache
def combinations() -> tuple[Arithmetic, ...]:
    """The known families, then every other combination of the five choices that makes sense."""
    known = {tuple(getattr(each, choice) for choice in CHOICES) for each in FAMILIES.values()}
    others = [(derive, *rest) for derives, rest in _groups() for derive in derives]
    return (
        *FAMILIES.values(),
        *(Arithmetic(", ".join(row), *row, "", "") for row in others if row not in known),
    )


@cache
def groups() -> tuple[tuple[Arithmetic, ...], ...]:
    """The combinations that differ only in how the multiplier is made."""
    named: dict[tuple[str, ...], list[Arithmetic]] = {}
    for each in combinations():
        named.setdefault((each.hold, each.steps, each.ties, each.zero), []).append(each)
    return tuple(map(tuple, named.values()))


def _groups() -> Iterator[tuple[Sequence[str], tuple[str, str, str, str]]]:
    """(derives, (hold, steps, ties, zero)): a float is multiplied once or in two products."""
    whole = [derive for derive in DERIVE if derive not in FIRST]
    for ties, zero in product(TIES, ZERO):
        yield whole, ("float32", "one", ties, zero)
        yield whole, ("float64", "one", ties, zero)
        yield ("single", *FIRST), ("float32", "two products", ties, zero)
        yield ("single", *FIRST), ("float32", "two products, reciprocal", ties, zero)
        yield ("double",), ("power of two", "one", ties, zero)
        yield whole, ("24 bits", "16 bits", ties, zero)
        for steps, all_bits in (("one", range(31, 5, -1)), ("high half", (31, 24, 16, 15))):
            yield from ((whole, (f"{bits} bits", steps, ties, zero)) for bits in all_bits)


def _key(each: Arithmetic) -> tuple[str, ...]:
    """Equal for combinations that always give the same codes.

    A multiplier made in float32 has 24 bits, whatever holds it. "mixed" rounded to float32 is "single": so is every
    quotient of two float32 that is rounded to float64 first. To integers a zero point may be added at any time, if ties
    go the same way everywhere.
    """
    derive, hold, zero = each.derive, each.hold, each.zero
    whole = hold.endswith("bits")
    if whole and int(hold.split()[0]) > 24 and derive not in ("double", "mixed"):
        hold = "24 bits"
    if derive == "mixed" and hold in ("float32", "24 bits"):
        derive = "single"
    if (whole or hold == "power of two") and each.ties in ("up", "down", "floor"):
        zero = "after"
    return derive, hold, each.steps, each.ties, zero, str(each.low)


def try_all(asked: Sequence[Branch], codes: Mapping[str, Array]) -> tuple[list[FamilyFit], bool]:
    """How well the combinations explain the codes, the best first, and whether a bias is part of the sums.

    A family is always counted, another combination only if it may fit. If none fits, powers of two are tried on the
    branches that such an engine takes.
    """
    rows, ties = ProbeRows.of(asked, codes), _spread(asked, "ties").astype(bool)
    biased = np.repeat([b.bias is not None for b in asked], [b.sums.size for b in asked])
    unlike = _unlike(rows)
    inside = not biased.any() or not _has_float_bias(list(unlike.values()), biased)
    kept = np.full(biased.size, True) if inside else ~biased
    found = [FamilyFit(each, int(np.count_nonzero(wrong[kept])), int(kept.sum())) for each, wrong in unlike.items()]
    if min(fit.share for fit in found) > UNLIKE and ties.any():
        part, shifts = rows.part(ties), [each for each in combinations() if each.hold == "power of two"]
        found += [FamilyFit(each, int(np.count_nonzero(part.unlike(each))), int(ties.sum())) for each in shifts]
    return sorted(found, key=lambda fit: fit.share), inside


def _unlike(rows: ProbeRows) -> dict[Arithmetic, Array]:
    """Where each family, and each other combination that may fit, gives another code."""
    sample = rows.part(slice(None, None, max(1, rows.got.size // SAMPLE)))

    def may_fit(each: Arithmetic, most: float) -> bool:
        return int(np.count_nonzero(sample.unlike(each))) <= most * sample.got.size

    known: dict[tuple[str, ...], Array] = {}
    made = {each: known.setdefault(_key(each), rows.unlike(each)) for each in FAMILIES.values()}
    for first, *others in groups():
        if _key(first) not in known and not may_fit(first, HOPELESS_GROUP):
            continue
        for each in (first, *others):
            if _key(each) not in known and may_fit(each, HOPELESS):
                known[_key(each)] = rows.unlike(each)
            if _key(each) in known:
                made[each] = known[_key(each)]
    return made


def _has_float_bias(unlike: Sequence[Array], biased: Array) -> bool:
    """Whether arithmetics fit but for the sums with a bias, and none fits those too."""
    if biased.all():
        return False
    fitting = [wrong for wrong in unlike if np.mean(wrong[~biased]) <= MOST]
    return bool(fitting) and min(float(np.mean(wrong[biased])) for wrong in fitting) > FLOAT_BIAS
