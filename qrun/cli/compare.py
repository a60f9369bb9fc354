"""``qrun compare``: compares two runtimes, two models, two saved results, or a run and its record or a device's dump.
Each kind of comparison is a function from the options to `Shown`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, argument, contradiction, define, format_options, heading, print_json
from qrun.cli._flow import read_feeds, start_other
from qrun.cli._options import (
    ArithmeticName,
    Distance,
    Seconds,
    custom_operators,
    general_options,
    input_options,
    limits,
    memory_option,
    read_model,
    time_option,
    tolerance_options,
    top_option,
)
from qrun.declare.frozen import frozen
from qrun.errors import CallError, absent

if TYPE_CHECKING:
    from qrun.comparing.differences import Tolerance
    from qrun.comparing.sides import Side
    from qrun.dumps import Dump
    from qrun.io.inputs import Feeds
    from qrun.ir import Model
    from qrun.report.screen import Out
    from qrun.report.sheet import Sheet


OWN = ("reference", "native", "fused", "literal")
"""Values of --against that are qrun's own backends."""


@frozen
class Shown:
    """The result of a comparison. sheet: makes the report with some number of rows (None: all); fields: makes the body
    of the JSON. passed: whether it is good enough by another measure than equality; None: equality counts."""

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
    """The arrays of each set of inputs, and the source of each input."""
    from qrun.io.sets import input_sets

    sets = input_sets(model, options["inputs"])
    made = [read_feeds(model, options, out, specs) for specs in sets]
    rest = f" and {len(sets) - 1} more" if len(sets) > 1 else ""
    return [feeds.arrays for feeds in made], {name: f"{source}{rest}" for name, source in made[0].sources.items()}


def _read(model: Model, options: Mapping[str, Any], out: Out) -> Feeds:
    """Reads the inputs; notes how they were converted, which the report does not show."""
    feeds = read_feeds(model, options, out)
    out.notes(f"input {name} from {feeds.sources[name]}" for name in feeds.arrays if name in feeds.converted)
    return feeds


def _tolerance(options: Mapping[str, Any], against: str | None = None) -> Tolerance:
    from qrun.comparing.choices import tolerance

    return tolerance(against, lsb=options["lsb"], rtol=options["rtol"], atol=options["atol"])


