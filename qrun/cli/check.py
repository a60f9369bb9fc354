"""``qrun check``: checks models against the specifications, and replays their recorded vectors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, WholeNumber, argument, contradiction, define, format_options, heading
from qrun.cli._flow import start_other
from qrun.cli._options import (
    BACKENDS,
    arith_option,
    custom_operators,
    deploy_targets,
    general_options,
    memory_option,
    own_backends,
    target_option,
    targets,
    time_option,
    tolerance_options,
    write_reports,
)
from qrun.errors import CallError, suggest
from qrun.report.formats import FORMATS, Asked, print_report, report_text, suffixes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qrun.checking.check import MakeRunner, Report, Settings
    from qrun.checking.targets import DeployTarget
    from qrun.report.screen import Out

FAIL_ON = ("error", "warning", "note", "never", "float", "cpu", "refused", "wrong")
"""`qrun.checking.check.FAIL_ON`, which is not imported for every help."""

rules, vectors, output = map(heading, ("Rules", "Vectors", "Output"))


@define(
    "check",
    examples=[
        "qrun check m.onnx",
        "qrun check models/ --format github -o qrun.sarif -o qrun.xml",
        "qrun check m.onnx --select QR3 --ignore QR305",
        "qrun check models/ --baseline before.json    # only what is new",
        "qrun check m.onnx --target all               # what runtimes will do with it",
        "qrun check node_tests/ --backend ort",
    ],
    notes="Exit code 1 if a finding is at the level of --fail-on or worse. [tool.qrun.check.per-file] sets other options for some models: qrun explain config.",
)
@argument("paths", about="Models, or folders searched for *.onnx.", nargs=-1, required=True, metavar="PATH...")
@rules(
    "--select CODES",
    "Only these rules: ids, prefixes or names, comma-separated, e.g. QR3,QR401. Repeatable.",
    multiple=True,
)
@rules("--ignore CODES", "Not these rules, also of targets: tensorrt/zero-point-0. Repeatable.", multiple=True)
@rules(
    "--fail-on",
    "Exit 1 when a finding is at this level or worse; of targets, an error is refused or wrong, a warning cpu or float.",
    type=FAIL_ON,
    default="error",
)
@target_option(
    rules,
    "What these runtimes or devices will do with the model: names, or paths of target files, comma-separated, or all. "
    "Repeatable.",
)
@vectors(
    "--data DIR",
    "Recorded inputs and outputs to replay; 'none' to replay nothing. Repeatable.",
    multiple=True,
    show_default="test_data_set_* beside each model",
)
@tolerance_options(vectors, "outputs", {"default": 1e-3}, {"default": 1e-7})
@vectors("-b, --backend", "Which runtime replays the vectors.", type=BACKENDS, default="reference")
@arith_option(vectors)
@rules(
    "-j, --jobs N", "Check up to N models at once, each in a separate process.", type=WholeNumber(1, 1024), default=1
)
@memory_option(vectors, "Skip vectors that need more memory, e.g. 8GiB (QR505).")
@time_option(vectors, "Stop a vector that takes longer, e.g. 90s or 10m (QR505).")
@output("--statistics", "Print how often each rule was found, instead of the findings.")
@output("--baseline FILE", "A result saved with --json: report only findings that are not in it.")
@output(
    "-o, --output [FORMAT=]FILE",
    f"Also write a report: {', '.join(filter(None, suffixes().values()))}, or FORMAT=FILE. Repeatable.",
    multiple=True,
)
@format_options(*suffixes())
@custom_operators
@general_options(config=True)
@own_backends
@click.pass_context
def command(ctx: click.Context, /, out: Out, paths: tuple[str, ...], **options: Any) -> int:
    """Check models against the operator specs; replay their test vectors."""
    start_other(options["backend"])
    from qrun.checking.baseline import read_baseline, select_new
    from qrun.checking.check import find_models, runner_maker

    if options["statistics"] and not FORMATS[options["format"]].draws:
        given = ["--statistics", f"--format {options['format']}"]
        raise contradiction("--statistics prints a table for people", given)
    models = find_models(paths)
    settings = _settings(options, ctx.meta.get("qrun.per-file", {}))
    before = read_baseline(options["baseline"]) if options["baseline"] else None
    read = {str(path): "a model of this command" for path in models}
    if options["baseline"]:
        read[options["baseline"]] = "the baseline of this command"
    found = targets(options["output"], suffixes(), read)
    make = runner_maker(*_backend(options))
    report = _check_models(models, settings, make, options, out)
    _say_what_is_needed(report, settings, paths, out)
    report = report if before is None else select_new(report, before)
    asked = Asked(ctx.ensure_object(Call).argv, out.verbose > 0)
    shown = replace(asked, quiet=out.quiet, statistics=options["statistics"])
    print_report(out.result, options["format"], report, shown)
    write_reports(found, lambda format: report_text(format, report, asked), out)
    if options["format"] == "github":
        _append_summary(report_text("markdown", report, asked), out)
    return int(report.failed)


def _settings(options: Mapping[str, Any], per_file: Mapping[str, Any]) -> Settings:
    """Makes the settings from the options, and for some models from [tool.qrun.check.per-file]."""
    from qrun.checking.check import Settings
    from qrun.checking.deploy import BOUNDS
    from qrun.checking.vectors import vector_folders
    from qrun.comparing.differences import Tolerance
    from qrun.report.catalog import select, selected_ids

    given = deploy_targets(options["target"])

    def made(own: Mapping[str, Any]) -> Settings:
        tolerance = Tolerance(own["lsb"], own["rtol"], own["atol"])
        ignore, of_targets = _split_ignored(own["ignore"], given)
        chosen = own["select"], ignore
        named = selected_ids(*chosen)
        return Settings(select(*chosen), tolerance, named=named, targets=given, ignored=of_targets)

    data = None
    if options["data"]:
        data = tuple(Path(folder) for folder in options["data"] if folder != "none")
        vector_folders(Path(), data)
    plain = made(options)
    others = {
        pattern: made({**options, **own, "ignore": (*options["ignore"], *own.get("ignore", ()))})
        for pattern, own in per_file.items()
    }
    if options["fail_on"] in BOUNDS and not given:
        fixes = ["--target NAME", "--fail-on error"]
        raise CallError("QR005", f"--fail-on {options['fail_on']} needs a target, and none is given", fixes=fixes)
    return replace(plain, data=data, per_file=others)


def _split_ignored(given: Sequence[str], targets: Sequence[DeployTarget]) -> tuple[list[str], frozenset[str]]:
    """The values of --ignore: codes of rules, and ids of rules of targets, such as ``tensorrt/zero-point-0``. Raises
    CallError for an id that one of these targets does not have; rules of other targets may be named too."""
    from qrun.checking.deploy import NOT_QUANTIZED, rule_id

    words = [word.strip() for text in given for word in text.split(",")]
    ids = frozenset(word for word in words if "/" in word)
    for target in targets if ids else ():
        known = [rule_id(target, rule) for rule in (*target.rules, NOT_QUANTIZED)]
        for id in sorted(ids.difference(known)):
            if id.rpartition("/")[0] == target.id:
                near = suggest(id, known)
                fixes = [f"did you mean {near}?" if near else f"qrun explain {target.id} lists its rules"]
                raise CallError("QR005", f"--ignore {id}: {target.id} has no such rule", fixes=fixes)
    return [word for word in words if "/" not in word], ids


def _check_models(
    models: Sequence[Path], settings: Settings, make: MakeRunner, options: Mapping[str, Any], out: Out
) -> Report:
    from qrun.checking.check import Report, check_in_processes, check_models
    from qrun.report.progress import Progress

    jobs = min(options["jobs"], len(models))
    with Progress(out, "check", "models") as progress:

        def told(done: int) -> None:
            progress(done, len(models), None)

        if jobs > 1:
            checked = check_in_processes(models, settings, _backend(options), jobs, told)
        else:
            checked = check_models(models, settings, make, progress=told)
    made = tuple(checked), options["backend"], options["arith"], settings.tolerance, options["fail_on"]
    return Report(*made, targets=settings.targets)


def _say_what_is_needed(report: Report, settings: Settings, paths: Sequence[str], out: Out) -> None:
    """Notes which selected rules need a run if nothing was run. Raises CallError if no other rule is selected: then
    nothing was checked."""
    from shlex import quote

    from qrun.checking.check import not_judged
    from qrun.checking.rules._rule import join_names

    missing, alone = not_judged(report.models, settings)
    if not missing:
        return
    needed = "recorded inputs to run: a folder test_data_set_0 beside the model, or --data DIR"
    if not alone:
        out.note(f"{join_names(missing)} not checked without {needed}")
        return
    model = report.models[0].path
    folder = quote(f"{(model.parent / 'test_data_set_0').as_posix()}/")
    raise CallError(
        "QR005",
        f"nothing was checked: {join_names(missing)} {'need' if missing[1:] else 'needs'} a run",
        where=[str(path) for path in paths[:1]],
        facts=[("expected", needed), ("got", "no recorded inputs")],
        fixes=[
            f"qrun run {quote(str(model))} -o {folder} records a run; -i sets the inputs, which are random otherwise"
        ],
    )


def _backend(options: Mapping[str, Any]) -> tuple[str, str, int | None, float | None]:
    """The arguments of `runner_maker`."""
    return options["backend"], options["arith"], options["max_memory"], options["max_time"]


def _append_summary(text: str, out: Out) -> None:
    """Adds the Markdown report to the summary of a job of GitHub Actions."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        try:
            with open(path, "a", encoding="utf-8") as stream:
                stream.write(text + "\n")
        except (OSError, ValueError) as error:
            out.note(f"the job summary {path} cannot be written: {getattr(error, 'strerror', None) or error}")
