"""``qrun run``: one run of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, define, format_options, general_options, model_argument, option
from qrun.cli._flow import Ready, prepare
from qrun.cli._options import input_options, run_options, trace_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qrun.report.screen import Out
    from qrun.rules import Finding
    from qrun.session import RunResult


@define(
    "run",
    examples=[
        "qrun m.onnx --inputs x.npy",
        "qrun m.onnx -i ids='[[101,2023,102]]' -i mask=mask.npy",
        "qrun m.onnx -i in.npz -o out.npz",
        "qrun m.onnx -i x.npy -t '*conv1*' -o tensors.npz",
    ],
)
@model_argument
@input_options
@run_options
@option(
    "--fail-on",
    type=click.Choice(["error", "warning", "never"]),
    default="never",
    show_default=True,
    group="Run",
    help="Exit 1 when a spec check finds this or worse.",
)
@option(
    "-t",
    "--tensor",
    metavar="PATTERN",
    multiple=True,
    group="Output",
    help="Also show (and save) intermediate tensors whose name matches. Repeatable.",
)
@option(
    "-o",
    "--output",
    metavar="PATH",
    group="Output",
    help="Save tensors: .npz, .npy (one output), DIR/ (test_data_set layout), - for stdout.",
)
@trace_option
@format_options("text", "json")
@general_options(config=True)
@click.pass_context
def command(ctx: click.Context, /, out: Out, **options: Any) -> int:  # fmt: skip
    """Run a model: outputs, time per node, spec checks."""
    ready = prepare(options, out)
    names = [*(v.name for v in ready.model.outputs), *ready.extra]
    result = _execute(ready, names)
    _save(ready, result, options, out)
    as_json = options["format"] == "json"
    checked = as_json or not out.quiet or options["fail_on"] != "never"
    findings = _check(ready, result) if checked else None
    code = int(_failed(findings or [], options["fail_on"]))

    from qrun.report.run import RunReport, print_run, run_fields

    feeds = ready.feeds
    report = RunReport(ready.model, feeds.arrays, feeds.sources, feeds.symbols, result, findings,
                       options["backend"], options["arith"], ready.label)  # fmt: skip
    if as_json:
        from qrun.report.json import document

        out.result.write(document("run", ctx.ensure_object(Call).argv, {**run_fields(report), "exit_code": code}))
    elif options["output"] != "-":
        print_run(out, report)
    return code


def _execute(ready: Ready, names: Sequence[str]) -> RunResult:
    from qrun.session import Session

    if isinstance(ready.session, Session):
        return ready.session.execute(ready.feeds.arrays, names)
    return ready.session.execute(ready.feeds.arrays)


def _save(ready: Ready, result: RunResult, options: Mapping[str, Any], out: Out) -> None:
    from qrun.outputs import replacing, save

    if options["output"]:
        for note in save(options["output"], ready.feeds.arrays, result.outputs, ready.extra):
            out.note(note)
    if options["trace"]:
        from qrun.report.trace import trace

        text = trace(ready.model, result, load_ns=ready.load_ns, plan_ns=ready.plan_ns, backend=options["backend"])
        with replacing(options["trace"]) as stream:
            stream.write(text.encode())


def _check(ready: Ready, result: RunResult) -> list[Finding]:
    from qrun.rules import check

    return check(ready.model, result)


def _failed(findings: Sequence[Finding], fail_on: str) -> bool:
    levels = {"error": ("error",), "warning": ("error", "warning")}.get(fail_on, ())
    return any(finding.level in levels for finding in findings)
