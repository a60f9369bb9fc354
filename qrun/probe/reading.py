"""Reads the probe's outputs: which arithmetic gives these codes, and how wide its accumulator is.

What all combinations of the five choices that fit have in common is read; the rest is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import ceil, sqrt

import numpy as np

from qrun.arithmetics import FAMILIES
from qrun.declare.frozen import frozen
from qrun.ir import Array
from qrun.probe import questions
from qrun.probe.combinations import MOST, FamilyFit, ProbeRows, try_all
from qrun.probe.design import APART, HIGH, LOW, Branch, branches, signal
from qrun.probe.floats import FloatFit, telling, try_floats

INTEGERS, FLOATS = "integers", "floats"
_STORED = "whole numbers: save codes as int8 or uint8"


@frozen
class Width:
    """What happens at the ends of an accumulator of `bits`: an answer of `questions.width`."""

    bits: int
    behaviour: str


@frozen(slots=False)
class Reading:
    """The answer of a probe. Texts are "" where the outputs that tell are missing.

    fits:    every arithmetic tried, the best first; known families before other combinations that fit as well.
    floats:  the best explanation by float sums, where those are the answer.
    sums:    ``integers``, ``floats`` or ``unclear``.
    bias:    where it is added: to ``integers``, or to ``floats``.
    widths:  of accumulators.
    least:   the code of sums far below all codes, of uint8 where the form has it; None if unknown.
    pairs, padding, relu: the answers of `qrun.probe.questions`.
    missing: names of branches without an output.
    """

    fits: tuple[FamilyFit, ...]
    floats: FloatFit | None
    sums: str
    bias: str
    widths: tuple[Width, ...]
    least: int | None
    pairs: str
    padding: str
    relu: str
    missing: tuple[str, ...]

    @cached_property
    def best(self) -> tuple[FamilyFit, ...]:
        """The arithmetics that fit as well as the first, within the noise of disturbed codes; empty if none fits.

        Noise of n codes moves a count by some sqrt(n), so that counts within three of these are alike.
        """
        if self.floats or not self.fits or self.fits[0].share > MOST:
            return ()
        least = self.fits[0].differing
        return tuple(fit for fit in self.fits if fit.differing <= least + ceil(3 * sqrt(least)))

    @property
    def named(self) -> bool:
        """Whether the codes are explained."""
        return bool(self.best or self.floats)

    @property
    def narrow(self) -> Width | None:
        """The accumulator of fewer than 32 bits that sums leave; None if none is seen. Larger sums are not read."""
        return narrowest(self.widths)

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


def read(codes: Mapping[str, Array], known: Sequence[Branch] | None = None, unsigned: bool = False) -> Reading:
    """Read the probe's outputs by name: int8 codes [n] of each branch, as `as_codes` makes them.

    known: the branches of the form; None for all. unsigned: the inputs were uint8.
    """
    known = branches() if known is None else known
    given = {branch.name: branch for branch in known if branch.name in codes}
    widths = [Width(*questions.width(b, codes[name])) for name, b in given.items() if name.startswith("width_")]
    asked, heard = _within(narrowest(widths), [b for name, b in given.items() if not name.startswith(APART)], codes)
    fits, inside = try_all(asked, heard) if asked else ([], True)
    floats, sums = _sums(fits, asked, heard)
    biased = any(branch.bias is not None for branch in asked)
    first = fits[0].arithmetic if fits and fits[0].share <= MOST and not floats else FAMILIES["exact"]

    def ask(name: str, question: Callable[..., str], *more: bool) -> str:
        return question(first, given[name], codes[name], *more) if name in given else ""

    return Reading(
        fits=tuple(fits),
        floats=floats,
        sums=sums,
        bias=(INTEGERS if inside else FLOATS) if biased and not floats and sums != questions.UNCLEAR else "",
        widths=tuple(widths),
        least=int(codes["ends"].min()) + (128 if unsigned else 0) if "ends" in given else None,
        pairs=ask("pairs", questions.pairs),
        padding=ask("padding", questions.padding, unsigned),
        relu=ask("relu", questions.relu),
        missing=tuple(branch.name for branch in known if branch.name not in codes),
    )


def narrowest(widths: Sequence[Width]) -> Width | None:
    """The accumulator of fewer than 32 bits that sums leave; None if none is seen."""
    return next((width for width in widths if width.bits < 32 and width.behaviour in ("saturates", "wraps")), None)


def _within(
    width: Width | None, asked: Sequence[Branch], codes: Mapping[str, Array]
) -> tuple[list[Branch], Mapping[str, Array]]:
    """The sums that stay within a narrow accumulator, in whatever order they are added, and their codes."""
    if width is None:
        return list(asked), codes
    kept, heard = [], {}
    for branch in asked:
        reach = np.abs(branch.weights.astype(np.int64)) @ np.abs(signal().astype(np.int64) - branch.offset)
        inside = reach + (0 if branch.bias is None else np.abs(branch.bias.astype(np.int64))) < 1 << (width.bits - 1)
        if inside.any():
            bias, given = (None if array is None else array[inside] for array in (branch.bias, branch.given))
            kept.append(replace(branch, sums=branch.sums[inside], bias=bias, given=given))
            heard[branch.name] = codes[branch.name][inside]
    return kept, heard


def _sums(
    fits: Sequence[FamilyFit], asked: Sequence[Branch], codes: Mapping[str, Array]
) -> tuple[FloatFit | None, str]:
    """The explanation by floats if that is the answer, and what the sums are. Both explanations are compared on the
    same branches. Integers that explain all other codes too are the answer also where floats explain these as well."""
    heard = telling(asked)
    if not any(branch.name.startswith("single_") for branch in heard):
        return None, ""
    best, rows = try_floats(heard, codes)[0], ProbeRows.of(heard, codes)
    whole = int(np.count_nonzero(rows.unlike(fits[0].arithmetic)))
    noise = 3 * sqrt(min(best.differing, whole))
    if fits[0].share <= MOST and whole <= best.differing + noise:
        return None, INTEGERS
    if best.share <= MOST and best.differing + noise < whole:
        return best, FLOATS
    return None, questions.UNCLEAR


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
        scaled = np.all(np.isfinite(steps)) and np.abs(steps - np.rint(steps)).max() <= 0.01
        if not scaled or np.rint(steps).min() < LOW or np.rint(steps).max() > HIGH:
            integers = np.all(np.isfinite(flat)) and np.all(np.rint(flat) == flat)
            raise ValueError(f"floats that are {_STORED if integers else 'no codes of its scale'}")
        flat = np.rint(steps).astype(np.int64)
    whole = flat.astype(np.int64) - (128 if flat.dtype == np.uint8 else 0)
    if whole.min() < LOW or whole.max() > HIGH:
        raise ValueError(f"codes from {whole.min()} to {whole.max()}")
    return whole.astype(np.int8)
