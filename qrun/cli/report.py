"""``qrun report``: writes one self-contained HTML page of models, or of saved results."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import Call, Choice, argument, define, heading, places
from qrun.cli._flow import Ready, prepare, start_other
from qrun.cli._options import (
    custom_operators,
    deploy_targets,
    general_options,
    input_options,
    limits,
    run_options,
    runs_option,
    target_option,
)
from qrun.cli.compare import AGAINST
from qrun.cli.profile import INTERRUPTED, measure_profile
from qrun.errors import CallError, UnsupportedError

if TYPE_CHECKING:
    from qrun.ir import Model
    from qrun.report.html.collect import Document
    from qrun.report.screen import Out, Screen

run, output = map(heading, ("Run", "Output"))

DEFAULT = "qrun-report.html"
SAVED = "qrun check, profile, run and compare save such files with --json"


class Against(Choice):
    """A runtime, or the path of a model."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_path(value) else super().convert(value, param, ctx)


def is_path(against: str) -> bool:
    return against not in AGAINST and (bool(Path(against).suffix) or os.path.exists(against))


@define(
    "report",
    examples=[
        "qrun report m.onnx --inputs x.npy -o m.html    # check + profile, then render",
        "qrun report q.onnx -i x.npy --against f.onnx   # and what quantization costs",
        "qrun report check.json profile.json -o m.html  # render saved results only",
        "qrun report a.json b.json -o both.html         # two models, side by side",
    ],
)
@argument(
    "sources",
    about="Models, or results saved with --json; several models are shown side by side.",
    nargs=-1,
    required=True,
    metavar="SOURCE...",
)
@input_options
@run_options
@runs_option
@run(
    "--against MODEL",
    f"Also compare with the float model that this one was quantized from, or with a runtime, tensor by tensor: {', '.join(AGAINST)}.",
    type=Against(AGAINST),
    shell_complete=places("file"),
)
@target_option(run, "Also say what this runtime or device will do with the model, as qrun check --target does.")
@output(
    "--model-explorer DIR",
    "Also write files for Model Explorer: the graph, and the time, SQNR and cause of each node; with --against MODEL both graphs, in step.",
)
@output(
    "--annotate FILE",
    "Also write a copy of the model whose nodes have time, SQNR and cause as metadata, which Netron shows.",
)
@output("-o, --output FILE", "Where to write the page; - for stdout.", default=DEFAULT)
@custom_operators
@general_options(config=True)
@click.pass_context
def command(ctx: click.Context, /, out: Out, sources: tuple[str, ...], **options: Any) -> int:
    """Write one self-contained HTML page."""
    from qrun.ir.load import load
    from qrun.report.html.collect import by_model, page_of
    from qrun.report.html.made import today
    from qrun.report.html.several import comparison_document

    date = today()
    told = out.messages if options["output"] == "-" else out.result
    saved = [source for source in sources if _is_saved(source)]
    code, groups, files = 0, list[list["Document"]](), list(sources)
    if saved and len(saved) < len(sources):
        raise CallError(
            "QR005",
            "give models or saved results, not both",
            facts=[("models", ", ".join(s for s in sources if s not in saved)), ("saved results", ", ".join(saved))],
            fixes=["qrun profile MODEL --json > MODEL.json, then qrun report with all the results"],
        )
    if saved:
        groups = by_model(_read(sources, options))
        files = [", ".join(dict.fromkeys(item.source for _, item in group)) for group in groups]
    _check_files(sources, saved, options)
    others = [options["against"]] if options["against"] and is_path(options["against"]) else []
    for source in () if saved else (*sources[1:], *others):  # errors show before anything is measured, which takes long
        if source != "-":
            load(source)
    for source in () if saved else sources:
        documents, code, ready = _measure(source, options, out, told)
        groups.append(documents)
        if options["model_explorer"] and not code:
            _write_explorer(ready.model, documents, options, told, out)
        if options["annotate"] and not code:
            _write_annotated(ready, documents, options["annotate"], told, out)
        if code:
            break
    argv = ["qrun", *ctx.ensure_object(Call).argv]
    pages = [page_of(group, argv, date) for group in groups]
    _write(options["output"], comparison_document(pages, files), out)
    return code


def _is_saved(source: str) -> bool:
    """Whether this is a JSON file: judged by its first character, or by its name if it cannot be read."""
    try:
        with open(source, "rb") as stream:
            start = stream.read(64).lstrip()
    except (OSError, ValueError):
        start = b""
    return start.startswith((b"{", b"[")) or source.lower().endswith(".json")


def _read(sources: Sequence[str], options: Mapping[str, Any]) -> list[Document]:
    from qrun.documents.record import read_document
    from qrun.io.outputs import check_trace
    from qrun.report.html.collect import KINDS

    if options["output"] != "-":
        check_trace(options["output"], dict.fromkeys(sources, "a source of the page"))
    return [read_document(Path(source), KINDS, SAVED) for source in sources]


def _measure(source: str, options: Mapping[str, Any], out: Out, told: Screen) -> tuple[list[Document], int, Ready]:
    """The documents on a model, measured now: checks, quantized values, a profile; the exit code; what ran."""
    from qrun.io.inputs import files_read
    from qrun.io.outputs import check_trace

    start_other(options["against"])
    ready = prepare({**options, "model": source, "output": None, "trace": None, "format": "text"}, out)
    if options["output"] != "-":
        against = {options["against"]: "the model to compare with"} if options["against"] else {}
        check_trace(options["output"], {**files_read(ready.model, options["inputs"]), **against})
    observed = _observe(ready, options, out, told)
    profiled, code = _profile(ready, options, out, told)
    compared = [_compare(ready, options, out, told)] if options["against"] and not code else []
    return [*observed, profiled, *compared], code, ready


