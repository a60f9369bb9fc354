"""Proposes which tensor of a model each tensor of a dump is: by its name, its shape, and its values.

A pair is proposed only if every other reading is out of question. What is left open is listed with its candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from qrun.comparing.mapping.fit import NEAR, MappedTensor, Targets, TensorFit, correlation, fits
from qrun.comparing.mapping.targets import named
from qrun.declare import grouped
from qrun.dumps import DumpTensor

ENOUGH = 8
"""The fewest elements whose correlation is no chance, and the least energy in steps."""
CERTAIN = 24.0
"""The bits of evidence from which the agreement of values is no chance."""
FOLLOWS = 0.9
"""Values that correlate at least this much come from the same tensor, in other units or with large errors."""
FEW = 4
"""Fewer elements than this prove no rule."""
SAME_NAME = "same name"
MOST_CANDIDATES = 4


def propose(
    dump: Mapping[str, DumpTensor], targets: Targets, names: Mapping[str, tuple[str, ...]]
) -> tuple[list[MappedTensor], dict[str, TensorFit]]:
    """A row for each tensor of the dump, and the fits of the rows that are decided. names: of `targets`, by alias."""
    work = _Proposal(dump, targets, named(dump, names))
    decided = dict(work.decide())
    decided |= work.conflicts(decided)
    found = {name: each for name, each in decided.items() if isinstance(each, TensorFit)}
    return [each.row if isinstance(each, TensorFit) else each for each in decided.values()], found


class _Proposal:
    """The fits of every tensor of a dump, and what follows from them."""

    def __init__(self, dump: Mapping[str, DumpTensor], targets: Targets, names: Mapping[str, tuple[str, ...]]) -> None:
        self.dump, self.targets, self.names = dump, targets, names
        self.order = {name: place for place, name in enumerate(targets)}
        self.fits: dict[str, list[TensorFit]] = {}

    def decide(self) -> Iterator[tuple[str, TensorFit | MappedTensor]]:
        """A fit for each tensor whose pair is decided, else a row with the reason. Tensors with a good fit come first,
        because the others follow their layout."""
        for name, tensor in self.dump.items():
            self.fits[name] = self._fits(name, tensor)
        made = {name: self._by_values(name) for name in self.dump}
        usual = {_channels_last(each) for each in made.values() if isinstance(each, TensorFit) and _matters(each)}
        for name, each in made.items():
            if each is None:
                each = self._by_name(name, usual) if name in self.names else self._nothing(name)
            yield name, each

    def _fits(self, name: str, tensor: DumpTensor) -> list[TensorFit]:
        """All fits of a tensor; only good ones, and those of its name, keep their values."""
        ours = self.names.get(name, ())
        found = [fit for t in self.targets.values() for fit in fits(tensor, t, whole=t.name in ours)]
        return [fit if fit.good or fit.target.name in ours else replace(fit, values=None) for fit in found]

    def _classes(self, name: str) -> list[list[TensorFit]]:
        """The fits of a tensor by the values that they are, the best first."""
        classes = grouped((fit.target.root, fit) for fit in self.fits[name] if fit.readable)
        ranked = [sorted(each, key=lambda fit: self._rank(name, fit)) for each in classes.values()]
        return sorted(ranked, key=lambda each: min(fit.relative for fit in each))

    def _rank(self, name: str, fit: TensorFit) -> tuple[bool, bool, bool, float, int]:
        """Orders fits to tensors with the same values: a good one, of codes, of its name, the first in the graph."""
        ours = fit.target.name in self.names.get(name, ())
        return not fit.good, not fit.target.integral, not ours, fit.error, self.order[fit.target.name]

    def _by_values(self, name: str) -> TensorFit | MappedTensor | None:
        """The pair that the values decide; else a row with the candidates; None if nothing fits."""
        classes = self._classes(name)
        if not classes or not classes[0][0].good:
            return None
        best = classes[0][0]
        ours = self.names.get(name, ())
        own = next((fit for each in classes for fit in each if fit.target.name in ours and fit.good), None)
        rivals = [each[0] for each in classes[1:] if not best.beats(each[0]) and not _is_grid(best, each[0])]
        layouts = self._layouts(name, best)
        if own is not None and (own is best or own in rivals) and not self._layouts(name, own):
            return _decided(own, f"{SAME_NAME}; {_values_evidence(own)}")
        if layouts or rivals:
            return self._open(name, [best, *rivals], "several fit equally well" if rivals else "several layouts fit")
        if best.target.root in [self.targets[other].root for other in ours]:
            return _decided(best, f"{SAME_NAME}; {_values_evidence(best)}")
        if ours:
            named_fits = [fit for each in classes for fit in each if fit.target.name in ours]
            why = f"named as {ours[0]}, but holds the values of {best.target.name}"
            return self._open(name, [*named_fits[:1], best], why)
        if best.evidence < CERTAIN or best.target.energy < ENOUGH:
            return self._open(name, [best], "too few values to be sure")
        if _clamped(best):
            return self._open(name, [best], "differs only where values end: perhaps another side of an activation")
        return _decided(best, _values_evidence(best))

    def _layouts(self, name: str, own: TensorFit) -> list[TensorFit]:
        """Other ways to read a tensor as the same one that are not out of question."""
        others = (fit for fit in self.fits[name] if fit.target is own.target and fit is not own)
        return [fit for fit in others if fit.readable and not own.beats(fit)]

    def _by_name(self, name: str, usual: set[bool]) -> TensorFit | MappedTensor:
        """The pair that the name alone decides: the values are far from qrun's, but no other tensor is nearer."""
        readings = [fit for fit in self.fits[name] if fit.target.name in self.names[name] and fit.readable]
        if not readings:
            return self._nothing(name)
        usable = sorted(readings, key=lambda fit: fit.error)
        best, target = usable[0], usable[0].target
        if len(usable) > 1 and not best.beats(usable[1]):
            alike = [fit for fit in usable if len(usual) == 1 and _channels_last(fit) in usual]
            if not alike or (len(alike) > 1 and not alike[0].beats(alike[1])):
                return self._open(name, [best], "the name fits, but several layouts or types do")
            best = alike[0]
        followed, most = self._followed(name)
        if followed is not None and followed.target.root != target.root and most > FOLLOWS:
            return self._open(name, [best, followed], f"named as {target.name}, but follows {followed.target.name}")
        if _clamped(best):
            return self._open(name, [best], "differs only where values end: perhaps another side of an activation")
        return _decided(best, f"{SAME_NAME}; {_values_evidence(best)}")

    def _followed(self, name: str) -> tuple[TensorFit | None, float]:
        """The fit of codes that correlates best with a tensor, and how well."""
        tensor = self.dump[name]
        large = (fit for fit in self.fits[name] if fit.target.integral and fit.target.values.size >= ENOUGH)
        alike = ((fit, abs(correlation(fit, tensor))) for fit in large)
        return max(alike, key=lambda pair: pair[1], default=(None, 0.0))

    def _nothing(self, name: str) -> MappedTensor:
        """The row of a tensor that is none of the model's, with what it resembles."""
        tensor = self.dump[name]
        row = MappedTensor(name, why="no tensor of the model has these values")
        if not self.fits[name]:
            return replace(row, why=f"no tensor of the model has this shape: {tensor.describe()}")
        fit, most = self._followed(name)
        if fit is None or most < FOLLOWS:
            return row
        like = f"follows {fit.target.name} (correlation {most:.4f})"
        if fit.row.dequantized:
            off = f"no codes of scale {fit.target.scale:.6g}: up to {fit.residue:.2g} steps off"
            return replace(row, why=f"{like}, but its floats are {off}")
        return replace(row, why=f"{like}, but in other units or with large errors", candidates=(fit.target.name,))

    def _open(self, name: str, among: Sequence[TensorFit], why: str) -> MappedTensor:
        """A row that is not decided."""
        names = tuple(dict.fromkeys(fit.target.name for fit in among))
        rest = f" and {len(names) - MOST_CANDIDATES} more" if len(names) > MOST_CANDIDATES else ""
        return MappedTensor(name, why=f"{why}{rest}", candidates=names[:MOST_CANDIDATES])

    def conflicts(self, decided: Mapping[str, TensorFit | MappedTensor]) -> dict[str, MappedTensor]:
        """Rows in place of fits, for tensors of the dump that are the same one of the model. The one with its name is
        kept, unless only others have its values; or the first, if all hold the same."""
        found = {name: each for name, each in decided.items() if isinstance(each, TensorFit)}
        rows = {}
        for target, names in grouped((each.target.name, name) for name, each in found.items()).items():
            first = found[names[0]].values
            ours = [name for name in names if target in self.names.get(name, ())]
            alike = all(np.array_equal(found[name].values, first) for name in names)  # type: ignore[arg-type]
            kept = ours[0] if len(ours) == 1 else names[0] if alike else None
            if kept is not None and not found[kept].good and any(found[name].good for name in names):
                kept = None
            for name in names if len(names) > 1 else ():
                if name != kept:
                    why = f"holds the same values as {kept}" if alike and kept else f"{', '.join(names)} fit {target}"
                    rows[name] = MappedTensor(name, why=why, candidates=() if alike else (target,))
        return rows


