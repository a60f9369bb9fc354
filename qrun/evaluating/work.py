"""The work on one chunk of samples: a worker runs it through all models, in this process, in other processes or in a
Dask cluster. Also the records of a call's options (`Wishes`) and results."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.declare.frozen import frozen
from qrun.errors import CallError, QrunError, RunError, UnsupportedError
from qrun.evaluating.health import InnerCounts
from qrun.evaluating.metrics import compute_metrics, own_metric
from qrun.evaluating.samples import Axis, Feed, Label, Sample, rename_inputs
from qrun.ir import Array, Model
from qrun.ir.compound import batch_rows, tensors
from qrun.ir.load import load
from qrun.ir.types import describe
from qrun.ops import Arith
from qrun.ops._plugins import load_custom, loaded_files
from qrun.running.cpus import usable_cpus
from qrun.running.crew import AHEAD, TRIES, run_in_crew
from qrun.running.session import Session

if TYPE_CHECKING:
    from distributed import Client

    from qrun.peers import Peer


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


@frozen
class Job:
    """The work to do for every sample.

    sides:   the models, then their references.
    against: for each model, the place of its reference in `sides`, or None.
    wishes:  the call's options, without its labels.
    custom:  the files of custom operators, which each process loads.
    """

    sides: tuple[RuntimeModel, ...]
    against: tuple[int | None, ...]
    wishes: Wishes
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

    columns:  for each model, the columns of `metrics`, float64 [samples], NaN where a sample failed.
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


class Worker:
    """Runs the models of a job. threads: the number for each model."""

    def __init__(self, job: Job, threads: int | None = None) -> None:
        for path in job.custom:
            load_custom(path)
        self.job = job
        self._threads = threads
        self._runs = [
            _Run(side, job, threads, job.wishes.health and not side.runtime and place < len(job.against))
            for place, side in enumerate(job.sides)
        ]
        self._own = {spec: own_metric(spec) for spec in job.wishes.metrics}

    def work(self, chunk: Chunk) -> Done:
        """Run a chunk. Raises CallError if a metric does not fit; an error of a single sample becomes a Failure."""
        failures, good = [], []
        for place, sample in enumerate(chunk.samples, chunk.first):
            if isinstance(sample.feed, QrunError):
                failures.append(_failure(place, sample, None, sample.feed))
            else:
                good.append((place, sample, sample.feed))
        feeds = [feed for _, _, feed in good]
        found: list[list[dict[str, Array] | QrunError]] = [run.all(feeds, self.job.wishes.batch) for run in self._runs]
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
        wanted = range(len(columns) if self.job.wishes.output else 0)
        kept = tuple(_join_rows([row[model] for row in rows]) for model in wanted)
        where = chunk.index, chunk.first, len(chunk.samples)
        times = tuple(run.take_times() for run in self._runs[: len(self.job.against)])
        return Done(*where, columns, tuple(failures), kept, tuple(ran), self._health(), times)

    def _health(self) -> dict[int, InnerCounts]:
        """The counts inside the models since the last call, by place of the model."""
        runs = enumerate(self._runs) if self.job.wishes.health else ()
        return {place: run.take_counts() for place, run in runs if run.counts}

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
            for name, value in compute_metrics(row[model], reference, labels[place], self._own).items():
                column = made.setdefault(name, np.full(len(chunk.samples), np.nan))
                column[place - chunk.first] = value
        return made


class _Run:
    """Runs one side of a job. It loads the model when the first sample comes."""

    def __init__(self, side: RuntimeModel, job: Job, threads: int | None, counts: bool) -> None:
        self._side, self._job, self._threads = side, job, threads
        self.counts = InnerCounts() if counts else None
        self._times: list[float] = []

    def take_counts(self) -> InnerCounts:
        """Return the counts so far, and start new ones."""
        assert self.counts is not None
        found, self.counts = self.counts, InnerCounts()
        return found

    def take_times(self) -> tuple[float, ...]:
        """The seconds per sample of each plain run since the last call."""
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
        """Are all outputs tensors, so that `Session.run` returns them as they are?"""
        return all(value.kind == "tensor" for value in self.model.outputs)

    @cached_property
    def _session(self) -> Session | Peer:
        wishes, side = self._job.wishes, self._side
        limits: Any = {"max_memory": wishes.max_memory, "max_time": wishes.max_time}
        if side.runtime:
            from qrun.peers import Peer

            data = side.model if isinstance(side.model, bytes) else None
            return Peer(self.model, side.runtime, data=data, threads=self._threads, **limits)
        arith = side.arith or wishes.arith
        return Session(self.model, backend=wishes.backend, arith=arith, threads=self._threads, **limits)

    def all(self, feeds: Sequence[Feed], batch: int) -> list[dict[str, Array] | QrunError]:
        """Run feeds in batches. Returns, for each feed, its outputs by name with a batch axis of one, or the error."""
        size = self.axis.size or (batch if self.axis.size is None else 1)
        _ = self._session  # load first, so that a model that cannot run does not count as a failed sample
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
        named = [rename_inputs(self.model, feed) for feed in group]
        for feed in named:
            self.axis.check_rows(self.model, feed)
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


def _join_rows(rows: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Join the rows of each tensor to one array if their shapes allow it; else keep them one by one: ``y/0``."""
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


