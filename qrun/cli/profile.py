"""``qrun profile``: measures many runs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qrun.cli._base import WholeNumber, contradiction, define, format_options, heading, model_argument, print_json
from qrun.cli._flow import OWN, Ready, prepare, start_other, trace_text, write_trace
from qrun.cli._options import (
    custom_operators,
    general_options,
    input_options,
    limits,
    run_options,
    runs_option,
    top_option,
    trace_option,
)
from qrun.errors import QrunError
from qrun.running.cpus import usable_cpus

if TYPE_CHECKING:
    from qrun.report.profilerows import ProfileReport
    from qrun.report.screen import Out
    from qrun.running.profiling import Profile

run, timing, output = map(heading, ("Run", "Timing", "Output"))

INTERRUPTED = 130
TIMELINES = ("chrome", "perf")
"""Formats for programs that draw timelines and flame graphs."""


@define(
    "profile",
    examples=[
        "qrun profile m.onnx --inputs x.npy",
        "qrun profile m.onnx --random --shape N=8 --by op",
        "qrun profile m.onnx -i x.npy --trace t.json   # open at ui.perfetto.dev",
        "qrun profile m.onnx -i x.npy --against ort",
        "qrun profile m.onnx -i x.npy --json > base.json",
        "qrun profile m.onnx -i x.npy --format perf | flamegraph.pl > m.svg",
    ],
)
@model_argument
@input_options
@run_options
@run("--against", "Also measure onnxruntime, alternating with qrun on the same number of threads.", type=["ort"])
@runs_option
@timing("--warmup N", "Warm-up runs, which are not timed.", type=WholeNumber(0, 10**6), default=1)
@output("--by", "One row per node or per operator type.", type=["node", "op"], default="node")
@top_option(output, "Rows to print, or 'all' (then in graph order).", 10)
@trace_option
@format_options("text", "json", "markdown", "csv", "chrome", "perf")
@custom_operators
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Measure time per node over many runs."""
    if options["against"]:
        given = [f"--{name} {options[name]}" for name in ("backend", "against")]
        if options["backend"] not in OWN:
            raise contradiction(f"--against compares qrun with {options['against']}, not another runtime", given)
        options = {**options, "threads": options["threads"] or usable_cpus()}
    start_other(options["against"])
    ready = prepare(options, out)
    report = measure_profile(ready, options, out)
    if options["trace"]:
        write_trace(ready, report.profile.last, options, out)
        if options["against"]:
            out.note(
                f"{options['trace']} contains qrun's last run, not {options['against']}'s; "
                f"--backend {options['against']} --trace FILE writes it"
            )
    code = INTERRUPTED if report.profile.interrupted else 0
    if options["format"] in TIMELINES:
        _print_timeline(ready, report, options, out)
    else:
        _print(out, report, options["format"], code)
    out.wrote(options["trace"])
    return code


def _print_timeline(ready: Ready, report: ProfileReport, options: Mapping[str, Any], out: Out) -> None:
    """Prints the profile for programs that draw timelines and flame graphs."""
    from qrun.report.profile import print_as_encoded
    from qrun.report.trace import folded

    form = options["format"]
    if options["against"]:
        out.note(f"--format {form} has qrun's times; --backend {options['against']} has the other ones")
    if form == "chrome":
        out.result.write(trace_text(ready, report.profile.last, options, out, "the trace").rstrip("\n"))
    else:
        print_as_encoded(out, folded(ready.model, report.profile))


def measure_profile(ready: Ready, options: Mapping[str, Any], out: Out) -> ProfileReport:
    """The requested profile, with everything that its report shows; prints a line if it was interrupted."""
    from qrun.report.profilerows import ProfileReport, machine_for

    profile, against = _measure(ready, options, out)
    if profile.interrupted:
        asked = f" of {profile.asked}" if profile.asked else ""
        out.messages.line(f"interrupted after {len(profile.run_ns)}{asked} runs")
    machine = machine_for(profile, _threads(options), not options["no_cache"])
    return ProfileReport(
        profile,
        ready.feeds,
        ready.load_ns + ready.plan_ns,
        ready.session.backend,
        options["arith"],
        ready.label,
        options["by"],
        options["top"],
        machine,
        _threads(options),
        against,
        _other(options),
    )


def _measure(ready: Ready, options: Mapping[str, Any], out: Out) -> tuple[Profile, Profile | None]:
    """The requested profile, and with --against the other runtime's."""
    from qrun.report.progress import Progress

    feeds, runs, warmup = ready.feeds.arrays, options["runs"], options["warmup"]
    with Progress(out, "profile") as progress:
        if not options["against"] and options["backend"] != "ort":
            return ready.session.profile(feeds, runs=runs, warmup=warmup, progress=progress), None

        from qrun.peers import Peer
        from qrun.peers.ortprofile import ort_profiles
        from qrun.running.session import Session

        own = ready.session if isinstance(ready.session, Session) else None
        peer = ready.session if isinstance(ready.session, Peer) else None
        given = {"data": ready.data, "threads": options["threads"]}
        peer = peer or Peer(ready.model, "ort", **given, **limits(options))
        macs = None if own else _count_macs(ready, options)
        found = ort_profiles(peer, feeds, **given, runs=runs, warmup=warmup, progress=progress, session=own, macs=macs)
    return found[0], found[1] if own else None


def _count_macs(ready: Ready, options: Mapping[str, Any]) -> Mapping[int, int]:
    """Multiply-adds by node, from a run of qrun; {} if it cannot run the model natively."""
    from qrun.peers.ortprofile import multiply_adds
    from qrun.running.session import Session

    try:
        session = Session(ready.model, backend="native", cache=not options["no_cache"], **limits(options))
        return multiply_adds(session.execute(ready.feeds.arrays, observe=False))
    except QrunError:
        return {}


def _threads(options: Mapping[str, Any]) -> int | None:
    """The number of threads given to the backend; None if it chose itself."""
    return options["threads"] or (usable_cpus() if options["backend"] in (None, "native") else None)


def _other(options: Mapping[str, Any]) -> str:
    """The runtime measured in addition to qrun."""
    if not options["against"]:
        return ""
    from qrun.peers import runtime_label

    return runtime_label(options["against"])


def _print(out: Out, report: ProfileReport, format: str, code: int) -> None:
    if format == "json":
        from qrun.report.answer import Answer
        from qrun.report.profile import answer, profile_fields

        print_json(out, profile_fields(report), Answer(code, answer(report)))
        return
    from qrun.report.profile import print_as_encoded, profile_csv, profile_sheet
    from qrun.report.sheet import print_sheet

    if format == "csv":
        print_as_encoded(out, profile_csv(report))
    else:
        print_sheet(out, profile_sheet(report, out.result, format == "markdown"), format == "markdown")