def _runtimes(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.choices import sides
    from qrun.comparing.runtimes import compare_runtimes
    from qrun.documents.record import encode
    from qrun.report import compare as report
    from qrun.report.progress import Progress
    from qrun.running.coverage import coverage

    against = options["emulate"] or options["against"] or ("" if options["arith"] else "ort")
    start_other(against)
    model, data = _model(options)
    feeds = _read(model, options, out)
    a, b = sides(model, against, data=data, arith=options["arith"] or "exact", **limits(options))
    covered = coverage(model, options["arith"] or "exact")
    tolerance = _tolerance(options, against)
    with Progress(out, "compare", "nodes") as progress:
        found = compare_runtimes(a, b, feeds.arrays, tolerance, isolate=options["isolate"], progress=progress)
    return Shown(
        found.equal,
        lambda top: report.comparison_sheet(found, top, feeds.sources).with_about(covered),
        lambda: report.comparison_fields(found, feeds) | ({"coverage": encode(covered)} if covered else {}),
    )


def _accuracy(first: Model, second: Model, feeds: Any, seconds: float, options: Mapping[str, Any], out: Out) -> Any:
    from qrun.comparing.accuracy import accuracy
    from qrun.comparing.choices import has_tolerance
    from qrun.report.progress import Progress

    with Progress(out, f"compare {second.label}") as progress:
        return accuracy(
            first,
            second,
            feeds,
            tolerance=_tolerance(options) if has_tolerance(*(options[k] for k in ("lsb", "rtol", "atol"))) else None,
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
    """Compares several models with the first one, of which they were made."""
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
    ranked = report.rank_models(found)
    argv = click.get_current_context().ensure_object(Call).argv
    best = shlex.join(["qrun", *(word for word in argv if word == ranked[0][0] or word not in paths)])
    return Shown(
        all(each.equal for _, each in found),
        lambda top: report.candidates_sheet(ranked, options["a"], top, sources, best),
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


def _compare_saved(options: Mapping[str, Any], out: Out) -> Shown:
    from qrun.comparing.saved import compare_saved, is_polygraphy

    a, b = Path(options["a"]), Path(options["b"])
    return _archives(options, out) if is_polygraphy(a) and is_polygraphy(b) else _files(compare_saved(a, b))


def _recorded_side(options: Mapping[str, Any], out: Out) -> tuple[Side, Feeds]:
    """The run to record, or to compare with a record: qrun's, or the one that --against or --arith names."""
    from qrun.comparing.choices import sides

    against: str | None = options["against"]
    if options["arith"] and against is not None and against not in OWN:
        given = [f"--{name} {options[name]}" for name in ("arith", "against")]
        raise contradiction("--arith is for qrun's own backends; another runtime has its own arithmetic", given)
    start_other(against)
    model, data = _model(options)
    feeds = _read(model, options, out)
    pair = sides(model, against or "", data=data, arith=options["arith"] or "exact", **limits(options))
    return pair[1 if against or options["arith"] else 0], feeds


def _tensors(side: Side, feeds: Feeds) -> dict[str, Any]:
    """The tensors to record; only the outputs if the graph is rewritten for each CPU (ort-optimized)."""
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


def _dump(options: Mapping[str, Any], out: Out) -> Shown:
    """Compares qrun with the tensors that a device wrote."""
    from qrun.comparing.choices import tolerance
    from qrun.comparing.dumped import AUTO, dump_partner, map_dump
    from qrun.comparing.runtimes import compare_runtimes
    from qrun.dumps import read_dump
    from qrun.report import comparedump as report
    from qrun.report.progress import Progress

    model, _ = _model(options)
    dump = read_dump(options["b"])
    feeds = _read(model, options, out) if options["inputs"] else _dump_feeds(model, dump, options)
    a = dump_partner(model, options["arith"] or "exact", **limits(options))
    proposal = Path(f"{Path(options['b']).resolve().stem}.names.json")
    b, mapped = map_dump(dump, a, feeds.arrays, options["map"], proposal)
    if options["map"] == AUTO:
        out.note(f"wrote {proposal}: check it, then --map {proposal}")
    allowed = tolerance("dump", lsb=options["lsb"], rtol=options["rtol"], atol=options["atol"])
    with Progress(out, "compare", "nodes") as progress:
        found = compare_runtimes(a, b, feeds.arrays, allowed, isolate=options["isolate"], progress=progress)
    return Shown(
        found.equal,
        lambda top: report.dump_sheet(found, mapped, top, feeds.sources),
        lambda: report.dump_fields(found, mapped, feeds),
    )


def _dump_feeds(model: Model, dump: Dump, options: Mapping[str, Any]) -> Feeds:
    """The inputs that a dump holds. Raises CallError if it lacks one."""
    from qrun.comparing.dumped import dump_inputs
    from qrun.io.inputs import Feeds

    arrays = dump_inputs(dump, model, options["map"])
    missing = [value.name for value in model.inputs if value.name not in arrays]
    if missing:
        raise CallError(
            "QR001",
            f"{dump.path} does not hold the input {missing[0]}",
            fixes=[f"-i {missing[0]}=FILE", "a row of the map may name it"],
        )
    return Feeds(arrays, dict.fromkeys(arrays, dump.path))


KINDS: Mapping[str, Callable[[Mapping[str, Any], Out], Shown]] = {
    "runtimes": _runtimes,
    "models": _models,
    "candidates": _candidates,
    "npz": _archives,
    "json": _compare_saved,
    "record": _record,
    "recorded": _with_record,
    "dump": _dump,
}


run, tolerance, output = map(heading, ("Run", "Tolerance", "Output"))

AGAINST = ("ort", "ort-optimized", "onnx-ref", *OWN)


@define(
    "compare",
    examples=[
        "qrun compare m.onnx -i x.npy                      # with ONNX Runtime",
        "qrun compare m.onnx -i x.npy --against fused      # QDQ groups fused",
        "qrun compare float.onnx int8.onnx -i x.npy        # what int8 costs",
        "qrun compare float.onnx a.onnx b.onnx -i sets/    # several, ranked",
        "qrun compare m.onnx -i x.npy --record golden/     # then: m.onnx golden/",
        "qrun compare m.onnx dump/ -i x.npy --map auto     # a device's dump",
        "qrun compare before.json after.json               # also a.npz b.npz",
    ],
    notes="Exit code 0 if everything is equal within the tolerance or reaches --min-sqnr (of several models, the best one), 1 if not. Comparing a float model with a quantized one is a measurement with exit code 0, unless --min-sqnr, --rtol, --atol or --lsb sets a goal. Two models accept several sets of inputs: repeat -i, or give a folder of .npz files or test_data_set_* folders. qrun names a cause only if recomputing the node that way gives the other side's bits. Between runtimes, unless --atol is given, sums (of Conv, MatMul, AveragePool ...) and elementwise nodes on them may also differ by 16 float32 epsilons of their tensor's largest magnitude. --lsb also counts steps of dequantized values.",
)
@argument("a", about="A model, or - for stdin; or a result saved with --json or -o.")
@argument(
    "others",
    about="What to compare it with: a second model or result, a recorded directory, or several models to rank.",
    nargs=-1,
    metavar="[B]...",
)
@input_options
@run(
    "--against",
    "Second side for the same model: another runtime (ort: node by node, ort-optimized: its default session), "
    "qrun's other backend, or QDQ groups fused or literal.",
    type=AGAINST,
    show_default="ort",
)
@run(
    "--arith NAME",
    "Compare qrun's exact arithmetic with this one; with --against, qrun uses this one: ort, onnx-ref, or an integer engine: tfl-double, ... (qrun explain arithmetics).",
    type=ArithmeticName(exact=False),
)
@run(
    "--emulate",
    "Compare onnxruntime on x86 CPUs without VNNI, where pairs of products saturate, with onnxruntime on other CPUs. Both are emulated, so this works on any CPU.",
    type=("avx2",),
)
@run(
    "--map FILE",
    "Compare with a device's dump B: its tensors are those that this file names; auto proposes such a file.",
)
@run("--isolate", "Feed every node the second side's values, so that errors do not add up.")
@run(
    "--record DIR",
    "Save hashes and statistics of all tensors (of qrun, or of --against), to compare with other machines and versions.",
)
@run(
    "--budget TIME",
    "Two or more models: time limit for measuring what each node costs, for all models together, e.g. 10m; none for no limit.",
    type=Seconds(),
    show_default="60s",
)
@memory_option(run)
@time_option(run)
@tolerance_options(
    tolerance,
    "tensors",
    {"show_default": "0.001; 0 between qrun's backends"},
    {"show_default": "1e-07; 0 between qrun's backends"},
)
@tolerance(
    "--min-sqnr DB",
    "Two models: signal-to-noise ratio (SQNR) in dB that each output must reach, instead of --rtol and --atol; qrun also lists the nodes to keep in float to reach it.",
    type=Distance(0),
)
@top_option(output, "Differing tensors to list, or 'all'.", 10)
@format_options("text", "json", "markdown")
@custom_operators
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Find the first tensor where two runtimes, models or runs differ."""
    options["b"] = next(iter(options["others"]), None)
    kind = kind_of(options)
    for name in ("min-sqnr", "budget"):
        if kind not in ("models", "candidates") and options[name.replace("-", "_")] is not None:
            raise unfit(
                f"--{name} needs two models",
                f"qrun compare FLOAT QUANTIZED --{name} ...",
                f"{options['a']}",
                f"omit --{name}, or give a second model",
            )
    from qrun.report.sheet import print_sheet

    shown = KINDS[kind](options, out)
    code = shown.exit_code
    if options["format"] == "json":
        print_json(out, {**shown.fields(), "equal": shown.equal}, shown.sheet(options["top"]).answer(code))
    else:
        print_sheet(out, shown.sheet(options["top"]), options["format"] == "markdown")
    return code


def kind_of(options: Mapping[str, Any]) -> str:
    """The kind of comparison that the arguments call for. Raises CallError if they do not go together."""
    a, b = options["a"], options["b"]
    if options["map"] is not None:
        return _dump_kind(options)
    _refuse_inputs([a, *options["others"]], options["inputs"])
    if options["others"][1:]:
        refuse(options, ("against", "arith", "emulate", "isolate", "record"))
        return "candidates"
    first, second = _suffix(a), _suffix(b) if b else ""
    files = first in (".npz", ".json")
    if b in ("", "-") or options["record"] == "":
        raise unfit("B and --record name files, - is for A only", "a path", "-" if b == "-" else "an empty name")
    if b is None:
        if files:
            raise unfit("a second file is missing", f"two {first} files", a, f"qrun compare {a} OTHER{first}")
        for name in ("against", "arith", "record"):
            if options["emulate"] and options[name]:
                got = f"--emulate {options['emulate']} --{name} {options[name]}"
                message = f"--emulate computes both sides and does not allow --{name}"
                raise unfit(message, "one of them", got, f"omit --{name}")
        return "record" if options["record"] else "runtimes"
    if files or second in (".npz", ".json"):
        if not {first, second} <= {".npz", ".json"}:
            dump = shlex.join(["qrun", "compare", *((a, b) if second else (b, a)), "--map", "auto"])
            fix = f"{dump} -i INPUTS compares a model with the tensors in a file"
            raise unfit("these two cannot be compared", "two .npz files, or two .json files", f"{a} and {b}", fix)
        refuse(options, ("against", "arith", "emulate", "isolate", "record", "inputs", "random", "shape"))
        return first[1:] if first == second else "npz"
    if options["record"]:
        raise unfit("--record takes one model", "qrun compare MODEL --record DIR", f"{a} and {b}", "leave B out")
    if os.path.isdir(b):
        refuse(options, ("emulate", "isolate"))
        return "recorded"
    if not second and not os.path.exists(b):
        why, fix = absent(b)
        fixes = [fix or f"qrun compare {shlex.quote(a)} --record {shlex.quote(b)} creates a record"]
        raise CallError("QR004", f"cannot read {b!r} as a model, file or record: {why}", where=[b], fixes=fixes)
    refuse(options, ("against", "arith", "emulate", "isolate"))
    return "models"


def _dump_kind(options: Mapping[str, Any]) -> str:
    """The kind of a comparison with a dump. Raises CallError if the arguments do not go with --map."""
    given = [options["a"], *options["others"]]
    if len(given) != 2 or _suffix(given[0]) in (".npz", ".json") or not options["map"]:
        raise unfit("--map needs a model and a dump", "qrun compare MODEL DUMP --map auto", " and ".join(given))
    refuse(options, ("against", "emulate", "record", "random", "shape"))
    return "dump"


def _refuse_inputs(paths: Sequence[str], inputs: Sequence[str]) -> None:
    """Raises CallError for arrays given beside models: they are inputs, which belong behind -i."""
    models = [path for path in paths if _suffix(path) not in (".npy", ".npz", ".json")]
    arrays = [path for path in paths if _suffix(path) in (".npy", ".npz")]
    if models and arrays:
        given = [word for path in (*inputs, *arrays) for word in ("-i", path)]
        fix = shlex.join(["qrun", "compare", *models, *given])
        raise unfit(f"{arrays[0]} holds arrays, and {models[0]} is a model", "models", " and ".join(paths), fix)


def _suffix(path: str) -> str:
    return Path(path).suffix.lower()


def refuse(options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    given = [f"--{name}" for name in names if options[name]]
    if given:
        raise unfit(
            f"{given[0]} does not fit these arguments",
            f"qrun compare A B without {', '.join(given)}",
            f"{options['a']} and {options['b']}",
            f"omit {given[0]}, or B",
        )


def unfit(message: str, expected: str, got: str, fix: str = "qrun compare -h") -> CallError:
    return CallError("QR005", message, facts=[("expected", expected), ("got", got)], fixes=[fix])
