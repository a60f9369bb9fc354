"""Samples cut into chunks, the portions that workers take; feeds fitted to a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice
from typing import Any

import numpy as np

from qrun.errors import CallError
from qrun.evaluating.labels import as_label
from qrun.evaluating.samples import Axis, DataSet, Sample, StreamedSamples, renamed
from qrun.evaluating.wishes import Setup
from qrun.evaluating.work import Chunk, described
from qrun.io.feeds import check_feeds
from qrun.io.storable import digest
from qrun.ir import Array, Model

CHUNK_BYTES, CHUNK_SAMPLES = 1 << 24, 256
"""About how much goes to a worker at once, and how many samples at most."""


class SampleChunks:
    """Samples in chunks of whole batches. size: of a chunk, which the first sample decides; total: samples, or None."""

    def __init__(self, samples: DataSet | StreamedSamples, setup: Setup, batch: int) -> None:
        self._samples, self._setup = samples, setup
        self._iterator = iter(samples) if isinstance(samples, StreamedSamples) else None
        if isinstance(samples, StreamedSamples):
            self.total = None
            self.first = next(self._iterator, None) if self._iterator is not None else None
        else:
            known = len(samples) if setup.order is None else len(setup.order)
            self.total = known if setup.wishes.limit is None else min(known, setup.wishes.limit)
            self.first = samples.read(self._place(0)) if self.total else None
        feed = self.first.feed if self.first is not None else {}
        nbytes = sum(array.nbytes for array in feed.values()) if isinstance(feed, Mapping) else 0
        self.size = max(min(CHUNK_BYTES // max(nbytes, 1), CHUNK_SAMPLES) // batch, 1) * batch

    def identity(self) -> dict[str, Any]:
        """All that decides the results of a chunk, for `Store` to compare."""
        setup = self._setup
        return {
            **described(setup.job),
            "models": [digest for _, digest, _ in setup.rows],
            "samples": getattr(self._samples, "identity", "Python"),
            "chunk": self.size,
            "limit": setup.wishes.limit,
            "labels": None if setup.labels is None else digest(setup.labels),
            "order": None if setup.order is None else digest(np.array(setup.order)),
        }

    def _place(self, place: int) -> int:
        return place if self._setup.order is None else int(self._setup.order[place])

    def chunks(self, kept: Callable[[int], bool]) -> Iterator[Chunk]:
        """All chunks that are not kept, in order. kept: asked about each chunk's index as the chunk comes."""
        if self._iterator is not None:
            yield from (chunk for chunk in self._streamed() if not kept(chunk.index))
            return
        assert self.total is not None
        for index, start in enumerate(range(0, self.total, self.size)):
            if not kept(index):
                stop = min(start + self.size, self.total)
                yield Chunk(index, start, tuple(self._read(place) for place in range(start, stop)))

    def good(self) -> Iterator[Mapping[str, Array]]:
        """The samples that can be read; of streamed ones only the first."""
        streamed = isinstance(self._samples, StreamedSamples)
        samples = filter(None, [self.first]) if streamed else map(self._read, range(self.total or 0))
        return (sample.feed for sample in samples if isinstance(sample.feed, Mapping))

    def again(self, place: int) -> Sample | None:
        """The sample at this place, read again; None where samples come only once."""
        return None if isinstance(self._samples, StreamedSamples) else self._read(place)

    def count(self, index: int) -> int:
        """Samples of a chunk."""
        return self.size if self.total is None else min(self.size, self.total - index * self.size)

    def _read(self, place: int) -> Sample:
        assert not isinstance(self._samples, StreamedSamples)
        at = self._place(place)
        sample = self._samples.read(at)
        labels = self._setup.labels
        return sample if labels is None else replace(sample, label=as_label(labels[at], labels.dtype.kind == "O"))

    def _streamed(self) -> Iterator[Chunk]:
        assert self._iterator is not None
        labels, limit = self._setup.labels, self._setup.wishes.limit
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
                        fixes=["give one label for each sample, in their order, or leave out --labels"],
                    )
                held = tuple(
                    replace(s, label=as_label(labels[first + at], labels.dtype.kind == "O"))
                    for at, s in enumerate(held)
                )
            yield Chunk(index, first, held)


def check_first(models: Sequence[Model], sample: Sample | None) -> None:
    """Does the first sample fit the models' inputs? Raises CallError, before anything is run."""
    if sample is None or not isinstance(sample.feed, Mapping):
        return
    for model in models:
        feed = fitting_feed(model, sample.feed)
        check_feeds(model, feed, dict.fromkeys(feed, sample.name))


def fitting_feed(model: Model, feed: Mapping[str, Array]) -> Mapping[str, Array]:
    """The feed under the model's input names, repeated along the batch axis if the model fixes a batch size."""
    feed = renamed(model, feed)
    size = Axis.of(model).size
    return {name: np.repeat(array, size, axis=0) for name, array in feed.items()} if size and size > 1 else feed
