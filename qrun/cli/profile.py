"""``qrun profile``: many runs of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, define, format_options, general_options, model_argument, option
from qrun.cli._flow import prepare, write_trace
from qrun.cli._options import input_options, run_options, trace_option

if TYPE_CHECKING:
    from qrun.report.screen import Out

INTERRUPTED = 130


class Top(click.ParamType):  # type: ignore[type-arg]
    """A number of rows, or ``all``."""

    name = "top"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text == "all":
            return "all"
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 10**9):
            self.fail(f"{text!r} is neither a number above 0 nor 'all'.", param, ctx)
        return int(text)


@define(
    "profile",
    examples=[
        "qrun profile m.onnx --inputs x.npy",
        "qrun profile m.onnx --random --shape N=8 --by op",
        "qrun profile m.onnx -i x.npy --trace t.json   # open at ui.perfetto.dev",
        "qrun profile m.onnx -i x.npy --json > base.json",
    ],
)
@model_argument
@input_options
@run_options
@option(
    "-n",
    "--runs",
    type=click.IntRange(1, 10**6),
    metavar="N",
    group="Timing",
    show_default="as many as fit in 3 s, 5 to 1000",
    help="Timed runs.",
)
@option(
    "--warmup",
    type=click.IntRange(0, 10**6),
    metavar="N",
    default=1,
    show_default=True,
    group="Timing",
    help="Untimed runs before.",
)
@option(
    "--by",
    type=click.Choice(["node", "op"]),
    default="node",
    show_default=True,
    group="Output",
    help="One row per node or per operator type.",
)
@option(
    "--top",
    type=Top(),
    metavar="N",
    default=10,
    show_default=True,
    group="Output",
    help="Rows to print, or 'all' (then in graph order).",
)
@trace_option
@format_options("text", "json", "markdown")
@general_options(config=True)
@click.pass_context
def command(ctx: click.Context, /, out: Out, **options: Any) -> int:  # fmt: skip
    """Measure time per node over many runs."""
    ready = prepare(options, out)

    from qrun.report.progress import Progress

    with Progress(out, "profile") as progress:
        profile = ready.session.profile(
            ready.feeds.arrays, runs=options["runs"], warmup=options["warmup"], progress=progress
        )
    if profile.interrupted:
        asked = f" of {profile.asked}" if profile.asked else ""
        out.messages.line(f"interrupted after {len(profile.run_ns)}{asked} runs")
    if options["trace"]:
        write_trace(ready, profile.last, options, out)

    from qrun.report.profile import ProfileReport, print_markdown, print_profile, profile_fields

    code = INTERRUPTED if profile.interrupted else 0
    feeds, top = ready.feeds, options["top"]
    report = ProfileReport(profile, feeds.arrays, feeds.sources, feeds.symbols, ready.load_ns + ready.plan_ns,
                           ready.session.backend, options["arith"], ready.label, options["by"],
                           None if top == "all" else top)  # fmt: skip
    if options["format"] == "json":
        from qrun.report.json import document

        out.result.write(
            document("profile", ctx.ensure_object(Call).argv, {**profile_fields(report), "exit_code": code})
        )
    elif options["format"] == "markdown":
        print_markdown(out, report)
    else:
        print_profile(out, report)
    return code
