"""The comparisons of ``qrun compare``: each is a function from the options to what is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrun.cli._base import contradiction
from qrun.cli._flow import read_feeds, start_other
from qrun.cli._options import limits, read_model
from qrun.declare.frozen import frozen

if TYPE_CHECKING:
    from qrun.comparing.differences import Tolerance
    from qrun.comparing.sides import Side
    from qrun.io.inputs import Feeds
    from qrun.ir import Model
    from qrun.report.screen import Out
    from qrun.report.sheet import Sheet


OWN = ("reference", "native", "fused", "literal")
"""Sides of --against that are qrun."""


@frozen
class Shown:
    """What was compared: the report, of so many rows (None for all), and the body of the JSON document.

    passed: is it good enough by another measure than equality? None: equality counts.
    """

    equal: bool
    sheet: Callable[[int | None], Sheet]
    fields: Callable[[], dict[str, Any]]
    passed: bool | None = None

    @property
    def exit_code(self) -> int:
        return 0 if (self.equal if self.passed is None else self.passed) else 1


def _model(options: Mapping[str, Any]) -> tuple[Model, bytes | None]:
    from qrun.ir.load import load

    source = read_model(options["a"], options["inputs"])
    model = load(source, source="stdin" if options["a"] == "-" else "")
    return model, source if isinstance(source, bytes) else None


def _sets(model: Model, options: Mapping[str, Any], out: Out) -> tuple[list[Mapping[str, Any]], dict[str, str]]:
    """The arrays of each set of inputs, and where they came from."""
    from qrun.io.sets import input_sets

    sets = input_sets(model, options["inputs"])
    made = [read_feeds(model, options, out, specs) for specs in sets]
    rest = f" and {len(sets) - 1} more" if len(sets) > 1 else ""
    return [feeds.arrays for feeds in made], {name: f"{source}{rest}" for name, source in made[0].sources.items()}


def _tolerance(options: Mapping[str, Any], against: str | None = None) -> Tolerance:
    from qrun.comparing.choices import tolerance

    return tolerance(against, lsb=options["lsb"], rtol=options["rtol"], atol=options["atol"])


def _runtimes(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.choices import sides
    from qrun.comparing.runtimes import compare_runtimes
    from qrun.report import compare as report
    from qrun.report.progress import Progress

    against = options["emulate"] or options["against"] or ("" if options["arith"] else "ort")
    start_other(against)
    model, data = _model(options)
    feeds = read_feeds(model, options, out)
    a, b = sides(model, against, data=data, arith=options["arith"] or "exact", **limits(options))
    tolerance = _tolerance(options, against)
    with Progress(out, "compare", "nodes") as progress:
        found = compare_runtimes(a, b, feeds.arrays, tolerance, isolate=options["isolate"], progress=progress)
    return Shown(
        found.equal,
        lambda top: report.comparison_sheet(found, top, feeds.sources),
        lambda: report.comparison_fields(found, feeds),
    )


def _accuracy(first: Model, second: Model, feeds: Any, seconds: float, options: Mapping[str, Any], out: Out) -> Any:
    from qrun.comparing.accuracy import accuracy
    from qrun.comparing.choices import stated
    from qrun.report.progress import Progress

    with Progress(out, f"compare {second.label}") as progress:
        return accuracy(
            first,
            second,
            feeds,
            tolerance=_tolerance(options) if stated(*(options[name] for name in ("lsb", "rtol", "atol"))) else None,
            min_sqnr=options["min_sqnr"],
            progress=progress,
            seconds=seconds,
            **limits(options),
        )


def _seconds(options: Mapping[str, Any]) -> float:
    from qrun.comparing.accuracy import SECONDS

    return SECONDS if options["budget"] is None else float(options["budget"])


def _models(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.ir.load import load
    from qrun.report import accuracy as report

    first, _ = _model(options)
    second = load(options["b"])
    feeds, sources = _sets(first, options, out)
    found = _accuracy(first, second, feeds, _seconds(options), options, out)
    return Shown(
        found.equal,
        lambda top: report.accuracy_sheet(found, top, sources),
        lambda: {"kind": "models", **report.accuracy_fields(found, sources)},
        found.passed,
    )


def _candidates(options: Mapping[str, Any], out: Out) -> Shown:
    """Several models that were made of the first one."""
    from qrun.ir.load import load
    from qrun.report import accuracy as report

    first, _ = _model(options)
    paths = options["others"]
    models = [load(path) for path in paths]
    feeds, sources = _sets(first, options, out)
    share = _seconds(options) / len(models)
    found = [
        (path, _accuracy(first, each, feeds, share, options, out)) for path, each in zip(paths, models, strict=True)
    ]
    ranked = report.ranked(found)
    return Shown(
        all(each.equal for _, each in found),
        lambda top: report.candidates_sheet(ranked, options["a"], top, sources),
        lambda: {"kind": "candidates", **report.candidates_fields(ranked, sources)},
        ranked[0][1].passed,
    )


def _files(found: Any, feeds: Feeds | None = None) -> Shown:
    from qrun.report import comparefiles as report

    sources = feeds.sources if feeds else {}
    return Shown(
        found.equal,
        lambda top: report.files_sheet(found, top, sources),
        lambda: {"kind": "files", **report.files_fields(found, feeds)},
    )


def _archives(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.saved import compare_npz

    return _files(compare_npz(Path(options["a"]), Path(options["b"]), _tolerance(options)))


def _saved(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.saved import compare_saved

    return _files(compare_saved(Path(options["a"]), Path(options["b"])))


def _recorded_side(options: Mapping[str, Any], out: Out) -> tuple[Side, Feeds]:
    """The run that is recorded, or compared with a record: qrun's, or the one that --against or --arith name."""
    from qrun.comparing.choices import sides

    against: str | None = options["against"]
    if options["arith"] and against is not None and against not in OWN:
        given = [f"--{name} {options[name]}" for name in ("arith", "against")]
        raise contradiction("--arith is for qrun's own backends; another runtime has its own arithmetic", given)
    start_other(against)
    model, data = _model(options)
    feeds = read_feeds(model, options, out)
    pair = sides(model, against or "", data=data, arith=options["arith"] or "exact", **limits(options))
    return pair[1 if against or options["arith"] else 0], feeds


