"""The work on one chunk of samples: a worker runs it through all models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from qrun.errors import CallError, QrunError
from qrun.evaluating.decoding import logits_of
from qrun.evaluating.health import InnerCounts
from qrun.evaluating.job import Chunk, Done, Failure, Job
from qrun.evaluating.likelihood import score_tokens, table
from qrun.evaluating.metrics import compute_metrics, own_metric
from qrun.evaluating.samples import Axis, Feed, Label, Sample, rename_inputs
from qrun.evaluating.tokens import TOKENS, sequence_of
from qrun.io.decoder import Decoder
from qrun.ir import Array, Model
from qrun.ir.compound import batch_rows, tensors
from qrun.ir.load import load
from qrun.ir.types import describe
from qrun.ops._plugins import load_custom
from qrun.running.session import Session

if TYPE_CHECKING:
    from qrun.peers import Peer

LOGITS = "logits"
"""The name under which a run of a decoder returns its logits."""


class Worker:
    """Runs the models of a job. threads: the number for each model."""

    def __init__(self, job: Job, threads: int | None = None) -> None:
        for path in job.custom:
            load_custom(path)
        self.job = job
        self._threads = threads
        self._runs = [
            _Run(place, job, threads, job.wishes.health and not side.runtime and place < len(job.against))
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
        models = range(len(self.job.against))
        if self.job.decoders:
            columns = tuple(self._token_columns(chunk, ran, rows, model) for model in models)
        else:
            columns = tuple(self._columns(chunk, ran, rows, labels, model) for model in models)
        wanted = models if self.job.wishes.output and not self.job.decoders else ()
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

    def _token_columns(
        self, chunk: Chunk, ran: Sequence[int], rows: Sequence[Sequence[dict[str, Array]]], model: int
    ) -> dict[str, Array]:
        against = self.job.against[model]
        scored: list[dict[str, Array] | None] = [None] * len(chunk.samples)
        for place, row in zip(ran, rows, strict=True):
            at = place - chunk.first
            own, other = row[model][LOGITS], None if against is None else row[against][LOGITS]
            targets = sequence_of(chunk.samples[at])[0, 1:]
            scored[at] = score_tokens(own[:-1], None if other is None else other[:-1], targets)
        return table(scored)


class _Run:
    """Runs one side of a job. It loads the model when the first sample comes."""

    def __init__(self, place: int, job: Job, threads: int | None, counts: bool) -> None:
        self._side, self._job, self._threads = job.sides[place], job, threads
        self._decoder = job.decoders[place] if job.decoders else None
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
        if self._decoder is not None:
            return [self._alone(feed) for feed in feeds]
        for start in range(0, len(feeds), size):
            group = feeds[start : start + size]
            try:
                found += self._group(group)
            except QrunError:
                found += [self._alone(feed) for feed in group]
        return found

    def _alone(self, feed: Feed) -> dict[str, Array] | QrunError:
        try:
            return self._group([feed])[0] if self._decoder is None else self._sequence(self._decoder, feed)
        except QrunError as error:
            return error

    def _sequence(self, decoder: Decoder, feed: Feed) -> dict[str, Array]:
        """The logits after each token of a sequence."""
        tokens, start = feed[TOKENS], perf_counter()
        made = logits_of(self._outputs, decoder, tokens, self._job.wishes.step)
        if not self._side.runtime:
            self._times.append((perf_counter() - start) / tokens.size)
        return {LOGITS: made}

    def _outputs(self, feed: Feed, names: Sequence[str]) -> Mapping[str, Array]:
        session = self._session
        return session.run(feed, names) if isinstance(session, Session) else session.execute(feed, names).outputs

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
