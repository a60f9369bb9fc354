"""One part of the samples through all models: what every worker does, alone or beside others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, QrunError
from qrun.evaluating.health import InnerCounts
from qrun.evaluating.labels import Label
from qrun.evaluating.metrics import measured, own_metric
from qrun.evaluating.samples import Axis, Feed, Sample, renamed
from qrun.ir import Array, Model
from qrun.ir.compound import batch_rows, tensors
from qrun.ir.load import load
from qrun.ir.types import describe
from qrun.ops import Arith
from qrun.running.session import Session

if TYPE_CHECKING:
    from qrun.peers import Peer


@frozen
class RuntimeModel:
    """A model in a runtime. model: its path, or its bytes; runtime: "" for qrun itself, ``ort`` or ``onnx-ref``."""

    model: str | bytes
    runtime: str = ""


@frozen
class Job:
    """What is to be done with every sample.

    sides:   the models, and then what they are held against.
    against: for each model the place of its reference in `sides`, or None.
    batch:   samples run at once where the batch axis is free.
    metrics: of one's own, ``module:function``.
    keep:    are the outputs wanted? health: is what happens inside the models to be counted?
    """

    sides: tuple[RuntimeModel, ...]
    against: tuple[int | None, ...]
    batch: int = 1
    metrics: tuple[str, ...] = ()
    keep: bool = False
    health: bool = False
    backend: str | None = None
    arith: Arith = "exact"
    max_memory: int | None = None
    max_time: float | None = None


@frozen
class Chunk:
    """Neighbouring samples. first: the place of the first one among all."""

    index: int
    first: int
    samples: tuple[Sample, ...]


@frozen
class Failure:
    """A sample that could not be read or run. side: the place of the model in the job,
    None where the sample is at fault."""

    place: int
    sample: str
    side: int | None
    code: str
    name: str
    message: str


@frozen
class Done:
    """What became of a chunk.

    columns:  for each model the columns of `metrics`, float64 [samples], NaN where a sample failed.
    outputs:  for each model the arrays of the samples that ran with all models, by the name in the chunk's file.
    health:   by place of the model. times: for each model, seconds a sample of each run, in order.
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


class Worker:
    """The models of a job, ready to run; threads: of each."""

    def __init__(self, job: Job, threads: int | None = None) -> None:
        self.job = job
        self._threads = threads
        self._runs = [
            _Run(side, job, threads, job.health and not side.runtime and place < len(job.against))
            for place, side in enumerate(job.sides)
        ]
        self._own = {spec: own_metric(spec) for spec in job.metrics}

    def work(self, chunk: Chunk) -> Done:
        """Run a chunk. Raises CallError where a metric does not fit; what one sample does wrong is a Failure."""
        failures, good = [], []
        for place, sample in enumerate(chunk.samples, chunk.first):
            if isinstance(sample.feed, QrunError):
                failures.append(_failure(place, sample, None, sample.feed))
            else:
                good.append((place, sample, sample.feed))
        feeds = [feed for _, _, feed in good]
        found: list[list[dict[str, Array] | QrunError]] = [run.all(feeds, self.job.batch) for run in self._runs]
        ran, rows = [], []
        for at, (place, sample, _) in enumerate(good):
            results = [side[at] for side in found]
            errors = [(side, r) for side, r in enumerate(results) if isinstance(r, QrunError)]
            failures += [_failure(place, sample, side, error) for side, error in errors]
            if not errors:
                ran.append(place)
                rows.append([result for result in results if isinstance(result, dict)])
        labels = {place: sample.label for place, sample, _ in good}
        columns = tuple(self._columns(chunk, ran, rows, labels, model) for model in range(len(self.job.against)))
        kept = tuple(_joined([row[model] for row in rows]) for model in range(len(columns))) if self.job.keep else ()
        where = chunk.index, chunk.first, len(chunk.samples)
        times = tuple(run.timed() for run in self._runs[: len(self.job.against)])
        return Done(*where, columns, tuple(failures), kept, tuple(ran), self._health(), times)

    def _health(self) -> dict[int, InnerCounts]:
        """What was counted in the models since this was asked last."""
        return (
            {} if not self.job.health else {place: run.counted() for place, run in enumerate(self._runs) if run.counts}
        )

    def _columns(
        self,
        chunk: Chunk,
        ran: Sequence[int],
        rows: Sequence[Sequence[dict[str, Array]]],
        labels: Mapping[int, Label | None],
        model: int,
    ) -> dict[str, Array]:
        against = self.job.against[model]
        made: dict[str, Array] = {}
        for place, row in zip(ran, rows, strict=True):
            reference = None if against is None else row[against]
            for name, value in measured(row[model], reference, labels[place], self._own).items():
                column = made.setdefault(name, np.full(len(chunk.samples), np.nan))
                column[place - chunk.first] = value
        return made


