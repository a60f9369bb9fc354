"""``qrun conform``: judges a runtime by the conformance suite."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, WholeNumber, argument, define, format_options, heading, print_json
from qrun.cli._options import Distance, Target, general_options, targets, write_reports
from qrun.errors import CallError

if TYPE_CHECKING:
    from qrun.conform.results import Judgement
    from qrun.conform.suite import CaseInfo, Suite
    from qrun.report.screen import Out

run, output = map(heading, ("Run", "Output"))

NEVER = "never"
ACTIONS = ("export", "scoreboard")
_FORMATS = ("text", "json", "markdown", "junit", "sarif", "html")


@define(
    "conform",
    examples=[
        "qrun conform                                      # qrun itself",
        "qrun conform --runtime ort --select QLinearConv,edge",
        "qrun conform --runtime 'cmd:./mine {model} {inputs} {outputs}'",
        "qrun conform --runtime batch:./mine",
        "qrun conform --runtime ort --baseline ort.json -o junit=ort.xml",
        "qrun conform --runtime ort --reproduce known/qlinearmul-o18 -o report.py",
        "qrun conform export cases/ --select core",
        "qrun conform scoreboard ort.json openvino.json -o scoreboard.md",
    ],
    notes="Runtimes: native, reference, ort, ort-optimized, ort-x64quantprecision, onnx-ref, openvino, opencv, tinygrad, tract, iree, or a program: cmd: starts it for each case, batch: once. "
    "Exit code 1 if a verdict of --fail-on occurs. Verdicts: exact, choice, ulp, wrong, unstable, accepts-invalid, refused, crashed, hung, unsupported.",
)
@argument("words", about="Nothing; or export DIR; or scoreboard JSON...", nargs=-1, metavar="[export|scoreboard] ...")
@run("--runtime NAME", "The runtime to judge. Repeatable.", multiple=True, show_default="qrun: native and reference")
@run(
    "--select WORDS",
    "Only these cases: profiles, operators, prefixes of case ids, comma-separated. A case must match one word of each kind given. Repeatable.",
    multiple=True,
)
@run(
    "--python PATH",
    "Run the runtime in this Python, for example to test another version of it.",
    show_default="this one",
)
@run("--jobs N", "Cases to run at once.", type=WholeNumber(1, 256), show_default="all CPUs")
@run("--timeout S", "Seconds after which a case counts as hung.", type=Distance(0, min_open=True), default=20.0)
@run("--list", "Print the cases' ids and run nothing.", into="listed")
@output(
    "--reproduce ID",
    "Write a Python script that shows this case in the runtime without qrun, for a report to its authors.",
)
@output(
    "--fail-on VERDICTS",
    "Exit 1 if one of these verdicts occurs; 'never' to exit 0.",
    default="wrong,unstable,crashed,hung",
)
@output("--baseline FILE", "A saved result: report only the cases that changed since.")
@output(
    "-o, --output [FORMAT=]FILE",
    "Also write: .txt, .json, .md, .xml (JUnit), .sarif, .html, or FORMAT=FILE. Repeatable.",
    multiple=True,
)
@format_options(*_FORMATS)
@general_options()
@click.pass_context
def command(ctx: click.Context, /, out: Out, words: tuple[str, ...], **options: Any) -> int:
    """Test a runtime against the conformance suite for quantized operators."""
    from qrun.conform.suite import Suite

    if words and words[0] == "scoreboard":
        return _scoreboard(words[1:], options, out)
    suite = Suite()
    if options["reproduce"] and not words:
        return _reproduce(suite, options, out)
    cases = suite.select(options["select"])
    if words and words[0] == "export":
        return _export(suite, cases, words[1:], out)
    if words:
        raise _unfit(f"qrun conform does not know {words[0]!r}", f"{', '.join(ACTIONS)}, or no word")
    if options["listed"]:
        for info in cases:
            out.result.line(info.id)
        return 0
    from qrun.report.conform.formats import FORMATS

    read = {options["baseline"]: "the baseline of this command"} if options["baseline"] else {}
    fail_on, files = _fail_on(options["fail_on"]), targets(options["output"], _suffixes(FORMATS), read)
    judgement = _judge(suite, cases, options, fail_on, out)
    return _print_judgement(ctx, suite, judgement, options, files, out)


def _judge(
    suite: Suite, cases: Sequence[CaseInfo], options: Mapping[str, Any], fail_on: tuple[str, ...], out: Out
) -> Judgement:
    from qrun.comparing.record import host
    from qrun.conform.results import Judgement, match_baseline, read_judgement, select_changed
    from qrun.conform.run import conform
    from qrun.conform.runtimes import OWN, runtime
    from qrun.report.html.made import today
    from qrun.report.progress import Progress
    from qrun.running.cpus import usable_cpus

    chosen = [runtime(name) for name in dict.fromkeys(options["runtime"] or OWN)]
    before = read_judgement(options["baseline"]) if options["baseline"] else None
    saved = match_baseline([each.name for each in chosen], suite.version, before) if before is not None else []
    found = []
    for each in chosen:
        with Progress(out, f"conform {each.name[:30]}", "cases") as progress:
            found.append(
                conform(
                    suite,
                    cases,
                    each,
                    python=options["python"] or "",
                    jobs=options["jobs"] or usable_cpus(),
                    limit=options["timeout"],
                    progress=lambda done: progress(done, len(cases), None),
                )
            )
    made_on = {"archive_sha256": suite.sha256, "date": today(), **{key: host()[key] for key in ("qrun", "cpu", "isa")}}
    if before is not None:
        found = [select_changed(now, old, before.date) for now, old in zip(found, saved, strict=True)]
    return Judgement(suite.version, len(cases), fail_on, tuple(found), **made_on)


def _print_judgement(
    ctx: click.Context,
    suite: Suite,
    judgement: Judgement,
    options: Mapping[str, Any],
    files: Sequence[Target],
    out: Out,
) -> int:
    from qrun.report.conform.formats import FORMATS, fields
    from qrun.report.conform.sheet import conform_sheet, details
    from qrun.report.sheet import print_sheet

    code, argv = int(judgement.failed), ctx.ensure_object(Call).argv
    if options["format"] == "json":
        print_json(out, fields(judgement), conform_sheet(judgement).answer(code))
    elif options["format"] == "text":
        sheet = conform_sheet(judgement)
        more = details(suite, judgement) if out.verbose else []
        print_sheet(out, replace(sheet, blocks=[*sheet.blocks, *more], notes=() if more else sheet.notes))
    else:
        out.result.write(FORMATS[options["format"]][1](judgement, argv).rstrip("\n"))
    write_reports(files, lambda format: FORMATS[format][1](judgement, argv), out)
    return code


def _reproduce(suite: Suite, options: Mapping[str, Any], out: Out) -> int:
    """Print the script of --reproduce, or write it to the files of -o."""
    from qrun.conform.reproduce import script
    from qrun.conform.runtimes import runtime

    word, names = options["reproduce"], options["runtime"]
    cases = suite.select([word])
    if len(cases) != 1:
        fix = f"qrun conform --list --select {shlex.quote(word)}"
        raise CallError("QR005", f"--reproduce takes one case, not {len(cases)}", fixes=[fix])
    if len(names) != 1:
        raise CallError("QR005", f"--reproduce takes one runtime, not {len(names)}", fixes=["--runtime ort"])
    files = targets(options["output"], {"python": ".py"}, {})
    text = script(suite.load(cases[0]), suite.rule(cases[0]), runtime(names[0]), suite.version)
    if not files:
        out.result.write(text.rstrip("\n"))
    write_reports(files, lambda _: text, out)
    return 0


def _export(suite: Suite, cases: Sequence[CaseInfo], words: Sequence[str], out: Out) -> int:
    from qrun.conform.export import export
    from qrun.report.progress import Progress
    from qrun.report.text import plural

    if len(words) != 1:
        raise _unfit("export needs one folder", "qrun conform export DIR")
    with Progress(out, "export", "cases") as progress:
        export(suite, cases, Path(words[0]), lambda done: progress(done, len(cases), None))
    out.result.line(f"{plural(len(cases), 'case')} of suite {suite.version} in {words[0]}")
    return 0


def _scoreboard(words: Sequence[str], options: Mapping[str, Any], out: Out) -> int:
    from qrun.conform.results import read_judgement
    from qrun.report.conform.scoreboard import SCOREBOARDS, scoreboard_sheet
    from qrun.report.sheet import print_sheet

    if not words:
        raise _unfit("scoreboard needs saved results", "qrun conform scoreboard ort.json openvino.json")
    read = dict.fromkeys(words, "a saved result of this command")
    files = targets(options["output"], _suffixes(SCOREBOARDS), read)
    found = [read_judgement(word) for word in words]
    print_sheet(out, scoreboard_sheet(found))
    write_reports(files, lambda format: SCOREBOARDS[format][1](found), out)
    return 0


def _fail_on(text: str) -> tuple[str, ...]:
    from qrun.conform.results import VERDICTS

    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if words == (NEVER,):
        return ()
    unknown = [word for word in words if word not in VERDICTS or word == "exact"]
    if unknown or not words:
        raise _unfit(f"--fail-on {text}: not verdicts", f"{', '.join(VERDICTS[1:])}, or never")
    return words


def _suffixes(formats: Mapping[str, tuple[str, Any]]) -> dict[str, str]:
    return {name: suffix for name, (suffix, _) in formats.items()}


def _unfit(message: str, expected: str) -> CallError:
    return CallError("QR005", message, facts=[("expected", expected)], fixes=["qrun conform -h"])