def _tensors(side: Side, feeds: Feeds) -> dict[str, Any]:
    """What is recorded: of a graph that is rewritten for each CPU, the outputs only."""
    kept = {v.name for v in side.model.outputs} if side.name == "ort-optimized" else None
    made = side.run(feeds.arrays)
    return {name: array for name, array in made.items() if array is not None and (kept is None or name in kept)}


def _record(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.record import check_folder, record
    from qrun.report import comparefiles as report

    folder = Path(options["record"])
    check_folder(folder)
    side, feeds = _recorded_side(options, out)
    made = record(_tensors(side, feeds), side.model, feeds.arrays, side.label, folder)
    own = (options["against"] or "") in ("", *OWN)
    return Shown(
        True,
        lambda top: report.recorded_sheet(made, feeds.sources, own),
        lambda: {"kind": "recorded", **report.recorded_fields(made, feeds)},
    )


def _with_record(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.recordchanges import compare_record

    side, feeds = _recorded_side(options, out)
    return _files(
        compare_record(
            _tensors(side, feeds), side.model, feeds.arrays, Path(options["b"]), _tolerance(options), label=side.label
        ),
        feeds,
    )


KINDS: Mapping[str, Callable[[Mapping[str, Any], Out], Shown]] = {
    "runtimes": _runtimes,
    "models": _models,
    "candidates": _candidates,
    "npz": _archives,
    "json": _saved,
    "record": _record,
    "recorded": _with_record,
}
