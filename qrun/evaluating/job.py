"""The records of an evaluation: the options of a call (`Wishes`), the work for every sample (`Job`), and its results
(`Done`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from qrun.declare.frozen import frozen
from qrun.evaluating.health import InnerCounts
from qrun.evaluating.samples import Sample
from qrun.io.decoder import Decoder
from qrun.ir import Array, Model
from qrun.ops import Arith
from qrun.ops._plugins import loaded_files


@frozen
class RuntimeModel:
    """A model and the runtime to run it in. model: path or bytes; runtime: "" for qrun, ``ort`` or ``onnx-ref``; arith:
    qrun's arithmetic, "" for that of the options."""

    model: str | bytes
    runtime: str = ""
    arith: Arith = ""


@frozen
class Wishes:
    """The options of an evaluation, those of ``qrun eval``.

    labels: a file, or integers, or strings; "folders": the names of the samples' folders. classes: a file of class
    names. image, cast: see `Conversion`. jobs: processes; None: one per CPU if that pays off. against: a model, one of
    RUNTIMES, or an arithmetic of qrun: ``exact`` or an integer engine. batch: samples per run if the batch axis is
    free. metrics: custom metrics, ``module:function``.
    tokens: a file of tokens, or an array, in place of samples; context, step: see `TokenWindows` and `DecoderRun`.
    shuffle: a seed. until_sure: stop once the first share's interval is this narrow (0.01: one point).
    """

    labels: str | Array | None = None
    against: str = ""
    batch: int = 1
    limit: int | None = None
    shuffle: int | None = None
    metrics: tuple[str, ...] = ()
    until_sure: float | None = None
    fail_fast: bool = False
    jobs: int | None = None
    threads: int | None = None
    dask: str = ""
    output: str = ""
    resume: bool = False
    health: bool = False
    backend: str | None = None
    arith: Arith = "exact"
    max_memory: int | None = None
    max_time: float | None = None
    classes: str = ""
    image: tuple[str, ...] = ()
    cast: bool = False
    tokens: str | Array | None = None
    context: int | None = None
    step: int | None = None


@frozen
class Job:
    """The work to do for every sample.

    sides:   the models, then their references.
    against: for each model, the place of its reference in `sides`, or None.
    wishes:  the call's options, without its labels and tokens.
    decoders: for samples that are tokens, each side as a decoder; else ().
    custom:  the files of custom operators, which each process loads.
    """

    sides: tuple[RuntimeModel, ...]
    against: tuple[int | None, ...]
    wishes: Wishes
    decoders: tuple[Decoder, ...] = ()
    custom: tuple[str, ...] = field(default_factory=loaded_files)


@frozen
class Chunk:
    """Neighbouring samples. first: the place of the first one among all samples."""

    index: int
    first: int
    samples: tuple[Sample, ...]


@frozen
class Failure:
    """A sample that could not be read or run. side: the place of the model in the job's sides;
    None if the sample could not be read, or its process died."""

    place: int
    sample: str
    side: int | None
    code: str
    name: str
    message: str


@frozen
class Done:
    """The results of a chunk.

    columns:  for each model, the columns of `metrics`, float64 [samples], NaN where a sample failed; for tokens those
              of `likelihood`.
    outputs:  for each model, the outputs of the samples that ran in all models (`ran`: their places), by name.
    health:   counts by place of the model. times: for each model, the seconds per sample of each run, in order.
    """

    index: int
    first: int
    count: int
    columns: tuple[dict[str, Array], ...]
    failures: tuple[Failure, ...] = ()
    outputs: tuple[dict[str, Array], ...] = ()
    ran: tuple[int, ...] = ()
    health: Mapping[int, InnerCounts] = field(default_factory=dict)
    times: tuple[tuple[float, ...], ...] = ()


def describe_job(job: Job) -> dict[str, Any]:
    """A description of the job, for `Store`: jobs that differ in it have different results."""
    wishes = job.wishes
    return {
        "batch": wishes.batch,
        "metrics": list(wishes.metrics),
        "backend": wishes.backend,
        "arith": wishes.arith,
        "keep": bool(wishes.output),
        "health": wishes.health,
        "image": list(wishes.image) or None,
        "cast": wishes.cast or None,
        "against": list(job.against),
        "runtimes": [side.runtime or side.arith for side in job.sides],
        **({"step": wishes.step} if job.decoders else {}),
    }


@frozen
class Setup:
    """An evaluation, ready to begin.

    rows, to: as in `Evaluator`. against: the label of the models' reference; "" without one.
    order:    places of the samples in the order of evaluation; None: in their own order. labels: of all samples.
    classes:  the names of the classes; () if they are not known.
    """

    job: Job
    models: tuple[Model, ...]
    rows: tuple[tuple[str, str, Sequence[str]], ...]
    to: tuple[int | None, ...]
    against: str
    order: Sequence[int] | None
    labels: Array | None
    classes: tuple[str, ...] = ()
