"""``qrun run``: runs a model once and prints its outputs, times and checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qrun.cli._base import define, format_options, heading, model_argument, print_json
from qrun.cli._flow import Ready, prepare, write_trace
from qrun.cli._options import custom_operators, general_options, input_options, run_options, trace_option
from qrun.errors import LimitError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qrun.checking.rules import Finding
    from qrun.documents.answers import NamedClass, OutputClasses, TensorHistogram
    from qrun.report.screen import Out
    from qrun.running.profiling import Profile
    from qrun.running.session import RunResult, Session

run, output = map(heading, ("Run", "Output"))


@define(
    "run",
    examples=[
        "qrun m.onnx --inputs x.npy",
        "qrun m.onnx -i ids='[[101,2023,102]]' -i mask=mask.npy",
        "qrun m.onnx -i in.npz -o out.npz",
        "qrun m.onnx -i x.npy -t '*conv1*' -o tensors.npz",
        "qrun m.onnx -i x.npy -t conv1 --hist",
        "qrun m.onnx -i cat.png --image size=224 color=rgb scale=1/255",
    ],
)
@model_argument
@input_options
@run_options
@run(
    "--fail-on",
    "Exit 1 when a spec check finds this level or worse.",
    type=["error", "warning", "never"],
    default="never",
)
@output(
    "-t, --tensor PATTERN",
    "Also show (and save) intermediate tensors whose name, or whose node's name, matches. Repeatable.",
    multiple=True,
)
@output("--hist", "Draw a histogram of each tensor of -t; without -t, of each output.")
@output(
    "--classes FILE",
    "Show the best classes, or a decoder's next tokens, by name: a .json list, vocab.json, tokenizer.json, or one name per line.",
)
@output(
    "-o, --output PATH",
    "Save tensors: .npz, .npy (one output), .json (Polygraphy), DIR/ (test_data_set layout), - for stdout.",
)
@trace_option
@format_options("text", "json")
@custom_operators
@general_options(config=True)
def command(out: Out, **options: Any) -> int:
    """Run a model: outputs, time per node, spec checks."""
    ready = prepare(options, out)
    from qrun.running.session import Session

    names = [*(v.name for v in ready.model.outputs), *ready.extra]
    session = ready.session
    run = session.run_observed if isinstance(session, Session) else session.execute
    result = run(ready.feeds.arrays, names)
    covered = session.coverage(names) if isinstance(session, Session) else None
    tokens = _next_tokens(ready, result, options, out)
    classes = () if tokens else _classes(ready, result, options)
    more = _histograms(ready, result, options), covered
    if ready.extra and isinstance(session, Session):
        _note_written(session, names, out)
    if options["output"]:
        from qrun.io.outputs import save

        out.notes(save(options["output"], ready.feeds.arrays, result.outputs, ready.extra))
    as_json = options["format"] == "json"
    told = as_json or options["trace"] or not (out.quiet or options["output"] == "-")
    profile = _profile(ready, result) if told else None
    if options["trace"]:
        write_trace(ready, profile.last if profile and profile.last.events else result, options, out)
    checked = as_json or not out.quiet or options["fail_on"] != "never"
    findings = _check(ready, result, as_json or out.verbose > 0) if checked else None
    if isinstance(session, Session):
        out.notes(f"{found.message} (qrun explain QR219)" for found in findings or () if found.rule == "QR219")
    levels = {"error": ("error",), "warning": ("error", "warning")}.get(options["fail_on"], ())
    failing = [finding for finding in findings or [] if finding.level in levels]
    code = int(bool(failing))

    from qrun.report.message import print_findings
    from qrun.report.run import RunReport, print_run, run_answer, run_fields

    threads = session.threads if isinstance(session, Session) and session.backend == "native" else options["threads"]
    how = session.backend, options["arith"], ready.label
    report = RunReport(ready.model, ready.feeds, result, findings, *how, profile, threads, classes, tokens, *more)
    if as_json:
        print_json(out, run_fields(report), run_answer(report, code))
    elif options["output"] != "-":
        print_run(out, report)
    if failing and (as_json or out.quiet or options["output"] == "-"):
        print_findings(out.messages, failing, ready.model.label, out.verbose > 0)
    out.wrote(options["output"], options["trace"])
    return code


def _classes(ready: Ready, result: RunResult, options: Mapping[str, Any]) -> Sequence[OutputClasses]:
    """The best classes of the outputs by the names of --classes; none without it."""
    if not options["classes"]:
        return ()
    from qrun.io.classes import read_classes
    from qrun.report.classes import output_classes

    outputs = {value.name: result.outputs[value.name] for value in ready.model.outputs}
    return output_classes(outputs, read_classes(options["classes"]), options["classes"])


def _next_tokens(
    ready: Ready, result: RunResult, options: Mapping[str, Any], out: Out
) -> Sequence[Sequence[NamedClass]]:
    """The most likely next tokens, if the model is a decoder and its tokens are given. A model without caches may be
    an encoder: it counts as a decoder if --classes has a name for each of its logits."""
    if not any(value.dtype in ("int32", "int64") for value in ready.model.inputs):
        return ()
    from qrun.io.decoder import find_decoder
    from qrun.report.nexttokens import next_tokens, token_names

    decoder = find_decoder(ready.model)
    if decoder is None or ready.feeds.sources.get(decoder.tokens.name, "random").startswith("random"):
        return ()
    if not decoder.sure and not options["classes"]:
        return ()
    names, why = token_names(ready.model, options["classes"] or "")
    if why:
        out.note(why)
    return next_tokens(result.outputs[decoder.logits], names, options["classes"] or "")


def _histograms(ready: Ready, result: RunResult, options: Mapping[str, Any]) -> Sequence[TensorHistogram]:
    """The histograms of --hist: of the tensors that --tensor names, or else of the outputs; none without it."""
    if not options["hist"]:
        return ()
    from qrun.io.outputs import match_tensors
    from qrun.ir.compound import tensors
    from qrun.report.histogram import histograms

    names = match_tensors(ready.model, options["tensor"]) or [value.name for value in ready.model.outputs]
    return histograms(tensors({name: result.outputs[name] for name in names}))


def _note_written(session: Session, names: Sequence[str], out: Out) -> None:
    """Notes that nodes ran as written because their tensors are shown, since this can change the outputs."""
    from qrun.report.text import plural

    split = sorted(session.as_written(names).keys() - session.as_written().keys())
    if split:
        first = session.model.nodes[split[0]]
        others = f" and {plural(len(split) - 1, 'other node')}" if split[1:] else ""
        out.note(
            f"node {first.index} {first.label}{others} ran as written, because -t shows tensors inside fused groups; if a group has ties, the outputs differ from a run without -t (qrun explain fused-requantization)"
        )


def _profile(ready: Ready, first: RunResult) -> Profile | None:
    """A short profile of the runs after the first; None if these take long, or would exceed a limit."""
    from qrun.running.profiling import brief

    try:
        return brief(ready.session, ready.feeds.arrays, first.duration_ns)
    except LimitError:
        return None


def _check(ready: Ready, result: RunResult, counted: bool) -> list[Finding]:
    """counted: include checks that take another run, such as sums beyond int16. Random inputs prove nothing."""
    from qrun.checking.rules import check

    given = not any(source.startswith("random") for source in ready.feeds.sources.values())
    keeper = None if given and counted else getattr(ready.session, "load_or_make", None)
    return check(ready.model, result, ready.feeds.arrays if given else None, keeper)
