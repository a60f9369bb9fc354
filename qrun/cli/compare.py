"""``qrun compare``: two runtimes, two models, two saved results, or a run and its record."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qrun.cli._base import argument, define, format_options, option, print_json
from qrun.cli._flow import start_other
from qrun.cli._options import (
    OTHERS,
    Distance,
    Seconds,
    general_options,
    input_options,
    memory_option,
    read_model,
    tolerance_options,
)
from qrun.cli.profile import Top
from qrun.declare.frozen import frozen
from qrun.errors import CallError, absent

if TYPE_CHECKING:
    from qrun.comparing.differences import Tolerance
    from qrun.comparing.sides import Side
    from qrun.io.inputs import Feeds
    from qrun.ir import Model
    from qrun.report.screen import Out
    from qrun.report.sheet import Sheet

OWN = ("reference", "native", "fused", "literal")
AGAINST = ("ort", "ort-optimized", "onnx-ref", *OWN)
_RUNS = "--against, --arith, --isolate and --record run one model"


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


@define(
    "compare",
    examples=[
        "qrun compare m.onnx -i x.npy                      # with ONNX Runtime",
        "qrun compare m.onnx -i x.npy --against fused      # QDQ groups fused",
        "qrun compare float.onnx int8.onnx -i x.npy        # what int8 costs",
        "qrun compare m.onnx -i x.npy --record golden/     # then: m.onnx golden/",
        "qrun compare before.json after.json               # also a.npz b.npz",
    ],
    notes="Exit code 0 if all is equal within the tolerance (or reaches --min-sqnr), 1 if not. A cause is named only if computing the node in this "
    "way gives the other side's bits. Between runtimes, without --atol, sums (of Conv, MatMul, AveragePool ...) may also differ by 16 eps (float32 "
    "epsilons) of their tensor's largest magnitude, and what elementwise nodes make of them; --lsb counts dequantized steps too, also of two models.",
)
@argument("a", about="A model, or - for stdin; or a result saved with --json or -o.")
@argument("b", about="What to compare it with: a second model or result, or a recorded directory.", required=False)
@input_options
@option(
    "--against",
    type=AGAINST,
    group="Run",
    show_default="ort",
    help="Second side for the same model: another runtime (ort: node by node, ort-optimized: as its users run it), "
    "qrun's other backend, or QDQ groups fused or literal.",
)
@option(
    "--arith",
    type=OTHERS,
    group="Run",
    help="Compare qrun's exact arithmetic with this one; with --against, qrun computes in this one.",
)
@option(
    "--emulate",
    type=("avx2",),
    group="Run",
    help="Compare what onnxruntime computes on x86 CPUs without VNNI, where pairs of products saturate, with what it computes "
    "on others, both emulated on this one.",
)
@option(
    "--isolate",
    is_flag=True,
    group="Run",
    help="Feed every node the second side's values, so that errors do not add up.",
)
@option(
    "--record",
    metavar="DIR",
    group="Run",
    show_default="of qrun, or of --against",
    help="Save hashes and statistics of all tensors, to compare other machines and versions with.",
)
@option(
    "--budget",
    type=Seconds(),
    metavar="TIME",
    group="Run",
    show_default="60s",
    help="Two models: time for measuring what each node costs, e.g. 10m, or none for no limit.",
)
@memory_option("Run")
@tolerance_options(
    "Tolerance",
    "tensors",
    {"show_default": "0.001; 0 between qrun's backends"},
    {"show_default": "1e-07; 0 between qrun's backends"},
)
@option(
    "--min-sqnr",
    type=Distance(0),
    metavar="DB",
    group="Tolerance",
    help="Two models: decibels of signal to noise that each output must reach, in place of --rtol and --atol; nodes to keep "
    "in float are then as many as it takes.",
)
@option("--top", type=Top(), metavar="N", default=10, group="Output", help="Differing tensors to list, or 'all'.")
@format_options("text", "json", "markdown")
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Find the first tensor where two runtimes, models or runs differ."""
    kind = _kind(options)
    for name in ("min-sqnr", "budget"):
        if kind != "models" and options[name.replace("-", "_")] is not None:
            raise _unfit(
                f"--{name} is for two models",
                f"qrun compare FLOAT QUANTIZED --{name} ...",
                f"{options['a']}",
                f"leave out --{name}, or give a second model",
            )
    from qrun.report.sheet import print_sheet

    shown = _KINDS[kind](options, out)
    code = shown.exit_code
    top = None if options["top"] == "all" else options["top"]
    if options["format"] == "json":
        print_json(out, {**shown.fields(), "equal": shown.equal}, code)
    else:
        print_sheet(out, shown.sheet(top), options["format"] == "markdown")
    return code