ANSWERS = 10.0
"""Seconds to wait for a Dask scheduler's answer."""


def serial(job: Job, chunks: Iterator[Chunk], threads: int | None) -> Iterator[Done]:
    """Run the chunks in this process."""
    worker = Worker(job, threads)
    for chunk in chunks:
        yield worker.work(chunk)


def processes(job: Job, chunks: Iterator[Chunk], jobs: int) -> Iterator[Done]:
    """Run the chunks in `jobs` processes. If a chunk kills its process every time, its samples fail."""
    yield from run_in_crew(partial(_worker, job), chunks, jobs, _lost)


def _worker(job: Job, threads: int) -> Callable[[Chunk], Done]:
    return Worker(job, threads).work


def _lost(chunk: Chunk) -> Done:
    failures = tuple(
        Failure(
            place, sample.name, None, "QR015", "backend-crashed", f"the process that worked on it died {TRIES} times"
        )
        for place, sample in enumerate(chunk.samples, chunk.first)
    )
    return Done(chunk.index, chunk.first, len(chunk.samples), (), failures)


def dask(job: Job, chunks: Iterator[Chunk], address: str) -> Iterator[Done]:
    """Run the chunks on a Dask cluster; ``local:4`` starts one of four processes here.

    Raises UnsupportedError without the package ``distributed``, RunError if the cluster fails. Hides Dask's log
    messages about workers that come and go.
    """
    try:
        import distributed  # noqa: F401 - is it there?
    except ImportError as error:
        raise UnsupportedError(
            "QR012",
            "--dask needs the package distributed",
            facts=[("got", str(error))],
            fixes=["pip install 'onnx-qrun[dask]'"],
        ) from None
    logging.disable(logging.CRITICAL)
    try:
        with _client(address) as client:
            yield from _tasks(client, job, chunks)
    except QrunError:
        raise
    except Exception as error:
        raise RunError(
            "QR011",
            f"the Dask cluster at {address} failed: {type(error).__name__}: {error}",
            fixes=["start it again; with -o DIR, --resume continues from the finished part"],
        ) from None
    finally:
        logging.disable(logging.NOTSET)


def _tasks(client: Client, job: Job, chunks: Iterator[Chunk]) -> Iterator[Done]:
    """Yield the results of all chunks. A chunk whose task the scheduler forgot, as the only worker with the job was
    lost, is submitted again with the job, up to TRIES times."""
    from distributed import as_completed

    def scatter() -> Any:
        return client.scatter([pickle.dumps(job)], broadcast=True)[0]

    def submit(chunk: bytes, tries: int) -> None:
        future = client.submit(_remote, shared, chunk, pure=False, retries=TRIES)
        submitted[future.key] = chunk, tries
        running.add(future)

    shared = scatter()
    room = max(len(client.scheduler_info()["workers"]), 1) * AHEAD
    running = as_completed(with_results=True, raise_errors=False)
    submitted: dict[Any, tuple[bytes, int]] = {}
    more = True
    while more or submitted:
        while more and len(submitted) < room:
            chunk = next(chunks, None)
            more = chunk is not None
            if chunk is not None:
                submit(pickle.dumps(chunk), 1)
        if submitted:
            future, result = next(running)
            packed, tries = submitted.pop(future.key)
            # not the future's status: it may have changed since, if its worker was lost
            error = result[1] if isinstance(result, tuple) else result
            if getattr(error, "reason", "") in _LOST and tries < TRIES:
                shared = scatter()
                submit(packed, tries + 1)
                continue
            if isinstance(error, BaseException):
                raise error
            yield result
            future.release()


_LOST = frozenset(["already forgotten", "lost dependencies"])
"""Why Dask cancels a task whose data was lost with a worker."""


def _client(address: str) -> Client:
    from distributed import Client, LocalCluster

    kind, _, count = address.partition(":")
    try:
        if kind == "local":
            workers = int(count) if count else usable_cpus()
            return Client(LocalCluster(workers, processes=True, threads_per_worker=1, dashboard_address=None))
        return Client(address, timeout=ANSWERS)
    except (OSError, ValueError) as error:
        raise CallError(
            "QR005",
            f"no Dask scheduler answers at {address!r}",
            facts=[("expected", "tcp://HOST:PORT, or local:4"), ("got", str(error))],
        ) from None


_remote_worker: tuple[bytes, Worker] | None = None


def _remote(job: bytes, chunk: bytes) -> Done:
    """Run a chunk in a worker of the cluster, which keeps the models of the last job.
    Job and chunk are pickled, because Dask would take records apart."""
    global _remote_worker
    if _remote_worker is None or _remote_worker[0] != job:
        _remote_worker = job, Worker(pickle.loads(job), 1)
    return _remote_worker[1].work(pickle.loads(chunk))
