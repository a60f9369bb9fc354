"""``qrun eval``: judges models over a data set."""

from __future__ import annotations

import sys
from dataclasses import fields
from os.path import exists, splitext
from typing import TYPE_CHECKING, Any

import click

from qrun.cli._base import RealNumber, WholeNumber, argument, define, format_options, heading, places, print_json
from qrun.cli._options import (
    OTHERS,
    Distance,
    arith_option,
    conversion_options,
    custom_operators,
    general_options,
    memory_option,
    time_option,
)
from qrun.errors import CallError, suggest

if TYPE_CHECKING:
    from qrun.evaluating.evaluation import Evaluation
    from qrun.report.evaluation import Gate
    from qrun.report.screen import Out
    from qrun.running.coverage import Coverage

samples, language, judgement, run, output = map(heading, ("Samples", "Language models", "Judgement", "Run", "Output"))


class Percent(RealNumber):
    """``90`` or ``90%``."""

    name = "percent"

    def __init__(self) -> None:
        super().__init__(0, 100)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        plain: Any = value.removesuffix("%") if isinstance(value, str) else value
        number: float = super().convert(plain, param, ctx)
        if number != number:
            self.fail(f"{value!r} is not a number from 0 to 100.", param, ctx)
        return number


class Goal(Percent):
    """A percentage to reach, which nobody sets below 1: 0.9 is a share, and as a percentage it would always be met."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if 0 < number < 1:
            self.fail(f"{value!r} is {number:g} %; did you mean {100 * number:g}?", param, ctx)
        return number


@define(
    "eval",
    examples=[
        "qrun eval int8.onnx -i images/ --labels labels.npy",
        "qrun eval int8.onnx -i images.npy --against float.onnx",
        "qrun eval int8.onnx -i pets/ --labels folders --classes names.txt \\\n    --image size=224 color=rgb scale=1/255",
        "qrun eval int8.onnx -i images/ --against ort",
        "qrun eval int8.onnx -i images/ --arith tfl-double --against exact",
        "qrun eval models/*.onnx -i images.npy --labels labels.npy",
        "qrun eval int4.onnx --tokens corpus.npy --against f32.onnx",
        "qrun eval int8.onnx -i images.npy -o out/         # then: --resume",
    ],
    notes="Intervals are 95 % confidence intervals. Exit code 1 if --min-accuracy, --max-drop or --min-agreement is not met, if a sample fails with one of these, or if no sample could be run; 5 if --fail-fast stops. With -o, finished chunks are saved, and --resume continues after an interruption.",
)
@argument("models", about="One model, or several to compare.", nargs=-1, required=True, metavar="MODEL...")
@samples(
    "-i, --inputs SPEC",
    "A folder of .npy, .npz, .pb, images or test_data_set folders; x.npy or all.npz with a leading axis of samples; "
    "name=x.npy; a .txt list; or - for stdin. Repeatable.",
    multiple=True,
    shell_complete=places("file"),
)
@samples(
    "--labels FILE",
    "The correct class of each sample: .npy, or text with one label per line: numbers, or names (with --classes, or if the model returns text); 'folders' if each class has its own folder.",
)
@samples("--classes FILE", "The names of the classes: a .json list, or one name per line.")
@conversion_options(samples)
@samples("--limit N", "Take at most N samples.", type=WholeNumber(1))
@samples("--shuffle SEED", "Take the samples in a random order.", type=WholeNumber(0))
@samples(
    "--batch N",
    "Samples per run, if the model's batch axis is free.",
    type=WholeNumber(1, 4096),
    default=1,
)
@language(
    "--tokens FILE",
    "In place of -i: token numbers, .npy, [tokens] or [sequences,length]. Scores next tokens: perplexity, and with --against agreement and KL divergence.",
)
@language(
    "--context N",
    "Tokens per window of a text of one axis.",
    type=WholeNumber(2),
    show_default="the model's own, or at most 512",
)
@language(
    "--step N",
    "Tokens per run of a model with a cache of keys and values.",
    type=WholeNumber(1),
    show_default="64",
)
@judgement(
    "--against MODEL",
    f"Compare the models with another one, or with themselves in {', '.join(OTHERS)}, or in another arithmetic of qrun: exact, tfl-double, ...",
    shell_complete=places("file"),
)
@judgement(
    "--metric MODULE:FUNCTION",
    "Your own metric: a function that takes the outputs by name and the label, and returns a number. Repeatable.",
    multiple=True,
)
@judgement("--min-accuracy PERCENT", "Top-1 accuracy in percent that each model must reach.", type=Goal())
@judgement(
    "--max-drop POINTS",
    "Percentage points of top-1 accuracy that a model may lose against --against, or against the first model.",
    type=Distance(0),
)
@judgement(
    "--min-agreement PERCENT", "Percentage of samples whose argmax must be the same as with --against.", type=Goal()
)
@judgement(
    "--until-sure POINTS",
    "Stop as soon as the 95 % interval of the accuracy (without labels: of the argmax agreement) is at most this wide, in percentage points.",
    type=Percent(),
)
@judgement(
    "--health", "Also count saturation, unused codes and large sums inside the models, over all samples; takes longer."
)
@run(
    "-j, --jobs N",
    "Processes; each gets its share of the CPUs.",
    type=WholeNumber(1, 1024),
    show_default="as many as save time",
)
@run("--threads N", "Threads, with --jobs 1.", type=WholeNumber(1, 4096))
@run("--dask ADDRESS", "A Dask scheduler, tcp://HOST:PORT; local:4 starts one here.")
@run("--fail-fast", "Stop at the first sample that cannot be read or run.")
@run(
    "-b, --backend",
    "Which of qrun's backends runs the models.",
    type=("native", "reference"),
    show_default="native, where it can run",
)
@arith_option(run)
@memory_option(run)
@time_option(run)
@output("-o, --output DIR", "A folder for outputs and scores, saved as each chunk of samples finishes.")
@output("--resume", "Continue an interrupted evaluation in the folder of --output.")
@format_options("text", "json", "markdown", "csv")
@custom_operators
@general_options(config=True)
def command(out: Out, models: tuple[str, ...], **options: Any) -> int:
    """Evaluate models on a data set: accuracy, agreement and errors, with intervals."""
    from qrun.evaluating.job import Wishes
    from qrun.evaluating.setup import evaluate_models
    from qrun.report.evaluation import csv_lines, evaluation_fields, evaluation_sheet, progress_callback
    from qrun.report.progress import Progress
    from qrun.report.sheet import print_sheet

    _contradictions(models, options)
    sure: float | None = options["until_sure"]
    texts = {name: options[name] or "" for name in ("against", "classes", "dask", "output")}
    others = {"metrics": options["metric"], "until_sure": sure and sure / 100}
    named = {each.name: options[each.name] for each in fields(Wishes) if each.name in options}
    wishes = Wishes(**{**named, **texts, **others})
    stdin = sys.stdin.buffer if sys.stdin is not None else None
    with Progress(out, "eval", "samples") as progress:
        found = evaluate_models(models, options["inputs"], wishes, stdin=stdin, progress=progress_callback(progress))
    gates = _gates(found, options)
    missed = not all(gate.passed for gate in gates) or bool(gates and found.failed)
    code = 5 if found.stopped_by is not None else int(found.failed >= found.samples or missed)
    if options["format"] == "json":
        print_json(out, evaluation_fields(found, gates), evaluation_sheet(found, gates).answer(code))
    elif options["format"] == "csv":
        for line in csv_lines(found):
            out.result.line(line)
    else:
        markdown = options["format"] == "markdown"
        sheet = evaluation_sheet(found, gates, markdown).with_about(*_coverages(models, options))
        print_sheet(out, sheet, markdown)
    return code


def _contradictions(models: tuple[str, ...], options: dict[str, Any]) -> None:
    if not options["inputs"] and options["tokens"] is None:
        raise CallError(
            "QR001",
            "no samples were given",
            fixes=[
                "add -i FOLDER, or -i x.npy with a leading axis of samples",
                "add --tokens FILE for a language model",
            ],
        )
    wants = [
        ("context", "tokens", "--tokens FILE"),
        ("step", "tokens", "--tokens FILE"),
        ("resume", "output", "--output DIR"),
        ("min_accuracy", "labels", "--labels FILE"),
        ("max_drop", "labels", "--labels FILE"),
        ("min_agreement", "against", "--against MODEL"),
    ]
    for name, other, text in wants:
        if options[name] not in (None, False) and not options[other]:
            raise CallError("QR005", f"--{name.replace('_', '-')} goes with {text}", fixes=[f"add {text}"])
    _check_reference(options["against"] or "")
    if options["max_drop"] is not None and len(models) < 2 and not options["against"]:
        fixes = ["add --against MODEL, or a second model"]
        raise CallError("QR005", "--max-drop goes with --against MODEL or a second model", fixes=fixes)
    if file := {".json": "--json", ".csv": "--format csv", ".md": "--format markdown"}.get(
        splitext(options["output"] or "")[1].lower()
    ):
        name = options["output"]
        raise CallError("QR005", f"--output {name} names a folder, not a file", fixes=[f"{file} > {name}"])
    if options["dask"] and options["jobs"]:
        raise CallError("QR005", "give --jobs or --dask, not both", fixes=["omit one of them"])


def _check_reference(name: str) -> None:
    """Raise CallError for an --against that is neither a file nor a name: a wrong name of an arithmetic, perhaps."""
    from qrun.ops import known_arithmetics

    names = (*OTHERS, *known_arithmetics())
    if not name or name in names or not name.replace("-", "").replace("_", "").isalnum() or exists(name):
        return
    near = suggest(name, names)
    raise CallError(
        "QR005",
        f"--against {name} is no file, no runtime and no arithmetic",
        facts=[("expected", f"a model, {', '.join(OTHERS)}, or an arithmetic: exact, tfl-double, ...")],
        fixes=[f"did you mean --against {near}?" if near else "qrun explain arithmetics"],
    )


def _coverages(models: tuple[str, ...], options: dict[str, Any]) -> list[Coverage]:
    """What integer engines compute of each model."""
    from qrun.ir.load import load
    from qrun.ops import integer_engine
    from qrun.running.coverage import coverage

    engines = [name for name in (options["arith"], options["against"] or "exact") if integer_engine(name)]

    found = (coverage(model, engine) for model in map(load, models) for engine in engines)
    return [each for each in found if each is not None]


def _gates(found: Evaluation, options: dict[str, Any]) -> list[Gate]:
    """The scores that the options require of the models, not of a reference. CallError if no model has such a score."""
    from qrun.report.evaluation import Gate

    made: list[Gate] = []
    some = any(found.agreement(place) for place in range(len(found.models)))
    if options["min_agreement"] is not None and not some and found.failed < found.samples:
        raise CallError(
            "QR005",
            "--min-agreement finds no output whose agreement can be counted",
            where=[found.models[0].label],
            facts=[("expected", "an output with one score per class, or texts")],
            fixes=["--metric MODULE:FUNCTION judges other outputs"],
        )
    for place, model in enumerate(found.models):
        judged = [
            ("--min-accuracy", options["min_accuracy"], found.score(place, "top1")),
            ("--min-agreement", options["min_agreement"], found.agreement(place)),
        ]
        made += [Gate(o, model.label, wanted, s.value * 100) for o, wanted, s in judged if wanted is not None and s]
        for difference in model.differences:
            if options["max_drop"] is not None and difference.metric == "top1":
                made.append(Gate("--max-drop", model.label, options["max_drop"], -difference.value * 100))
    return made