def _decided(fit: TensorFit, why: str) -> TensorFit:
    return replace(fit, row=replace(fit.row, why=why))


def _values_evidence(fit: TensorFit) -> str:
    """``equal``, or how many elements differ, and by how much."""
    want = fit.target.values
    assert fit.values is not None
    apart = np.abs(fit.values.astype(np.float64) - want.astype(np.float64))
    if not fit.error:
        return f"all {want.size} values equal qrun's"
    if not fit.target.integral:
        return f"within {np.nanmax(apart):.3g} of qrun's values"
    return f"{int(np.count_nonzero(apart))} of {want.size} codes differ from qrun's, by at most {int(apart.max())}"


def _is_grid(best: TensorFit, other: TensorFit) -> bool:
    """Is the dump certainly codes, so that it is not the float tensor that these codes approximate?"""
    return best.target.integral and not other.target.integral and other.error > 0 and best.evidence >= CERTAIN


def _clamped(fit: TensorFit) -> bool:
    """Are all large differences where qrun's values, or the dump's, are at one of their ends?"""
    assert fit.values is not None
    apart = np.abs(fit.values.astype(np.float64) - fit.target.wide) / fit.target.step
    for steps, least in ((NEAR, 1), (1.0, FEW)):
        far = apart > steps
        ends = [each[far] == end for each in (fit.values, fit.target.values) for end in (each.min(), each.max())]
        if np.count_nonzero(far) >= least and any(bool(at.all()) for at in ends):
            return True
    return False


def _channels_last(fit: TensorFit) -> bool:
    return len(fit.row.layout or "") > 2 and str(fit.row.layout).endswith("C")


def _matters(fit: TensorFit) -> bool:
    """Would another order of axes give other values?"""
    wide = [size for size in fit.target.values.shape[1:] if size > 1]
    return len(wide) > 1
