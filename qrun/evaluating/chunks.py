"""Cuts samples into chunks for workers, and checks the first sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from qrun.errors import CallError, QrunError
from qrun.evaluating.job import Chunk, Setup, describe_job
from qrun.evaluating.samples import Axis, DataSet, Sample, StreamedSamples, as_label, rename_inputs
from qrun.io.feeds import check_feeds
from qrun.io.storable import digest
from qrun.ir import Array, Model

CHUNK_BYTES, CHUNK_SAMPLES = 1 << 24, 256
"""The approximate size in bytes of a chunk, which goes to a worker at once, and its most samples."""
CHUNK_TOKENS = 512
"""The approximate number of tokens of a chunk of sequences: less is lost if a call is interrupted."""


class SampleChunks:
    """Cuts samples into chunks of whole batches. size: samples per chunk; total: all samples, None if not known."""

    def __init__(self, samples: DataSet | StreamedSamples, setup: Setup, batch: int) -> None:
        self._samples, self._setup = samples, setup
        self._iterator = iter(samples) if isinstance(samples, StreamedSamples) else None
        if isinstance(samples, StreamedSamples):
            self.total = None
            self.first = next(self._iterator, None) if self._iterator is not None else None
        else:
            known = len(samples) if setup.order is None else len(setup.order)
            self.total = known if setup.job.wishes.limit is None else min(known, setup.job.wishes.limit)
            self.first = samples.read(self._place(0)) if self.total else None
        feed = self.first.feed if self.first is not None else {}
        nbytes = sum(array.nbytes for array in feed.values()) if isinstance(feed, Mapping) else 0
        most = CHUNK_BYTES if not setup.job.decoders else CHUNK_TOKENS * 8
        self.size = max(min(most // max(nbytes, 1), CHUNK_SAMPLES) // batch, 1) * batch

    def identity(self) -> dict[str, Any]:
        """Everything that determines the results of a chunk, for `Store` to compare."""
        setup = self._setup
        return {
            **describe_job(setup.job),
            "models": [digest for _, digest, _ in setup.rows],
            "samples": getattr(self._samples, "identity", "Python"),
            "chunk": self.size,
            "limit": setup.job.wishes.limit,
            "labels": None if setup.labels is None else digest(setup.labels),
            "order": None if setup.order is None else digest(np.array(setup.order)),
        }

    def _place(self, place: int) -> int:
        return place if self._setup.order is None else int(self._setup.order[place])

    def chunks(self, kept: Callable[[int], bool]) -> Iterator[Chunk]:
        """Yield all chunks that are not kept, in order. kept: called with each chunk's index when its turn comes."""
        if self._iterator is not None:
            yield from (chunk for chunk in self._stream() if not kept(chunk.index))
            return
        assert self.total is not None
        for index, start in enumerate(range(0, self.total, self.size)):
            if not kept(index):
                stop = min(start + self.size, self.total)
                yield Chunk(index, start, tuple(self._read(place) for place in range(start, stop)))

    def good(self) -> Iterator[Mapping[str, Array]]:
        """The feeds of the samples that can be read; for streamed samples only the first."""
        streamed = isinstance(self._samples, StreamedSamples)
        samples = filter(None, [self.first]) if streamed else map(self._read, range(self.total or 0))
        return (sample.feed for sample in samples if isinstance(sample.feed, Mapping))

    def again(self, place: int) -> Sample | None:
        """The sample at this place, read again; None for streamed samples, which come only once."""
        return None if isinstance(self._samples, StreamedSamples) else self._read(place)

    def count(self, index: int) -> int:
        """The number of samples in a chunk."""
        return self.size if self.total is None else min(self.size, self.total - index * self.size)

    def _read(self, place: int) -> Sample:
        assert not isinstance(self._samples, StreamedSamples)
        at = self._place(place)
        sample = self._samples.read(at)
        labels = self._setup.labels
        return sample if labels is None else replace(sample, label=as_label(labels[at], labels.dtype.kind == "O"))

    def _stream(self) -> Iterator[Chunk]:
        assert self._iterator is not None
        labels, limit = self._setup.labels, self._setup.job.wishes.limit
        rest = chain([self.first] if self.first is not None else [], self._iterator)
        taken = islice(rest, limit)
        for index in count():
            held, first = tuple(islice(taken, self.size)), index * self.size
            if not held:
                return
            if labels is not None:
                if first + len(held) > len(labels):
                    raise CallError(
                        "QR003",
                        f"{len(labels)} labels for {first + len(held)} samples or more",
                        facts=[("expected", f"at least {first + len(held)} labels"), ("got", str(len(labels)))],
                        fixes=["give one label for each sample, in their order, or omit --labels"],
                    )
                held = tuple(
                    replace(s, label=as_label(labels[first + at], labels.dtype.kind == "O"))
                    for at, s in enumerate(held)
                )
            yield Chunk(index, first, held)


_NOT_STATED = ("QR005", "QR012")
"""Errors that every sample has: the call does not say how to read images, or Pillow is missing."""


def check_first(models: Sequence[Model], sample: Sample | None) -> None:
    """Check that the first sample fits the models' inputs, before anything runs. Raises QrunError if not."""
    if sample is not None and isinstance(sample.feed, QrunError) and sample.feed.code in _NOT_STATED:
        raise sample.feed
    if sample is None or not isinstance(sample.feed, Mapping):
        return
    for model in models:
        feed = fitting_feed(model, sample.feed)
        check_feeds(model, feed, dict.fromkeys(feed, sample.name))


def fitting_feed(model: Model, feed: Mapping[str, Array]) -> Mapping[str, Array]:
    """The feed under the model's input names, repeated along the batch axis if the model fixes a batch size."""
    feed = rename_inputs(model, feed)
    axis = Axis.of(model)
    axis.check_rows(model, feed)
    size = axis.size
    return {name: np.repeat(array, size, axis=0) for name, array in feed.items()} if size and size > 1 else feed