def _kind(options: Mapping[str, Any]) -> str:
    """What A and B are. Raises CallError where they do not go together."""
    a, b = options["a"], options["b"]
    first, second = _suffix(a), _suffix(b) if b else ""
    files = first in (".npz", ".json")
    if b in ("", "-") or options["record"] == "":
        raise _unfit("B and --record name files, - is for A only", "a path", "-" if b == "-" else "an empty name")
    if b is None:
        if files:
            raise _unfit("a second file is missing", f"two {first} files", a, f"qrun compare {a} OTHER{first}")
        for name in ("against", "arith", "record"):
            if options["emulate"] and options[name]:
                raise _unfit(
                    f"--emulate has its own two sides, and no --{name}",
                    "one of them",
                    f"--emulate {options['emulate']} --{name} {options[name]}",
                    f"leave out --{name}",
                )
        return "record" if options["record"] else "runtimes"
    if files or second in (".npz", ".json"):
        if first != second:
            raise _unfit("these two cannot be compared", "two .npz files, or two .json files", f"{a} and {b}")
        _refuse(options, ("against", "arith", "emulate", "isolate", "record", "inputs", "random", "shape"))
        return first[1:]
    if options["record"]:
        raise _unfit("--record takes one model", "qrun compare MODEL --record DIR", f"{a} and {b}", "leave B out")
    if os.path.isdir(b):
        _refuse(options, ("emulate", "isolate"))
        return "recorded"
    if not second and not os.path.exists(b):
        why, fix = absent(b)
        fixes = [fix or f"qrun compare {shlex.quote(a)} --record {shlex.quote(b)} makes a record"]
        raise CallError("QR004", f"cannot read {b!r} as a model, file or record: {why}", where=[b], fixes=fixes)
    _refuse(options, ("against", "arith", "emulate", "isolate"))
    return "models"


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def _refuse(options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise _unfit(
            f"{given[0]} does not fit these arguments",
            f"qrun compare A B without {', '.join(given)}",
            f"{options['a']} and {options['b']}",
            f"leave out {given[0]}, or B",
        )


def _unfit(message: str, expected: str, got: str, fix: str = "qrun compare -h") -> CallError:
    return CallError("QR005", message, facts=[("expected", expected), ("got", got)], fixes=[fix])


def _model(options: Mapping[str, Any]) -> tuple[Model, bytes | None]:
    from qrun.ir.load import load

    source = read_model(options["a"], options["inputs"])
    model = load(source, source="stdin" if options["a"] == "-" else "")
    return model, source if isinstance(source, bytes) else None


def _feeds(model: Model, options: Mapping[str, Any], out: Out) -> Feeds:
    from qrun.io.inputs import read_inputs

    feeds = read_inputs(
        model,
        options["inputs"],
        shapes=options["shape"],
        random=options["random"],
        seed=options["seed"],
        max_memory=options["max_memory"],
    )
    out.notes(feeds.notes)
    return feeds


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
    feeds = _feeds(model, options, out)
    a, b = sides(model, against, data=data, arith=options["arith"] or "exact", max_memory=options["max_memory"])
    tolerance = _tolerance(options, against)
    with Progress(out, "compare", "nodes") as progress:
        found = compare_runtimes(a, b, feeds.arrays, tolerance, isolate=options["isolate"], progress=progress)
    return Shown(
        found.equal,
        lambda top: report.comparison_sheet(found, top, feeds.sources),
        lambda: report.comparison_fields(found, feeds),
    )


def _models(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.accuracy import SECONDS, accuracy
    from qrun.ir.load import load
    from qrun.report import accuracy as report
    from qrun.report.progress import Progress

    first, _ = _model(options)
    second = load(options["b"])
    feeds = _feeds(first, options, out)
    with Progress(out, "compare") as progress:
        found = accuracy(
            first,
            second,
            [feeds.arrays],
            tolerance=_tolerance(options),
            min_sqnr=options["min_sqnr"],
            max_memory=options["max_memory"],
            progress=progress,
            seconds=SECONDS if options["budget"] is None else options["budget"],
        )
    return Shown(
        found.equal,
        lambda top: report.accuracy_sheet(found, top, feeds.sources),
        lambda: {"kind": "models", **report.accuracy_fields(found, feeds.sources)},
        found.passed,
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
    from qrun.comparing.archives import compare_npz

    return _files(compare_npz(Path(options["a"]), Path(options["b"]), _tolerance(options)))


def _saved(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.saved import compare_saved

    return _files(compare_saved(Path(options["a"]), Path(options["b"])))


def _recorded_side(options: Mapping[str, Any], out: Out) -> tuple[Side, Feeds]:
    """The run that is recorded, or compared with a record: qrun's, or the one that --against or --arith name."""
    from qrun.comparing.choices import sides

    against: str | None = options["against"]
    if options["arith"] and against is not None and against not in OWN:
        raise _unfit(
            "--arith is qrun's; another runtime has its own arithmetic",
            "one of them",
            f"--arith {options['arith']} --against {against}",
            "leave one of them out",
        )
    start_other(against)
    model, data = _model(options)
    feeds = _feeds(model, options, out)
    arith: Any = options["arith"] or "exact"
    pair = sides(model, against or "", data=data, arith=arith, max_memory=options["max_memory"])
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
    from qrun.comparing.recordcompare import compare_record

    side, feeds = _recorded_side(options, out)
    return _files(
        compare_record(
            _tensors(side, feeds), side.model, feeds.arrays, Path(options["b"]), _tolerance(options), label=side.label
        ),
        feeds,
    )


_KINDS: Mapping[str, Callable[[Mapping[str, Any], Out], Shown]] = {
    "runtimes": _runtimes,
    "models": _models,
    "npz": _archives,
    "json": _saved,
    "record": _record,
    "recorded": _with_record,
}