def _check_files(sources: Sequence[str], saved: Sequence[str], options: Mapping[str, Any]) -> None:
    """Raises CallError before anything is measured if --model-explorer or --annotate cannot be done."""
    from qrun.io.files import check_folder
    from qrun.io.outputs import check_trace

    given = [f"--{name}" for name in ("model-explorer", "annotate") if options[name.replace("-", "_")]]
    if given and (saved or len(sources) > 1):
        raise CallError(
            "QR005",
            f"{given[0]} takes one model",
            facts=[("got", "saved results, which have no graph" if saved else ", ".join(sources))],
            fixes=["qrun report QUANTIZED --against FLOAT --model-explorer DIR shows two graphs in step"],
        )
    if options["model_explorer"]:
        check_folder(options["model_explorer"])
    if options["annotate"]:
        read = {sources[0]: "the model of this command", options["against"] or "": "the model to compare with"}
        for name in (options["annotate"], f"{options['annotate']}.data"):
            check_trace(name, {**read, options["output"]: "the page"})


def _write_explorer(
    model: Model, documents: Sequence[Document], options: Mapping[str, Any], told: Screen, out: Out
) -> None:
    from qrun.io.files import write_files
    from qrun.ir.load import load
    from qrun.report.explorer import DATA, GRAPH, explorer_files

    against, folder = options["against"], options["model_explorer"]
    files = explorer_files(model, documents, load(against) if against and is_path(against) else None)
    write_files(folder, files.items(), GRAPH)
    if not out.quiet:
        data = ",".join(os.path.join(folder, name) for name in files if name in DATA)
        words = ["model-explorer", os.path.join(folder, GRAPH), *(["--node_data_paths", data] if data else [])]
        _step(told, "explorer", shlex.join(words))


def _write_annotated(ready: Ready, documents: Sequence[Document], target: str, told: Screen, out: Out) -> None:
    from qrun.converting.annotate import annotate
    from qrun.report.explorer import node_texts

    source = ready.data if ready.data is not None else str(ready.model.path)
    files = annotate(source, target, node_texts(ready.model, documents))
    if not out.quiet:
        _step(told, "annotate", shlex.join(["netron", files[0]]))


def _observe(ready: Ready, options: Mapping[str, Any], out: Out, told: Screen) -> list[Document]:
    """The findings, also on the values of a run by qrun, and the records of the quantized tensors."""
    from qrun.report.html.made import observe
    from qrun.report.message import count_levels
    from qrun.report.text import plural
    from qrun.running.session import Session

    own = ready.session if isinstance(ready.session, Session) else None
    try:
        own = own or Session(ready.model, cache=not options["no_cache"], **limits(options))
    except UnsupportedError as error:
        out.note(f"qrun cannot run this model, so its values are not checked: {error.message}")
    documents, findings, rules = observe(ready.model, own, ready.feeds.arrays, deploy_targets(options["target"]))
    if not out.quiet:
        found = count_levels(f.level for f in findings) or "nothing found"
        _step(told, "check", f"{plural(rules, 'rule')}, {plural(len(ready.model.nodes), 'node')}: {found}")
    return documents


def _profile(ready: Ready, options: Mapping[str, Any], out: Out, told: Screen) -> tuple[Document, int]:
    from qrun.report.html.made import profile_document
    from qrun.report.text import duration, plural
    from qrun.running.profiling import summary

    report = measure_profile(ready, {**options, "against": None, "warmup": 1, "by": "node", "top": "all"}, out)
    runs = report.profile.run_ns
    if not out.quiet:
        _step(told, "profile", f"{plural(len(runs), 'run')}: median {duration(summary(runs).median)}")
    return profile_document(report), INTERRUPTED if report.profile.interrupted else 0


def _compare(ready: Ready, options: Mapping[str, Any], out: Out, told: Screen) -> Document:
    from qrun.comparing.choices import sides, tolerance
    from qrun.comparing.runtimes import compare_runtimes
    from qrun.report.compare import verdict
    from qrun.report.html.made import compare_document
    from qrun.report.progress import Progress

    against = options["against"]
    if is_path(against):
        return _compare_models(ready, options, out, told)
    own, other = sides(ready.model, against, data=ready.data, **limits(options))
    with Progress(out, "compare", "nodes") as progress:
        found = compare_runtimes(own, other, ready.feeds.arrays, tolerance(against), progress=progress)
    if not out.quiet:
        _step(told, "compare", f"{other.label}: {verdict(found)}")
    return compare_document(found, ready.feeds)


def _compare_models(ready: Ready, options: Mapping[str, Any], out: Out, told: Screen) -> Document:
    from qrun.comparing.accuracy import accuracy
    from qrun.ir.load import load
    from qrun.report.accuracyjson import verdict
    from qrun.report.html.made import compare_document
    from qrun.report.progress import Progress

    reference = load(options["against"])
    with Progress(out, "compare") as progress:
        found = accuracy(reference, ready.model, [ready.feeds.arrays], progress=progress, **limits(options))
    if not out.quiet:
        _step(told, "compare", verdict(found))
    return compare_document(found, ready.feeds)


def _step(told: Screen, name: str, text: str) -> None:
    """Prints the result of one step of the measurement."""
    told.wrapped(f"{name:9}", " " * 9, text)


def _write(target: str, text: str, out: Out) -> None:
    from qrun.io.files import replace_file
    from qrun.report.text import file_size

    data = text.encode("utf-8")
    if target == "-":
        if sys.stdout is None:
            raise CallError("QR008", "cannot write to stdout: it is closed", fixes=["-o FILE"])
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    with replace_file(target) as stream:
        stream.write(data)
    if not out.quiet:
        out.result.line(f"{target}  {file_size(len(data))}, no network needed")
