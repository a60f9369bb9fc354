"""Prepares the models, samples and options of a call for evaluation, for the command and for Python alike."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from qrun.errors import FULL_NAMES, CallError, choose, suggest
from qrun.evaluating.chunks import check_first
from qrun.evaluating.evaluation import Evaluation, Progress, walk
from qrun.evaluating.job import Job, RuntimeModel, Setup, Wishes
from qrun.evaluating.metrics import own_metric
from qrun.evaluating.samples import (
    Axis,
    DataSet,
    StreamedSamples,
    are_names,
    as_labels,
    folder_labels,
    open_samples,
    read_labels,
)
from qrun.evaluating.tokens import TokenWindows
from qrun.io.classes import read_classes
from qrun.io.conversion import Conversion
from qrun.io.decoder import decoder_of
from qrun.ir import Array, Model
from qrun.ir.load import load
from qrun.memory import Budget, default_limit
from qrun.ops import Arith, check_arith, known_arithmetics

if TYPE_CHECKING:
    import onnx

RUNTIMES = ("ort", "onnx-ref")
FOLDERS = "folders"
"""In place of a file of labels: each sample's folder is its class."""


def evaluate_models(
    models: Sequence[str | bytes | Model],
    samples: Sequence[str] | Iterable[Any],
    wishes: Wishes,
    *,
    stdin: IO[bytes] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluate models. samples: SPECs as for --inputs, or an iterable for `StreamedSamples`; not used with tokens.
    Raises QrunError."""
    check_arith(wishes.arith)
    loaded = [model if isinstance(model, Model) else load(model) for model in models]
    budget = Budget(default_limit() if wishes.max_memory is None else wishes.max_memory)
    if wishes.tokens is not None:
        _check_tokens_alone(samples, wishes)
        setup = _setup(loaded, models, wishes, None, None)
        decoders = setup.job.decoders[: len(setup.models)]
        windows = TokenWindows(wishes.tokens, setup.models, decoders, wishes.context, budget)
        setup = replace(setup, order=_order(windows, None, wishes))
        return walk(setup, windows, wishes.output, wishes.resume, progress)
    specs = [samples] if isinstance(samples, (str, Path)) else samples
    given: DataSet | StreamedSamples
    if isinstance(specs, (list, tuple)) and all(isinstance(spec, (str, Path)) for spec in specs):
        conversion = Conversion(wishes.image, wishes.cast)
        given = open_samples(loaded[0], [os.fspath(spec) for spec in specs], stdin, budget, conversion)
        if not isinstance(given, StreamedSamples) and not len(given):
            raise CallError("QR001", "no samples", where=[given.source])
    else:
        given = StreamedSamples(loaded[0], specs)
    labels, names = wishes.labels, are_names(loaded[0])
    classes = read_classes(wishes.classes) if wishes.classes else ()
    if isinstance(labels, str) and labels == FOLDERS and not isinstance(given, StreamedSamples):
        labels = folder_labels(given, names, classes)
    elif labels is not None:
        if isinstance(labels, str):
            labels = read_labels(labels, names, budget, classes)
        else:
            labels = as_labels(labels, names, classes)
    setup = replace(_setup(loaded, models, wishes, _order(given, labels, wishes), labels), classes=classes)
    for spec in wishes.metrics:
        own_metric(spec)
    if not isinstance(given, StreamedSamples):
        check_first(setup.models, given.read(0))
    if (
        labels is None
        and not wishes.against
        and not wishes.metrics
        and not wishes.health
        and not wishes.output
        and not isinstance(given, StreamedSamples)
    ):
        raise CallError(
            "QR005",
            "nothing to compare with",
            where=[loaded[0].label],
            fixes=["add --labels, --against or --metric", "or -o DIR to keep the outputs"],
        )
    return walk(setup, given, wishes.output, wishes.resume, progress)


def _check_tokens_alone(samples: object, wishes: Wishes) -> None:
    """Raise CallError for options that mean nothing where samples are tokens."""
    given = {
        "--inputs": not isinstance(samples, (tuple, list)) or bool(samples),
        "--labels": wishes.labels is not None,
        "--classes": bool(wishes.classes),
        "--image": bool(wishes.image),
        "--cast": wishes.cast,
        "--metric": bool(wishes.metrics),
        "--health": wishes.health,
        "--batch": wishes.batch != 1,
    }
    wrong = [name for name, is_given in given.items() if is_given]
    if wrong:
        what = f"--tokens does not go with {wrong[0]}"
        facts = [("got", " ".join(["--tokens", *wrong]))]
        raise CallError("QR005", what, facts=facts, fixes=[f"omit {' and '.join(wrong)}"])


def _order(samples: DataSet | StreamedSamples, labels: Array | None, wishes: Wishes) -> Sequence[int] | None:
    """The places of the samples in the order of evaluation; None: in their own order. Raises CallError."""
    order: Sequence[int] | None = None
    if not isinstance(samples, StreamedSamples):
        if labels is not None and len(labels) != len(samples):
            raise CallError(
                "QR003",
                f"{len(labels)} labels for {len(samples)} samples",
                where=[samples.source],
                facts=[("expected", f"{len(samples)} labels"), ("got", f"{len(labels)}")],
                fixes=[f"give {len(samples)} labels, in the order of the samples (folders: of their names)"],
            )
        if wishes.shuffle is not None:
            order = np.random.default_rng(wishes.shuffle).permutation(len(samples)).tolist()
    elif wishes.shuffle is not None:
        raise CallError("QR005", "samples from Python keep their order", fixes=["omit shuffle"])
    return order


def _setup(
    models: Sequence[Model],
    given: Sequence[str | bytes | Model],
    wishes: Wishes,
    order: Sequence[int] | None,
    labels: Array | None,
) -> Setup:
    """Make the setup of an evaluation. The job's sides are the models, then their references. With labels, custom
    metrics or tokens, a reference is scored too. The models' scores are compared with its scores, or else the first
    model's."""
    tokens = wishes.tokens is not None
    judged = wishes.labels is not None or bool(wishes.metrics) or tokens
    sides = [RuntimeModel(_portable(model, data, bool(wishes.dask))) for model, data in zip(models, given, strict=True)]
    rows = [_row(model) for model in models]
    known, against = list(models), ""
    references: list[int | None] = [None] * len(models)
    if wishes.against in known_arithmetics() and not os.path.exists(wishes.against):
        references = [len(sides) + place for place in range(len(models))]
        runtime = wishes.against if wishes.against in RUNTIMES else ""
        sides += [RuntimeModel(side.model, runtime, "" if runtime else wishes.against) for side in sides]
        against = wishes.against
        added = [(f"{label} in {against}", digest, outputs) for label, digest, outputs in rows]
    elif wishes.against:
        if wishes.against in FULL_NAMES and not os.path.exists(wishes.against):
            choose("against", wishes.against, RUNTIMES)
        if _is_a_name(wishes.against) and (near := suggest(wishes.against, known_arithmetics())):
            facts = [("expected", "a model, ort, onnx-ref, exact or an integer engine")]
            raise CallError(
                "QR005", f"against {wishes.against!r} does not exist", facts=facts, fixes=[f"did you mean {near!r}?"]
            )
        other = load(wishes.against)
        if not tokens:
            _alike(models, other)
        references = [len(sides)] * len(models)
        sides.append(RuntimeModel(_portable(other, wishes.against, bool(wishes.dask))))
        against, added = other.label, [_row(other)]
        known.append(other)
    if not against:
        to: list[int | None] = [None, *([0] * (len(models) - 1))]
    else:
        to = list(references) if judged else [None] * len(models)
    if against and judged:
        rows += added
        references += [None] * len(added)
        to += [None] * len(added)
    decoders = [decoder_of(model) for model in known] if tokens else []
    if tokens:
        decoders += decoders[: len(sides) - len(known)]
        rows = [(label, sha256, (decoders[at].logits,)) for at, (label, sha256, _) in enumerate(rows)]
    else:
        _same_batch(known)
    own = replace(wishes, labels=None, tokens=None)
    job = Job(tuple(sides), tuple(references), own, tuple(decoders))
    return Setup(job, tuple(known), tuple(rows), tuple(to), against, order, labels)


def _is_a_name(against: str) -> bool:
    """Whether a value of --against looks like a name, not a path, and is no file."""
    return not os.path.splitext(against)[1] and os.sep not in against and not os.path.exists(against)


def _same_batch(models: Sequence[Model]) -> None:
    sizes = [Axis.of(model).size for model in models]
    if len(set(sizes)) > 1:
        raise CallError(
            "QR003",
            "the models have different batch axes",
            where=[model.label for model in models],
            facts=[("got", ", ".join(str(size or "free") for size in sizes))],
            fixes=["export them with the same input shape"],
        )


def _row(model: Model) -> tuple[str, str, tuple[str, ...]]:
    return model.label, model.sha256, tuple(value.name for value in model.outputs)


def _portable(model: Model, given: str | bytes | Model, sent: bool) -> str | bytes:
    """The path or bytes from which another process loads the model. sent: may that be on another machine?"""
    if isinstance(given, bytes):
        return given
    if model.path is None:
        raise CallError(
            "QR005",
            "a model built in Python cannot be sent to workers",
            where=[model.label],
            fixes=["give its path, or bytes: model.SerializeToString()"],
        )
    if sent and not model.external_files:
        return model.path.read_bytes()
    return str(model.path.resolve())


def _alike(models: Sequence[Model], other: Model) -> None:
    for model in models:
        if len(model.outputs) != len(other.outputs) or len(model.inputs) != len(other.inputs):
            raise CallError(
                "QR003",
                "the models differ in the number of inputs or outputs",
                where=[model.label, other.label],
                facts=[
                    ("first", f"{len(model.inputs)} and {len(model.outputs)}"),
                    ("second", f"{len(other.inputs)} and {len(other.outputs)}"),
                ],
            )


def evaluate(
    models: str | os.PathLike[str] | bytes | onnx.ModelProto | Model | Sequence[Any],
    samples: str | os.PathLike[str] | Sequence[str] | Iterable[Any] = (),
    *,
    labels: str | Sequence[int] | Sequence[str] | Array | None = None,
    against: str | os.PathLike[str] = "",
    metrics: Sequence[str] = (),
    batch: int = 1,
    jobs: int | None = 1,
    limit: int | None = None,
    shuffle: int | None = None,
    output: str | os.PathLike[str] = "",
    resume: bool = False,
    health: bool = False,
    classes: str | os.PathLike[str] = "",
    image: str = "",
    cast: bool = False,
    arith: Arith = "exact",
    tokens: str | os.PathLike[str] | Array | None = None,
    context: int | None = None,
    step: int | None = None,
) -> Evaluation:
    """Judge models on samples, as ``qrun eval`` does.

    models:  one, or several: paths, bytes or onnx.ModelProto.
    samples: a folder, or files with a leading axis of samples; or any iterable of arrays, of feeds (dicts of arrays by
             input name), or of pairs of either and a label; also of batches paired with their labels. It is read as the
             models run, up to `limit`.
    labels:  the number of each sample's class, or its name for models that return strings and with `classes`; or a file
             of these; or "folders", if the samples are in a folder for each class.
    against: a model; or the models themselves, in ``ort`` or ``onnx-ref``, or in qrun's arithmetic of this name:
             ``exact`` or an integer engine. arith: the arithmetic of the models, as in Session.
    metrics: functions as ``module:function``, called with the outputs of a sample and its label.
    batch:   samples per run, if the batch axis is free. jobs: processes; None: as many as pay off.
    output:  a folder that keeps finished chunks; with `resume` an interrupted evaluation continues from them.
    health:  also count values inside the models, see `Health`.
    classes: a file of class names. image: how images become inputs, as ``size=224 color=rgb scale=1/255``.
    cast:    convert arrays in files to the element types of the inputs.
    tokens:  in place of samples, for language models: a file or an array of token numbers, integers [tokens] or
             [sequences, length]. context: tokens per window of the former. step: tokens per run of a model with caches.

    Raises QrunError.
    """
    several = models if isinstance(models, (list, tuple)) else [models]
    own = labels if labels is None or isinstance(labels, str) else np.asarray(labels)
    wishes = Wishes(
        own,
        os.fspath(against),
        batch,
        limit,
        shuffle,
        tuple(metrics),
        jobs=jobs,
        output=os.fspath(output),
        resume=resume,
        health=health,
        classes=os.fspath(classes),
        image=tuple(image.split()),
        cast=cast,
        arith=arith,
        tokens=os.fspath(tokens) if isinstance(tokens, (str, os.PathLike)) else tokens,
        context=context,
        step=step,
    )
    files = [os.fspath(samples)] if isinstance(samples, (str, os.PathLike)) else samples
    return evaluate_models([_source(model) for model in several], files, wishes)


def _source(model: Any) -> str | bytes | Model:
    if isinstance(model, (bytes, Model)):
        return model
    made: str | bytes = model.SerializeToString() if hasattr(model, "graph") else os.fspath(model)
    return made
