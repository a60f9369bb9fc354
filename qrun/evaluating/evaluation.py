"""Evaluates models over samples: adds up the results of workers to scores with their intervals, differences between
models, and the samples that differ most."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from statistics import median
from time import perf_counter

from qrun.declare import InNotebook
from qrun.declare.frozen import frozen
from qrun.documents.record import optional_field
from qrun.errors import choose
from qrun.evaluating.chunks import SampleChunks, fitting_feed
from qrun.evaluating.crews import dask, processes, serial
from qrun.evaluating.health import Health, InnerCounts, health
from qrun.evaluating.job import Chunk, Done, Failure, Setup
from qrun.evaluating.samples import Axis, DataSet, StreamedSamples
from qrun.evaluating.statistics import Interval
from qrun.evaluating.store import Store
from qrun.evaluating.tally import CONFUSED, TITLES, Apart, ClassScore, Confusion, Paired, PairedDifference, Score, Tally
from qrun.evaluating.tokentally import PositionScore, TokenPairs, TokenTally
from qrun.memory import ResourceLimits
from qrun.running.cpus import usable_cpus
from qrun.running.session import Session

TRIED = 2
"""Chunks that run here before more processes are started: the first may load and compile, so the second is timed."""
WORTH = 3.0
"""Seconds of work above which more processes pay off; they take about half a second to start."""
FAILURES = 100
"""The most failures that are reported in full."""
SHOWING = 16
"""The most samples that run again to compute the values before rounding of tensors with few codes."""
TIMED = 4
"""The fewest runs from which a time is reported; the later half of them counts."""
Progress = Callable[["Running"], None]


@frozen
class ModelScores:
    """The scores of one model. label: its name; failed: samples that it could not run; health: if it was requested;
    classes, confused: with labels that are numbers. positions: of language models."""

    label: str
    sha256: str
    scores: tuple[Score, ...]
    differences: tuple[PairedDifference, ...]
    worst: tuple[Apart, ...]
    failed: int
    health: Health | None = optional_field(None)
    classes: tuple[ClassScore, ...] = optional_field(())
    confused: tuple[Confusion, ...] = optional_field(())
    positions: tuple[PositionScore, ...] = optional_field(())


@frozen
class Evaluation(InNotebook):
    """The result of evaluating models over samples.

    source:    where the samples come from. samples: the number evaluated; readable: the number of these that were read.
    against:   the reference of the models, "" without one. failures: the first failures; failed: failed samples.
    stopped:   why not all samples were evaluated, "" if they were.
    seconds:   time of this call; resumed: the number of samples from an earlier call; workers: processes.
    seconds_per_sample: for each model the time of a plain run (for language models: of a token), the median of the
               later half of its runs; None for fewer than four runs, in another runtime, and while health is counted.
    converted: the inputs of the first sample that were made of images or cast, and how; options: what other commands
               need to read the samples in the same way. arith: the arithmetic of the models.
    tokens:    for language models, the number of tokens that each of them predicts; their samples are sequences.
    """

    source: str
    samples: int
    readable: int
    against: str
    models: tuple[ModelScores, ...]
    failures: tuple[Failure, ...]
    failed: int
    stopped: str
    seconds: float
    samples_per_second: float
    resumed: int
    workers: int
    seconds_per_sample: tuple[float | None, ...]
    converted: tuple[str, ...] = optional_field(())
    options: tuple[str, ...] = optional_field(())
    arith: str = optional_field("exact")
    tokens: int = optional_field(0)

    def __repr__(self) -> str:
        names = ", ".join(model.label for model in self.models[:3]) + (", ..." if len(self.models) > 3 else "")
        scores = [f"{s.metric} {s.value:.4g}" for model in self.models[:1] for s in model.scores[:2]]
        counts = [f"{self.samples} sample{'s' * (self.samples != 1)}", *([f"{self.failed} failed"] * bool(self.failed))]
        return f"<qrun.Evaluation {names}: {', '.join([*counts, *scores])}>"

    @property
    def stopped_by(self) -> Failure | None:
        """The failure that ended an evaluation with fail_fast."""
        return next((failure for failure in self.failures if self.stopped == f"{failure.sample} failed"), None)

    def score(self, model: int, metric: str) -> Score | None:
        """The first score of this metric, or None if the evaluation did not compute it. metric: a name of `Score`, or
        the name in tables, such as ``top-1``; CallError if there is no such metric."""
        scores = self.models[model].scores
        name = next((key for key, title in TITLES.items() if title == metric), metric)
        if name not in TITLES:
            choose("metric", name, list(dict.fromkeys([*(score.metric for score in scores), *TITLES])))
        return next((score for score in scores if score.metric == name), None)

    def agreement(self, model: int) -> Score | None:
        """How often a model agrees with its reference: the first `argmax` score, or for strings the first `equal`, or
        for language models `next_token`."""
        return self.score(model, "argmax") or self.score(model, "equal") or self.score(model, "next_token")


@frozen
class Running:
    """The progress of an evaluation. done, total: samples, total None if not known; left: remaining seconds, or None;
    headline, metric: the score to show meanwhile, if there is one."""

    done: int
    total: int | None
    per_second: float
    left: float | None
    headline: Interval | None
    metric: str


class Evaluator:
    """Adds up the results of chunks. `_Walk` passes them in the order of the samples.

    rows: the label, SHA-256 and output names of each model. to: for each model, the place of the model that its scores
    are compared with, or None. classes: the names of the classes, as far as known. tokens: are samples sequences of
    tokens?
    """

    def __init__(
        self,
        rows: Sequence[tuple[str, str, Sequence[str]]],
        to: Sequence[int | None],
        classes: Sequence[str] = (),
        tokens: bool = False,
    ) -> None:
        self._rows, self._to, self._classes = rows, to, classes
        self.tallies: Sequence[Tally | TokenTally]
        self._paired: Mapping[int, Paired | TokenPairs]
        pairs = [(place, other) for place, other in enumerate(to) if other is not None]
        if tokens:
            self.tallies = made = [TokenTally(outputs[0]) for _, _, outputs in rows]
            self._paired = {place: TokenPairs(made[other], made[place]) for place, other in pairs}
        else:
            self.tallies = [Tally(outputs) for _, _, outputs in rows]
            self._paired = {place: Paired() for place, _ in pairs}
        self._counts: dict[int, InnerCounts] = {}
        self._times: list[list[float]] = [[] for _ in rows]
        self.samples = 0
        self.failed = self.unreadable = 0
        self.failures: list[Failure] = []

    def add(self, done: Done, names: Mapping[int, str]) -> None:
        """Add the next chunk's results. names: the known names of its samples, by place."""
        self.samples += done.count
        self.failed += len({failure.place for failure in done.failures})
        self.unreadable += len({failure.place for failure in done.failures if failure.side is None})
        self.failures += done.failures[: max(FAILURES - len(self.failures), 0)]
        for failure in done.failures:
            if failure.side is not None and failure.side < len(self.tallies):
                self.tallies[failure.side].failed += 1
        for tally, columns in zip(self.tallies, done.columns, strict=False):
            tally.add(done, columns, names)
        for kept, times in zip(self._times, done.times, strict=False):
            kept += times
        for place, counts in done.health.items():
            self._counts.setdefault(place, InnerCounts()).merge(counts)
        for place, paired in self._paired.items():
            if place < len(done.columns):
                paired.add(done.columns[self._to[place] or 0], done.columns[place])

    @property
    def tokens(self) -> int:
        """The number of tokens that each language model predicted."""
        return max((tally.tokens for tally in self.tallies if isinstance(tally, TokenTally)), default=0)

    @property
    def seconds_per_sample(self) -> tuple[float | None, ...]:
        """For each model, the median of its runs; the earlier half, which may load and compile, does not count."""
        return tuple(median(t[len(t) // 2 :]) if len(t) >= TIMED else None for t in self._times)

    def headline(self) -> tuple[str, Interval | None]:
        """The score to show meanwhile, with its interval: the first score of the first model that is a share."""
        for tally in self.tallies:
            for score in tally.shares():
                return score.metric, Interval(score.value, score.low or 0.0, score.high or 0.0)
        return "", None

    def models(self, health_of: Callable[[int, InnerCounts], Health]) -> tuple[ModelScores, ...]:
        """The scores of every model. health_of: computes a model's Health from its place and its counts."""
        made = []
        for place, ((label, sha256, _), tally) in enumerate(zip(self._rows, self.tallies, strict=True)):
            to = self._to[place]
            differences = () if to is None else tuple(self._paired[place].differences(to))
            worst = tuple(entry[-1] for entry in sorted(tally.worst, reverse=True))
            made.append(
                ModelScores(
                    label,
                    sha256,
                    tuple(tally.scores()),
                    differences,
                    worst,
                    tally.failed,
                    health_of(place, self._counts[place]) if place in self._counts else None,
                    tally.classes(self._classes),
                    tally.confused(self._classes)[:CONFUSED],
                    tally.positions() if isinstance(tally, TokenTally) else (),
                )
            )
        return tuple(made)


def walk(
    setup: Setup,
    samples: DataSet | StreamedSamples,
    folder: str = "",
    resume: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Run the models of a setup on samples.

    folder: where finished chunks are kept, "" for nowhere. Raises CallError if samples or metrics do not fit the
    models, and whatever workers raise. The result lists failed samples; with fail_fast the first failure is the end.
    """
    axis = Axis(1) if setup.job.decoders else Axis.of(setup.models[0])
    batch = axis.size or (setup.job.wishes.batch if axis.size is None else 1)
    source = SampleChunks(samples, setup, batch)
    store = Store(folder, source.identity(), resume) if folder else None
    kept = store.finished_chunks() if store is not None else set()
    return _Walk(setup, source, store, kept).finish(samples.source, progress)


class _Walk:
    """Takes every chunk once, from the store or from workers, and counts them in order."""

    def __init__(self, setup: Setup, source: SampleChunks, store: Store | None, kept: set[int]) -> None:
        self._setup, self._source, self._store, self._kept = setup, source, store, set(kept)
        self._counted = Evaluator(setup.rows, setup.to, setup.classes, bool(setup.job.decoders))
        self._early: dict[int, Done] = {}
        self._names: dict[int, str] = {}
        self._next = 0
        self.ran = self.resumed = 0
        self.workers = 1

    def finish(self, where: str, progress: Progress | None) -> Evaluation:
        begin, stopped = perf_counter(), ""
        self._advance()
        done = self._worker_results()
        try:
            for each in done:
                if self._store is not None:
                    self._store.write(each)
                    each = replace(each, outputs=())
                self.ran += each.count
                self._early[each.index] = each
                self._advance()
                stopped = self._enough()
                if progress is not None:
                    progress(self._state(perf_counter() - begin))
                if stopped:
                    break
        finally:
            done.close()
        seconds = perf_counter() - begin
        counted = self._counted
        return Evaluation(
            where,
            counted.samples,
            counted.samples - counted.unreadable,
            self._setup.against,
            tuple(self._name_worst(model) for model in counted.models(self._health)),
            tuple(counted.failures),
            counted.failed,
            stopped,
            seconds,
            self.ran / seconds if seconds else 0.0,
            self.resumed,
            self.workers,
            counted.seconds_per_sample,
            *self._conversion(),
            self._setup.job.wishes.arith,
            counted.tokens,
        )

    def _conversion(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """How the first sample's inputs were converted, and the options that say so."""
        converted, wishes = self._source.first.converted if self._source.first else (), self._setup.job.wishes
        image = ("--image", *wishes.image) if wishes.image else ()
        return converted, (*image, *(["--cast"] if wishes.cast else [])) if converted else ()

    def _name_worst(self, model: ModelScores) -> ModelScores:
        """The scores with the names of the worst samples, and the SPECs that pass these to other commands."""
        again = ((apart, self._source.again(apart.place)) for apart in model.worst)
        worst = [replace(apart, sample=s.name, inputs=s.specs) if s is not None else apart for apart, s in again]
        return replace(model, worst=tuple(worst))

    def _health(self, place: int, counts: InnerCounts) -> Health:
        model = self._setup.models[place]
        samples = [fitting_feed(model, feed) for feed in islice(self._source.good(), SHOWING)]
        wishes = self._setup.job.wishes
        limits: ResourceLimits = {"max_memory": wishes.max_memory, "max_time": wishes.max_time}
        session = Session(model, backend=wishes.backend, arith=wishes.arith, **limits)
        return health(model, counts, session.execute(samples[0]), samples)

    def _worker_results(self) -> Generator[Done]:
        """Yield the workers' results for the chunks that are not kept."""
        job, wishes = self._setup.job, self._setup.job.wishes
        chunks = self._note_names(self._source.chunks(self.is_kept))
        if wishes.dask:
            yield from dask(job, chunks, wishes.dask)
            return

        jobs, here = wishes.jobs, serial(job, chunks, wishes.threads)
        if jobs is None:
            per_sample = 0.0
            for _ in range(TRIED):
                start, before = perf_counter(), self.ran
                yield from islice(here, 1)
                seconds = perf_counter() - start
                per_sample = seconds / (self.ran - before) if self.ran > before else per_sample
                if seconds > WORTH:
                    break
            left = None if self._source.total is None else self._source.total - self._counted.samples
            jobs = usable_cpus() if left is None or left * per_sample > WORTH else 1
        self.workers = jobs
        yield from here if jobs == 1 else processes(job, chunks, jobs)

    def _note_names(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            self._names |= {place: sample.name for place, sample in enumerate(chunk.samples, chunk.first)}
            yield chunk

    def _advance(self) -> None:
        """Add finished chunks to the scores, in order, up to the first missing one."""
        while (done := self._early.pop(self._next, None) or self._read_stored(self._next)) is not None:
            places = range(done.first, done.first + done.count)
            self._counted.add(done, {place: self._names.pop(place) for place in places if place in self._names})
            self._next += 1

    def is_kept(self, index: int) -> bool:
        """Is this chunk already counted, or in the store and undamaged?"""
        if index < self._next or index in self._early:
            return True
        done = self._read_stored(index)
        if done is not None:
            self._early[index] = done
        return done is not None

    def _read_stored(self, index: int) -> Done | None:
        """A chunk from the store, read once; None if it is missing or damaged, so that a worker must compute it."""
        if self._store is None or index not in self._kept:
            return None
        self._kept.discard(index)
        done = self._store.read(index)
        if done is None or done.count != self._source.count(index):
            return None
        self.resumed += done.count
        return done

    def _enough(self) -> str:
        wishes, (metric, found) = self._setup.job.wishes, self._counted.headline()
        if wishes.fail_fast and self._counted.failures:
            return f"{min(self._counted.failures, key=lambda failure: failure.place).sample} failed"
        if wishes.until_sure is not None and found is not None and found.width <= wishes.until_sure:
            return f"{metric} has a 95 % interval of {found.width * 100:.2g} points"
        return ""

    def _state(self, seconds: float) -> Running:
        metric, found = self._counted.headline()
        rate = self.ran / seconds if seconds else 0.0
        done, total = self.ran + self.resumed, self._source.total
        left = None if total is None or not rate else max(total - done, 0) / rate
        return Running(done, total, rate, left, found, metric)
