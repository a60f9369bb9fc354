"""Causes of differences between two runtimes. Modules of this package declare them with @cause and are found by import.

A cause is a hypothesis about what the other side computes. qrun names it only if recomputing the node in this way gives
the other side's bits in every element; other causes that do so too are listed with it. If the specification leaves the
order or the steps of a computation open, every element must be within their error bound. If qrun knows what a runtime
computes but not its bits, the cause must bring every element within the tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from qrun.comparing.causes._cause import CAUSES, TIE, AlternativeForm, Cause, Hypothesis, Suspect, broadcast, cause
from qrun.comparing.differences import difference_mask, distances, same
from qrun.comparing.ties import tie_distance
from qrun.declare.frozen import frozen, replace
from qrun.errors import QrunError, TimeLimitError

for _module in iter_modules(__path__):
    if not _module.name.startswith("_"):
        import_module(f"{__name__}.{_module.name}")

UNKNOWN, INHERITED = "unknown", "inherited"
REFUSED = "refused"
ENGINES = 55
"""Causes of this rank and above are whole arithmetics of engines, which combine deviations."""
LAST = 60
"""Causes of this rank and above combine others, and are tried only if no simpler one reproduces the bits."""
CRASHED = "crashed"


@frozen
class Reason:
    """Why a tensor differs.

    cause:     the name of a Cause, or ``unknown``. text: what the other side does, or what is known.
    explained: the number of differing elements that recomputing reproduces: all of them, or 0 if nothing does.
    residual:  if recomputing only comes within the tolerance: the largest difference that it leaves, in steps of
               integers, else absolute; `explained` then counts the elements beyond the tolerance. None if every bit
               is reproduced.
    also:      other hypotheses that reproduce the same bits, each with its cause.
    ties:      the number of differing elements that are exact ties; None if the values before rounding are not known,
               or if some element differs by more than one step, which no tie does.
    nearest, farthest: distances of the other differing elements to a tie, in steps (LSB).
    """

    cause: str
    text: str
    explained: int = 0
    residual: float | None = None
    ties: int | None = None
    nearest: float | None = None
    farthest: float | None = None
    also: tuple[str, ...] = ()


def reason(suspect: Suspect) -> Reason:
    """The first cause, from the most specific to the most general, that reproduces the other side's result, with all
    rivals that give the same bits; ``unknown`` if none does."""
    fits: dict[str, str] = {}
    with np.errstate(all="ignore"):  # causes try what may overflow
        for known in sorted(CAUSES.values(), key=lambda c: c.rank):
            if known.rank >= LAST and any(CAUSES[name].rank < ENGINES for name in fits.values()):
                break
            for hypothesis in _hypotheses(known, suspect):
                if hypothesis.array is not None and suspect.is_explained_by(hypothesis.array):
                    if not fits or not (hypothesis.tolerant or set(hypothesis.implies) & set(fits.values())):
                        fits.setdefault(hypothesis.text, known.name)
                elif fits:
                    continue
                elif hypothesis.array is None:
                    return Reason(known.name, hypothesis.text)
                elif hypothesis.tolerant and (left := suspect.residual(hypothesis.array)) is not None:
                    return Reason(known.name, hypothesis.text, suspect.beyond, left)
    if not fits:
        return _measure(suspect, UNKNOWN, "no known computation reproduces the other side's bits")
    (text, name), *others = fits.items()
    made = _measure(suspect, name, text)
    return replace(made, also=tuple(f"{cause}: {text}" for text, cause in others))


def partial_reason(suspect: Suspect) -> Reason | None:
    """The first cause that reproduces every differing element, though not every equal one; None if none does. It holds
    in some elements only, such as those that a vector loop leaves."""
    theirs = suspect.theirs
    if theirs is None or (theirs.shape, theirs.dtype) != (suspect.mine.shape, suspect.mine.dtype):
        return None
    bad = difference_mask(suspect.mine, theirs)
    with np.errstate(all="ignore"):
        for known in sorted(CAUSES.values(), key=lambda c: c.rank):
            for hypothesis in _hypotheses(known, suspect) if known.rank < LAST else ():
                made = hypothesis.array
                if made is not None and made.shape == theirs.shape and same(made[bad], theirs[bad]):
                    return Reason(known.name, f"in some elements only: {hypothesis.text}")
    return None


def _hypotheses(known: Cause, suspect: Suspect) -> Iterator[Hypothesis]:
    """The hypotheses of a cause, up to the first that cannot be computed, for example with a scale of infinity."""
    try:
        yield from known.function(suspect)
    except TimeLimitError:
        raise
    except (QrunError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError):
        return


def _measure(suspect: Suspect, name: str, text: str) -> Reason:
    """The reason with the number of elements that it concerns, and how near ties they are."""
    theirs, mine, exact = suspect.theirs, suspect.mine, suspect.exact
    if theirs is None or theirs.shape != mine.shape or theirs.dtype != mine.dtype:
        return Reason(name, text)
    bad = difference_mask(mine, theirs)
    count = int(np.count_nonzero(bad)) if name != UNKNOWN else 0
    if exact is None or (distances(mine[bad], theirs[bad]) > 1).any():
        return Reason(name, text, count)
    away = tie_distance(exact[bad])
    away = away[np.isfinite(away)]
    if not away.size:
        return Reason(name, text, count)
    other = away[away > TIE] if (away > TIE).any() else away
    exact_ties = int(np.count_nonzero(away <= TIE))
    return Reason(name, text, count, None, exact_ties, float(other.min()), float(other.max()))


def all_causes() -> Mapping[str, Cause]:
    """Every cause by name, including ``unknown`` and ``inherited``."""
    others = [
        Cause(UNKNOWN, 0, "qrun explain causes lists the hypotheses", _unknown),
        Cause(INHERITED, 0, "qrun compare recomputes the node from the other side's values", _inherited_hypotheses),
    ]
    return {known.name: known for known in sorted([*CAUSES.values(), *others], key=lambda known: known.name)}


def _unknown(suspect: Suspect) -> Iterator[Hypothesis]:
    """No computation that qrun knows reproduces the other side's bits.

    To confirm: Run qrun compare MODEL -i X --isolate --json. It prints both values, and the value before rounding,
    where the difference is largest.

    To do: Run the node alone with other scales, shapes and inputs until the results agree. The last thing that you
    changed is the cause.
    """
    return iter(())


def _inherited_hypotheses(suspect: Suspect) -> Iterator[Hypothesis]:
    """The node is not at fault: given the other side's inputs, it returns the other side's result. The difference
    starts at an earlier node.

    To confirm: Run qrun compare MODEL -i X --isolate. It feeds every node the other side's inputs, and this tensor is
    then equal.

    To do: Look at the first node whose difference is not inherited. If there is none, --rtol 0 --atol 0 shows where the
    bits first differ.
    """
    return iter(())


__all__ = [
    "CAUSES",
    "CRASHED",
    "INHERITED",
    "REFUSED",
    "TIE",
    "UNKNOWN",
    "AlternativeForm",
    "Cause",
    "Hypothesis",
    "Reason",
    "Suspect",
    "all_causes",
    "broadcast",
    "cause",
    "partial_reason",
    "reason",
]
