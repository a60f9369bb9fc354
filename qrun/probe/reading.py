"""Reads the probe's outputs: which arithmetic gives these codes, and how wide its accumulator is.

Every combination of the five choices that makes sense is tried, not only those of known engines, so that an arithmetic
that nobody has described is read too. What all combinations that fit have in common is read; the rest is undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from math import ceil, sqrt

import numpy as np

from qrun.arithmetics import FAMILIES, Arithmetic, Scales
from qrun.arithmetics.family import CHOICES, DERIVE, TIES
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.probe.design import HIGH, LOW, WIDTHS, Branch, branches

MOST = 0.04
"""The largest share of codes that may differ from an arithmetic that is named."""

UNLIKE = 0.3
"""Beyond this share the codes are of other scales: a toolchain for shifts has rounded the scales to powers of two. Sums
of floats, which no combination explains, differ in less."""


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
class Width:
    """What happens at the ends of an accumulator of `bits`: ``exact``, ``saturates``, ``wraps`` or ``unclear``."""

    bits: int
    behaviour: str


@frozen(slots=False)
class Reading:
    """The answer of a probe.

    fits:    every arithmetic tried, the best first; known families before other combinations that fit as well.
    widths:  of accumulators. least: the code of sums far below all codes, None if unknown.
    pairs:   what two adjacent products do: ``exact``, ``saturates`` (in int16) or ``unclear``; "" if unknown.
    missing: names of branches without an output.
    """

    fits: tuple[FamilyFit, ...]
    widths: tuple[Width, ...]
    least: int | None
    pairs: str
    missing: tuple[str, ...]

    @cached_property
    def best(self) -> tuple[FamilyFit, ...]:
        """The arithmetics that fit as well as the first, within the noise of disturbed codes; empty if none fits.

        Noise of n codes moves a count by some sqrt(n), so that counts within three of these are alike.
        """
        if not self.fits or self.fits[0].share > MOST:
            return ()
        least = self.fits[0].differing
        return tuple(fit for fit in self.fits if fit.differing <= least + ceil(3 * sqrt(least)))

    @property
    def families(self) -> tuple[FamilyFit, ...]:
        """The known families among the best."""
        return tuple(fit for fit in self.best if fit.arithmetic.name in FAMILIES)

    @property
    def next(self) -> FamilyFit | None:
        """The best known family that does not fit."""
        return next((fit for fit in self.fits if fit.arithmetic.name in FAMILIES and fit not in self.best), None)

    def values(self, choice: str) -> tuple[str, ...]:
        """The values of one of the five choices that fit; one value is read, several are undecided."""
        return tuple(dict.fromkeys(getattr(fit.arithmetic, choice) for fit in self.best))


@cache
def combinations() -> tuple[Arithmetic, ...]:
    """The known families, then every other combination of the five choices that makes sense."""
    known = {tuple(getattr(each, choice) for choice in CHOICES) for each in FAMILIES.values()}
    others = [row for row in _rows() if row not in known]
    return (*FAMILIES.values(), *(Arithmetic(", ".join(row), *row, "", "") for row in others))


def _rows() -> Iterator[tuple[str, str, str, str, str]]:
    """(derive, hold, steps, ties, zero): a float is multiplied once or in two products; an integer's zero point is
    added after its shift; a power of two has no other form."""
    for ties, zero in product(TIES, ("after", "before")):
        yield from ((derive, hold, "one", ties, zero) for derive, hold in product(DERIVE, ("float32", "float64")))
        yield "single", "float32", "two products", ties, zero
        yield "single", "float32", "two products, reciprocal", ties, zero
        yield "reciprocals", "float32", "two products, reciprocal", ties, zero
    for derive, ties in product(DERIVE, TIES):
        yield from ((derive, f"{bits} bits", "one", ties, "after") for bits in (31, 24, 15, 8))
        yield derive, "31 bits", "high half", ties, "after"
        yield derive, "24 bits", "16 bits", ties, "after"
    yield from (("double", "power of two", "one", ties, "after") for ties in TIES)


APART = ("width_", "ends", "pairs")
"""Beginnings of the names of branches that answer questions of their own."""


def read(codes: Mapping[str, Array], unsigned: bool = False) -> Reading:
    """Read the probe's outputs by name: int8 codes [n] of each branch, as `as_codes` makes them.

    unsigned: the inputs were uint8.
    """
    given = [branch for branch in branches() if branch.name in codes]
    asked = [branch for branch in given if not branch.name.startswith(APART)]
    fits = _fits(asked, codes) if asked else []
    missing = tuple(branch.name for branch in branches() if branch.name not in codes)
    first = fits[0].arithmetic if fits and fits[0].share <= MOST else FAMILIES["exact"]
    widths = tuple(_width(first, branch, codes[branch.name]) for branch in given if branch.name.startswith("width_"))
    least = int(codes["ends"].min()) if "ends" in codes else None
    pairs = next((_pairs(first, b, codes["pairs"], unsigned) for b in given if b.name == "pairs"), "")
    return Reading(tuple(fits), widths, least, pairs, missing)


def _pairs(arithmetic: Arithmetic, branch: Branch, got: Array, unsigned: bool) -> str:
    """Compare with the sums of pairs that saturate in int16, where codes are uint8 and the zero point is subtracted
    from the saturated sum."""
    offset = 128 * int(branch.weights[0].sum(dtype=np.int64)) * (1 if unsigned else 0)
    raw = branch.sums + np.array([offset, -offset])
    forms = {"exact": branch.sums, "saturates": np.clip(raw, -(1 << 15), (1 << 15) - 1) - np.array([offset, -offset])}
    return _form_of(arithmetic, branch, got, forms)


def _fits(asked: Sequence[Branch], codes: Mapping[str, Array]) -> list[FamilyFit]:
    """Try every combination on all branches; if none fits, powers of two on the branches that such an engine takes."""
    got = np.concatenate([codes[branch.name] for branch in asked]).astype(np.int64)
    sums = np.concatenate([branch.sums for branch in asked])
    zero, ties = _spread(asked, "zero"), _spread(asked, "ties").astype(bool)
    scales = Scales(*(_spread(asked, "scales", part) for part in ("x", "w", "y")))
    unlike = {each: each.codes(sums, scales, zero, LOW, HIGH) != got for each in combinations()}
    found = [FamilyFit(each, int(np.count_nonzero(wrong)), got.size) for each, wrong in unlike.items()]
    if min(fit.share for fit in found) > UNLIKE and ties.any():
        shifts = {each: wrong[ties] for each, wrong in unlike.items() if each.hold == "power of two"}
        found += [FamilyFit(each, int(np.count_nonzero(wrong)), wrong.size) for each, wrong in shifts.items()]
    return sorted(found, key=lambda fit: fit.share)


def _spread(asked: Sequence[Branch], name: str, part: str = "") -> Array:
    """A value of each branch, repeated for each of its sums."""
    values = [getattr(getattr(b, name), part) if part else getattr(b, name) for b in asked]
    return np.repeat(np.asarray(values), [branch.sums.size for branch in asked])


def _width(arithmetic: Arithmetic, branch: Branch, got: Array) -> Width:
    """Compare the codes of sums around the ends of an accumulator with those of exact, clipped and wrapped sums."""
    bits = next(bits for bits in WIDTHS if branch.name == f"width_{bits}")
    end = 1 << (bits - 1)
    forms = {
        "exact": branch.sums,
        "saturates": np.clip(branch.sums, -end, end - 1),
        "wraps": (branch.sums + end) % (2 * end) - end,
    }
    return Width(bits, _form_of(arithmetic, branch, got, forms))


def _form_of(arithmetic: Arithmetic, branch: Branch, got: Array, forms: Mapping[str, Array]) -> str:
    """The name of the sums whose codes these are, but for a step of rounding; ``unclear`` if there are none."""
    for name, sums in forms.items():
        if np.all(np.abs(arithmetic.codes(sums, branch.scales, branch.zero, LOW, HIGH) - got) <= 1):
            return name
    return "unclear"


def as_codes(branch: Branch, dump: Array) -> Array:
    """The int8 codes of a branch from a dump of its output, in the order of its sums.

    A dump may be int8, uint8 (whose zero point is 128 higher), wider integers with these values, or dequantized floats.
    It may be channels-first or last, with channels padded at the end. Raises ValueError for anything else.
    """
    flat = np.asarray(dump).reshape(-1)
    if flat.size < branch.sums.size:
        raise ValueError(f"{flat.size} elements instead of {branch.sums.size}")
    flat = flat[: branch.sums.size]
    if flat.dtype.kind == "f":
        steps = flat.astype(np.float64) / float(branch.scales.y) + branch.zero
        if not np.all(np.isfinite(steps)) or np.abs(steps - np.rint(steps)).max() > 0.01:
            raise ValueError("floats that are no codes of the output's scale")
        return np.rint(steps).astype(np.int8)
    whole = flat.astype(np.int64) - (128 if flat.dtype == np.uint8 else 0)
    if whole.min() < LOW or whole.max() > HIGH:
        raise ValueError(f"codes from {whole.min()} to {whole.max()}")
    return whole.astype(np.int8)