class _Run:
    """One side, made ready when its first sample comes."""

    def __init__(self, side: RuntimeModel, job: Job, threads: int | None, counts: bool) -> None:
        self._side, self._job, self._threads = side, job, threads
        self.counts = InnerCounts.none() if counts else None
        self._times: list[float] = []

    def counted(self) -> InnerCounts:
        """The counts, which begin again."""
        assert self.counts is not None
        found, self.counts = self.counts, InnerCounts.none()
        return found

    def timed(self) -> tuple[float, ...]:
        """Seconds a sample of each plain run since this was asked last."""
        found, self._times = tuple(self._times), []
        return found

    @cached_property
    def model(self) -> Model:
        return load(self._side.model)

    @cached_property
    def axis(self) -> Axis:
        return Axis.of(self.model)

    @cached_property
    def _plain(self) -> bool:
        """Are all outputs tensors, which the shortest way of a session returns as they are?"""
        return all(value.kind == "tensor" for value in self.model.outputs)

    @cached_property
    def _session(self) -> Session | Peer:
        job, side = self._job, self._side
        limits: Any = {"max_memory": job.max_memory, "max_time": job.max_time}
        if side.runtime:
            from qrun.peers import Peer

            data = side.model if isinstance(side.model, bytes) else None
            return Peer(self.model, side.runtime, data=data, threads=self._threads, **limits)
        return Session(self.model, backend=job.backend, arith=job.arith, threads=self._threads, **limits)

    def all(self, feeds: Sequence[Feed], batch: int) -> list[dict[str, Array] | QrunError]:
        """The outputs of each feed, by name and with a batch axis of one; or why there are none."""
        size = self.axis.size or (batch if self.axis.size is None else 1)
        _ = self._session  # a model that cannot be run at all is no fault of a sample
        found: list[dict[str, Array] | QrunError] = []
        for start in range(0, len(feeds), size):
            group = feeds[start : start + size]
            try:
                found += self._group(group)
            except QrunError:
                found += [self._alone(feed) for feed in group]
        return found

    def _alone(self, feed: Feed) -> dict[str, Array] | QrunError:
        try:
            return self._group([feed])[0]
        except QrunError as error:
            return error

    def _group(self, group: Sequence[Feed]) -> list[dict[str, Array]]:
        rows = len(group)
        named = [renamed(self.model, feed) for feed in group]
        if self.axis.size:  # the last group may be short: its last sample fills the batch
            named += named[-1:] * (self.axis.size - rows)
        feed = (
            named[0] if len(named) == 1 else {key: _joined_axis(key, [each[key] for each in named]) for key in named[0]}
        )
        outputs = self._execute(feed, len(named))
        if len(named) == 1:
            return [outputs]
        cut = {name: batch_rows(value, len(named)) for name, value in outputs.items()}
        for name, found in cut.items():
            if found is None:
                raise CallError(
                    "QR005",
                    f"output {name!r} has no batch axis",
                    where=[self.model.label],
                    facts=[("expected", f"{len(named)} rows"), ("got", describe(outputs[name]))],
                    fixes=["--batch 1"],
                )
        return [{name: found[row] for name, found in cut.items() if found} for row in range(rows)]

    def _execute(self, feed: Feed, rows: int) -> dict[str, Array]:
        if self.counts is not None and isinstance(self._session, Session):
            result = self._session.watch(feed, self.counts.see)
            self.counts.add(result)
            return dict(result.outputs)
        if not isinstance(self._session, Session):
            return dict(self._session.execute(feed).outputs)
        start = perf_counter()
        outputs = self._session.run(feed) if self._plain else self._session.values(feed)
        self._times.append((perf_counter() - start) / rows)
        return outputs


def _joined_axis(name: str, arrays: Sequence[Array]) -> Array:
    try:
        return np.concatenate(arrays)
    except ValueError as error:
        raise CallError(
            "QR003",
            f"samples of input {name!r} do not fit into one batch",
            facts=[("got", str(error))],
            fixes=["--batch 1"],
        ) from None


def _joined(rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Of each tensor one array with all rows, where their shapes allow that; else the rows one by one: ``y/0``."""
    apart = [tensors(row) for row in rows]
    made: dict[str, Array] = {}
    for name in dict.fromkeys(name for row in apart for name in row):
        arrays = {at: np.asarray(row[name]) for at, row in enumerate(apart) if name in row}
        alike = len({(array.shape, array.dtype) for array in arrays.values()}) == 1
        if not alike or len(arrays) < len(rows):
            made |= {f"{name}/{at}": array for at, array in arrays.items()}
        else:
            rows_of_one = arrays[0].ndim > 0 and arrays[0].shape[0] == 1
            made[name] = (np.concatenate if rows_of_one else np.stack)(list(arrays.values()))
    return made


def _failure(place: int, sample: Sample, side: int | None, error: QrunError) -> Failure:
    got = dict(error.facts).get("got", "")
    return Failure(place, sample.name, side, error.code, error.name, f"{error.message}{f': got {got}' if got else ''}")


def described(job: Job) -> dict[str, Any]:
    """The job for a person, and for `Store`: two that differ here have other results."""
    return {
        "batch": job.batch,
        "metrics": list(job.metrics),
        "backend": job.backend,
        "arith": job.arith,
        "keep": job.keep,
        "health": job.health,
        "against": list(job.against),
        "runtimes": [side.runtime for side in job.sides],
    }
